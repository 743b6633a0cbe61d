//! Ordinary passes: what an operator does on the first day.

use std::fs;

use libtest_mimic::Trial;

use crate::site::{Site, barque, json, run, tiny, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_pass_lands_every_file_and_the_next_one_sends_nothing),
        trial!(
            a_changed_file_is_modified_then_requeued_then_a_conflict_and_the_first_content_stays
        ),
        trial!(a_dismissed_conflict_waits_for_nobody_and_comes_back_by_a_requeue),
        trial!(a_hub_that_is_down_is_75_in_bounded_time_and_one_pass_delivers_all_once_it_is_back),
        trial!(a_dry_run_says_what_would_be_sent_and_changes_nothing),
        trial!(a_second_spoke_of_the_same_name_is_409_and_changes_nothing),
        trial!(a_token_enrolls_once_and_the_same_folder_may_come_again),
        trial!(a_disabled_spoke_is_refused_loses_nothing_and_a_removed_one_keeps_its_files),
        trial!(commands_on_a_folder_without_a_hub_say_how_to_start_one),
        trial!(a_hub_stops_cleanly_and_two_hubs_on_one_folder_are_refused),
        trial!(unknown_settings_and_bad_flags_are_refused_by_name),
        trial!(files_are_listed_by_name_in_pages_and_read_by_token),
        trial!(every_change_is_listed_once_by_position_and_a_cursor_outside_is_gone),
        trial!(a_vanished_pending_file_is_skipped_and_not_failed),
        trial!(a_source_that_was_away_for_a_pass_is_delivered_when_it_is_back),
        trial!(a_hub_whose_data_is_gone_back_in_time_is_offered_everything_again),
        trial!(a_pending_file_behind_a_folder_that_became_a_link_is_not_read),
        trial!(sample_data_lands_with_tls_and_the_status_counts_it),
    ]
}

fn a_pass_lands_every_file_and_the_next_one_sends_nothing() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("rocket-01");
    for n in 0..40 {
        spoke.put(&format!("factory/line1/2024/03/31/{:02}/f{n}.parquet", n % 24), &tiny(n));
    }
    let first = spoke.push();
    assert_eq!((first.code, first.count("sent"), first.count("left")), (0, 40, 0), "{first:?}");
    assert!(first.count("receipts") >= 1);
    let second = spoke.push();
    assert_eq!((second.code, second.count("sent"), second.count("present")), (0, 0, 40));
    site.assert_landed(&[&spoke]);
    let status = spoke.status();
    assert_eq!((&status["synced"], &status["pending"]), (&40.into(), &0.into()));
    assert!(status["last_success"].is_string() && status["oldest_pending"].is_null());
}

fn a_changed_file_is_modified_then_requeued_then_a_conflict_and_the_first_content_stays() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("rocket-01");
    let path = "d/m/2024/03/31/02/s.parquet";
    spoke.put(path, &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    let before = site.manifest();
    spoke.put(path, &tiny(2));
    let changed = spoke.push();
    assert_eq!((changed.code, changed.count("modified"), changed.count("sent")), (3, 1, 0));
    assert_eq!(changed.report["failures"][0]["state"], "modified");
    json(&["ledger", "requeue", path, "--state", &spoke.state(), "--json"]);
    let conflict = spoke.push();
    assert_eq!((conflict.code, conflict.count("conflict"), conflict.count("sent")), (3, 1, 0));
    let named = &conflict.report["conflicts"][0];
    assert_eq!(named["path"], path);
    assert_eq!(named["their_sha256"].as_str().unwrap(), before[&format!("rocket-01/{path}")].0);
    assert_eq!(site.manifest(), before);
    assert_eq!(fs::read(site.landing().join("rocket-01").join(path)).unwrap(), tiny(1));
    assert_eq!(spoke.push().count("conflict"), 1);
}

