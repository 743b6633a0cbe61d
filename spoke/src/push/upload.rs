//! Sends one file in pieces, each try from where the hub's bytes end, until it has an outcome or
//! its turn is up.

use std::sync::Arc;
use std::time::Duration;

use barque_bundle::header::Signed;
use barque_bundle::{BundleId, Header};

use super::send::{BREAKS_MAX, Bundle};
use super::{Event, Pass, Results, Stop};
use crate::error::Error;
use crate::fault;
use crate::hub_client::{CallError, Parcel, Piece, Reached, Sent};
use crate::ledger::FileRow;

/// Breaks in a row, over all uploads and without anything brought on, after which it is the link.
const UPLOAD_BREAKS_MAX: u32 = 9;

/// Bytes between two notes of what was spent, while a limit is set.
const NOTED_BYTES: u64 = 64 * 1024 * 1024;

impl Pass<'_> {
    /// Uploads a file; a broken connection costs only what the hub did not keep.
    pub(super) async fn upload(
        &mut self,
        row: FileRow,
        results: &mut Results,
    ) -> Result<Bundle, Stop> {
        let hub_id = self.hub_id();
        let bundle_id = BundleId::new(self.hub_now(), self.edge.id_bytes());
        // One bundle for all tries: the hub hears the same again after a lost answer.
        let header = self.header(bundle_id, std::slice::from_ref(&row))?;
        let (mut breaks, mut best) = (0, None);
        loop {
            let Some(row) = self.still_there(vec![row.clone()], results)?.pop() else {
                return Ok(Bundle::Through);
            };
            if row.entry().map(|e| e.sha256) != header_digest(&header, &row) {
                // It changed and has another number now: its turn comes anew.
                return Ok(Bundle::Through);
            }
            self.ledger.depart(hub_id, bundle_id, 1)?;
            let mut reached = 0;
            let tried = self.upload_once(&header, &row, &mut reached, results).await;
            self.ledger.give_back(bundle_id)?;
            let Some(error) = tried? else {
                self.upload_breaks = 0;
                return Ok(Bundle::Through);
            };
            if self.is_too_large(&error) {
                continue;
            }
            let fault = fault::classify_upload(&error);
            let Some(error) = self.worth_another_try(fault, error, results)? else {
                return Ok(Bundle::Through);
            };
            // A try that brought the file on is no failure: the link is like that.
            if best.is_some_and(|b| reached > b) {
                (breaks, self.upload_breaks) = (0, 0);
            }
            best = best.max(Some(reached));
            breaks += 1;
            self.upload_breaks += 1;
            if breaks > 1 {
                self.client.try_another_address();
            }
            let is_busy = fault::is_busy(&error);
            // Over several files it is not the files.
            let is_the_link = self.upload_breaks >= UPLOAD_BREAKS_MAX;
            if is_the_link || (is_busy && breaks >= fault::IN_A_ROW_MAX) {
                return Err(Stop::HubNotReached(error));
            }
            if !is_busy && breaks > BREAKS_MAX {
                return self.give_way(vec![row], error, results);
            }
            self.pause(&error, breaks).await;
        }
    }

    /// One try; why it ended before the file was through, if it did.
    async fn upload_once(
        &mut self,
        header: &Signed<Header>,
        row: &FileRow,
        reached: &mut u64,
        results: &mut Results,
    ) -> Result<Option<CallError>, Error> {
        match self.bring(header, row, reached, results).await {
            Ok(Some(sent)) => {
                let rows = std::slice::from_ref(row);
                self.take_receipt(rows, &sent, results)
            }
            Ok(None) => Ok(None),
            Err(e) => Ok(Some(e)),
        }
    }

    /// Brings the file on to its end; what the hub says of it then.
    async fn bring(
        &mut self,
        header: &Signed<Header>,
        row: &FileRow,
        reached: &mut u64,
        results: &mut Results,
    ) -> Result<Option<Box<Sent>>, CallError> {
        let Some(entry) = row.entry() else { return Ok(None) };
        let size = entry.size_bytes;
        let opening = self.client.open_upload(header, &entry);
        let mut at = tokio::select! {
            opened = opening => opened?,
            () = self.settings.allowance.over(Duration::ZERO) => return Err(CallError::TimeIsUp),
        };
        if let Reached::Offset(offset @ 1..) = at {
            results.resumed(&row.path, offset);
            (self.events)(Event::SentBytes(offset));
        }
        loop {
            let from = match at {
                Reached::Offset(offset) => offset.min(size),
                Reached::Done(sent) => return Ok(Some(sent)),
            };
            *reached = from;
            let parcel = Parcel { entry: entry.clone(), stat: row.stat };
            let to = match self.settings.allowance.left(results.wire_bytes()) {
                // The whole file is there: the last piece is empty and costs nothing.
                _ if from == size => size,
                Some(0) => return Err(CallError::TimeIsUp),
                // In pieces, so that what is spent is noted also when this process is killed.
                Some(left) => size.min(from.saturating_add(left.min(NOTED_BYTES))),
                None => size,
            };
            let to = to.min(from.saturating_add(self.body_max()));
            let piece = Piece { parcel, from, to };
            let source = Arc::clone(&self.settings.source);
            let appending = |progress| self.client.append(header, source, piece, progress);
            let answer = self.follow(results, appending).await;
            if let Err(e) = self.note_spent(results) {
                tracing::warn!(error = %crate::error::chain(&e), "what was spent is not noted");
            }
            at = answer.inspect_err(|e| {
                if let CallError::Refused(p) = e {
                    *reached = p.upload_offset.unwrap_or(0).max(*reached);
                }
            })?;
        }
    }
}

/// The row's digest if the header is still about it.
fn header_digest(header: &Signed<Header>, row: &FileRow) -> Option<barque_bundle::Sha256Digest> {
    let entry = row.entry()?;
    let same = barque_bundle::entry::entries_digest([&entry]) == header.value.entries_digest;
    same.then_some(entry.sha256)
}
