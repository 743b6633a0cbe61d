//! Makes a spoke: a key of its own, the hub's root pinned, configuration written.

use std::path::Path;

use barque_bundle::wire::{EnrollRequest, EnrollResponse, EnrollToken, Grant, OfflineRequest};
use barque_bundle::{SecretKey, SeriesId, SpokeId, platform};

use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::hub_client;
use crate::identity::{Identity, Pin};
use crate::ledger::{Ledger, aside};
use crate::lock::Lock;
use crate::pin::Times;

/// As whom a state folder enrolls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// As the spoke that it is, or becomes.
    AsBefore,
    /// As another one: its state folder is a copy of that of another machine. Identity and ledger
    /// are set aside once the hub has taken the new key.
    Another,
}

/// Enrolls the state folder with a token; the same folder may come again with it (a lost reply).
///
/// `source` is needed the first time.
pub async fn enroll(
    state: &StateFolder,
    token: &str,
    source: Option<&Path>,
    who: Who,
    edge: &Edge,
) -> Result<EnrollResponse, Error> {
    enroll_at_hub(state, token, source, who, edge).await.map_err(Error::explained)
}

async fn enroll_at_hub(
    state: &StateFolder,
    token: &str,
    source: Option<&Path>,
    who: Who,
    edge: &Edge,
) -> Result<EnrollResponse, Error> {
    let token = EnrollToken::decode(token).map_err(|e| Error::Usage(e.to_string()))?;
    let mut config = configuration(state, source)?;
    platform::create_folders_durably(state.path(), 0o700)
        .map_err(Error::io("cannot make the state folder", state.path()))?;
    let _lock = Lock::take(state, edge.now())?;
    let identity = identity_for(state, &token.spoke, who, edge)?;
    // Before the call: a key that the hub took must not be lost with a crash.
    identity.save_as(match who {
        Who::AsBefore => state.identity(),
        Who::Another => state.next_identity(),
    })?;
    // A local clock that is wrong does not matter: the token carries the hub's time.
    let times = Times::new(0, Some(token.hub_time));
    let request = EnrollRequest::new(&token, &identity.key);
    let answer = hub_client::enroll(&token.urls, token.root, times, &request).await?;
    if answer.hub_id != token.hub {
        return Err(Error::Usage(format!(
            "the hub that answered is {}, the token is of {}",
            answer.hub_id, token.hub
        )));
    }
    if who == Who::Another {
        leave_old_self(state, edge)?;
        config.hubs.clear();
    }
    remember(state, config, identity, &token, &answer, edge)?;
    if who == Who::Another {
        let _ = std::fs::remove_file(state.next_identity());
    }
    Ok(answer)
}

/// Makes this machine a spoke that has no way to its hub: what it hands in, as a file. The same
/// folder hands in the same key again.
pub fn request_offline(
    state: &StateFolder,
    spoke: &SpokeId,
    source: Option<&Path>,
    edge: &Edge,
) -> Result<OfflineRequest, Error> {
    let request = || -> Result<OfflineRequest, Error> {
        let config = configuration(state, source)?;
        platform::create_folders_durably(state.path(), 0o700)
            .map_err(Error::io("cannot make the state folder", state.path()))?;
        let _lock = Lock::take(state, edge.now())?;
        let identity = identity_for(state, spoke, Who::AsBefore, edge)?;
        identity.save(state)?;
        config.save(state)?;
        Ok(OfflineRequest::new(identity.spoke_id.clone(), &identity.key))
    };
    request().map_err(Error::explained)
}

/// Takes a hub's grant, which came as a file: pins its root. Whoever carried the file is trusted
/// for it, so its fingerprint is to be compared.
pub fn accept_grant(state: &StateFolder, grant: &Grant, edge: &Edge) -> Result<(), Error> {
    let accept = || -> Result<(), Error> {
        if !grant.is_signed() {
            return Err(Error::Usage(
                "this is no grant of a hub, or it was changed on the way: its signature does not \
                 hold; let the hub's operator make it again with `barque hub spoke approve`"
                    .to_owned(),
            ));
        }
        let mut config = SpokeConfig::load(state)?;
        let _lock = Lock::take(state, edge.now())?;
        let identity = Identity::load(state)?
            .filter(|i| i.spoke_id == grant.spoke_id && i.key.public() == grant.public_key);
        let Some(mut identity) = identity else {
            return Err(Error::Usage(format!(
                "the grant is for {} and another key than the one in {}; make the request again \
                 from this state folder: barque enroll --offline",
                grant.spoke_id,
                state.path().display()
            )));
        };
        let offset_ms = grant.hub_time.since_ms(edge.now());
        let mut ledger = Ledger::open(&state.ledger())?;
        // The file took its time: what it says of the hub's clock is only that it is not earlier.
        let offset_ms = offset_ms.max(0);
        ledger.add_hub(grant.hub_id, SeriesId::new(grant.hub_time, edge.id_bytes()), offset_ms)?;
        ledger.raise_hub_time(grant.hub_id, grant.hub_time)?;
        identity.hubs.retain(|p| p.hub_id != grant.hub_id);
        identity.hubs.push(Pin { hub_id: grant.hub_id, roots: vec![grant.root.clone()] });
        config.hubs.retain(|h| h.hub_id != grant.hub_id);
        config.hubs.push(HubEntry { hub_id: grant.hub_id, urls: grant.urls.clone() });
        config.save(state)?;
        identity.save(state)
    };
    accept().map_err(Error::explained)
}

