//! What is refused or decided before bytes are taken, the same for streams and uploads in pieces.

use std::collections::HashSet;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;

use barque_bundle::archive::ArchiveError;
use barque_bundle::receipt::LANDING_BLOCKED;
use barque_bundle::stream::{Preamble, STREAM_ENTRIES_MAX, StreamError};
use barque_bundle::{
    ByteSize, Entry, ErrorKind, FilePath, LandedName, Outcome, OutcomeLine, SpokeId, door, platform,
};

use super::Item;
use crate::error::{Error, Refusal};
use crate::gate::Announced;
use crate::hub::Parts;
use crate::landing::{Seen, Target};
use crate::manifest::query;
use crate::registry::Caller;

/// Holds when the bundle is the caller's own, for this hub, and the one its token is for.
pub(super) fn verify(parts: &Parts, caller: &Caller, preamble: &Preamble) -> Result<(), Error> {
    let header = &preamble.header;
    caller.check_digest(header.entries_digest)?;
    if header.spoke_id != caller.spoke_id {
        let detail =
            format!("the bundle is of {}, the token of {}", header.spoke_id, caller.spoke_id);
        return Err(Refusal::new(ErrorKind::Forbidden, "wrong_spoke", detail).into());
    }
    // The key that signed the token is live; a bundle may be signed by no other.
    let hub_id = parts.identity.hub_id;
    header
        .verify(&preamble.header_bytes, &preamble.sig, &caller.public_key, hub_id)
        .and_then(|()| match header.key_id == caller.key_id {
            true => Ok(()),
            false => Err(barque_bundle::header::HeaderError::BadSignature {
                key_id: header.key_id.clone(),
                source: barque_bundle::key::KeyError::BadSignature,
            }),
        })
        .map_err(|e| refuse_stream(e.into()))
}

/// What becomes of a file without its bytes; none when they are needed.
pub(crate) fn decided(
    parts: &Parts,
    spoke: &SpokeId,
    entry: &Entry,
    seen: &mut Seen,
) -> Result<Option<Item>, Error> {
    match known(parts, spoke, std::slice::from_ref(entry))?.is_empty() {
        true => decided_unknown(parts, spoke, entry, seen),
        false => Ok(Some(Item::Known { entry: entry.clone() })),
    }
}

/// Those of a list that the manifest knows at one moment, and that are not lost.
pub(super) fn known(
    parts: &Parts,
    spoke: &SpokeId,
    entries: &[Entry],
) -> Result<HashSet<FilePath>, Error> {
    parts.readers.read(|c| {
        let mut known = HashSet::new();
        for entry in entries {
            let Ok(landed) = LandedName::new(spoke, &entry.path) else { continue };
            let row = query::lookup(c, landed.as_str())?;
            if row.is_some_and(|r| r.state != query::FileState::Lost) {
                known.insert(entry.path.clone());
            }
        }
        Ok(known)
    })
}

/// [`decided`], for a file that the manifest did not know a moment ago.
pub(super) fn decided_unknown(
    parts: &Parts,
    spoke: &SpokeId,
    entry: &Entry,
    seen: &mut Seen,
) -> Result<Option<Item>, Error> {
    let landed = match LandedName::new(spoke, &entry.path) {
        Ok(landed) => landed,
        Err(e) => return Ok(Some(refused(entry, e.code(), e.to_string()))),
    };
    let target = parts
        .landing
        .target(landed.as_str(), seen)
        .map_err(Error::io("cannot look at", parts.landing.path(landed.as_str())))?;
    match target {
        Target::Free => {}
        Target::Blocked(what) => {
            tracing::error!(path = %what, "something foreign stands in landing; move it away");
            return Ok(Some(unanswered(
                entry,
                "something on the hub stands where the file would land; an operator has to move it away",
            )));
        }
        Target::File => {
            // Another stream may have brought it since: then the manifest decides.
            if parts.readers.read(|c| query::lookup(c, landed.as_str()))?.is_some() {
                return Ok(Some(Item::Known { entry: entry.clone() }));
            }
            let there = parts.landing.holds(landed.as_str(), &entry.sha256, entry.size_bytes);
            if !there.map_err(Error::io("cannot read", parts.landing.path(landed.as_str())))? {
                tracing::error!(path = %barque_bundle::path::printable(landed.as_str()), "a foreign file stands in landing; move it away");
                return Ok(Some(unanswered(
                    entry,
                    "a file that the hub does not know stands where this one would land; an operator has to move it away",
                )));
            }
        }
    }
    Ok(None)
}

