//! The openraft type parameters: commands and replies are bytes.

use serde::{Deserialize, Serialize};

use crate::snapshot::SnapshotFile;

/// An opaque command; its meaning and its version are the state machine's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Command({} bytes)", self.0.len())
    }
}

/// What the state machine answered to a command; empty for entries that are not commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply(#[serde(with = "serde_bytes")] pub Vec<u8>);

openraft::declare_raft_types!(
    /// The one instantiation of openraft in Barque.
    pub TypeConfig:
        D = Command,
        R = Reply,
        NodeId = u64,
        Node = openraft::BasicNode,
        SnapshotData = SnapshotFile,
);

pub type Entry = openraft::Entry<TypeConfig>;
pub type LogId = openraft::LogId<u64>;
pub type Vote = openraft::Vote<u64>;
pub type StorageError = openraft::StorageError<u64>;
pub type StoredMembership = openraft::StoredMembership<u64, openraft::BasicNode>;
pub type SnapshotMeta = openraft::SnapshotMeta<u64, openraft::BasicNode>;
pub type Snapshot = openraft::Snapshot<TypeConfig>;
pub type RaftMetrics = openraft::RaftMetrics<u64, openraft::BasicNode>;