/// The identity that hands in its key: the one that is there, or a new one.
fn identity_for(
    state: &StateFolder,
    spoke: &SpokeId,
    who: Who,
    edge: &Edge,
) -> Result<Identity, Error> {
    let present = Identity::load(state)?;
    let new = || Identity {
        spoke_id: spoke.clone(),
        key: SecretKey::from_seed((edge.random)()),
        hubs: Vec::new(),
    };
    match (who, present) {
        // One that was interrupted may have given its key to the hub.
        (Who::AsBefore, None) => next(state, spoke).map(|n| n.unwrap_or_else(new)),
        (Who::AsBefore, Some(present)) if present.spoke_id == *spoke => Ok(present),
        (Who::AsBefore, Some(present)) => Err(Error::Usage(format!(
            "{} belongs to the spoke {}, the token is for {}; use another state folder, or \
             --new-identity if this one is a copy of that spoke's",
            state.path().display(),
            present.spoke_id,
            spoke
        ))),
        (Who::Another, Some(present)) if present.spoke_id == *spoke => Err(Error::Usage(format!(
            "this state folder is {0} already; announce a new name on the hub (barque hub \
                 spoke add NAME) and use its token, or enroll without --new-identity",
            spoke
        ))),
        (Who::Another, _) => next(state, spoke).map(|n| n.unwrap_or_else(new)),
    }
}

/// The identity of an enrollment that was interrupted, if it is the token's.
fn next(state: &StateFolder, spoke: &SpokeId) -> Result<Option<Identity>, Error> {
    let next = Identity::load_from(state.next_identity())?;
    Ok(next.filter(|n| n.spoke_id == *spoke))
}

/// Sets identity and ledger of who this folder was aside.
fn leave_old_self(state: &StateFolder, edge: &Edge) -> Result<(), Error> {
    // The ledger first: without it the same identity only asks its hub again.
    Ledger::set_aside(&state.ledger(), "copied", edge.now())?;
    let path = state.identity();
    match std::fs::rename(&path, aside(&path, "copied", edge.now())) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("cannot set aside", path)(e))
        }
        _ => Ok(()),
    }
}

fn configuration(state: &StateFolder, source: Option<&Path>) -> Result<SpokeConfig, Error> {
    let mut config = match (SpokeConfig::load(state), source) {
        (Ok(config), _) => config,
        (Err(Error::NotEnrolled(_)), Some(source)) => SpokeConfig::new(source.to_owned()),
        (Err(Error::NotEnrolled(_)), None) => {
            return Err(Error::Usage(
                "say which folder to ship: --source DIR (a tree of Parquet files)".to_owned(),
            ));
        }
        (Err(e), _) => return Err(e),
    };
    if let Some(source) = source {
        let wrap = || Error::io("cannot use the source folder", source);
        config.source = std::fs::canonicalize(source).map_err(wrap())?;
        std::fs::read_dir(&config.source).map_err(wrap())?;
    }
    Ok(config)
}

fn remember(
    state: &StateFolder,
    mut config: SpokeConfig,
    mut identity: Identity,
    token: &EnrollToken,
    answer: &EnrollResponse,
    edge: &Edge,
) -> Result<(), Error> {
    let offset_ms = answer.hub_time.since_ms(edge.now());
    let ledger = Ledger::open(&state.ledger())?;
    let series = SeriesId::new(answer.hub_time, edge.id_bytes());
    ledger.add_hub(answer.hub_id, series, offset_ms)?;
    ledger.set_clock(answer.hub_id, offset_ms, answer.hub_time)?;
    identity.hubs.retain(|p| p.hub_id != answer.hub_id);
    identity.hubs.push(Pin { hub_id: answer.hub_id, roots: vec![answer.root.clone()] });
    let urls = token.urls.iter().map(|u| u.trim_end_matches('/').to_owned()).collect();
    config.hubs.retain(|h| h.hub_id != answer.hub_id);
    config.hubs.push(HubEntry { hub_id: answer.hub_id, urls });
    // A hub without a pin is refused by name; one without an entry would be forgotten silently.
    config.save(state)?;
    identity.save(state)
}
