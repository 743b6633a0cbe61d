//! `/api/v1/sync/uploads`: one large file in pieces, as resumable uploads for HTTP have it
//! (draft-ietf-httpbis-resumable-upload-09; docs/HTTP.md says which parts).

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header, request};
use axum::response::{IntoResponse, Response};
use barque_bundle::wire::{self, BundleLine, UploadAnswer, UploadRequest};
use barque_bundle::{BundleId, ErrorKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::sync::{admit, detached, identify, place, way_of};
use super::{Door, Problem, ascii, body, forward};
use crate::cluster::home;
use crate::error::{Error, Refusal};
use crate::gate::Place;
use crate::hub::Parts;
use crate::ledger::{UploadBundle, UploadKey, UploadRow};
use crate::receive::{self, Reserved, Verdict};
use crate::registry::Caller;
use crate::upload::{Held, Step};

/// Opens an upload, or goes on with one: where its bytes end, or the receipt if none are needed.
pub async fn create(
    State(parts): State<Arc<Parts>>,
    request: Request,
) -> Result<Response, Problem> {
    let (as_sent, way) = (forward::head_of(&request), way_of(request.extensions()));
    let (caller, sent) = admit(&parts, request).await?;
    let (_place, sent) = place(&parts, &caller, way, sent).await?;
    let bytes = body::whole(sent, parts.config.body_idle, body::UPLOAD).await?;
    let UploadRequest { manifest, sig, entry } = body::json(&bytes)?;
    let decode = |text: &str, what: &str| {
        let detail = format!("{what} is no base64");
        let refuse = |_| Refusal::new(ErrorKind::Invalid, "body_malformed", detail);
        BASE64.decode(text).map_err(refuse)
    };
    let (header, sig) = (decode(&manifest, "manifest")?, decode(&sig, "sig")?);
    let upload = match receive::open(&parts, &caller, header, sig, entry).await? {
        Verdict::Decided(line) => return answer(line),
        Verdict::Needed(upload) => *upload,
    };
    let key = UploadKey {
        spoke_id: caller.spoke_id.clone(),
        path: upload.entry.path.clone(),
        sha256: upload.entry.sha256,
    };
    if let Some(answer) = open_at_home(&parts, &key, &as_sent, &bytes).await? {
        return Ok(answer);
    }
    let held = parts.uploads.hold(&key).await?;
    let location = format!("{}/{}", wire::UPLOADS, upload.bundle.bundle_id);
    // The older request that had the seat may have brought the file to its end.
    if let Some(line) = receive::decide(&parts, &upload).await? {
        return answer(line);
    }
    let row = on_disk(&parts, move |parts| begin_row(parts, held, key, upload)).await?;
    let mut response = progress(StatusCode::CREATED, &row);
    response.headers_mut().insert(header::LOCATION, ascii(&location));
    Ok(response)
}

/// The answer of the node that is the upload's home, unless that is this one. A home that cannot be
/// reached is none: the next one begins from 0.
async fn open_at_home(
    parts: &Arc<Parts>,
    key: &UploadKey,
    as_sent: &forward::AsSent,
    bytes: &[u8],
) -> Result<Option<Response>, Error> {
    if as_sent.door == Door::Node || !parts.cluster.has_others() {
        return Ok(None);
    }
    for node_id in home::of_file(parts, key).await? {
        if node_id == parts.identity.node_id {
            return Ok(None);
        }
        let same = as_sent.with_body(Body::from(bytes.to_vec()));
        match forward::to(parts, node_id, None, same).await {
            Err(e) if e.code == forward::UNREACHABLE => {}
            Err(e) => return Err(e.into()),
            Ok(answer) => return Ok(Some(answer)),
        }
    }
    Ok(None)
}

/// The answer of the node that has an upload which this one knows nothing of.
async fn pass_on(parts: &Arc<Parts>, id: &str, request: Request) -> Result<Response, Request> {
    let door = request.extensions().get::<Door>().copied();
    let Ok(id) = id.parse::<BundleId>() else { return Err(request) };
    if door == Some(Door::Node) || !parts.cluster.has_others() {
        return Err(request);
    }
    let is_here = on_disk(parts, move |parts| parts.ledger.bytes_of_upload(id)).await;
    if !matches!(is_here, Ok(None)) {
        return Err(request);
    }
    match home::of_id(parts, id).await {
        None => Err(request),
        Some(node_id) => Ok(match forward::to(parts, node_id, None, request).await {
            Ok(answer) => answer,
            Err(refusal) => Problem::from(refusal).into_response(),
        }),
    }
}

/// The row of an upload that is opened, as far as its bytes have come.
fn begin_row(
    parts: &Arc<Parts>,
    mut held: Held,
    key: UploadKey,
    upload: UploadBundle,
) -> Result<UploadRow, Error> {
    let bundle_id = upload.bundle.bundle_id;
    let other = parts.ledger.upload_of_bundle(&key.spoke_id, bundle_id)?;
    if other.is_some_and(|o| o.key != key) {
        let detail = "this bundle's id is that of another file; make a new one";
        return Err(Refusal::new(ErrorKind::Corrupt, "bundle_id_in_use", detail).into());
    }
    let known = parts.ledger.upload(&key)?;
    if known.is_none() {
        parts.uploads.make_room(&key, upload.entry.size_bytes, Step::Begins)?;
    }
    let size_bytes = upload.entry.size_bytes;
    let is_same = |k: &UploadRow| k.size_bytes == size_bytes;
    // Bytes that were declared otherwise go; nothing is cut that may have become a file meanwhile.
    if known.as_ref().is_some_and(|k| !is_same(k)) {
        parts.uploads.discard(&mut held, &key)?;
    }
    let synced = known.filter(is_same).map_or(0, |k| k.synced);
    // Refused now rather than in the middle.
    drop(Reserved::take(parts, &key.spoke_id, size_bytes.saturating_sub(synced))?);
    let touched_at = (parts.clock)();
    let row = UploadRow { key, size_bytes, synced, bundle: Some(upload), touched_at };
    parts.ledger.put_upload(&row)?;
    drop(held);
    Ok(row)
}

/// Where the bytes end.
pub async fn look(
    State(parts): State<Arc<Parts>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let request = match pass_on(&parts, &id, request).await {
        Ok(answer) => return Ok(answer),
        Err(request) => request,
    };
    let (head, _) = request.into_parts();
    let caller = identify(&parts, &head).await?;
    let row = known(&parts, &caller, &id).await?;
    let (_held, row) = seat(&parts, &caller, &id, row).await?;
    Ok(progress(StatusCode::NO_CONTENT, &row))
}

/// Gives an upload up: its bytes are deleted.
pub async fn cancel(
    State(parts): State<Arc<Parts>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let request = match pass_on(&parts, &id, request).await {
        Ok(answer) => return Ok(answer),
        Err(request) => request,
    };
    let (head, _) = request.into_parts();
    let caller = identify(&parts, &head).await?;
    let row = known(&parts, &caller, &id).await?;
    let (held, row) = seat(&parts, &caller, &id, row).await?;
    on_disk(&parts, move |parts| parts.uploads.forget(held, &row.key)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Appends a piece; the last one is answered with the receipt.
pub async fn append(
    State(parts): State<Arc<Parts>>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    let request = match pass_on(&parts, &id, request).await {
        Ok(answer) => return Ok(answer),
        Err(request) => request,
    };
    // Goes on when the connection is gone before its bytes are read: what came is kept.
    detached(append_piece(parts, id, request)).await
}

async fn append_piece(
    parts: Arc<Parts>,
    id: String,
    request: Request,
) -> Result<Response, Problem> {
    let (head, sent) = request.into_parts();
    let begun = begin(&parts, &head, &id).await;
    let (mut held, mut row, asked, place) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            body::discard(sent);
            return Err(e.into());
        }
    };
    let left = row.size_bytes.saturating_sub(row.synced);
    let (key, size_bytes) = (row.key.clone(), row.size_bytes);
    let reserving = on_disk(&parts, move |parts| {
        parts.uploads.make_room(&key, size_bytes, Step::GoesOn)?;
        Reserved::take(parts, &key.spoke_id, left)
    });
    let reserved = match reserving.await {
        Ok(reserved) => reserved,
        Err(e) => {
            body::discard(sent);
            return Err(e.into());
        }
    };
    let source = body::reader_until(sent, parts.config.body_idle, held.superseded());
    let uploads = Arc::clone(&parts.uploads);
    let offset = asked.offset;
    let appended = tokio::task::spawn_blocking(move || {
        let mut source = source;
        let appended =
            uploads.append(&mut held, &mut row, offset, &mut source, |n| reserved.release(n));
        drop((reserved, place));
        appended.map(|a| (a, held, row))
    });
    let appended = appended.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())));
    let (appended, held, row) = appended?;
    if let Some(e) = appended.broken {
        let detail = format!("the body broke off: {e}; {} bytes are kept", row.synced);
        let refusal = Refusal::new(ErrorKind::Unavailable, "upload_broken", detail);
        return Err(Refusal { upload_offset: Some(row.synced), ..refusal }.into());
    }
    match (asked.is_last, row.synced == row.size_bytes) {
        (false, _) => Ok(progress(StatusCode::NO_CONTENT, &row)),
        (true, true) => finish(&parts, held, row).await,
        (true, false) => {
            let detail = format!(
                "the last piece ended at {} of {} bytes; what came is kept",
                row.synced, row.size_bytes
            );
            let refusal = Refusal::new(ErrorKind::Conflict, "offset_mismatch", detail);
            Err(Refusal { upload_offset: Some(row.synced), ..refusal }.into())
        }
    }
}

