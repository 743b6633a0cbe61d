//! Counters that each registration moves, in memory while a command is applied.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::count;
use crate::command::Holder;
use crate::manifest::query::signed;

/// Changes that are kept for `changes` cursors; older ones are below the horizon.
const CHANGES_KEPT: u64 = 1_000_000;

/// What one command adds to the counters: read at its start, written once at its end.
pub(super) struct Tally {
    begun_at: u64,
    position: u64,
    registered: i64,
    bytes: i64,
    /// Stage floors of the nodes that were asked for; none for one that is not there.
    floors: BTreeMap<u64, Option<i64>>,
}

impl Tally {
    pub(super) fn begin(c: &Connection) -> rusqlite::Result<Self> {
        let position = c
            .prepare_cached("SELECT value FROM counters WHERE name = 'position'")?
            .query_row([], |r| r.get(0).map(super::super::query::unsigned))
            .optional()?
            .unwrap_or(0);
        Ok(Self { begun_at: position, position, registered: 0, bytes: 0, floors: BTreeMap::new() })
    }

    /// Writes a change under the next position and returns that position.
    pub(super) fn change(
        &mut self,
        c: &Connection,
        kind: &str,
        landed: &str,
    ) -> rusqlite::Result<u64> {
        self.position += 1;
        c.prepare_cached("INSERT INTO changes (position, kind, path) VALUES (?1, ?2, ?3)")?
            .execute(params![signed(self.position), kind, landed])?;
        Ok(self.position)
    }

    /// One file more, of so many bytes.
    pub(super) fn registered(&mut self, bytes: u64) {
        self.registered += 1;
        self.bytes += signed(bytes);
    }

    /// Whether a staged copy is newer than all that its node has swept away.
    pub(super) fn is_above_floor(
        &mut self,
        c: &Connection,
        holder: Holder,
    ) -> rusqlite::Result<bool> {
        let floor = match self.floors.get(&holder.node_id) {
            Some(floor) => *floor,
            None => {
                let floor = c
                    .prepare_cached("SELECT stage_floor FROM nodes WHERE node_id = ?1")?
                    .query_row([signed(holder.node_id)], |r| r.get(0))
                    .optional()?;
                self.floors.insert(holder.node_id, floor);
                floor
            }
        };
        Ok(floor.is_some_and(|floor| floor < signed(holder.stage_no)))
    }

    pub(super) fn write(self, c: &Connection) -> rusqlite::Result<()> {
        if self.registered > 0 {
            count(c, "files", self.registered)?;
            count(c, "bytes", self.bytes)?;
        }
        if self.position > self.begun_at {
            count(c, "position", signed(self.position - self.begun_at))?;
            raise_horizon(c, self.position)?;
        }
        Ok(())
    }
}

/// Lets changes go that are too old.
fn raise_horizon(c: &Connection, position: u64) -> rusqlite::Result<()> {
    if position <= CHANGES_KEPT {
        return Ok(());
    }
    let horizon = signed(position - CHANGES_KEPT);
    c.prepare_cached("DELETE FROM changes WHERE position <= ?1")?.execute([horizon])?;
    c.prepare_cached("INSERT OR REPLACE INTO counters (name, value) VALUES ('horizon', ?1)")?
        .execute([horizon])?;
    Ok(())
}
