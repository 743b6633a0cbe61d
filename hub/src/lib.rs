//! The hub: what arrives is verified, made durable, agreed on, and then seen.
//!
//! One way in ([`receive`]) serves every road, one replicated [`manifest`] decides, and each node
//! works its own copies off from that state ([`promote`]). Only this crate knows axum; only
//! `client.rs` knows reqwest. It never opens a connection to a spoke (invariant S1).

mod background;
pub mod client;
pub mod cluster;
pub mod command;
pub mod config;
pub mod describe;
pub mod error;
pub mod footer;
pub mod gate;
pub mod http;
pub mod hub;
pub mod identity;
pub mod import;
pub mod landing;
pub mod ledger;
pub mod manifest;
pub mod metrics;
pub mod promote;
pub mod propose;
pub mod receive;
pub mod reconcile;
pub mod recover;
pub mod registry;
pub mod staging;
pub mod stores;
pub mod sweep;
pub mod tls;
pub mod upload;

pub use client::AdminClient;
pub use config::HubConfig;
pub use error::{Error, Refusal};
pub use http::{Front, Said};
pub use hub::{Fronts, Hub};
pub use identity::Identity;

/// The version that answers and reports carry.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
