//! Groups operations into batches and gets them agreed on, by this node or the one that leads: the
//! only place that knows `NotLeader`.
//!
//! Whatever waits goes out as one proposal of at most 1,000 operations and 2 MiB. An election is
//! ridden out for 5 s; a node that has known no leader for as long answers 503 at once. A proposal
//! that has no answer in time is unknown, not no (D4): it is made again when a repeat is answered as
//! the first would have been, else its caller hears so.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use barque_bundle::{ErrorKind, platform};
use barque_raft::{Node, ProposeError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::cluster::{CallFault, Cluster, no_leader, raft_stopped};
use crate::command::{
    self, BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, Batch, BundleRef, Command, Envelope, Operation,
    OperationReply, Reply,
};
use crate::error::{Error, Refusal};
use crate::hub::Clock;

/// How long a missing leader is waited for.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// How long an answer is waited for, once proposed.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_millis(50);
const QUORUM_CHECK: Duration = Duration::from_millis(250);
/// How long a caller waits for its turn and its answer together.
const QUEUE_WAIT: Duration = Duration::from_secs(50);
/// Bytes that stay free for the databases (a small file system keeps a twentieth): a full disk
/// under its log stops a Raft node for good, so a proposal is refused before that.
const LOG_ROOM_BYTES: u64 = 8 * 1024 * 1024;
/// Groups that wait before callers do.
const QUEUE: usize = 256;

type Answer = Result<Vec<OperationReply>, Refusal>;

/// Operations of one caller, which stay together and in order.
struct Group {
    bundle: Option<Arc<BundleRef>>,
    operations: Vec<Operation>,
    bytes: usize,
    answer: oneshot::Sender<Answer>,
}

/// A handle on the proposing task; clones share its queue.
#[derive(Clone)]
pub struct Proposer {
    way: Way,
    clock: Clock,
    queue: mpsc::Sender<Group>,
    counts: Arc<Counts>,
}

/// How a command is agreed on.
#[derive(Clone)]
struct Way {
    node: Arc<Node>,
    cluster: Arc<Cluster>,
    data: Arc<Path>,
}

/// How many proposals and operations went out.
#[derive(Debug, Default)]
pub struct Counts {
    pub proposals: AtomicU64,
    pub operations: AtomicU64,
}

impl Proposer {
    /// Starts the task that groups; it ends with the last handle.
    pub fn start(node: Arc<Node>, cluster: Arc<Cluster>, clock: Clock, data: &Path) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let way = Way { node, cluster, data: data.into() };
        let proposer = Self { way, clock, queue, counts: Arc::default() };
        let core = Core {
            way: proposer.way.clone(),
            clock: Arc::clone(&proposer.clock),
            counts: Arc::clone(&proposer.counts),
        };
        tokio::spawn(core.run(waiting));
        proposer
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Replies of operations of one bundle, in their order; more than a batch holds is split.
    pub async fn operations(
        &self,
        bundle: Option<Arc<BundleRef>>,
        operations: Vec<Operation>,
    ) -> Result<Vec<OperationReply>, Refusal> {
        let answered = self.enqueue(bundle, operations);
        tokio::time::timeout(QUEUE_WAIT, answered).await.unwrap_or_else(|_| Err(unknown()))
    }

    async fn enqueue(
        &self,
        bundle: Option<Arc<BundleRef>>,
        operations: Vec<Operation>,
    ) -> Result<Vec<OperationReply>, Refusal> {
        let once = bundle.as_ref().map_or(0, |b| b.header.len() + b.sig.len() + 256);
        let mut waiting = Vec::new();
        for (operations, bytes) in split(operations) {
            let (answer, reply) = oneshot::channel();
            let bytes = bytes + once;
            let group = Group { bundle: bundle.clone(), operations, bytes, answer };
            self.queue.send(group).await.map_err(|_| stopping())?;
            waiting.push(reply);
        }
        let mut replies = Vec::new();
        for reply in waiting {
            replies.extend(reply.await.map_err(|_| stopping())??);
        }
        Ok(replies)
    }

    /// The reply to one command that goes out alone.
    pub async fn command(&self, command: Command) -> Result<Reply, Refusal> {
        let envelope = Envelope { at: (self.clock)(), command };
        self.way.propose(&envelope).await
    }

    /// The reply to a command of another node, which is passed on once at the most.
    pub async fn answer(&self, command: Vec<u8>, is_passed_on: bool) -> Result<Vec<u8>, Refusal> {
        // What `apply` could not read would stop every node, at each of its starts.
        let envelope: Envelope = command::decode(&command).map_err(|e| {
            let detail = format!("a command that this node does not understand: {e}");
            Refusal::new(ErrorKind::Invalid, "command_malformed", detail)
        })?;
        self.way.require_level(envelope.command.version())?;
        require_room(&self.way.data, command.len())?;
        match self.way.once(command, is_passed_on).await {
            Ok(reply) => Ok(reply),
            Err(Fault::NotDone) => Err(no_leader()),
            Err(Fault::Unknown) => Err(unknown()),
            Err(Fault::Refused(refusal)) => Err(refusal),
        }
    }
}

/// Whether the databases have room for another proposal.
pub fn has_room(data: &Path) -> bool {
    platform::read_only_mount(data).is_none() && lack(data, 0).is_none()
}

/// Free bytes, and those that a proposal needs, when it needs more.
fn lack(data: &Path, bytes: usize) -> Option<(u64, u64)> {
    // What cannot be looked at is no reason to refuse: the write itself will say.
    let (free, total) = (platform::free_bytes(data).ok()?, platform::total_bytes(data).ok()?);
    let needed = LOG_ROOM_BYTES.min(total / 20).saturating_add(4 * bytes as u64);
    (free < needed).then_some((free, needed))
}

/// Refuses while the databases have no room to write the proposal down.
fn require_room(data: &Path, bytes: usize) -> Result<(), Refusal> {
    require_writable(data)?;
    let Some((free, needed)) = lack(data, bytes) else { return Ok(()) };
    tracing::error!(folder = %data.display(), free, needed, "no room for the databases");
    Err(Refusal::new(
        ErrorKind::Full,
        "hub_full",
        format!(
            "the hub's data folder has {free} bytes free and needs {needed}; \
             free space there, nothing was lost"
        ),
    ))
}

/// Refuses while the data folder's file system is read-only: that under its log stops a Raft node
/// for good as well.
pub fn require_writable(data: &Path) -> Result<(), Refusal> {
    let Some(mount) = platform::read_only_mount(data) else { return Ok(()) };
    tracing::error!(
        folder = %data.display(),
        mount = %mount.display(),
        "the data folder is on a read-only file system: remount it writable, the hub goes on by itself"
    );
    Err(crate::error::read_only())
}

/// Whether it happened is not known (D4).
pub fn unknown() -> Refusal {
    Refusal::new(
        ErrorKind::Unknown,
        "proposal_unknown",
        "the hub did not hear in time whether this was agreed on; try again, a repeat changes nothing",
    )
}

fn stopping() -> Refusal {
    Refusal::new(ErrorKind::Unavailable, "stopping", "the hub is stopping; try again")
}

/// A generous estimate of an operation's bytes on the wire.
fn operation_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Register(op) => op.path.as_str().len() + 96,
        Operation::Answer { .. } => 16,
        Operation::CheckIn(op) => {
            512 + 24 * (op.voids.as_slice().len() + op.answered.as_slice().len())
        }
    }
}

