//! The node's own ledger in `node.db`: staged copies, promoted files, the promotion cursor.

mod imports;
mod uploads;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use barque_bundle::database::Kind;
use barque_bundle::{Sha256Digest, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use crate::error::Error;
use crate::manifest::query::{digest, signed, unsigned};

const KIND: Kind = Kind {
    schema: include_str!("ledger/schema.sql"),
    migrations: &[
        include_str!("ledger/migrations/2.sql"),
        include_str!("ledger/migrations/3.sql"),
        include_str!("ledger/migrations/4.sql"),
    ],
    synchronous: "FULL",
    journal_bytes: 16 << 20,
    busy_wait: Duration::from_secs(30),
};

pub use imports::{ImportFile, ImportKey};
pub use uploads::{UploadBundle, UploadKey, UploadRow};

const IS_PROMOTED: &str =
    "SELECT EXISTS (SELECT 1 FROM sync_received WHERE path = ?1 AND sha256 = ?2)";

/// A whole, synced file in staging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedRow {
    pub stage_no: u64,
    /// Landed name: `{spoke_id}/{path}`.
    pub landed: String,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
}

/// A file that became visible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotedRow {
    pub landed: String,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    /// The staged copy that it was; none when it was found in place after a crash.
    pub stage_no: Option<u64>,
}

/// A handle on `node.db`; clones share one connection.
#[derive(Clone)]
pub struct Ledger(Arc<Mutex<Connection>>);

fn wrap() -> impl FnOnce(rusqlite::Error) -> Error {
    Error::sql("node.db cannot be used")
}

fn insert_staged(c: &Connection, rows: &[StagedRow], at: Timestamp) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT INTO staged (stage_no, path, sha256, size_bytes, staged_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    for row in rows {
        insert.execute(params![
            signed(row.stage_no),
            row.landed,
            row.sha256.as_bytes(),
            signed(row.size_bytes),
            at.unix_ms()
        ])?;
    }
    Ok(())
}

