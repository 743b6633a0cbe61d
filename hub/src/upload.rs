//! Files that arrive in pieces: bytes are kept as they come, and go on where they ended.
//!
//! Keyed by spoke, path and digest, so that a file is never spliced with another version. What
//! counts as kept is what was synced; a restart cuts a partial file back to that, and a failed
//! sync takes everything since the one before with it. A newer request ends an older one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use barque_bundle::digest::Hasher;
use barque_bundle::{Entry, ErrorKind, Sha256Digest, SpokeId, platform};
use tokio::sync::{Mutex as Seat, OwnedMutexGuard};

use crate::error::{Error, Refusal};
use crate::hub::Clock;
use crate::ledger::{Ledger, UploadKey, UploadRow};

/// Smallest member of a cut stream whose bytes are kept.
pub const KEPT_BYTES_MIN: u64 = 64 * 1024;
/// Files of one spoke that may be under way in pieces.
pub const UPLOADS_A_SPOKE_MAX: usize = 256;
/// How long a partial file is kept after its last byte.
const KEPT_FOR_MS: i64 = 72 * 3_600_000;
/// Bytes between two syncs of a partial file.
const SYNC_EVERY_BYTES: u64 = 16 * 1024 * 1024;
/// How long an older request may take to end.
const OLDER_WAIT: Duration = Duration::from_secs(15);
const BUFFER_BYTES: usize = 256 * 1024;
const ENDING: &str = ".partial";

/// All partial files of this node.
pub struct Uploads {
    folder: PathBuf,
    ledger: Ledger,
    clock: Clock,
    open: Mutex<HashMap<UploadKey, Arc<Turn>>>,
}

/// Whose turn it is at one upload.
struct Turn {
    /// Raised by each request; one that sees a higher number than its own ends.
    newest: AtomicU64,
    seat: Arc<Seat<Warm>>,
}

/// What is known of the bytes on disk without reading them again; none after a start.
#[derive(Default)]
struct Warm(Option<Hasher>);

/// A request's hold on an upload, until it is dropped.
pub struct Held {
    turn: Arc<Turn>,
    number: u64,
    warm: OwnedMutexGuard<Warm>,
}

impl Held {
    fn is_newest(&self) -> bool {
        self.turn.newest.load(Ordering::SeqCst) == self.number
    }
}

/// How far a piece came.
pub struct Appended {
    pub offset: u64,
    /// Why it ended before its body did.
    pub broken: Option<io::Error>,
}

impl Uploads {
    pub fn new(folder: &Path, ledger: Ledger, clock: Clock) -> Self {
        Self { folder: folder.to_owned(), ledger, clock, open: Mutex::default() }
    }

    /// Where the bytes lie: a name of one length, whatever the path is.
    pub fn path(&self, key: &UploadKey) -> PathBuf {
        let mut hasher = Hasher::new();
        for part in [key.spoke_id.as_str(), key.path.as_str(), &key.sha256.to_string()] {
            hasher.update_lp(part.as_bytes());
        }
        self.folder.join(format!("{}{ENDING}", hasher.finish()))
    }

