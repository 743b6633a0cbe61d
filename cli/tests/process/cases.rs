//! Field reports of people who move files, as tests: see docs/CASES.md.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use libtest_mimic::Trial;

use crate::site::{CLOCK, Site, Spoke, bytes_below, pass_of, sized, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(sp_01_a_file_that_grows_is_not_settled_and_lands_once_whole),
        trial!(sp_01_a_file_renamed_back_and_forth_lands_whole_under_one_name_or_both),
        trial!(sp_01_a_file_replaced_while_it_is_sent_never_lands_as_a_mixture),
        trial!(sp_02_new_content_of_the_same_size_and_time_is_noticed_and_never_overwrites),
        trial!(sp_03_links_are_never_followed_and_a_hard_link_is_a_file),
        trial!(sp_05_awkward_names_land_byte_for_byte_or_are_held_back_by_rule),
        trial!(sp_06_names_at_the_limit_land_and_a_path_over_it_fails_alone),
        trial!(hb_07_the_same_path_of_two_spokes_lands_twice),
        trial!(hb_07_other_content_from_a_copied_state_folder_is_a_conflict_and_overwrites_nothing),
        trial!(sp_08_a_damaged_ledger_is_set_aside_and_rebuilt_without_sending_anything_again),
        trial!(sp_09_markers_and_temporary_files_beside_the_data_are_passed_over),
        trial!(pq_01_a_file_that_was_empty_lands_once_it_is_whole),
        trial!(op_01_of_passes_at_once_one_runs_and_the_others_leave_with_7),
        trial!(op_01_a_killed_pass_and_a_lock_file_by_hand_lock_nobody_out),
    ]
}

fn sp_01_a_file_that_grows_is_not_settled_and_lands_once_whole() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.edit_config("50ms", "300ms");
    let whole = sized(1, 200_000);
    let path = spoke.put("factory/line1/2024/03/31/02/slow.parquet", &whole[..4]);
    let writing = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|s| {
        s.spawn(|| {
            use std::io::Write as _;
            let mut file = fs::File::options().append(true).open(&path).unwrap();
            let mut rest = whole[4..whole.len() - 4].chunks(16).cycle();
            // Goes on until a pass has seen it; what was written too much is cut off below.
            while writing.load(std::sync::atomic::Ordering::SeqCst) {
                file.write_all(rest.next().unwrap()).unwrap();
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        let during = spoke.push();
        writing.store(false, std::sync::atomic::Ordering::SeqCst);
        // To a clock that is years ahead every file is old: then its end says that it is not whole.
        let word = match std::env::var_os(CLOCK) {
            None => during.count("not_settled"),
            Some(_) => during.count("not_settled") + during.count("skipped"),
        };
        assert_eq!((during.code, word, during.count("sent")), (0, 1, 0), "{during:?}");
        assert_eq!(during.count("failed"), 0, "{during:?}");
    });
    fs::write(&path, &whole).unwrap();
    assert_eq!(spoke.push().count("sent"), 1);
    site.assert_landed(&[&spoke]);
}

fn sp_01_a_file_renamed_back_and_forth_lands_whole_under_one_name_or_both() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let a = spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    let b = a.with_file_name("b.parquet");
    let moving = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|s| {
        s.spawn(|| {
            while moving.load(std::sync::atomic::Ordering::SeqCst) {
                fs::rename(&a, &b).unwrap();
                fs::rename(&b, &a).unwrap();
            }
        });
        for _ in 0..3 {
            let pass = spoke.push_while_files_move();
            assert!(pass.code == 0 && pass.count("failed") == 0, "{pass:?}");
        }
        moving.store(false, std::sync::atomic::Ordering::SeqCst);
    });
    spoke.push_while_files_move();
    let landed = tree(&site.landing());
    assert!((1..=2).contains(&landed.len()), "{landed:?}");
    let digest = barque_bundle::Sha256Digest::of(&tiny(1));
    assert!(landed.values().all(|(d, _)| *d == digest));
    assert!(landed.contains_key("s/d/m/2024/03/31/02/a.parquet"));
}

