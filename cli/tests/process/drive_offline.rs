//! A hub and spokes that no network joins: enrolled by files, imported where the drive is put in.

use std::fs;

use libtest_mimic::Trial;

use crate::drives::{Ended, ack, drive, exported, fill, import};
use crate::site::{Site, barque, json, run};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(only_a_path_below_an_allowed_folder_is_imported_on_the_node),
        trial!(a_spoke_without_a_network_enrolls_by_files_and_ships_by_drive),
    ]
}

fn only_a_path_below_an_allowed_folder_is_imported_on_the_node() {
    let site = Site::new();
    let allowed = drive(&site);
    let beside = site.path().join("drive-beside");
    fs::create_dir_all(&beside).unwrap();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 4);
    let inside = exported(&spoke, &allowed, &[]);
    fill(&spoke, 4, 8);
    let outside = exported(&spoke, &beside, &[]);
    fill(&spoke, 8, 10);
    let archive = exported(&spoke, &allowed, &["--archive", "tar.zst"]);
    let none = import(&site, &inside, &["--on-node"]);
    assert_eq!(none.code, 6, "no folder is allowed: {none:?}");
    assert!(none.stderr.contains("--allow-dir"), "{}", none.stderr);
    assert_eq!(hub.stop(), 0);
    let _hub = site.hub_with(&address, &["--allow-dir", &allowed.display().to_string()]);
    let link = allowed.join("bundle-link");
    std::os::unix::fs::symlink(&outside, &link).unwrap();
    let up = format!("{}/../drive-beside", allowed.display());
    for path in [outside.as_str(), &link.display().to_string(), &up] {
        let refused = import(&site, path, &["--on-node"]);
        assert_eq!(refused.code, 6, "{path}: {refused:?}");
    }
    fs::remove_file(&link).unwrap();
    let done = import(&site, &inside, &["--on-node"]);
    assert_eq!((done.code, done.count("committed")), (0, 4), "{done:?}");
    assert_eq!(import(&site, &archive, &["--on-node"]).count("committed"), 2);
    assert_eq!(import(&site, &outside, &[]).count("committed"), 4);
    assert_eq!(import(&site, "/no/such/bundle", &["--on-node"]).code, 1);
    site.assert_landed(&[&spoke]);
    ack(&spoke, &allowed.display().to_string());
    ack(&spoke, &beside.display().to_string());
    assert_eq!(spoke.status()["synced"], 10);
}

fn a_spoke_without_a_network_enrolls_by_files_and_ships_by_drive() {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--import-only"]);
    let spoke = site.unenrolled("submarine-01");
    let (state, data) = (spoke.state(), site.data());
    let source = spoke.source().display().to_string();
    let request = site.path().join("r.json").display().to_string();
    let ask = [
        "enroll",
        "--offline",
        "submarine-01",
        "--state",
        &state,
        "--source",
        &source,
        "--out",
        &request,
    ];
    assert_eq!(run(&ask).0, 0);
    // The same folder asks with the same key.
    let first = fs::read_to_string(&request).unwrap();
    assert_eq!((run(&ask).0, fs::read_to_string(&request).unwrap()), (0, first.clone()));
    let forged = first.replace("submarine-01", "submarine-02");
    let forged_at = site.path().join("forged.json").display().to_string();
    fs::write(&forged_at, forged).unwrap();
    assert_eq!(run(&["hub", "spoke", "approve", &forged_at, "--data", &data]).0, 6);
    let approve = ["hub", "spoke", "approve", &request, "--data", &data];
    assert_eq!(run(&approve).0, 0);
    assert_eq!(run(&approve).0, 0, "a lost grant is made again");
    let grant = site.path().join("submarine-01.grant.json");
    let text = fs::read_to_string(&grant).unwrap();
    let changed = site.path().join("changed.json");
    fs::write(&changed, text.replace("\"hub_id\": \"0", "\"hub_id\": \"1")).unwrap();
    assert_eq!(run(&["enroll", &changed.display().to_string(), "--state", &state]).0, 1);
    let (code, out, err) = run(&["enroll", &grant.display().to_string(), "--state", &state]);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("bundle export"), "{out}");
    spoke.edit_config("settle = \"2s\"", "settle = \"50ms\"");
    fill(&spoke, 0, 5);
    // It has no way to push, and is told the one that it has.
    let (code, _, err) = run(&["push", "--state", &state]);
    assert_eq!(code, 1);
    assert!(err.contains("barque bundle export"), "{err}");
    let path = exported(&spoke, &drive(&site), &[]);
    nothing_for_spokes_is_served(&site, &hub.address);
    let ca = format!("{data}/tls/ca.pem");
    // From elsewhere, by an operator's token.
    let token = json(&[
        "hub", "token", "add", "--name", "op", "--role", "operator", "--data", &data, "--json",
    ]);
    let mut command = barque(&[
        "hub",
        "import",
        &path,
        "--json",
        "--cacert",
        &ca,
        "--url",
        &format!("https://{}", hub.address),
    ]);
    command.env("BARQUE_TOKEN", token["token"].as_str().unwrap());
    let imported = Ended::of_command(&mut command);
    assert_eq!((imported.code, imported.count("committed")), (0, 5), "{imported:?}");
    let reader = json(&[
        "hub", "token", "add", "--name", "r", "--role", "reader", "--data", &data, "--json",
    ]);
    command.env("BARQUE_TOKEN", reader["token"].as_str().unwrap());
    assert_eq!(Ended::of_command(&mut command).code, 6, "a reader imports nothing");
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["synced"], 5);
    site.assert_landed(&[&spoke]);
}

/// Nothing that spokes call is served to the network, and everything else is.
fn nothing_for_spokes_is_served(site: &Site, address: &str) {
    let data = site.data();
    let ca = format!("{data}/tls/ca.pem");
    let status = |path: &str, more: &[&str]| -> String {
        let url = format!("https://{}{path}", address);
        let args =
            [&["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &ca][..], more, &[&url]]
                .concat();
        String::from_utf8(std::process::Command::new("curl").args(args).output().unwrap().stdout)
            .unwrap()
    };
    for call in
        ["/api/v1/sync/reconcile", "/api/v1/sync/bundles", "/api/v1/sync/uploads", "/api/v1/enroll"]
    {
        assert_eq!(status(call, &["-d", "{}"]), "404", "{call}");
    }
    assert_eq!(status("/healthz", &[]), "200");
}
