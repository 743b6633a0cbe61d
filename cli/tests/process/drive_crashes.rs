//! Export, import and acknowledgement killed at each step and at random points, on drives that
//! fill, refuse to sync, or are read-only: the same command again ends as if nothing had happened.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use barque_bundle::fault::Step;
use libtest_mimic::Trial;

use crate::drives::{Ended, ack, drive, export, exported, fill, history, import};
use crate::kills::random;
use crate::machine::{Mount, lacks_mounts};
use crate::proofs::lacks_strace;
use crate::site::{Site, Spoke, barque, json, run, sized, tiny, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(an_export_that_ends_after_any_step_goes_on_with_the_same_bundle),
        trial!(a_hub_that_ends_after_any_step_of_an_import_completes_it_when_asked_again),
        trial!(an_acknowledgement_that_ends_after_any_step_is_repeated),
        trial!(twenty_kills_of_each_of_export_import_and_ack_change_nothing),
        trial!(what_vanished_since_it_was_planned_is_left_out_and_named),
        trial!(an_export_on_another_drive_names_the_one_that_was_not_finished),
        trial!(a_signature_that_did_not_reach_the_drive_is_written_again),
        trial!(nothing_is_written_through_links_that_somebody_left_on_a_drive),
        trial!(a_file_that_cannot_land_yet_waits_again_after_the_drive_is_back),
        trial!(one_damaged_receipt_on_a_drive_holds_up_no_other),
        trial!(a_drive_that_fills_says_so_and_goes_on_once_there_is_room, needs lacks_mounts()),
        trial!(a_file_system_that_knows_no_sync_is_said_and_one_that_fails_is_an_error, needs lacks_strace()),
    ]
}

const FORMS: [&[&str]; 3] = [&[], &["--archive", "tar"], &["--archive", "tar.zst"]];

fn with_large(spoke: &Spoke) {
    fill(spoke, 0, 20);
    spoke.put("d/large/2024/03/01/00/large.parquet", &sized(3, 400_000));
}

/// The same command with a fault; it has to end by it.
fn broken(mut command: Command, step: Step) {
    command.env("BARQUE_FAULT", format!("abort-after:{}", step.as_str()));
    let ended = command.output().unwrap();
    assert_eq!(ended.status.code(), None, "the step {step:?} was never reached: {ended:?}");
}

fn export_command(spoke: &Spoke, drive: &Path, more: &[&str]) -> Command {
    let mut command = barque(&["bundle", "export", "--json", "--state", &spoke.state()]);
    command.arg(drive).args(more);
    command
}

/// The drive goes to the hub and comes back, and everything is as it should be.
fn there_and_back(site: &Site, spoke: &Spoke, path: &str, files: u64) {
    assert_eq!(run(&["bundle", "verify", path, "--state", &spoke.state()]).0, 0);
    assert_eq!(import(site, path, &[]).count("committed"), files);
    assert_eq!(ack(spoke, path).json["receipts"][0]["synced"], files);
    assert_eq!(spoke.status()["synced"], files);
    assert_eq!(spoke.push().count("sent"), 0);
}

fn an_export_that_ends_after_any_step_goes_on_with_the_same_bundle() {
    let steps = [
        Step::ExportPlanned,
        Step::ExportFiles,
        Step::ExportHeader,
        Step::ExportReadBack,
        Step::ExportSealed,
        Step::ExportRecorded,
    ];
    for more in FORMS {
        for step in steps {
            let site = Site::new();
            let _hub = site.hub();
            let spoke = site.spoke("s");
            let drive = drive(&site);
            with_large(&spoke);
            broken(export_command(&spoke, &drive, more), step);
            let begun = json(&["bundle", "ls", "--state", &spoke.state(), "--json"]);
            let id = begun["in_transit"][0]["bundle_id"].as_str().unwrap().to_owned();
            let again = export(&spoke, &drive, more);
            assert_eq!(again.code, 0, "{step:?} {more:?}: {again:?}");
            let path = if step == Step::ExportRecorded {
                // It was whole: there is nothing left to export.
                assert!(again.json["bundle_id"].is_null(), "{again:?}");
                let found = fs::read_dir(&drive).unwrap().next().unwrap().unwrap().path();
                found.display().to_string()
            } else if step == Step::ExportPlanned {
                // Nothing was on the drive to go on with: a new bundle, and the old one is named.
                assert_eq!(again.json["unfinished"][0]["bundle_id"], id.as_str(), "{again:?}");
                assert_eq!(run(&["bundle", "rm", &id, "--state", &spoke.state()]).0, 0);
                again.path()
            } else {
                assert_eq!(again.json["bundle_id"], id.as_str(), "{step:?} {more:?}: {again:?}");
                assert_eq!(again.json["is_resumed"], true);
                again.path()
            };
            there_and_back(&site, &spoke, &path, 21);
            site.assert_landed(&[&spoke]);
            let names = fs::read_dir(&drive).unwrap().count();
            let receipts = usize::from(!more.is_empty());
            assert_eq!(names, 1 + receipts, "{step:?} {more:?}");
        }
    }
}