fn sp_01_a_file_replaced_while_it_is_sent_never_lands_as_a_mixture() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let path = spoke.put("d/m/2024/03/31/02/large.parquet", &sized(1, 24_000_000));
    let other = spoke.source().join("d/.other");
    fs::write(&other, sized(2, 24_000_000)).unwrap();
    let mut push = spoke.push_command();
    push.args(["--bandwidth", "12MB/s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut push = push.spawn().unwrap();
    let staging = site.path().join("hub/staging");
    wait_for("the file is on its way", || bytes_below(&staging) > 1_000_000);
    assert!(push.try_wait().unwrap().is_none(), "the push ended before the file was replaced");
    fs::rename(&other, &path).unwrap();
    let pass = pass_of(push.wait_with_output().unwrap());
    assert_eq!(pass.count("failed"), 0, "{pass:?}");
    let again = spoke.push();
    let landed = tree(&site.landing());
    let digests: Vec<_> = landed.values().map(|(d, _)| *d).collect();
    let first = barque_bundle::Sha256Digest::of(&sized(1, 24_000_000));
    let second = barque_bundle::Sha256Digest::of(&sized(2, 24_000_000));
    assert!(digests == [first] || digests == [second], "{digests:?}");
    // The first content landed: then the new one is a change for a person.
    if digests == [first] {
        assert_eq!(again.count("modified"), 1, "{again:?}");
    }
}

fn set_modified(path: &std::path::Path, at: SystemTime) {
    fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
}

fn sp_02_new_content_of_the_same_size_and_time_is_noticed_and_never_overwrites() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_711_850_400);
    let name = "d/m/2024/03/31/02/s.parquet";
    let path = spoke.put(name, &tiny(1));
    set_modified(&path, at);
    assert_eq!(spoke.push().count("sent"), 1);
    // Filled in place: same inode, size and time.
    fs::write(&path, tiny(2)).unwrap();
    set_modified(&path, at);
    for _ in 0..2 {
        let pass = spoke.push();
        assert_eq!(
            (pass.code, pass.count("modified"), pass.count("present")),
            (3, 1, 0),
            "{pass:?}"
        );
    }
    assert_eq!(fs::read(site.landing().join("s").join(name)).unwrap(), tiny(1));
    // Preallocated at full size, then filled: held back first, lands whole later.
    let pre = spoke.put("d/m/2024/03/31/02/pre.parquet", &vec![0; tiny(3).len()]);
    set_modified(&pre, at);
    let held = spoke.push();
    assert_eq!(held.report["skipped_by"]["parquet_head_magic"], 1, "{held:?}");
    fs::write(&pre, tiny(3)).unwrap();
    set_modified(&pre, at);
    assert_eq!(spoke.push().count("sent"), 1);
}

fn sp_03_links_are_never_followed_and_a_hard_link_is_a_file() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let real = spoke.put("factory/line1/2024/03/31/02/real.parquet", &tiny(1));
    let folder = real.parent().unwrap();
    symlink(".", folder.join("loop")).unwrap();
    symlink("..", spoke.source().join("factory/up")).unwrap();
    symlink("no/such/file.parquet", folder.join("dangling.parquet")).unwrap();
    symlink("real.parquet", folder.join("same_tree.parquet")).unwrap();
    symlink("/etc/hostname", folder.join("outside.parquet")).unwrap();
    symlink("/etc", spoke.source().join("factory/outside_dir")).unwrap();
    fs::hard_link(&real, folder.join("hardlink.parquet")).unwrap();
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), pass.count("skipped")), (0, 2, 3), "{pass:?}");
    assert_eq!(pass.report["skipped_by"]["link"], 3);
    assert_eq!(pass.report["ignored_by"]["link"], 3);
    let names: Vec<String> = tree(&site.landing()).into_keys().collect();
    let at = |n: &str| format!("s/factory/line1/2024/03/31/02/{n}.parquet");
    assert_eq!(names, [at("hardlink"), at("real")]);
}

fn put_raw(spoke: &Spoke, name: &[u8], bytes: &[u8]) {
    let folder = spoke.source().join("factory/line1/2024/03/31/02");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join(std::ffi::OsStr::from_bytes(name)), bytes).unwrap();
}

