//! What a node does all the time to be one: says where it is, asks how fresh it is, looks whether
//! others live, and as leader brings Raft's membership to what the manifest says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use barque_bundle::platform;

use super::door::{self, Pong};
use super::wire::Lane;
use super::{Cluster, Outside};
use crate::client::split_address;
use crate::command::{self, Command, CommandRefusal, NodeState, NodeUp, Reply};
use crate::config::HubConfig;
use crate::error::{Error, chain};
use crate::hub::Parts;
use crate::manifest::query;
use crate::propose;

const FRESH_EVERY: Duration = Duration::from_secs(1);
const BARRIER_WAIT: Duration = Duration::from_secs(5);
const PING_EVERY: Duration = Duration::from_secs(2);
const PING_WAIT: Duration = Duration::from_secs(2);
const TAKEN_AGAIN: Duration = Duration::from_secs(30);
const UP_AGAIN: Duration = Duration::from_secs(1);
const RESIGN_WAIT: Duration = Duration::from_secs(10);
const MEMBERS_EVERY: Duration = Duration::from_millis(500);
const MARK_EVERY: Duration = Duration::from_secs(1);
const LEADER_CHECK: Duration = Duration::from_millis(100);

/// Runs until it is dropped.
pub async fn run(parts: Arc<Parts>) {
    tokio::join!(
        announce(&parts),
        stay_fresh(&parts),
        watch_leader(&parts),
        ping_all(&parts),
        keep_members(&parts),
        leave(&parts),
        mark_log(&parts),
    );
}

/// Where other nodes reach this one; none without a listener for them.
pub fn advertised(config: &HubConfig, listening: Option<u16>) -> Result<Option<String>, Error> {
    let Some(listen) = &config.cluster_listen else { return Ok(None) };
    let given = config.cluster_advertise.as_ref().unwrap_or(listen);
    let (host, port) = split_address(given).ok_or_else(|| {
        Error::Unusable(format!(
            "{given} is no address for other nodes: give host:port, an IPv6 address in brackets"
        ))
    })?;
    let port = if port == 0 { listening.unwrap_or(0) } else { port };
    let host = match host {
        "0.0.0.0" | "::" => platform::host_name(),
        host => host.to_owned(),
    };
    Ok(Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }))
}

/// Says where this node is until the manifest says the same.
async fn announce(parts: &Parts) {
    let mut nodes = parts.cluster.watch_nodes();
    loop {
        let Some(url) = parts.url.get() else {
            tokio::time::sleep(LEADER_CHECK).await;
            continue;
        };
        let own = NodeUp {
            node_id: parts.identity.node_id,
            address: parts.address.get().cloned().flatten(),
            url: url.clone(),
            name: platform::host_name(),
            level: command::VERSION,
            imports: parts.config.imports,
        };
        if is_said(&parts.cluster, &own) {
            let _ = nodes.changed().await;
            continue;
        }
        // A hub of which nothing is agreed yet has no row that this could be written to.
        if parts.identity.has_joined || parts.cluster.row(own.node_id).is_some() {
            match parts.proposer.command(Command::NodeUp(own)).await {
                Ok(Reply::Refused(CommandRefusal::AddressInUse { node_id })) => {
                    tracing::error!(
                        node = format!("{node_id:016x}"),
                        "another node is registered at this node's address; if it is gone for \
                         good, remove it: barque hub node remove"
                    );
                    let _ = tokio::time::timeout(TAKEN_AGAIN, nodes.changed()).await;
                }
                Ok(Reply::Refused(CommandRefusal::NodeRemoved)) => removed(&parts.cluster),
                Ok(_) => {}
                Err(e) => tracing::debug!(code = e.code, "not announced yet"),
            }
        }
        let _ = tokio::time::timeout(UP_AGAIN, nodes.changed()).await;
    }
}

fn is_said(cluster: &Cluster, own: &NodeUp) -> bool {
    cluster.row(own.node_id).is_some_and(|row| {
        row.state != NodeState::Joining
            && row.address == own.address
            && row.url.as_deref() == Some(own.url.as_str())
            && row.name == own.name
            && row.level == own.level
            && row.imports == own.imports
    })
}

fn removed(cluster: &Cluster) {
    let detail = "this node was removed from its hub; empty its folder and join with a new token";
    cluster.go_outside(Outside { code: "node_removed", detail: detail.to_owned() });
}

/// Asks once a second up to where the others are, and notes when it asked once it is there.
async fn stay_fresh(parts: &Parts) {
    loop {
        let asked_at = Instant::now();
        if parts.cluster.barrier(&parts.node, BARRIER_WAIT).await.is_ok() {
            parts.cluster.note_fresh(asked_at);
        }
        tokio::time::sleep_until((asked_at + FRESH_EVERY).into()).await;
    }
}

async fn watch_leader(parts: &Parts) {
    loop {
        let is_known = parts.node.status().leader.is_some() && !Cluster::lost_quorum(&parts.node);
        parts.cluster.note_leader(is_known);
        tokio::time::sleep(LEADER_CHECK).await;
    }
}

