//! Three nodes beside one: files acknowledged a second, the leader killed again and again, and an
//! import beside pushes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use barque_bundle::Sha256Digest;

use crate::page::{Page, tell};
use crate::process::{Hub, Spoke, barque, held, json, wait_for, write_out};
use crate::stats::Sorted;
use crate::tree::{parquet, relative};

const SMALL: usize = 4096;
const SPOKES: usize = 3;
/// Files of one pass beside kills and imports.
const A_PASS: u64 = 20;

/// Files of 4 KiB acknowledged a second by one node and by three, in turns: a spoke at each node, or
/// all at the one.
pub fn acks(page: &mut Page, files: u64, rounds: u64) {
    tell!(
        page,
        "\n{SPOKES} spokes at once, {files} files of 4 KiB in all; files acknowledged a second"
    );
    tell!(page, "\n| nodes | median | min | max |\n|---|---|---|---|");
    let root = crate::process::folder();
    let mut rates: [Vec<f64>; 2] = Default::default();
    for round in 0..rounds {
        for (at, nodes) in [1, 3].into_iter().enumerate() {
            let root = root.path().join(format!("{round}-{nodes}"));
            std::fs::create_dir(&root).unwrap();
            let hub = Hub::new(&root, nodes);
            let share = files / SPOKES as u64;
            let spokes: Vec<Spoke> = (0..SPOKES)
                .map(|n| {
                    let spoke = hub.spoke(&format!("s{n}"));
                    spoke.call(&[&hub.nodes[n % nodes].listen]);
                    spoke.fill(0..share, SMALL);
                    spoke
                })
                .collect();
            // What was written before is not written out meanwhile.
            write_out();
            let begun = Instant::now();
            let pushes: Vec<_> = spokes
                .iter()
                .map(|s| s.push().stdout(std::process::Stdio::null()).spawn().unwrap())
                .collect();
            for mut push in pushes {
                assert!(push.wait().unwrap().success());
            }
            let took = begun.elapsed().as_secs_f64();
            hub.wait_until_equal();
            assert_eq!(held(&hub.nodes[nodes - 1].data).len() as u64, share * SPOKES as u64);
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            rates[at].push((share * SPOKES as u64) as f64 / took);
        }
    }
    let [one, three] = rates.map(Sorted::of);
    for (nodes, r) in [(1, &one), (3, &three)] {
        tell!(page, "| {nodes} | {:.0} | {:.0} | {:.0} |", r.median(), r.min(), r.max());
    }
    tell!(page, "\nthree over one: {:.2}", three.median() / one.median());
}

/// One pass: when it began and ended, and the files that the hub answered for.
struct Pass {
    begun: Instant,
    ended: Instant,
    acked: u64,
}

/// Tells loaders to stop when it is dropped, also by what panics.
struct Stop<'a>(&'a [Loader<'a>]);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|l| l.is_over.store(true, Ordering::Relaxed));
    }
}

/// A spoke that makes files and pushes them, again and again, until it is told to stop.
struct Loader<'a> {
    spoke: &'a Spoke,
    made: AtomicU64,
    passes: Mutex<Vec<Pass>>,
    is_over: AtomicBool,
}

impl<'a> Loader<'a> {
    fn new(spoke: &'a Spoke) -> Self {
        Self { spoke, made: AtomicU64::new(0), passes: Mutex::default(), is_over: false.into() }
    }

    fn run(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let from = self.made.fetch_add(A_PASS, Ordering::Relaxed);
            self.spoke.fill(from..from + A_PASS, SMALL);
            // Settled is what did not change for 50 ms.
            std::thread::sleep(Duration::from_millis(60));
            self.pass();
        }
    }

    fn pass(&self) {
        let begun = Instant::now();
        let report = self.spoke.pass();
        let ended = Instant::now();
        let of = |key: &str| report.as_ref().and_then(|r| r[key].as_u64()).unwrap_or(0);
        let acked = if of("receipts") > 0 { of("sent") } else { 0 };
        self.passes.lock().unwrap().push(Pass { begun, ended, acked });
    }

    /// How long after a moment the first pass that began later was answered for.
    fn acked_after(&self, moment: Instant) -> Option<Duration> {
        let passes = self.passes.lock().unwrap();
        let first = passes.iter().find(|p| p.begun > moment && p.acked > 0)?;
        Some(first.ended - moment)
    }

    /// Seconds of passes that began within a span, and files acknowledged a second in it.
    fn within(&self, from: Instant, to: Instant) -> (Sorted, f64) {
        let passes = self.passes.lock().unwrap();
        let inside = || passes.iter().filter(|p| p.begun >= from && p.ended <= to);
        let acked: u64 = inside().map(|p| p.acked).sum();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let rate = acked as f64 / (to - from).as_secs_f64();
        (Sorted::of(inside().map(|p| (p.ended - p.begun).as_secs_f64())), rate)
    }
}

