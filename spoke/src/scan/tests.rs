use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::{SeriesId, Timestamp};

use super::*;

/// The smallest file that passes the door: magic, an empty struct, its length, magic.
const TINY: &[u8] = b"PAR1\x15\x00\x00\x03\x00\x00\x00PAR1";

struct Bench {
    dir: tempfile::TempDir,
    ledger: Ledger,
    hub_id: HubId,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("src")).unwrap();
        fs::create_dir(dir.path().join("state")).unwrap();
        let ledger = Ledger::open(&dir.path().join("state/ledger.db")).unwrap();
        let now = Timestamp::from_unix_ms(1);
        let hub_id = HubId::new(now, [1; 10]);
        ledger.add_hub(hub_id, SeriesId::new(now, [1; 10]), 0).unwrap();
        Self { dir, ledger, hub_id }
    }

    fn put(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let at = self.dir.path().join("src").join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, bytes).unwrap();
        at
    }

    /// Scans with a clock that runs `ahead` of the real one.
    fn scan(&mut self, ahead: Duration, settle: Duration) -> ScanReport {
        self.scan_until(ahead, settle, &|| false)
    }

    fn scan_until(
        &mut self,
        ahead: Duration,
        settle: Duration,
        is_over: &(dyn Fn() -> bool + Sync),
    ) -> ScanReport {
        let clock = move || Timestamp::from_system(std::time::SystemTime::now() + ahead);
        let edge = Edge { clock: Arc::new(clock), random: Arc::new(|| [0; 32]) };
        Scanner {
            source: &Root::open(&self.dir.path().join("src")).unwrap(),
            state_folder: &self.dir.path().join("state"),
            spoke_id: &"s".parse().unwrap(),
            hub_id: self.hub_id,
            ledger: &mut self.ledger,
            edge: &edge,
            settle,
            select: &Select::default(),
            priorities: &Priorities::default(),
            dry: false,
            is_over,
            events: &|_| (),
        }
        .scan()
        .unwrap()
    }

    fn settled(&mut self) -> ScanReport {
        self.scan(Duration::from_secs(60), Duration::from_secs(2))
    }
}

#[test]
fn links_specials_hidden_and_foreign_names_are_counted_and_never_shipped() {
    let mut b = Bench::new();
    b.put("d/m/real.parquet", TINY);
    for foreign in ["_SUCCESS", "real.parquet.crc", "README.txt", "UPPER.PARQUET", "000000"] {
        b.put(&format!("d/m/{foreign}"), b"x");
    }
    b.put("d/m/.hidden.parquet", TINY);
    b.put("d/m/.hidden_dir/x.parquet", TINY);
    b.put("d/m/_temporary/0/x.parquet", TINY);
    b.put("d/m/directory.parquet/x.parquet", TINY);
    b.put("d/_internal/kept.parquet", TINY);
    let src = b.dir.path().join("src");
    symlink(".", src.join("d/loop")).unwrap();
    symlink("..", src.join("up")).unwrap();
    symlink("/etc/hostname", src.join("d/outside.parquet")).unwrap();
    symlink("/etc", src.join("d/etc")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(src.join("d/pipe.parquet")).status();
    assert!(fifo.unwrap().success());
    let r = b.settled();
    assert_eq!(r.discovered, 4);
    assert_eq!(r.state(State::Pending), 2);
    assert_eq!(r.skipped, BTreeMap::from([("link".into(), 1), ("not_a_file".into(), 1)]));
    let expected = [
        ("foreign", 5),
        ("hidden", 2),
        ("link", 3),
        ("scratch_folder", 1),
        ("folder_named_parquet", 1),
    ];
    assert_eq!(r.ignored, BTreeMap::from(expected));
}

#[test]
fn a_young_file_is_waited_for_once_and_taken_when_it_lies_still() {
    let mut b = Bench::new();
    b.put("d/m/a.parquet", TINY);
    let r = b.scan(Duration::ZERO, Duration::from_millis(200));
    assert_eq!((r.state(State::Pending), r.not_settled), (1, 0));
}

#[test]
fn a_file_whose_times_lie_in_the_future_is_taken_when_two_looks_agree() {
    let mut b = Bench::new();
    let path = b.put("d/m/a.parquet", TINY);
    let future = std::time::SystemTime::now() + Duration::from_secs(1_000_000);
    fs::File::options().write(true).open(&path).unwrap().set_modified(future).unwrap();
    let r = b.scan(Duration::ZERO, Duration::from_millis(50));
    assert_eq!(r.state(State::Pending), 1);
}

#[test]
fn a_file_that_grows_between_two_looks_is_not_settled() {
    let mut b = Bench::new();
    let path = b.put("d/m/a.parquet", TINY);
    let growing = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|s| {
        s.spawn(|| {
            use std::io::Write as _;
            let mut f = fs::File::options().append(true).open(&path).unwrap();
            while growing.load(std::sync::atomic::Ordering::Relaxed) {
                f.write_all(b"x").unwrap();
                std::thread::yield_now();
            }
        });
        let r = b.scan(Duration::ZERO, Duration::from_millis(100));
        growing.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!((r.discovered, r.not_settled), (1, 1));
        assert!(!r.is_complete());
    });
}

