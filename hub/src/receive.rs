//! The one way in: staged while hashed, made durable, agreed on, promoted, then receipted.
//!
//! A blocking thread reads the stream and stages ([`stage`]); a task settles groups of what is
//! whole: sync, node.db, proposal, promotion. Each member stands alone and is settled also after
//! the connection is gone. It keeps V1, V3, D1 and D2.

pub(crate) mod admit;
mod stage;
mod whole;

pub(crate) use admit::Reserved;
pub use whole::{Verdict, decide, finish, is_final, open};

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::fault;
use barque_bundle::receipt::{Answers, Draft};
use barque_bundle::wire::{BundleLine, Stopped};
use barque_bundle::{Entry, ErrorKind, Outcome, OutcomeLine, Receipt, SpokeId};
use tokio::sync::{mpsc, oneshot};

use crate::command::{BundleRef, Holder, Operation, OperationReply, Register};
use crate::error::{Error, Refusal, chain};
use crate::hub::Parts;
use crate::ledger::StagedRow;
use crate::manifest::query;
use crate::registry::Caller;
use crate::staging::{Slot, Syncer};

/// Files that wait between staging and settling.
const WAITING: usize = 1000;
/// How long a promotion is waited for before its files are left to the next try.
const PROMOTION_WAIT: Duration = Duration::from_secs(30);

/// A bundle on its way in.
pub struct Intake {
    /// Whether the bundle is taken at all: header, signature and entries hold.
    pub opened: oneshot::Receiver<Result<(), Refusal>>,
    /// Hints as files settle, last the receipt.
    pub lines: mpsc::Receiver<BundleLine>,
}

/// What the staging thread found for one member.
pub(crate) enum Item {
    /// Whole and hashed in staging, not yet synced.
    Staged { entry: Entry, slot: Slot },
    /// The manifest knows the path; `apply` says how.
    Known { entry: Entry },
    /// Decided without the manifest; a number to answer when that is for good.
    Decided { line: OutcomeLine, seq: Option<u64> },
}

impl Item {
    /// Bytes that are to be synced.
    fn staged_bytes(&self) -> u64 {
        match self {
            Self::Staged { entry, .. } => entry.size_bytes,
            Self::Known { .. } | Self::Decided { .. } => 0,
        }
    }
}

/// Takes a bundle from a caller; goes on by itself when the caller goes away.
pub fn start(parts: Arc<Parts>, caller: Caller, source: impl Read + Send + 'static) -> Intake {
    let (opened_out, opened) = oneshot::channel();
    // Room for every line, so that a client that does not read holds up nothing.
    let room = usize::try_from(barque_bundle::stream::STREAM_ENTRIES_MAX).unwrap_or(1000) + 1;
    let (lines_out, lines) = mpsc::channel(room);
    tokio::spawn(run(parts, caller, source, opened_out, lines_out));
    Intake { opened, lines }
}

