//! The table of all routes: what is served, who may call it, and what it takes and gives.

use barque_bundle::stream;
use barque_bundle::wire::{self, Role};

use super::api::{Api, Operation, Who};
use super::{
    bundle_import, changes, cluster, enroll, files, metrics, schemas, status, sync, sync_spokes,
    tokens, uploads,
};

/// How spokes come to a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spokes {
    Call,
    /// By drive alone: there is nothing here that they could call.
    ByDrive,
}

/// Every call that the hub takes.
pub fn api(spokes: Spokes) -> Api {
    let reader = Who::Role(Role::Reader);
    let api = match spokes {
        Spokes::Call => upload_api(spoke_api(Api::default())),
        Spokes::ByDrive => Api::default(),
    };
    cluster_api(import_api(operator_api(api)))
        .on(
            Operation::get(wire::FILES, "listFiles", reader, "A page of landed files by name.")
                .query::<files::ListQuery>()
                .gives::<wire::FileList>(),
            files::list,
        )
        .on(
            Operation::get(
                "/api/v1/files/{*path}",
                "readFile",
                reader,
                "The bytes of a landed file; strong ETag, Range, HEAD.",
            )
            .gives_bytes("application/vnd.apache.parquet"),
            files::read,
        )
        .on(
            Operation::get(wire::CHANGES, "listChanges", reader, "Changes behind a position.")
                .query::<changes::Asked>()
                .gives::<wire::ChangeList>(),
            changes::list,
        )
        .on(
            Operation::get(wire::SCHEMAS, "listSchemas", reader, "The schemas of measurements.")
                .query::<schemas::Asked>()
                .gives::<wire::SchemaList>(),
            schemas::list,
        )
        .on(
            Operation::get("/healthz", "health", Who::Anyone, "Says that the process lives.")
                .gives_bytes("text/plain"),
            status::health,
        )
        .on(
            Operation::get("/readyz", "ready", Who::Anyone, "Says whether spokes may call.")
                .gives_bytes("text/plain"),
            status::ready,
        )
        .on(
            Operation::get("/hub/status", "hubStatus", reader, "How the hub stands.")
                .gives::<wire::HubStatus>(),
            status::status,
        )
        .on(
            Operation::get("/metrics", "metrics", reader, "Metrics in Prometheus' text format.")
                .gives_bytes("text/plain"),
            metrics::metrics,
        )
}

/// What spokes call.
fn spoke_api(api: Api) -> Api {
    api.on(
        Operation::post(wire::RECONCILE, "reconcile", Who::Spoke, "Which files the hub lacks.")
            .takes::<wire::ReconcileRequest>()
            .gives::<wire::ReconcileResponse>(),
        sync::reconcile,
    )
    .on(
        Operation::post(wire::BUNDLES, "pushBundle", Who::Spoke, "Takes a bundle as a tar stream.")
            .takes_bytes(stream::MEDIA_TYPE)
            .gives_as::<wire::BundleLine>("application/x-ndjson"),
        sync::bundles,
    )
    .on(
        Operation::post(wire::ENROLL, "enroll", Who::Anyone, "A one-time token becomes a spoke.")
            .takes::<wire::EnrollRequest>()
            .gives::<wire::EnrollResponse>(),
        enroll::enroll,
    )
}

/// Large files in pieces.
fn upload_api(api: Api) -> Api {
    const UPLOAD: &str = "/api/v1/sync/uploads/{id}";
    api.on(
        Operation::post(wire::UPLOADS, "openUpload", Who::Spoke, "Opens an upload of one file.")
            .takes::<wire::UploadRequest>()
            .gives::<wire::UploadAnswer>(),
        uploads::create,
    )
    .on(
        Operation::head(UPLOAD, "lookAtUpload", Who::Spoke, "Says where an upload's bytes end."),
        uploads::look,
    )
    .on(
        Operation::patch(UPLOAD, "appendToUpload", Who::Spoke, "Appends a piece of a file.")
            .takes_bytes(wire::PARTIAL_UPLOAD)
            .gives::<wire::UploadAnswer>(),
        uploads::append,
    )
    .on(
        Operation::delete(UPLOAD, "cancelUpload", Who::Spoke, "Gives an upload up."),
        uploads::cancel,
    )
}

