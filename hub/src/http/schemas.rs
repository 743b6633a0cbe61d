//! `GET /api/v1/schemas`: which schemas the files of each measurement have.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use barque_bundle::ErrorKind;
use barque_bundle::wire::{Role, SchemaList};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Operator, Problem};
use crate::error::Refusal;
use crate::hub::Parts;
use crate::manifest::query;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    #[serde(default)]
    prefix: String,
}

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<SchemaList>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    parts.require_ready()?;
    let Query(Asked { prefix }) =
        asked.map_err(|e| Refusal::new(ErrorKind::Invalid, "query_malformed", e.body_text()))?;
    let (measurements, undescribed_files) = parts
        .readers
        .read_async(move |c| Ok((query::schemas(c, &prefix)?, query::undescribed_count(c)?)))
        .await?;
    Ok(Json(SchemaList { measurements, undescribed_files }))
}
