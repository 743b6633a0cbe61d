//! The exact words of what goes wrong: what, what it means for the data, what to do.
//!
//! Addresses, folders, times and ids stand as words in capitals.

use std::path::Path;
use std::process::Command;

use libtest_mimic::Trial;

use crate::badnet::{BadNet, Shape};
use crate::machine::{Mount, lacks_mounts};
use crate::site::{
    CLOCK, Site, Spoke, barque, ended, faketime_library, json, own_address, run, sized, tiny,
    with_clock,
};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(an_unreachable_hub_says_what_waits_since_when_and_what_happens_next),
        trial!(a_wrong_root_says_that_nothing_was_sent_and_how_to_go_on),
        trial!(a_wrong_clock_is_told_with_both_times, needs lacks_faketime()),
        trial!(a_used_or_expired_token_says_how_to_get_another, needs lacks_faketime()),
        trial!(a_disabled_spoke_says_who_lets_it_in_again),
        trial!(a_full_hub_names_folder_needed_and_free, needs lacks_mounts()),
        trial!(a_conflict_shows_both_contents_and_the_ways_out),
        trial!(something_between_is_shown_as_it_answered),
        trial!(a_copied_state_folder_says_how_to_heal),
    ]
}

pub fn lacks_faketime() -> Option<String> {
    faketime_library().is_none().then(|| "libfaketime is absent".to_owned())
}

/// A text in which everything that differs from run to run is a word.
fn plain(site: &Site, hub: &str, text: &str) -> String {
    let text = text.replace(hub, "HUB").replace(site.path().to_str().unwrap(), "DIR");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some(at) = ["19", "20"].iter().filter_map(|century| rest.find(century)).min() {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let time = from.get(..24).filter(|t| t.ends_with('Z') && t.as_bytes()[10] == b'T');
        match time {
            Some(_) => out.push_str("TIME"),
            None => out.push_str(&from[..2]),
        }
        rest = &from[if time.is_some() { 24 } else { 2 }..];
    }
    out.push_str(rest);
    out
}

/// What a push of a person says on stderr, and its exit code.
fn says(site: &Site, hub: &str, mut push: Command) -> (i32, String) {
    let suite = std::env::var_os(CLOCK);
    let is_of_suite =
        push.get_envs().any(|(name, value)| name == "FAKETIME" && value == suite.as_deref());
    let (code, _, err) = ended(push.output().unwrap());
    let mut said = plain(site, hub, &err);
    if is_of_suite {
        // All of them run with a wrong clock, which is said as well.
        let others = said.lines().filter(|l| !l.starts_with("warning: clock"));
        said = others.map(|l| format!("{l}\n")).collect();
    }
    (code, said)
}

fn push(spoke: &Spoke) -> Command {
    barque(&["push", "--state", &spoke.state()])
}

fn three_files(spoke: &Spoke) {
    for n in 0..3 {
        spoke.put(&format!("d/m/2024/03/31/0{n}/f.parquet"), &tiny(n));
    }
}

fn an_unreachable_hub_says_what_waits_since_when_and_what_happens_next() {
    let site = Site::new();
    let hub = site.hub_with(&format!("{}:0", own_address()), &[]);
    let spoke = site.spoke("s");
    three_files(&spoke);
    let address = hub.address.clone();
    hub.kill();
    let said = says(&site, &address, push(&spoke));
    let expected = "error: the hub at https://HUB cannot be reached (Connection refused (os error \
                    111)); 3 files (261 B) wait, the oldest since TIME; nothing is lost, the next \
                    push goes on\n";
    assert_eq!(said, (75, expected.to_owned()));
}

