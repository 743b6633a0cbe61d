//! The right to import a bundle, as the manifest gives it: renewed as long as the import runs.

use std::sync::Arc;
use std::time::Duration;

use barque_bundle::wire::{self, ImportRefusal};
use barque_bundle::{ErrorKind, Timestamp};
use tokio::task::AbortHandle;

use super::Job;
use crate::command::{ClaimImport, Command, CommandRefusal, Reply};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::ledger::ImportKey;

const RENEWED_EVERY: Duration = Duration::from_secs(10);

/// A claim, released when it is dropped.
pub struct Claim {
    parts: Arc<Parts>,
    number: u64,
    renewing: AbortHandle,
}

impl Claim {
    /// Claims the bundle, or says which node has it.
    pub async fn take(parts: &Arc<Parts>, job: &Arc<Job>, key: &ImportKey) -> Result<Self, Error> {
        let own = parts.identity.node_id;
        let number = match ask(parts, key, None).await? {
            // This node's seat is taken by this import alone: a claim of its own is one whose
            // release, or whose answer, was lost.
            Reply::ClaimHeld { node_id, number, .. } if node_id == own => {
                match ask(parts, key, Some(number)).await? {
                    Reply::Claimed { number } => number,
                    other => return Err(not_claimed(key, other)),
                }
            }
            Reply::Claimed { number } => number,
            other => return Err(not_claimed(key, other)),
        };
        let renewing = tokio::spawn(renew(Arc::clone(parts), Arc::clone(job), number));
        let renewing = renewing.abort_handle();
        Ok(Self { parts: Arc::clone(parts), number, renewing })
    }

    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.renewing.abort();
        let (parts, number) = (Arc::clone(&self.parts), self.number);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            // One that was recorded is released by that; a repeat changes nothing.
            let _ = parts.proposer.command(Command::ReleaseClaim { number }).await;
        });
    }
}

async fn ask(
    parts: &Arc<Parts>,
    key: &ImportKey,
    take_over: Option<u64>,
) -> Result<Reply, Refusal> {
    let claim = ClaimImport {
        spoke_id: key.spoke_id.clone(),
        bundle_id: key.bundle_id,
        node_id: parts.identity.node_id,
        start_no: parts.imports.start_no(),
        take_over,
    };
    parts.proposer.command(Command::ClaimImport(claim)).await
}

fn not_claimed(key: &ImportKey, reply: Reply) -> Error {
    match reply {
        Reply::ClaimHeld { node_id, claimed_at, .. } => held(key, node_id, claimed_at).into(),
        _ => Error::Malformed("a claim was answered otherwise".to_owned()),
    }
}

async fn renew(parts: Arc<Parts>, job: Arc<Job>, number: u64) {
    loop {
        tokio::time::sleep(RENEWED_EVERY).await;
        match parts.proposer.command(Command::RenewClaim { number }).await {
            Ok(Reply::Refused(CommandRefusal::ClaimLost)) => {
                tracing::warn!(number, "the import was taken over by another node");
                job.cancel();
                return;
            }
            Ok(_) => {}
            // Unknown is not no: its batches are fenced all the same.
            Err(e) => tracing::warn!(code = e.code, "an import's claim was not renewed"),
        }
    }
}

fn held(key: &ImportKey, node_id: u64, since: Timestamp) -> Refusal {
    let detail = format!(
        "node {node_id:016x} imports bundle {} since {since}; try again when it is done",
        key.bundle_id
    );
    let import = ImportRefusal {
        imported: false,
        reason: wire::IN_PROGRESS.to_owned(),
        job: None,
        since: Some(since),
        bundle_id: Some(key.bundle_id),
        imported_at: None,
        node: Some(format!("{node_id:016x}")),
        files: None,
        receipt: None,
    };
    let refusal = Refusal::new(ErrorKind::Conflict, "import_in_progress", detail);
    Refusal { import: Some(Box::new(import)), retry_after_ms: Some(10_000), ..refusal }
}
