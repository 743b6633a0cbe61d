//! Manifest operations alone, a second: files registered in batches, without any bytes behind them.
//!
//! `cargo run --release -p barque-tests --example manifest -- 200000` prints the rate of one node and
//! of three (in one process, each with its own log, over TLS on loopback), twice each, in turns.

#![expect(clippy::unwrap_used, reason = "a benchmark ends by panicking")]
#![expect(clippy::print_stdout, reason = "its result is for people")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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

/// Callers at once, and operations that each hands over together.
const CALLERS: u64 = 8;
const TOGETHER: u64 = 250;
/// A node that holds the files and never runs, so that no copy is looked for.
const GHOST: u64 = 4242;

fn now() -> Timestamp {
    Timestamp::from_system(std::time::SystemTime::now())
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A node that runs on a runtime of its own.
fn start(data: &Path) -> (Runtime, Arc<Parts>) {
    let runtime = Runtime::new().unwrap();
    let inside = runtime.enter();
    let mut config = HubConfig::new(data);
    config.listen = free_address();
    config.cluster_listen = Some(free_address());
    let hub = Hub::open(config, Arc::new(now)).unwrap();
    let parts = hub.parts();
    let mut ready = hub.ready();
    runtime.spawn(hub.run(rand::random, std::future::pending()));
    drop(inside);
    runtime.block_on(async { ready.wait_for(|r| *r).await.map(drop) }).unwrap();
    (runtime, parts)
}

fn nodes(count: usize, root: &Path) -> Vec<(Runtime, Arc<Parts>)> {
    let seeds = Seeds {
        now: now(),
        hub_id: rand::random(),
        node_id: rand::random(),
        root: rand::random(),
        node: rand::random(),
    };
    Identity::create(&root.join("0"), None, seeds).unwrap();
    let mut all = vec![start(&root.join("0"))];
    for n in 1..count {
        let parts = Arc::clone(&all[0].1);
        while parts.cluster.row(parts.identity.node_id).is_none_or(|r| r.address.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let data = root.join(n.to_string());
        let token = all[0].0.block_on(join::invite(
            &parts,
            true,
            format!("{:x}", rand::random::<u64>()),
            now().plus_ms(60_000),
        ));
        let seeds = join::Seeds { node_id: rand::random(), node: rand::random() };
        let token = token.unwrap().encode();
        all[0].0.block_on(join::join(&data, &token, None, seeds, now())).unwrap();
        all.push(start(&data));
    }
    while all[0].1.node.status().voters.len() < count {
        std::thread::sleep(Duration::from_millis(20));
    }
    all
}

/// A spoke that may write, and a node that holds what it writes.
async fn prepare(parts: &Parts) -> Arc<BundleRef> {
    let key = SecretKey::from_seed([7; 32]);
    let spoke_id: barque_bundle::SpokeId = "s".parse().unwrap();
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

fn register(n: u64) -> Operation {
    let day = n % 28 + 1;
    let path = format!("factory/temperature/2024/03/{day:02}/00/part-{n}.parquet");
    let path: FilePath = path.parse().unwrap();
    let holder = Some(Holder { node_id: GHOST, stage_no: n + 1 });
    let (sha256, modified_at) = (Sha256Digest::of(&n.to_le_bytes()), now());
    Operation::Register(Register {
        bundle: 0,
        path,
        sha256,
        size_bytes: 4096,
        seq: n + 1,
        modified_at,
        holder,
    })
}

/// Operations a second, and proposals for each 10,000 of them.
fn measure(count: usize, operations: u64) -> (f64, f64) {
    let root = tempfile::tempdir_in(".").unwrap();
    let all = nodes(count, root.path());
    // By a node that does not lead, where there is one: the longer way.
    let leader = all[0].1.node.status().leader;
    let by = all.iter().rev().find(|(_, p)| Some(p.identity.node_id) != leader || count == 1);
    let (runtime, parts) = by.unwrap();
    let bundle = runtime.block_on(prepare(parts));
    let before = parts.proposer.counts().proposals.load(Ordering::Relaxed);
    let begun = Instant::now();
    runtime.block_on(async {
        let mut callers = Vec::new();
        for caller in 0..CALLERS {
            let (parts, bundle) = (Arc::clone(parts), Arc::clone(&bundle));
            callers.push(tokio::spawn(async move {
                let share = operations / CALLERS;
                for from in (0..share).step_by(usize::try_from(TOGETHER).unwrap()) {
                    let first = caller * share + from;
                    let some = (first..first + TOGETHER).map(register).collect();
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
    let took = begun.elapsed().as_secs_f64();
    let proposals = parts.proposer.counts().proposals.load(Ordering::Relaxed) - before;
    for (runtime, _) in all {
        runtime.shutdown_background();
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    (operations as f64 / took, proposals as f64 * 10_000.0 / operations as f64)
}

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let operations = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let operations = operations / (CALLERS * TOGETHER) * (CALLERS * TOGETHER);
    println!("{operations} operations, nodes: operations a second, proposals for 10,000");
    for count in [1, 3, 1, 3] {
        let (rate, proposals) = measure(count, operations);
        println!("{count}: {rate:.0}, {proposals:.1}");
    }
}
