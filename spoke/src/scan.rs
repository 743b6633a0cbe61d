//! Finds what is new below the source folder, in bounded memory, and writes it to the ledger.
//!
//! No link is followed, nothing is opened that could block, and hidden and foreign names are
//! passed over by rule and counted. A file is looked at once it lies still: its times are older
//! than `settle`, or two looks that far apart agree.

mod walk;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use barque_bundle::path::printable;
use barque_bundle::platform::Root;
use barque_bundle::{FilePath, HubId, LandedName, SpokeId};
use serde::Serialize;

use crate::edge::Edge;
use crate::error::Error;
use crate::ledger::{Change, KnownRow, KnownRows, Ledger, StatRow};
use crate::look::{Looked, lies_still, look_at};
use crate::plan::{self, Look, State, Step};
use crate::priority::Priorities;
use crate::push::Event;
use crate::select::Select;

pub use walk::Ignored;
use walk::Visit;

/// Changes that are written together.
const BATCH: usize = 2_000;
/// Files, and bytes of them, that are asked of the disk together.
const NEXT_FILES: usize = 64;
const NEXT_BYTES: u64 = 32 << 20;
/// The same where there are fewer files than threads: what was read is not noted before all of them
/// are through, and a spoke that is switched off again and again has to get on.
const LARGE_BYTES: u64 = 4 << 30;
/// Threads that look at them.
const LOOKING: usize = 4;
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
    /// The same by name, as far as [`NAMED_MAX`].
    pub held_back: Vec<HeldBack>,
    /// Names that are no candidates, by rule.
    pub ignored: BTreeMap<&'static str, u64>,
    /// Files and folders that could not be read, named.
    pub unreadable: Vec<Unreadable>,
    pub hashed_bytes: u64,
    /// Files were left out that are still to come.
    pub is_partial: bool,
    /// Nothing was written to the ledger.
    pub is_dry: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    pub path: String,
    pub detail: String,
}

/// A candidate that is not shipped, and the rule that holds it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldBack {
    pub path: String,
    pub code: String,
}

impl ScanReport {
    /// Whether everything below the source was seen.
    pub fn is_complete(&self) -> bool {
        self.unreadable.is_empty() && self.not_settled == 0 && !self.is_partial
    }

    pub fn state(&self, state: State) -> u64 {
        self.states.get(&state).copied().unwrap_or(0)
    }

    fn count(&mut self, state: State) {
        *self.states.entry(state).or_default() += 1;
    }

    pub(crate) fn skip(&mut self, path: &str, code: &str) {
        *self.skipped.entry(code.to_owned()).or_default() += 1;
        if self.held_back.len() < NAMED_MAX {
            let (path, code) = (printable(path), code.to_owned());
            self.held_back.push(HeldBack { path, code });
        }
    }

    pub(crate) fn cannot_read(&mut self, path: &str, e: &std::io::Error) {
        if self.unreadable.len() < NAMED_MAX {
            let detail = format!("{e}; give the spoke's user the right to read it");
            self.unreadable.push(Unreadable { path: printable(path), detail });
        }
    }
}

/// What a scan needs; `dry` leaves the ledger as it is.
pub struct Scanner<'a> {
    pub source: &'a Root,
    /// The spoke's own folder, which is never looked into.
    pub state_folder: &'a Path,
    pub spoke_id: &'a SpokeId,
    pub hub_id: HubId,
    pub ledger: &'a mut Ledger,
    pub edge: &'a Edge,
    pub settle: Duration,
    pub select: &'a Select,
    pub priorities: &'a Priorities,
    pub dry: bool,
    /// True when the time is over: the scan leaves the rest to the next one.
    pub is_over: &'a (dyn Fn() -> bool + Sync),
    pub events: &'a (dyn Fn(Event) + Sync),
}

impl Scanner<'_> {
    /// One scan; waits once for files that were too young.
    pub fn scan(self) -> Result<ScanReport, Error> {
        let mut run = Run {
            report: ScanReport {
                is_dry: self.dry,
                is_partial: self.select.is_partial(),
                ..ScanReport::default()
            },
            waiting: Vec::new(),
            next: Vec::new(),
            next_bytes: 0,
            written: Instant::now(),
            youngest: Instant::now(),
            known: KnownRows::new(self.hub_id),
            met: Vec::new(),
            has_other_hubs: false,
            threads: std::thread::available_parallelism().map_or(1, usize::from).min(LOOKING),
            scanner: self,
        };
        run.scanner.ledger.clear_notes()?;
        run.has_other_hubs = run.scanner.ledger.has_other_hubs(run.scanner.hub_id)?;
        let own = std::fs::canonicalize(run.scanner.state_folder).unwrap_or_default();
        let source = run.scanner.source.path().to_owned();
        walk::walk(&source, &own, &mut |visit| run.visit(visit))?;
        run.look_at_next()?;
        run.look_again()?;
        run.write()?;
        run.write_met()?;
        Ok(run.report)
    }
}

/// A file that is looked at next.
struct Next {
    path: FilePath,
    seen: StatRow,
    /// Whether the ledger may have a row of it.
    has_row: bool,
}

