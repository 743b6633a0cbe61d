//! What goes wrong when, all of it from one number: the same number gives the same schedule.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

#[derive(Clone, Debug)]
pub enum Fault {
    /// A node hears nobody, by its number.
    Isolate(usize),
    /// The node that leads at that moment.
    IsolateLeader,
    /// The network loses, repeats and delays calls.
    Storm {
        lost_requests: u32,
        lost_answers: u32,
        repeated: u32,
        delay_ms: u64,
    },
    /// All is well with the network.
    Calm,
    Crash(usize),
    CrashLeader,
    /// Whatever is down starts again.
    Restart,
}

/// A fault, and how long after the one before it comes.
#[derive(Clone, Debug)]
pub struct Event {
    pub after: Duration,
    pub fault: Fault,
}

pub fn schedule(seed: u64, nodes: usize, lasts: Duration) -> Vec<Event> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut events = Vec::new();
    let mut left = lasts;
    loop {
        let after = Duration::from_millis(random.random_range(100..700));
        let Some(rest) = left.checked_sub(after) else { return events };
        left = rest;
        let fault = match random.random_range(0..10) {
            0 => Fault::Isolate(random.random_range(0..nodes)),
            1 => Fault::IsolateLeader,
            2..4 => Fault::Storm {
                lost_requests: random.random_range(0..15),
                lost_answers: random.random_range(0..15),
                repeated: random.random_range(0..20),
                delay_ms: random.random_range(0..60),
            },
            4 => Fault::Crash(random.random_range(0..nodes)),
            5 => Fault::CrashLeader,
            6..8 => Fault::Restart,
            _ => Fault::Calm,
        };
        events.push(Event { after, fault });
    }
}
