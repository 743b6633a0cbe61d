//! Drives at a hub of several nodes: who imported what is known everywhere, and one claim counts.

use std::path::Path;
use std::process::Stdio;

use libtest_mimic::Trial;
use rusqlite::Connection;

use crate::drives::{Ended, ack, drive, exported, fill, history, import};
use crate::nodes::Hub;
use crate::site::{Spoke, barque, json, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(all_drives_at_one_node_are_known_at_each),
        trial!(drives_at_two_nodes_are_in_the_history_of_each_with_their_node),
        trial!(a_bundle_again_at_another_node_is_refused_with_when_where_and_how_many),
        trial!(with_every_dedup_row_deleted_a_bundle_is_present_and_nothing_is_written),
        trial!(other_content_of_a_path_at_another_node_is_refused_and_the_rest_lands),
        trial!(an_import_that_stands_still_is_taken_over_and_its_late_batch_is_fenced),
        trial!(a_node_that_takes_no_drives_says_which_do),
    ]
}

/// A hub, a spoke of it, and bundles of so many files each.
fn bundles(nodes: usize, sizes: &[u64]) -> (Hub, Spoke, Vec<String>) {
    let hub = Hub::new(nodes);
    let site = &hub.nodes[0].site;
    let spoke = site.spoke("s");
    let mut from = 0;
    let mut paths = Vec::new();
    for (n, size) in sizes.iter().enumerate() {
        fill(&spoke, from, from + size);
        from += size;
        paths.push(exported(&spoke, &drive(site), &["--label", &format!("drive {n}")]));
    }
    hub.assert_equal();
    (hub, spoke, paths)
}

fn at(hub: &Hub, n: usize, path: &str) -> Ended {
    import(&hub.nodes[n].site, path, &[])
}

fn all_drives_at_one_node_are_known_at_each() {
    let (hub, spoke, paths) = bundles(3, &[20, 30]);
    let node = hub.follower();
    for (path, files) in paths.iter().zip([20, 30]) {
        let done = at(&hub, node, path);
        assert_eq!((done.code, done.count("committed")), (0, files), "{done:?}");
        assert_eq!(ack(&spoke, path).code, 0);
    }
    hub.assert_equal();
    for n in 0..3 {
        let listed = history(&hub.nodes[n].site, "s");
        let lines = listed["bundles"].as_array().unwrap();
        let labels: Vec<&str> = lines.iter().map(|b| b["label"].as_str().unwrap()).collect();
        assert_eq!(labels, ["drive 1", "drive 0"]);
        assert!(lines.iter().all(|b| b["node"] == hub.id(node).as_str()), "{lines:?}");
    }
    assert_eq!(spoke.status()["synced"], 50);
}

fn drives_at_two_nodes_are_in_the_history_of_each_with_their_node() {
    let (hub, spoke, paths) = bundles(3, &[15, 25]);
    for (n, path) in paths.iter().enumerate() {
        assert_eq!(at(&hub, n, path).code, 0);
        assert_eq!(ack(&spoke, path).code, 0);
    }
    hub.assert_equal();
    for node in &hub.nodes {
        let listed = history(&node.site, "s");
        let nodes: Vec<_> =
            listed["bundles"].as_array().unwrap().iter().map(|b| &b["node"]).collect();
        assert_eq!(nodes, [hub.id(1).as_str(), hub.id(0).as_str()]);
    }
    assert_eq!(spoke.status()["synced"], 40);
    // The receipt of one node is handed out by each.
    let token = {
        let data = hub.data(2);
        let add = ["hub", "token", "add", "--name", "o", "--role", "operator", "--data", &data];
        json(&[&add[..], &["--json"]].concat())["token"].as_str().unwrap().to_owned()
    };
    hub.assert_equal();
    let listed = history(&hub.nodes[2].site, "s");
    let receipt = listed["bundles"][1]["receipt"].as_str().unwrap().to_owned();
    let ca = format!("{}/tls/ca.pem", hub.data(0));
    for node in &hub.nodes {
        let (status, _, body) = crate::nodes::get(node, &ca, &token, &receipt);
        assert!(status == 200 && body.len() > 1000, "{status} {}", body.len());
    }
}

fn a_bundle_again_at_another_node_is_refused_with_when_where_and_how_many() {
    let (hub, _spoke, paths) = bundles(3, &[20]);
    let first = at(&hub, 0, &paths[0]);
    assert_eq!((first.code, first.count("committed")), (0, 20));
    let again = at(&hub, 1, &paths[0]);
    assert_eq!((again.code, &again.json["imported"]), (0, &false.into()), "{again:?}");
    assert_eq!(again.json["reason"], "already imported");
    assert_eq!((again.count("files"), &again.json["node"]), (20, &hub.id(0).into()));
    assert!(again.json["imported_at"].is_string(), "{again:?}");
    assert!(tree(&hub.nodes[1].site.landing()).is_empty());
}

