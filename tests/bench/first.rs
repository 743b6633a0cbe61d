//! First pushes of many files, beside other tools and what the machine can do.

use std::cell::Cell;
use std::path::Path;

use crate::limit;
use crate::page::{Page, tell};
use crate::peer::{self, Rclone, Rsync};
use crate::process::Hub;
use crate::race::{Contender, Cost, race, say, table};
use crate::syncthing;
use crate::tree::Tree;

/// One size of work, and how often each kind of contender does it.
pub struct Work {
    pub files: u64,
    pub size: usize,
    pub rounds: usize,
    /// Of peers that take many times longer.
    pub slow_rounds: usize,
    /// Also rclone with the pace that it comes with: some 30 ms a file.
    pub paced: bool,
}

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// Barque beside the others: all read the same tree, each run writes to new folders. Then once more
/// in memory, where the programs are the limit, as far as there is room.
pub fn run(page: &mut Page, work: &Work) {
    let root = crate::process::folder();
    below(page, work, root.path(), "");
    // The tree, what each of some five contenders makes of it, and 2 KiB for each name.
    let copies = 1 + 5 * work.rounds as u64;
    let needed = copies * work.files * (work.size as u64 + 2048);
    match barque_bundle::platform::free_bytes(Path::new(MEMORY)) {
        Ok(free) if free > needed => {
            let root = tempfile::tempdir_in(MEMORY).unwrap();
            below(page, &Work { slow_rounds: 0, ..*work }, root.path(), ", in memory");
        }
        _ => say(&format!("{MEMORY} has no room: not run in memory")),
    }
}

fn below(page: &mut Page, work: &Work, root: &Path, place: &str) {
    tell!(page, "\nfirst push of {} files of {} KiB{place}\n", work.files, work.size / 1024);
    let root = std::fs::canonicalize(root).unwrap();
    let tree = Tree::make(&root.join("source"), work.files, work.size);
    let hub = Hub::new(&root, 1);
    let has_rclone = peer::is_there("rclone");
    let rsync = peer::is_there("rsync").then(|| Rsync::start(&root, None));
    let webdav = has_rclone.then(|| Rclone::webdav(&root, None));
    let s3 = has_rclone.then(|| Rclone::s3(&root, None));
    let (tree, hub, root) = (&tree, &hub, root.as_path());
    let (often, seldom) = (work.rounds, work.slow_rounds);
    let syncs = Cell::new(0.0);
    let push = |n| {
        let (cost, made) = push_at(hub, tree, &format!("s{n}"), None);
        syncs.set(made);
        cost
    };
    let mut all = vec![Contender::new("Barque", often, push)];
    if let Some(rsync) = &rsync {
        let push = |way: &'static [&str], name: &'static str| {
            move |n| rsync.push(tree, &format!("{name}-{n}"), way)
        };
        all.push(Contender::new("rsync", often, push(&[], "plain")));
        all.push(Contender::new("rsync --fsync", often, push(&["--fsync"], "fsync")));
    }
    for (kind, rclone) in [("WebDAV", &webdav), ("S3", &s3)] {
        for transfers in [16, 64] {
            let Some(rclone) = rclone else { continue };
            let name = format!("rclone {kind} x{transfers}");
            let push = move |n| rclone.push(tree, &format!("t{transfers}-{n}"), transfers);
            all.push(Contender::new(&name, seldom, push));
        }
    }
    if let (Some(webdav), true) = (&webdav, work.paced) {
        let push = |n| webdav.push_paced(tree, &format!("paced-{n}"), 16);
        all.push(Contender::new("rclone WebDAV x16 as it comes", seldom, push));
    }
    if let (Some(webdav), true) = (&webdav, peer::is_there("curl")) {
        let push = |n| webdav.curl(tree, &format!("curl-{n}"));
        all.push(Contender::new("curl --parallel", seldom, push));
    }
    if peer::is_there("syncthing") && peer::is_there("curl") {
        let push = |n| syncthing::push(tree, &root.join(format!("syncthing-{n}")));
        all.push(Contender::new("Syncthing", seldom, push));
    }
    all.extend(limits(tree, root, often));
    let standings = race(all);
    tell!(page, "{}", table(&standings, work.files, tree.bytes()));
    tell!(page, "calls of fsync, fdatasync and syncfs by the hub in one push: {}", syncs.get());
}

/// What the machine can do with this tree.
fn limits<'a>(tree: &'a Tree, root: &'a Path, rounds: usize) -> [Contender<'a>; 4] {
    let raw = |n| limit::raw_files(tree, &root.join(format!("raw-{n}")));
    [
        Contender::new("files made with grouped syncs", rounds, raw),
        Contender::new("openssl dgst -sha256", rounds, |_| limit::openssl(tree)),
        Contender::new("dd conv=fsync", rounds, |_| limit::dd(tree, &root.join("dd"))),
        Contender::new("raw TCP", rounds, |_| limit::raw_tcp(tree)),
    ]
}

/// A push by a new spoke, to another address than the hub's own if there is one; its cost, and how
/// often the hub synced.
pub fn push_at(hub: &Hub, tree: &Tree, name: &str, address: Option<&str>) -> (Cost, f64) {
    let spoke = hub.spoke_of(name, &tree.root);
    if let Some(address) = address {
        spoke.call(&[address]);
    }
    let syncs = hub.metric(0, "barque_syncs_total");
    let mut report = None;
    let cost = Cost::of(|| report = Some(spoke.push().output().unwrap()));
    let output = report.unwrap();
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {}", output.status, said());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["sent"], tree.files, "{report}");
    let syncs = hub.metric(0, "barque_syncs_total") - syncs;
    (cost, syncs)
}