/// What a piece says of itself.
struct Asked {
    offset: u64,
    is_last: bool,
}

type Begun = (Held, UploadRow, Asked, Place);

async fn begin(parts: &Arc<Parts>, head: &request::Parts, id: &str) -> Result<Begun, Error> {
    let caller = identify(parts, head).await?;
    let asked = asked(&head.headers)?;
    let row = known(parts, &caller, id).await?;
    let place = parts.gate.enter(&caller.spoke_id, way_of(&head.extensions)).await?;
    let (held, row) = seat(parts, &caller, id, row).await?;
    Ok((held, row, asked, place))
}

/// The only seat at an upload, and its row as the older request that had to leave left it.
async fn seat(
    parts: &Arc<Parts>,
    caller: &Caller,
    id: &str,
    row: UploadRow,
) -> Result<(Held, UploadRow), Error> {
    let held = parts.uploads.hold(&row.key).await?;
    Ok((held, known(parts, caller, id).await?))
}

fn asked(headers: &HeaderMap) -> Result<Asked, Refusal> {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let malformed = |name: &str| {
        let detail = format!("the header {name} is missing or malformed");
        Refusal::new(ErrorKind::Invalid, "header_malformed", detail)
    };
    let offset = text(wire::UPLOAD_OFFSET).and_then(|v| v.parse().ok());
    let is_last = match text(wire::UPLOAD_COMPLETE) {
        Some("?1") => Some(true),
        Some("?0") => Some(false),
        _ => None,
    };
    Ok(Asked {
        offset: offset.ok_or_else(|| malformed(wire::UPLOAD_OFFSET))?,
        is_last: is_last.ok_or_else(|| malformed(wire::UPLOAD_COMPLETE))?,
    })
}

