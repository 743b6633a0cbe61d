//! What comes of a body goes three ways side by side: into the file, through the hash, and behind
//! the writing to the disk.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use barque_bundle::digest::Hasher;
use barque_bundle::platform;
use bytes::Bytes;

use super::{Held, Uploads, taken_over};
use crate::error::Error;
use crate::ledger::UploadRow;

/// Bytes between two syncs of a partial file. As many again may come while one is waited for.
const SYNC_EVERY_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes that the disk is given together meanwhile, so that a sync does not wait for all of them.
const WRITE_OUT_BYTES: u64 = 2 * 1024 * 1024;
/// How long an older request may still take what has arrived.
const LEAVE_WAIT: Duration = Duration::from_secs(2);
/// Pieces that are written and not hashed yet: a piece is 64 KiB at the most over HTTP/2, and what
/// was read at once over HTTP/1.
const TO_HASH_MAX: usize = 4;

/// Bytes in the order in which they come.
pub trait Pieces {
    /// The next bytes, none at the end; waits for them. A body that is silent or broken is an error,
    /// never an early end.
    fn next(&mut self) -> io::Result<Option<Bytes>>;
}

/// What a body came to.
pub(super) struct Taken {
    /// Over all bytes that are in the file now.
    pub(super) hasher: Hasher,
    /// Why it ended before its body did.
    pub(super) broken: Option<io::Error>,
}

impl Uploads {
    /// Writes a body behind the bytes that are there and hashes it; of what came it syncs and records
    /// all but the last part.
    pub(super) fn take_in(
        &self,
        file: &File,
        hasher: Hasher,
        (held, row): (&Held, &mut UploadRow),
        body: &mut impl Pieces,
        written: impl FnMut(u64),
    ) -> Result<Taken, Error> {
        let path = self.path(&row.key);
        let no_thread = || Error::io("cannot start a thread for", &path);
        let name = |name: &str| thread::Builder::new().name(name.to_owned());
        let (to_hash, pieces) = mpsc::sync_channel::<Bytes>(TO_HASH_MAX);
        // Nothing waits here: the next sync is asked for when the one before it is through.
        let (to_sync, lens) = mpsc::sync_channel::<u64>(0);
        let writer = Writer {
            file,
            len: hasher.len(),
            size_bytes: row.size_bytes,
            begun: hasher.len(),
            sync_asked: hasher.len(),
            to_hash,
            to_sync,
        };
        thread::scope(|scope| {
            let hash = move || {
                let mut hasher = hasher;
                pieces.iter().for_each(|piece| hasher.update(&piece));
                hasher
            };
            let sync = || lens.into_iter().try_for_each(|len| self.checkpoint(file, row, len));
            let hashing = name("upload-hash").spawn_scoped(scope, hash).map_err(no_thread())?;
            let syncing = name("upload-sync").spawn_scoped(scope, sync).map_err(no_thread())?;
            // It ends before its time only when a sync failed.
            let ended = writer.run(held, body, || !syncing.is_finished(), written);
            let hasher = hashing.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            let synced = syncing.join().unwrap_or_else(|p| std::panic::resume_unwind(p));
            let broken = match ended {
                Ok(broken) => broken,
                Err((what, e)) => {
                    if let Err(e) = synced {
                        tracing::error!(error = %e.told(), "a sync failed as well");
                    }
                    return Err(Error::io(what, &path)(e));
                }
            };
            synced.map(|()| Taken { hasher, broken })
        })
    }
}

/// Where the bytes go first; it ends both others when it is dropped.
struct Writer<'a> {
    file: &'a File,
    /// Bytes that are in the file.
    len: u64,
    /// Bytes that were declared.
    size_bytes: u64,
    /// How far the disk was given them.
    begun: u64,
    /// How far they are synced, or soon will be.
    sync_asked: u64,
    to_hash: mpsc::SyncSender<Bytes>,
    to_sync: mpsc::SyncSender<u64>,
}

impl Writer<'_> {
    /// Why the body ended before its end; what failed is a fault of this node.
    fn run(
        mut self,
        held: &Held,
        body: &mut impl Pieces,
        is_syncing: impl Fn() -> bool,
        mut written: impl FnMut(u64),
    ) -> Result<Option<io::Error>, (&'static str, io::Error)> {
        let mut leaving: Option<Instant> = None;
        loop {
            if !held.is_newest() {
                // What has arrived of an older request is still taken, but not for long.
                let since = leaving.get_or_insert_with(Instant::now);
                if since.elapsed() > LEAVE_WAIT {
                    return Ok(Some(taken_over()));
                }
            }
            let piece = match body.next() {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(None),
                Err(e) => return Ok(Some(e)),
            };
            let n = piece.len() as u64;
            if self.len + n > self.size_bytes {
                return Ok(Some(io::Error::other("the body goes beyond the declared size")));
            }
            self.piece(piece)?;
            // Nobody waits at an older request for more syncs than the last one.
            let goes_on = leaving.is_some() || self.ask_for_sync();
            if !goes_on || !is_syncing() {
                // The sync that failed says why.
                return Ok(None);
            }
            written(n);
        }
    }

    fn piece(&mut self, piece: Bytes) -> Result<(), (&'static str, io::Error)> {
        self.file.write_all(&piece).map_err(|e| ("cannot write", e))?;
        self.len += piece.len() as u64;
        let gone = |_| ("cannot hash", io::Error::from(io::ErrorKind::BrokenPipe));
        self.to_hash.send(piece).map_err(gone)?;
        if self.len - self.begun >= WRITE_OUT_BYTES {
            platform::begin_write_out(self.file, self.begun, self.len - self.begun)
                .map_err(|e| ("cannot write out", e))?;
            self.begun = self.len;
        }
        Ok(())
    }

    /// Where enough has come, has it synced when the sync before is through; false when that failed.
    fn ask_for_sync(&mut self) -> bool {
        if self.len - self.sync_asked < SYNC_EVERY_BYTES {
            return true;
        }
        self.sync_asked = self.len;
        self.to_sync.send(self.len).is_ok()
    }
}
