//! A hub of several nodes in trouble: most of them lost, one away for long, a token that changes.

use libtest_mimic::Trial;
use serde_json::Value;

use crate::balancer::Balancer;
use crate::nodes::{Hub, said};
use crate::site::{Spoke, json, pass_of, run, sized, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_lost_majority_is_recovered_from_and_nodes_of_before_are_refused),
        trial!(the_cluster_token_changes_under_load_without_a_failed_transfer),
        trial!(an_upload_behind_a_balancer_goes_on_although_it_is_cut_and_its_home_is_killed),
        trial!(a_wiped_node_with_its_old_address_joins_once_its_old_self_is_removed),
        trial!(one_of_two_nodes_is_removed_and_the_other_goes_on),
        trial!(nodes_come_and_go_under_load),
        trial!(a_leader_killed_in_each_phase_of_a_receive_loses_and_doubles_nothing),
    ]
}

fn fill(spoke: &Spoke, from: u64, to: u64) {
    for n in from..to {
        spoke.put(&format!("d/m/2024/03/{:02}/00/f{n}.parquet", n % 28 + 1), &tiny(n));
    }
}

/// Holds when every file of the sources stands in the manifest of each node that runs, with its
/// digest, and what a node landed is what the manifest says.
fn assert_whole(hub: &Hub, up: &[usize], spokes: &[&Spoke]) {
    hub.assert_equal();
    for n in up {
        let manifest = hub.nodes[*n].site.manifest();
        for spoke in spokes {
            for (path, (digest, _)) in tree(&spoke.source()) {
                let row = manifest.get(&format!("{}/{path}", spoke.name));
                assert_eq!(row.map(|r| r.0.clone()), Some(digest.to_string()), "{path}");
            }
        }
        for (path, (digest, _)) in tree(&hub.nodes[*n].site.landing()) {
            assert_eq!(manifest[&path].0, digest.to_string(), "{path} on node {n}");
        }
    }
}

fn a_lost_majority_is_recovered_from_and_nodes_of_before_are_refused() {
    let mut hub = Hub::new(3);
    let leader = hub.leader();
    let left = hub.follower();
    let gone: Vec<usize> = (0..3).filter(|n| *n != left).collect();
    let spoke = hub.nodes[leader].site.spoke("s");
    spoke.call_only(&[&hub.nodes[leader].listen]);
    fill(&spoke, 0, 20);
    assert_eq!(spoke.push().count("sent"), 20);
    hub.assert_equal();
    let epoch = hub.status(left)["hub_epoch"].clone();
    gone.iter().for_each(|n| hub.kill(*n));
    spoke.call_only(&[&hub.nodes[left].listen]);
    fill(&spoke, 20, 30);
    assert_eq!(spoke.push().code, 75);
    let data = hub.data(left);
    let (code, _, err) = said(&["hub", "recover", "--data", &data]);
    assert!(code != 0 && err.contains("another hub runs"), "{err}");
    hub.stop(left);
    let (code, out, err) = said(&["hub", "recover", "--data", &data]);
    assert!(code == 0 && out.contains("20 files have no copy here"), "{out}");
    assert!(err.contains("nothing was changed") && err.contains("--yes"), "{err}");
    let done = json(&["hub", "recover", "--data", &data, "--yes", "--json"]);
    assert_eq!((&done["recovered"], done["gone"].as_array().unwrap().len()), (&true.into(), 2));
    hub.start(left);
    hub.wait_until_whole(1);
    assert_ne!(hub.status(left)["hub_epoch"], epoch);
    // Another epoch: everything is offered again, and what only the others held is sent again.
    wait_for("what is lost is known", || {
        hub.nodes[left].site.manifest().values().all(|(_, _, state)| state == "lost")
    });
    // Another content would have been a conflict; the same restores the row.
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent") + pass.count("present")), (0, 30), "{pass:?}");
    assert_whole(&hub, &[left], &[&spoke]);
    let landed = tree(&hub.nodes[left].site.landing());
    assert_eq!(landed.len(), 30);
    assert!(hub.nodes[left].site.manifest().values().all(|(_, _, state)| state == "held"));
    // A dead one is switched on again.
    hub.start(gone[0]);
    wait_for("the node of before is refused", || {
        run(&["hub", "status", "--data", &hub.data(gone[0])]).2.contains("recovery")
    });
    spoke.call_only(&[&hub.nodes[gone[0]].listen]);
    fill(&spoke, 30, 31);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (75, 0), "{pass:?}");
    // The hub grows again.
    hub.kill(gone[0]);
    let n = hub.join(&[]);
    hub.start(n);
    hub.wait_until_whole(2);
    assert_whole(&hub, &[left, n], &[]);
}

