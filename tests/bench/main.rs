//! Benchmarks, as tables for docs/BENCHMARKS.md.
//!
//! `cargo build --release -p barque`, then `cargo run --release -p barque-tests --example bench -- WORK...`
//! in a folder with room for what is written; without a WORK it lists them. `--quick` does less of
//! each. Every figure is from real processes of the release binary, or says otherwise.

#![expect(clippy::unwrap_used, reason = "a benchmark ends by panicking")]
#![expect(clippy::print_stdout, reason = "its result is for people")]

mod cluster;
mod far;
mod first;
mod fleet;
mod idle;
mod limit;
mod link;
mod manifest;
mod million;
mod peer;
mod plot;
mod process;
mod race;
mod start;
mod stats;
mod tree;

/// A work: its name, what it measures, and how; told whether it shall be quick.
type Work = (&'static str, &'static str, fn(bool));

const WORKS: [Work; 14] = [
    ("first", "10,000 files of 64 KiB, first push, beside peers", |quick| {
        let (files, rounds) = if quick { (2_000, 1) } else { (10_000, 3) };
        first::run(&first::Work { files, size: 64 << 10, rounds, slow_rounds: 1 });
    }),
    ("small", "100,000 files of 4 KiB, first push, beside peers", |quick| {
        let (files, rounds) = if quick { (10_000, 1) } else { (100_000, 3) };
        first::run(&first::Work { files, size: 4 << 10, rounds, slow_rounds: 1 });
    }),
    ("large", "4 files of 1 GiB, first push, beside peers", |quick| {
        let (files, size, rounds) = if quick { (1, 256 << 20, 1) } else { (4, 1 << 30, 3) };
        first::run(&first::Work { files, size, rounds, slow_rounds: 1 });
    }),
    ("narrow", "10,000 files of 16 KiB over 100 ms and 50 Mbit/s", |quick| {
        far::narrow(if quick { 1_000 } else { 10_000 }, if quick { 1 } else { 3 });
    }),
    ("long", "5,000 files of 4 KiB over 600 ms", |quick| {
        far::long(if quick { 1_000 } else { 5_000 }, if quick { 1 } else { 3 });
    }),
    ("cuts", "files over a line that is cut every 5 s", |quick| {
        far::cuts(if quick { 300 } else { 2_000 });
    }),
    ("idle", "nothing to do, 1,000,000 known files", |quick| {
        idle::run(if quick { 10_000 } else { 1_000_000 }, 3);
    }),
    ("fleet", "200 spokes at once, 1,000 files each", |quick| {
        fleet::run(if quick { 20 } else { 200 });
    }),
    ("start", "the first byte of a push, and the size of the program", |quick| {
        start::run(if quick { 5 } else { 25 });
    }),
    ("manifest", "manifest operations alone, one node and three", |quick| {
        manifest::rates(if quick { 50_000 } else { 200_000 }, if quick { 1 } else { 3 });
    }),
    ("acks", "files acknowledged a second, one node and three", |quick| {
        cluster::acks(if quick { 3_000 } else { 15_000 }, if quick { 1 } else { 3 });
    }),
    ("kills", "the leader killed under load", |quick| {
        cluster::kills(if quick { 5 } else { 50 });
    }),
    ("fairness", "pushes beside an import of many files", |quick| {
        cluster::fairness(if quick { 10_000 } else { 100_000 });
    }),
    ("million", "1,000,000 files: start, a new node, compaction", |quick| {
        million::run(if quick { &[10_000, 30_000] } else { &million::SIZES });
    }),
];

fn main() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_quick = asked.iter().any(|a| a == "--quick");
    let named = |name: &str| asked.iter().any(|a| a == name);
    let works: Vec<&Work> = WORKS.iter().filter(|(name, ..)| named(name)).collect();
    if works.is_empty() {
        for (name, what, _) in WORKS {
            println!("{name:10} {what}");
        }
    }
    for (_, _, run) in works {
        run(is_quick);
    }
}
