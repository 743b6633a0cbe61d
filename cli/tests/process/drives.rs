//! Drives: exported, verified, imported, imported again, acknowledged, and both roads at once.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;
use serde_json::Value;

use crate::site::{Site, Spoke, barque, ended, json, run, sized, tiny, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_drive_goes_there_and_back_and_its_files_become_synced),
        trial!(capped_exports_cover_everything_once_the_newest_first),
        trial!(an_export_refuses_places_where_no_bundle_belongs),
        trial!(an_export_of_nothing_and_a_dry_run_change_nothing),
        trial!(link_and_drive_deliver_one_backlog_in_any_order),
        trial!(a_lost_drive_is_taken_back_and_a_late_one_does_no_harm),
        trial!(what_has_not_arrived_is_said_with_its_drive),
        trial!(a_drive_that_cannot_be_written_gets_its_receipt_elsewhere),
        trial!(a_receipt_that_nobody_keeps_is_issued_anew),
        trial!(with_the_dedup_rows_deleted_everything_is_already_present_and_nothing_is_written),
        trial!(another_content_of_a_path_is_refused_and_the_rest_lands),
        trial!(a_receipt_counts_only_as_it_was_signed),
        trial!(awkward_names_and_twins_come_through_a_drive),
    ]
}

/// What a command ended with.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub json: Value,
    pub stderr: String,
}

impl Ended {
    pub fn of(args: &[&str]) -> Self {
        Self::of_command(&mut barque(args))
    }

    pub fn of_command(command: &mut std::process::Command) -> Self {
        let (code, out, stderr) = ended(command.output().unwrap());
        let json = serde_json::from_str(&out).unwrap_or(Value::Null);
        Self { code, json, stderr }
    }

    pub fn count(&self, key: &str) -> u64 {
        self.json[key].as_u64().unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    pub fn path(&self) -> String {
        self.json["path"].as_str().unwrap_or_else(|| panic!("no path in {self:?}")).to_owned()
    }
}

pub fn drive(site: &Site) -> PathBuf {
    let drive = site.path().join("drive");
    fs::create_dir_all(&drive).unwrap();
    drive
}

pub fn export(spoke: &Spoke, drive: &Path, more: &[&str]) -> Ended {
    let (drive, state) = (drive.display().to_string(), spoke.state());
    let mut args = vec!["bundle", "export", &drive, "--state", &state, "--json"];
    args.extend(more);
    Ended::of(&args)
}

/// Exports, and the bundle's path.
pub fn exported(spoke: &Spoke, drive: &Path, more: &[&str]) -> String {
    let done = export(spoke, drive, more);
    assert_eq!(done.code, 0, "{done:?}");
    done.path()
}

pub fn import(site: &Site, path: &str, more: &[&str]) -> Ended {
    let data = site.data();
    let mut args = vec!["hub", "import", path, "--data", &data, "--json"];
    args.extend(more);
    Ended::of(&args)
}

pub fn ack(spoke: &Spoke, path: &str) -> Ended {
    Ended::of(&["bundle", "ack", path, "--state", &spoke.state(), "--json"])
}

pub fn history(site: &Site, spoke: &str) -> Value {
    json(&["hub", "history", spoke, "--data", &site.data(), "--json"])
}

pub fn fill(spoke: &Spoke, from: u64, to: u64) {
    for n in from..to {
        let (day, hour) = (n / 24 % 28 + 1, n % 24);
        spoke.put(&format!("d/m/2024/03/{day:02}/{hour:02}/f{n}.parquet"), &tiny(n));
    }
}

fn a_drive_goes_there_and_back_and_its_files_become_synced() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    let token = json(&["hub", "token", "add", "--name", "me", "--data", &site.data(), "--json"]);
    let token = token["token"].as_str().unwrap();
    for (round, archive) in (0u64..).zip([None, Some("tar"), Some("tar.zst")]) {
        fill(&spoke, round * 30, round * 30 + 30);
        spoke.put(&format!("d/l/2024/03/01/00/large{round}.parquet"), &sized(round, 700_000));
        let label = format!("drive {round}");
        let mut more = vec!["--label", label.as_str()];
        more.extend(archive.iter().flat_map(|a| ["--archive", a]));
        let done = export(&spoke, &drive, &more);
        assert_eq!((done.code, done.count("files"), done.count("left")), (0, 31, 0), "{done:?}");
        assert_eq!(spoke.status()["exported"], 31);
        let path = done.path();
        for key in [&["--state", &spoke.state()], &["--data", &site.data()]] {
            let verified = Ended::of(&[&["bundle", "verify", &path, "--json"][..], key].concat());
            assert_eq!((verified.code, &verified.json["signature"]), (0, &"good".into()));
        }
        let unsigned = Ended::of(&["bundle", "verify", &path, "--json"]);
        assert_eq!((unsigned.code, &unsigned.json["signature"]), (6, &"not_checked".into()));
        assert_eq!(run(&["bundle", "verify", &path, "--allow-unsigned"]).0, 0);
        assert_eq!(ack(&spoke, &path).code, 1, "there is no receipt yet");
        let first = import(&site, &path, &[]);
        assert_eq!((first.code, first.count("committed")), (0, 31), "{first:?}");
        let again = import(&site, &path, &[]);
        assert_eq!(again.code, 0, "{again:?}");
        assert_eq!(again.json["reason"], "already imported");
        assert_eq!((again.count("files"), &again.json["imported"]), (31, &false.into()));
        let acked = ack(&spoke, &path);
        assert_eq!(acked.json["receipts"][0]["synced"], 31, "{acked:?}");
        let twice = ack(&spoke, &path);
        assert_eq!((twice.code, &twice.json["receipts"][0]["already"]), (0, &31.into()));
        assert_eq!(spoke.status()["synced"], 31 * (round + 1));
        let listed = history(&site, "s");
        let newest = &listed["bundles"][0];
        assert_eq!((&newest["label"], &newest["files"]), (&label.into(), &31.into()));
        assert_eq!(newest["committed"], 31);
    }
    site.assert_landed(&[&spoke]);
    // A drive that comes back is acknowledged as a whole, and everything on it is listed.
    let all = ack(&spoke, &drive.display().to_string());
    assert_eq!(all.json["receipts"].as_array().unwrap().len(), 3, "{all:?}");
    let ls = ["bundle", "ls", &drive.display().to_string(), "--state", &spoke.state(), "--json"];
    let listed = json(&ls);
    assert_eq!(listed["in_transit"], Value::Array(vec![]));
    for found in listed["on_drive"].as_array().unwrap() {
        assert_eq!(
            (&found["has_receipt"], &found["state"]),
            (&true.into(), &"acknowledged".into())
        );
    }
    // A drive that is not mounted is no empty drive.
    assert_eq!(run(&["bundle", "ls", "/nowhere/at/all", "--state", &spoke.state()]).0, 1);
    history_comes_in_pages(&site, &hub.address, token);
}

