//! The spoke: finds what is new, offers it, ships what the hub lacks, and believes only receipts.
//!
//! [`plan`] and [`fault`] decide over values; [`scan`], [`ledger`], [`hub_client`] and [`push`]
//! act. Nothing here prints or reads the environment; time and randomness come in by [`Edge`].
//! Only `hub_client.rs` knows reqwest.

pub mod budget;
pub mod config;
pub mod drive;
pub mod edge;
pub mod enroll;
pub mod error;
pub mod export;
pub mod fault;
pub mod hub_client;
pub mod identity;
pub mod ledger;
pub mod lock;
pub mod look;
pub mod pin;
pub mod plan;
pub mod priority;
pub mod push;
pub mod rebuild;
pub mod requeue;
pub mod scan;
pub mod select;
pub mod status;
pub mod timetable;
pub mod watch;

pub use config::{SpokeConfig, StateFolder};
pub use edge::Edge;
pub use error::Error;
pub use ledger::Ledger;
pub use push::{Event, PushReport};

/// The version that a spoke reports to its hub.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
