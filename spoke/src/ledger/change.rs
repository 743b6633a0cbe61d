//! Writes to the ledger: each in one transaction, durable before anyone hears of it.

use barque_bundle::{FilePath, HubEpoch, HubId, Ranges, SeriesId, Sha256Digest, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{Ledger, StatRow, signed, unsigned};
use crate::error::Error;
use crate::plan::State;

/// What a look at one file changes.
#[derive(Clone, Debug)]
pub enum Change {
    /// Pending under the series' next number.
    Number { path: FilePath, stat: StatRow, sha256: Sha256Digest, class: u32 },
    /// Only how urgent it is.
    Class { path: FilePath, class: u32 },
    /// Only the stat.
    Refresh { path: FilePath, stat: StatRow },
    /// Another state, and why; a number that was open becomes void.
    Leave { path: FilePath, stat: StatRow, state: State, code: String, detail: String },
}

impl Change {
    /// The file is gone. Its row keeps a stat that no file has, so that one that comes back is
    /// looked at, however old it is.
    pub fn vanished(path: FilePath) -> Self {
        Self::Leave {
            path,
            stat: StatRow { size_bytes: 0, mtime_ns: i64::MIN, ctime_ns: i64::MIN, inode: 0 },
            state: State::Skipped,
            code: "vanished".to_owned(),
            detail: "the file is not there any more".to_owned(),
        }
    }
}

/// The partition key of a file whose path names no time: after all that do.
const NO_PARTITION_MS: i64 = i64::MIN;

impl Ledger {
    /// Writes the findings of a scan; numbers are given out in their order.
    pub fn record(
        &mut self,
        hub_id: HubId,
        changes: &[Change],
        now: Timestamp,
    ) -> Result<(), Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let mut numbers = Numbers::default();
            changes.iter().try_for_each(|ch| record_one(c, &hub, ch, (&mut numbers, now)))?;
            numbers.write(c, &hub)
        })
    }

    /// Counts a try that failed: the file goes behind those with fewer.
    pub fn count_attempt(
        &mut self,
        hub_id: HubId,
        path: &FilePath,
        (code, detail): (&str, &str),
    ) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute(
                "UPDATE files SET attempts = attempts + 1, code = ?3, detail = ?4
                 WHERE hub_id = ?1 AND path = ?2 AND state = 'pending'",
                params![hub_id.to_string(), path.as_str(), code, detail],
            )
            .map(drop)
        })
    }

    /// Counts a delivery of other bytes; the file fails for a person after `max`. True when it did.
    pub fn count_mismatch(
        &mut self,
        hub_id: HubId,
        path: &FilePath,
        max: u32,
        now: Timestamp,
    ) -> Result<bool, Error> {
        self.transaction(|c| {
            let mismatches: u32 = c
                .query_row(
                    "UPDATE files SET mismatches = mismatches + 1
                     WHERE hub_id = ?1 AND path = ?2 AND state = 'pending' RETURNING mismatches",
                    params![hub_id.to_string(), path.as_str()],
                    |r| r.get(0),
                )
                .optional()?
                .unwrap_or(0);
            if mismatches < max {
                return Ok(false);
            }
            c.execute(
                "UPDATE files SET state = 'failed', since = ?3 WHERE hub_id = ?1 AND path = ?2",
                params![hub_id.to_string(), path.as_str(), now.unix_ms()],
            )?;
            Ok(true)
        })
    }

    /// The hub refused a path by a rule, outside a receipt: for a person. True when a row moved.
    pub fn refuse(
        &mut self,
        hub_id: HubId,
        path: &FilePath,
        code: &str,
        detail: &str,
        now: Timestamp,
    ) -> Result<bool, Error> {
        self.transaction(|c| {
            c.execute(
                "UPDATE files SET state = 'failed', code = ?3, detail = ?4, since = ?5
                 WHERE hub_id = ?1 AND path = ?2 AND state = 'pending'",
                params![hub_id.to_string(), path.as_str(), code, detail, now.unix_ms()],
            )
            .map(|n| n > 0)
        })
    }

    /// The hub has recorded these void numbers.
    pub fn mark_told(
        &mut self,
        hub_id: HubId,
        series: SeriesId,
        voids: &Ranges,
    ) -> Result<(), Error> {
        self.transaction(|c| {
            let mut update = c.prepare_cached(
                "UPDATE voids SET told = 1
                 WHERE hub_id = ?1 AND series = ?2 AND seq BETWEEN ?3 AND ?4",
            )?;
            for (lo, hi) in voids.as_slice() {
                update.execute(params![
                    hub_id.to_string(),
                    series.to_string(),
                    signed(*lo),
                    signed(*hi)
                ])?;
            }
            Ok(())
        })
    }

    /// The hub asks for a file again: a synced row of that content is offered again.
    pub fn want(
        &mut self,
        hub_id: HubId,
        path: &FilePath,
        sha256: Sha256Digest,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let is_synced: bool = c.query_row(
                "SELECT EXISTS (SELECT 1 FROM files WHERE hub_id = ?1 AND path = ?2
                                AND sha256 = ?3 AND state = 'synced')",
                params![hub, path.as_str(), sha256.as_bytes()],
                |r| r.get(0),
            )?;
            if is_synced {
                offer_again(c, &hub, Some(path.as_str()), now)?;
            }
            Ok(is_synced)
        })
    }

    /// Takes over the hub's epoch and position. True when the hub is another than it was (a new
    /// epoch, or a position below the one that it was asked to reach): then every synced row is
    /// offered again, in the fresh series, since the hub may have forgotten which numbers it answered.
    pub fn meet_hub(
        &mut self,
        hub_id: HubId,
        (epoch, position): (HubEpoch, u64),
        asked_at: u64,
        fresh: SeriesId,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let (known, seen): (Option<String>, i64) = c.query_row(
                "SELECT hub_epoch, seen_position FROM hubs WHERE hub_id = ?1",
                [&hub],
                |r| Ok((r.get(0)?, r.get(1)?)),
            )?;
            let is_other =
                known.as_ref().is_some_and(|k| *k != epoch.to_string()) || position < asked_at;
            // Answers to several questions come in any order.
            let position = if is_other { position } else { position.max(unsigned(seen)) };
            c.execute(
                "UPDATE hubs SET hub_epoch = ?2, seen_position = ?3 WHERE hub_id = ?1",
                params![hub, epoch.to_string(), signed(position)],
            )?;
            if is_other {
                replace_series(c, &hub, fresh)?;
                offer_again(c, &hub, None, now)?;
            }
            Ok(is_other)
        })
    }

    /// Takes over the epoch of a receipt that came on a drive; of its position nothing follows,
    /// since it may be older than one that was seen. True when the hub is another than it was.
    pub fn meet_epoch(
        &mut self,
        hub_id: HubId,
        epoch: HubEpoch,
        fresh: SeriesId,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let known: Option<String> =
                c.query_row("SELECT hub_epoch FROM hubs WHERE hub_id = ?1", [&hub], |r| r.get(0))?;
            if known.as_deref() == Some(epoch.to_string().as_str()) {
                return Ok(false);
            }
            c.execute(
                "UPDATE hubs SET hub_epoch = ?2, seen_position = 0 WHERE hub_id = ?1",
                [&hub, &epoch.to_string()],
            )?;
            let is_other = known.is_some();
            if is_other {
                replace_series(c, &hub, fresh)?;
                offer_again(c, &hub, None, now)?;
            }
            Ok(is_other)
        })
    }

    /// Opens a series that replaces the present one; what is pending gets new numbers.
    pub fn open_series(&mut self, hub_id: HubId, series: SeriesId) -> Result<(), Error> {
        self.transaction(|c| replace_series(c, &hub_id.to_string(), series))
    }

    /// Opens a series that replaces another than the present one, which is replaced already.
    pub fn replace_newer(
        &mut self,
        hub_id: HubId,
        newer: SeriesId,
        series: SeriesId,
    ) -> Result<(), Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            replace_series(c, &hub, series)?;
            c.execute("UPDATE hubs SET replaces = ?2 WHERE hub_id = ?1", [&hub, &newer.to_string()])
                .map(drop)
        })
    }

    /// A person sets files aside that wait for one; how many rows that was. Undone by a requeue.
    pub fn dismiss(
        &mut self,
        hub_id: HubId,
        path: &FilePath,
        now: Timestamp,
    ) -> Result<bool, Error> {
        self.transaction(|c| {
            let n = c.execute(
                "UPDATE files SET state = 'dismissed', since = ?3
                 WHERE hub_id = ?1 AND path = ?2 AND state IN ('conflict', 'failed', 'modified')",
                params![hub_id.to_string(), path.as_str(), now.unix_ms()],
            )?;
            Ok(n > 0)
        })
    }
}

