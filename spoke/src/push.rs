//! One pass: scan, offer in pages, send newest partition first, check in, report.
//!
//! Only files that the scan of this pass met are offered, so each is in exactly one count.
//! One link fault costs no file an attempt; a few in a row end the pass as "hub not reached".

mod open;
mod report;
mod send;
mod upload;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use barque_bundle::platform::{self, Root};
use barque_bundle::wire::{ReconcileRequest, ReconcileResponse, SpokeReport, WireEntry};
use barque_bundle::{Entry, FilePath, Receipt, SeriesId};

use crate::budget::{Allowance, Limits, Pace};
use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::fault::{self, Fault};
use crate::hub_client::{CallError, HubClient};
use crate::identity::Identity;
use crate::ledger::passes::PassEnd;
use crate::ledger::{Change, FileRow, HubRow, Ledger, PageKey, StatRow};
use crate::lock::Lock;
use crate::look::{Looked, lies_still, look};
use crate::plan::State;
use crate::scan::{ScanReport, Scanner};
use crate::select::Select;

use open::{client, enrolled};
use report::Results;
pub use report::{Conflict, Failure, NEEDS_A_PERSON, PushReport};

/// Files offered in one request.
const PAGE: usize = 2_000;
/// How long after its deadline a pass may still say how it stands.
const GRACE: Duration = Duration::from_secs(15);
/// How often a pass starts over because the hub is another than it was.
const RESTARTS_MAX: u32 = 2;

/// What a pass tells while it runs.
#[derive(Clone, Debug)]
pub enum Event {
    Scanning { files: u64, hashed_bytes: u64 },
    Scanned { pending: u64, pending_bytes: u64 },
    Sending { files: u64, bytes: u64 },
    SentBytes(u64),
    SettledOne,
    Waiting { why: String, ms: u64 },
}

/// What a caller may choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Real,
    /// Scan and say what would be sent; nothing is written and nobody is called.
    DryRun,
}

/// What a caller chooses and allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub mode: Mode,
    /// Globs for this pass alone: what they leave out is still to come.
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    /// What is not set here counts as `spoke.toml` says.
    pub limits: Limits,
}

pub type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// How the talking part of a pass ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Done,
    /// Rows went back to pending (a restored hub, a file asked for again): scan and offer anew.
    StartOver,
}

/// What ended it before its time.
enum Stop {
    /// The hub was not reached; the pass is over.
    HubNotReached(CallError),
    /// The hub does not take this spoke or its requests.
    Fatal(CallError),
    Ledger(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Self::Ledger(e)
    }
}

/// Runs one pass against the first hub of the state folder.
///
/// The ledger is a cache of truth: one that is damaged is set aside, and a new one is made by
/// hashing and asking the hub, without sending what the hub holds.
pub async fn push(
    state: &StateFolder,
    edge: &Edge,
    options: &Options,
    events: Events<'_>,
) -> Result<PushReport, Error> {
    let passed = match one_pass(state, edge, options, events, Told::Nothing).await {
        Err(e) if e.is_damage() && options.mode == Mode::Real => {
            let aside = Ledger::set_aside(&state.ledger(), edge.now())?;
            tracing::warn!(
                error = %crate::error::chain(&e),
                aside = %aside.display(),
                "the ledger is damaged: it is set aside and made anew from the files and the hub"
            );
            one_pass(state, edge, options, events, Told::Damaged).await
        }
        other => other,
    };
    passed.map_err(Error::explained)
}

/// What the operator has heard of the ledger already.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    Damaged,
}

