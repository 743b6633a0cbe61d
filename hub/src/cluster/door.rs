//! What a node answers to other nodes, on a listener of its own: `/cluster/v1/...`.
//!
//! A caller proves by its certificate (TLS) which node it is, says the cluster's token, and names the
//! hub and the life of it that it is of. A node that was removed is told so, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, post};
use axum::{Json, Router};
use barque_bundle::{ErrorKind, PublicKey};
use barque_raft::ProposeError;
use serde::{Deserialize, Serialize};
use tower::ServiceExt as _;

use super::instance::Instance;
use super::wire::Lane;
use super::{
    CLUSTER_HEADER, HOP_HEADER, INSTANCE_HEADER, NODE_HEADER, home, join, no_leader, raft_stopped,
    seal,
};
use crate::command::NodeState;
use crate::error::{Error, Refusal};
use crate::http::{Problem, ROLE_HEADER};
use crate::hub::Parts;
use crate::propose;

pub const RAFT: &str = "/cluster/v1/raft";
pub const PROPOSE: &str = "/cluster/v1/propose";
pub const READ_INDEX: &str = "/cluster/v1/read-index";
pub const PING: &str = "/cluster/v1/ping";
pub const UPLOADS: &str = "/cluster/v1/uploads";
/// Who a node is, for one that does not know it yet.
pub const MEMBER: &str = "/cluster/v1/member";
pub const TOKEN: &str = "/cluster/v1/token";
pub const JOIN: &str = "/cluster/v1/join";
/// Before the path of a public call that another node passes on.
pub const FORWARD: &str = "/cluster/v1/forward";

/// Largest message of Raft: a page of the log, or a piece of a snapshot.
const MESSAGE_MAX_BYTES: usize = 16 << 20;
const READ_INDEX_WAIT: Duration = Duration::from_secs(2);
const SMALL_MAX_BYTES: usize = 64 << 10;
/// How long the process of a node that is known has to say that it lives.
const PROCESS_WAIT: Duration = Duration::from_secs(2);
/// How long the body of a message may take.
const BODY_WAIT: Duration = Duration::from_secs(60);

/// Who is at the other end of a TLS connection, as its certificate says.
#[derive(Clone, Debug)]
pub struct Certified(pub Option<(u64, PublicKey)>);

/// The node that calls.
#[derive(Clone, Copy, Debug)]
pub struct Caller(pub u64);

#[derive(Debug, Serialize, Deserialize)]
pub struct Index {
    pub index: u64,
}

/// What a node says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pong {
    pub version: String,
    pub instance: Instance,
    pub position: u64,
    pub applied: u64,
    pub term: u64,
    pub leader: Option<String>,
    pub ready: bool,
    /// Its databases have room.
    pub has_room: bool,
}

/// All calls between nodes; `public` answers what another node passes on.
pub fn router(parts: Arc<Parts>, public: Router) -> Router {
    let members = Router::new()
        .route(RAFT, post(raft))
        .route(PROPOSE, post(propose))
        .route(READ_INDEX, post(read_index))
        .route(PING, post(ping))
        .route(UPLOADS, post(uploads))
        .route(TOKEN, post(token))
        .route(MEMBER, post(member))
        .route("/cluster/v1/forward/{*path}", any(forward))
        .layer(Extension(Forwarded(public)))
        .layer(middleware::from_fn_with_state(Arc::clone(&parts), admit));
    Router::new().route(JOIN, post(join)).merge(members).with_state(parts)
}

#[derive(Clone)]
struct Forwarded(Router);

