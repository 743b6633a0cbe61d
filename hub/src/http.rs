//! The hub over HTTP: routes, listeners, errors. One file a first path segment.
//!
//! The public listener speaks TLS (plain only when asked); `hub.sock` is for the machine's own
//! operator: its peer's uid is checked and it acts as admin.

mod accept;
mod api;
pub mod body;
mod bundle_import;
mod changes;
mod cluster;
mod enroll;
mod files;
mod forward;
mod front;
mod metrics;
mod node_listener;
pub(crate) mod position;
mod problem;
mod range;
mod routes;
mod schemas;
mod serve;
mod status;
mod sync;
mod sync_spokes;
mod tokens;
mod uploads;

use std::future::Future;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Extension, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::serve::IncomingStream;
use axum_server::accept::DefaultAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use barque_bundle::wire::{self, Role};
use barque_bundle::{ErrorKind, platform};

pub(crate) use forward::ROLE_HEADER;
pub use front::{Front, Said};
pub use problem::Problem;

use crate::config::DataFolder;
use crate::error::{Error, Refusal, chain};
use crate::hub::{Parts, public_url, tls_config};
use crate::registry;
use crate::tls;
use accept::Limited;
use node_listener::NodeListener;
use routes::Spokes;

const HEADER_WAIT: Duration = Duration::from_secs(30);
const RENEWAL_CHECK: Duration = Duration::from_secs(24 * 3600);
/// How often the certificate on disk is looked at.
const FILES_CHECK: Duration = Duration::from_secs(15);

/// By which door a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Public,
    Socket,
    /// From a client of another node, which has passed it on.
    Node,
}

fn router(parts: Arc<Parts>, door: Door) -> Router {
    let is_import_only = parts.config.import_only && door != Door::Socket;
    routes::api(if is_import_only { Spokes::ByDrive } else { Spokes::Call })
        .into_router()
        .fallback(problem::not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&parts), position::stamp))
        .layer(middleware::from_fn_with_state(Arc::clone(&parts), shed))
        .layer(middleware::from_fn_with_state(Arc::clone(&parts), log_request))
        .layer(Extension(door))
        .with_state(parts)
}

/// Turns requests away that are too many to be served in time; those under way are served.
async fn shed(
    State(parts): State<Arc<Parts>>,
    Extension(door): Extension<Door>,
    request: Request,
    next: Next,
) -> Response {
    let places = match request.uri().path() {
        // Whoever watches the hub has to see that it is merely busy.
        "/healthz" | "/readyz" | "/metrics" => return next.run(request).await,
        _ if door != Door::Public => return next.run(request).await,
        // Anybody may call this one, so it takes no place of others.
        wire::ENROLL => &parts.enrollments,
        _ => &parts.requests,
    };
    match Arc::clone(places).try_acquire_owned() {
        Ok(_place) => next.run(request).await,
        Err(_) => {
            body::discard(request.into_body());
            let detail = "the hub serves as many requests as it can; try again";
            let refusal = Refusal::new(ErrorKind::Unavailable, "hub_busy", detail);
            Problem::from(refusal).into_response()
        }
    }
}

/// One line an event, with the request id that the spoke logs too.
async fn log_request(
    State(parts): State<Arc<Parts>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let id = request.headers().get(wire::REQUEST_ID).cloned();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = next.run(request).await;
    let (route, status) = (route.as_ref().map_or("none", MatchedPath::as_str), response.status());
    parts.metrics.answered(&method, route, status.as_u16(), started.elapsed());
    let id = id.filter(|v| v.len() <= 64 && v.to_str().is_ok());
    tracing::debug!(
        request_id = id.as_ref().and_then(|v| v.to_str().ok()),
        %method,
        path = %barque_bundle::path::printable(&path),
        status = status.as_u16(),
        "request"
    );
    if let Some(id) = id {
        response.headers_mut().insert(wire::REQUEST_ID, id);
    }
    response
}

/// The uid at the other end of `hub.sock`.
#[derive(Clone, Copy, Debug)]
struct PeerUid(Option<u32>);

