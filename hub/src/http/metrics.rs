//! `GET /metrics`: what Prometheus asks for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use barque_bundle::database::wal_name;
use barque_bundle::platform;
use barque_bundle::wire::{NodeLine, Role};
use rusqlite::Connection;

use super::{Operator, Problem};
use crate::command::NodeState;
use crate::config::DataFolder;
use crate::error::Error;
use crate::hub::Parts;
use crate::manifest::query;
use crate::metrics::Reading;

pub async fn metrics(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Response, Problem> {
    // Also while it is not ready: that is when somebody looks.
    operator.require_role(&parts, Role::Reader).await?;
    let read_from = Arc::clone(&parts);
    let reading = tokio::task::spawn_blocking(move || read(&read_from)).await;
    let reading = reading.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
    let text = parts.metrics.text(&reading).map_err(|e| Error::Malformed(e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

fn read(parts: &Parts) -> Result<Reading, Error> {
    let (staged_files, staged_bytes) = parts.ledger.staged_sum()?;
    let node = parts.node.status();
    let mut single = parts.readers.read(of_manifest)?;
    let flag = u64::from;
    single.extend([
        ("barque_ready", flag(*parts.ready.borrow())),
        ("barque_staged_files", staged_files),
        ("barque_staged_bytes", staged_bytes),
        ("barque_announced_bytes", parts.gate.announced_bytes()),
        ("barque_open_streams", parts.gate.streams()),
        ("barque_promoted_position", *parts.promoted.borrow()),
        ("barque_raft_term", node.term),
        ("barque_raft_is_leader", flag(node.leader == Some(node.node_id))),
        ("barque_raft_has_leader", flag(node.leader.is_some())),
        ("barque_raft_last_log_index", node.last_log.unwrap_or(0)),
        ("barque_raft_applied_index", node.last_applied.unwrap_or(0)),
        (
            "barque_start_time_seconds",
            u64::try_from(parts.started_at.unix_ms() / 1000).unwrap_or(0),
        ),
    ]);
    let (held, files) =
        parts.readers.read(|c| Ok((query::files_held(c)?, query::counter(c, "files")?)))?;
    let held_here = held.get(&node.node_id).copied().unwrap_or(0);
    single.extend(of_cluster(parts, held_here));
    let nodes = super::cluster::lines_with(parts, &held, files);
    let folder = DataFolder(&parts.config.data);
    let free = |path| platform::free_bytes(path).unwrap_or(0);
    let wal = |path| std::fs::metadata(wal_name(path)).map_or(0, |m| m.len());
    let counts = parts.proposer.counts();
    Ok(Reading {
        single,
        by_node: nodes.iter().flat_map(of_node).collect(),
        proposals: counts.proposals.load(Ordering::Relaxed),
        operations: counts.operations.load(Ordering::Relaxed),
        spokes: parts.readers.read(query::spokes_by_state)?,
        free_bytes: vec![
            ("data", free(&parts.config.data)),
            ("landing", free(parts.landing.root())),
        ],
        wal_bytes: vec![
            ("raft", wal(&folder.raft_db())),
            ("manifest", wal(&folder.manifest_db())),
            ("node", wal(&folder.node_db())),
        ],
    })
}

/// How this node and the others stand.
fn of_cluster(parts: &Parts, held_here: u64) -> Vec<(&'static str, u64)> {
    let (cluster, node) = (&parts.cluster, parts.node.status());
    let nodes = cluster.nodes();
    let there = || nodes.values().filter(|n| n.state != NodeState::Removed);
    let last = node.last_log.unwrap_or(0);
    let lag = node.matched.values().map(|m| last.saturating_sub(m.unwrap_or(0))).max();
    let age = cluster.age().map_or(u64::from(u32::MAX), |a| a.as_secs());
    vec![
        ("barque_raft_is_stalled", parts.node.is_stalled().into()),
        ("barque_nodes", there().count() as u64),
        ("barque_nodes_alive", there().filter(|n| cluster.is_alive(n.node_id)).count() as u64),
        ("barque_node_takes_part", cluster.outside().is_none().into()),
        ("barque_node_lag_entries", lag.unwrap_or(0)),
        ("barque_files_held", held_here),
        ("barque_state_age_seconds", age),
    ]
}

/// How one node stands; what is not known is left out.
fn of_node(line: &NodeLine) -> Vec<(&'static str, String, u64)> {
    let flag = |is: bool| Some(u64::from(is));
    let all = [
        ("barque_cluster_node_up", flag(line.alive)),
        ("barque_cluster_node_is_voter", flag(line.role == "voter")),
        ("barque_cluster_node_is_leader", flag(line.leader)),
        ("barque_cluster_node_last_contact_seconds", line.last_contact_ms.map(|ms| ms / 1000)),
        ("barque_cluster_node_has_error", flag(line.last_error.is_some())),
        ("barque_cluster_node_position", line.position),
        ("barque_cluster_node_lag_entries", line.lag_entries),
        ("barque_cluster_node_files_held", Some(line.files_held)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, line.node_id.clone(), value?))).collect()
}

fn of_manifest(c: &Connection) -> Result<Vec<(&'static str, u64)>, Error> {
    Ok(vec![
        ("barque_files", query::counter(c, "files")?),
        ("barque_landed_bytes", query::counter(c, "bytes")?),
        ("barque_position", query::counter(c, "position")?),
        ("barque_changes_horizon", query::counter(c, "horizon")?),
        ("barque_undescribed_files", query::undescribed_count(c)?),
    ])
}
