//! What a pass says at its end: counts that close, and the files a person has to see.

use std::path::Path;
use std::time::Duration;

use barque_bundle::path::printable;
use barque_bundle::{HubId, Outcome, OutcomeLine, Sha256Digest};
use serde::Serialize;

use super::{ScanReport, Stop};
use crate::error::Error;
use crate::hub_client::CallError;
use crate::ledger::Ledger;
use crate::plan::State;
use crate::scan::{NAMED_MAX, Unreadable};

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
    pub conflict: u64,
    pub modified: u64,
    pub failed: u64,
    pub skipped: u64,
    pub not_settled: u64,
    /// Still to be sent.
    pub left: u64,
    /// Why the pass ended before all was sent.
    pub stopped_by: Option<String>,
    pub hub_reached: bool,
    /// Receipts stored by this pass.
    pub receipts: u64,
    /// At most 1,000 of each are named.
    pub conflicts: Vec<Conflict>,
    pub failures: Vec<Failure>,
    pub unreadable: Vec<Unreadable>,
    /// Candidates held back and names passed over, by rule.
    pub skipped_by: std::collections::BTreeMap<String, u64>,
    pub ignored_by: std::collections::BTreeMap<&'static str, u64>,
    pub duration_ms: u64,
    #[serde(skip)]
    pub error: Option<CallError>,
}

/// A path under which the hub has other content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    pub path: String,
    pub sha256: Option<Sha256Digest>,
    pub their_sha256: Option<Sha256Digest>,
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
    pub(super) receipts: u64,
    pub(super) hub_reached: bool,
    pub(super) stopped_by: Option<String>,
    pub(super) error: Option<CallError>,
    skipped: std::collections::BTreeMap<String, u64>,
}

impl Results {
    pub(super) fn new(scan: ScanReport) -> Self {
        Self {
            scan,
            present: 0,
            sent: 0,
            bytes_sent: 0,
            conflict: 0,
            failed: 0,
            removed: 0,
            receipts: 0,
            hub_reached: false,
            stopped_by: None,
            error: None,
            skipped: std::collections::BTreeMap::new(),
        }
    }

    /// A pending file was held back after the scan had counted it as pending.
    pub(super) fn skipped(&mut self, code: &str) {
        *self.skipped.entry(code.to_owned()).or_default() += 1;
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
    pub(super) fn take_outcome(&mut self, outcome: Result<(), Stop>) -> Result<(), Error> {
        let (stopped_by, error) = match outcome {
            Ok(()) => return Ok(()),
            Err(Stop::Ledger(e)) => return Err(e),
            Err(Stop::HubNotReached(e)) => {
                self.hub_reached = false;
                ("hub_not_reached".to_owned(), e)
            }
            Err(Stop::Fatal(e)) => (e.code().to_owned(), e),
        };
        self.stopped_by = Some(stopped_by);
        self.error = Some(error);
        Ok(())
    }

    pub(super) fn finish(
        self,
        ledger: &Ledger,
        hub_id: HubId,
        source: &Path,
        duration: Duration,
    ) -> Result<PushReport, Error> {
        let scan = &self.scan;
        let mut skipped_by = scan.skipped.clone();
        for (code, n) in &self.skipped {
            *skipped_by.entry(code.clone()).or_default() += n;
        }
        let skipped_late: u64 = self.skipped.values().sum();
        let tally = ledger.tally(hub_id)?;
        let pending = tally.of(State::Pending) + tally.of(State::InFlight);
        let resolved =
            self.present + self.sent + self.conflict + self.failed + self.removed + skipped_late;
        // Rows that the scan did not meet (vanished, or offered again) are met by the pass.
        let met_later = (resolved + pending).saturating_sub(scan.state(State::Pending));
        let left = (scan.state(State::Pending) + met_later).saturating_sub(resolved);
        let skipped = skipped_by.values().sum::<u64>()
            + scan.state(State::Dismissed)
            + scan.state(State::Removed)
            + self.removed;
        let mut report = PushReport {
            hub_id,
            discovered: 0,
            present: scan.state(State::Synced) + self.present,
            sent: self.sent,
            bytes_sent: self.bytes_sent,
            conflict: scan.state(State::Conflict) + self.conflict,
            modified: scan.state(State::Modified),
            failed: scan.state(State::Failed) + self.failed,
            skipped,
            not_settled: scan.not_settled,
            left: left + scan.state(State::Exported),
            stopped_by: self.stopped_by,
            hub_reached: self.hub_reached,
            receipts: self.receipts,
            conflicts: conflicts(ledger, hub_id)?,
            failures: failures(ledger, hub_id, source)?,
            unreadable: scan.unreadable.clone(),
            skipped_by,
            ignored_by: scan.ignored.clone(),
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            error: self.error,
        };
        report.discovered = scan.discovered + met_later;
        Ok(report)
    }
}

fn conflicts(ledger: &Ledger, hub_id: HubId) -> Result<Vec<Conflict>, Error> {
    let rows = ledger.files_in(hub_id, State::Conflict, "", NAMED_MAX)?;
    Ok(rows
        .into_iter()
        .map(|r| Conflict {
            path: r.path.to_string(),
            sha256: r.sha256,
            their_sha256: r.their_sha256,
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
        let left = Change::Number {
            path: "left.parquet".parse().unwrap(),
            stat,
            sha256: Sha256Digest::of(b""),
        };
        ledger.record(hub_id, &[left], now).unwrap();
        let mut scan = ScanReport { discovered: 17, not_settled: 1, ..ScanReport::default() };
        scan.skipped.insert("link".into(), 2);
        scan.states = State::ALL.into_iter().map(|s| (s, 1)).collect();
        scan.states.insert(State::Pending, 7);
        scan.states.remove(&State::Skipped);
        scan.states.remove(&State::InFlight);
        let mut results = Results::new(scan);
        for outcome in Outcome::ALL {
            let path = format!("{}.parquet", outcome.as_str()).parse().unwrap();
            results.settled(&OutcomeLine::new(path, Sha256Digest::of(b""), outcome, 1), 5);
        }
        results.skipped("vanished");
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
        assert_eq!((r.discovered, r.left, r.sent, r.bytes_sent), (17, 2, 1, 5));
    }
}