/// The old series is closed with all its numbers; only what waits gets a number of the new one.
fn replace_series(c: &Connection, hub: &str, series: SeriesId) -> rusqlite::Result<()> {
    c.execute(
        "UPDATE hubs SET replaces = series, series = ?2, seq_head = 0 WHERE hub_id = ?1",
        [hub, &series.to_string()],
    )?;
    // Its open numbers are void by that alone.
    c.execute("DELETE FROM voids WHERE hub_id = ?1", [hub])?;
    c.execute(
        "UPDATE files SET seq = NULL
         WHERE hub_id = ?1 AND state <> 'pending' AND seq IS NOT NULL",
        [hub],
    )?;
    let numbered = c.execute(
        "UPDATE files SET seq = n.seq
         FROM (SELECT path, row_number() OVER (ORDER BY seq) AS seq FROM files
               WHERE hub_id = ?1 AND state = 'pending') AS n
         WHERE files.hub_id = ?1 AND files.path = n.path",
        [hub],
    )?;
    c.execute(
        "UPDATE hubs SET seq_head = ?2 WHERE hub_id = ?1",
        params![hub, signed(numbered as u64)],
    )?;
    Ok(())
}

/// Makes synced rows (one, or all) pending under new numbers of the present series.
fn offer_again(
    c: &Connection,
    hub: &str,
    path: Option<&str>,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let offered = c.execute(
        "UPDATE files SET state = 'pending', receipt_id = NULL, bundle_id = NULL, attempts = 0,
                since = ?3, seq = n.seq
         FROM (SELECT f.path, h.seq_head + row_number() OVER (ORDER BY f.path) AS seq
               FROM files f JOIN hubs h ON h.hub_id = f.hub_id
               WHERE f.hub_id = ?1 AND f.state = 'synced' AND (?2 IS NULL OR f.path = ?2)) AS n
         WHERE files.hub_id = ?1 AND files.path = n.path",
        params![hub, path, now.unix_ms()],
    )?;
    c.execute(
        "UPDATE hubs SET seq_head = seq_head + ?2 WHERE hub_id = ?1",
        params![hub, signed(offered as u64)],
    )?;
    Ok(())
}

