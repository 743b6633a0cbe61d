//! `Batch`: up to 1,000 operations in order, one reply each.

use std::collections::BTreeMap;

use barque_bundle::{Ranges, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::tally::Tally;
use super::{check_in, import, register};
use crate::command::{Batch, BundleRef, Operation, OperationReply, Reply};
use crate::manifest::query::signed;

pub fn apply(c: &Connection, batch: &Batch, at: Timestamp) -> rusqlite::Result<Reply> {
    let mut bundles = Vec::with_capacity(batch.bundles.len());
    for bundle in &batch.bundles {
        let barred = bar(c, bundle)?;
        bundles.push(Open { bundle, barred, registered: 0, bytes: 0, answered: Vec::new() });
    }
    let mut tally = Tally::begin(c)?;
    let mut replies = Vec::with_capacity(batch.operations.len());
    for operation in &batch.operations {
        replies.push(match operation {
            Operation::Register(op) => match bundles.get_mut(op.bundle as usize) {
                Some(Open { barred: Some(reply), .. }) => reply.clone(),
                Some(open) => register::apply(c, op, (open, &mut tally), at)?,
                None => OperationReply::Dead,
            },
            Operation::Answer { bundle, seq } => match bundles.get_mut(*bundle as usize) {
                Some(Open { barred: Some(reply), .. }) => reply.clone(),
                Some(open) => {
                    open.answered.push(*seq);
                    OperationReply::Done
                }
                None => OperationReply::Dead,
            },
            Operation::CheckIn(op) => check_in::apply(c, op, at)?,
        });
    }
    tally.write(c)?;
    close(c, bundles, at)?;
    Ok(Reply::Batch(replies))
}

/// A bundle while its operations are applied.
pub(super) struct Open<'a> {
    pub bundle: &'a BundleRef,
    /// Why nothing of it is taken.
    barred: Option<OperationReply>,
    pub registered: i64,
    pub bytes: i64,
    /// Numbers that are answered for good.
    pub answered: Vec<u64>,
}

/// Why a bundle's operations are refused, if they are: judged here, so that it is exact.
fn bar(c: &Connection, bundle: &BundleRef) -> rusqlite::Result<Option<OperationReply>> {
    if !is_live(c, bundle.spoke_id.as_str(), bundle.key_id.as_str())? {
        return Ok(Some(OperationReply::Dead));
    }
    let Some(claim) = bundle.claim else { return Ok(None) };
    let id = bundle.bundle_id.to_string();
    let is_held = import::is_held(c, bundle.spoke_id.as_str(), &id, claim)?;
    Ok((!is_held).then_some(OperationReply::Fenced))
}

/// Whether the key may write for the spoke: judged here, so that it is exact.
pub(super) fn is_live(c: &Connection, spoke: &str, key_id: &str) -> rusqlite::Result<bool> {
    c.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM keys k JOIN spokes s ON s.spoke_id = k.spoke_id
                        WHERE k.key_id = ?1 AND k.spoke_id = ?2
                          AND k.state = 'active' AND s.state = 'active')",
    )?
    .query_row([key_id, spoke], |r| r.get(0))
}

fn close(c: &Connection, bundles: Vec<Open<'_>>, at: Timestamp) -> rusqlite::Result<()> {
    let mut answered: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    for open in bundles {
        let spoke = open.bundle.spoke_id.to_string();
        if open.registered > 0 {
            c.prepare_cached(
                "INSERT OR IGNORE INTO bundles (bundle_id, spoke_id, received_at, header, sig)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                open.bundle.bundle_id.to_string(),
                spoke,
                at.unix_ms(),
                open.bundle.header,
                open.bundle.sig
            ])?;
            c.prepare_cached(
                "UPDATE spokes SET files = files + ?2, bytes = bytes + ?3, last_seen = ?4
                 WHERE spoke_id = ?1",
            )?
            .execute(params![spoke, open.registered, open.bytes, at.unix_ms()])?;
        }
        answered.entry((spoke, open.bundle.series.to_string())).or_default().extend(open.answered);
    }
    for ((spoke, series), numbers) in answered {
        raise_head(c, &spoke, &series, &numbers, at)?;
        add_ranges(c, &spoke, &series, &Ranges::from_numbers(numbers))?;
    }
    Ok(())
}

/// A number that came in a bundle was given out, whether a reconcile has said so or not.
fn raise_head(
    c: &Connection,
    spoke: &str,
    series: &str,
    numbers: &[u64],
    at: Timestamp,
) -> rusqlite::Result<()> {
    let Some(highest) = numbers.iter().max() else { return Ok(()) };
    c.prepare_cached(
        "INSERT INTO series (spoke_id, series, opened_at, seq_head) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (spoke_id, series) DO UPDATE SET
             seq_head = max(seq_head, excluded.seq_head)",
    )?
    .execute(params![spoke, series, at.unix_ms(), signed(*highest)])?;
    Ok(())
}

/// Adds numbers to the answered set of a series, merging with neighbours.
pub(super) fn add_ranges(
    c: &Connection,
    spoke: &str,
    series: &str,
    ranges: &Ranges,
) -> rusqlite::Result<()> {
    for (lo, hi) in ranges.as_slice() {
        // Ranges are disjoint and never touch, so only the nearest one below can meet this one.
        let nearest: Option<(i64, i64)> = c
            .prepare_cached(
                "SELECT lo, hi FROM answered WHERE spoke_id = ?1 AND series = ?2 AND lo <= ?3
                 ORDER BY lo DESC LIMIT 1",
            )?
            .query_row(params![spoke, series, signed(*lo)], |r| Ok((r.get(0)?, r.get(1)?)))
            .optional()?;
        let first = nearest.filter(|(_, end)| *end >= signed(*lo) - 1).map(|(lo, _)| lo);
        let lo = first.unwrap_or(signed(*lo));
        let end: Option<i64> = c
            .prepare_cached(
                "SELECT max(hi) FROM answered
                 WHERE spoke_id = ?1 AND series = ?2 AND lo BETWEEN ?3 AND ?4",
            )?
            .query_row(params![spoke, series, lo, signed(hi.saturating_add(1))], |r| r.get(0))?;
        let hi = end.unwrap_or(i64::MIN).max(signed(*hi));
        c.prepare_cached(
            "DELETE FROM answered WHERE spoke_id = ?1 AND series = ?2 AND lo BETWEEN ?3 AND ?4",
        )?
        .execute(params![spoke, series, lo, hi.saturating_add(1)])?;
        c.prepare_cached(
            "INSERT INTO answered (spoke_id, series, lo, hi) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![spoke, series, lo, hi])?;
    }
    Ok(())
}
