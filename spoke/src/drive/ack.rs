//! Takes the hub's answers from a drive that came back: verified, stored, and only then applied.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use barque_bundle::fault::{self, Step};
use barque_bundle::open::ANSWER;
use barque_bundle::path::printable;
use barque_bundle::receipt::{Answers, Head, OutcomeReader, ReceiptError};
use barque_bundle::{BundleId, Header, HubId, Outcome, OutcomeLine, Timestamp, platform};
use serde::Serialize;

use super::{nothing_at, receipt_folder};
use crate::config::{SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::identity::Identity;
use crate::ledger::Ledger;
use crate::ledger::answers::is_for_the_hub;
use crate::lock::Lock;
use crate::scan::NAMED_MAX;

/// Largest `ack.json` that is read, in bytes.
const HEAD_MAX_BYTES: u64 = 1024 * 1024;
/// Bytes of stored outcomes that are read at once: each time from the start of their chain of pages.
const PIECE_BYTES: usize = 1024 * 1024;
/// Lines that are applied together.
const BATCH: usize = 2_000;

/// A file that waits for a person after an acknowledgement, or is still on its way.
#[derive(Clone, Debug, Serialize)]
pub struct AckedFile {
    pub path: String,
    pub outcome: Outcome,
    pub detail: Option<String>,
}

/// What one receipt came to.
#[derive(Clone, Debug, Serialize)]
pub struct Acked {
    pub path: PathBuf,
    pub bundle_id: BundleId,
    pub hub_id: HubId,
    pub label: Option<String>,
    pub imported_at: Timestamp,
    /// Files that became synced by it.
    pub synced: u64,
    /// Files that were synced, or decided, before.
    pub already: u64,
    pub conflict: u64,
    pub failed: u64,
    pub removed: u64,
    /// Files that the hub has not answered for good: they wait again.
    pub waiting: u64,
    /// At most 1,000 are named.
    pub files: Vec<AckedFile>,
}

/// A receipt that counts for nothing, and why.
#[derive(Clone, Debug, Serialize)]
pub struct AckFault {
    pub path: PathBuf,
    pub detail: String,
}

/// What a drive that came back said.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AckReport {
    pub receipts: Vec<Acked>,
    pub faults: Vec<AckFault>,
}

/// Takes the receipt of a bundle, of an archive (it lies beside it), or all of a drive.
pub fn ack(state: &StateFolder, edge: &Edge, path: &Path) -> Result<AckReport, Error> {
    ack_locked(state, edge, path).map_err(Error::explained)
}

fn ack_locked(state: &StateFolder, edge: &Edge, path: &Path) -> Result<AckReport, Error> {
    SpokeConfig::load(state)?;
    let identity = Identity::load(state)?
        .ok_or_else(|| Error::NotEnrolled(format!("{} holds no spoke", state.path().display())))?;
    let _lock = Lock::take(state, edge.now())?;
    let mut ledger = Ledger::open(&state.ledger())?;
    let (folders, is_one) = receipts_at(path)?;
    let mut report = AckReport::default();
    for folder in folders {
        match one(&mut ledger, &identity, edge, &folder) {
            Ok(acked) => report.receipts.push(acked),
            Err(e) if is_one || matches!(e, Error::Sqlite { .. }) => return Err(e),
            // On a drive of many spokes, only one's own count.
            Err(Error::Receipt(ReceiptError::OtherSubject("spoke_id"))) => {}
            // One that is damaged is no reason to pass over the others.
            Err(e) => {
                report.faults.push(AckFault { path: folder, detail: crate::error::chain(&e) });
            }
        }
    }
    if report.receipts.is_empty() && report.faults.is_empty() {
        let what = format!("no receipt for {} is on this drive", identity.spoke_id);
        return Err(nothing_at(path, &what));
    }
    ledger.tidy()?;
    Ok(report)
}

