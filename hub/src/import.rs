//! Takes a bundle from a drive: verified whole before anything is visible, then registered in
//! batches, then recorded, then answered with a signed receipt.
//!
//! One import at a time on a node. A bundle is claimed in the manifest with a number that grows, so
//! that a late batch of an import that was taken over is refused. An import that breaks off leaves
//! the batches before it standing and is not recorded; importing again completes it, from what is
//! in staging and from the drive. It keeps V1, D1 and D2.

mod claim;
mod intake;
mod job;
mod pace;
mod receipt;
mod register;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use barque_bundle::fault::{self, Step};
use barque_bundle::wire::{self, ImportJob, ImportRefusal, ImportState};
use barque_bundle::{ErrorKind, Timestamp};
use tokio::sync::oneshot;

use crate::background;
use crate::command::{Command, CommandRefusal, RecordImport, Reply};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::manifest::query;
use crate::receive::{log_and_refuse, taken_over};

pub use claim::Claims;
pub use intake::check;
pub use job::{Imports, Job, Running, require_enabled};
pub use receipt::kept;
pub use source::Source;

/// What a caller wants of a bundle that was imported before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// It is refused, while every entry stands.
    Refuse,
    /// The present state of its entries is signed anew.
    Reissue,
}

/// How long notes of an import that broke off are kept, and how long receipts are.
pub const NOTES_MS: i64 = 72 * 3_600_000;
pub const RECEIPTS_MS: i64 = 90 * 86_400_000;

/// Starts an import; answers once all of it is read and verified, or why it is refused. What
/// follows goes on by itself, and the job says how far it is.
pub async fn start(parts: Arc<Parts>, source: Source, again: Again) -> Result<ImportJob, Error> {
    let running = parts.imports.begin(&parts)?;
    let (told, heard) = oneshot::channel();
    tokio::spawn(run(parts, running, source, again, told));
    heard.await.unwrap_or_else(|_| {
        let detail = "the hub met a fault of its own";
        Err(Refusal::new(ErrorKind::Internal, "hub_fault", detail).into())
    })
}

async fn run(
    parts: Arc<Parts>,
    running: Running,
    source: Source,
    again: Again,
    told: oneshot::Sender<Result<ImportJob, Error>>,
) {
    let job = Arc::clone(running.job());
    let reading = intake::Intake { parts: Arc::clone(&parts), job: Arc::clone(&job), again };
    let runtime = tokio::runtime::Handle::current();
    let verified = background::run("import", move || reading.run(source, &runtime)).await;
    let verified = match verified {
        Ok(verified) => verified,
        Err(e) => {
            job.failed(&e.to_refusal());
            drop(running);
            let _ = told.send(Err(e));
            return;
        }
    };
    job.update(|j| j.state = ImportState::Registering);
    let _ = told.send(Ok(job.shown()));
    match finish(&parts, &job, verified).await {
        Ok(()) => job.update(|j| j.state = ImportState::Done),
        Err(e) => job.failed(&log_and_refuse(&e)),
    }
    drop(running);
}

/// Registers what was verified, records it, and signs the receipt.
async fn finish(parts: &Arc<Parts>, job: &Job, verified: intake::Verified) -> Result<(), Error> {
    let done = register::all(parts, job, &verified).await?;
    fault::after(Step::ImportRegistered);
    let header = &verified.head.header;
    let mut counts = done.counts();
    counts.bytes = header.total_bytes;
    if !verified.is_recorded {
        let record = RecordImport {
            claim: verified.claim.number(),
            spoke_id: header.spoke_id.clone(),
            bundle_id: header.bundle_id,
            node_id: parts.identity.node_id,
            label: header.label.clone(),
            created_at: header.created_at,
            counts,
            in_transit: header.in_transit.clone(),
            series: header.series,
            seq_head: header.seq_head,
            // No spoke can have seen what is still to come, whatever its clock says.
            as_of: header.as_of.map(|t| t.min((parts.clock)())),
            voids: header.voids.clone(),
            replaces: header.replaces,
        };
        match parts.proposer.command(Command::RecordImport(record)).await? {
            Reply::Refused(CommandRefusal::ClaimLost) => return Err(taken_over().into()),
            _ => fault::after(Step::ImportRecorded),
        }
    }
    let (noting, key) = (Arc::clone(parts), verified.key.clone());
    let label = header.label.clone();
    let noted = tokio::task::spawn_blocking(move || {
        noting.ledger.record_import(&key, label.as_deref(), &counts, (noting.clock)())
    });
    noted.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
    fault::after(Step::ImportNoted);
    receipt::write(parts, &verified, done).await?;
    fault::after(Step::ImportReceipt);
    job.update(|j| j.receipt = Some(wire::receipt_path(&header.spoke_id, header.bundle_id)));
    tracing::info!(
        spoke = %header.spoke_id,
        bundle = %header.bundle_id,
        label = header.label.as_deref(),
        committed = counts.committed,
        already_present = counts.already_present,
        conflicts = counts.conflicts,
        "bundle imported"
    );
    Ok(())
}

