//! The end of a pass: it says that it was here and what is still to come, and hears what arrived on
//! drives.

use barque_bundle::Ranges;

use super::pass::{Offered, PAGE, Pass};
use super::report::Results;
use super::{End, Stop};
use crate::error::Error;
use crate::plan::State;

impl Pass<'_> {
    /// Offers the files of bundles that arrived on drives, so that the hub's word on each comes by
    /// this road too; what it lacks all the same waits again.
    pub(super) async fn hear_of_drives(&mut self, results: &mut Results) -> Result<End, Stop> {
        let hub_id = self.hub_id();
        for bundle in std::mem::take(&mut self.arrived) {
            let mut after = String::new();
            self.ledger.renumber_exported(hub_id, bundle)?;
            loop {
                if self.is_time_up() {
                    return Ok(End::Done);
                }
                let mut rows = self.ledger.files_of_bundle(hub_id, bundle, &after, PAGE)?;
                let Some(last) = rows.last() else { break };
                after = last.path.to_string();
                rows.retain(|r| r.state == State::Exported && r.seq.is_some());
                if rows.is_empty() {
                    continue;
                }
                let (missing, end) = self.offer(&rows, results).await?;
                let missing: Vec<String> = missing.iter().map(|r| r.path.to_string()).collect();
                self.ledger.give_back_exported(hub_id, &missing, self.edge.now())?;
                if end == End::StartOver {
                    return Ok(end);
                }
            }
        }
        self.ledger.close_bundles(hub_id, self.edge.now())?;
        Ok(End::Done)
    }

    /// Counts what is still to be answered, for the hub to know. Between the ends of a pass it is kept
    /// by what is settled: to count takes as long as there are files.
    pub(super) fn count_open(&mut self) -> Result<(), Error> {
        let tally = self.ledger.open_tally(self.hub_id())?;
        self.open = (tally.of(State::Pending), tally.pending_bytes);
        Ok(())
    }

    /// So many files, and bytes of them, are answered.
    pub(super) fn answered(&mut self, files: u64, bytes: u64) {
        let open = &mut self.open;
        *open = (open.0.saturating_sub(files), open.1.saturating_sub(bytes));
    }

    /// Also an idle pass says that it was here, and up to when everything is known; unless the hub
    /// was told just that beside the last bundles.
    pub(super) async fn check_in(&mut self, results: &mut Results) -> Result<End, Stop> {
        self.count_open()?;
        let mut end = End::Done;
        if !self.still_holds()? {
            self.note_as_of(results)?;
            end = loop {
                if let Offered::Answer(_, end) = self.reconcile(&[], results).await? {
                    break end;
                }
            };
        }
        if end == End::Done && results.stopped_by.is_none() && !results.is_partial() {
            self.ledger.set_last_success(self.hub_id(), self.edge.now())?;
        }
        Ok(end)
    }

    /// Notes up to when everything is known, if that is so.
    pub(super) fn note_as_of(&self, results: &Results) -> Result<(), Error> {
        if !results.scan_is_complete() {
            return Ok(());
        }
        // In hub time, and not later than the scan began: all that lay there then was seen.
        let age =
            i64::try_from(self.settings.scan_started.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.ledger.set_as_of(self.hub_id(), self.hub_now().plus_ms(-age))
    }

    /// Whether what the hub was told is how things stand.
    fn still_holds(&mut self) -> Result<bool, Error> {
        let Some(mut told) = self.told.take() else { return Ok(false) };
        let now = self.request(&[])?;
        told.seen_position = now.seen_position;
        // The answer has noted those that it was told.
        told.voids = Ranges::default();
        Ok(now == *told)
    }
}
