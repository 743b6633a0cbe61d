//! A running Raft node: start, propose, read barrier, answer other nodes.

use std::collections::BTreeMap;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{CheckIsLeaderError, ClientWriteError, Fatal, InitializeError, RaftError};
use openraft::{BasicNode, Config, SnapshotPolicy};
use tokio::sync::Mutex;

use crate::log_store::LogStore;
use crate::message::{Network, PieceAnswer, Request, Response, SnapshotPiece, decode, encode};
use crate::snapshot::SnapshotFile;
use crate::state_machine::{Adapter, StateMachine};
use crate::transport::Transport;
use crate::types::{Command, Snapshot, TypeConfig};

type Raft = openraft::Raft<TypeConfig>;

/// Entries between two checkpoints of the state machine, after which the log may be cut.
const CHECKPOINT_ENTRIES: u64 = 500;
/// Entries kept behind a checkpoint for peers that lag a little.
const KEPT_ENTRIES: u64 = 200;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    pub node_id: u64,
    pub term: u64,
    pub leader: Option<u64>,
    pub last_applied: Option<u64>,
    pub last_log: Option<u64>,
}

/// A running node with a runtime of its own, so that busy callers do not delay heartbeats.
pub struct Node {
    raft: Raft,
    node_id: u64,
    runtime: Option<tokio::runtime::Runtime>,
    incoming: Mutex<()>,
    folder: PathBuf,
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
    ) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(3)
            .thread_name("raft")
            .enable_all()
            .build()?;
        let config = Config {
            cluster_name: "barque".to_owned(),
            heartbeat_interval: 250,
            election_timeout_min: 1000,
            election_timeout_max: 2000,
            install_snapshot_timeout: 30_000,
            max_payload_entries: 16,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(CHECKPOINT_ENTRIES),
            max_in_snapshot_log_to_keep: KEPT_ENTRIES,
            purge_batch_size: 64,
            ..Config::default()
        };
        let config = config.validate().map_err(|e| StartError::Raft(e.to_string()))?;
        let node_id = log.node_id();
        let network = Network { transport: Arc::new(transport), folder: folder.clone() };
        let adapter = Adapter::new(machine, folder.clone());
        let start = Raft::new(node_id, Arc::new(config), network, log, adapter);
        let raft = std::thread::scope(|s| {
            // `block_on` is not allowed on a thread that already drives a runtime.
            s.spawn(|| runtime.block_on(start)).join()
        });
        let raft = raft
            .map_err(|_| StartError::Raft("the starting thread panicked".to_owned()))?
            .map_err(|e| StartError::Raft(e.to_string()))?;
        Ok(Self { raft, node_id, runtime: Some(runtime), incoming: Mutex::new(()), folder })
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
        match self.raft.client_write(Command(command)).await {
            Ok(answer) => Ok(answer.data.0),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(f))) => {
                let address = f.leader_node.map(|n| n.addr);
                Err(ProposeError::NotLeader { leader: f.leader_id, address })
            }
            Err(e) => Err(ProposeError::Stopped(e.to_string())),
        }
    }

    /// Returns once everything agreed before the call is applied here; only the leader can.
    pub async fn read_barrier(&self) -> Result<(), ProposeError> {
        match self.raft.ensure_linearizable().await {
            Ok(_) => Ok(()),
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
        let answer = match decode(request) {
            Ok(Request::Append(rpc)) => Response::Append(self.raft.append_entries(rpc).await),
            Ok(Request::Vote(rpc)) => Response::Vote(self.raft.vote(rpc).await),
            Ok(Request::Piece(piece)) => Response::Piece(self.take_piece(piece).await),
            Err(e) => Response::Malformed(e.to_string()),
        };
        encode(&answer)
    }

    /// Adds a piece to the arriving snapshot; a piece that does not fit says where to go on.
    async fn take_piece(&self, piece: SnapshotPiece) -> Result<PieceAnswer, Fatal<u64>> {
        let _one_at_a_time = self.incoming.lock().await;
        let name = format!("snapshot.arriving.{}", piece.meta.snapshot_id);
        let path = self.folder.join(name);
        let offset = match write_piece(&path, &piece) {
            Ok(offset) => offset,
            Err(e) => {
                tracing::error!(error = %e, path = %path.display(), "a snapshot piece was not kept");
                // From the start again: nothing of a file that could not be written is trusted.
                let _ = std::fs::remove_file(&path);
                return Ok(PieceAnswer::NotKept { why: e.to_string() });
            }
        };
        if !piece.done || offset != piece.offset + piece.data.len() as u64 {
            return Ok(PieceAnswer::Continue { offset });
        }
        let snapshot = Snapshot { meta: piece.meta, snapshot: Box::new(SnapshotFile::File(path)) };
        let answer = self.raft.install_full_snapshot(piece.vote, snapshot).await?;
        Ok(PieceAnswer::Installed(answer))
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

/// Writes the piece if it goes on where the file ends; the length of the file afterwards.
fn write_piece(path: &std::path::Path, piece: &SnapshotPiece) -> std::io::Result<u64> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    options.create(true).truncate(piece.offset == 0).write(true).mode(0o600);
    let mut file = options.open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    if len != piece.offset {
        return Ok(len);
    }
    file.write_all(&piece.data)?;
    if piece.done {
        file.sync_all()?;
    }
    Ok(len + piece.data.len() as u64)
}

#[cfg(test)]
mod tests;
