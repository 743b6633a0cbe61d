//! How a spoke stands with its hubs, from the ledger alone: works without a network.

use barque_bundle::{HubId, Sha256Digest, SpokeId, Timestamp};
use serde::Serialize;

use crate::config::{SpokeConfig, StateFolder};
use crate::error::Error;
use crate::identity::Identity;
use crate::ledger::{FileRow, Ledger, PassRow};
use crate::plan::State;

#[derive(Debug, Serialize)]
pub struct Status {
    pub spoke_id: Option<SpokeId>,
    pub hubs: Vec<HubStatus>,
}

#[derive(Debug, Serialize)]
pub struct HubStatus {
    pub hub_id: HubId,
    pub urls: Vec<String>,
    pub pending: u64,
    pub in_flight: u64,
    pub exported: u64,
    pub synced: u64,
    pub failed: u64,
    pub conflict: u64,
    pub skipped: u64,
    pub modified: u64,
    pub removed: u64,
    pub dismissed: u64,
    pub pending_bytes: u64,
    /// Since when the file that waits longest has waited.
    pub oldest_pending: Option<Timestamp>,
    pub last_success: Option<Timestamp>,
    pub receipts: u64,
}

impl HubStatus {
    /// Whether a person has to act on at least one file.
    pub fn needs_a_person(&self) -> bool {
        self.failed + self.conflict + self.modified > 0
    }
}

/// One file as the ledger has it.
#[derive(Debug, Serialize)]
pub struct FileLine {
    pub hub_id: HubId,
    pub path: String,
    pub state: &'static str,
    pub size_bytes: u64,
    pub sha256: Option<Sha256Digest>,
    pub seq: Option<u64>,
    /// Tries that failed.
    pub attempts: u32,
    pub code: Option<String>,
    pub detail: Option<String>,
    /// When it came into this state.
    pub since: Timestamp,
}

/// Tells of each file in a state (of all, when none is asked for), by state and name, at most
/// `limit`; in bounded memory.
pub fn files(
    state: &StateFolder,
    only: Option<State>,
    limit: u64,
    mut tell: impl FnMut(FileLine),
) -> Result<(), Error> {
    const PAGE: usize = 1_000;
    let config = SpokeConfig::load(state)?;
    let ledger = Ledger::open(&state.ledger()).map_err(Error::explained)?;
    let mut left = limit;
    for hub in config.hubs {
        for state in State::ALL.into_iter().filter(|s| only.is_none_or(|o| o == *s)) {
            let mut after = String::new();
            loop {
                let page = usize::try_from(left).unwrap_or(usize::MAX).min(PAGE);
                let rows = ledger.files_in(hub.hub_id, state, &after, page)?;
                let Some(last) = rows.last() else { break };
                after = last.path.to_string();
                left -= rows.len() as u64;
                rows.into_iter().map(|r| line(hub.hub_id, r)).for_each(&mut tell);
            }
        }
    }
    Ok(())
}

fn line(hub_id: HubId, row: FileRow) -> FileLine {
    FileLine {
        hub_id,
        path: row.path.to_string(),
        state: row.state.as_str(),
        size_bytes: row.stat.size_bytes,
        sha256: row.sha256,
        seq: row.seq,
        attempts: row.attempts,
        code: row.code,
        detail: row.detail,
        since: row.since,
    }
}

/// The last passes, newest first, at most `limit`; one that runs now is the first, without an end.
pub fn passes(state: &StateFolder, limit: u64) -> Result<Vec<PassRow>, Error> {
    SpokeConfig::load(state)?;
    Ledger::open(&state.ledger()).and_then(|l| l.passes(limit)).map_err(Error::explained)
}

/// Reads the status; a pass that runs at the same time is not disturbed.
pub fn status(state: &StateFolder) -> Result<Status, Error> {
    let config = SpokeConfig::load(state)?;
    let identity = Identity::load(state)?;
    let ledger = Ledger::open(&state.ledger()).map_err(Error::explained)?;
    let mut hubs = Vec::new();
    for hub in config.hubs {
        let tally = ledger.tally(hub.hub_id)?;
        let pending = tally.of(State::Pending);
        let in_flight = ledger.files_under_way(hub.hub_id)?.min(pending);
        hubs.push(HubStatus {
            hub_id: hub.hub_id,
            urls: hub.urls,
            pending: pending - in_flight,
            in_flight,
            exported: tally.of(State::Exported),
            synced: tally.of(State::Synced),
            failed: tally.of(State::Failed),
            conflict: tally.of(State::Conflict),
            skipped: tally.of(State::Skipped),
            modified: tally.of(State::Modified),
            removed: tally.of(State::Removed),
            dismissed: tally.of(State::Dismissed),
            pending_bytes: tally.pending_bytes,
            oldest_pending: tally.oldest_pending,
            last_success: ledger.hub(hub.hub_id)?.and_then(|h| h.last_success),
            receipts: ledger.receipt_count(hub.hub_id)?,
        });
    }
    Ok(Status { spoke_id: identity.map(|i| i.spoke_id), hubs })
}
