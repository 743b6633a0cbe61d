//! `ApproveSpoke`: a spoke that cannot call gets its name and its key in one step.

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{ApproveSpoke, CommandRefusal, Reply};

pub fn apply(c: &Connection, command: &ApproveSpoke, at: Timestamp) -> rusqlite::Result<Reply> {
    let (spoke, folded) = (command.spoke_id.as_str(), command.spoke_id.folded());
    let key_id = command.public_key.key_id();
    let owner: Option<String> = c
        .query_row("SELECT spoke_id FROM keys WHERE key_id = ?1", [key_id.as_str()], |r| r.get(0))
        .optional()?;
    match owner {
        // The same request again.
        Some(owner) if owner == spoke => return Ok(Reply::Done),
        Some(_) => return Ok(Reply::Refused(CommandRefusal::KeyInUse)),
        None => {}
    }
    let taken: Option<String> = c
        .query_row("SELECT name FROM names WHERE folded = ?1", [&folded], |r| r.get(0))
        .optional()?;
    if taken.is_some() {
        return Ok(Reply::Refused(CommandRefusal::NameTaken));
    }
    c.execute("INSERT INTO names (folded, name, kind) VALUES (?1, ?2, 'spoke')", [&folded, spoke])?;
    c.execute(
        "INSERT INTO spokes (spoke_id, state, created_at) VALUES (?1, 'active', ?2)",
        params![spoke, at.unix_ms()],
    )?;
    c.execute(
        "INSERT INTO keys (key_id, spoke_id, public_key, state, added_at)
         VALUES (?1, ?2, ?3, 'active', ?4)",
        params![key_id.as_str(), spoke, command.public_key.to_string(), at.unix_ms()],
    )?;
    Ok(Reply::Done)
}
