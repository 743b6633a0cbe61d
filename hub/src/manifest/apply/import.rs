//! Imports of bundles from drives: who imports one, that it was imported, what else is under way.

use barque_bundle::header::InTransit;
use barque_bundle::{SeriesId, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::batch::add_ranges;
use super::check_in::replace;
use super::count;
use crate::command::{ClaimImport, CommandRefusal, RecordImport, Reply};
use crate::manifest::query::{signed, unsigned};

/// Bundles under way that are kept of one spoke.
const IN_TRANSIT_MAX: usize = 1_000;

/// Gives a bundle to a node, unless another has it; a number that grows fences the one before.
pub fn claim(c: &Connection, op: &ClaimImport, at: Timestamp) -> rusqlite::Result<Reply> {
    let (spoke, bundle) = (op.spoke_id.as_str(), op.bundle_id.to_string());
    let held: Option<(i64, i64, i64)> = c
        .query_row(
            "SELECT number, node_id, claimed_at FROM import_claims
             WHERE spoke_id = ?1 AND bundle_id = ?2",
            [spoke, &bundle],
            |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)),
        )
        .optional()?;
    if let Some((number, node_id, claimed_at)) = held {
        if op.take_over != Some(unsigned(number)) {
            return Ok(Reply::ClaimHeld {
                number: unsigned(number),
                node_id: unsigned(node_id),
                claimed_at: Timestamp::from_unix_ms(claimed_at),
            });
        }
        c.execute("DELETE FROM import_claims WHERE number = ?1", [number])?;
    }
    let number = count(c, "import_claim", 1)?;
    c.execute(
        "INSERT INTO import_claims (number, spoke_id, bundle_id, node_id, start_no, claimed_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            signed(number),
            spoke,
            bundle,
            signed(op.node_id),
            signed(op.start_no),
            at.unix_ms()
        ],
    )?;
    Ok(Reply::Claimed { number })
}

/// Says that the import goes on; refused once it was taken over.
pub fn renew(c: &Connection, number: u64) -> rusqlite::Result<Reply> {
    let n = c.execute(
        "UPDATE import_claims SET renewals = renewals + 1 WHERE number = ?1",
        [signed(number)],
    )?;
    Ok(if n == 1 { Reply::Done } else { Reply::Refused(CommandRefusal::ClaimLost) })
}

pub fn release(c: &Connection, number: u64) -> rusqlite::Result<Reply> {
    c.execute("DELETE FROM import_claims WHERE number = ?1", [signed(number)])?;
    Ok(Reply::Done)
}

pub fn drop_claims(c: &Connection, node_id: u64, before_start: u64) -> rusqlite::Result<Reply> {
    c.execute(
        "DELETE FROM import_claims WHERE node_id = ?1 AND start_no < ?2",
        params![signed(node_id), signed(before_start)],
    )?;
    Ok(Reply::Done)
}

/// Whether a claim is the one that counts for its bundle.
pub(super) fn is_held(
    c: &Connection,
    spoke: &str,
    bundle: &str,
    number: u64,
) -> rusqlite::Result<bool> {
    c.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM import_claims
                        WHERE number = ?1 AND spoke_id = ?2 AND bundle_id = ?3)",
    )?
    .query_row(params![signed(number), spoke, bundle], |r| r.get(0))
}