/// The same over HTTP, in pages.
fn history_comes_in_pages(site: &Site, address: &str, token: &str) {
    let page = |query: &str| -> (String, Value) {
        let url = format!("https://{}/api/v1/bundle-import/history/{query}", address);
        let ca = format!("{}/tls/ca.pem", site.data());
        let bearer = format!("Authorization: Bearer {token}");
        let curl = std::process::Command::new("curl")
            .args(["-s", "-w", "\n%{http_code}", "--cacert", &ca, "-H", &bearer, &url])
            .output()
            .unwrap();
        let text = String::from_utf8(curl.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.to_owned(), serde_json::from_str(body).unwrap())
    };
    let (_, first) = page("s?limit=2");
    let (_, second) = page(&format!("s?limit=2&before={}", first["next_before"]));
    let labels = |v: &Value| -> Vec<String> {
        let lines = v["bundles"].as_array().unwrap().iter();
        lines.map(|b| b["label"].as_str().unwrap().to_owned()).collect()
    };
    // The newest import first, whatever the spoke's clock said of the bundle.
    assert_eq!(
        (labels(&first), &first["limit"]),
        (vec!["drive 2".into(), "drive 1".into()], &2.into())
    );
    assert_eq!((labels(&second), &second["next_before"]), (vec!["drive 0".into()], &Value::Null));
    assert_eq!(page("s?limit=5000").1["limit"], 1000);
    assert_eq!(page("nobody").0, "404");
    assert_eq!(run(&["hub", "history", "nobody", "--data", &site.data()]).0, 1);
}

