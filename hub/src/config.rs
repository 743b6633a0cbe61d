//! What a hub node is told: folders, addresses and limits.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::gate::Limits;

/// The settings of `hub serve`; paths are used as given.
#[derive(Clone, Debug)]
pub struct HubConfig {
    pub data: PathBuf,
    /// Address and port of the public listener.
    pub listen: String,
    /// Serve plain HTTP instead of TLS.
    pub plain: bool,
    /// Where readers look; `DATA/landing` unless set.
    pub landing_dir: Option<PathBuf>,
    /// Bytes that stay free on the staging file system; a body that would take them gets 507.
    pub reserve_bytes: u64,
    /// What may be under way; one more gets 429.
    pub limits: Limits,
    /// Connections held; one more is closed.
    pub connections_max: usize,
    /// Requests answered at once; one more gets 503.
    pub requests_max: usize,
    /// Bytes of unfinished files that are kept of one spoke; the oldest go first.
    pub kept_bytes_per_spoke: u64,
    /// Longest silence inside a request body.
    pub body_idle: Duration,
    /// Folders of this node below which a bundle may be named by its path.
    pub import_dirs: Vec<PathBuf>,
    /// Nothing but drives brings files: no spoke is let in over the network.
    pub import_only: bool,
    /// Whether this node takes drives.
    pub imports: bool,
    /// Address and port of the listener for other nodes; without one there are none.
    pub cluster_listen: Option<String>,
    /// Where other nodes reach it, if that is another address than it listens on.
    pub cluster_advertise: Option<String>,
    /// Plain HTTP between nodes instead of mutual TLS.
    pub cluster_plain: bool,
    /// How far Raft's log may grow.
    pub raft: barque_raft::Limits,
}

impl HubConfig {
    pub const DEFAULT_LISTEN: &'static str = "0.0.0.0:7171";

    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            listen: Self::DEFAULT_LISTEN.to_owned(),
            plain: false,
            landing_dir: None,
            reserve_bytes: 64 * 1024 * 1024,
            limits: Limits::default(),
            connections_max: 1_024,
            requests_max: 512,
            kept_bytes_per_spoke: 64 << 30,
            body_idle: Duration::from_secs(60),
            import_dirs: Vec::new(),
            import_only: false,
            imports: true,
            cluster_listen: None,
            cluster_advertise: None,
            cluster_plain: false,
            raft: barque_raft::Limits::default(),
        }
    }

    pub fn landing(&self) -> PathBuf {
        self.landing_dir.clone().unwrap_or_else(|| self.data.join("landing"))
    }

    /// On the landing's file system, so that a rename makes a file visible whole.
    pub fn staging(&self) -> PathBuf {
        match &self.landing_dir {
            None => self.data.join("staging"),
            Some(dir) => {
                let mut name = dir.file_name().unwrap_or_default().to_owned();
                name.push(".staging");
                dir.with_file_name(name)
            }
        }
    }
}

/// The files of a hub's data folder.
pub struct DataFolder<'a>(pub &'a Path);

impl DataFolder<'_> {
    pub fn identity(&self) -> PathBuf {
        self.0.join("identity.json")
    }
    pub fn tls(&self) -> PathBuf {
        self.0.join("tls")
    }
    pub fn raft_db(&self) -> PathBuf {
        self.0.join("raft.db")
    }
    pub fn manifest_db(&self) -> PathBuf {
        self.0.join("manifest.db")
    }
    pub fn node_db(&self) -> PathBuf {
        self.0.join("node.db")
    }
    /// The secret that the nodes of a cluster share.
    pub fn cluster_token(&self) -> PathBuf {
        self.0.join("cluster.token")
    }
    /// Where other nodes were when this one joined.
    pub fn peers(&self) -> PathBuf {
        self.0.join("peers.json")
    }
    /// As what a folder is about to join.
    pub fn joining(&self) -> PathBuf {
        self.0.join("joining.json")
    }
    pub fn socket(&self) -> PathBuf {
        self.0.join("hub.sock")
    }
}
