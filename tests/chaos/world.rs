//! A hub of several nodes, a spoke of it that pushes all the time, and a reader that follows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use barque_bundle::{OutcomeLine, wire};
use barque_hub::Fronts;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::Value;
use tokio::runtime::Handle;

use crate::net::{Net, Weather};
use crate::node::{Node, wait_for};
use crate::oracle::Oracle;
use crate::schedule::{Event, Fault};
use crate::spoke::{Load, Spoke, file};

/// Paths that are written to; some of them with two contents.
const PATHS: u64 = 400;
const WRITERS: u64 = 3;
/// Longest that an answer is waited for.
const ANSWER_WAIT: Duration = Duration::from_secs(15);

type Doors = Arc<Mutex<BTreeMap<usize, (Arc<Fronts>, Handle)>>>;

/// What a node says of its manifest.
#[derive(Debug, PartialEq, Eq)]
pub struct Digested {
    pub position: u64,
    pub applied: u64,
    pub sha256: String,
}

/// A bundle, and which of its files have no final answer yet.
struct Job {
    load: Load,
    left: Vec<String>,
}

pub struct World {
    pub nodes: Vec<Node>,
    pub oracle: Arc<Oracle>,
    net: Arc<Net>,
    spoke: Arc<Spoke>,
    doors: Doors,
    jobs: Arc<Mutex<Vec<Job>>>,
    cursor: Arc<Mutex<Vec<(u64, String)>>>,
    _dir: tempfile::TempDir,
}

impl World {
    pub fn new(nodes: usize, seed: u64, limits: barque_raft::Limits, skew_ms: &[i64]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let net = Net::new(seed);
        let mut all = vec![Node::first(dir.path().join("0"), &net, limits)];
        all[0].start();
        wait_for("the first node is ready", || all[0].is_ready());
        for n in 1..nodes {
            wait_for("the first node says where it is", || {
                let (_, list) = all[0].get(wire::NODES);
                list["nodes"][0]["alive"] == true && all[0].get("/api/v1/cluster/nodes").0 == 200
            });
            let skew_ms = skew_ms.get(n).copied().unwrap_or(0);
            let mut node = Node::joined(dir.path().join(n.to_string()), &all[0], skew_ms);
            node.start();
            all.push(node);
        }
        let spoke = Arc::new(Spoke::enroll("s", &all[0]));
        let world = Self {
            nodes: all,
            oracle: Arc::default(),
            net,
            spoke,
            doors: Doors::default(),
            jobs: Arc::default(),
            cursor: Arc::default(),
            _dir: dir,
        };
        world.wait_until_whole();
        world.note_doors();
        world
    }

    pub fn wait_until_whole(&self) {
        let is_whole = |node: &Node| {
            let (_, list) = node.get(wire::NODES);
            let nodes = list["nodes"].as_array().cloned().unwrap_or_default();
            let is_whole = |v: &Value| v["role"] == "voter" && v["alive"] == true;
            node.is_ready() && nodes.iter().filter(|v| is_whole(v)).count() == self.nodes.len()
        };
        let up = || self.nodes.iter().filter(|n| n.is_up());
        if !holds_in_time(|| up().all(is_whole)) {
            let seen: Vec<String> = up()
                .map(|n| {
                    let (status, nodes) = (n.get("/hub/status").1, n.get(wire::NODES).1);
                    format!("{:x} sees {status} {nodes}\n{}", n.id, n.raft())
                })
                .collect();
            panic!("not all nodes vote, live and are ready:\n{}", seen.join("\n"));
        }
    }

    fn note_doors(&self) {
        let there = self.nodes.iter().enumerate();
        let doors = there.filter_map(|(n, node)| Some((n, node.fronts()?)));
        *self.doors.lock().unwrap() = doors.collect();
    }

