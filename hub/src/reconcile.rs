//! Answers "which of these does the hub lack?" from the manifest alone: no stat, no hash.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use barque_bundle::receipt::{Answers, Draft, Wanted};
use barque_bundle::wire::{
    ConflictLine, KeptLine, RECONCILE_ENTRIES_MAX, ReconcileRequest, ReconcileResponse,
    RefusedLine, WireEntry,
};
use barque_bundle::{
    BundleId, ErrorKind, FilePath, LandedName, Outcome, OutcomeLine, Ranges, Receipt, SeriesId,
    Sha256Digest, SpokeId, Timestamp,
};
use rusqlite::Connection;

use crate::command::{CheckIn, Operation, OperationReply};
use crate::error::{Error, Refusal};
use crate::http::position;
use crate::hub::Parts;
use crate::ledger::{Ledger, UploadRow};
use crate::manifest::query::{self, FileState};
use crate::registry::Caller;

/// Files that one answer asks for again at the most.
const WANTED_MAX: u32 = 1000;

/// Ranges of void numbers in one request; a spoke states them merged.
const VOID_RANGES_MAX: usize = 10_000;
/// Bundles under way, and ranges of their numbers, in one request; a spoke states fewer.
const IN_TRANSIT_RANGES_MAX: usize = 40_000;
/// Characters of a spoke's version that are kept.
const VERSION_MAX: usize = 64;

/// What the manifest says of a page of entries.
#[derive(Default)]
struct Sorted {
    missing: Vec<String>,
    kept: Vec<KeptLine>,
    refused: Vec<RefusedLine>,
    /// Present, conflict and removed, as the receipt says them.
    lines: Vec<OutcomeLine>,
    answered: Vec<u64>,
    /// A number that was answered for another file.
    has_clash: bool,
}

/// The answer to a reconcile request whose body has this digest.
pub async fn reconcile(
    parts: &Arc<Parts>,
    caller: &Caller,
    request: ReconcileRequest,
    body_sha256: Sha256Digest,
) -> Result<ReconcileResponse, Error> {
    require_size(&request)?;
    position::reach(parts, request.seen_position).await;

    let spoke = caller.spoke_id.clone();
    let entries = request.entries;
    let mut report = request.status;
    report.version = report.version.chars().take(VERSION_MAX).collect();
    let series = request.series;
    let (ledger, now) = (parts.ledger.clone(), (parts.clock)());
    let sorted = parts
        .readers
        .read_async(move |c| {
            let kept = kept(&ledger, &spoke, &entries, now)?;
            let mut sorted = sort(c, &spoke, series, entries)?;
            let missing: HashSet<&str> = sorted.missing.iter().map(String::as_str).collect();
            sorted.kept = kept.into_iter().filter(|k| missing.contains(k.path.as_str())).collect();
            Ok(sorted)
        })
        .await?;
    let clash = sorted.has_clash;
    let check_in = Operation::CheckIn(CheckIn {
        spoke_id: caller.spoke_id.clone(),
        key_id: caller.key_id.clone(),
        series: request.series,
        seq_head: request.seq_head,
        // No spoke can have seen what is still to come, whatever its clock says.
        as_of: request.as_of.map(|t| t.min((parts.clock)())),
        voids: if clash { Ranges::default() } else { request.voids },
        replaces: request.replaces,
        answered: match clash {
            true => Ranges::default(),
            false => Ranges::from_numbers(sorted.answered.clone()),
        },
        report,
        in_transit: request.in_transit.clone(),
    });
    let replies = parts.proposer.operations(None, vec![check_in]).await?;
    let (seen, forked) = match replies.into_iter().next() {
        // Numbers that stand for other files here: as if higher ones had been seen.
        Some(OperationReply::CheckedIn { seen, forked, .. }) if clash => {
            (seen.max(request.seq_head.saturating_add(1)), forked)
        }
        Some(OperationReply::CheckedIn { seen, forked, .. }) => (seen, forked),
        _ => {
            return Err(Refusal::new(
                ErrorKind::Forbidden,
                "spoke_disabled",
                "this spoke or its key may not write to the hub any more",
            )
            .into());
        }
    };
    let forked = fork(caller, series, forked);
    let spoke = caller.spoke_id.clone();
    let under_way: Vec<_> = request.in_transit.iter().map(|b| b.bundle_id).collect();
    let (wanted, arrived, position) = parts
        .readers
        .read_async(move |c| {
            let wanted = query::wanted(c, &spoke, WANTED_MAX)?;
            let arrived = query::arrived(c, &spoke, under_way.into_iter())?;
            Ok((wanted, arrived, query::counter(c, "position")?))
        })
        .await?;
    let said = Said { wanted, arrived, seen, forked, position };
    Ok(answer(parts, caller, sorted, body_sha256, said))
}

