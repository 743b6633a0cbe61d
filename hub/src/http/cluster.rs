//! `/api/v1/cluster/nodes`: the nodes of the hub, invited, listed, drained and removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query, Request, State};
use barque_bundle::ErrorKind;
use barque_bundle::digest::hex;
use barque_bundle::wire::{
    AddNodeRequest, AddNodeResponse, ManifestDigest, NodeLine, NodeList, Role, SetNodeRequest,
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Operator, Problem, body};
use crate::cluster::{door, join, rotate};
use crate::command::{Command, CommandRefusal, NodeState, Reply, SetNode};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::manifest::query::{self, Digested, NodeRow};

/// Longest life of a join token: 7 days.
const EXPIRES_MAX_MS: u64 = 7 * 86_400_000;

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<NodeList>, Problem> {
    operator.require_role(&parts, Role::Reader).await?;
    Ok(Json(NodeList { nodes: lines(&parts).await? }))
}

/// All nodes but those that were removed, as this one sees them.
pub(super) async fn lines(parts: &Arc<Parts>) -> Result<Vec<NodeLine>, Error> {
    let (held, files) = parts
        .readers
        .read_async(|c| Ok((query::files_held(c)?, query::counter(c, "files")?)))
        .await?;
    Ok(lines_with(parts, &held, files))
}

/// The same, with the files that each node holds, of so many.
pub(super) fn lines_with(parts: &Parts, held: &BTreeMap<u64, u64>, files: u64) -> Vec<NodeLine> {
    let nodes = parts.cluster.nodes();
    let there = nodes.values().filter(|n| n.state != NodeState::Removed);
    there.map(|node| line(parts, node, held, files)).collect()
}

fn line(parts: &Parts, node: &NodeRow, held: &BTreeMap<u64, u64>, files: u64) -> NodeLine {
    let own = parts.node.status();
    let contact = parts.cluster.contact(node.node_id);
    let is_self = node.node_id == own.node_id;
    let says = if is_self { Some(door::own_pong(parts)) } else { contact.says };
    let matched = own.matched.get(&node.node_id).copied().flatten();
    let files_held = held.get(&node.node_id).copied().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    let share_held = if files == 0 { 0.0 } else { files_held as f64 / files as f64 };
    let is_voter = own.voters.contains(&node.node_id);
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    NodeLine {
        node_id: format!("{:016x}", node.node_id),
        name: node.name.clone(),
        state: node.state.as_str().to_owned(),
        role: match (is_voter, node.votes) {
            (true, _) => "voter",
            (false, true) => "learner",
            (false, false) => "reader",
        }
        .to_owned(),
        leader: own.leader == Some(node.node_id),
        url: node.url.clone(),
        imports: node.imports,
        alive: parts.cluster.is_alive(node.node_id),
        last_contact_ms: contact.heard_at.filter(|_| !is_self).map(|at| ms(at.elapsed())),
        last_error: contact.error.filter(|_| !is_self),
        position: says.as_ref().map(|s| s.position),
        lag_entries: matched.map(|m| own.last_log.unwrap_or(0).saturating_sub(m)),
        files_held,
        share_held,
        version: says.map(|s| s.version),
        added_at: Some(node.added_at),
    }
}

pub async fn add(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    request: Request,
) -> Result<Json<AddNodeResponse>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    parts.require_ready()?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let request: AddNodeRequest = body::json(&bytes)?;
    if request.expires_in_ms == 0 || request.expires_in_ms > EXPIRES_MAX_MS {
        let detail = "a token lives longer than 0 and at most 7d";
        return Err(Refusal::new(ErrorKind::Invalid, "expiry_out_of_range", detail).into());
    }
    let lives_ms = i64::try_from(request.expires_in_ms).unwrap_or(i64::MAX);
    let expires_at = (parts.clock)().plus_ms(lives_ms);
    let secret = hex(&rand::random::<[u8; 32]>());
    let token = join::invite(&parts, !request.reader, secret, expires_at).await?;
    Ok(Json(AddNodeResponse { token: token.encode(), expires_at }))
}

fn node_id(text: &str) -> Result<u64, Refusal> {
    u64::from_str_radix(text, 16).map_err(|_| {
        let detail = "a node's id is 16 hex digits, as `barque hub node ls` shows them";
        Refusal::new(ErrorKind::Invalid, "node_id_malformed", detail)
    })
}

pub async fn set(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<NodeList>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::SMALL).await?;
    let SetNodeRequest { state } = body::json(&bytes)?;
    let to = match NodeState::parse(&state) {
        Some(to @ (NodeState::Draining | NodeState::Active)) => to,
        _ => {
            let detail = "a node is set to draining or active; DELETE removes it";
            return Err(Refusal::new(ErrorKind::Invalid, "state_unknown", detail).into());
        }
    };
    change(&parts, node_id(&id)?, to, false).await?;
    Ok(Json(NodeList { nodes: lines(&parts).await? }))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveQuery {
    /// Files whose only copy is on the node are given up; their spokes are asked for them again.
    #[serde(default)]
    abandon_files: bool,
}

