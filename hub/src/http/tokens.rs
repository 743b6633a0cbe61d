//! `/api/v1/tokens`: bearer tokens of operators and readers, kept as hashes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Request, State};
use barque_bundle::digest::hex;
use barque_bundle::wire::{AddTokenRequest, AddTokenResponse, Role, TokenList};
use barque_bundle::{ErrorKind, Sha256Digest};

use super::{Operator, Problem, body};
use crate::command::{AddToken, Command, Reply};
use crate::error::Refusal;
use crate::hub::Parts;
use crate::manifest::query;

const NAME_MAX_BYTES: usize = 128;

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<TokenList>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    let tokens = parts.readers.read_async(query::tokens).await?;
    Ok(Json(TokenList { tokens }))
}

pub async fn add(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    request: Request,
) -> Result<Json<AddTokenResponse>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    parts.require_ready()?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let AddTokenRequest { name, role } = body::json(&bytes)?;
    if name.is_empty() || name.len() > NAME_MAX_BYTES || name.chars().any(char::is_control) {
        let detail = "a token's name has 1 to 128 bytes and no control characters";
        return Err(Refusal::new(ErrorKind::Invalid, "name_invalid", detail).into());
    }
    let token = format!("barque-{}-{}", role.as_str(), hex(&rand::random::<[u8; 32]>()));
    let hash = Sha256Digest::of(token.as_bytes());
    let command = Command::AddToken(AddToken { name: name.clone(), role, hash });
    if let Reply::Refused(_) = parts.proposer.command(command).await? {
        let detail =
            format!("a token named {name:?} exists; remove it first or choose another name");
        return Err(Refusal::new(ErrorKind::Conflict, "name_taken", detail).into());
    }
    Ok(Json(AddTokenResponse { name, role, token }))
}

pub async fn remove(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(name): Path<String>,
) -> Result<Json<serde_json::Value>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    parts.require_ready()?;
    let command = Command::RemoveToken { name: name.clone() };
    if let Reply::Refused(_) = parts.proposer.command(command).await? {
        let detail = format!("there is no token named {name:?}");
        return Err(Refusal::new(ErrorKind::NotFound, "no_such_token", detail).into());
    }
    Ok(Json(serde_json::json!({ "removed": name })))
}
