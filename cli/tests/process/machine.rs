//! Field reports of machines that are not well: databases held open, file systems turned read-only.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use barque_bundle::database::wal_name;
use barque_bundle::platform;
use libtest_mimic::Trial;
use rusqlite::Connection;

use crate::site::{Site, Spoke, json, run, tiny, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(op_05_a_ledger_that_is_held_open_is_said_and_its_log_shrinks_afterwards),
        trial!(op_05_a_locked_database_is_waited_for_on_both_sides),
        trial!(a_full_disk_below_a_ledger_is_one_line_that_says_what_to_do, needs lacks_mounts()),
        trial!(a_rebuild_that_finds_no_room_changes_nothing, needs lacks_mounts()),
        trial!(op_06_a_read_only_source_is_shipped_and_stays_as_it_is, needs lacks_mounts()),
        trial!(op_06_a_read_only_ledger_is_one_line_that_names_the_mount, needs lacks_mounts()),
        trial!(op_06_a_hub_whose_landing_is_read_only_stays_up_and_goes_on_by_itself, needs lacks_mounts()),
    ]
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

fn put(spoke: &Spoke, from: u64, to: u64) {
    for n in from..to {
        spoke.put(&format!("d/m/2024/03/31/{:02}/f{n}.parquet", n % 24), &tiny(n));
    }
}

fn op_05_a_ledger_that_is_held_open_is_said_and_its_log_shrinks_afterwards() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let ledger = Path::new(&spoke.state()).join("ledger.db");
    put(&spoke, 0, 300);
    let reader = Connection::open(&ledger).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM files;").unwrap();
    let count: i64 = reader.query_row("SELECT count(*) FROM files", [], |r| r.get(0)).unwrap();
    let held = spoke.push();
    assert_eq!((held.code, held.count("sent")), (0, 300), "{held:?}");
    let wal = wal_name(&ledger);
    assert!(held.stderr.contains("ledger.db-wal"), "{}", held.stderr);
    assert!(len(&wal) > 0);
    // The reader sees what it saw, then goes.
    let again: i64 = reader.query_row("SELECT count(*) FROM files", [], |r| r.get(0)).unwrap();
    assert_eq!((count, again), (0, 0));
    drop(reader);
    put(&spoke, 300, 310);
    let free = spoke.push();
    assert_eq!((free.code, free.count("sent"), len(&wal)), (0, 10, 0), "{free:?}");
    assert!(!free.stderr.contains("ledger.db-wal"), "{}", free.stderr);
}

/// Holds the write lock of a database for a while.
fn lock_for(database: PathBuf, time: Duration) -> std::thread::JoinHandle<()> {
    let (told, ready) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let c = Connection::open(database).unwrap();
        c.busy_timeout(Duration::from_secs(30)).unwrap();
        c.execute_batch("BEGIN IMMEDIATE").unwrap();
        told.send(()).unwrap();
        std::thread::park_timeout(time);
        c.execute_batch("COMMIT").unwrap();
    });
    ready.recv().unwrap();
    thread
}

fn op_05_a_locked_database_is_waited_for_on_both_sides() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let databases = [
        Path::new(&spoke.state()).join("ledger.db"),
        site.path().join("hub/node.db"),
        site.path().join("hub/raft.db"),
    ];
    for (n, database) in (0..).zip(databases) {
        put(&spoke, 20 * n, 20 * n + 20);
        // Longer than the five seconds that SQLite's users often leave it at.
        let (started, time) = (std::time::Instant::now(), Duration::from_secs(6));
        let lock = lock_for(database.clone(), time);
        let pass = spoke.push();
        let what = database.display();
        let counts = (pass.code, pass.count("sent"), pass.count("left"));
        assert_eq!(counts, (0, 20, 0), "{what}: {pass:?}");
        assert!(started.elapsed() >= time, "{what} was not waited for");
        lock.join().unwrap();
        site.assert_landed(&[&spoke]);
    }
}

pub fn lacks_mounts() -> Option<String> {
    (platform::effective_uid() != 0).then(|| "needs root, to mount".to_owned())
}

/// A tmpfs that is unmounted with this value.
pub struct Mount(pub PathBuf);

impl Mount {
    fn new(at: PathBuf) -> Self {
        Self::of_size(at, "64m")
    }

    pub fn of_size(at: PathBuf, size: &str) -> Self {
        std::fs::create_dir_all(&at).unwrap();
        let mut command = Command::new("mount");
        let options = format!("size={size},mode=0755");
        command.args(["-t", "tmpfs", "-o", &options, "barque-test"]).arg(&at);
        assert!(command.status().unwrap().success());
        Self(at)
    }

    pub fn remount(&self, how: &str) {
        let option = format!("remount,{how}");
        let mut mounted = false;
        // A file that is just being closed for writing keeps it busy for a moment.
        wait_for("the file system is remounted", || {
            let mut command = Command::new("mount");
            mounted = command.args(["-o", &option]).arg(&self.0).status().unwrap().success();
            mounted
        });
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn a_full_disk_below_a_ledger_is_one_line_that_says_what_to_do() {
    let site = Site::new();
    let _hub = site.hub();
    let unenrolled = site.unenrolled("s");
    let mount = Mount::new(PathBuf::from(unenrolled.state()));
    let spoke = site.spoke("s");
    put(&spoke, 0, 3);
    let filler = mount.0.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &[7; 4096]).is_ok() {}
    let state = spoke.state();
    for verb in [&["push"][..], &["status"], &["passes"], &["ledger", "ls"], &["ledger", "rebuild"]]
    {
        let (code, _, said) = run(&[verb, &["--state", &state]].concat());
        assert_eq!(code, 75, "{verb:?}: {said}");
        let line = said.lines().find(|l| l.starts_with("error: ")).unwrap();
        let is_told = ["ledger.db", "0 B are free", "nothing is lost, make room and run again"];
        assert!(is_told.iter().all(|t| line.contains(t)), "{verb:?}: {said}");
    }
    drop(file);
    std::fs::remove_file(filler).unwrap();
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 3), "{pass:?}");
}