/// The caller's upload of this id, which its token is for.
async fn known(parts: &Arc<Parts>, caller: &Caller, id: &str) -> Result<UploadRow, Error> {
    let none = || {
        let detail = "there is no such upload (any more); open it again with POST";
        Refusal::new(ErrorKind::NotFound, "no_such_upload", detail)
    };
    let id: BundleId = id.parse().map_err(|_| none())?;
    let spoke = caller.spoke_id.clone();
    let row = on_disk(parts, move |parts| parts.ledger.upload_of_bundle(&spoke, id)).await?;
    let row = row.ok_or_else(none)?;
    let bundle = row.bundle.as_ref().ok_or_else(none)?;
    caller.check_digest(bundle.entries_digest)?;
    Ok(row)
}

async fn finish(parts: &Arc<Parts>, mut held: Held, row: UploadRow) -> Result<Response, Problem> {
    let Some(upload) = row.bundle.clone() else {
        return Err(Error::Malformed("an upload without its bundle".to_owned()).into());
    };
    let uploads = Arc::clone(&parts.uploads);
    let (path, key) = (uploads.path(&row.key), row.key.clone());
    let mut row = row;
    let (found, held) = on_disk(parts, move |_| {
        let found = uploads.digest(&mut held, &mut row)?;
        Ok((found, held))
    })
    .await?;
    let line = receive::finish(parts, upload, &path, found).await?;
    if receive::is_final(&line) {
        on_disk(parts, move |parts| parts.uploads.forget(held, &key)).await?;
    }
    answer(line)
}

/// Runs what waits for a disk on a thread that may.
async fn on_disk<T: Send + 'static>(
    parts: &Arc<Parts>,
    f: impl FnOnce(&Arc<Parts>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let parts = Arc::clone(parts);
    let done = tokio::task::spawn_blocking(move || f(&parts)).await;
    done.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))
}

fn answer(line: BundleLine) -> Result<Response, Problem> {
    match line {
        BundleLine::Done { receipt, stopped } => {
            Ok(Json(UploadAnswer { receipt, stopped }).into_response())
        }
        _ => Err(Error::Malformed("an answer without a receipt".to_owned()).into()),
    }
}

fn progress(status: StatusCode, row: &UploadRow) -> Response {
    let mut response = (status, Body::empty()).into_response();
    let headers = response.headers_mut();
    headers.insert(wire::UPLOAD_OFFSET, ascii(&row.synced.to_string()));
    headers.insert(wire::UPLOAD_LENGTH, ascii(&row.size_bytes.to_string()));
    headers.insert(wire::UPLOAD_COMPLETE, ascii("?0"));
    headers.insert(header::CACHE_CONTROL, ascii("no-store"));
    response
}