fn the_cluster_token_changes_under_load_without_a_failed_transfer() {
    let hub = Hub::new(3);
    let follower = hub.follower();
    let spoke = hub.spoke_of(follower, "s");
    fill(&spoke, 0, 2_000);
    let token =
        |n: usize| std::fs::read_to_string(format!("{}/cluster.token", hub.data(n))).unwrap();
    let before = token(0);
    let pushing = spoke.start_push();
    for _ in 0..2 {
        json(&["hub", "node", "rotate-token", "--data", &hub.data(hub.leader()), "--json"]);
    }
    let pass = pass_of(pushing.wait_with_output().unwrap());
    assert_eq!((pass.code, pass.count("sent"), pass.count("left")), (0, 2_000, 0), "{pass:?}");
    assert_eq!(pass.report["faults"].as_array().map_or(0, Vec::len), 0, "{pass:?}");
    let after = token(0);
    assert!(before != after && after.lines().count() == 1, "{after}");
    assert!((1..3).all(|n| token(n) == after));
    hub.wait_until_whole(3);
    assert_whole(&hub, &[0, 1, 2], &[&spoke]);
}

fn an_upload_behind_a_balancer_goes_on_although_it_is_cut_and_its_home_is_killed() {
    const BYTES: u64 = 256 << 20;
    let mut hub = Hub::with(3, &["--plain"]);
    let spoke = hub.nodes[0].site.spoke("s");
    spoke.put("d/m/2024/03/31/02/large.parquet", &sized(1, usize::try_from(BYTES).unwrap()));
    let nodes = hub.nodes.iter().map(|n| n.listen.clone()).collect();
    let balancer = Balancer::start(nodes, 5, 24 << 20);
    spoke.call_only(&[&balancer.address]);
    spoke.edit_config("https://", "http://");
    let pushing = spoke.start_push();
    let partial = |hub: &Hub, n: usize| {
        let items = std::fs::read_dir(format!("{}/staging", hub.data(n))).into_iter().flatten();
        let mut names = items.flatten().map(|i| i.file_name().to_string_lossy().into_owned());
        names.any(|name| name.ends_with(".partial"))
    };
    wait_for("three pieces were cut", || balancer.cut() >= 3);
    let mut home = None;
    wait_for("the home is seen", || {
        home = (0..3).find(|n| partial(&hub, *n));
        home.is_some()
    });
    let home = home.unwrap();
    assert_eq!((0..3).filter(|n| partial(&hub, *n)).count(), 1, "an upload has one home");
    hub.kill(home);
    let mut pass = pass_of(pushing.wait_with_output().unwrap());
    wait_for("the file is sent", || {
        if pass.count("sent") == 0 {
            pass = spoke.push();
        }
        spoke.status()["synced"] == 1
    });
    wait_for("five pieces were cut", || balancer.cut() == 5);
    let carried = balancer.carried();
    assert!(carried < 2 * BYTES + (8 << 20), "{carried} bytes went for {BYTES}");
    hub.start(home);
    hub.wait_until_whole(3);
    assert_whole(&hub, &[0, 1, 2], &[&spoke]);
}

fn a_wiped_node_with_its_old_address_joins_once_its_old_self_is_removed() {
    let mut hub = Hub::new(3);
    let wiped = hub.follower();
    let spoke = hub.spoke_of(wiped, "s");
    fill(&spoke, 0, 20);
    assert_eq!(spoke.push().count("sent"), 20);
    let (by, old) = (hub.leader(), hub.id(wiped));
    hub.kill(wiped);
    std::fs::remove_dir_all(hub.data(wiped)).unwrap();
    let output = hub.command(wiped).output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && err.contains("barque hub join"), "{err}");
    let token = hub.token(by, &[]);
    json(&["hub", "join", &token, "--data", &hub.data(wiped), "--json"]);
    hub.start(wiped);
    // It has no votes of before, and its old self is registered where it is, which its log says.
    let log = hub.nodes[wiped].site.path().join("hub.log");
    wait_for("it is told that its address is taken", || {
        std::fs::read_to_string(&log).unwrap().contains("registered at this node's address")
    });
    assert_ne!(hub.id(wiped), old);
    assert_eq!(hub.seen_by(by)[&hub.id(wiped)]["state"], "joining");
    let data = hub.data(by);
    json(&["hub", "node", "remove", &old, "--abandon-files", "--data", &data, "--json"]);
    hub.wait_until_whole(3);
    spoke.call_only(&[&hub.nodes[wiped].listen]);
    wait_for("what was on the old disk came again", || {
        let pass = spoke.push();
        let states = hub.nodes[by].site.manifest();
        pass.code == 0 && states.values().all(|v| v.2 == "held")
    });
    assert_whole(&hub, &[0, 1, 2], &[&spoke]);
    assert_eq!(tree(&hub.nodes[wiped].site.landing()).len(), 20);
}

