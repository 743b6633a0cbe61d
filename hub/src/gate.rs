//! How much a hub takes at once, in all and of each spoke, so that one does not starve the others.
//!
//! A place is held as long as a body is read; announced bytes until they are on disk or will not
//! come. Where all places are taken a body waits a little for one, in the order of coming, so that
//! the hub has no pause between two; what is over another limit, or waits for too long, is refused
//! (429) and comes again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use barque_bundle::{ByteSize, ErrorKind, SpokeId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Refusal;

/// What may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bodies at once, of all spokes and of one; those of one that wait for a place count as well.
    pub streams: usize,
    pub streams_per_spoke: usize,
    /// How long a body may wait for a place.
    pub wait: Duration,
    /// Bytes that are announced and not on disk yet, of all spokes and of one; a spoke's first body
    /// comes whatever its size is.
    pub in_flight_bytes: u64,
    pub in_flight_bytes_per_spoke: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 64,
            streams_per_spoke: 8,
            wait: Duration::from_secs(3),
            in_flight_bytes: 256 << 30,
            in_flight_bytes_per_spoke: 64 << 30,
        }
    }
}

/// How a body comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    FromItsSpoke,
    ThroughAnotherNode,
}

/// Bodies that may wait for a place, for each place.
const WAITING_MAX: usize = 1;

#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// With those that wait for a place.
    streams: usize,
    bytes: u64,
}

/// All that is under way.
#[derive(Debug)]
pub struct Gate {
    limits: Limits,
    places: Arc<Semaphore>,
    uses: Mutex<Uses>,
}

#[derive(Debug, Default)]
struct Uses {
    all: Use,
    of: HashMap<SpokeId, Use>,
}

impl Uses {
    fn change(&mut self, spoke: &SpokeId, f: impl Fn(&mut Use)) {
        f(&mut self.all);
        let one = self.of.entry(spoke.clone()).or_default();
        f(one);
        if one.streams == 0 && one.bytes == 0 {
            self.of.remove(spoke);
        }
    }
}

fn refuse(code: &'static str, detail: String) -> Refusal {
    Refusal::new(ErrorKind::Throttled, code, detail)
}

impl Gate {
    pub fn new(limits: Limits) -> Self {
        let streams = limits.streams.min(Semaphore::MAX_PERMITS);
        let (limits, places) = (Limits { streams, ..limits }, Arc::new(Semaphore::new(streams)));
        Self { limits, places, uses: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bodies under way.
    pub fn streams(&self) -> u64 {
        self.limits.streams.saturating_sub(self.places.available_permits()) as u64
    }

    /// Bytes announced and not on disk yet.
    pub fn announced_bytes(&self) -> u64 {
        self.lock().all.bytes
    }

    /// A place among the bodies taken at once; waits for one as [`Limits::wait`] says, and not at
    /// all where a body comes through another node: there it would hold up all that come so.
    pub async fn enter(self: &Arc<Self>, spoke: &SpokeId, way: Way) -> Result<Place, Refusal> {
        let wait = match way {
            Way::FromItsSpoke => self.limits.wait,
            Way::ThroughAnotherNode => Duration::ZERO,
        };
        let turn = self.turn(spoke)?;
        let place = Arc::clone(&self.places).acquire_owned();
        match tokio::time::timeout(wait, place).await {
            Ok(Ok(permit)) => Ok(Place { _permit: permit, _turn: turn }),
            _ => Err(self.full()),
        }
    }

    /// A turn to wait for a place, and to have it.
    fn turn(self: &Arc<Self>, spoke: &SpokeId) -> Result<Turn, Refusal> {
        let mut uses = self.lock();
        if uses.all.streams >= self.limits.streams.saturating_mul(1 + WAITING_MAX) {
            return Err(self.full());
        }
        let (own, max) =
            (uses.of.get(spoke).map_or(0, |u| u.streams), self.limits.streams_per_spoke);
        if own >= max {
            let detail = format!("the hub takes {max} bodies of one spoke at once; try again");
            return Err(refuse("too_many_streams_of_spoke", detail));
        }
        uses.change(spoke, |u| u.streams += 1);
        Ok(Turn { gate: Arc::clone(self), spoke: spoke.clone() })
    }

    fn full(&self) -> Refusal {
        let detail = format!("the hub takes {} bodies at once; try again", self.limits.streams);
        refuse("too_many_streams", detail)
    }

    /// Counts bytes that are to come, unless too many are under way; with the sum of all.
    pub fn announce(
        self: &Arc<Self>,
        spoke: &SpokeId,
        bytes: u64,
    ) -> Result<(Announced, u64), Refusal> {
        let mut uses = self.lock();
        let own = uses.of.get(spoke).map_or(0, |u| u.bytes);
        for (under_way, max, code, of) in [
            (uses.all.bytes, self.limits.in_flight_bytes, "too_much_in_flight", "all spokes"),
            (
                own,
                self.limits.in_flight_bytes_per_spoke,
                "too_much_of_spoke_in_flight",
                "this spoke",
            ),
        ] {
            // One body of a spoke may always come, of whatever size: nobody starves.
            if own > 0 && under_way.saturating_add(bytes) > max {
                let detail = format!(
                    "{} of {of} are under way and {} more would be over {}; try again",
                    ByteSize(under_way),
                    ByteSize(bytes),
                    ByteSize(max)
                );
                return Err(refuse(code, detail));
            }
        }
        uses.change(spoke, |u| u.bytes += bytes);
        let all = uses.all.bytes;
        let (gate, spoke) = (Arc::clone(self), spoke.clone());
        Ok((Announced { gate, spoke, left: Mutex::new(bytes) }, all))
    }
}

/// A body's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    _permit: OwnedSemaphorePermit,
    _turn: Turn,
}

/// What counts for a spoke, until it is dropped.
#[derive(Debug)]
struct Turn {
    gate: Arc<Gate>,
    spoke: SpokeId,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gate.lock().change(&self.spoke, |u| u.streams -= 1);
    }
}

