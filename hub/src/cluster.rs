//! What makes many nodes one hub: who they are, how they reach each other, what they know in time.
//!
//! Raft carries what is agreed; this is all around it. A node calls others at the addresses that
//! the manifest's `members` say ([`wire`]), answers them on a listener of its own ([`door`]), keeps
//! Raft's membership to what the manifest says, and knows how fresh its own state is ([`tasks`]).

pub mod door;
pub mod home;
pub mod instance;
pub mod join;
pub mod rotate;
pub mod seal;
pub mod tasks;
pub mod tls;
pub mod token;
pub mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, header};
use barque_bundle::wire::Problem;
use barque_bundle::{ErrorKind, HubEpoch, HubId};
use barque_raft::{Node, ProposeError, Transport, TransportError, Weight};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use crate::command::{NodeState, VERSION};
use crate::error::{Error, Refusal};
use crate::manifest::Nodes;
use crate::manifest::query::NodeRow;
use instance::{Instance, Instances};
use token::ClusterToken;
use wire::{Call, Lane, Wire, WireError};

/// Which node calls, as 16 hex digits.
pub const NODE_HEADER: HeaderName = HeaderName::from_static("barque-node");
/// Of which hub, and in which of its lives: `HUB_ID/EPOCH`.
pub const CLUSTER_HEADER: HeaderName = HeaderName::from_static("barque-cluster");
/// Which process of the node calls: `START-NUMBER`.
pub const INSTANCE_HEADER: HeaderName = HeaderName::from_static("barque-instance");
/// Set on what was passed on once already.
pub const HOP_HEADER: HeaderName = HeaderName::from_static("barque-hop");

/// A node that was not heard for longer counts as down.
const ALIVE: Duration = Duration::from_secs(6);
/// How long a call that carries no file may take.
const CALL_WAIT: Duration = Duration::from_secs(10);
/// How long a message of Raft may take: a page of the log on a slow line, or a piece of a snapshot.
const RAFT_WAIT: Duration = Duration::from_secs(60);
/// Answers between nodes are small, or streams.
const ANSWER_MAX_BYTES: usize = 64 << 20;
const VOUCH_WAIT: Duration = Duration::from_secs(2);
/// State older than this lets no spoke in.
pub const FRESH: Duration = Duration::from_secs(10);
/// How long a leader without a majority goes on taking proposals.
const QUORUM_WAIT: Duration = Duration::from_secs(5);

/// What is known of another node's line.
#[derive(Clone, Debug, Default)]
pub struct Contact {
    pub heard_at: Option<Instant>,
    pub error: Option<String>,
    /// That it is of another hub, and of which.
    pub disagrees: Option<String>,
    /// What it said of itself last.
    pub says: Option<door::Pong>,
}

/// Why a call brought nothing.
#[derive(Debug)]
pub enum CallFault {
    Wire(WireError),
    /// The other node answered with a refusal.
    Refused(Box<Problem>),
}

impl CallFault {
    /// Whether what was asked for may have happened all the same (D4).
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::Wire(e) => e.may_have_arrived,
            Self::Refused(p) => ErrorKind::from_http_status(p.status) == ErrorKind::Unknown,
        }
    }
}

impl std::fmt::Display for CallFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Wire(e) => e.fmt(f),
            Self::Refused(p) => write!(f, "{} ({})", p.detail, p.code),
        }
    }
}

/// A node's view of its cluster.
pub struct Cluster {
    pub hub_id: HubId,
    pub node_id: u64,
    /// This process.
    pub instance: Instance,
    /// The processes of other nodes.
    pub instances: Instances,
    pub token: Option<ClusterToken>,
    /// Held while this node changes the token.
    rotating: tokio::sync::Mutex<()>,
    nodes: watch::Receiver<Nodes>,
    /// Addresses from the time of joining, for as long as the manifest knows nobody.
    known: BTreeMap<u64, String>,
    wire: Arc<dyn Wire>,
    pub epoch: Arc<OnceLock<HubEpoch>>,
    contacts: Mutex<BTreeMap<u64, Contact>>,
    /// Keys of nodes that others have vouched for, until the manifest knows them.
    vouched: Mutex<BTreeMap<u64, String>>,
    /// The monotonic time of asking for the read index that this node has reached.
    fresh_at: RwLock<Option<Instant>>,
    /// Since when no leader is known.
    leaderless_since: RwLock<Option<Instant>>,
    /// Why this node takes no part: it was removed, or others are of another cluster.
    outside: watch::Sender<Option<Outside>>,
}

