//! An operator's first day: settings, passes, spokes, metrics, schemas, an upgrade.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use barque_bundle::database::copy_name;
use libtest_mimic::Trial;
use serde_json::Value;

use crate::http::call;
use crate::site::{Site, barque, ended, json, run, tiny, wait_for};
use crate::{fixture, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_hub_and_a_spoke_start_from_the_printed_examples),
        trial!(config_show_says_where_each_value_comes_from),
        trial!(every_pass_is_listed_with_its_counts_and_how_it_ended),
        trial!(a_spoke_is_shown_with_all_that_an_operator_asks),
        trial!(metrics_pass_the_lint_and_count_what_happened, needs lacks_promtool()),
        trial!(the_openapi_document_is_what_the_hub_serves),
        trial!(schemas_are_listed_per_measurement_and_a_change_is_one_line_in_the_log),
        trial!(folders_of_the_first_version_open_for_ever),
        trial!(a_folder_of_a_newer_program_is_refused_by_name),
    ]
}

fn a_hub_and_a_spoke_start_from_the_printed_examples() {
    let site = Site::new();
    let (code, example, _) = run(&["config", "example", "hub"]);
    assert_eq!(code, 0);
    let landing = site.path().join("elsewhere");
    let config = site.path().join("barque.toml");
    let text = example
        .replace("\"/var/lib/barque/hub\"", &format!("{:?}", site.data()))
        .replace("0.0.0.0:7171", "127.0.0.1:0")
        .replace("# dir = \"/srv/landing\"", &format!("dir = {landing:?}"));
    fs::write(&config, text).unwrap();
    let mut command = barque(&["hub", "serve"]);
    command.env("BARQUE_CONFIG", &config);
    let _hub = site.start(command);
    // A spoke.toml that lies ready is what enroll goes on from.
    let spoke = site.unenrolled("s");
    fs::create_dir_all(spoke.state()).unwrap();
    let (_, example, _) = run(&["config", "example", "spoke"]);
    let source = format!("source = {:?}", spoke.source());
    let text = example.replace("# source = \"/srv/telemetry\"", &source).replace("2s", "50ms");
    fs::write(spoke.config(), text).unwrap();
    let added = json(&["hub", "spoke", "add", "s", "--data", &site.data(), "--json"]);
    let token = added["token"].as_str().unwrap();
    json(&["enroll", token, "--state", &spoke.state(), "--json"]);
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    assert!(landing.join("s/d/m/2024/03/31/02/a.parquet").exists());
    assert!(site.path().join("elsewhere.staging").exists());
}

fn config_show_says_where_each_value_comes_from() {
    let site = Site::new();
    let config = site.path().join("b.toml");
    fs::write(&config, "[hub]\nlisten = \"127.0.0.1:9\"\n[hub.limits]\nstreams = 3\n").unwrap();
    let mut command = barque(&["config", "show", "--state", "/s", "--json"]);
    command.env("BARQUE_CONFIG", &config).env("BARQUE_DATA", "/by/environment");
    let (code, out, err) = ended(command.output().unwrap());
    assert_eq!(code, 0, "{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    let find = |key: &str| {
        let settings = shown["settings"].as_array().unwrap();
        let s = settings.iter().find(|s| s["key"] == key).unwrap_or_else(|| panic!("{key}"));
        (s["value"].clone(), s["from"].as_str().unwrap().to_owned())
    };
    assert_eq!(find("spoke.state"), ("\"/s\"".into(), "flag --state".into()));
    assert_eq!(find("hub.data"), ("\"/by/environment\"".into(), "environment BARQUE_DATA".into()));
    let file = config.display().to_string();
    assert_eq!(find("hub.listen"), ("\"127.0.0.1:9\"".into(), file.clone()));
    assert_eq!(find("hub.limits.streams"), ("3".into(), file));
    assert_eq!(find("hub.plain"), ("false".into(), "default".into()));
    assert_eq!(find("hub.landing.dir"), (Value::Null, "default".into()));
}

