//! Many spokes at once, beside one.

use std::time::Instant;

use crate::page::{Page, tell};
use crate::process::{Hub, Running, Spoke, peak_mib, wait_until_quiet, write_out};
use crate::race::say;
use crate::stats::Sorted;
use crate::tree::Tree;

const SIZE: usize = 4096;

/// So many spokes push 1,000 files each, and one pushes as many as ten of them.
pub fn run(page: &mut Page, spokes: usize) {
    tell!(page, "\n{spokes} spokes at once, 1,000 files of 4 KiB each\n");
    let root = crate::process::folder();
    let root = std::fs::canonicalize(root.path()).unwrap();
    let many = Tree::make(&root.join("many"), 10_000, SIZE);
    let few = Tree::make(&root.join("few"), 1_000, SIZE);
    let hub = Hub::new(&root, 1);
    let alone = hub.spoke_of("alone", &many.root);
    let (of_one, _) = times(std::slice::from_ref(&alone), &root);
    let fleet: Vec<Spoke> =
        (0..spokes).map(|n| hub.spoke_of(&format!("f{n}"), &few.root)).collect();
    say("all spokes are enrolled");
    let (each, all) = times(&fleet, &root);
    let (each, of_one) = (Sorted::of(each), of_one[0]);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = (spokes as u64 * few.files) as f64 / all;
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate_of_one = many.files as f64 / of_one;
    let node = hub.nodes[0].process.as_ref().unwrap().pid();
    tell!(
        page,
        "| slowest s | median s | slowest over median | files/s | of one spoke's | hub MiB |"
    );
    tell!(page, "|---|---|---|---|---|---|");
    tell!(
        page,
        "| {:.1} | {:.1} | {:.2} | {rate:.0} | {:.2} | {:.0} |",
        each.max(),
        each.median(),
        each.max() / each.median(),
        rate / rate_of_one,
        peak_mib(node).unwrap()
    );
}

/// How long each of these took that began at once, and all of them.
pub fn times(spokes: &[Spoke], root: &std::path::Path) -> (Vec<f64>, f64) {
    write_out();
    wait_until_quiet();
    let begun = Instant::now();
    let start = |s: &Spoke| Running::start(&mut s.push(), &root.join("push.log"));
    let running: Vec<Running> = spokes.iter().map(start).collect();
    let ended = |push: Running| {
        push.wait();
        begun.elapsed().as_secs_f64()
    };
    let took = std::thread::scope(|scope| {
        let ending: Vec<_> = running.into_iter().map(|p| scope.spawn(move || ended(p))).collect();
        ending.into_iter().map(|e| e.join().unwrap()).collect()
    });
    let all = begun.elapsed().as_secs_f64();
    for spoke in spokes {
        spoke.require_all_synced();
    }
    (took, all)
}
