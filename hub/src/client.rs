//! An operator's calls to a hub, over `hub.sock` of a data folder or over the network, and a node's
//! calls to other nodes.
//!
//! The only file of this crate that knows reqwest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use barque_bundle::wire::Problem;
use barque_bundle::{ErrorKind, PublicKey, platform};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::cluster::tls;
use crate::cluster::wire::{Answer, Call, Lane, Wire, WireError};
use crate::config::DataFolder;
use crate::error::Error;

/// How long a hub that is starting is waited for.
const START_WAIT: Duration = Duration::from_secs(10);
const CALL_WAIT: Duration = Duration::from_secs(60);
/// Longest that a drive may take; what stalls is seen before.
const TRANSFER_WAIT: Duration = Duration::from_secs(30 * 86_400);
const STALL_CHECK: Duration = Duration::from_secs(10);
const STALLED_AFTER: Duration = Duration::from_secs(15 * 60);

/// Why an operator's call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no hub is running on {0}; start it with: barque hub serve --data {0}")]
    NotRunning(PathBuf),
    #[error("the hub on {0} is still starting; try again")]
    Starting(PathBuf),
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    #[error("the hub cannot be reached")]
    Http(#[from] reqwest::Error),
    #[error("the hub's answer is not understood")]
    Malformed(#[source] serde_json::Error),
    #[error("{path}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("nothing moved for {} min between here and the hub; what it has verified stands, run the same command again", .0.as_secs() / 60)]
    Stalled(Duration),
    #[error("{0}")]
    Address(String),
}

impl ClientError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(p) => ErrorKind::from_http_status(p.status),
            Self::NotRunning(_) | Self::Starting(_) | Self::Http(_) | Self::Stalled(_) => {
                ErrorKind::Unavailable
            }
            Self::Malformed(_) => ErrorKind::Corrupt,
            Self::Io { .. } | Self::Address(_) => ErrorKind::Invalid,
        }
    }
}

/// Where the hub is and how the caller proves who it is.
pub struct AdminClient {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    /// The data folder of a local hub, and what keeps its short socket path alive.
    local: Option<(PathBuf, platform::ShortPath)>,
}

impl AdminClient {
    /// A client of the hub that runs on a data folder; needs no token, TLS or address.
    pub fn local(data: &Path) -> Result<Self, ClientError> {
        let socket = DataFolder(data).socket();
        let wrap = |source| ClientError::Io { path: socket.clone(), source };
        if !data.is_dir() {
            return Err(ClientError::NotRunning(data.to_owned()));
        }
        let short = platform::ShortPath::new(&socket).map_err(wrap)?;
        let http =
            reqwest::Client::builder().unix_socket(short.as_path()).timeout(CALL_WAIT).build()?;
        let local = Some((data.to_owned(), short));
        Ok(Self { http, base: "http://localhost".to_owned(), token: None, local })
    }

    /// A client of a hub elsewhere; `ca` holds the hub's `tls/ca.pem` unless the system trusts it.
    pub fn remote(url: &str, token: String, ca: Option<&[u8]>) -> Result<Self, ClientError> {
        let mut builder = reqwest::Client::builder()
            .timeout(CALL_WAIT)
            .redirect(reqwest::redirect::Policy::none());
        if let Some(pem) = ca {
            builder = builder.tls_certs_only(reqwest::Certificate::from_pem_bundle(pem)?);
        }
        let base = url.trim_end_matches('/').to_owned();
        Ok(Self { http: builder.build()?, base, token: Some(token), local: None })
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(reqwest::Method::GET, path, None::<&()>).await
    }