async fn run(
    parts: Arc<Parts>,
    caller: Caller,
    source: impl Read + Send + 'static,
    opened: oneshot::Sender<Result<(), Refusal>>,
    lines: mpsc::Sender<BundleLine>,
) {
    // Before the first byte is written: it hears of what fails from now on.
    let syncer = match parts.staging.syncer() {
        Ok(syncer) => Arc::new(syncer),
        Err(e) => return drop(opened.send(Err(log_and_refuse(&e)))),
    };
    let (items_out, items) = mpsc::channel(WAITING);
    let (bundle_out, bundle) = oneshot::channel();
    let stager = stage::Stager { parts: Arc::clone(&parts), caller };
    let staging = tokio::task::spawn_blocking(move || stager.run(source, bundle_out, &items_out));
    let bundle = match bundle.await {
        Ok(bundle) => bundle,
        Err(_) => {
            let refusal = match staging.await {
                Ok(Err(e)) => log_and_refuse(&e),
                _ => {
                    Refusal::new(ErrorKind::Internal, "hub_fault", "the hub met a fault of its own")
                }
            };
            let _ = opened.send(Err(refusal));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    let bundle = Arc::new(bundle);
    let mut settler = Settler { parts, bundle, syncer, lines, settled: Vec::new() };
    let mut stopped = settler.settle_all(items).await.err();
    match staging.await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => stopped = stopped.or_else(|| Some(log_and_refuse(&e))),
        Err(e) => tracing::error!(error = %e, "a staging thread panicked"),
    }
    settler.finish(stopped).await;
}

pub(crate) fn log_and_refuse(e: &Error) -> Refusal {
    if matches!(e.kind(), ErrorKind::Internal | ErrorKind::Full) || !matches!(e, Error::Refused(_))
    {
        tracing::error!(error = %e.told(), "a bundle was not taken whole");
    }
    e.to_refusal()
}

/// What is settled together: as much as one proposal holds and a sync takes well, or what came in
/// this time, or up to the stream's end. To settle costs about the same for one file and for all.
const GROUP_FILES: usize = 1000;
const GROUP_BYTES: u64 = 64 * 1024 * 1024;
const GROUP_TIME: Duration = Duration::from_millis(500);

/// The next group; empty behind the last.
async fn gather(items: &mut mpsc::Receiver<Item>) -> Vec<Item> {
    let mut group = Vec::new();
    let (mut bytes, mut counted) = (0u64, 0);
    let Some(first) = items.recv().await else { return group };
    group.push(first);
    let end = tokio::time::Instant::now() + GROUP_TIME;
    loop {
        bytes += group[counted..].iter().map(Item::staged_bytes).sum::<u64>();
        counted = group.len();
        if counted >= GROUP_FILES || bytes >= GROUP_BYTES {
            return group;
        }
        let more = items.recv_many(&mut group, GROUP_FILES - counted);
        match tokio::time::timeout_at(end, more).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return group,
        }
    }
}

/// Settles what was staged, group by group.
struct Settler {
    parts: Arc<Parts>,
    bundle: Arc<BundleRef>,
    syncer: Arc<Syncer>,
    lines: mpsc::Sender<BundleLine>,
    settled: Vec<OutcomeLine>,
}

impl Settler {
    async fn settle_all(&mut self, mut items: mpsc::Receiver<Item>) -> Result<(), Refusal> {
        loop {
            let group = gather(&mut items).await;
            if group.is_empty() {
                return Ok(());
            }
            self.settle(group).await?;
        }
    }

    /// Makes a group durable, gets it agreed on, waits until it is visible, tells the client.
    async fn settle(&mut self, items: Vec<Item>) -> Result<(), Refusal> {
        let (mut slots, mut staged) = (Vec::new(), Vec::new());
        let node_id = self.parts.identity.node_id;
        let mut operations = Vec::new();
        let mut asked = Vec::new();
        for item in items {
            match item {
                Item::Staged { entry, slot } => {
                    let stage_no = slot.stage_no();
                    staged.push(self.staged_row(&entry, stage_no));
                    slots.push(slot);
                    let holder = Some(Holder { node_id, stage_no });
                    operations.push(register(&entry, holder));
                    asked.push(Some((entry, true)));
                }
                Item::Known { entry } => {
                    operations.push(register(&entry, None));
                    asked.push(Some((entry, false)));
                }
                Item::Decided { line, seq } => {
                    self.tell(line);
                    if let Some(seq) = seq {
                        operations.push(Operation::Answer { bundle: 0, seq });
                        asked.push(None);
                    }
                }
            }
        }
        self.make_durable(slots, staged).await?;
        let operations = operations.into_iter().zip(asked).collect();
        for line in agree(&self.parts, &self.bundle, operations).await? {
            self.tell(line);
        }
        Ok(())
    }

    fn staged_row(&self, entry: &Entry, stage_no: u64) -> StagedRow {
        StagedRow {
            stage_no,
            landed: barque_bundle::wire::landed(&self.bundle.spoke_id, &entry.path),
            sha256: entry.sha256,
            size_bytes: entry.size_bytes,
        }
    }

