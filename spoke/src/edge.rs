//! Where time and randomness enter.

use std::sync::Arc;

use barque_bundle::Timestamp;

/// The local clock and a source of random bytes, as values.
#[derive(Clone)]
pub struct Edge {
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    pub random: Arc<dyn Fn() -> [u8; 32] + Send + Sync>,
}

impl Edge {
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Ten random bytes: the free part of an id.
    pub fn id_bytes(&self) -> [u8; 10] {
        let bytes = (self.random)();
        std::array::from_fn(|i| bytes[i])
    }
}