impl Ledger {
    /// Opens or makes the database; a newer one is refused by name.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let connection = KIND.open(path)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(c: &Connection, name: &str) -> rusqlite::Result<u64> {
        let value: Option<i64> = c
            .query_row("SELECT value FROM state WHERE name = ?1", [name], |r| r.get(0))
            .optional()?;
        Ok(value.map_or(0, unsigned))
    }

    fn set_number(c: &Connection, name: &str, value: u64) -> rusqlite::Result<()> {
        c.execute(
            "INSERT OR REPLACE INTO state (name, value) VALUES (?1, ?2)",
            params![name, signed(value)],
        )?;
        Ok(())
    }

    /// Reserves `n` stage numbers above all that were ever reserved; the first one.
    pub fn reserve_stage_numbers(&self, n: u64) -> Result<u64, Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        let ceiling = Self::number(&tx, "stage_ceiling").map_err(wrap())?;
        Self::set_number(&tx, "stage_ceiling", ceiling + n).map_err(wrap())?;
        tx.commit().map_err(wrap())?;
        Ok(ceiling + 1)
    }

    /// Which start of this node this is, from 1.
    pub fn next_start(&self) -> Result<u64, Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        let start = Self::number(&tx, "starts").map_err(wrap())? + 1;
        Self::set_number(&tx, "starts", start).map_err(wrap())?;
        tx.commit().map_err(wrap())?;
        Ok(start)
    }

    /// How far Raft's log was at the least, and in which term: what this node has told others.
    pub fn raft_mark(&self) -> Result<(u64, u64), Error> {
        let c = self.lock();
        let number = |name| Self::number(&c, name).map_err(wrap());
        Ok((number("raft_index")?, number("raft_term")?))
    }

    pub fn mark_raft(&self, index: u64, term: u64) -> Result<(), Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        Self::set_number(&tx, "raft_index", index).map_err(wrap())?;
        Self::set_number(&tx, "raft_term", term).map_err(wrap())?;
        tx.commit().map_err(wrap())
    }

    /// The highest stage number that was ever reserved.
    pub fn stage_ceiling(&self) -> Result<u64, Error> {
        Self::number(&self.lock(), "stage_ceiling").map_err(wrap())
    }

    /// Records files that are whole and synced in staging; durable when this returns.
    pub fn record_staged(&self, rows: &[StagedRow], at: Timestamp) -> Result<(), Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        insert_staged(&tx, rows, at).map_err(wrap())?;
        tx.commit().map_err(wrap())
    }

    /// A staged copy of these bytes under this name.
    pub fn staged_copy(&self, landed: &str, sha256: &Sha256Digest) -> Result<Option<u64>, Error> {
        self.lock()
            .prepare_cached("SELECT stage_no FROM staged WHERE path = ?1 AND sha256 = ?2 LIMIT 1")
            .and_then(|mut s| {
                s.query_row(params![landed, sha256.as_bytes()], |r| r.get::<_, i64>(0)).optional()
            })
            .map(|n| n.map(unsigned))
            .map_err(wrap())
    }

    /// Staged rows at or below a number, ascending behind `after`, at most `limit`.
    pub fn staged_upto(&self, floor: u64, after: u64, limit: u32) -> Result<Vec<StagedRow>, Error> {
        let c = self.lock();
        let mut statement = c
            .prepare_cached(
                "SELECT stage_no, path, sha256, size_bytes FROM staged
                 WHERE stage_no <= ?1 AND stage_no > ?2 ORDER BY stage_no LIMIT ?3",
            )
            .map_err(wrap())?;
        let rows = statement
            .query_map(params![signed(floor), signed(after), limit], |r| {
                Ok(StagedRow {
                    stage_no: unsigned(r.get(0)?),
                    landed: r.get(1)?,
                    sha256: digest(r, "sha256")?,
                    size_bytes: unsigned(r.get(3)?),
                })
            })
            .map_err(wrap())?;
        rows.collect::<Result<_, _>>().map_err(wrap())
    }

    /// How many files wait in staging for their promotion, and their bytes.
    pub fn staged_sum(&self) -> Result<(u64, u64), Error> {
        self.lock()
            .query_row("SELECT count(*), coalesce(sum(size_bytes), 0) FROM staged", [], |r| {
                Ok((unsigned(r.get(0)?), unsigned(r.get(1)?)))
            })
            .map_err(wrap())
    }

    /// Whether a file in staging has a row, and so may have been answered for.
    pub fn is_staged(&self, stage_no: u64) -> Result<bool, Error> {
        self.lock()
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM staged WHERE stage_no = ?1)",
                [signed(stage_no)],
                |r| r.get(0),
            )
            .map_err(wrap())
    }

    pub fn forget_staged(&self, stage_no: u64) -> Result<(), Error> {
        self.lock()
            .execute("DELETE FROM staged WHERE stage_no = ?1", [signed(stage_no)])
            .map(drop)
            .map_err(wrap())
    }

    /// Marks files as visible and moves the cursor, in one transaction; durable when this returns.
    pub fn record_promoted(
        &self,
        rows: &[PromotedRow],
        cursor: Option<u64>,
        at: Timestamp,
    ) -> Result<(), Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        for row in rows {
            tx.prepare_cached(
                "INSERT OR REPLACE INTO sync_received (path, sha256, size_bytes, promoted_at)
                 VALUES (?1, ?2, ?3, ?4)",
            )
            .and_then(|mut s| {
                s.execute(params![
                    row.landed,
                    row.sha256.as_bytes(),
                    signed(row.size_bytes),
                    at.unix_ms()
                ])
            })
            .map_err(wrap())?;
            if let Some(stage_no) = row.stage_no {
                tx.prepare_cached("DELETE FROM staged WHERE stage_no = ?1")
                    .and_then(|mut s| s.execute([signed(stage_no)]))
                    .map_err(wrap())?;
            }
        }
        if let Some(cursor) = cursor {
            Self::set_number(&tx, "promotion_cursor", cursor).map_err(wrap())?;
        }
        tx.commit().map_err(wrap())
    }

    /// The change position up to which promotion is done.
    pub fn promotion_cursor(&self) -> Result<u64, Error> {
        Self::number(&self.lock(), "promotion_cursor").map_err(wrap())
    }

    /// Which of these were made visible, by their place in the list.
    pub fn promoted_of(&self, files: &[(&str, Sha256Digest)]) -> Result<Vec<bool>, Error> {
        let mut c = self.lock();
        let tx = c.transaction_with_behavior(TransactionBehavior::Deferred).map_err(wrap())?;
        let mut search = tx.prepare_cached(IS_PROMOTED).map_err(wrap())?;
        let is_promoted = |(landed, sha256): &(&str, Sha256Digest)| {
            search.query_row(params![landed, sha256.as_bytes()], |r| r.get(0))
        };
        files.iter().map(is_promoted).collect::<Result<_, _>>().map_err(wrap())
    }

    /// Whether these bytes were made visible under this name.
    pub fn is_promoted(&self, landed: &str, sha256: &Sha256Digest) -> Result<bool, Error> {
        self.lock()
            .prepare_cached(IS_PROMOTED)
            .and_then(|mut s| s.query_row(params![landed, sha256.as_bytes()], |r| r.get(0)))
            .map_err(wrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_node_answers_for_is_on_disk_before_it_speaks() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("node.db")).unwrap();
        let c = ledger.lock();
        let synchronous: i64 = c.query_row("PRAGMA synchronous", [], |r| r.get(0)).unwrap();
        let mode: String = c.query_row("PRAGMA journal_mode", [], |r| r.get(0)).unwrap();
        // 2 is FULL.
        assert_eq!((synchronous, mode.as_str()), (2, "wal"));
    }
}
