use barque_bundle::receipt::{Answers, Draft};
use barque_bundle::{BundleId, Outcome, OutcomeLine, Receipt, SecretKey, Sha256Digest};

use super::*;
use crate::plan::State;

const NOW: Timestamp = Timestamp::from_unix_ms(1_700_000_000_000);

fn hub() -> HubId {
    HubId::new(NOW, [1; 10])
}

fn ledger(dir: &Path) -> Ledger {
    let ledger = Ledger::open(&dir.join("ledger.db")).unwrap();
    ledger.add_hub(hub(), SeriesId::new(NOW, [2; 10]), 0).unwrap();
    ledger
}

fn number(path: &str, content: &str) -> Change {
    Change::Number {
        class: 100,
        path: path.parse().unwrap(),
        stat: StatRow { size_bytes: 1, mtime_ns: 2, ctime_ns: 3, inode: u64::MAX },
        sha256: Sha256Digest::of(content.as_bytes()),
    }
}

fn receipt(lines: &[(&str, &str, Outcome)]) -> Receipt {
    let root = SecretKey::from_seed([1; 32]);
    let node = SecretKey::from_seed([2; 32]);
    let certificate =
        barque_bundle::key::NodeCertificate::issue(&root, hub(), "1".into(), node.public(), NOW);
    let draft = Draft {
        answers: Answers::Bundle(BundleId::new(NOW, [3; 10])),
        spoke_id: "s".parse().unwrap(),
        hub_id: hub(),
        hub_epoch: HubEpoch::new(NOW, [4; 10]),
        position: 1,
        received_at: NOW,
        wanted: vec![],
    };
    let lines = lines
        .iter()
        .map(|(p, c, o)| {
            OutcomeLine::new(p.parse().unwrap(), Sha256Digest::of(c.as_bytes()), *o, 1)
        })
        .collect();
    Receipt::sign(draft, lines, certificate, &node)
}

#[test]
fn a_row_becomes_synced_only_by_a_line_with_its_digest() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    l.record(hub(), &[number("a.parquet", "a"), number("b.parquet", "b")], NOW).unwrap();
    let r = receipt(&[
        ("a.parquet", "a", Outcome::Registered),
        ("b.parquet", "x", Outcome::Registered),
    ]);
    let applied = l.apply_receipt(hub(), &r, NOW).unwrap();
    assert_eq!(applied.lines.len(), 1);
    let state = |l: &Ledger, p: &str| l.file(hub(), &p.parse().unwrap()).unwrap().unwrap().state;
    assert_eq!(state(&l, "a.parquet"), State::Synced);
    assert_eq!(state(&l, "b.parquet"), State::Pending);
    assert_eq!(l.receipt_count(hub()).unwrap(), 1);
}

#[test]
fn synced_without_a_stored_receipt_cannot_exist() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    l.record(hub(), &[number("a.parquet", "a")], NOW).unwrap();
    for sql in
        ["UPDATE files SET state = 'synced'", "UPDATE files SET state = 'synced', receipt_id = 99"]
    {
        assert!(l.connection.execute(sql, []).is_err(), "{sql}");
    }
}

#[test]
fn numbers_grow_and_a_changed_file_voids_its_old_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    l.record(hub(), &[number("a.parquet", "a"), number("a.parquet", "b")], NOW).unwrap();
    let h = l.hub(hub()).unwrap().unwrap();
    assert_eq!(h.seq_head, 2);
    assert_eq!(l.untold_voids(hub(), h.series).unwrap().as_slice(), [(1, 1)]);
    assert_eq!(l.file(hub(), &"a.parquet".parse().unwrap()).unwrap().unwrap().seq, Some(2));
}

#[test]
fn the_newest_partition_comes_first_and_troubled_files_last() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    let paths = [
        "d/m/2024/01/01/00/a.parquet",
        "d/m/2024/01/02/00/b.parquet",
        "d/m/c.parquet",
        "d/m/2024/01/03/00/x.parquet",
    ];
    let changes: Vec<Change> = paths.iter().map(|p| number(p, p)).collect();
    l.record(hub(), &changes, NOW).unwrap();
    let troubled = paths[3].parse().unwrap();
    l.count_attempt(hub(), &troubled, ("mismatch", "")).unwrap();
    assert!(!l.count_mismatch(hub(), &troubled, 2, NOW).unwrap());
    let mut key = PageKey::first();
    let mut order = Vec::new();
    loop {
        let page = l.pending_page(hub(), &key, 1).unwrap();
        let Some(row) = page.first() else { break };
        key = row.page_key();
        order.push(row.path.to_string());
    }
    assert_eq!(order, [paths[1], paths[0], paths[2], paths[3]]);
    assert!(l.count_mismatch(hub(), &troubled, 2, NOW).unwrap());
    assert_eq!(l.file(hub(), &troubled).unwrap().unwrap().state, State::Failed);
}

