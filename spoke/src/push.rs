//! One pass against each hub: scan, offer in pages, send newest partition first, check in, report.
//!
//! Only files that the scan of this pass met are offered, so each is in exactly one count.
//! One link fault costs no file an attempt; a few in a row end the pass as "hub not reached".

mod ceiling;
mod check_in;
mod flow;
mod open;
mod pass;
mod report;
mod send;
mod upload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use barque_bundle::platform::Root;
use barque_bundle::{HubId, SeriesId};

use crate::budget::{Allowance, Limits, Pace, Stop as StopSignal};
use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::hub_client::CallError;
use crate::identity::Identity;
use crate::ledger::Ledger;
use crate::ledger::passes::PassEnd;
use crate::lock::Lock;
use crate::pin::Times;
use crate::plan::State;
use crate::priority::Priorities;
use crate::scan::{ScanReport, Scanner};
use crate::select::Select;

use open::client;
pub(crate) use open::enrolled;
use pass::Pass;
use report::Results;
pub use report::{Conflict, Failure, NEEDS_A_PERSON, PushReport};

/// How often a pass starts over because the hub is another than it was.
const RESTARTS_MAX: u32 = 2;

/// What a pass tells while it runs.
#[derive(Clone, Debug)]
pub enum Event {
    Scanning { files: u64, hashed_bytes: u64 },
    Scanned { pending: u64, pending_bytes: u64 },
    Sending { files: u64, bytes: u64 },
    SentBytes(u64),
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

/// When a hub hears from a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckIn {
    /// Always: also an idle pass says that it was here.
    #[default]
    Always,
    /// Only when there is something to say or send.
    IfNeeded,
}

/// What a caller chooses and allows.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub mode: Mode,
    /// Only this hub; each of the state folder when there is none.
    pub hub: Option<HubId>,
    pub check_in: CheckIn,
    /// Globs for this pass alone: what they leave out is still to come.
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    /// What is not set here counts as `spoke.toml` says.
    pub limits: Limits,
    /// Ends the pass before its time.
    pub stop: StopSignal,
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

