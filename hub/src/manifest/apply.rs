//! What each replicated command does to the manifest: pure decisions over its rows (A1).

mod add_spoke;
mod approve_spoke;
mod batch;
mod check_in;
mod describe;
mod enroll;
mod import;
mod node;
mod register;
mod set_spoke;
mod tally;
mod token;

use rusqlite::{Connection, params};

use super::query::signed;

use crate::command::{Command, Envelope, Init, Reply};
pub use describe::OTHER as OTHER_SCHEMAS;

/// Applies one command inside the caller's transaction; an error is a fault of the database.
pub fn apply(c: &Connection, envelope: &Envelope) -> rusqlite::Result<Reply> {
    let at = envelope.at;
    match &envelope.command {
        Command::Init(init) => apply_init(c, init, at.unix_ms()),
        Command::AddSpoke(command) => add_spoke::apply(c, command, at),
        Command::Enroll(command) => enroll::apply(c, command, at),
        Command::SetSpoke(command) => set_spoke::apply(c, command, at),
        Command::AddToken(command) => token::add(c, command, at),
        Command::RemoveToken { name } => token::remove(c, name),
        Command::RaiseStageFloor { node_id, floor } => raise_stage_floor(c, *node_id, *floor),
        Command::Batch(command) => batch::apply(c, command, at),
        Command::Describe(command) => describe::apply(c, command),
        Command::ClaimImport(command) => import::claim(c, command, at),
        Command::RenewClaim { number } => import::renew(c, *number),
        Command::ReleaseClaim { number } => import::release(c, *number),
        Command::DropClaims { node_id, before_start } => {
            import::drop_claims(c, *node_id, *before_start)
        }
        Command::RecordImport(command) => import::record(c, command, at),
        Command::ApproveSpoke(command) => approve_spoke::apply(c, command, at),
        Command::InviteNode(command) => node::invite(c, command, at),
        Command::JoinNode(command) => node::join(c, command, at),
        Command::NodeUp(command) => node::up(c, command),
        Command::SetNode(command) => node::set(c, command),
        Command::Recover(command) => node::recover(c, command),
        Command::ForgetCopies { node_id } => node::forget_copies(c, *node_id),
    }
}

fn apply_init(c: &Connection, init: &Init, at_ms: i64) -> rusqlite::Result<Reply> {
    let mut put =
        c.prepare("INSERT OR IGNORE INTO meta (key, value) VALUES (?1, CAST(?2 AS BLOB))")?;
    put.execute(["hub_id", &init.hub_id.to_string()])?;
    put.execute(["hub_epoch", &init.hub_epoch.to_string()])?;
    c.execute(
        "INSERT OR IGNORE INTO nodes (node_id, public_key, added_at) VALUES (?1, ?2, ?3)",
        params![signed(init.node_id), init.node_key.to_string(), at_ms],
    )?;
    c.execute("INSERT OR IGNORE INTO members (node_id) VALUES (?1)", [signed(init.node_id)])?;
    Ok(Reply::Done)
}

/// From here on the node's staged copies at or below the floor count for nothing new.
fn raise_stage_floor(c: &Connection, node_id: u64, floor: u64) -> rusqlite::Result<Reply> {
    c.execute(
        "UPDATE nodes SET stage_floor = max(stage_floor, ?2) WHERE node_id = ?1",
        params![signed(node_id), signed(floor)],
    )?;
    Ok(Reply::Done)
}

/// Adds to a counter and returns its new value.
fn count(c: &Connection, name: &str, by: i64) -> rusqlite::Result<u64> {
    c.prepare_cached(
        "INSERT INTO counters (name, value) VALUES (?1, ?2)
         ON CONFLICT (name) DO UPDATE SET value = value + excluded.value RETURNING value",
    )?
    .query_row(params![name, by], |r| r.get::<_, i64>(0).map(super::query::unsigned))
}
