//! Makes a spoke: a key of its own, the hub's root pinned, configuration written.

use std::path::Path;

use barque_bundle::wire::{EnrollRequest, EnrollResponse, EnrollToken};
use barque_bundle::{SecretKey, SeriesId, platform};

use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::hub_client;
use crate::identity::{Identity, Pin};
use crate::ledger::Ledger;
use crate::lock::Lock;
use crate::pin::Times;

/// Enrolls the state folder with a token; the same folder may come again with it (a lost reply).
///
/// `source` is needed the first time.
pub async fn enroll(
    state: &StateFolder,
    token: &str,
    source: Option<&Path>,
    edge: &Edge,
) -> Result<EnrollResponse, Error> {
    enroll_at_hub(state, token, source, edge).await.map_err(Error::explained)
}

async fn enroll_at_hub(
    state: &StateFolder,
    token: &str,
    source: Option<&Path>,
    edge: &Edge,
) -> Result<EnrollResponse, Error> {
    let token = EnrollToken::decode(token).map_err(|e| Error::Usage(e.to_string()))?;
    let config = configuration(state, source)?;
    platform::create_folders_durably(state.path(), 0o700)
        .map_err(Error::io("cannot make the state folder", state.path()))?;
    let _lock = Lock::take(state, edge.now())?;
    let identity = match Identity::load(state)? {
        Some(identity) if identity.spoke_id == token.spoke => identity,
        Some(identity) => {
            return Err(Error::Usage(format!(
                "{} belongs to the spoke {}, the token is for {}; use another state folder",
                state.path().display(),
                identity.spoke_id,
                token.spoke
            )));
        }
        None => {
            let key = SecretKey::from_seed((edge.random)());
            Identity { spoke_id: token.spoke.clone(), key, hubs: Vec::new() }
        }
    };
    // Before the call: a key that the hub took must not be lost with a crash.
    identity.save(state)?;
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
    remember(state, config, identity, &token, &answer, edge)?;
    Ok(answer)
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
    identity.save(state)?;
    let urls = token.urls.iter().map(|u| u.trim_end_matches('/').to_owned()).collect();
    config.hubs.retain(|h| h.hub_id != answer.hub_id);
    config.hubs.push(HubEntry { hub_id: answer.hub_id, urls });
    config.save(state)
}