/// The refusal of a bundle that was imported before.
fn already_imported(
    parts: &Parts,
    line: &wire::ImportLine,
    key: &crate::ledger::ImportKey,
) -> Refusal {
    let detail = format!(
        "{} was imported on {} by node {}: {} files, {} new, {} already present, {} conflicts; \
         there is nothing to do",
        line.bundle_id,
        line.imported_at,
        line.node,
        line.files,
        line.committed,
        line.already_present,
        line.conflicts
    );
    let import = ImportRefusal {
        imported: false,
        reason: wire::ALREADY_IMPORTED.to_owned(),
        job: None,
        since: None,
        bundle_id: Some(line.bundle_id),
        imported_at: Some(line.imported_at),
        node: Some(line.node.clone()),
        files: Some(line.files),
        receipt: receipt::is_kept(parts, key)
            .then(|| wire::receipt_path(&key.spoke_id, key.bundle_id)),
    };
    let refusal = Refusal::new(ErrorKind::Conflict, "already_imported", detail);
    Refusal { import: Some(Box::new(import)), ..refusal }
}

/// A page of what was imported of a spoke, with what has not arrived.
pub fn history(
    parts: &Parts,
    spoke: &barque_bundle::SpokeId,
    before: Option<u64>,
    limit: u32,
) -> Result<wire::ImportHistory, Error> {
    parts.readers.read(|c| {
        if query::spokes(c, Some(spoke))?.is_empty() {
            let detail = format!("there is no spoke named {spoke}; names are case-sensitive here");
            return Err(Refusal::new(ErrorKind::NotFound, "no_such_spoke", detail).into());
        }
        let rows = query::imports(c, spoke, before, limit)?;
        let is_full = rows.len() == limit as usize;
        let next_before = rows.last().map(|(number, _)| *number).filter(|_| is_full);
        let line = |(_, line): (u64, wire::ImportLine)| {
            let key =
                crate::ledger::ImportKey { spoke_id: spoke.clone(), bundle_id: line.bundle_id };
            // Another node keeps its own receipts as long as this one would.
            let own = format!("{:016x}", parts.identity.node_id);
            let age_ms = (parts.clock)().since_ms(line.imported_at);
            let is_kept = match line.node == own {
                true => receipt::is_kept(parts, &key),
                false => age_ms < RECEIPTS_MS,
            };
            let receipt = is_kept.then(|| wire::receipt_path(spoke, line.bundle_id));
            wire::ImportLine { receipt, ..line }
        };
        Ok(wire::ImportHistory {
            spoke_id: spoke.clone(),
            bundles: rows.into_iter().map(line).collect(),
            not_arrived: query::not_arrived(c, spoke)?,
            limit,
            next_before,
        })
    })
}

/// At a start: what an import before it left in staging goes, but for its files and receipts.
pub fn clean_up(parts: &Parts) -> Result<(), Error> {
    let folder = parts.staging.folder();
    for item in std::fs::read_dir(folder).map_err(Error::io("cannot list", folder))? {
        let path = item.map_err(Error::io("cannot list", folder))?.path();
        if is_scratch(&path) {
            std::fs::remove_file(&path).map_err(Error::io("cannot remove", &path))?;
        }
    }
    Ok(())
}

/// A node that starts holds no claim of before.
pub async fn drop_claims(parts: &Parts) -> Result<(), Error> {
    let (node_id, before_start) = (parts.identity.node_id, parts.imports.start_no());
    let claims = parts.readers.read_async(query::has_claims).await?;
    if claims {
        parts.proposer.command(Command::DropClaims { node_id, before_start }).await?;
    }
    Ok(())
}

/// Forgets notes and receipts that are old.
pub fn sweep(parts: &Parts) -> Result<(), Error> {
    let now = (parts.clock)();
    if !parts.imports.is_busy() {
        parts.ledger.forget_imports_before(now.plus_ms(-NOTES_MS))?;
    }
    receipt::sweep(parts, now.plus_ms(-RECEIPTS_MS))
}

const SCRATCH: [&str; 3] = ["entries", "outcomes", "unfinished"];

fn is_scratch(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ending = path.extension().unwrap_or_default().to_string_lossy();
    name.starts_with("import-") && SCRATCH.contains(&ending.as_ref())
}

/// A file of an import in staging: named for spoke and bundle, so that none meets another's.
fn scratch(parts: &Parts, key: &crate::ledger::ImportKey, ending: &str) -> PathBuf {
    let mut hasher = barque_bundle::digest::Hasher::new();
    hasher.update_lp(key.spoke_id.as_str().as_bytes());
    hasher.update_lp(key.bundle_id.to_string().as_bytes());
    parts.staging.folder().join(format!("import-{}.{ending}", hasher.finish()))
}

/// The time of a file on disk, for what is swept by age.
fn modified(path: &Path) -> Option<Timestamp> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok().map(Timestamp::from_system)
}