async fn one_pass(
    state: &StateFolder,
    edge: &Edge,
    options: &Options,
    events: Events<'_>,
    told: Told,
) -> Result<PushReport, Error> {
    let started = Instant::now();
    let mode = options.mode;
    let config = SpokeConfig::load(state)?;
    let identity = Identity::load(state)?;
    let (identity, hub) = enrolled(state, identity, &config)?;
    let _lock = Lock::take(state, edge.now())?;
    let mut ledger = Ledger::open(&state.ledger())?;
    let series = SeriesId::new(edge.now(), edge.id_bytes());
    let is_new = ledger.add_hub_if_missing(hub.hub_id, series)?;
    if is_new && mode == Mode::Real && told == Told::Nothing {
        tracing::warn!(
            ledger = %state.ledger().display(),
            "the ledger was lost: it is made anew from the files and the hub"
        );
    }
    let limits = options.limits.or(config.limits().map_err(Error::Usage)?);
    // In hub time, so that a local clock that jumps forgets nothing.
    let offset_ms = ledger.hub(hub.hub_id)?.map_or(0, |h| h.clock_offset_ms);
    let period = limits.budget.map(|b| b.per.name(edge.now().plus_ms(offset_ms)));
    let spent = period.map_or(Ok(0), |p| ledger.spent_in(&p))?;
    let opened = Opened {
        state,
        config: &config,
        identity: &identity,
        hub: &hub,
        started,
        select: config.select(&options.include, &options.exclude).map_err(Error::Usage)?,
        pace: limits.bandwidth.map(Pace::new).map(Arc::new),
        allowance: Allowance::new(&limits, started, spent),
    };
    if mode == Mode::DryRun {
        return opened.pass(&mut ledger, edge, mode, events).await;
    }
    ledger.recover(edge.now())?;
    let number = ledger.begin_pass(edge.now())?;
    let passed = opened.pass(&mut ledger, edge, mode, events).await;
    let end = match &passed {
        Ok(report) => report.end(),
        Err(e) => PassEnd {
            exit_code: e.kind().exit_code(),
            reason: Some(crate::error::chain(e)),
            ..PassEnd::default()
        },
    };
    // Keeping books decides nothing: what the pass came to stands.
    if let Err(e) = ledger.end_pass(number, &end, edge.now()).and_then(|()| ledger.tidy()) {
        tracing::warn!(error = %crate::error::chain(&e), "the end of the pass is not noted");
    }
    passed
}

/// What a pass works with, once its state folder is read.
struct Opened<'a> {
    state: &'a StateFolder,
    config: &'a SpokeConfig,
    identity: &'a Identity,
    hub: &'a HubEntry,
    started: Instant,
    select: Select,
    pace: Option<Arc<Pace>>,
    allowance: Allowance,
}

impl Opened<'_> {
    async fn pass(
        &self,
        ledger: &mut Ledger,
        edge: &Edge,
        mode: Mode,
        events: Events<'_>,
    ) -> Result<PushReport, Error> {
        let Self { state, config, identity, hub, .. } = self;
        let source = Root::open(&config.source)
            .map_err(Error::io("cannot open the source folder", &config.source))?;
        let source = Arc::new(source);
        let upload_above = config.upload_above().map_err(Error::Usage)?.0;
        let settle = config.settle_time().map_err(Error::Usage)?;
        let mut restarts = 0;
        let (mut carried, mut hub_reached) = ((0, 0), false);
        loop {
            let scan_started = Instant::now();
            let scan = Scanner {
                source: &source,
                state_folder: state.path(),
                spoke_id: &identity.spoke_id,
                hub_id: hub.hub_id,
                ledger,
                edge,
                settle,
                select: &self.select,
                dry: mode == Mode::DryRun,
                events,
            }
            .scan()?;
            let mut results = Results::new(scan, carried);
            results.hub_reached = hub_reached;
            if mode == Mode::Real {
                let client = client(identity, hub, ledger, edge, self.pace.clone())?;
                let mut pass = Pass {
                    client,
                    identity,
                    source: Arc::clone(&source),
                    settle,
                    hub,
                    ledger,
                    edge,
                    events,
                    scan_started,
                    faults: 0,
                    breaks_in_a_row: 0,
                    faulted: HashSet::new(),
                    bodies_end: false,
                    upload_above,
                    allowance: self.allowance.clone(),
                    kept: HashSet::new(),
                    rest: Vec::new(),
                    upload_breaks: 0,
                };
                let outcome = pass.run(&mut results).await;
                if matches!(outcome, Ok(End::StartOver)) && restarts < RESTARTS_MAX {
                    restarts += 1;
                    carried = (results.receipts, results.wire_bytes());
                    hub_reached = results.hub_reached;
                    continue;
                }
                results.take_outcome(outcome)?;
            }
            return results.finish(ledger, hub.hub_id, &config.source, self.started.elapsed());
        }
    }
}

/// The part of a pass that talks to the hub.
struct Pass<'a> {
    client: HubClient,
    identity: &'a Identity,
    source: Arc<Root>,
    settle: Duration,
    hub: &'a HubEntry,
    ledger: &'a mut Ledger,
    edge: &'a Edge,
    events: Events<'a>,
    scan_started: Instant,
    /// Link faults since the last call that went through.
    faults: u32,
    /// Bundles that broke off since anything was settled.
    breaks_in_a_row: u32,
    /// Files that were at fault in this pass; their next turn is in the next one.
    faulted: HashSet<FilePath>,
    /// The hub has no space for bodies; offering goes on.
    bodies_end: bool,
    /// Files over this size go in pieces.
    upload_above: u64,
    allowance: Allowance,
    /// Files of which the hub has kept a part, as it said last.
    kept: HashSet<FilePath>,
    /// Those of a bundle that broke: the rest of each goes by an upload.
    rest: Vec<FileRow>,
    /// Uploads that broke off since one was brought on.
    upload_breaks: u32,
}

