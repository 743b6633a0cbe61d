//! What nodes say to each other, as bytes, and openraft's network over a [`Transport`].

use std::future::Future;
use std::io::{Read as _, Seek as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{
    Fatal, NetworkError, RPCError, RaftError, RemoteError, ReplicationClosed, StreamingError,
    Unreachable,
};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{BasicNode, OptionalSend};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::snapshot;
use crate::transport::{Transport, Weight};
use crate::types::{LogId, Snapshot, SnapshotMeta, TypeConfig, Vote};

/// How often a piece is sent again before the snapshot is given up.
const PIECE_FAILURES_MAX: u32 = 60;
const PIECE_AGAIN: Duration = Duration::from_millis(500);
/// Bytes of a snapshot in one message.
const PIECE_BYTES: usize = 1024 * 1024;

#[derive(Serialize, Deserialize)]
pub(crate) enum Request {
    Append(AppendEntriesRequest<TypeConfig>),
    Vote(VoteRequest<u64>),
    Piece(SnapshotPiece),
}

/// A part of a snapshot; the last one installs it.
#[derive(Serialize, Deserialize)]
pub(crate) struct SnapshotPiece {
    pub vote: Vote,
    pub meta: SnapshotMeta,
    pub offset: u64,
    #[serde(with = "serde_bytes")]
    pub data: Vec<u8>,
    pub done: bool,
    /// Of the whole snapshot.
    #[serde(with = "serde_bytes")]
    pub sha256: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Response {
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    /// Where the receiver is, or the answer to the last piece.
    Piece(Result<PieceAnswer, Fatal<u64>>),
    Malformed(String),
    /// The node cannot write at the moment: nothing was taken, and it comes again.
    Busy(String),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum PieceAnswer {
    Continue {
        offset: u64,
    },
    /// All of it is there and is being taken over: the last piece again asks how far that is.
    Installing,
    /// The receiver could not write it.
    NotKept {
        why: String,
    },
    Installed(SnapshotResponse<u64>),
}

pub(crate) fn encode(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec_named(value).expect("a message holds only values that serde can write")
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    rmp_serde::from_slice(bytes)
}

/// Makes openraft's clients; `folder` holds a snapshot while it is sent.
pub(crate) struct Network<T> {
    pub transport: Arc<T>,
    pub folder: PathBuf,
}

impl<T: Transport> RaftNetworkFactory<TypeConfig> for Network<T> {
    type Network = Client<T>;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Client<T> {
        let transport = Arc::clone(&self.transport);
        let line = Line { transport, target, address: node.addr.clone() };
        Client { line: Arc::new(line), folder: self.folder.clone(), flight: None }
    }
}

/// One node's line to another.
struct Line<T> {
    transport: Arc<T>,
    target: u64,
    address: String,
}

impl<T: Transport> Line<T> {
    async fn call(&self, request: &Request) -> Result<Response, Unreachable> {
        let weight = match request {
            Request::Piece(_) => Weight::Snapshot,
            Request::Append(rpc) if !rpc.entries.is_empty() => Weight::Entries,
            Request::Append(_) | Request::Vote(_) => Weight::Light,
        };
        let answer = self
            .transport
            .call(self.target, &self.address, encode(request), weight)
            .await
            .map_err(|e| Unreachable::new(&e))?;
        decode(&answer).map_err(|e| Unreachable::new(&e))
    }

    async fn append(
        &self,
        rpc: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<u64>, CallError> {
        match self.call(&Request::Append(rpc)).await? {
            Response::Append(answer) => answer.map_err(|e| RemoteError::new(self.target, e).into()),
            Response::Busy(why) => Err(Unreachable::new(&std::io::Error::other(why)).into()),
            _ => Err(self.unexpected().into()),
        }
    }

    fn unexpected(&self) -> NetworkError {
        NetworkError::new(&std::io::Error::other(format!(
            "node {} answered something else than it was asked",
            self.target
        )))
    }
}

/// Entries on their way to a node. Openraft gives each append up after a heartbeat's time; on a slow
/// line a page takes longer, and must not begin again each time.
struct Flight {
    vote: Vote,
    from: Option<LogId>,
    upto: Option<LogId>,
    task: JoinHandle<Result<AppendEntriesResponse<u64>, CallError>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What openraft speaks to one node through.
pub(crate) struct Client<T> {
    line: Arc<Line<T>>,
    folder: PathBuf,
    flight: Option<Flight>,
}

/// How long entries under way are waited for before the other node hears from its leader otherwise.
const FLIGHT_WAIT: Duration = Duration::from_millis(100);

impl<T: Transport> Client<T> {
    async fn call(&self, request: &Request) -> Result<Response, Unreachable> {
        self.line.call(request).await
    }

    fn unexpected(&self) -> NetworkError {
        self.line.unexpected()
    }

    /// Sends entries, or waits on for those that are under way from the same place: the other node
    /// hears a heartbeat meanwhile, and what had arrived is said when it has.
    async fn append_in_flight(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
    ) -> Result<AppendEntriesResponse<u64>, CallError> {
        let (vote, from) = (rpc.vote, rpc.prev_log_id);
        let upto = rpc.entries.last().map(|e| e.log_id);
        let heartbeat = AppendEntriesRequest {
            vote,
            prev_log_id: from,
            entries: Vec::new(),
            leader_commit: rpc.leader_commit,
        };
        if !self.flight.as_ref().is_some_and(|f| f.vote == vote && f.from == from) {
            let line = Arc::clone(&self.line);
            let task = tokio::spawn(async move { line.append(rpc).await });
            self.flight = Some(Flight { vote, from, upto, task });
        }
        let Some(flight) = &mut self.flight else { return Err(self.line.unexpected().into()) };
        let sent_upto = flight.upto;
        loop {
            if let Ok(answer) = tokio::time::timeout(FLIGHT_WAIT, &mut flight.task).await {
                self.flight = None;
                let answer = answer.map_err(|e| NetworkError::new(&e))??;
                return Ok(match answer {
                    // Openraft asks now for more than was sent then.
                    AppendEntriesResponse::Success if sent_upto != upto => {
                        AppendEntriesResponse::PartialSuccess(sent_upto)
                    }
                    other => other,
                });
            }
            match self.line.append(heartbeat.clone()).await? {
                // Of a node that has nothing yet openraft takes no such answer: it is waited for.
                AppendEntriesResponse::Success if from.is_none() => {}
                AppendEntriesResponse::Success => {
                    return Ok(AppendEntriesResponse::PartialSuccess(from));
                }
                other => {
                    self.flight = None;
                    return Ok(other);
                }
            }
        }
    }

    fn piece(&self, file: &mut std::fs::File, offset: u64) -> std::io::Result<(Vec<u8>, bool)> {
        let len = file.metadata()?.len();
        file.seek(std::io::SeekFrom::Start(offset))?;
        let mut data = Vec::new();
        file.take(PIECE_BYTES as u64).read_to_end(&mut data)?;
        let done = offset + data.len() as u64 >= len;
        Ok((data, done))
    }

    async fn send_pieces(
        &self,
        vote: Vote,
        meta: SnapshotMeta,
        (file, sha256): (&mut std::fs::File, Vec<u8>),
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let (mut offset, mut failures) = (0, 0);
        loop {
            let (data, done) = self.piece(file, offset).map_err(|e| NetworkError::new(&e))?;
            let (meta, sha256) = (meta.clone(), sha256.clone());
            let piece = SnapshotPiece { vote, meta, offset, data, done, sha256 };
            let answer = match self.call(&Request::Piece(piece)).await {
                Ok(answer) => answer,
                // A line that breaks is no reason to begin again: the other side says how far it is.
                Err(e) if failures < PIECE_FAILURES_MAX => {
                    failures += 1;
                    tracing::warn!(error = %e, offset, "a snapshot piece goes again");
                    tokio::time::sleep(PIECE_AGAIN).await;
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            match answer {
                Response::Piece(Ok(PieceAnswer::Continue { offset: next })) => {
                    if next > offset {
                        failures = 0;
                    }
                    offset = next;
                }
                Response::Piece(Ok(PieceAnswer::Installed(answer))) => return Ok(answer),
                // Asked again without any bytes.
                Response::Piece(Ok(PieceAnswer::Installing)) => {
                    offset = file.metadata().map_err(|e| NetworkError::new(&e))?.len();
                    tokio::time::sleep(PIECE_AGAIN).await;
                }
                // However long its disk is full: another copy would not help.
                Response::Busy(_) => tokio::time::sleep(PIECE_AGAIN).await,
                Response::Piece(Ok(PieceAnswer::NotKept { .. }))
                    if failures < PIECE_FAILURES_MAX =>
                {
                    failures += 1;
                    tokio::time::sleep(PIECE_AGAIN).await;
                }
                Response::Piece(Ok(PieceAnswer::NotKept { why })) => {
                    return Err(NetworkError::new(&std::io::Error::other(why)).into());
                }
                Response::Piece(Err(e)) => return Err(RemoteError::new(self.line.target, e).into()),
                _ => return Err(self.unexpected().into()),
            }
        }
    }
}

type CallError = RPCError<u64, BasicNode, RaftError<u64>>;

impl<T: Transport> RaftNetwork<TypeConfig> for Client<T> {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, CallError> {
        match rpc.entries.is_empty() {
            true => self.line.append(rpc).await,
            false => self.append_in_flight(rpc).await,
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, CallError> {
        match self.call(&Request::Vote(rpc)).await? {
            Response::Vote(answer) => {
                answer.map_err(|e| RemoteError::new(self.line.target, e).into())
            }
            _ => Err(self.unexpected().into()),
        }
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        // Copying takes a while, and must not hold a heartbeat up.
        let (folder, target, view) = (self.folder.clone(), self.line.target, snapshot.snapshot);
        let copied =
            tokio::task::spawn_blocking(move || snapshot::copy_for(&folder, target, *view)).await;
        let copied = copied.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        let (mut file, sha256) = copied.map_err(|e| NetworkError::new(&e))?;
        tokio::select! {
            closed = cancel => Err(closed.into()),
            answer = self.send_pieces(vote, snapshot.meta, (&mut file, sha256)) => answer,
        }
    }
}
