//! `AddSpoke`: a name is taken and a one-time token may enroll a key for it.

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{AddSpoke, CommandRefusal, Reply};

pub fn apply(c: &Connection, command: &AddSpoke, at: Timestamp) -> rusqlite::Result<Reply> {
    let folded = command.spoke_id.folded();
    let taken: Option<String> = c
        .query_row("SELECT name FROM names WHERE folded = ?1", [&folded], |r| r.get(0))
        .optional()?;
    let spoke = command.spoke_id.as_str();
    match taken {
        // The same announcement again: its answer was lost.
        Some(name) if name == spoke && is_announced(c, command)? => return Ok(Reply::Done),
        None => make(c, command, &folded, at)?,
        // Announced, and its token expired before anybody used it: it gets another one.
        Some(name) if name == spoke && was_never_used(c, spoke, at)? => {
            c.execute("DELETE FROM enrollments WHERE spoke_id = ?1", [spoke])?;
        }
        Some(_) => return Ok(Reply::Refused(CommandRefusal::NameTaken)),
    }
    c.execute(
        "INSERT INTO enrollments (secret_hash, spoke_id, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4)",
        params![command.secret_hash.as_bytes(), spoke, at.unix_ms(), command.expires_at.unix_ms()],
    )?;
    Ok(Reply::Done)
}

fn is_announced(c: &Connection, command: &AddSpoke) -> rusqlite::Result<bool> {
    c.query_row(
        "SELECT EXISTS (SELECT 1 FROM enrollments WHERE secret_hash = ?1 AND spoke_id = ?2)",
        params![command.secret_hash.as_bytes(), command.spoke_id.as_str()],
        |r| r.get(0),
    )
}

fn was_never_used(c: &Connection, spoke: &str, at: Timestamp) -> rusqlite::Result<bool> {
    c.query_row(
        "SELECT EXISTS (SELECT 1 FROM spokes WHERE spoke_id = ?1 AND state = 'announced')
            AND NOT EXISTS (SELECT 1 FROM enrollments
                            WHERE spoke_id = ?1 AND (used_at IS NOT NULL OR expires_at >= ?2))",
        params![spoke, at.unix_ms()],
        |r| r.get(0),
    )
}

fn make(c: &Connection, command: &AddSpoke, folded: &str, at: Timestamp) -> rusqlite::Result<()> {
    let spoke = command.spoke_id.as_str();
    c.execute("INSERT INTO names (folded, name, kind) VALUES (?1, ?2, 'spoke')", [folded, spoke])?;
    c.execute(
        "INSERT INTO spokes (spoke_id, state, created_at) VALUES (?1, 'announced', ?2)",
        params![spoke, at.unix_ms()],
    )?;
    Ok(())
}
