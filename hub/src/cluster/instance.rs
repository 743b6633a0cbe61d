//! Which process of a node calls: a data folder that was copied, or put back from an older copy, makes
//! a second one with the same id and key.
//!
//! Each start of a folder has a number, and each process one of its own. Of two processes with one id
//! the others listen to the one that answers where the manifest says that the node is, for as long as
//! it lives, and never again to one whose folder has seen fewer starts than they know of.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

/// One process of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// Which start of its folder it is.
    pub start: u64,
    nonce: u64,
}

impl Instance {
    pub fn new(start: u64) -> Self {
        Self { start, nonce: rand::random() }
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:016x}", self.start, self.nonce)
    }
}

impl FromStr for Instance {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (start, nonce) = text.split_once('-').unwrap_or((text, ""));
        Ok(Self { start: start.parse()?, nonce: u64::from_str_radix(nonce, 16)? })
    }
}

/// A process that is listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub instance: Instance,
    /// It answered where the hub's manifest says that the node is.
    is_confirmed: bool,
}

/// Whether a process is listened to, of which another one is known or none; `answering` is the one
/// that answers where the node is, if any does. The error is the one that it has to give way to.
fn judge(known: Option<Seen>, said: Instance, answering: Option<Instance>) -> Result<(), Instance> {
    let other = answering.filter(|a| *a != said);
    match known {
        // A copy may call first.
        None => other.filter(|a| a.start >= said.start).map_or(Ok(()), Err),
        Some(k) if said.start > k.instance.start => {
            other.filter(|a| *a == k.instance || a.start >= said.start).map_or(Ok(()), Err)
        }
        Some(k) if !k.is_confirmed && answering == Some(said) => Ok(()),
        Some(k) => Err(k.instance),
    }
}

/// The process of each other node that is listened to.
#[derive(Default)]
pub struct Instances {
    seen: Mutex<BTreeMap<u64, Seen>>,
    /// The last one that was refused, and whom it gave way to.
    refused: Mutex<Option<(u64, Instance, Instance)>>,
}

impl Instances {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn known(&self, node_id: u64) -> Option<Seen> {
        self.lock().get(&node_id).copied()
    }

    /// Notes which process answered where the node is.
    pub fn confirm(&self, node_id: u64, answering: Instance) {
        let mut all = self.lock();
        let is_older = all.get(&node_id).is_some_and(|k| k.instance.start > answering.start);
        if !is_older {
            all.insert(node_id, Seen { instance: answering, is_confirmed: true });
        }
    }

    /// Decides about a process that is not the one that is known; the error is the one that stays.
    pub fn decide(
        &self,
        node_id: u64,
        said: Instance,
        answering: Option<Instance>,
    ) -> Result<(), Instance> {
        let mut all = self.lock();
        let known = all.get(&node_id).copied();
        if known.is_some_and(|k| k.instance == said) {
            return Ok(());
        }
        judge(known, said, answering)?;
        all.insert(node_id, Seen { instance: said, is_confirmed: answering == Some(said) });
        Ok(())
    }

    /// Whether this refusal is another one than the last, and worth a line.
    pub fn is_news(&self, node_id: u64, said: Instance, stays: Instance) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.replace((node_id, said, stays)) != Some((node_id, said, stays))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_copied_or_put_back_makes_a_second_process_that_is_noticed() {
        let all = Instances::default();
        let [first, copy, later] = [3, 3, 4].map(Instance::new);
        assert_eq!(all.decide(7, first, Some(first)), Ok(()));
        assert_eq!(all.decide(7, first, None), Ok(()), "it is known");
        assert_eq!(all.decide(7, copy, None), Err(first), "one start twice");
        assert_eq!(all.decide(7, copy, Some(first)), Err(first));
        assert_eq!(all.decide(8, copy, None), Ok(()), "of another node");
        // A copy that was started once more, and a restart.
        assert_eq!(all.decide(7, later, Some(first)), Err(first));
        assert_eq!(all.decide(7, later, Some(later)), Ok(()));
        assert_eq!(all.decide(7, first, Some(first)), Err(later), "an older folder was put back");
        assert!(all.is_news(7, first, later) && !all.is_news(7, first, later));
    }

    #[test]
    fn a_copy_that_calls_first_takes_nobodys_place() {
        let [node, copy] = [5, 5].map(Instance::new);
        let all = Instances::default();
        assert_eq!(all.decide(7, copy, Some(node)), Err(node), "the node answers where it is");
        // It did not answer at that moment, and calls later.
        assert_eq!(all.decide(7, copy, None), Ok(()));
        assert_eq!(all.decide(7, node, Some(node)), Ok(()));
        assert_eq!(all.decide(7, copy, Some(node)), Err(node));
        let started_more = Instance::new(9);
        let all = Instances::default();
        all.confirm(7, node);
        assert_eq!(all.decide(7, started_more, Some(node)), Err(node));
        assert_eq!(all.decide(7, started_more, None), Ok(()), "the node is gone");
        all.confirm(7, node);
        assert_eq!(all.known(7).unwrap().instance, started_more, "an older one confirms nothing");
    }

    #[test]
    fn what_a_process_says_of_itself_is_read_again() {
        let own = Instance::new(12);
        assert_eq!(own.to_string().parse::<Instance>().unwrap(), own);
        for odd in ["", "12", "12-", "-1", "x-1", "1-g", "1-1-1"] {
            assert!(odd.parse::<Instance>().is_err(), "{odd}");
        }
    }
}
