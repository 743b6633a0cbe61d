//! Gets a verified bundle agreed on, in batches of 1,000 in path order (fewer beside others); each is
//! visible before the next is proposed.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use barque_bundle::fault::{self, Step};
use barque_bundle::receipt::{LANDING_BLOCKED, Outcomes, Summary};
use barque_bundle::{ErrorKind, Outcome, OutcomeLine};

use super::intake::Verified;
use super::pace::Pace;
use super::{Job, scratch};
use crate::command::{Holder, ImportCounts, Operation};
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::ledger::ImportFile;
use crate::receive::{Asked, agree, register};

/// What a whole bundle came to: its outcomes on disk, and what a receipt says of them.
pub(super) struct Done {
    pub outcomes: Scratch,
    pub summary: Summary,
}

impl Done {
    pub fn counts(&self) -> ImportCounts {
        let n = &self.summary.counts;
        ImportCounts {
            files: n.registered + n.already_present + n.conflict + n.removed + n.refused,
            bytes: 0,
            committed: n.registered,
            already_present: n.already_present,
            conflicts: n.conflict,
            refused: n.refused,
            removed: n.removed,
        }
    }
}

/// A file in staging that goes when it is dropped.
pub(super) struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) async fn all(parts: &Arc<Parts>, job: &Job, verified: &Verified) -> Result<Done, Error> {
    let outcomes = Scratch(scratch(parts, &verified.key, "outcomes"));
    let file = File::create(&outcomes.0).map_err(Error::io("cannot write", &outcomes.0))?;
    let mut out = Outcomes::new(BufWriter::with_capacity(64 * 1024, file));
    let mut pace = Pace::new(parts.position.clone());
    let (mut after, mut unsettled) = (String::new(), 0);
    loop {
        job.require_going_on()?;
        let limit = u32::try_from(pace.files()).unwrap_or(u32::MAX);
        let begun = Instant::now();
        let (ledger, key, from) = (parts.ledger.clone(), verified.key.clone(), after.clone());
        let page =
            tokio::task::spawn_blocking(move || ledger.import_files(&key, &from, limit)).await;
        let page = page.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
        let Some(last) = page.last() else { break };
        after = last.entry.path.to_string();
        let count = page.len();
        // What is there already, without a copy of this node's, changes nothing.
        let own = page.iter().filter(|f| f.stage_no.is_some()).count() as u64;
        let lines = batch(parts, verified, page).await?;
        unsettled += count - lines.len();
        for line in &lines {
            parts.metrics.settled(line.outcome);
            out.add(line).map_err(Error::io("cannot write", &outcomes.0))?;
        }
        job.update(|j| {
            for line in &lines {
                j.settled_files += 1;
                *match line.outcome {
                    Outcome::Registered => &mut j.committed,
                    Outcome::AlreadyPresent => &mut j.already_present,
                    Outcome::Conflict => &mut j.conflicts,
                    Outcome::Removed => &mut j.removed,
                    _ => &mut j.refused,
                } += 1;
            }
        });
        fault::after(Step::ImportBatch);
        let rest = pace.rest_after(own, begun.elapsed());
        tokio::time::sleep(rest).await;
    }
    if unsettled > 0 {
        let detail = format!(
            "{unsettled} files are verified and not visible yet; what is stands, import again to \
             complete it"
        );
        return Err(Refusal::new(ErrorKind::Unknown, "import_incomplete", detail).into());
    }
    let (file, summary) = out.finish();
    file.into_inner().map_err(|e| Error::io("cannot write", &outcomes.0)(e.into_error()))?;
    Ok(Done { outcomes, summary })
}

/// Lines of one batch, by path; fewer where something is not visible yet.
async fn batch(
    parts: &Arc<Parts>,
    verified: &Verified,
    page: Vec<ImportFile>,
) -> Result<Vec<OutcomeLine>, Error> {
    let node_id = parts.identity.node_id;
    let (mut asked, mut lines): (Vec<Asked>, Vec<OutcomeLine>) = (Vec::new(), Vec::new());
    for ImportFile { entry, stage_no, refused } in page {
        if let Some((code, detail)) = refused {
            // What an operator can mend is not answered for good.
            if code != LANDING_BLOCKED {
                asked.push((Operation::Answer { bundle: 0, seq: entry.seq }, None));
            }
            lines.push(OutcomeLine {
                code: Some(code),
                detail: Some(detail),
                ..OutcomeLine::new(entry.path, entry.sha256, Outcome::Refused, 0)
            });
            continue;
        }
        let holder = stage_no.map(|stage_no| Holder { node_id, stage_no });
        asked.push((register(&entry, holder), Some((entry, holder.is_some()))));
    }
    if !asked.is_empty() {
        lines.extend(agree(parts, &verified.bundle, asked).await?);
    }
    lines.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(lines)
}
