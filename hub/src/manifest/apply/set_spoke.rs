//! `SetSpoke`: an operator enables, disables or removes a spoke. Its files stay.

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{CommandRefusal, Reply, SetSpoke, SpokeState};

pub fn apply(c: &Connection, command: &SetSpoke, at: Timestamp) -> rusqlite::Result<Reply> {
    let spoke = command.spoke_id.as_str();
    let found: Option<String> = c
        .query_row("SELECT state FROM spokes WHERE spoke_id = ?1", [spoke], |r| r.get(0))
        .optional()?;
    match found.as_deref() {
        None => return Ok(Reply::Refused(CommandRefusal::NoSuchSpoke)),
        Some("removed") if command.to == SpokeState::Removed => return Ok(Reply::Done),
        Some("removed") => return Ok(Reply::Refused(CommandRefusal::SpokeRemoved)),
        Some(_) => {}
    }
    let state = match command.to {
        SpokeState::Disabled => "disabled",
        SpokeState::Enabled => enabled_state(c, spoke)?,
        SpokeState::Removed => {
            c.execute(
                "UPDATE keys SET state = 'revoked', ended_at = ?2
                 WHERE spoke_id = ?1 AND state <> 'revoked'",
                params![spoke, at.unix_ms()],
            )?;
            c.execute("DELETE FROM enrollments WHERE spoke_id = ?1", [spoke])?;
            "removed"
        }
    };
    c.execute("UPDATE spokes SET state = ?2 WHERE spoke_id = ?1", [spoke, state])?;
    Ok(Reply::Done)
}

/// A spoke that never enrolled is announced again, not active.
fn enabled_state(c: &Connection, spoke: &str) -> rusqlite::Result<&'static str> {
    let has_key: bool = c.query_row(
        "SELECT EXISTS (SELECT 1 FROM keys WHERE spoke_id = ?1 AND state = 'active')",
        [spoke],
        |r| r.get(0),
    )?;
    Ok(if has_key { "active" } else { "announced" })
}