fn a_hub_that_ends_after_any_step_of_an_import_completes_it_when_asked_again() {
    for step in [
        Step::ImportClaimed,
        Step::ImportStaged,
        Step::ImportBatch,
        Step::ImportRegistered,
        Step::ImportRecorded,
        Step::ImportNoted,
        Step::ReceiptSigned,
        Step::ImportReceipt,
        Step::Committed,
        Step::Applied,
        Step::Promoted,
        Step::PromotedSynced,
    ] {
        let site = Site::new();
        let hub = site.hub();
        let address = hub.address.clone();
        let spoke = site.spoke("s");
        with_large(&spoke);
        let path = exported(&spoke, &drive(&site), &[]);
        assert_eq!(hub.stop(), 0);
        let hub = site.hub_told(&address, &format!("abort-after:{}", step.as_str()));
        let ended = import(&site, &path, &[]);
        assert!(matches!(ended.code, 70 | 75 | 1), "{step:?}: {ended:?}");
        assert!(hub.ended_by_signal(), "the step {step:?} was never reached");
        let before = tree(&site.landing());
        let hub = site.hub_with(&address, &[]);
        let again = import(&site, &path, &[]);
        assert_eq!(again.code, 0, "{step:?}: {again:?}");
        // V1: what was visible before is whole.
        let source = tree(&spoke.source());
        for (name, bytes) in before {
            assert_eq!(source.get(name.strip_prefix("s/").unwrap()), Some(&bytes), "{step:?}");
        }
        let acked = ack(&spoke, &path);
        assert_eq!(acked.json["receipts"][0]["synced"], 21, "{step:?}: {acked:?}");
        site.assert_landed(&[&spoke]);
        assert_eq!(history(&site, "s")["bundles"].as_array().unwrap().len(), 1, "{step:?}");
        assert_eq!(site.manifest().len(), 21);
        hub.kill();
        let _hub = site.hub_with(&address, &[]);
        let staged: Vec<String> = tree(&site.path().join("hub/staging")).into_keys().collect();
        assert!(staged.iter().all(|n| n.ends_with(".receipt")), "{step:?}: {staged:?}");
    }
}

fn an_acknowledgement_that_ends_after_any_step_is_repeated() {
    for step in [Step::AckStored, Step::AckPart, Step::AckApplied] {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        // More than are applied together.
        fill(&spoke, 0, 2_100);
        let path = exported(&spoke, &drive(&site), &[]);
        assert_eq!(import(&site, &path, &[]).code, 0);
        broken(barque(&["bundle", "ack", &path, "--state", &spoke.state()]), step);
        let status = spoke.status();
        let (synced, open) = (status["synced"].as_u64(), status["exported"].as_u64());
        assert_eq!(synced.unwrap() + open.unwrap(), 2_100, "{status}");
        assert_eq!(ack(&spoke, &path).code, 0);
        assert_eq!(
            (&spoke.status()["synced"], &spoke.status()["receipts"]),
            (&2_100.into(), &1.into())
        );
    }
}

/// Starts a command and kills it once its work has moved by about so much.
fn kill_at(mut command: Command, watched: &Path, by: u64, hits: &mut u64) {
    let size = || -> u64 { tree_bytes(watched) };
    let start = size();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while size() < start + by && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    *hits += u64::from(child.try_wait().unwrap().is_none());
    let _ = child.kill();
    child.wait().unwrap();
}

/// Names and kilobytes below a folder, also while it changes.
fn tree_bytes(folder: &Path) -> u64 {
    let (mut sum, mut folders) = (0, vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            match item.metadata() {
                Ok(m) if m.is_dir() => folders.push(item.path()),
                Ok(m) => sum += 1 + m.len() / 1024,
                Err(_) => {}
            }
        }
    }
    sum
}

const KILLS: u64 = 20;

