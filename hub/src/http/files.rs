//! `/api/v1/files`: the manifest by name, and the bytes of one landed file.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use barque_bundle::wire::{FileLine, FileList, Role};
use barque_bundle::{ErrorKind, Timestamp, platform};
use schemars::JsonSchema;
use serde::Deserialize;

use super::range::{self, Wanted};
use super::{Door, Operator, Problem, ascii, forward};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::manifest::query::{self, FileState, FilesPage};

const LIMIT_DEFAULT: u32 = 1_000;
const LIMIT_MAX: u32 = 10_000;
const PIECE_BYTES: usize = 256 * 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    after_path: String,
    limit: Option<u32>,
}

pub async fn list(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    asked: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<FileList>, Problem> {
    operator.require(&parts, Role::Reader).await?;
    let Query(asked) =
        asked.map_err(|e| Refusal::new(ErrorKind::Invalid, "query_malformed", e.body_text()))?;
    parts.require_ready()?;
    let limit = asked.limit.unwrap_or(LIMIT_DEFAULT).clamp(1, LIMIT_MAX);
    let (mut files, position) = parts
        .readers
        .read_async(move |c| {
            let page =
                FilesPage { prefix: &asked.prefix, after: &asked.after_path, limit: limit + 1 };
            Ok((query::files(c, &page)?, query::counter(c, "position")?))
        })
        .await?;
    let more = files.len() > limit as usize;
    files.truncate(limit as usize);
    say_unavailable(&parts, &mut files).await?;
    let next_after_path = if more { files.last().map(|f| f.path.clone()) } else { None };
    let hub_epoch = parts.epoch();
    Ok(Json(FileList { files, next_after_path, hub_epoch, position }))
}

/// What only nodes hold that are down is listed as unavailable (L1).
async fn say_unavailable(parts: &Parts, files: &mut [FileLine]) -> Result<(), Error> {
    let nodes = parts.cluster.nodes();
    let is_down = |id: &u64| !parts.cluster.is_alive(*id);
    let down: Vec<u64> = nodes.keys().copied().filter(is_down).collect();
    if down.is_empty() {
        return Ok(());
    }
    let paths: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
    let gone = parts.readers.read_async(move |c| query::held_only_by(c, &paths, &down)).await?;
    let held = files.iter_mut().zip(gone).filter(|(f, is_gone)| *is_gone && f.state == "held");
    held.for_each(|(file, _)| file.state = "unavailable".to_owned());
    Ok(())
}

pub async fn read(
    State(parts): State<Arc<Parts>>,
    operator: Operator,
    Path(landed): Path<String>,
    request: Request,
) -> Result<Response, Problem> {
    operator.require(&parts, Role::Reader).await?;
    parts.require_ready()?;
    let holders = {
        let landed = landed.clone();
        parts.readers.read_async(move |c| query::holders(c, &landed)).await?
    };
    let is_here = holders.contains(&parts.identity.node_id);
    if !is_here && !holders.is_empty() && operator.door != Door::Node {
        return Ok(read_elsewhere(&parts, &holders, request).await?);
    }
    read_here(parts, landed, request.headers().clone()).await
}

/// The bytes from a node that holds them; their caller was let in here.
async fn read_elsewhere(
    parts: &Parts,
    holders: &[u64],
    request: Request,
) -> Result<Response, Refusal> {
    for node_id in holders.iter().filter(|id| parts.cluster.is_alive(**id)) {
        let (method, headers) = (request.method().clone(), request.headers().clone());
        let same = forward::without_body(method, request.uri(), headers);
        match forward::to(parts, *node_id, Some(Role::Reader), same).await {
            // One that lags does not know yet that it holds it, or of the caller's token.
            Ok(answer)
                if !matches!(
                    answer.status(),
                    StatusCode::SERVICE_UNAVAILABLE
                        | StatusCode::NOT_FOUND
                        | StatusCode::UNAUTHORIZED
                        | StatusCode::FORBIDDEN
                ) =>
            {
                return Ok(answer);
            }
            Ok(_) => {}
            Err(e) => tracing::warn!(code = e.code, "a holder does not answer"),
        }
    }
    let names: Vec<String> = holders.iter().map(|id| parts.cluster.title(*id)).collect();
    let detail = format!("no node that holds the file answers ({}); try again", names.join(", "));
    Err(Refusal::new(ErrorKind::Unavailable, "file_unavailable", detail))
}

async fn read_here(
    parts: Arc<Parts>,
    landed: String,
    asked: HeaderMap,
) -> Result<Response, Problem> {
    let opened = tokio::task::spawn_blocking(move || {
        let mut file = open(&parts, &landed)?;
        let etag = format!("\"{}\"", file.sha256);
        let wanted = range::wanted(&asked, &etag, file.size_bytes);
        if let Wanted::Part(part) = &wanted {
            let sought = file.bytes.seek(SeekFrom::Start(part.start));
            sought.map_err(Error::io("cannot read", landed))?;
        }
        Ok::<_, Error>((file, etag, wanted))
    });
    let (file, etag, wanted) = opened.await.map_err(|e| Error::Malformed(e.to_string()))??;
    let size = file.size_bytes;
    let (status, len) = match &wanted {
        Wanted::Whole => (StatusCode::OK, size),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part.end - part.start),
        Wanted::NotModified => (StatusCode::NOT_MODIFIED, 0),
        Wanted::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0),
    };
    let mut response = (status, pieces(file.bytes.take(len))).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, ascii("application/vnd.apache.parquet"));
    headers.insert(header::ACCEPT_RANGES, ascii("bytes"));
    headers.insert(header::ETAG, ascii(&etag));
    headers.insert(header::LAST_MODIFIED, ascii(&http_date(file.received_at)));
    if wanted != Wanted::NotModified {
        headers.insert(header::CONTENT_LENGTH, ascii(&len.to_string()));
    }
    let range = match wanted {
        Wanted::Part(p) => Some(format!("bytes {}-{}/{size}", p.start, p.end - 1)),
        Wanted::Unsatisfiable => Some(format!("bytes */{size}")),
        _ => None,
    };
    if let Some(range) = range {
        headers.insert(header::CONTENT_RANGE, ascii(&range));
    }
    Ok(response)
}

