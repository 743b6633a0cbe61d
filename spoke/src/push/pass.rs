//! The part of a pass that talks to one hub: offers in pages, takes answers in, checks in.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use barque_bundle::platform::{self, Root};
use barque_bundle::wire::{ReconcileRequest, ReconcileResponse, SpokeReport, WireEntry};
use barque_bundle::{BundleId, Entry, FilePath, HubId, Receipt, SeriesId};

use super::ceiling::Ceilings;
use super::flow::{Flowed, Work};
use super::report::Results;
use super::{End, Event, Events, Stop};
use crate::budget::{Allowance, Budget};
use crate::config::HubEntry;
use crate::edge::Edge;
use crate::error::Error;
use crate::fault::{self, Fault};
use crate::hub_client::{CallError, HubClient};
use crate::identity::Identity;
use crate::ledger::{Change, FileRow, HubRow, Ledger, StatRow};
use crate::look::{Looked, lies_still, look};
use crate::plan::{self, State};
use crate::priority::Priorities;

/// Files offered in one request.
pub(super) const PAGE: usize = 2_000;
/// The same before the hub has said anything: as many as go in the 64 KiB that HTTP/2 lets go before
/// the other end has said how much it takes, so that a long line does not wait twice.
pub(super) const PAGE_FIRST: usize = 200;
/// The same once nothing more may be sent.
pub(super) const PAGE_USED_UP: usize = 100;
/// How long after its deadline a pass may still say how it stands.
pub(super) const GRACE: Duration = Duration::from_secs(15);

/// What a pass is made of, beside its client and ledger.
pub(super) struct Settings<'a> {
    pub(super) identity: &'a Identity,
    pub(super) source: Arc<Root>,
    pub(super) settle: Duration,
    /// Files over this size go in pieces.
    pub(super) upload_above: u64,
    pub(super) priorities: &'a Priorities,
    pub(super) hub: &'a HubEntry,
    pub(super) allowance: Allowance,
    /// Until the hub's time is known.
    pub(super) budget: Option<Budget>,
    pub(super) scan_started: Instant,
}

/// What came of an offer.
pub(super) enum Offered {
    Answer(Box<ReconcileResponse>, End),
    /// Something on the way took no body of that size; less goes in one from now on.
    TooLarge,
}

/// What an answer to an offer meant.
pub(super) enum Taken {
    As(End),
    /// A number that was given out since came to the hub before it, so that the hub has recorded
    /// nothing of the offer: it is made again.
    Overtaken,
}

/// The part of a pass that talks to the hub.
pub(super) struct Pass<'a> {
    pub(super) client: Arc<HubClient>,
    pub(super) settings: Settings<'a>,
    pub(super) ledger: &'a mut Ledger,
    pub(super) edge: &'a Edge,
    pub(super) events: Events<'a>,
    /// Link faults since the last call that went through.
    faults: u32,
    /// Bundles that broke off since anything was settled.
    pub(super) breaks_in_a_row: u32,
    /// Files that were at fault in this pass; their next turn is in the next one.
    pub(super) faulted: HashSet<FilePath>,
    /// The hub has no space for bodies; offering goes on.
    pub(super) bodies_end: bool,
    pub(super) ceilings: Ceilings,
    /// Files of which the hub has kept a part, as it said last.
    pub(super) kept: HashSet<FilePath>,
    /// Those of a bundle that broke: the rest of each goes by an upload.
    pub(super) rest: Vec<FileRow>,
    /// Uploads that broke off since one was brought on.
    pub(super) upload_breaks: u32,
    /// Files that wait for an answer, and their bytes.
    pub(super) open: (u64, u64),
    /// Bytes of bodies in this pass that the ledger knows of.
    pub(super) noted_bytes: u64,
    /// What the hub was told beside the last bundles, and has answered.
    pub(super) told: Option<Box<ReconcileRequest>>,
    /// Bundles on drives that the hub has imported, as it said.
    pub(super) arrived: BTreeSet<BundleId>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        client: HubClient,
        settings: Settings<'a>,
        ledger: &'a mut Ledger,
        edge: &'a Edge,
        events: Events<'a>,
    ) -> Result<Self, Error> {
        let ceilings = Ceilings::load(ledger, edge.now().plus_ms(client.clock_offset_ms()))?;
        Ok(Self {
            client: Arc::new(client),
            settings,
            ledger,
            edge,
            events,
            faults: 0,
            breaks_in_a_row: 0,
            faulted: HashSet::new(),
            bodies_end: false,
            ceilings,
            kept: HashSet::new(),
            rest: Vec::new(),
            upload_breaks: 0,
            open: (0, 0),
            noted_bytes: 0,
            told: None,
            arrived: BTreeSet::new(),
        })
    }
}

