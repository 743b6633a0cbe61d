//! `/api/v1/sync-spokes`: the operator's view of spokes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use barque_bundle::digest::hex;
use barque_bundle::wire::{
    AddSpokeRequest, AddSpokeResponse, EnrollToken, Role, SetSpokeRequest, SpokeLine, SpokeList,
};
use barque_bundle::{ErrorKind, Sha256Digest, SpokeId};

use super::{Operator, Problem, body};
use crate::command::{AddSpoke, Command, CommandRefusal, Reply, SetSpoke, SpokeState};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::manifest::query;

/// Longest life of an enrollment token: 7 days.
const EXPIRES_MAX_MS: u64 = 7 * 86_400_000;

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<SpokeList>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    let spokes = parts.readers.read_async(|c| query::spokes(c, None)).await?;
    Ok(Json(SpokeList { spokes }))
}

pub async fn add(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    request: Request,
) -> Result<Json<AddSpokeResponse>, Problem> {
    operator.require(&parts, Role::Operator).await?;
    parts.require_ready()?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let request: AddSpokeRequest = body::json(&bytes)?;
    if request.expires_in_ms == 0 || request.expires_in_ms > EXPIRES_MAX_MS {
        let detail = "a token lives longer than 0 and at most 7d";
        return Err(Refusal::new(ErrorKind::Invalid, "expiry_out_of_range", detail).into());
    }
    let now = (parts.clock)();
    let secret = hex(&rand::random::<[u8; 32]>());
    let expires_at = now.plus_ms(i64::try_from(request.expires_in_ms).unwrap_or(i64::MAX));
    let command = Command::AddSpoke(AddSpoke {
        spoke_id: request.spoke_id.clone(),
        secret_hash: Sha256Digest::of(secret.as_bytes()),
        expires_at,
    });
    if let Reply::Refused(_) = parts.proposer.command(command).await? {
        let detail = format!(
            "the name {} is taken (names differ in more than case); nothing was changed",
            request.spoke_id
        );
        return Err(Refusal::new(ErrorKind::Conflict, "name_taken", detail).into());
    }
    let url = parts.url.get().cloned().unwrap_or_default();
    let root = parts.identity.root_public().fingerprint();
    let token = EnrollToken {
        spoke: request.spoke_id.clone(),
        hub: parts.identity.hub_id,
        urls: parts.urls(),
        root,
        secret,
        hub_time: now,
        expires_at,
    };
    tracing::info!(spoke = %request.spoke_id, %expires_at, "spoke announced");
    Ok(Json(AddSpokeResponse {
        spoke_id: request.spoke_id,
        token: token.encode(),
        expires_at,
        url,
        root,
    }))
}

pub async fn show(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Result<Json<SpokeLine>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    Ok(Json(line(&parts, checked(&id)?).await?))
}

/// Enables or disables a spoke; exact from here on, since `apply` judges every write.
pub async fn set(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<SpokeLine>, Problem> {
    operator.require(&parts, Role::Operator).await?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let SetSpokeRequest { enabled } = body::json(&bytes)?;
    let to = if enabled { SpokeState::Enabled } else { SpokeState::Disabled };
    change(&parts, checked(&id)?, to).await
}

/// Removes a spoke: its keys are dead, its files stay, its name is not given out again.
pub async fn remove(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
) -> Result<Json<SpokeLine>, Problem> {
    operator.require(&parts, Role::Operator).await?;
    change(&parts, checked(&id)?, SpokeState::Removed).await
}

fn checked(id: &str) -> Result<SpokeId, Refusal> {
    id.parse().map_err(|_| no_such_spoke(id))
}

fn no_such_spoke(id: &str) -> Refusal {
    let detail = format!("there is no spoke named {id:?}; names are case-sensitive here");
    Refusal::new(ErrorKind::NotFound, "no_such_spoke", detail)
}

async fn line(parts: &Arc<Parts>, id: SpokeId) -> Result<SpokeLine, Error> {
    parts.require_ready()?;
    let asked = id.clone();
    let found = parts.readers.read_async(move |c| query::spokes(c, Some(&asked))).await?;
    let line = found.into_iter().next();
    Ok(line.ok_or_else(|| no_such_spoke(id.as_str()))?)
}

async fn change(
    parts: &Arc<Parts>,
    spoke_id: SpokeId,
    to: SpokeState,
) -> Result<Json<SpokeLine>, Problem> {
    parts.require_ready()?;
    let command = Command::SetSpoke(SetSpoke { spoke_id: spoke_id.clone(), to });
    match parts.proposer.command(command).await? {
        Reply::Refused(CommandRefusal::SpokeRemoved) => {
            let detail = format!("{spoke_id} was removed for good; announce it under a new name");
            Err(Refusal::new(ErrorKind::Conflict, "spoke_removed", detail).into())
        }
        Reply::Refused(_) => Err(no_such_spoke(spoke_id.as_str()).into()),
        _ => {
            tracing::info!(spoke = %spoke_id, ?to, "spoke changed by an operator");
            Ok(Json(line(parts, spoke_id).await?))
        }
    }
}