fn split(operations: Vec<Operation>) -> Vec<(Vec<Operation>, usize)> {
    let mut parts: Vec<(Vec<Operation>, usize)> = Vec::new();
    for operation in operations {
        let bytes = operation_bytes(&operation);
        match parts.last_mut() {
            Some((part, sum))
                if part.len() < BATCH_OPERATIONS_MAX && *sum + bytes <= BATCH_BYTES_MAX =>
            {
                part.push(operation);
                *sum += bytes;
            }
            _ => parts.push((vec![operation], bytes)),
        }
    }
    parts
}

struct Core {
    way: Way,
    clock: Clock,
    counts: Arc<Counts>,
}

impl Core {
    async fn run(self, mut waiting: mpsc::Receiver<Group>) {
        let mut held: Option<Group> = None;
        loop {
            let first = match held.take() {
                Some(group) => group,
                None => match waiting.recv().await {
                    Some(group) => group,
                    None => return,
                },
            };
            let (mut operations, mut bytes) = (first.operations.len(), first.bytes);
            let mut groups = vec![first];
            while let Ok(next) = waiting.try_recv() {
                operations += next.operations.len();
                bytes += next.bytes;
                if operations > BATCH_OPERATIONS_MAX || bytes > BATCH_BYTES_MAX {
                    held = Some(next);
                    break;
                }
                groups.push(next);
            }
            self.propose_groups(groups).await;
        }
    }