/// A file's bytes as a body, read piece by piece.
fn pieces(bytes: std::io::Take<std::fs::File>) -> Body {
    Body::from_stream(futures_util::stream::try_unfold(bytes, |mut bytes| async move {
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0u8; PIECE_BYTES];
            let n = bytes.read(&mut buffer)?;
            buffer.truncate(n);
            Ok::<_, std::io::Error>((buffer, bytes))
        });
        let (buffer, bytes) = read.await.map_err(std::io::Error::other)??;
        Ok::<_, std::io::Error>((!buffer.is_empty()).then_some((buffer, bytes)))
    }))
}

struct OpenFile {
    bytes: std::fs::File,
    sha256: barque_bundle::Sha256Digest,
    size_bytes: u64,
    received_at: Timestamp,
}

/// The landed file, or its staged copy until it is promoted.
fn open(parts: &Parts, landed: &str) -> Result<OpenFile, Error> {
    let row = parts.readers.read(|c| query::lookup(c, landed))?;
    let absent = |kind, code, detail: &str| Error::from(Refusal::new(kind, code, detail));
    let row = row.ok_or_else(|| {
        absent(ErrorKind::NotFound, "no_such_file", "the manifest holds no file of this name")
    })?;
    match row.state {
        FileState::Held => {}
        FileState::Removed | FileState::Replaced => {
            return Err(absent(ErrorKind::Expired, "file_removed", "the file was removed here"));
        }
        FileState::Lost => {
            return Err(absent(
                ErrorKind::Unavailable,
                "file_lost",
                "every copy was lost; the spoke is asked for it again",
            ));
        }
    }
    // What merely stands in landing is not served: only what was promoted, else the staged copy.
    let copy = match parts.ledger.is_promoted(landed, &row.sha256)? {
        true => Some(parts.landing.path(landed)),
        false => parts.ledger.staged_copy(landed, &row.sha256)?.map(|n| parts.staging.path(n)),
    };
    let copy = copy.unwrap_or_else(|| parts.landing.path(landed));
    // Between the rename and its mark the staged copy is gone and the landed one is it.
    let opened = platform::open_regular(&copy).or_else(|e| match e.kind() {
        std::io::ErrorKind::NotFound => platform::open_regular(&parts.landing.path(landed)),
        _ => Err(e),
    });
    let file = opened.and_then(|file| {
        let len = file.metadata()?.len();
        if len == row.size_bytes {
            return Ok(file);
        }
        Err(std::io::Error::other(format!("it has {len} bytes, not {}", row.size_bytes)))
    });
    let file = file.map_err(|e| {
        tracing::error!(path = %copy.display(), error = %e, "a held file cannot be opened");
        absent(ErrorKind::Unavailable, "file_unavailable", "the copy on this node cannot be read")
    })?;
    Ok(OpenFile {
        bytes: file,
        sha256: row.sha256,
        size_bytes: row.size_bytes,
        received_at: row.received_at,
    })
}

/// IMF-fixdate (RFC 9110, 5.6.7).
fn http_date(t: Timestamp) -> String {
    let d = t.to_datetime();
    let (weekday, month) = (d.weekday().to_string(), d.month().to_string());
    format!(
        "{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT",
        &weekday[..3],
        d.day(),
        &month[..3],
        d.year(),
        d.hour(),
        d.minute(),
        d.second()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_modified_is_an_imf_fixdate() {
        let t: Timestamp = "1994-11-06T08:49:37Z".parse().unwrap();
        assert_eq!(http_date(t), "Sun, 06 Nov 1994 08:49:37 GMT");
    }
}
