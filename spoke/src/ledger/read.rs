//! Reads of the ledger.

use std::collections::BTreeMap;

use barque_bundle::{Entry, FilePath, HubId, Ranges, SeriesId, Sha256Digest, Timestamp};
use rusqlite::{OptionalExtension as _, Row, params};

use super::{Ledger, signed, unsigned};
use crate::error::Error;
use crate::plan::{Known, State};

/// The stat of a file as it was when its row was written; a difference means: look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatRow {
    pub size_bytes: u64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    pub inode: u64,
}

impl StatRow {
    pub fn of(m: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let ns = |s: i64, n: i64| s.saturating_mul(1_000_000_000).saturating_add(n);
        Self {
            size_bytes: m.len(),
            mtime_ns: ns(m.mtime(), m.mtime_nsec()),
            ctime_ns: ns(m.ctime(), m.ctime_nsec()),
            inode: m.ino(),
        }
    }

    pub fn modified_at(&self) -> Timestamp {
        Timestamp::from_unix_ms(self.mtime_ns.div_euclid(1_000_000))
    }
}

/// One file of one hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    pub path: FilePath,
    pub state: State,
    pub sha256: Option<Sha256Digest>,
    pub stat: StatRow,
    pub seq: Option<u64>,
    pub partition_ms: i64,
    /// What is more urgent has a lower one.
    pub class: u32,
    pub attempts: u32,
    pub their_sha256: Option<Sha256Digest>,
    pub code: Option<String>,
    pub detail: Option<String>,
    pub since: Timestamp,
}

impl FileRow {
    pub fn known(&self) -> Known {
        Known { state: self.state, sha256: self.sha256 }
    }

    /// The entry to offer; none for a row that was never numbered.
    pub fn entry(&self) -> Option<Entry> {
        Some(Entry {
            path: self.path.clone(),
            sha256: self.sha256?,
            size_bytes: self.stat.size_bytes,
            seq: self.seq?,
            modified_at: self.stat.modified_at(),
        })
    }

    pub fn page_key(&self) -> PageKey {
        PageKey {
            attempts: self.attempts,
            class: self.class,
            partition_ms: self.partition_ms,
            path: self.path.to_string(),
        }
    }
}

/// The columns that [`row`] reads, in its order: to look them up by name takes longer than to read.
macro_rules! columns {
    () => {
        "path, state, sha256, size_bytes, mtime_ns, ctime_ns, inode, seq, partition_ms, class,
         attempts, their_sha256, code, detail, since"
    };
}
pub(super) const COLUMNS: &str = columns!();

/// A few hubs, and in each the one path: CROSS keeps the planner from looking through all files.
pub(super) const DIGEST_FOR_ANOTHER: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM hubs h CROSS JOIN files f ON f.hub_id = h.hub_id AND f.path = ?2
     WHERE h.hub_id <> ?1 AND f.state IN ('pending', 'exported', 'synced')"
);

/// One search for each column where a key may differ: a chain of ORs would walk the index from its
/// start for every page, and the time of a pass would grow with the square of what waits.
pub(super) const PENDING_PAGE: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM files WHERE hub_id = ?1 AND state = 'pending'
        AND attempts = ?2 AND class = ?3 AND partition_ms = ?4 AND path > ?5
    UNION ALL SELECT ",
    columns!(),
    " FROM files WHERE hub_id = ?1 AND state = 'pending'
        AND attempts = ?2 AND class = ?3 AND partition_ms < ?4
    UNION ALL SELECT ",
    columns!(),
    " FROM files WHERE hub_id = ?1 AND state = 'pending' AND attempts = ?2 AND class > ?3
    UNION ALL SELECT ",
    columns!(),
    " FROM files WHERE hub_id = ?1 AND state = 'pending' AND attempts > ?2
    ORDER BY attempts, class, partition_ms DESC, path LIMIT ?6"
);

pub(super) const OPEN_TALLY: &str =
    "SELECT state, count(*), coalesce(sum(size_bytes), 0), min(since) FROM files
     WHERE hub_id = ?1 AND state <> 'synced' GROUP BY state";

