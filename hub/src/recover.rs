//! `barque hub recover`: a hub whose most nodes are gone for good goes on with one that is left.
//!
//! What that node never heard of is lost here, and spokes offer it again: it is another life of the
//! hub, with another epoch, and nodes of the life before are refused.

use std::path::Path;

use barque_bundle::{HubEpoch, Timestamp};
use barque_raft::LogStore;

use crate::command::{self, Command, Envelope, NodeState, Recover};
use crate::config::DataFolder;
use crate::error::Error;
use crate::identity::Identity;
use crate::manifest::query::{self, NodeRow};
use crate::manifest::{Manifest, Nodes};
use crate::stores;

/// What a recovery would do, or did.
#[derive(Clone, Debug)]
pub struct Plan {
    pub node_id: u64,
    pub position: u64,
    /// Term and index of the last entry of its log.
    pub last_log: Option<(u64, u64)>,
    pub files: u64,
    /// Nodes that are given up.
    pub gone: Vec<NodeRow>,
    /// Files of which no copy is here: they are lost until their spokes bring them again.
    pub files_elsewhere: u64,
}

/// What is at hand in a data folder whose hub does not run.
pub fn plan(data: &Path) -> Result<Plan, Error> {
    let identity = Identity::load(data)?;
    let _lock = stores::lock(data)?;
    let folder = DataFolder(data);
    let manifest = Manifest::open(&folder.manifest_db())?;
    plan_of(&identity, &manifest, &LogStore::open(&folder.raft_db())?)
}

fn plan_of(identity: &Identity, manifest: &Manifest, log: &LogStore) -> Result<Plan, Error> {
    let (own, last_log) = (identity.node_id, log.last_id()?);
    let nodes: Nodes = manifest.watch_nodes().borrow().clone();
    let gone = nodes.values().filter(|n| n.node_id != own && n.state != NodeState::Removed);
    manifest.readers().read(|c| {
        let held = query::files_held(c)?.get(&own).copied().unwrap_or(0);
        let files = query::counter(c, "files")?;
        Ok(Plan {
            node_id: own,
            position: query::counter(c, "position")?,
            last_log,
            files,
            gone: gone.cloned().collect(),
            files_elsewhere: files.saturating_sub(held),
        })
    })
}

/// Makes the node of a data folder the only one of its hub; the hub must not run.
pub fn recover(data: &Path, entropy: [u8; 10], now: Timestamp) -> Result<Plan, Error> {
    let identity = Identity::load(data)?;
    let _lock = stores::lock(data)?;
    let folder = DataFolder(data);
    let log = LogStore::open(&folder.raft_db())?;
    let mut manifest = Manifest::open(&folder.manifest_db())?;
    let plan = plan_of(&identity, &manifest, &log)?;
    let Some((_, before)) = manifest.readers().read(query::hub)? else {
        return Err(Error::Unusable(format!(
            "{} knows nothing of its hub yet; recover from another node",
            data.display()
        )));
    };
    // Later than the one before, whatever this machine's clock says: that is how nodes of before
    // know that they are.
    let mut hub_epoch = HubEpoch::new(now, entropy);
    if hub_epoch.to_string() <= before.to_string() {
        hub_epoch = HubEpoch::new(before.made_at().plus_ms(1), entropy);
    }
    let command = Command::Recover(Recover { node_id: identity.node_id, hub_epoch });
    let command = command::encode(&Envelope { at: now, command });
    barque_raft::recover(&log, &mut manifest, data, &command)
        .map_err(|e| Error::Unusable(e.to_string()))?;
    Ok(plan)
}
