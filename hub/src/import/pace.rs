//! How fast an import registers: as fast as it can while nobody else registers anything, in small
//! batches with a rest behind each while somebody does. A drive can wait, a push has somebody waiting.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::command::BATCH_OPERATIONS_MAX;

/// Files of a batch beside others.
const BESIDE_OTHERS: usize = 200;
/// How long others count as active after they were last seen to change something, besides the rest.
const STILL_ACTIVE: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(1);

pub struct Pace {
    position: watch::Receiver<u64>,
    /// Where the manifest was when this import looked last.
    seen: u64,
    /// Until when others count as active.
    others_until: Option<Instant>,
}

impl Pace {
    /// `position` counts the changes of files in the whole hub, as this node hears of them.
    pub fn new(position: watch::Receiver<u64>) -> Self {
        let seen = *position.borrow();
        Self { position, seen, others_until: None }
    }

    /// How many files the next batch may have.
    pub fn files(&self) -> usize {
        if self.is_beside_others() { BESIDE_OTHERS } else { BATCH_OPERATIONS_MAX }
    }

    fn is_beside_others(&self) -> bool {
        self.others_until.is_some_and(|until| Instant::now() < until)
    }

    /// Notes a batch that changed so many files itself, and how long to rest behind it: as long as it
    /// took, beside others.
    pub fn rest_after(&mut self, own: u64, took: Duration) -> Duration {
        let now = *self.position.borrow();
        let rest = took.min(REST_MAX);
        if now.saturating_sub(self.seen) > own {
            self.others_until = Some(Instant::now() + rest + STILL_ACTIVE);
        }
        self.seen = now;
        if self.is_beside_others() { rest } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_goes_slower_while_others_change_something_and_only_then() {
        let (position, heard) = watch::channel(100);
        let mut pace = Pace::new(heard);
        let took = Duration::from_millis(50);
        assert_eq!(pace.files(), BATCH_OPERATIONS_MAX);
        position.send_replace(1_100);
        assert_eq!(pace.rest_after(1_000, took), Duration::ZERO);
        assert_eq!(pace.files(), BATCH_OPERATIONS_MAX);
        // Twenty more than its own.
        position.send_replace(2_120);
        assert_eq!(pace.rest_after(1_000, took), took);
        assert_eq!(pace.files(), BESIDE_OTHERS);
        // The rest itself does not count: others are still there behind the longest one.
        position.send_replace(2_140);
        assert_eq!(pace.rest_after(0, Duration::from_secs(9)), REST_MAX);
        let behind = Instant::now() + REST_MAX;
        assert!(pace.others_until.is_some_and(|until| until > behind), "{:?}", pace.others_until);
        // They do not count for ever.
        pace.others_until = Instant::now().checked_sub(Duration::from_millis(1));
        position.send_replace(2_340);
        assert_eq!(pace.rest_after(200, took), Duration::ZERO);
        assert_eq!(pace.files(), BATCH_OPERATIONS_MAX);
    }
}