    pub fn leader(&self) -> Option<usize> {
        self.nodes.iter().filter(|n| n.is_up()).find_map(|node| {
            let (_, list) = node.get(wire::NODES);
            let nodes = list["nodes"].as_array().cloned().unwrap_or_default();
            let id = nodes.iter().find(|v| v["leader"] == true)?["node_id"].clone();
            self.nodes.iter().position(|n| id == format!("{:016x}", n.id))
        })
    }

    /// Ends a node, unless that would leave no majority.
    pub fn crash(&mut self, n: usize) {
        // A majority stays, so that something goes on.
        let up = self.nodes.iter().filter(|n| n.is_up()).count();
        if up * 2 > self.nodes.len() + 1 {
            self.doors.lock().unwrap().remove(&n);
            self.nodes[n].crash();
        }
    }

    pub fn restart_all(&mut self) {
        for node in self.nodes.iter_mut().filter(|n| !n.is_up()) {
            node.start();
        }
        self.note_doors();
    }

    fn apply(&mut self, fault: &Fault) {
        match fault {
            Fault::Isolate(n) => {
                let id = self.nodes[*n].id;
                self.net.change(|w| w.isolated = [id].into());
            }
            Fault::IsolateLeader => {
                if let Some(n) = self.leader() {
                    let id = self.nodes[n].id;
                    self.net.change(|w| w.isolated = [id].into());
                }
            }
            Fault::Storm { lost_requests, lost_answers, repeated, delay_ms } => {
                self.net.change(|w| {
                    (w.lost_requests, w.lost_answers) = (*lost_requests, *lost_answers);
                    (w.repeated, w.delay_ms) = (*repeated, *delay_ms);
                });
            }
            Fault::Calm => self.net.set(Weather::default()),
            Fault::Crash(n) => self.crash(*n),
            Fault::CrashLeader => {
                if let Some(n) = self.leader() {
                    self.crash(n);
                }
            }
            Fault::Restart => self.restart_all(),
        }
    }

    /// Lets a schedule happen while bundles are pushed and changes are read.
    pub fn live_through(&mut self, seed: u64, events: &[Event]) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let mut working = Vec::new();
        for n in 0..WRITERS {
            let writer = Writer {
                random: SmallRng::seed_from_u64(seed ^ (n + 1) << 32),
                spoke: Arc::clone(&self.spoke),
                doors: Arc::clone(&self.doors),
                oracle: Arc::clone(&self.oracle),
                jobs: Arc::clone(&self.jobs),
                is_over: Arc::clone(&is_over),
            };
            working.push(runtime.spawn(writer.run()));
        }
        let (doors, cursor) = (Arc::clone(&self.doors), Arc::clone(&self.cursor));
        let (over, oracle) = (Arc::clone(&is_over), Arc::clone(&self.oracle));
        working.push(runtime.spawn(async move {
            let mut random = SmallRng::seed_from_u64(seed);
            while !over.load(Ordering::Relaxed) {
                follow(&doors, &cursor, &oracle, random.random_range(0..1_000)).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }));
        for event in events {
            std::thread::sleep(event.after);
            self.apply(&event.fault);
        }
        is_over.store(true, Ordering::Relaxed);
        self.net.set(Weather::default());
        self.restart_all();
        runtime.block_on(async {
            for worker in working {
                worker.await.unwrap();
            }
        });
        self.wait_until_whole();
        self.deliver();
        self.wait_until_equal();
    }

    /// Sends one file by a node, and hears that it is held.
    pub fn push_one(&self, by: usize, n: u64) {
        let path = format!("d/one/2024/03/{:02}/00/f{n}.parquet", n % 28 + 1);
        let load = self.spoke.load(&[(path, file(n))]);
        let left = load.entries.iter().map(|e| e.path.to_string()).collect();
        let job = {
            let mut jobs = self.jobs.lock().unwrap();
            jobs.push(Job { load: load.clone(), left });
            jobs.len() - 1
        };
        let (fronts, runtime) = self.nodes[by].fronts().unwrap();
        wait_for("a file is held", || {
            let lines = runtime.block_on(self.spoke.send(&fronts.public, &load));
            note(&self.jobs, job, &self.oracle, &self.spoke.name(), lines);
            self.jobs.lock().unwrap()[job].left.is_empty()
        });
    }

