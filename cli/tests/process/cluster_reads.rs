//! What a node knows and lets be known: reads that wait, keys that are dead, addresses that stay
//! inside, disks that are full.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use crate::machine::{Mount, lacks_mounts};
use crate::netns::{Bridged, lacks};
use crate::nodes::{Hub, get, said};
use crate::site::{Site, Spoke, barque, json, pass_of, tiny, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_read_sees_what_was_agreed_before_it_when_it_asks_to),
        trial!(a_disabled_spoke_is_refused_by_each_node_and_by_one_that_is_cut_off),
        trial!(a_spoke_moves_on_from_a_node_that_lets_nobody_in_and_comes_back),
        trial!(no_inner_address_reaches_a_client),
        trial!(a_hub_lives_on_ipv6_addresses_in_brackets),
        trial!(another_hub_at_a_nodes_address_is_said_and_joins_nothing),
        trial!(a_full_disk_holds_one_node_up_and_it_goes_on_by_itself, needs lacks_mounts()),
        trial!(a_leader_on_the_small_side_acknowledges_nothing, needs lacks(&["ip"])),
    ]
}

fn fill(spoke: &Spoke, from: u64, to: u64) {
    for n in from..to {
        spoke.put(&format!("d/m/2024/03/{:02}/00/f{n}.parquet", n % 28 + 1), &tiny(n));
    }
}

fn token(hub: &Hub, n: usize) -> String {
    let add = ["hub", "token", "add", "--name", "me", "--data", &hub.data(n), "--json"];
    json(&add)["token"].as_str().unwrap().to_owned()
}

fn position_of(head: &str) -> u64 {
    let line = head.lines().find(|l| l.to_lowercase().starts_with("barque-position:")).unwrap();
    line.split(':').nth(1).unwrap().trim().parse().unwrap()
}

fn a_read_sees_what_was_agreed_before_it_when_it_asks_to() {
    let hub = Hub::new(3);
    let (leader, follower) = (hub.leader(), hub.follower());
    let token = token(&hub, leader);
    let spoke = hub.spoke_of(leader, "s");
    hub.assert_equal();
    let ca = format!("{}/tls/ca.pem", hub.data(0));
    for n in 1..=20 {
        fill(&spoke, n, n + 1);
        assert_eq!(spoke.push().count("sent"), 1);
        let there = &hub.nodes[follower];
        let (status, head, body) =
            get(there, &ca, &token, "/api/v1/files?consistency=linearizable&limit=1000");
        let list: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, list["files"].as_array().unwrap().len() as u64), (200, n), "{head}");
        assert_eq!(position_of(&head), n);
        // What one node said is known at another by its position.
        let other = (0..3).find(|o| *o != leader && *o != follower).unwrap();
        let path = format!("/api/v1/files?seen_position={n}");
        let (_, head, _) = get(&hub.nodes[other], &ca, &token, &path);
        assert!(position_of(&head) >= n, "{head}");
    }
    let odd = get(&hub.nodes[follower], &ca, &token, "/api/v1/files?consistency=strong");
    assert_eq!(odd.0, 400);
}

fn a_disabled_spoke_is_refused_by_each_node_and_by_one_that_is_cut_off() {
    let mut hub = Hub::new(3);
    let (leader, follower) = (hub.leader(), hub.follower());
    let spoke = hub.spoke_of(follower, "s");
    fill(&spoke, 0, 3);
    assert_eq!(spoke.push().code, 0);
    // Cut off: the other two are gone, and with them whoever could say that a key is dead.
    let others: Vec<usize> = (0..3).filter(|n| *n != follower).collect();
    others.iter().for_each(|n| hub.kill(*n));
    let begun = Instant::now();
    fill(&spoke, 3, 4);
    wait_for("a node that was cut off lets no spoke in", || {
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("sent")), (75, 0), "{pass:?}");
        begun.elapsed() > Duration::from_secs(11)
    });
    let ca = format!("{}/tls/ca.pem", hub.data(follower));
    let (status, _, body) = get(&hub.nodes[follower], &ca, "x", "/readyz");
    assert!(status == 200 || status == 503, "{}", String::from_utf8_lossy(&body));
    others.iter().for_each(|n| hub.start(*n));
    hub.wait_until_whole(3);
    assert_eq!(spoke.push().code, 0);
    json(&["hub", "spoke", "disable", "s", "--data", &hub.data(leader), "--json"]);
    let begun = Instant::now();
    fill(&spoke, 4, 5);
    wait_for("a follower refuses the disabled spoke", || spoke.push().code == 6);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    hub.assert_equal();
    assert_eq!(hub.nodes[leader].site.manifest().len(), 4);
}

