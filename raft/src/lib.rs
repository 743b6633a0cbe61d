//! Consensus over opaque, versioned commands: openraft with a SQLite log.
//!
//! This crate carries bytes and does not know what a file is. It never opens a connection: a
//! [`Transport`] carries messages to other nodes, and a [`StateMachine`] keeps what was agreed.
//! Invariants kept here: A2 (rows and Raft position move together, by the contract of
//! [`StateMachine::apply`]) and A3 (vote and log are on disk before anyone hears of them).

#![expect(clippy::result_large_err, reason = "openraft's errors are large, and rare")]

pub mod log_store;
mod members;
pub mod message;
pub mod node;
pub mod recover;
pub mod snapshot;
mod stall;
pub mod state_machine;
pub mod transport;
pub mod types;

pub use log_store::{LogStore, LogStoreError};
pub use node::{Limits, Node, NodeStatus, ProposeError, StartError};
pub use recover::{RecoverError, Recovered, recover};
pub use snapshot::{SnapshotFile, SnapshotView};
pub use state_machine::{StateMachine, applied_index};
pub use transport::{Alone, Transport, TransportError, Weight};