/// The folders with receipts that a path means; true when it names one.
fn receipts_at(path: &Path) -> Result<(Vec<PathBuf>, bool), Error> {
    let has_receipt = |folder: &Path| folder.join(ANSWER[0]).is_file();
    std::fs::metadata(path).map_err(Error::io("cannot read", path))?;
    let own = receipt_folder(path);
    if has_receipt(&own) {
        return Ok((vec![own], true));
    }
    let is_bundle = !path.is_dir() || path.join("manifest.json").exists();
    let not_yet = "it holds no receipt yet: the hub has not imported it, or could not write to the \
                   drive (then `barque hub import` was told --receipt-out, which wrote it elsewhere)";
    if is_bundle {
        return Err(nothing_at(path, not_yet));
    }
    let mut found = Vec::new();
    for item in std::fs::read_dir(path).map_err(Error::io("cannot read", path))? {
        let folder = item.map_err(Error::io("cannot read", path))?.path();
        if has_receipt(&folder) {
            found.push(folder);
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(nothing_at(path, not_yet)),
        false => Ok((found, false)),
    }
}

/// All of a small file on the drive.
fn small(path: &Path, max: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = platform::open_regular(path)
        .and_then(|file| file.take(max + 1).read_to_end(&mut bytes))
        .map_err(Error::io("cannot read", path))?;
    if read as u64 > max {
        let why = format!("it has more than {max} bytes");
        return Err(Error::Malformed { path: path.to_owned(), why });
    }
    Ok(bytes)
}

fn one(
    ledger: &mut Ledger,
    identity: &Identity,
    edge: &Edge,
    folder: &Path,
) -> Result<Acked, Error> {
    let [ack_name, sig_name, outcomes_name] = ANSWER;
    let (ack, sig) =
        (small(&folder.join(ack_name), HEAD_MAX_BYTES)?, small(&folder.join(sig_name), 64)?);
    let head = opened(identity, &ack, &sig)?;
    let Answers::Bundle(bundle_id) = head.answers else {
        return Err(ReceiptError::OtherSubject("answers").into());
    };
    let hub_id = head.hub_id;
    check_epoch(ledger, &head, bundle_id, edge)?;
    let path = folder.join(outcomes_name);
    let outcomes = platform::open_regular(&path).map_err(Error::io("cannot read", &path))?;
    let receipt_id = store(ledger, &head, (&ack, &sig), &outcomes)?;
    fault::after(Step::AckStored);
    let label = ledger.bundle(bundle_id)?.and_then(|b| b.label);
    let mut acked = Acked {
        path: folder.to_owned(),
        bundle_id,
        hub_id,
        label,
        imported_at: head.received_at,
        synced: 0,
        already: 0,
        conflict: 0,
        failed: 0,
        removed: 0,
        waiting: 0,
        files: Vec::new(),
    };
    let mut lines = OutcomeReader::new(BufReader::with_capacity(
        PIECE_BYTES,
        ledger.stored_outcomes(receipt_id)?,
    ));
    let mut batch = Vec::with_capacity(BATCH);
    while let Some(line) = lines.next_line(&head)? {
        batch.push(line);
        if batch.len() == BATCH {
            apply(ledger, &mut acked, receipt_id, &mut batch, edge)?;
            fault::after(Step::AckPart);
        }
    }
    apply(ledger, &mut acked, receipt_id, &mut batch, edge)?;
    drop(lines);
    fault::after(Step::AckApplied);
    // What the header told of numbers that never come, the hub has recorded with the import.
    let header = ledger.bundle_header(bundle_id)?;
    if let Some(header) = header.and_then(|h| Header::parse(&h).ok()) {
        ledger.mark_told(hub_id, header.series, &header.voids)?;
    }
    acked.waiting = ledger.acknowledge_bundle(hub_id, bundle_id, edge.now())?;
    acked.already = acked.already.saturating_sub(acked.waiting);
    ledger.raise_hub_time(hub_id, head.received_at)?;
    Ok(acked)
}

/// The head, verified for whichever hub of this spoke signed it.
fn opened(identity: &Identity, ack: &[u8], sig: &[u8]) -> Result<Head, Error> {
    let mut last = ReceiptError::OtherSubject("hub_id");
    for pin in &identity.hubs {
        match Head::open(ack, sig, &pin.roots, pin.hub_id, &identity.spoke_id) {
            Ok(head) => return Ok(head),
            Err(e) => last = e,
        }
    }
    Err(last.into())
}

/// A receipt of before the hub was restored says nothing of what the hub holds now; one of after
/// it, that everything has to be offered again.
fn check_epoch(
    ledger: &mut Ledger,
    head: &Head,
    bundle_id: BundleId,
    edge: &Edge,
) -> Result<(), Error> {
    let known = ledger.hub(head.hub_id)?.and_then(|h| h.hub_epoch);
    if known.is_some_and(|known| head.hub_epoch < known) {
        return Err(Error::Usage(format!(
            "the hub was restored after this receipt was made, and may not hold these files any \
             more; export them again: barque bundle revert {bundle_id}"
        )));
    }
    let fresh = barque_bundle::SeriesId::new(head.received_at, edge.id_bytes());
    if ledger.meet_epoch(head.hub_id, head.hub_epoch, fresh, edge.now())? {
        tracing::warn!(epoch = %head.hub_epoch, "the hub was restored or recovered; every file is offered again");
    }
    Ok(())
}

/// Stores the receipt before anything counts on it, and verifies what was stored.
fn store(
    ledger: &mut Ledger,
    head: &Head,
    (ack, sig): (&[u8], &[u8]),
    outcomes: &File,
) -> Result<i64, Error> {
    let len = outcomes.metadata().map_err(Error::io("cannot read", ANSWER[2]))?.len();
    let known = ledger.stored_receipt(head.hub_id, ack)?;
    let receipt_id = match known {
        Some(id) => id,
        None => ledger.begin_receipt(head.hub_id, head, (ack, sig), len)?,
    };
    let verify = |ledger: &Ledger| -> Result<(), Error> {
        let mut lines = OutcomeReader::new(BufReader::with_capacity(
            PIECE_BYTES,
            ledger.stored_outcomes(receipt_id)?,
        ));
        while lines.next_line(head)?.is_some() {}
        Ok(())
    };
    // One that was stored whole before is not written again.
    if known.is_some() && verify(ledger).is_ok() {
        return Ok(receipt_id);
    }
    let stored = ledger.fill_receipt(receipt_id, len, outcomes).and_then(|()| verify(ledger));
    if let Err(e) = stored {
        ledger.drop_receipt(receipt_id)?;
        return Err(e);
    }
    Ok(receipt_id)
}

fn apply(
    ledger: &mut Ledger,
    acked: &mut Acked,
    receipt_id: i64,
    batch: &mut Vec<OutcomeLine>,
    edge: &Edge,
) -> Result<(), Error> {
    let applied = ledger.apply_lines(acked.hub_id, receipt_id, batch, edge.now())?;
    for line in batch.iter().filter(|l| is_for_the_hub(l)) {
        if acked.files.len() < NAMED_MAX {
            let (path, detail) = (printable(line.path.as_str()), line.detail.clone());
            acked.files.push(AckedFile { path, outcome: line.outcome, detail });
        }
    }
    acked.already += (batch.len() - applied.len()) as u64;
    for line in applied {
        let count = match line.outcome {
            Outcome::Registered | Outcome::AlreadyPresent => &mut acked.synced,
            Outcome::Conflict => &mut acked.conflict,
            Outcome::Removed => &mut acked.removed,
            Outcome::Refused => &mut acked.failed,
            Outcome::Mismatch | Outcome::Withdrawn => continue,
        };
        *count += 1;
        if !line.outcome.is_held() && acked.files.len() < NAMED_MAX {
            let path = printable(line.path.as_str());
            acked.files.push(AckedFile { path, outcome: line.outcome, detail: line.detail });
        }
    }
    batch.clear();
    Ok(())
}
