//! How cost grows: with files, with their size, with the round trip, with spokes. (With manifest
//! rows: `rows`.) Each point is one run, but for spokes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fleet;
use crate::link::{Line as Wire, Link};
use crate::page::{Page, tell};
use crate::peer::{self, Rclone, Rsync};
use crate::plot::{Line, Plot, Scale};
use crate::process::{Hub, Spoke, peak_mib, peak_of};
use crate::race::{Cost, say};
use crate::stats::Sorted;
use crate::tree::Tree;

const SMALL: usize = 4096;
/// Bytes of the trees whose files grow, and files in one at the most.
const BYTES: usize = 1 << 30;
const FILES_MAX: usize = 10_000;
/// More files than this take the peers that sync each one too long.
const SYNCED_MAX: u64 = 100_000;

/// One measure of one contender, over what grows.
#[derive(Default)]
struct Grown {
    names: Vec<String>,
    /// By contender.
    points: Vec<Vec<(f64, f64)>>,
}

impl Grown {
    fn add(&mut self, name: &str, at: f64, value: f64) {
        let index = self.names.iter().position(|n| n == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.points.push(Vec::new());
            self.names.len() - 1
        });
        say(&format!("{name} at {at}: {value:.2}"));
        self.points[index].push((at, value));
    }

    fn show(self, page: &mut Page, file: &str, plot: Plot) {
        let at: Vec<f64> = self.points[0].iter().map(|p| p.0).collect();
        tell!(page, "\n{}, {}:\n", plot.title, plot.y);
        tell!(page, "| {} | {} |", plot.x, self.names.join(" | "));
        tell!(page, "|---{}|", "|---".repeat(self.names.len()));
        for x in at {
            let value = |points: &Vec<(f64, f64)>| {
                points.iter().find(|p| p.0 == x).map_or(String::new(), |p| format!("{:.2}", p.1))
            };
            let values: Vec<String> = self.points.iter().map(value).collect();
            tell!(page, "| {x} | {} |", values.join(" | "));
        }
        let lines = self.names.into_iter().zip(self.points);
        let lines = lines.map(|(name, points)| Line { name, points }).collect();
        page.plot(file, &Plot { lines, ..plot });
    }
}

/// A plot without its lines.
fn empty(
    title: &'static str,
    (x, y): (&'static str, &'static str),
    scales: (Scale, Scale),
) -> Plot {
    Plot { title, x, y, scales, lines: Vec::new() }
}

fn root() -> (tempfile::TempDir, PathBuf) {
    let root = crate::process::folder();
    let path = std::fs::canonicalize(root.path()).unwrap();
    (root, path)
}

/// A push with its peak of memory.
fn push(spoke: &Spoke, log: &Path) -> (Cost, f64) {
    let mut peak = 0.0;
    let cost = Cost::of(|| peak = peak_of(&mut spoke.push(), log));
    (cost, peak)
}

fn pid(hub: &Hub) -> u32 {
    hub.nodes[0].process.as_ref().unwrap().pid()
}

/// First pushes of more and more files.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn by_files(page: &mut Page, is_quick: bool) {
    let all: &[u64] =
        if is_quick { &[300, 1_000, 3_000] } else { &[1_000, 10_000, 100_000, 1_000_000] };
    let (mut seconds, mut memory) = (Grown::default(), Grown::default());
    for files in all {
        let (_kept, root) = root();
        let tree = Tree::make(&root.join("source"), *files, SMALL);
        let at = *files as f64;
        let hub = Hub::new(&root, 1);
        let spoke = hub.spoke_of("s", &tree.root);
        let (cost, peak) = push(&spoke, &root.join("push.log"));
        spoke.require_all_synced();
        seconds.add("Barque", at, cost.seconds);
        memory.add("Barque's spoke", at, peak);
        memory.add("Barque's hub", at, peak_mib(pid(&hub)).unwrap());
        drop(hub);
        if !peer::is_there("rsync") {
            continue;
        }
        let rsync = Rsync::start(&root, None);
        let (cost, peak) = rsync.push_and_peak(&tree, "plain", &[]);
        seconds.add("rsync", at, cost.seconds);
        memory.add("rsync, sender", at, peak);
        if *files <= SYNCED_MAX {
            seconds.add("rsync --fsync", at, rsync.push(&tree, "synced", &["--fsync"]).seconds);
        }
    }
    let plot = |title, y| empty(title, ("files of 4 KiB", y), (Scale::Decades, Scale::Decades));
    seconds.show(page, "growth-files.svg", plot("Time of a first push against files", "s"));
    memory.show(
        page,
        "growth-memory.svg",
        plot("Peak memory of a first push against files", "MiB"),
    );
}