fn twenty_kills_of_each_of_export_import_and_ack_change_nothing() {
    let site = Site::new();
    let mut hub = Some(site.hub());
    let address = hub.as_ref().unwrap().address.clone();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    let mut seed = 11;
    let mut hits = [0u64; 3];
    let mut files = 0;
    for round in 0.. {
        if hits.iter().all(|h| *h >= KILLS) {
            break;
        }
        assert!(round < 6 * KILLS, "after {round} rounds only {hits:?} kills hit");
        for n in 0..60 {
            let path = format!("d/r{round}/2024/03/01/{:02}/f{n}.parquet", n % 24);
            spoke.put(&path, &sized(round * 100 + n, 2_000));
        }
        spoke.put(&format!("d/r{round}/2024/03/02/00/large.parquet"), &sized(round, 900_000));
        files += 61;
        let more = FORMS[usize::try_from(round % 3).unwrap()];
        if hits[0] < KILLS {
            kill_at(
                export_command(&spoke, &drive, more),
                &drive,
                random(&mut seed, 900),
                &mut hits[0],
            );
        }
        let done = export(&spoke, &drive, more);
        assert_eq!(done.code, 0, "{done:?}");
        let path = match done.json["path"].as_str() {
            Some(path) => path.to_owned(),
            // The kill came just after its end.
            None => newest(&drive),
        };
        if hits[1] < KILLS {
            let mut command = barque(&["hub", "import", &path, "--data", &site.data()]);
            let staging = site.path().join("hub");
            let start = tree_bytes(&staging);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let by = random(&mut seed, 1_100);
            while tree_bytes(&staging) < start + by && child.try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            hits[1] += u64::from(child.try_wait().unwrap().is_none());
            hub.take().unwrap().kill();
            child.wait().unwrap();
            hub = Some(site.hub_with(&address, &[]));
        }
        let imported = import(&site, &path, &[]);
        assert_eq!(imported.code, 0, "{imported:?}");
        if hits[2] < KILLS {
            let state = PathBuf::from(spoke.state());
            let command = barque(&["bundle", "ack", &path, "--state", &spoke.state()]);
            kill_at(command, &state, random(&mut seed, 24), &mut hits[2]);
        }
        assert_eq!(ack(&spoke, &path).code, 0);
    }
    assert_eq!(spoke.status()["synced"], files);
    assert_eq!(spoke.push().count("sent"), 0);
    site.assert_landed(&[&spoke]);
    let source = tree(&spoke.source());
    assert_eq!(site.manifest().len(), source.len());
}

fn newest(drive: &Path) -> String {
    let names = fs::read_dir(drive).unwrap().flatten().map(|i| i.path());
    let bundles = names.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("bundle-"));
    bundles.max().unwrap().display().to_string()
}

fn what_vanished_since_it_was_planned_is_left_out_and_named() {
    for more in FORMS {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        let drive = drive(&site);
        with_large(&spoke);
        broken(export_command(&spoke, &drive, more), Step::ExportFiles);
        // One goes, and one becomes another file between the plan and the end.
        let gone = "d/m/2024/03/01/03/f3.parquet";
        fs::remove_file(spoke.source().join(gone)).unwrap();
        // What is on the drive already would go with it.
        let copies = fs::read_dir(&drive).unwrap().flatten();
        copies.for_each(|c| drop(fs::remove_file(c.path().join("data").join(gone))));
        spoke.put("d/m/2024/03/01/04/f4.parquet", &tiny(404));
        let done = export(&spoke, &drive, more);
        assert_eq!((done.code, done.count("files")), (0, 19), "{more:?}: {done:?}");
        let named = done.json["left_out"].as_array().unwrap();
        assert!(named.iter().any(|l| l["path"] == gone && l["code"] == "vanished"), "{named:?}");
        let path = done.path();
        assert_eq!(run(&["bundle", "verify", &path, "--state", &spoke.state()]).0, 0);
        assert_eq!(import(&site, &path, &[]).count("committed"), 19);
        ack(&spoke, &path);
        // The other one goes with the next drive.
        let next = exported(&spoke, &drive, more);
        assert_eq!(import(&site, &next, &[]).count("committed"), 1);
        site.assert_landed(&[&spoke]);
    }
}

