//! How a spoke stands with its hubs, from the ledger alone: works without a network.

use barque_bundle::{HubId, SpokeId, Timestamp};
use serde::Serialize;

use crate::config::{SpokeConfig, StateFolder};
use crate::error::Error;
use crate::identity::Identity;
use crate::ledger::{Ledger, PassRow};
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
        hubs.push(HubStatus {
            hub_id: hub.hub_id,
            urls: hub.urls,
            pending: tally.of(State::Pending),
            in_flight: tally.of(State::InFlight),
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
