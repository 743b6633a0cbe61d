//! A spoke's calls to its hub. The only file of this crate that knows reqwest.
//!
//! A 200 without a valid receipt is not a yes, redirects are not followed, and every wait has a
//! deadline that counts progress, not only silence.

mod body;
mod error;
mod upload;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use barque_bundle::header::Signed;
use barque_bundle::jwt::{self, Claims};
use barque_bundle::platform::Root;
use barque_bundle::receipt::{Answers, Expected, WireReceipt};
use barque_bundle::wire::{
    self, BundleLine, EnrollRequest, EnrollResponse, Problem, ReconcileRequest, ReconcileResponse,
    Stopped,
};
use barque_bundle::{Header, HubId, PublicKey, Receipt, SecretKey, Sha256Digest, SpokeId, stream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER, SERVER};

use crate::budget::Pace;
use crate::edge::Edge;
use crate::pin::{PinnedTls, Roots, Times};
use body::{CHUNKS_WAITING, ChannelWriter, Line, Moved, write_stream};
pub use body::{Parcel, Progress};
pub use error::{CallError, Stranger};
use error::{carrying, not_the_hub};
pub use upload::{Piece, Reached};

const CONNECT_WAIT: Duration = Duration::from_secs(10);
/// How long an answer to an enrollment may take.
const ENROLL_WAIT: Duration = Duration::from_secs(60);
/// How long a sending thread is waited for once its answer is here.
const WRITER_WAIT: Duration = Duration::from_secs(5);
/// Most bytes of an answer.
const ANSWER_MAX_BYTES: usize = 64 * 1024 * 1024;

/// Who calls whom.
pub struct Party {
    pub hub_id: HubId,
    pub urls: Vec<String>,
    pub spoke_id: SpokeId,
    pub key: SecretKey,
    pub roots: Vec<PublicKey>,
}

/// A line to one hub.
pub struct HubClient {
    party: Party,
    /// Made anew when a connection has died silently, so that nothing else waits on it.
    http: RwLock<reqwest::Client>,
    tls: PinnedTls,
    edge: Edge,
    way: Way,
    line: Arc<Line>,
    /// Of the addresses, where the next call goes.
    current: AtomicU64,
}

/// How bodies go.
#[derive(Clone)]
pub struct Way {
    /// How fast they may go.
    pub pace: Option<Arc<Pace>>,
    /// Longest time in which nothing moves in either direction.
    pub stall: Duration,
}

/// An answer, before anybody knows whose it is.
struct Heard {
    status: u16,
    /// Where an upload stands, as a header says.
    offset: Option<u64>,
    server: String,
    bytes: Bytes,
}

/// The answer to a bundle: what counts, and why it ended early if it did.
pub struct Sent {
    pub receipt: Receipt,
    pub stopped: Option<Stopped>,
}

fn http_client(tls: &PinnedTls) -> Result<reqwest::Client, CallError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.config.clone())
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_WAIT)
        .tcp_keepalive(Duration::from_secs(20))
        .no_proxy()
        .build()
        .map_err(|e| CallError::Client(e.to_string()))
}

impl HubClient {
    pub fn new(party: Party, times: Arc<Times>, edge: Edge, way: Way) -> Result<Self, CallError> {
        let urls = party.urls.iter().map(|u| u.trim_end_matches('/').to_owned()).collect();
        let party = Party { urls, ..party };
        let tls = PinnedTls::new(Roots::Keys(party.roots.clone()), times);
        let http = http_client(&tls)?;
        let http = RwLock::new(http);
        let line = Arc::new(Line::new());
        Ok(Self { party, http, tls, edge, way, line, current: AtomicU64::new(0) })
    }

    /// Hub time minus local time, as last learned from a signed answer.
    pub fn clock_offset_ms(&self) -> i64 {
        self.tls.times.offset_ms()
    }

    fn learn_time(&self, hub_time: barque_bundle::Timestamp) {
        self.tls.times.learn(hub_time, self.edge.now());
    }

    /// A token for one request, in hub time.
    fn token(&self, method: &str, path: &str, dig: Sha256Digest) -> String {
        let now = self.edge.now().plus_ms(self.clock_offset_ms()).unix_seconds();
        let claims = Claims {
            sub: self.party.spoke_id.clone(),
            aud: self.party.hub_id,
            iat: now,
            exp: now + jwt::LIFETIME_MAX_S,
            jti: barque_bundle::digest::hex(&self.edge.id_bytes()),
            htm: method.to_owned(),
            htu: path.to_owned(),
            dig,
        };
        jwt::sign(&self.party.key, &claims)
    }

