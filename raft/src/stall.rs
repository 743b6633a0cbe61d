//! A full disk holds a node up and does not end it: what could not be written is tried again until
//! there is room. Meanwhile the node does not answer, so others lead and its callers go elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const TRY_AGAIN: Duration = Duration::from_millis(500);
/// Tries between two lines in the log.
const TOLD_EVERY: u32 = 120;

/// How many writes wait for room.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stall(Arc<AtomicUsize>);

impl Stall {
    pub(crate) fn is_stalled(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Does something until a full disk no longer keeps it from being done.
    pub(crate) async fn ride_out<T, E: std::fmt::Display>(
        &self,
        what: &str,
        is_full: impl Fn(&E) -> bool,
        mut f: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tries = 0u32;
        let mut waiting = None;
        loop {
            match f() {
                Err(e) if is_full(&e) => {
                    if tries.is_multiple_of(TOLD_EVERY) {
                        tracing::error!(
                            error = %e,
                            "no room for {what}: this node waits, and goes on by itself once there is"
                        );
                    }
                    tries += 1;
                    waiting.get_or_insert_with(|| Waiting::begin(self));
                    tokio::time::sleep(TRY_AGAIN).await;
                }
                done => {
                    if waiting.is_some() && done.is_ok() {
                        tracing::info!("there is room for {what} again");
                    }
                    return done;
                }
            }
        }
    }
}

struct Waiting(Stall);

impl Waiting {
    fn begin(stall: &Stall) -> Self {
        stall.0.fetch_add(1, Ordering::Relaxed);
        Self(stall.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_finds_no_room_is_tried_until_it_does_and_another_fault_is_one() {
        let stall = Stall::default();
        let mut left = 3;
        let tried = stall.ride_out(
            "a test",
            |e: &&str| *e == "full",
            || {
                left -= 1;
                if left > 0 { Err("full") } else { Ok(stall.is_stalled()) }
            },
        );
        assert_eq!(tried.await, Ok(true));
        assert!(!stall.is_stalled());
        let broken = stall.ride_out("a test", |e: &&str| *e == "full", || Err::<(), _>("broken"));
        assert_eq!(broken.await, Err("broken"));
    }
}