#[test]
fn a_new_epoch_or_a_lower_position_offers_everything_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    let epoch = |n| HubEpoch::new(NOW, [n; 10]);
    l.record(hub(), &[number("a.parquet", "a")], NOW).unwrap();
    let r = receipt(&[("a.parquet", "a", Outcome::Registered)]);
    let pending = |l: &Ledger| l.tally(hub()).unwrap().of(State::Pending);
    l.apply_receipt(hub(), &r, NOW).unwrap();
    assert!(!l.meet_hub(hub(), (epoch(1), 5), 0, SeriesId::new(NOW, [7; 10]), NOW).unwrap());
    assert!(!l.meet_hub(hub(), (epoch(1), 6), 5, SeriesId::new(NOW, [7; 10]), NOW).unwrap());
    assert_eq!(pending(&l), 0);
    // The answer to a question before that one.
    assert!(!l.meet_hub(hub(), (epoch(1), 5), 5, SeriesId::new(NOW, [7; 10]), NOW).unwrap());
    assert_eq!(l.hub(hub()).unwrap().unwrap().seen_position, 6);
    assert!(l.meet_hub(hub(), (epoch(1), 5), 6, SeriesId::new(NOW, [7; 10]), NOW).unwrap());
    assert_eq!(pending(&l), 1);
    // Under a number of a new series, which closes the old one.
    let h = l.hub(hub()).unwrap().unwrap();
    assert_eq!((h.series, h.seq_head), (SeriesId::new(NOW, [7; 10]), 1));
    assert_eq!(h.replaces, Some(SeriesId::new(NOW, [2; 10])));
    assert_eq!(l.file(hub(), &"a.parquet".parse().unwrap()).unwrap().unwrap().seq, Some(1));
    l.apply_receipt(hub(), &r, NOW).unwrap();
    assert!(l.meet_hub(hub(), (epoch(2), 9), 5, SeriesId::new(NOW, [7; 10]), NOW).unwrap());
    assert_eq!(pending(&l), 1);
}

#[test]
fn a_new_series_replaces_the_old_and_renumbers_what_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    l.record(hub(), &[number("a.parquet", "a"), number("b.parquet", "b")], NOW).unwrap();
    let r = receipt(&[("a.parquet", "a", Outcome::Registered)]);
    l.apply_receipt(hub(), &r, NOW).unwrap();
    let old = l.hub(hub()).unwrap().unwrap().series;
    l.open_series(hub(), SeriesId::new(NOW, [9; 10])).unwrap();
    let h = l.hub(hub()).unwrap().unwrap();
    assert_eq!((h.replaces, h.seq_head), (Some(old), 1));
    assert_eq!(l.file(hub(), &"b.parquet".parse().unwrap()).unwrap().unwrap().seq, Some(1));
}

#[test]
fn a_hub_that_went_back_behind_a_receipt_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    let meet = |l: &mut Ledger, epoch, position, asked_at| {
        l.meet_hub(hub(), (epoch, position), asked_at, SeriesId::new(NOW, [7; 10]), NOW).unwrap()
    };
    let epoch = receipt(&[]).head.hub_epoch;
    assert!(!meet(&mut l, epoch, 0, 0));
    let seen = |l: &Ledger| l.hub(hub()).unwrap().unwrap().seen_position;
    l.record(hub(), &[number("a.parquet", "a")], NOW).unwrap();
    l.apply_receipt(hub(), &receipt(&[("a.parquet", "a", Outcome::Registered)]), NOW).unwrap();
    let at = seen(&l);
    assert_eq!(at, 1);
    assert!(meet(&mut l, epoch, 0, at));
    assert_eq!(
        l.file(hub(), &"a.parquet".parse().unwrap()).unwrap().unwrap().state,
        State::Pending
    );
    // A receipt of the hub as it was before says nothing of the one that there is.
    assert!(meet(&mut l, HubEpoch::new(NOW, [5; 10]), 0, 0));
    l.apply_receipt(hub(), &receipt(&[]), NOW).unwrap();
    assert_eq!(seen(&l), 0);
}

