//! How one node calls another: a request and its answer, over whatever carries them.
//!
//! [`crate::client::NodeClient`] is the one over the network; tests put one in between that cuts,
//! delays, drops and repeats.

use std::future::Future;
use std::pin::Pin;

use axum::body::Body;
use axum::http::{HeaderMap, Method, Response};

/// Calls of one lane do not wait for those of another: each has a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Raft's heartbeats and votes: small, and late ones cost an election.
    Raft,
    /// Entries of Raft's log.
    Log,
    /// All else, bodies of any size among it.
    Work,
}

/// A request to another node; `path` with its query.
#[derive(Debug)]
pub struct Call {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Call {
    /// The same call twice, for a wire that repeats: its body is read whole first.
    pub async fn doubled(self) -> Result<(Self, Self), WireError> {
        let bytes = axum::body::to_bytes(self.body, usize::MAX)
            .await
            .map_err(|e| WireError::not_sent(e.to_string()))?;
        let with = |body: axum::body::Bytes| Self {
            method: self.method.clone(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            body: Body::from(body),
        };
        Ok((with(bytes.clone()), with(bytes)))
    }
}

/// A call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct WireError {
    /// Whether the other node may have got it: then what it asked for may have happened (D4).
    pub may_have_arrived: bool,
    pub why: String,
}

impl WireError {
    pub fn not_sent(why: impl Into<String>) -> Self {
        Self { may_have_arrived: false, why: why.into() }
    }

    pub fn unknown(why: impl Into<String>) -> Self {
        Self { may_have_arrived: true, why: why.into() }
    }
}

pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response<Body>, WireError>> + Send + 'a>>;

/// Carries a call to a node at an address, and its answer back.
pub trait Wire: Send + Sync + 'static {
    fn call<'a>(&'a self, node_id: u64, address: &'a str, lane: Lane, call: Call) -> Answer<'a>;
}

/// The wire of a hub without a cluster listener: there is nobody to call.
pub struct Nobody;

impl Wire for Nobody {
    fn call<'a>(&'a self, _: u64, _: &'a str, _: Lane, _: Call) -> Answer<'a> {
        let why = "this node has no cluster listener; start it with --cluster-listen";
        Box::pin(async move { Err(WireError::not_sent(why)) })
    }
}