/// Why a node takes no part in its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    pub code: &'static str,
    pub detail: String,
}

impl Cluster {
    pub fn new(
        (hub_id, node_id, instance): (HubId, u64, Instance),
        token: Option<ClusterToken>,
        nodes: watch::Receiver<Nodes>,
        known: BTreeMap<u64, String>,
        wire: Arc<dyn Wire>,
    ) -> Self {
        Self {
            hub_id,
            node_id,
            instance,
            instances: Instances::default(),
            token,
            rotating: tokio::sync::Mutex::default(),
            nodes,
            known,
            wire,
            epoch: Arc::default(),
            contacts: Mutex::default(),
            vouched: Mutex::default(),
            fresh_at: RwLock::default(),
            leaderless_since: RwLock::new(Some(Instant::now())),
            outside: watch::Sender::new(None),
        }
    }

    pub fn nodes(&self) -> Nodes {
        Arc::clone(&self.nodes.borrow())
    }

    pub fn watch_nodes(&self) -> watch::Receiver<Nodes> {
        self.nodes.clone()
    }

    pub fn row(&self, node_id: u64) -> Option<NodeRow> {
        self.nodes.borrow().get(&node_id).cloned()
    }

    /// What a person calls a node: its name where it has said one, and its id.
    pub fn title(&self, node_id: u64) -> String {
        match self.row(node_id).map(|n| n.name) {
            Some(name) if !name.is_empty() => format!("{name} ({node_id:016x})"),
            _ => format!("{node_id:016x}"),
        }
    }

    /// The nodes of the hub, for people, as this one knows them.
    pub fn members(&self) -> String {
        let nodes = self.nodes();
        let there = nodes.values().filter(|n| n.state != NodeState::Removed);
        let titles: Vec<String> = there.map(|n| self.title(n.node_id)).collect();
        match titles.is_empty() {
            true => "no nodes yet".to_owned(),
            false => format!("the nodes {}", titles.join(", ")),
        }
    }

    /// The nodes that this one may call: neither itself nor any that was removed.
    pub fn others(&self) -> Vec<u64> {
        let nodes = self.nodes();
        let others =
            nodes.values().filter(|n| n.state != NodeState::Removed && n.address.is_some());
        let mut ids: Vec<u64> = others.map(|n| n.node_id).collect();
        if nodes.is_empty() {
            ids.extend(self.known.keys());
        }
        ids.retain(|id| *id != self.node_id);
        ids
    }

    /// The newest command version that all nodes apply, and the node with the lowest.
    pub fn level(&self) -> (u8, u64) {
        let nodes = self.nodes();
        // One that was never up says nothing, and gets the log once it is.
        let there = nodes.values().filter(|n| n.state != NodeState::Removed && n.level > 0);
        let lowest = there.min_by_key(|n| n.level);
        lowest.map_or((VERSION, self.node_id), |n| (n.level.min(VERSION), n.node_id))
    }

    /// What another node said that is of another hub or of another life of it, for as long as no
    /// leader is known.
    pub fn disagreement(&self) -> Option<Refusal> {
        let contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        let detail = contacts.values().find_map(|c| c.disagrees.clone())?;
        Some(Refusal::new(ErrorKind::Unavailable, "membership_disagrees", detail))
    }

    /// More than one node takes part.
    pub fn has_others(&self) -> bool {
        !self.others().is_empty()
    }

    fn address(&self, node_id: u64) -> Result<String, WireError> {
        let row = self.row(node_id);
        if row.as_ref().is_some_and(|n| n.state == NodeState::Removed) {
            return Err(WireError::not_sent("it was removed from this hub"));
        }
        row.and_then(|n| n.address)
            .or_else(|| self.known.get(&node_id).cloned())
            .ok_or_else(|| WireError::not_sent("its address is not known yet"))
    }