fn with_every_dedup_row_deleted_a_bundle_is_present_and_nothing_is_written() {
    let (mut hub, spoke, paths) = bundles(2, &[20]);
    assert_eq!(at(&hub, 0, &paths[0]).code, 0);
    hub.assert_equal();
    (0..2).for_each(|n| hub.stop(n));
    for n in 0..2 {
        let c = Connection::open(format!("{}/manifest.db", hub.data(n))).unwrap();
        assert_eq!(c.execute("DELETE FROM imported_bundles", []).unwrap(), 1);
        let c = Connection::open(format!("{}/node.db", hub.data(n))).unwrap();
        c.execute("DELETE FROM sync_imported_bundles", []).unwrap();
    }
    (0..2).for_each(|n| hub.start(n));
    hub.wait_until_whole(2);
    let stamps = |site: &crate::site::Site| -> Vec<_> {
        let paths = tree(&site.landing()).into_keys();
        paths
            .map(|p| std::fs::metadata(site.landing().join(p)).unwrap().modified().unwrap())
            .collect()
    };
    let before = stamps(&hub.nodes[0].site);
    let again = at(&hub, 0, &paths[0]);
    assert_eq!((again.code, again.count("committed")), (0, 0), "{again:?}");
    assert_eq!(again.count("already_present"), 20);
    assert_eq!(stamps(&hub.nodes[0].site), before);
    let staged = Path::new(&hub.data(0)).join("staging");
    let left = tree(&staged).into_keys().filter(|name| !name.ends_with(".receipt"));
    assert_eq!(left.count(), 0);
    assert_eq!(ack(&spoke, &paths[0]).code, 0);
    assert_eq!(spoke.status()["synced"], 20);
    hub.assert_equal();
}

fn other_content_of_a_path_at_another_node_is_refused_and_the_rest_lands() {
    let (hub, spoke, paths) = bundles(2, &[10]);
    // The same path with other content came over the link, to the other node.
    let rival = hub.nodes[1].site.unenrolled("s");
    let status =
        std::process::Command::new("cp").args(["-r", &spoke.state(), &rival.state()]).status();
    assert!(status.unwrap().success());
    let (here, there) =
        (spoke.source().display().to_string(), rival.source().display().to_string());
    rival.edit_config(&here, &there);
    rival.call_only(&[&hub.nodes[1].listen]);
    let name = tree(&spoke.source()).into_keys().next().unwrap();
    std::fs::remove_file(Path::new(&rival.state()).join("ledger.db")).unwrap();
    rival.put(&name, &tiny(999));
    assert_eq!(rival.push_while_files_move().count("sent"), 1);
    let done = at(&hub, 0, &paths[0]);
    assert_eq!((done.count("conflicts"), done.count("committed")), (1, 9), "{done:?}");
    hub.assert_equal();
    let manifest = hub.nodes[0].site.manifest();
    assert_eq!(manifest.len(), 10);
    let kept = barque_bundle::Sha256Digest::of(&tiny(999)).to_string();
    assert_eq!(manifest[&format!("s/{name}")].0, kept);
}

fn an_import_that_stands_still_is_taken_over_and_its_late_batch_is_fenced() {
    let mut hub = Hub::new(3);
    let (leader, node) = (hub.leader(), hub.follower());
    // One batch of the import counts; then the node stands still, before it proposes the next.
    hub.stop(node);
    let mut command = hub.command(node);
    command.env("BARQUE_FAULT", "stop-after:import-batch");
    hub.start_as(node, command);
    hub.wait_until_whole(3);
    let site = &hub.nodes[0].site;
    let spoke = site.spoke("s");
    fill(&spoke, 0, 1_100);
    let path = exported(&spoke, &drive(site), &[]);
    let data = hub.data(node);
    let importing = barque(&["hub", "import", &path, "--data", &data, "--json"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the node stands still", || hub.stands_still(node));
    let busy = at(&hub, leader, &path);
    assert_eq!((busy.code, &busy.json["reason"]), (75, &"import in progress".into()), "{busy:?}");
    let mut done = None;
    wait_for("the claim is taken over", || {
        let tried = at(&hub, leader, &path);
        let is_done = tried.code == 0;
        done = Some(tried);
        is_done
    });
    let done = done.unwrap();
    assert_eq!((done.count("committed"), done.count("already_present")), (100, 1_000), "{done:?}");
    hub.signal(node, "-CONT");
    let late = importing.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&late.stderr);
    assert!(late.status.code() == Some(4) && said.contains("taken this import over"), "{late:?}");
    hub.wait_until_whole(3);
    hub.assert_equal();
    let listed = history(&hub.nodes[node].site, "s");
    assert_eq!(listed["bundles"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["bundles"][0]["node"], hub.id(leader).as_str());
    let manifest = hub.nodes[node].site.manifest();
    assert_eq!(manifest.len(), 1_100);
    assert!(manifest.values().all(|(_, _, state)| state == "held"));
    // The late import made visible what its first batch registered, and nothing more.
    assert_eq!(tree(&hub.nodes[node].site.landing()).len(), 1_000);
}

fn a_node_that_takes_no_drives_says_which_do() {
    let mut hub = Hub::new(2);
    let site = &hub.nodes[0].site;
    let spoke = site.spoke("s");
    fill(&spoke, 0, 5);
    let path = exported(&spoke, &drive(site), &[]);
    hub.stop(1);
    let config = hub.nodes[1].site.path().join("barque.toml");
    std::fs::write(&config, "[hub.import]\nenabled = false\n").unwrap();
    let mut command = hub.command(1);
    command.env("BARQUE_CONFIG", &config);
    hub.start_as(1, command);
    hub.wait_until_whole(2);
    let refused = at(&hub, 1, &path);
    let named = format!("({})", hub.id(0));
    assert!(refused.code == 4 && refused.stderr.contains(&named), "{refused:?}");
    assert_eq!(at(&hub, 0, &path).code, 0);
}
