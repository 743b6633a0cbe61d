//! Many nodes, one hub: any of them takes a push, all know of it, and one may die.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::nodes::{Hub, dump, get, said};
use crate::site::{Site, json, run, sized, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(any_node_takes_a_push_and_all_of_them_know_and_serve_it),
        trial!(a_push_ends_although_the_leader_is_killed_in_the_middle),
        trial!(without_a_majority_writes_are_refused_soon_and_reads_say_that_they_are_old),
        trial!(a_node_that_starts_before_its_peers_waits_alive_and_joins_by_itself),
        trial!(a_removed_node_is_told_so_and_causes_no_election),
        trial!(a_reader_takes_pushes_and_never_votes),
        trial!(two_nodes_offered_different_content_of_one_path_keep_one_everywhere),
        trial!(a_folder_that_lost_its_log_or_its_place_does_not_start),
        trial!(files_pass_between_nodes_with_tls_on_or_off_on_either_side),
        trial!(a_join_token_counts_once_and_for_its_hub),
    ]
}

fn fill(spoke: &crate::site::Spoke, from: u64, to: u64) {
    for n in from..to {
        spoke.put(&format!("d/m/2024/03/{:02}/00/f{n}.parquet", n % 28 + 1), &tiny(n));
    }
}

fn reader_token(hub: &Hub, n: usize) -> String {
    let data = hub.data(n);
    let added = json(&["hub", "token", "add", "--name", "me", "--data", &data, "--json"]);
    added["token"].as_str().unwrap().to_owned()
}

fn any_node_takes_a_push_and_all_of_them_know_and_serve_it() {
    let hub = Hub::new(3);
    let (leader, follower) = (hub.leader(), hub.follower());
    let spoke = hub.spoke_of(follower, "s");
    fill(&spoke, 0, 50);
    spoke.put("d/l/2024/03/01/00/large.parquet", &sized(7, 3_000_000));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 51), "{pass:?}");
    hub.assert_equal();
    let token = reader_token(&hub, leader);
    hub.assert_equal();
    let ca = format!("{}/tls/ca.pem", hub.data(0));
    for (n, node) in hub.nodes.iter().enumerate() {
        assert_eq!(node.site.manifest().len(), 51);
        let landed = tree(&node.site.landing()).len();
        assert_eq!(landed, if n == follower { 51 } else { 0 }, "each node keeps what it received");
        let path = "/api/v1/files/s/d/l/2024/03/01/00/large.parquet";
        let (status, head, body) = get(node, &ca, &token, path);
        assert_eq!((status, body.len()), (200, sized(7, 3_000_000).len()), "{head}");
        assert_eq!(body, sized(7, 3_000_000));
        let head = head.to_lowercase();
        assert!(head.contains("barque-position: 51") && head.contains("etag"), "{head}");
        // Nothing of where the other node is.
        assert!(!head.contains("node.barque") && !head.contains("barque-node"), "{head}");
    }
    // The next push goes to another node, which knows it all.
    spoke.call_only(&[&hub.nodes[leader].listen]);
    let again = spoke.push();
    assert_eq!((again.code, again.count("sent"), again.count("present")), (0, 0, 51), "{again:?}");
}

fn a_push_ends_although_the_leader_is_killed_in_the_middle() {
    let mut hub = Hub::new(3);
    let leader = hub.leader();
    let spoke = hub.nodes[leader].site.spoke("s");
    fill(&spoke, 0, 1500);
    let pushing = spoke.start_push();
    let other = hub.follower();
    wait_for("some files are registered", || hub.status(other)["files"].as_u64().unwrap() > 50);
    hub.kill(leader);
    let pass = crate::site::pass_of(pushing.wait_with_output().unwrap());
    pass.assert_closes();
    wait_for("the rest is pushed", || spoke.push().count("left") == 0);
    assert_eq!(spoke.status()["synced"], 1500);
    assert_eq!(hub.status(other)["files"], 1500);
    hub.start(leader);
    hub.wait_until_whole(3);
    hub.assert_equal();
    // What the old leader acknowledged is on it, and every file is somewhere.
    let landed: usize = hub.nodes.iter().map(|n| tree(&n.site.landing()).len()).sum();
    assert!(landed >= 1500, "{landed}");
}