/// Lets nodes of this hub in; each other one hears why not.
async fn admit(State(parts): State<Arc<Parts>>, mut request: Request, next: Next) -> Response {
    let certified = request.extensions().get::<Certified>().cloned();
    let path = request.uri().path().to_owned();
    let mut found = identify(&parts, request.headers(), certified.as_ref());
    if path == RAFT
        && found.as_ref().is_err_and(|e| e.code == UNKNOWN_NODE)
        && let Some(caller) = vouched(&parts, request.headers(), certified.as_ref()).await
    {
        found = Ok(caller);
    }
    // Asked of each other these two would never end.
    if path != PING
        && path != MEMBER
        && let Ok(Caller(node_id)) = found
        && let Err(refusal) = require_one_process(&parts, request.headers(), node_id).await
    {
        found = Err(refusal);
    }
    // What acts for clients, or for the whole hub, needs a caller that still is a node for sure.
    let acts = path.starts_with(FORWARD) || path == TOKEN;
    if acts && found.is_ok() {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let has_token = request.headers().contains_key(header::AUTHORIZATION);
        found = match parts.cluster.require_fresh() {
            Ok(()) => found,
            // Without a majority reads go on; their caller is judged here.
            Err(_) if is_read && has_token && parts.cluster.outside().is_none() => {
                request.headers_mut().remove(ROLE_HEADER);
                found
            }
            Err(refusal) => Err(refusal),
        };
    }
    match found {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(refusal) => Problem::from(refusal).into_response(),
    }
}

/// Refuses a second process of one node: its folder was copied, or put back from an older copy.
async fn require_one_process(
    parts: &Arc<Parts>,
    headers: &HeaderMap,
    node_id: u64,
) -> Result<(), Refusal> {
    let said = headers.get(INSTANCE_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let said: Instance = said.parse().map_err(|e| {
        let detail = format!("{INSTANCE_HEADER} is malformed: {e}");
        Refusal::new(ErrorKind::Invalid, "instance_malformed", detail)
    })?;
    let cluster = Arc::clone(&parts.cluster);
    if cluster.instances.known(node_id).is_some_and(|k| k.instance == said) {
        return Ok(());
    }
    // Also when the caller goes away meanwhile: it calls again, and is known then.
    let asking = Arc::clone(&cluster);
    let decided = parts.work.spawn(async move {
        let asked = asking.ask(node_id, Lane::Work, PING, Vec::new(), PROCESS_WAIT).await;
        let pong = asked.ok().and_then(|b| serde_json::from_slice::<Pong>(&b).ok());
        asking.instances.decide(node_id, said, pong.map(|p| p.instance))
    });
    let Err(stays) = decided.await.map_err(|_| propose::unknown())? else { return Ok(()) };
    let detail = format!(
        "two processes say that they are node {}: start {} of its folder, which the hub goes on with, \
         and start {}. One folder is a copy of the other, or was put back from one. Stop the copy; \
         if the copy is all that is left, remove the node and let an empty folder join",
        cluster.title(node_id),
        stays.start,
        said.start
    );
    if cluster.instances.is_news(node_id, said, stays) {
        tracing::error!(node = format!("{node_id:016x}"), %detail, "a node is refused");
    }
    Err(Refusal::new(ErrorKind::Forbidden, "node_twice", detail))
}

const UNKNOWN_NODE: &str = "unknown_node";

fn node_id_of(headers: &HeaderMap) -> u64 {
    let said = headers.get(NODE_HEADER).and_then(|v| v.to_str().ok()).unwrap_or_default();
    u64::from_str_radix(said, 16).unwrap_or(0)
}

/// A node that joined while this one was away, by the word of one that this one knows: without it a
/// leader that came later could never bring what was missed.
async fn vouched(
    parts: &Parts,
    headers: &HeaderMap,
    certified: Option<&Certified>,
) -> Option<Caller> {
    let node_id = node_id_of(headers);
    let key = match certified {
        Some(Certified(found)) => Some(found.as_ref()?.1.to_string()),
        None => None,
    };
    parts.cluster.is_vouched_for(node_id, key).await.then_some(Caller(node_id))
}

/// Who a node is, as this one knows it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Member {
    pub public_key: String,
    pub is_removed: bool,
}

async fn member(State(parts): State<Arc<Parts>>, body: Body) -> Result<Json<Member>, Problem> {
    let bytes = whole(body, SMALL_MAX_BYTES).await?;
    let node_id: u64 = serde_json::from_slice(&bytes)
        .map_err(|e| Refusal::new(ErrorKind::Invalid, "body_malformed", e.to_string()))?;
    let row = parts.cluster.row(node_id).ok_or_else(|| {
        Refusal::new(ErrorKind::NotFound, "no_such_node", "this node does not know it either")
    })?;
    let is_removed = row.state == NodeState::Removed;
    Ok(Json(Member { public_key: row.public_key, is_removed }))
}

