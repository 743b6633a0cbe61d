//! Reads a bundle stream and stages what the hub lacks, verifying before anything counts (V1).

use std::io::Read;
use std::sync::Arc;

use barque_bundle::stream::{Member, Reader};
use barque_bundle::{Entry, Outcome, OutcomeLine, fault};
use tokio::sync::{mpsc, oneshot};

use super::Item;
use super::admit::{self, Reserved, mismatch, refuse_stream};
use crate::command::BundleRef;
use crate::error::Error;
use crate::hub::Parts;
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
        reader.expect_entries(&preamble).map_err(refuse_stream)?;
        let reserved =
            Reserved::take(&self.parts, &preamble.header.spoke_id, preamble.header.total_bytes)?;
        let verified = BundleRef::of(&preamble.header, preamble.header_bytes, preamble.sig, None);
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

    fn file(
        &self,
        reader: &mut Reader<impl Read>,
        entry: Entry,
        reserved: &Reserved,
        buffer: &mut [u8],
    ) -> Result<Item, Error> {
        match admit::decided(&self.parts, &self.caller.spoke_id, &entry)? {
            Some(item) => {
                reserved.release(entry.size_bytes);
                Ok(item)
            }
            None => self.stage(reader, entry, reserved, buffer),
        }
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
            match reader.read(buffer) {
                Err(e) => {
                    self.keep(&entry, incoming);
                    return Err(refuse_stream(e));
                }
                Ok(0) => break,
                Ok(n) => {
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
        if let Some(item) = admit::judge(&path, &entry)? {
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
