//! JSON bodies of imports from drives and of their history.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::id::{BundleId, SeriesId, SpokeId};
use crate::ranges::Ranges;
use crate::time::Timestamp;

/// Most lines of one page of a history, and how many there are unless asked otherwise.
pub const HISTORY_MAX: u32 = 1_000;
pub const HISTORY_DEFAULT: u32 = 100;
/// What `reason` says of an import that is refused because of another.
pub const IN_PROGRESS: &str = "import in progress";
pub const ALREADY_IMPORTED: &str = "already imported";

/// Why an import is refused because of another one; members of the problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportRefusal {
    /// Always false: nothing was taken.
    pub imported: bool,
    /// `import in progress` or `already imported`.
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// When the import in progress began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_id: Option<BundleId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_at: Option<Timestamp>,
    /// The node that imported it, in 16 hex digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Where its receipt can be read, as long as this node keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt: Option<String>,
}

/// `POST /api/v1/bundle-import/check`: would this bundle be taken?
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ImportCheck {
    /// Base64 of the exact bytes of `manifest.json`.
    pub manifest: String,
    /// Base64 of the 64-byte signature.
    pub sig: String,
    /// The present state is to be signed anew for a bundle that was imported before.
    #[serde(default)]
    pub reissue: bool,
}

/// `POST /api/v1/bundle-import` with a path on the hub's node in place of an archive.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ImportPath {
    /// Below one of the folders that `import.allowed_dirs` names.
    pub path: String,
    #[serde(default)]
    pub reissue: bool,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportState {
    /// The drive is read, and verified on the way; nothing is visible yet.
    Receiving,
    /// Files are agreed on and become visible, batch by batch.
    Registering,
    Done,
    Failed,
    Cancelled,
}

/// An import as `GET /api/v1/bundle-import/jobs/{id}` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ImportJob {
    pub job: String,
    pub state: ImportState,
    pub since: Timestamp,
    #[serde(default)]
    pub spoke_id: Option<SpokeId>,
    #[serde(default)]
    pub bundle_id: Option<BundleId>,
    #[serde(default)]
    pub label: Option<String>,
    /// Files and bytes that the bundle declares.
    pub files: u64,
    pub bytes: u64,
    /// Files that are verified, and that have their outcome.
    pub verified_files: u64,
    pub verified_bytes: u64,
    pub settled_files: u64,
    pub committed: u64,
    pub already_present: u64,
    pub conflicts: u64,
    pub refused: u64,
    pub removed: u64,
    /// Where the receipt can be read, once it is done.
    #[serde(default)]
    pub receipt: Option<String>,
    /// Why it failed.
    #[serde(default)]
    pub code: Option<String>,
    #[serde(default)]
    pub detail: Option<String>,
    #[serde(default)]
    pub status: Option<u16>,
}

/// One bundle that was imported to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportLine {
    pub bundle_id: BundleId,
    pub label: Option<String>,
    pub created_at: Timestamp,
    pub imported_at: Timestamp,
    /// The node that imported it, in 16 hex digits.
    pub node: String,
    pub files: u64,
    pub bytes: u64,
    /// Files that were new to the hub.
    pub committed: u64,
    pub already_present: u64,
    pub conflicts: u64,
    pub refused: u64,
    /// Files that the hub had and a person removed there.
    pub removed: u64,
    /// Where its receipt can be read, as long as this node keeps it.
    pub receipt: Option<String>,
}

/// Numbers of a spoke's series that are on a drive under way, as far as the hub knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotArrived {
    pub series: SeriesId,
    pub numbers: Ranges,
    pub label: Option<String>,
    pub bundle_id: BundleId,
    pub created_at: Timestamp,
    /// The same as a sentence.
    pub detail: String,
}

/// `GET /api/v1/bundle-import/history/{spoke_id}`: newest first.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ImportHistory {
    pub spoke_id: SpokeId,
    pub bundles: Vec<ImportLine>,
    pub not_arrived: Vec<NotArrived>,
    pub limit: u32,
    /// Give it as `before` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
}

/// Where the receipt of a bundle can be read.
pub fn receipt_path(spoke: &SpokeId, bundle: BundleId) -> String {
    format!("{}/receipts/{spoke}/{bundle}", super::IMPORT)
}
