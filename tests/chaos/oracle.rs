//! Remembers every promise that a hub has made: an error promises nothing, and denies nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;

use barque_bundle::{Outcome, OutcomeLine, Sha256Digest};

#[derive(Default)]
pub struct Oracle {
    known: Mutex<BTreeMap<String, Known>>,
    broken: Mutex<Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// What some receipt said of the path's content.
    pub sha256: Sha256Digest,
    /// A receipt said that the hub holds it.
    pub is_promised: bool,
}

impl Oracle {
    /// Takes in what a receipt says.
    pub fn hear(&self, spoke: &str, lines: &[OutcomeLine]) {
        for line in lines {
            let says = match line.outcome {
                Outcome::Conflict => line.their_sha256,
                outcome if outcome.is_held() => Some(line.sha256),
                _ => None,
            };
            let Some(sha256) = says else { continue };
            let path = format!("{spoke}/{}", line.path);
            let mut known = self.known.lock().unwrap();
            let entry = known.entry(path.clone()).or_insert(Known { sha256, is_promised: false });
            entry.is_promised |= line.outcome.is_held();
            if entry.sha256 != sha256 {
                let before = entry.sha256;
                self.break_promise(format!("{path} was {before}, and is said to be {sha256}"));
            }
        }
    }

    pub fn break_promise(&self, what: String) {
        self.broken.lock().unwrap().push(what);
    }

    pub fn known(&self) -> BTreeMap<String, Known> {
        self.known.lock().unwrap().clone()
    }

    pub fn broken(&self) -> Vec<String> {
        self.broken.lock().unwrap().clone()
    }
}
