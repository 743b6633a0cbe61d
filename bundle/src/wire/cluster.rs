//! The nodes of a hub, as operators see and steer them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::time::Timestamp;

pub const NODES: &str = "/api/v1/cluster/nodes";
pub const MANIFEST_DIGEST: &str = "/api/v1/cluster/digest";
pub const CLUSTER_TOKEN: &str = "/api/v1/cluster/token";

/// One node, as the node that was asked sees it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NodeLine {
    /// 16 hex digits.
    pub node_id: String,
    /// The name of its machine.
    pub name: String,
    /// `joining`, `active`, `draining` or `removed`.
    pub state: String,
    /// `voter`, `learner` (a voter that does not have all yet) or `reader` (does not vote for good).
    pub role: String,
    pub leader: bool,
    /// What its clients call it by.
    pub url: Option<String>,
    /// Whether it takes drives.
    pub imports: bool,
    pub alive: bool,
    /// How long ago it answered the node that was asked; none for that node itself.
    #[serde(default)]
    pub last_contact_ms: Option<u64>,
    #[serde(default)]
    pub last_error: Option<String>,
    /// The manifest's position there, as it said last.
    #[serde(default)]
    pub position: Option<u64>,
    /// Entries of the log that it lacks, as the leader knows.
    #[serde(default)]
    pub lag_entries: Option<u64>,
    /// Files of which it holds a copy, and their share of all.
    pub files_held: u64,
    pub share_held: f64,
    #[serde(default)]
    pub version: Option<String>,
    pub added_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NodeList {
    pub nodes: Vec<NodeLine>,
}

/// What a node's manifest comes to: nodes that applied the same have one digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestDigest {
    pub node_id: String,
    pub position: u64,
    /// The last log entry in it. The position counts changes of files; others move this alone.
    pub applied: u64,
    pub sha256: Sha256Digest,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddNodeRequest {
    /// It shall not vote: it takes pushes and serves reads.
    #[serde(default)]
    pub reader: bool,
    pub expires_in_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddNodeResponse {
    pub token: String,
    pub expires_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SetNodeRequest {
    /// `draining`: takes nothing new and does not vote; `active` undoes it.
    pub state: String,
}
