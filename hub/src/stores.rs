//! What a data folder holds, opened and found to belong together, before anything runs on it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use barque_bundle::platform;
use barque_raft::{LogStore, LogStoreError};

use crate::config::{DataFolder, HubConfig};
use crate::error::Error;
use crate::hub::Clock;
use crate::identity::Identity;
use crate::landing::Landing;
use crate::ledger::Ledger;
use crate::manifest::Manifest;
use crate::staging::Staging;
use crate::upload::Uploads;

pub struct Stores {
    /// Held as long as the hub runs on the folder.
    pub lock: File,
    pub log: LogStore,
    pub manifest: Manifest,
    pub ledger: Ledger,
    pub landing: Landing,
    pub staging: Arc<Staging>,
    pub uploads: Uploads,
}

impl Stores {
    /// Opens everything; refuses what would break an invariant, naming it.
    pub fn open(config: &HubConfig, identity: &Identity, clock: &Clock) -> Result<Self, Error> {
        let folder = DataFolder(&config.data);
        let lock = lock(&config.data)?;
        let log = LogStore::open(&folder.raft_db()).map_err(|e| match e {
            LogStoreError::Gone { path } => {
                lost_log(identity, &format!("{} is gone", path.display()))
            }
            e => e.into(),
        })?;
        if log.node_id() != identity.node_id {
            return Err(Error::Unusable(format!(
                "{} is the log of another node than identity.json; one of them was copied here",
                folder.raft_db().display()
            )));
        }
        let manifest = Manifest::open(&folder.manifest_db())?;
        let ledger = Ledger::open(&folder.node_db())?;
        require_newest_log(&log, &ledger, identity, &folder.raft_db())?;
        let staging_folder = config.staging();
        let landing = Landing::open(&config.landing(), &staging_folder)?;
        let staging = Arc::new(Staging::open(&staging_folder, ledger.clone())?);
        let kept_bytes_max = config.kept_bytes_per_spoke;
        let uploads =
            Uploads::new(&staging_folder, ledger.clone(), Arc::clone(clock), kept_bytes_max);
        uploads.clean_up()?;
        Ok(Self { lock, log, manifest, ledger, landing, staging, uploads })
    }
}

/// The right to run on a data folder, given back when it is dropped.
pub fn lock(data: &Path) -> Result<File, Error> {
    let path = DataFolder(data).identity();
    let lock = File::open(&path).map_err(Error::io("cannot open", &path))?;
    if !platform::try_lock(&lock).map_err(Error::io("cannot lock", &path))? {
        return Err(Error::Unusable(format!(
            "another hub runs on {}; stop it first",
            data.display()
        )));
    }
    Ok(lock)
}

/// Refuses a log that is older than what the node has told others since.
fn require_newest_log(
    log: &LogStore,
    ledger: &Ledger,
    identity: &Identity,
    path: &Path,
) -> Result<(), Error> {
    let ((index, term), (index_then, term_then)) = (log.extent()?, ledger.raft_mark()?);
    if index >= index_then && term >= term_then {
        return Ok(());
    }
    let why = format!(
        "{} is older than what this node has done since: it ends at entry {index} of term {term}, \
         and was at entry {index_then} of term {term_then}",
        path.display()
    );
    Err(lost_log(identity, &why))
}

/// A node that forgot what it has voted for must not vote again.
fn lost_log(identity: &Identity, why: &str) -> Error {
    Error::Unusable(format!(
        "{why}. A node that forgot what it has agreed to must not take part again. If this hub has \
         other nodes, run there: barque hub node remove {:016x}; then empty this folder and let it \
         join anew. If it has none, put the folder's backup back",
        identity.node_id
    ))
}