fn a_wrong_root_says_that_nothing_was_sent_and_how_to_go_on() {
    let (site, other) = (Site::new(), Site::new());
    let (hub, stranger) = (site.hub(), other.hub());
    let spoke = site.spoke("s");
    three_files(&spoke);
    spoke.edit_config(&hub.address, &stranger.address);
    let said = says(&site, &stranger.address, push(&spoke));
    let expected = "error: what answers at https://HUB is not the hub that this spoke trusts \
                    (wrong root): another hub, or somebody in between; 3 files (261 B) wait, the \
                    oldest since TIME; nothing was sent. If the hub was set up anew, enroll this \
                    spoke again: barque hub spoke add NAME there, barque enroll TOKEN here; if \
                    not, find out who answers\n";
    assert_eq!(said, (6, expected.to_owned()));
}

fn a_wrong_clock_is_told_with_both_times() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    three_files(&spoke);
    let mut late = push(&spoke);
    with_clock(&mut late, "-3h");
    let said = says(&site, &hub.address, late);
    let expected = "warning: clock: this machine's clock (TIME) is 3 hours behind the hub's \
                    (TIME); passes go by the hub's time, so nothing is lost. Set the clock, since \
                    log lines and modification times are this machine's\n";
    assert_eq!(said, (0, expected.to_owned()));
    site.assert_landed(&[&spoke]);
}

fn enroll(site: &Site, name: &str, token: &str) -> (i32, String) {
    let spoke = site.unenrolled(name);
    let source = spoke.source().display().to_string();
    let mut c = barque(&["enroll", token, "--state", &spoke.state(), "--source", &source]);
    let (code, _, err) = ended(c.output().unwrap());
    (code, err)
}

fn a_used_or_expired_token_says_how_to_get_another() {
    let site = Site::new();
    let mut serve = site.serve("127.0.0.1:0");
    // A hub whose clock stands where this test puts it.
    with_clock(&mut serve, "-10d");
    let hub = site.start(serve);
    let add = |name: &str| {
        let added = json(&["hub", "spoke", "add", name, "--data", &site.data(), "--json"]);
        added["token"].as_str().unwrap().to_owned()
    };
    let (used, late) = (add("a"), add("b"));
    assert_eq!(enroll(&site, "a", &used).0, 0);
    let expected = "error: the token was used before, by another key; get a new token from the \
                    hub's operator: barque hub spoke add (token_used)\n";
    assert_eq!(enroll(&site, "a2", &used), (6, expected.to_owned()));
    assert_eq!(hub.stop(), 0);
    let hub = site.hub();
    // The same port is not promised to the second hub: the token says where to call.
    let late = retold(&late, &hub.address);
    let expected = "error: the token has expired; get a new token from the hub's operator: barque \
                    hub spoke add (token_expired)\n";
    assert_eq!(enroll(&site, "b", &late), (6, expected.to_owned()));
    // Which works for a name that nobody has used yet, and for no other.
    assert_eq!(enroll(&site, "b2", &add("b")).0, 0);
    let (code, _, err) = run(&["hub", "spoke", "add", "b", "--data", &site.data()]);
    assert!(code == 4, "{code} {err}");
}

/// The token with another address in it.
fn retold(token: &str, address: &str) -> String {
    let mut t = barque_bundle::wire::EnrollToken::decode(token).unwrap();
    t.urls = vec![format!("https://{address}")];
    t.encode()
}

fn a_disabled_spoke_says_who_lets_it_in_again() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    three_files(&spoke);
    json(&["hub", "spoke", "disable", "s", "--data", &site.data(), "--json"]);
    let said = says(&site, &hub.address, push(&spoke));
    let expected = "error: s is disabled on this hub; an operator has to enable it \
                    (spoke_disabled); 3 files (261 B) wait, the oldest since TIME; nothing is \
                    lost; the hub's operator lets it in again: barque hub spoke enable NAME\n";
    assert_eq!(said, (6, expected.to_owned()));
}

