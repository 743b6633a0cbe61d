//! What a pass says at its end: counts that close, and the files a person has to see.

use std::path::Path;
use std::time::Duration;

use barque_bundle::path::printable;
use barque_bundle::{ErrorKind, HubId, Outcome, OutcomeLine, Sha256Digest, Timestamp};
use serde::Serialize;

use super::{End, Event, ScanReport, Stop};
use crate::error::Error;
use crate::hub_client::CallError;
use crate::ledger::Ledger;
use crate::ledger::passes::{Counts, PassEnd};
use crate::plan::State;
use crate::scan::{HeldBack, NAMED_MAX, Unreadable};

/// The exit code that says that at least one file waits for a person.
pub const NEEDS_A_PERSON: u8 = 3;

/// The counts of one pass; `discovered` is the sum of `present, sent, conflict, modified, failed,
/// skipped, not_settled` and `left`.
#[derive(Debug, Serialize)]
pub struct PushReport {
    pub hub_id: HubId,
    pub discovered: u64,
    /// The hub had it before this pass, or says now that it does.
    pub present: u64,
    /// New at the hub by this pass.
    pub sent: u64,
    pub bytes_sent: u64,
    /// Bytes of bodies handed to the network; what went twice is counted twice.
    pub wire_bytes: u64,
    /// Files that went on where an earlier try had ended.
    pub resumed: Vec<Resumed>,
    pub conflict: u64,
    pub modified: u64,
    pub failed: u64,
    pub skipped: u64,
    pub not_settled: u64,
    /// Still to be sent, or on a drive under way.
    pub left: u64,
    /// Files of which a drive is under way; known to be left, and sent by no push.
    pub exported: u64,
    pub left_bytes: u64,
    /// Since when the file that waits longest has waited.
    pub left_since: Option<Timestamp>,
    /// Why the pass ended before all was sent.
    pub stopped_by: Option<String>,
    pub hub_reached: bool,
    /// What a person should know although no file waits for it.
    pub warnings: Vec<Warning>,
    /// Receipts stored by this pass.
    pub receipts: u64,
    /// At most 1,000 of each are named.
    pub conflicts: Vec<Conflict>,
    pub failures: Vec<Failure>,
    pub unreadable: Vec<Unreadable>,
    /// Candidates that are not shipped, by name and rule.
    pub held_back: Vec<HeldBack>,
    /// Candidates held back and names passed over, by rule.
    pub skipped_by: std::collections::BTreeMap<String, u64>,
    pub ignored_by: std::collections::BTreeMap<&'static str, u64>,
    pub duration_ms: u64,
    /// The same of the spoke's other hubs, in their order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_hubs: Vec<PushReport>,
    #[serde(skip)]
    pub error: Option<CallError>,
    /// The hub does not take this spoke or its requests, which waiting does not mend.
    #[serde(skip)]
    pub is_refused: bool,
    /// A limit was reached that the caller set.
    #[serde(skip)]
    pub is_used_up: bool,
    #[serde(skip)]
    pub is_dry: bool,
    /// There was nothing to say, so the hub was not called.
    #[serde(skip)]
    pub is_idle: bool,
}

/// A file that went on where an earlier try had ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resumed {
    pub path: String,
    /// Bytes that the hub had.
    pub offset: u64,
}

/// What a person should know although no file waits for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    pub code: &'static str,
    pub detail: String,
}

impl Warning {
    fn forked_series() -> Self {
        let detail = "another machine pushes with a copy of this state folder; the files of both \
                      are taken. Give one of them a name of its own: announce it on the hub and \
                      run `barque enroll --new-identity TOKEN` on that machine";
        Self { code: "forked_series", detail: detail.to_owned() }
    }

    /// None when the clocks are near enough for all purposes.
    fn clock(here: Timestamp, hub: Timestamp) -> Option<Self> {
        const NEAR_MS: u64 = 60_000;
        let apart_ms = here.since_ms(hub);
        if apart_ms.unsigned_abs() <= NEAR_MS {
            return None;
        }
        let word = if apart_ms > 0 { "ahead of" } else { "behind" };
        let apart = rough(apart_ms.unsigned_abs());
        let detail = format!(
            "this machine's clock ({here}) is {apart} {word} the hub's ({hub}); passes go by the \
             hub's time, so nothing is lost. Set the clock, since log lines and modification times \
             are this machine's"
        );
        Some(Self { code: "clock", detail })
    }
}

/// A length of time in its largest unit.
fn rough(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [
        (365 * 86_400_000, "years"),
        (86_400_000, "days"),
        (3_600_000, "hours"),
        (60_000, "minutes"),
    ];
    // Rounded, so that three hours are not two and a bit.
    let rounded = |of: u64| (ms + of / 2) / of;
    let unit = UNITS.iter().find(|(of, _)| rounded(*of) >= 2).unwrap_or(&(1_000, "seconds"));
    format!("{} {}", rounded(unit.0), unit.1)
}

