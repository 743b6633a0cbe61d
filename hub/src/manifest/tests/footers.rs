//! What footers say, gathered.

use barque_bundle::wire::Column;

use super::*;
use crate::command::{Describe, Described, Footer, SchemaColumns};

/// Facts of one file, as the node that took it proposes them.
fn described(path: &str, content: u8, columns: &[(&str, &str)]) -> Describe {
    let columns: Vec<Column> = columns
        .iter()
        .map(|(path, physical)| Column {
            path: (*path).to_owned(),
            physical: (*physical).to_owned(),
            logical: String::new(),
            repetition: "OPTIONAL".to_owned(),
        })
        .collect();
    let facts = crate::footer::Facts { rows: 10, row_groups: 1, columns };
    let schema_id = facts.schema_id();
    Describe {
        schemas: vec![SchemaColumns { schema_id, columns: facts.columns }],
        files: vec![Described {
            landed: format!("s/{path}"),
            sha256: digest(content),
            facts: Footer::Read { rows: 10, row_groups: 1, schema_id },
        }],
    }
}

#[test]
fn footers_are_gathered_per_measurement_and_a_further_schema_is_told_once() {
    let mut b = Bench::with_spoke("s");
    let path = |n: u8| format!("d/m/2024/03/{n:02}/02/a.parquet");
    for n in 1..=4 {
        b.register("s", &path(n), n, n);
    }
    let changes = |reply| match reply {
        Reply::Described(changes) => changes,
        other => panic!("{other:?}"),
    };
    let first = described(&path(2), 2, &[("t", "INT64"), ("v", "DOUBLE")]);
    assert_eq!(changes(b.apply(Command::Describe(first.clone()))), []);
    // Twice, and of a content that is not there, change nothing.
    let once = b.dump();
    assert_eq!(changes(b.apply(Command::Describe(first))), []);
    let wrong = described(&path(1), 9, &[("x", "INT32")]);
    assert_eq!(changes(b.apply(Command::Describe(Describe { schemas: vec![], ..wrong }))), []);
    let without_position = |dump: String| {
        dump.lines().filter(|l| !l.starts_with("meta:")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(without_position(b.dump()), without_position(once));
    let other = described(&path(1), 1, &[("t", "INT64"), ("v", "INT64")]);
    let told = changes(b.apply(Command::Describe(other)));
    assert_eq!((told.len(), told[0].landed.as_str()), (1, "s/d/m/2024/03/01/02/a.parquet"));
    let again = described(&path(3), 3, &[("t", "INT64"), ("v", "INT64")]);
    assert_eq!(changes(b.apply(Command::Describe(again))), []);
    let unread = Describe {
        schemas: vec![],
        files: vec![Described {
            landed: format!("s/{}", path(4)),
            sha256: digest(4),
            facts: Footer::Unread("encrypted".into()),
        }],
    };
    assert_eq!(changes(b.apply(Command::Describe(unread))), []);
    let c = &b.manifest.connection;
    assert!(query::undescribed(c, NODE, 0, 10).unwrap().is_empty());
    let page = |prefix| query::SchemasPage { prefix, after: "", limit: 10 };
    let all = query::schemas(c, &page("d/")).unwrap();
    assert!(query::schemas(c, &page("d/other")).unwrap().is_empty());
    assert_eq!(
        (all.len(), all[0].unread_files, all[0].differing.as_slice()),
        (1, 1, &["v".into()][..])
    );
    let files: Vec<(u64, u64, Option<String>)> = all[0]
        .schemas
        .iter()
        .map(|s| (s.files, s.rows, s.last_partition.map(|t| t.to_string())))
        .collect();
    let day = |d: &str| Some(format!("2024-03-{d}T02:00:00.000Z"));
    assert_eq!(files, [(2, 20, day("03")), (1, 10, day("02"))]);
}

/// Numbers from outside must never make `apply` fail: a command that does stops every node for good.
#[test]
fn rows_that_overflow_and_schemas_without_end_are_counted_and_stop_nothing() {
    let mut b = Bench::with_spoke("s");
    let path = |n: u32| format!("d/m/2024/03/01/02/{n}.parquet");
    for n in 0..110u32 {
        let holder = Some(Holder { node_id: NODE, stage_no: 5 });
        let operations = vec![register(&path(n), 1, u64::from(n), holder)];
        b.batch(Batch { bundles: vec![bundle_ref("s", 1)], operations });
        let name = format!("batch_{n}");
        let mut command = described(&path(n), 1, &[(&name, "INT64")]);
        if let Footer::Read { rows, .. } = &mut command.files[0].facts {
            *rows = i64::MAX.cast_unsigned();
        }
        assert!(matches!(b.apply(Command::Describe(command)), Reply::Described(_)));
    }
    let c = &b.manifest.connection;
    let page = query::SchemasPage { prefix: "", after: "", limit: 10 };
    let m = query::schemas(c, &page).unwrap().remove(0);
    assert_eq!(m.schemas.len(), 101);
    let other = m.schemas.iter().find(|s| s.schema_id.is_none()).unwrap();
    assert_eq!((other.files, other.rows), (10, i64::MAX.cast_unsigned()));
    let kept: i64 = c.query_row("SELECT count(*) FROM schemas", [], |r| r.get(0)).unwrap();
    assert_eq!(kept, 100);
}