fn without_a_majority_writes_are_refused_soon_and_reads_say_that_they_are_old() {
    let mut hub = Hub::new(3);
    let leader = hub.leader();
    let spoke = hub.spoke_of(leader, "s");
    fill(&spoke, 0, 10);
    assert_eq!(spoke.push().count("sent"), 10);
    let token = reader_token(&hub, leader);
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    others.iter().for_each(|n| hub.kill(*n));
    let ca = format!("{}/tls/ca.pem", hub.data(leader));
    let node = &hub.nodes[leader];
    wait_for("reads say that they may be old", || {
        let (status, head, _) = get(node, &ca, &token, "/api/v1/files");
        assert_eq!(status, 200, "{head}");
        head.to_lowercase().contains("barque-stale-ms")
    });
    fill(&spoke, 10, 20);
    let begun = Instant::now();
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (75, 0), "{pass:?}");
    // The spoke tries a few times; none of them hangs.
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let begun = Instant::now();
    let (code, _, err) = said(&["hub", "spoke", "add", "t", "--data", &hub.data(leader), "--json"]);
    assert!(code == 75 && err.contains("no leader"), "{code} {err}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let (status, _, _) = get(node, &ca, &token, "/api/v1/files?consistency=linearizable");
    assert_eq!(status, 503);
    // Found again, by itself.
    others.iter().for_each(|n| hub.start(*n));
    hub.wait_until_whole(3);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 10), "{pass:?}");
    hub.assert_equal();
}

fn a_node_that_starts_before_its_peers_waits_alive_and_joins_by_itself() {
    let mut hub = Hub::new(3);
    (0..3).for_each(|n| hub.stop(n));
    hub.start(1);
    let curl = |path: &str| {
        let ca = format!("{}/tls/ca.pem", hub.data(1));
        get(&hub.nodes[1], &ca, "none", path).0
    };
    assert_eq!((curl("/healthz"), curl("/readyz")), (200, 503));
    hub.start(0);
    hub.wait_until_ready(0);
    hub.wait_until_ready(1);
    hub.start(2);
    hub.wait_until_whole(3);
    hub.assert_equal();
}

fn a_removed_node_is_told_so_and_causes_no_election() {
    let mut hub = Hub::new(3);
    let (leader, gone) = (hub.leader(), hub.follower());
    let spoke = hub.spoke_of(gone, "s");
    fill(&spoke, 0, 5);
    assert_eq!(spoke.push().count("sent"), 5);
    let (data, id) = (hub.data(leader), hub.id(gone));
    let remove = ["hub", "node", "remove", &id, "--data", &data, "--json"];
    let (code, _, err) = said(&remove);
    assert!(code == 4 && err.contains("only copy of 5 files"), "{code} {err}");
    json(&[&remove[..], &["--abandon-files"]].concat());
    let term = hub.status(leader)["term"].clone();
    wait_for("the removed node knows", || {
        run(&["hub", "status", "--data", &hub.data(gone)]).2.contains("removed")
    });
    fill(&spoke, 5, 10);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (75, 0), "{pass:?}");
    hub.assert_no_election(leader, &term);
    // What it alone held is asked for again, from the spoke, at another node.
    spoke.call_only(&[&hub.nodes[leader].listen]);
    wait_for("its copies count no more", || {
        hub.nodes[leader].site.manifest().values().all(|(_, _, state)| state == "lost")
    });
    let pass = spoke.push();
    assert_eq!(pass.code, 0, "{pass:?}");
    assert!(hub.nodes[leader].site.manifest().values().all(|(_, _, state)| state == "held"));
    assert_eq!(hub.nodes[leader].site.manifest().len(), 10);
    // Its old folder is of no use; an emptied one joins with a new token.
    hub.kill(gone);
    let n = hub.join(&[]);
    hub.start(n);
    hub.wait_until_whole(3);
    hub.assert_equal();
}

