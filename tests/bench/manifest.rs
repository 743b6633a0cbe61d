//! Manifest operations alone: files registered in batches, without any bytes behind them, by nodes in
//! this process, each with its own log, over TLS on loopback.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use barque_bundle::{BundleId, FilePath, SecretKey, SeriesId, Sha256Digest, Timestamp};
use barque_hub::cluster::join;
use barque_hub::command::{
    AddSpoke, BundleRef, Command, Enroll, Holder, InviteNode, JoinNode, Operation, OperationReply,
    Register,
};
use barque_hub::hub::Parts;
use barque_hub::identity::Seeds;
use barque_hub::{Hub, HubConfig, Identity};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::page::{Page, tell};
use crate::process::{free_address, wait_for};
use crate::stats::Sorted;

/// Callers at once, and operations that each hands over together.
const CALLERS: u64 = 8;
const TOGETHER: usize = 250;
/// A node that holds the files and never runs, so that no copy is looked for.
const GHOST: u64 = 4242;
/// The spoke whose files they are, and their size.
pub const SPOKE: &str = "s";
pub const SIZE: u64 = 4096;

/// The key of that spoke.
pub fn key() -> SecretKey {
    SecretKey::from_seed([7; 32])
}

fn now() -> Timestamp {
    Timestamp::from_system(std::time::SystemTime::now())
}