fn one_of_two_nodes_is_removed_and_the_other_goes_on() {
    for removes_leader in [false, true] {
        let hub = Hub::new(2);
        let leader = hub.leader();
        let (stays, goes) =
            if removes_leader { (1 - leader, leader) } else { (leader, 1 - leader) };
        let spoke = hub.spoke_of(stays, "s");
        fill(&spoke, 0, 5);
        assert_eq!(spoke.push().count("sent"), 5);
        let (data, id) = (hub.data(stays), hub.id(goes));
        json(&["hub", "node", "remove", &id, "--data", &data, "--json"]);
        wait_for("the other one is the only voter", || {
            let seen = hub.seen_by(stays);
            seen.len() == 1 && seen.values().all(|v| v["role"] == "voter" && v["leader"] == true)
        });
        fill(&spoke, 5, 10);
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("sent")), (0, 5), "{pass:?}");
        // The last one stays.
        let own = hub.id(stays);
        let (code, _, err) =
            said(&["hub", "node", "remove", &own, "--abandon-files", "--data", &data]);
        assert!(code != 0 && err.contains("last one that votes"), "{code} {err}");
    }
    // With the third node silent, none of the other two may go: nothing could be agreed any more.
    let mut hub = Hub::new(3);
    let (leader, silent) = (hub.leader(), hub.follower());
    let goes = (0..3).find(|n| *n != leader && *n != silent).unwrap();
    hub.kill(silent);
    wait_for("the silent node is seen to be", || {
        hub.seen_by(leader)[&hub.id(silent)]["alive"] == false
    });
    let remove = ["hub", "node", "remove", &hub.id(goes), "--data", &hub.data(leader)];
    let (code, _, err) = said(&remove);
    assert!(code == 75 && err.contains("still votes"), "{code} {err}");
    let spoke = hub.spoke_of(leader, "s");
    fill(&spoke, 0, 5);
    assert_eq!(spoke.push().count("sent"), 5);
    hub.start(silent);
    wait_for("it goes once the others answer", || said(&remove).0 == 0);
}

fn nodes_come_and_go_under_load() {
    let mut hub = Hub::new(3);
    let spoke = hub.nodes[0].site.spoke("s");
    fill(&spoke, 0, 3_000);
    let pushing = spoke.start_push();
    let fourth = hub.join(&[]);
    hub.start(fourth);
    wait_for("four nodes vote", || {
        let seen = hub.seen_by(fourth);
        seen.values().filter(|v| v["role"] == "voter").count() == 4
    });
    // Drained, then removed: the leader itself.
    let (leader, by) = (hub.leader(), hub.follower());
    let id = hub.id(leader);
    json(&["hub", "node", "drain", &id, "--data", &hub.data(by), "--json"]);
    wait_for("the drained node votes no more", || {
        hub.seen_by(by)[&id]["role"] == "learner" && hub.leader() != leader
    });
    let pass = pass_of(pushing.wait_with_output().unwrap());
    pass.assert_closes();
    wait_for("the rest is pushed", || spoke.push().count("left") == 0);
    json(&["hub", "node", "remove", &id, "--abandon-files", "--data", &hub.data(by), "--json"]);
    hub.kill(leader);
    wait_for("its copies count no more", || {
        let lost: Vec<String> = hub.nodes[by].site.manifest().into_values().map(|v| v.2).collect();
        let seen = hub.seen_by(by);
        !seen.contains_key(&id) && lost.iter().all(|s| s == "held" || s == "lost")
    });
    wait_for("what it alone held came again", || {
        let pass = spoke.push();
        let states = hub.nodes[by].site.manifest();
        pass.code == 0 && states.len() == 3_000 && states.values().all(|v| v.2 == "held")
    });
    let up: Vec<usize> = (0..4).filter(|n| *n != leader).collect();
    hub.wait_until_whole(3);
    assert_whole(&hub, &up, &[&spoke]);
}

fn a_leader_killed_in_each_phase_of_a_receive_loses_and_doubles_nothing() {
    let steps = [
        "staged-synced",
        "proposed",
        "committed",
        "applied",
        "promoted",
        "promoted-synced",
        "receipt-signed",
    ];
    let mut hub = Hub::new(3);
    let spoke = hub.nodes[0].site.spoke("s");
    for (round, step) in (0u64..).zip(steps) {
        let leader = hub.leader();
        hub.stop(leader);
        let mut command = hub.command(leader);
        command.env("BARQUE_FAULT", format!("abort-after:{step}"));
        hub.start_as(leader, command);
        hub.wait_until_whole(3);
        // Whoever leads instead steps aside until it leads again.
        wait_for("the node that is to end leads", || {
            let now = hub.leader();
            if now != leader {
                hub.stop(now);
                hub.start(now);
                hub.wait_until_whole(3);
            }
            hub.leader() == leader
        });
        spoke.call_only(&[&hub.nodes[leader].listen]);
        fill(&spoke, round * 40, round * 40 + 40);
        let pass = spoke.push();
        pass.assert_closes();
        hub.reap(leader);
        hub.start(leader);
        hub.wait_until_whole(3);
        spoke.call_only(&[&hub.nodes[(leader + 1) % 3].listen]);
        wait_for("the rest is pushed", || spoke.push().count("left") == 0);
        let status: Value = spoke.status();
        assert_eq!(status["synced"], round * 40 + 40, "{step}: {status}");
        assert_whole(&hub, &[0, 1, 2], &[&spoke]);
    }
}
