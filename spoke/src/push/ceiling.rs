//! How much goes in one body to each address, where something on the way refuses larger ones.

use std::collections::HashMap;

use barque_bundle::Timestamp;

use crate::error::Error;
use crate::hub_client::Stranger;
use crate::ledger::Ledger;

/// A body of this size or less is never made smaller.
pub(super) const FLOOR_BYTES: u64 = 64 * 1024;

/// What goes in one body to an address.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    bytes: u64,
    /// The hub has answered there since, and the ledger has it.
    is_proven: bool,
}

/// What is known of each address.
pub(super) struct Ceilings(HashMap<String, Ceiling>);

impl Ceilings {
    /// As the ledger remembers them; what was learned a week ago is tried anew.
    pub(super) fn load(ledger: &Ledger, now: Timestamp) -> Result<Self, Error> {
        let known = ledger.body_sizes(now)?.into_iter();
        Ok(Self(known.map(|(a, bytes)| (a, Ceiling { bytes, is_proven: true })).collect()))
    }

    /// Most bytes of a body to an address.
    pub(super) fn of(&self, address: &str) -> u64 {
        self.0.get(address).map_or(u64::MAX, |c| c.bytes)
    }

    /// Halves what goes in one body after a refusal that may be for its size; false when it is
    /// not, or when nothing smaller is worth a try. Whoever refuses also small bodies is not about
    /// size: what was learned of it is forgotten.
    pub(super) fn lower(&mut self, refused: &Stranger) -> bool {
        if !refused.may_be_about_size() {
            return false;
        }
        let before = self.of(&refused.address);
        let is_at_the_floor = before <= FLOOR_BYTES && refused.body_bytes < 2 * FLOOR_BYTES;
        if refused.body_bytes <= FLOOR_BYTES || is_at_the_floor {
            if self.0.get(&refused.address).is_some_and(|c| !c.is_proven) {
                self.0.remove(&refused.address);
            }
            return false;
        }
        let bytes = (before.min(refused.body_bytes) / 2).max(FLOOR_BYTES);
        tracing::warn!(
            address = %refused.address,
            status = refused.status,
            refused_bytes = refused.body_bytes,
            bytes,
            "something on the way refuses large bodies; less goes in one from now on"
        );
        self.0.insert(refused.address.clone(), Ceiling { bytes, is_proven: false });
        true
    }

    /// The hub has answered at an address; what was learned there is kept.
    pub(super) fn proven(
        &mut self,
        ledger: &mut Ledger,
        address: &str,
        now: Timestamp,
    ) -> Result<(), Error> {
        match self.0.get_mut(address) {
            Some(c) if !c.is_proven => {
                ledger.set_body_size(address, c.bytes, now)?;
                c.is_proven = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, body_bytes: u64) -> Stranger {
        Stranger { address: "a".to_owned(), status, body_bytes, ..Stranger::default() }
    }

    #[test]
    fn bodies_are_halved_down_to_the_floor_and_a_box_that_refuses_all_teaches_nothing() {
        let mut c = Ceilings(HashMap::new());
        assert!(c.lower(&refused(413, 400_000)));
        assert_eq!((c.of("a"), c.of("b")), (200_000, u64::MAX));
        assert!(c.lower(&refused(302, 199_000)));
        assert!(c.lower(&refused(200, 99_000)));
        assert_eq!(c.of("a"), FLOOR_BYTES);
        // A page with a little more than its rows in it is not cut for ever.
        assert!(!c.lower(&refused(200, 70_000)));
        assert_eq!(c.of("a"), u64::MAX);
        assert!(!c.lower(&refused(502, 400_000)));
        // Packed for an address that takes more.
        let mut c = Ceilings(HashMap::from([(
            "a".to_owned(),
            Ceiling { bytes: FLOOR_BYTES, is_proven: true },
        )]));
        assert!(c.lower(&refused(413, 5_000_000)));
        assert_eq!(c.of("a"), FLOOR_BYTES);
        assert!(!c.lower(&refused(413, 60_000)));
    }
}