impl axum::extract::connect_info::Connected<IncomingStream<'_, tokio::net::UnixListener>>
    for PeerUid
{
    fn connect_info(stream: IncomingStream<'_, tokio::net::UnixListener>) -> Self {
        Self(stream.io().peer_cred().ok().map(|c| c.uid()))
    }
}

/// Who asks, as far as operators and readers go.
struct Operator {
    door: Door,
    peer: Option<PeerUid>,
    bearer: Option<String>,
    /// What another node found its caller to be.
    passed_on: Option<Role>,
}

impl<S: Send + Sync> axum::extract::FromRequestParts<S> for Operator {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        request: &mut axum::http::request::Parts,
        _state: &S,
    ) -> Result<Self, Self::Rejection> {
        let door = request.extensions.get::<Door>().copied().unwrap_or(Door::Public);
        let peer = request.extensions.get::<ConnectInfo<PeerUid>>().map(|c| c.0);
        let passed_on = request.headers.get(forward::ROLE_HEADER);
        let passed_on = passed_on.and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
        Ok(Self { door, peer, bearer: bearer(&request.headers), passed_on })
    }
}

impl Operator {
    /// Holds when the caller has at least this role; refuses while the hub starts.
    async fn require(&self, parts: &Arc<Parts>, needed: Role) -> Result<(), Error> {
        if self.door != Door::Socket {
            parts.require_ready()?;
        }
        self.require_role(parts, needed).await
    }

    /// [`Operator::require`], also while the hub starts.
    async fn require_role(&self, parts: &Arc<Parts>, needed: Role) -> Result<(), Error> {
        if self.door == Door::Socket {
            let uid = self.peer.and_then(|p| p.0);
            let own = platform::effective_uid();
            if uid.is_some_and(|uid| uid == own || uid == 0) {
                return Ok(());
            }
            let detail = "hub.sock is for the user that runs the hub, and root";
            return Err(Refusal::new(ErrorKind::Forbidden, "wrong_user", detail).into());
        }
        if self.door == Door::Node
            && let Some(role) = self.passed_on
        {
            return Ok(registry::require(role, needed)?);
        }
        let (readers, bearer) = (parts.readers.clone(), self.bearer.clone());
        let role =
            tokio::task::spawn_blocking(move || registry::role_of(&readers, bearer.as_deref()));
        let role = role.await.map_err(|e| Error::Malformed(e.to_string()))??;
        Ok(registry::require(role, needed)?)
    }
}

/// The bearer token of a request, if it has one.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
}

/// The bound listeners of a hub, before anything is served.
pub struct Listeners {
    tcp: TcpListener,
    socket: std::os::unix::net::UnixListener,
    tls: Option<RustlsConfig>,
    /// The pair on disk before it was read.
    seen: Vec<u8>,
    nodes: Option<NodeListener>,
}

impl Listeners {
    /// Binds both listeners and makes the TLS certificate when it is due.
    pub fn bind(parts: &Parts) -> Result<Self, Error> {
        let listen = &parts.config.listen;
        let in_use = |e: std::io::Error| {
            Error::Unusable(format!("cannot listen on {listen}: {e}; choose another with --listen"))
        };
        let tcp = TcpListener::bind(listen).map_err(in_use)?;
        tcp.set_nonblocking(true).map_err(in_use)?;
        let address = tcp.local_addr().map_err(in_use)?;
        let url = public_url(&parts.config, parts.identity.url.as_deref(), address.port());
        let _ = parts.url.set(url);
        let seen = tls::fingerprint(&DataFolder(&parts.config.data).tls());
        let tls = match parts.config.plain {
            true => None,
            false => Some(RustlsConfig::from_config(tls_config(parts)?)),
        };
        let nodes = NodeListener::bind(parts)?;
        let socket = bind_socket(parts)?;
        tracing::info!(%address, url = parts.url.get(), tls = tls.is_some(), "listening");
        Ok(Self { tcp, socket, tls, seen, nodes })
    }

