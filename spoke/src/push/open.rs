//! Who this spoke is, which hubs are meant, and a line to one.

use std::sync::Arc;
use std::time::Duration;

use barque_bundle::HubId;

use super::Line;
use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::hub_client::{CallError, HubClient, Party, Way};
use crate::identity::Identity;

pub(super) fn not_enrolled(state: &StateFolder) -> Error {
    Error::NotEnrolled(format!(
        "{} is not enrolled at a hub; enroll it with: barque enroll TOKEN --state {0} --source DIR",
        state.path().display()
    ))
}

/// The identity, and the hubs of the state folder or the one that is asked for.
pub(crate) fn enrolled<'c>(
    state: &StateFolder,
    identity: Option<Identity>,
    config: &'c SpokeConfig,
    only: Option<HubId>,
) -> Result<(Identity, Vec<&'c HubEntry>), Error> {
    let hubs = config.hubs_named(only).map_err(Error::Usage)?;
    match identity {
        Some(identity) if !hubs.is_empty() => Ok((identity, hubs)),
        _ => Err(not_enrolled(state)),
    }
}

pub(super) fn client(
    identity: &Identity,
    line: &Line<'_>,
    edge: &Edge,
    stall: Duration,
) -> Result<HubClient, CallError> {
    let hub = line.hub;
    let pin = identity.pin(hub.hub_id).ok_or(CallError::NotPinned(hub.hub_id))?;
    let party = Party {
        hub_id: hub.hub_id,
        urls: hub.urls.clone(),
        spoke_id: identity.spoke_id.clone(),
        key: identity.key.clone(),
        roots: pin.roots.clone(),
    };
    let way = Way { pace: line.pace.clone(), stall };
    HubClient::new(party, Arc::clone(&line.times), edge.clone(), way)
}
