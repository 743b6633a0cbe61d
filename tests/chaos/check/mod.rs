//! What must hold after any schedule, each in a file of its own.

pub mod changes;
pub mod delivered;
pub mod equal;
pub mod one_digest;
pub mod promises;
pub mod redelivery;