fn capped_exports_cover_everything_once_the_newest_first() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    fill(&spoke, 0, 25);
    spoke.put("d/big/2024/04/01/00/big.parquet", &sized(9, 300_000));
    // The newest is larger than what may go, and goes all the same: at least one file does.
    let first = export(&spoke, &drive, &["--max-bytes", "100kB"]);
    assert_eq!((first.count("files"), first.count("left")), (1, 25), "{first:?}");
    let mut paths = vec![first.path()];
    loop {
        let next = export(&spoke, &drive, &["--limit", "10"]);
        assert_eq!(next.code, 0, "{next:?}");
        if next.json["bundle_id"].is_null() {
            break;
        }
        assert!(next.count("files") <= 10);
        paths.push(next.path());
    }
    assert_eq!(paths.len(), 4);
    // Newest first: the second bundle holds the ten newest of the small ones.
    let second = tree(Path::new(&paths[1]));
    let newest =
        |n: u64| format!("data/d/m/2024/03/{:02}/{:02}/f{n}.parquet", n / 24 % 28 + 1, n % 24);
    assert!((15..25).all(|n| second.contains_key(&newest(n))), "{:?}", second.keys());
    // Out of order, and each twice.
    for path in [&paths[2], &paths[0], &paths[2], &paths[3], &paths[1], &paths[0]] {
        assert_eq!(import(&site, path, &[]).code, 0);
    }
    site.assert_landed(&[&spoke]);
    assert_eq!(history(&site, "s")["bundles"].as_array().unwrap().len(), 4);
    ack(&spoke, &drive.display().to_string());
    assert_eq!(spoke.status()["synced"], 26);
}

fn an_export_refuses_places_where_no_bundle_belongs() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 2);
    let link = site.path().join("link");
    std::os::unix::fs::symlink(spoke.source().join("d"), &link).unwrap();
    let missing = site.path().join("not-mounted");
    for (place, word) in [
        (spoke.source(), "inside the source"),
        (spoke.source().join("d/m"), "inside the source"),
        (link, "inside the source"),
        (PathBuf::from(spoke.state()), "inside the state folder"),
        ("/".into(), "of the system"),
        ("/etc".into(), "of the system"),
        ("/usr/lib".into(), "of the system"),
        ("/proc/self".into(), "of the system"),
        (missing, "mount the drive"),
        (spoke.source().join("d/m/2024/03/01/00/f0.parquet"), "no folder"),
    ] {
        let refused = export(&spoke, &place, &[]);
        assert_eq!(refused.code, 1, "{place:?}: {refused:?}");
        assert!(refused.stderr.contains(word), "{place:?}: {}", refused.stderr);
    }
    assert_eq!(spoke.status()["exported"], 0);
}

fn an_export_of_nothing_and_a_dry_run_change_nothing() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    let nothing = export(&spoke, &drive, &[]);
    assert_eq!((nothing.code, &nothing.json["bundle_id"]), (0, &Value::Null), "{nothing:?}");
    fill(&spoke, 0, 5);
    // What a scan would find first is found by a push, which the hub then has.
    let dry = export(&spoke, &drive, &["--dry-run"]);
    assert_eq!((dry.code, &dry.json["is_dry"]), (0, &true.into()), "{dry:?}");
    assert_eq!(tree(&drive).len(), 0);
    let (code, out, _) = run(&[
        "bundle",
        "export",
        &drive.display().to_string(),
        "--state",
        &spoke.state(),
        "--label",
        "drive 7",
    ]);
    assert_eq!(code, 0);
    assert!(out.contains("on 'drive 7' (5 files, "), "{out}");
    let safe = out.starts_with("Safe to remove: bundle ") || out.starts_with("Unmount before");
    assert!(safe, "{out}");
}