/// Void numbers that are told in one request.
const VOIDS_AT_ONCE: i64 = 2_000;

/// Where a page of pending files ended: fewest attempts first, then the most urgent, then the
/// newest partition, then by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageKey {
    pub attempts: u32,
    pub class: u32,
    pub partition_ms: i64,
    pub path: String,
}

impl PageKey {
    pub fn first() -> Self {
        Self { attempts: 0, class: 0, partition_ms: i64::MAX, path: String::new() }
    }
}

/// How many files and bytes are in each state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub files: BTreeMap<State, u64>,
    pub pending_bytes: u64,
    pub oldest_pending: Option<Timestamp>,
}

impl Tally {
    pub fn of(&self, state: State) -> u64 {
        self.files.get(&state).copied().unwrap_or(0)
    }
}

/// A row of [`COLUMNS`].
pub(super) fn row(r: &Row<'_>) -> rusqlite::Result<FileRow> {
    let malformed = || rusqlite::Error::InvalidQuery;
    let digest = |column: usize| -> rusqlite::Result<Option<Sha256Digest>> {
        let bytes = r.get_ref(column)?.as_bytes_or_null()?;
        bytes.map(|b| Sha256Digest::try_from(b).map_err(|_| malformed())).transpose()
    };
    Ok(FileRow {
        path: r.get_ref(0)?.as_str()?.parse().map_err(|_| malformed())?,
        state: State::parse(r.get_ref(1)?.as_str()?).ok_or_else(malformed)?,
        sha256: digest(2)?,
        stat: StatRow {
            size_bytes: unsigned(r.get(3)?),
            mtime_ns: r.get(4)?,
            ctime_ns: r.get(5)?,
            inode: r.get::<_, i64>(6)?.cast_unsigned(),
        },
        seq: r.get::<_, Option<i64>>(7)?.map(unsigned),
        partition_ms: r.get(8)?,
        class: r.get(9)?,
        attempts: r.get(10)?,
        their_sha256: digest(11)?,
        code: r.get(12)?,
        detail: r.get(13)?,
        since: Timestamp::from_unix_ms(r.get(14)?),
    })
}

impl Ledger {
    pub fn file(&self, hub_id: HubId, path: &FilePath) -> Result<Option<FileRow>, Error> {
        self.connection
            .prepare_cached(concat!(
                "SELECT ",
                columns!(),
                " FROM files WHERE hub_id = ?1 AND path = ?2"
            ))
            .and_then(|mut s| s.query_row([&hub_id.to_string(), path.as_str()], row).optional())
            .map_err(self.wrap())
    }

    /// The digest that a file with this very stat had when it was read for another hub.
    pub fn digest_for_another(
        &self,
        hub_id: HubId,
        path: &FilePath,
        stat: &StatRow,
    ) -> Result<Option<Sha256Digest>, Error> {
        let found = self.rows(DIGEST_FOR_ANOTHER, [&hub_id.to_string(), path.as_str()], row)?;
        Ok(found.into_iter().find(|f| f.stat == *stat).and_then(|f| f.sha256))
    }

    /// Whether any other hub has rows here.
    pub fn has_other_hubs(&self, hub_id: HubId) -> Result<bool, Error> {
        let found = "SELECT EXISTS (SELECT 1 FROM hubs WHERE hub_id <> ?1)";
        self.connection.query_row(found, [hub_id.to_string()], |r| r.get(0)).map_err(self.wrap())
    }

    /// Pending files behind a key, in the order of sending.
    pub fn pending_page(
        &self,
        hub_id: HubId,
        after: &PageKey,
        limit: usize,
    ) -> Result<Vec<FileRow>, Error> {
        let key = params![
            hub_id.to_string(),
            after.attempts,
            after.class,
            after.partition_ms,
            after.path,
            signed(limit as u64),
        ];
        self.rows(PENDING_PAGE, key, row)
    }