    /// Syncs the files, then records them. A failed sync condemns the whole group: its slots
    /// delete their files as they drop.
    async fn make_durable(&self, slots: Vec<Slot>, staged: Vec<StagedRow>) -> Result<(), Refusal> {
        if staged.is_empty() {
            return Ok(());
        }
        let (parts, syncer) = (Arc::clone(&self.parts), Arc::clone(&self.syncer));
        let done = tokio::task::spawn_blocking(move || -> Result<(), Error> {
            let files: Vec<_> = staged.iter().map(|r| parts.staging.path(r.stage_no)).collect();
            syncer
                .sync(&files)
                .map_err(Error::io("cannot sync files in", parts.staging.folder()))?;
            fault::after(fault::Step::StagedSynced);
            parts.ledger.record_staged(&staged, (parts.clock)())?;
            slots.into_iter().for_each(Slot::keep);
            fault::after(fault::Step::Proposed);
            Ok(())
        });
        let done = done.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())));
        done.map_err(|e| log_and_refuse(&e))
    }

    fn tell(&mut self, line: OutcomeLine) {
        self.parts.metrics.settled(line.outcome);
        let _ = self.lines.try_send(BundleLine::Outcome(line.clone()));
        self.settled.push(line);
    }

    /// Signs the receipt over all that was settled and sends it, to whoever still listens.
    async fn finish(self, stopped: Option<Refusal>) {
        let position = self.parts.readers.read_async(|c| query::counter(c, "position")).await;
        let position = match position {
            Ok(position) => position,
            Err(e) => {
                tracing::error!(error = %chain(&e), "no receipt: the position cannot be read");
                return;
            }
        };
        tracing::info!(
            spoke = %self.bundle.spoke_id,
            bundle = %self.bundle.bundle_id,
            settled = self.settled.len(),
            stopped = stopped.as_ref().map(|s| s.code),
            "bundle received"
        );
        let draft = Draft {
            answers: Answers::Bundle(self.bundle.bundle_id),
            spoke_id: self.bundle.spoke_id.clone(),
            hub_id: self.parts.identity.hub_id,
            hub_epoch: self.parts.epoch(),
            position,
            received_at: (self.parts.clock)(),
            wanted: Vec::new(),
        };
        let identity = &self.parts.identity;
        let receipt =
            Receipt::sign(draft, self.settled, identity.certificate.clone(), &identity.node);
        fault::after(fault::Step::ReceiptSigned);
        let stopped = stopped.map(|r| Stopped {
            status: r.kind.http_status(),
            code: r.code.to_owned(),
            detail: r.detail.into(),
        });
        let _ = self.lines.try_send(BundleLine::Done { receipt: receipt.to_wire(), stopped });
    }
}

/// An operation, and the file whose line it leads to; whether this node staged it for that.
pub(crate) type Asked = (Operation, Option<(Entry, bool)>);

/// Gets operations of a bundle agreed on and waits until their files are visible; a line for each
/// that was asked for. A copy of ours that is not visible yet gets none this time.
pub(crate) async fn agree(
    parts: &Arc<Parts>,
    bundle: &Arc<BundleRef>,
    asked: Vec<Asked>,
) -> Result<Vec<OutcomeLine>, Refusal> {
    let (operations, asked): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let replies = parts.proposer.operations(Some(Arc::clone(bundle)), operations).await?;
    if replies.iter().any(|r| matches!(r, OperationReply::Dead)) {
        return Err(Refusal::new(
            ErrorKind::Forbidden,
            "spoke_disabled",
            "this spoke or its key may not write to the hub any more",
        ));
    }
    if replies.iter().any(|r| matches!(r, OperationReply::Fenced)) {
        return Err(taken_over());
    }
    await_promotion(parts, &replies).await?;
    let answers = asked.into_iter().zip(replies);
    let answers = answers
        .filter_map(|(asked, reply)| asked.map(|(entry, is_mine)| (entry, is_mine, reply)))
        .collect();
    let (parts, spoke) = (Arc::clone(parts), bundle.spoke_id.clone());
    let lines = tokio::task::spawn_blocking(move || agreed_lines(&parts, &spoke, answers));
    let lines = lines.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())));
    lines.map_err(|e| log_and_refuse(&e))
}

