//! Who a spoke is and which hubs it trusts: `identity.json` (0600).

use barque_bundle::{HubId, PublicKey, SecretKey, SpokeId, platform};
use serde::{Deserialize, Serialize};

use crate::config::StateFolder;
use crate::error::Error;

const VERSION: u32 = 1;

/// A spoke's name, its key, and the roots it pinned when it enrolled.
#[derive(Clone, Debug)]
pub struct Identity {
    pub spoke_id: SpokeId,
    pub key: SecretKey,
    pub hubs: Vec<Pin>,
}

/// The roots of a hub that receipts and TLS must lead back to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pin {
    pub hub_id: HubId,
    pub roots: Vec<PublicKey>,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    spoke_id: SpokeId,
    key: String,
    hubs: Vec<Pin>,
}

impl Identity {
    /// None when the folder has none yet.
    pub fn load(state: &StateFolder) -> Result<Option<Self>, Error> {
        Self::load_from(state.identity())
    }

    /// [`Identity::load`] from a file of another name.
    pub(crate) fn load_from(path: std::path::PathBuf) -> Result<Option<Self>, Error> {
        let json = match std::fs::read(&path) {
            Ok(json) => json,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("cannot read", path)(e)),
        };
        let malformed = |why: String| Error::Malformed { path: path.clone(), why };
        let s: Stored = serde_json::from_slice(&json).map_err(|e| malformed(e.to_string()))?;
        if s.version > VERSION {
            let (found, known) = (s.version.into(), VERSION.into());
            return Err(Error::Newer { path, found, known });
        }
        let key = s.key.parse().map_err(|_| malformed("the key is not one".to_owned()))?;
        Ok(Some(Self { spoke_id: s.spoke_id, key, hubs: s.hubs }))
    }

    pub fn save(&self, state: &StateFolder) -> Result<(), Error> {
        self.save_as(state.identity())
    }

    pub(crate) fn save_as(&self, path: std::path::PathBuf) -> Result<(), Error> {
        let stored = Stored {
            version: VERSION,
            spoke_id: self.spoke_id.clone(),
            key: self.key.to_base64(),
            hubs: self.hubs.clone(),
        };
        let json = serde_json::to_vec_pretty(&stored)
            .map_err(|e| Error::Malformed { path: path.clone(), why: e.to_string() })?;
        platform::write_durably(&path, &json, 0o600).map_err(Error::io("cannot write", path))
    }

    pub fn pin(&self, hub_id: HubId) -> Option<&Pin> {
        self.hubs.iter().find(|p| p.hub_id == hub_id)
    }
}