fn every_pass_is_listed_with_its_counts_and_how_it_ended() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    spoke.put("d/m/2024/03/31/02/broken.parquet", b"no parquet here");
    let first = spoke.push();
    hub.kill();
    spoke.put("d/m/2024/03/31/02/b.parquet", &tiny(2));
    assert_eq!(spoke.push().code, 75);
    // A dry run is no pass.
    json(&["push", "--dry-run", "--state", &spoke.state(), "--json"]);
    let passes = json(&["passes", "--state", &spoke.state(), "--json"]);
    let passes = passes["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 2);
    assert_eq!((&passes[0]["exit_code"], &passes[0]["left"]), (&75.into(), &1.into()));
    assert!(passes[0]["reason"].as_str().unwrap().starts_with("hub_not_reached: "));
    assert_eq!((&passes[1]["exit_code"], &passes[1]["reason"]), (&0.into(), &Value::Null));
    for key in ["discovered", "sent", "present", "skipped", "left", "bytes_sent"] {
        assert_eq!(passes[1][key], first.report[key], "{key}");
    }
    assert!(passes[1]["ended_at"].as_str().unwrap() >= passes[1]["started_at"].as_str().unwrap());
    // The ledger says why each file waits.
    let ls = |args: &[&str]| {
        let state = spoke.state();
        let all = [&["ledger", "ls", "--json", "--state", &state], args].concat();
        json(&all)["files"].as_array().unwrap().clone()
    };
    let states: Vec<_> = ls(&[]).iter().map(|f| f["state"].as_str().unwrap().to_owned()).collect();
    assert_eq!(states, ["pending", "synced", "skipped"]);
    let skipped = ls(&["--state-is", "skipped"]);
    assert_eq!((skipped.len(), &skipped[0]["code"]), (1, &"parquet_head_magic".into()));
    assert_eq!(ls(&["--limit", "2"]).len(), 2);
    let (code, _, err) = run(&["ledger", "ls", "--state-is", "lost", "--state", &spoke.state()]);
    assert!(code == 1 && err.contains("there are pending"), "{err}");
    let (code, text, _) = run(&["passes", "--limit", "1", "--state", &spoke.state()]);
    assert_eq!((code, text.lines().count()), (0, 1));
}

