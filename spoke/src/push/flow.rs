//! Keeps the line busy while all goes well: pages are offered ahead, and the next bundle goes out
//! while the hub settles those before it. One body goes at a time, and few bytes wait for their
//! answer: what the hub has not settled when a line is cut may go again. What breaks, and what has to
//! go alone, is for [`super::send`].

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use barque_bundle::wire::{ReconcileRequest, ReconcileResponse};
use barque_bundle::{BundleId, Receipt};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::pass::{PAGE, PAGE_FIRST, PAGE_USED_UP, Taken};
use super::{End, Event, Pass, Results, Stop};
use crate::error::Error;
use crate::hub_client::{CallError, Progress, Sent};
use crate::ledger::{FileRow, PageKey};
use crate::plan::{self, Load};

/// Bundles whose answers are waited for at once.
const BUNDLES_MAX: usize = 5;
/// The same in bytes, beside the one that goes: one bundle of the largest.
const UNANSWERED_BYTES: u64 = plan::BUNDLE_BYTES_MAX;
/// Pages that are offered and not answered at once, and loads that may wait behind them: a long line
/// is filled from the first page on. With the bundles it is as many as a hub takes of one spoke.
const OFFERS_MAX: usize = 3;
const LOADS_AHEAD: usize = 4;
/// An answer that takes longer says that the line is slow: then calls go one after the other, so that
/// none runs out of its time behind others.
const SLOW: Duration = Duration::from_secs(5);

/// What a pass has still to do, in the order of sending.
pub(super) struct Work {
    after: PageKey,
    /// No page is left.
    is_offered: bool,
    /// Parts of a page that go in one offer each.
    parts: VecDeque<Vec<FileRow>>,
    pub(super) waiting: VecDeque<Load<FileRow>>,
    /// Something broke: bundles go one by one until one is through.
    pub(super) is_alone: bool,
    /// The hub has answered, so that a connection stands.
    is_met: bool,
    /// An answer took so long that the line is full with one call.
    is_slow: bool,
    /// The hub has said that it takes no more at once.
    pub(super) is_single: bool,
}

impl Work {
    pub(super) fn new() -> Self {
        Self {
            after: PageKey::first(),
            is_offered: false,
            parts: VecDeque::new(),
            waiting: VecDeque::new(),
            is_alone: false,
            is_met: false,
            is_slow: false,
            is_single: false,
        }
    }

    /// Whether calls go one after the other.
    fn is_one_by_one(&self) -> bool {
        self.is_slow || self.is_single
    }

    /// Whether nothing is left to offer or to send.
    fn is_empty(&self) -> bool {
        self.is_offered && self.parts.is_empty() && self.waiting.is_empty()
    }
}

/// Why nothing flows any more.
pub(super) enum Flowed {
    Over,
    StartOver,
    /// The next load has to go alone.
    Alone(Load<FileRow>),
    /// These broke off, each for its reason.
    Broke(Vec<(Vec<FileRow>, CallError)>),
    /// Offers of these were not answered, for this reason.
    Unoffered(Vec<Vec<FileRow>>, CallError),
}

type Answer = Result<(ReconcileResponse, Receipt), CallError>;

/// A call that ended.
enum Done {
    Sent(BundleId, Box<Result<Sent, CallError>>),
    Offered(u64, Box<ReconcileRequest>, Box<Answer>, Duration),
    CheckedIn(Box<ReconcileRequest>, Box<Answer>),
}

type Call = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What a body tells while it goes.
enum Tell {
    Event(Event),
    /// All of it was handed over.
    Whole(BundleId),
}

/// All that is under way.
struct UnderWay {
    sending: FuturesUnordered<Call>,
    bundles: BTreeMap<BundleId, Vec<FileRow>>,
    asking: FuturesUnordered<Call>,
    /// Rows that are offered, by a number of their offer.
    offers: BTreeMap<u64, Vec<FileRow>>,
    offers_so_far: u64,
    /// Whose body goes.
    body: Option<BundleId>,
    out: mpsc::UnboundedSender<Tell>,
    tells: mpsc::UnboundedReceiver<Tell>,
    broke: Vec<(Vec<FileRow>, CallError)>,
    unoffered: Vec<(Vec<FileRow>, CallError)>,
    /// The hub is another: what is under way counts for nothing.
    starts_over: bool,
    /// A check-in went beside the last bundles.
    is_closing: bool,
    /// It said so too; what it went beside is settled first.
    starts_over_then: bool,
}