fn link_and_drive_deliver_one_backlog_in_any_order() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    fill(&spoke, 0, 40);
    let path = exported(&spoke, &drive, &["--limit", "30"]);
    // What is on the drive is not sent over the link, what is not is.
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), pass.count("left")), (0, 10, 30), "{pass:?}");
    assert_eq!(pass.count("exported"), 30);
    assert_eq!(import(&site, &path, &[]).count("committed"), 30);
    // The drive is not back, and the link says all the same that its files arrived.
    let pass = spoke.push();
    assert_eq!((pass.count("sent"), pass.count("wire_bytes"), pass.count("left")), (0, 0, 0));
    assert_eq!((pass.count("present"), &spoke.status()["synced"]), (40, &40.into()), "{pass:?}");
    assert_eq!(
        json(&["bundle", "ls", "--state", &spoke.state(), "--json"])["in_transit"],
        Value::Array(vec![])
    );
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["already"], 30);
    // The other way round: the link is first, the drive late.
    fill(&spoke, 40, 60);
    let late = exported(&spoke, &drive, &[]);
    let id = json(&["bundle", "ls", "--state", &spoke.state(), "--json"]);
    let id = id["in_transit"][0]["bundle_id"].as_str().unwrap();
    assert_eq!(run(&["bundle", "revert", id, "--state", &spoke.state()]).0, 0);
    assert_eq!(spoke.push().count("sent"), 20);
    let imported = import(&site, &late, &[]);
    assert_eq!((imported.count("committed"), imported.count("already_present")), (0, 20));
    assert_eq!(ack(&spoke, &late).json["receipts"][0]["already"], 20);
    site.assert_landed(&[&spoke]);
    assert_eq!(spoke.status()["synced"], 60);
    let receipts = rusqlite::Connection::open(Path::new(&spoke.state()).join("ledger.db")).unwrap();
    let without: i64 = receipts
        .query_row("SELECT count(*) FROM files WHERE receipt_id IS NULL", [], |r| r.get(0))
        .unwrap();
    assert_eq!(without, 0);
}

fn a_lost_drive_is_taken_back_and_a_late_one_does_no_harm() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let (one, two) = (drive(&site), site.path().join("drive2"));
    fs::create_dir_all(&two).unwrap();
    fill(&spoke, 0, 10);
    let lost = exported(&spoke, &one, &["--label", "lost"]);
    let id = lost.rsplit('-').next().unwrap();
    let back = json(&["bundle", "revert", id, "--state", &spoke.state(), "--json"]);
    assert_eq!((&back["files"], &spoke.status()["pending"]), (&10.into(), &10.into()));
    assert_eq!(run(&["bundle", "revert", id, "--state", &spoke.state()]).0, 1);
    let second = exported(&spoke, &two, &[]);
    assert_eq!(import(&site, &second, &[]).count("committed"), 10);
    assert_eq!(ack(&spoke, &second).json["receipts"][0]["synced"], 10);
    // It turns up after all.
    let late = import(&site, &lost, &[]);
    assert_eq!((late.code, late.count("already_present"), late.count("committed")), (0, 10, 0));
    assert_eq!(ack(&spoke, &lost).code, 0);
    site.assert_landed(&[&spoke]);
}

fn what_has_not_arrived_is_said_with_its_drive() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("submarine-01");
    let drive = drive(&site);
    fill(&spoke, 0, 7);
    let missing = exported(&spoke, &drive, &["--label", "drive 6"]);
    fill(&spoke, 7, 9);
    let later = exported(&spoke, &drive, &["--label", "drive 7"]);
    assert_eq!(import(&site, &later, &[]).code, 0);
    let told = history(&site, "submarine-01");
    let line = &told["not_arrived"][0];
    assert_eq!(
        (&line["label"], &line["numbers"]),
        (&"drive 6".into(), &serde_json::json!([[1, 7]]))
    );
    let id = missing.rsplit('-').next().unwrap();
    let day = &line["created_at"].as_str().unwrap()[..10];
    assert_eq!(
        line["detail"],
        format!(
            "numbers 1 to 7 of submarine-01 have not arrived; they are on 'drive 6', bundle {id}, made {day}"
        )
    );
    assert_eq!(import(&site, &missing, &[]).code, 0);
    assert_eq!(history(&site, "submarine-01")["not_arrived"], Value::Array(vec![]));
    // A check-in says so as well, and takes it back.
    fill(&spoke, 9, 10);
    let third = exported(&spoke, &drive, &[]);
    spoke.push();
    assert_eq!(
        history(&site, "submarine-01")["not_arrived"][0]["numbers"],
        serde_json::json!([[10, 10]])
    );
    let id = third.rsplit('-').next().unwrap();
    run(&["bundle", "revert", id, "--state", &spoke.state()]);
    spoke.push();
    assert_eq!(history(&site, "submarine-01")["not_arrived"], Value::Array(vec![]));
}

fn a_drive_that_cannot_be_written_gets_its_receipt_elsewhere() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    fill(&spoke, 0, 3);
    let path = exported(&spoke, &drive, &[]);
    // A file stands where its folder would be made.
    let blocked = site.path().join("blocked");
    fs::write(&blocked, "x").unwrap();
    let refused = import(&site, &path, &["--receipt-out", &blocked.display().to_string()]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("is imported") && refused.stderr.contains("--receipt-out"));
    let out = site.path().join("receipts").display().to_string();
    let done = import(&site, &path, &["--receipt-out", &out]);
    assert_eq!((done.code, &done.json["reason"]), (0, &"already imported".into()), "{done:?}");
    assert!(!Path::new(&path).join("ack.json").exists());
    assert_eq!(ack(&spoke, &out).json["receipts"][0]["synced"], 3);
}