fn a_dismissed_conflict_waits_for_nobody_and_comes_back_by_a_requeue() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let path = "d/m/a.parquet";
    spoke.put(path, &tiny(1));
    spoke.push();
    spoke.put(path, &tiny(2));
    assert_eq!(spoke.push().code, 3);
    let state = spoke.state();
    let dry =
        json(&["ledger", "dismiss", "--all", "modified", "--dry-run", "--state", &state, "--json"]);
    assert_eq!(dry["changed"][0], path);
    assert_eq!(spoke.push().code, 3);
    json(&["ledger", "dismiss", "--all", "modified", "--state", &state, "--json"]);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("skipped")), (0, 1));
    json(&["ledger", "requeue", path, "--state", &state, "--json"]);
    assert_eq!(spoke.push().count("conflict"), 1);
    let (code, _, err) = run(&["ledger", "requeue", "no/such.parquet", "--state", &state]);
    assert_eq!(code, 1);
    assert!(err.contains("no/such.parquet"), "{err}");
}

fn a_hub_that_is_down_is_75_in_bounded_time_and_one_pass_delivers_all_once_it_is_back() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    for n in 0..10 {
        spoke.put(&format!("d/m/{n}.parquet"), &tiny(n));
    }
    hub.kill();
    for _ in 0..3 {
        let down = spoke.push();
        assert_eq!(down.code, 75, "{down:?}");
        assert_eq!((down.count("failed"), down.count("left")), (0, 10));
        assert_eq!(down.report["hub_reached"], false);
        assert_eq!(down.report["stopped_by"], "hub_not_reached");
        assert!(down.count("duration_ms") < 30_000, "{down:?}");
        assert!(down.stderr.contains("nothing is lost"), "{}", down.stderr);
    }
    let status = spoke.status();
    assert_eq!((&status["pending"], &status["failed"]), (&10.into(), &0.into()));
    let _hub = site.hub_with(&address, &[]);
    let up = spoke.push();
    assert_eq!((up.code, up.count("sent"), up.count("left")), (0, 10, 0), "{up:?}");
    site.assert_landed(&[&spoke]);
}

fn a_dry_run_says_what_would_be_sent_and_changes_nothing() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/a.parquet", &tiny(1));
    let dry = json(&["push", "--dry-run", "--json", "--state", &spoke.state()]);
    assert_eq!((&dry["left"], &dry["sent"]), (&1.into(), &0.into()));
    assert_eq!(spoke.status()["pending"], 0);
    assert!(site.manifest().is_empty());
    assert_eq!(spoke.push().count("sent"), 1);
}

fn a_second_spoke_of_the_same_name_is_409_and_changes_nothing() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("rocket-01");
    for taken in ["rocket-01", "ROCKET-01"] {
        let (code, out, err) = run(&["hub", "spoke", "add", taken, "--data", &site.data()]);
        assert_eq!((code, out.as_str()), (4, ""), "{err}");
        assert!(err.contains("is taken"), "{err}");
    }
    spoke.put("d/m/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    let list = json(&["hub", "spoke", "ls", "--data", &site.data(), "--json"]);
    assert_eq!(list["spokes"].as_array().unwrap().len(), 1);
    let (code, _, err) = run(&["hub", "spoke", "add", "../x", "--data", &site.data()]);
    assert_eq!(code, 2, "{err}");
}

fn a_token_enrolls_once_and_the_same_folder_may_come_again() {
    let site = Site::new();
    let _hub = site.hub();
    let added = json(&["hub", "spoke", "add", "s", "--data", &site.data(), "--json"]);
    for key in ["spoke_id", "token", "expires_at", "url", "root"] {
        assert!(added[key].is_string(), "{key}");
    }
    let token = added["token"].as_str().unwrap();
    let source = site.path().display().to_string();
    let enroll = |state: &str, token: &str| {
        let state = site.path().join(state).display().to_string();
        run(&["enroll", token, "--state", &state, "--source", &source])
    };
    assert_eq!(enroll("a", token).0, 0);
    assert_eq!(enroll("a", token).0, 0);
    let (code, _, err) = enroll("b", token);
    assert_eq!(code, 6, "{err}");
    assert!(err.contains("used before"), "{err}");
    assert_eq!(enroll("c", "garbage").0, 1);
    let other = json(&["hub", "spoke", "add", "t", "--data", &site.data(), "--json"]);
    let (code, _, err) = enroll("a", other["token"].as_str().unwrap());
    assert_eq!(code, 1);
    assert!(err.contains("use another state folder"), "{err}");
}

