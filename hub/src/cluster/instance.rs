//! Which process of a node calls: a data folder that was copied, or put back from an older copy, makes
//! a second one with the same id and key.
//!
//! Each start of a folder has a number, and each process one of its own. Of two processes with one id
//! the others listen to the one that they knew first for as long as it lives, and never again to one
//! whose folder has seen fewer starts than they know of.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

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

/// What a process is to a node that knows another one of the same id, or none.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    Known,
    /// A later start of the folder than that of the process that is known.
    Later(Instance),
    /// A start that was before that of the process that is known, or the same one twice.
    Stale(Instance),
}

/// The process of each other node that is listened to.
#[derive(Default)]
pub struct Instances(Mutex<BTreeMap<u64, Instance>>);

impl Instances {
    /// How a process stands; the first one of a node is the one that is known.
    pub fn standing(&self, node_id: u64, said: Instance) -> Standing {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = *all.entry(node_id).or_insert(said);
        match known {
            known if known == said => Standing::Known,
            known if said.start > known.start => Standing::Later(known),
            known => Standing::Stale(known),
        }
    }

    /// Listens to this process in place of an earlier one, unless a later one has come meanwhile.
    pub fn accept(&self, node_id: u64, said: Instance) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.entry(node_id).or_insert(said);
        if said.start > known.start {
            *known = said;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_copied_or_put_back_makes_a_second_process_that_is_noticed() {
        let all = Instances::default();
        let [first, copy, later] = [3, 3, 4].map(Instance::new);
        assert_eq!(all.standing(7, first), Standing::Known);
        assert_eq!(all.standing(7, first), Standing::Known);
        assert_eq!(all.standing(7, copy), Standing::Stale(first), "one start twice");
        assert_eq!(all.standing(8, copy), Standing::Known, "of another node");
        // A restart, or a copy that was started later: whoever knows the other one asks it.
        assert_eq!(all.standing(7, later), Standing::Later(first));
        assert_eq!(all.standing(7, later), Standing::Later(first), "only what is accepted counts");
        all.accept(7, later);
        assert_eq!(all.standing(7, later), Standing::Known);
        all.accept(7, first);
        assert_eq!(all.standing(7, first), Standing::Stale(later), "an older folder");
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