/// A path under which the hub has other content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    pub path: String,
    pub sha256: Option<Sha256Digest>,
    pub modified_at: Timestamp,
    pub their_sha256: Option<Sha256Digest>,
    /// When the hub's content was modified and landed, as the hub says.
    pub theirs: Option<String>,
}

/// A file that waits for a person, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    pub path: String,
    pub state: &'static str,
    pub code: String,
    pub detail: String,
}

impl PushReport {
    /// Whether a person has to act on at least one file.
    pub fn needs_a_person(&self) -> bool {
        self.conflict + self.modified + self.failed > 0 || !self.unreadable.is_empty()
    }

    /// This report and those of the other hubs.
    pub fn of_all(&self) -> impl Iterator<Item = &PushReport> {
        std::iter::once(self).chain(&self.other_hubs)
    }

    /// The exit code of a push: of its hubs', what only a person can mend comes first, then what
    /// time may mend.
    pub fn exit_code(&self) -> u8 {
        let rank = |code: &u8| match *code {
            0 => 0,
            code if code == ErrorKind::Unavailable.exit_code() => 1,
            NEEDS_A_PERSON => 2,
            _ => 3,
        };
        self.of_all().map(PushReport::exit_code_of_hub).max_by_key(rank).unwrap_or(0)
    }

    /// The exit code of the pass: 0 nothing needs a person, 3 a file does, 75 try again later, or
    /// that of the refusal that ended it.
    pub fn exit_code_of_hub(&self) -> u8 {
        let try_later = ErrorKind::Unavailable.exit_code();
        match &self.error {
            Some(e) if self.is_refused => e.kind().exit_code(),
            // What only a person can mend comes before what time may mend.
            _ if self.needs_a_person() && self.hub_reached => NEEDS_A_PERSON,
            _ if self.stopped_by.is_some() && !self.is_used_up => try_later,
            _ if !self.is_dry && !self.is_idle && !self.is_used_up && !self.hub_reached => {
                try_later
            }
            _ if self.needs_a_person() => NEEDS_A_PERSON,
            _ => 0,
        }
    }

    /// What is kept of the pass.
    pub(super) fn end(&self) -> PassEnd {
        let counts = Counts {
            discovered: self.discovered,
            present: self.present,
            sent: self.sent,
            bytes_sent: self.bytes_sent,
            conflict: self.conflict,
            modified: self.modified,
            failed: self.failed,
            skipped: self.skipped,
            not_settled: self.not_settled,
            left: self.left,
        };
        let why = self.error.as_ref().map(|e| crate::error::chain(e));
        let reason = match (&self.stopped_by, why) {
            (Some(word), Some(why)) => Some(format!("{word}: {why}")),
            (word, why) => word.clone().or(why),
        };
        PassEnd { counts, exit_code: self.exit_code_of_hub(), reason }
    }
}

/// What happens to the files of a pass, as it happens.
pub(super) struct Results {
    scan: ScanReport,
    present: u64,
    sent: u64,
    bytes_sent: u64,
    conflict: u64,
    failed: u64,
    removed: u64,
    /// Pending files that the scan did not meet and that turned out to be gone.
    met_late: u64,
    pub(super) receipts: u64,
    pub(super) hub_reached: bool,
    wire_bytes: u64,
    resumed: Vec<Resumed>,
    pub(super) stopped_by: Option<String>,
    is_refused: bool,
    is_used_up: bool,
    pub(super) is_idle: bool,
    pub(super) is_forked: bool,
    /// This machine's time and the hub's, at one moment.
    pub(super) clock: Option<(Timestamp, Timestamp)>,
    pub(super) error: Option<CallError>,
}

impl Results {
    /// Receipts and bytes of bodies carry over from a part of the pass that started over.
    pub(super) fn new(scan: ScanReport, (receipts, wire_bytes): (u64, u64)) -> Self {
        Self {
            scan,
            present: 0,
            sent: 0,
            bytes_sent: 0,
            conflict: 0,
            failed: 0,
            removed: 0,
            met_late: 0,
            receipts,
            hub_reached: false,
            wire_bytes,
            resumed: Vec::new(),
            stopped_by: None,
            is_refused: false,
            is_used_up: false,
            is_idle: false,
            is_forked: false,
            clock: None,
            error: None,
        }
    }

    /// Whether everything below the source was seen, were it settled or not.
    pub(super) fn scan_saw_all(&self) -> bool {
        self.scan.unreadable.is_empty() && !self.scan.is_partial
    }