#[test]
fn what_a_crash_left_in_flight_is_pending_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    l.record(hub(), &[number("a.parquet", "a")], NOW).unwrap();
    let path = "a.parquet".parse().unwrap();
    l.depart(hub(), BundleId::new(NOW, [0; 10]), 1).unwrap();
    drop(l);
    let mut l = Ledger::open(&dir.path().join("ledger.db")).unwrap();
    assert_eq!(l.files_under_way(hub()).unwrap(), 1);
    // As a version before 5 notes it, that ran on while the ledger was brought up.
    let before = "UPDATE files SET state = 'in_flight', bundle_id = 'b'";
    assert_eq!(l.connection.execute(before, []).unwrap(), 1);
    assert_eq!(l.recover().unwrap(), 1);
    assert_eq!(l.files_under_way(hub()).unwrap(), 0);
    assert_eq!(l.file(hub(), &path).unwrap().unwrap().state, State::Pending);
}

#[test]
fn a_void_number_is_told_once_and_a_failed_files_number_is_void_when_it_gets_another() {
    let dir = tempfile::tempdir().unwrap();
    let mut l = ledger(dir.path());
    l.record(hub(), &[number("a.parquet", "a"), number("a.parquet", "b")], NOW).unwrap();
    let series = l.hub(hub()).unwrap().unwrap().series;
    let untold = l.untold_voids(hub(), series).unwrap();
    assert_eq!(untold.as_slice(), [(1, 1)]);
    l.mark_told(hub(), series, &untold).unwrap();
    assert!(l.untold_voids(hub(), series).unwrap().is_empty());
    assert!(l.count_mismatch(hub(), &"a.parquet".parse().unwrap(), 1, NOW).unwrap());
    l.record(hub(), &[number("a.parquet", "c")], NOW).unwrap();
    assert_eq!(l.untold_voids(hub(), series).unwrap().as_slice(), [(2, 2)]);
}

#[test]
fn a_receipt_is_on_disk_before_anything_counts_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = Ledger::open(&dir.path().join("ledger.db")).unwrap();
    let c = &ledger.connection;
    let synchronous: i64 = c.query_row("PRAGMA synchronous", [], |r| r.get(0)).unwrap();
    let mode: String = c.query_row("PRAGMA journal_mode", [], |r| r.get(0)).unwrap();
    // 2 is FULL.
    assert_eq!((synchronous, mode.as_str()), (2, "wal"));
}

#[test]
fn a_ledger_of_the_first_version_is_brought_up_to_the_newest_schema() {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let old = std::path::Path::new(&here).join("../fixtures/folders/v1/state/ledger.db");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    std::fs::copy(old, &path).unwrap();
    // Comments and white space aside: a column that was added stands behind other comments.
    let bare = |sql: String| -> String {
        let lines = sql.lines().map(|l| l.split("--").next().unwrap_or_default());
        let text = lines.collect::<Vec<_>>().join(" ");
        let text = text.replace(',', " , ").replace('(', " ( ").replace(')', " ) ");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let schema = |l: &Ledger| -> Vec<(String, String)> {
        let mut s = l
            .connection
            .prepare("SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY name")
            .unwrap();
        let rows = s.query_map([], |r| Ok((r.get(0)?, bare(r.get(1)?)))).unwrap();
        rows.collect::<Result<_, _>>().unwrap()
    };
    // One that such a version had under way when it ended.
    let departed = "INSERT INTO files (hub_id, path, state, sha256, size_bytes, mtime_ns, ctime_ns,
                                       inode, seq, partition_ms, bundle_id, since)
                    SELECT hub_id, 'gone.parquet', 'in_flight', zeroblob(32), 1, 1, 1, 1, 9, 1, 'b', 1
                    FROM hubs";
    assert_eq!(Connection::open(&path).unwrap().execute(departed, []).unwrap(), 1);
    let migrated = Ledger::open(&path).unwrap();
    let state = "SELECT state FROM files WHERE path = 'gone.parquet' AND bundle_id IS NULL";
    let state: String = migrated.connection.query_row(state, [], |r| r.get(0)).unwrap();
    assert_eq!(state, State::Pending.as_str());
    assert_eq!(schema(&migrated), schema(&Ledger::open(&dir.path().join("fresh.db")).unwrap()));
    assert!(barque_bundle::database::copy_name(&path, 1).exists());
}

