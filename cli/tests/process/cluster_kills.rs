//! Nodes killed with -9 and stood still with -STOP at random, as real processes, while spokes push.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::kills::random;
use crate::nodes::Hub;
use crate::site::{Spoke, pass_of, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(nodes_killed_and_stopped_at_random_lose_and_double_nothing)]
}

const FILES: u64 = 600;
const LASTS: Duration = Duration::from_secs(25);

/// What one node is made to go through.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    GoOn,
}

fn faults(seed: u64) -> Vec<(Duration, usize, Fault)> {
    let mut state = seed;
    let mut random = |below| random(&mut state, below);
    let mut left = LASTS;
    let mut faults = Vec::new();
    loop {
        let after = Duration::from_millis(300 + random(2_000));
        let Some(rest) = left.checked_sub(after) else { return faults };
        left = rest;
        let fault = match random(5) {
            0 | 1 => Fault::Kill,
            2 => Fault::Stop,
            _ => Fault::GoOn,
        };
        faults.push((after, usize::try_from(random(3)).unwrap(), fault));
    }
}

/// Lets everything that was stopped or killed go on.
fn mend(hub: &mut Hub, stopped: &mut BTreeSet<usize>, killed: &mut BTreeSet<usize>) {
    std::mem::take(stopped).into_iter().for_each(|n| hub.signal(n, "-CONT"));
    for n in std::mem::take(killed) {
        let command = hub.command(n);
        hub.start_without_waiting(n, command);
    }
}

fn nodes_killed_and_stopped_at_random_lose_and_double_nothing() {
    let seed = rand::random();
    let faults = faults(seed);
    tell(seed, &faults);
    let mut hub = Hub::new(3);
    let spokes = [hub.nodes[0].site.spoke("s"), hub.nodes[1].site.spoke("t")];
    for spoke in &spokes {
        for n in 0..FILES {
            let path = format!("d/m/2024/03/{:02}/00/{}-{n}.parquet", n % 28 + 1, spoke.name);
            spoke.put(&path, &tiny(n));
        }
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for spoke in &spokes {
            s.spawn(|| {
                let mut n = FILES;
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let output = spoke.push_command().output().unwrap();
                    let pass = pass_of(output);
                    pass.assert_closes();
                    assert!([0, 75].contains(&pass.code), "{pass:?}");
                    n += 1;
                    spoke.put(&format!("d/m/2024/04/01/00/{}-{n}.parquet", spoke.name), &tiny(n));
                }
            });
        }
        let (mut stopped, mut killed) = (BTreeSet::new(), BTreeSet::new());
        for (after, n, fault) in &faults {
            std::thread::sleep(*after);
            let is_well = !stopped.contains(n) && !killed.contains(n);
            // Two of three go on.
            let others_are_well = stopped.len() + killed.len() == 0;
            match fault {
                Fault::Kill if is_well && others_are_well => {
                    hub.kill(*n);
                    killed.insert(*n);
                }
                Fault::Stop if is_well && others_are_well => {
                    hub.signal(*n, "-STOP");
                    stopped.insert(*n);
                }
                _ => mend(&mut hub, &mut stopped, &mut killed),
            }
        }
        mend(&mut hub, &mut stopped, &mut killed);
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    hub.wait_until_whole(3);
    check(&hub, &spokes);
}

/// So that a failure can be played again.
#[expect(clippy::print_stdout, reason = "libtest-mimic shows no output of its own")]
fn tell(seed: u64, faults: &[(Duration, usize, Fault)]) {
    println!("seed {seed}: {faults:?}");
}

fn check(hub: &Hub, spokes: &[Spoke]) {
    for spoke in spokes {
        wait_for("everything is pushed", || {
            let pass = spoke.push();
            pass.code == 0 && pass.count("left") == 0
        });
        let files = tree(&spoke.source()).len() as u64;
        assert_eq!(spoke.status()["synced"], files);
    }
    let begun = Instant::now();
    hub.assert_equal();
    assert!(begun.elapsed() < Duration::from_secs(60));
    let manifest = hub.nodes[0].site.manifest();
    for spoke in spokes {
        for (path, (digest, _)) in tree(&spoke.source()) {
            let row = &manifest[&format!("{}/{path}", spoke.name)];
            assert_eq!((&row.0, row.2.as_str()), (&digest.to_string(), "held"));
        }
    }
    let mut there = BTreeSet::new();
    for node in &hub.nodes {
        for (path, (digest, _)) in tree(&node.site.landing()) {
            assert_eq!(manifest[&path].0, digest.to_string());
            there.insert(path);
        }
    }
    assert_eq!(there.len(), manifest.len(), "each file lies on some node");
}