    /// Calls another node; what became of it is remembered for whoever asks how the line is.
    pub async fn call(
        &self,
        node_id: u64,
        lane: Lane,
        mut call: Call,
    ) -> Result<Response<Body>, WireError> {
        let address = self.address(node_id)?;
        self.sign(&mut call.headers);
        let answer = self.wire.call(node_id, &address, lane, call).await;
        let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        let contact = contacts.entry(node_id).or_default();
        match &answer {
            Ok(_) => (contact.heard_at, contact.error) = (Some(Instant::now()), None),
            Err(e) => contact.error = Some(e.why.clone()),
        }
        answer
    }

    fn sign(&self, headers: &mut HeaderMap) {
        let epoch = self.epoch.get().map_or_else(|| "-".to_owned(), ToString::to_string);
        let text = |t: String| HeaderValue::from_str(&t).unwrap_or(HeaderValue::from_static(""));
        headers.insert(NODE_HEADER, text(format!("{:016x}", self.node_id)));
        headers.insert(CLUSTER_HEADER, text(format!("{}/{epoch}", self.hub_id)));
        headers.insert(INSTANCE_HEADER, text(self.instance.to_string()));
        if let Some(token) = &self.token {
            headers.insert(header::PROXY_AUTHORIZATION, text(format!("Bearer {}", token.spoken())));
        }
    }

    /// The bytes that another node answers to bytes.
    pub async fn ask(
        &self,
        node_id: u64,
        lane: Lane,
        path: &str,
        body: Vec<u8>,
        wait: Duration,
    ) -> Result<Bytes, CallFault> {
        self.ask_with(node_id, lane, path, HeaderMap::new(), body, wait).await
    }

