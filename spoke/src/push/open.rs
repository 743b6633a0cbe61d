//! Who this spoke is, which hub is meant, and a line to it.

use std::sync::Arc;

use crate::budget::Pace;
use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::hub_client::{HubClient, Party};
use crate::identity::Identity;
use crate::ledger::Ledger;
use crate::pin::Times;

pub(super) fn enrolled(
    state: &StateFolder,
    identity: Option<Identity>,
    config: &SpokeConfig,
) -> Result<(Identity, HubEntry), Error> {
    match (identity, config.hubs.first()) {
        (Some(identity), Some(hub)) => Ok((identity, hub.clone())),
        _ => Err(Error::NotEnrolled(format!(
            "{} is not enrolled at a hub; enroll it with: barque enroll TOKEN --state {0} --source DIR",
            state.path().display()
        ))),
    }
}

pub(super) fn client(
    identity: &Identity,
    hub: &HubEntry,
    ledger: &Ledger,
    edge: &Edge,
    pace: Option<Arc<Pace>>,
) -> Result<HubClient, Error> {
    let pin = identity.pin(hub.hub_id).ok_or_else(|| {
        Error::NotEnrolled(format!("identity.json trusts no root of hub {}", hub.hub_id))
    })?;
    let party = Party {
        hub_id: hub.hub_id,
        urls: hub.urls.clone(),
        spoke_id: identity.spoke_id.clone(),
        key: identity.key.clone(),
        roots: pin.roots.clone(),
    };
    let row = ledger.hub(hub.hub_id)?;
    let times = Times::new(
        row.as_ref().map_or(0, |h| h.clock_offset_ms),
        row.as_ref().and_then(|h| h.hub_time),
    );
    Ok(HubClient::new(party, times, edge.clone(), pace)?)
}
