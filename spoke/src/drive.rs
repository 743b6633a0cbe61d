//! Bundles that left on drives: what is under way, what a drive that came back says, and what a
//! person decides of those that do not.

mod ack;

use std::path::{Path, PathBuf};

use barque_bundle::open::{ANSWER, Bundle, Form, Head};
use barque_bundle::path::printable;
use barque_bundle::{BundleId, HubId, SpokeId, Timestamp};
use serde::Serialize;

use crate::config::{SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::export::bundle_name;
use crate::identity::Identity;
use crate::ledger::{BundleRow, BundleState, Ledger};
use crate::lock::Lock;

pub use ack::{AckFault, AckReport, Acked, AckedFile, ack};

/// A bundle as the ledger knows it.
#[derive(Clone, Debug, Serialize)]
pub struct BundleLine {
    pub bundle_id: BundleId,
    pub hub_id: HubId,
    pub state: BundleState,
    pub form: &'static str,
    pub label: Option<String>,
    /// Where the drive was mounted then.
    pub folder: PathBuf,
    pub created_at: Timestamp,
    pub files: u64,
    pub bytes: u64,
}

impl From<BundleRow> for BundleLine {
    fn from(row: BundleRow) -> Self {
        Self {
            bundle_id: row.bundle_id,
            hub_id: row.hub_id,
            state: row.state,
            form: row.form.as_str(),
            label: row.label,
            folder: row.folder,
            created_at: row.created_at,
            files: row.files,
            bytes: row.bytes,
        }
    }
}

/// A bundle as it lies on a drive; nothing of it is verified.
#[derive(Clone, Debug, Serialize)]
pub struct FoundLine {
    pub path: PathBuf,
    pub bundle_id: Option<BundleId>,
    pub spoke_id: Option<SpokeId>,
    pub label: Option<String>,
    pub created_at: Option<Timestamp>,
    pub files: u64,
    pub bytes: u64,
    /// A hub has answered it.
    pub has_receipt: bool,
    /// What this spoke's ledger says of it.
    pub state: Option<BundleState>,
    /// Why its head cannot be read.
    pub fault: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Listing {
    /// Exported and not acknowledged, and exports that were not finished.
    pub in_transit: Vec<BundleLine>,
    /// What lies on the drive that was named.
    pub on_drive: Vec<FoundLine>,
}

/// What is under way, and what lies on a drive.
pub fn list(state: &StateFolder, drive: Option<&Path>) -> Result<Listing, Error> {
    // A drive can be looked at on any machine.
    let ledger = match SpokeConfig::load(state) {
        Ok(_) => Some(Ledger::open(&state.ledger()).map_err(Error::explained)?),
        Err(Error::NotEnrolled(_)) if drive.is_some() => None,
        Err(e) => return Err(e),
    };
    let mut listing = Listing::default();
    for state in [BundleState::Exported, BundleState::Writing] {
        let rows = ledger.as_ref().map_or(Ok(Vec::new()), |l| l.bundles(None, state))?;
        listing.in_transit.extend(rows.into_iter().map(BundleLine::from));
    }
    let Some(drive) = drive else { return Ok(listing) };
    for path in bundles_in(drive)? {
        listing.on_drive.push(found(path, ledger.as_ref())?);
    }
    Ok(listing)
}

/// Everything in a folder that is named as a bundle, or the bundle itself.
fn bundles_in(drive: &Path) -> Result<Vec<PathBuf>, Error> {
    let kind = std::fs::metadata(drive)
        .map_err(|e| Error::Missing(format!("{} cannot be read: {e}", drive.display())))?;
    if !kind.is_dir() || drive.join("manifest.json").exists() {
        return Ok(vec![drive.to_owned()]);
    }
    let mut found = Vec::new();
    for item in std::fs::read_dir(drive).map_err(Error::io("cannot read", drive))? {
        let path = item.map_err(Error::io("cannot read", drive))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("bundle-") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn found(path: PathBuf, ledger: Option<&Ledger>) -> Result<FoundLine, Error> {
    let receipt = receipt_folder(&path);
    let has_receipt = ANSWER.iter().all(|name| receipt.join(name).is_file());
    let mut line = FoundLine {
        path,
        bundle_id: None,
        spoke_id: None,
        label: None,
        created_at: None,
        files: 0,
        bytes: 0,
        has_receipt,
        state: None,
        fault: None,
    };
    match Bundle::open(&line.path) {
        Ok(Bundle { head: Head { header, .. }, .. }) => {
            line.files = header.entry_count;
            line.bytes = header.total_bytes;
            line.created_at = Some(header.created_at);
            line.state = match ledger {
                Some(ledger) => ledger.bundle(header.bundle_id)?.map(|b| b.state),
                None => None,
            };
            line.bundle_id = Some(header.bundle_id);
            line.spoke_id = Some(header.spoke_id);
            line.label = header.label;
        }
        Err(e) => line.fault = Some(crate::error::chain(&e)),
    }
    Ok(line)
}

/// Where a hub's answer to the bundle at a path stands: in a folder itself, beside an archive.
pub fn receipt_folder(bundle: &Path) -> PathBuf {
    if bundle.is_dir() {
        return bundle.to_owned();
    }
    let name = bundle.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.trim_end_matches(".zst").trim_end_matches(".tar");
    let stem = stem.strip_prefix("bundle-").unwrap_or(stem);
    bundle.with_file_name(format!("receipt-{stem}"))
}

/// What taking a bundle back came to.
#[derive(Clone, Debug, Serialize)]
pub struct TakenBack {
    pub bundle_id: BundleId,
    pub label: Option<String>,
    /// Files that wait again.
    pub files: u64,
    /// What was removed from the drive.
    pub removed: Option<PathBuf>,
}

/// Takes an exported bundle back, such as that of a lost drive: its files are pending again.
pub fn revert(state: &StateFolder, edge: &Edge, id: BundleId) -> Result<TakenBack, Error> {
    take_back(state, edge, id, BundleState::Exported).map_err(Error::explained)
}

/// Gives up an export that was not finished, and removes what it wrote if its drive is there.
pub fn remove(state: &StateFolder, edge: &Edge, id: BundleId) -> Result<TakenBack, Error> {
    take_back(state, edge, id, BundleState::Writing).map_err(Error::explained)
}

fn take_back(
    state: &StateFolder,
    edge: &Edge,
    id: BundleId,
    from: BundleState,
) -> Result<TakenBack, Error> {
    let identity = Identity::load(state)?;
    SpokeConfig::load(state)?;
    let _lock = Lock::take(state, edge.now())?;
    let mut ledger = Ledger::open(&state.ledger())?;
    let row = ledger.bundle(id)?.ok_or_else(|| {
        Error::Usage(format!("there is no bundle {id}; `barque bundle ls` names those under way"))
    })?;
    if row.state != from {
        let remedy = match row.state {
            BundleState::Writing => "it was not finished: give it up with `barque bundle rm`",
            BundleState::Exported => "it is whole: take it back with `barque bundle revert`",
            BundleState::Acknowledged => "the hub has answered it, and nothing waits for it",
            BundleState::Reverted | BundleState::Abandoned => "nothing waits for it",
        };
        return Err(Error::Usage(format!("bundle {id} is {}: {remedy}", row.state.as_str())));
    }
    let (to, removed) = match from {
        BundleState::Writing => {
            (BundleState::Abandoned, identity.map(|i| clean(&i.spoke_id, &row)).transpose()?)
        }
        _ => (BundleState::Reverted, None),
    };
    let files = ledger.take_back(row.hub_id, id, to, edge.now())?;
    ledger.tidy()?;
    Ok(TakenBack { bundle_id: id, label: row.label, files, removed: removed.flatten() })
}

/// Removes what an export that was not finished wrote, where its drive is mounted as it was.
fn clean(spoke: &SpokeId, row: &BundleRow) -> Result<Option<PathBuf>, Error> {
    let mut path = row.folder.join(bundle_name(spoke, row.bundle_id, row.form));
    if row.form != Form::Folder {
        path.as_mut_os_string().push(".partial");
    }
    let removed = match (row.form, std::fs::symlink_metadata(&path)) {
        (_, Err(_)) => return Ok(None),
        // Finished after all: it may be on its way.
        (Form::Folder, Ok(_)) if path.join("manifest.sig").exists() => return Ok(None),
        (Form::Folder, Ok(m)) if m.is_dir() => std::fs::remove_dir_all(&path),
        (_, Ok(_)) => std::fs::remove_file(&path),
    };
    removed.map_err(Error::io("cannot remove", &path))?;
    Ok(Some(path))
}

/// A drive on which nothing is found that was asked for.
fn nothing_at(path: &Path, what: &str) -> Error {
    let path = printable(&path.display().to_string());
    Error::Missing(format!("{path}: {what}"))
}
