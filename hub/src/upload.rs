//! Files that arrive in pieces: bytes are kept as they come, and go on where they ended.
//!
//! Keyed by spoke, path and digest, so that a file is never spliced with another version. What
//! counts as kept is what was synced; a restart cuts a partial file back to that, and a failed
//! sync takes everything since the one before with it. A newer request ends an older one.

mod flow;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use barque_bundle::digest::Hasher;
use barque_bundle::{ByteSize, Entry, ErrorKind, FilePath, Sha256Digest, SpokeId, platform};
use tokio::sync::{Mutex as Seat, OwnedMutexGuard, watch};

use crate::error::{Error, Refusal};
use crate::hub::Clock;
use crate::ledger::{Ledger, UploadKey, UploadRow};

pub use flow::Pieces;
use flow::Taken;

/// Smallest member of a cut stream whose bytes are kept.
pub const KEPT_BYTES_MIN: u64 = 64 * 1024;
/// Files of one spoke that may be under way in pieces.
pub const UPLOADS_A_SPOKE_MAX: usize = 256;
/// How long a partial file is kept after its last byte.
const KEPT_FOR_MS: i64 = 72 * 3_600_000;
/// How long an older request may take to end.
const OLDER_WAIT: Duration = Duration::from_secs(15);
/// Uploads whose hash is remembered.
const TURNS_MAX: usize = 1_024;
const BUFFER_BYTES: usize = 256 * 1024;
const ENDING: &str = ".partial";

/// All partial files of this node.
pub struct Uploads {
    folder: PathBuf,
    ledger: Ledger,
    clock: Clock,
    kept_bytes_max: u64,
    turns: Mutex<HashMap<UploadKey, Arc<Turn>>>,
}

/// Whose turn it is at one upload. Nothing touches its file or row without the seat.
struct Turn {
    /// Raised by each request; one that sees a higher number than its own ends.
    newest: watch::Sender<u64>,
    seat: Arc<Seat<Option<Warm>>>,
}

/// The hash of what lies in a file, as long as it is that very file.
struct Warm {
    hasher: Hasher,
    file: (u64, u64),
}

/// The seat at an upload, until it is dropped.
pub struct Held {
    turn: Arc<Turn>,
    number: u64,
    warm: OwnedMutexGuard<Option<Warm>>,
}

impl Held {
    fn is_newest(&self) -> bool {
        *self.turn.newest.borrow() == self.number
    }

    /// Ends when a newer request wants the seat.
    pub fn superseded(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut newest, mine) = (self.turn.newest.subscribe(), self.number);
        async move {
            if newest.wait_for(|n| *n != mine).await.is_err() {
                std::future::pending().await
            }
        }
    }
}

/// What room is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new upload: older versions of its path go.
    Begins,
    GoesOn,
}

/// Why a piece of work at an upload ends before its time.
fn taken_over() -> io::Error {
    io::Error::other("a newer request took over")
}

/// How far a piece came.
pub struct Appended {
    pub offset: u64,
    /// Why it ended before its body did.
    pub broken: Option<io::Error>,
}

impl Uploads {
    /// Of one spoke, unfinished files of at most `kept_bytes_max` are kept.
    pub fn new(folder: &Path, ledger: Ledger, clock: Clock, kept_bytes_max: u64) -> Self {
        let folder = folder.to_owned();
        Self { folder, ledger, clock, kept_bytes_max, turns: Mutex::default() }
    }

    /// Where the bytes lie: a name of one length, whatever the path is.
    pub fn path(&self, key: &UploadKey) -> PathBuf {
        let mut hasher = Hasher::new();
        for part in [key.spoke_id.as_str(), key.path.as_str(), &key.sha256.to_string()] {
            hasher.update_lp(part.as_bytes());
        }
        self.folder.join(format!("{}{ENDING}", hasher.finish()))
    }

