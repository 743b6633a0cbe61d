//! An operator's calls to a hub: over `hub.sock` of a data folder, or over the network.
//!
//! The only file of this crate that knows reqwest.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use barque_bundle::wire::Problem;
use barque_bundle::{ErrorKind, platform};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::DataFolder;

/// How long a hub that is starting is waited for.
const START_WAIT: Duration = Duration::from_secs(10);
const CALL_WAIT: Duration = Duration::from_secs(60);

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
}

impl ClientError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(p) => ErrorKind::from_http_status(p.status),
            Self::NotRunning(_) | Self::Starting(_) | Self::Http(_) => ErrorKind::Unavailable,
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

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.call(reqwest::Method::POST, path, Some(body)).await
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
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await?;
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
}