fn a_spoke_is_shown_with_all_that_an_operator_asks() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    let bytes = tiny(1).len();
    assert_eq!(spoke.push().code, 0);
    let shown = json(&["hub", "spoke", "show", "s", "--data", &site.data(), "--json"]);
    assert_eq!((&shown["files"], &shown["bytes"]), (&1.into(), &bytes.into()), "{shown}");
    assert!(shown["first_seen"].as_str().unwrap() <= shown["last_seen"].as_str().unwrap());
    assert_eq!(shown["report"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(shown["report"]["pending_files"], 0);
    assert_eq!(shown["key_id"].as_str().unwrap().len(), 16);
    let (_, text, _) = run(&["hub", "spoke", "show", "s", "--data", &site.data()]);
    for word in ["received 1 files", "first seen", "last seen", "version", "backlog", "key"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

fn lacks_promtool() -> Option<String> {
    let found = Command::new("promtool").arg("--version").output().is_ok();
    (!found).then(|| "needs promtool (Debian: prometheus)".to_owned())
}

/// What a plain hub counts.
pub fn metrics_of(site: &Site, address: &str) -> String {
    let add = ["hub", "token", "add", "--name", "metrics", "--data", &site.data(), "--json"];
    let token = json(&add)["token"].as_str().unwrap().to_owned();
    String::from_utf8(call(address, "GET", "/metrics", Some(&token), b"").body).unwrap()
}

fn metrics_pass_the_lint_and_count_what_happened() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    for n in 0..3 {
        spoke.put(&format!("d/m/2024/03/31/02/{n}.parquet"), &tiny(n));
    }
    assert_eq!(spoke.push().count("sent"), 3);
    let add = ["hub", "token", "add", "--name", "prom", "--data", &site.data(), "--json"];
    let token = json(&add)["token"].as_str().unwrap().to_owned();
    assert_eq!(call(&hub.address, "GET", "/metrics", None, b"").status, 401);
    let answer = call(&hub.address, "GET", "/metrics", Some(&token), b"");
    assert!(answer.head.contains("text/plain; version=0.0.4"), "{}", answer.head);
    let text = String::from_utf8(answer.body).unwrap();
    for line in [
        "barque_outcomes_total{outcome=\"registered\"} 3",
        "barque_files 3",
        "barque_spokes{state=\"active\"} 1",
        "barque_ready 1",
        "barque_raft_is_leader 1",
        "barque_staged_files 0",
        "barque_syncs_total{result=\"failed\"} 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    let count = "barque_request_duration_seconds_count{method=\"POST\",route=\"/api/v1/sync/bundles\",status=\"200\"} 1";
    assert!(text.contains(count), "{text}");
    // No name from outside is a label.
    assert!(!text.contains("/02/0.parquet") && !text.contains("\"s\""));
    let mut lint = Command::new("promtool");
    lint.args(["check", "metrics"]).stdin(std::process::Stdio::piped());
    lint.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut lint = lint.spawn().unwrap();
    std::io::Write::write_all(&mut lint.stdin.take().unwrap(), text.as_bytes()).unwrap();
    let (code, out, err) = ended(lint.wait_with_output().unwrap());
    assert_eq!((code, out.as_str(), err.as_str()), (0, "", ""));
}

fn the_openapi_document_is_what_the_hub_serves() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let document = call(&hub.address, "GET", "/openapi.json", None, b"").json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 14, "{paths:?}");
    for (path, methods) in paths {
        let documented: BTreeSet<String> = methods.as_object().unwrap().keys().cloned().collect();
        let at = path.replace("{path}", "a/b.parquet").replace(['{', '}'], "");
        for method in ["get", "post", "put", "patch", "delete"] {
            let answer = call(&hub.address, &method.to_uppercase(), &at, None, b"");
            let is_served = answer.status != 405;
            assert_eq!(is_served, documented.contains(method), "{method} {path}");
            let is_lost = answer.status == 404 && answer.code() == "no_such_route";
            assert!(!is_lost, "{method} {path}");
            // Without a token nothing that needs one is answered.
            let is_open = methods[method]["security"].as_array().is_some_and(Vec::is_empty);
            if is_served && !is_open {
                assert_eq!(answer.status, 401, "{method} {path}");
            }
        }
    }
    assert_eq!(call(&hub.address, "GET", "/api/v1/nothing", None, b"").code(), "no_such_route");
}

fn schemas_are_listed_per_measurement_and_a_change_is_one_line_in_the_log() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let good = fs::read(fixture("parquet/good.parquet")).unwrap();
    spoke.put("factory/line1/2024/03/30/02/a.parquet", &good);
    spoke.put("factory/line1/2024/03/31/02/b.parquet", &good);
    spoke.put("factory/line2/2024/03/31/02/secret.parquet", &{
        fs::read(fixture("parquet/encrypted_footer.parquet")).unwrap()
    });
    assert_eq!(spoke.push().count("sent"), 3);
    let list = |prefix: &str| json(&["hub", "schemas", prefix, "--data", &site.data(), "--json"]);
    wait_for("the footers are read", || list("")["undescribed_files"] == 0);
    let one = list("factory/line1")["measurements"][0].clone();
    assert_eq!(one["schemas"].as_array().unwrap().len(), 1, "{one}");
    let schema = &one["schemas"][0];
    assert_eq!((&schema["files"], &schema["rows"]), (&2.into(), &80.into()), "{schema}");
    assert_eq!(schema["first_partition"], "2024-03-30T02:00:00.000Z");
    assert_eq!(schema["last_partition"], "2024-03-31T02:00:00.000Z");
    assert_eq!(schema["columns"][0]["logical"], "timestamp(us,utc)");
    let two = list("factory/line2")["measurements"][0].clone();
    assert_eq!((&two["unread_files"], &two["schemas"]), (&1.into(), &Value::Array(vec![])));
    // Another schema: time in nanoseconds.
    let log = || fs::read_to_string(site.path().join("hub.log")).unwrap();
    assert!(!log().contains("schema"), "{}", log());
    spoke.put("factory/line1/2024/03/31/03/c.parquet", &{
        fs::read(fixture("schemas/nanoseconds.parquet")).unwrap()
    });
    spoke.put("factory/line1/2024/03/31/04/d.parquet", &{
        fs::read(fixture("schemas/nanoseconds.parquet")).unwrap()
    });
    assert_eq!(spoke.push().count("sent"), 2);
    wait_for("the footers are read", || list("")["undescribed_files"] == 0);
    let one = list("factory/line1")["measurements"][0].clone();
    assert_eq!(one["schemas"].as_array().unwrap().len(), 2, "{one}");
    assert_eq!(one["differing"], serde_json::json!(["time"]));
    wait_for("the log says it", || log().contains("changes its measurement's schema"));
    assert_eq!(log().matches("changes its measurement's schema").count(), 1);
    assert!(log().contains("time is INT64 timestamp(ns,utc), was INT64 timestamp(us,utc)"));
    let (_, text, _) = run(&["hub", "schemas", "factory/", "--data", &site.data()]);
    assert!(text.contains("types differ: time") && text.contains("* time"), "{text}");
    let files = json(&["hub", "files", "--data", &site.data(), "--json"]);
    assert_eq!(
        (&files["files"][0]["rows"], &files["files"][0]["row_groups"]),
        (&40.into(), &2.into())
    );
    assert_eq!(files["files"][4]["unread"], "its footer is encrypted");
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let path = item.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_tree(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

fn folders_of_the_first_version_open_for_ever() {
    let site = Site::empty();
    copy_tree(&fixture("folders/v1/hub"), &site.path().join("hub"));
    let spoke = site.unenrolled("rocket-01");
    copy_tree(&fixture("folders/v1/state"), Path::new(&spoke.state()));
    copy_tree(&fixture("folders/v1/source"), &spoke.source());
    let hub = site.hub();
    spoke.edit_config("/srv/telemetry", &spoke.source().display().to_string());
    spoke.edit_config("https://127.0.0.1:17171", &format!("https://{}", hub.address));
    spoke.edit_config("2s", "50ms");
    assert_eq!(site.manifest().len(), 4);
    let pass = spoke.push();
    // Three were synced, one of them was changed since; one waited; one is no Parquet file.
    let counts = ["present", "sent", "modified", "skipped"].map(|k| pass.count(k));
    assert_eq!((pass.code, counts), (3, [3, 1, 1, 1]), "{pass:?}");
    assert_eq!(site.manifest().len(), 5);
    // What was before the migration lies beside it.
    for old in [site.path().join("hub/manifest.db"), Path::new(&spoke.state()).join("ledger.db")] {
        assert!(copy_name(&old, 1).exists(), "{}", old.display());
    }
    let list = || json(&["hub", "schemas", "--data", &site.data(), "--json"]);
    // Files that landed before footers were read are read now.
    wait_for("the footers are read", || list()["undescribed_files"] == 0);
    assert_eq!(list()["measurements"][0]["schemas"][0]["files"], 2);
    assert_eq!(json(&["passes", "--state", &spoke.state(), "--json"])["passes"][0]["sent"], 1);
}

fn a_folder_of_a_newer_program_is_refused_by_name() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    assert_eq!(hub.stop(), 0);
    let set_version = |path: &Path, version: i64| {
        let database = rusqlite::Connection::open(path).unwrap();
        let was: i64 = database.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        database.pragma_update(None, "user_version", version).unwrap();
        was
    };
    for name in ["manifest.db", "node.db", "raft.db"] {
        let path = site.path().join("hub").join(name);
        let was = set_version(&path, 99);
        let (code, _, err) =
            run(&["hub", "serve", "--data", &site.data(), "--listen", "127.0.0.1:0"]);
        assert_eq!(code, 1, "{err}");
        assert!(err.contains(name) && err.contains("99") && err.contains("newer"), "{err}");
        set_version(&path, was);
    }
    let ledger = Path::new(&spoke.state()).join("ledger.db");
    set_version(&ledger, 99);
    let (code, _, err) = run(&["push", "--state", &spoke.state()]);
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("ledger.db") && err.contains("99") && err.contains("newer"), "{err}");
}