fn a_reader_takes_pushes_and_never_votes() {
    let mut hub = Hub::new(1);
    let n = hub.join(&["--reader"]);
    hub.start(n);
    hub.wait_until_ready(n);
    let spoke = hub.spoke_of(n, "s");
    fill(&spoke, 0, 20);
    assert_eq!(spoke.push().count("sent"), 20);
    hub.assert_equal();
    let (seen, id) = (hub.seen_by(0), hub.id(n));
    assert_eq!((&seen[&id]["role"], &seen[&id]["files_held"]), (&"reader".into(), &20.into()));
    // The voter goes on alone.
    hub.kill(n);
    let other = hub.spoke_of(0, "t");
    fill(&other, 0, 5);
    assert_eq!(other.push().count("sent"), 5);
    wait_for("what only the reader holds is unavailable", || {
        let manifest = hub.nodes[0].site.manifest();
        manifest.values().filter(|(_, _, state)| state == "unavailable").count() == 20
    });
    let token = reader_token(&hub, 0);
    let ca = format!("{}/tls/ca.pem", hub.data(0));
    let path = "/api/v1/files/s/d/m/2024/03/01/00/f0.parquet";
    assert_eq!(get(&hub.nodes[0], &ca, &token, path).0, 503);
}

fn two_nodes_offered_different_content_of_one_path_keep_one_everywhere() {
    let hub = Hub::new(3);
    let spoke = hub.spoke_of(0, "s");
    // The same spoke on a second machine, at another node.
    let copy = hub.nodes[1].site.unenrolled("s");
    let from = std::path::Path::new(&spoke.state()).to_owned();
    let status = std::process::Command::new("cp").arg("-r").arg(&from).arg(copy.state()).status();
    assert!(status.unwrap().success());
    let (here, there) = (spoke.source().display().to_string(), copy.source().display().to_string());
    copy.edit_config(&here, &there);
    copy.call_only(&[&hub.nodes[1].listen]);
    for n in 0..100u64 {
        let path = format!("d/m/2024/03/01/00/f{n}.parquet");
        spoke.put(&path, &tiny(n));
        copy.put(&path, &tiny(n + 1_000));
    }
    let (a, b) = (spoke.start_push(), copy.start_push());
    let a = crate::site::pass_of(a.wait_with_output().unwrap());
    let b = crate::site::pass_of(b.wait_with_output().unwrap());
    assert_eq!(a.count("sent") + b.count("sent"), 100, "{a:?} {b:?}");
    assert_eq!(a.count("conflict") + b.count("conflict"), 100, "{a:?} {b:?}");
    hub.assert_equal();
    let manifest = hub.nodes[2].site.manifest();
    for (n, node) in hub.nodes.iter().enumerate() {
        for (path, (digest, _)) in tree(&node.site.landing()) {
            assert_eq!(manifest[&path].0, digest.to_string(), "{path} on node {n}");
        }
    }
}

/// The last entry of a node's log, while the node does not run.
fn log_end(data: &str) -> i64 {
    let c = rusqlite::Connection::open(format!("{data}/raft.db")).unwrap();
    c.query_row("SELECT coalesce(max(log_index), 0) FROM log", [], |r| r.get(0)).unwrap()
}

