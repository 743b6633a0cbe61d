//! A pass with nothing to do over many known files, beside `find` and rsync.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::page::{Page, tell};
use crate::peer::{self, Rsync};
use crate::process::{Hub, peak_of, wait_for};
use crate::race::{Contender, Cost, median_of, race, say, table};
use crate::tree::Tree;

const SIZE: usize = 64;
const FIND: &str = "find -printf";

/// Warm, then cold: the page cache is dropped before each (root).
pub fn run(page: &mut Page, files: u64, rounds: usize) {
    tell!(page, "\na pass with nothing to do, {files} known files of {SIZE} bytes\n");
    let root = crate::process::folder();
    let root = std::fs::canonicalize(root.path()).unwrap();
    let tree = &Tree::make(&root.join("source"), files, SIZE);
    let hub = Hub::new(&root, 1);
    let spoke = hub.spoke_of("s", &tree.root);
    wait_for("all files are synced", || spoke.pass().is_some_and(|r| r["left"] == 0));
    let rsync = peer::is_there("rsync").then(|| Rsync::start(&root, None));
    say("rsync takes the files, which is not measured");
    rsync.iter().for_each(|r| {
        r.push(tree, "all", &[]);
    });
    let mut peak: f64 = 0.0;
    {
        let mut all = vec![Contender::new("Barque", rounds, |_| {
            Cost::of(|| peak = peak.max(peak_of(&mut spoke.push(), &root.join("push.log"))))
        })];
        if let Some(rsync) = &rsync {
            all.push(Contender::new("rsync", rounds, |_| rsync.push(tree, "all", &[])));
        }
        all.push(Contender::new(FIND, rounds, |_| find(&tree.root)));
        tell!(page, "warm:\n\n{}", table(&race(all), files, tree.bytes()));
    }
    tell!(page, "peak of the spoke: {peak:.0} MiB\n");
    if drop_caches() {
        let cold = |work: &dyn Fn() -> Cost| {
            drop_caches();
            work()
        };
        let push = || Cost::of(|| drop(spoke.push().output().unwrap()));
        let standings = race(vec![
            Contender::new("Barque", rounds, |_| cold(&push)),
            Contender::new(FIND, rounds, |_| cold(&|| find(&tree.root))),
        ]);
        tell!(page, "cold:\n\n{}", table(&standings, files, tree.bytes()));
        let ratio = standings[0].seconds.median() / median_of(&standings, FIND);
        tell!(page, "cold, over find: {ratio:.2}");
    }
}

fn find(root: &Path) -> Cost {
    Cost::of(|| {
        let mut command = Command::new("find");
        command.arg(root).args(["-printf", "%p %s %T@ %C@ %i\\n"]).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
    })
}

/// Whether the page cache could be dropped.
fn drop_caches() -> bool {
    crate::process::write_out();
    std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok()
}
