//! One spoke with several hubs, one hub with several addresses, two machines with one state
//! folder, and a ledger that is made anew at a person's wish.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use libtest_mimic::Trial;

use crate::badnet::{BadNet, Shape};
use crate::site::{Pass, Site, Spoke, barque, json, pass_of, run, sized, tiny};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(several_hubs_are_served_each_and_one_that_is_down_holds_up_no_other),
        trial!(a_hub_with_several_addresses_is_reached_by_whichever_answers),
        trial!(what_is_more_urgent_goes_first_and_the_newest_of_it),
        trial!(a_copied_state_folder_is_warned_of_keeps_both_data_sets_and_heals),
        trial!(a_rebuilt_ledger_sends_nothing_again_and_keeps_what_a_person_decided),
    ]
}

fn hub_of(pass: &Pass, n: usize) -> &serde_json::Value {
    if n == 0 { &pass.report } else { &pass.report["other_hubs"][n - 1] }
}

fn several_hubs_are_served_each_and_one_that_is_down_holds_up_no_other() {
    let (first, second) = (Site::new(), Site::new());
    let (hub_a, hub_b) = (first.hub(), second.hub());
    let spoke = first.spoke("s");
    let added = json(&["hub", "spoke", "add", "s", "--data", &second.data(), "--json"]);
    let token = added["token"].as_str().unwrap();
    json(&["enroll", token, "--state", &spoke.state(), "--json"]);
    for n in 0..30 {
        spoke.put(&format!("d/m/2024/03/31/{:02}/f{n}.parquet", n % 24), &tiny(n));
    }
    // The first hub is away; the second gets everything all the same.
    let address = hub_a.address.clone();
    hub_a.kill();
    let pass = pass_of(spoke.push_command().output().unwrap());
    assert_eq!(pass.code, 75, "{pass:?}");
    assert_eq!(
        (&hub_of(&pass, 0)["left"], &hub_of(&pass, 0)["hub_reached"]),
        (&30.into(), &false.into())
    );
    assert_eq!((&hub_of(&pass, 1)["sent"], &hub_of(&pass, 1)["left"]), (&30.into(), &0.into()));
    second.assert_landed(&[&spoke]);
    let _hub_a = first.hub_with(&address, &[]);
    let pass = pass_of(spoke.push_command().output().unwrap());
    assert_eq!((pass.code, pass.count("sent")), (0, 30), "{pass:?}");
    assert_eq!(hub_of(&pass, 1)["present"], 30, "{pass:?}");
    first.assert_landed(&[&spoke]);
    // Each hub has its own rows; one may be asked for alone.
    let status = json(&["status", "--json", "--state", &spoke.state()]);
    let synced: Vec<_> =
        status["hubs"].as_array().unwrap().iter().map(|h| h["synced"].as_u64()).collect();
    assert_eq!(synced, [Some(30), Some(30)]);
    spoke.put("d/m/2024/04/01/00/new.parquet", &tiny(99));
    let only = status["hubs"][1]["hub_id"].as_str().unwrap();
    let pass = pass_of(spoke.push_command().args(["--hub", only]).output().unwrap());
    assert_eq!((pass.code, pass.count("sent"), &pass.report["hub_id"]), (0, 1, &only.into()));
    let (code, _, err) =
        run(&["push", "--hub", "01M8MPNAS5KDXS69TSWHK0PN29", "--state", &spoke.state()]);
    assert!(code == 1 && err.contains("not enrolled at hub"), "{code} {err}");
    drop(hub_b);
}

fn a_hub_with_several_addresses_is_reached_by_whichever_answers() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    // Nothing listens at the first, something else answers at the second, the third is right.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let portal = BadNet::start(&hub.address, Shape::Page, None);
    let (from, url) = (format!("\"http://{}\"", hub.address), |a: &str| format!("\"http://{a}\""));
    let all = [url(&closed.to_string()), url(&portal.address), url(&hub.address)].join(", ");
    spoke.edit_config(&from, &all);
    for n in 0..5 {
        spoke.put(&format!("d/m/2024/03/31/02/f{n}.parquet"), &tiny(n));
    }
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 5), "{pass:?}");
    assert!(portal.treated() > 0);
    site.assert_landed(&[&spoke]);
    // Two in a row at which nothing listens, with a slash that a person put there.
    let closed =
        [url(&format!("{closed}/")), url(&format!("localhost:{}", closed.port()))].join(", ");
    let two = [closed, url(&format!("{}/", hub.address))].join(", ");
    spoke.edit_config(&all, &two);
    spoke.put("d/m/2024/03/31/03/more.parquet", &tiny(9));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
}