    /// Sends what has no final answer until it has, or the time is over.
    fn deliver(&self) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut n = 0;
        wait_for_or_give_up(|| {
            let open: Vec<(usize, Load)> = {
                let jobs = self.jobs.lock().unwrap();
                let open = jobs.iter().enumerate().filter(|(_, j)| !j.left.is_empty());
                open.map(|(n, j)| (n, j.load.clone())).collect()
            };
            n += 1;
            for (job, load) in &open {
                let lines =
                    runtime.block_on(send(&self.doors, n % self.nodes.len(), &self.spoke, load));
                note(&self.jobs, *job, &self.oracle, &self.spoke.name(), lines);
            }
            open.is_empty()
        });
    }

    /// Files without a final answer.
    pub fn left(&self) -> Vec<String> {
        self.jobs.lock().unwrap().iter().flat_map(|j| j.left.clone()).collect()
    }

    pub fn send_all_again(&self, n: usize) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let loads: Vec<Load> = self.jobs.lock().unwrap().iter().map(|j| j.load.clone()).collect();
        for load in &loads {
            let lines = runtime.block_on(send(&self.doors, n, &self.spoke, load));
            self.oracle.hear(&self.spoke.name(), &lines.expect("a hub that is well answers"));
        }
    }

    /// Landed name to digest and state, as a node lists it.
    pub fn files(&self, n: usize) -> BTreeMap<String, (String, String)> {
        let (status, list) = self.nodes[n].get("/api/v1/files?limit=10000");
        assert_eq!(status, 200, "{list}");
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let files = list["files"].as_array().unwrap().iter();
        files.map(|f| (text(&f["path"]), (text(&f["sha256"]), text(&f["state"])))).collect()
    }

    pub fn digests(&self) -> Vec<Digested> {
        let of = |node: &Node| {
            let (_, d) = node.get(wire::MANIFEST_DIGEST);
            let number = |key: &str| d[key].as_u64().unwrap_or(0);
            let sha256 = d["sha256"].as_str().unwrap_or("").to_owned();
            Digested { position: number("position"), applied: number("applied"), sha256 }
        };
        self.nodes.iter().map(of).collect()
    }

    pub fn position(&self, n: usize) -> u64 {
        self.digests()[n].position
    }

    /// Waits until all nodes applied the same, and says what they hold then. A file's description is
    /// agreed on some time after the file.
    pub fn wait_until_equal(&self) -> Vec<Digested> {
        let mut digests = Vec::new();
        wait_for_or_give_up(|| {
            digests = self.digests();
            let is_there = digests.iter().all(|d| d.applied > 0 && d.sha256.len() == 64);
            is_there && digests.windows(2).all(|w| w[0].applied == w[1].applied)
        });
        digests
    }

    pub fn read_changes_to_the_end(&self) -> Vec<(u64, String)> {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let head = self.position(0);
        wait_for_or_give_up(|| {
            runtime.block_on(follow(&self.doors, &self.cursor, &self.oracle, 0));
            self.cursor.lock().unwrap().last().map_or(0, |c| c.0) >= head
        });
        self.cursor.lock().unwrap().clone()
    }
}

/// Checks say what did not come to pass; waiting for it ends some time.
fn wait_for_or_give_up(holds: impl FnMut() -> bool) {
    let _ = holds_in_time(holds);
}