fn an_export_on_another_drive_names_the_one_that_was_not_finished() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let one = drive(&site);
    let two = site.path().join("two");
    fs::create_dir_all(&two).unwrap();
    with_large(&spoke);
    let more = ["--label", "drive 1"];
    broken(export_command(&spoke, &one, &more), Step::ExportFiles);
    // A push goes on all the same: what is planned is not held back.
    assert_eq!(spoke.push().count("sent"), 21);
    fill(&spoke, 20, 25);
    let other = export(&spoke, &two, &[]);
    assert_eq!((other.code, other.count("files")), (0, 5), "{other:?}");
    let named = &other.json["unfinished"][0];
    assert_eq!(
        (&named["label"], &named["folder"]),
        (&"drive 1".into(), &one.display().to_string().into())
    );
    let id = named["bundle_id"].as_str().unwrap();
    let removed = json(&["bundle", "rm", id, "--state", &spoke.state(), "--json"]);
    assert!(removed["removed"].is_string() && fs::read_dir(&one).unwrap().next().is_none());
    assert_eq!(import(&site, &other.path(), &[]).count("committed"), 5);
    site.assert_landed(&[&spoke]);
}

fn a_signature_that_did_not_reach_the_drive_is_written_again() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    with_large(&spoke);
    broken(export_command(&spoke, &drive, &[]), Step::ExportSealed);
    let bundle = fs::read_dir(&drive).unwrap().next().unwrap().unwrap().path();
    // What FAT leaves of a file whose drive was pulled.
    fs::write(bundle.join("manifest.sig"), "").unwrap();
    let again = export(&spoke, &drive, &[]);
    assert_eq!((again.code, again.count("files")), (0, 21), "{again:?}");
    assert_eq!(
        (again.path(), &again.json["is_resumed"]),
        (bundle.display().to_string(), &true.into())
    );
    there_and_back(&site, &spoke, &again.path(), 21);
}

fn nothing_is_written_through_links_that_somebody_left_on_a_drive() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    let victim = site.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    with_large(&spoke);
    broken(export_command(&spoke, &drive, &[]), Step::ExportHeader);
    let bundle = fs::read_dir(&drive).unwrap().next().unwrap().unwrap().path();
    for name in ["data/d/m/2024/03/01/03/f3.parquet", "manifest.sig", "manifest.sig.part"] {
        let _ = fs::remove_file(bundle.join(name));
        std::os::unix::fs::symlink(&victim, bundle.join(name)).unwrap();
        let refused = export(&spoke, &drive, &[]);
        assert_ne!(refused.code, 0, "{name}: {refused:?}");
        assert!(refused.stderr.contains("a symbolic link"), "{name}: {}", refused.stderr);
        fs::remove_file(bundle.join(name)).unwrap();
    }
    let path = exported(&spoke, &drive, &[]);
    assert_eq!(import(&site, &path, &[]).code, 0);
    for name in ["ack.json", "ack.sig", "outcomes.jsonl"] {
        fs::remove_file(Path::new(&path).join(name)).unwrap();
        std::os::unix::fs::symlink(&victim, Path::new(&path).join(format!("{name}.part"))).unwrap();
    }
    assert_eq!(import(&site, &path, &[]).code, 0);
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["synced"], 21);
}

fn a_file_that_cannot_land_yet_waits_again_after_the_drive_is_back() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    fill(&spoke, 0, 3);
    let path = exported(&spoke, &drive, &[]);
    // Something that the hub does not know stands where one of them would land.
    let foreign = site.landing().join("s/d/m/2024/03/01/01/f1.parquet");
    fs::create_dir_all(foreign.parent().unwrap()).unwrap();
    fs::write(&foreign, "foreign").unwrap();
    let done = import(&site, &path, &[]);
    assert_eq!((done.code, done.count("committed"), done.count("refused")), (3, 2, 1), "{done:?}");
    let acked = ack(&spoke, &path);
    let receipt = &acked.json["receipts"][0];
    assert_eq!((&receipt["synced"], &receipt["waiting"]), (&2.into(), &1.into()), "{acked:?}");
    let status = spoke.status();
    assert_eq!((&status["pending"], &status["exported"]), (&1.into(), &0.into()), "{status}");
    fs::remove_file(&foreign).unwrap();
    // The same drive again, since not every entry stands; or the link, or the next drive.
    assert_eq!(import(&site, &path, &[]).count("committed"), 1);
    assert_eq!(ack(&spoke, &path).code, 0);
    assert_eq!(spoke.status()["synced"], 3);
    site.assert_landed(&[&spoke]);
}