    fn turn(&self, key: &UploadKey) -> Arc<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if turns.len() >= TURNS_MAX {
            // What is forgotten is hashed again when somebody goes on with it.
            turns.retain(|_, t| Arc::strong_count(t) > 1);
        }
        let new = || Arc::new(Turn { newest: watch::Sender::new(0), seat: Arc::default() });
        Arc::clone(turns.entry(key.clone()).or_insert_with(new))
    }

    /// Ends older requests for this upload and takes their place.
    pub async fn hold(&self, key: &UploadKey) -> Result<Held, Refusal> {
        let turn = self.turn(key);
        let mut number = 0;
        turn.newest.send_modify(|n| {
            *n += 1;
            number = *n;
        });
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

    /// The seat if nobody has it; nobody is disturbed.
    fn try_hold(&self, key: &UploadKey) -> Option<Held> {
        let turn = self.turn(key);
        let warm = Arc::clone(&turn.seat).try_lock_owned().ok()?;
        let number = *turn.newest.borrow();
        Some(Held { turn, number, warm })
    }

    /// Makes room for an upload that begins: older versions of its path go, and where a spoke has
    /// too many, or too much, those that were longest not gone on with.
    pub fn make_room(&self, key: &UploadKey, size_bytes: u64, step: Step) -> Result<(), Error> {
        let of_before = |path: &FilePath| step == Step::Begins && *path == key.path;
        let mut rows = self.ledger.uploads(Some(&key.spoke_id))?;
        rows.retain(|r| r.key != *key);
        rows.sort_by_key(|r| (!of_before(&r.key.path), r.touched_at));
        let mut count = rows.len();
        let mut bytes: u64 = rows.iter().map(|r| r.synced).sum();
        // One file alone may be of any size, and a small one pushes no large one out: as many as
        // there may be are together no more than the limit once again.
        let is_small = size_bytes <= self.kept_bytes_max / UPLOADS_A_SPOKE_MAX as u64;
        let is_room = |count: usize, bytes: u64| {
            let sum = bytes.saturating_add(size_bytes);
            (is_small || bytes == 0 || sum <= self.kept_bytes_max) && count < UPLOADS_A_SPOKE_MAX
        };
        for row in rows {
            if !of_before(&row.key.path) && is_room(count, bytes) {
                break;
            }
            let Some(held) = self.try_hold(&row.key) else { continue };
            // As it is now that nobody else can touch it: one that was just gone on with stays.
            let fresh = self.ledger.upload(&row.key)?;
            if fresh.is_none_or(|f| f.touched_at == row.touched_at) {
                self.forget(held, &row.key)?;
                count -= 1;
                bytes = bytes.saturating_sub(row.synced);
            }
        }
        if count < UPLOADS_A_SPOKE_MAX {
            return if is_room(count, bytes) { Ok(()) } else { Err(self.too_much_kept(bytes)) };
        }
        let detail = format!("{UPLOADS_A_SPOKE_MAX} uploads of this spoke are under way");
        Err(Refusal::new(ErrorKind::Throttled, "too_many_uploads", detail).into())
    }

    fn too_much_kept(&self, bytes: u64) -> Error {
        let detail = format!(
            "{} of unfinished files of this spoke are under way, {} at most are kept; try again \
             when they are through",
            ByteSize(bytes),
            ByteSize(self.kept_bytes_max)
        );
        Refusal::new(ErrorKind::Throttled, "too_much_kept", detail).into()
    }

    /// Appends a body at `offset`, which must be where the bytes end; runs on a blocking thread.
    ///
    /// What came is synced and recorded also when the body breaks off. `written` hears how much
    /// reached the disk.
    pub fn append(
        &self,
        held: &mut Held,
        row: &mut UploadRow,
        offset: u64,
        body: &mut impl Pieces,
        written: impl FnMut(u64),
    ) -> Result<Appended, Error> {
        let (file, hasher) = self.open_at_end(held, row)?;
        if offset != hasher.len() {
            self.remember(held, &file, hasher)?;
            return Err(offset_refusal(row.synced));
        }
        let Taken { hasher, broken } =
            self.take_in(&file, hasher, (&*held, &mut *row), body, written)?;
        self.checkpoint(&file, row, hasher.len())?;
        self.remember(held, &file, hasher)?;
        Ok(Appended { offset: row.synced, broken })
    }

    /// The digest of what is there; reads it again after a start.
    pub fn digest(
        &self,
        held: &mut Held,
        row: &mut UploadRow,
    ) -> Result<(Sha256Digest, u64), Error> {
        let (file, hasher) = self.open_at_end(held, row)?;
        let found = (hasher.finish(), hasher.len());
        self.remember(held, &file, hasher)?;
        Ok(found)
    }

    fn remember(&self, held: &mut Held, file: &File, hasher: Hasher) -> Result<(), Error> {
        let file = identity(file).map_err(Error::io("cannot look at", &self.folder))?;
        *held.warm = Some(Warm { hasher, file });
        Ok(())
    }

    /// Opens the file, cut back to what was synced, and the hash of that. A file that is shorter
    /// than its row says, or that is gone, is none: it begins anew.
    fn open_at_end(&self, held: &mut Held, row: &mut UploadRow) -> Result<(File, Hasher), Error> {
        let path = self.path(&row.key);
        let failed = || Error::io("cannot open", &path);
        let (mut file, len) = open_partial(&path, row.synced == row.size_bytes).map_err(failed())?;
        if len < row.synced {
            tracing::error!(path = %path.display(), len, synced = row.synced, "a partial file is shorter than it was");
            self.discard(held, &row.key)?;
            row.synced = 0;
            self.ledger.put_upload(row)?;
            (file, _) = open_partial(&path, false).map_err(failed())?;
        } else if len > row.synced {
            file.set_len(row.synced).map_err(failed())?;
        }
        let id = identity(&file).map_err(failed())?;
        let mut hasher = match held.warm.take() {
            Some(warm) if warm.hasher.len() <= row.synced && warm.file == id => warm.hasher,
            _ => Hasher::new(),
        };
        let hashed = hash_on(&mut file, &mut hasher, row.synced, || held.is_newest());
        if let Err(e) = hashed {
            // Whoever took over goes on from here.
            *held.warm = Some(Warm { hasher, file: id });
            return Err(failed()(e));
        }
        file.seek(SeekFrom::Start(row.synced)).map_err(failed())?;
        Ok((file, hasher))
    }

    /// Removes the bytes of an upload; another name of them stays.
    pub fn discard(&self, held: &mut Held, key: &UploadKey) -> Result<(), Error> {
        *held.warm = None;
        let path = self.path(key);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("cannot remove", path)(e))
            }
            _ => Ok(()),
        }
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

    /// Keeps what a cut stream brought of a file, unless more of it is kept already or somebody is
    /// at it.
    pub fn keep(
        &self,
        spoke: &SpokeId,
        entry: &Entry,
        staged: &Path,
        len: u64,
    ) -> Result<(), Error> {
        let key =
            UploadKey { spoke_id: spoke.clone(), path: entry.path.clone(), sha256: entry.sha256 };
        let Some(mut held) = self.try_hold(&key) else { return Ok(()) };
        let known = self.ledger.upload(&key)?;
        if known.as_ref().is_some_and(|k| k.synced >= len) {
            return Ok(());
        }
        if known.is_none() {
            self.make_room(&key, entry.size_bytes, Step::Begins)?;
        }
        *held.warm = None;
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

    /// Forgets an upload and its bytes; the seat is given up last.
    pub fn forget(&self, mut held: Held, key: &UploadKey) -> Result<(), Error> {
        self.discard(&mut held, key)?;
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
            let is_lost = len < row.synced || row.synced == 0;
            if let Some(held) = is_lost.then(|| self.try_hold(&row.key)).flatten() {
                self.forget(held, &row.key)?;
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
            let is_old = now.since_ms(row.touched_at) > KEPT_FOR_MS;
            if !is_old && !has_landed(&row.key)? {
                continue;
            }
            let Some(held) = self.try_hold(&row.key) else { continue };
            // As it is now that nobody else can touch it.
            let Some(fresh) = self.ledger.upload(&row.key)? else { continue };
            if fresh.touched_at == row.touched_at {
                self.forget(held, &row.key)?;
            }
        }
        Ok(())
    }
}

/// The file and its length. One that is whole, or that has a second name, may be what readers see:
/// it is not written to.
fn open_partial(path: &Path, is_whole: bool) -> io::Result<(File, u64)> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    match File::open(path) {
        Ok(file) => {
            let m = file.metadata()?;
            if is_whole {
                return Ok((file, m.len()));
            }
            if m.nlink() > 1 {
                std::fs::remove_file(path)?;
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let file = options.open(path)?;
    let len = file.metadata()?.len();
    Ok((file, len))
}

/// Which file it is, whatever its name.
fn identity(file: &File) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().map(|m| (m.dev(), m.ino()))
}

/// Hashes on to the first `len` bytes, from what was hashed already.
fn hash_on(
    file: &mut File,
    hasher: &mut Hasher,
    len: u64,
    may_go_on: impl Fn() -> bool,
) -> io::Result<()> {
    file.seek(SeekFrom::Start(hasher.len()))?;
    let mut buffer = vec![0u8; BUFFER_BYTES];
    let mut left = file.take(len - hasher.len());
    loop {
        if !may_go_on() {
            return Err(taken_over());
        }
        match left.read(&mut buffer)? {
            0 if hasher.len() == len => return Ok(()),
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