fn holds_in_time(mut holds: impl FnMut() -> bool) -> bool {
    let end = std::time::Instant::now() + Duration::from_secs(40);
    while std::time::Instant::now() < end {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// What a receipt of some node says of a bundle, if there is one.
async fn send(
    doors: &Doors,
    n: usize,
    spoke: &Arc<Spoke>,
    load: &Load,
) -> Option<Vec<OutcomeLine>> {
    let (fronts, runtime) = {
        let doors = doors.lock().unwrap();
        let there: Vec<_> = doors.values().cloned().collect();
        (!there.is_empty()).then(|| there[n % there.len()].clone())?
    };
    let (spoke, load) = (Arc::clone(spoke), load.clone());
    // On the node's own runtime: it dies with the node.
    let sending = runtime.spawn(async move { spoke.send(&fronts.public, &load).await });
    tokio::time::timeout(ANSWER_WAIT, sending).await.ok()?.ok()?
}

fn note(
    jobs: &Mutex<Vec<Job>>,
    n: usize,
    oracle: &Oracle,
    spoke: &str,
    lines: Option<Vec<OutcomeLine>>,
) {
    let Some(lines) = lines else { return };
    oracle.hear(spoke, &lines);
    let mut jobs = jobs.lock().unwrap();
    jobs[n].left.retain(|path| !lines.iter().any(|l| l.path.to_string() == *path));
}

/// Reads on behind the cursor, at some node.
async fn follow(doors: &Doors, cursor: &Mutex<Vec<(u64, String)>>, oracle: &Oracle, random: usize) {
    let door = {
        let doors = doors.lock().unwrap();
        let there: Vec<_> = doors.values().cloned().collect();
        (!there.is_empty()).then(|| there[random % there.len()].clone())
    };
    let Some((fronts, runtime)) = door else { return };
    let after = cursor.lock().unwrap().last().map_or(0, |c| c.0);
    let path = format!("/api/v1/changes?after={after}&limit=500");
    let reading = runtime.spawn(async move { fronts.operator.call("GET", &path, &[], "").await });
    let Ok(Ok(Some(said))) = tokio::time::timeout(ANSWER_WAIT, reading).await else { return };
    // A node that was cut off has less than was seen elsewhere, and says so.
    if said.status != 200 {
        return;
    }
    let list: Value = serde_json::from_slice(&said.body).unwrap();
    let mut seen = cursor.lock().unwrap();
    for change in list["changes"].as_array().unwrap() {
        let position = change["position"].as_u64().unwrap();
        let last = seen.last().map_or(0, |c| c.0);
        if position != last + 1 {
            oracle.break_promise(format!("a cursor went from position {last} to {position}"));
        }
        seen.push((position, change["path"].as_str().unwrap().to_owned()));
    }
}

/// Makes bundles and sends each a few times at most; what is left is sent when all is well.
struct Writer {
    random: SmallRng,
    spoke: Arc<Spoke>,
    doors: Doors,
    oracle: Arc<Oracle>,
    jobs: Arc<Mutex<Vec<Job>>>,
    is_over: Arc<AtomicBool>,
}

impl Writer {
    async fn run(mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let count = self.random.random_range(1..30);
            let mut files = BTreeMap::new();
            for _ in 0..count {
                let n = self.random.random_range(0..PATHS);
                // One in ten is another content of the same path.
                let content = if self.random.random_range(0..10) == 0 { n + PATHS } else { n };
                files.insert(
                    format!("d/m/2024/03/{:02}/00/f{n}.parquet", n % 28 + 1),
                    file(content),
                );
            }
            let files: Vec<(String, Vec<u8>)> = files.into_iter().collect();
            let load = self.spoke.load(&files);
            let left = load.entries.iter().map(|e| e.path.to_string()).collect();
            let n = {
                let mut jobs = self.jobs.lock().unwrap();
                jobs.push(Job { load: load.clone(), left });
                jobs.len() - 1
            };
            for _ in 0..3 {
                let to = self.random.random_range(0..1_000);
                let lines = send(&self.doors, to, &self.spoke, &load).await;
                note(&self.jobs, n, &self.oracle, &self.spoke.name(), lines);
                if self.jobs.lock().unwrap()[n].left.is_empty() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}