impl UnderWay {
    fn new() -> Self {
        let (out, tells) = mpsc::unbounded_channel();
        Self {
            sending: FuturesUnordered::new(),
            bundles: BTreeMap::new(),
            asking: FuturesUnordered::new(),
            offers: BTreeMap::new(),
            offers_so_far: 0,
            body: None,
            out,
            tells,
            broke: Vec::new(),
            unoffered: Vec::new(),
            starts_over: false,
            is_closing: false,
            starts_over_then: false,
        }
    }

    /// Files that wait for the answer to their bundle, and their bytes.
    fn unanswered(&self) -> (u64, u64) {
        let rows = self.bundles.values().flatten();
        rows.fold((0, 0), |(files, bytes), r| (files + 1, bytes + r.stat.size_bytes))
    }

    /// Whether all went well so far.
    fn goes_on(&self) -> bool {
        self.broke.is_empty() && self.unoffered.is_empty() && !self.starts_over
    }

    fn is_idle(&self) -> bool {
        self.sending.is_empty() && self.asking.is_empty()
    }

    /// Gives offers up that wait on a line which broke a body; they are made anew.
    fn stop_asking(&mut self, work: &mut Work) {
        self.asking = FuturesUnordered::new();
        for rows in std::mem::take(&mut self.offers).into_values().rev() {
            work.parts.push_front(rows);
        }
    }
}