/// Names that land as they are; two at the limit of 255 bytes come on top.
const LANDING: [&str; 27] = [
    "plain.parquet",
    "with space.parquet",
    " leading space.parquet",
    "percent%20encoded.parquet",
    "100%.parquet",
    "L%3ABC.parquet",
    "hash#1.parquet",
    "question?.parquet",
    "plus+and&amp.parquet",
    "semi;colon.parquet",
    "quote'\".parquet",
    "star*.parquet",
    "pipe|lt<gt>.parquet",
    "colon_2024-03-31T02:15:00Z.parquet",
    "-rf.parquet",
    "CON.parquet",
    "nul.parquet",
    "COM1.parquet",
    "nfc_Z\u{fc}rich.parquet",
    "nfd_Zu\u{308}rich.parquet",
    "same_caf\u{e9}.parquet",
    "same_cafe\u{301}.parquet",
    "rtl_\u{202e}gnp.parquet",
    "emoji_\u{1f321}.parquet",
    "zero\u{200b}width.parquet",
    "dots...in..name.parquet",
    "=equals=.parquet",
];
/// Names that are held back or passed over; `..\\..\\dots` starts with a dot and so is hidden.
const OTHERS: [&[u8]; 12] = [
    b"back\\slash.parquet",
    b"..\\..\\dots.parquet",
    b"new\nline.parquet",
    b"carriage\rreturn.parquet",
    b"tab\there.parquet",
    b"bell\x07.parquet",
    b"latin\xe9.parquet",
    b"upload.parquet#1",
    b"trailing-dot.parquet.",
    b"trailing-space.parquet ",
    b"aux",
    b"UPPER.PARQUET",
];

fn sp_05_awkward_names_land_byte_for_byte_or_are_held_back_by_rule() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let mut landing: Vec<String> = LANDING.map(str::to_owned).to_vec();
    landing.push(format!("{}.parquet", "n".repeat(247)));
    landing.push(format!("{}.parquet", "\u{416}".repeat(123)));
    for (n, name) in (1..).zip(&landing) {
        put_raw(&spoke, name.as_bytes(), &tiny(n));
    }
    for name in OTHERS {
        put_raw(&spoke, name, &tiny(99));
    }
    let deep = format!("factory/deep/{}/deep.parquet", vec!["d".repeat(200); 17].join("/"));
    spoke.put(&deep, &tiny(97));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, landing.len() as u64), "{pass:?}");
    let by = &pass.report["skipped_by"];
    let expected = [
        ("path_backslash", 1),
        ("path_control_character", 4),
        ("path_not_utf8", 1),
        ("path_too_long", 1),
    ];
    assert_eq!(*by, serde_json::json!(std::collections::BTreeMap::from(expected)));
    let ignored = &pass.report["ignored_by"];
    assert_eq!(*ignored, serde_json::json!({ "hidden": 1, "foreign": 5 }));
    let landed = tree(&site.landing());
    assert_eq!(landed.len(), landing.len());
    for (n, name) in (1..).zip(landing) {
        let name = format!("s/factory/line1/2024/03/31/02/{name}");
        assert_eq!(landed[&name].0, barque_bundle::Sha256Digest::of(&tiny(n)), "{name:?}");
    }
}

