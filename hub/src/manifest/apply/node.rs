//! Nodes of the cluster: invited, joined, up, drained, removed.
//!
//! Raft's own membership follows these rows (`cluster::members`), and so does whom a node listens to.

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::tally::Tally;
use crate::command::{
    CommandRefusal, InviteNode, JoinNode, NodeState, NodeUp, Recover, Reply, SetNode,
};
use crate::manifest::query::{self, signed, unsigned};

/// Files whose holder is forgotten in one command, so that none takes long.
const FORGOTTEN_AT_ONCE: i64 = 1_000;

pub fn invite(c: &Connection, op: &InviteNode, at: Timestamp) -> rusqlite::Result<Reply> {
    // What nobody used in time is of no use any more.
    c.execute("DELETE FROM invitations WHERE used_by IS NULL AND expires_at < ?1", [at.unix_ms()])?;
    c.execute(
        "INSERT OR IGNORE INTO invitations (secret_hash, votes, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4)",
        params![op.secret_hash.as_bytes(), op.votes, at.unix_ms(), op.expires_at.unix_ms()],
    )?;
    Ok(Reply::Done)
}

/// A one-use word becomes a node; the same node may come again with it (a lost reply).
pub fn join(c: &Connection, op: &JoinNode, at: Timestamp) -> rusqlite::Result<Reply> {
    let refuse = |why| Ok(Reply::Refused(why));
    let hash = op.secret_hash.as_bytes();
    let found: Option<(bool, i64, Option<i64>)> = c
        .query_row(
            "SELECT votes, expires_at, used_by FROM invitations WHERE secret_hash = ?1",
            [hash],
            |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)),
        )
        .optional()?;
    let Some((votes, expires_at, used_by)) = found else {
        return refuse(CommandRefusal::UnknownToken);
    };
    let known: Option<(String, String)> = c
        .query_row(
            "SELECT public_key, state FROM nodes JOIN members USING (node_id) WHERE node_id = ?1",
            [signed(op.node_id)],
            |r| Ok((r.get(0)?, r.get(1)?)),
        )
        .optional()?;
    match (used_by, known) {
        (Some(by), Some((key, state)))
            if unsigned(by) == op.node_id && key == op.public_key.to_string() =>
        {
            return match NodeState::parse(&state) {
                Some(NodeState::Removed) => refuse(CommandRefusal::NodeRemoved),
                _ => Ok(Reply::Done),
            };
        }
        (Some(_), _) => return refuse(CommandRefusal::TokenUsed),
        (None, Some(_)) => return refuse(CommandRefusal::KeyInUse),
        (None, None) => {}
    }
    if at.unix_ms() > expires_at {
        return refuse(CommandRefusal::TokenExpired);
    }
    c.execute(
        "INSERT INTO nodes (node_id, public_key, added_at) VALUES (?1, ?2, ?3)",
        params![signed(op.node_id), op.public_key.to_string(), at.unix_ms()],
    )?;
    c.execute(
        "INSERT INTO members (node_id, state, votes) VALUES (?1, 'joining', ?2)",
        params![signed(op.node_id), votes],
    )?;
    c.execute(
        "UPDATE invitations SET used_by = ?2 WHERE secret_hash = ?1",
        params![hash, signed(op.node_id)],
    )?;
    Ok(Reply::Done)
}

/// A node that starts says where it is and what it can do.
pub fn up(c: &Connection, op: &NodeUp) -> rusqlite::Result<Reply> {
    match state_of(c, op.node_id)? {
        None => return Ok(Reply::Refused(CommandRefusal::NoSuchNode)),
        Some(NodeState::Removed) => return Ok(Reply::Refused(CommandRefusal::NodeRemoved)),
        Some(_) => {}
    }
    if let Some(address) = &op.address {
        let other: Option<i64> = c
            .query_row(
                "SELECT node_id FROM members
                 WHERE address = ?1 AND node_id <> ?2 AND state <> 'removed'",
                params![address, signed(op.node_id)],
                |r| r.get(0),
            )
            .optional()?;
        if let Some(node_id) = other {
            let node_id = unsigned(node_id);
            return Ok(Reply::Refused(CommandRefusal::AddressInUse { node_id }));
        }
    }
    c.execute(
        "UPDATE members SET address = ?2, url = ?3, name = ?4, level = ?5, imports = ?6,
                state = CASE state WHEN 'joining' THEN 'active' ELSE state END
         WHERE node_id = ?1",
        params![signed(op.node_id), op.address, op.url, op.name, op.level, op.imports],
    )?;
    Ok(Reply::Done)
}

