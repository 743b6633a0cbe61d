//! `AddToken`, `RemoveToken`: bearer tokens of operators and readers, stored as hashes.

use barque_bundle::Timestamp;
use rusqlite::{Connection, params};

use crate::command::{AddToken, CommandRefusal, Reply};

pub fn add(c: &Connection, command: &AddToken, at: Timestamp) -> rusqlite::Result<Reply> {
    let added = c.execute(
        "INSERT OR IGNORE INTO tokens (name, role, hash, created_at) VALUES (?1, ?2, ?3, ?4)",
        params![command.name, command.role.as_str(), command.hash.as_bytes(), at.unix_ms()],
    )?;
    // The same token again: its answer was lost.
    let is_same: bool = c.query_row(
        "SELECT EXISTS (SELECT 1 FROM tokens WHERE name = ?1 AND role = ?2 AND hash = ?3)",
        params![command.name, command.role.as_str(), command.hash.as_bytes()],
        |r| r.get(0),
    )?;
    Ok(if added == 1 || is_same {
        Reply::Done
    } else {
        Reply::Refused(CommandRefusal::TokenNameTaken)
    })
}

pub fn remove(c: &Connection, name: &str) -> rusqlite::Result<Reply> {
    let removed = c.execute("DELETE FROM tokens WHERE name = ?1", [name])?;
    Ok(if removed == 1 { Reply::Done } else { Reply::Refused(CommandRefusal::NoSuchToken) })
}
