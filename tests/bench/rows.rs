//! Pushes to a hub whose manifest has many rows, beside the same to a hub that is empty.

use std::path::Path;

use crate::first::push_at;
use crate::manifest;
use crate::page::{Page, tell};
use crate::plot::{Line, Plot, Scale};
use crate::process::{Hub, peak_mib};
use crate::race::{Contender, race, say, table};
use crate::tree::Tree;

pub const SIZES: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
const FILES: u64 = 10_000;

/// What was seen at one size.
struct Seen {
    rows: u64,
    seconds: f64,
    /// Of the empty hub, in the same turns.
    empty: f64,
    hub_mib: f64,
}

/// Grows a manifest (of registered files, and those that were pushed at smaller sizes) to each size in turn, in this process; at each, spokes push to a real process
/// that serves it.
pub fn run(page: &mut Page, sizes: &[u64], rounds: usize) {
    tell!(page, "\npushes of {FILES} files of 4 KiB to a hub with many manifest rows\n");
    let root = crate::process::folder();
    let root = std::fs::canonicalize(root.path()).unwrap();
    let tree = Tree::make(&root.join("tree"), FILES, 4096);
    let data = root.join("data");
    manifest::create(&data);
    let node = manifest::start(&data);
    let bundle = manifest::prepare(&node);
    let mut node = Some(node);
    let (mut rows, mut registered, mut seen) = (0, 0, Vec::new());
    for size in sizes {
        let running = node.take().unwrap_or_else(|| manifest::start(&data));
        manifest::register_all(&running, &bundle, registered..registered + size - rows);
        registered += size - rows;
        running.stop();
        rows = *size;
        say(&format!("{rows} rows are there"));
        seen.push(at_size(page, (&root, &data), rows, &tree, rounds));
        rows += FILES * rounds as u64;
    }
    print(page, &seen);
}

fn at_size(
    page: &mut Page,
    (root, data): (&Path, &Path),
    rows: u64,
    tree: &Tree,
    rounds: usize,
) -> Seen {
    let root = root.join(format!("spokes-{rows}"));
    std::fs::create_dir(&root).unwrap();
    let full = Hub::over(&root, data.display().to_string());
    let empty = &Hub::new(&root, 1);
    let standings = race(vec![
        Contender::new("many rows", rounds, |n| {
            push_at(&full, tree, &format!("s{rows}-{n}"), None).0
        }),
        Contender::new("empty", rounds, |n| push_at(empty, tree, &format!("e{rows}-{n}"), None).0),
    ]);
    tell!(page, "{rows} rows:\n\n{}", table(&standings, tree.files, tree.bytes()));
    Seen {
        rows,
        seconds: standings[0].seconds.median(),
        empty: standings[1].seconds.median(),
        hub_mib: peak_mib(full.nodes[0].process.as_ref().unwrap().pid()).unwrap(),
    }
}

fn print(page: &mut Page, seen: &[Seen]) {
    tell!(
        page,
        "| rows | push s | to the empty hub s | rate over that of the empty hub | hub MiB |"
    );
    tell!(page, "|---|---|---|---|---|");
    for s in seen {
        let share = s.empty / s.seconds;
        tell!(
            page,
            "| {} | {:.2} | {:.2} | {share:.2} | {:.0} |",
            s.rows,
            s.seconds,
            s.empty,
            s.hub_mib
        );
    }
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let at = |s: &Seen| s.rows as f64;
    let plot = Plot {
        title: "A push of 10,000 files against the rows in the hub's manifest",
        x: "rows",
        y: "time over that to an empty hub",
        scales: (Scale::Decades, Scale::Linear),
        lines: vec![Line {
            name: "median".to_owned(),
            points: seen.iter().map(|s| (at(s), s.seconds / s.empty)).collect(),
        }],
    };
    page.plot("rows.svg", &plot);
}
