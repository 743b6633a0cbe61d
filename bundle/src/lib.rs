//! The vocabulary and the format that spoke and hub exchange.
//!
//! A bundle, its header, its receipt and the words in them are the same on a wire and on a drive;
//! this crate owns their shape, their checks and their signatures.
//! It never opens a connection, reads a clock or makes randomness: those come in as values.

pub mod archive;
pub mod database;
pub mod digest;
pub mod door;
pub mod entry;
pub mod error;
pub mod fault;
pub mod header;
pub mod id;
pub mod jwt;
pub mod key;
pub mod open;
pub mod path;
pub mod platform;
pub mod portable;
pub mod quantity;
pub mod ranges;
pub mod receipt;
mod schema;
pub mod stream;
pub mod thrift;
pub mod time;
pub mod wire;

pub use digest::Sha256Digest;
pub use entry::Entry;
pub use error::ErrorKind;
pub use header::{Header, Signed};
pub use id::{BundleId, HubEpoch, HubId, SeriesId, SpokeId};
pub use key::{KeyId, PublicKey, SecretKey};
pub use path::{FilePath, LandedName};
pub use quantity::ByteSize;
pub use ranges::Ranges;
pub use receipt::{Outcome, OutcomeLine, Receipt};
pub use time::Timestamp;
