//! Sends what the hub lacks: bundle by bundle, each file until it has an outcome or its turn is up.

use std::collections::HashMap;
use std::sync::Arc;

use barque_bundle::header::Draft;
use barque_bundle::wire::{Problem, Stopped};
use barque_bundle::{BundleId, FilePath, Header};

use super::{
    ATTEMPTS_MAX, ByteSize, Entry, Event, Outcome, OutcomeLine, Pass, Results, State, Stop, fault,
    plan,
};
use crate::error::Error;
use crate::fault::Fault;
use crate::hub_client::{CallError, Parcel, Progress, Sent};
use crate::ledger::FileRow;

impl Pass<'_> {
    /// Sends rows in their order.
    pub(super) async fn send_all(
        &mut self,
        rows: Vec<FileRow>,
        results: &mut Results,
    ) -> Result<(), Stop> {
        let by_path: HashMap<FilePath, FileRow> =
            rows.iter().map(|r| (r.path.clone(), r.clone())).collect();
        let entries: Vec<Entry> = rows.iter().filter_map(FileRow::entry).collect();
        let bytes = entries.iter().map(|e| e.size_bytes).sum();
        (self.events)(Event::Sending { files: entries.len() as u64, bytes });
        for bundle in plan::pack(entries) {
            let rows: Vec<FileRow> =
                bundle.iter().filter_map(|e| by_path.get(&e.path).cloned()).collect();
            self.send_bundle(rows, results).await?;
            if self.bodies_end {
                break;
            }
        }
        Ok(())
    }

    /// Sends until every row has an outcome; after a broken stream the hub is asked what it kept.
    async fn send_bundle(
        &mut self,
        mut rows: Vec<FileRow>,
        results: &mut Results,
    ) -> Result<(), Stop> {
        while !rows.is_empty() && !self.bodies_end {
            let bundle_id = BundleId::new(self.hub_now(), self.edge.id_bytes());
            let sent = self.send_once(bundle_id, &rows).await;
            let error = match sent {
                Ok(sent) => self.take_receipt(bundle_id, &sent, results)?,
                Err(e) => {
                    self.ledger.give_back(self.hub.hub_id, bundle_id, self.edge.now())?;
                    Some(e)
                }
            };
            let Some(error) = error else { return Ok(()) };
            if fault::classify(&error) == Fault::Space {
                tracing::warn!(error = %error, "the hub is full; no more files are sent this time");
                results.stopped_by = Some("hub_full".to_owned());
                results.error = Some(error);
                self.bodies_end = true;
                return Ok(());
            }
            self.fault(error).await?;
            let waiting = self.still_pending(&rows)?;
            let there = self.still_there(waiting, results)?;
            if there.is_empty() {
                return Ok(());
            }
            rows = self.offer(&there, results).await?.0;
        }
        Ok(())
    }

    fn hub_now(&self) -> barque_bundle::Timestamp {
        self.edge.now().plus_ms(self.client.clock_offset_ms())
    }

    async fn send_once(
        &mut self,
        bundle_id: BundleId,
        rows: &[FileRow],
    ) -> Result<Sent, CallError> {
        let wrap = |e: Error| CallError::Client(e.to_string());
        let hub = self.hub_row().map_err(wrap)?;
        let mut entries: Vec<Entry> = rows.iter().filter_map(FileRow::entry).collect();
        let parcels = rows
            .iter()
            .filter_map(|r| {
                let file = self.source.join(r.path.as_str());
                Some(Parcel { entry: r.entry()?, file, stat: r.stat })
            })
            .collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let draft = Draft {
            bundle_id,
            spoke_id: self.identity.spoke_id.clone(),
            hub_id: self.hub.hub_id,
            created_at: self.hub_now(),
            series: hub.series,
            seq_head: hub.seq_head,
            as_of: hub.as_of,
            voids: self.ledger.voids(self.hub.hub_id, hub.series).map_err(wrap)?,
            replaces: hub.replaces,
            label: None,
        };
        let header = Header::sign(draft, &entries, &self.identity.key);
        let paths: Vec<&FilePath> = rows.iter().map(|r| &r.path).collect();
        self.ledger.depart(self.hub.hub_id, bundle_id, &paths, self.edge.now()).map_err(wrap)?;
        tracing::debug!(
            bundle = %bundle_id,
            files = rows.len(),
            size = %ByteSize(header.value.total_bytes),
            "sending"
        );
        let (told, mut tell) = tokio::sync::mpsc::unbounded_channel();
        let progress: Arc<dyn Progress> = Arc::new(Told(told));
        let sending = self.client.send(&header, parcels, progress);
        tokio::pin!(sending);
        loop {
            tokio::select! {
                sent = &mut sending => return sent,
                Some(event) = tell.recv() => (self.events)(event),
            }
        }
    }

    /// Takes a receipt into the ledger; why the rest was not taken, if it was not.
    fn take_receipt(
        &mut self,
        bundle_id: BundleId,
        sent: &Sent,
        results: &mut Results,
    ) -> Result<Option<CallError>, Error> {
        let (hub_id, now) = (self.hub.hub_id, self.edge.now());
        self.went_through_partly(sent, results);
        let applied = self.ledger.apply_receipt(hub_id, &sent.receipt, now)?;
        self.ledger.give_back(hub_id, bundle_id, now)?;
        let mut faulty = Vec::new();
        for line in &applied.lines {
            match line.outcome {
                Outcome::Mismatch | Outcome::Withdrawn => faulty.push(line),
                _ => {
                    let row = self.ledger.file(hub_id, &line.path)?;
                    results.settled(line, row.map_or(0, |r| r.stat.size_bytes));
                }
            }
        }
        results.receipts += u64::from(!sent.receipt.lines.is_empty());
        for line in faulty {
            self.after_fault(line, results)?;
        }
        Ok(sent.stopped.as_ref().map(refusal))
    }

    /// A call that settled files counts as one that went through, also when it ended early.
    fn went_through_partly(&mut self, sent: &Sent, results: &mut Results) {
        results.hub_reached = true;
        if sent.stopped.is_none() || !sent.receipt.lines.is_empty() {
            self.faults = 0;
        }
    }

    /// The bytes were not the declared ones: looks whether the file or the link was at fault.
    fn after_fault(&mut self, line: &OutcomeLine, results: &mut Results) -> Result<(), Error> {
        let hub_id = self.hub.hub_id;
        let Some(row) = self.ledger.file(hub_id, &line.path)? else {
            return Ok(());
        };
        let fresh = self.look_at(&row, results)?;
        let is_same = fresh.is_some_and(|f| f.sha256 == row.sha256);
        if is_same && line.outcome == Outcome::Mismatch {
            let why = (
                "mismatch",
                "the hub received other bytes than the file holds: the way to it damages data",
            );
            if self.ledger.count_fault(hub_id, &row.path, why, ATTEMPTS_MAX, self.edge.now())? {
                results.failed();
            }
        }
        Ok(())
    }

    fn still_pending(&self, rows: &[FileRow]) -> Result<Vec<FileRow>, Error> {
        let mut still = Vec::new();
        for row in rows {
            let fresh = self.ledger.file(self.hub.hub_id, &row.path)?;
            still.extend(fresh.filter(|r| r.state == State::Pending));
        }
        Ok(still)
    }
}

fn refusal(stopped: &Stopped) -> CallError {
    CallError::Refused(Box::new(Problem {
        title: String::new(),
        status: stopped.status,
        code: stopped.code.clone(),
        detail: stopped.detail.clone(),
        ..Problem::default()
    }))
}

/// Carries progress from the sending thread to the pass.
struct Told(tokio::sync::mpsc::UnboundedSender<Event>);

impl Progress for Told {
    fn sent(&self, bytes: u64) {
        let _ = self.0.send(Event::SentBytes(bytes));
    }

    fn settled(&self) {
        let _ = self.0.send(Event::SettledOne);
    }
}