    async fn propose_groups(&self, groups: Vec<Group>) {
        let (batch, answers) = join(groups);
        self.counts.proposals.fetch_add(1, Ordering::Relaxed);
        self.counts.operations.fetch_add(batch.operations.len() as u64, Ordering::Relaxed);
        let envelope = Envelope { at: (self.clock)(), command: Command::Batch(batch) };
        let reply = self.way.propose(&envelope).await;
        let mut replies = match reply {
            Ok(Reply::Batch(replies)) => replies.into_iter(),
            Ok(_) => {
                tracing::error!("a batch was answered with another command's reply");
                Vec::new().into_iter()
            }
            Err(refusal) => {
                for (_, answer) in answers {
                    let _ = answer.send(Err(refusal.clone()));
                }
                return;
            }
        };
        for (n, answer) in answers {
            // A caller that went away is no reason to stop: what it asked for is agreed.
            let _ = answer.send(Ok(replies.by_ref().take(n).collect()));
        }
    }
}

type Waiting = Vec<(usize, oneshot::Sender<Answer>)>;

/// One batch of all groups, each bundle standing once, and how many replies go to whom.
fn join(groups: Vec<Group>) -> (Batch, Waiting) {
    let mut batch = Batch::default();
    let mut indexes: HashMap<*const BundleRef, u32> = HashMap::new();
    let mut answers = Vec::new();
    for group in groups {
        let index = group.bundle.as_ref().map(|bundle| {
            *indexes.entry(Arc::as_ptr(bundle)).or_insert_with(|| {
                batch.bundles.push(BundleRef::clone(bundle));
                u32::try_from(batch.bundles.len() - 1).unwrap_or(u32::MAX)
            })
        });
        answers.push((group.operations.len(), group.answer));
        batch.operations.extend(group.operations.into_iter().map(|op| at_index(op, index)));
    }
    (batch, answers)
}

fn at_index(operation: Operation, index: Option<u32>) -> Operation {
    let bundle = index.unwrap_or(u32::MAX);
    match operation {
        Operation::Register(op) => Operation::Register(command::Register { bundle, ..op }),
        Operation::Answer { seq, .. } => Operation::Answer { bundle, seq },
        other => other,
    }
}

/// Why one try brought no reply.
enum Fault {
    /// It did not happen, and will not: nobody leads, or the leader was not reached.
    NotDone,
    /// It may have happened (D4).
    Unknown,
    Refused(Refusal),
}