fn sp_09_markers_and_temporary_files_beside_the_data_are_passed_over() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    put_raw(&spoke, b"real.parquet", &tiny(1));
    let foreign = [
        "_SUCCESS",
        "_committed_123",
        "_metadata",
        "real.parquet.crc",
        "real.parquet.tmp",
        "real.parquet.inprogress",
        "real.parquet.part",
        "real.parquet.filepart",
        "real.parquet~",
        "Thumbs.db",
        "desktop.ini",
        "real.parquet.swp",
        "000000",
        "real.parquet.sha256",
        "README.txt",
    ];
    let hidden = [
        ".real.parquet.crc",
        ".real.parquet.Ab12Cd",
        ".syncthing.real.parquet.tmp",
        "._real.parquet",
        ".DS_Store",
    ];
    for name in foreign.iter().chain(&hidden) {
        put_raw(&spoke, name.as_bytes(), name.as_bytes());
    }
    put_raw(&spoke, b"real.tmp.parquet", b"not whole yet");
    let base = "factory/line1/2024/03/31/02";
    spoke.put(&format!("{base}/_temporary/0/task_1/part-0.parquet"), &tiny(2));
    spoke.put(&format!("{base}/.hidden_dir/x.parquet"), &tiny(3));
    spoke.put(&format!("{base}/directory.parquet/part-0.parquet"), &tiny(4));
    spoke.put("factory/_internal/2024/03/31/02/kept.parquet", &tiny(5));
    spoke.put("_factory2/line1/2024/03/31/02/kept.parquet", &tiny(6));
    fs::create_dir(spoke.source().join(base).join("lost+found")).unwrap();
    let pipe = spoke.source().join(base).join("pipe.parquet");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), pass.count("skipped")), (0, 3, 2), "{pass:?}");
    assert_eq!(pass.report["skipped_by"]["parquet_head_magic"], 1);
    assert_eq!(pass.report["skipped_by"]["not_a_file"], 1);
    let ignored = &pass.report["ignored_by"];
    assert_eq!((&ignored["foreign"], &ignored["hidden"]), (&15.into(), &6.into()), "{ignored}");
    assert_eq!(
        (&ignored["scratch_folder"], &ignored["folder_named_parquet"]),
        (&2.into(), &1.into())
    );
    let names: Vec<String> = tree(&site.landing()).into_keys().collect();
    assert_eq!(
        names,
        [
            "s/_factory2/line1/2024/03/31/02/kept.parquet".to_owned(),
            "s/factory/_internal/2024/03/31/02/kept.parquet".to_owned(),
            format!("s/{base}/real.parquet"),
        ]
    );
}

fn pq_01_a_file_that_was_empty_lands_once_it_is_whole() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/a.parquet", b"");
    spoke.put("d/m/b.parquet", &tiny(2));
    let first = spoke.push();
    assert_eq!((first.code, first.count("sent"), first.count("skipped")), (0, 1, 1));
    spoke.put("d/m/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    site.assert_landed(&[&spoke]);
}

fn op_01_of_passes_at_once_one_runs_and_the_others_leave_with_7() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    // Long enough a pass: it waits for the file to lie still.
    spoke.edit_config("50ms", "2s");
    spoke.put("d/m/a.parquet", &tiny(1));
    let mut first = spoke.start_push();
    let lock = std::path::Path::new(&spoke.state()).join("lock");
    wait_for("the first pass has the lock", || {
        fs::read_to_string(&lock).is_ok_and(|t| t.contains(&format!("process {} ", first.id())))
    });
    for _ in 0..2 {
        let output = spoke.push_command().output().unwrap();
        let (code, _, err) = crate::site::ended(output);
        assert_eq!(code, 7, "{err}");
        assert!(err.contains("already running") && err.contains(": process "), "{err}");
    }
    assert!(first.try_wait().unwrap().is_none(), "the first pass ended too early for this test");
    let pass = pass_of(first.wait_with_output().unwrap());
    assert_eq!((pass.code, pass.count("sent")), (0, 1));
}

fn op_01_a_killed_pass_and_a_lock_file_by_hand_lock_nobody_out() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/a.parquet", &tiny(1));
    let mut push = spoke.start_push();
    push.kill().unwrap();
    push.wait().unwrap();
    fs::write(std::path::Path::new(&spoke.state()).join("lock"), "process 1 since 1970\n").unwrap();
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("left")), (0, 0), "{pass:?}");
    site.assert_landed(&[&spoke]);
}

/// Ways in which a ledger comes back from a power cut or a bad card.
/// What befalls a ledger, what the operator hears of it in one line, and whether the old one is
/// kept aside.
const DAMAGES: [(&str, &str, bool); 7] = [
    ("deleted", "the ledger was lost", false),
    ("emptied", "the ledger was lost", false),
    ("truncated", "the ledger is damaged", true),
    ("overwritten", "the ledger is damaged", true),
    ("garbage", "the ledger is damaged", true),
    ("without its journal", "the ledger is older", false),
    ("two days old", "the ledger is older", false),
];