/// Notes that a bundle was imported to its end.
pub fn record(c: &Connection, op: &RecordImport, at: Timestamp) -> rusqlite::Result<Reply> {
    let (spoke, bundle) = (op.spoke_id.as_str(), op.bundle_id.to_string());
    if !is_held(c, spoke, &bundle, op.claim)? {
        // The record ends the claim: the same record again had its answer lost.
        return Ok(match is_recorded(c, op)? {
            true => Reply::Done,
            false => Reply::Refused(CommandRefusal::ClaimLost),
        });
    }
    let import_no = count(c, "imports", 1)?;
    let n = &op.counts;
    c.execute(
        "INSERT OR REPLACE INTO imported_bundles (spoke_id, bundle_id, import_no, label,
             created_at, imported_at, node_id, files, bytes, committed, already_present,
             conflicts, refused, removed)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        params![
            spoke,
            bundle,
            signed(import_no),
            op.label,
            op.created_at.unix_ms(),
            at.unix_ms(),
            signed(op.node_id),
            signed(n.files),
            signed(n.bytes),
            signed(n.committed),
            signed(n.already_present),
            signed(n.conflicts),
            signed(n.refused),
            signed(n.removed)
        ],
    )?;
    c.execute(
        "UPDATE spokes SET last_seen = max(coalesce(last_seen, ?2), ?2) WHERE spoke_id = ?1",
        params![spoke, at.unix_ms()],
    )?;
    // A late drive says less than is known by then: what is higher stands.
    let series = op.series.to_string();
    c.execute(
        "INSERT INTO series (spoke_id, series, opened_at, seq_head, as_of)
         VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (spoke_id, series) DO UPDATE SET
             seq_head = max(seq_head, excluded.seq_head),
             as_of = max(coalesce(as_of, excluded.as_of), coalesce(excluded.as_of, as_of))",
        params![spoke, series, at.unix_ms(), signed(op.seq_head), op.as_of.map(Timestamp::unix_ms)],
    )?;
    if let Some(old) = &op.replaces {
        replace(c, spoke, &old.to_string(), &series)?;
    }
    add_ranges(c, spoke, &series, &op.voids)?;
    // In the spoke's own time, which may be ahead of all.
    let stated_at = op.created_at.min(at);
    state_in_transit(c, spoke, &op.in_transit, op.series, stated_at)?;
    c.execute("DELETE FROM in_transit WHERE spoke_id = ?1 AND bundle_id = ?2", [spoke, &bundle])?;
    release(c, op.claim)
}

fn is_recorded(c: &Connection, op: &RecordImport) -> rusqlite::Result<bool> {
    let n = &op.counts;
    c.query_row(
        "SELECT EXISTS (SELECT 1 FROM imported_bundles
             WHERE spoke_id = ?1 AND bundle_id = ?2 AND node_id = ?3 AND files = ?4
               AND committed = ?5 AND already_present = ?6 AND conflicts = ?7 AND refused = ?8
               AND removed = ?9)",
        params![
            op.spoke_id.as_str(),
            op.bundle_id.to_string(),
            signed(op.node_id),
            signed(n.files),
            signed(n.committed),
            signed(n.already_present),
            signed(n.conflicts),
            signed(n.refused),
            signed(n.removed)
        ],
        |r| r.get(0),
    )
}

/// Takes over what a spoke says is under way, unless it has said something later.
pub(super) fn state_in_transit(
    c: &Connection,
    spoke: &str,
    bundles: &[InTransit],
    series: SeriesId,
    stated_at: Timestamp,
) -> rusqlite::Result<()> {
    let last: Option<i64> =
        c.query_row("SELECT max(stated_at) FROM in_transit WHERE spoke_id = ?1", [spoke], |r| {
            r.get(0)
        })?;
    if last.is_some_and(|last| last > stated_at.unix_ms()) {
        return Ok(());
    }
    c.execute("DELETE FROM in_transit WHERE spoke_id = ?1", [spoke])?;
    let mut insert = c.prepare_cached(
        "INSERT OR REPLACE INTO in_transit (spoke_id, bundle_id, label, created_at, series,
             numbers, stated_at)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE NOT EXISTS
             (SELECT 1 FROM imported_bundles WHERE spoke_id = ?1 AND bundle_id = ?2)",
    )?;
    for b in bundles.iter().take(IN_TRANSIT_MAX) {
        insert.execute(params![
            spoke,
            b.bundle_id.to_string(),
            b.label,
            b.created_at.unix_ms(),
            b.series.unwrap_or(series).to_string(),
            serde_json::to_string(&b.seqs).unwrap_or_default(),
            stated_at.unix_ms()
        ])?;
    }
    Ok(())
}
