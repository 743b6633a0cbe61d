//! First pushes of many files, beside other tools and what the machine can do.

use std::path::Path;

use crate::limit;
use crate::page::{Page, tell};
use crate::peer::{self, Rclone, Rsync};
use crate::process::Hub;
use crate::race::{Contender, Cost, race, say, table};
use crate::tree::Tree;

/// One size of work, and how often each kind of contender does it.
pub struct Work {
    pub files: u64,
    pub size: usize,
    pub rounds: usize,
    /// Of peers that take many times longer.
    pub slow_rounds: usize,
}

/// Barque beside the others: all read the same tree, each run writes to new folders.
pub fn run(page: &mut Page, work: &Work) {
    tell!(page, "\nfirst push of {} files of {} KiB\n", work.files, work.size / 1024);
    let root = crate::process::folder();
    let root = std::fs::canonicalize(root.path()).unwrap();
    let tree = Tree::make(&root.join("source"), work.files, work.size);
    let hub = Hub::new(&root, 1);
    let has_rclone = peer::is_there("rclone");
    let rsync = peer::is_there("rsync").then(|| Rsync::start(&root, None));
    let webdav = has_rclone.then(|| Rclone::webdav(&root, None));
    let s3 = has_rclone.then(|| Rclone::s3(&root, None));
    let (tree, hub, root) = (&tree, &hub, root.as_path());
    let (often, seldom) = (work.rounds, work.slow_rounds);
    let mut all = vec![Contender::new("Barque", often, |n| push(hub, tree, &format!("s{n}")))];
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
    if let (Some(webdav), true) = (&webdav, peer::is_there("curl")) {
        let push = |n| webdav.curl(tree, &format!("curl-{n}"));
        all.push(Contender::new("curl --parallel", seldom, push));
    }
    all.extend(limits(tree, root, often));
    let standings = race(all);
    tell!(page, "{}", table(&standings, work.files, tree.bytes()));
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

/// One push by a new spoke.
fn push(hub: &Hub, tree: &Tree, name: &str) -> Cost {
    push_at(hub, tree, name, None)
}

/// [`push`], to another address than the hub's own.
pub fn push_at(hub: &Hub, tree: &Tree, name: &str, address: Option<&str>) -> Cost {
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
    say(&format!("syncs of the hub: {syncs}"));
    cost
}