fn damage(ledger: &std::path::Path, old: &std::path::Path, how: &str) {
    use std::os::unix::fs::FileExt as _;
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{ending}", ledger.display()));
    }
    let open = || fs::File::options().write(true).open(ledger).unwrap();
    match how {
        "deleted" => fs::remove_file(ledger).unwrap(),
        "emptied" => open().set_len(0).unwrap(),
        "truncated" => open().set_len(5000).unwrap(),
        "overwritten" => open().write_all_at(&[0xa5; 8192], 3 * 4096).unwrap(),
        "garbage" => fs::write(ledger, vec![0x5a; 20_000]).unwrap(),
        _ => drop(fs::copy(old, ledger).unwrap()),
    }
}

fn series_of(ledger: &std::path::Path) -> String {
    let c = rusqlite::Connection::open(ledger).unwrap();
    c.query_row("SELECT series FROM hubs", [], |r| r.get(0)).unwrap()
}

fn sp_08_a_damaged_ledger_is_set_aside_and_rebuilt_without_sending_anything_again() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let state = std::path::PathBuf::from(spoke.state());
    let ledger = state.join("ledger.db");
    spoke.put("d/m/first.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    let mut files = 1;
    for (how, told, is_kept) in DAMAGES {
        let old = site.path().join("old.db");
        fs::copy(&ledger, &old).unwrap();
        // A reader keeps the journal from being emptied: without it the ledger is as it was before.
        let reader = rusqlite::Connection::open(&ledger).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM files;").unwrap();
        let _: i64 = reader.query_row("SELECT count(*) FROM files", [], |r| r.get(0)).unwrap();
        // The last in the order of names first: a scan that meets all of them gives other numbers.
        for part in [20..40, 0..20] {
            for n in part {
                spoke.put(&format!("d/m/2024/03/31/02/{how}{n:02}.parquet"), &tiny(files + n));
            }
            assert_eq!(spoke.push().count("sent"), 20, "{how}");
        }
        files += 40;
        fs::copy(&ledger, site.path().join("main.db")).unwrap();
        drop(reader);
        let (before, series) = (site.manifest(), series_of(&ledger));
        let from = if how == "without its journal" { site.path().join("main.db") } else { old };
        damage(&ledger, &from, how);
        let pass = spoke.push();
        let counts = (pass.code, pass.count("sent"), pass.count("present"));
        assert_eq!(counts, (0, 0, files), "{how}: {pass:?}");
        assert_eq!(spoke.status()["synced"], files, "{how}");
        assert_eq!(site.manifest(), before, "{how}");
        // To a clock that is years ahead no file is young, so the same files get the same numbers
        // again, which are right: nobody has to hear of it.
        if told == "the ledger is older" && std::env::var_os(CLOCK).is_some() {
            continue;
        }
        // The operator is told in one line, and numbers go on in a new series.
        let lines: Vec<&str> = pass.stderr.lines().filter(|l| l.contains("WARN")).collect();
        assert!(lines.len() == 1 && lines[0].contains(told), "{how}: {}", pass.stderr);
        assert_ne!(series_of(&ledger), series, "{how}");
        let aside = fs::read_dir(&state).unwrap().flatten().map(|i| i.path());
        let aside: Vec<_> = aside.filter(|p| p.to_string_lossy().contains(".damaged-")).collect();
        assert_eq!(!aside.is_empty(), is_kept, "{how}: {aside:?}");
        aside.into_iter().for_each(|p| fs::remove_file(p).unwrap());
    }
    spoke.put("d/m/last.parquet", &tiny(9_999));
    assert_eq!(spoke.push().count("sent"), 1);
}

