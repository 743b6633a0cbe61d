//! Makes registered files visible, from state and not from the call that brought them.
//!
//! A node works off "the manifest names me" minus "node.db says promoted" by a cursor over the
//! change positions: rename without replacing, sync the folders, then mark. A crash anywhere in
//! between is repeated from the cursor, and a file found in place is believed only by its digest.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use barque_bundle::{fault, platform};
use tokio::sync::watch;

use crate::error::Error;
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
    /// Who promotes: what is known of a page must hold until its folders are synced.
    pub turn: Mutex<()>,
}

impl Promoter {
    /// Promotes until the task is dropped; `done` follows the cursor.
    pub async fn run(self: Arc<Self>, mut head: watch::Receiver<u64>, done: watch::Sender<u64>) {
        let mut failures = 0u32;
        loop {
            let me = Arc::clone(&self);
            let step = tokio::task::spawn_blocking(move || me.step()).await;
            match step {
                Ok(Ok(cursor)) => {
                    failures = 0;
                    done.send_replace(cursor);
                    if cursor >= *head.borrow_and_update() && head.changed().await.is_err() {
                        return;
                    }
                }
                Ok(Err(e)) => {
                    // Once a minute is enough for the log.
                    if failures.is_multiple_of(60) {
                        tracing::error!(error = %e.told(), "promotion failed; it is tried again");
                    }
                    failures += 1;
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

    /// Promotes staged copies that the manifest names and an earlier try left behind.
    pub fn retry_left(&self) -> Result<(), Error> {
        let mut after = 0;
        loop {
            let staged = self.ledger.staged_upto(u64::MAX, after, STEP)?;
            let Some(last) = staged.last() else { return Ok(()) };
            after = last.stage_no;
            let mut rows = Vec::new();
            for row in staged {
                let is_mine = self
                    .readers
                    .read(|c| query::names_stage(c, self.node_id, &row.landed, row.stage_no))?;
                rows.push(HeldRow {
                    cursor: 0,
                    landed: row.landed,
                    sha256: row.sha256,
                    size_bytes: row.size_bytes,
                    is_mine,
                    stage_no: row.stage_no,
                });
            }
            self.promote(&rows, None)?;
        }
    }

    fn promote(&self, rows: &[HeldRow], cursor: Option<u64>) -> Result<(), Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut promoted: Vec<PromotedRow> = Vec::new();
        let (mut renamed, mut done) = (Vec::new(), HashSet::new());
        let mine: Vec<&HeldRow> = rows.iter().filter(|r| r.is_mine).collect();
        let names: Vec<_> = mine.iter().map(|r| (r.landed.as_str(), r.sha256)).collect();
        let before = self.ledger.promoted_of(&names)?;
        for (row, is_promoted) in mine.into_iter().zip(before) {
            if is_promoted || done.contains(row.landed.as_str()) {
                continue;
            }
            match self.promote_one(row) {
                Ok(came) => {
                    if came == Came::Now {
                        renamed.push(row);
                    }
                    promoted.push(promoted_row(row));
                    done.insert(row.landed.as_str());
                }
                // The staged copy is served meanwhile; the hourly sweep and a restart try again.
                Err(Left::File(why)) => tracing::error!(
                    path = %barque_bundle::path::printable(&row.landed),
                    %why,
                    "a file cannot be made visible; others go on"
                ),
                Err(Left::All(source)) => {
                    let path = self.landing.path(&row.landed);
                    return Err(Error::Io { what: "cannot promote", path, source });
                }
            }
        }
        let synced = self.landing.sync_folders_of(promoted.iter().map(|p| p.landed.as_str()));
        if let Err(source) = synced {
            self.take_back(&renamed);
            let path = self.landing.root().to_owned();
            return Err(Error::Io { what: "cannot sync folders below", path, source });
        }
        if !promoted.is_empty() {
            fault::after(fault::Step::PromotedSynced);
        }
        self.ledger.record_promoted(&promoted, cursor, (self.clock)())
    }

    /// Undoes renames whose folders could not be synced: a sync that failed is not believed when
    /// it is merely repeated, so the next try changes the folders anew.
    fn take_back(&self, renamed: &[&HeldRow]) {
        for row in renamed {
            let (from, to) = (self.landing.path(&row.landed), self.staging.path(row.stage_no));
            if let Err(e) = platform::rename_without_replacing(&from, &to) {
                tracing::error!(error = %e, path = %from.display(), "cannot be taken back");
            }
        }
    }

    fn promote_one(&self, row: &HeldRow) -> Result<Came, Left> {
        match self.landing.promote(&self.staging.path(row.stage_no), &row.landed) {
            Ok(()) => {
                fault::after(fault::Step::Promoted);
                Ok(Came::Now)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.adopt(row, "something else stands at its place in landing; move it away")?;
                self.staging.remove(row.stage_no)?;
                Ok(Came::Before)
            }
            // The rename happened before a crash, the mark did not.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                self.adopt(row, "this node's copy is lost: it is in neither staging nor landing")?;
                Ok(Came::Before)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Takes the file found in place for the promoted one, if its content is the registered one.
    fn adopt(&self, row: &HeldRow, otherwise: &str) -> Result<(), Left> {
        // A fault in reading one found file says nothing of the others.
        let own = |e: io::Error| Left::File(e.to_string());
        if !self.landing.holds(&row.landed, &row.sha256, row.size_bytes).map_err(own)? {
            return Err(Left::File(otherwise.to_owned()));
        }
        self.landing.adopt(&row.landed).map_err(own)
    }
}

/// When a file came to its place in landing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// This promotion renamed it.
    Now,
    Before,
}

fn promoted_row(row: &HeldRow) -> PromotedRow {
    PromotedRow {
        landed: row.landed.clone(),
        sha256: row.sha256,
        size_bytes: row.size_bytes,
        stage_no: Some(row.stage_no),
    }
}

/// Why a promotion was left: for this file alone, or for all until the fault is gone.
enum Left {
    File(String),
    All(io::Error),
}

impl From<io::Error> for Left {
    fn from(e: io::Error) -> Self {
        use io::ErrorKind as Kind;
        let is_of_the_file = matches!(
            e.kind(),
            Kind::AlreadyExists
                | Kind::NotFound
                | Kind::NotADirectory
                | Kind::IsADirectory
                | Kind::PermissionDenied
                | Kind::InvalidInput
                | Kind::InvalidFilename
                | Kind::CrossesDevices
        );
        if is_of_the_file || platform::is_link(&e) {
            return Self::File(e.to_string());
        }
        Self::All(e)
    }
}
