//! The spoke's ledger: one row per hub and file, receipts, series and voids, in `ledger.db`.
//!
//! A cache of truth: the hub's receipts are what counts. It keeps D5 by its schema: `synced`
//! without a stored receipt cannot exist.

pub mod answers;
pub mod bundles;
pub mod change;
mod known;
pub mod passes;
pub mod read;
mod retain;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use barque_bundle::database::{self, Kind};
use barque_bundle::{HubEpoch, HubId, SeriesId, Timestamp, fault, platform};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::error::Error;

pub use bundles::{BundleRow, BundleState};
pub use change::Change;
pub use known::{KnownRow, KnownRows};
pub use passes::PassRow;
pub use read::{FileRow, PageKey, StatRow, Tally};

const KIND: Kind = Kind {
    schema: include_str!("ledger/schema.sql"),
    migrations: &[
        include_str!("ledger/migrations/2.sql"),
        include_str!("ledger/migrations/3.sql"),
        include_str!("ledger/migrations/4.sql"),
        include_str!("ledger/migrations/5.sql"),
    ],
    synchronous: "FULL",
    journal_bytes: 16 << 20,
    // Somebody looks at the ledger with a tool of theirs: a pass waits.
    busy_wait: Duration::from_secs(120),
};

/// A name beside a file that nothing has: two clocks may tell one time.
pub(crate) fn aside(path: &Path, why: &str, now: Timestamp) -> PathBuf {
    let first = database::with_suffix(path, &format!(".{why}-{}", now.unix_ms()));
    let more = (2..).map(|n| database::with_suffix(&first, &format!("-{n}")));
    let mut names = std::iter::once(first.clone()).chain(more);
    names.find(|n| std::fs::symlink_metadata(n).is_err()).unwrap_or(first)
}

/// What lies beside an open ledger.
pub(crate) const JOURNALS: [&str; 2] = ["-wal", "-shm"];