fn sp_06_names_at_the_limit_land_and_a_path_over_it_fails_alone() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let long = format!("{}.parquet", "n".repeat(247));
    let cyrillic = format!("{}.parquet", "\u{436}".repeat(123));
    assert_eq!((long.len(), cyrillic.len()), (255, 254));
    for (n, name) in (1..).zip([&long, &cyrillic]) {
        spoke.put(&format!("factory/line1/2024/03/31/02/{name}"), &tiny(n));
    }
    // As long as a path may be with this spoke's name, and one byte more.
    let longest =
        |end: usize| format!("{}{}.parquet", "d".repeat(200) + "/", "f".repeat(end - 209));
    let folders = format!("{0}/{0}/{0}/{0}/", "e".repeat(200));
    let fits = format!("{folders}{}.parquet", "f".repeat(1_017 - 804 - 8));
    assert_eq!("s/".len() + fits.len(), 1_019);
    spoke.put(&fits, &tiny(3));
    let over = fits.replace("f.parquet", "ff.parquet");
    spoke.put(&over, &tiny(4));
    // Deeper than any system call takes in one piece.
    let deep = format!("{}/{}", vec!["deep".repeat(50); 18].join("/"), longest(255));
    let mut at = spoke.source();
    for segment in deep.split('/').take(18) {
        at.push(segment);
    }
    fs::create_dir_all(&at).unwrap();
    fs::write(at.join("deep.parquet"), tiny(5)).unwrap();
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent"), pass.count("failed")), (0, 3, 0), "{pass:?}");
    assert_eq!(pass.report["skipped_by"]["path_too_long"], 2, "{pass:?}");
    let named = pass.report["held_back"].to_string();
    assert!(named.contains("path_too_long"), "{named}");
    let landed = tree(&site.landing());
    assert_eq!(landed.len(), 3);
    assert!(landed.contains_key(&format!("s/factory/line1/2024/03/31/02/{long}")));
    assert!(landed.contains_key(&format!("s/factory/line1/2024/03/31/02/{cyrillic}")));
    assert!(landed.contains_key(&format!("s/{fits}")));
}

const SAME: &str = "d/m/2024/03/31/02/x.parquet";

fn hb_07_the_same_path_of_two_spokes_lands_twice() {
    let site = Site::new();
    let _hub = site.hub();
    let (a, b) = (site.spoke("a"), site.spoke("b"));
    a.put(SAME, &tiny(1));
    b.put(SAME, &tiny(2));
    let (one, two) = (a.start_push(), b.start_push());
    for pass in [one, two].map(|p| pass_of(p.wait_with_output().unwrap())) {
        assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    }
    site.assert_landed(&[&a, &b]);
}

/// A cloned box: the state folder copied, the files its own.
fn clone_of(site: &Site, spoke: &Spoke, name: &str) -> Spoke {
    let clone = site.unenrolled(name);
    fs::create_dir_all(clone.state()).unwrap();
    for item in fs::read_dir(spoke.state()).unwrap() {
        let path = item.unwrap().path();
        fs::copy(&path, std::path::Path::new(&clone.state()).join(path.file_name().unwrap()))
            .unwrap();
    }
    clone.edit_config(&spoke.source().display().to_string(), &clone.source().display().to_string());
    clone
}

fn hb_07_other_content_from_a_copied_state_folder_is_a_conflict_and_overwrites_nothing() {
    for at_once in [false, true] {
        let site = Site::new();
        let _hub = site.hub();
        let first = site.spoke("s");
        let second = clone_of(&site, &first, "copy");
        let third = clone_of(&site, &first, "twin");
        first.put(SAME, &tiny(1));
        second.put(SAME, &tiny(2));
        third.put(SAME, &tiny(1));
        let passes = if at_once {
            [first.start_push(), second.start_push()]
                .map(|p| pass_of(p.wait_with_output().unwrap()))
        } else {
            [first.push(), second.push()]
        };
        // One of them won; the other is a conflict that a person sees, and nothing is overwritten.
        let sent: u64 = passes.iter().map(|p| p.count("sent")).sum();
        let conflicts: u64 = passes.iter().map(|p| p.count("conflict")).sum();
        assert_eq!((sent, conflicts), (1, 1), "{passes:?}");
        let lost = passes.iter().find(|p| p.count("conflict") == 1).unwrap();
        assert_eq!(lost.code, 3, "{lost:?}");
        assert_ne!(
            lost.report["conflicts"][0]["sha256"],
            lost.report["conflicts"][0]["their_sha256"]
        );
        let won = if passes[0].count("sent") == 1 { tiny(1) } else { tiny(2) };
        assert_eq!(fs::read(site.landing().join("s").join(SAME)).unwrap(), won);
        // The winner's bytes from a third box are simply there.
        let again = third.push();
        let same = won == tiny(1);
        assert_eq!(
            (again.count("present"), again.count("conflict")),
            (u64::from(same), u64::from(!same))
        );
        assert_eq!(fs::read(site.landing().join("s").join(SAME)).unwrap(), won);
    }
}
