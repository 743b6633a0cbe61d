//! Finds what is new below the source folder, in bounded memory, and writes it to the ledger.
//!
//! No link is followed, nothing is opened that could block, and hidden and foreign names are
//! passed over by rule and counted. A file is looked at once it lies still: its times are older
//! than `settle`, or two looks that far apart agree.

mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use barque_bundle::path::printable;
use barque_bundle::{FilePath, HubId, LandedName, SpokeId};
use serde::Serialize;

use crate::edge::Edge;
use crate::error::Error;
use crate::ledger::{Change, Ledger, StatRow};
use crate::look::{Looked, look};
use crate::plan::{self, Look, State, Step};
use crate::push::Event;

pub use walk::Ignored;
use walk::Visit;

/// Changes that are written together.
const BATCH: usize = 500;
const BATCH_TIME: Duration = Duration::from_secs(2);
/// Paths that a report names at the most.
pub const NAMED_MAX: usize = 1_000;

/// What a scan found; every candidate is in exactly one of the counts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ScanReport {
    /// Candidates: names that end in `.parquet` and are not hidden.
    pub discovered: u64,
    /// Candidates by the state of their row after the scan.
    #[serde(skip)]
    pub states: BTreeMap<State, u64>,
    pub not_settled: u64,
    /// Candidates held back, by rule.
    pub skipped: BTreeMap<String, u64>,
    /// Names that are no candidates, by rule.
    pub ignored: BTreeMap<&'static str, u64>,
    /// Files and folders that could not be read, named.
    pub unreadable: Vec<Unreadable>,
    pub hashed_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    pub path: String,
    pub detail: String,
}

impl ScanReport {
    /// Whether everything below the source was seen.
    pub fn is_complete(&self) -> bool {
        self.unreadable.is_empty() && self.not_settled == 0
    }

    pub fn state(&self, state: State) -> u64 {
        self.states.get(&state).copied().unwrap_or(0)
    }

    fn count(&mut self, state: State) {
        *self.states.entry(state).or_default() += 1;
    }

    fn skip(&mut self, code: &str) {
        *self.skipped.entry(code.to_owned()).or_default() += 1;
    }

    fn cannot_read(&mut self, path: &str, e: &std::io::Error) {
        if self.unreadable.len() < NAMED_MAX {
            let detail = format!("{e}; give the spoke's user the right to read it");
            self.unreadable.push(Unreadable { path: printable(path), detail });
        }
    }
}

/// What a scan needs; `dry` leaves the ledger as it is.
pub struct Scanner<'a> {
    pub source: &'a Path,
    /// The spoke's own folder, which is never looked into.
    pub state_folder: &'a Path,
    pub spoke_id: &'a SpokeId,
    pub hub_id: HubId,
    pub ledger: &'a mut Ledger,
    pub edge: &'a Edge,
    pub settle: Duration,
    pub dry: bool,
    pub events: &'a (dyn Fn(Event) + Sync),
}

impl Scanner<'_> {
    /// One scan; waits once for files that were too young.
    pub fn scan(self) -> Result<ScanReport, Error> {
        let mut run = Run {
            report: ScanReport::default(),
            waiting: Vec::new(),
            written: Instant::now(),
            scanner: self,
        };
        run.scanner.ledger.clear_young()?;
        let own = std::fs::canonicalize(run.scanner.state_folder).unwrap_or_default();
        let started = Instant::now();
        let source = run.scanner.source.to_owned();
        walk::walk(&source, &own, &mut |visit| run.visit(visit))?;
        run.look_again(started)?;
        run.write()?;
        Ok(run.report)
    }
}

struct Run<'a> {
    scanner: Scanner<'a>,
    report: ScanReport,
    waiting: Vec<Change>,
    written: Instant,
}