fn a_spoke_moves_on_from_a_node_that_lets_nobody_in_and_comes_back() {
    let mut hub = Hub::new(3);
    let (leader, first) = (hub.leader(), hub.follower());
    let spoke = hub.spoke_of(first, "s");
    spoke.call_only(&[&hub.nodes[first].listen, &hub.nodes[leader].listen]);
    fill(&spoke, 0, 3);
    assert_eq!(spoke.push().count("sent"), 3);
    let landed = |hub: &Hub, n: usize| crate::site::tree(&hub.nodes[n].site.landing()).len();
    assert_eq!((landed(&hub, first), landed(&hub, leader)), (3, 0), "the first comes first");
    hub.kill(first);
    fill(&spoke, 3, 6);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 3), "{pass:?}");
    assert_eq!(landed(&hub, leader), 3);
    hub.start(first);
    hub.wait_until_whole(3);
    fill(&spoke, 6, 9);
    assert_eq!(spoke.push().count("sent"), 3);
    assert_eq!(landed(&hub, first), 6, "it comes back to the first address");
    // Alive, and none of the hub's any more.
    let id = hub.id(first);
    let remove = ["hub", "node", "remove", &id, "--abandon-files", "--data", &hub.data(leader)];
    assert_eq!(said(&remove).0, 0);
    wait_for("the removed node knows", || {
        said(&["hub", "status", "--data", &hub.data(first)]).2.contains("removed")
    });
    fill(&spoke, 9, 12);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("left")), (0, 0), "{pass:?}");
    assert!(landed(&hub, leader) >= 6);
    assert_eq!(landed(&hub, first), 6);
}

fn no_inner_address_reaches_a_client() {
    let mut hub = Hub::new(3);
    let (leader, down) = (hub.leader(), hub.follower());
    let token = token(&hub, leader);
    let spoke = hub.spoke_of(down, "s");
    fill(&spoke, 0, 2);
    assert_eq!(spoke.push().code, 0);
    hub.assert_equal();
    hub.kill(down);
    let ca = format!("{}/tls/ca.pem", hub.data(leader));
    wait_for("the node is seen to be down", || {
        let seen = hub.seen_by(leader);
        seen.values().any(|v| v["alive"] == false && v["last_error"].is_string())
    });
    let paths = [
        "/hub/status",
        "/metrics",
        "/api/v1/cluster/nodes",
        "/api/v1/files",
        "/api/v1/files/s/d/m/2024/03/01/00/f0.parquet",
        "/api/v1/bundle-import/history/s",
        "/api/v1/nothing",
        "/openapi.json",
    ];
    for path in paths {
        let (_, head, body) = get(&hub.nodes[leader], &ca, &token, path);
        let all = format!("{head}{}", String::from_utf8_lossy(&body));
        for node in &hub.nodes {
            assert!(!all.contains(&node.cluster), "{path} tells {}: {all}", node.cluster);
            let port = node.cluster.rsplit(':').next().unwrap();
            assert!(!all.contains(&format!(":{port}")), "{path} tells port {port}: {all}");
        }
        assert!(!all.contains(".node.barque"), "{path}: {all}");
    }
}

