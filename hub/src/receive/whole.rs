//! One file that came in pieces, on the same way in as the members of a stream.

use std::path::Path;
use std::sync::Arc;

use barque_bundle::stream::Preamble;
use barque_bundle::wire::BundleLine;
use barque_bundle::{Entry, ErrorKind, Header, Sha256Digest, fault, platform};
use tokio::sync::mpsc;

use super::{Item, Settler, admit};
use crate::command::BundleRef;
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::landing::Seen;
use crate::ledger::UploadBundle;
use crate::registry::Caller;

/// What the hub says of a bundle of one before any of its bytes came.
pub enum Verdict {
    /// Its bytes are needed.
    Needed(Box<UploadBundle>),
    /// It is decided without them: the last line of an answer.
    Decided(BundleLine),
}

/// Judges a bundle of one: the caller's, for this hub, its entry the signed one.
pub async fn open(
    parts: &Arc<Parts>,
    caller: &Caller,
    header_bytes: Vec<u8>,
    sig: Vec<u8>,
    entry: Entry,
) -> Result<Verdict, Error> {
    let refuse = |e: barque_bundle::header::HeaderError| admit::refuse_stream(e.into());
    let header = Header::parse(&header_bytes).map_err(refuse)?;
    let entries_jsonl = barque_bundle::entry::to_jsonl(std::slice::from_ref(&entry));
    let preamble = Preamble { header, header_bytes, sig, entries_jsonl };
    admit::verify(parts, caller, &preamble)?;
    preamble
        .header
        .verify_entries(&preamble.entries_jsonl, std::slice::from_ref(&entry))
        .map_err(refuse)?;
    let entries_digest = preamble.header.entries_digest;
    let bundle = BundleRef::of(&preamble.header, preamble.header_bytes, preamble.sig, None);
    let upload = UploadBundle { bundle, entry, entries_digest };
    Ok(match decide(parts, &upload).await? {
        None => Verdict::Needed(Box::new(upload)),
        Some(line) => Verdict::Decided(line),
    })
}

/// The last line of the answer if the file needs no bytes.
pub async fn decide(
    parts: &Arc<Parts>,
    upload: &UploadBundle,
) -> Result<Option<BundleLine>, Error> {
    let (looking, asked) = (Arc::clone(parts), upload.entry.clone());
    let spoke = upload.bundle.spoke_id.clone();
    let decided = tokio::task::spawn_blocking(move || {
        admit::decided(&looking, &spoke, &asked, &mut Seen::default())
    })
    .await;
    match decided.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))? {
        None => Ok(None),
        Some(item) => settle(parts, upload.bundle.clone(), item).await.map(Some),
    }
}

/// Takes a file whose bytes are all at `path`: checks them, makes them durable, gets them agreed
/// on and shown; the last line of the answer. The file at `path` stays.
pub async fn finish(
    parts: &Arc<Parts>,
    upload: UploadBundle,
    path: &Path,
    found: (Sha256Digest, u64),
) -> Result<BundleLine, Error> {
    let UploadBundle { bundle, entry, .. } = upload;
    let (staging, from) = (Arc::clone(parts), path.to_owned());
    let item = tokio::task::spawn_blocking(move || -> Result<Item, Error> {
        if found != (entry.sha256, entry.size_bytes) {
            let detail = format!("the bytes that came have the digest {}", found.0);
            return Ok(admit::mismatch(&entry, detail));
        }
        let mut file =
            platform::open_regular(&from).map_err(Error::io("cannot read back", &from))?;
        if let Some(item) = admit::judge(&mut file, &from, &entry)? {
            return Ok(item);
        }
        staging.metrics.received(entry.size_bytes);
        let slot = staging.staging.adopt(&from)?;
        fault::after(fault::Step::Staged);
        Ok(Item::Staged { entry, slot })
    });
    let item = item.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))?;
    settle(parts, bundle, item).await
}

/// Whether the line settles the file for good, so that its upload may be forgotten.
pub fn is_final(line: &BundleLine) -> bool {
    match line {
        BundleLine::Done { stopped, receipt } => stopped.is_none() && !receipt.outcomes.is_empty(),
        _ => false,
    }
}

async fn settle(parts: &Arc<Parts>, bundle: BundleRef, item: Item) -> Result<BundleLine, Error> {
    let (out, mut lines) = mpsc::channel(4);
    let syncer = Arc::new(parts.staging.syncer()?);
    let parts = Arc::clone(parts);
    // Goes on by itself when the caller goes away.
    let settling = tokio::spawn(async move {
        let bundle = Arc::new(bundle);
        let mut settler = Settler { parts, bundle, syncer, lines: out, settled: Vec::new() };
        let stopped = settler.settle(vec![item]).await.err();
        settler.finish(stopped).await;
    });
    let mut last = None;
    while let Some(line) = lines.recv().await {
        last = Some(line);
    }
    let _ = settling.await;
    last.filter(|l| matches!(l, BundleLine::Done { .. })).ok_or_else(|| {
        Refusal::new(ErrorKind::Internal, "hub_fault", "the hub met a fault of its own").into()
    })
}