/// Kills the leader again and again while spokes push: how long until the next acknowledgement, and
/// whether everything is there at the end.
pub fn kills(page: &mut Page, times: u64) {
    tell!(page, "\nthe leader of three nodes killed (-9) {times} times under load");
    let root = crate::process::folder();
    let mut hub = Hub::new(root.path(), 3);
    let spokes: Vec<Spoke> = (0..2).map(|n| hub.spoke(&format!("s{n}"))).collect();
    let loaders: Vec<Loader> = spokes.iter().map(Loader::new).collect();
    let mut waits = Vec::new();
    std::thread::scope(|scope| {
        for loader in &loaders {
            scope.spawn(|| loader.run());
        }
        let _stop = Stop(&loaders);
        for _ in 0..times {
            std::thread::sleep(Duration::from_secs(1));
            let leader = hub.leader();
            hub.nodes[leader].process = None;
            let killed = Instant::now();
            let next = || loaders.iter().filter_map(|l| l.acked_after(killed)).min();
            wait_for("something is acknowledged", || next().is_some());
            waits.push(next().unwrap().as_secs_f64());
            hub.start(leader);
            hub.wait_until_whole();
        }
    });
    let acked = require_acked(&hub, &loaders);
    let files = complete(&hub, &loaders);
    let in_time = waits.iter().filter(|s| **s <= 4.0).count();
    let waits = Sorted::of(waits);
    tell!(
        page,
        "\n| kills | next acknowledgement s, median | p90 | max | within 4 s | acknowledged, all \
         there | files, all there in the end |"
    );
    tell!(page, "|---|---|---|---|---|---|---|");
    tell!(
        page,
        "| {} | {:.2} | {:.2} | {:.2} | {in_time} | {acked} | {files} |",
        waits.count(),
        waits.median(),
        waits.percentile(90),
        waits.max()
    );
}

/// Holds every file that a spoke has a receipt for against what is known, before anything is pushed
/// again.
fn require_acked(hub: &Hub, loaders: &[Loader]) -> usize {
    hub.wait_until_equal();
    let known = held(&hub.nodes[0].data);
    let mut acked = 0;
    for loader in loaders {
        let state = loader.spoke.state();
        let list = json(&["ledger", "ls", "--state", &state, "--state-is", "synced", "--json"]);
        for file in list["files"].as_array().unwrap() {
            let path = format!("{}/{}", loader.spoke.name, file["path"].as_str().unwrap());
            assert!(known.contains_key(&path), "{path} was acknowledged and is not known");
            acked += 1;
        }
    }
    acked
}

/// Pushes what is left, then holds every file against what is known and what landed.
fn complete(hub: &Hub, loaders: &[Loader]) -> usize {
    for loader in loaders {
        wait_for("the rest is pushed", || {
            loader.spoke.pass().is_some_and(|r| r["left"] == 0 && r["not_settled"] == 0)
        });
    }
    hub.wait_until_equal();
    let known = held(&hub.nodes[0].data);
    let mut files = 0;
    for loader in loaders {
        for n in 0..loader.made.load(Ordering::Relaxed) {
            let path = format!("{}/{}", loader.spoke.name, relative(n));
            let sha256 = Sha256Digest::of(&parquet(n, SMALL));
            assert_eq!(known[&path].to_lowercase(), sha256.to_string(), "{path} differs");
            let landed = hub.nodes.iter().any(|node| {
                let path = format!("{}/landing/{path}", node.data);
                std::fs::read(path).is_ok_and(|bytes| Sha256Digest::of(&bytes) == sha256)
            });
            assert!(landed, "{path} is at no node");
            files += 1;
        }
    }
    files
}

/// Pushes to the leader alone, and while a follower imports a drive of many small files.
pub fn fairness(page: &mut Page, files: u64) {
    tell!(
        page,
        "\npushes of {A_PASS} files to the leader beside an import of {files} files of 4 KiB"
    );
    let root = crate::process::folder();
    let hub = Hub::new(root.path(), 3);
    let island = hub.spoke("island");
    island.fill(0..files, SMALL);
    let drive = root.path().join("drive").display().to_string();
    std::fs::create_dir(&drive).unwrap();
    let limit = files.to_string();
    let state = island.state();
    let export = ["bundle", "export", &drive, "--state", &state, "--limit", &limit, "--no-verify"];
    let exported = json(&[&export[..], &["--json"]].concat());
    let bundle = exported["path"].as_str().unwrap();
    let leader = hub.leader();
    let (leading, node) = (&hub.nodes[leader], &hub.nodes[(leader + 1) % 3]);
    let spoke = hub.spoke("s");
    spoke.call(&[&leading.listen]);
    let loaders = [Loader::new(&spoke)];
    let [loader] = &loaders;
    let (alone, beside, took) = std::thread::scope(|scope| {
        let _stop = Stop(&loaders);
        scope.spawn(|| loader.run());
        wait_for("pushes are under way", || loader.passes.lock().unwrap().len() >= 10);
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs(30));
        let import = Instant::now();
        let alone = loader.within(begun, import);
        let done = barque(&["hub", "import", bundle, "--data", &node.data]).output().unwrap();
        let ended = Instant::now();
        assert!(done.status.success(), "{done:?}");
        let beside = loader.within(import, ended);
        (alone, beside, ended - import)
    });
    tell!(page, "\n| | files a second | pass s, median | p99 | passes |\n|---|---|---|---|---|");
    for (what, (passes, rate)) in [("alone", &alone), ("beside the import", &beside)] {
        tell!(
            page,
            "| {what} | {rate:.0} | {:.3} | {:.3} | {} |",
            passes.median(),
            passes.percentile(99),
            passes.count()
        );
    }
    tell!(
        page,
        "\nrate kept: {:.2}; p99 grew {:.2} times; the import took {:.1} s",
        beside.1 / alone.1,
        beside.0.percentile(99) / alone.0.percentile(99),
        took.as_secs_f64()
    );
}