/// An operator's word on a node. The last voter stays, and so does the only holder of a file unless
/// its files are given up.
pub fn set(c: &Connection, op: &SetNode) -> rusqlite::Result<Reply> {
    let refuse = |why| Ok(Reply::Refused(why));
    let to = match (state_of(c, op.node_id)?, op.to) {
        (None, _) => return refuse(CommandRefusal::NoSuchNode),
        (Some(NodeState::Removed), NodeState::Removed) => return Ok(Reply::Done),
        (Some(NodeState::Removed), _) => return refuse(CommandRefusal::NodeRemoved),
        (Some(NodeState::Joining), NodeState::Active | NodeState::Joining) => {
            return Ok(Reply::Done);
        }
        (Some(_), to) => to,
    };
    let others: i64 = c.query_row(
        "SELECT count(*) FROM members WHERE node_id <> ?1 AND votes AND state = 'active'",
        [signed(op.node_id)],
        |r| r.get(0),
    )?;
    if to != NodeState::Active && others == 0 {
        return refuse(CommandRefusal::LastNode);
    }
    if to == NodeState::Removed {
        let files = query::count_only_on(c, op.node_id)?;
        if files > 0 && !op.abandon {
            return refuse(CommandRefusal::HoldsFiles { files });
        }
        c.execute("DELETE FROM import_claims WHERE node_id = ?1", [signed(op.node_id)])?;
    }
    c.execute(
        "UPDATE members SET state = ?2 WHERE node_id = ?1",
        params![signed(op.node_id), to.as_str()],
    )?;
    Ok(Reply::Done)
}

/// One node goes on alone: the others are none any more, and it is another life of the hub.
pub fn recover(c: &Connection, op: &Recover) -> rusqlite::Result<Reply> {
    c.execute(
        "UPDATE meta SET value = CAST(?1 AS BLOB) WHERE key = 'hub_epoch'",
        [op.hub_epoch.to_string()],
    )?;
    c.execute("UPDATE members SET state = 'removed' WHERE node_id <> ?1", [signed(op.node_id)])?;
    c.execute(
        "UPDATE members SET state = 'active', votes = 1 WHERE node_id = ?1",
        [signed(op.node_id)],
    )?;
    c.execute("DELETE FROM import_claims", [])?;
    c.execute("DELETE FROM invitations", [])?;
    Ok(Reply::Done)
}

fn state_of(c: &Connection, node_id: u64) -> rusqlite::Result<Option<NodeState>> {
    c.query_row("SELECT state FROM members WHERE node_id = ?1", [signed(node_id)], |r| {
        NodeState::parse(&r.get::<_, String>(0)?).ok_or(rusqlite::Error::InvalidQuery)
    })
    .optional()
}

/// Forgets a page of the copies of a removed node; what has none left is lost, and its spoke is
/// asked for it again.
pub fn forget_copies(c: &Connection, node_id: u64) -> rusqlite::Result<Reply> {
    if state_of(c, node_id)? != Some(NodeState::Removed) {
        return Ok(Reply::Refused(CommandRefusal::NoSuchNode));
    }
    let page: Vec<i64> = c
        .prepare_cached("SELECT file_id FROM holders WHERE node_id = ?1 ORDER BY file_id LIMIT ?2")?
        .query_map(params![signed(node_id), FORGOTTEN_AT_ONCE], |r| r.get(0))?
        .collect::<Result<_, _>>()?;
    let mut tally = Tally::begin(c)?;
    for file_id in page {
        c.prepare_cached("DELETE FROM holders WHERE file_id = ?1 AND node_id = ?2")?
            .execute(params![file_id, signed(node_id)])?;
        let lost: Option<String> = c
            .prepare_cached(
                "SELECT path FROM files f WHERE file_id = ?1 AND state = 'held'
                    AND NOT EXISTS (SELECT 1 FROM holders h WHERE h.file_id = f.file_id)",
            )?
            .query_row([file_id], |r| r.get(0))
            .optional()?;
        if let Some(path) = lost {
            let position = tally.change(c, "lost", &path)?;
            c.prepare_cached(
                "UPDATE files SET state = 'lost', state_why = 'its node was removed', position = ?2
                 WHERE file_id = ?1",
            )?
            .execute(params![file_id, signed(position)])?;
        }
    }
    tally.write(c)?;
    Ok(Reply::Done)
}