impl Way {
    /// Gets a command agreed on; an election is ridden out for a while.
    async fn propose(&self, envelope: &Envelope) -> Result<Reply, Refusal> {
        self.cluster.require_inside()?;
        self.require_level(envelope.command.version())?;
        let bytes = command::encode(envelope);
        require_room(&self.data, bytes.len())?;
        let left = LEADER_WAIT.saturating_sub(self.cluster.leaderless_for());
        let deadline = Instant::now() + left;
        let is_repeatable = envelope.command.is_repeatable();
        // What may have happened once is not said to have not.
        let mut may_have = false;
        loop {
            match self.once(bytes.clone(), false).await {
                Ok(reply) => return command::decode(&reply).map_err(|e: Error| e.to_refusal()),
                Err(Fault::Refused(refusal)) => return Err(refusal),
                Err(Fault::Unknown) if !is_repeatable || Instant::now() >= deadline => {
                    return Err(unknown());
                }
                Err(Fault::NotDone) if Instant::now() >= deadline => {
                    let refused = || self.cluster.disagreement().unwrap_or_else(no_leader);
                    return Err(if may_have { unknown() } else { refused() });
                }
                Err(fault) => {
                    may_have |= matches!(fault, Fault::Unknown);
                    self.node.wait_for_leader(deadline - Instant::now()).await;
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    /// Refuses what a node of the hub would not understand, and stop at.
    fn require_level(&self, version: u8) -> Result<(), Refusal> {
        let (level, node_id) = self.cluster.level();
        if version <= level {
            return Ok(());
        }
        let detail = format!(
            "node {} runs an older program that does not know this yet; upgrade it first",
            self.cluster.title(node_id)
        );
        Err(Refusal::new(ErrorKind::Unavailable, "upgrade_incomplete", detail))
    }

    /// One try: here when this node leads, else by the node that does.
    async fn once(&self, bytes: Vec<u8>, is_passed_on: bool) -> Result<Vec<u8>, Fault> {
        if Cluster::lost_quorum(&self.node) {
            return Err(Fault::NotDone);
        }
        let proposed = tokio::time::timeout(ANSWER_WAIT, self.node.propose(bytes.clone()));
        let leader = tokio::select! {
            proposed = proposed => match proposed {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(ProposeError::NotLeader { leader, .. })) => leader,
                // It may be in the log all the same.
                Ok(Err(ProposeError::Stopped(why))) => {
                    let stopped = raft_stopped(&why);
                    return Err(Fault::Refused(Refusal { kind: ErrorKind::Unknown, ..stopped }));
                }
                Err(_) => return Err(Fault::Unknown),
            },
            // What a leader without a majority has taken may still be agreed on.
            () = self.quorum_gone() => return Err(Fault::Unknown),
        };
        // A node that no leader knows yet asks those that it knows.
        let is_stranger = self.node.status().voters.is_empty();
        if is_passed_on || (leader.is_none() && !is_stranger) || leader == Some(self.node.node_id())
        {
            return Err(Fault::NotDone);
        }
        match self.cluster.forward(leader, leader.is_some(), bytes, ANSWER_WAIT).await {
            Ok(reply) => Ok(reply.to_vec()),
            Err(e) if e.is_unknown() => Err(Fault::Unknown),
            Err(CallFault::Refused(p)) if p.code == "hub_full" || p.code == "hub_read_only" => {
                Err(Fault::Refused(full_elsewhere()))
            }
            Err(_) => Err(Fault::NotDone),
        }
    }

    /// Returns once this node leads and has not been heard by most others for too long.
    async fn quorum_gone(&self) {
        while !Cluster::lost_quorum(&self.node) {
            tokio::time::sleep(QUORUM_CHECK).await;
        }
    }
}

fn full_elsewhere() -> Refusal {
    Refusal::new(
        ErrorKind::Full,
        "hub_full",
        "the hub's leading node has no room for its databases; free space there, nothing was lost",
    )
}

#[cfg(test)]
mod tests {
    use barque_bundle::{Sha256Digest, Timestamp};

    use super::*;

    #[test]
    fn ten_thousand_files_with_the_longest_paths_are_ten_proposals_below_two_mebibytes() {
        let path =
            format!("{}{}.parquet", format!("{}/", "d".repeat(200)).repeat(4), "f".repeat(205));
        assert_eq!(path.len(), 1017);
        let operation = |seq| {
            Operation::Register(command::Register {
                bundle: 0,
                path: path.parse().unwrap(),
                sha256: Sha256Digest::of(b""),
                size_bytes: u64::MAX / 4,
                seq,
                modified_at: Timestamp::from_unix_ms(i64::MAX / 4),
                holder: Some(command::Holder { node_id: u64::MAX / 2, stage_no: seq }),
            })
        };
        let parts = split((0..10_000).map(operation).collect());
        assert_eq!(parts.len(), 10);
        for (operations, bytes) in parts {
            assert_eq!(operations.len(), 1000);
            let command = Command::Batch(Batch { bundles: vec![], operations });
            let at = Timestamp::from_unix_ms(0);
            let encoded = command::encode(&Envelope { at, command }).len();
            assert!(encoded <= bytes && encoded < BATCH_BYTES_MAX, "{encoded} {bytes}");
        }
    }
}