async fn ping_all(parts: &Arc<Parts>) {
    loop {
        for node_id in parts.cluster.others() {
            let cluster = Arc::clone(&parts.cluster);
            tokio::spawn(async move {
                let answer = cluster.ask(node_id, Lane::Work, door::PING, vec![], PING_WAIT).await;
                let Ok(bytes) = answer else { return };
                if let Ok(pong) = serde_json::from_slice::<Pong>(&bytes) {
                    cluster.note_pong(node_id, pong);
                }
            });
        }
        tokio::time::sleep(PING_EVERY).await;
    }
}

/// As leader, brings Raft's membership to what the manifest says, a step at a time.
async fn keep_members(parts: &Parts) {
    let mut nodes = parts.cluster.watch_nodes();
    loop {
        let wanted: BTreeMap<u64, bool> = nodes
            .borrow_and_update()
            .values()
            .filter(|n| match n.state {
                NodeState::Active | NodeState::Draining => {
                    n.address.is_some() || n.node_id == parts.identity.node_id
                }
                NodeState::Joining | NodeState::Removed => false,
            })
            .map(|n| (n.node_id, n.votes && n.state == NodeState::Active))
            .collect();
        // Before anything is agreed there is nothing to keep to.
        let has_changed = !wanted.is_empty()
            && match parts.node.approach_members(&wanted, |id| parts.cluster.can_agree(id)).await {
                Ok(has_changed) => has_changed,
                Err(e) => {
                    tracing::error!(error = %chain(&e), "the membership cannot be changed");
                    false
                }
            };
        if has_changed {
            continue;
        }
        hand_over(parts, &wanted).await;
        if let Err(e) = forget_removed(parts).await {
            tracing::debug!(error = %chain(&e), "copies of a removed node are not forgotten yet");
        }
        let _ = tokio::time::timeout(MEMBERS_EVERY, nodes.changed()).await;
    }
}

/// A leader that is not to vote any more, or whose disk is full, lets another one lead.
async fn hand_over(parts: &Parts, wanted: &BTreeMap<u64, bool>) {
    let (status, own) = (parts.node.status(), parts.identity.node_id);
    let leads = status.leader == Some(own) && !status.voters.is_empty();
    let is_out = wanted.get(&own) == Some(&false) && !status.voters.contains(&own);
    let is_full = || {
        let could_lead = |id: &u64| {
            let says = parts.cluster.contact(*id).says;
            *id != own && parts.cluster.is_alive(*id) && says.is_some_and(|s| s.has_room && s.ready)
        };
        !propose::has_room(&parts.config.data) && status.voters.iter().any(could_lead)
    };
    if leads && (is_out || is_full()) {
        let has_resigned = parts.node.resign(RESIGN_WAIT).await;
        tracing::info!(has_resigned, "this node leads no more");
    }
}

/// As leader: copies of nodes that were removed count no more, a page at a time.
async fn forget_removed(parts: &Parts) -> Result<(), Error> {
    if parts.node.status().leader != Some(parts.identity.node_id) {
        return Ok(());
    }
    let nodes = parts.cluster.nodes();
    for node in nodes.values().filter(|n| n.state == NodeState::Removed) {
        let node_id = node.node_id;
        while parts.readers.read_async(move |c| query::holds_any(c, node_id)).await? {
            parts.proposer.command(Command::ForgetCopies { node_id }).await?;
        }
    }
    Ok(())
}

/// A node that is none any more does not ask to lead.
async fn leave(parts: &Parts) {
    let mut nodes = parts.cluster.watch_nodes();
    let mut outside = parts.cluster.watch_outside();
    loop {
        let own = parts.cluster.row(parts.identity.node_id);
        if own.is_some_and(|n| n.state == NodeState::Removed) {
            removed(&parts.cluster);
        }
        if outside.borrow_and_update().is_some() {
            parts.node.allow_election(false);
        }
        tokio::select! {
            changed = nodes.changed() => if changed.is_err() { return },
            changed = outside.changed() => if changed.is_err() { return },
        }
    }
}

/// Notes in node.db how far Raft's log is, so that an older one in its place is found out.
async fn mark_log(parts: &Arc<Parts>) {
    let mut marked = (0, 0);
    loop {
        let status = parts.node.status();
        let now = (status.last_applied.unwrap_or(0), status.saved_term);
        if now != marked {
            let marking = Arc::clone(parts);
            let noted =
                tokio::task::spawn_blocking(move || marking.ledger.mark_raft(now.0, now.1)).await;
            match noted {
                Ok(Ok(())) => marked = now,
                Ok(Err(e)) => tracing::warn!(error = %chain(&e), "how far the log is is not noted"),
                Err(e) => tracing::warn!(error = %e, "how far the log is is not noted"),
            }
        }
        tokio::time::sleep(MARK_EVERY).await;
    }
}
