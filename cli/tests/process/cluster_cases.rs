//! Field cases of clusters that are about machines: copied folders, nodes that were away, disks and
//! names.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

use crate::drives::fill;
use crate::machine::{Mount, lacks_mounts};
use crate::netns::{Bridged, inside, lacks, must};
use crate::nodes::{Hub, Node, get, said};
use crate::site::{Site, json, run, tiny, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_copied_folder_and_one_put_back_are_refused_by_the_others),
        trial!(cl_05_without_a_majority_files_of_other_nodes_are_read_all_the_same),
        trial!(cl_04_a_node_removed_while_it_was_away_learns_it_and_causes_no_election),
        trial!(cl_03_a_snapshot_that_finds_no_room_comes_once_there_is_some, needs lacks_mounts()),
        trial!(cl_06_nodes_find_each_other_by_names_and_scoped_addresses, needs lacks(&["ip"])),
    ]
}

fn copy_folder(from: &str, to: &str) {
    let _ = std::fs::remove_dir_all(to);
    assert!(Command::new("cp").args(["-a", from, to]).status().unwrap().success());
}

/// What a node says of why it takes no part.
fn outside(hub: &Hub, n: usize) -> String {
    run(&["hub", "status", "--data", &hub.data(n)]).2
}

fn a_copied_folder_and_one_put_back_are_refused_by_the_others() {
    let mut hub = Hub::new(3);
    let (leader, node) = (hub.leader(), hub.follower());
    let spoke = hub.spoke_of(node, "s");
    let elsewhere = Site::empty();
    hub.stop(node);
    copy_folder(&hub.data(node), &elsewhere.data());
    let copied_at = Site::empty();
    copy_folder(&hub.data(node), &copied_at.data());
    hub.start(node);
    hub.wait_until_whole(3);
    hub.nodes.push(Node::of(elsewhere));
    let copy = 3;
    let term = hub.status(leader)["term"].clone();
    // Started as often as the node itself, and then more often: the one that lives stays.
    for _ in 0..2 {
        let command = hub.command(copy);
        hub.start_without_waiting(copy, command);
        wait_for("the copy is told", || {
            let why = outside(&hub, copy);
            why.contains("two processes") && why.contains(&hub.id(node))
        });
        hub.stop(copy);
    }
    fill(&spoke, 0, 5);
    assert_eq!(spoke.push().count("sent"), 5, "the node itself goes on");
    assert_eq!(hub.status(leader)["term"], term, "nobody asked to lead");
    // A folder that moved to another machine is the node, once the other process is gone.
    hub.stop(node);
    copy_folder(&hub.data(node), &hub.data(copy));
    for _ in 0..2 {
        hub.start(copy);
        hub.wait_until_whole(3);
        hub.stop(copy);
    }
    hub.start(copy);
    hub.wait_until_whole(3);
    hub.stop(copy);
    // One of before is not.
    copy_folder(&copied_at.data(), &hub.data(node));
    let command = hub.command(node);
    hub.start_without_waiting(node, command);
    wait_for("the older folder is told", || outside(&hub, node).contains("two processes"));
    hub.stop(node);
    hub.start(copy);
    hub.wait_until_whole(3);
    fill(&spoke, 5, 10);
    spoke.call_only(&[&hub.nodes[leader].listen]);
    assert_eq!(spoke.push().count("sent"), 5);
    hub.assert_equal();
}

fn cl_04_a_node_removed_while_it_was_away_learns_it_and_causes_no_election() {
    let mut hub = Hub::new(3);
    let (leader, gone) = (hub.leader(), hub.follower());
    let spoke = hub.spoke_of(gone, "s");
    fill(&spoke, 0, 5);
    hub.signal(gone, "-STOP");
    wait_for("it stands still", || hub.stands_still(gone));
    json(&["hub", "node", "remove", &hub.id(gone), "--data", &hub.data(leader), "--json"]);
    let term = hub.status(leader)["term"].clone();
    hub.signal(gone, "-CONT");
    wait_for("it learns it, with both lists of nodes", || {
        let why = outside(&hub, gone);
        let both = ["the hub has the nodes", "this node knows the nodes"];
        why.contains("removed") && both.iter().all(|list| why.contains(list))
    });
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (75, 0), "{pass:?}");
    // The same after a restart.
    hub.stop(gone);
    let command = hub.command(gone);
    hub.start_without_waiting(gone, command);
    wait_for("it knows it still", || outside(&hub, gone).contains("removed"));
    hub.assert_no_election(leader, &term);
    spoke.call_only(&[&hub.nodes[leader].listen]);
    assert_eq!(spoke.push().count("sent"), 5);
    hub.kill(gone);
    let n = hub.join(&[]);
    hub.start(n);
    hub.wait_until_whole(3);
    hub.assert_equal();
}