fn a_folder_that_lost_its_log_or_its_place_does_not_start() {
    let mut hub = Hub::new(2);
    let spoke = hub.spoke_of(1, "s");
    fill(&spoke, 0, 20);
    assert_eq!(spoke.push().count("sent"), 20);
    let data = hub.data(1);
    let log = ["raft.db", "raft.db-wal", "raft.db-shm"].map(|n| format!("{data}/{n}"));
    let kept = || log.clone().map(|path| std::fs::read(path).ok());
    let put = |files: [Option<Vec<u8>>; 3]| {
        for (path, bytes) in log.iter().zip(files) {
            let _ = std::fs::remove_file(path);
            bytes.inspect(|bytes| std::fs::write(path, bytes).unwrap());
        }
    };
    hub.stop(1);
    let old = kept();
    let end_before = log_end(&data);
    hub.start(1);
    hub.wait_until_ready(1);
    fill(&spoke, 20, 40);
    assert_eq!(spoke.push().count("sent"), 20);
    // How far the log is is noted in node.db, beyond what the older one has.
    let mark = || -> i64 {
        let c = rusqlite::Connection::open(format!("{data}/node.db")).unwrap();
        let sql = "SELECT coalesce(max(value), 0) FROM state WHERE name = 'raft_index'";
        c.query_row(sql, [], |r| r.get(0)).unwrap()
    };
    wait_for("the longer log is noted", || mark() > end_before);
    hub.stop(1);
    let refused = |hub: &Hub| {
        let site = &hub.nodes[1].site;
        let log = || std::fs::read_to_string(site.path().join("hub.log")).unwrap();
        let from = log().len();
        let mut starting = site.start_process(hub.command(1));
        wait_for("the node refuses to start", || starting.has_ended());
        log().split_off(from)
    };
    let whole = kept();
    put(old);
    let err = refused(&hub);
    assert!(err.contains("older") && err.contains("hub node remove"), "{err}");
    put([None, None, None]);
    let err = refused(&hub);
    assert!(err.contains("raft.db is gone") && err.contains("hub node remove"), "{err}");
    put(whole);
    hub.start(1);
    hub.wait_until_whole(2);
    // An empty folder is no node.
    let empty = Site::empty();
    let (code, _, err) = run(&["hub", "serve", "--data", &empty.data()]);
    assert!(code != 0 && err.contains("barque hub join"), "{err}");
}

fn files_pass_between_nodes_with_tls_on_or_off_on_either_side() {
    for more in [&[][..], &["--plain"], &["--cluster-plain"], &["--plain", "--cluster-plain"]] {
        let hub = Hub::with(2, more);
        let site = &hub.nodes[1].site;
        let spoke = site.spoke("s");
        let scheme = if more.contains(&"--plain") { "http" } else { "https" };
        spoke.call_only(&[&hub.nodes[1].listen]);
        if scheme == "http" {
            spoke.edit_config("https://", "http://");
        }
        spoke.put("d/m/2024/03/01/00/f.parquet", &sized(3, 200_000));
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("sent")), (0, 1), "{more:?} {pass:?}");
        hub.assert_equal();
        let token = reader_token(&hub, 0);
        let url = format!(
            "{scheme}://{}/api/v1/files/s/d/m/2024/03/01/00/f.parquet",
            hub.nodes[0].listen
        );
        let output = std::process::Command::new("curl")
            .args(["-s", "--cacert", &format!("{}/tls/ca.pem", hub.data(0)), "-H"])
            .args([&format!("Authorization: Bearer {token}"), &url])
            .output()
            .unwrap();
        assert_eq!(output.stdout, sized(3, 200_000), "{more:?}");
    }
}

fn a_join_token_counts_once_and_for_its_hub() {
    let hub = Hub::new(1);
    let token = hub.token(0, &[]);
    let (first, second) = (Site::empty(), Site::empty());
    json(&["hub", "join", &token, "--data", &first.data(), "--json"]);
    let (code, _, err) = said(&["hub", "join", &token, "--data", &second.data()]);
    assert!(code == 1 && err.contains("used"), "{code} {err}");
    let (code, _, err) = said(&["hub", "join", &token, "--data", &first.data()]);
    assert!(code == 1 && err.contains("already holds a hub"), "{code} {err}");
    let (code, _, err) = said(&["hub", "join", "barque-join-xyz", "--data", &second.data()]);
    assert!(code == 1 && err.contains("not a join token"), "{code} {err}");
    let expired = hub.token(0, &["--expires", "1ms"]);
    let (code, _, err) = said(&["hub", "join", &expired, "--data", &second.data()]);
    assert!(code == 1 && err.contains("expired"), "{code} {err}");
    assert!(dump(&hub.data(0)).contains("members"));
    // A hub without a listener for other nodes has none to add.
    let alone = Site::new();
    let _serving = alone.hub();
    let (code, _, err) = said(&["hub", "node", "add", "--data", &alone.data()]);
    assert!(code == 1 && err.contains("--cluster-listen"), "{code} {err}");
}
