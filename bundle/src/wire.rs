//! What goes over HTTP: paths and JSON bodies, the same types on both sides.

mod cluster;
mod enroll;
mod imports;

pub use cluster::{
    AddNodeRequest, AddNodeResponse, CLUSTER_TOKEN, MANIFEST_DIGEST, ManifestDigest, NODES,
    NodeLine, NodeList, SetNodeRequest,
};
pub use enroll::{EnrollRequest, EnrollResponse, EnrollToken, Grant, OfflineRequest, TokenError};
pub use imports::{
    ALREADY_IMPORTED, HISTORY_DEFAULT, HISTORY_MAX, IN_PROGRESS, ImportCheck, ImportHistory,
    ImportJob, ImportLine, ImportPath, ImportRefusal, ImportState, NotArrived, receipt_path,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::entry::Entry;
use crate::header::InTransit;
use crate::id::{BundleId, HubEpoch, HubId, SeriesId, SpokeId};
use crate::path::FilePath;
use crate::ranges::Ranges;
use crate::receipt::{OutcomeLine, Wanted, WireReceipt};
use crate::time::Timestamp;

pub const RECONCILE: &str = "/api/v1/sync/reconcile";
pub const BUNDLES: &str = "/api/v1/sync/bundles";
pub const UPLOADS: &str = "/api/v1/sync/uploads";
pub const ENROLL: &str = "/api/v1/enroll";
pub const ENROLL_OFFLINE: &str = "/api/v1/enroll/offline";
pub const SPOKES: &str = "/api/v1/sync-spokes";
pub const TOKENS: &str = "/api/v1/tokens";
pub const FILES: &str = "/api/v1/files";
pub const CHANGES: &str = "/api/v1/changes";
pub const IMPORT: &str = "/api/v1/bundle-import";
pub const SCHEMAS: &str = "/api/v1/schemas";

/// Most entries of one reconcile request.
pub const RECONCILE_ENTRIES_MAX: usize = 10_000;
/// Headers of resumable uploads (draft-ietf-httpbis-resumable-upload-09).
pub const UPLOAD_OFFSET: &str = "upload-offset";
pub const UPLOAD_LENGTH: &str = "upload-length";
pub const UPLOAD_COMPLETE: &str = "upload-complete";
pub const PARTIAL_UPLOAD: &str = "application/partial-upload";
/// Header under which a request id goes through both sides.
pub const REQUEST_ID: &str = "x-request-id";

/// An error answer (RFC 9457) with what a caller needs to act.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The status text.
    pub title: String,
    pub status: u16,
    /// A stable word for programs.
    pub code: String,
    /// A sentence for people: what, what it means for the data, what to do.
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub_time: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_entries: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Where an upload goes on, in bytes from its start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upload_offset: Option<u64>,
    #[serde(flatten)]
    pub import: Option<Box<ImportRefusal>>,
}

/// `POST /api/v1/sync/reconcile`: which of these files does the hub lack?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReconcileRequest {
    pub series: SeriesId,
    pub seq_head: u64,
    pub as_of: Option<Timestamp>,
    #[serde(default)]
    pub voids: Ranges,
    #[serde(default)]
    pub replaces: Option<SeriesId>,
    #[serde(default)]
    pub in_transit: Vec<InTransit>,
    #[serde(default)]
    pub status: SpokeReport,
    /// The highest manifest position that the spoke has seen.
    #[serde(default)]
    pub seen_position: u64,
    #[serde(default)]
    pub entries: Vec<WireEntry>,
}

/// An entry whose path has not been judged: one bad path never fails a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireEntry {
    pub path: String,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    pub seq: u64,
    pub modified_at: Timestamp,
}

impl From<&Entry> for WireEntry {
    fn from(e: &Entry) -> Self {
        Self {
            path: e.path.to_string(),
            sha256: e.sha256,
            size_bytes: e.size_bytes,
            seq: e.seq,
            modified_at: e.modified_at,
        }
    }
}

/// What a spoke tells of itself at each check-in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpokeReport {
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub pending_files: u64,
    #[serde(default)]
    pub pending_bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ReconcileResponse {
    pub missing: Vec<String>,
    pub present: Vec<String>,
    pub conflicts: Vec<ConflictLine>,
    pub removed: Vec<String>,
    pub refused: Vec<RefusedLine>,
    /// Missing files of which the hub has kept a part: the rest goes by an upload.
    #[serde(default)]
    pub kept: Vec<KeptLine>,
    pub wanted: Vec<Wanted>,
    /// Bundles of `in_transit` that were imported: their files may be offered.
    #[serde(default)]
    pub arrived: Vec<BundleId>,
    /// The highest `seq_head` of this series that the hub had seen before.
    pub seen: u64,
    /// This series was replaced by this one, and is in use all the same: two machines push with
    /// one state folder. Open a series that replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<SeriesId>,
    pub hub_time: Timestamp,
    pub hub_epoch: HubEpoch,
    pub position: u64,
    /// Covers `present`, `conflicts` and `removed`, and names the request's SHA-256.
    pub receipt: WireReceipt,
}