fn a_rebuild_that_finds_no_room_changes_nothing() {
    const DISMISSED: u64 = 5_000;
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.unenrolled("s");
    let mount = Mount::new(PathBuf::from(spoke.state()));
    let spoke = site.spoke("s");
    put(&spoke, 0, 2);
    assert_eq!(spoke.push().count("sent"), 2);
    let ledger = Connection::open(mount.0.join("ledger.db")).unwrap();
    let many = format!(
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {DISMISSED})
         INSERT INTO files (hub_id, path, state, size_bytes, mtime_ns, ctime_ns, inode,
                            partition_ms, since)
         SELECT hub_id, 'd/m/2024/05/01/00/a-file-of-long-ago-' || i || '.parquet', 'dismissed',
                1, 1, 1, i, 1, 1 FROM n, hubs; PRAGMA wal_checkpoint(TRUNCATE);"
    );
    ledger.execute_batch(&many).unwrap();
    drop(ledger);
    let before = spoke.status();
    // Room for the new ledger's tables, and not for what goes into them.
    let filler = mount.0.join("filler");
    let room = platform::free_bytes(&mount.0).unwrap() - 400_000;
    std::fs::write(&filler, vec![7; usize::try_from(room).unwrap()]).unwrap();
    let (code, _, said) = run(&["ledger", "rebuild", "--state", &spoke.state()]);
    assert_ne!(code, 0);
    assert!(said.contains("ledger.db") && said.contains("full"), "{said}");
    assert_eq!(spoke.status()["dismissed"], before["dismissed"]);
    let names = std::fs::read_dir(&mount.0).unwrap().flatten().map(|e| e.file_name());
    let names: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|n| n.contains("new") || n.contains("rebuilt")), "{names:?}");
    std::fs::remove_file(filler).unwrap();
    let done = json(&["ledger", "rebuild", "--state", &spoke.state(), "--json"]);
    assert_eq!(done["dismissed"], DISMISSED, "{done}");
}

fn op_06_a_read_only_source_is_shipped_and_stays_as_it_is() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.unenrolled("s");
    let mount = Mount::new(spoke.source());
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    mount.remount("ro");
    let spoke = site.spoke("s");
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    assert_eq!(spoke.push().count("present"), 1);
    site.assert_landed(&[&spoke]);
}

fn op_06_a_read_only_ledger_is_one_line_that_names_the_mount() {
    let site = Site::new();
    let _hub = site.hub();
    let unenrolled = site.unenrolled("s");
    let mount = Mount::new(PathBuf::from(unenrolled.state()));
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    mount.remount("ro");
    for args in [&["push", "--state"][..], &["ledger", "requeue", "--all", "failed", "--state"]] {
        let args: Vec<&str> = args.iter().copied().chain([mount.0.to_str().unwrap()]).collect();
        let (code, out, err) = run(&args);
        assert_eq!((code, out.as_str()), (75, ""), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        for word in ["read-only", "mounted at", mount.0.to_str().unwrap(), "nothing is lost"] {
            assert!(err.contains(word), "{word}: {err}");
        }
    }
    mount.remount("rw");
    assert_eq!(spoke.push().count("sent"), 1);
}

fn op_06_a_hub_whose_landing_is_read_only_stays_up_and_goes_on_by_itself() {
    let site = Site::new();
    let mount = Mount::new(site.path().join("disk"));
    let config = site.path().join("barque.toml");
    let landing = mount.0.join("landing");
    std::fs::write(&config, format!("[hub.landing]\ndir = {landing:?}\n")).unwrap();
    let mut command = site.serve("127.0.0.1:0");
    command.env("BARQUE_CONFIG", &config);
    let mut hub = site.start(command);
    let spoke = site.spoke("s");
    put(&spoke, 0, 3);
    assert_eq!(spoke.push().count("sent"), 3);
    mount.remount("ro");
    put(&spoke, 3, 6);
    let stuck = spoke.push();
    assert_eq!((stuck.code, stuck.count("left"), stuck.count("failed")), (75, 3, 0), "{stuck:?}");
    assert!(stuck.stderr.contains("read-only"), "{}", stuck.stderr);
    let log = std::fs::read_to_string(site.path().join("hub.log")).unwrap();
    let named = format!("the file system mounted at {} is read-only", mount.0.display());
    assert!(log.contains(&named), "{log}");
    assert!(!hub.has_ended());
    let (code, ..) = run(&["hub", "status", "--data", &site.data()]);
    assert_eq!(code, 0);
    mount.remount("rw");
    let whole = spoke.push();
    assert_eq!((whole.code, whole.count("sent"), whole.count("left")), (0, 3, 0), "{whole:?}");
    assert_eq!(crate::site::tree(&landing).len(), 6);
}
