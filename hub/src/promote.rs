//! Makes registered files visible, from state and not from the call that brought them.
//!
//! A node works off "the manifest names me" minus "node.db says promoted" by a cursor over the
//! change positions: rename without replacing, sync the folders, then mark. A crash anywhere in
//! between is repeated from the cursor, and a file found in place is believed only by its digest.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;

use crate::error::{Error, chain};
use crate::hub::Clock;
use crate::landing::Landing;
use crate::ledger::{Ledger, PromotedRow};
use crate::manifest::Readers;
use crate::manifest::query::{self, HeldRow};
use crate::staging::Staging;

/// Changes worked off in one step.
const STEP: u32 = 1000;

/// Works off promotions; one a node.
pub struct Promoter {
    pub node_id: u64,
    pub readers: Readers,
    pub ledger: Ledger,
    pub staging: Arc<Staging>,
    pub landing: Landing,
    pub clock: Clock,
}

impl Promoter {
    /// Promotes until the task is dropped; `done` follows the cursor.
    pub async fn run(self: Arc<Self>, mut head: watch::Receiver<u64>, done: watch::Sender<u64>) {
        loop {
            let me = Arc::clone(&self);
            let step = tokio::task::spawn_blocking(move || me.step()).await;
            match step {
                Ok(Ok(cursor)) => {
                    done.send_replace(cursor);
                    if cursor >= *head.borrow_and_update() && head.changed().await.is_err() {
                        return;
                    }
                }
                Ok(Err(e)) => {
                    tracing::error!(error = %chain(&e), "promotion failed; it is tried again");
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
                Err(e) => {
                    tracing::error!(error = %e, "the promotion thread ended");
                    return;
                }
            }
        }
    }

    /// One page of changes (or, below the horizon, a full comparison); the cursor afterwards.
    pub fn step(&self) -> Result<u64, Error> {
        let cursor = self.ledger.promotion_cursor()?;
        let (head, horizon) = self
            .readers
            .read(|c| Ok((query::counter(c, "position")?, query::counter(c, "horizon")?)))?;
        if cursor < horizon {
            self.compare_all()?;
            self.ledger.record_promoted(&[], Some(head), (self.clock)())?;
            return Ok(head);
        }
        let rows = self.readers.read(|c| query::changes_for_node(c, self.node_id, cursor, STEP))?;
        let end = if rows.len() < STEP as usize {
            head.max(cursor)
        } else {
            rows.last().map_or(cursor, |r| r.cursor)
        };
        if end > cursor {
            self.promote(&rows, Some(end))?;
        }
        Ok(end)
    }

    fn compare_all(&self) -> Result<(), Error> {
        let mut after = 0;
        loop {
            let rows = self.readers.read(|c| query::held_by_node(c, self.node_id, after, STEP))?;
            let Some(last) = rows.last() else {
                return Ok(());
            };
            after = last.cursor;
            self.promote(&rows, None)?;
        }
    }

    fn promote(&self, rows: &[HeldRow], cursor: Option<u64>) -> Result<(), Error> {
        let mut promoted: Vec<PromotedRow> = Vec::new();
        for row in rows.iter().filter(|r| r.is_mine) {
            if promoted.iter().any(|p| p.landed == row.landed)
                || self.ledger.is_promoted(&row.landed, &row.sha256)?
            {
                continue;
            }
            match self.promote_one(row) {
                Ok(Some(done)) => promoted.push(done),
                // The staged copy is served meanwhile, and a restart looks again.
                Ok(None) => tracing::error!(
                    path = %barque_bundle::path::printable(&row.landed),
                    "a file cannot be made visible: something else stands at its place in landing; move it away and restart the hub"
                ),
                Err(source) => {
                    let path = self.landing.path(&row.landed);
                    return Err(Error::Io { what: "cannot promote", path, source });
                }
            }
        }
        self.landing
            .sync_folders_of(promoted.iter().map(|p| p.landed.as_str()))
            .map_err(Error::io("cannot sync folders below", self.landing.root()))?;
        self.ledger.record_promoted(&promoted, cursor, (self.clock)())
    }

    /// None when something foreign is in the way.
    fn promote_one(&self, row: &HeldRow) -> io::Result<Option<PromotedRow>> {
        let done = |stage_no| PromotedRow {
            landed: row.landed.clone(),
            sha256: row.sha256,
            size_bytes: row.size_bytes,
            stage_no,
        };
        let staged = self.staging.path(row.stage_no);
        match self.landing.promote(&staged, &row.landed) {
            Ok(()) => Ok(Some(done(Some(row.stage_no)))),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if !self.landing.holds(&row.landed, &row.sha256, row.size_bytes)? {
                    return Ok(None);
                }
                self.staging.remove(row.stage_no)?;
                Ok(Some(done(Some(row.stage_no))))
            }
            // The rename happened before a crash, the mark did not.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let is_there = self.landing.holds(&row.landed, &row.sha256, row.size_bytes)?;
                Ok(is_there.then(|| done(Some(row.stage_no))))
            }
            Err(e) if is_in_the_way(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// A foreign file where a folder has to be, or the other way round.
fn is_in_the_way(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory)
}