/// The claim of an import is another node's now.
pub(crate) fn taken_over() -> Refusal {
    let detail = "another node has taken this import over; what was registered stands";
    Refusal::new(ErrorKind::Conflict, "import_taken_over", detail)
}

async fn await_promotion(parts: &Parts, replies: &[OperationReply]) -> Result<(), Refusal> {
    let position = replies.iter().filter_map(|r| match r {
        OperationReply::Registered { position, .. }
        | OperationReply::AlreadyPresent { position, .. } => Some(*position),
        _ => None,
    });
    let Some(position) = position.max() else {
        return Ok(());
    };
    let mut promoted = parts.promoted.clone();
    // As long as it goes on, a slow disk is waited for.
    while *promoted.borrow_and_update() < position {
        match tokio::time::timeout(PROMOTION_WAIT, promoted.changed()).await {
            Ok(Ok(())) => {}
            _ => {
                return Err(Refusal::new(
                    ErrorKind::Unknown,
                    "promotion_late",
                    "the files are kept but not visible yet; the next push, or importing again, \
                     hears of them",
                ));
            }
        }
    }
    Ok(())
}

fn agreed_lines(
    parts: &Parts,
    spoke: &SpokeId,
    answers: Vec<(Entry, bool, OperationReply)>,
) -> Result<Vec<OutcomeLine>, Error> {
    let mut lines = Vec::with_capacity(answers.len());
    for (entry, is_mine, reply) in answers {
        let Some(mut line) = line_of(&entry, &reply) else {
            continue;
        };
        let landed = barque_bundle::wire::landed(spoke, &entry.path);
        if line.outcome == Outcome::Conflict {
            let theirs = parts.readers.read(|c| query::lookup(c, &landed))?;
            line.detail = theirs.map(|row| row.story());
        }
        let must_show = is_mine && line.outcome.is_held();
        lines.push((line, must_show.then_some((landed, entry.sha256))));
    }
    let shown: Vec<_> = lines.iter().flat_map(|(_, s)| s).map(|(l, d)| (l.as_str(), *d)).collect();
    let mut is_shown = parts.ledger.promoted_of(&shown)?.into_iter();
    let is_said =
        |(_, must_show): &(_, Option<_>)| must_show.is_none() || is_shown.next() == Some(true);
    let said: Vec<bool> = lines.iter().map(is_said).collect();
    let said = lines.into_iter().zip(said).filter_map(|((line, _), said)| said.then_some(line));
    Ok(said.collect())
}

pub(crate) fn register(entry: &Entry, holder: Option<Holder>) -> Operation {
    Operation::Register(Register {
        bundle: 0,
        path: entry.path.clone(),
        sha256: entry.sha256,
        size_bytes: entry.size_bytes,
        seq: entry.seq,
        modified_at: entry.modified_at,
        holder,
    })
}

/// The outcome that a reply means; none when the file has to come again.
fn line_of(entry: &Entry, reply: &OperationReply) -> Option<OutcomeLine> {
    let line =
        |outcome, copies| OutcomeLine::new(entry.path.clone(), entry.sha256, outcome, copies);
    match reply {
        OperationReply::Registered { copies, .. } => Some(line(Outcome::Registered, *copies)),
        OperationReply::AlreadyPresent { copies, .. } => {
            Some(line(Outcome::AlreadyPresent, *copies))
        }
        OperationReply::Conflict { theirs } => {
            Some(OutcomeLine { their_sha256: Some(*theirs), ..line(Outcome::Conflict, 0) })
        }
        OperationReply::Removed => Some(line(Outcome::Removed, 0)),
        _ => None,
    }
}
