//! `/api/v1/sync-spokes`: the operator's view of spokes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use barque_bundle::digest::hex;
use barque_bundle::wire::{AddSpokeRequest, AddSpokeResponse, EnrollToken, Role, SpokeList};
use barque_bundle::{ErrorKind, Sha256Digest};

use super::{Operator, Problem, body};
use crate::command::{AddSpoke, Command, Reply};
use crate::error::Refusal;
use crate::hub::Parts;
use crate::manifest::query;

/// Longest life of an enrollment token: 7 days.
const EXPIRES_MAX_MS: u64 = 7 * 86_400_000;

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<SpokeList>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    let spokes = parts.readers.read_async(query::spokes).await?;
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
        urls: vec![url.clone()],
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
