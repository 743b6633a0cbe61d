//! `/healthz`, `/readyz`, `/hub/status`: alive, ready, and how it stands.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use barque_bundle::platform;
use barque_bundle::wire::{HubStatus, Role};

use super::{Operator, Problem};
use crate::config::DataFolder;
use crate::hub::Parts;
use crate::manifest::query;
use crate::tls;

pub async fn health() -> &'static str {
    "ok\n"
}

pub async fn ready(State(parts): State<Arc<Parts>>) -> Result<&'static str, Problem> {
    parts.require_ready()?;
    Ok("ready\n")
}

pub async fn status(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<HubStatus>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    parts.require_ready()?;
    let (files, bytes, spokes, position) = parts
        .readers
        .read_async(|c| {
            Ok((
                query::counter(c, "files")?,
                query::counter(c, "bytes")?,
                query::spoke_count(c)?,
                query::counter(c, "position")?,
            ))
        })
        .await?;
    let node = parts.node.status();
    let nodes = super::cluster::lines(&parts).await?;
    Ok(Json(HubStatus {
        hub_id: parts.identity.hub_id,
        hub_epoch: parts.epoch(),
        node_id: format!("{:016x}", node.node_id),
        version: crate::VERSION.to_owned(),
        url: parts.url.get().cloned().unwrap_or_default(),
        ready: *parts.ready.borrow(),
        leader: node.leader.map(|l| format!("{l:016x}")),
        term: node.term,
        position,
        promoted_position: *parts.promoted.borrow(),
        files,
        bytes,
        spokes,
        proposals: parts.proposer.counts().proposals.load(Ordering::Relaxed),
        operations: parts.proposer.counts().operations.load(Ordering::Relaxed),
        free_bytes: platform::free_bytes(parts.staging.folder()).unwrap_or(0),
        started_at: parts.started_at,
        certificate_expires_at: match parts.config.plain {
            true => None,
            false => tls::not_after(&DataFolder(&parts.config.data).tls()),
        },
        age_ms: parts.cluster.age().map(|a| u64::try_from(a.as_millis()).unwrap_or(u64::MAX)),
        outside: parts.cluster.outside().map(|o| o.detail),
        nodes,
    }))
}