    /// Files in a state by name behind `after`, at most `limit`.
    pub fn files_in(
        &self,
        hub_id: HubId,
        state: State,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FileRow>, Error> {
        self.rows(
            concat!(
                "SELECT ",
                columns!(),
                " FROM files WHERE hub_id = ?1 AND state = ?2 AND path > ?3 ORDER BY path LIMIT ?4"
            ),
            params![hub_id.to_string(), state.as_str(), after, signed(limit as u64)],
            row,
        )
    }

    /// All files of a hub; it reads every row.
    pub fn tally(&self, hub_id: HubId) -> Result<Tally, Error> {
        self.tally_by(
            "SELECT state, count(*), coalesce(sum(size_bytes), 0), min(since) FROM files
             WHERE hub_id = ?1 GROUP BY state",
            hub_id,
        )
    }

    /// Those files that are not synced; it reads no row of one that is.
    pub fn open_tally(&self, hub_id: HubId) -> Result<Tally, Error> {
        self.tally_by(OPEN_TALLY, hub_id)
    }

    fn tally_by(&self, sql: &str, hub_id: HubId) -> Result<Tally, Error> {
        let mut statement = self.connection.prepare_cached(sql).map_err(self.wrap())?;
        let rows = statement
            .query_map([hub_id.to_string()], |r| {
                let state: String = r.get(0)?;
                let state = State::parse(&state).ok_or(rusqlite::Error::InvalidQuery)?;
                Ok((state, unsigned(r.get(1)?), unsigned(r.get(2)?), r.get::<_, i64>(3)?))
            })
            .map_err(self.wrap())?;
        let mut tally = Tally::default();
        for item in rows {
            let (state, files, bytes, since) = item.map_err(self.wrap())?;
            tally.files.insert(state, files);
            if state == State::Pending {
                tally.pending_bytes += bytes;
                let since = Timestamp::from_unix_ms(since);
                tally.oldest_pending =
                    Some(tally.oldest_pending.map_or(since, |oldest| oldest.min(since)));
            }
        }
        Ok(tally)
    }

    /// Files that are on their way in bundles, of those that are pending.
    pub fn files_under_way(&self, hub_id: HubId) -> Result<u64, Error> {
        let sum = "SELECT coalesce(sum(files), 0) FROM under_way WHERE hub_id = ?1";
        self.connection
            .query_row(sum, [hub_id.to_string()], |r| r.get(0).map(unsigned))
            .map_err(self.wrap())
    }

    /// Void numbers of a series that the hub has not recorded yet, the lowest ones first.
    pub fn untold_voids(&self, hub_id: HubId, series: SeriesId) -> Result<Ranges, Error> {
        let numbers = self.rows(
            "SELECT seq FROM voids WHERE hub_id = ?1 AND series = ?2 AND told = 0
             ORDER BY seq LIMIT ?3",
            params![hub_id.to_string(), series.to_string(), VOIDS_AT_ONCE],
            |r| r.get(0).map(unsigned),
        )?;
        Ok(Ranges::from_numbers(numbers))
    }

    pub fn receipt_count(&self, hub_id: HubId) -> Result<u64, Error> {
        self.connection
            .query_row(
                "SELECT count(*) FROM receipts WHERE hub_id = ?1",
                [hub_id.to_string()],
                |r| r.get(0).map(unsigned),
            )
            .map_err(self.wrap())
    }
}

/// What a pass notes for itself, in temporary tables and so out of memory: files that were too
/// young to look at, and pending files that the scan met.
impl Ledger {
    pub(crate) fn clear_notes(&self) -> Result<(), Error> {
        self.connection
            .execute_batch(
                "CREATE TEMP TABLE IF NOT EXISTS young (path TEXT PRIMARY KEY, size_bytes INTEGER,
                     mtime_ns INTEGER, ctime_ns INTEGER, inode INTEGER) STRICT, WITHOUT ROWID;
                 CREATE TEMP TABLE IF NOT EXISTS met (path TEXT PRIMARY KEY) STRICT, WITHOUT ROWID;
                 DELETE FROM young; DELETE FROM met;",
            )
            .map_err(self.wrap())
    }