impl Run<'_> {
    fn visit(&mut self, visit: Visit<'_>) -> Result<(), Error> {
        match visit {
            Visit::Ignored(why) => *self.report.ignored.entry(why.as_str()).or_default() += 1,
            Visit::Skipped(code) => {
                self.report.discovered += 1;
                self.report.skip(code);
            }
            Visit::Unreadable { path, error } => self.report.cannot_read(path, &error),
            Visit::File { path, stat } => {
                self.report.discovered += 1;
                self.candidate(path, stat)?;
                if self.report.discovered.is_multiple_of(256) {
                    self.tell();
                }
            }
        }
        Ok(())
    }

    fn tell(&self) {
        (self.scanner.events)(Event::Scanning {
            files: self.report.discovered,
            hashed_bytes: self.report.hashed_bytes,
        });
    }

    fn candidate(&mut self, path: &str, stat: StatRow) -> Result<(), Error> {
        let checked = path
            .parse::<FilePath>()
            .and_then(|p| LandedName::new(self.scanner.spoke_id, &p).map(|_| p));
        let path = match checked {
            Ok(path) => path,
            Err(e) => {
                self.report.skip(e.code());
                return Ok(());
            }
        };
        let row = self.scanner.ledger.file(self.scanner.hub_id, &path)?;
        if let Some(row) = row.filter(|r| r.stat == stat) {
            self.settle_known(row.state, row.code.as_deref());
            return Ok(());
        }
        if self.is_old(&stat) {
            return self.look(path, &stat);
        }
        self.scanner.ledger.add_young(&path, &stat)
    }

    fn settle_known(&mut self, state: State, code: Option<&str>) {
        match state {
            State::Skipped => self.report.skip(code.unwrap_or("skipped")),
            State::InFlight => self.report.count(State::Pending),
            other => self.report.count(other),
        }
    }

    fn is_old(&self, stat: &StatRow) -> bool {
        let newest_ms = stat.mtime_ns.max(stat.ctime_ns).div_euclid(1_000_000);
        let age_ms = self.scanner.edge.now().unix_ms().saturating_sub(newest_ms);
        u64::try_from(age_ms).is_ok_and(|age| Duration::from_millis(age) >= self.scanner.settle)
    }

    /// Looks at the file and notes what follows, if it still is what was seen.
    fn look(&mut self, path: FilePath, seen: &StatRow) -> Result<(), Error> {
        let looked = look(&self.absolute(&path));
        let known = self.scanner.ledger.file(self.scanner.hub_id, &path)?.map(|r| r.known());
        let change = match looked {
            Looked::Gone => {
                self.report.skip("vanished");
                return Ok(());
            }
            Looked::Moving => {
                self.report.not_settled += 1;
                return Ok(());
            }
            Looked::Unreadable(e) => {
                self.report.cannot_read(path.as_str(), &e);
                self.report.skip("unreadable");
                return Ok(());
            }
            Looked::Whole { stat, .. } | Looked::Held { stat, .. } if stat != *seen => {
                self.report.not_settled += 1;
                return Ok(());
            }
            Looked::Whole { sha256, stat } => {
                self.report.hashed_bytes += stat.size_bytes;
                match plan::after_look(known, Look::Whole(sha256)) {
                    Step::Number => Change::Number { path, stat, sha256 },
                    step => self.leave(step, path, stat, "modified", "changed after it was synced"),
                }
            }
            Looked::Held { stat, code, detail } => {
                let step = plan::after_look(known, Look::Held);
                self.leave(step, path, stat, code, &detail)
            }
        };
        match &change {
            Change::Number { .. } => self.report.count(State::Pending),
            Change::Refresh { .. } => {
                self.settle_known(known.map_or(State::Pending, |k| k.state), None);
            }
            Change::Leave { state, code, .. } => self.settle_known(*state, Some(code)),
        }
        self.note(change)
    }

    fn leave(&self, step: Step, path: FilePath, stat: StatRow, code: &str, detail: &str) -> Change {
        let state = match step {
            Step::Modify => State::Modified,
            Step::Skip => State::Skipped,
            Step::Number | Step::Refresh => return Change::Refresh { path, stat },
        };
        let (code, detail) = match state {
            State::Modified => (
                "modified",
                "changed after it was synced; the hub keeps the first content. \
                 To offer the new one: barque ledger requeue",
            ),
            _ => (code, detail),
        };
        Change::Leave { path, stat, state, code: code.to_owned(), detail: detail.to_owned() }
    }

    fn note(&mut self, change: Change) -> Result<(), Error> {
        self.waiting.push(change);
        if self.waiting.len() >= BATCH || self.written.elapsed() >= BATCH_TIME {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), Error> {
        self.tell();
        let changes = std::mem::take(&mut self.waiting);
        self.written = Instant::now();
        if self.scanner.dry || changes.is_empty() {
            return Ok(());
        }
        let now = self.scanner.edge.now();
        self.scanner.ledger.record(self.scanner.hub_id, &changes, now)
    }

    /// The second look at files that were too young: those that lie still are taken.
    fn look_again(&mut self, started: Instant) -> Result<(), Error> {
        if self.scanner.ledger.young_count()? == 0 {
            return Ok(());
        }
        self.write()?;
        std::thread::sleep(self.scanner.settle.saturating_sub(started.elapsed()));
        let mut after = String::new();
        loop {
            let page = self.scanner.ledger.young_page(&after, BATCH)?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            after = last.to_string();
            for (path, stat) in page {
                match std::fs::symlink_metadata(self.absolute(&path)) {
                    Ok(m) if m.is_file() && StatRow::of(&m) == stat => self.look(path, &stat)?,
                    Ok(_) => self.report.not_settled += 1,
                    Err(_) => self.report.skip("vanished"),
                }
            }
        }
    }

    fn absolute(&self, path: &FilePath) -> PathBuf {
        self.scanner.source.join(path.as_str())
    }
}

#[cfg(test)]
mod tests;
