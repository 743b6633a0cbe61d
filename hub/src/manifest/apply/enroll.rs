//! `Enroll`: a one-time token becomes a spoke's key. The same key may come again (a lost reply).

use barque_bundle::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::command::{CommandRefusal, Enroll, Reply};

pub fn apply(c: &Connection, command: &Enroll, at: Timestamp) -> rusqlite::Result<Reply> {
    let refuse = |why| Ok(Reply::Refused(why));
    let spoke = command.spoke_id.as_str();
    let hash = command.secret_hash.as_bytes();
    let found: Option<(i64, Option<String>)> = c
        .query_row(
            "SELECT expires_at, key_id FROM enrollments WHERE secret_hash = ?1 AND spoke_id = ?2",
            params![hash, spoke],
            |r| Ok((r.get(0)?, r.get(1)?)),
        )
        .optional()?;
    let Some((expires_at, used_by)) = found else {
        return refuse(CommandRefusal::UnknownToken);
    };
    let key_id = command.public_key.key_id();
    match used_by {
        Some(used) if used == key_id.as_str() => return Ok(Reply::Done),
        Some(_) => return refuse(CommandRefusal::TokenUsed),
        None => {}
    }
    if at.unix_ms() > expires_at {
        return refuse(CommandRefusal::TokenExpired);
    }
    let known: Option<String> = c
        .query_row("SELECT spoke_id FROM keys WHERE key_id = ?1", [key_id.as_str()], |r| r.get(0))
        .optional()?;
    if known.is_some() {
        return refuse(CommandRefusal::KeyInUse);
    }
    c.execute(
        "INSERT INTO keys (key_id, spoke_id, public_key, state, added_at)
         VALUES (?1, ?2, ?3, 'active', ?4)",
        params![key_id.as_str(), spoke, command.public_key.to_string(), at.unix_ms()],
    )?;
    // A disabled spoke stays so: only an operator enables it.
    c.execute(
        "UPDATE spokes SET state = 'active' WHERE spoke_id = ?1 AND state = 'announced'",
        [spoke],
    )?;
    c.execute(
        "UPDATE enrollments SET key_id = ?2, used_at = ?3 WHERE secret_hash = ?1",
        params![hash, key_id.as_str(), at.unix_ms()],
    )?;
    Ok(Reply::Done)
}