#[test]
fn what_is_set_aside_at_the_same_time_twice_is_kept_twice() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.db");
    let mut kept = std::collections::BTreeSet::new();
    for n in 0..2 {
        drop(ledger(dir.path()));
        kept.insert(Ledger::set_aside(&path, "damaged", NOW).unwrap());
        let fresh = dir.path().join("ledger.db.new");
        drop((ledger(dir.path()), Ledger::open(&fresh).unwrap()));
        kept.insert(Ledger::replace(&path, &fresh, "rebuilt", NOW).unwrap());
        assert!(path.exists() && !fresh.exists(), "{n}");
    }
    assert_eq!(kept.iter().filter(|k| k.exists()).count(), 4, "{kept:?}");
}

fn plan_of(ledger: &Ledger, sql: &str, params: &[&str]) -> Vec<String> {
    let mut plan = ledger.connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let params = rusqlite::params_from_iter(params);
    let rows = plan.query_map(params, |r| r.get::<_, String>(3)).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

#[test]
fn the_digest_for_another_hub_is_searched_for_and_all_files_are_not_looked_through() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan_of(&ledger(dir.path()), read::DIGEST_FOR_ANOTHER, &["a", "b"]);
    assert!(plan.iter().any(|p| p.starts_with("SEARCH f USING PRIMARY KEY")), "{plan:?}");
    assert!(plan.iter().all(|p| !p.starts_with("SCAN f")), "{plan:?}");
}

#[test]
fn a_page_of_pending_files_begins_where_the_last_one_ended() {
    let dir = tempfile::tempdir().unwrap();
    let key = ["h", "0", "100", "0", "p", "10"];
    let plan = plan_of(&ledger(dir.path()), read::PENDING_PAGE, &key);
    let exact = "(hub_id=? AND attempts=? AND class=? AND partition_ms=? AND path>?)";
    assert!(plan.iter().any(|p| p.ends_with(exact)), "{plan:?}");
    let searches = plan.iter().filter(|p| p.contains("USING INDEX files_pending")).count();
    assert_eq!(searches, 4, "{plan:?}");
    assert!(plan.iter().all(|p| !p.contains("TEMP B-TREE")), "{plan:?}");
}

#[test]
fn what_is_open_is_counted_without_a_look_at_what_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = ledger(dir.path());
    let plan = plan_of(&ledger, read::OPEN_TALLY, &["h"]);
    assert!(plan.iter().any(|p| p.contains("USING INDEX files_open (hub_id=?")), "{plan:?}");
}

#[test]
fn pages_of_pending_files_give_each_once_in_the_order_of_sending() {
    let dir = tempfile::tempdir().unwrap();
    let l = ledger(dir.path());
    let mut expected = Vec::new();
    for n in 0..81_i64 {
        let key = (n % 3, n / 3 % 3 * 100, n / 9 % 3 * 1000);
        let path = format!("f{}.parquet", n * 37 % 81);
        l.connection
            .execute(
                "INSERT INTO files (hub_id, path, size_bytes, mtime_ns, ctime_ns, inode, sha256,
                                    state, seq, attempts, class, partition_ms, since)
                 VALUES (?1, ?2, 1, 1, 1, 1, zeroblob(32), 'pending', ?6, ?3, ?4, ?5, 0)",
                rusqlite::params![hub().to_string(), path, key.0, key.1, key.2, n],
            )
            .unwrap();
        expected.push((key.0, key.1, std::cmp::Reverse(key.2), path));
    }
    expected.sort();
    let (mut found, mut after) = (Vec::new(), read::PageKey::first());
    loop {
        let page = l.pending_page(hub(), &after, 7).unwrap();
        let Some(last) = page.last() else { break };
        after = last.page_key();
        found.extend(page.iter().map(|r| r.path.to_string()));
    }
    let expected: Vec<String> = expected.into_iter().map(|e| e.3).collect();
    assert_eq!(found, expected);
}