    /// Ends older requests for this upload and takes their place.
    pub async fn hold(&self, key: &UploadKey) -> Result<Held, Refusal> {
        let turn = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            // Turns that nobody holds and that remember nothing are forgotten.
            open.retain(|_, t| Arc::strong_count(t) > 1 || is_warm(t));
            Arc::clone(open.entry(key.clone()).or_insert_with(|| {
                Arc::new(Turn { newest: AtomicU64::new(0), seat: Arc::default() })
            }))
        };
        let number = turn.newest.fetch_add(1, Ordering::SeqCst) + 1;
        let seat = Arc::clone(&turn.seat).lock_owned();
        match tokio::time::timeout(OLDER_WAIT, seat).await {
            Ok(warm) => Ok(Held { turn, number, warm }),
            Err(_) => Err(Refusal::new(
                ErrorKind::Unavailable,
                "upload_busy",
                "an older request for this upload does not end; try again",
            )),
        }
    }

    /// Whether another upload of this spoke may begin.
    pub fn require_room(&self, spoke: &SpokeId) -> Result<(), Error> {
        if self.ledger.uploads(Some(spoke))?.len() < UPLOADS_A_SPOKE_MAX {
            return Ok(());
        }
        let detail =
            format!("{UPLOADS_A_SPOKE_MAX} uploads of this spoke are open; end some first");
        Err(Refusal::new(ErrorKind::Throttled, "too_many_uploads", detail).into())
    }

    /// Appends a body at `offset`, which must be where the bytes end; runs on a blocking thread.
    ///
    /// What came is synced and recorded also when the body breaks off.
    pub fn append(
        &self,
        held: &mut Held,
        row: &mut UploadRow,
        offset: u64,
        body: &mut impl Read,
    ) -> Result<Appended, Error> {
        let path = self.path(&row.key);
        let failed = |what| Error::io(what, &path);
        let (mut file, mut hasher) = self.open_at_end(held, row)?;
        if offset != hasher.len() {
            held.warm.0 = Some(hasher);
            return Err(offset_refusal(row.synced));
        }
        let mut buffer = vec![0u8; BUFFER_BYTES];
        let broken = loop {
            if !held.is_newest() {
                break Some(io::Error::other("a newer request took over"));
            }
            let n = match body.read(&mut buffer) {
                Ok(0) => break None,
                Ok(n) => n,
                Err(e) => break Some(e),
            };
            if hasher.len() + n as u64 > row.size_bytes {
                break Some(io::Error::other("the body goes beyond the declared size"));
            }
            file.write_all(&buffer[..n]).map_err(failed("cannot write"))?;
            hasher.update(&buffer[..n]);
            if hasher.len() - row.synced >= SYNC_EVERY_BYTES {
                self.checkpoint(&file, row, hasher.len())?;
            }
        };
        self.checkpoint(&file, row, hasher.len())?;
        held.warm.0 = Some(hasher);
        Ok(Appended { offset: row.synced, broken })
    }

    /// The digest of what is there; reads it again after a start.
    pub fn digest(&self, held: &mut Held, row: &UploadRow) -> Result<(Sha256Digest, u64), Error> {
        let (_, hasher) = self.open_at_end(held, row)?;
        let found = (hasher.finish(), hasher.len());
        held.warm.0 = Some(hasher);
        Ok(found)
    }

    /// Opens the file, cut back to what was synced, and the hash of that.
    fn open_at_end(&self, held: &mut Held, row: &UploadRow) -> Result<(File, Hasher), Error> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = self.path(&row.key);
        let mut open = || -> io::Result<(File, Hasher)> {
            // A whole file may have a second name that readers see: it is not written to any more.
            let mut file = if row.synced == row.size_bytes && row.size_bytes > 0 {
                File::open(&path)?
            } else {
                let mut options = File::options();
                options.create(true).truncate(false).read(true).write(true).mode(0o600);
                let file = options.open(&path)?;
                file.set_len(row.synced)?;
                file
            };
            let hasher = match held.warm.0.take() {
                Some(hasher) if hasher.len() == row.synced => hasher,
                _ => hash(&mut file, row.synced)?,
            };
            file.seek(SeekFrom::Start(row.synced))?;
            Ok((file, hasher))
        };
        open().map_err(Error::io("cannot open", &path))
    }

    /// Records only what is synced. A sync that fails condemns what it covered: the row stays as
    /// it was, and the next opening cuts the file back to it.
    fn checkpoint(&self, file: &File, row: &mut UploadRow, offset: u64) -> Result<(), Error> {
        if offset == row.synced {
            return Ok(());
        }
        let path = self.path(&row.key);
        platform::sync(file).map_err(Error::io("cannot sync", &path))?;
        if row.synced == 0 {
            platform::sync_folder(&self.folder).map_err(Error::io("cannot sync", &self.folder))?;
        }
        row.synced = offset;
        row.touched_at = (self.clock)();
        self.ledger.put_upload(row)
    }

    /// Keeps what a cut stream brought of a file, unless more of it is kept already.
    pub fn keep(
        &self,
        spoke: &SpokeId,
        entry: &Entry,
        staged: &Path,
        len: u64,
    ) -> Result<(), Error> {
        let key =
            UploadKey { spoke_id: spoke.clone(), path: entry.path.clone(), sha256: entry.sha256 };
        let known = self.ledger.upload(&key)?;
        let is_open = self.open.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&key);
        if is_open || known.as_ref().is_some_and(|k| k.synced >= len) {
            return Ok(());
        }
        if known.is_none() {
            self.require_room(spoke)?;
        }
        let path = self.path(&key);
        let keep = || {
            platform::sync(&File::open(staged)?)?;
            std::fs::rename(staged, &path)?;
            platform::sync_folder(&self.folder)
        };
        keep().map_err(Error::io("cannot keep", &path))?;
        self.ledger.put_upload(&UploadRow {
            key,
            size_bytes: entry.size_bytes,
            synced: len,
            bundle: None,
            touched_at: (self.clock)(),
        })
    }

    /// Forgets an upload and its bytes.
    pub fn forget(&self, key: &UploadKey) -> Result<(), Error> {
        let path = self.path(key);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", path)(e));
            }
            _ => {}
        }
        self.ledger.remove_upload(key)
    }

    /// Removes partial files that no row knows, and rows whose file is shorter than they say.
    /// Only before the first request is taken.
    pub fn clean_up(&self) -> Result<(), Error> {
        let rows = self.ledger.uploads(None)?;
        let known: Vec<PathBuf> = rows.iter().map(|r| self.path(&r.key)).collect();
        let list = || Error::io("cannot list", &self.folder);
        for item in std::fs::read_dir(&self.folder).map_err(list())? {
            let path = item.map_err(list())?.path();
            let is_partial = path.to_str().is_some_and(|p| p.ends_with(ENDING));
            if is_partial && !known.contains(&path) {
                std::fs::remove_file(&path).map_err(Error::io("cannot remove", path))?;
            }
        }
        for (row, path) in rows.iter().zip(known) {
            let len = std::fs::metadata(&path).map_or(0, |m| m.len());
            if len < row.synced || row.synced == 0 {
                self.forget(&row.key)?;
            }
        }
        Ok(())
    }

    /// Forgets uploads that nobody went on with for three days, or whose file has landed.
    pub fn sweep(
        &self,
        has_landed: impl Fn(&UploadKey) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let now = (self.clock)();
        for row in self.ledger.uploads(None)? {
            let is_open = {
                let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
                open.get(&row.key).is_some_and(|t| t.seat.try_lock().is_err())
            };
            let is_old = now.since_ms(row.touched_at) > KEPT_FOR_MS;
            if !is_open && (is_old || has_landed(&row.key)?) {
                self.forget(&row.key)?;
            }
        }
        Ok(())
    }
}

fn is_warm(turn: &Turn) -> bool {
    turn.seat.try_lock().map_or(true, |warm| warm.0.is_some())
}

/// The hash of the first `len` bytes.
fn hash(file: &mut File, len: u64) -> io::Result<Hasher> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = Hasher::new();
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let mut left = file.take(len);
    loop {
        match left.read(&mut buffer)? {
            0 if hasher.len() == len => return Ok(hasher),
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// The body does not begin where the bytes end.
fn offset_refusal(offset: u64) -> Error {
    let detail = format!("{offset} bytes are here; go on from there");
    let refusal = Refusal::new(ErrorKind::Conflict, "offset_mismatch", detail);
    Refusal { upload_offset: Some(offset), ..refusal }.into()
}

#[cfg(test)]
mod tests;
