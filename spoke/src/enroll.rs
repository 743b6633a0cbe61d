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

/// Enrolls the state folder with a token; the same folder may come again with it (a lost reply).
///
/// `source` is needed the first time.
pub async fn enroll(
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
    let offset_ms = clock_offset(&token, edge);
    let request = EnrollRequest::new(&token, &identity.key);
    let answer = hub_client::enroll(&token.urls, token.root, offset_ms, &request).await?;
    if answer.hub_id != token.hub {
        return Err(Error::Usage(format!(
            "the hub that answered is {}, the token is of {}",
            answer.hub_id, token.hub
        )));
    }
    remember(state, config, identity, &token, &answer, edge)?;
    Ok(answer)
}

/// A clock that is plainly wrong (before the token was made, or after it ended) follows the token.
fn clock_offset(token: &EnrollToken, edge: &Edge) -> i64 {
    let now = edge.now();
    if now < token.hub_time || now > token.expires_at { token.hub_time.since_ms(now) } else { 0 }
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
    identity.hubs.retain(|p| p.hub_id != answer.hub_id);
    identity.hubs.push(Pin { hub_id: answer.hub_id, roots: vec![answer.root.clone()] });
    identity.save(state)?;
    let urls = token.urls.iter().map(|u| u.trim_end_matches('/').to_owned()).collect();
    config.hubs.retain(|h| h.hub_id != answer.hub_id);
    config.hubs.push(HubEntry { hub_id: answer.hub_id, urls });
    config.save(state)
}
