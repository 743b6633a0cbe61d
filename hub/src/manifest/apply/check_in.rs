//! `CheckIn`: what a spoke says of its series, and the numbers that are answered.

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::batch::{add_ranges, is_live};
use super::import;
use crate::command::{CheckIn, OperationReply};
use crate::manifest::query::{signed, unsigned};

/// Series that are followed from one to the next at the most.
const CHAIN_MAX: u32 = 64;

pub fn apply(c: &Connection, op: &CheckIn, at: Timestamp) -> rusqlite::Result<OperationReply> {
    let spoke = op.spoke_id.as_str();
    if !is_live(c, spoke, op.key_id.as_str())? {
        return Ok(OperationReply::Dead);
    }
    let report = serde_json::to_string(&op.report).unwrap_or_default();
    c.prepare_cached("UPDATE spokes SET last_seen = ?2, report = ?3 WHERE spoke_id = ?1")?
        .execute(params![spoke, at.unix_ms(), report])?;

    let series = op.series.to_string();
    let known: Option<(i64, Option<String>)> = c
        .prepare_cached(
            "SELECT seq_head, replaced_by FROM series WHERE spoke_id = ?1 AND series = ?2",
        )?
        .query_row([spoke, &series], |r| Ok((r.get(0)?, r.get(1)?)))
        .optional()?;
    let seen = known.as_ref().map_or(0, |(head, _)| unsigned(*head));
    // A ledger that went back in time gives numbers out twice; it has to open a new series.
    if op.seq_head < seen {
        return Ok(OperationReply::CheckedIn { seen, recorded: false, forked: None });
    }
    // Two machines live on one state: each goes on with a series of its own.
    let successor = known.and_then(|(_, replaced_by)| replaced_by);
    let forked = successor.map(|s| newest_after(c, spoke, s)).transpose()?;
    if forked.is_some() {
        c.prepare_cached("UPDATE series SET forked = ?3 WHERE spoke_id = ?1 AND series = ?2")?
            .execute(params![spoke, series, at.unix_ms()])?;
    }
    c.prepare_cached(
        "INSERT INTO series (spoke_id, series, opened_at, seq_head, as_of)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (spoke_id, series) DO UPDATE SET
             seq_head = excluded.seq_head, as_of = coalesce(excluded.as_of, as_of)",
    )?
    .execute(params![
        spoke,
        series,
        at.unix_ms(),
        signed(op.seq_head),
        op.as_of.map(Timestamp::unix_ms)
    ])?;
    if let Some(old) = &op.replaces {
        replace(c, spoke, &old.to_string(), &series)?;
    }
    import::state_in_transit(c, spoke, &op.in_transit, op.series, at)?;
    add_ranges(c, spoke, &series, &op.voids)?;
    add_ranges(c, spoke, &series, &op.answered)?;
    Ok(OperationReply::CheckedIn { seen, recorded: true, forked })
}

/// The series at the end of those that replaced one another from here on.
fn newest_after(c: &Connection, spoke: &str, first: String) -> rusqlite::Result<String> {
    let mut newest = first.clone();
    // A spoke may state any chain, a ring too.
    for _ in 0..CHAIN_MAX {
        let next: Option<Option<String>> = c
            .prepare_cached("SELECT replaced_by FROM series WHERE spoke_id = ?1 AND series = ?2")?
            .query_row([spoke, &newest], |r| r.get(0))
            .optional()?;
        match next.flatten() {
            Some(next) if next != first => newest = next,
            _ => break,
        }
    }
    Ok(newest)
}

/// The old series is closed: its unanswered numbers are void (`renumbered`).
pub(super) fn replace(c: &Connection, spoke: &str, old: &str, new: &str) -> rusqlite::Result<()> {
    c.prepare_cached(
        "UPDATE series SET replaced_by = ?3
         WHERE spoke_id = ?1 AND series = ?2 AND replaced_by IS NULL AND series <> ?3",
    )?
    .execute([spoke, old, new])?;
    Ok(())
}
