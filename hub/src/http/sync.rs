//! `/api/v1/sync/...`: what spokes call.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Extensions, header, request};
use axum::response::{IntoResponse, Response};
use barque_bundle::fault;
use barque_bundle::wire::{BundleLine, ReconcileRequest, ReconcileResponse};
use barque_bundle::{ErrorKind, Sha256Digest};
use bytes::Bytes;
use tokio::sync::mpsc;

use super::{Door, Problem, ascii, bearer, body};
use crate::error::{Error, Refusal};
use crate::gate::{Place, Way};
use crate::hub::Parts;
use crate::registry::{self, Caller};
use crate::{receive, reconcile as reconciling};

/// The spoke that signed this request.
pub(super) async fn identify(parts: &Arc<Parts>, head: &request::Parts) -> Result<Caller, Error> {
    parts.require_ready()?;
    parts.cluster.require_fresh()?;
    let parts = Arc::clone(parts);
    let (method, path) = (head.method.to_string(), head.uri.path().to_owned());
    let token = bearer(&head.headers);
    let identified = tokio::task::spawn_blocking(move || {
        let asked = registry::Request {
            hub_id: parts.identity.hub_id,
            method: &method,
            path: &path,
            token: token.as_deref(),
            now: (parts.clock)(),
        };
        Caller::identify(&parts.readers, &asked)
    });
    identified.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))
}

/// [`identify`]; when it refuses, the unread body is drained a little so that the answer is heard.
pub(super) async fn admit(parts: &Arc<Parts>, request: Request) -> Result<(Caller, Body), Error> {
    let (head, sent) = request.into_parts();
    match identify(parts, &head).await {
        Ok(caller) => Ok((caller, sent)),
        Err(e) => {
            body::discard(sent);
            Err(e)
        }
    }
}

/// How a request with these extensions comes.
pub(super) fn way_of(extensions: &Extensions) -> Way {
    match extensions.get::<Door>() {
        Some(Door::Node) => Way::ThroughAnotherNode,
        _ => Way::FromItsSpoke,
    }
}

/// A place among the bodies taken at once; without one the unread body is drained a little, so
/// that the refusal is heard.
pub(super) async fn place(
    parts: &Parts,
    caller: &Caller,
    way: Way,
    sent: Body,
) -> Result<(Place, Body), Refusal> {
    match parts.gate.enter(&caller.spoke_id, way).await {
        Ok(place) => Ok((place, sent)),
        Err(refusal) => {
            body::discard(sent);
            Err(refusal)
        }
    }
}

pub async fn reconcile(
    State(parts): State<Arc<Parts>>,
    request: Request,
) -> Result<Json<ReconcileResponse>, Problem> {
    let way = way_of(request.extensions());
    let (caller, sent) = admit(&parts, request).await?;
    let (_place, sent) = place(&parts, &caller, way, sent).await?;
    let bytes = body::whole(sent, parts.config.body_idle, body::PAGE).await?;
    let body_sha256 = Sha256Digest::of(&bytes);
    caller.check_digest(body_sha256)?;
    let request: ReconcileRequest = body::json(&bytes)?;
    drop(bytes);
    Ok(Json(reconciling::reconcile(&parts, &caller, request, body_sha256).await?))
}

pub async fn bundles(
    State(parts): State<Arc<Parts>>,
    request: Request,
) -> Result<Response, Problem> {
    // What came of a stream counts, also when its connection is gone before it is read.
    detached(take_bundle(parts, request)).await
}

/// Runs an answer to its end whether somebody still waits for it or not.
pub(super) async fn detached(
    answer: impl Future<Output = Result<Response, Problem>> + Send + 'static,
) -> Result<Response, Problem> {
    tokio::spawn(answer).await.unwrap_or_else(|_| {
        let detail = "the hub met a fault of its own";
        Err(Refusal::new(ErrorKind::Internal, "hub_fault", detail).into())
    })
}

async fn take_bundle(parts: Arc<Parts>, request: Request) -> Result<Response, Problem> {
    let way = way_of(request.extensions());
    let (caller, sent) = admit(&parts, request).await?;
    let (place, sent) = place(&parts, &caller, way, sent).await?;
    let source = body::reader(sent, parts.config.body_idle);
    let received = source.received();
    let intake = receive::start(Arc::clone(&parts), caller, Held { source, _place: place });
    let opened = intake.opened.await.map_err(|_| {
        Refusal::new(ErrorKind::Internal, "hub_fault", "the hub met a fault of its own")
    })?;
    opened?;
    let told = Told { lines: intake.lines, received, last_bytes: 0 };
    let lines = futures_util::stream::unfold(told, |mut told| async move {
        let lines = told.next().await?;
        Some((Ok::<_, std::io::Error>(ndjson(&lines)), told))
    });
    let mut response = Body::from_stream(lines).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, ascii("application/x-ndjson"));
    Ok(response)
}

/// How often a client hears that the hub is at work.
const WORKING_EVERY: Duration = Duration::from_secs(5);
/// Lines that go to the network in one piece.
const LINES_AT_ONCE: usize = 256;

/// What a client is told while its bundle is taken.
struct Told {
    lines: mpsc::Receiver<BundleLine>,
    received: Arc<body::Received>,
    last_bytes: u64,
}

impl Told {
    /// The next lines; while there are none, a sign of work as long as there is work.
    async fn next(&mut self) -> Option<Vec<BundleLine>> {
        let mut lines = Vec::new();
        loop {
            let heard = self.lines.recv_many(&mut lines, LINES_AT_ONCE);
            if let Ok(n) = tokio::time::timeout(WORKING_EVERY, heard).await {
                // Asked for more after the last line: that one is with the network.
                if n == 0 {
                    fault::after(fault::Step::ReceiptSent);
                }
                return (n > 0).then_some(lines);
            }
            let received_bytes = self.received.bytes();
            if received_bytes != self.last_bytes || self.received.is_whole() {
                self.last_bytes = received_bytes;
                return Some(vec![BundleLine::Working { received_bytes }]);
            }
        }
    }
}

fn ndjson(lines: &[BundleLine]) -> Bytes {
    let mut bytes = Vec::new();
    for line in lines {
        bytes.extend(serde_json::to_vec(line).unwrap_or_default());
        bytes.push(b'\n');
    }
    bytes.into()
}

/// A stream's place among those taken at once, held as long as it is read.
struct Held {
    source: body::BodyReader,
    _place: Place,
}

impl std::io::Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.source.read(buffer)
    }
}
