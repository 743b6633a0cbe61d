//! Sends what the hub lacks: bundle by bundle, each file until it has an outcome or its turn is up.
//!
//! After a broken stream the hub is asked what it kept. A bundle that breaks again with nothing
//! kept is halved, down to the one file that is at fault: it goes last and holds up no other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::header::Draft;
use barque_bundle::path::printable;
use barque_bundle::receipt::LANDING_BLOCKED;
use barque_bundle::wire::{Problem, Stopped};
use barque_bundle::{BundleId, ByteSize, Entry, FilePath, Header, Outcome, OutcomeLine, Signed};

use super::flow::Work;
use super::{End, Event, Pass, Results, State, Stop};
use crate::error::Error;
use crate::fault::{self, Fault};
use crate::hub_client::{CallError, Parcel, Progress, Sent};
use crate::ledger::FileRow;
use crate::ledger::answers::is_for_the_hub;
use crate::plan::{self, Load};

/// Times that a file's bytes may arrive damaged before it waits for a person; once a pass counts.
const MISMATCHES_MAX: u32 = 5;
/// Broken streams in a row, with nothing kept, after which a bundle is halved.
pub(super) const BREAKS_MAX: u32 = 2;
/// Broken streams in a row, over all bundles, after which it is not the files: halving 1,000 files
/// down to one takes 12.
const BREAKS_IN_A_ROW_MAX: u32 = 16;

/// What the signed header of a stream takes.
const HEADER_BYTES: u64 = 4 * 1024;
/// What a file takes in a stream beside its bytes, at the most: headers, its entry, padding.
const MEMBER_BYTES: u64 = 4 * 1024;

/// What became of a bundle, or of an upload.
pub(super) enum Bundle {
    Through,
    /// It broke with nothing kept: its halves are tried apart.
    Halved(Vec<FileRow>, Vec<FileRow>),
    /// Something on the way refused it for its size, as it seems; these are still to go.
    TooLarge(Vec<FileRow>),
    StartOver,
}

