//! What a person decides about files that wait for one: offer again, or set aside.

use std::collections::BTreeSet;

use barque_bundle::path::printable;
use barque_bundle::platform::Root;
use barque_bundle::{FilePath, HubId};
use serde::Serialize;

use crate::config::{SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::ledger::{Change, FileRow, Ledger};
use crate::lock::Lock;
use crate::look::{Looked, look};
use crate::plan::State;
use crate::priority::Priorities;

/// Which files are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Paths below the source, as reports name them.
    Paths(Vec<String>),
    /// All in this state.
    State(State),
}

/// What is to be done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Looked at anew and offered under a new number.
    Requeue,
    /// Set aside until requeued.
    Dismiss,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Real,
    DryRun,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Decided {
    /// Paths that were changed, or would be.
    pub changed: Vec<String>,
    /// Paths that were not, and why.
    pub unchanged: Vec<Unchanged>,
}

impl Decided {
    /// A file that changed for one hub is not called unchanged for what it is to another.
    fn over_hubs(mut self) -> Self {
        let changed: BTreeSet<String> = self.changed.drain(..).collect();
        let mut named = BTreeSet::new();
        let told: BTreeSet<String> = changed.iter().map(|c| printable(c)).collect();
        self.unchanged.retain(|u| !told.contains(&u.path) && named.insert(u.path.clone()));
        self.changed = changed.into_iter().collect();
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchanged {
    pub path: String,
    pub detail: String,
}

/// States that a requeue takes a file from.
const REQUEUED: [State; 6] = [
    State::Conflict,
    State::Failed,
    State::Modified,
    State::Dismissed,
    State::Removed,
    State::Skipped,
];
const PAGE: usize = 500;

/// Carries out a person's decision for each hub, or for one; takes the lock of the state folder.
pub fn decide(
    state: &StateFolder,
    edge: &Edge,
    verb: Verb,
    which: &Which,
    only: Option<HubId>,
    mode: Mode,
) -> Result<Decided, Error> {
    decide_locked(state, edge, verb, which, only, mode).map_err(Error::explained)
}

fn decide_locked(
    state: &StateFolder,
    edge: &Edge,
    verb: Verb,
    which: &Which,
    only: Option<HubId>,
    mode: Mode,
) -> Result<Decided, Error> {
    let config = SpokeConfig::load(state)?;
    if config.hubs.is_empty() {
        return Err(Error::NotEnrolled("this spoke is not enrolled at a hub".to_owned()));
    }
    let _lock = Lock::take(state, edge.now())?;
    let mut desk = Desk {
        ledger: Ledger::open(&state.ledger())?,
        source: Root::open(&config.source)
            .map_err(Error::io("cannot open the source folder", &config.source))?,
        priorities: config.priorities().map_err(Error::Usage)?,
        hub_id: config.hubs[0].hub_id,
        edge,
        verb,
        mode,
        decided: Decided::default(),
    };
    for hub in config.hubs_named(only).map_err(Error::Usage)? {
        desk.hub_id = hub.hub_id;
        match which {
            Which::Paths(paths) => paths.iter().try_for_each(|p| desk.named(p))?,
            Which::State(state) => desk.all(*state)?,
        }
    }
    Ok(desk.decided.over_hubs())
}

struct Desk<'a> {
    ledger: Ledger,
    source: Root,
    priorities: Priorities,
    hub_id: HubId,
    edge: &'a Edge,
    verb: Verb,
    mode: Mode,
    decided: Decided,
}

impl Desk<'_> {
    fn named(&mut self, text: &str) -> Result<(), Error> {
        let row = match text.parse::<FilePath>() {
            Ok(path) => self.ledger.file(self.hub_id, &path)?,
            Err(_) => None,
        };
        match row {
            Some(row) => self.one(&row),
            None => {
                self.leave(text, "the ledger has no such file; give the path below the source, as `barque push --json` names it");
                Ok(())
            }
        }
    }

    fn all(&mut self, state: State) -> Result<(), Error> {
        let mut after = String::new();
        loop {
            let page = self.ledger.files_in(self.hub_id, state, &after, PAGE)?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = last.path.to_string();
            page.iter().try_for_each(|row| self.one(row))?;
        }
    }

    fn one(&mut self, row: &FileRow) -> Result<(), Error> {
        match self.verb {
            Verb::Dismiss if !row.state.needs_a_person() => {
                self.leave(
                    row.path.as_str(),
                    &format!("it is {} and waits for nobody", row.state.as_str()),
                );
                Ok(())
            }
            Verb::Dismiss => {
                if self.mode == Mode::Real {
                    self.ledger.dismiss(self.hub_id, &row.path, self.edge.now())?;
                }
                self.decided.changed.push(row.path.to_string());
                Ok(())
            }
            Verb::Requeue if !REQUEUED.contains(&row.state) => {
                self.leave(row.path.as_str(), &format!("it is {} already", row.state.as_str()));
                Ok(())
            }
            Verb::Requeue => self.requeue(row),
        }
    }

    fn requeue(&mut self, row: &FileRow) -> Result<(), Error> {
        match look(&self.source, row.path.as_str()) {
            Looked::Whole { sha256, stat } => {
                let class = self.priorities.class(row.path.as_str());
                let change = Change::Number { path: row.path.clone(), stat, sha256, class };
                if self.mode == Mode::Real {
                    self.ledger.record(self.hub_id, &[change], self.edge.now())?;
                }
                self.decided.changed.push(row.path.to_string());
            }
            Looked::Held { detail, .. } => self.leave(row.path.as_str(), &detail),
            Looked::Moving => self.leave(row.path.as_str(), "it is being written; try again"),
            Looked::Gone => self.leave(row.path.as_str(), "the file is not there any more"),
            Looked::Unreadable(e) => self.leave(row.path.as_str(), &format!("cannot be read: {e}")),
        }
        Ok(())
    }

    fn leave(&mut self, path: &str, detail: &str) {
        let unchanged = Unchanged { path: printable(path), detail: detail.to_owned() };
        self.decided.unchanged.push(unchanged);
    }
}