fn what_is_more_urgent_goes_first_and_the_newest_of_it() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..6 {
        spoke.put(&format!("bulk/m/2024/06/{:02}/00/f.parquet", n + 1), &sized(n, 100_000));
        spoke.put(&format!("alarms/m/2024/01/{:02}/00/f.parquet", n + 1), &sized(n + 10, 100_000));
        spoke.put(&format!("plain/m/2024/03/{:02}/00/f.parquet", n + 1), &sized(n + 20, 100_000));
    }
    let order = "[[priority]]\nmatch = \"alarms/**\"\nclass = 1\n\n[[priority]]\nmatch = \"bulk/**\"\nclass = 500\n\n[[hubs]]";
    spoke.edit_config("[[hubs]]", order);
    let landed = |more: &str| {
        let pass = pass_of(spoke.push_command().args(["--max-bytes", more]).output().unwrap());
        assert_eq!(pass.code, 0, "{pass:?}");
        crate::site::tree(&site.landing()).into_keys().collect::<Vec<_>>()
    };
    let is = |names: &[String], folder: &str, days: std::ops::RangeInclusive<u32>| {
        let of: Vec<&String> =
            names.iter().filter(|n| n.starts_with(&format!("s/{folder}/"))).collect();
        let expected = days.clone().count();
        assert_eq!(of.len(), expected, "{folder}: {names:?}");
        for (name, day) in of.iter().zip(days) {
            assert!(name.contains(&format!("/{day:02}/00/")), "{folder} {day}: {names:?}");
        }
    };
    // Room for three of them: the newest alarms, though all other files are newer.
    let first = landed("330kB");
    is(&first, "alarms", 4..=6);
    assert_eq!(first.len(), 3, "{first:?}");
    let second = landed("550kB");
    is(&second, "alarms", 1..=6);
    is(&second, "plain", 5..=6);
    // What waits goes as the settings say now.
    spoke.edit_config("class = 500", "class = 50");
    let third = landed("220kB");
    is(&third, "bulk", 5..=6);
    is(&third, "plain", 5..=6);
    spoke.edit_config("class = 50", "class = 5000");
    let (code, _, err) = run(&["push", "--state", &spoke.state()]);
    assert!(code != 0 && err.contains("priority: class = 5000"), "{code} {err}");
}

/// A state folder as a disk image of the whole machine would copy it.
fn copied(site: &Site, spoke: &Spoke, name: &str) -> Spoke {
    let copy = site.unenrolled(name);
    fs::create_dir_all(copy.state()).unwrap();
    for file in ["ledger.db", "identity.json", "spoke.toml"] {
        fs::copy(Path::new(&spoke.state()).join(file), Path::new(&copy.state()).join(file))
            .unwrap();
    }
    let (from, to) = (spoke.source(), copy.source());
    copy.edit_config(&from.display().to_string(), &to.display().to_string());
    copy
}