    /// Where the next call goes.
    pub fn address(&self) -> &str {
        let n = self.party.urls.len().max(1) as u64;
        let index = usize::try_from(self.current.load(Ordering::Relaxed) % n).unwrap_or(0);
        self.party.urls.get(index).map_or("", String::as_str)
    }

    /// How many addresses the hub has.
    pub fn addresses(&self) -> u32 {
        u32::try_from(self.party.urls.len()).unwrap_or(u32::MAX)
    }

    /// The next call goes to the next address.
    pub fn try_another_address(&self) {
        self.current.fetch_add(1, Ordering::Relaxed);
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address())
    }

    fn http(&self) -> reqwest::Client {
        self.http.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is under way on the old connections goes on; nothing new joins it.
    fn leave_connections(&self) {
        if let Ok(http) = http_client(&self.tls) {
            *self.http.write().unwrap_or_else(PoisonError::into_inner) = http;
        }
    }

    /// Nothing moved for too long.
    fn stalled(&self, url: &str) -> CallError {
        self.leave_connections();
        let why = format!("nothing moved for {} s", self.way.stall.as_secs());
        broken(url, why)
    }

    fn not_the_hub(&self, status: u16, bytes: &[u8]) -> CallError {
        not_the_hub(self.address(), status, "", bytes)
    }

    /// A success by its status that is no answer of the hub's.
    fn not_ours(&self, heard: &Heard) -> CallError {
        not_the_hub(self.address(), heard.status, &heard.server, &heard.bytes)
    }

    fn failed(&self, url: &str, e: &reqwest::Error) -> CallError {
        if self.tls.saw_wrong_root.swap(false, Ordering::Relaxed) {
            return CallError::WrongRoot { url: address_of(url) };
        }
        let why = root_cause(e);
        if e.is_timeout() {
            self.leave_connections();
        }
        if e.is_connect() {
            return CallError::Unreachable { url: address_of(url), why };
        }
        broken(url, why)
    }

    /// Offers a page; the answer and its verified receipt.
    pub async fn reconcile(
        &self,
        request: &ReconcileRequest,
    ) -> Result<(ReconcileResponse, Receipt), CallError> {
        let body = serde_json::to_vec(request).map_err(|e| CallError::Client(e.to_string()))?;
        let body = Bytes::from(body);
        let dig = Sha256Digest::of(&body);
        let len = body.len() as u64;
        let mut answer = self.post_json(wire::RECONCILE, body.clone(), dig).await;
        if answer.as_ref().is_err_and(|e| self.learn_from_refusal(e)) {
            answer = self.post_json(wire::RECONCILE, body, dig).await;
        }
        let read =
            |heard: Heard| serde_json::from_slice(&heard.bytes).map_err(|_| self.not_ours(&heard));
        let response: ReconcileResponse = answer.and_then(read).map_err(|e| carrying(e, len))?;
        let receipt = self.open(response.receipt.clone(), Answers::Reconcile(dig))?;
        Ok((response, receipt))
    }

    fn open(&self, receipt: WireReceipt, answers: Answers) -> Result<Receipt, CallError> {
        let expected = Expected {
            roots: &self.party.roots,
            hub_id: self.party.hub_id,
            spoke_id: &self.party.spoke_id,
            answers,
        };
        let receipt = Receipt::open_wire(receipt, &expected)?;
        self.learn_time(receipt.head.received_at);
        Ok(receipt)
    }

    /// True when a refusal told the hub's time, so that a repeat makes sense.
    ///
    /// Over TLS the pinned hub says so; on a plain line it may be anybody, who gains only that a
    /// request is signed for another minute: receipts still count by their signatures alone.
    fn learn_from_refusal(&self, e: &CallError) -> bool {
        let CallError::Refused(problem) = e else {
            return false;
        };
        let is_time = matches!(problem.code.as_str(), "clock_skew" | "token_expired");
        match problem.hub_time {
            Some(hub_time) if is_time => {
                self.learn_time(hub_time);
                true
            }
            _ => false,
        }
    }

    /// A refusal for the clock's sake is a break: the next try is signed in hub time.
    fn with_hub_time<T>(&self, url: &str, judged: Result<T, CallError>) -> Result<T, CallError> {
        judged.map_err(|e| match self.learn_from_refusal(&e) {
            true => broken(url, format!("{e}; the clock is set by the hub's")),
            false => e,
        })
    }

    async fn post_json(
        &self,
        path: &str,
        body: Bytes,
        dig: Sha256Digest,
    ) -> Result<Heard, CallError> {
        let url = self.url(path);
        let request = self
            .http()
            .post(&url)
            .bearer_auth(self.token("POST", path, dig))
            .header(wire::REQUEST_ID, self.request_id())
            .header(CONTENT_TYPE, "application/json")
            .timeout(page_wait(self.way.stall, body.len()))
            .body(body);
        let response = request.send().await.map_err(|e| self.failed(&url, &e))?;
        self.judge(&url, response).await
    }

    fn request_id(&self) -> String {
        barque_bundle::digest::hex(&self.edge.id_bytes()[..8])
    }

    /// A 200, or what the refusal means.
    async fn judge(&self, url: &str, response: reqwest::Response) -> Result<Heard, CallError> {
        let heard = self.judge_any(url, response).await?;
        if heard.status == 200 { Ok(heard) } else { Err(self.not_ours(&heard)) }
    }

    /// A 200, 201 or 204, or what the refusal means.
    async fn judge_any(&self, url: &str, response: reqwest::Response) -> Result<Heard, CallError> {
        let status = response.status().as_u16();
        let server = header_of(&response, SERVER.as_str()).unwrap_or_default();
        let retry_after = header_of(&response, RETRY_AFTER.as_str());
        let retry_after = retry_after.and_then(|v| v.trim().parse::<u64>().ok());
        let offset = header_of(&response, wire::UPLOAD_OFFSET).and_then(|v| v.parse().ok());
        let bytes = whole(response).await.map_err(|e| self.failed_whole(url, e))?;
        if matches!(status, 200 | 201 | 204) {
            return Ok(Heard { status, offset, server, bytes });
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(mut problem) if problem.status == status && !problem.code.is_empty() => {
                problem.retry_after_ms = problem.retry_after_ms.or(retry_after.map(|s| s * 1000));
                Err(CallError::Refused(Box::new(problem)))
            }
            _ => Err(not_the_hub(self.address(), status, &server, &bytes)),
        }
    }

    fn failed_whole(&self, url: &str, e: WholeError) -> CallError {
        match e {
            WholeError::Http(e) => self.failed(url, &e),
            WholeError::TooLong => {
                broken(url, format!("the answer is over {ANSWER_MAX_BYTES} bytes"))
            }
        }
    }

    /// Sends a bundle and hears what became of it. Parcels go in their order.
    pub async fn send(
        &self,
        header: &Signed<Header>,
        source: Arc<Root>,
        parcels: Vec<Parcel>,
        progress: Arc<dyn Progress>,
    ) -> Result<Sent, CallError> {
        let url = self.url(wire::BUNDLES);
        let moved = Arc::new(Moved::new(&self.line));
        let (out, pieces) = tokio::sync::mpsc::channel(CHUNKS_WAITING);
        let pace = self.way.pace.clone();
        let sink = ChannelWriter::new(out, Arc::clone(&moved), progress, pace);
        let signed = header.clone();
        let weigh = |p: &Parcel| crate::plan::member_bytes(&p.entry.path, p.entry.size_bytes);
        let len = parcels.iter().map(weigh).sum();
        let writing =
            tokio::task::spawn_blocking(move || write_stream(sink, &signed, &source, &parcels));
        let dig = header.value.entries_digest;
        let request = self
            .http()
            .post(&url)
            .bearer_auth(self.token("POST", wire::BUNDLES, dig))
            .header(wire::REQUEST_ID, self.request_id())
            .header(CONTENT_TYPE, stream::MEDIA_TYPE)
            .body(streamed(pieces));
        let answer = self.hear(&url, request, header, &moved).await;
        // The thread ends at its next write, or with the connection: it is not waited for long.
        let written = tokio::time::timeout(WRITER_WAIT, writing).await;
        self.with_hub_time(&url, answer).map_err(|e| match written {
            Ok(Ok(Err(io))) if io.kind() != io::ErrorKind::BrokenPipe => {
                broken(&url, format!("{e}; sending: {io}"))
            }
            _ => carrying(e, len),
        })
    }

    async fn hear(
        &self,
        url: &str,
        request: reqwest::RequestBuilder,
        header: &Signed<Header>,
        moved: &Moved,
    ) -> Result<Sent, CallError> {
        let stalled = || self.stalled(url);
        let response = moved
            .unless_stalled(self.way.stall, request.send())
            .await
            .ok_or_else(stalled)?
            .map_err(|e| self.failed(url, &e))?;
        if response.status().as_u16() != 200 {
            let judged = moved.unless_stalled(self.way.stall, self.judge(url, response)).await;
            return Err(judged
                .ok_or_else(stalled)?
                .err()
                .unwrap_or_else(|| self.not_the_hub(200, b"")));
        }
        let mut lines = Lines::default();
        let mut stream = response.bytes_stream();
        loop {
            let next =
                moved.unless_stalled(self.way.stall, stream.next()).await.ok_or_else(stalled)?;
            let Some(piece) = next else { break };
            let piece = piece.map_err(|e| self.failed(url, &e))?;
            moved.mark();
            for line in lines.push(&piece) {
                match serde_json::from_slice(&line) {
                    Ok(BundleLine::Outcome(_) | BundleLine::Working { .. }) => {}
                    Ok(BundleLine::Done { receipt, stopped }) => {
                        let answers = Answers::Bundle(header.value.bundle_id);
                        return Ok(Sent { receipt: self.open(receipt, answers)?, stopped });
                    }
                    Err(_) => return Err(self.not_the_hub(200, &line)),
                }
            }
            if lines.partial.len() > ANSWER_MAX_BYTES {
                return Err(self.not_the_hub(200, &lines.partial[..64]));
            }
        }
        Err(broken(url, "the answer ended without a receipt".to_owned()))
    }
}