fn commands_on_a_folder_without_a_hub_say_how_to_start_one() {
    let site = Site::new();
    let (code, out, err) = run(&["hub", "status", "--data", &site.data()]);
    assert_eq!((code, out.as_str()), (75, ""));
    assert!(err.contains("start it with: barque hub serve --data"), "{err}");
    let nowhere = site.path().join("nowhere").display().to_string();
    let (code, _, err) = run(&["hub", "serve", "--data", &nowhere]);
    assert_eq!(code, 1);
    assert!(err.contains("barque hub init --data"), "{err}");
    let (code, _, err) = run(&["push", "--state", &nowhere]);
    assert_eq!(code, 1);
    assert!(err.contains("barque enroll"), "{err}");
    let (code, _, err) = run(&["hub", "init", "--data", &site.data()]);
    assert_eq!(code, 1);
    assert!(err.contains("already holds a hub"), "{err}");
}

fn a_hub_stops_cleanly_and_two_hubs_on_one_folder_are_refused() {
    let site = Site::new();
    let hub = site.hub();
    let (code, _, err) = run(&["hub", "serve", "--data", &site.data(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 1);
    assert!(err.contains("another hub runs on"), "{err}");
    assert_eq!(hub.stop(), 0);
    assert!(!site.path().join("hub/hub.sock").exists());
}

fn unknown_settings_and_bad_flags_are_refused_by_name() {
    let site = Site::new();
    let file = site.path().join("barque.toml");
    fs::write(&file, "[hub]\nlisten_on = \"x\"\n").unwrap();
    let output = barque(&["hub", "serve", "--data", &site.data()])
        .env("BARQUE_CONFIG", &file)
        .output()
        .unwrap();
    let (code, _, err) = crate::site::ended(output);
    assert_eq!(code, 1);
    assert!(err.contains("listen_on") && err.contains("barque.toml"), "{err}");
    assert_eq!(run(&["push", "--sate", "x"]).0, 2);
    let (code, _, err) =
        run(&["hub", "spoke", "add", "s", "--expires", "60", "--data", &site.data()]);
    assert_eq!(code, 1);
    assert!(err.contains("unit"), "{err}");
}

fn files_are_listed_by_name_in_pages_and_read_by_token() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    let name = "d/m/a b#100%.parquet";
    spoke.put(name, &tiny(1));
    spoke.put("d/n/b.parquet", &tiny(2));
    spoke.push();
    let list = json(&["hub", "files", "--prefix", "s/d/m/", "--data", &site.data(), "--json"]);
    assert_eq!(list["files"].as_array().unwrap().len(), 1);
    assert_eq!(list["files"][0]["measurement"], "m");
    let added = json(&["hub", "token", "add", "--name", "me", "--data", &site.data(), "--json"]);
    let token = added["token"].as_str().unwrap().to_owned();
    let get = |method: &str, path: &str, token: &str| {
        crate::http::call(&hub.address, method, path, Some(token), b"")
    };
    let page = get("GET", "/api/v1/files?limit=1", &token).json();
    assert_eq!(page["next_after_path"], format!("s/{name}"));
    let url = barque_bundle::wire::file_url_path(&format!("s/{name}"));
    let file = get("GET", &url, &token);
    assert_eq!((file.status, file.body.as_slice()), (200, tiny(1).as_slice()));
    let digest = barque_bundle::Sha256Digest::of(&tiny(1)).to_string();
    assert!(file.head.contains(&format!("etag: \"{digest}\"")), "{}", file.head);
    let head = get("HEAD", &url, &token);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert!(head.head.contains(&format!("content-length: {}", tiny(1).len())), "{}", head.head);
    let part = crate::http::call_with(
        &hub.address,
        "GET",
        &url,
        &[("Authorization", &format!("Bearer {token}")), ("Range", "bytes=-4")],
    );
    assert_eq!((part.status, part.body.as_slice()), (206, b"PAR1".as_slice()));
    let len = tiny(1).len();
    let range = format!("content-range: bytes {}-{}/{len}", len - 4, len - 1);
    assert!(part.head.contains(&range), "{}", part.head);
    assert_eq!(get("GET", "/api/v1/files/s/d/m/none.parquet", &token).status, 404);
    assert_eq!(get("GET", "/api/v1/files/s/..%2f..%2fidentity.json", &token).status, 404);
    assert_eq!(get("GET", "/api/v1/tokens", &token).status, 403);
    json(&["hub", "token", "rm", "me", "--data", &site.data(), "--json"]);
    assert_eq!(get("GET", &url, &token).code(), "bearer_unknown");
    for (path, status) in
        [("/healthz", 200), ("/readyz", 200), ("/hub/status", 401), ("/nothing", 404)]
    {
        assert_eq!(
            crate::http::call(&hub.address, "GET", path, None, b"").status,
            status,
            "{path}"
        );
    }
}

fn a_vanished_pending_file_is_skipped_and_not_failed() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    let gone = spoke.put("d/m/gone.parquet", &tiny(1));
    spoke.put("d/m/stays.parquet", &tiny(2));
    hub.kill();
    assert_eq!(spoke.push().code, 75);
    fs::remove_file(gone).unwrap();
    let _hub = site.hub_with(&address, &[]);
    let pass = spoke.push_while_files_move();
    assert_eq!(
        (pass.code, pass.count("sent"), pass.count("skipped"), pass.count("failed")),
        (0, 1, 1, 0)
    );
    assert_eq!(pass.report["skipped_by"]["vanished"], 1);
    site.assert_landed(&[&spoke]);
}

