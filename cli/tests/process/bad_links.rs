//! Links that cut, hang, trickle and lie: every file lands, in bounded time, and nothing counts as
//! synced that the hub does not have.

use std::collections::BTreeSet;
use std::time::Duration;

use libtest_mimic::Trial;

use crate::badnet::{BadNet, Shape};
use crate::proxy::{DAMAGED, HoldingProxy};
use crate::site::{Site, Spoke, json, sized, tiny};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    let shapes = [
        ("a_cut", Shape::Cut(200_000), None, false),
        ("a_half_open_peer", Shape::Hang(100_000), Some(3), false),
        ("a_hole_for_large_packets", Shape::Hang(1_400), Some(3), false),
        ("a_trickle", Shape::Trickle(200_000), None, false),
        ("a_lost_reply", Shape::DropReply(60_000), Some(3), false),
        ("a_long_way", Shape::Delay(Duration::from_millis(60)), None, false),
        (
            "a_silent_end_of_idle_connections",
            Shape::IdleDeath(Duration::from_millis(10)),
            Some(3),
            false,
        ),
        ("a_limit_on_bodies", Shape::TooLarge(100_000), None, true),
        ("a_login_page", Shape::Page, Some(3), true),
        ("a_redirect", Shape::Redirect, Some(3), true),
        ("answers_encoded_anew", Shape::Reencode, Some(3), true),
        ("a_swallowed_100_continue", Shape::No100, None, true),
    ];
    let mut trials: Vec<Trial> = shapes
        .into_iter()
        .map(|(name, shape, good, is_plain)| {
            Trial::test(format!("every_file_lands_through_{name}"), move || {
                through(shape, good, is_plain);
                Ok(())
            })
        })
        .collect();
    trials.extend([
        trial!(a_cut_every_five_seconds_costs_a_twentieth_at_the_most),
        trial!(hb_04_a_limit_on_bodies_is_found_remembered_and_counts_against_no_file),
        trial!(hb_06_nothing_counts_as_sent_when_something_else_answers),
        trial!(sp_10_a_poison_file_goes_last_and_is_named),
        trial!(the_next_bundle_goes_out_before_the_one_before_it_is_answered),
        trial!(the_check_in_goes_out_before_the_last_bundle_is_answered),
        trial!(what_the_last_bundle_left_is_told_at_the_end),
    ]);
    trials
}

/// From within the first bundle until within the second the spoke hears nothing.
fn the_next_bundle_goes_out_before_the_one_before_it_is_answered() {
    const FILES: u64 = 2_500;
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..FILES {
        spoke.put(&format!("d/m/2024/03/31/00/f{n:04}.parquet"), &tiny(n));
    }
    // Two pages of offers take some 0.7 MB, each bundle of 1,000 files 1.3 MB.
    let proxy = HoldingProxy::start(&hub.address, 900_000, 2_400_000);
    spoke.edit_config(&hub.address, &proxy.address);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, FILES), "{pass:?}");
    let (carried, connections) = proxy.carried();
    assert!(carried > 3_000_000, "{carried} bytes are fewer than this test is for");
    assert_eq!(connections, 1, "the spoke waited for an answer and gave the connection up");
    site.assert_landed(&[&spoke]);
}

/// Two spokes with equal files; the second hears nothing from within its bundle until it has sent
/// nearly as much as the first did in all.
fn the_check_in_goes_out_before_the_last_bundle_is_answered() {
    /// Less than a check-in takes, and more than the end of a connection.
    const LAST: u64 = 400;
    let site = Site::new();
    let hub = site.hub();
    let mut whole = None;
    for name in ["s1", "s2"] {
        let spoke = site.spoke(name);
        for n in 0..100 {
            spoke.put(&format!("d/m/2024/03/31/00/f{n:04}.parquet"), &sized(n, 3_000));
        }
        let hold = whole.map_or((u64::MAX, u64::MAX), |all| (200_000, all - LAST));
        let proxy = HoldingProxy::start(&hub.address, hold.0, hold.1);
        spoke.edit_config(&hub.address, &proxy.address);
        spoke.edit_config("stall = \"60s\"", "stall = \"3s\"");
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("sent")), (0, 100), "{pass:?}");
        let (carried, connections) = proxy.carried();
        assert_eq!(connections, 1, "the spoke waited for an answer and gave the connection up");
        assert!(carried > 400_000, "{carried} bytes are fewer than this test is for");
        whole = Some(carried);
        let shown = json(&["hub", "spoke", "show", name, "--data", &site.data(), "--json"]);
        assert_eq!(shown["report"]["pending_files"], 0, "{shown}");
    }
}