/// Hands in a key for a one-time token; trusts only the root that the token names.
pub async fn enroll(
    urls: &[String],
    root: Sha256Digest,
    times: Times,
    request: &EnrollRequest,
) -> Result<EnrollResponse, CallError> {
    let tls = PinnedTls::new(Roots::Fingerprint(root), Arc::new(times));
    let http = http_client(&tls)?;
    let mut last = CallError::Client("the token names no address".to_owned());
    for base in urls {
        let url = format!("{}{}", base.trim_end_matches('/'), wire::ENROLL);
        let sent = http.post(&url).json(request).timeout(ENROLL_WAIT).send().await;
        let response = match sent {
            Ok(response) => response,
            Err(_) if tls.saw_wrong_root.swap(false, Ordering::Relaxed) => {
                return Err(CallError::WrongRoot { url: address_of(&url) });
            }
            Err(e) => {
                last = CallError::Unreachable { url: address_of(&url), why: root_cause(&e) };
                continue;
            }
        };
        let status = response.status().as_u16();
        let server = header_of(&response, SERVER.as_str()).unwrap_or_default();
        let bytes = match whole(response).await {
            Ok(bytes) => bytes,
            Err(WholeError::Http(e)) => {
                last = broken(&url, root_cause(&e));
                continue;
            }
            Err(WholeError::TooLong) => return Err(not_the_hub(base, status, "", b"")),
        };
        if status != 200 {
            return Err(match serde_json::from_slice::<Problem>(&bytes) {
                Ok(problem) if problem.status == status => CallError::Refused(Box::new(problem)),
                _ => not_the_hub(base, status, &server, &bytes),
            });
        }
        let answer: EnrollResponse = serde_json::from_slice(&bytes)
            .map_err(|_| not_the_hub(base, status, &server, &bytes))?;
        // Also on a plain line: the answer's root must be the one that the token named.
        if answer.root.fingerprint() != root {
            return Err(CallError::WrongRoot { url: address_of(&url) });
        }
        return Ok(answer);
    }
    Err(last)
}