/// A row that waits, for an INSERT.
macro_rules! numbered_row {
    () => {
        " INTO files (hub_id, path, state, sha256, size_bytes, mtime_ns, ctime_ns, inode, seq,
                      partition_ms, since, class)
         VALUES (?1, ?2, 'pending', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)"
    };
}

/// Gives out numbers of the hub's series within one transaction, which writes their head once.
#[derive(Default)]
struct Numbers {
    head: Option<u64>,
}

impl Numbers {
    fn next(&mut self, c: &Connection, hub: &str) -> rusqlite::Result<u64> {
        let head = match self.head {
            Some(head) => head,
            None => c
                .prepare_cached("SELECT seq_head FROM hubs WHERE hub_id = ?1")?
                .query_row([hub], |r| r.get(0).map(unsigned))?,
        };
        self.head = Some(head + 1);
        Ok(head + 1)
    }

    fn write(self, c: &Connection, hub: &str) -> rusqlite::Result<()> {
        let Some(head) = self.head else { return Ok(()) };
        c.prepare_cached("UPDATE hubs SET seq_head = ?2 WHERE hub_id = ?1")?
            .execute(params![hub, signed(head)])
            .map(drop)
    }
}

/// Voids the number that a file has and that may never have been answered; to void one that was
/// does no harm.
fn void_open_number(c: &Connection, hub: &str, path: &str, reason: &str) -> rusqlite::Result<()> {
    c.prepare_cached(
        "INSERT OR IGNORE INTO voids (hub_id, series, seq, reason)
         SELECT f.hub_id, h.series, f.seq, ?3 FROM files f JOIN hubs h ON h.hub_id = f.hub_id
         WHERE f.hub_id = ?1 AND f.path = ?2 AND f.seq IS NOT NULL
           AND f.state IN ('pending', 'failed', 'dismissed')",
    )?
    .execute([hub, path, reason])
    .map(drop)
}

