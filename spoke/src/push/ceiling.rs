//! How much goes in one body to each address, where something on the way refuses larger ones.

use std::collections::HashMap;

use barque_bundle::Timestamp;

use crate::error::Error;
use crate::hub_client::Stranger;
use crate::ledger::Ledger;

/// A body of this size or less is never made smaller.
pub(super) const FLOOR_BYTES: u64 = 64 * 1024;

/// What is remembered of each address.
pub(super) struct Ceilings(HashMap<String, u64>);

impl Ceilings {
    /// As the ledger remembers them; what was learned a week ago is tried anew.
    pub(super) fn load(ledger: &Ledger, now: Timestamp) -> Result<Self, Error> {
        Ok(Self(ledger.body_sizes(now)?))
    }

    /// Most bytes of a body to an address.
    pub(super) fn of(&self, address: &str) -> u64 {
        self.0.get(address).copied().unwrap_or(u64::MAX)
    }

    /// Halves what goes in one body after a refusal that may be for its size; false when it is
    /// not, or when nothing smaller is worth a try.
    pub(super) fn lower(
        &mut self,
        ledger: &mut Ledger,
        refused: &Stranger,
        now: Timestamp,
    ) -> Result<bool, Error> {
        if !refused.may_be_about_size() || refused.body_bytes <= FLOOR_BYTES {
            return Ok(false);
        }
        let before = self.of(&refused.address).min(refused.body_bytes);
        let bytes = (before / 2).max(FLOOR_BYTES);
        tracing::warn!(
            address = %refused.address,
            status = refused.status,
            refused_bytes = refused.body_bytes,
            bytes,
            "something on the way refuses large bodies; less goes in one from now on"
        );
        self.0.insert(refused.address.clone(), bytes);
        ledger.set_body_size(&refused.address, bytes, now)?;
        Ok(true)
    }
}
