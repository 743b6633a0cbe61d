//! What a scan has to know of each file, read in the order of paths: a search for every one would
//! cost more than the walk itself.

use std::collections::VecDeque;

use barque_bundle::HubId;
use rusqlite::{Row, params};

use super::{Ledger, StatRow, signed, unsigned};
use crate::error::Error;
use crate::plan::State;

/// Rows that are read at once, at first and at the most.
const PAGE_MIN: usize = 16;
const PAGE_MAX: usize = 1_024;

/// A row as far as a scan has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownRow {
    pub path: String,
    pub stat: StatRow,
    pub state: State,
    pub class: u32,
    pub code: Option<String>,
}

const KNOWN_FROM: &str = "SELECT path, size_bytes, mtime_ns, ctime_ns, inode, state, class, code
     FROM files WHERE hub_id = ?1 AND path >= ?2 ORDER BY path LIMIT ?3";

fn row(r: &Row<'_>) -> rusqlite::Result<KnownRow> {
    Ok(KnownRow {
        path: r.get(0)?,
        stat: StatRow {
            size_bytes: unsigned(r.get(1)?),
            mtime_ns: r.get(2)?,
            ctime_ns: r.get(3)?,
            inode: r.get::<_, i64>(4)?.cast_unsigned(),
        },
        state: State::parse(r.get_ref(5)?.as_str()?).ok_or(rusqlite::Error::InvalidQuery)?,
        class: r.get(6)?,
        code: r.get(7)?,
    })
}

/// Rows of one hub for a caller that asks for paths in their order; one that goes back begins anew
/// there.
pub struct KnownRows {
    hub: String,
    page: VecDeque<KnownRow>,
    limit: usize,
    /// Rows of the page that were asked for.
    hits: usize,
    /// No row is behind those of the page.
    is_end: bool,
    /// The path that was asked for last.
    last: String,
}

impl KnownRows {
    pub fn new(hub_id: HubId) -> Self {
        Self {
            hub: hub_id.to_string(),
            page: VecDeque::new(),
            limit: PAGE_MIN,
            hits: 0,
            is_end: false,
            last: String::new(),
        }
    }

    /// The row of a path. Rows that were written behind it since the walk came near may be missed.
    pub fn find(&mut self, ledger: &Ledger, path: &str) -> Result<Option<KnownRow>, Error> {
        if path <= self.last.as_str() {
            // Names of a large folder come in several runs.
            self.page.clear();
            (self.is_end, self.limit, self.hits) = (false, PAGE_MIN, 0);
        }
        self.last.clear();
        self.last.push_str(path);
        while self.page.pop_front_if(|row| row.path.as_str() < path).is_some() {}
        if self.page.is_empty() && !self.is_end {
            // From here on, whatever lies between: rows of files that are gone are leapt over.
            let is_dense = self.hits * 2 >= self.limit;
            self.limit = if is_dense { (self.limit * 2).min(PAGE_MAX) } else { PAGE_MIN };
            self.page = ledger.known_from(&self.hub, path, self.limit)?;
            self.is_end = self.page.len() < self.limit;
            self.hits = 0;
        }
        let found = self.page.pop_front_if(|row| row.path == path);
        self.hits += usize::from(found.is_some());
        Ok(found)
    }
}

impl Ledger {
    fn known_from(&self, hub: &str, path: &str, limit: usize) -> Result<VecDeque<KnownRow>, Error> {
        let mut statement = self.connection.prepare_cached(KNOWN_FROM).map_err(self.wrap())?;
        let rows = statement.query_map(params![hub, path, signed(limit as u64)], row);
        rows.and_then(Iterator::collect).map_err(self.wrap())
    }
}

#[cfg(test)]
mod tests {
    use barque_bundle::{SeriesId, Timestamp};

    use super::*;

    const NOW: Timestamp = Timestamp::from_unix_ms(1_000);

    #[test]
    fn rows_are_found_in_any_order_and_gaps_on_either_side_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        let hub = HubId::new(NOW, [1; 10]);
        ledger.add_hub_if_missing(hub, SeriesId::new(NOW, [2; 10])).unwrap();
        let insert =
            "INSERT INTO files (hub_id, path, state, size_bytes, mtime_ns, ctime_ns, inode,
                          partition_ms, since) VALUES (?1, ?2, 'skipped', ?3, 1, 1, 1, 0, 0)";
        let path = |n: i64| format!("d/{n:05}.parquet");
        // Three runs of rows with wide gaps between them.
        let has = |n: i64| n / 1_000 % 2 == 0;
        for n in (0..6_000).filter(|n| has(*n)) {
            ledger.connection.execute(insert, params![hub.to_string(), path(n), n]).unwrap();
        }
        let mut rows = KnownRows::new(hub);
        let mut find = |n: i64| rows.find(&ledger, &path(n)).unwrap().map(|r| r.stat.size_bytes);
        let expected = |n: i64| has(n).then_some(n.unsigned_abs());
        for n in (0..7_000).filter(|n| n % 7 != 3).chain([5, 2, 4_500, 1_500, 6_999]) {
            assert_eq!(find(n), expected(n).filter(|_| n < 6_000), "{n}");
        }
    }
}