/// The door rule on the bytes of a whole file, as they are in memory or at `path`: why it is
/// refused, if it is.
pub(crate) fn judge(
    bytes: &mut (impl Read + Seek),
    path: &Path,
    entry: &Entry,
) -> Result<Option<Item>, Error> {
    match door::check(bytes) {
        Ok(_) => Ok(None),
        Err(door::DoorError::Io(source)) => {
            Err(Error::Io { what: "cannot read back", path: path.to_owned(), source })
        }
        Err(e) => Ok(Some(refused(entry, e.code(), e.to_string()))),
    }
}

/// Space that is spoken for and not written yet.
pub(crate) struct Reserved(Announced);

impl Reserved {
    /// Holds space for what is announced until it is read, or refuses it.
    pub(crate) fn take(parts: &Arc<Parts>, spoke: &SpokeId, needed: u64) -> Result<Self, Error> {
        // Before a body is taken: its rows could not be written afterwards.
        crate::propose::require_writable(&parts.config.data)?;
        let folder = parts.staging.folder();
        let wrap = || Error::io("cannot look at", folder);
        let free = platform::free_bytes(folder).map_err(wrap())?;
        let total = platform::total_bytes(folder).map_err(wrap())?;
        // A small file system keeps a twentieth.
        let kept = parts.config.reserve_bytes.min(total / 20);
        // This one's bytes are among all that are announced.
        let (of_this, announced) = parts.gate.announce(spoke, needed)?;
        let reserved = Self(of_this);
        if free >= announced.saturating_add(kept) {
            return Ok(reserved);
        }
        tracing::error!(folder = %folder.display(), free, needed, announced, kept, "no space");
        Err(Refusal::new(
            ErrorKind::Full,
            "hub_full",
            format!(
                "the hub's disk is full: {} has {} free, {} are needed (with what is under way) and \
                 {} stay free; its operator has to make room there, nothing was lost",
                folder.display(),
                ByteSize(free),
                ByteSize(announced),
                ByteSize(kept)
            ),
        )
        .into())
    }

    /// So much of it is on disk now, or will not come.
    pub(crate) fn release(&self, bytes: u64) {
        self.0.release(bytes);
    }
}

pub(super) fn refuse_stream(e: StreamError) -> Error {
    match &e {
        StreamError::TooManyEntries(_) => {
            let refusal = Refusal::new(e.kind(), e.code(), e.to_string());
            let max = u32::try_from(STREAM_ENTRIES_MAX).ok();
            Refusal { max_entries: max, ..refusal }.into()
        }
        StreamError::Archive(ArchiveError::Io(source)) => {
            let detail = format!("the stream broke off: {source}");
            Refusal::new(e.kind(), e.code(), detail).into()
        }
        // A connection that ended.
        StreamError::Archive(ArchiveError::EndsEarly { .. }) => {
            let detail = format!("the stream broke off: {e}");
            Refusal::new(ErrorKind::Unavailable, "stream_unreadable", detail).into()
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

pub(super) fn mismatch(entry: &Entry, detail: String) -> Item {
    let line = OutcomeLine {
        detail: Some(detail),
        ..OutcomeLine::new(entry.path.clone(), entry.sha256, Outcome::Mismatch, 0)
    };
    Item::Decided { line, seq: None }
}

/// Refused now, and its number stays open: an operator of the hub has to act first.
fn unanswered(entry: &Entry, detail: &str) -> Item {
    match refused(entry, LANDING_BLOCKED, detail.to_owned()) {
        Item::Decided { line, .. } => Item::Decided { line, seq: None },
        other => other,
    }
}
