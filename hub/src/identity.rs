//! Who a hub node is: `identity.json` (0600), made once by `hub init` and never changed.

use std::path::Path;

use barque_bundle::key::NodeCertificate;
use barque_bundle::{HubId, PublicKey, SecretKey, Timestamp, platform};
use barque_raft::LogStore;
use serde::{Deserialize, Serialize};

use crate::config::DataFolder;
use crate::error::Error;
use crate::tls;

const VERSION: u32 = 1;

/// What a node keeps for ever: ids, the hub's root key, its own key and certificate.
pub struct Identity {
    pub hub_id: HubId,
    pub node_id: u64,
    pub root: SecretKey,
    pub node: SecretKey,
    pub certificate: NodeCertificate,
    /// The address that tokens carry, if one was given.
    pub url: Option<String>,
    /// It joined others; the first node of a hub did not.
    pub has_joined: bool,
    pub created_at: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    hub_id: HubId,
    node_id: u64,
    root_key: String,
    node_key: String,
    certificate: NodeCertificate,
    url: Option<String>,
    #[serde(default)]
    has_joined: bool,
    created_at: Timestamp,
}

/// The random values and the time that a new identity is made of.
pub struct Seeds {
    pub now: Timestamp,
    pub hub_id: [u8; 10],
    pub node_id: u64,
    pub root: [u8; 32],
    pub node: [u8; 32],
}

/// Refuses a folder that is a hub's, or was.
pub(crate) fn require_empty(data: &Path) -> Result<(), Error> {
    let folder = DataFolder(data);
    if folder.identity().exists() {
        return Err(Error::Unusable(format!(
            "{} already holds a hub; start it with: barque hub serve --data {0}",
            data.display()
        )));
    }
    // An init that was cut short makes neither; a hub that ran has both.
    if folder.manifest_db().exists() || folder.node_db().exists() {
        return Err(Error::Unusable(format!(
            "{} holds the data of a hub whose identity.json is gone; put its copy back, \
             or use another folder",
            data.display()
        )));
    }
    Ok(())
}

pub(crate) fn make_folder(data: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt as _;
    platform::create_folders_durably(data, 0o711)
        .and_then(|()| std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o711)))
        .map_err(Error::io("cannot make the data folder", data))
}

/// A folder whose making was cut short has a log and no identity; it starts over.
pub(crate) fn remove_leftovers(data: &Path) {
    for leftover in ["raft.db", "raft.db-wal", "raft.db-shm"] {
        let _ = std::fs::remove_file(data.join(leftover));
    }
}

/// A random number as a node id: SQLite integers are signed, and 0 is no node.
pub(crate) fn as_node_id(random: u64) -> u64 {
    (random >> 1).max(1)
}

impl Identity {
    /// Makes a hub in an empty or missing folder: root, node key, TLS CA, Raft log.
    ///
    /// Refused when the folder already has an identity: it is never overwritten.
    pub fn create(data: &Path, url: Option<String>, seeds: Seeds) -> Result<Self, Error> {
        require_empty(data)?;
        make_folder(data)?;
        let folder = DataFolder(data);
        let hub_id = HubId::new(seeds.now, seeds.hub_id);
        let node_id = as_node_id(seeds.node_id);
        let root = SecretKey::from_seed(seeds.root);
        let node = SecretKey::from_seed(seeds.node);
        let certificate = NodeCertificate::issue(
            &root,
            hub_id,
            format!("{node_id:016x}"),
            node.public(),
            seeds.now,
        );
        let created_at = seeds.now;
        let has_joined = false;
        let identity =
            Self { hub_id, node_id, root, node, certificate, url, has_joined, created_at };
        tls::create(&folder.tls(), &identity.root, seeds.now)?;
        remove_leftovers(data);
        drop(LogStore::create(&folder.raft_db(), node_id)?);
        identity.save(&folder.identity())?;
        Ok(identity)
    }

    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        let stored = Stored {
            version: VERSION,
            hub_id: self.hub_id,
            node_id: self.node_id,
            root_key: self.root.to_base64(),
            node_key: self.node.to_base64(),
            certificate: self.certificate.clone(),
            url: self.url.clone(),
            has_joined: self.has_joined,
            created_at: self.created_at,
        };
        let json =
            serde_json::to_vec_pretty(&stored).map_err(|e| Error::Malformed(e.to_string()))?;
        platform::write_durably(path, &json, 0o600).map_err(Error::io("cannot write", path))
    }

    /// Reads the identity of a data folder, or says how to make one.
    pub fn load(data: &Path) -> Result<Self, Error> {
        let path = DataFolder(data).identity();
        let json = match std::fs::read(&path) {
            Ok(json) => json,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::Unusable(format!(
                    "{} holds no hub; make one with: barque hub init --data {0}, or make it a node of \
                     one that there is: barque hub join TOKEN --data {0}",
                    data.display()
                )));
            }
            Err(e) => return Err(Error::io("cannot read", &path)(e)),
        };
        let malformed = |e: String| Error::Malformed(format!("{}: {e}", path.display()));
        let s: Stored = serde_json::from_slice(&json).map_err(|e| malformed(e.to_string()))?;
        if s.version > VERSION {
            let (found, known) = (s.version.into(), VERSION.into());
            return Err(Error::Newer { path, found, known });
        }
        let key = |text: &str| text.parse::<SecretKey>().map_err(|e| malformed(e.to_string()));
        Ok(Self {
            hub_id: s.hub_id,
            node_id: s.node_id,
            root: key(&s.root_key)?,
            node: key(&s.node_key)?,
            certificate: s.certificate,
            url: s.url,
            has_joined: s.has_joined,
            created_at: s.created_at,
        })
    }

    pub fn root_public(&self) -> PublicKey {
        self.root.public()
    }
}
