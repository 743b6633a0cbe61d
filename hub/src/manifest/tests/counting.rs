//! Numbers of a series, positions and counters.

use super::*;

fn counters(b: &Bench) -> Vec<u64> {
    let c = &b.manifest.connection;
    ["position", "files", "bytes", "horizon"].map(|n| query::counter(c, n).unwrap()).to_vec()
}

fn positions(b: &Bench) -> Vec<i64> {
    let c = &b.manifest.connection;
    let mut rows = c.prepare("SELECT position FROM changes ORDER BY position").unwrap();
    rows.query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn positions_follow_one_another_over_batches_and_old_changes_go() {
    let mut b = Bench::with_spoke("s");
    let holder = Some(Holder { node_id: NODE, stage_no: 5 });
    let put = |b: &mut Bench, numbers: std::ops::Range<u64>| -> Vec<OperationReply> {
        let op = |n: u64| register(&format!("d/m/f{n}.parquet"), 1, n, holder);
        let operations = numbers.map(op).collect();
        b.batch(Batch { bundles: vec![bundle_ref("s", 1)], operations })
    };
    let at = |position| OperationReply::Registered { position, copies: 1 };
    assert_eq!(put(&mut b, 1..4), [at(1), at(2), at(3)]);
    // A retry changes nothing, and is told the positions that the files have.
    assert_eq!(put(&mut b, 2..5), [at(2), at(3), at(4)]);
    assert_eq!((counters(&b), positions(&b)), (vec![4, 4, 4, 0], vec![1, 2, 3, 4]));
    // As after a million changes, less one.
    let much = "UPDATE counters SET value = 999999 WHERE name = 'position'";
    b.manifest.connection.execute(much, []).unwrap();
    assert_eq!(put(&mut b, 5..8), [at(1_000_000), at(1_000_001), at(1_000_002)]);
    let left = vec![3, 4, 1_000_000, 1_000_001, 1_000_002];
    assert_eq!((counters(&b), positions(&b)), (vec![1_000_002, 7, 7, 2], left));
}

#[test]
fn a_copy_below_its_nodes_floor_counts_for_nothing_in_any_place_of_a_batch() {
    let mut b = Bench::with_spoke("s");
    b.apply(Command::RaiseStageFloor { node_id: NODE, floor: 5 });
    let holders = [(NODE, 5), (NODE, 6), (NODE, 5), (99, 6), (99, 7)];
    let operations = holders.iter().zip(1..).map(|((node_id, stage_no), n)| {
        let holder = Some(Holder { node_id: *node_id, stage_no: *stage_no });
        register(&format!("d/m/f{n}.parquet"), 1, n, holder)
    });
    let operations = operations.collect();
    let replies = b.batch(Batch { bundles: vec![bundle_ref("s", 1)], operations });
    let unmet = || OperationReply::Unmet;
    let registered = OperationReply::Registered { position: 1, copies: 1 };
    assert_eq!(replies, [unmet(), registered, unmet(), unmet(), unmet()]);
}

#[test]
fn many_files_under_one_number_are_not_all_read() {
    let mut b = Bench::with_spoke("s");
    let holder = Some(Holder { node_id: NODE, stage_no: 5 });
    let operations = (0..100).map(|n| register(&format!("d/m/f{n}.parquet"), 1, 7, holder));
    let mut operations: Vec<_> = operations.collect();
    operations.push(register("d/m/g.parquet", 1, 8, holder));
    b.batch(Batch { bundles: vec![bundle_ref("s", 1)], operations });
    let known = query::numbers(&b.manifest.connection, &spoke("s"), series(1), 6..10).unwrap();
    assert_eq!([6, 7, 8, 9].map(|n| known.files(n)), [0, 2, 1, 0]);
}

#[test]
fn numbers_are_known_in_runs_as_they_are_one_by_one() {
    let mut b = Bench::with_spoke("s");
    let holder = Some(Holder { node_id: NODE, stage_no: 5 });
    // Two files under one number, as of a ledger that went back.
    let files = [(10, "a"), (11, "b"), (11, "c"), (40, "d"), (u64::MAX, "e")];
    let operations = files.map(|(n, name)| register(&format!("d/m/{name}.parquet"), 1, n, holder));
    b.batch(Batch { bundles: vec![bundle_ref("s", 1)], operations: operations.to_vec() });
    let answered = check_in("s", 1, u64::MAX, (2..=5).chain(50..=80).collect());
    b.batch(Batch { bundles: vec![], operations: vec![Operation::CheckIn(answered)] });
    let c = &b.manifest.connection;
    let last = query::numbers(c, &spoke("s"), series(1), [u64::MAX, 1].into_iter()).unwrap();
    assert_eq!((last.is_answered(u64::MAX), last.files(u64::MAX)), (true, 1));
    let (s, others) = (spoke("s"), (spoke("other"), series(2)));
    for step in [1, 3, 7, 20, 100] {
        for first in 0..20 {
            let asked = || (first..95).step_by(step);
            let known = query::numbers(c, &s, series(1), asked()).unwrap();
            for n in asked() {
                let one = query::is_answered(c, &s, series(1), n).unwrap();
                assert_eq!(known.is_answered(n), one, "{n} of {first} by {step}");
                let files = files.iter().filter(|(seq, _)| *seq == n).count() as u64;
                assert_eq!(known.files(n), files, "{n} of {first} by {step}");
            }
        }
    }
    for (s, series) in [(&others.0, series(1)), (&s, others.1)] {
        let known = query::numbers(c, s, series, 0..95).unwrap();
        assert!((0..95).all(|n| !known.is_answered(n) && known.files(n) == 0));
    }
}
