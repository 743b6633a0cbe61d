//! Reads of the cluster's nodes.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::{time, unsigned, wrap};
use crate::command::NodeState;
use crate::error::Error;

/// A node as the manifest knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub node_id: u64,
    pub public_key: String,
    pub state: NodeState,
    /// False for one that reads along for good.
    pub votes: bool,
    pub name: String,
    /// Where other nodes reach it; none before it has said so.
    pub address: Option<String>,
    /// What its clients call it by.
    pub url: Option<String>,
    /// The newest command version that it applies.
    pub level: u8,
    pub imports: bool,
    pub added_at: barque_bundle::Timestamp,
}

/// All nodes that ever were, by their id.
pub fn nodes(c: &Connection) -> Result<BTreeMap<u64, NodeRow>, Error> {
    let mut statement =
        c.prepare_cached("SELECT * FROM nodes JOIN members USING (node_id)").map_err(wrap())?;
    let rows = statement
        .query_map([], |r| {
            Ok(NodeRow {
                node_id: unsigned(r.get("node_id")?),
                public_key: r.get("public_key")?,
                state: NodeState::parse(&r.get::<_, String>("state")?)
                    .ok_or(rusqlite::Error::InvalidQuery)?,
                votes: r.get("votes")?,
                name: r.get("name")?,
                address: r.get("address")?,
                url: r.get("url")?,
                level: r.get("level")?,
                imports: r.get("imports")?,
                added_at: time(r, "added_at")?,
            })
        })
        .map_err(wrap())?;
    rows.map(|row| row.map(|n| (n.node_id, n)).map_err(wrap())).collect()
}

/// Whether a node still stands as a holder of anything.
pub fn holds_any(c: &Connection, node_id: u64) -> Result<bool, Error> {
    c.query_row(
        "SELECT EXISTS (SELECT 1 FROM holders WHERE node_id = ?1)",
        [super::signed(node_id)],
        |r| r.get(0),
    )
    .map_err(wrap())
}

/// The nodes that hold a landed name's content.
pub fn holders(c: &Connection, landed: &str) -> Result<Vec<u64>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT h.node_id FROM holders h JOIN files f USING (file_id) WHERE f.path = ?1",
        )
        .map_err(wrap())?;
    let rows =
        statement.query_map([landed], |r| r.get::<_, i64>(0).map(unsigned)).map_err(wrap())?;
    rows.map(|r| r.map_err(wrap())).collect()
}

/// How many files each node holds.
pub fn files_held(c: &Connection) -> Result<BTreeMap<u64, u64>, Error> {
    let mut statement = c
        .prepare_cached("SELECT node_id, count(*) FROM holders GROUP BY node_id")
        .map_err(wrap())?;
    let rows = statement
        .query_map([], |r| Ok((unsigned(r.get(0)?), unsigned(r.get(1)?))))
        .map_err(wrap())?;
    rows.map(|r| r.map_err(wrap())).collect()
}

/// For each name, whether it has holders and all of them are among some nodes.
pub fn held_only_by(c: &Connection, paths: &[String], among: &[u64]) -> Result<Vec<bool>, Error> {
    let of = |path| -> Result<bool, Error> {
        let holders = holders(c, path)?;
        Ok(!holders.is_empty() && holders.iter().all(|id| among.contains(id)))
    };
    paths.iter().map(|path| of(path)).collect()
}

/// Files that stand, and whose only copy is on a node.
pub fn files_only_on(c: &Connection, node_id: u64) -> Result<u64, Error> {
    count_only_on(c, node_id).map_err(wrap())
}

pub fn count_only_on(c: &Connection, node_id: u64) -> rusqlite::Result<u64> {
    c.query_row(
        "SELECT count(*) FROM holders h JOIN files f USING (file_id)
         WHERE h.node_id = ?1 AND f.state = 'held'
           AND NOT EXISTS (SELECT 1 FROM holders o
                           WHERE o.file_id = h.file_id AND o.node_id <> ?1)",
        [super::signed(node_id)],
        |r| r.get(0).map(unsigned),
    )
}

/// The digests of secrets by which nodes may join, or have.
pub fn invitations(c: &Connection) -> Result<Vec<barque_bundle::Sha256Digest>, Error> {
    let mut statement = c.prepare_cached("SELECT secret_hash FROM invitations").map_err(wrap())?;
    let rows = statement.query_map([], |r| super::digest(r, "secret_hash")).map_err(wrap())?;
    rows.map(|r| r.map_err(wrap())).collect()
}