pub async fn remove(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
    Query(asked): Query<RemoveQuery>,
) -> Result<Json<NodeList>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    remove_node(&parts, node_id(&id)?, asked.abandon_files).await?;
    Ok(Json(NodeList { nodes: lines(&parts).await? }))
}

/// One digest over all that this node's manifest holds; reads all of it.
pub async fn digest(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<ManifestDigest>, Problem> {
    operator.require_role(&parts, Role::Reader).await?;
    let Digested { position, raft_state, sha256 } =
        parts.readers.read_async(query::manifest_digest).await?;
    let applied = raft_state.map_or(Ok(0), |bytes| barque_raft::applied_index(&bytes));
    let applied = applied.map_err(|e| Error::Malformed(e.to_string()))?;
    let node_id = format!("{:016x}", parts.identity.node_id);
    Ok(Json(ManifestDigest { node_id, position, applied, sha256 }))
}

/// Gives all nodes another cluster token, in steps in which each of them hears both.
pub async fn rotate(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
) -> Result<Json<serde_json::Value>, Problem> {
    operator.require(&parts, Role::Admin).await?;
    rotate::all(&parts, hex(&rand::random::<[u8; 32]>())).await?;
    Ok(Json(serde_json::json!({ "rotated": true })))
}

/// How long a node is waited for that is to vote no more.
const DEMOTION_WAIT: Duration = Duration::from_secs(30);

/// A node that votes goes in two steps: it votes no more, and only then it is none any more. The other
/// way round the change of the membership might need its voice.
async fn remove_node(parts: &Arc<Parts>, node_id: u64, abandon: bool) -> Result<(), Refusal> {
    let is_voter = || parts.node.status().voters.contains(&node_id);
    let row = parts.cluster.row(node_id).filter(|n| n.state != NodeState::Removed);
    if row.is_some() && is_voter() {
        if !abandon {
            require_not_alone(parts, node_id).await?;
        }
        change(parts, node_id, NodeState::Draining, false).await?;
        let end = Instant::now() + DEMOTION_WAIT;
        while is_voter() {
            if Instant::now() >= end {
                let detail = format!(
                    "node {} still votes: most of the others do not answer. It is draining; try \
                     again when they do",
                    parts.cluster.title(node_id)
                );
                return Err(Refusal::new(ErrorKind::Unavailable, "still_votes", detail));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let was_active = row.is_some_and(|n| n.state == NodeState::Active);
    change(parts, node_id, NodeState::Removed, abandon).await.map_err(|mut refusal| {
        let is_draining = |n: NodeRow| n.state == NodeState::Draining;
        if was_active && parts.cluster.row(node_id).is_some_and(is_draining) {
            let back = "the node is draining now; `barque hub node drain --undo` takes that back";
            refusal.detail = format!("{}; {back}", refusal.detail).into();
        }
        refusal
    })
}

/// Refuses while the node holds the only copy of files, before anything is changed; `apply` says the
/// same for good.
async fn require_not_alone(parts: &Arc<Parts>, node_id: u64) -> Result<(), Refusal> {
    let files = parts.readers.read_async(move |c| query::files_only_on(c, node_id)).await;
    match files.map_err(|e| e.to_refusal())? {
        0 => Ok(()),
        files => Err(holds_files(parts, node_id, files)),
    }
}

fn holds_files(parts: &Parts, node_id: u64, files: u64) -> Refusal {
    let detail = format!(
        "node {} holds the only copy of {files} files; nothing was changed. With --abandon-files \
         they are lost here, and their spokes are asked for them again",
        parts.cluster.title(node_id)
    );
    Refusal::new(ErrorKind::Conflict, "holds_files", detail)
}

async fn change(
    parts: &Arc<Parts>,
    node_id: u64,
    to: NodeState,
    abandon: bool,
) -> Result<(), Refusal> {
    parts.require_ready()?;
    let command = Command::SetNode(SetNode { node_id, to, abandon });
    let conflict = |code, detail: String| Err(Refusal::new(ErrorKind::Conflict, code, detail));
    let title = parts.cluster.title(node_id);
    match parts.proposer.command(command).await? {
        Reply::Refused(CommandRefusal::NoSuchNode) => {
            let detail =
                format!("there is no node {node_id:016x}; `barque hub node ls` lists them");
            Err(Refusal::new(ErrorKind::NotFound, "no_such_node", detail))
        }
        Reply::Refused(CommandRefusal::NodeRemoved) => {
            conflict("node_removed", format!("node {title} was removed for good; let it join anew"))
        }
        Reply::Refused(CommandRefusal::LastNode) => conflict(
            "last_node",
            format!("node {title} is the last one that votes; nothing was changed"),
        ),
        Reply::Refused(CommandRefusal::HoldsFiles { files }) => {
            Err(holds_files(parts, node_id, files))
        }
        _ => Ok(()),
    }
}