fn identify(
    parts: &Parts,
    headers: &HeaderMap,
    certified: Option<&Certified>,
) -> Result<Caller, Refusal> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let refuse = |code, detail: String| Err(Refusal::new(ErrorKind::Forbidden, code, detail));
    let cluster = &parts.cluster;
    let said = text(header::PROXY_AUTHORIZATION).strip_prefix("Bearer ").unwrap_or_default();
    if !cluster.token.as_ref().is_some_and(|t| t.hears(said)) {
        let detail = "the cluster token is not this hub's; copy cluster.token from another node";
        return refuse("cluster_token", detail.to_owned());
    }
    let (hub, epoch) = text(CLUSTER_HEADER).split_once('/').unwrap_or_default();
    if hub != cluster.hub_id.to_string() {
        let detail = format!("this node is of hub {}, the caller of {hub}", cluster.hub_id);
        return refuse("other_hub", detail);
    }
    if let Some(own) = cluster.epoch.get()
        && epoch != "-"
        && epoch != own.to_string()
    {
        // The life that began later is the one that goes on.
        let detail = format!(
            "this node lives in epoch {own} of hub {hub}, the caller in {epoch}; a node of before a \
             recovery has to be emptied and join again"
        );
        let is_older = epoch < own.to_string().as_str();
        return refuse(if is_older { "other_epoch" } else { "newer_epoch" }, detail);
    }
    let node_id = node_id_of(headers);
    if let Some(Certified(found)) = certified
        && found.as_ref().map(|(id, _)| *id) != Some(node_id)
    {
        return refuse("wrong_certificate", "the certificate is of another node".to_owned());
    }
    match cluster.row(node_id) {
        Some(row) if row.state == NodeState::Removed => {
            let detail = format!(
                "node {node_id:016x} was removed from this hub and is no member any more; empty its \
                 folder and join again with a new token; the hub has {}",
                cluster.members()
            );
            refuse("node_removed", detail)
        }
        Some(row) => match certified {
            Some(Certified(Some((_, key)))) if key.to_string() != row.public_key => {
                refuse("wrong_certificate", "the certificate has another key".to_owned())
            }
            _ => Ok(Caller(node_id)),
        },
        None => {
            let detail = format!("node {node_id:016x} is not known here yet");
            Err(Refusal::new(ErrorKind::Unavailable, UNKNOWN_NODE, detail))
        }
    }
}

async fn raft(State(parts): State<Arc<Parts>>, body: Body) -> Result<Vec<u8>, Problem> {
    parts.cluster.require_inside()?;
    let message = whole(body, MESSAGE_MAX_BYTES).await?;
    Ok(parts.node.handle(&message).await)
}

/// A whole body, which has to come in time.
async fn whole(body: Body, max: usize) -> Result<Bytes, Refusal> {
    let bytes = tokio::time::timeout(BODY_WAIT, axum::body::to_bytes(body, max)).await;
    let late = |_| Refusal::new(ErrorKind::Unknown, "body_late", "the body did not come in time");
    bytes
        .map_err(late)?
        .map_err(|e| Refusal::new(ErrorKind::Invalid, "body_malformed", e.to_string()))
}

