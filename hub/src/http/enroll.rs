//! `POST /api/v1/enroll`: a one-time token and a key become a spoke.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use barque_bundle::wire::{EnrollRequest, EnrollResponse};
use barque_bundle::{ErrorKind, Sha256Digest};

use super::{Problem, body};
use crate::command::{Command, CommandRefusal, Enroll, Reply};
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