impl Pass<'_> {
    async fn run(&mut self, results: &mut Results) -> Result<End, Stop> {
        let tally = self.ledger.tally(self.hub.hub_id)?;
        (self.events)(Event::Scanned {
            pending: tally.of(State::Pending),
            pending_bytes: tally.pending_bytes,
        });
        let mut after = PageKey::first();
        loop {
            let page = self.ledger.pending_page(self.hub.hub_id, &after, PAGE)?;
            let Some(last) = page.last() else { break };
            // Offering goes on, so that what the hub keeps of a file is not forgotten; time does not.
            if self.is_used_up(results) && self.is_time_up() {
                break;
            }
            after = last.page_key();
            let rows = self.still_there(page, results)?;
            if !rows.is_empty() && self.offer_and_send(&rows, results).await? == End::StartOver {
                return Ok(End::StartOver);
            }
        }
        self.check_in(results).await
    }

    /// Also an idle pass says that it was here, and up to when everything is known.
    async fn check_in(&mut self, results: &mut Results) -> Result<End, Stop> {
        if results.scan_is_complete() {
            // In hub time, and not later than the scan began: all that lay there then was seen.
            let age = i64::try_from(self.scan_started.elapsed().as_millis()).unwrap_or(i64::MAX);
            self.ledger.set_as_of(self.hub.hub_id, self.hub_now().plus_ms(-age))?;
        }
        let (_, end) = self.reconcile(&[], results).await?;
        if end == End::Done && results.stopped_by.is_none() && !results.is_partial() {
            self.ledger.set_last_success(self.hub.hub_id, self.edge.now())?;
        }
        Ok(end)
    }

    /// Notes why no more may be sent, if that is so.
    fn is_used_up(&mut self, results: &mut Results) -> bool {
        let word = self.allowance.is_used_up(results.wire_bytes(), Instant::now());
        if let Some(word) = word {
            results.used_up(word);
            self.bodies_end = true;
        }
        word.is_some()
    }

    fn is_time_up(&self) -> bool {
        self.allowance.deadline().is_some_and(|d| Instant::now() >= d)
    }

    fn hub_now(&self) -> barque_bundle::Timestamp {
        self.edge.now().plus_ms(self.client.clock_offset_ms())
    }

    /// Offers rows, then sends what is missing.
    async fn offer_and_send(
        &mut self,
        rows: &[FileRow],
        results: &mut Results,
    ) -> Result<End, Stop> {
        let (missing, end) = self.offer(rows, results).await?;
        if end == End::StartOver || self.bodies_end {
            return Ok(end);
        }
        self.send_all(missing, results).await
    }

    /// The rows that the hub lacks, in their order.
    async fn offer(
        &mut self,
        rows: &[FileRow],
        results: &mut Results,
    ) -> Result<(Vec<FileRow>, End), Stop> {
        let entries: Vec<Entry> = rows.iter().filter_map(FileRow::entry).collect();
        let (response, end) = self.reconcile(&entries, results).await?;
        let kept = response.kept.iter().filter_map(|k| k.path.parse::<FilePath>().ok());
        self.kept.extend(kept);
        let missing: HashSet<String> = response.missing.into_iter().collect();
        let missing = rows.iter().filter(|r| missing.contains(r.path.as_str())).cloned().collect();
        Ok((missing, end))
    }

    /// Rows that the scan met and whose files are as they were; what vanished or changed since is
    /// noted, and what is being written is left to the next pass.
    fn still_there(
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
            let stat = match self.source.metadata(row.path.as_str()) {
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
            } else if is_met && lies_still(&stat, self.edge.now(), self.settle) {
                still.extend(self.look_again(&row, results)?);
            }
        }
        Ok(still)
    }

    fn record(&mut self, change: Change) -> Result<(), Error> {
        self.ledger.record(self.hub.hub_id, &[change], self.edge.now())
    }

    /// Looks at a file that the scan met; the row to offer, if there still is one.
    fn look_again(
        &mut self,
        row: &FileRow,
        results: &mut Results,
    ) -> Result<Option<FileRow>, Error> {
        let path = row.path.clone();
        let change = match look(&self.source, path.as_str()) {
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
            Looked::Whole { sha256, stat } => Change::Number { path: path.clone(), stat, sha256 },
            Looked::Held { stat, code, detail } => {
                results.skipped(path.as_str(), code);
                let (state, code) = (State::Skipped, code.to_owned());
                Change::Leave { path: path.clone(), stat, state, code, detail }
            }
        };
        self.record(change)?;
        let fresh = self.ledger.file(self.hub.hub_id, &path)?;
        Ok(fresh.filter(|r| r.state == State::Pending))
    }

    /// Offers entries and takes the answer into the ledger.
    async fn reconcile(
        &mut self,
        entries: &[Entry],
        results: &mut Results,
    ) -> Result<(ReconcileResponse, End), Stop> {
        loop {
            let request = self.request(entries)?;
            let call = self.client.reconcile(&request);
            let answer = match self.allowance.deadline() {
                // The check-in may come a little late.
                Some(at) => tokio::time::timeout_at((at + GRACE).into(), call)
                    .await
                    .unwrap_or(Err(CallError::TimeIsUp)),
                None => call.await,
            };
            match answer {
                Ok((response, receipt)) => {
                    self.faults = 0;
                    results.hub_reached = true;
                    if response.seen > request.seq_head {
                        self.open_series(&request)?;
                        return Ok((response, End::StartOver));
                    }
                    self.ledger.mark_told(self.hub.hub_id, request.series, &request.voids)?;
                    let end = self.take_answer(&response, &receipt, results)?;
                    return Ok((response, end));
                }
                Err(e) => self.link_fault(e).await?,
            }
        }
    }

    fn request(&self, entries: &[Entry]) -> Result<ReconcileRequest, Error> {
        let hub = self.hub_row()?;
        let tally = self.ledger.tally(self.hub.hub_id)?;
        Ok(ReconcileRequest {
            series: hub.series,
            seq_head: hub.seq_head,
            as_of: hub.as_of,
            voids: self.ledger.untold_voids(self.hub.hub_id, hub.series)?,
            replaces: hub.replaces,
            in_transit: Vec::new(),
            status: SpokeReport {
                version: crate::VERSION.to_owned(),
                pending_files: tally.of(State::Pending) + tally.of(State::InFlight),
                pending_bytes: tally.pending_bytes,
            },
            seen_position: hub.seen_position,
            entries: entries.iter().map(WireEntry::from).collect(),
        })
    }

    fn hub_row(&self) -> Result<HubRow, Error> {
        self.ledger.hub(self.hub.hub_id)?.ok_or_else(|| {
            Error::NotEnrolled(format!("the ledger does not know hub {}", self.hub.hub_id))
        })
    }

    /// The hub knows higher numbers of this series than the ledger: an old copy came back.
    fn open_series(&mut self, request: &ReconcileRequest) -> Result<(), Error> {
        tracing::warn!(
            series = %request.series,
            seq_head = request.seq_head,
            "the ledger is older than what the hub has seen of it; a new series is opened"
        );
        let series = SeriesId::new(self.edge.now(), self.edge.id_bytes());
        self.ledger.open_series(self.hub.hub_id, series)
    }

    fn take_answer(
        &mut self,
        response: &ReconcileResponse,
        receipt: &Receipt,
        results: &mut Results,
    ) -> Result<End, Error> {
        let (hub_id, now, head) = (self.hub.hub_id, self.edge.now(), &receipt.head);
        self.ledger.set_clock(hub_id, self.client.clock_offset_ms(), head.received_at)?;
        // Position and epoch as signed, not as merely stated beside the receipt.
        let fresh = SeriesId::new(now, self.edge.id_bytes());
        let is_another =
            self.ledger.meet_hub(hub_id, (head.hub_epoch, head.position), fresh, now)?;
        if is_another {
            tracing::warn!(epoch = %head.hub_epoch, "the hub was restored or recovered; every file is offered again");
        }
        let applied = self.ledger.apply_receipt(hub_id, receipt, now)?;
        results.reconciled(&applied.lines);
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
        if fault::classify(&error) != Fault::Link {
            return Err(Stop::Fatal(error));
        }
        self.faults += 1;
        if self.faults >= fault::IN_A_ROW_MAX || self.is_time_up() {
            return Err(Stop::HubNotReached(error));
        }
        self.pause(&error, self.faults).await;
        Ok(())
    }

    /// The wait after the n-th fault in a row.
    async fn pause(&self, error: &CallError, nth: u32) {
        let wait = fault::backoff(nth, error.retry_after(), self.edge.id_bytes()[0]);
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        (self.events)(Event::Waiting { why: error.to_string(), ms });
        tokio::time::sleep(wait).await;
    }
}

/// Whether the error says that no file is there (a link in its place is none).
fn is_gone(e: &std::io::Error) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(e.kind(), Kind::NotFound | Kind::NotADirectory) || platform::is_link(e)
}
