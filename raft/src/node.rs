//! A running Raft node: start, propose, read barrier, answer other nodes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, InitializeError, RaftError};
use openraft::{BasicNode, Config, SnapshotPolicy};
use tokio::sync::Mutex;

use crate::log_store::LogStore;
use crate::message::{Network, PieceAnswer, Request, Response, SnapshotPiece, decode, encode};
use crate::snapshot::{self, SnapshotFile};
use crate::stall::Stall;
use crate::state_machine::{Adapter, Applied, StateMachine};
use crate::transport::Transport;
use crate::types::{Command, Snapshot, TypeConfig, Vote};

type Raft = openraft::Raft<TypeConfig>;

/// How far the log may grow.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Entries, and bytes of them, between two checkpoints, after which the log may be cut.
    pub checkpoint_entries: u64,
    pub checkpoint_bytes: u64,
    /// Entries, and bytes of them, that are kept behind a checkpoint: a node that lags by less, or
    /// that takes a snapshot meanwhile, needs no snapshot (again). One that is down holds up nothing.
    pub kept_entries: usize,
    pub kept_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            checkpoint_entries: 500,
            checkpoint_bytes: 32 << 20,
            kept_entries: 10_000,
            kept_bytes: 64 << 20,
        }
    }
}

/// How long a snapshot waits for its next piece.
const ARRIVING_KEPT: Duration = Duration::from_secs(3600);
/// How often the log is looked at.
const LOG_CHECK: Duration = Duration::from_millis(500);
/// How often a wait looks whether the node still runs.
const APPLIED_CHECK: Duration = Duration::from_secs(1);

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the Raft runtime cannot be started")]
    Runtime(#[from] std::io::Error),
    #[error("Raft does not start: {0}")]
    Raft(String),
}

/// Why a proposal has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    #[error("this node is not the leader")]
    NotLeader { leader: Option<u64>, address: Option<String> },
    #[error("the Raft node has stopped: {0}")]
    Stopped(String),
}

/// What a node knows of its cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    pub node_id: u64,
    pub term: u64,
    pub leader: Option<u64>,
    pub last_applied: Option<u64>,
    pub last_log: Option<u64>,
    /// The term of the vote that is on disk.
    pub saved_term: u64,
    /// The last entry that is no longer in the log.
    pub purged: Option<u64>,
    /// The last entry that the newest checkpoint made durable.
    pub checkpoint: Option<u64>,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    /// On the leader: how far each node's log is, and how long ago most of them answered.
    pub matched: BTreeMap<u64, Option<u64>>,
    pub quorum_heard: Option<Duration>,
}

/// A snapshot that is whole and is being taken over.
struct Incoming {
    vote: Vote,
    sha256: Vec<u8>,
    task: tokio::task::JoinHandle<Result<PieceAnswer, Fatal<u64>>>,
}

/// A running node with a runtime of its own, so that busy callers do not delay heartbeats.
pub struct Node {
    raft: Raft,
    node_id: u64,
    runtime: Option<tokio::runtime::Runtime>,
    incoming: Mutex<Option<Incoming>>,
    folder: PathBuf,
    stall: Stall,
    /// It leads and lets another one lead instead.
    is_resigning: AtomicBool,
}

impl Node {
    /// Starts the node; it elects itself when it is alone, or hears a leader.
    ///
    /// `folder` is private to the node: snapshots are put together there.
    pub fn start<M: StateMachine, T: Transport>(
        log: LogStore,
        machine: M,
        transport: T,
        folder: PathBuf,
        limits: Limits,
    ) -> Result<Self, StartError> {
        let mut machine = machine;
        finish_install(&folder, &log, &mut machine)?;
        snapshot::clean_up(&folder)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .thread_name("raft")
            .enable_all()
            .build()?;
        let config = Config {
            cluster_name: "barque".to_owned(),
            heartbeat_interval: 250,
            // A follower waits for the leader's lease first, which is the longest time-out, and looks at
            // its clock every one and a half heartbeats: it asks to lead after 1.2 to 1.9 s of silence.
            election_timeout_min: 450,
            election_timeout_max: 750,
            install_snapshot_timeout: 30_000,
            max_payload_entries: 16,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(limits.checkpoint_entries),
            // `keep_short` cuts the log, by bytes too.
            max_in_snapshot_log_to_keep: u64::MAX / 2,
            // A lag alone is no reason for a snapshot, as long as the log is there.
            replication_lag_threshold: u64::MAX / 2,
            ..Config::default()
        };
        let config = config.validate().map_err(|e| StartError::Raft(e.to_string()))?;
        let node_id = log.node_id();
        let network = Network { transport: Arc::new(transport), folder: folder.clone() };
        let (stall, kept) = (log.stall(), log.clone());
        let adapter = Adapter::new(machine, folder.clone(), stall.clone());
        let start = Raft::new(node_id, Arc::new(config), network, log, adapter);
        let raft = std::thread::scope(|s| {
            // `block_on` is not allowed on a thread that already drives a runtime.
            s.spawn(|| runtime.block_on(start)).join()
        });
        let raft = raft
            .map_err(|_| StartError::Raft("the starting thread panicked".to_owned()))?
            .map_err(|e| StartError::Raft(e.to_string()))?;
        runtime.spawn(keep_short(raft.clone(), kept, limits));
        runtime.spawn(forget_arriving(folder.clone()));
        let incoming = Mutex::new(None);
        let is_resigning = AtomicBool::new(false);
        Ok(Self { raft, node_id, runtime: Some(runtime), incoming, folder, stall, is_resigning })
    }

    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// Makes this node a cluster of one, unless it already belongs to a cluster.
    pub async fn initialize(&self, address: &str) -> Result<(), ProposeError> {
        self.initialize_members(BTreeMap::from([(self.node_id, address.to_owned())])).await
    }