/// The series that a caller's was replaced by although it is in use, which an operator hears of.
fn fork(caller: &Caller, series: SeriesId, newer: Option<String>) -> Option<SeriesId> {
    let newer = newer?.parse().ok()?;
    tracing::warn!(
        spoke = %caller.spoke_id,
        %series,
        %newer,
        "forked_series: two machines push with one state folder; give one of them an identity of \
         its own: barque enroll --new-identity"
    );
    Some(newer)
}

/// Refuses a page over the limits.
fn require_size(request: &ReconcileRequest) -> Result<(), Refusal> {
    if request.entries.len() > RECONCILE_ENTRIES_MAX {
        let detail = format!(
            "{} entries in one request; at most {RECONCILE_ENTRIES_MAX} are taken, send smaller pages",
            request.entries.len()
        );
        let refusal = Refusal::new(ErrorKind::TooLarge, "too_many_entries", detail);
        return Err(Refusal { max_entries: u32::try_from(RECONCILE_ENTRIES_MAX).ok(), ..refusal });
    }
    let ranges = request.in_transit.iter().map(|b| b.seqs.as_slice().len() + 1).sum::<usize>();
    if ranges > IN_TRANSIT_RANGES_MAX {
        let detail = format!("at most {IN_TRANSIT_RANGES_MAX} ranges of numbers may be under way");
        return Err(Refusal::new(ErrorKind::TooLarge, "too_many_in_transit", detail));
    }
    if request.voids.as_slice().len() > VOID_RANGES_MAX {
        let detail = format!("at most {VOID_RANGES_MAX} ranges of void numbers are taken at once");
        return Err(Refusal::new(ErrorKind::TooLarge, "too_many_voids", detail));
    }
    Ok(())
}

/// A part is touched again after so long, so that offering it keeps it.
const TOUCHED_AFTER_MS: i64 = 3_600_000;

/// Which of these this node has a part of; a few rows at the most.
fn kept(
    ledger: &Ledger,
    spoke: &SpokeId,
    entries: &[WireEntry],
    now: Timestamp,
) -> Result<Vec<KeptLine>, Error> {
    let parts: HashMap<(String, Sha256Digest), UploadRow> = ledger
        .uploads(Some(spoke))?
        .into_iter()
        .map(|r| ((r.key.path.to_string(), r.key.sha256), r))
        .collect();
    let (mut kept, mut old) = (Vec::new(), Vec::new());
    for e in entries.iter().filter(|_| !parts.is_empty()) {
        let Some(row) = parts.get(&(e.path.clone(), e.sha256)) else { continue };
        kept.push(KeptLine { path: e.path.clone(), offset: row.synced });
        if now.since_ms(row.touched_at) > TOUCHED_AFTER_MS {
            old.push(row.key.clone());
        }
    }
    if !old.is_empty() {
        ledger.touch_uploads(&old, now)?;
    }
    Ok(kept)
}

/// What an answer says beside the entries.
struct Said {
    wanted: Vec<Wanted>,
    arrived: Vec<BundleId>,
    seen: u64,
    forked: Option<SeriesId>,
    position: u64,
}

