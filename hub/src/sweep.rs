//! Deletes staged copies that nothing will ever count on again.
//!
//! A copy that was answered `Stored` may be in a proposal under way, so it goes only after the
//! node's own floor above its number is applied and the manifest does not name it (D1).

use std::sync::Arc;
use std::time::Duration;

use crate::command::Command;
use crate::error::{Error, Refusal, chain};
use crate::hub::Parts;
use crate::import;
use crate::manifest::query;
use crate::promote::Promoter;

const EVERY: Duration = Duration::from_secs(3600);
const PAGE: u32 = 1000;

/// Removes files in staging that no row knows: they were never synced or answered for.
/// Only before the first stream is taken.
pub fn remove_orphans(parts: &Parts) -> Result<u64, Error> {
    let mut removed = 0;
    for stage_no in parts.staging.present()? {
        if !parts.ledger.is_staged(stage_no)? {
            let path = parts.staging.path(stage_no);
            parts.staging.remove(stage_no).map_err(Error::io("cannot remove", path))?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Raises the node's floor and deletes what lies below it and is not named.
pub async fn sweep(parts: &Arc<Parts>, floor: u64) -> Result<u64, Error> {
    let node_id = parts.identity.node_id;
    let command = Command::RaiseStageFloor { node_id, floor };
    parts.proposer.command(command).await?;
    let parts = Arc::clone(parts);
    tokio::task::spawn_blocking(move || delete_below(&parts, floor))
        .await
        .unwrap_or_else(|e| Err(Error::Malformed(format!("the sweep ended badly: {e}"))))
}

fn delete_below(parts: &Parts, floor: u64) -> Result<u64, Error> {
    let (mut after, mut removed) = (0, 0);
    loop {
        let rows = parts.ledger.staged_upto(floor, after, PAGE)?;
        let Some(last) = rows.last() else {
            return Ok(removed);
        };
        after = last.stage_no;
        for row in rows {
            let named = parts.readers.read(|c| {
                query::names_stage(c, parts.identity.node_id, &row.landed, row.stage_no)
            })?;
            let since = (parts.clock)().plus_ms(-import::NOTES_MS);
            if !named && !parts.ledger.is_of_import(row.stage_no, since)? {
                let path = parts.staging.path(row.stage_no);
                parts.staging.remove(row.stage_no).map_err(Error::io("cannot remove", path))?;
                parts.ledger.forget_staged(row.stage_no)?;
                removed += 1;
            }
        }
    }
}

/// One sweep: what lies below the floor goes, and promotions that were left are tried again.
pub async fn once(parts: &Arc<Parts>, promoter: &Arc<Promoter>, floor: u64) {
    match sweep(parts, floor).await {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "removed staged copies that nothing counts on"),
        Err(Error::Refused(Refusal { code, .. })) => tracing::warn!(code, "sweep put off"),
        Err(e) => tracing::error!(error = %chain(&e), "sweep failed; it is tried again"),
    }
    let sweeping = Arc::clone(parts);
    let swept = tokio::task::spawn_blocking(move || {
        sweeping.uploads.sweep(|key| {
            let landed = barque_bundle::wire::landed(&key.spoke_id, &key.path);
            let row = sweeping.readers.read(|c| query::lookup(c, &landed))?;
            Ok(row.is_some_and(|r| r.sha256 == key.sha256 && r.state == query::FileState::Held))
        })
    });
    match swept.await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!(error = %chain(&e), "partial uploads are not swept"),
        Err(e) => tracing::error!(error = %e, "a sweeping thread ended badly"),
    }
    let sweeping = Arc::clone(parts);
    match tokio::task::spawn_blocking(move || import::sweep(&sweeping)).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!(error = %chain(&e), "old imports are not swept"),
        Err(e) => tracing::error!(error = %e, "a sweeping thread ended badly"),
    }
    let promoter = Arc::clone(promoter);
    match tokio::task::spawn_blocking(move || promoter.retry_left()).await {
        Ok(Ok(())) => {}
        Ok(Err(e)) => tracing::error!(error = %chain(&e), "promotions are left; tried again later"),
        Err(e) => tracing::error!(error = %e, "a promoting thread ended badly"),
    }
}

/// Sweeps hourly what was staged more than an hour before, until the task is dropped.
pub async fn run(parts: Arc<Parts>, promoter: Arc<Promoter>) {
    let mut hour_ago = parts.staging.closed_number();
    loop {
        tokio::time::sleep(EVERY).await;
        let closed = parts.staging.closed_number();
        once(&parts, &promoter, hour_ago).await;
        hour_ago = closed;
    }
}