    /// Makes the first membership of a cluster, unless this node already has one.
    pub async fn initialize_members(
        &self,
        members: BTreeMap<u64, String>,
    ) -> Result<(), ProposeError> {
        if self.raft.is_initialized().await.map_err(|e| ProposeError::Stopped(e.to_string()))? {
            return Ok(());
        }
        let members: BTreeMap<u64, BasicNode> =
            members.into_iter().map(|(id, a)| (id, BasicNode::new(a))).collect();
        match self.raft.initialize(members).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// Agrees on a command and returns what the state machine answered.
    ///
    /// When this future is dropped or times out, the command may still be applied (D4).
    pub async fn propose(&self, command: Vec<u8>) -> Result<Vec<u8>, ProposeError> {
        self.require_not_resigning()?;
        match self.raft.client_write(Command(command)).await {
            Ok(answer) => Ok(answer.data.0),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(f))) => {
                let address = f.leader_node.map(|n| n.addr);
                Err(ProposeError::NotLeader { leader: f.leader_id, address })
            }
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// The index up to which a node has to apply to know everything agreed before the call (Ongaro,
    /// "Consensus: Bridging Theory and Practice", 6.4); only the leader can tell.
    pub async fn read_index(&self) -> Result<u64, ProposeError> {
        self.require_not_resigning()?;
        match self.raft.get_read_log_id().await {
            Ok((read, _)) => Ok(read.map_or(0, |id| id.index)),
            Err(RaftError::APIError(CheckIsLeaderError::ForwardToLeader(f))) => {
                let address = f.leader_node.map(|n| n.addr);
                Err(ProposeError::NotLeader { leader: f.leader_id, address })
            }
            Err(RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_))) => {
                Err(ProposeError::NotLeader { leader: None, address: None })
            }
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// Whether everything up to an index is applied here before the time is over.
    pub async fn wait_applied(&self, index: u64, timeout: Duration) -> bool {
        let mut metrics = self.raft.metrics();
        let applied = metrics.wait_for(|m| m.last_applied.map_or(0, |id| id.index) >= index);
        tokio::time::timeout(timeout, applied).await.is_ok_and(|r| r.is_ok())
    }

    /// Returns once everything agreed before the call is applied here; only the leader can.
    pub async fn read_barrier(&self) -> Result<(), ProposeError> {
        let index = self.read_index().await?;
        while !self.wait_applied(index, APPLIED_CHECK).await {
            if let Err(e) = &self.raft.metrics().borrow().running_state {
                return Err(ProposeError::Stopped(e.to_string()));
            }
        }
        Ok(())
    }

    /// Where this node's messages to others are sent from, so that callers can answer there too.
    pub fn runtime(&self) -> Option<tokio::runtime::Handle> {
        self.runtime.as_ref().map(|r| r.handle().clone())
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.raft
    }

    fn require_not_resigning(&self) -> Result<(), ProposeError> {
        match self.is_resigning.load(Ordering::Relaxed) {
            true => Err(ProposeError::NotLeader { leader: None, address: None }),
            false => Ok(()),
        }
    }

    /// Lets another node lead: this one says nothing more as leader until another has been elected,
    /// or the time is over. True when it does not lead afterwards.
    ///
    /// A leader that is made a learner goes on leading, and openraft 0.9 hands nothing over.
    pub async fn resign(&self, timeout: Duration) -> bool {
        let mut metrics = self.raft.metrics();
        self.is_resigning.store(true, Ordering::Relaxed);
        self.raft.runtime_config().heartbeat(false);
        let own = self.node_id;
        let other = metrics.wait_for(|m| m.current_leader.is_some_and(|id| id != own));
        let has_resigned = tokio::time::timeout(timeout, other).await.is_ok_and(|r| r.is_ok());
        self.raft.runtime_config().heartbeat(true);
        self.is_resigning.store(false, Ordering::Relaxed);
        has_resigned
    }

    /// Whether a full disk holds this node up; it goes on by itself.
    pub fn is_stalled(&self) -> bool {
        self.stall.is_stalled()
    }

    /// Whether this node may ask to lead; one that was removed must not.
    pub fn allow_election(&self, allowed: bool) {
        self.raft.runtime_config().elect(allowed);
    }

    /// Waits until some node leads, at most as long as given.
    pub async fn wait_for_leader(&self, timeout: Duration) -> bool {
        let mut metrics = self.raft.metrics();
        let known = metrics.wait_for(|m| m.current_leader.is_some());
        tokio::time::timeout(timeout, known).await.is_ok_and(|r| r.is_ok())
    }

    pub fn status(&self) -> NodeStatus {
        let metrics = self.raft.metrics().borrow().clone();
        NodeStatus {
            node_id: self.node_id,
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_applied: metrics.last_applied.map(|l| l.index),
            last_log: metrics.last_log_index,
            saved_term: metrics.vote.leader_id.term,
            purged: metrics.purged.map(|l| l.index),
            checkpoint: metrics.snapshot.map(|l| l.index),
            voters: metrics.membership_config.membership().voter_ids().collect(),
            learners: metrics.membership_config.membership().learner_ids().collect(),
            matched: metrics
                .replication
                .map(|r| r.into_iter().map(|(id, at)| (id, at.map(|l| l.index))).collect())
                .unwrap_or_default(),
            quorum_heard: metrics.millis_since_quorum_ack.map(Duration::from_millis),
        }
    }

    /// Returns when the Raft core has stopped by itself, and why: a fault of its storage.
    pub async fn stopped(&self) -> String {
        let mut metrics = self.raft.metrics();
        let stopped = metrics.wait_for(|m| m.running_state.is_err()).await;
        match stopped {
            Ok(m) => m.running_state.as_ref().err().map_or_else(String::new, ToString::to_string),
            Err(_) => "its core is gone".to_owned(),
        }
    }

    /// Makes what is applied durable and lets the log before it go.
    pub async fn checkpoint(&self) -> Result<(), ProposeError> {
        self.raft.trigger().snapshot().await.map_err(|e| ProposeError::Stopped(e.to_string()))
    }

    /// Answers a message that a [`Transport`] brought from another node.
    pub async fn handle(&self, request: &[u8]) -> Vec<u8> {
        // What openraft cannot write it queues without end; whoever sent it sends it again.
        if self.stall.is_stalled() {
            return encode(&Response::Busy("the node's disk is full".to_owned()));
        }
        let answer = match decode(request) {
            Ok(Request::Append(rpc)) => Response::Append(self.raft.append_entries(rpc).await),
            Ok(Request::Vote(rpc)) => Response::Vote(self.raft.vote(rpc).await),
            Ok(Request::Piece(piece)) => Response::Piece(self.take_piece(piece).await),
            Err(e) => Response::Malformed(e.to_string()),
        };
        encode(&answer)
    }

    /// Adds a piece to the arriving snapshot; a piece that does not fit says where to go on. The last
    /// one sets off that it is taken over, and the same again asks how far that is.
    async fn take_piece(&self, piece: SnapshotPiece) -> Result<PieceAnswer, Fatal<u64>> {
        let mut incoming = self.incoming.lock().await;
        if let Some(under_way) = incoming.as_mut() {
            // What became of it under one leader is no answer to another one.
            let is_same = under_way.sha256 == piece.sha256 && under_way.vote == piece.vote;
            if !under_way.task.is_finished() {
                return Ok(match is_same {
                    true => PieceAnswer::Installing,
                    false => PieceAnswer::NotKept { why: "another one is taken over".to_owned() },
                });
            }
            if let Some(done) = incoming.take()
                && is_same
                && let Ok(answer) = done.task.await
            {
                return answer;
            }
        }
        let path = snapshot::arriving(&self.folder, &piece.sha256);
        let (folder, to) = (self.folder.clone(), path.clone());
        let kept = tokio::task::spawn_blocking(move || {
            (snapshot::write_piece(&folder, &to, &piece), piece)
        });
        let Ok((kept, piece)) = kept.await else { return Ok(ended_badly()) };
        match kept {
            // On a task of its own, noted before anything happens: the caller may go away.
            Ok(offset) if piece.done && offset == piece.offset + piece.data.len() as u64 => {
                let (vote, sha256) = (piece.vote, piece.sha256.clone());
                let task = install(self.raft.clone(), self.folder.clone(), path, piece);
                *incoming = Some(Incoming { vote, sha256, task: tokio::spawn(task) });
                Ok(PieceAnswer::Installing)
            }
            Ok(offset) => Ok(PieceAnswer::Continue { offset }),
            Err(e) => Ok(not_kept(&e)),
        }
    }

    /// Stops the node; proposals under way may or may not have happened.
    pub async fn shutdown(&mut self) {
        if let Err(e) = self.raft.shutdown().await {
            tracing::warn!(error = %e, "the Raft core did not end cleanly");
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn not_kept(e: &std::io::Error) -> PieceAnswer {
    tracing::error!(error = %e, "a snapshot was not kept");
    PieceAnswer::NotKept { why: e.to_string() }
}

fn ended_badly() -> PieceAnswer {
    PieceAnswer::NotKept { why: "its thread ended badly".to_owned() }
}

/// Gives a whole snapshot to Raft; what it does not need any more goes.
async fn install(
    raft: Raft,
    folder: PathBuf,
    arrived: PathBuf,
    piece: SnapshotPiece,
) -> Result<PieceAnswer, Fatal<u64>> {
    let sha256 = piece.sha256;
    let accepted =
        tokio::task::spawn_blocking(move || snapshot::accept(&folder, &arrived, &sha256));
    let file = match accepted.await {
        Ok(Ok(file)) => file,
        Ok(Err(e)) => return Ok(not_kept(&e)),
        Err(_) => return Ok(ended_badly()),
    };
    let snapshot =
        Snapshot { meta: piece.meta, snapshot: Box::new(SnapshotFile::File(file.clone())) };
    let answer = raft.install_full_snapshot(piece.vote, snapshot).await;
    if answer.is_ok() {
        // Older than what is applied here, it was not taken over.
        let _ = std::fs::remove_file(file);
    }
    answer.map(PieceAnswer::Installed)
}

/// Finishes the taking over of a snapshot that a crash broke off: the log may be cut up to it, so that
/// nothing else leads there.
pub(crate) fn finish_install<M: StateMachine>(
    folder: &std::path::Path,
    log: &LogStore,
    machine: &mut M,
) -> Result<(), StartError> {
    let file = snapshot::installing(folder);
    if !file.exists() {
        return Ok(());
    }
    let failed = |e: String| StartError::Raft(format!("a snapshot cannot be taken over: {e}"));
    let applied = Applied::of(machine).map_err(|e| failed(e.to_string()))?;
    let purged = log.purged().map_err(|e| failed(e.to_string()))?;
    if purged > applied.last.map(|id| id.index) {
        tracing::info!(?purged, "a snapshot that a crash broke off is taken over");
        machine.install(&file).map_err(|e| failed(e.to_string()))?;
    }
    let _ = std::fs::remove_file(file);
    Ok(())
}

/// Removes now and then what is left of a snapshot that comes no more.
async fn forget_arriving(folder: PathBuf) {
    loop {
        let looking = folder.clone();
        let looked =
            tokio::task::spawn_blocking(move || snapshot::forget_arriving(&looking, ARRIVING_KEPT));
        if let Ok(Err(e)) = looked.await {
            tracing::warn!(error = %e, "what is left of snapshots is not removed");
        }
        tokio::time::sleep(ARRIVING_KEPT / 4).await;
    }
}

/// Cuts the log to its limits, and sees to it that it can be cut. Openraft keeps what the state
/// machine has not made durable, and asks no other node whether it still needs anything.
async fn keep_short(raft: Raft, log: LogStore, limits: Limits) {
    let mut asked = None;
    loop {
        tokio::time::sleep(LOG_CHECK).await;
        let (snapshot, is_running) = {
            let metrics = raft.metrics().borrow().clone();
            (metrics.snapshot.map_or(0, |id| id.index), metrics.running_state.is_ok())
        };
        if !is_running {
            return;
        }
        if log.bytes_after(snapshot) > limits.checkpoint_bytes && asked != Some(snapshot) {
            asked = Some(snapshot);
            let _ = raft.trigger().snapshot().await;
        }
        if let Some(upto) = log.beyond(limits.kept_entries, limits.kept_bytes) {
            let upto = upto.min(snapshot);
            if upto > 0 {
                let _ = raft.trigger().purge_log(upto).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