fn sample_data_lands_with_tls_and_the_status_counts_it() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let source = spoke.source().display().to_string();
    let written = json(&["sample", &source, "--files", "24", "--json"]);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 24));
    assert_eq!(pass.count("bytes_sent"), written["bytes"].as_u64().unwrap());
    site.assert_landed(&[&spoke]);
    wait_for("the hub heard the check-in", || {
        let list = json(&["hub", "spoke", "ls", "--data", &site.data(), "--json"]);
        list["spokes"][0]["files"] == 24 && list["spokes"][0]["last_seen"].is_string()
    });
    let hub = json(&["hub", "status", "--data", &site.data(), "--json"]);
    let (proposals, operations) = (&hub["proposals"], &hub["operations"]);
    assert_eq!(hub["files"], 24);
    assert!(operations.as_u64() >= Some(25) && proposals.as_u64() < operations.as_u64(), "{hub}");
}

fn a_source_that_was_away_for_a_pass_is_delivered_when_it_is_back() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    for n in 0..5 {
        spoke.put(&format!("d/m/{n}.parquet"), &tiny(n));
    }
    hub.kill();
    assert_eq!(spoke.push().code, 75);
    // A mount that is not there looks like an empty folder; a later one brings the same inodes.
    let away = spoke.source().with_file_name("away");
    fs::rename(spoke.source(), &away).unwrap();
    fs::create_dir(spoke.source()).unwrap();
    let _hub = site.hub_with(&address, &[]);
    let pass = spoke.push_while_files_move();
    assert_eq!((pass.code, pass.count("skipped"), pass.count("failed")), (0, 5, 0), "{pass:?}");
    fs::remove_dir(spoke.source()).unwrap();
    fs::rename(&away, spoke.source()).unwrap();
    let back = spoke.push();
    assert_eq!((back.code, back.count("sent")), (0, 5), "{back:?}");
    site.assert_landed(&[&spoke]);
}

fn a_hub_whose_data_is_gone_back_in_time_is_offered_everything_again() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    spoke.put("d/m/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    assert_eq!(hub.stop(), 0);
    let (data, copy) = (site.path().join("hub"), site.path().join("copy"));
    let copied = std::process::Command::new("cp").arg("-a").args([&data, &copy]).status();
    assert!(copied.unwrap().success());
    let hub = site.hub_with(&address, &[]);
    spoke.put("d/m/b.parquet", &tiny(2));
    assert_eq!(spoke.push().count("sent"), 1);
    hub.kill();
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&copy, &data).unwrap();
    let _hub = site.hub_with(&address, &[]);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), pass.count("present")), (0, 1, 1), "{pass:?}");
    site.assert_landed(&[&spoke]);
    assert_eq!(spoke.push().count("present"), 2);
}