fn one_damaged_receipt_on_a_drive_holds_up_no_other() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let drive = drive(&site);
    let mut paths = Vec::new();
    for n in 0..3 {
        fill(&spoke, n, n + 1);
        paths.push(exported(&spoke, &drive, &[]));
        assert_eq!(import(&site, &paths[usize::try_from(n).unwrap()], &[]).code, 0);
    }
    fs::write(Path::new(&paths[0]).join("ack.sig"), "").unwrap();
    let acked = ack(&spoke, &drive.display().to_string());
    assert_eq!(acked.code, 5, "{acked:?}");
    assert_eq!(acked.json["faults"][0]["path"], paths[0].as_str());
    assert_eq!(spoke.status()["synced"], 2);
    // The hub writes a receipt that was cut short again.
    assert_eq!(import(&site, &paths[0], &[]).code, 0);
    assert_eq!(ack(&spoke, &drive.display().to_string()).code, 0);
    assert_eq!(spoke.status()["synced"], 3);
}

fn a_drive_that_fills_says_so_and_goes_on_once_there_is_room() {
    for more in FORMS {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        let at = site.path().join("stick");
        let _mount = Mount::of_size(at.clone(), "4m");
        for n in 0..30 {
            spoke.put(&format!("d/m/2024/03/01/{:02}/f{n}.parquet", n % 24), &sized(n, 60_000));
        }
        broken(export_command(&spoke, &at, more), Step::ExportPlanned);
        // Somebody else takes the room in between; the plan stands on the drive by its folder.
        let id = json(&["bundle", "ls", "--state", &spoke.state(), "--json"]);
        let id = id["in_transit"][0]["bundle_id"].as_str().unwrap().to_owned();
        let name = match more {
            [] => format!("bundle-s-{id}"),
            [_, ending] => format!("bundle-s-{id}.{ending}.partial"),
            other => panic!("{other:?}"),
        };
        match more {
            [] => fs::create_dir(at.join(&name)).unwrap(),
            _ => fs::write(at.join(&name), "").unwrap(),
        }
        fs::write(at.join("taken"), vec![1; 3_000_000]).unwrap();
        let full = export(&spoke, &at, more);
        assert_eq!(full.code, 75, "{more:?}: {full:?}");
        assert!(full.stderr.contains("make room") && full.stderr.contains("stick"), "{full:?}");
        assert_eq!(
            (&spoke.status()["pending"], &spoke.status()["exported"]),
            (&30.into(), &0.into())
        );
        fs::remove_file(at.join("taken")).unwrap();
        let done = export(&spoke, &at, more);
        assert_eq!((done.code, &done.json["bundle_id"]), (0, &id.as_str().into()), "{done:?}");
        there_and_back(&site, &spoke, &done.path(), 30);
    }
    // A drive on which nothing fits is told with what does not.
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let at = site.path().join("stick");
    let _mount = Mount::of_size(at.clone(), "1m");
    spoke.put("d/m/2024/03/01/00/large.parquet", &sized(1, 2_000_000));
    let none = export(&spoke, &at, &[]);
    assert_eq!((none.code, &none.json["left_out"][0]["code"]), (75, &"no_room".into()), "{none:?}");
}

fn a_file_system_that_knows_no_sync_is_said_and_one_that_fails_is_an_error() {
    for (error, code) in [("EINVAL", 0), ("ENOTTY", 0), ("EIO", 75)] {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        let drive = drive(&site);
        fill(&spoke, 0, 4);
        // The ledger's own syncs are those of SQLite: only fsync of the drive's files is told to
        // fail, by the path.
        let plain = export_command(&spoke, &drive, &[]);
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-o", "/dev/null", "-P"])
            .arg(&drive)
            .args(["-e", "trace=fsync,syncfs", "-e"])
            .arg(format!("inject=fsync,syncfs:error={error}"))
            .arg(plain.get_program())
            .args(plain.get_args())
            .env("BARQUE_CONFIG", "/dev/null")
            .stdin(Stdio::null());
        let ended = Ended::of_command(&mut command);
        assert_eq!(ended.code, code, "{error}: {ended:?}");
        if code == 0 {
            assert_eq!(ended.json["is_synced"], false, "{error}");
            let state = spoke.state();
            there_and_back(&site, &spoke, &ended.path(), 4);
            assert_eq!(run(&["bundle", "ls", "--state", &state]).0, 0);
        } else {
            assert!(ended.stderr.contains("the drive cannot be written"), "{ended:?}");
            assert_eq!(spoke.status()["exported"], 0);
            assert_eq!(export(&spoke, &drive, &[]).code, 0);
        }
    }
}
