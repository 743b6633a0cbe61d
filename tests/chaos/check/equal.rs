//! Nodes that applied the same have one manifest, to the last row.

use std::collections::BTreeSet;
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

use crate::world::World;

/// Rows that are named of each node's that others do not have.
const NAMED_MAX: usize = 12;

pub fn check(world: &World) -> Vec<String> {
    let digests = world.wait_until_equal();
    if digests.windows(2).all(|w| w[0] == w[1]) {
        return Vec::new();
    }
    let mut broken = vec![format!("the manifests differ: {digests:?}")];
    let rows: Vec<BTreeSet<String>> = world.nodes.iter().map(|n| rows(&n.data)).collect();
    for (n, own) in rows.iter().enumerate() {
        let next = &rows[(n + 1) % rows.len()];
        let more = own.difference(next).take(NAMED_MAX);
        broken.extend(more.map(|row| format!("node {n} has, and the next one has not: {row}")));
    }
    broken
}

/// Every row of a manifest, behind the name of its table.
fn rows(data: &Path) -> BTreeSet<String> {
    let path = data.join("manifest.db");
    let c = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let tables = "SELECT name FROM sqlite_master WHERE type = 'table'";
    let mut tables = c.prepare(tables).unwrap();
    let tables = tables.query_map([], |r| r.get::<_, String>(0)).unwrap();
    let mut all = BTreeSet::new();
    for table in tables.map(Result::unwrap) {
        let mut select = c.prepare(&format!("SELECT * FROM \"{table}\"")).unwrap();
        let columns = select.column_count();
        let mut found = select.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let values: Vec<Value> = (0..columns).map(|n| row.get(n).unwrap()).collect();
            let text = format!("{table} {values:?}");
            if !text.contains("raft_state") {
                all.insert(text);
            }
        }
    }
    all
}