struct Run<'a> {
    scanner: Scanner<'a>,
    report: ScanReport,
    waiting: Vec<Change>,
    /// Files that are looked at next, and their bytes: a disk reads many at once sooner.
    next: Vec<Next>,
    next_bytes: u64,
    written: Instant,
    /// When the last young file was seen.
    youngest: Instant,
    known: KnownRows,
    /// Files that were met as pending or exported and are still to be noted.
    met: Vec<FilePath>,
    has_other_hubs: bool,
    /// That look at files.
    threads: usize,
}

impl Run<'_> {
    fn visit(&mut self, visit: Visit<'_>) -> Result<(), Error> {
        if (self.scanner.is_over)() {
            self.report.is_partial = true;
            return Ok(());
        }
        match visit {
            Visit::Ignored(why) => *self.report.ignored.entry(why.as_str()).or_default() += 1,
            Visit::Skipped { path, code } => {
                self.report.discovered += 1;
                self.report.skip(path, code);
                self.let_go(path)?;
            }
            Visit::File { path, .. } if !self.scanner.select.takes(path) => {
                *self.report.ignored.entry("excluded").or_default() += 1;
                // What is not shipped at all any more does not wait either.
                if !self.scanner.select.is_partial() {
                    self.let_go(path)?;
                }
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

    /// A name that is no file any more: a row that waited for it is let go.
    fn let_go(&mut self, path: &str) -> Result<(), Error> {
        let Ok(path) = path.parse::<FilePath>() else {
            return Ok(());
        };
        let row = self.scanner.ledger.file(self.scanner.hub_id, &path)?;
        match row.map(|r| r.state) {
            Some(State::Pending) => self.note(Change::vanished(path)),
            _ => Ok(()),
        }
    }

    fn tell(&self) {
        (self.scanner.events)(Event::Scanning {
            files: self.report.discovered,
            hashed_bytes: self.report.hashed_bytes,
        });
    }

    fn candidate(&mut self, path: &str, stat: StatRow) -> Result<(), Error> {
        let row = self.known.find(self.scanner.ledger, path)?;
        let has_row = row.is_some();
        let row = row.filter(|r| r.stat == stat);
        if row.as_ref().is_some_and(|r| r.state == State::Synced) {
            self.report.count(State::Synced);
            return Ok(());
        }
        let checked = path
            .parse::<FilePath>()
            .and_then(|p| LandedName::new(self.scanner.spoke_id, &p).map(|_| p));
        let path = match checked {
            Ok(path) => path,
            Err(e) => {
                self.report.skip(path, e.code());
                return Ok(());
            }
        };
        if let Some(row) = row {
            self.classify(&path, &row)?;
            return self.settle_known(&path, row.state, row.code.as_deref());
        }
        if lies_still(&stat, self.scanner.edge.now(), self.scanner.settle) {
            return self.look_soon(Next { path, seen: stat, has_row });
        }
        self.youngest = Instant::now();
        self.scanner.ledger.add_young(&path, &stat)
    }

    /// A file that waits goes as the settings say now.
    fn classify(&mut self, path: &FilePath, row: &KnownRow) -> Result<(), Error> {
        let class = self.scanner.priorities.class(path.as_str());
        if row.class == class || row.state != State::Pending {
            return Ok(());
        }
        self.note(Change::Class { path: path.clone(), class })
    }

    fn settle_known(
        &mut self,
        path: &FilePath,
        state: State,
        code: Option<&str>,
    ) -> Result<(), Error> {
        match state {
            State::Skipped => self.report.skip(path.as_str(), code.unwrap_or("skipped")),
            State::Pending | State::Exported => {
                self.report.count(state);
                self.meet(path)?;
            }
            other => self.report.count(other),
        }
        Ok(())
    }

    /// Notes that this file was met, together with others.
    fn meet(&mut self, path: &FilePath) -> Result<(), Error> {
        self.met.push(path.clone());
        if self.met.len() < BATCH { Ok(()) } else { self.write_met() }
    }

    fn write_met(&mut self) -> Result<(), Error> {
        self.scanner.ledger.add_met(&std::mem::take(&mut self.met))
    }

    /// Looks at a file together with some that come next.
    fn look_soon(&mut self, next: Next) -> Result<(), Error> {
        self.next_bytes += next.seen.size_bytes;
        self.next.push(next);
        let is_full = match self.next.len() < self.threads {
            true => self.next_bytes >= LARGE_BYTES,
            false => self.next_bytes >= NEXT_BYTES,
        };
        match self.next.len() < NEXT_FILES && !is_full {
            true => Ok(()),
            false => self.look_at_next(),
        }
    }

    fn look_at_next(&mut self) -> Result<(), Error> {
        let next = std::mem::take(&mut self.next);
        let bytes = std::mem::take(&mut self.next_bytes);
        let source = self.scanner.source;
        // All are asked of the disk before the first is read.
        let is_alone = next.len() < 2;
        let ahead = |n: &Next| if is_alone { None } else { source.read_ahead(n.path.as_str()) };
        let opened: Vec<_> = next.iter().map(ahead).collect();
        let mut known = Vec::with_capacity(next.len());
        for n in &next {
            known.push(self.digest_for_another(n)?);
        }
        let is_over = self.scanner.is_over;
        let look = |((n, known), opened): ((&Next, Option<Looked>), _)| match is_over() {
            true => None,
            false => Some(known.unwrap_or_else(|| look_at(source, n.path.as_str(), opened))),
        };
        let is_little = next.len() < 2 * self.threads && bytes < NEXT_BYTES;
        let threads = if is_little { 1 } else { self.threads.min(next.len()) };
        let looked = side_by_side(next.iter().zip(known).zip(opened).collect(), threads, look);
        for (next, looked) in next.into_iter().zip(looked) {
            match looked {
                Some(looked) => self.take(next, looked)?,
                // Left to the next scan.
                None => {
                    self.report.is_partial = true;
                    self.report.not_settled += 1;
                }
            }
        }
        Ok(())
    }

    /// Notes what follows from a look at the file, if it still is what was seen.
    fn take(&mut self, next: Next, looked: Looked) -> Result<(), Error> {
        let Next { path, seen, has_row } = next;
        let known = match has_row {
            true => self.scanner.ledger.file(self.scanner.hub_id, &path)?.map(|r| r.known()),
            false => None,
        };
        let change = match looked {
            Looked::Gone => {
                self.report.skip(path.as_str(), "vanished");
                // Taken up again when the file is back.
                return self.let_go(path.as_str());
            }
            Looked::Moving => {
                self.report.not_settled += 1;
                return Ok(());
            }
            Looked::Unreadable(e) => {
                self.report.cannot_read(path.as_str(), &e);
                self.report.skip(path.as_str(), "unreadable");
                return Ok(());
            }
            Looked::Whole { stat, .. } | Looked::Held { stat, .. } if stat != seen => {
                self.report.not_settled += 1;
                return Ok(());
            }
            Looked::Whole { sha256, stat } => {
                self.report.hashed_bytes += stat.size_bytes;
                match plan::after_look(known, Look::Whole(sha256)) {
                    Step::Number => {
                        let class = self.scanner.priorities.class(path.as_str());
                        Change::Number { path, stat, sha256, class }
                    }
                    step => self.leave(step, path, stat, "modified", "changed after it was synced"),
                }
            }
            Looked::Held { stat, code, detail } => {
                let step = plan::after_look(known, Look::Held);
                self.leave(step, path, stat, code, &detail)
            }
        };
        match &change {
            Change::Number { path, .. } => self.settle_known(path, State::Pending, None)?,
            Change::Refresh { path, .. } | Change::Class { path, .. } => {
                let state = known.map_or(State::Pending, |k| k.state);
                self.settle_known(path, state, None)?;
            }
            Change::Leave { path, state, code, .. } => {
                self.settle_known(path, *state, Some(code))?;
            }
        }
        self.note(change)
    }

    /// What a look would find at a file that was read for another hub as it is now.
    fn digest_for_another(&self, next: &Next) -> Result<Option<Looked>, Error> {
        let scanner = &self.scanner;
        if !self.has_other_hubs {
            return Ok(None);
        }
        let known = scanner.ledger.digest_for_another(scanner.hub_id, &next.path, &next.seen)?;
        Ok(known.map(|sha256| Looked::Whole { sha256, stat: next.seen }))
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
    fn look_again(&mut self) -> Result<(), Error> {
        if self.scanner.ledger.young_count()? == 0 {
            return Ok(());
        }
        self.write()?;
        // From the last one seen: for every file the two looks are at least `settle` apart.
        std::thread::sleep(self.scanner.settle.saturating_sub(self.youngest.elapsed()));
        let mut after = String::new();
        loop {
            let page = self.scanner.ledger.young_page(&after, BATCH)?;
            let Some((last, _)) = page.last() else {
                return self.look_at_next();
            };
            after = last.to_string();
            for (path, stat) in page {
                if (self.scanner.is_over)() {
                    self.report.not_settled += 1;
                    continue;
                }
                match self.scanner.source.metadata(path.as_str()) {
                    Ok(m) if m.is_file() && StatRow::of(&m) != stat => self.report.not_settled += 1,
                    _ => self.look_soon(Next { path, seen: stat, has_row: true })?,
                }
            }
        }
    }
}

/// What a function makes of each item, in their order; each thread takes the next one that is left.
fn side_by_side<T: Send, R: Send>(
    items: Vec<T>,
    threads: usize,
    f: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if threads < 2 {
        return items.into_iter().map(f).collect();
    }
    let items = Mutex::new(items.into_iter().enumerate());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    let run = || -> Vec<(usize, R)> {
        std::iter::from_fn(|| next().map(|(n, item)| (n, f(item)))).collect()
    };
    let mut made = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        let ended = running.into_iter().map(|t| t.join());
        ended
            .flat_map(|t| t.unwrap_or_else(|p| std::panic::resume_unwind(p)))
            .collect::<Vec<(usize, R)>>()
    });
    made.sort_unstable_by_key(|(n, _)| *n);
    made.into_iter().map(|(_, r)| r).collect()
}

#[cfg(test)]
mod tests;