impl Pass<'_> {
    pub(super) fn hub_id(&self) -> HubId {
        self.settings.hub.hub_id
    }

    pub(super) async fn run(&mut self, results: &mut Results) -> Result<End, Stop> {
        self.count_open()?;
        let (pending, pending_bytes) = self.open;
        (self.events)(Event::Scanned { pending, pending_bytes });
        self.noted_bytes = results.wire_bytes();
        let mut work = Work::new();
        loop {
            let end = match self.flow(&mut work, results).await? {
                Flowed::Over => break,
                Flowed::StartOver => End::StartOver,
                Flowed::Alone(load) => self.send_alone(load, &mut work, results).await?,
                Flowed::Broke(bundles) => self.after_breaks(bundles, &mut work, results).await?,
                Flowed::Unoffered(parts, error) => {
                    self.offer_again(parts, error, &mut work, results).await?
                }
            };
            if end == End::StartOver {
                return Ok(end);
            }
        }
        match self.check_in(results).await? {
            End::Done => self.hear_of_drives(results).await,
            end => Ok(end),
        }
    }

    /// Notes why no more may be sent, if that is so.
    pub(super) fn is_used_up(&mut self, results: &mut Results) -> bool {
        let word = self.settings.allowance.is_used_up(results.wire_bytes(), Instant::now());
        if let Some(word) = word {
            results.used_up(word);
            self.bodies_end = true;
        }
        word.is_some()
    }

    pub(super) fn is_time_up(&self) -> bool {
        self.settings.allowance.is_time_up(Instant::now())
    }

    pub(super) fn hub_now(&self) -> barque_bundle::Timestamp {
        self.edge.now().plus_ms(self.client.clock_offset_ms())
    }

    /// Offers pages anew whose offers failed for this reason, one after the other.
    async fn offer_again(
        &mut self,
        parts: Vec<Vec<FileRow>>,
        error: CallError,
        work: &mut Work,
        results: &mut Results,
    ) -> Result<End, Stop> {
        if !self.is_too_large(&error) {
            self.link_fault(error).await?;
        }
        for rows in parts {
            let (missing, end) = self.offer(&rows, results).await?;
            if end == End::StartOver {
                return Ok(end);
            }
            if !self.bodies_end {
                work.waiting.extend(self.to_send(missing));
            }
        }
        Ok(End::Done)
    }

    /// The rows that the hub lacks, in their order.
    pub(super) async fn offer(
        &mut self,
        rows: &[FileRow],
        results: &mut Results,
    ) -> Result<(Vec<FileRow>, End), Stop> {
        let body_max = self.body_max();
        let mut pages: VecDeque<&[FileRow]> =
            rows.chunks(PAGE).flat_map(|page| plan::pages(page, body_max)).collect();
        let mut missing = Vec::new();
        while let Some(page) = pages.pop_front() {
            let entries: Vec<Entry> = page.iter().filter_map(FileRow::entry).collect();
            let (response, end) = match self.reconcile(&entries, results).await? {
                Offered::Answer(response, end) => (*response, end),
                Offered::TooLarge => {
                    for part in plan::pages(page, self.body_max()).into_iter().rev() {
                        pages.push_front(part);
                    }
                    continue;
                }
            };
            missing.extend(self.missing_of(page, response));
            if end == End::StartOver {
                return Ok((missing, end));
            }
        }
        Ok((missing, End::Done))
    }

    /// The rows of an offer that the hub lacks, in their order.
    pub(super) fn missing_of(
        &mut self,
        offered: &[FileRow],
        response: ReconcileResponse,
    ) -> Vec<FileRow> {
        let kept = response.kept.iter().filter_map(|k| k.path.parse::<FilePath>().ok());
        self.kept.extend(kept);
        let missing: HashSet<String> = response.missing.into_iter().collect();
        offered.iter().filter(|r| missing.contains(r.path.as_str())).cloned().collect()
    }

    /// Most bytes of a body to where the next one goes.
    pub(super) fn body_max(&self) -> u64 {
        self.ceilings.of(self.client.address())
    }

    /// The hub has answered at this address: how large bodies may be there is worth keeping.
    pub(super) fn body_answered(&mut self) -> Result<(), Error> {
        let now = self.hub_now();
        self.ceilings.proven(self.ledger, self.client.address(), now)
    }

    /// Once the hub has said what time it is, the budget is that of its day or month.
    fn renew_budget(&mut self) -> Result<(), Error> {
        let Some(budget) = self.settings.budget.take() else { return Ok(()) };
        let spent = self.ledger.spent_in(&budget.per.name(self.hub_now()))?;
        let before = spent.saturating_sub(self.noted_bytes);
        self.settings.allowance.set_budget(&budget, before);
        Ok(())
    }

    /// Whether a call failed for the size of its body, as far as one can tell; then less goes in
    /// the next one. No file is at fault.
    pub(super) fn is_too_large(&mut self, error: &CallError) -> bool {
        match error {
            CallError::NotTheHub(stranger) => self.ceilings.lower(stranger),
            _ => false,
        }
    }

    /// Rows that the scan met and whose files are as they were; what vanished or changed since is
    /// noted, and what is being written is left to the next pass.
    pub(super) fn still_there(
        &mut self,
        rows: Vec<FileRow>,
        results: &mut Results,
    ) -> Result<Vec<FileRow>, Error> {
        let mut still = Vec::with_capacity(rows.len());
        for row in rows {
            if self.faulted.contains(&row.path) {
                continue;
            }
            let is_met = self.ledger.is_met(&row.path)?;
            let stat = match self.settings.source.metadata(row.path.as_str()) {
                Ok(m) if m.is_file() => StatRow::of(&m),
                Err(e) if !is_gone(&e) => continue,
                _ => {
                    results.vanished(row.path.as_str(), is_met);
                    self.record(Change::vanished(row.path))?;
                    continue;
                }
            };
            if is_met && stat == row.stat {
                still.push(row);
            } else if is_met && lies_still(&stat, self.edge.now(), self.settings.settle) {
                still.extend(self.look_again(&row, results)?);
            }
        }
        Ok(still)
    }

    fn record(&mut self, change: Change) -> Result<(), Error> {
        self.ledger.record(self.hub_id(), &[change], self.edge.now())
    }

    /// Looks at a file that the scan met; the row to offer, if there still is one.
    pub(super) fn look_again(
        &mut self,
        row: &FileRow,
        results: &mut Results,
    ) -> Result<Option<FileRow>, Error> {
        let path = row.path.clone();
        let change = match look(&self.settings.source, path.as_str()) {
            Looked::Gone => {
                results.vanished(path.as_str(), true);
                Change::vanished(path.clone())
            }
            // Left pending: the next scan looks at it.
            Looked::Moving => return Ok(None),
            Looked::Unreadable(e) => {
                results.cannot_read(path.as_str(), &e);
                return Ok(None);
            }
            Looked::Whole { sha256, stat } if row.sha256 == Some(sha256) => {
                Change::Refresh { path: path.clone(), stat }
            }
            Looked::Whole { sha256, stat } => {
                let class = self.settings.priorities.class(path.as_str());
                Change::Number { path: path.clone(), stat, sha256, class }
            }
            Looked::Held { stat, code, detail } => {
                results.skipped(path.as_str(), code);
                let (state, code) = (State::Skipped, code.to_owned());
                Change::Leave { path: path.clone(), stat, state, code, detail }
            }
        };
        self.record(change)?;
        let fresh = self.ledger.file(self.hub_id(), &path)?;
        Ok(fresh.filter(|r| r.state == State::Pending))
    }

    /// Offers entries and takes the answer into the ledger.
    pub(super) async fn reconcile(
        &mut self,
        entries: &[Entry],
        results: &mut Results,
    ) -> Result<Offered, Stop> {
        loop {
            let request = self.request(entries)?;
            let call = self.client.reconcile(&request);
            let answer = tokio::select! {
                answer = call => answer,
                // The check-in may come a little late.
                () = self.settings.allowance.over(GRACE) => Err(CallError::TimeIsUp),
            };
            match answer {
                Ok((response, receipt)) => {
                    match self.take_offer(&request, &response, &receipt, results)? {
                        Taken::Overtaken => {}
                        Taken::As(end) => return Ok(Offered::Answer(Box::new(response), end)),
                    }
                }
                Err(e) if self.is_too_large(&e) => return Ok(Offered::TooLarge),
                Err(e) => self.link_fault(e).await?,
            }
        }
    }

    /// Takes the answer to an offer into the ledger.
    pub(super) fn take_offer(
        &mut self,
        request: &ReconcileRequest,
        response: &ReconcileResponse,
        receipt: &Receipt,
        results: &mut Results,
    ) -> Result<Taken, Error> {
        self.faults = 0;
        self.body_answered()?;
        self.renew_budget()?;
        results.hub_reached = true;
        if let Some(newer) = response.forked {
            results.is_forked = true;
            self.ledger.replace_newer(self.hub_id(), newer, self.new_series())?;
            return Ok(Taken::As(End::StartOver));
        }
        if response.seen > request.seq_head {
            let now = self.hub_row()?;
            if now.series == request.series && response.seen <= now.seq_head {
                return Ok(Taken::Overtaken);
            }
            self.open_series(request)?;
            return Ok(Taken::As(End::StartOver));
        }
        self.ledger.mark_told(self.hub_id(), request.series, &request.voids)?;
        self.take_answer(request.seen_position, response, receipt, results).map(Taken::As)
    }

    pub(super) fn request(&self, entries: &[Entry]) -> Result<ReconcileRequest, Error> {
        let hub = self.hub_row()?;
        let (pending_files, pending_bytes) = self.open;
        Ok(ReconcileRequest {
            series: hub.series,
            seq_head: hub.seq_head,
            as_of: hub.as_of,
            voids: self.ledger.untold_voids(self.hub_id(), hub.series)?,
            replaces: hub.replaces,
            in_transit: self.ledger.in_transit(self.hub_id())?,
            status: SpokeReport {
                version: crate::VERSION.to_owned(),
                pending_files,
                pending_bytes,
            },
            seen_position: hub.seen_position,
            entries: entries.iter().map(WireEntry::from).collect(),
        })
    }

    pub(super) fn hub_row(&self) -> Result<HubRow, Error> {
        self.ledger.hub(self.hub_id())?.ok_or_else(|| {
            Error::NotEnrolled(format!("the ledger does not know hub {}", self.hub_id()))
        })
    }

    /// The hub knows higher numbers of this series than the ledger: an old copy came back.
    fn open_series(&mut self, request: &ReconcileRequest) -> Result<(), Error> {
        tracing::warn!(
            series = %request.series,
            seq_head = request.seq_head,
            "the ledger is older than what the hub has seen of it; a new series is opened"
        );
        self.ledger.open_series(self.hub_id(), self.new_series())
    }

    fn new_series(&self) -> SeriesId {
        SeriesId::new(self.hub_now(), self.edge.id_bytes())
    }

    fn take_answer(
        &mut self,
        asked_at: u64,
        response: &ReconcileResponse,
        receipt: &Receipt,
        results: &mut Results,
    ) -> Result<End, Error> {
        let (hub_id, now, head) = (self.hub_id(), self.edge.now(), &receipt.head);
        results.clock = Some((now, self.hub_now()));
        self.ledger.set_clock(hub_id, self.client.clock_offset_ms(), head.received_at)?;
        // Position and epoch as signed, not as merely stated beside the receipt.
        let fresh = self.new_series();
        let met = (head.hub_epoch, head.position);
        let is_another = self.ledger.meet_hub(hub_id, met, asked_at, fresh, now)?;
        if is_another {
            tracing::warn!(epoch = %head.hub_epoch, "the hub was restored or recovered; every file is offered again");
        }
        let applied = self.ledger.apply_receipt(hub_id, receipt, now)?;
        let mut counted = Vec::with_capacity(applied.lines.len());
        for line in applied.lines {
            // One that went out on a drive may be gone from here since.
            if self.ledger.is_met(&line.path)? {
                counted.push(line);
            }
        }
        results.reconciled(&counted);
        self.arrived.extend(&response.arrived);
        for line in &response.refused {
            let Ok(path) = line.path.parse() else { continue };
            if self.ledger.refuse(hub_id, &path, &line.code, &line.detail, now)? {
                results.failed();
            }
        }
        let mut asked_again = false;
        for wanted in &head.wanted {
            asked_again |= self.ledger.want(hub_id, &wanted.path, wanted.sha256, now)?;
        }
        Ok(if is_another || asked_again { End::StartOver } else { End::Done })
    }

    /// Waits before the next try of a call, or ends the pass.
    async fn link_fault(&mut self, error: CallError) -> Result<(), Stop> {
        // Somebody else answers at one of several addresses: the hub may be at another.
        let is_elsewhere = matches!(error, CallError::WrongRoot { .. } | CallError::Receipt(_))
            && self.faults + 1 < self.client.addresses();
        if fault::classify(&error) != Fault::Link && !is_elsewhere {
            return Err(Stop::Fatal(error));
        }
        self.faults += 1;
        // Each address has its turn.
        let enough = fault::IN_A_ROW_MAX.max(self.client.addresses().saturating_mul(2));
        if self.faults >= enough || self.is_time_up() || fault::asks_for_too_long(&error) {
            return Err(Stop::HubNotReached(error));
        }
        let is_closed =
            matches!(error, CallError::Unreachable { .. }) || fault::is_of_one_node(&error);
        if is_closed || is_elsewhere || self.faults.is_multiple_of(2) {
            self.client.try_another_address();
        }
        self.pause(&error, self.faults).await;
        Ok(())
    }

    /// The wait after the n-th fault in a row.
    pub(super) async fn pause(&self, error: &CallError, nth: u32) {
        let wait = fault::backoff(nth, error.retry_after(), self.edge.id_bytes()[0]);
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        (self.events)(Event::Waiting { why: error.to_string(), ms });
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = self.settings.allowance.over(Duration::ZERO) => {}
        }
    }
}

/// Whether the error says that no file is there (a link in its place is none).
pub(super) fn is_gone(e: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(e.kind(), Kind::NotFound | Kind::NotADirectory) || platform::is_link(e)
}