    pub(super) fn scan_is_complete(&self) -> bool {
        self.scan.is_complete()
    }

    /// Whether files were left out that are still to come.
    pub(super) fn is_partial(&self) -> bool {
        self.scan.is_partial
    }

    /// A file that the scan had counted as pending was held back after all.
    pub(super) fn skipped(&mut self, path: &str, code: &str) {
        self.scan.skip(path, code);
    }

    /// A pending file is gone; the scan may have met it before.
    pub(super) fn vanished(&mut self, path: &str, is_met: bool) {
        self.scan.skip(path, "vanished");
        self.met_late += u64::from(!is_met);
    }

    pub(super) fn cannot_read(&mut self, path: &str, e: &std::io::Error) {
        self.scan.cannot_read(path, e);
    }

    pub(super) fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// A limit that the caller set is reached: what is left waits, and nobody has to act.
    pub(super) fn used_up(&mut self, word: &str) {
        // What a person or time has to mend is not hidden behind it.
        if self.stopped_by.is_none() {
            self.stopped_by = Some(word.to_owned());
            self.is_used_up = true;
        }
    }

    /// What a person or time has to mend: it comes before any limit.
    pub(super) fn stopped(&mut self, word: &str, error: Option<CallError>) {
        self.stopped_by = Some(word.to_owned());
        self.is_used_up = false;
        self.error = error.or(self.error.take());
    }

    pub(super) fn moved(&mut self, event: &Event) {
        if let Event::SentBytes(n) = event {
            self.wire_bytes += n;
        }
    }

    pub(super) fn resumed(&mut self, path: &barque_bundle::FilePath, offset: u64) {
        if self.resumed.len() < NAMED_MAX {
            self.resumed.push(Resumed { path: path.to_string(), offset });
        }
    }

    pub(super) fn failed(&mut self) {
        self.failed += 1;
    }

    /// Lines of a reconcile receipt that moved rows.
    pub(super) fn reconciled(&mut self, lines: &[OutcomeLine]) {
        self.receipts += u64::from(!lines.is_empty());
        for line in lines {
            self.settled(line, 0);
        }
    }

    /// One line that moved a row.
    pub(super) fn settled(&mut self, line: &OutcomeLine, size_bytes: u64) {
        match line.outcome {
            Outcome::Registered => {
                self.sent += 1;
                self.bytes_sent += size_bytes;
            }
            Outcome::AlreadyPresent => self.present += 1,
            Outcome::Conflict => self.conflict += 1,
            Outcome::Refused => self.failed += 1,
            Outcome::Removed => self.removed += 1,
            Outcome::Mismatch | Outcome::Withdrawn => {}
        }
    }

    /// Notes how the talking part ended; a fault of the ledger is passed on.
    pub(super) fn take_outcome(&mut self, outcome: Result<End, Stop>) -> Result<(), Error> {
        let (stopped_by, error) = match outcome {
            Ok(End::Done) => return Ok(()),
            Ok(End::StartOver) => {
                self.stopped(if self.is_forked { "forked_series" } else { "hub_changed" }, None);
                return Ok(());
            }
            Err(Stop::Ledger(e)) => return Err(e),
            Err(Stop::HubNotReached(e)) => ("hub_not_reached".to_owned(), e),
            Err(Stop::Fatal(e)) => {
                self.is_refused = true;
                (e.code().to_owned(), e)
            }
        };
        self.is_used_up = false;
        self.stopped_by = Some(stopped_by);
        self.error = Some(error);
        Ok(())
    }

    fn warnings(&self) -> Vec<Warning> {
        let forked = self.is_forked.then(Warning::forked_series);
        let clock = self.clock.and_then(|(here, hub)| Warning::clock(here, hub));
        forked.into_iter().chain(clock).collect()
    }