    async fn ask_with(
        &self,
        node_id: u64,
        lane: Lane,
        path: &str,
        headers: HeaderMap,
        body: Vec<u8>,
        wait: Duration,
    ) -> Result<Bytes, CallFault> {
        let call =
            Call { method: Method::POST, path: path.to_owned(), headers, body: Body::from(body) };
        let answered = async {
            let response = self.call(node_id, lane, call).await.map_err(CallFault::Wire)?;
            let status = response.status();
            let bytes = to_bytes(response.into_body(), ANSWER_MAX_BYTES)
                .await
                .map_err(|e| CallFault::Wire(WireError::unknown(e.to_string())))?;
            if status.is_success() {
                self.note_agreement(node_id);
                return Ok(bytes);
            }
            let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| Problem {
                status: status.as_u16(),
                code: "not_a_node".to_owned(),
                detail: format!("something that is no node of a hub answered {status}"),
                ..Problem::default()
            });
            self.hear_refusal(node_id, &problem);
            Err(CallFault::Refused(Box::new(problem)))
        };
        tokio::time::timeout(wait, answered).await.unwrap_or_else(|_| {
            let late = WireError::unknown(format!("no answer in {} s", wait.as_secs_f32()));
            let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
            contacts.entry(node_id).or_default().error = Some(late.why.clone());
            Err(CallFault::Wire(late))
        })
    }

    /// A node that hears that it is none any more stops taking part.
    fn hear_refusal(&self, node_id: u64, problem: &Problem) {
        let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        let contact = contacts.entry(node_id).or_default();
        contact.error = Some(problem.detail.clone());
        // Another hub at a node's address is no reason to leave one's own.
        let is_stranger = matches!(problem.code.as_str(), "other_hub" | "cluster_token");
        contact.disagrees = is_stranger.then(|| problem.detail.clone());
        drop(contacts);
        let code = match problem.code.as_str() {
            "node_removed" => "node_removed",
            "other_epoch" => "other_epoch",
            "node_twice" => "node_twice",
            _ => return,
        };
        let own = self.members();
        self.go_outside(Outside {
            code,
            detail: format!("{}; this node knows {own}", problem.detail),
        });
    }

    pub fn go_outside(&self, why: Outside) {
        if self.outside.borrow().as_ref() != Some(&why) {
            tracing::error!(code = why.code, detail = %why.detail, "this node takes no part");
            self.outside.send_replace(Some(why));
        }
    }

    /// Why this node takes no part, if so.
    pub fn outside(&self) -> Option<Outside> {
        self.outside.borrow().clone()
    }

    pub fn watch_outside(&self) -> watch::Receiver<Option<Outside>> {
        self.outside.subscribe()
    }

    pub fn contact(&self, node_id: u64) -> Contact {
        let contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.get(&node_id).cloned().unwrap_or_default()
    }

    fn note_agreement(&self, node_id: u64) {
        let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.entry(node_id).or_default().disagrees = None;
    }

    fn note_pong(&self, node_id: u64, says: door::Pong) {
        self.instances.confirm(node_id, says.instance);
        let mut contacts = self.contacts.lock().unwrap_or_else(PoisonError::into_inner);
        contacts.entry(node_id).or_default().says = Some(says);
    }

    /// Whether a node was heard lately; this one always was.
    pub fn is_alive(&self, node_id: u64) -> bool {
        node_id == self.node_id
            || self.contact(node_id).heard_at.is_some_and(|at| at.elapsed() < ALIVE)
    }

    /// Whether a node could help to agree on something: it lives, is of this hub, and has room.
    pub fn can_agree(&self, node_id: u64) -> bool {
        let contact = self.contact(node_id);
        let is_able = contact.disagrees.is_none() && contact.says.is_some_and(|s| s.has_room);
        node_id == self.node_id || (self.is_alive(node_id) && is_able)
    }

    /// Whether a node that is known here says that another one is a node of this hub, with this key.
    pub async fn is_vouched_for(&self, node_id: u64, key: Option<String>) -> bool {
        let fits = |known: &String| key.as_ref().is_none_or(|key| key == known);
        let vouched = || self.vouched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = vouched().get(&node_id) {
            return fits(known);
        }
        let Ok(asked) = serde_json::to_vec(&node_id) else { return false };
        // All at once: those that are down hold up no word of one that is not.
        let mut answers: FuturesUnordered<_> = self
            .others()
            .into_iter()
            .map(|other| self.ask(other, Lane::Work, door::MEMBER, asked.clone(), VOUCH_WAIT))
            .collect();
        while let Some(answer) = answers.next().await {
            let Ok(bytes) = answer else { continue };
            let Ok(member) = serde_json::from_slice::<door::Member>(&bytes) else { continue };
            if member.is_removed || !fits(&member.public_key) {
                return false;
            }
            vouched().insert(node_id, member.public_key);
            return true;
        }
        false
    }

    /// How old the state of this node is at the most; none before it ever was up to date.
    pub fn age(&self) -> Option<Duration> {
        self.fresh_at.read().unwrap_or_else(PoisonError::into_inner).map(|at| at.elapsed())
    }

    fn note_fresh(&self, asked_at: Instant) {
        *self.fresh_at.write().unwrap_or_else(PoisonError::into_inner) = Some(asked_at);
    }

    /// Refuses whom a revoked key might let in: a node that was cut off for too long cannot know.
    pub fn require_fresh(&self) -> Result<(), Refusal> {
        self.require_inside()?;
        if self.age().is_some_and(|age| age < FRESH) {
            return Ok(());
        }
        let detail = "this node has not heard from its hub's leader for too long to let spokes in";
        Err(retry(Refusal::new(ErrorKind::Unavailable, "not_fresh", detail)))
    }

    /// Refuses to act for a cluster that this node is no part of.
    pub fn require_inside(&self) -> Result<(), Refusal> {
        match self.outside() {
            None => Ok(()),
            Some(why) => Err(Refusal::new(ErrorKind::Unavailable, why.code, why.detail)),
        }
    }

    fn note_leader(&self, is_known: bool) {
        let mut since = self.leaderless_since.write().unwrap_or_else(PoisonError::into_inner);
        match (is_known, *since) {
            (true, _) => *since = None,
            (false, None) => *since = Some(Instant::now()),
            (false, Some(_)) => {}
        }
    }

    /// How long a leader has been missing.
    pub fn leaderless_for(&self) -> Duration {
        let since = *self.leaderless_since.read().unwrap_or_else(PoisonError::into_inner);
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether this node leads and most others do not answer it: what it would take now could wait
    /// for ever.
    pub fn lost_quorum(node: &Node) -> bool {
        let status = node.status();
        status.leader == Some(status.node_id)
            && status.voters.len() > 1
            && status.quorum_heard.is_some_and(|ago| ago > QUORUM_WAIT)
    }

    /// Returns once everything that was agreed before the call is applied here.
    pub async fn barrier(&self, node: &Node, wait: Duration) -> Result<(), Refusal> {
        let deadline = Instant::now() + wait;
        loop {
            // Nobody answers one that takes no part.
            self.require_inside()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, self.read_index(node)).await {
                Ok(Ok(index)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if node.wait_applied(index, left).await {
                        return Ok(());
                    }
                }
                Ok(Err(Error::Refused(refusal))) if refusal.code != NO_LEADER => {
                    return Err(refusal);
                }
                Ok(Err(_)) | Err(_) => {}
            }
            if Instant::now() >= deadline {
                return Err(no_leader());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The index that this node has to reach to know everything agreed before the call.
    async fn read_index(&self, node: &Node) -> Result<u64, Error> {
        let leader = node.status().leader.ok_or_else(no_leader)?;
        if leader == self.node_id {
            return match node.read_index().await {
                Ok(index) => Ok(index),
                Err(ProposeError::NotLeader { .. }) => Err(no_leader().into()),
                Err(ProposeError::Stopped(why)) => Err(raft_stopped(&why).into()),
            };
        }
        let answer = self.ask(leader, Lane::Work, door::READ_INDEX, Vec::new(), CALL_WAIT).await;
        let bytes = answer.map_err(|_| no_leader())?;
        let index: door::Index =
            serde_json::from_slice(&bytes).map_err(|e| Error::Malformed(e.to_string()))?;
        Ok(index.index)
    }

    /// The reply of a leader to a command; a node that knows none tries those it knows of.
    pub async fn forward(
        &self,
        leader: Option<u64>,
        is_passed_on: bool,
        command: Vec<u8>,
        wait: Duration,
    ) -> Result<Bytes, CallFault> {
        let targets = leader.map_or_else(|| self.others(), |id| vec![id]);
        let mut fault = CallFault::Wire(WireError::not_sent("no other node is known"));
        for target in targets {
            let mut headers = HeaderMap::new();
            if is_passed_on {
                headers.insert(HOP_HEADER, HeaderValue::from_static("1"));
            }
            let body = command.clone();
            match self.ask_with(target, Lane::Work, door::PROPOSE, headers, body, wait).await {
                Ok(reply) => return Ok(reply),
                Err(e) if e.is_unknown() => return Err(e),
                Err(e) => fault = e,
            }
        }
        Err(fault)
    }
}

pub const NO_LEADER: &str = "no_leader";

/// The refusal while nobody leads.
pub fn no_leader() -> Refusal {
    retry(Refusal::new(
        ErrorKind::Unavailable,
        NO_LEADER,
        "the hub has no leader at the moment; nothing was lost, try again",
    ))
}

pub fn raft_stopped(why: &str) -> Refusal {
    tracing::error!(%why, "a call met a stopped Raft node");
    Refusal::new(
        ErrorKind::Unavailable,
        "raft_stopped",
        "the hub's Raft node has stopped, its log says why; restart the hub",
    )
}

fn retry(refusal: Refusal) -> Refusal {
    Refusal { retry_after_ms: Some(1000), ..refusal }
}

/// Raft's messages, over the cluster's wire.
pub struct RaftTransport(pub Arc<Cluster>);

impl Transport for RaftTransport {
    fn call<'a>(
        &'a self,
        target: u64,
        address: &'a str,
        request: Vec<u8>,
        weight: Weight,
    ) -> barque_raft::transport::Answer<'a> {
        let lane = match weight {
            Weight::Light => Lane::Raft,
            Weight::Entries => Lane::Log,
            Weight::Snapshot => Lane::Work,
        };
        Box::pin(async move {
            let answer = self.0.ask(target, lane, door::RAFT, request, RAFT_WAIT).await;
            answer.map(|bytes| bytes.to_vec()).map_err(|e| TransportError {
                target,
                address: address.to_owned(),
                why: e.to_string(),
            })
        })
    }
}
