//! How a message reaches another node: the only thing this crate knows of a network.

use std::future::Future;
use std::pin::Pin;

/// A message did not reach the node, or its answer did not come back.
#[derive(Clone, Debug, thiserror::Error)]
#[error("node {target} at {address} cannot be reached: {why}")]
pub struct TransportError {
    pub target: u64,
    pub address: String,
    pub why: String,
}

pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, TransportError>> + Send + 'a>>;

/// How much a request carries: one that carries more must not hold one up that carries less, so that a
/// node behind a slow line hears from its leader in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// A heartbeat, a vote.
    Light,
    /// Entries of the log.
    Entries,
    /// A piece of a snapshot.
    Snapshot,
}

/// Carries one request to a node, whose [`crate::Node::handle`] answers it.
pub trait Transport: Send + Sync + 'static {
    fn call<'a>(
        &'a self,
        target: u64,
        address: &'a str,
        request: Vec<u8>,
        weight: Weight,
    ) -> Answer<'a>;
}

/// The transport of a cluster of one: there is nobody to call.
pub struct Alone;

impl Transport for Alone {
    fn call<'a>(&'a self, target: u64, address: &'a str, _: Vec<u8>, _: Weight) -> Answer<'a> {
        let why = "this hub is a cluster of one".to_owned();
        Box::pin(async move { Err(TransportError { target, address: address.to_owned(), why }) })
    }
}
