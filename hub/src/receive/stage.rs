//! Reads a bundle stream and stages what the hub lacks, verifying before anything counts (V1).

use std::collections::HashSet;
use std::io::{Cursor, Read};
use std::sync::Arc;

use barque_bundle::stream::{Member, Reader, StreamError};
use barque_bundle::{Entry, FilePath, Outcome, OutcomeLine, fault};
use tokio::sync::{mpsc, oneshot};

use super::Item;
use super::admit::{self, Reserved, mismatch, refuse_stream};
use crate::command::BundleRef;
use crate::error::Error;
use crate::hub::Parts;
use crate::landing::Seen;
use crate::registry::Caller;
use crate::staging::Incoming;
use crate::upload::KEPT_BYTES_MIN;

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
        admit::verify(&self.parts, &self.caller, &preamble)?;
        let entries = reader.expect_entries(&preamble).map_err(refuse_stream)?;
        let reserved =
            Reserved::take(&self.parts, &preamble.header.spoke_id, preamble.header.total_bytes)?;
        let verified = BundleRef::of(&preamble.header, preamble.header_bytes, preamble.sig, None);
        if bundle.send(verified).is_err() {
            return Ok(());
        }
        let known = admit::known(&self.parts, &self.caller.spoke_id, &entries)?;
        drop(entries);
        let (buffer, seen) = (vec![0u8; BUFFER_BYTES], Seen::default());
        let mut desk = Desk { reserved, known, buffer, seen };
        while let Some(member) = reader.next_member().map_err(refuse_stream)? {
            let item = match member {
                Member::Withdrawn(entry) => {
                    let line = OutcomeLine::new(entry.path, entry.sha256, Outcome::Withdrawn, 0);
                    Item::Decided { line, seq: None }
                }
                Member::File(entry) => self.file(&mut reader, entry, &mut desk)?,
            };
            // The settling side ended: it says why.
            if items.blocking_send(item).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn file(
        &self,
        reader: &mut Reader<impl Read>,
        entry: Entry,
        desk: &mut Desk,
    ) -> Result<Item, Error> {
        let spoke = &self.caller.spoke_id;
        let decided = match desk.known.contains(&entry.path) {
            true => Some(Item::Known { entry: entry.clone() }),
            false => admit::decided_unknown(&self.parts, spoke, &entry, &mut desk.seen)?,
        };
        match decided {
            Some(item) => {
                desk.reserved.release(entry.size_bytes);
                Ok(item)
            }
            None => self.stage(reader, entry, desk),
        }
    }

    fn stage(
        &self,
        reader: &mut Reader<impl Read>,
        entry: Entry,
        desk: &mut Desk,
    ) -> Result<Item, Error> {
        let mut incoming = self.parts.staging.begin()?;
        let path = incoming.path().to_owned();
        let mut in_memory;
        loop {
            let (n, fault) = fill(reader, &mut desk.buffer);
            incoming.write(&desk.buffer[..n]).map_err(Error::io("cannot write", &path))?;
            desk.reserved.release(n as u64);
            if let Some(fault) = fault {
                self.keep(&entry, incoming);
                return Err(refuse_stream(fault));
            }
            in_memory = &desk.buffer[..n];
            if n < desk.buffer.len() {
                break;
            }
        }
        let (found, size) = incoming.digest();
        if (found, size) != (entry.sha256, entry.size_bytes) {
            let detail = format!("the bytes that came have the digest {found}");
            return Ok(mismatch(&entry, detail));
        }
        let refused = match in_memory.len() as u64 == size {
            true => admit::judge(&mut Cursor::new(in_memory), &path, &entry)?,
            false => admit::judge(&mut incoming.file(), &path, &entry)?,
        };
        if let Some(item) = refused {
            return Ok(item);
        }
        self.parts.metrics.received(size);
        fault::after(fault::Step::Staged);
        Ok(Item::Staged { entry, slot: incoming.into_slot() })
    }

    /// What a cut stream brought of a larger file is kept, so that only the rest comes again.
    fn keep(&self, entry: &Entry, incoming: Incoming) {
        let (_, len) = incoming.digest();
        if len < KEPT_BYTES_MIN {
            return;
        }
        let spoke = &self.caller.spoke_id;
        if let Err(e) = self.parts.uploads.keep(spoke, entry, incoming.path(), len) {
            tracing::warn!(error = %e.told(), "a part of a file is not kept");
        }
    }
}

/// What one stream is staged with.
struct Desk {
    reserved: Reserved,
    /// What the manifest knew when the stream began.
    known: HashSet<FilePath>,
    buffer: Vec<u8>,
    seen: Seen,
}

/// Bytes of a member until the buffer is full, the member ends or the stream breaks.
fn fill(reader: &mut Reader<impl Read>, buffer: &mut [u8]) -> (usize, Option<StreamError>) {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) => return (filled, Some(e)),
        }
    }
    (filled, None)
}
