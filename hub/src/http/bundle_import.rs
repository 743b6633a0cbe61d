//! `/api/v1/bundle-import/...`: drives are taken in, and what became of them is told.

use std::io::{Cursor, Read as _};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use barque_bundle::open::{Head, OpenError};
use barque_bundle::wire::{
    HISTORY_DEFAULT, HISTORY_MAX, ImportCheck, ImportHistory, ImportPath, ImportState, Role,
};
use barque_bundle::{BundleId, ErrorKind, SpokeId};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Door, Operator, Problem, ascii, body, forward};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::import::{self, Again, Job, Source};
use crate::ledger::ImportKey;

/// Largest JSON body that names a path, in bytes.
const PATH_MAX_BYTES: u64 = 64 * 1024;
/// A drive is slower than a link, and its reader may be asked to plug it in again.
const BODY_IDLE: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ImportQuery {
    /// Sign the present state of a bundle that was imported before.
    #[serde(default)]
    reissue: bool,
}

fn again(reissue: bool) -> Again {
    if reissue { Again::Reissue } else { Again::Refuse }
}

/// Takes an archive as the body, or a path on this node; 202 once it is read and verified.
pub async fn start(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> Result<Response, Problem> {
    let sent = request.into_body();
    let admitted = async {
        operator.require(&parts, Role::Operator).await?;
        parts.require_ready()?;
        import::require_enabled(&parts)?;
        Ok::<_, Error>(parts.imports.require_idle()?)
    };
    if let Err(e) = admitted.await {
        body::discard(sent);
        return Err(e.into());
    }
    let reader = body::reader(sent, BODY_IDLE);
    let read = tokio::task::spawn_blocking(move || source(reader, query.reissue)).await;
    let (source, again) = read.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
    let job = import::start(Arc::clone(&parts), source, again).await?;
    let location = format!("{}/jobs/{}", barque_bundle::wire::IMPORT, job.job);
    let mut response = (StatusCode::ACCEPTED, Json(job)).into_response();
    response.headers_mut().insert(header::LOCATION, ascii(&location));
    Ok(response)
}

/// What a body is: JSON that names a path, whatever its Content-Type, or an archive.
fn source(mut reader: body::BodyReader, reissue: bool) -> Result<(Source, Again), Error> {
    let mut first = Vec::new();
    let broken = |e: std::io::Error| Refusal::new(ErrorKind::Invalid, "body_broken", e.to_string());
    reader.by_ref().take(1).read_to_end(&mut first).map_err(broken)?;
    let whole = Cursor::new(first.clone()).chain(reader);
    if first != b"{" {
        return Ok((Source::Body(Box::new(whole)), again(reissue)));
    }
    let mut text = Vec::new();
    whole.take(PATH_MAX_BYTES).read_to_end(&mut text).map_err(broken)?;
    let asked: ImportPath = body::json(&text)?;
    Ok((Source::Path(asked.path.into()), again(asked.reissue || reissue)))
}

/// Says whether a bundle with this head would be taken, before its bytes are sent.
pub async fn check(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    request: Request,
) -> Result<Json<serde_json::Value>, Problem> {
    operator.require(&parts, Role::Operator).await?;
    parts.require_ready()?;
    import::require_enabled(&parts)?;
    let bytes = body::whole(request.into_body(), parts.config.body_idle, body::UPLOAD).await?;
    let asked: ImportCheck = body::json(&bytes)?;
    let decode = |text: &str| {
        BASE64.decode(text).map_err(|e| {
            Refusal::new(ErrorKind::Invalid, "body_malformed", format!("not base64: {e}"))
        })
    };
    let (manifest, sig) = (decode(&asked.manifest)?, decode(&asked.sig)?);
    let head = Head::parse(manifest, sig).map_err(|e: OpenError| Refusal::from(e))?;
    let checked =
        tokio::task::spawn_blocking(move || import::check(&parts, &head, again(asked.reissue)));
    checked.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
    Ok(Json(serde_json::json!({ "taken": true })))
}

fn job_of(parts: &Parts, id: &str) -> Result<Arc<Job>, Refusal> {
    parts.imports.job(id).ok_or_else(|| {
        let detail = "this node knows no such import: it has ended long ago, or the hub was \
                      restarted since; `barque hub history` says what was imported";
        Refusal::new(ErrorKind::NotFound, "no_such_job", detail)
    })
}

pub async fn job(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    operator.require(&parts, Role::Operator).await?;
    match job_of(&parts, &id) {
        Ok(job) => Ok(Json(job.shown()).into_response()),
        Err(unknown) => Ok(elsewhere(&parts, &operator, request, unknown).await?),
    }
}

/// The answer of another node that knows what this one does not.
async fn elsewhere(
    parts: &Parts,
    operator: &Operator,
    request: Request,
    unknown: Refusal,
) -> Result<Response, Refusal> {
    match operator.door {
        Door::Node => Err(unknown),
        _ => forward::to_whoever_knows(parts, Role::Operator, request).await.ok_or(unknown),
    }
}

/// Ends an import at its next file or batch; what was registered stands.
pub async fn cancel(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    operator.require(&parts, Role::Operator).await?;
    match job_of(&parts, &id) {
        Ok(job) => {
            job.cancel();
            Ok(Json(job.shown()).into_response())
        }
        Err(unknown) => Ok(elsewhere(&parts, &operator, request, unknown).await?),
    }
}

/// The receipt of a job that is done, as a tar of `ack.json`, `ack.sig` and `outcomes.jsonl`.
pub async fn job_receipt(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    operator.require(&parts, Role::Operator).await?;
    let shown = match job_of(&parts, &id) {
        Ok(job) => job.shown(),
        Err(unknown) => return Ok(elsewhere(&parts, &operator, request, unknown).await?),
    };
    let (ImportState::Done, Some(spoke_id), Some(bundle_id)) =
        (shown.state, shown.spoke_id, shown.bundle_id)
    else {
        let detail = "this import has no receipt: it is not at its end, or it failed";
        return Err(Refusal::new(ErrorKind::NotFound, "no_receipt", detail).into());
    };
    send(&parts, ImportKey { spoke_id, bundle_id }).await
}

pub async fn receipt(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path((spoke, bundle)): Path<(String, String)>,
    request: Request,
) -> Result<Response, Problem> {
    operator.require(&parts, Role::Operator).await?;
    let (Ok(spoke_id), Ok(bundle_id)) = (spoke.parse::<SpokeId>(), bundle.parse::<BundleId>())
    else {
        return Err(not_kept().into());
    };
    let key = ImportKey { spoke_id, bundle_id };
    if import::kept(&parts, &key).is_none() {
        return Ok(elsewhere(&parts, &operator, request, not_kept()).await?);
    }
    send(&parts, key).await
}

fn not_kept() -> Refusal {
    let detail =
        "this node keeps no receipt of that bundle; import it again with --reissue-receipt";
    Refusal::new(ErrorKind::NotFound, "no_receipt", detail)
}

async fn send(parts: &Parts, key: ImportKey) -> Result<Response, Problem> {
    let path = import::kept(parts, &key).ok_or_else(not_kept)?;
    let wrap = || Error::io("cannot read", &path);
    let file = tokio::fs::File::open(&path).await.map_err(wrap())?;
    let len = file.metadata().await.map_err(wrap())?.len();
    let bytes = futures_util::stream::try_unfold(file, |mut file| async move {
        use tokio::io::AsyncReadExt as _;
        let mut piece = bytes::BytesMut::with_capacity(64 * 1024);
        let n = file.read_buf(&mut piece).await?;
        Ok::<_, std::io::Error>((n > 0).then(|| (piece.freeze(), file)))
    });
    let mut response = Body::from_stream(bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, ascii("application/x-tar"));
    headers.insert(header::CONTENT_LENGTH, len.into());
    Ok(response)
}

#[derive(Debug, Deserialize, JsonSchema)]
pub struct HistoryQuery {
    /// At most so many, 100 unless given, 1,000 at most.
    limit: Option<u32>,
    /// The `next_before` of the page before.
    before: Option<u64>,
}

/// What was imported of a spoke, newest first, and what has not arrived.
pub async fn history(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(spoke): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<ImportHistory>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    let Ok(spoke) = spoke.parse::<SpokeId>() else {
        let detail = format!("there is no spoke named {spoke:?}; names are case-sensitive here");
        return Err(Refusal::new(ErrorKind::NotFound, "no_such_spoke", detail).into());
    };
    let limit = query.limit.unwrap_or(HISTORY_DEFAULT).clamp(1, HISTORY_MAX);
    let read =
        tokio::task::spawn_blocking(move || import::history(&parts, &spoke, query.before, limit));
    Ok(Json(read.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?))
}