    /// [`AdminClient::get`] of a hub that was running a moment ago: one that is gone is not waited
    /// for.
    pub async fn get_now<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        match (self.once(reqwest::Method::GET, path, None::<&()>).await, &self.local) {
            (Err(ClientError::Http(e)), Some((data, _))) if e.is_connect() => {
                Err(ClientError::NotRunning(data.clone()))
            }
            (answer, _) => answer,
        }
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.call(reqwest::Method::POST, path, Some(body)).await
    }

    /// Sends pieces as they come; the hub may answer before their end.
    pub async fn send<T: DeserializeOwned>(
        &self,
        path: &str,
        mut pieces: mpsc::Receiver<std::io::Result<Bytes>>,
    ) -> Result<T, ClientError> {
        let last = Arc::new(Mutex::new(Instant::now()));
        let moved = Arc::clone(&last);
        let body = futures_util::stream::poll_fn(move |cx| {
            let polled = pieces.poll_recv(cx);
            if polled.is_ready() {
                *moved.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
            polled
        });
        let request = self.http.post(format!("{}{path}", self.base)).timeout(TRANSFER_WAIT);
        let request = self.authorized(request).body(reqwest::Body::wrap_stream(body));
        let answer = async { answer(request.send().await?).await };
        tokio::pin!(answer);
        loop {
            tokio::select! {
                answer = &mut answer => return answer,
                () = tokio::time::sleep(STALL_CHECK) => {
                    let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
                    if last.elapsed() > STALLED_AFTER {
                        return Err(ClientError::Stalled(STALLED_AFTER));
                    }
                }
            }
        }
    }

    /// Pieces of a body, each as it arrives; `None` at its end.
    pub async fn fetch(&self, path: &str) -> Result<Fetched, ClientError> {
        let request = self.http.get(format!("{}{path}", self.base)).timeout(TRANSFER_WAIT);
        let response = self.authorized(request).send().await?;
        if response.status().is_success() {
            return Ok(Fetched(response));
        }
        Err(match answer::<serde_json::Value>(response).await {
            Err(e) => e,
            Ok(_) => ClientError::Refused(Box::default()),
        })
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(reqwest::Method::DELETE, path, None::<&()>).await
    }

    /// Sends until a local hub that is starting is up, at most 10 s.
    async fn call<T: DeserializeOwned>(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + START_WAIT;
        loop {
            let answer = self.once(method.clone(), path, body).await;
            let Some((data, _)) = &self.local else {
                return answer;
            };
            let late = match &answer {
                Err(ClientError::Http(e)) if e.is_connect() => {
                    ClientError::NotRunning(data.clone())
                }
                Err(ClientError::Refused(p)) if p.code == "starting" => {
                    ClientError::Starting(data.clone())
                }
                _ => return answer,
            };
            if Instant::now() >= deadline {
                return Err(late);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn once<T: DeserializeOwned>(
        &self,
        method: reqwest::Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ClientError> {
        let request = self.http.request(method, format!("{}{path}", self.base));
        let mut request = self.authorized(request);
        if let Some(body) = body {
            request = request.json(body);
        }
        answer(request.send().await?).await
    }
}

/// The JSON of an answer, or the problem that it tells.
async fn answer<T: DeserializeOwned>(response: reqwest::Response) -> Result<T, ClientError> {
    let status = response.status();
    let bytes = response.bytes().await?;
    if status.is_success() {
        return serde_json::from_slice(&bytes).map_err(ClientError::Malformed);
    }
    let problem = serde_json::from_slice(&bytes).unwrap_or_else(|_| Problem {
        status: status.as_u16(),
        code: "not_a_hub".to_owned(),
        detail: format!("something that is not a hub answered {status}"),
        ..Problem::default()
    });
    Err(ClientError::Refused(Box::new(problem)))
}

/// A body that arrives.
pub struct Fetched(reqwest::Response);

impl Fetched {
    /// The next piece; fails when nothing comes for too long.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, ClientError> {
        let piece = tokio::time::timeout(CALL_WAIT, self.0.chunk()).await;
        piece.map_err(|_| ClientError::Stalled(CALL_WAIT))?.map_err(ClientError::Http)
    }
}

const NODE_CONNECT_WAIT: Duration = Duration::from_secs(2);
const NODE_KEEP_ALIVE: Duration = Duration::from_secs(5);
const NODE_WINDOW: u32 = 4 << 20;

/// A node's calls to other nodes: over HTTP/2, each to the node that its certificate names.
pub struct NodeClient {
    raft: reqwest::Client,
    log: reqwest::Client,
    work: reqwest::Client,
    hosts: Arc<Hosts>,
    is_plain: bool,
}

/// At which host each node is, for whoever resolves its name.
#[derive(Default)]
struct Hosts(Mutex<BTreeMap<String, String>>);

struct Resolver(Arc<Hosts>);

impl reqwest::dns::Resolve for Resolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let hosts = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let host = hosts.get(name.as_str()).cloned();
        Box::pin(async move {
            let host = host.ok_or("no node of this name is known")?;
            // The port is that of the address that is called.
            let found = tokio::net::lookup_host((host, 0)).await?;
            Ok(Box::new(found) as reqwest::dns::Addrs)
        })
    }
}

/// Host and port of `host:port`, `[v6]:port` or `v6%zone` in brackets.
pub fn split_address(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(v6) => v6.strip_suffix(']')?,
        None if host.contains(':') => return None,
        None => host,
    };
    (!host.is_empty()).then_some(())?;
    Some((host, port.parse().ok()?))
}

