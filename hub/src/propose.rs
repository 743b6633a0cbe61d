//! Groups operations into batches and gets them agreed on: the only place that knows `NotLeader`.
//!
//! Whatever waits goes out as one proposal of at most 1,000 operations and 2 MiB. A node that has
//! known no leader for 5 s answers 503; a proposal that has no answer in time is unknown, not no
//! (D4).

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use barque_bundle::{ErrorKind, platform};
use barque_raft::{Node, ProposeError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

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
    node: Arc<Node>,
    clock: Clock,
    queue: mpsc::Sender<Group>,
    counts: Arc<Counts>,
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
    pub fn start(node: Arc<Node>, clock: Clock, data: &Path) -> Self {
        let (queue, waiting) = mpsc::channel(QUEUE);
        let proposer = Self { node, clock, queue, counts: Arc::default(), data: data.into() };
        let core = Core {
            node: Arc::clone(&proposer.node),
            clock: Arc::clone(&proposer.clock),
            counts: Arc::clone(&proposer.counts),
            data: Arc::clone(&proposer.data),
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
        propose(&self.node, &self.data, command::encode(&envelope)).await
    }
}

/// Refuses while the databases have no room to write the proposal down.
fn require_room(data: &Path, bytes: usize) -> Result<(), Refusal> {
    require_writable(data)?;
    let sizes = platform::free_bytes(data).and_then(|f| Ok((f, platform::total_bytes(data)?)));
    // What cannot be looked at is no reason to refuse: the write itself will say.
    let Ok((free, total)) = sizes else { return Ok(()) };
    let needed = LOG_ROOM_BYTES.min(total / 20).saturating_add(4 * bytes as u64);
    if free >= needed {
        return Ok(());
    }
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

fn unknown() -> Refusal {
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
    node: Arc<Node>,
    clock: Clock,
    counts: Arc<Counts>,
    data: Arc<Path>,
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
        let reply = propose(&self.node, &self.data, command::encode(&envelope)).await;
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

async fn propose(node: &Node, data: &Path, bytes: Vec<u8>) -> Result<Reply, Refusal> {
    require_room(data, bytes.len())?;
    let deadline = Instant::now() + LEADER_WAIT;
    loop {
        let proposed = tokio::time::timeout(ANSWER_WAIT, node.propose(bytes.clone())).await;
        match proposed {
            Err(_) => {
                return Err(unknown());
            }
            Ok(Ok(reply)) => {
                return command::decode(&reply).map_err(|e: Error| e.to_refusal());
            }
            Ok(Err(ProposeError::NotLeader { .. })) if Instant::now() < deadline => {
                node.wait_for_leader(deadline - Instant::now()).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(Err(ProposeError::NotLeader { .. })) => {
                return Err(Refusal::new(
                    ErrorKind::Unavailable,
                    "no_leader",
                    "the hub has no leader at the moment; nothing was lost, try again",
                ));
            }
            Ok(Err(ProposeError::Stopped(why))) => {
                tracing::error!(%why, "a proposal met a stopped Raft node");
                return Err(Refusal::new(
                    ErrorKind::Unavailable,
                    "raft_stopped",
                    "the hub's Raft node has stopped, its log says why; restart the hub",
                ));
            }
        }
    }
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
