//! A node of a hub in this process: on a runtime of its own, so that it can die at any moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barque_bundle::Timestamp;
use barque_hub::cluster::join;
use barque_hub::identity::Seeds;
use barque_hub::{Fronts, Hub, HubConfig, Identity};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::net::{Line, Net};

pub const DEADLINE: Duration = Duration::from_secs(60);

pub struct Node {
    pub id: u64,
    pub data: PathBuf,
    config: HubConfig,
    /// How far this node's clock is off, in milliseconds.
    skew_ms: i64,
    net: Arc<Net>,
    running: Option<(Runtime, Arc<Fronts>)>,
    /// That it ends is a fault.
    is_wanted: Arc<AtomicBool>,
}

fn now(skew_ms: i64) -> Timestamp {
    Timestamp::from_system(std::time::SystemTime::now()).plus_ms(skew_ms)
}

/// A loopback address that no other node of this machine listens on.
fn own_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (n, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
    let hundreds = (process / 128 + n / 250) % 250;
    format!("127.{}.{hundreds}.{}", 64 + process % 128, n % 250 + 1)
}

/// Waits on this thread until something holds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Node {
    /// The first node of a hub.
    pub fn first(data: PathBuf, net: &Arc<Net>, limits: barque_raft::Limits) -> Self {
        let seeds = Seeds {
            now: now(0),
            hub_id: rand::random(),
            node_id: rand::random(),
            root: rand::random(),
            node: rand::random(),
        };
        let id = Identity::create(&data, None, seeds).unwrap().node_id;
        Self::of(id, data, net, limits, 0)
    }

    /// One more node of the hub that `by` is of.
    pub fn joined(data: PathBuf, by: &Self, skew_ms: i64) -> Self {
        let (status, answer) = by.operate(
            "POST",
            "/api/v1/cluster/nodes",
            &json!({
                "reader": false, "expires_in_ms": 3_600_000,
            }),
        );
        assert_eq!(status, 200, "{answer}");
        let token = answer["token"].as_str().unwrap().to_owned();
        let seeds = join::Seeds { node_id: rand::random(), node: rand::random() };
        let runtime = Runtime::new().unwrap();
        let joined = runtime.block_on(join::join(&data, &token, None, seeds, now(0))).unwrap();
        Self::of(joined.node_id, data, &by.net, by.config.raft, skew_ms)
    }

    fn of(
        id: u64,
        data: PathBuf,
        net: &Arc<Net>,
        limits: barque_raft::Limits,
        skew_ms: i64,
    ) -> Self {
        let mut config = HubConfig::new(&data);
        let address = own_address();
        config.listen = format!("{address}:17171");
        config.cluster_listen = Some(format!("{address}:17272"));
        config.raft = limits;
        Self {
            id,
            data,
            config,
            skew_ms,
            net: Arc::clone(net),
            running: None,
            is_wanted: Arc::default(),
        }
    }

    pub fn start(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let end = Instant::now() + DEADLINE;
        let hub = loop {
            let identity = Identity::load(&self.data).unwrap();
            let wire = Arc::new(Line { net: Arc::clone(&self.net), from: self.id });
            let skew_ms = self.skew_ms;
            let clock = Arc::new(move || now(skew_ms));
            match Hub::open_with(self.config.clone(), identity, clock, wire) {
                Ok(hub) => break hub,
                // What is left of the one before still lets go of its files.
                Err(e) if e.to_string().contains("another hub runs") => {
                    assert!(Instant::now() < end, "{e}");
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) => panic!("node {:x}: {e}", self.id),
            }
        };
        let fronts = Arc::new(hub.fronts());
        self.net.open(self.id, fronts.nodes.clone(), runtime.handle().clone());
        let running = hub.run(rand::random, std::future::pending());
        let is_wanted = Arc::new(AtomicBool::new(true));
        let was_wanted = Arc::clone(&is_wanted);
        runtime.spawn(async move {
            if let Err(e) = running.await
                && was_wanted.load(Ordering::SeqCst)
            {
                // A node that does not run breaks the run, and has to say why.
                eprintln!("a node ended: {e}");
                std::process::abort();
            }
        });
        drop(_inside);
        self.running = Some((runtime, fronts));
        self.is_wanted = is_wanted;
    }

    /// Ends the node where it is: nothing that it was doing goes on.
    pub fn crash(&mut self) {
        self.net.close(self.id);
        // What it says while its tasks go away is no end of its own.
        self.is_wanted.store(false, Ordering::SeqCst);
        if let Some((runtime, fronts)) = self.running.take() {
            drop(fronts);
            runtime.shutdown_timeout(Duration::from_secs(10));
        }
    }

    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    pub fn fronts(&self) -> Option<(Arc<Fronts>, tokio::runtime::Handle)> {
        self.running.as_ref().map(|(r, f)| (Arc::clone(f), r.handle().clone()))
    }

    /// An operator's call: status and JSON, or 0 when the node is down.
    pub fn operate(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let Some((runtime, fronts)) = &self.running else { return (0, Value::Null) };
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let said = runtime.block_on(fronts.operator.call(method, path, &[], bytes));
        said.map_or((0, Value::Null), |said| {
            (said.status, serde_json::from_slice(&said.body).unwrap_or(Value::Null))
        })
    }

    /// How its Raft node stands, for people.
    pub fn raft(&self) -> String {
        let Some((runtime, fronts)) = &self.running else { return "down".to_owned() };
        let said = runtime.block_on(fronts.operator.call("GET", "/metrics", &[], Vec::new()));
        let text = said.map_or_else(String::new, |s| String::from_utf8_lossy(&s.body).into_owned());
        let says = |line: &&str| {
            let names =
                ["barque_raft_", "barque_cluster_node_", "barque_state_age", "barque_ready"];
            names.iter().any(|name| line.starts_with(name))
        };
        text.lines().filter(says).collect::<Vec<_>>().join("\n")
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        self.operate("GET", path, &Value::Null)
    }

    pub fn is_ready(&self) -> bool {
        self.get("/hub/status").0 == 200
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.crash();
    }
}