fn broken(url: &str, why: String) -> CallError {
    CallError::Broken { url: address_of(url), why }
}

/// The scheme, host and port of a URL: what a person has to know of it.
fn address_of(url: &str) -> String {
    let path = url.split_once("://").and_then(|(scheme, rest)| {
        let end = rest.find('/')?;
        Some(scheme.len() + 3 + end)
    });
    url[..path.unwrap_or(url.len())].to_owned()
}

/// What is at the bottom of a failure, without the layers that it came through.
fn root_cause(e: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = e;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if e.is_timeout() { "no answer in time".to_owned() } else { cause.to_string() }
}

/// The time for a page: as for a stall, and then as slow a link as 2 kB/s.
fn page_wait(stall: Duration, bytes: usize) -> Duration {
    stall * 2 + Duration::from_millis(bytes as u64 / 2)
}

fn header_of(response: &reqwest::Response, name: &str) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// A body of what a writing thread hands over.
fn streamed(mut pieces: tokio::sync::mpsc::Receiver<Result<Bytes, io::Error>>) -> reqwest::Body {
    reqwest::Body::wrap_stream(futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx)))
}

enum WholeError {
    Http(reqwest::Error),
    TooLong,
}

async fn whole(response: reqwest::Response) -> Result<Bytes, WholeError> {
    let mut out = bytes::BytesMut::new();
    let mut stream = response.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(WholeError::Http)?;
        if out.len() + piece.len() > ANSWER_MAX_BYTES {
            return Err(WholeError::TooLong);
        }
        out.extend_from_slice(&piece);
    }
    Ok(out.freeze())
}

/// Splits a byte stream into lines.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    fn push(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        self.partial.extend_from_slice(piece);
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
            let rest = self.partial.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.partial, rest);
            line.pop();
            lines.push(line);
        }
        lines
    }
}