/// Beside the last bundle the hub is told that nothing will be left, and then that is not so.
fn what_the_last_bundle_left_is_told_at_the_end() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..3 {
        spoke.put(&format!("d/m/2024/03/31/00/f{n}.parquet"), &tiny(n));
    }
    let blocked = site.landing().join("s/d/m/2024/03/31/00/f1.parquet");
    std::fs::create_dir_all(blocked.parent().unwrap()).unwrap();
    std::fs::write(&blocked, "foreign").unwrap();
    let told = || {
        let shown = json(&["hub", "spoke", "show", "s", "--data", &site.data(), "--json"]);
        shown["report"]["pending_files"].as_u64().unwrap()
    };
    let pass = spoke.push();
    assert_eq!((pass.count("sent"), pass.count("left")), (2, 1), "{pass:?}");
    assert_eq!(told(), 1);
    std::fs::remove_file(&blocked).unwrap();
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), told()), (0, 1, 0), "{pass:?}");
}

/// The spoke calls the box instead of the hub, and is not patient.
fn behind(spoke: &Spoke, hub: &str, net: &BadNet) {
    spoke.edit_config(hub, &net.address);
    spoke.edit_config("stall = \"60s\"", "stall = \"2s\"");
}

/// Holds when everything that the ledger calls synced is at the hub.
fn assert_no_fake_ack(site: &Site, spoke: &Spoke) {
    let state = spoke.state();
    let synced = json(&["ledger", "ls", "--state-is", "synced", "--state", &state, "--json"]);
    let at_hub: BTreeSet<String> = site.manifest().into_keys().collect();
    for file in synced["files"].as_array().unwrap() {
        let name = format!("{}/{}", spoke.name, file["path"].as_str().unwrap());
        assert!(at_hub.contains(&name), "{name} counts as synced");
    }
}

fn through(shape: Shape, good: Option<u64>, is_plain: bool) {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", if is_plain { &["--plain"] } else { &[] });
    let spoke = site.spoke("s");
    for n in 0..40 {
        spoke.put(&format!("d/m/2024/03/31/{:02}/f{n}.parquet", n % 24), &sized(n, 3_000));
    }
    spoke.put("d/m/2024/03/31/02/middle.parquet", &sized(98, 150_000));
    spoke.put("d/m/2024/03/31/03/large.parquet", &sized(99, 600_000));
    let net = BadNet::start(&hub.address, shape, good);
    behind(&spoke, &hub.address, &net);
    if let Shape::IdleDeath(_) = shape {
        // One step of 4 KiB in 20 ms.
        spoke.edit_config("stall = ", "bandwidth = \"200kB/s\"\nstall = ");
    }
    for pass_no in 1.. {
        let pass = spoke.push();
        assert!(matches!(pass.code, 0 | 75), "{shape:?}: {pass:?}");
        assert_eq!(pass.count("failed"), 0, "{shape:?}: {pass:?}");
        assert!(pass.count("duration_ms") < 60_000, "{shape:?}: {pass:?}");
        assert_no_fake_ack(&site, &spoke);
        if pass.code == 0 && pass.count("left") == 0 {
            break;
        }
        assert!(pass_no < 6, "{shape:?} after {pass_no} passes: {pass:?}");
    }
    site.assert_landed(&[&spoke]);
    let is_quiet = matches!(shape, Shape::Trickle(_) | Shape::Delay(_) | Shape::No100);
    // What asks for no 100 Continue never meets the box that swallows it.
    assert!(is_quiet || net.treated() > 0, "{shape:?} did nothing");
}