fn record_one(
    c: &Connection,
    hub: &str,
    change: &Change,
    (numbers, now): (&mut Numbers, Timestamp),
) -> rusqlite::Result<()> {
    match change {
        Change::Class { path, class } => {
            c.prepare_cached("UPDATE files SET class = ?3 WHERE hub_id = ?1 AND path = ?2")?
                .execute(params![hub, path.as_str(), class])?;
        }
        Change::Number { path, stat, sha256, class } => {
            let seq = numbers.next(c, hub)?;
            number(c, hub, (path, stat, sha256, *class), (seq, now))?;
        }
        Change::Refresh { path, stat } => {
            c.prepare_cached(
                "UPDATE files SET size_bytes = ?3, mtime_ns = ?4, ctime_ns = ?5, inode = ?6
                 WHERE hub_id = ?1 AND path = ?2",
            )?
            .execute(params![
                hub,
                path.as_str(),
                signed(stat.size_bytes),
                stat.mtime_ns,
                stat.ctime_ns,
                stat.inode.cast_signed()
            ])?;
        }
        Change::Leave { path, stat, state, code, detail } => {
            void_open_number(c, hub, path.as_str(), code)?;
            leave(c, hub, (path, stat, *state), (code, detail), now)?;
        }
    }
    Ok(())
}

/// Writes a row that waits under a number; one that the file had is void.
fn number(
    c: &Connection,
    hub: &str,
    (path, stat, sha256, class): (&FilePath, &StatRow, &Sha256Digest, u32),
    (seq, now): (u64, Timestamp),
) -> rusqlite::Result<()> {
    let partition = path.partition().map_or(NO_PARTITION_MS, |p| p.start.unix_ms());
    let row = params![
        hub,
        path.as_str(),
        sha256.as_bytes(),
        signed(stat.size_bytes),
        stat.mtime_ns,
        stat.ctime_ns,
        stat.inode.cast_signed(),
        signed(seq),
        partition,
        now.unix_ms(),
        class
    ];
    // Nearly all are new: one statement finds that out and writes them.
    if c.prepare_cached(concat!("INSERT OR IGNORE", numbered_row!()))?.execute(row)? == 0 {
        void_open_number(c, hub, path.as_str(), "content changed before it was sent")?;
        c.prepare_cached(concat!("INSERT OR REPLACE", numbered_row!()))?.execute(row)?;
    }
    Ok(())
}

/// Writes a row that nothing is sent of, and why.
fn leave(
    c: &Connection,
    hub: &str,
    (path, stat, state): (&FilePath, &StatRow, State),
    (code, detail): (&str, &str),
    now: Timestamp,
) -> rusqlite::Result<()> {
    let partition = path.partition().map_or(NO_PARTITION_MS, |p| p.start.unix_ms());
    c.prepare_cached(
        "INSERT INTO files (hub_id, path, state, size_bytes, mtime_ns, ctime_ns, inode,
                            partition_ms, code, detail, since)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
         ON CONFLICT (hub_id, path) DO UPDATE SET
             state = excluded.state, size_bytes = excluded.size_bytes,
             mtime_ns = excluded.mtime_ns, ctime_ns = excluded.ctime_ns,
             inode = excluded.inode, code = excluded.code, detail = excluded.detail,
             since = excluded.since",
    )?
    .execute(params![
        hub,
        path.as_str(),
        state.as_str(),
        signed(stat.size_bytes),
        stat.mtime_ns,
        stat.ctime_ns,
        stat.inode.cast_signed(),
        partition,
        code,
        detail,
        now.unix_ms()
    ])
    .map(drop)
}