    pub(super) fn finish(
        self,
        ledger: &Ledger,
        hub_id: HubId,
        source: &Path,
        duration: Duration,
    ) -> Result<PushReport, Error> {
        let warnings = self.warnings();
        let scan = self.scan;
        let skipped = scan.skipped.values().sum::<u64>()
            + scan.state(State::Dismissed)
            + scan.state(State::Removed)
            + self.removed;
        // Counted in the ledger and not worked out from the rest, so that a file that fell
        // through would show.
        let tally = ledger.open_tally(hub_id)?;
        let left = match scan.is_dry {
            true => scan.state(State::Pending) + scan.state(State::Exported),
            false => ledger.met_and_open(hub_id)?,
        };
        Ok(PushReport {
            hub_id,
            discovered: scan.discovered + self.met_late,
            present: scan.state(State::Synced) + self.present,
            sent: self.sent,
            bytes_sent: self.bytes_sent,
            wire_bytes: self.wire_bytes,
            resumed: self.resumed,
            conflict: scan.state(State::Conflict) + self.conflict,
            modified: scan.state(State::Modified),
            failed: scan.state(State::Failed) + self.failed,
            skipped,
            not_settled: scan.not_settled,
            left,
            exported: tally.of(State::Exported),
            left_bytes: tally.pending_bytes,
            left_since: tally.oldest_pending,
            stopped_by: self.stopped_by,
            hub_reached: self.hub_reached,
            warnings,
            receipts: self.receipts,
            conflicts: conflicts(ledger, hub_id)?,
            failures: failures(ledger, hub_id, source)?,
            unreadable: scan.unreadable,
            held_back: scan.held_back,
            skipped_by: scan.skipped,
            ignored_by: scan.ignored,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            error: self.error,
            is_refused: self.is_refused,
            is_used_up: self.is_used_up,
            is_idle: self.is_idle,
            is_dry: scan.is_dry,
            other_hubs: Vec::new(),
        })
    }
}

fn conflicts(ledger: &Ledger, hub_id: HubId) -> Result<Vec<Conflict>, Error> {
    let rows = ledger.files_in(hub_id, State::Conflict, "", NAMED_MAX)?;
    Ok(rows
        .into_iter()
        .map(|r| Conflict {
            path: r.path.to_string(),
            sha256: r.sha256,
            modified_at: r.stat.modified_at(),
            their_sha256: r.their_sha256,
            theirs: r.detail,
        })
        .collect())
}

fn failures(ledger: &Ledger, hub_id: HubId, source: &Path) -> Result<Vec<Failure>, Error> {
    let mut failures = Vec::new();
    for state in [State::Failed, State::Modified] {
        for row in ledger.files_in(hub_id, state, "", NAMED_MAX)? {
            let detail = row.detail.unwrap_or_default();
            let file = printable(&source.join(row.path.as_str()).display().to_string());
            failures.push(Failure {
                path: row.path.to_string(),
                state: state.as_str(),
                code: row.code.unwrap_or_default(),
                detail: format!("{file}: {detail}"),
            });
        }
    }
    failures.truncate(NAMED_MAX);
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use barque_bundle::{SeriesId, Timestamp};

    use super::*;
    use crate::ledger::{Change, StatRow};

    #[test]
    fn the_counts_close_whatever_happened() {
        let dir = tempfile::tempdir().unwrap();
        let mut ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
        let now = Timestamp::from_unix_ms(1);
        let hub_id = HubId::new(now, [1; 10]);
        ledger.add_hub(hub_id, SeriesId::new(now, [1; 10]), 0).unwrap();
        let stat = StatRow { size_bytes: 1, mtime_ns: 1, ctime_ns: 1, inode: 1 };
        let mut changes = Vec::new();
        for name in ["left", "lost", "on-a-drive"] {
            let path: barque_bundle::FilePath = format!("{name}.parquet").parse().unwrap();
            changes.push(Change::Number { path, stat, sha256: Sha256Digest::of(b""), class: 100 });
        }
        ledger.record(hub_id, &changes, now).unwrap();
        ledger.clear_notes().unwrap();
        let met = ["left.parquet", "on-a-drive.parquet"].map(|p| p.parse().unwrap());
        ledger.add_met(&met).unwrap();
        let exported = "UPDATE files SET state='exported' WHERE path='on-a-drive.parquet'";
        assert_eq!(ledger.connection.execute(exported, []).unwrap(), 1);
        let mut scan = ScanReport { discovered: 17, not_settled: 1, ..ScanReport::default() };
        scan.skipped.insert("link".into(), 2);
        scan.states = State::ALL.into_iter().map(|s| (s, 1)).collect();
        // One is left beside the exported one, five have outcomes, one turns out to be damaged.
        scan.states.insert(State::Pending, 7);
        scan.states.remove(&State::Skipped);
        let mut results = Results::new(scan, (0, 0));
        for outcome in Outcome::ALL {
            let path = format!("{}.parquet", outcome.as_str()).parse().unwrap();
            results.settled(&OutcomeLine::new(path, Sha256Digest::of(b""), outcome, 1), 5);
        }
        results.skipped("d.parquet", "parquet_empty");
        results.vanished("gone.parquet", false);
        let r = results.finish(&ledger, hub_id, dir.path(), Duration::ZERO).unwrap();
        let sum = r.present
            + r.sent
            + r.conflict
            + r.modified
            + r.failed
            + r.skipped
            + r.not_settled
            + r.left;
        assert_eq!(r.discovered, sum, "{r:?}");
        assert_eq!((r.discovered, r.left, r.sent, r.bytes_sent), (18, 2, 1, 5));
    }
}