/// Runs one pass against each hub of the state folder, that which did well last first; the report
/// is that of the first one in `spoke.toml`, with those of the others in it.
///
/// The ledger is a cache of truth: one that is damaged is set aside, and a new one is made by
/// hashing and asking the hub, without sending what the hub holds.
pub async fn push(
    state: &StateFolder,
    edge: &Edge,
    options: &Options,
    events: Events<'_>,
) -> Result<PushReport, Error> {
    let passed = match over_hubs(state, edge, options, events, Told::Nothing).await {
        Err(e) if e.is_damage() && options.mode == Mode::Real => {
            let aside = Ledger::set_aside(&state.ledger(), "damaged", edge.now())?;
            tracing::warn!(
                error = %crate::error::chain(&e),
                aside = %aside.display(),
                "the ledger is damaged: it is set aside and made anew from the files and the hub"
            );
            over_hubs(state, edge, options, events, Told::Damaged).await
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

async fn over_hubs(
    state: &StateFolder,
    edge: &Edge,
    options: &Options,
    events: Events<'_>,
    told: Told,
) -> Result<PushReport, Error> {
    let started = Instant::now();
    let config = SpokeConfig::load(state)?;
    let identity = Identity::load(state)?;
    let (identity, mut hubs) = enrolled(state, identity, &config, options.hub)?;
    hubs.retain(|h| !h.urls.is_empty());
    if hubs.is_empty() {
        return Err(Error::Usage(
            "this spoke has no way to its hub but drives: barque bundle export DIR. To give it one, \
             write the hub's address into `urls` of spoke.toml"
                .to_owned(),
        ));
    }
    let limits = options.limits.clone().or(config.limits().map_err(Error::Usage)?);
    let _lock = Lock::take(state, edge.now())?;
    let mut ledger = Ledger::open(&state.ledger())?;
    let opened = Opened {
        state,
        config: &config,
        identity: &identity,
        edge,
        events,
        options,
        limits,
        started,
        select: config.select(&options.include, &options.exclude).map_err(Error::Usage)?,
        priorities: config.priorities().map_err(Error::Usage)?,
    };
    let mut reports: Vec<Option<PushReport>> = hubs.iter().map(|_| None).collect();
    let mut gone = 0;
    for n in by_health(&ledger, &hubs)? {
        let of_this = opened.one_hub(&mut ledger, hubs[n], gone, told).await?;
        gone += of_this.wire_bytes;
        reports[n] = Some(of_this);
    }
    let mut reports = reports.into_iter().flatten();
    let mut report = reports.next().ok_or_else(|| open::not_enrolled(state))?;
    report.other_hubs = reports.collect();
    Ok(report)
}

/// In which order hubs have their turn: where a whole pass succeeded last goes first, so that one
/// that is frozen, or has a backlog without end, takes the time of no other.
fn by_health(ledger: &Ledger, hubs: &[&HubEntry]) -> Result<Vec<usize>, Error> {
    let mut order = Vec::new();
    for (n, hub) in hubs.iter().enumerate() {
        order.push((ledger.hub(hub.hub_id)?.and_then(|h| h.last_success), n));
    }
    order.sort_by_key(|(success, n)| (std::cmp::Reverse(*success), *n));
    Ok(order.into_iter().map(|(_, n)| n).collect())
}

/// What a push works with, once its state folder is read.
struct Opened<'a> {
    state: &'a StateFolder,
    config: &'a SpokeConfig,
    identity: &'a Identity,
    edge: &'a Edge,
    events: Events<'a>,
    options: &'a Options,
    limits: Limits,
    started: Instant,
    select: Select,
    priorities: Priorities,
}

/// What counts for one hub.
struct Line<'a> {
    hub: &'a HubEntry,
    /// The hub's time, as far as it is known; learned on.
    times: Arc<Times>,
    pace: Option<Arc<Pace>>,
    allowance: Allowance,
}

impl Opened<'_> {
    /// One pass against one hub, noted in the ledger; `gone` bytes went to hubs before it.
    async fn one_hub(
        &self,
        ledger: &mut Ledger,
        hub: &HubEntry,
        gone: u64,
        told: Told,
    ) -> Result<PushReport, Error> {
        let (edge, mode) = (self.edge, self.options.mode);
        let series = SeriesId::new(edge.now(), edge.id_bytes());
        let is_new = ledger.add_hub_if_missing(hub.hub_id, series)?;
        if is_new && mode == Mode::Real && told == Told::Nothing {
            tracing::warn!(
                ledger = %self.state.ledger().display(),
                hub = %hub.hub_id,
                "the ledger was lost: it is made anew from the files and the hub"
            );
        }
        let line = self.line(ledger, hub, gone)?;
        if mode == Mode::DryRun {
            return self.pass(ledger, &line).await;
        }
        ledger.recover()?;
        let number = ledger.begin_pass(hub.hub_id, edge.now())?;
        let passed = self.pass(ledger, &line).await;
        let end = match &passed {
            Ok(report) => report.end(),
            Err(e) => PassEnd {
                exit_code: e.kind().exit_code(),
                reason: Some(crate::error::chain(e)),
                ..PassEnd::default()
            },
        };
        let is_idle = passed.as_ref().is_ok_and(|r| r.is_idle);
        let noted = match is_idle {
            true => ledger.forget_pass(number),
            false => ledger.end_pass(number, &end, edge.now()),
        };
        // Keeping books decides nothing: what the pass came to stands.
        if let Err(e) = noted.and_then(|()| ledger.tidy()) {
            tracing::warn!(error = %crate::error::chain(&e), "the end of the pass is not noted");
        }
        passed
    }

    /// Pace and allowance in hub time, so that a local clock that jumps forgets nothing.
    fn line<'h>(&self, ledger: &Ledger, hub: &'h HubEntry, gone: u64) -> Result<Line<'h>, Error> {
        let row = ledger.hub(hub.hub_id)?;
        let offset_ms = row.as_ref().map_or(0, |h| h.clock_offset_ms);
        let times = Arc::new(Times::new(offset_ms, row.and_then(|h| h.hub_time)));
        let period = self.limits.budget.map(|b| b.per.name(self.edge.now().plus_ms(offset_ms)));
        let spent = period.map_or(Ok(0), |p| ledger.spent_in(&p))?;
        let (clock, of_hub) = (Arc::clone(&self.edge.clock), Arc::clone(&times));
        let pace = self.limits.bandwidth.clone();
        let pace =
            pace.map(|t| Arc::new(Pace::new(t, move || clock().plus_ms(of_hub.offset_ms()))));
        let mut limits = self.limits.clone();
        limits.max_bytes =
            limits.max_bytes.map(|b| barque_bundle::ByteSize(b.0.saturating_sub(gone)));
        let stop = self.options.stop.clone();
        Ok(Line { hub, times, pace, allowance: Allowance::new(&limits, self.started, spent, stop) })
    }

    async fn pass(&self, ledger: &mut Ledger, line: &Line<'_>) -> Result<PushReport, Error> {
        let (started, hub_id) = (Instant::now(), line.hub.hub_id);
        let source = Root::open(&self.config.source)
            .map_err(Error::io("cannot open the source folder", &self.config.source))?;
        let source = Arc::new(source);
        let mut restarts = 0;
        let (mut carried, mut hub_reached, mut is_forked) = ((0, 0), false, false);
        loop {
            let scan_started = Instant::now();
            let scan = self.scan(ledger, &source, line)?;
            let mut results = Results::new(scan, carried);
            results.hub_reached = hub_reached;
            results.is_forked = is_forked;
            if self.options.mode == Mode::DryRun {
                return results.finish(ledger, hub_id, &self.config.source, started.elapsed());
            }
            let now = Instant::now();
            let is_late = line.allowance.is_time_up(now.checked_sub(pass::GRACE).unwrap_or(now));
            if restarts == 0 && !self.is_needed(ledger, hub_id)? {
                results.is_idle = true;
            } else if is_late {
                // Nothing is left of the time for this hub.
                results.used_up(line.allowance.end_of_time());
            } else {
                let outcome = match self.talk(ledger, line, &source, scan_started)? {
                    Ok(mut pass) => pass.run(&mut results).await,
                    Err(e) => Err(Stop::Fatal(e)),
                };
                if matches!(outcome, Ok(End::StartOver)) && restarts < RESTARTS_MAX {
                    restarts += 1;
                    carried = (results.receipts, results.wire_bytes());
                    hub_reached = results.hub_reached;
                    is_forked = results.is_forked;
                    continue;
                }
                match outcome {
                    // Its time was over before the hub could say so: a limit, and no fault.
                    Err(Stop::HubNotReached(CallError::TimeIsUp)) => {
                        results.used_up(line.allowance.end_of_time());
                    }
                    outcome => results.take_outcome(outcome)?,
                }
            }
            if results.hub_reached && results.scan_saw_all() {
                self.forget_what_is_gone(ledger, line, &source)?;
            }
            return results.finish(ledger, hub_id, &self.config.source, started.elapsed());
        }
    }

    fn scan(
        &self,
        ledger: &mut Ledger,
        source: &Root,
        line: &Line<'_>,
    ) -> Result<ScanReport, Error> {
        Scanner {
            source,
            state_folder: self.state.path(),
            spoke_id: &self.identity.spoke_id,
            hub_id: line.hub.hub_id,
            ledger,
            edge: self.edge,
            settle: self.config.settle_time().map_err(Error::Usage)?,
            select: &self.select,
            priorities: &self.priorities,
            dry: self.options.mode == Mode::DryRun,
            is_over: &|| line.allowance.is_time_up(Instant::now()),
            events: self.events,
        }
        .scan()
    }

    /// Whether the hub has to be called.
    fn is_needed(&self, ledger: &Ledger, hub_id: HubId) -> Result<bool, Error> {
        if self.options.check_in == CheckIn::Always {
            return Ok(true);
        }
        let tally = ledger.open_tally(hub_id)?;
        if tally.of(State::Pending) > 0 {
            return Ok(true);
        }
        let Some(hub) = ledger.hub(hub_id)? else { return Ok(true) };
        Ok(!ledger.untold_voids(hub_id, hub.series)?.is_empty())
    }

    /// The talking part of the pass, ready to run; why not, if this hub cannot be called at all.
    fn talk<'p>(
        &'p self,
        ledger: &'p mut Ledger,
        line: &'p Line<'_>,
        source: &Arc<Root>,
        scan_started: Instant,
    ) -> Result<Result<Pass<'p>, CallError>, Error> {
        let stall = self.config.stall_time().map_err(Error::Usage)?;
        let client = match client(self.identity, line, self.edge, stall) {
            Ok(client) => client,
            Err(e) => return Ok(Err(e)),
        };
        let settings = pass::Settings {
            identity: self.identity,
            source: Arc::clone(source),
            settle: self.config.settle_time().map_err(Error::Usage)?,
            upload_above: self.config.upload_above().map_err(Error::Usage)?.0,
            priorities: &self.priorities,
            hub: line.hub,
            allowance: line.allowance.clone(),
            budget: self.limits.budget,
            scan_started,
        };
        Pass::new(client, settings, ledger, self.edge, self.events).map(Ok)
    }

    /// Rows of files that have been gone for long are dropped; looked for once a day.
    fn forget_what_is_gone(
        &self,
        ledger: &mut Ledger,
        line: &Line<'_>,
        source: &Root,
    ) -> Result<(), Error> {
        let hub_id = line.hub.hub_id;
        let offset_ms = ledger.hub(hub_id)?.map_or(0, |h| h.clock_offset_ms);
        let now = self.edge.now().plus_ms(offset_ms);
        let is_there = |path: &barque_bundle::FilePath| match source.metadata(path.as_str()) {
            Err(e) => !pass::is_gone(&e),
            Ok(_) => true,
        };
        let forgotten = ledger.forget_what_is_gone(hub_id, is_there, now)?;
        if forgotten > 0 {
            tracing::info!(rows = forgotten, "forgot files that have been gone for 90 days");
        }
        Ok(())
    }
}

/// Longest wait for an answer once a pass was told to end.
pub(crate) const STOP_GRACE: Duration = Duration::from_secs(4);