fn a_copied_state_folder_is_warned_of_keeps_both_data_sets_and_heals() {
    let site = Site::new();
    let _hub = site.hub();
    let a = site.spoke("box");
    a.put("d/m/2024/03/31/00/common.parquet", &tiny(1));
    assert_eq!(a.push().count("sent"), 1);
    let b = copied(&site, &a, "copy");
    b.put("d/m/2024/03/31/00/common.parquet", &tiny(1));
    let (mut sent_by_a, mut warned) = (1, 0);
    for round in 0..4u64 {
        for (n, spoke) in [&a, &b].into_iter().enumerate() {
            let name = format!("d/m/2024/04/{:02}/00/of-{n}.parquet", round + 1);
            spoke.put(&name, &tiny(100 + 10 * round + n as u64));
            let pass = spoke.push();
            assert_eq!((pass.code, pass.count("sent"), pass.count("left")), (0, 1, 0), "{pass:?}");
            sent_by_a += u64::from(n == 0);
            warned += u64::from(pass.warnings() == ["forked_series"]);
        }
    }
    assert!(warned >= 4, "{warned} warnings");
    assert_eq!(site.manifest().len(), 9, "both data sets are there");
    let log = fs::read_to_string(site.path().join("hub.log")).unwrap();
    assert!(log.contains("forked_series"), "{log}");
    let show = || json(&["hub", "spoke", "show", "box", "--data", &site.data(), "--json"]);
    assert!(show()["forked_at"].is_string());
    // The copy becomes a spoke of its own.
    let add = |name: &str| {
        let added = json(&["hub", "spoke", "add", name, "--data", &site.data(), "--json"]);
        added["token"].as_str().unwrap().to_owned()
    };
    let token = add("box-2");
    let (code, _, err) = run(&["enroll", &token, "--state", &b.state()]);
    assert!(code == 1 && err.contains("--new-identity"), "{code} {err}");
    json(&["enroll", &token, "--new-identity", "--state", &b.state(), "--json"]);
    // A token that was interrupted is taken up again.
    assert!(!Path::new(&b.state()).join("identity.next.json").exists());
    let pass = b.push();
    // The copy's own folder holds what it brought before; it lands under its new name.
    assert_eq!((pass.code, pass.count("sent"), pass.count("conflict")), (0, 5, 0), "{pass:?}");
    assert_eq!(a.push().code, 0);
    let forked_at = show()["forked_at"].clone();
    for round in 0..3 {
        for (n, spoke) in [&a, &b].into_iter().enumerate() {
            spoke.put(
                &format!("d/m/2024/05/{:02}/00/of-{n}.parquet", round + 1),
                &tiny(500 + 10 * round + n as u64),
            );
            let pass = spoke.push();
            assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
            assert!(pass.warnings().is_empty(), "{pass:?}");
            sent_by_a += u64::from(n == 0);
        }
    }
    assert_eq!(show()["forked_at"], forked_at, "healed");
    let of_a = site.manifest().keys().filter(|k| k.starts_with("box/")).count() as u64;
    assert_eq!(of_a, sent_by_a + 4);
}

fn a_rebuilt_ledger_sends_nothing_again_and_keeps_what_a_person_decided() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..20 {
        spoke.put(&format!("d/m/2024/03/31/{n:02}/f.parquet"), &tiny(n));
    }
    assert_eq!(spoke.push().count("sent"), 20);
    spoke.put("d/m/2024/03/31/00/f.parquet", &tiny(77));
    assert_eq!(spoke.push().count("modified"), 1);
    let state = spoke.state();
    json(&["ledger", "dismiss", "--all", "modified", "--state", &state, "--json"]);
    let dry = json(&["ledger", "rebuild", "--dry-run", "--state", &state, "--json"]);
    assert_eq!(
        (&dry["aside"], spoke.status()["synced"].as_u64()),
        (&serde_json::Value::Null, Some(19))
    );
    let mut killed = barque(&["ledger", "rebuild", "--state", &state]);
    killed.env("BARQUE_FAULT", "abort-after:ledger-kept");
    assert_eq!(killed.output().unwrap().status.signal(), Some(6));
    let pass = spoke.push();
    assert_eq!((pass.count("skipped"), pass.count("conflict")), (1, 0), "{pass:?}");
    let passes = json(&["passes", "--state", &state, "--json"])["passes"].as_array().unwrap().len();
    let done = json(&["ledger", "rebuild", "--state", &state, "--json"]);
    assert!(fs::metadata(done["aside"].as_str().unwrap()).is_ok(), "{done}");
    assert_eq!(done["dismissed"], 1);
    assert_eq!(done["hubs"][0]["replaces"], dry["hubs"][0]["replaces"]);
    let pass = spoke.push();
    let counts = (pass.code, pass.count("present"), pass.count("sent"), pass.count("skipped"));
    assert_eq!(counts, (0, 19, 0, 1), "{pass:?}");
    assert_eq!(pass.count("wire_bytes"), 0);
    let after = json(&["passes", "--state", &state, "--json"])["passes"].as_array().unwrap().len();
    assert_eq!(after, passes + 1);
    // An unreadable one is set aside too.
    fs::write(Path::new(&state).join("ledger.db"), "not a database").unwrap();
    json(&["ledger", "rebuild", "--state", &state, "--json"]);
    assert_eq!(spoke.push().count("conflict"), 1);
}
