//! `AddSpoke`: a name is taken and a one-time token may enroll a key for it.

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{AddSpoke, CommandRefusal, Reply};

pub fn apply(c: &Connection, command: &AddSpoke, at: Timestamp) -> rusqlite::Result<Reply> {
    let folded = command.spoke_id.folded();
    let taken: Option<String> = c
        .query_row("SELECT name FROM names WHERE folded = ?1", [&folded], |r| r.get(0))
        .optional()?;
    if taken.is_some() {
        return Ok(Reply::Refused(CommandRefusal::NameTaken));
    }
    let spoke = command.spoke_id.as_str();
    c.execute(
        "INSERT INTO names (folded, name, kind) VALUES (?1, ?2, 'spoke')",
        [folded.as_str(), spoke],
    )?;
    c.execute(
        "INSERT INTO spokes (spoke_id, state, created_at) VALUES (?1, 'announced', ?2)",
        params![spoke, at.unix_ms()],
    )?;
    c.execute(
        "INSERT INTO enrollments (secret_hash, spoke_id, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4)",
        params![command.secret_hash.as_bytes(), spoke, at.unix_ms(), command.expires_at.unix_ms()],
    )?;
    Ok(Reply::Done)
}
