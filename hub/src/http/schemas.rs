//! `GET /api/v1/schemas`: which schemas the files of each measurement have.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use barque_bundle::ErrorKind;
use barque_bundle::wire::{MeasurementSchemas, Role, SchemaList};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Operator, Problem};
use crate::error::Refusal;
use crate::hub::Parts;
use crate::manifest::query::{self, SchemasPage};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    #[serde(default)]
    prefix: String,
    /// `database/measurement` behind which to go on.
    #[serde(default)]
    after: String,
    limit: Option<u32>,
}

const LIMIT_DEFAULT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<SchemaList>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    parts.require_ready()?;
    let Query(Asked { prefix, after, limit }) =
        asked.map_err(|e| Refusal::new(ErrorKind::Invalid, "query_malformed", e.body_text()))?;
    let limit = limit.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX);
    let (mut measurements, undescribed_files) = parts
        .readers
        .read_async(move |c| {
            let page = SchemasPage { prefix: &prefix, after: &after, limit: limit + 1 };
            Ok((query::schemas(c, &page)?, query::undescribed_count(c)?))
        })
        .await?;
    let more = measurements.len() > limit as usize;
    measurements.truncate(limit as usize);
    let name = |m: &MeasurementSchemas| {
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        format!("{}/{}", text(&m.database), text(&m.measurement))
    };
    let next_after = measurements.last().filter(|_| more).map(name);
    Ok(Json(SchemaList { measurements, next_after, undescribed_files }))
}