impl NodeClient {
    pub fn new(root: &PublicKey, own: &tls::Credentials, is_plain: bool) -> Result<Self, Error> {
        Self::build(&tls::client(root, Some(own))?, is_plain)
    }

    /// The client of a node that is none yet.
    pub fn joining(root: &PublicKey, is_plain: bool) -> Result<Self, Error> {
        Self::build(&tls::client(root, None)?, is_plain)
    }

    fn build(tls: &rustls::ClientConfig, is_plain: bool) -> Result<Self, Error> {
        let hosts = Arc::<Hosts>::default();
        // One connection for each lane, so that no body holds a heartbeat up.
        let client = || {
            reqwest::Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .connect_timeout(NODE_CONNECT_WAIT)
                .http2_prior_knowledge()
                .http2_keep_alive_interval(NODE_KEEP_ALIVE)
                .http2_keep_alive_timeout(NODE_KEEP_ALIVE)
                .http2_keep_alive_while_idle(true)
                .http2_initial_stream_window_size(NODE_WINDOW)
                .http2_initial_connection_window_size(2 * NODE_WINDOW)
                .dns_resolver(Arc::new(Resolver(Arc::clone(&hosts))))
                .build()
                .map_err(|e| Error::Tls(e.to_string()))
        };
        Ok(Self {
            raft: client()?,
            log: client()?,
            work: client()?,
            hosts: Arc::clone(&hosts),
            is_plain,
        })
    }

    fn url(&self, node_id: u64, address: &str, path: &str) -> Result<String, WireError> {
        let (host, port) = split_address(address).ok_or_else(|| {
            WireError::not_sent(format!("{address} is no address of the form host:port"))
        })?;
        let name = tls::name_of(node_id);
        let mut hosts = self.hosts.0.lock().unwrap_or_else(PoisonError::into_inner);
        hosts.insert(name.clone(), host.to_owned());
        let scheme = if self.is_plain { "http" } else { "https" };
        Ok(format!("{scheme}://{name}:{port}{path}"))
    }

    /// The JSON that a node answers to JSON.
    pub async fn post<T: DeserializeOwned>(
        &self,
        node_id: u64,
        address: &str,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let url = self.url(node_id, address, path).map_err(|e| ClientError::Address(e.why))?;
        answer(self.work.post(url).timeout(CALL_WAIT).json(body).send().await?).await
    }
}

impl Wire for NodeClient {
    fn call<'a>(&'a self, node_id: u64, address: &'a str, lane: Lane, call: Call) -> Answer<'a> {
        Box::pin(async move {
            let url = self.url(node_id, address, &call.path)?;
            let client = match lane {
                Lane::Raft => &self.raft,
                Lane::Log => &self.log,
                Lane::Work => &self.work,
            };
            let body = reqwest::Body::wrap_stream(call.body.into_data_stream());
            let request = client.request(call.method, url).headers(call.headers).body(body);
            let response = request.send().await.map_err(|e| WireError {
                may_have_arrived: !e.is_connect() && !e.is_builder(),
                // An operator may see it, and where nodes are is nobody's business.
                why: crate::error::chain(&e.without_url()),
            })?;
            let mut answer = axum::http::Response::new(Body::empty());
            *answer.status_mut() = response.status();
            *answer.headers_mut() = response.headers().clone();
            *answer.body_mut() = Body::from_stream(response.bytes_stream());
            Ok(answer)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_split_behind_its_brackets_and_nowhere_else() {
        assert_eq!(split_address("10.0.0.1:7272"), Some(("10.0.0.1", 7272)));
        assert_eq!(split_address("[::1]:7001"), Some(("::1", 7001)));
        assert_eq!(split_address("[fe80::1%eth0]:7001"), Some(("fe80::1%eth0", 7001)));
        assert_eq!(split_address("node-b.example:1"), Some(("node-b.example", 1)));
        for odd in ["::1", "::1:7001", "fe80::1%eth0", "localhost", ":1", "[::1]", "a:b", "[]:1"] {
            assert_eq!(split_address(odd), None, "{odd}");
        }
    }
}
