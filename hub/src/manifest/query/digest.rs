//! One digest over all rows: two nodes that applied the same have the same, or one of them is wrong.

use barque_bundle::Sha256Digest;
use barque_bundle::digest::Hasher;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _};

use super::{counter, wrap};
use crate::error::Error;

/// All of a manifest, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digested {
    pub position: u64,
    /// Raft's own position, which is not part of the digest; none when new.
    pub raft_state: Option<Vec<u8>>,
    pub sha256: Sha256Digest,
}

/// The SHA-256 over every row of every table in the order of their keys. Reads all of the manifest.
pub fn digest(c: &Connection) -> Result<Digested, Error> {
    // One state for all tables.
    let _tx = match c.is_autocommit() {
        true => Some(c.unchecked_transaction().map_err(wrap())?),
        false => None,
    };
    let mut names = c
        .prepare(
            "SELECT name FROM sqlite_master
             WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name",
        )
        .map_err(wrap())?;
    let names: Vec<String> =
        names.query_map([], |r| r.get(0)).and_then(Iterator::collect).map_err(wrap())?;
    let mut hasher = Hasher::default();
    for table in names {
        hasher.update(table.as_bytes());
        let but = if table == "meta" { " WHERE key <> 'raft_state'" } else { "" };
        // Tables are trees of their keys, and a plain scan follows them.
        let mut rows = c.prepare(&format!("SELECT * FROM \"{table}\"{but}")).map_err(wrap())?;
        let columns = rows.column_count();
        let mut rows = rows.query([]).map_err(wrap())?;
        while let Some(row) = rows.next().map_err(wrap())? {
            for column in 0..columns {
                add(&mut hasher, row.get_ref(column).map_err(wrap())?);
            }
        }
    }
    let raft_state: Option<Vec<u8>> = c
        .query_row("SELECT value FROM meta WHERE key = 'raft_state'", [], |r| r.get(0))
        .optional()
        .map_err(wrap())?;
    Ok(Digested { position: counter(c, "position")?, raft_state, sha256: hasher.finish() })
}

fn add(hasher: &mut Hasher, value: ValueRef<'_>) {
    let mut tagged = |tag: u8, bytes: &[u8]| {
        hasher.update(&[tag]);
        hasher.update(&(bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
    };
    match value {
        ValueRef::Null => tagged(0, &[]),
        ValueRef::Integer(n) => tagged(1, &n.to_be_bytes()),
        ValueRef::Real(n) => tagged(2, &n.to_be_bytes()),
        ValueRef::Text(text) => tagged(3, text),
        ValueRef::Blob(bytes) => tagged(4, bytes),
    }
}