/// Bytes that are to come, until they are released.
#[derive(Debug)]
pub struct Announced {
    gate: Arc<Gate>,
    spoke: SpokeId,
    left: Mutex<u64>,
}

impl Announced {
    /// So many of them are on disk now, or will not come.
    pub fn release(&self, bytes: u64) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let released = bytes.min(*left);
        *left -= released;
        self.gate.lock().change(&self.spoke, |u| u.bytes -= released);
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(wait: Duration) -> Arc<Gate> {
        Arc::new(Gate::new(Limits {
            streams: 3,
            streams_per_spoke: 2,
            wait,
            in_flight_bytes: 100,
            in_flight_bytes_per_spoke: 60,
        }))
    }

    fn refused_at_once(gate: &Arc<Gate>, spoke: &SpokeId) -> &'static str {
        let entered = futures_util::FutureExt::now_or_never(gate.enter(spoke, Way::FromItsSpoke));
        entered.expect("it waits").unwrap_err().code
    }

    #[tokio::test]
    async fn one_spoke_leaves_room_for_others_and_places_come_back() {
        let gate = gate(Duration::from_millis(20));
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        let first = gate.enter(&a, Way::FromItsSpoke).await.unwrap();
        let _second = gate.enter(&a, Way::FromItsSpoke).await.unwrap();
        assert_eq!(
            gate.enter(&a, Way::FromItsSpoke).await.unwrap_err().code,
            "too_many_streams_of_spoke"
        );
        let _third = gate.enter(&b, Way::FromItsSpoke).await.unwrap();
        assert_eq!(gate.enter(&b, Way::FromItsSpoke).await.unwrap_err().code, "too_many_streams");
        drop(first);
        assert_eq!(gate.streams(), 2);
        let _again = gate.enter(&a, Way::FromItsSpoke).await.unwrap();
    }

    #[tokio::test]
    async fn a_place_that_comes_back_is_for_the_one_that_waited_longest() {
        let gate = gate(Duration::from_secs(3600));
        let spokes: Vec<SpokeId> = ["a", "b", "c", "d"].map(|s| s.parse().unwrap()).into();
        let mut held = Vec::new();
        for spoke in &spokes[..3] {
            held.push(gate.enter(spoke, Way::FromItsSpoke).await.unwrap());
        }
        // What comes through another node does not wait its hour.
        let passed_on = gate.enter(&spokes[3], Way::ThroughAnotherNode);
        let passed_on = tokio::time::timeout(Duration::from_secs(60), passed_on).await;
        assert_eq!(passed_on.expect("it waits").unwrap_err().code, "too_many_streams");
        let waiting = |spoke: &SpokeId| {
            let (gate, spoke) = (Arc::clone(&gate), spoke.clone());
            let mut waiting = Box::pin(async move { gate.enter(&spoke, Way::FromItsSpoke).await });
            assert!(futures_util::FutureExt::now_or_never(&mut waiting).is_none());
            waiting
        };
        let (first, mut second, given_up) =
            (waiting(&spokes[3]), waiting(&spokes[0]), waiting(&spokes[1]));
        drop(given_up);
        held.pop();
        let first = first.await.unwrap();
        assert!(futures_util::FutureExt::now_or_never(&mut second).is_none());
        // One that waits counts for its spoke.
        assert_eq!(refused_at_once(&gate, &spokes[0]), "too_many_streams_of_spoke");
        drop(first);
        drop(second.await.unwrap());
        drop(held);
        assert_eq!(gate.streams(), 0);
        assert!(gate.lock().of.is_empty());
    }

    #[tokio::test]
    async fn no_more_wait_than_may() {
        let gate = gate(Duration::from_secs(3600));
        let spokes: Vec<SpokeId> = (0..7).map(|n| format!("s{n}").parse().unwrap()).collect();
        let mut under_way = Vec::new();
        for spoke in &spokes[..6] {
            let (gate, spoke) = (Arc::clone(&gate), spoke.clone());
            let mut entering = Box::pin(async move { gate.enter(&spoke, Way::FromItsSpoke).await });
            under_way.push(futures_util::FutureExt::now_or_never(&mut entering).ok_or(entering));
        }
        assert_eq!(refused_at_once(&gate, &spokes[6]), "too_many_streams");
    }

    #[test]
    fn bytes_under_way_are_limited_and_the_only_body_of_a_spoke_comes_whatever_its_size() {
        let gate = gate(Duration::ZERO);
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        let (large, _) = gate.announce(&a, 500).unwrap();
        // Another spoke's first body comes all the same, its second one waits.
        let (first, all) = gate.announce(&b, 1).unwrap();
        assert_eq!(all, 501);
        assert_eq!(gate.announce(&b, 1).unwrap_err().code, "too_much_in_flight");
        drop(first);
        large.release(450);
        assert_eq!(gate.announce(&a, 20).unwrap_err().code, "too_much_of_spoke_in_flight");
        let (other, _) = gate.announce(&b, 40).unwrap();
        drop(large);
        assert_eq!(gate.announced_bytes(), 40);
        other.release(100);
        assert_eq!(gate.announced_bytes(), 0);
        assert!(gate.lock().of.is_empty());
    }
}
