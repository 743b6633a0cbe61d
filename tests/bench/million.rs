//! How a manifest of many files behaves: what a compaction costs, how fast a node starts, and how a new
//! node gets its snapshot.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::manifest::{self, Node};
use crate::page::{Page, tell};
use crate::plot::{Line, Plot, Scale};
use crate::process::{DEADLINE, Hub, peak_mib, wait_for, write_out};
use crate::stats::Sorted;

pub const SIZES: [u64; 5] = [10_000, 30_000, 100_000, 300_000, 1_000_000];
/// Checkpoints at each size, and files that are registered before each.
const CHECKPOINTS: u64 = 7;
const BETWEEN: u64 = 5_000;

/// What was seen at one size.
struct Seen {
    files: u64,
    checkpoint: Sorted,
    manifest_mib: f64,
    start: Duration,
    joined: Duration,
    leader_mib: f64,
}

/// Grows a manifest to each size in turn, in this process; at each, measures it in real processes.
pub fn run(page: &mut Page, sizes: &[u64]) {
    tell!(
        page,
        "\na manifest of many files; {BETWEEN} files are registered before each checkpoint"
    );
    let root = crate::process::folder();
    let data = root.path().join("data");
    manifest::create(&data);
    let node = manifest::start(&data);
    let bundle = manifest::prepare(&node);
    let mut node = Some(node);
    let (mut files, mut seen) = (0, Vec::new());
    for size in sizes {
        let running = node.take().unwrap();
        manifest::register_all(&running, &bundle, files..*size);
        files = *size;
        let mut checkpoints = Vec::new();
        for _ in 0..CHECKPOINTS {
            manifest::register_all(&running, &bundle, files..files + BETWEEN);
            files += BETWEEN;
            checkpoints.push(checkpoint(&running).as_secs_f64());
        }
        running.stop();
        // The last connection to each database takes its log along.
        wait_for("the databases are closed", || {
            ["raft.db-wal", "manifest.db-wal", "node.db-wal"]
                .iter()
                .all(|name| !data.join(name).exists())
        });
        let (start, joined, leader_mib) = in_processes(root.path(), &data, *size);
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let manifest_mib =
            std::fs::metadata(data.join("manifest.db")).unwrap().len() as f64 / 1_048_576.0;
        let checkpoint = Sorted::of(checkpoints);
        seen.push(Seen { files: *size, checkpoint, manifest_mib, start, joined, leader_mib });
        node = Some(manifest::start(&data));
    }
    print(page, &seen);
}

/// How long it takes to make what is applied durable, so that the log may be cut.
fn checkpoint(node: &Node) -> Duration {
    let raft = &node.parts.node;
    let target = raft.status().last_applied;
    let begun = Instant::now();
    node.block_on(raft.checkpoint()).unwrap();
    while raft.status().checkpoint < target {
        assert!(begun.elapsed() < DEADLINE, "no checkpoint reaches what is applied");
        std::thread::sleep(Duration::from_micros(200));
    }
    begun.elapsed()
}

/// A copy of the data served by a real process: until it is ready, until a new node has all, and the
/// peak memory of the one that leads.
fn in_processes(root: &Path, data: &Path, size: u64) -> (Duration, Duration, f64) {
    let root = root.join(format!("processes-{size}"));
    std::fs::create_dir(&root).unwrap();
    let copy = root.join("node-1");
    assert!(Command::new("cp").arg("-r").arg(data).arg(&copy).status().unwrap().success());
    write_out();
    let begun = Instant::now();
    let mut hub = Hub::over(&root, copy.display().to_string());
    let start = begun.elapsed();
    let begun = Instant::now();
    hub.add_node();
    hub.wait_until_equal();
    hub.wait_until_whole();
    let joined = begun.elapsed();
    let peak = peak_mib(hub.nodes[0].process.as_ref().unwrap().pid()).unwrap();
    (start, joined, peak)
}

fn print(page: &mut Page, seen: &[Seen]) {
    tell!(
        page,
        "\n| files | manifest MiB | checkpoint ms, median | max | start s | new node s | leader's peak MiB |"
    );
    tell!(page, "|---|---|---|---|---|---|---|");
    for s in seen {
        tell!(
            page,
            "| {} | {:.0} | {:.1} | {:.1} | {:.2} | {:.1} | {:.0} |",
            s.files,
            s.manifest_mib,
            s.checkpoint.median() * 1e3,
            s.checkpoint.max() * 1e3,
            s.start.as_secs_f64(),
            s.joined.as_secs_f64(),
            s.leader_mib
        );
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let at = |s: &Seen| s.files as f64;
    let plot = Plot {
        title: "Cost of a compaction against the files in the manifest",
        x: "files",
        y: "ms for a checkpoint after 5,000 files more",
        scales: (Scale::Decades, Scale::Linear),
        lines: vec![Line {
            name: "median of 7".to_owned(),
            points: seen.iter().map(|s| (at(s), s.checkpoint.median() * 1e3)).collect(),
        }],
    };
    page.plot("compaction.svg", &plot);
}