/// What the hub has of a file that did not come whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptLine {
    pub path: String,
    /// Bytes from the start.
    pub offset: u64,
}

/// `POST /api/v1/sync/uploads`: a bundle of one, whose bytes come in pieces.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UploadRequest {
    /// Base64 of the exact bytes of `manifest.json`.
    pub manifest: String,
    /// Base64 of the 64-byte signature.
    pub sig: String,
    pub entry: Entry,
}

/// The answer once a file needs no more bytes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct UploadAnswer {
    pub receipt: WireReceipt,
    pub stopped: Option<Stopped>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConflictLine {
    pub path: String,
    pub their_sha256: Sha256Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedLine {
    pub path: String,
    pub code: String,
    pub detail: String,
}

/// One line of the answer to a bundle stream (NDJSON); only the last one counts.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BundleLine {
    /// A hint that this file is through.
    Outcome(OutcomeLine),
    /// A hint that the hub is at work: so many bytes of the body have come.
    Working { received_bytes: u64 },
    /// The last line: what counts, and why it ended early if it did.
    Done { receipt: WireReceipt, stopped: Option<Stopped> },
}

/// Why a hub ended a bundle before its last file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stopped {
    pub status: u16,
    pub code: String,
    pub detail: String,
}

/// `POST /api/v1/sync-spokes`: announce a spoke and get its one-time token.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddSpokeRequest {
    pub spoke_id: SpokeId,
    /// How long the token may wait to be used.
    pub expires_in_ms: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddSpokeResponse {
    pub spoke_id: SpokeId,
    pub token: String,
    pub expires_at: Timestamp,
    pub url: String,
    pub root: Sha256Digest,
}

/// `POST /api/v1/sync-spokes/{id}`: enable or disable a spoke.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSpokeRequest {
    pub enabled: bool,
}

/// One spoke as `GET /api/v1/sync-spokes` lists it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpokeLine {
    pub spoke_id: SpokeId,
    pub state: String,
    pub key_id: Option<String>,
    /// The key that its bundles are signed with, as `barque bundle verify --key` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_key: Option<String>,
    pub created_at: Timestamp,
    /// When it enrolled: its first call.
    #[serde(default)]
    pub first_seen: Option<Timestamp>,
    pub last_seen: Option<Timestamp>,
    pub files: u64,
    pub bytes: u64,
    pub report: SpokeReport,
    /// When two machines were last seen to push with one state folder (`forked_series`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked_at: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpokeList {
    pub spokes: Vec<SpokeLine>,
}

/// Who may do what with a bearer token.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Reader,
    Operator,
    Admin,
}