/// A node of this process, on a runtime of its own.
pub struct Node {
    runtime: Runtime,
    pub parts: Arc<Parts>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Node {
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Ends it as an operator would.
    pub fn stop(self) {
        drop(self.parts);
        self.stop.send(()).unwrap();
        self.runtime.block_on(self.running).unwrap();
    }
}

pub fn start(data: &Path) -> Node {
    let runtime = Runtime::new().unwrap();
    let inside = runtime.enter();
    let mut config = HubConfig::new(data);
    config.listen = free_address();
    config.cluster_listen = Some(free_address());
    let hub = Hub::open(config, Arc::new(now)).unwrap();
    let parts = hub.parts();
    let mut ready = hub.ready();
    let (stop, stopped) = oneshot::channel();
    let hub = hub.run(rand::random, async { drop(stopped.await) });
    let running = runtime.spawn(async { hub.await.unwrap() });
    drop(inside);
    runtime.block_on(async { ready.wait_for(|r| *r).await.map(drop) }).unwrap();
    Node { runtime, parts, stop, running }
}

/// Makes the folder of the first node of a hub.
pub fn create(data: &Path) {
    let seeds = Seeds {
        now: now(),
        hub_id: rand::random(),
        node_id: rand::random(),
        root: rand::random(),
        node: rand::random(),
    };
    Identity::create(data, None, seeds).unwrap();
}

fn nodes(count: usize, root: &Path) -> Vec<Node> {
    create(&root.join("0"));
    let mut all = vec![start(&root.join("0"))];
    for n in 1..count {
        let parts = Arc::clone(&all[0].parts);
        let data = root.join(n.to_string());
        let token = all[0].runtime.block_on(join::invite(
            &parts,
            true,
            format!("{:x}", rand::random::<u64>()),
            now().plus_ms(60_000),
        ));
        let seeds = join::Seeds { node_id: rand::random(), node: rand::random() };
        let token = token.unwrap().encode();
        all[0].runtime.block_on(join::join(&data, &token, None, seeds, now())).unwrap();
        all.push(start(&data));
    }
    wait_for("all nodes vote", || all[0].parts.node.status().voters.len() == count);
    all
}

/// A spoke that may write, and a node that holds what it writes.
pub fn prepare(node: &Node) -> Arc<BundleRef> {
    node.runtime.block_on(prepared(&node.parts))
}

async fn prepared(parts: &Parts) -> Arc<BundleRef> {
    let key = key();
    let spoke_id: barque_bundle::SpokeId = SPOKE.parse().unwrap();
    let secret_hash = Sha256Digest::of(b"x");
    let expires_at = now().plus_ms(60_000);
    for command in [
        Command::AddSpoke(AddSpoke { spoke_id: spoke_id.clone(), secret_hash, expires_at }),
        Command::Enroll(Enroll {
            spoke_id: spoke_id.clone(),
            secret_hash,
            public_key: key.public(),
        }),
        Command::InviteNode(InviteNode { secret_hash, votes: false, expires_at }),
        Command::JoinNode(JoinNode { secret_hash, node_id: GHOST, public_key: key.public() }),
    ] {
        parts.proposer.command(command).await.unwrap();
    }
    Arc::new(BundleRef {
        bundle_id: BundleId::new(now(), rand::random()),
        spoke_id,
        key_id: key.public().key_id(),
        series: SeriesId::new(now(), rand::random()),
        header: b"header".to_vec(),
        sig: vec![0; 64],
        claim: None,
    })
}

/// The file of a number: its path, its digest, its number in the series.
pub fn file(n: u64) -> (FilePath, Sha256Digest, u64) {
    let day = n % 28 + 1;
    let path = format!("factory/temperature/2024/03/{day:02}/00/part-{n}.parquet");
    (path.parse().unwrap(), Sha256Digest::of(&n.to_le_bytes()), n + 1)
}

fn register(n: u64) -> Operation {
    let (path, sha256, seq) = file(n);
    let holder = Some(Holder { node_id: GHOST, stage_no: n + 1 });
    let (size_bytes, modified_at) = (SIZE, now());
    Operation::Register(Register { bundle: 0, path, sha256, size_bytes, seq, modified_at, holder })
}

/// Registers files by several callers at once.
pub fn register_all(node: &Node, bundle: &Arc<BundleRef>, numbers: Range<u64>) {
    let share = (numbers.end - numbers.start).div_ceil(CALLERS);
    node.runtime.block_on(async {
        let mut callers = Vec::new();
        for caller in 0..CALLERS {
            let (parts, bundle) = (Arc::clone(&node.parts), Arc::clone(bundle));
            let begin = numbers.start + caller * share;
            let end = numbers.end.min(begin + share);
            callers.push(tokio::spawn(async move {
                for from in (begin..end).step_by(TOGETHER) {
                    let some = (from..end.min(from + TOGETHER as u64)).map(register).collect();
                    let done = parts.proposer.operations(Some(Arc::clone(&bundle)), some).await;
                    let is_in = |r: &OperationReply| matches!(r, OperationReply::Registered { .. });
                    assert!(done.unwrap().iter().all(is_in));
                }
            }));
        }
        for caller in callers {
            caller.await.unwrap();
        }
    });
}

/// Operations a second, and proposals for each 10,000 of them.
fn measure(count: usize, operations: u64) -> (f64, f64) {
    let root = crate::process::folder();
    let all = nodes(count, root.path());
    // By a node that does not lead, where there is one: the longer way.
    let leader = all[0].parts.node.status().leader;
    let by = all.iter().rev().find(|n| Some(n.parts.identity.node_id) != leader || count == 1);
    let by = by.unwrap();
    let bundle = prepare(by);
    let proposals = || by.parts.proposer.counts().proposals.load(Ordering::Relaxed);
    let before = proposals();
    let begun = Instant::now();
    register_all(by, &bundle, 0..operations);
    let took = begun.elapsed().as_secs_f64();
    let proposals = proposals() - before;
    all.into_iter().rev().for_each(|n| n.runtime.shutdown_background());
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    (operations as f64 / took, proposals as f64 * 10_000.0 / operations as f64)
}

/// Prints the rates of one node and of three, in turns.
pub fn rates(page: &mut Page, operations: u64, rounds: u64) {
    tell!(page, "\n{operations} manifest operations alone, {CALLERS} callers with {TOGETHER} each");
    tell!(page, "\n| nodes | a second, median | min | max | proposals for 10,000 |");
    tell!(page, "|---|---|---|---|---|");
    let mut found: [(Vec<f64>, Vec<f64>); 2] = Default::default();
    for _ in 0..rounds {
        for (at, nodes) in [1, 3].into_iter().enumerate() {
            let (rate, proposals) = measure(nodes, operations);
            found[at].0.push(rate);
            found[at].1.push(proposals);
        }
    }
    for (nodes, (rates, proposals)) in [1, 3].into_iter().zip(found) {
        let (r, p) = (Sorted::of(rates), Sorted::of(proposals));
        let (median, min, max) = (r.median(), r.min(), r.max());
        tell!(page, "| {nodes} | {median:.0} | {min:.0} | {max:.0} | {:.1} |", p.max());
    }
}
