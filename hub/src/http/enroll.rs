//! `POST /api/v1/enroll`: a one-time token and a key become a spoke.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use barque_bundle::wire::{EnrollRequest, EnrollResponse, Grant, OfflineRequest, Role};
use barque_bundle::{ErrorKind, Sha256Digest};

use super::{Operator, Problem, body};
use crate::command::{ApproveSpoke, Command, CommandRefusal, Enroll, Reply};
use crate::error::Refusal;
use crate::hub::Parts;
use crate::manifest::query;

pub async fn enroll(
    State(parts): State<Arc<Parts>>,
    request: Request,
) -> Result<Json<EnrollResponse>, Problem> {
    parts.require_ready()?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let request: EnrollRequest = body::json(&bytes)?;
    if !request.is_proven(&parts.identity.hub_id) {
        return Err(Refusal::new(
            ErrorKind::Unauthenticated,
            "bad_proof",
            "the request does not prove that its sender owns the key, or the token is of another hub",
        )
        .into());
    }
    let secret_hash = Sha256Digest::of(request.secret.as_bytes());
    let spoke = request.spoke_id.clone();
    // A stranger's guess costs a look-up, not a write that all nodes keep.
    let known = parts.readers.read_async(move |c| query::is_announced(c, &spoke, &secret_hash));
    if !known.await? {
        return Err(refusal(CommandRefusal::UnknownToken).into());
    }
    let command = Command::Enroll(Enroll {
        spoke_id: request.spoke_id.clone(),
        secret_hash,
        public_key: request.public_key,
    });
    if let Reply::Refused(why) = parts.proposer.command(command).await? {
        return Err(refusal(why).into());
    }
    tracing::info!(spoke = %request.spoke_id, "enrolled");
    Ok(Json(EnrollResponse {
        spoke_id: request.spoke_id,
        hub_id: parts.identity.hub_id,
        hub_epoch: parts.epoch(),
        root: parts.identity.root_public(),
        hub_time: (parts.clock)(),
    }))
}

/// An operator lets a spoke in whose request came as a file; the grant is carried back to it.
pub async fn approve(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    request: Request,
) -> Result<Json<Grant>, Problem> {
    operator.require(&parts, Role::Operator).await?;
    parts.require_ready()?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let request: OfflineRequest = body::json(&bytes)?;
    if !request.is_proven() {
        let detail = "this is no request of a spoke, or it was changed on the way: make it again \
                      with `barque enroll --offline`";
        return Err(Refusal::new(ErrorKind::Unauthenticated, "bad_proof", detail).into());
    }
    let command = Command::ApproveSpoke(ApproveSpoke {
        spoke_id: request.spoke_id.clone(),
        public_key: request.public_key.clone(),
    });
    match parts.proposer.command(command).await? {
        Reply::Refused(CommandRefusal::NameTaken) => {
            let detail = format!(
                "the name {} is taken by another key (names differ in more than case); nothing was \
                 changed",
                request.spoke_id
            );
            return Err(Refusal::new(ErrorKind::Conflict, "name_taken", detail).into());
        }
        Reply::Refused(why) => return Err(refusal(why).into()),
        _ => {}
    }
    tracing::info!(spoke = %request.spoke_id, "approved");
    let urls = match parts.config.import_only {
        true => Vec::new(),
        false => parts.urls(),
    };
    let grant = Grant {
        kind: Grant::KIND.to_owned(),
        spoke_id: request.spoke_id,
        public_key: request.public_key,
        hub_id: parts.identity.hub_id,
        hub_epoch: parts.epoch(),
        urls,
        root: parts.identity.root_public(),
        hub_time: (parts.clock)(),
        signature: String::new(),
    };
    Ok(Json(grant.signed(&parts.identity.root)))
}

fn refusal(why: CommandRefusal) -> Refusal {
    let new = "get a new token from the hub's operator: barque hub spoke add";
    let (kind, code, detail) = match why {
        CommandRefusal::TokenUsed => (
            ErrorKind::Forbidden,
            "token_used",
            format!("the token was used before, by another key; {new}"),
        ),
        CommandRefusal::TokenExpired => {
            (ErrorKind::Forbidden, "token_expired", format!("the token has expired; {new}"))
        }
        CommandRefusal::KeyInUse => (
            ErrorKind::Conflict,
            "key_in_use",
            "this key belongs to another spoke; use a new state folder".to_owned(),
        ),
        _ => (
            ErrorKind::Forbidden,
            "token_unknown",
            format!("the hub does not know this token for this spoke; {new}"),
        ),
    };
    Refusal::new(kind, code, detail)
}