fn a_receipt_that_nobody_keeps_is_issued_anew() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    fill(&spoke, 0, 6);
    let path = exported(&spoke, &drive, &[]);
    assert_eq!(import(&site, &path, &[]).code, 0);
    let receipt = Path::new(&path).join("ack.sig");
    // Lost on the drive: the one that the hub keeps comes again.
    fs::remove_file(&receipt).unwrap();
    let again = import(&site, &path, &[]);
    assert_eq!((again.code, receipt.is_file()), (0, true), "{again:?}");
    // Lost everywhere: the present state is signed anew.
    fs::remove_file(&receipt).unwrap();
    let staging = site.path().join("hub/staging");
    for name in tree(&staging).into_keys() {
        fs::remove_file(staging.join(name)).unwrap();
    }
    let anew = import(&site, &path, &[]);
    assert_eq!((anew.code, anew.count("already_present"), receipt.is_file()), (0, 6, true));
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["synced"], 6);
    let asked = import(
        &site,
        &path,
        &["--reissue-receipt", "--receipt-out", &site.path().join("out").display().to_string()],
    );
    assert_eq!((asked.code, asked.count("already_present")), (0, 6), "{asked:?}");
    let out = asked.json["receipt"].as_str().unwrap();
    assert_eq!(ack(&spoke, out).json["receipts"][0]["already"], 6);
    assert_eq!(history(&site, "s")["bundles"].as_array().unwrap().len(), 1);
}

fn with_the_dedup_rows_deleted_everything_is_already_present_and_nothing_is_written() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    fill(&spoke, 0, 12);
    let path = exported(&spoke, &drive(&site), &[]);
    assert_eq!(import(&site, &path, &[]).count("committed"), 12);
    let before = tree(&site.landing());
    let times = |site: &Site| -> Vec<std::time::SystemTime> {
        let names = tree(&site.landing()).into_keys();
        names.map(|n| fs::metadata(site.landing().join(n)).unwrap().modified().unwrap()).collect()
    };
    let stamped = times(&site);
    assert_eq!(hub.stop(), 0);
    for (database, table) in
        [("manifest.db", "imported_bundles"), ("node.db", "sync_imported_bundles")]
    {
        let c = rusqlite::Connection::open(site.path().join("hub").join(database)).unwrap();
        assert_eq!(c.execute(&format!("DELETE FROM {table}"), []).unwrap(), 1);
    }
    let _hub = site.hub_with(&address, &[]);
    let again = import(&site, &path, &[]);
    assert_eq!((again.count("committed"), again.count("already_present")), (0, 12), "{again:?}");
    assert_eq!((tree(&site.landing()), times(&site)), (before, stamped));
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["synced"], 12);
}

fn another_content_of_a_path_is_refused_and_the_rest_lands() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    fill(&spoke, 0, 3);
    spoke.push();
    let changed = spoke.put("d/m/2024/03/01/00/f0.parquet", &tiny(99));
    fill(&spoke, 3, 5);
    spoke.push();
    let state = spoke.state();
    let requeued = ["ledger", "requeue", "d/m/2024/03/01/00/f0.parquet", "--state", &state];
    assert_eq!(run(&requeued).0, 0);
    fill(&spoke, 5, 7);
    let path = exported(&spoke, &drive, &[]);
    let done = import(&site, &path, &[]);
    assert_eq!(
        (done.code, done.count("committed"), done.count("conflicts")),
        (3, 2, 1),
        "{done:?}"
    );
    let acked = ack(&spoke, &path);
    assert_eq!((acked.code, &acked.json["receipts"][0]["conflict"]), (3, &1.into()), "{acked:?}");
    assert_eq!(acked.json["receipts"][0]["files"][0]["path"], "d/m/2024/03/01/00/f0.parquet");
    assert_eq!(spoke.status()["conflict"], 1);
    fs::write(changed, tiny(0)).unwrap();
    site.assert_landed(&[&spoke]);
}