fn answer(
    parts: &Parts,
    caller: &Caller,
    sorted: Sorted,
    body_sha256: Sha256Digest,
    Said { wanted, arrived, seen, forked, position }: Said,
) -> ReconcileResponse {
    let hub_time = (parts.clock)();
    let hub_epoch = parts.epoch();
    let draft = Draft {
        answers: Answers::Reconcile(body_sha256),
        spoke_id: caller.spoke_id.clone(),
        hub_id: parts.identity.hub_id,
        hub_epoch,
        position,
        received_at: hub_time,
        wanted: wanted.clone(),
    };
    let of = |outcome| {
        sorted.lines.iter().filter(move |l| l.outcome == outcome).map(|l| l.path.to_string())
    };
    let conflicts = sorted
        .lines
        .iter()
        .filter_map(|l| {
            let their_sha256 = l.their_sha256?;
            Some(ConflictLine { path: l.path.to_string(), their_sha256 })
        })
        .collect();
    let (present, removed) =
        (of(Outcome::AlreadyPresent).collect(), of(Outcome::Removed).collect());
    let identity = &parts.identity;
    let receipt = Receipt::sign(draft, sorted.lines, identity.certificate.clone(), &identity.node);
    ReconcileResponse {
        missing: sorted.missing,
        present,
        conflicts,
        removed,
        refused: sorted.refused,
        kept: sorted.kept,
        wanted,
        arrived,
        seen,
        forked,
        hub_time,
        hub_epoch,
        position,
        receipt: receipt.to_wire(),
    }
}

/// Sorts a page by what the manifest says; one bad or repeated path never fails the page.
fn sort(
    c: &Connection,
    spoke: &SpokeId,
    series: SeriesId,
    entries: Vec<WireEntry>,
) -> Result<Sorted, Error> {
    let mut sorted = Sorted::default();
    let numbers = query::numbers(c, spoke, series, entries.iter().map(|e| e.seq))?;
    let mut seen = HashSet::with_capacity(entries.len());
    for entry in entries {
        let refuse = |code: &str, detail: String| RefusedLine {
            path: entry.path.clone(),
            code: code.to_owned(),
            detail,
        };
        let path: FilePath = match entry.path.parse() {
            Ok(path) => path,
            Err(e) => {
                let e: barque_bundle::path::PathError = e;
                sorted.answered.push(entry.seq);
                sorted.refused.push(refuse(e.code(), e.to_string()));
                continue;
            }
        };
        let landed = match LandedName::new(spoke, &path) {
            Ok(landed) => landed,
            Err(e) => {
                sorted.answered.push(entry.seq);
                sorted.refused.push(refuse(e.code(), e.to_string()));
                continue;
            }
        };
        if !seen.insert(path.clone()) {
            let detail = "the path stands twice in this request".to_owned();
            sorted.refused.push(refuse("path_twice", detail));
            continue;
        }
        let line = |outcome, copies| OutcomeLine::new(path.clone(), entry.sha256, outcome, copies);
        let row = query::lookup(c, landed.as_str())?;
        // A ledger that went back in time gives numbers out twice, and may have caught up since.
        sorted.has_clash |= match &row {
            None => numbers.is_answered(entry.seq),
            Some(row) => {
                let is_its_own = (row.series, row.seq) == (series, entry.seq);
                numbers.files(entry.seq) > u64::from(is_its_own)
            }
        };
        let Some(row) = row else {
            sorted.missing.push(entry.path);
            continue;
        };
        let line = match row.state {
            FileState::Removed => line(Outcome::Removed, 0),
            _ if row.sha256 != entry.sha256 => OutcomeLine {
                their_sha256: Some(row.sha256),
                detail: Some(row.story()),
                ..line(Outcome::Conflict, 0)
            },
            FileState::Held => line(Outcome::AlreadyPresent, row.copies),
            FileState::Lost | FileState::Replaced => {
                sorted.missing.push(entry.path);
                continue;
            }
        };
        sorted.lines.push(line);
        sorted.answered.push(entry.seq);
    }
    Ok(sorted)
}