    /// What an export chooses, in a temporary table as well.
    pub(crate) fn clear_chosen(&self) -> Result<(), Error> {
        self.connection
            .execute_batch(
                "CREATE TEMP TABLE IF NOT EXISTS chosen (path TEXT PRIMARY KEY)
                     STRICT, WITHOUT ROWID;
                 DELETE FROM chosen;",
            )
            .map_err(self.wrap())
    }

    pub(crate) fn add_chosen(&mut self, paths: &[&FilePath]) -> Result<(), Error> {
        self.transaction(|c| {
            let mut insert = c.prepare_cached("INSERT OR IGNORE INTO chosen VALUES (?1)")?;
            paths.iter().try_for_each(|p| insert.execute([p.as_str()]).map(drop))
        })
    }

    pub(crate) fn chosen_page(&self, after: &str, limit: usize) -> Result<Vec<FilePath>, Error> {
        self.rows(
            "SELECT path FROM chosen WHERE path > ?1 ORDER BY path LIMIT ?2",
            params![after, signed(limit as u64)],
            |r| r.get::<_, String>(0)?.parse().map_err(|_| rusqlite::Error::InvalidQuery),
        )
    }

    /// The scan counted these files as pending, or exported.
    pub(crate) fn add_met(&mut self, paths: &[FilePath]) -> Result<(), Error> {
        if paths.is_empty() {
            return Ok(());
        }
        self.transaction(|c| {
            let mut insert = c.prepare_cached("INSERT OR IGNORE INTO met (path) VALUES (?1)")?;
            paths.iter().try_for_each(|p| insert.execute([p.as_str()]).map(drop))
        })
    }

    pub(crate) fn is_met(&self, path: &FilePath) -> Result<bool, Error> {
        self.connection
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM met WHERE path = ?1)")
            .and_then(|mut s| s.query_row([path.as_str()], |r| r.get(0)))
            .map_err(self.wrap())
    }

    /// Files that the scan counted as pending or exported and that still are one of them.
    pub(crate) fn met_and_open(&self, hub_id: HubId) -> Result<u64, Error> {
        self.connection
            .query_row(
                "SELECT count(*) FROM met JOIN files f ON f.path = met.path
                 WHERE f.hub_id = ?1 AND f.state IN ('pending', 'exported')",
                [hub_id.to_string()],
                |r| r.get(0).map(unsigned),
            )
            .map_err(self.wrap())
    }

    pub(crate) fn add_young(&self, path: &FilePath, stat: &StatRow) -> Result<(), Error> {
        self.connection
            .prepare_cached("INSERT OR REPLACE INTO young VALUES (?1, ?2, ?3, ?4, ?5)")
            .and_then(|mut s| {
                s.execute(params![
                    path.as_str(),
                    signed(stat.size_bytes),
                    stat.mtime_ns,
                    stat.ctime_ns,
                    stat.inode.cast_signed()
                ])
            })
            .map(drop)
            .map_err(self.wrap())
    }

    pub(crate) fn young_count(&self) -> Result<u64, Error> {
        self.connection
            .query_row("SELECT count(*) FROM young", [], |r| r.get(0).map(unsigned))
            .map_err(self.wrap())
    }

    pub(crate) fn young_page(
        &self,
        after: &str,
        limit: usize,
    ) -> Result<Vec<(FilePath, StatRow)>, Error> {
        self.rows(
            "SELECT * FROM young WHERE path > ?1 ORDER BY path LIMIT ?2",
            params![after, signed(limit as u64)],
            |r| {
                let path: String = r.get("path")?;
                let stat = StatRow {
                    size_bytes: unsigned(r.get("size_bytes")?),
                    mtime_ns: r.get("mtime_ns")?,
                    ctime_ns: r.get("ctime_ns")?,
                    inode: r.get::<_, i64>("inode")?.cast_unsigned(),
                };
                Ok((path.parse().map_err(|_| rusqlite::Error::InvalidQuery)?, stat))
            },
        )
    }
}