impl Pass<'_> {
    /// Sends a load that does not go beside others.
    pub(super) async fn send_alone(
        &mut self,
        load: Load<FileRow>,
        work: &mut Work,
        results: &mut Results,
    ) -> Result<End, Stop> {
        let done = match load {
            Load::Bundle(rows) => {
                let (rows, mut rest) = self.affordable(rows, results);
                // Larger than what may go in this pass: a part goes now, the rest next time.
                let large = if rows.is_empty() { rest.pop_front() } else { None };
                if !rest.is_empty() {
                    work.waiting.push_front(Load::Bundle(rest.into()));
                }
                match large {
                    Some(row) => self.upload(row, results).await?,
                    None => self.send_bundle(rows, results).await?,
                }
            }
            Load::Upload(row) => self.upload(row, results).await?,
        };
        match done {
            Bundle::Through => work.is_alone &= self.breaks_in_a_row > 0,
            Bundle::Halved(first, second) => {
                work.waiting.push_front(Load::Bundle(second));
                work.waiting.push_front(Load::Bundle(first));
            }
            Bundle::TooLarge(rows) => self.repack(rows, work),
            Bundle::StartOver => return Ok(End::StartOver),
        }
        self.put_rest_first(work);
        Ok(End::Done)
    }

    /// What follows when bundles broke off that were under way together: the hub is asked what it
    /// kept of them, and until one is through they go one by one.
    pub(super) async fn after_breaks(
        &mut self,
        bundles: Vec<(Vec<FileRow>, CallError)>,
        work: &mut Work,
        results: &mut Results,
    ) -> Result<End, Stop> {
        let (mut rows, mut last, mut is_too_large) = (Vec::new(), None, false);
        for (of_one, error) in bundles {
            let fault = fault::classify_bundle(&error);
            let Some(error) = self.worth_another_try(fault, error, results)? else { continue };
            is_too_large |= self.is_too_large(&error);
            rows.extend(of_one);
            last = Some(error);
        }
        let Some(error) = last else { return Ok(End::Done) };
        if !is_too_large {
            // Once for all of them: they had one line.
            self.breaks_in_a_row += 1;
            if self.breaks_in_a_row >= BREAKS_IN_A_ROW_MAX {
                return Err(Stop::HubNotReached(error));
            }
            if self.breaks_in_a_row > 1 {
                self.client.try_another_address();
            }
            work.is_alone = true;
            work.is_single |= matches!(&error, CallError::Refused(p) if p.status == 429);
            self.pause(&error, self.breaks_in_a_row).await;
        }
        let Some(missing) = self.what_is_left(&rows, results).await? else {
            return Ok(End::StartOver);
        };
        if is_too_large {
            self.repack(missing, work);
        } else {
            self.pack(missing).into_iter().rev().for_each(|l| work.waiting.push_front(l));
        }
        self.put_rest_first(work);
        Ok(End::Done)
    }

    /// All that waits was packed for larger bodies.
    fn repack(&self, rows: Vec<FileRow>, work: &mut Work) {
        let rows = rows.into_iter().chain(work.waiting.drain(..).flat_map(Load::into_items));
        work.waiting = self.pack(rows.collect()).into();
    }

    /// What a cut left at the hub goes on by itself, whatever became of its bundle.
    fn put_rest_first(&mut self, work: &mut Work) {
        for row in self.rest.drain(..).rev() {
            work.waiting.push_front(Load::Upload(row));
        }
    }

    /// What of rows is still to send, once the hub has said what it kept; none when all has to start
    /// over.
    async fn what_is_left(
        &mut self,
        rows: &[FileRow],
        results: &mut Results,
    ) -> Result<Option<Vec<FileRow>>, Stop> {
        let waiting = self.still_pending(&rows.iter().collect::<Vec<_>>())?;
        let waiting = self.still_there(waiting, results)?;
        if waiting.is_empty() {
            return Ok(Some(waiting));
        }
        let (missing, end) = self.offer(&waiting, results).await?;
        if end == End::StartOver {
            return Ok(None);
        }
        let (rest, missing): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|r| self.kept.contains(&r.path));
        self.rest.extend(rest);
        Ok(Some(missing))
    }

    /// Packs rows that the hub lacks, and says that they go.
    pub(super) fn to_send(&self, rows: Vec<FileRow>) -> Vec<Load<FileRow>> {
        let bytes = rows.iter().map(|r| r.stat.size_bytes).sum();
        (self.events)(Event::Sending { files: rows.len() as u64, bytes });
        self.pack(rows)
    }

    /// Cuts rows, in their order, into what goes in one body each.
    fn pack(&self, rows: Vec<FileRow>) -> Vec<Load<FileRow>> {
        let bytes_max = plan::BUNDLE_BYTES_MAX.min(self.body_max().saturating_sub(HEADER_BYTES));
        let above = self.settings.upload_above;
        let weigh = |r: &FileRow| plan::member_bytes(&r.path, r.stat.size_bytes);
        let is_upload = |r: &FileRow| {
            // Asked before any of its bytes go.
            let is_blocked = r.code.as_deref() == Some(LANDING_BLOCKED);
            let is_too_large = self.body_max() != u64::MAX && weigh(r) > bytes_max;
            let is_large = r.stat.size_bytes > above || is_too_large;
            is_large || is_blocked || self.kept.contains(&r.path)
        };
        plan::pack(rows, bytes_max, weigh, is_upload)
    }

    /// The rows that still fit what may be sent, and the rest.
    pub(super) fn affordable(
        &self,
        mut rows: Vec<FileRow>,
        results: &Results,
    ) -> (Vec<FileRow>, VecDeque<FileRow>) {
        let Some(left) = self.settings.allowance.left(results.wire_bytes()) else {
            return (rows, VecDeque::new());
        };
        let mut sum = 0u64;
        let fit = rows.iter().take_while(|r| {
            sum = sum.saturating_add(r.stat.size_bytes).saturating_add(MEMBER_BYTES);
            sum <= left
        });
        let fit = fit.count();
        let rest = rows.split_off(fit);
        (rows, rest.into())
    }

    async fn send_bundle(
        &mut self,
        mut rows: Vec<FileRow>,
        results: &mut Results,
    ) -> Result<Bundle, Stop> {
        let mut breaks = 0;
        while !rows.is_empty() {
            let Some(error) = self.send_once(&rows, results).await? else {
                return Ok(Bundle::Through);
            };
            let fault = fault::classify_bundle(&error);
            let Some(error) = self.worth_another_try(fault, error, results)? else {
                return Ok(Bundle::Through);
            };
            let is_too_large = self.is_too_large(&error);
            if !is_too_large {
                breaks += 1;
                self.breaks_in_a_row += 1;
                if breaks > 1 {
                    self.client.try_another_address();
                }
                self.pause(&error, breaks).await;
            }
            let Some(missing) = self.what_is_left(&rows, results).await? else {
                return Ok(Bundle::StartOver);
            };
            if is_too_large {
                return Ok(Bundle::TooLarge(missing));
            }
            if missing.len() < rows.len() {
                breaks = 0;
                self.breaks_in_a_row = 0;
            }
            let (fit, beyond) = self.affordable(missing, results);
            if !beyond.is_empty() {
                // Sent twice is paid twice.
                results.used_up(self.settings.allowance.tighter());
                self.bodies_end = true;
            }
            rows = fit;
            if rows.is_empty() {
                return Ok(Bundle::Through);
            }
            let is_busy = fault::is_busy(&error);
            if (is_busy && breaks >= fault::IN_A_ROW_MAX)
                || self.breaks_in_a_row >= BREAKS_IN_A_ROW_MAX
            {
                return Err(Stop::HubNotReached(error));
            }
            // Once a bundle was halved, one break is enough for its halves.
            let is_enough = breaks >= BREAKS_MAX || self.breaks_in_a_row > BREAKS_MAX;
            if !is_busy && breaks > 0 && is_enough {
                return self.give_way(rows, error, results);
            }
        }
        Ok(Bundle::Through)
    }

    /// The error again if sending may go on after it, nothing if bodies end with it.
    pub(super) fn worth_another_try(
        &mut self,
        fault: Fault,
        error: CallError,
        results: &mut Results,
    ) -> Result<Option<CallError>, Stop> {
        match fault {
            Fault::Fatal => return Err(Stop::Fatal(error)),
            Fault::Space => {
                self.hub_is_full(error, results);
                return Ok(None);
            }
            Fault::Link => {}
        }
        Ok((!self.is_used_up(results)).then_some(error))
    }

    /// Bodies end for this pass; offering goes on.
    pub(super) fn hub_is_full(&mut self, error: CallError, results: &mut Results) {
        tracing::warn!(error = %error, "the hub is full; no more files are sent this time");
        results.stopped("hub_full", Some(error));
        self.bodies_end = true;
    }

    /// Halves a bundle that does not get through, or lets its one file go last.
    pub(super) fn give_way(
        &mut self,
        mut rows: Vec<FileRow>,
        error: CallError,
        results: &mut Results,
    ) -> Result<Bundle, Stop> {
        if rows.len() > 1 {
            let second = rows.split_off(rows.len() / 2);
            return Ok(Bundle::Halved(rows, second));
        }
        for row in rows {
            // No limit: a link that is too weak for a file is no fault of the file's content.
            let why = (error.code(), "the file did not get through; others go first");
            self.ledger.count_attempt(self.hub_id(), &row.path, why)?;
            self.faulted.insert(row.path);
        }
        results.stopped("did_not_get_through", Some(error));
        Ok(Bundle::Through)
    }

    /// Sends a bundle once; why not all of it was taken, if it was not.
    async fn send_once(
        &mut self,
        rows: &[FileRow],
        results: &mut Results,
    ) -> Result<Option<CallError>, Error> {
        let (header, parcels) = self.depart(rows)?;
        let bundle_id = header.value.bundle_id;
        let source = Arc::clone(&self.settings.source);
        let sending = |progress| self.client.send(&header, source, parcels, progress);
        let sent = self.follow(results, sending).await;
        self.note_spent(results)?;
        match sent {
            Ok(sent) => self.take_receipt(rows, &sent, results),
            Err(e) => {
                self.ledger.give_back(bundle_id)?;
                Ok(Some(e))
            }
        }
    }

    /// Makes a bundle of rows, which is noted as under way from now on.
    pub(super) fn depart(
        &mut self,
        rows: &[FileRow],
    ) -> Result<(Signed<Header>, Vec<Parcel>), Error> {
        let bundle_id = BundleId::new(self.hub_now(), self.edge.id_bytes());
        let header = self.header(bundle_id, rows)?;
        let parcels =
            rows.iter().filter_map(|r| Some(Parcel { entry: r.entry()?, stat: r.stat })).collect();
        self.ledger.depart(self.hub_id(), bundle_id, rows.len() as u64)?;
        tracing::debug!(
            bundle = %bundle_id,
            files = rows.len(),
            size = %ByteSize(header.value.total_bytes),
            "sending"
        );
        Ok((header, parcels))
    }

    /// Notes in the ledger what went since it was noted last.
    pub(super) fn note_spent(&mut self, results: &Results) -> Result<(), Error> {
        let now = results.wire_bytes();
        self.ledger.add_spent(self.hub_now(), now.saturating_sub(self.noted_bytes))?;
        self.noted_bytes = now;
        Ok(())
    }

    /// Waits for a call, no longer than the pass may go on, and tells how it goes. What went until
    /// its end is counted, also when its time is over.
    pub(super) async fn follow<T, F: Future<Output = Result<T, CallError>>>(
        &self,
        results: &mut Results,
        call: impl FnOnce(Arc<dyn Progress>) -> F,
    ) -> F::Output {
        let (told, mut tell) = tokio::sync::mpsc::unbounded_channel();
        let call = call(Arc::new(Told(told)));
        let deadline = self.settings.allowance.over(Duration::ZERO);
        tokio::pin!(call, deadline);
        let answer = loop {
            tokio::select! {
                () = &mut deadline => break Err(CallError::TimeIsUp),
                answer = &mut call => break answer,
                Some(event) = tell.recv() => {
                    results.moved(&event);
                    (self.events)(event);
                }
            }
        };
        while let Ok(event) = tell.try_recv() {
            results.moved(&event);
        }
        answer
    }

    pub(super) fn header(
        &self,
        bundle_id: BundleId,
        rows: &[FileRow],
    ) -> Result<Signed<Header>, Error> {
        let hub = self.hub_row()?;
        let mut entries: Vec<Entry> = rows.iter().filter_map(FileRow::entry).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let draft = Draft {
            bundle_id,
            spoke_id: self.settings.identity.spoke_id.clone(),
            hub_id: self.hub_id(),
            created_at: self.hub_now(),
            series: hub.series,
            seq_head: hub.seq_head,
            as_of: hub.as_of,
            voids: self.ledger.untold_voids(self.hub_id(), hub.series)?,
            replaces: hub.replaces,
            in_transit: self.ledger.in_transit(self.hub_id())?,
            label: None,
        };
        Ok(Header::sign(draft, &entries, &self.settings.identity.key))
    }

    /// Takes a receipt into the ledger; why the rest was not taken, if it was not.
    pub(super) fn take_receipt(
        &mut self,
        rows: &[FileRow],
        sent: &Sent,
        results: &mut Results,
    ) -> Result<Option<CallError>, Error> {
        let (hub_id, now) = (self.hub_id(), self.edge.now());
        results.hub_reached = true;
        self.body_answered()?;
        let (hub, head) = (self.hub_row()?, &sent.receipt.head);
        if hub.hub_epoch != Some(head.hub_epoch) || head.position < hub.seen_position {
            // Perhaps another hub than the one that was told how things stand.
            self.told = None;
        }
        let applied = self.ledger.apply_receipt(hub_id, &sent.receipt, now)?;
        barque_bundle::fault::after(barque_bundle::fault::Step::LedgerWritten);
        let is_whole = sent.stopped.is_none();
        if is_whole && !self.still_pending(&without_line(&applied.lines, rows))?.is_empty() {
            // Taken and not visible yet: the hub's log says why.
            results.stopped("hub_left_files", None);
        }
        if !applied.lines.is_empty() {
            self.breaks_in_a_row = 0;
        }
        results.receipts += u64::from(!sent.receipt.lines.is_empty());
        let sizes: HashMap<&FilePath, u64> =
            rows.iter().map(|r| (&r.path, r.stat.size_bytes)).collect();
        for line in &applied.lines {
            if is_for_the_hub(line) {
                self.after_block(line, results)?;
                continue;
            }
            if matches!(line.outcome, Outcome::Mismatch | Outcome::Withdrawn) {
                self.after_damage(line, results)?;
                continue;
            }
            let size = sizes.get(&line.path).copied().unwrap_or(0);
            self.answered(1, size);
            results.settled(line, size);
        }
        Ok(sent.stopped.as_ref().map(refusal))
    }

    /// The hub's operator has to act first: the file waits, behind others.
    fn after_block(&mut self, line: &OutcomeLine, results: &mut Results) -> Result<(), Error> {
        let why = line.detail.as_deref().unwrap_or("the hub cannot let it land now");
        self.ledger.count_attempt(self.hub_id(), &line.path, (LANDING_BLOCKED, why))?;
        self.faulted.insert(line.path.clone());
        let error = CallError::Refused(Box::new(Problem {
            status: 503,
            code: LANDING_BLOCKED.to_owned(),
            detail: format!("{}: {why}", printable(line.path.as_str())),
            ..Problem::default()
        }));
        results.stopped(LANDING_BLOCKED, Some(error));
        Ok(())
    }

    /// The bytes were not the declared ones: looks whether the file or the way was at fault.
    fn after_damage(&mut self, line: &OutcomeLine, results: &mut Results) -> Result<(), Error> {
        let hub_id = self.hub_id();
        let Some(row) = self.ledger.file(hub_id, &line.path)? else {
            return Ok(());
        };
        let fresh = self.look_again(&row, results)?;
        self.faulted.insert(row.path.clone());
        let is_same = fresh.is_some_and(|f| f.sha256 == row.sha256);
        if is_same && line.outcome == Outcome::Mismatch {
            results.stopped("damaged_on_the_way", None);
            let why = (
                "mismatch",
                "the hub received other bytes than the file holds: the way to it damages data",
            );
            let now = self.edge.now();
            self.ledger.count_attempt(hub_id, &row.path, why)?;
            if self.ledger.count_mismatch(hub_id, &row.path, MISMATCHES_MAX, now)? {
                results.failed();
            }
        }
        Ok(())
    }

    fn still_pending(&self, rows: &[&FileRow]) -> Result<Vec<FileRow>, Error> {
        let mut still = Vec::new();
        for row in rows {
            let fresh = self.ledger.file(self.hub_id(), &row.path)?;
            still.extend(fresh.filter(|r| r.state == State::Pending));
        }
        Ok(still)
    }
}

