//! What goes over the wire, and what the hub answers: a bundle is noted before it goes, and only a
//! stored receipt moves its files.

use barque_bundle::receipt::Answers;
use barque_bundle::{BundleId, HubId, Outcome, OutcomeLine, Receipt, Timestamp};
use rusqlite::{Connection, params};

use super::{Ledger, signed};
use crate::error::Error;
use crate::plan::{State, after_outcome};

/// What a receipt changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub lines: Vec<OutcomeLine>,
}

impl Ledger {
    /// Nothing is on its way any more, whatever a crash left; how many bundles that was.
    pub fn recover(&mut self) -> Result<usize, Error> {
        self.transaction(|c| {
            // A version before 5 that ran on while this one came may have marked rows since.
            c.execute(
                "UPDATE files INDEXED BY files_open SET state = 'pending', bundle_id = NULL
                 WHERE hub_id IN (SELECT hub_id FROM hubs) AND state = 'in_flight'
                   AND state <> 'synced'",
                [],
            )?;
            c.execute("DELETE FROM under_way", [])
        })
    }

    /// Notes a bundle that goes out. Its files stay pending: only a receipt moves them.
    pub fn depart(&mut self, hub_id: HubId, bundle_id: BundleId, files: u64) -> Result<(), Error> {
        self.transaction(|c| {
            c.prepare_cached("INSERT OR REPLACE INTO under_way VALUES (?1, ?2, ?3)")?
                .execute(params![bundle_id.to_string(), hub_id.to_string(), signed(files)])
                .map(drop)
        })
    }

    /// Stores a verified receipt and applies the lines whose path and digest equal their rows.
    pub fn apply_receipt(
        &mut self,
        hub_id: HubId,
        receipt: &Receipt,
        now: Timestamp,
    ) -> Result<Applied, Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let mut applied = Applied::default();
            let unsettled = match receipt.head.answers {
                Answers::Bundle(bundle_id) => {
                    arrive(c, bundle_id)?;
                    // A hub that goes back behind this is another one, also if no check-in follows.
                    c.prepare_cached(
                        "UPDATE hubs SET seen_position = max(seen_position, ?2)
                         WHERE hub_id = ?1 AND hub_epoch = ?3",
                    )?
                    .execute(params![
                        hub,
                        signed(receipt.head.position),
                        receipt.head.hub_epoch.to_string()
                    ])?;
                    Unsettled::Counts
                }
                _ => Unsettled::Passes,
            };
            if receipt.lines.is_empty() {
                return Ok(applied);
            }
            let answers = serde_json::to_string(&receipt.head.answers).unwrap_or_default();
            c.execute(
                "INSERT INTO receipts (hub_id, answers, received_at, ack, sig, outcomes)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    hub,
                    answers,
                    receipt.head.received_at.unix_ms(),
                    receipt.ack,
                    receipt.sig,
                    receipt.outcomes
                ],
            )?;
            let receipt_id = c.last_insert_rowid();
            for line in &receipt.lines {
                if apply_line(c, &hub, line, (receipt_id, now), unsettled)? {
                    applied.lines.push(line.clone());
                }
            }
            Ok(applied)
        })
    }

    /// A bundle is on its way no more: what has no outcome waits as it did.
    pub fn give_back(&mut self, bundle_id: BundleId) -> Result<(), Error> {
        self.transaction(|c| arrive(c, bundle_id))
    }
}

/// Whether an operator of the hub has to act before this file can land: then it waits.
pub(crate) fn is_for_the_hub(line: &OutcomeLine) -> bool {
    line.code.as_deref() == Some(barque_bundle::receipt::LANDING_BLOCKED)
}

/// What a line means that settles nothing, of a row that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsettled {
    /// It answers what was sent just now: the caller looks at the row again.
    Counts,
    Passes,
}

/// Forgets that a bundle is on its way.
fn arrive(c: &Connection, bundle_id: BundleId) -> rusqlite::Result<()> {
    c.prepare_cached("DELETE FROM under_way WHERE bundle_id = ?1")?
        .execute([bundle_id.to_string()])
        .map(drop)
}

/// True when the line's path and digest equal a row that waits for an answer.
pub(super) fn apply_line(
    c: &Connection,
    hub: &str,
    line: &OutcomeLine,
    (receipt_id, now): (i64, Timestamp),
    unsettled: Unsettled,
) -> rusqlite::Result<bool> {
    let Some(state) = after_outcome(line.outcome).filter(|_| !is_for_the_hub(line)) else {
        // The number stays open.
        let waits = unsettled == Unsettled::Counts
            && c.prepare_cached(
                "SELECT 1 FROM files
                 WHERE hub_id = ?1 AND path = ?2 AND sha256 = ?3 AND state = 'pending'",
            )?
            .exists(params![hub, line.path.as_str(), line.sha256.as_bytes()])?;
        return Ok(waits || line.outcome == Outcome::Withdrawn);
    };
    let kept_receipt = (state == State::Synced).then_some(receipt_id);
    let n = c
        .prepare_cached(
            "UPDATE files SET state = ?4, receipt_id = ?5, their_sha256 = ?6, code = ?7,
                    detail = ?8, since = ?9, attempts = 0, mismatches = 0
             WHERE hub_id = ?1 AND path = ?2 AND sha256 = ?3
               AND state IN ('pending', 'exported')",
        )?
        .execute(params![
            hub,
            line.path.as_str(),
            line.sha256.as_bytes(),
            state.as_str(),
            kept_receipt,
            line.their_sha256.map(|d| d.as_bytes().to_vec()),
            line.code,
            line.detail,
            now.unix_ms()
        ])?;
    Ok(n > 0)
}