#[test]
fn a_bad_file_is_held_back_with_its_reason_and_looked_at_again_when_it_changes() {
    let mut b = Bench::new();
    let path = b.put("d/m/a.parquet", b"");
    let skipped = BTreeMap::from([("parquet_empty".to_owned(), 1)]);
    assert_eq!(b.settled().skipped, skipped);
    let second = b.settled();
    assert_eq!((second.skipped, second.hashed_bytes), (skipped, 0));
    fs::write(&path, TINY).unwrap();
    assert_eq!(b.settled().state(State::Pending), 1);
}

#[test]
fn the_spokes_own_folder_below_the_source_is_left_out() {
    let mut b = Bench::new();
    let src = b.dir.path().join("src");
    fs::create_dir(src.join("own")).unwrap();
    fs::write(src.join("own/x.parquet"), TINY).unwrap();
    fs::remove_dir_all(b.dir.path().join("state")).unwrap();
    symlink(src.join("own"), b.dir.path().join("state")).unwrap();
    let r = b.settled();
    assert_eq!((r.discovered, r.ignored.get("own_folder")), (0, Some(&1)));
}

#[test]
fn a_source_that_is_not_there_is_an_error_and_not_an_empty_tree() {
    let b = Bench::new();
    fs::remove_dir(b.dir.path().join("src")).unwrap();
    assert!(Root::open(&b.dir.path().join("src")).is_err());
}

#[test]
fn a_pending_file_that_was_away_is_taken_up_again_as_it_was() {
    let mut b = Bench::new();
    b.put("d/m/a.parquet", TINY);
    assert_eq!(b.settled().state(State::Pending), 1);
    let path: FilePath = "d/m/a.parquet".parse().unwrap();
    b.ledger.record(b.hub_id, &[Change::vanished(path)], Timestamp::from_unix_ms(2)).unwrap();
    assert_eq!(b.settled().state(State::Pending), 1);
}

#[test]
fn a_folder_whose_name_is_not_utf8_is_named_and_the_scan_is_not_complete() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut b = Bench::new();
    let odd = b.dir.path().join("src").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("a.parquet"), TINY).unwrap();
    let r = b.settled();
    assert!(!r.is_complete() && r.unreadable.len() == 1, "{r:?}");
}

#[test]
fn files_are_met_in_the_order_of_their_paths_also_beside_folders() {
    let mut bench = Bench::new();
    let paths =
        ["a-b.parquet", "a.parquet", "a/b.parquet", "a/b/c.parquet", "a0.parquet", "b.parquet"];
    for path in paths.iter().rev() {
        bench.put(path, TINY);
    }
    bench.settled();
    let of = |path: &str| bench.ledger.file(bench.hub_id, &path.parse().unwrap()).unwrap().unwrap();
    let numbers: Vec<Option<u64>> = paths.iter().map(|p| of(p).seq).collect();
    assert_eq!(numbers, (1..=6).map(Some).collect::<Vec<_>>());
}

#[test]
fn files_that_are_not_looked_at_before_the_time_is_over_are_left_to_the_next_scan() {
    let mut b = Bench::new();
    for n in 0..3 {
        b.put(&format!("d/m/2024/03/31/00/f{n}.parquet"), TINY);
    }
    // Over when all were met and one was looked at.
    let asked = std::sync::atomic::AtomicU64::new(0);
    let is_over = || asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) >= 4;
    let report = b.scan_until(Duration::from_secs(60), Duration::from_secs(2), &is_over);
    let pending = |report: &ScanReport| report.state(State::Pending);
    assert_eq!((report.discovered, pending(&report), report.not_settled), (3, 1, 2));
    assert!(report.is_partial);
    let next = b.settled();
    assert_eq!((pending(&next), next.is_partial), (3, false));
}

#[test]
fn work_side_by_side_keeps_the_order_of_its_items() {
    for n in [0, 1, 7, 64, 65] {
        for threads in [1, 3] {
            let squares = side_by_side((0..n).collect(), threads, |i: u64| {
                // One that is begun later is through sooner.
                std::thread::sleep(Duration::from_micros(1_000 * (1 - i % 2)));
                i * i
            });
            assert_eq!(squares, (0..n).map(|i| i * i).collect::<Vec<_>>());
        }
    }
}
