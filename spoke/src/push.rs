//! One pass: scan, offer in pages, send newest partition first, check in, report.
//!
//! One link fault costs no file an attempt; a few in a row end the pass as "hub not reached".

mod report;
mod send;

use std::path::PathBuf;

use barque_bundle::wire::{ReconcileRequest, ReconcileResponse, SpokeReport, WireEntry};
use barque_bundle::{ByteSize, Entry, Outcome, OutcomeLine, Receipt, SeriesId};

use crate::config::{HubEntry, SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::fault::{self, Fault};
use crate::hub_client::{CallError, HubClient, Party};
use crate::identity::Identity;
use crate::ledger::{Change, FileRow, Ledger, PageKey};
use crate::lock::Lock;
use crate::look::{Looked, look};
use crate::plan::{self, State};
use crate::scan::{ScanReport, Scanner};

use report::Results;
pub use report::{Conflict, Failure, PushReport};

/// Files offered in one request.
const PAGE: usize = 5_000;
/// Content faults after which a file waits for a person.
const ATTEMPTS_MAX: u32 = 5;

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

pub type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// What ended the sending of bodies before its time.
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
pub async fn push(
    state: &StateFolder,
    edge: &Edge,
    mode: Mode,
    events: Events<'_>,
) -> Result<PushReport, Error> {
    let started = std::time::Instant::now();
    let config = SpokeConfig::load(state)?;
    let identity = Identity::load(state)?;
    let (identity, hub) = enrolled(state, identity, &config)?;
    let _lock = Lock::take(state, edge.now())?;
    let mut ledger = Ledger::open(&state.ledger())?;
    let random_series = SeriesId::new(edge.now(), edge.id_bytes());
    ledger.add_hub_if_missing(hub.hub_id, random_series)?;
    if mode == Mode::Real {
        ledger.recover(edge.now())?;
    }
    let scan_started = edge.now();
    let scan = Scanner {
        source: &config.source,
        state_folder: state.path(),
        spoke_id: &identity.spoke_id,
        hub_id: hub.hub_id,
        ledger: &mut ledger,
        edge,
        settle: config.settle_time().map_err(Error::Usage)?,
        dry: mode == Mode::DryRun,
        events,
    }
    .scan()?;
    if scan.is_complete() && mode == Mode::Real {
        // In hub time, and not later than the scan began: all that lay there then was seen.
        let offset = ledger.hub(hub.hub_id)?.map_or(0, |h| h.clock_offset_ms);
        ledger.set_as_of(hub.hub_id, scan_started.plus_ms(offset))?;
    }
    let mut results = Results::new(scan);
    if mode == Mode::Real {
        let mut pass = Pass::new(identity, &config, &hub, &mut ledger, edge, events)?;
        let outcome = pass.run(&mut results).await;
        results.take_outcome(outcome)?;
    }
    results.finish(&ledger, hub.hub_id, &config.source, started.elapsed())
}

fn enrolled(
    state: &StateFolder,
    identity: Option<Identity>,
    config: &SpokeConfig,
) -> Result<(Identity, HubEntry), Error> {
    match (identity, config.hubs.first()) {
        (Some(identity), Some(hub)) => Ok((identity, hub.clone())),
        _ => Err(Error::NotEnrolled(format!(
            "{} is not enrolled at a hub; enroll it with: barque enroll TOKEN --state {0} --source DIR",
            state.path().display()
        ))),
    }
}

/// The part of a pass that talks to the hub.
struct Pass<'a> {
    client: HubClient,
    identity: Identity,
    source: PathBuf,
    hub: HubEntry,
    ledger: &'a mut Ledger,
    edge: &'a Edge,
    events: Events<'a>,
    /// Link faults since the last call that went through.
    faults: u32,
    /// The hub has no space for bodies; offering goes on.
    bodies_end: bool,
}