impl Pass<'_> {
    /// Offers and sends until nothing is left, or something has to be seen to first; nothing is under
    /// way any more when this returns.
    pub(super) async fn flow(
        &mut self,
        work: &mut Work,
        results: &mut Results,
    ) -> Result<Flowed, Stop> {
        let mut way = UnderWay::new();
        // Whatever is offered from now on may tell the hub something else.
        self.told = None;
        let flowed = self.keep_going(work, &mut way, results).await;
        // What went of calls that are given up now counts as well.
        while let Ok(tell) = way.tells.try_recv() {
            self.hear(tell, &mut way, results);
        }
        self.note_spent(results)?;
        for bundle_id in way.bundles.keys() {
            self.ledger.give_back(*bundle_id)?;
        }
        flowed?;
        if way.starts_over || way.starts_over_then {
            return Ok(Flowed::StartOver);
        }
        if !way.broke.is_empty() {
            // Both at once is the same line: what was not offered is offered again behind the break.
            for (rows, _) in way.unoffered.into_iter().rev() {
                work.parts.push_front(rows);
            }
            return Ok(Flowed::Broke(way.broke));
        }
        if !way.unoffered.is_empty() {
            let (rows, mut errors): (Vec<_>, Vec<_>) = way.unoffered.into_iter().unzip();
            return Ok(Flowed::Unoffered(rows, errors.swap_remove(0)));
        }
        match work.waiting.pop_front() {
            Some(load) => Ok(Flowed::Alone(load)),
            None => Ok(Flowed::Over),
        }
    }

    async fn keep_going(
        &mut self,
        work: &mut Work,
        way: &mut UnderWay,
        results: &mut Results,
    ) -> Result<(), Stop> {
        let allowance = self.settings.allowance.clone();
        let deadline = allowance.over(Duration::ZERO);
        tokio::pin!(deadline);
        let mut is_changed = true;
        loop {
            if is_changed && way.goes_on() {
                self.start(work, way, results)?;
                self.check_in_early(work, way, results)?;
            }
            is_changed = true;
            if way.is_idle() || way.starts_over {
                return Ok(());
            }
            tokio::select! {
                biased;
                Some(tell) = way.tells.recv() => is_changed = self.hear(tell, way, results),
                Some(done) = way.sending.next() => {
                    while let Ok(tell) = way.tells.try_recv() {
                        self.hear(tell, way, results);
                    }
                    self.ended(done, work, way, results)?;
                }
                Some(done) = way.asking.next() => self.ended(done, work, way, results)?,
                () = &mut deadline => {
                    self.is_used_up(results);
                    work.waiting.clear();
                    work.is_offered = true;
                    return Ok(());
                }
            }
        }
    }

    /// Takes note of what a body tells; true when the next one may go.
    fn hear(&self, tell: Tell, way: &mut UnderWay, results: &mut Results) -> bool {
        match tell {
            Tell::Event(event) => {
                results.moved(&event);
                (self.events)(event);
                false
            }
            Tell::Whole(bundle_id) => way.body.take_if(|b| *b == bundle_id).is_some(),
        }
    }

    /// Starts what may go beside what is under way.
    fn start(
        &mut self,
        work: &mut Work,
        way: &mut UnderWay,
        results: &mut Results,
    ) -> Result<(), Stop> {
        // The first call alone finds out whether one connection takes several, and how fast it is.
        let offers_max = if work.is_met { OFFERS_MAX } else { 1 };
        let one_by_one = work.is_one_by_one();
        if one_by_one && !way.is_idle() {
            return Ok(());
        }
        let (offers_max, ahead) = if one_by_one { (1, 1) } else { (offers_max, LOADS_AHEAD) };
        while way.offers.len() < offers_max && work.waiting.len() < ahead {
            let Some(rows) = self.next_part(work, results)? else { break };
            way.offers_so_far += 1;
            way.asking.push(self.offering(way.offers_so_far, &rows)?);
            way.offers.insert(way.offers_so_far, rows);
        }
        if self.bodies_end || self.is_used_up(results) {
            work.waiting.clear();
        }
        let (_, unanswered) = way.unanswered();
        let is_full = way.bundles.len() >= BUNDLES_MAX
            || unanswered > UNANSWERED_BYTES
            || (one_by_one && !way.offers.is_empty());
        if way.body.is_some() || work.is_alone || is_full {
            return Ok(());
        }
        let Some(Load::Bundle(rows)) = work.waiting.pop_front_if(|l| matches!(l, Load::Bundle(_)))
        else {
            return Ok(());
        };
        let (rows, rest) = self.affordable(rows, results);
        if !rest.is_empty() {
            let whole = rows.into_iter().chain(rest).collect();
            work.waiting.push_front(Load::Bundle(whole));
            return Ok(());
        }
        let (bundle_id, call) = self.sending(&rows, &way.out)?;
        way.bundles.insert(bundle_id, rows);
        way.body = Some(bundle_id);
        way.sending.push(call);
        Ok(())
    }

    /// Checks in while the last bundles are settled, so that a long line is not waited for once more.
    /// It counts what is under way as answered: the check-in at the end goes unless that came true.
    fn check_in_early(
        &mut self,
        work: &Work,
        way: &mut UnderWay,
        results: &Results,
    ) -> Result<(), Stop> {
        let is_last = work.is_empty() && way.body.is_none() && way.asking.is_empty();
        let is_in_order = work.is_alone || work.is_one_by_one();
        if !is_last || is_in_order || way.bundles.is_empty() || way.is_closing || self.bodies_end {
            return Ok(());
        }
        way.is_closing = true;
        self.note_as_of(results)?;
        let mut request = Box::new(self.request(&[])?);
        let ((files, bytes), status) = (way.unanswered(), &mut request.status);
        status.pending_files = status.pending_files.saturating_sub(files);
        status.pending_bytes = status.pending_bytes.saturating_sub(bytes);
        let client = Arc::clone(&self.client);
        way.asking.push(Box::pin(async move {
            let answer = Box::new(client.reconcile(&request).await);
            Done::CheckedIn(request, answer)
        }));
        Ok(())
    }

    /// The rows that are offered next; none when there are none, or no more may be offered.
    fn next_part(
        &mut self,
        work: &mut Work,
        results: &mut Results,
    ) -> Result<Option<Vec<FileRow>>, Stop> {
        loop {
            if let Some(part) = work.parts.pop_front() {
                return Ok(Some(part));
            }
            // A few are offered all the same, so that what the hub keeps of a file is not forgotten.
            let is_used_up = self.is_used_up(results);
            let is_first = work.after == PageKey::first();
            if work.is_offered || (is_used_up && (self.is_time_up() || !is_first)) {
                return Ok(None);
            }
            let most = match work.is_met {
                _ if is_used_up => PAGE_USED_UP,
                true => PAGE,
                false => PAGE_FIRST,
            };
            let page = self.ledger.pending_page(self.hub_id(), &work.after, most)?;
            let Some(last) = page.last() else {
                work.is_offered = true;
                return Ok(None);
            };
            work.after = last.page_key();
            let rows = self.still_there(page, results)?;
            if !rows.is_empty() {
                let parts = plan::pages(&rows, self.body_max());
                work.parts.extend(parts.into_iter().map(<[FileRow]>::to_vec));
            }
        }
    }

    fn offering(&self, number: u64, rows: &[FileRow]) -> Result<Call, Error> {
        let entries: Vec<_> = rows.iter().filter_map(FileRow::entry).collect();
        let request = Box::new(self.request(&entries)?);
        let (client, begun) = (Arc::clone(&self.client), Instant::now());
        Ok(Box::pin(async move {
            let answer = Box::new(client.reconcile(&request).await);
            Done::Offered(number, request, answer, begun.elapsed())
        }))
    }

    fn sending(
        &mut self,
        rows: &[FileRow],
        out: &mpsc::UnboundedSender<Tell>,
    ) -> Result<(BundleId, Call), Error> {
        let (header, parcels) = self.depart(rows)?;
        let bundle_id = header.value.bundle_id;
        let (client, source) = (Arc::clone(&self.client), Arc::clone(&self.settings.source));
        let progress = Arc::new(Told { bundle_id, out: out.clone() });
        let call = async move {
            let sent = client.send(&header, source, parcels, progress).await;
            Done::Sent(bundle_id, Box::new(sent))
        };
        Ok((bundle_id, Box::pin(call)))
    }

    fn ended(
        &mut self,
        done: Done,
        work: &mut Work,
        way: &mut UnderWay,
        results: &mut Results,
    ) -> Result<(), Stop> {
        match done {
            Done::Sent(bundle_id, sent) => {
                let rows = way.bundles.remove(&bundle_id).unwrap_or_default();
                way.body.take_if(|b| *b == bundle_id);
                self.note_spent(results)?;
                let error = match *sent {
                    Ok(sent) => self.take_receipt(&rows, &sent, results)?,
                    Err(e) => {
                        self.ledger.give_back(bundle_id)?;
                        Some(e)
                    }
                };
                if let Some(error) = error {
                    way.broke.push((rows, error));
                    way.stop_asking(work);
                }
            }
            Done::Offered(number, request, answer, took) => {
                let rows = way.offers.remove(&number).unwrap_or_default();
                work.is_slow = took > SLOW;
                match *answer {
                    Ok(answer) => self.take_page(rows, &request, answer, (work, way), results)?,
                    Err(e) => way.unoffered.push((rows, e)),
                }
            }
            Done::CheckedIn(request, answer) => {
                // One that failed is made again at the end.
                let Ok((response, receipt)) = *answer else { return Ok(()) };
                match self.take_offer(&request, &response, &receipt, results)? {
                    Taken::As(End::Done) => self.told = Some(request),
                    Taken::As(End::StartOver) => way.starts_over_then = true,
                    Taken::Overtaken => {}
                }
            }
        }
        Ok(())
    }

    /// Takes the answer to a page of offers in; what the hub lacks waits to be sent.
    fn take_page(
        &mut self,
        rows: Vec<FileRow>,
        request: &ReconcileRequest,
        (response, receipt): (ReconcileResponse, Receipt),
        (work, way): (&mut Work, &mut UnderWay),
        results: &mut Results,
    ) -> Result<(), Stop> {
        work.is_met = true;
        match self.take_offer(request, &response, &receipt, results)? {
            Taken::Overtaken => {
                work.parts.push_front(rows);
                return Ok(());
            }
            Taken::As(end) => way.starts_over |= end == End::StartOver,
        }
        let missing = self.missing_of(&rows, response);
        let bytes = |r: &[FileRow]| r.iter().map(|r| r.stat.size_bytes).sum::<u64>();
        let (files, known) = (rows.len() - missing.len(), bytes(&rows));
        self.answered(files as u64, known - bytes(&missing));
        if !self.bodies_end && !missing.is_empty() {
            work.waiting.extend(self.to_send(missing));
        }
        Ok(())
    }
}

/// Carries what a body tells to the pass.
struct Told {
    bundle_id: BundleId,
    out: mpsc::UnboundedSender<Tell>,
}

impl Progress for Told {
    fn sent(&self, bytes: u64) {
        let _ = self.out.send(Tell::Event(Event::SentBytes(bytes)));
    }

    fn whole(&self) {
        let _ = self.out.send(Tell::Whole(self.bundle_id));
    }
}
