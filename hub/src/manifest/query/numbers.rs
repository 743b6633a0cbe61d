//! What is known of many numbers of a series, read in runs: numbers of a page mostly follow one
//! another.

use std::collections::HashMap;

use barque_bundle::{SeriesId, SpokeId};
use rusqlite::{Connection, params};

use super::{signed, unsigned, wrap};
use crate::error::Error;

/// Numbers further apart than this are looked up by themselves.
const GAP: u64 = 8;

/// Rows that are read for each number of a run; of a run with more, each number is looked up alone.
const ROWS_EACH: u64 = 2 * GAP;

/// What is known of those numbers that were asked for; of others, nothing.
pub struct Numbers {
    /// Answered for good, in order.
    answered: Vec<(u64, u64)>,
    /// How many files came with each.
    files: HashMap<u64, u64>,
}

impl Numbers {
    pub fn is_answered(&self, seq: u64) -> bool {
        let seq = kept(seq);
        let behind = self.answered.partition_point(|(lo, _)| *lo <= seq);
        behind.checked_sub(1).is_some_and(|at| self.answered[at].1 >= seq)
    }

    /// How many files came with this number; 2 may be more.
    pub fn files(&self, seq: u64) -> u64 {
        self.files.get(&kept(seq)).copied().unwrap_or(0)
    }
}

/// A number as the manifest keeps it.
fn kept(seq: u64) -> u64 {
    unsigned(signed(seq))
}

/// What the manifest knows of these numbers of a spoke's series.
pub fn numbers(
    c: &Connection,
    spoke: &SpokeId,
    series: SeriesId,
    asked: impl Iterator<Item = u64>,
) -> Result<Numbers, Error> {
    let mut asked: Vec<u64> = asked.map(kept).collect();
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
        let most = ROWS_EACH * run.len() as u64;
        let of_run = seqs(c, (spoke, &series), (*first, *last), most)?;
        if (of_run.len() as u64) < most {
            of_run.into_iter().for_each(|seq| *known.files.entry(seq).or_default() += 1);
            continue;
        }
        // Many files under one number, as no spoke of ours has them.
        for seq in run {
            let some = seqs(c, (spoke, &series), (*seq, *seq), 2)?;
            known.files.insert(*seq, some.len() as u64);
        }
    }
    Ok(known)
}

/// Numbers of files from one to another, once for each file, so many at the most.
fn seqs(
    c: &Connection,
    (spoke, series): (&SpokeId, &str),
    (first, last): (u64, u64),
    most: u64,
) -> Result<Vec<u64>, Error> {
    let sql = "SELECT seq FROM files WHERE namespace = ?1 AND series = ?2
               AND seq BETWEEN ?3 AND ?4 ORDER BY seq LIMIT ?5";
    let key = params![spoke.as_str(), series, signed(first), signed(last), signed(most)];
    c.prepare_cached(sql)
        .and_then(|mut s| s.query_map(key, |r| r.get(0).map(unsigned))?.collect())
        .map_err(wrap())
}
