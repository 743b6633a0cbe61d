//! An operator's calls to a hub: over `hub.sock` of a data folder, or over the network.
//!
//! The only file of this crate that knows reqwest.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use barque_bundle::wire::Problem;
use barque_bundle::{ErrorKind, platform};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::config::DataFolder;

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
}

impl ClientError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(p) => ErrorKind::from_http_status(p.status),
            Self::NotRunning(_) | Self::Starting(_) | Self::Http(_) | Self::Stalled(_) => {
                ErrorKind::Unavailable
            }
            Self::Malformed(_) => ErrorKind::Corrupt,
            Self::Io { .. } => ErrorKind::Invalid,
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