/// The rows, as they were sent, that none of the lines which were applied speaks of.
fn without_line<'r>(applied: &[OutcomeLine], rows: &'r [FileRow]) -> Vec<&'r FileRow> {
    let lines: HashSet<_> = applied.iter().map(|l| (&l.path, Some(l.sha256))).collect();
    rows.iter().filter(|r| !lines.contains(&(&r.path, r.sha256))).collect()
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
}

#[cfg(test)]
mod tests {
    use barque_bundle::{Sha256Digest, Timestamp};

    use super::*;
    use crate::ledger::StatRow;

    #[test]
    fn what_no_line_speaks_of_is_found() {
        let sha256 = Sha256Digest::of(b"");
        let path = |name: &str| -> FilePath { format!("{name}.parquet").parse().unwrap() };
        let row = |name: &str| FileRow {
            path: path(name),
            state: State::Pending,
            sha256: Some(sha256),
            stat: StatRow { size_bytes: 1, mtime_ns: 1, ctime_ns: 1, inode: 1 },
            seq: Some(1),
            partition_ms: 0,
            class: 100,
            attempts: 0,
            their_sha256: None,
            code: None,
            detail: None,
            since: Timestamp::from_unix_ms(1),
        };
        let line = |name: &str, outcome| OutcomeLine::new(path(name), sha256, outcome, 1);
        let (a, b) = (line("a", Outcome::Registered), line("b", Outcome::Refused));
        let rows = [row("a"), row("b")];
        let left = |lines: &[&OutcomeLine]| {
            let lines: Vec<OutcomeLine> = lines.iter().copied().cloned().collect();
            without_line(&lines, &rows).into_iter().map(|r| r.path.to_string()).collect::<Vec<_>>()
        };
        assert!(left(&[&b, &a]).is_empty());
        assert!(left(&[&a, &line("b", Outcome::Withdrawn)]).is_empty());
        assert_eq!(left(&[&a]), ["b.parquet"]);
        // As many lines, of another file, said twice, or of other bytes.
        assert_eq!(left(&[&a, &line("c", Outcome::Registered)]), ["b.parquet"]);
        assert_eq!(left(&[&a, &a]), ["b.parquet"]);
        let other = OutcomeLine::new(path("b"), Sha256Digest::of(b"x"), Outcome::Withdrawn, 1);
        assert_eq!(left(&[&a, &other]), ["b.parquet"]);
    }
}
