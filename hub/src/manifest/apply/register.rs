//! `Register`: one file, decided. Between its registration and its removal a path never changes
//! its content (V2), and what is decided here is decided on every node (V3).

use barque_bundle::{LandedName, Timestamp};
use rusqlite::{Connection, params};

use super::batch::Open;
use super::tally::Tally;
use crate::command::{Holder, OperationReply, Register};
use crate::manifest::query::{self, FileRow, FileState, signed};

pub fn apply(
    c: &Connection,
    op: &Register,
    (open, tally): (&mut Open<'_>, &mut Tally),
    at: Timestamp,
) -> rusqlite::Result<OperationReply> {
    let Ok(landed) = LandedName::new(&open.bundle.spoke_id, &op.path) else {
        return Ok(OperationReply::Unmet);
    };
    let holder = match op.holder {
        Some(h) if tally.is_above_floor(c, h)? => Some(h),
        _ => None,
    };
    let reply = match (query::file(c, landed.as_str())?, holder) {
        (None, None) => return Ok(OperationReply::Unmet),
        (None, Some(holder)) => {
            let position = insert(c, op, (open, tally), &landed, holder, at)?;
            open.registered += 1;
            open.bytes += signed(op.size_bytes);
            OperationReply::Registered { position, copies: 1 }
        }
        (Some(row), holder) => known(c, op, (open, tally), &landed, &row, holder)?,
    };
    if !matches!(reply, OperationReply::Unmet) {
        open.answered.push(op.seq);
    }
    Ok(reply)
}

/// The answer for a path that has a row; a node that staged the same bytes becomes a holder.
fn known(
    c: &Connection,
    op: &Register,
    (open, tally): (&Open<'_>, &mut Tally),
    landed: &LandedName,
    row: &FileRow,
    holder: Option<Holder>,
) -> rusqlite::Result<OperationReply> {
    if row.state == FileState::Removed {
        return Ok(OperationReply::Removed);
    }
    if row.sha256 != op.sha256 {
        return Ok(OperationReply::Conflict { theirs: row.sha256 });
    }
    let (mut position, mut copies) = (row.position, row.copies);
    if let Some(holder) = holder {
        let added = add_holder(c, row.file_id, holder)?;
        if added || row.state == FileState::Lost {
            let kind = if row.state == FileState::Lost { "restored" } else { "holders" };
            position = tally.change(c, kind, landed.as_str())?;
            copies += u32::from(added);
            c.prepare_cached(
                "UPDATE files SET state = 'held', state_by = NULL, state_at = NULL,
                        state_why = NULL, position = ?2 WHERE file_id = ?1",
            )?
            .execute(params![row.file_id, signed(position)])?;
        }
    } else if row.state != FileState::Held {
        return Ok(OperationReply::Unmet);
    }
    // The same bundle and number again is a retry of what was answered before (D2, D4).
    // A drive that is imported again is none: it brings nothing that was staged for this.
    let may_be_retry = open.bundle.claim.is_none() || op.holder.is_some();
    let is_same = row.bundle_id == open.bundle.bundle_id.to_string() && row.seq == op.seq;
    let is_retry = may_be_retry && is_same;
    Ok(if is_retry {
        OperationReply::Registered { position, copies }
    } else {
        OperationReply::AlreadyPresent { position, copies }
    })
}

/// True when the node was not a holder before. One that is keeps the copy that it has.
fn add_holder(c: &Connection, file_id: i64, holder: Holder) -> rusqlite::Result<bool> {
    let added = c
        .prepare_cached(
            "INSERT OR IGNORE INTO holders (file_id, node_id, stage_no) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![file_id, signed(holder.node_id), signed(holder.stage_no)])?;
    Ok(added == 1)
}

fn insert(
    c: &Connection,
    op: &Register,
    (open, tally): (&Open<'_>, &mut Tally),
    landed: &LandedName,
    holder: Holder,
    at: Timestamp,
) -> rusqlite::Result<u64> {
    let position = tally.change(c, "registered", landed.as_str())?;
    let partition = op.path.partition();
    c.prepare_cached(
        "INSERT INTO files (path, namespace, state, sha256, source_sha256, size_bytes, kind,
                            origin, spoke_id, series, seq, modified_at, database, measurement,
                            partition_start, partition_precision, bundle_id, origin_node,
                            received_at, position)
         VALUES (?1, ?2, 'held', ?3, ?3, ?4, 'data', 'spoke', ?2, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
                 ?12, ?13, ?14, ?15)",
    )?
    .execute(params![
        landed.as_str(),
        open.bundle.spoke_id.as_str(),
        op.sha256.as_bytes(),
        signed(op.size_bytes),
        open.bundle.series.to_string(),
        signed(op.seq),
        op.modified_at.unix_ms(),
        op.path.database(),
        op.path.measurement(),
        partition.map(|p| p.start.unix_ms()),
        partition.map(|p| p.precision.as_str()),
        open.bundle.bundle_id.to_string(),
        signed(holder.node_id),
        at.unix_ms(),
        signed(position)
    ])?;
    add_holder(c, c.last_insert_rowid(), holder)?;
    tally.registered(op.size_bytes);
    Ok(position)
}