    /// Serves until `stop` ends; requests under way get `wait` to finish.
    pub async fn serve(
        self,
        parts: Arc<Parts>,
        stop: impl Future<Output = ()>,
        wait: Duration,
    ) -> Result<(), Error> {
        let (stopping, stopped) = tokio::sync::watch::channel(false);
        let socket_task = tokio::spawn(serve_socket(self.socket, Arc::clone(&parts), stopped));
        let for_nodes = self.nodes.and_then(|nodes| nodes.serve(&parts));
        let seen = self.seen;
        let renewing =
            self.tls.clone().map(|tls| tokio::spawn(renew(Arc::clone(&parts), tls, seen)));
        let app = router(Arc::clone(&parts), Door::Public);
        let lost = |source| Error::Io { what: "the listener failed", path: "".into(), source };
        let stop = async {
            stop.await;
            tracing::info!("stopping");
        };
        let connections_max = parts.config.connections_max;
        let served = match self.tls {
            Some(tls) => {
                let acceptor = Limited::new(RustlsAcceptor::new(tls), connections_max, HEADER_WAIT);
                serve::serve(self.tcp, acceptor, app, stop, wait).await
            }
            None => {
                let acceptor = DefaultAcceptor::new();
                let acceptor = Limited::new(acceptor, connections_max, HEADER_WAIT);
                serve::serve(self.tcp, acceptor, app, stop, wait).await
            }
        };
        stopping.send_replace(true);
        let _ = tokio::time::timeout(wait, socket_task).await;
        if let Some(task) = renewing {
            task.abort();
        }
        drop(for_nodes);
        let _ = std::fs::remove_file(DataFolder(&parts.config.data).socket());
        served.map_err(lost)
    }
}

fn bind_socket(parts: &Parts) -> Result<std::os::unix::net::UnixListener, Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = DataFolder(&parts.config.data).socket();
    let wrap = || Error::io("cannot listen on", &path);
    // The lock on the data folder says that no other hub serves it.
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(wrap()(e)),
        _ => {}
    }
    let short = platform::ShortPath::new(&path).map_err(wrap())?;
    let listener = std::os::unix::net::UnixListener::bind(short.as_path()).map_err(wrap())?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(wrap())?;
    listener.set_nonblocking(true).map_err(wrap())?;
    Ok(listener)
}

async fn serve_socket(
    listener: std::os::unix::net::UnixListener,
    parts: Arc<Parts>,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::error!(error = %e, "hub.sock cannot be served");
            return;
        }
    };
    let app = router(parts, Door::Socket).into_make_service_with_connect_info::<PeerUid>();
    let stop = async move {
        let _ = stopped.wait_for(|s| *s).await;
    };
    if let Err(e) = axum::serve(listener, app).with_graceful_shutdown(stop).await {
        tracing::error!(error = %e, "hub.sock failed");
    }
}

/// Gives new connections the certificate that is on disk: looks often whether it is another one,
/// daily whether it is due, and at once when told. One that does not fit its key waits.
async fn renew(parts: Arc<Parts>, tls: RustlsConfig, mut seen: Vec<u8>) {
    let folder = DataFolder(&parts.config.data).tls();
    let mut due = Instant::now() + RENEWAL_CHECK;
    loop {
        let is_told = tokio::select! {
            () = tokio::time::sleep(FILES_CHECK) => false,
            () = parts.reload.notified() => true,
        };
        let there = tls::fingerprint(&folder);
        if there == seen && !is_told && Instant::now() < due {
            continue;
        }
        match tls_config(&parts) {
            Ok(config) => {
                tls.reload_from_config(config);
                tracing::info!("new connections get the certificate that is on disk now");
                seen = there;
                due = Instant::now() + RENEWAL_CHECK;
            }
            Err(e) => tracing::warn!(
                error = %chain(&e),
                "the certificate on disk cannot be used; the one before goes on"
            ),
        }
    }
}

/// A header value of text that is ASCII by construction.
fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}