fn a_full_hub_names_folder_needed_and_free() {
    let site = Site::new();
    let mount = Mount::of_size(site.path().join("disk"), "4m");
    let config = site.path().join("barque.toml");
    let landing = mount.0.join("landing");
    std::fs::write(&config, format!("[hub.landing]\ndir = {landing:?}\n")).unwrap();
    let mut serve = site.serve("127.0.0.1:0");
    serve.env("BARQUE_CONFIG", &config);
    let hub = site.start(serve);
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/f.parquet", &sized(1, 8_000_000));
    let (code, said) = says(&site, &hub.address, push(&spoke));
    let log = said.lines().next().unwrap();
    assert!(log.contains("WARN the hub is full; no more files are sent this time"), "{said}");
    let expected = "error: the hub's disk is full: DIR/disk/landing.staging has 4.1 MB free, 8.0 \
                    MB are needed (with what is under way) and 209.7 kB stay free; its operator \
                    has to make room there, nothing was lost (hub_full); 1 file (8.0 MB) waits, \
                    the oldest since TIME; nothing is lost, the next push goes on";
    assert_eq!((code, said.lines().nth(1).unwrap()), (75, expected));
}

fn a_conflict_shows_both_contents_and_the_ways_out() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    let path = "d/m/2024/03/31/02/f.parquet";
    spoke.put(path, &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    spoke.put(path, &tiny(2));
    spoke.push();
    json(&["ledger", "requeue", path, "--state", &spoke.state(), "--json"]);
    let (code, said) = says(&site, &hub.address, push(&spoke));
    let digest = |n| barque_bundle::Sha256Digest::of(&tiny(n));
    let expected = format!(
        "conflict: {path}: the hub holds other content under this path, and keeps it\n\
         \x20 ours:  {}, modified TIME\n\
         \x20 hub's: {}, modified TIME, landed TIME\n\
         \x20 rename the file to ship it beside the hub's, or set it aside: barque ledger dismiss \
         '{path}'\n",
        digest(2),
        digest(1)
    );
    assert_eq!((code, said), (3, expected));
}

fn something_between_is_shown_as_it_answered() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    three_files(&spoke);
    let net = BadNet::start(&hub.address, Shape::Page, None);
    spoke.edit_config(&hub.address, &net.address);
    let (code, said) = says(&site, &net.address, push(&spoke));
    // The offer's length depends on how long its numbers are.
    let bytes = said.split("a request of ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert!(bytes.parse::<u64>().is_ok(), "{said}");
    let said = said.replace(&format!("of {bytes} bytes"), "of N bytes");
    let expected = "error: something between this spoke and the hub at http://HUB answered 200 to \
                    a request of N bytes (server: portal/1.0; it starts \"<html><body>Guest \
                    network: please log in</body></html>\"); 3 files (261 B) wait, the oldest \
                    since TIME; nothing is lost, the next push goes on\n";
    assert_eq!((code, said), (75, expected.to_owned()));
}

fn a_copied_state_folder_says_how_to_heal() {
    let site = Site::new();
    let hub = site.hub();
    let (a, b) = (site.spoke("s"), site.unenrolled("copy"));
    std::fs::create_dir_all(b.state()).unwrap();
    for file in ["ledger.db", "identity.json", "spoke.toml"] {
        std::fs::copy(Path::new(&a.state()).join(file), Path::new(&b.state()).join(file)).unwrap();
    }
    b.edit_config(a.source().to_str().unwrap(), b.source().to_str().unwrap());
    for (n, spoke) in [(0, &a), (1, &b)] {
        spoke.put(&format!("d/m/2024/03/31/0{n}/f.parquet"), &tiny(n));
        assert_eq!(says(&site, &hub.address, push(spoke)).0, 0);
    }
    a.put("d/m/2024/03/31/05/f.parquet", &tiny(5));
    let (code, said) = says(&site, &hub.address, push(&a));
    let expected = "warning: forked_series: another machine pushes with a copy of this state \
                    folder; the files of both are taken. Give one of them a name of its own: \
                    announce it on the hub and run `barque enroll --new-identity TOKEN` on that \
                    machine\n";
    assert_eq!((code, said.as_str()), (0, expected));
}
