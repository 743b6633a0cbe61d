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

use crate::snapshot;
use crate::transport::Transport;
use crate::types::{Snapshot, SnapshotMeta, TypeConfig, Vote};

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
}

#[derive(Serialize, Deserialize)]
pub(crate) enum Response {
    Append(Result<AppendEntriesResponse<u64>, RaftError<u64>>),
    Vote(Result<VoteResponse<u64>, RaftError<u64>>),
    /// Where the receiver is, or the answer to the last piece.
    Piece(Result<PieceAnswer, Fatal<u64>>),
    Malformed(String),
}

#[derive(Serialize, Deserialize)]
pub(crate) enum PieceAnswer {
    Continue {
        offset: u64,
    },
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
        Client {
            transport: Arc::clone(&self.transport),
            target,
            address: node.addr.clone(),
            folder: self.folder.clone(),
        }
    }
}

/// One node's line to another.
pub(crate) struct Client<T> {
    transport: Arc<T>,
    target: u64,
    address: String,
    folder: PathBuf,
}

impl<T: Transport> Client<T> {
    async fn call(&self, request: &Request) -> Result<Response, Unreachable> {
        let answer = self
            .transport
            .call(self.target, &self.address, encode(request))
            .await
            .map_err(|e| Unreachable::new(&e))?;
        decode(&answer).map_err(|e| Unreachable::new(&e))
    }

    fn unexpected(&self) -> NetworkError {
        NetworkError::new(&std::io::Error::other(format!(
            "node {} answered something else than it was asked",
            self.target
        )))
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
        file: &mut std::fs::File,
    ) -> Result<SnapshotResponse<u64>, StreamingError<TypeConfig, Fatal<u64>>> {
        let (mut offset, mut failures) = (0, 0);
        loop {
            let (data, done) = self.piece(file, offset).map_err(|e| NetworkError::new(&e))?;
            let piece = SnapshotPiece { vote, meta: meta.clone(), offset, data, done };
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
                Response::Piece(Ok(PieceAnswer::NotKept { why })) => {
                    return Err(NetworkError::new(&std::io::Error::other(why)).into());
                }
                Response::Piece(Err(e)) => return Err(RemoteError::new(self.target, e).into()),
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
        match self.call(&Request::Append(rpc)).await? {
            Response::Append(answer) => answer.map_err(|e| RemoteError::new(self.target, e).into()),
            _ => Err(self.unexpected().into()),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, CallError> {
        match self.call(&Request::Vote(rpc)).await? {
            Response::Vote(answer) => answer.map_err(|e| RemoteError::new(self.target, e).into()),
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
        let path = snapshot::sending(&self.folder, self.target);
        let _ = std::fs::remove_file(&path);
        // Copying takes a while, and must not hold a heartbeat up.
        let (view, to) = (snapshot.snapshot, path.clone());
        let copied = tokio::task::spawn_blocking(move || (*view).into_file(&to)).await;
        let copied = copied.unwrap_or_else(|e| Err(std::io::Error::other(e)));
        copied
            .inspect_err(|_| drop(std::fs::remove_file(&path)))
            .map_err(|e| NetworkError::new(&e))?;
        let mut file = std::fs::File::open(&path).map_err(|e| NetworkError::new(&e))?;
        // The open file stays readable; the name need not survive a crash.
        let _ = std::fs::remove_file(&path);
        tokio::select! {
            closed = cancel => Err(closed.into()),
            answer = self.send_pieces(vote, snapshot.meta, &mut file) => answer,
        }
    }
}
