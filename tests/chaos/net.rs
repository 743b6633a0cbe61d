//! A network between nodes of one process that cuts, delays, drops and repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barque_hub::Front;
use barque_hub::cluster::wire::{Answer, Call, Lane, Wire, WireError};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::runtime::Handle;

/// How the network misbehaves now.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    /// Nodes that hear nobody and are heard by nobody.
    pub isolated: BTreeSet<u64>,
    /// Chances of one call in a hundred.
    pub lost_requests: u32,
    pub lost_answers: u32,
    pub repeated: u32,
    /// Longest delay of a request, and of an answer.
    pub delay_ms: u64,
}

pub struct Net {
    doors: Mutex<BTreeMap<u64, (Front, Handle)>>,
    weather: Mutex<Weather>,
    random: Mutex<SmallRng>,
}

/// What becomes of one call.
struct Fate {
    is_cut: bool,
    loses_request: bool,
    loses_answer: bool,
    is_repeated: bool,
    delays: [Duration; 2],
}

/// How long a caller waits for a network that is gone.
const SILENCE: Duration = Duration::from_millis(150);

impl Net {
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            doors: Mutex::default(),
            weather: Mutex::default(),
            random: Mutex::new(SmallRng::seed_from_u64(seed)),
        })
    }

    /// A node answers from here on, on a runtime of its own.
    pub fn open(&self, node_id: u64, front: Front, runtime: Handle) {
        self.doors.lock().unwrap().insert(node_id, (front, runtime));
    }

    pub fn close(&self, node_id: u64) {
        self.doors.lock().unwrap().remove(&node_id);
    }

    pub fn set(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }

    pub fn change(&self, f: impl FnOnce(&mut Weather)) {
        f(&mut self.weather.lock().unwrap());
    }

    fn is_cut(&self, a: u64, b: u64) -> bool {
        let weather = self.weather.lock().unwrap();
        weather.isolated.contains(&a) || weather.isolated.contains(&b)
    }

    fn fate(&self, from: u64, to: u64) -> Fate {
        let is_cut = self.is_cut(from, to);
        let weather = self.weather.lock().unwrap();
        let mut random = self.random.lock().unwrap();
        let mut happens = |percent| random.random_range(0..100) < percent;
        let (loses_request, loses_answer, is_repeated) = (
            happens(weather.lost_requests),
            happens(weather.lost_answers),
            happens(weather.repeated),
        );
        let mut delay = || Duration::from_millis(random.random_range(0..=weather.delay_ms));
        let delays = [delay(), delay()];
        Fate { is_cut, loses_request, loses_answer, is_repeated, delays }
    }
}

/// The wire of one node.
pub struct Line {
    pub net: Arc<Net>,
    pub from: u64,
}

impl Wire for Line {
    fn call<'a>(&'a self, to: u64, _: &'a str, _: Lane, call: Call) -> Answer<'a> {
        Box::pin(async move {
            let fate = self.net.fate(self.from, to);
            tokio::time::sleep(fate.delays[0]).await;
            if fate.is_cut {
                tokio::time::sleep(SILENCE).await;
                return Err(WireError::not_sent("the network is cut"));
            }
            if fate.loses_request {
                tokio::time::sleep(SILENCE).await;
                return Err(WireError::unknown("the request was lost"));
            }
            let door = self.net.doors.lock().unwrap().get(&to).cloned();
            let (front, runtime) = door.ok_or_else(|| WireError::not_sent("the node is down"))?;
            let call = if fate.is_repeated {
                let (first, second) = call.doubled().await?;
                let repeating = front.clone();
                // Nobody hears the answer to the first one.
                runtime.spawn(async move { drop(repeating.answer(first).await) });
                second
            } else {
                call
            };
            // On the node's own runtime: it dies with the node.
            let answer = runtime.spawn(async move { front.answer(call).await }).await;
            let answer = answer.map_err(|_| WireError::unknown("the node died"))?;
            tokio::time::sleep(fate.delays[1]).await;
            if fate.loses_answer || self.net.is_cut(self.from, to) {
                return Err(WireError::unknown("the answer was lost"));
            }
            Ok(answer)
        })
    }
}