/// A port of an IPv6 address that nobody listens on at the moment.
fn free_port(address: &str) -> u16 {
    let listener = std::net::TcpListener::bind((address, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn a_hub_lives_on_ipv6_addresses_in_brackets() {
    let first = Site::new();
    let mut serving = first.serve(&format!("[::1]:{}", free_port("::1")));
    serving.args(["--cluster-listen", &format!("[::1]:{}", free_port("::1"))]);
    let _first = first.start(serving);
    let data = first.data();
    let added = json(&["hub", "node", "add", "--data", &data, "--json"]);
    let second = Site::empty();
    json(&["hub", "join", added["token"].as_str().unwrap(), "--data", &second.data(), "--json"]);
    let cluster = free_port("::");
    let mut serving = second.serve("[::1]:0");
    // A name with more than one address, of which one may lead nowhere.
    serving.args(["--cluster-listen", &format!("[::]:{cluster}")]);
    serving.args(["--cluster-advertise", &format!("localhost:{cluster}")]);
    let _second = second.start_process(serving);
    wait_for("both vote", || {
        let list = json(&["hub", "node", "ls", "--data", &data, "--json"]);
        let nodes = list["nodes"].as_array().unwrap().clone();
        nodes.iter().filter(|v| v["role"] == "voter" && v["alive"] == true).count() == 2
    });
    for odd in ["::1", "::1:7001", "localhost", "[::1]"] {
        let (code, _, err) =
            said(&["hub", "serve", "--data", &Site::new().data(), "--cluster-listen", odd]);
        assert!(code == 1 && err.contains("host:port"), "{odd}: {code} {err}");
    }
}

fn another_hub_at_a_nodes_address_is_said_and_joins_nothing() {
    let mut hub = Hub::with(2, &["--cluster-plain"]);
    let stranger = Site::new();
    let shared = std::fs::read(format!("{}/cluster.token", hub.data(0))).unwrap();
    std::fs::write(format!("{}/cluster.token", stranger.data()), shared).unwrap();
    let gone = hub.follower();
    let left = 1 - gone;
    hub.stop(gone);
    let mut serving = stranger.serve("127.0.0.1:0");
    serving.args(["--cluster-listen", &hub.nodes[gone].cluster, "--cluster-plain"]);
    let _stranger = stranger.start(serving);
    wait_for("writes are refused, and both hubs are named", || {
        let (code, _, err) = said(&["hub", "spoke", "add", "x", "--data", &hub.data(left)]);
        code == 75 && err.contains("this node is of hub") && err.contains("the caller of")
    });
    drop(_stranger);
    hub.start(gone);
    hub.wait_until_whole(2);
    hub.assert_equal();
}

fn a_full_disk_holds_one_node_up_and_it_goes_on_by_itself() {
    let mut hub = Hub::new(2);
    let site = Site::empty();
    let mount = Mount::of_size(site.data().into(), "64m");
    let full = hub.join_at(site, &[]);
    hub.start(full);
    hub.wait_until_whole(3);
    let spoke = hub.spoke_of(hub.leader(), "s");
    let pid = hub.pid(full);
    // Filled to the last byte by somebody else.
    let filler = mount.0.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[0u8; 4096]).is_ok() {}
    drop(file);
    spoke.call_only(&[&hub.nodes[if hub.leader() == full { 0 } else { hub.leader() }].listen]);
    fill(&spoke, 0, 800);
    wait_for("pushes go on without it", || {
        let pass = spoke.push();
        pass.code == 0 && pass.count("left") == 0
    });
    assert_eq!(hub.pid(full), pid);
    std::fs::remove_file(filler).unwrap();
    hub.wait_until_whole(3);
    hub.assert_equal();
    assert_eq!(hub.pid(full), pid, "it went on by itself");
    assert_eq!(hub.nodes[full].site.manifest().len(), 800);
}

fn a_leader_on_the_small_side_acknowledges_nothing() {
    let net = Bridged::new(3);
    let hub = Hub::in_places(&net);
    let (leader, other) = (hub.leader(), hub.follower());
    let spoke = |n: usize, name: &str| {
        let spoke = hub.nodes[n].site.unenrolled(name);
        let data = hub.data(n);
        let added = json(&["hub", "spoke", "add", name, "--data", &data, "--json"]);
        let (state, source) = (spoke.state(), spoke.source().display().to_string());
        let token = added["token"].as_str().unwrap();
        let enroll = barque(&["enroll", token, "--state", &state, "--source", &source]);
        assert!(hub.where_is(n, enroll).status().unwrap().success());
        spoke.edit_config("settle = \"2s\"", "settle = \"50ms\"");
        spoke.call_only(&[&hub.nodes[n].listen]);
        spoke
    };
    let push =
        |n: usize, spoke: &Spoke| pass_of(hub.where_is(n, spoke.push_command()).output().unwrap());
    let (small, large) = (spoke(leader, "small"), spoke(other, "large"));
    fill(&small, 0, 5);
    fill(&large, 0, 5);
    assert_eq!((push(leader, &small).count("sent"), push(other, &large).count("sent")), (5, 5));
    hub.assert_equal();
    net.cut(leader);
    fill(&small, 5, 10);
    fill(&large, 5, 10);
    // Nothing that it takes could ever be agreed on, and it says so.
    let pass = push(leader, &small);
    assert_eq!((pass.code, pass.count("sent")), (75, 0), "{pass:?}");
    wait_for("the large side goes on", || push(other, &large).count("left") == 0);
    assert_eq!(large.status()["synced"], 10);
    let old = hub.nodes[leader].site.manifest();
    assert_eq!(old.len(), 10, "reads go on with what was known");
    net.mend(leader);
    hub.wait_until_whole(3);
    wait_for("the small side goes on", || push(leader, &small).count("left") == 0);
    hub.assert_equal();
    assert_eq!(hub.nodes[leader].site.manifest().len(), 20);
}
