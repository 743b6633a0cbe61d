//! The right to import a bundle, as the manifest gives it: renewed as long as the import runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use barque_bundle::wire::{self, ImportRefusal};
use barque_bundle::{ErrorKind, Timestamp};
use tokio::task::AbortHandle;

use super::Job;
use crate::command::{ClaimImport, Command, CommandRefusal, Reply};
use crate::error::{Error, Refusal, chain};
use crate::hub::Parts;
use crate::ledger::ImportKey;
use crate::manifest::query;
use crate::receive::taken_over;

const RENEWED_EVERY: Duration = Duration::from_secs(10);

/// A claim that was not seen renewed for longer may be taken over.
const ABANDONED: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_secs(1);
const KNOWN_WAIT: Duration = Duration::from_secs(5);

/// When this node saw each claim renewed last, in its own monotonic time: no other clock decides
/// whether a claim is abandoned.
#[derive(Default)]
pub struct Claims(Mutex<BTreeMap<u64, (u64, Instant)>>);

impl Claims {
    /// Looks at the claims until it is dropped.
    pub async fn watch(parts: Arc<Parts>) {
        loop {
            if let Err(e) = parts.claims.look(&parts).await {
                tracing::warn!(error = %chain(&e), "the claims of imports cannot be read");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&self, parts: &Parts) -> Result<(), Error> {
        let renewals = parts.readers.read_async(query::claim_renewals).await?;
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|number, _| renewals.contains_key(number));
        for (number, count) in renewals {
            let at = seen.entry(number).or_insert((count, Instant::now()));
            if at.0 != count {
                *at = (count, Instant::now());
            }
        }
        Ok(())
    }

    /// Whether a claim was not renewed for long, as of all that is agreed now.
    async fn is_abandoned(&self, parts: &Parts, number: u64) -> Result<bool, Error> {
        parts.cluster.barrier(&parts.node, KNOWN_WAIT).await?;
        self.look(parts).await?;
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.get(&number).is_some_and(|(_, at)| at.elapsed() > ABANDONED))
    }
}

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
        let mut reply = ask(parts, key, None).await?;
        if let Reply::ClaimHeld { node_id, number, .. } = reply {
            // This node's seat is taken by this import alone: a claim of its own is one whose
            // release, or whose answer, was lost. That of another node is taken over once it was
            // not renewed for long.
            if node_id == own || parts.claims.is_abandoned(parts, number).await? {
                tracing::warn!(
                    number,
                    node = parts.cluster.title(node_id),
                    "a claim is taken over"
                );
                reply = ask(parts, key, Some(number)).await?;
                // Taken over before, and the answer to that was lost.
                if let Reply::ClaimHeld { node_id, number, .. } = reply
                    && node_id == own
                {
                    reply = ask(parts, key, Some(number)).await?;
                }
            }
        }
        let number = match reply {
            Reply::Claimed { number } => number,
            other => return Err(not_claimed(parts, key, other)),
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
        // It may be dropped on a thread that no runtime drives.
        self.parts.work.spawn(async move {
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

fn not_claimed(parts: &Parts, key: &ImportKey, reply: Reply) -> Error {
    match reply {
        Reply::ClaimHeld { node_id, claimed_at, .. } => {
            held(parts, key, node_id, claimed_at).into()
        }
        _ => Error::Malformed("a claim was answered otherwise".to_owned()),
    }
}

async fn renew(parts: Arc<Parts>, job: Arc<Job>, number: u64) {
    loop {
        tokio::time::sleep(RENEWED_EVERY).await;
        match parts.proposer.command(Command::RenewClaim { number }).await {
            Ok(Reply::Refused(CommandRefusal::ClaimLost)) => {
                tracing::warn!(number, "the import was taken over by another node");
                job.end(taken_over());
                return;
            }
            Ok(_) => {}
            // Unknown is not no: its batches are fenced all the same.
            Err(e) => tracing::warn!(code = e.code, "an import's claim was not renewed"),
        }
    }
}

fn held(parts: &Parts, key: &ImportKey, node_id: u64, since: Timestamp) -> Refusal {
    let detail = format!(
        "node {} imports bundle {} since {since}; try again when it is done, or in {} s if that \
         node is gone",
        parts.cluster.title(node_id),
        key.bundle_id,
        ABANDONED.as_secs()
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
