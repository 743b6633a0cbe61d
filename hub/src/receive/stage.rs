//! Reads a bundle stream and stages what the hub lacks, verifying before anything counts (V1).

use std::io::{Read, Seek as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use barque_bundle::stream::{Member, Preamble, Reader, STREAM_ENTRIES_MAX, StreamError};
use barque_bundle::{Entry, ErrorKind, LandedName, Outcome, OutcomeLine, door, fault, platform};
use tokio::sync::{mpsc, oneshot};

use super::Item;
use crate::command::BundleRef;
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::landing::Target;
use crate::manifest::query;
use crate::registry::Caller;

/// Bytes read at once.
const BUFFER_BYTES: usize = 256 * 1024;

pub(super) struct Stager {
    pub parts: Arc<Parts>,
    pub caller: Caller,
}

impl Stager {
    /// Stages the stream to its end or its first fault. `bundle` is sent once it is verified.
    pub(super) fn run(
        &self,
        source: impl Read,
        bundle: oneshot::Sender<BundleRef>,
        items: &mpsc::Sender<Item>,
    ) -> Result<(), Error> {
        let mut reader = Reader::new(source);
        let preamble = reader.preamble().map_err(refuse_stream)?;
        self.verify(&preamble)?;
        reader.expect_entries(&preamble).map_err(refuse_stream)?;
        let reserved = self.reserve(preamble.header.total_bytes)?;
        let verified = BundleRef {
            bundle_id: preamble.header.bundle_id,
            spoke_id: preamble.header.spoke_id.clone(),
            key_id: preamble.header.key_id.clone(),
            series: preamble.header.series,
            header: preamble.header_bytes,
            sig: preamble.sig,
        };
        if bundle.send(verified).is_err() {
            return Ok(());
        }
        let mut buffer = vec![0u8; BUFFER_BYTES];
        while let Some(member) = reader.next_member().map_err(refuse_stream)? {
            let item = match member {
                Member::Withdrawn(entry) => {
                    let line = OutcomeLine::new(entry.path, entry.sha256, Outcome::Withdrawn, 0);
                    Item::Decided { line, seq: None }
                }
                Member::File(entry) => self.file(&mut reader, entry, &reserved, &mut buffer)?,
            };
            // The settling side ended: it says why.
            if items.blocking_send(item).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn verify(&self, preamble: &Preamble) -> Result<(), Error> {
        let header = &preamble.header;
        self.caller.check_digest(header.entries_digest)?;
        if header.spoke_id != self.caller.spoke_id {
            let detail = format!(
                "the bundle is of {}, the token of {}",
                header.spoke_id, self.caller.spoke_id
            );
            return Err(Refusal::new(ErrorKind::Forbidden, "wrong_spoke", detail).into());
        }
        // The key that signed the token is live; a bundle may be signed by no other.
        let hub_id = self.parts.identity.hub_id;
        header
            .verify(&preamble.header_bytes, &preamble.sig, &self.caller.public_key, hub_id)
            .and_then(|()| match header.key_id == self.caller.key_id {
                true => Ok(()),
                false => Err(barque_bundle::header::HeaderError::BadSignature {
                    key_id: header.key_id.clone(),
                    source: barque_bundle::key::KeyError::BadSignature,
                }),
            })
            .map_err(|e| refuse_stream(e.into()))
    }

    /// Holds space for what the bundle announces until the stream is read, or refuses it.
    fn reserve(&self, needed: u64) -> Result<Reserved, Error> {
        let folder = self.parts.staging.folder();
        let wrap = || Error::io("cannot look at", folder);
        let free = platform::free_bytes(folder).map_err(wrap())?;
        let total = platform::total_bytes(folder).map_err(wrap())?;
        // A small file system keeps a twentieth.
        let kept = self.parts.config.reserve_bytes.min(total / 20);
        let left = AtomicU64::new(needed);
        let reserved = Reserved { parts: Arc::clone(&self.parts), left };
        let announced = self.parts.announced_bytes.fetch_add(needed, Ordering::SeqCst);
        if free >= needed.saturating_add(announced).saturating_add(kept) {
            return Ok(reserved);
        }
        tracing::error!(folder = %folder.display(), free, needed, announced, kept, "no space");
        Err(Refusal::new(
            ErrorKind::Full,
            "hub_full",
            format!(
                "the hub has {free} bytes free, needs {} and keeps {kept}; \
                 free space there, nothing was lost",
                needed.saturating_add(announced)
            ),
        )
        .into())
    }

    fn file(
        &self,
        reader: &mut Reader<impl Read>,
        entry: Entry,
        reserved: &Reserved,
        buffer: &mut [u8],
    ) -> Result<Item, Error> {
        let landed = match LandedName::new(&self.caller.spoke_id, &entry.path) {
            Ok(landed) => landed,
            Err(e) => return Ok(refused(&entry, e.code(), e.to_string())),
        };
        let row = self.parts.readers.read(|c| query::lookup(c, landed.as_str()))?;
        if row.is_some_and(|r| r.state != query::FileState::Lost) {
            reserved.release(entry.size_bytes);
            return Ok(Item::Known { entry });
        }
        let target = self
            .parts
            .landing
            .target(landed.as_str())
            .map_err(Error::io("cannot look at", self.parts.landing.path(landed.as_str())))?;
        match target {
            Target::Free => {}
            Target::Blocked(what) => {
                tracing::error!(path = %what, "something foreign stands in landing; move it away");
                return Ok(unanswered(
                    &entry,
                    "something on the hub stands where the file would land; an operator has to move it away",
                ));
            }
            Target::File => {
                // Another stream may have brought it since: then the manifest decides.
                if self.parts.readers.read(|c| query::lookup(c, landed.as_str()))?.is_some() {
                    return Ok(Item::Known { entry });
                }
                let there =
                    self.parts.landing.holds(landed.as_str(), &entry.sha256, entry.size_bytes);
                if !there
                    .map_err(Error::io("cannot read", self.parts.landing.path(landed.as_str())))?
                {
                    tracing::error!(path = %barque_bundle::path::printable(landed.as_str()), "a foreign file stands in landing; move it away");
                    return Ok(unanswered(
                        &entry,
                        "a file that the hub does not know stands where this one would land; an operator has to move it away",
                    ));
                }
            }
        }
        self.stage(reader, entry, reserved, buffer)
    }

    fn stage(
        &self,
        reader: &mut Reader<impl Read>,
        entry: Entry,
        reserved: &Reserved,
        buffer: &mut [u8],
    ) -> Result<Item, Error> {
        let mut incoming = self.parts.staging.begin()?;
        loop {
            match reader.read(buffer).map_err(refuse_stream)? {
                0 => break,
                n => {
                    let path = incoming.path().to_owned();
                    incoming.write(&buffer[..n]).map_err(Error::io("cannot write", path))?;
                    reserved.release(n as u64);
                }
            }
        }
        let (found, size) = incoming.digest();
        if (found, size) != (entry.sha256, entry.size_bytes) {
            let detail = format!("the bytes that came have the digest {found}");
            return Ok(mismatch(&entry, detail));
        }
        let path = incoming.path().to_owned();
        let judged =
            platform::open_regular(&path).map_err(door::DoorError::from).and_then(|mut file| {
                file.rewind()?;
                door::check(&mut file)
            });
        match judged {
            Ok(_) => {
                self.parts.metrics.received(size);
                fault::after(fault::Step::Staged);
                Ok(Item::Staged { entry, slot: incoming.into_slot() })
            }
            Err(door::DoorError::Io(source)) => {
                Err(Error::Io { what: "cannot read back", path, source })
            }
            Err(e) => Ok(refused(&entry, e.code(), e.to_string())),
        }
    }
}

/// Space that is spoken for and not written yet.
struct Reserved {
    parts: Arc<Parts>,
    left: AtomicU64,
}

impl Reserved {
    /// So much of it is on disk now, or will not come.
    fn release(&self, bytes: u64) {
        let before = self.left.load(Ordering::Relaxed);
        let released = bytes.min(before);
        self.left.store(before - released, Ordering::Relaxed);
        self.parts.announced_bytes.fetch_sub(released, Ordering::SeqCst);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}

fn refuse_stream(e: StreamError) -> Error {
    match &e {
        StreamError::TooManyEntries(_) => {
            let refusal = Refusal::new(e.kind(), e.code(), e.to_string());
            let max = usize::try_from(STREAM_ENTRIES_MAX).ok();
            Refusal { max_entries: max, ..refusal }.into()
        }
        StreamError::Io(source) => {
            let detail = format!("the stream broke off: {source}");
            Refusal::new(e.kind(), e.code(), detail).into()
        }
        _ => Refusal::new(e.kind(), e.code(), crate::error::chain(&e)).into(),
    }
}

/// A rule of the hub says no, for good.
fn refused(entry: &Entry, code: &str, detail: String) -> Item {
    let line = OutcomeLine {
        code: Some(code.to_owned()),
        detail: Some(detail),
        ..OutcomeLine::new(entry.path.clone(), entry.sha256, Outcome::Refused, 0)
    };
    Item::Decided { line, seq: Some(entry.seq) }
}

fn mismatch(entry: &Entry, detail: String) -> Item {
    let line = OutcomeLine {
        detail: Some(detail),
        ..OutcomeLine::new(entry.path.clone(), entry.sha256, Outcome::Mismatch, 0)
    };
    Item::Decided { line, seq: None }
}

/// Refused now, and its number stays open: an operator of the hub has to act first.
fn unanswered(entry: &Entry, detail: &str) -> Item {
    match refused(entry, "landing_blocked", detail.to_owned()) {
        Item::Decided { line, .. } => Item::Decided { line, seq: None },
        other => other,
    }
}
