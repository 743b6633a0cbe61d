//! Benchmarks, as tables for docs/BENCHMARKS.md.
//!
//! `cargo build --release -p barque`, then `cargo run --release -p barque-tests --example bench -- WORK...`
//! in a folder with room for what is written; without a WORK it lists them. `--quick` does less of
//! each. Every figure is from real processes of the release binary, or says otherwise.

#![expect(clippy::unwrap_used, reason = "a benchmark ends by panicking")]
#![expect(clippy::print_stdout, reason = "its result is for people")]

mod cluster;
mod manifest;
mod million;
mod plot;
mod process;
mod stats;

/// A work: its name, what it measures, and how; told whether it shall be quick.
type Work = (&'static str, &'static str, fn(bool));

const WORKS: [Work; 5] = [
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