fn a_cut_every_five_seconds_costs_a_twentieth_at_the_most() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..400 {
        spoke.put(&format!("d/m/2024/03/31/{:02}/f{n}.parquet", n % 24), &sized(n, 20_000));
    }
    spoke.put("d/m/2024/03/31/12/large.parquet", &sized(999, 12_000_000));
    let bytes: u64 = crate::site::tree(&spoke.source()).values().map(|(_, size)| size).sum();
    let net = BadNet::start(&hub.address, Shape::CutAfter(Duration::from_secs(5)), None);
    spoke.edit_config(&hub.address, &net.address);
    spoke.edit_config("settle = \"50ms\"", "settle = \"50ms\"\nbandwidth = \"1500kB/s\"");
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("left")), (0, 0), "{pass:?}");
    site.assert_landed(&[&spoke]);
    assert!(net.treated() >= 2, "{} cuts", net.treated());
    // With offers, headers and TLS around it.
    let carried = net.carried();
    assert!(carried < bytes * 105 / 100, "{carried} bytes for {bytes}");
}

fn hb_04_a_limit_on_bodies_is_found_remembered_and_counts_against_no_file() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    for (n, bytes) in [(0, 500_000), (1, 2_000_000), (2, 20_000_000)] {
        spoke.put(&format!("d/m/2024/03/31/{n:02}/f.parquet"), &sized(n, bytes));
    }
    let net = BadNet::start(&hub.address, Shape::TooLarge(1_000_000), None);
    behind(&spoke, &hub.address, &net);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 3), "{pass:?}");
    assert!(pass.stderr.contains("refuses large bodies"), "{}", pass.stderr);
    site.assert_landed(&[&spoke]);
    let refusals = net.treated();
    assert!((1..=6).contains(&refusals), "{refusals} refusals");
    // The next pass knows.
    spoke.put("d/m/2024/03/31/04/f.parquet", &sized(4, 3_000_000));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    assert_eq!(net.treated(), refusals);
    let attempts = json(&["ledger", "ls", "--state", &spoke.state(), "--json"]);
    for file in attempts["files"].as_array().unwrap() {
        assert_eq!(file["attempts"], 0, "{file}");
    }
}

fn hb_06_nothing_counts_as_sent_when_something_else_answers() {
    for shape in [Shape::Page, Shape::Redirect, Shape::Reencode] {
        let site = Site::new();
        let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
        let spoke = site.spoke("s");
        spoke.put("d/m/2024/03/31/02/f.parquet", &sized(1, 200_000));
        let net = BadNet::start(&hub.address, shape, None);
        behind(&spoke, &hub.address, &net);
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("left")), (75, 1), "{shape:?}: {pass:?}");
        assert!(pass.stderr.contains("something between"), "{shape:?}: {}", pass.stderr);
        assert_eq!(spoke.status()["synced"], 0);
        assert!(site.manifest().is_empty());
        spoke.edit_config(&net.address, &hub.address);
        assert_eq!(spoke.push().count("sent"), 1, "{shape:?}");
        site.assert_landed(&[&spoke]);
    }
}

fn sp_10_a_poison_file_goes_last_and_is_named() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    // Sorted first; something on the way takes offence at what is in it.
    let mut poison = sized(1, 200_000);
    for at in (90_000..100_000).step_by(100) {
        poison[at..at + 16].copy_from_slice(DAMAGED);
    }
    spoke.put("d/m/2024/12/31/23/a.parquet", &poison);
    for n in 0..500 {
        spoke.put(&format!("d/m/2024/03/31/{:02}/f{n}.parquet", n % 24), &sized(n + 2, 900));
    }
    let net = BadNet::start(&hub.address, Shape::Censor, None);
    behind(&spoke, &hub.address, &net);
    for pass_no in 1..=3 {
        let pass = spoke.push();
        let landed = pass.count("sent") + pass.count("present");
        assert_eq!((pass.code, landed, pass.count("left")), (75, 500, 1), "{pass_no}: {pass:?}");
        assert!(pass.stderr.contains("broke off"), "{}", pass.stderr);
    }
    let state = spoke.state();
    let waits = json(&["ledger", "ls", "--state-is", "pending", "--state", &state, "--json"]);
    let waits = waits["files"].as_array().unwrap();
    assert_eq!((waits.len(), waits[0]["attempts"].as_u64()), (1, Some(3)), "{waits:?}");
    assert!(waits[0]["detail"].as_str().is_some() && waits[0]["since"].as_str().is_some());
    spoke.edit_config(&net.address, &hub.address);
    assert_eq!(spoke.push().count("sent"), 1);
    site.assert_landed(&[&spoke]);
}