async fn propose(
    State(parts): State<Arc<Parts>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Vec<u8>, Problem> {
    parts.cluster.require_inside()?;
    let command = whole(body, MESSAGE_MAX_BYTES).await?.to_vec();
    let is_passed_on = headers.contains_key(HOP_HEADER);
    let proposer = parts.proposer.clone();
    let reply = parts.work.spawn(async move { proposer.answer(command, is_passed_on).await });
    // A task that ended badly may have proposed before.
    Ok(reply.await.unwrap_or_else(|_| Err(propose::unknown()))?)
}

async fn read_index(State(parts): State<Arc<Parts>>) -> Result<Json<Index>, Problem> {
    parts.cluster.require_inside()?;
    match tokio::time::timeout(READ_INDEX_WAIT, parts.node.read_index()).await {
        Ok(Ok(index)) => Ok(Json(Index { index })),
        Ok(Err(ProposeError::Stopped(why))) => Err(raft_stopped(&why).into()),
        Ok(Err(ProposeError::NotLeader { .. })) | Err(_) => Err(no_leader().into()),
    }
}

async fn ping(State(parts): State<Arc<Parts>>) -> Json<Pong> {
    Json(own_pong(&parts))
}

/// What this node says of itself.
pub fn own_pong(parts: &Parts) -> Pong {
    let node = parts.node.status();
    Pong {
        version: crate::VERSION.to_owned(),
        instance: parts.cluster.instance,
        position: *parts.position.borrow(),
        applied: node.last_applied.unwrap_or(0),
        term: node.term,
        leader: node.leader.map(|l| format!("{l:016x}")),
        ready: *parts.ready.borrow(),
        has_room: propose::has_room(&parts.config.data),
    }
}

/// What this node has of an upload.
async fn uploads(State(parts): State<Arc<Parts>>, body: Body) -> Result<Json<home::Kept>, Problem> {
    let bytes = whole(body, SMALL_MAX_BYTES).await?;
    let asked: home::Asked = serde_json::from_slice(&bytes)
        .map_err(|e| Refusal::new(ErrorKind::Invalid, "body_malformed", e.to_string()))?;
    let kept = tokio::task::spawn_blocking(move || home::kept(&parts, &asked));
    let kept = kept.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())));
    Ok(Json(kept?))
}

/// Takes the values of the cluster token that another node tells.
async fn token(State(parts): State<Arc<Parts>>, body: Body) -> Result<Json<bool>, Problem> {
    let bytes = whole(body, SMALL_MAX_BYTES).await?;
    let values: Vec<String> = serde_json::from_slice(&bytes)
        .map_err(|e| Refusal::new(ErrorKind::Invalid, "body_malformed", e.to_string()))?;
    let taken = tokio::task::spawn_blocking(move || match &parts.cluster.token {
        Some(token) => token.replace(&values),
        None => Ok(()),
    });
    taken.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
    Ok(Json(true))
}

async fn join(State(parts): State<Arc<Parts>>, body: Body) -> Result<Json<seal::Sealed>, Problem> {
    parts.cluster.require_inside()?;
    // Anybody may call this one: a place is for what has come whole.
    let bytes = whole(body, SMALL_MAX_BYTES).await?;
    let _place = parts.enrollments.try_acquire().map_err(|_| {
        Refusal::new(ErrorKind::Unavailable, "hub_busy", "too many ask at once; try again")
    })?;
    let request: seal::Request = serde_json::from_slice(&bytes)
        .map_err(|e| Refusal::new(ErrorKind::Invalid, "body_malformed", e.to_string()))?;
    let taking = parts.work.clone();
    let taken = Arc::clone(&parts);
    let answer = taking.spawn(async move { join::take(&taken, request).await });
    let answer = answer.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())));
    Ok(Json(answer?))
}

/// A public call that came to another node and is for this one.
async fn forward(
    State(parts): State<Arc<Parts>>,
    Extension(Forwarded(public)): Extension<Forwarded>,
    mut request: Request,
) -> Result<Response, Problem> {
    let target = request.uri().path_and_query().map(|p| p.as_str().to_owned()).unwrap_or_default();
    let malformed = || Refusal::new(ErrorKind::Invalid, "path_malformed", "no path to pass on to");
    let path = target.strip_prefix(FORWARD).ok_or_else(malformed)?;
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| malformed())?;
    let headers = request.headers_mut();
    for name in [&NODE_HEADER, &CLUSTER_HEADER, &INSTANCE_HEADER, &header::PROXY_AUTHORIZATION] {
        headers.remove(name);
    }
    let mut inner = Request::new(Body::empty());
    std::mem::swap(inner.body_mut(), request.body_mut());
    std::mem::swap(inner.headers_mut(), request.headers_mut());
    *inner.method_mut() = request.method().clone();
    *inner.uri_mut() = request.uri().clone();
    let answered = parts.work.spawn(public.oneshot(inner)).await;
    let lost = |e: tokio::task::JoinError| Error::Malformed(format!("a call ended badly: {e}"));
    match answered.map_err(lost)? {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}