/// Drives, for operators, and what became of them, for readers.
fn import_api(api: Api) -> Api {
    const JOB: &str = "/api/v1/bundle-import/jobs/{id}";
    let (reader, operator) = (Who::Role(Role::Reader), Who::Role(Role::Operator));
    api.on(
        Operation::post(wire::IMPORT, "importBundle", operator, "Takes a bundle from a drive.")
            .query::<bundle_import::ImportQuery>()
            .takes_bytes("application/x-tar")
            .gives::<wire::ImportJob>(),
        bundle_import::start,
    )
    .on(
        Operation::post(
            "/api/v1/bundle-import/check",
            "checkBundle",
            operator,
            "Says whether a bundle with this head would be taken.",
        )
        .takes::<wire::ImportCheck>()
        .gives_bytes("application/json"),
        bundle_import::check,
    )
    .on(
        Operation::get(JOB, "showImport", operator, "How far an import is.")
            .gives::<wire::ImportJob>(),
        bundle_import::job,
    )
    .on(
        Operation::delete(JOB, "cancelImport", operator, "Ends an import; what landed stays.")
            .gives::<wire::ImportJob>(),
        bundle_import::cancel,
    )
    .on(
        Operation::get(
            "/api/v1/bundle-import/jobs/{id}/receipt",
            "readImportReceipt",
            operator,
            "The signed receipt of an import, as a tar.",
        )
        .gives_bytes("application/x-tar"),
        bundle_import::job_receipt,
    )
    .on(
        Operation::get(
            "/api/v1/bundle-import/receipts/{spoke_id}/{bundle_id}",
            "readBundleReceipt",
            operator,
            "The signed receipt of a bundle, as long as the node keeps it.",
        )
        .gives_bytes("application/x-tar"),
        bundle_import::receipt,
    )
    .on(
        Operation::get(
            "/api/v1/bundle-import/history/{spoke_id}",
            "importHistory",
            reader,
            "What was imported of a spoke, newest first, and what has not arrived.",
        )
        .query::<bundle_import::HistoryQuery>()
        .gives::<wire::ImportHistory>(),
        bundle_import::history,
    )
}

/// The hub's nodes.
fn cluster_api(api: Api) -> Api {
    const NODE: &str = "/api/v1/cluster/nodes/{id}";
    let (reader, admin) = (Who::Role(Role::Reader), Who::Role(Role::Admin));
    api.on(
        Operation::get(wire::NODES, "listNodes", reader, "The nodes of the hub.")
            .gives::<wire::NodeList>(),
        cluster::list,
    )
    .on(
        Operation::post(wire::NODES, "addNode", admin, "Makes a token by which a node may join.")
            .takes::<wire::AddNodeRequest>()
            .gives::<wire::AddNodeResponse>(),
        cluster::add,
    )
    .on(
        Operation::post(NODE, "setNode", admin, "Drains a node, or undoes it.")
            .takes::<wire::SetNodeRequest>()
            .gives::<wire::NodeList>(),
        cluster::set,
    )
    .on(
        Operation::delete(NODE, "removeNode", admin, "Removes a node for good.")
            .query::<cluster::RemoveQuery>()
            .gives::<wire::NodeList>(),
        cluster::remove,
    )
    .on(
        Operation::get(
            wire::MANIFEST_DIGEST,
            "manifestDigest",
            reader,
            "One digest over this node's manifest, with its position.",
        )
        .gives::<wire::ManifestDigest>(),
        cluster::digest,
    )
    .on(
        Operation::post(
            wire::CLUSTER_TOKEN,
            "rotateClusterToken",
            admin,
            "Gives all nodes another cluster token.",
        )
        .gives_bytes("application/json"),
        cluster::rotate,
    )
}

/// Spokes and tokens, for operators.
fn operator_api(api: Api) -> Api {
    const SPOKE: &str = "/api/v1/sync-spokes/{id}";
    let (reader, operator) = (Who::Role(Role::Reader), Who::Role(Role::Operator));
    let admin = Who::Role(Role::Admin);
    api.on(
        Operation::get(wire::SPOKES, "listSpokes", reader, "All spokes.")
            .gives::<wire::SpokeList>(),
        sync_spokes::list,
    )
    .on(
        Operation::post(wire::SPOKES, "addSpoke", operator, "Announces a spoke.")
            .takes::<wire::AddSpokeRequest>()
            .gives::<wire::AddSpokeResponse>(),
        sync_spokes::add,
    )
    .on(
        Operation::get(SPOKE, "showSpoke", reader, "One spoke.").gives::<wire::SpokeLine>(),
        sync_spokes::show,
    )
    .on(
        Operation::post(SPOKE, "setSpoke", operator, "Enables or disables a spoke.")
            .takes::<wire::SetSpokeRequest>()
            .gives::<wire::SpokeLine>(),
        sync_spokes::set,
    )
    .on(
        Operation::delete(SPOKE, "removeSpoke", operator, "Removes a spoke; its files stay.")
            .gives::<wire::SpokeLine>(),
        sync_spokes::remove,
    )
    .on(
        Operation::post(
            wire::ENROLL_OFFLINE,
            "approveSpoke",
            operator,
            "Lets a spoke in whose request came as a file; the answer is carried back to it.",
        )
        .takes::<wire::OfflineRequest>()
        .gives::<wire::Grant>(),
        enroll::approve,
    )
    .on(
        Operation::get(wire::TOKENS, "listTokens", admin, "Bearer tokens by name.")
            .gives::<wire::TokenList>(),
        tokens::list,
    )
    .on(
        Operation::post(wire::TOKENS, "addToken", admin, "Makes a bearer token.")
            .takes::<wire::AddTokenRequest>()
            .gives::<wire::AddTokenResponse>(),
        tokens::add,
    )
    .on(
        Operation::delete("/api/v1/tokens/{name}", "removeToken", admin, "Removes a token.")
            .gives_bytes("application/json"),
        tokens::remove,
    )
}
