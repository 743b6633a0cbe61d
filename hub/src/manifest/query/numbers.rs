//! What is known of many numbers of a series, read in runs: numbers of a page mostly follow one
//! another.

use std::collections::HashMap;

use barque_bundle::{SeriesId, SpokeId};
use rusqlite::{Connection, params};

use super::{signed, unsigned, wrap};
use crate::error::Error;

/// Numbers further apart than this are looked up by themselves.
const GAP: u64 = 8;

/// What is known of those numbers that were asked for; of others, nothing.
pub struct Numbers {
    /// Answered for good, in order.
    answered: Vec<(u64, u64)>,
    /// How many files came with each.
    files: HashMap<u64, u64>,
}

impl Numbers {
    pub fn is_answered(&self, seq: u64) -> bool {
        let behind = self.answered.partition_point(|(lo, _)| *lo <= seq);
        behind.checked_sub(1).is_some_and(|at| self.answered[at].1 >= seq)
    }

    /// How many files came with this number.
    pub fn files(&self, seq: u64) -> u64 {
        self.files.get(&seq).copied().unwrap_or(0)
    }
}

/// What the manifest knows of these numbers of a spoke's series.
pub fn numbers(
    c: &Connection,
    spoke: &SpokeId,
    series: SeriesId,
    asked: impl Iterator<Item = u64>,
) -> Result<Numbers, Error> {
    let mut asked: Vec<u64> = asked.collect();
    asked.sort_unstable();
    let series = series.to_string();
    let mut known = Numbers { answered: Vec::new(), files: HashMap::new() };
    for run in asked.chunk_by(|a, b| b - a <= GAP) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let key = params![spoke.as_str(), series, signed(*first), signed(*last)];
        let pair = |r: &rusqlite::Row<'_>| Ok((unsigned(r.get(0)?), unsigned(r.get(1)?)));
        let mut ranges = c
            .prepare_cached(
                "SELECT lo, hi FROM answered WHERE spoke_id = ?1 AND series = ?2 AND lo <= ?4
                 AND lo >= coalesce((SELECT max(lo) FROM answered WHERE spoke_id = ?1
                                     AND series = ?2 AND lo <= ?3), ?3) ORDER BY lo",
            )
            .map_err(wrap())?;
        for range in ranges.query_map(key, pair).map_err(wrap())? {
            known.answered.push(range.map_err(wrap())?);
        }
        let mut files = c
            .prepare_cached(
                "SELECT seq, count(*) FROM files WHERE namespace = ?1 AND series = ?2
                 AND seq BETWEEN ?3 AND ?4 GROUP BY seq",
            )
            .map_err(wrap())?;
        for number in files.query_map(key, pair).map_err(wrap())? {
            let (seq, count) = number.map_err(wrap())?;
            known.files.insert(seq, count);
        }
    }
    Ok(known)
}
