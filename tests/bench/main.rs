//! Benchmarks, as tables for docs/BENCHMARKS.md.
//!
//! `cargo build --release -p barque`, then `cargo run --release -p barque-tests --example bench -- WORK...`
//! in a folder with room for what is written; without a WORK it lists them. `--quick` does less of
//! each, `--write=docs/BENCHMARKS.md` puts what is found between the marks of each work there. Every figure is from real processes of the release binary, or says otherwise.

#![expect(clippy::unwrap_used, reason = "a benchmark ends by panicking")]
#![expect(clippy::print_stdout, reason = "its result is for people")]

mod cluster;
mod far;
mod first;
mod fleet;
mod growth;
mod idle;
mod limit;
mod link;
mod manifest;
mod million;
mod offers;
mod page;
mod peer;
mod plot;
mod process;
mod race;
mod rows;
mod start;
mod stats;
mod syncthing;
mod tree;

use std::path::PathBuf;

use page::Page;

/// A work: its name, what it measures, and how; told whether it shall be quick.
type Work = (&'static str, &'static str, fn(&mut Page, bool));

const WORKS: [Work; 20] = [
    ("first", "10,000 files of 64 KiB, first push, beside peers", |page, quick| {
        let (files, rounds) = if quick { (2_000, 1) } else { (10_000, 3) };
        let size = 64 << 10;
        first::run(page, &first::Work { files, size, rounds, slow_rounds: 1, paced: !quick });
    }),
    ("small", "100,000 files of 4 KiB, first push, beside peers", |page, quick| {
        let (files, rounds) = if quick { (10_000, 1) } else { (100_000, 3) };
        let size = 4 << 10;
        first::run(page, &first::Work { files, size, rounds, slow_rounds: 1, paced: false });
    }),
    ("large", "4 files of 1 GiB, first push, beside peers", |page, quick| {
        let (files, size, rounds) = if quick { (1, 256 << 20, 1) } else { (4, 1 << 30, 3) };
        first::run(page, &first::Work { files, size, rounds, slow_rounds: 1, paced: false });
    }),
    ("narrow", "10,000 files of 16 KiB over 100 ms and 50 Mbit/s", |page, quick| {
        far::narrow(page, if quick { 1_000 } else { 10_000 }, if quick { 1 } else { 3 });
    }),
    ("long", "5,000 files of 4 KiB over 600 ms", |page, quick| {
        far::long(page, if quick { 1_000 } else { 5_000 }, if quick { 1 } else { 3 });
    }),
    ("cuts", "files over a line that is cut every 5 s", |page, quick| {
        far::cuts(page, if quick { 300 } else { 2_000 });
    }),
    ("idle", "nothing to do, 1,000,000 known files", |page, quick| {
        idle::run(page, if quick { 10_000 } else { 1_000_000 }, 3);
    }),
    ("fleet", "200 spokes at once, 1,000 files each", |page, quick| {
        fleet::run(page, if quick { 20 } else { 200 });
    }),
    ("start", "the first byte of a push, and the size of the program", |page, quick| {
        start::run(page, if quick { 5 } else { 25 });
    }),
    ("offers", "1,000,000 known entries offered, the hub's side", |page, quick| {
        offers::run(page, if quick { 50_000 } else { 1_000_000 }, if quick { 1 } else { 3 });
    }),
    ("growth-files", "how cost grows with the number of files", growth::by_files),
    ("growth-size", "how cost grows with the size of files", growth::by_size),
    ("growth-round-trip", "how cost grows with the round trip", growth::by_round_trip),
    ("growth-spokes", "how cost grows with the spokes at once", growth::by_spokes),
    ("rows", "pushes to a hub with many manifest rows, beside an empty one", |page, quick| {
        rows::run(page, if quick { &[10_000] } else { &rows::SIZES }, if quick { 1 } else { 3 });
    }),
    ("manifest", "manifest operations alone, one node and three", |page, quick| {
        manifest::rates(page, if quick { 50_000 } else { 200_000 }, if quick { 1 } else { 3 });
    }),
    ("acks", "files acknowledged a second, one node and three", |page, quick| {
        cluster::acks(page, if quick { 3_000 } else { 15_000 }, if quick { 1 } else { 3 });
    }),
    ("kills", "the leader killed under load", |page, quick| {
        cluster::kills(page, if quick { 5 } else { 50 });
    }),
    ("fairness", "pushes beside an import of many files", |page, quick| {
        cluster::fairness(page, if quick { 10_000 } else { 100_000 });
    }),
    ("million", "1,000,000 files: start, a new node, compaction", |page, quick| {
        million::run(page, if quick { &[10_000, 30_000] } else { &million::SIZES });
    }),
];

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = asked.iter().any(|a| a == "--quick");
    let document = asked.iter().find_map(|a| a.strip_prefix("--write=")).map(PathBuf::from);
    let document = document.map(|d| std::fs::canonicalize(d).unwrap());
    let commit = page::commit();
    let named = |name: &str| asked.iter().any(|a| a == name);
    let works: Vec<&Work> = WORKS.iter().filter(|(name, ..)| named(name)).collect();
    if works.is_empty() {
        for (name, what, _) in WORKS {
            println!("{name:18} {what}");
        }
    }
    for (name, _, run) in works {
        let mut page = Page::new(name, document.as_deref());
        run(&mut page, is_quick);
        if let Some(document) = &document {
            page.write_into(document, is_quick, &commit);
        }
    }
}