/// First pushes of as many bytes in larger and larger files.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn by_size(page: &mut Page, is_quick: bool) {
    let all: &[usize] = if is_quick {
        &[1 << 10, 1 << 16, 1 << 22]
    } else {
        &[1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26, 1 << 30]
    };
    let bytes = if is_quick { BYTES / 16 } else { BYTES };
    let (mut per_file, mut memory) = (Grown::default(), Grown::default());
    for size in all {
        let (_kept, root) = root();
        let files = (bytes / size).clamp(1, FILES_MAX) as u64;
        let tree = Tree::make(&root.join("source"), files, *size);
        let at = *size as f64 / 1024.0;
        let ms = |cost: Cost| cost.seconds * 1000.0 / files as f64;
        let hub = Hub::new(&root, 1);
        let spoke = hub.spoke_of("s", &tree.root);
        let (cost, peak) = push(&spoke, &root.join("push.log"));
        spoke.require_all_synced();
        per_file.add("Barque", at, ms(cost));
        memory.add("Barque's spoke", at, peak);
        memory.add("Barque's hub", at, peak_mib(pid(&hub)).unwrap());
        drop(hub);
        if !peer::is_there("rsync") {
            continue;
        }
        let rsync = Rsync::start(&root, None);
        per_file.add("rsync", at, ms(rsync.push(&tree, "plain", &[])));
        per_file.add("rsync --fsync", at, ms(rsync.push(&tree, "synced", &["--fsync"])));
    }
    let plot = |title, y, up| empty(title, ("KiB of each file", y), (Scale::Decades, up));
    let title = "Time for a file against its size";
    per_file.show(page, "growth-size.svg", plot(title, "ms", Scale::Decades));
    let title = "Peak memory against the size of files";
    memory.show(page, "growth-size-memory.svg", plot(title, "MiB", Scale::Linear));
}

/// First pushes over longer and longer lines.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn by_round_trip(page: &mut Page, is_quick: bool) {
    const FILES: u64 = 1_000;
    let all: &[u64] = if is_quick { &[0, 100] } else { &[0, 50, 100, 200, 400, 600] };
    let mut seconds = Grown::default();
    for trip in all {
        let (_kept, root) = root();
        let tree = Tree::make(&root.join("source"), FILES, SMALL);
        let round_trip = Duration::from_millis(*trip);
        let wire = Wire { round_trip, bits_per_second: None, cut_every: None };
        let at = *trip as f64;
        let hub = Hub::new(&root, 1);
        let link = Link::to(&hub.nodes[0].listen, wire);
        let (cost, _) = crate::first::push_at(&hub, &tree, "s", Some(&link.address));
        seconds.add("Barque", at, cost.seconds);
        if peer::is_there("rsync") {
            let rsync = Rsync::start(&root, Some(wire));
            seconds.add("rsync", at, rsync.push(&tree, "plain", &[]).seconds);
        }
        if peer::is_there("rclone") {
            let rclone = Rclone::webdav(&root, Some(wire));
            let cost = rclone.push(&tree, "t", 16);
            seconds.add("rclone WebDAV x16", at, cost.seconds);
        }
    }
    let title = "Time of a first push of 1,000 files against the round trip";
    let plot = empty(title, ("round trip ms", "s"), (Scale::Linear, Scale::Decades));
    seconds.show(page, "growth-round-trip.svg", plot);
}

/// First pushes of more and more spokes at once; the median of some rounds.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn by_spokes(page: &mut Page, is_quick: bool) {
    const FILES: u64 = 1_000;
    let (all, rounds): (&[usize], usize) =
        if is_quick { (&[1, 5], 1) } else { (&[1, 10, 50, 100, 200], 3) };
    let (mut seconds, mut memory) = (Grown::default(), Grown::default());
    for spokes in all {
        let mut took = Vec::new();
        let mut peaks = Vec::new();
        for round in 1..=rounds {
            let (_kept, root) = root();
            let tree = Tree::make(&root.join("source"), FILES, SMALL);
            let hub = Hub::new(&root, 1);
            let fleet: Vec<Spoke> =
                (0..*spokes).map(|n| hub.spoke_of(&format!("f{n}"), &tree.root)).collect();
            let (_, seconds) = fleet::times(&fleet, &root);
            say(&format!("round {round}: {spokes} spokes: {seconds:.2} s"));
            took.push(seconds);
            peaks.push(peak_mib(pid(&hub)).unwrap());
        }
        let at = *spokes as f64;
        seconds.add("Barque", at, Sorted::of(took).median());
        memory.add("Barque's hub", at, Sorted::of(peaks).median());
    }
    let x = "spokes at once, 1,000 files of 4 KiB each";
    let plot = |title, y| empty(title, (x, y), (Scale::Linear, Scale::Linear));
    seconds.show(page, "growth-spokes.svg", plot("Time until all have pushed against spokes", "s"));
    memory.show(
        page,
        "growth-spokes-memory.svg",
        plot("The hub's peak memory against spokes", "MiB"),
    );
}
