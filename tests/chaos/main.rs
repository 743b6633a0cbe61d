//! Several nodes in one process over a network that cuts, delays, drops and repeats: whatever goes
//! wrong when, no promise is broken.
//!
//! A run is made from one number, which it prints: `CHAOS_SEED=N` makes the same schedule again,
//! `CHAOS_SEEDS=N` makes so many runs (20 unless told otherwise), `CHAOS_AT_ONCE=N` so many side by side
//! (2), `CHAOS_LOG=info` shows the nodes' logs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stderr, reason = "what a run is made of is for people")]

mod check;
mod net;
mod node;
mod oracle;
mod schedule;
mod spoke;
mod world;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use world::World;

/// Runs at once: most of a run is waiting.
const AT_ONCE: u64 = 2;
const LASTS: Duration = Duration::from_secs(5);

/// A log that is soon cut, so that snapshots are a part of every run.
const SHORT: barque_raft::Limits = barque_raft::Limits {
    checkpoint_entries: 60,
    checkpoint_bytes: 1 << 20,
    kept_entries: 40,
    kept_bytes: 1 << 20,
};

const DAY_MS: i64 = 86_400_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What must hold: a name, and a search for what does not.
type Check = (&'static str, fn(&World) -> Vec<String>);

/// One run: everything that went wrong with it.
fn run(seed: u64) -> Vec<String> {
    let events = schedule::schedule(seed, 3, LASTS);
    eprintln!("seed {seed}: {events:?}");
    // Clocks a day apart decide nothing.
    let mut world = World::new(3, seed, SHORT, &[0, DAY_MS, -DAY_MS]);
    world.live_through(seed, &events);
    let checks: [Check; 6] = [
        ("delivered", check::delivered::check),
        ("promises", check::promises::check),
        ("one digest", check::one_digest::check),
        ("equal", check::equal::check),
        ("changes", check::changes::check),
        ("redelivery", check::redelivery::check),
    ];
    let mut broken = Vec::new();
    for (name, check) in checks {
        broken.extend(check(&world).into_iter().map(|what| format!("{name}: {what}")));
    }
    broken
}

fn prepare() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let Ok(filter) = std::env::var("CHAOS_LOG") {
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let _ = log.try_init();
    }
}

#[test]
fn random_schedules_break_no_promise() {
    prepare();
    let seeds: Vec<u64> = match number("CHAOS_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("CHAOS_SEEDS").unwrap_or(20)).map(|_| rand::random()).collect(),
    };
    let next = AtomicUsize::new(0);
    let broken = Mutex::new(Vec::new());
    let runs = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            // A run that cannot go on is named too.
            let found = std::panic::catch_unwind(|| run(*seed)).unwrap_or_else(|e| {
                let text = e.downcast_ref::<String>().map(String::as_str);
                vec![text.or(e.downcast_ref().copied()).unwrap_or("it panicked").to_owned()]
            });
            if !found.is_empty() {
                eprintln!("seed {seed} is broken: {found:?}");
                let found = found.join("\n");
                broken.lock().unwrap().push(format!("CHAOS_SEED={seed} breaks:\n{found}"));
            }
        }
    };
    let at_once = number("CHAOS_AT_ONCE").unwrap_or(AT_ONCE);
    std::thread::scope(|s| (0..at_once).for_each(|_| drop(s.spawn(runs))));
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

/// How many entries a node's log holds.
fn log_entries(world: &World, n: usize) -> u64 {
    let path = world.nodes[n].data.join("raft.db");
    let c = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let count: i64 = c.query_row("SELECT count(*) FROM log", [], |r| r.get(0)).unwrap();
    u64::try_from(count).unwrap()
}

#[test]
fn a_follower_away_across_three_compactions_comes_back_and_holds_no_log_up() {
    prepare();
    let mut world = World::new(3, 1, SHORT, &[]);
    let away = (world.leader().unwrap() + 1) % 3;
    world.crash(away);
    let by = (away + 1) % 3;
    // Three times over what is kept, in proposals of their own.
    for n in 0..3 * (SHORT.checkpoint_entries + SHORT.kept_entries as u64) {
        world.push_one(by, n);
    }
    let most = SHORT.checkpoint_entries + SHORT.kept_entries as u64 + 64;
    for n in (0..3).filter(|n| *n != away) {
        node::wait_for("the log is cut", || log_entries(&world, n) <= most);
    }
    world.restart_all();
    world.wait_until_whole();
    world.wait_until_equal();
    for check in [check::promises::check, check::equal::check, check::delivered::check] {
        assert_eq!(check(&world), Vec::<String>::new());
    }
    for node in &world.nodes {
        let left: Vec<String> = std::fs::read_dir(&node.data)
            .unwrap()
            .map(|f| f.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("snapshot."))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn a_torn_last_write_of_the_log_is_passed_over() {
    prepare();
    let mut world = World::new(3, 2, SHORT, &[]);
    let torn = (world.leader().unwrap() + 1) % 3;
    (0..20).for_each(|n| world.push_one(torn, n));
    world.wait_until_equal();
    let data = world.nodes[torn].data.clone();
    let both = [data.join("raft.db"), data.join("raft.db-wal")];
    // As they lie on the disk; a process that ends in order would empty the second one.
    let [db, mut wal] = both.clone().map(|path| std::fs::read(path).unwrap());
    world.crash(torn);
    // A frame of a page and 24 bytes, of which half was written when the power went (SQLite's file
    // format, 4.1): what it begins with belongs to this log, what it says of itself is wrong.
    let page = u32::from_be_bytes(wal[8..12].try_into().unwrap()) as usize;
    let frames = (wal.len() - 32) / (24 + page);
    assert!(frames > 0, "entries are in the write-ahead log");
    let last = 32 + (frames - 1) * (24 + page);
    wal.truncate(last + 24 + page);
    wal.extend_from_within(last..last + 24 + page / 2);
    for (path, bytes) in both.iter().zip([db, wal]) {
        std::fs::write(path, bytes).unwrap();
    }
    let _ = std::fs::remove_file(data.join("raft.db-shm"));
    world.restart_all();
    world.wait_until_whole();
    world.push_one(torn, 21);
    world.wait_until_equal();
    assert_eq!(check::promises::check(&world), Vec::<String>::new());
    assert_eq!(check::equal::check(&world), Vec::<String>::new());
}