fn rename_journals(from: &Path, to: &Path) -> Result<(), Error> {
    for suffix in JOURNALS {
        let from = database::with_suffix(from, suffix);
        match std::fs::rename(&from, database::with_suffix(to, suffix)) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Error::io("cannot set aside", from)(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The open database.
pub struct Ledger {
    path: PathBuf,
    pub(crate) connection: Connection,
}

/// How a spoke stands with one hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubRow {
    pub hub_id: HubId,
    pub series: SeriesId,
    pub seq_head: u64,
    pub replaces: Option<SeriesId>,
    pub hub_epoch: Option<HubEpoch>,
    pub seen_position: u64,
    pub as_of: Option<Timestamp>,
    pub clock_offset_ms: i64,
    /// The latest time that the hub signed.
    pub hub_time: Option<Timestamp>,
    pub last_success: Option<Timestamp>,
}

impl Ledger {
    /// Opens or makes the ledger; a newer one is refused by name.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { path: path.to_owned(), connection: KIND.open(path)? })
    }

    /// Moves a ledger and its journals aside, named for the reason; the name it has now. Nothing is
    /// deleted.
    pub fn set_aside(path: &Path, why: &str, now: Timestamp) -> Result<PathBuf, Error> {
        let aside = aside(path, why, now);
        rename_journals(path, &aside)?;
        match std::fs::rename(path, &aside) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::io("cannot set aside", path)(e))
            }
            _ => Ok(aside),
        }
    }

    /// Puts a ledger that is whole and closed in the place of the one at `path`, which is kept
    /// under the name that is returned. At each moment one of the two is there.
    pub fn replace(path: &Path, by: &Path, why: &str, now: Timestamp) -> Result<PathBuf, Error> {
        let aside = aside(path, why, now);
        // Only a ledger that could not be read still has them.
        rename_journals(path, &aside)?;
        let kept = match std::fs::hard_link(path, &aside) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(e),
            // Not every file system has second names.
            Err(_) => std::fs::copy(path, &aside)
                .and_then(|_| platform::sync(&std::fs::File::open(&aside)?)),
            Ok(()) => Ok(()),
        };
        kept.map_err(Error::io("cannot set aside", path))?;
        fault::after(fault::Step::LedgerKept);
        std::fs::rename(by, path).map_err(Error::io("cannot put in place", path))?;
        Ok(aside)
    }

    pub(crate) fn wrap(&self) -> impl FnOnce(rusqlite::Error) -> Error {
        let path = self.path.clone();
        move |source| Error::Sqlite { path, source }
    }

    /// All rows that a query finds.
    pub(crate) fn rows<T>(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
        row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut s| s.query_map(params, row)?.collect())
            .map_err(self.wrap())
    }

    /// Adds a hub with a new series, unless it is known.
    pub fn add_hub(&self, hub_id: HubId, series: SeriesId, offset_ms: i64) -> Result<(), Error> {
        self.connection
            .execute(
                "INSERT INTO hubs (hub_id, series, clock_offset_ms) VALUES (?1, ?2, ?3)
                 ON CONFLICT (hub_id) DO UPDATE SET clock_offset_ms = excluded.clock_offset_ms",
                params![hub_id.to_string(), series.to_string(), offset_ms],
            )
            .map(drop)
            .map_err(self.wrap())
    }

    /// Adds a hub with a new series if the ledger does not know it (a ledger made anew); whether
    /// it did.
    pub fn add_hub_if_missing(&self, hub_id: HubId, series: SeriesId) -> Result<bool, Error> {
        self.connection
            .execute(
                "INSERT OR IGNORE INTO hubs (hub_id, series) VALUES (?1, ?2)",
                [hub_id.to_string(), series.to_string()],
            )
            .map(|n| n == 1)
            .map_err(self.wrap())
    }

    /// Adds a hub with a series that replaces the one it had, and what is known of its clock.
    pub(crate) fn add_rebuilt_hub(
        &self,
        hub_id: HubId,
        series: SeriesId,
        before: Option<&HubRow>,
    ) -> Result<(), Error> {
        self.connection
            .execute(
                "INSERT INTO hubs (hub_id, series, replaces, clock_offset_ms, hub_time, last_success)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    hub_id.to_string(),
                    series.to_string(),
                    // A series that the hub never heard of replaces nothing there.
                    before
                        .and_then(|b| b.hub_epoch.map_or(b.replaces, |_| Some(b.series)))
                        .map(|s| s.to_string()),
                    before.map_or(0, |b| b.clock_offset_ms),
                    before.and_then(|b| b.hub_time).map(Timestamp::unix_ms),
                    before.and_then(|b| b.last_success).map(Timestamp::unix_ms),
                ],
            )
            .map(drop)
            .map_err(self.wrap())
    }

    pub fn hub(&self, hub_id: HubId) -> Result<Option<HubRow>, Error> {
        self.connection
            .query_row("SELECT * FROM hubs WHERE hub_id = ?1", [hub_id.to_string()], |r| {
                let parse_series = |text: String| {
                    text.parse::<SeriesId>().map_err(|_| rusqlite::Error::InvalidQuery)
                };
                let epoch: Option<String> = r.get("hub_epoch")?;
                let replaces: Option<String> = r.get("replaces")?;
                Ok(HubRow {
                    hub_id,
                    series: parse_series(r.get("series")?)?,
                    seq_head: unsigned(r.get("seq_head")?),
                    replaces: replaces.map(parse_series).transpose()?,
                    hub_epoch: epoch
                        .map(|e| e.parse().map_err(|_| rusqlite::Error::InvalidQuery))
                        .transpose()?,
                    seen_position: unsigned(r.get("seen_position")?),
                    as_of: r.get::<_, Option<i64>>("as_of")?.map(Timestamp::from_unix_ms),
                    clock_offset_ms: r.get("clock_offset_ms")?,
                    hub_time: r.get::<_, Option<i64>>("hub_time")?.map(Timestamp::from_unix_ms),
                    last_success: r
                        .get::<_, Option<i64>>("last_success")?
                        .map(Timestamp::from_unix_ms),
                })
            })
            .optional()
            .map_err(self.wrap())
    }

    /// Keeps what was learned of the hub's clock: its difference to ours, and the time it signed.
    pub fn set_clock(&self, hub_id: HubId, offset_ms: i64, at: Timestamp) -> Result<(), Error> {
        self.set(hub_id, "clock_offset_ms", offset_ms)?;
        self.set(hub_id, "hub_time", at.unix_ms())
    }

    pub fn set_as_of(&self, hub_id: HubId, as_of: Timestamp) -> Result<(), Error> {
        self.set(hub_id, "as_of", as_of.unix_ms())
    }

    pub fn set_last_success(&self, hub_id: HubId, at: Timestamp) -> Result<(), Error> {
        self.set(hub_id, "last_success", at.unix_ms())
    }

    fn set(&self, hub_id: HubId, column: &'static str, value: i64) -> Result<(), Error> {
        let sql = format!("UPDATE hubs SET {column} = ?2 WHERE hub_id = ?1");
        self.connection
            .execute(&sql, params![hub_id.to_string(), value])
            .map(drop)
            .map_err(self.wrap())
    }

    /// Puts what the write-ahead log holds into the ledger, so that the log is short again.
    ///
    /// Somebody who keeps the ledger open for reading holds that up; then this says so.
    pub fn tidy(&self) -> Result<(), Error> {
        // A reader is not waited for: the next pass tries again.
        let checkpoint = || -> rusqlite::Result<bool> {
            self.connection.busy_timeout(Duration::ZERO)?;
            let held_up =
                self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get(0));
            self.connection.busy_timeout(KIND.busy_wait)?;
            held_up
        };
        let is_held_up = checkpoint().map_err(self.wrap())?;
        let wal = database::wal_name(&self.path);
        let wal_bytes = std::fs::metadata(&wal).map_or(0, |m| m.len());
        if is_held_up {
            tracing::warn!(
                file = %wal.display(),
                wal_bytes,
                "another program keeps the ledger open, so this file cannot be emptied; \
                 it shrinks after the first pass once that program has ended"
            );
        }
        Ok(())
    }

    /// Runs `f` in one transaction; durable when this returns.
    pub(crate) fn transaction<T>(
        &mut self,
        f: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let path = self.path.clone();
        let wrap = |source| Error::Sqlite { path: path.clone(), source };
        let tx = self
            .connection
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .map_err(wrap)?;
        let answer = f(&tx).map_err(wrap)?;
        tx.commit().map_err(wrap)?;
        Ok(answer)
    }
}

pub(crate) fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