fn a_pending_file_behind_a_folder_that_became_a_link_is_not_read() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    let inside = spoke.put("d/m/x.parquet", &tiny(1));
    hub.kill();
    assert_eq!(spoke.push().code, 75);
    let outside = site.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x.parquet"), tiny(2)).unwrap();
    let folder = inside.parent().unwrap();
    fs::rename(folder, folder.with_file_name("old")).unwrap();
    std::os::unix::fs::symlink(&outside, folder).unwrap();
    let _hub = site.hub_with(&address, &[]);
    let pass = spoke.push_while_files_move();
    assert_eq!((pass.code, pass.count("sent"), pass.count("skipped")), (0, 1, 1), "{pass:?}");
    assert_eq!(site.manifest().keys().collect::<Vec<_>>(), ["s/d/old/x.parquet"]);
}

fn a_disabled_spoke_is_refused_loses_nothing_and_a_removed_one_keeps_its_files() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let data = site.data();
    let operator = |verb: &str| json(&["hub", "spoke", verb, "s", "--data", &data, "--json"]);
    spoke.put("d/m/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    let shown = operator("show");
    assert_eq!((&shown["state"], &shown["files"]), (&"active".into(), &1.into()));
    assert_eq!(operator("disable")["state"], "disabled");
    spoke.put("d/m/b.parquet", &tiny(2));
    let refused = spoke.push();
    assert_eq!((refused.code, refused.count("left"), refused.count("failed")), (6, 1, 0));
    assert_eq!(refused.report["stopped_by"], "spoke_disabled");
    assert_eq!(operator("enable")["state"], "active");
    assert_eq!(spoke.push().count("sent"), 1);
    assert_eq!(operator("rm")["state"], "removed");
    spoke.put("d/m/c.parquet", &tiny(3));
    assert_eq!(spoke.push().code, 6);
    let (code, _, err) = run(&["hub", "spoke", "enable", "s", "--data", &data]);
    assert_eq!(code, 4, "{err}");
    assert_eq!(run(&["hub", "spoke", "add", "S", "--data", &data]).0, 4);
    assert_eq!(run(&["hub", "spoke", "show", "t", "--data", &data]).0, 1);
    assert_eq!(site.manifest().len(), 2);
}

fn every_change_is_listed_once_by_position_and_a_cursor_outside_is_gone() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    for n in 0..5 {
        spoke.put(&format!("d/m/{n}.parquet"), &tiny(n));
    }
    assert_eq!(spoke.push().count("sent"), 5);
    let added = json(&["hub", "token", "add", "--name", "r", "--data", &site.data(), "--json"]);
    let token = added["token"].as_str().unwrap();
    let get = |path: &str| crate::http::call(&hub.address, "GET", path, Some(token), b"");
    let (mut after, mut seen) = (0, Vec::new());
    loop {
        let page = get(&format!("/api/v1/changes?after={after}&limit=2")).json();
        assert_eq!(page["position"], 5);
        let changes = page["changes"].as_array().unwrap().clone();
        let Some(last) = changes.last() else { break };
        after = last["position"].as_u64().unwrap();
        assert!(changes.iter().all(|c| c["kind"] == "registered" && c["state"] == "held"));
        seen.extend(changes.iter().map(|c| c["path"].as_str().unwrap().to_owned()));
    }
    seen.sort();
    assert_eq!(seen, site.manifest().into_keys().collect::<Vec<_>>());
    let gone = get("/api/v1/changes?after=6");
    assert_eq!((gone.status, gone.code().as_str()), (410, "above_head"));
    // As if the oldest changes had been trimmed.
    let database = rusqlite::Connection::open(site.path().join("hub/manifest.db")).unwrap();
    database.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    database
        .execute("INSERT OR REPLACE INTO counters (name, value) VALUES ('horizon', 3)", [])
        .unwrap();
    let gone = get("/api/v1/changes?after=2");
    assert_eq!((gone.status, gone.code().as_str()), (410, "below_horizon"));
    assert_eq!(get("/api/v1/changes?after=3").status, 200);
    assert_eq!(get("/api/v1/changes?after=x").code(), "query_malformed");
    assert_eq!(crate::http::call(&hub.address, "GET", "/api/v1/changes", None, b"").status, 401);
}