impl std::str::FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reader" => Ok(Self::Reader),
            "operator" => Ok(Self::Operator),
            "admin" => Ok(Self::Admin),
            _ => Err(format!("{text:?} is not a role; there are reader, operator and admin")),
        }
    }
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddTokenRequest {
    pub name: String,
    pub role: Role,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AddTokenResponse {
    pub name: String,
    pub role: Role,
    pub token: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TokenLine {
    pub name: String,
    pub role: Role,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TokenList {
    pub tokens: Vec<TokenLine>,
}

/// One landed file as `GET /api/v1/files` lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FileLine {
    /// `{spoke_id}/{path}`, as it stands below `landing/`.
    pub path: String,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    pub spoke_id: SpokeId,
    pub database: Option<String>,
    pub measurement: Option<String>,
    pub partition_start: Option<Timestamp>,
    pub partition_precision: Option<String>,
    pub modified_at: Timestamp,
    pub received_at: Timestamp,
    /// `held`, `unavailable` (no node that holds it answers now), `lost`, `removed` or `replaced`.
    pub state: String,
    pub copies: u32,
    pub position: u64,
    /// What the footer says, once the file was looked at.
    #[serde(default)]
    pub rows: Option<u64>,
    #[serde(default)]
    pub row_groups: Option<u64>,
    #[serde(default)]
    pub schema_id: Option<Sha256Digest>,
    /// Why the Parquet reader could not read it.
    #[serde(default)]
    pub unread: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FileList {
    pub files: Vec<FileLine>,
    /// Give it as `after_path` for the next page; absent on the last one.
    pub next_after_path: Option<String>,
    pub hub_epoch: HubEpoch,
    pub position: u64,
}

/// A leaf column of a Parquet schema.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Column {
    /// Names from the top, with dots between.
    pub path: String,
    /// `INT64`, `DOUBLE`, `BYTE_ARRAY`, `FIXED_LEN_BYTE_ARRAY(16)`, ...
    pub physical: String,
    /// `string`, `timestamp(us,utc)`, `decimal(10,2)`, ...; empty when there is none.
    pub logical: String,
    /// `REQUIRED`, `OPTIONAL` or `REPEATED`.
    pub repetition: String,
}

/// One schema that files of a measurement have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SchemaLine {
    /// SHA-256 over the leaf columns; absent for the files of schemas beyond the 100th.
    pub schema_id: Option<Sha256Digest>,
    pub files: u64,
    pub rows: u64,
    /// Start of the first and the last partition of such a file, where the path says it.
    pub first_partition: Option<Timestamp>,
    pub last_partition: Option<Timestamp>,
    pub columns: Vec<Column>,
}

/// The schemas of one measurement, over all spokes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeasurementSchemas {
    /// Absent for files whose path has fewer than three segments.
    pub database: Option<String>,
    pub measurement: Option<String>,
    /// Oldest partition first.
    pub schemas: Vec<SchemaLine>,
    /// Columns that have another type in one schema than in another.
    pub differing: Vec<String>,
    /// Files that the Parquet reader could not read (they landed all the same).
    pub unread_files: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SchemaList {
    pub measurements: Vec<MeasurementSchemas>,
    /// Give it as `after` for the next page; absent on the last one.
    pub next_after: Option<String>,
    /// Files that landed and were not looked at yet.
    pub undescribed_files: u64,
}

/// One change of the manifest, in commit order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChangeLine {
    /// Never reused; give the last one as `after` to go on.
    pub position: u64,
    /// `registered`, `holders`, `removed`, `lost` or `restored`.
    pub kind: String,
    /// Landed name: `{spoke_id}/{path}`.
    pub path: String,
    /// As the file stands now, which later changes may have made.
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    pub state: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ChangeList {
    pub changes: Vec<ChangeLine>,
    pub hub_epoch: HubEpoch,
    /// The head: nothing is behind it.
    pub position: u64,
}

/// The answer of `GET /hub/status`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HubStatus {
    pub hub_id: HubId,
    pub hub_epoch: HubEpoch,
    pub node_id: String,
    pub version: String,
    /// The address that enrollment tokens carry.
    pub url: String,
    pub ready: bool,
    pub leader: Option<String>,
    pub term: u64,
    pub position: u64,
    pub promoted_position: u64,
    pub files: u64,
    pub bytes: u64,
    pub spokes: u64,
    /// Proposals and operations since the start: operations go out in groups.
    pub proposals: u64,
    pub operations: u64,
    pub free_bytes: u64,
    pub started_at: Timestamp,
    /// When the server certificate ends; it is renewed by itself 30 days before.
    #[serde(default)]
    pub certificate_expires_at: Option<Timestamp>,
    /// How old what this node knows is at the most; none before it was ever up to date.
    #[serde(default)]
    pub age_ms: Option<u64>,
    /// Why the node takes no part in its cluster, if it does not.
    #[serde(default)]
    pub outside: Option<String>,
    #[serde(default)]
    pub nodes: Vec<NodeLine>,
}

/// The URL path of a landed file, each segment percent-encoded (RFC 3986).
pub fn file_url_path(landed: &str) -> String {
    let mut out = String::from(FILES);
    for segment in landed.split('/') {
        out.push('/');
        out.push_str(&url_segment(segment));
    }
    out
}

/// A text percent-encoded for one segment or one query value of a URL (RFC 3986).
pub fn url_segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        if b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(b));
        } else {
            out.push_str(&format!("%{b:02X}"));
        }
    }
    out
}

/// A landed name for a file path of the wire; kept here so that both sides build it alike.
pub fn landed(spoke: &SpokeId, path: &FilePath) -> String {
    format!("{spoke}/{path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::SecretKey;

    #[test]
    fn an_enrollment_token_survives_its_text_form_and_garbage_does_not_pass() {
        let now = Timestamp::from_unix_ms(1_700_000_000_000);
        let token = EnrollToken {
            spoke: "rocket-01".parse().unwrap(),
            hub: HubId::new(now, [1; 10]),
            urls: vec!["https://hub:7171".into()],
            root: Sha256Digest::of(b"r"),
            secret: "s".into(),
            hub_time: now,
            expires_at: now.plus_ms(3_600_000),
        };
        assert_eq!(EnrollToken::decode(&format!(" {}\n", token.encode())), Ok(token.clone()));
        assert_eq!(EnrollToken::decode("barque-enroll-e30"), Err(TokenError));
        assert_eq!(EnrollToken::decode("hello"), Err(TokenError));
        let request = EnrollRequest::new(&token, &SecretKey::from_seed([1; 32]));
        assert!(request.is_proven(&token.hub));
        let stolen =
            EnrollRequest { public_key: SecretKey::from_seed([2; 32]).public(), ..request };
        assert!(!stolen.is_proven(&token.hub));
    }

    #[test]
    fn file_urls_escape_each_segment() {
        assert_eq!(
            file_url_path("s/a b/100%#?.parquet"),
            "/api/v1/files/s/a%20b/100%25%23%3F.parquet"
        );
    }
}