impl<'a> Pass<'a> {
    fn new(
        identity: Identity,
        config: &SpokeConfig,
        hub: &HubEntry,
        ledger: &'a mut Ledger,
        edge: &'a Edge,
        events: Events<'a>,
    ) -> Result<Self, Error> {
        let pin = identity.pin(hub.hub_id).ok_or_else(|| {
            Error::NotEnrolled(format!("identity.json trusts no root of hub {}", hub.hub_id))
        })?;
        let party = Party {
            hub_id: hub.hub_id,
            urls: hub.urls.clone(),
            spoke_id: identity.spoke_id.clone(),
            key: identity.key.clone(),
            roots: pin.roots.clone(),
        };
        let offset = ledger.hub(hub.hub_id)?.map_or(0, |h| h.clock_offset_ms);
        let client = HubClient::new(party, offset, edge.clone())?;
        let (source, hub) = (config.source.clone(), hub.clone());
        Ok(Self {
            client,
            identity,
            source,
            hub,
            ledger,
            edge,
            events,
            faults: 0,
            bodies_end: false,
        })
    }

    async fn run(&mut self, results: &mut Results) -> Result<(), Stop> {
        let tally = self.ledger.tally(self.hub.hub_id)?;
        (self.events)(Event::Scanned {
            pending: tally.of(State::Pending),
            pending_bytes: tally.pending_bytes,
        });
        let mut after = PageKey::first();
        loop {
            let page = self.ledger.pending_page(self.hub.hub_id, &after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.page_key();
            let rows = self.still_there(page, results)?;
            if rows.is_empty() {
                continue;
            }
            let is_another_hub = self.offer_and_send(rows, results).await?;
            if is_another_hub {
                after = PageKey::first();
            }
        }
        // The check-in: also an idle pass says that it was here, and what it knows.
        self.reconcile(&[], results).await?;
        self.ledger.set_last_success(self.hub.hub_id, self.edge.now())?;
        Ok(())
    }

    /// Offers rows, then sends what is missing. True when the hub is another than it was.
    async fn offer_and_send(
        &mut self,
        rows: Vec<FileRow>,
        results: &mut Results,
    ) -> Result<bool, Stop> {
        let (missing, is_another_hub) = self.offer(&rows, results).await?;
        if !is_another_hub && !self.bodies_end {
            self.send_all(missing, results).await?;
        }
        Ok(is_another_hub)
    }

    /// The rows that the hub lacks, in their order.
    async fn offer(
        &mut self,
        rows: &[FileRow],
        results: &mut Results,
    ) -> Result<(Vec<FileRow>, bool), Stop> {
        let entries: Vec<Entry> = rows.iter().filter_map(FileRow::entry).collect();
        let (response, is_another_hub) = self.reconcile(&entries, results).await?;
        let missing: std::collections::HashSet<String> = response.missing.into_iter().collect();
        let missing = rows.iter().filter(|r| missing.contains(r.path.as_str())).cloned().collect();
        Ok((missing, is_another_hub))
    }

    /// Rows whose files are as they were; what vanished or changed since the scan is noted.
    fn still_there(
        &mut self,
        rows: Vec<FileRow>,
        results: &mut Results,
    ) -> Result<Vec<FileRow>, Error> {
        let mut still = Vec::with_capacity(rows.len());
        for row in rows {
            let found = std::fs::symlink_metadata(self.source.join(row.path.as_str()));
            match found {
                Ok(m) if m.is_file() && crate::ledger::StatRow::of(&m) == row.stat => {
                    still.push(row);
                }
                _ => {
                    if let Some(fresh) = self.look_at(&row, results)? {
                        still.push(fresh);
                    }
                }
            }
        }
        Ok(still)
    }

    /// Looks at a pending file again; the row to offer, if there still is one.
    fn look_at(&mut self, row: &FileRow, results: &mut Results) -> Result<Option<FileRow>, Error> {
        let path = row.path.clone();
        let leave = |code: &str, detail: &str| Change::Leave {
            path: path.clone(),
            stat: row.stat,
            state: State::Skipped,
            code: code.to_owned(),
            detail: detail.to_owned(),
        };
        let change = match look(&self.source.join(row.path.as_str())) {
            Looked::Gone => leave("vanished", "the file is not there any more"),
            Looked::Moving | Looked::Unreadable(_) => {
                // Left pending: the next scan looks at it.
                return Ok(None);
            }
            Looked::Whole { sha256, stat } if row.sha256 == Some(sha256) => {
                Change::Refresh { path: path.clone(), stat }
            }
            Looked::Whole { sha256, stat } => Change::Number { path: path.clone(), stat, sha256 },
            Looked::Held { stat, code, detail } => Change::Leave {
                path: path.clone(),
                stat,
                state: State::Skipped,
                code: code.to_owned(),
                detail,
            },
        };
        if let Change::Leave { code, .. } = &change {
            results.skipped(code);
        }
        self.ledger.record(self.hub.hub_id, &[change], self.edge.now())?;
        let fresh = self.ledger.file(self.hub.hub_id, &path)?;
        Ok(fresh.filter(|r| r.state == State::Pending))
    }

    /// Offers entries and takes the answer into the ledger.
    async fn reconcile(
        &mut self,
        entries: &[Entry],
        results: &mut Results,
    ) -> Result<(ReconcileResponse, bool), Stop> {
        loop {
            let request = self.request(entries)?;
            match self.client.reconcile(&request).await {
                Ok((response, receipt)) => {
                    self.went_through(results)?;
                    if response.seen > request.seq_head && self.reopen_series(&request)? {
                        return Ok((response, true));
                    }
                    let another = self.take_answer(&response, &receipt, results)?;
                    return Ok((response, another));
                }
                Err(e) => self.fault(e).await?,
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
            voids: self.ledger.voids(self.hub.hub_id, hub.series)?,
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

    fn hub_row(&self) -> Result<crate::ledger::HubRow, Error> {
        self.ledger.hub(self.hub.hub_id)?.ok_or_else(|| {
            Error::NotEnrolled(format!("the ledger does not know hub {}", self.hub.hub_id))
        })
    }

    /// The hub knows higher numbers of this series than the ledger: an old copy came back.
    fn reopen_series(&mut self, request: &ReconcileRequest) -> Result<bool, Error> {
        tracing::warn!(
            series = %request.series,
            seq_head = request.seq_head,
            "the ledger is older than what the hub has seen of it; a new series is opened"
        );
        let series = SeriesId::new(self.edge.now(), self.edge.id_bytes());
        self.ledger.open_series(self.hub.hub_id, series)?;
        Ok(true)
    }

    fn take_answer(
        &mut self,
        response: &ReconcileResponse,
        receipt: &Receipt,
        results: &mut Results,
    ) -> Result<bool, Error> {
        let now = self.edge.now();
        let hub_id = self.hub.hub_id;
        self.ledger.set_clock_offset(hub_id, self.client.clock_offset_ms())?;
        // Position and epoch as signed, not as merely stated beside the receipt.
        let head = &receipt.head;
        let is_another = self.ledger.meet_hub(hub_id, head.hub_epoch, head.position, now)?;
        if is_another {
            tracing::warn!(epoch = %head.hub_epoch, "the hub was restored or recovered; every file is offered again");
        }
        let applied = self.ledger.apply_receipt(hub_id, receipt, now)?;
        results.reconciled(&applied.lines);
        for line in &response.refused {
            if let Ok(path) = line.path.parse() {
                self.ledger.refuse(hub_id, &path, &line.code, &line.detail, now)?;
                results.failed();
            }
        }
        let mut asked_again = false;
        for wanted in &head.wanted {
            asked_again |= self.ledger.want(hub_id, &wanted.path, wanted.sha256, now)?;
        }
        Ok(is_another || asked_again)
    }

    fn went_through(&mut self, results: &mut Results) -> Result<(), Error> {
        self.faults = 0;
        results.hub_reached = true;
        Ok(())
    }

    /// Waits before the next try, or ends the pass.
    async fn fault(&mut self, error: CallError) -> Result<(), Stop> {
        match fault::classify(&error) {
            Fault::Fatal | Fault::Space => return Err(Stop::Fatal(error)),
            Fault::Link => {}
        }
        self.faults += 1;
        if self.faults >= fault::IN_A_ROW_MAX {
            return Err(Stop::HubNotReached(error));
        }
        let wait = fault::backoff(self.faults, error.retry_after(), self.edge.id_bytes()[0]);
        let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        (self.events)(Event::Waiting { why: error.to_string(), ms });
        tokio::time::sleep(wait).await;
        Ok(())
    }
}