fn a_receipt_counts_only_as_it_was_signed() {
    let site = Site::new();
    let _hub = site.hub();
    let (spoke, other) = (site.spoke("s"), site.spoke("other"));
    let drive = drive(&site);
    fill(&spoke, 0, 5);
    let path = exported(&spoke, &drive, &[]);
    assert_eq!(import(&site, &path, &[]).code, 0);
    let names = ["ack.json", "ack.sig", "outcomes.jsonl"];
    let whole = names.map(|n| fs::read(Path::new(&path).join(n)).unwrap());
    let restore = || {
        for (name, bytes) in names.iter().zip(&whole) {
            fs::write(Path::new(&path).join(name), bytes).unwrap();
        }
    };
    for (name, bytes) in names.iter().zip(&whole) {
        let mut bad = bytes.clone();
        let at = bad.len() / 2;
        bad[at] ^= 1;
        fs::write(Path::new(&path).join(name), bad).unwrap();
        let refused = ack(&spoke, &path);
        assert!(matches!(refused.code, 5 | 6), "{name}: {refused:?}");
        restore();
    }
    // A line less, and one of somebody else's.
    let text = String::from_utf8(whole[2].clone()).unwrap();
    let fewer: Vec<&str> = text.lines().skip(1).collect();
    fs::write(Path::new(&path).join("outcomes.jsonl"), fewer.join("\n") + "\n").unwrap();
    assert_eq!(ack(&spoke, &path).code, 5);
    restore();
    assert_ne!(ack(&other, &path).code, 0, "it is not the other spoke's");
    assert_eq!(
        (spoke.status()["synced"].clone(), spoke.status()["exported"].clone()),
        (0.into(), 5.into())
    );
    // What came back with a receipt still verifies, and a file put beside it does not.
    let verify = ["bundle", "verify", &path, "--state", &spoke.state()];
    assert_eq!(run(&verify).0, 0);
    fs::write(Path::new(&path).join("ack.bak"), "x").unwrap();
    assert_eq!(run(&verify).0, 5);
    fs::remove_file(Path::new(&path).join("ack.bak")).unwrap();
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["synced"], 5);
}

/// Names that drives, tars and manifests have stumbled over.
pub const AWKWARD: [&str; 16] = [
    "d/m/2024/03/31/02/colon_2024-03-31T02:15:00Z.parquet",
    "d/m/2024/03/31/02/question?.parquet",
    "d/m/2024/03/31/02/quote\"s'.parquet",
    "d/m/2024/03/31/02/star*pipe|lt<gt>.parquet",
    "d/con/2024/03/31/02/x.parquet",
    "d/trailing dot./x.parquet",
    "d/trailing blank /x.parquet",
    "d/m/2024/03/31/02/caf\u{e9}.parquet",
    "d/m/2024/03/31/02/cafe\u{301}.parquet",
    "d/m/2024/03/31/02/%20%2e%2e.parquet",
    "d/m/2024/03/31/02/-rf.parquet",
    "d/m/2024/03/31/02/CASE.parquet",
    "d/m/2024/03/31/02/case.parquet",
    "d/M/2024/03/31/02/other.parquet",
    "renamed/ab/x.parquet",
    "d/m/2024/03/31/02/\u{1f6a2}\u{202e}.parquet",
];

fn awkward_names_and_twins_come_through_a_drive() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    for archive in [None, Some("tar"), Some("tar.zst")] {
        for (n, name) in (0u64..).zip(AWKWARD) {
            let name =
                format!("{}/{name}", archive.map_or("x", |a| if a == "tar" { "y" } else { "z" }));
            spoke.put(&name, &tiny(n));
        }
        let more: Vec<&str> = archive.iter().flat_map(|a| ["--archive", a]).collect();
        let path = exported(&spoke, &drive, &more);
        if archive.is_none() {
            // No name on the drive that the strictest one could not hold.
            let mut folded = std::collections::BTreeSet::new();
            for name in tree(Path::new(&path)).into_keys() {
                assert!(
                    name.is_ascii() && !name.contains([':', '?', '"', '*', '|', '<', '>']),
                    "{name}"
                );
                let good = |s: &str| !s.ends_with(['.', ' ']) && s != "con";
                assert!(name.split('/').all(good), "{name}");
                assert!(folded.insert(name.to_lowercase()), "{name}");
            }
        }
        assert_eq!(import(&site, &path, &[]).count("committed"), AWKWARD.len() as u64);
        assert_eq!(ack(&spoke, &path).code, 0);
    }
    site.assert_landed(&[&spoke]);
    assert_eq!(spoke.status()["synced"], 3 * AWKWARD.len() as u64);
}
