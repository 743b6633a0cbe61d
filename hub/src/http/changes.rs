//! `GET /api/v1/changes`: what changed in the manifest, by position, each change once.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use barque_bundle::ErrorKind;
use barque_bundle::wire::{ChangeList, Role};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Operator, Problem, position};
use crate::error::Refusal;
use crate::hub::Parts;
use crate::manifest::query;

const LIMIT_DEFAULT: u32 = 1_000;
const LIMIT_MAX: u32 = 10_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    #[serde(default)]
    after: u64,
    limit: Option<u32>,
}

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<ChangeList>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    parts.require_ready()?;
    let Query(Asked { after, limit }) =
        asked.map_err(|e| Refusal::new(ErrorKind::Invalid, "query_malformed", e.body_text()))?;
    let limit = limit.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX);
    position::reach(&parts, after).await;
    // The head before the rows: what is committed in between comes with the next call.
    let (position, horizon, changes) = parts
        .readers
        .read_async(move |c| {
            let position = query::counter(c, "position")?;
            let horizon = query::counter(c, "horizon")?;
            Ok((position, horizon, query::changes(c, after, limit)?))
        })
        .await?;
    let gone = |code, detail: String| Refusal::new(ErrorKind::Expired, code, detail);
    if after < horizon {
        let detail = format!(
            "changes up to {horizon} are not kept any more; list /api/v1/files, then go on from \
             the position that it answers"
        );
        return Err(gone("below_horizon", detail).into());
    }
    if after > position {
        let detail = format!(
            "the head is {position}: this hub was restored, or the cursor is of another one; list \
             /api/v1/files and start over"
        );
        return Err(gone("above_head", detail).into());
    }
    let hub_epoch = parts.epoch();
    Ok(Json(ChangeList { changes, hub_epoch, position }))
}