fn cl_05_without_a_majority_files_of_other_nodes_are_read_all_the_same() {
    let mut hub = Hub::new(4);
    let (a, b) = (0, 1);
    let spoke = hub.spoke_of(b, "s");
    fill(&spoke, 0, 1);
    assert_eq!(spoke.push().count("sent"), 1);
    let add = |name: &str| {
        let add = ["hub", "token", "add", "--name", name, "--data", &hub.data(a), "--json"];
        json(&add)["token"].as_str().unwrap().to_owned()
    };
    let (token, revoked) = (add("me"), add("gone"));
    json(&["hub", "token", "rm", "gone", "--data", &hub.data(a), "--json"]);
    hub.assert_equal();
    hub.kill(2);
    hub.kill(3);
    let ca = format!("{}/tls/ca.pem", hub.data(a));
    // Older than what lets a spoke in: neither node can know that the other still is one.
    wait_for("both nodes are not fresh any more", || {
        [a, b].iter().all(|n| {
            let (_, head, _) = get(&hub.nodes[*n], &ca, &token, "/api/v1/files");
            let head = head.to_lowercase();
            let age = head.lines().find_map(|l| l.strip_prefix("barque-stale-ms: "));
            age.is_some_and(|ms| ms.trim().parse::<u64>().unwrap() > 11_000)
        })
    });
    let path = "/api/v1/files/s/d/m/2024/03/01/00/f0.parquet";
    for node in [a, b] {
        let (status, head, body) = get(&hub.nodes[node], &ca, &token, path);
        assert_eq!((status, body), (200, tiny(0)), "{head}");
        assert_eq!(get(&hub.nodes[node], &ca, &revoked, path).0, 401);
    }
}

/// Files of a node that are there only while a snapshot is.
fn leftovers(data: &Path) -> Vec<String> {
    let names = std::fs::read_dir(data).unwrap().map(|f| f.unwrap().file_name());
    names.map(|n| n.into_string().unwrap()).filter(|n| n.contains("snapshot")).collect()
}

fn cl_03_a_snapshot_that_finds_no_room_comes_once_there_is_some() {
    let mut hub = Hub::new(1);
    let spoke = hub.spoke_of(0, "s");
    fill(&spoke, 0, 4_000);
    assert_eq!(spoke.push().count("sent"), 4_000);
    // Leaves no log, so that whoever joins needs a snapshot.
    hub.stop(0);
    json(&["hub", "recover", "--data", &hub.data(0), "--yes", "--json"]);
    hub.start(0);
    hub.wait_until_ready(0);
    let site = Site::empty();
    let mount = Mount::of_size(site.data().into(), "64m");
    let full = hub.join_at(site, &[]);
    // It says where it is, and nobody reaches it there yet.
    let listen = hub.nodes[full].cluster.replace(":17272", ":17273");
    hub.nodes[full].advertised = Some(listen.clone());
    let command = hub.command(full);
    hub.start_without_waiting(full, command);
    let id = hub.id(full);
    wait_for("it is known", || hub.seen_by(0).get(&id).is_some_and(|v| v["state"] == "active"));
    hub.stop(full);
    (hub.nodes[full].cluster, hub.nodes[full].advertised) = (listen, None);
    let manifest = std::fs::metadata(format!("{}/manifest.db", hub.data(0))).unwrap().len();
    let filler = mount.0.join("filler");
    let free = barque_bundle::platform::free_bytes(&mount.0).unwrap();
    std::fs::write(
        &filler,
        vec![0u8; usize::try_from(free - (manifest / 2).max(1 << 20)).unwrap()],
    )
    .unwrap();
    let command = hub.command(full);
    hub.start_without_waiting(full, command);
    let log = hub.nodes[full].site.path().join("hub.log");
    wait_for("there is no room for a snapshot", || {
        std::fs::read_to_string(&log).is_ok_and(|t| t.contains("a snapshot was not kept"))
    });
    let pid = hub.pid(full);
    // The others go on meanwhile.
    fill(&spoke, 4_000, 4_010);
    assert_eq!(spoke.push().count("sent"), 10);
    std::fs::remove_file(&filler).unwrap();
    hub.wait_until_whole(2);
    hub.assert_equal();
    assert_eq!(hub.pid(full), pid, "it went on by itself");
    wait_for("nothing is left over", || {
        (0..2).all(|n| leftovers(Path::new(&hub.data(n))).is_empty())
    });
}

fn cl_06_nodes_find_each_other_by_names_and_scoped_addresses() {
    let net = Bridged::new(3);
    let _hosts = Hosts::of(
        &net,
        // The first address is one that nobody has.
        &format!("2001:db8:7::dead second.test\n{} second.test\n", Bridged::address(1)),
    );
    for (n, place) in net.places.iter().enumerate() {
        for address in [format!("2001:db8:7::{}/64", n + 1), format!("fe80::7:{}/64", n + 1)] {
            let add = ["-n", place, "address", "add", &address, "dev", "veth0", "nodad"];
            must("ip", &add);
        }
    }
    let first = |family: &str| {
        let mut command = Command::new("getent");
        command.args([family, "second.test"]);
        let found = inside(&net.places[0], &command).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    };
    assert!(first("ahosts").starts_with("2001:db8:7::dead"), "the dead one comes first");
    let hub = Hub::in_places_at(
        &net,
        &[
            ("[fe80::7:1%veth0]:7272", None),
            ("0.0.0.0:7272", Some("second.test:7272")),
            ("[::]:7272", Some("[2001:db8:7::3]:7272")),
        ],
    );
    // Each took part in agreeing, and calls each.
    for n in 0..3 {
        let (code, _, err) =
            said(&["hub", "spoke", "add", &format!("s{n}"), "--data", &hub.data(n)]);
        assert_eq!(code, 0, "{err}");
        let seen = hub.seen_by(n);
        assert!(seen.values().all(|v| v["alive"] == true), "{seen:?}");
    }
    hub.assert_equal();
}

/// A hosts file for the places of a test alone.
struct Hosts(Vec<std::path::PathBuf>);

impl Hosts {
    fn of(net: &Bridged, lines: &str) -> Self {
        let folders = net.places.iter().map(|p| Path::new("/etc/netns").join(p));
        let hosts = Self(folders.collect());
        for folder in &hosts.0 {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("hosts"), format!("127.0.0.1 localhost\n{lines}")).unwrap();
        }
        hosts
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for folder in &self.0 {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
