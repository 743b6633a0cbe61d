//! Where bytes wait until they are verified, durable and agreed on; never a place for readers.
//!
//! A number is open from the first byte until its file has a row in node.db (or is gone), so that
//! the node's floor never passes a file that is still on its way, however slow its link.

mod sync;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use barque_bundle::digest::Hasher;
use barque_bundle::{Sha256Digest, platform};

use crate::error::Error;
use crate::landing;
use crate::ledger::Ledger;

pub use sync::Syncer;

/// Stage numbers reserved at once, so that the ledger is written rarely.
const RESERVED: u64 = 10_000;
/// Bytes written between two syncs of one file, so that the last one is never long.
const SYNC_EVERY_BYTES: u64 = 64 * 1024 * 1024;

/// Folders that staged files lie in, and numbers that follow one another in one of them: the layout
/// on disk. The system changes one name of a folder at a time: files that are begun lie elsewhere
/// than those that are moved to landing meanwhile.
const FOLDERS: u64 = 8;
const BLOCK: u64 = 1024;
/// How a staged file's name ends.
const SUFFIX: &str = ".staged";

/// Hands out growing stage numbers and the files under them.
pub struct Staging {
    folder: PathBuf,
    ledger: Ledger,
    numbers: Mutex<Numbers>,
    /// Whether a new file has its mode already.
    umask_keeps: OnceLock<bool>,
}

struct Numbers {
    next: u64,
    /// The end of the reserved ones.
    end: u64,
    open: BTreeSet<u64>,
}

impl Staging {
    /// Opens the folder; numbers go on above all that were ever given out.
    pub fn open(folder: &Path, ledger: Ledger) -> Result<Self, Error> {
        let next = ledger.stage_ceiling()? + 1;
        let numbers = Numbers { next, end: next, open: BTreeSet::new() };
        let (folder, numbers) = (folder.to_owned(), Mutex::new(numbers));
        let staging = Self { folder, ledger, numbers, umask_keeps: OnceLock::new() };
        staging.make_folders().map_err(Error::io("cannot make folders in", &staging.folder))?;
        Ok(staging)
    }

    /// Makes the folders that are not there yet, and moves what an older version staged beside them.
    /// All is synced, as a start before this one may have ended between the two.
    fn make_folders(&self) -> io::Result<()> {
        let folders: Vec<PathBuf> = (0..FOLDERS).map(|b| self.folder.join(b.to_string())).collect();
        folders.iter().try_for_each(|f| make_folder(f))?;
        for stage_no in staged_in(&self.folder)? {
            fs::rename(self.folder.join(name_of(stage_no)), self.path(stage_no))?;
        }
        folders.iter().try_for_each(|f| platform::sync_folder(f))?;
        platform::sync_folder(&self.folder)
    }

    /// Does something in the folder of a staged file, which is made again if somebody took it away.
    fn in_folder<T>(&self, path: &Path, f: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match (f(), path.parent()) {
            (Err(e), Some(folder)) if e.kind() == io::ErrorKind::NotFound && !folder.exists() => {
                make_folder(folder)?;
                platform::sync_folder(&self.folder)?;
                f()
            }
            (done, _) => done,
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn path(&self, stage_no: u64) -> PathBuf {
        let block = stage_no / BLOCK % FOLDERS;
        self.folder.join(block.to_string()).join(name_of(stage_no))
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_number(&self) -> Result<u64, Error> {
        let mut numbers = self.lock();
        if numbers.next == numbers.end {
            let first = self.ledger.reserve_stage_numbers(RESERVED)?;
            (numbers.next, numbers.end) = (first, first + RESERVED);
        }
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        Ok(number)
    }

    /// The highest number at or below which no file is on its way any more.
    pub fn closed_number(&self) -> u64 {
        let numbers = self.lock();
        numbers.open.first().copied().unwrap_or(numbers.next) - 1
    }

    /// Keeps the node's floor down as long as the slot lives, for work of many files.
    pub fn hold(self: &Arc<Self>) -> Result<Slot, Error> {
        let stage_no = self.open_number()?;
        Ok(Slot { staging: Arc::clone(self), stage_no, is_kept: false })
    }

    /// A new, empty file to write and hash into; it is deleted unless its slot is kept.
    pub fn begin(self: &Arc<Self>) -> Result<Incoming, Error> {
        let stage_no = self.open_number()?;
        let slot = Slot { staging: Arc::clone(self), stage_no, is_kept: false };
        let path = self.path(stage_no);
        let open = || {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(landing::FILE_MODE)
                .open(&path)?;
            self.give_mode(&file)?;
            Ok(file)
        };
        let file = self.in_folder(&path, open).map_err(Error::io("cannot stage", &path))?;
        Ok(Incoming { slot, path, file, hasher: Hasher::new(), synced: 0 })
    }

    /// The mode that readers need after the rename, whatever the umask says; that is the same for
    /// every file.
    fn give_mode(&self, file: &File) -> io::Result<()> {
        let keeps = match self.umask_keeps.get() {
            Some(keeps) => *keeps,
            None => {
                let mode = file.metadata()?.permissions().mode() & 0o777;
                *self.umask_keeps.get_or_init(|| mode == landing::FILE_MODE)
            }
        };
        match keeps {
            true => Ok(()),
            false => file.set_permissions(fs::Permissions::from_mode(landing::FILE_MODE)),
        }
    }

    /// A whole file from elsewhere in this folder under a number of its own; the name it had stays.
    pub fn adopt(self: &Arc<Self>, from: &Path) -> Result<Slot, Error> {
        let stage_no = self.open_number()?;
        let slot = Slot { staging: Arc::clone(self), stage_no, is_kept: false };
        let path = self.path(stage_no);
        let adopt = || {
            // A second name of the same bytes; a file system without such names gets a copy.
            if fs::hard_link(from, &path).is_err() {
                fs::copy(from, &path)?;
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(landing::FILE_MODE))
        };
        self.in_folder(&path, adopt).map_err(Error::io("cannot stage", &path))?;
        Ok(slot)
    }

    /// What makes files durable that are begun from now on.
    pub fn syncer(&self) -> Result<Syncer, Error> {
        Syncer::open(&self.folder).map_err(Error::io("cannot open", &self.folder))
    }

    pub fn remove(&self, stage_no: u64) -> io::Result<()> {
        match fs::remove_file(self.path(stage_no)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// The stage numbers of the files that lie there, in no order.
    pub fn present(&self) -> Result<Vec<u64>, Error> {
        let wrap = || Error::io("cannot list", &self.folder);
        let mut numbers = Vec::new();
        for block in 0..FOLDERS {
            numbers.extend(staged_in(&self.folder.join(block.to_string())).map_err(wrap())?);
        }
        Ok(numbers)
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

fn name_of(stage_no: u64) -> String {
    format!("{stage_no:016}{SUFFIX}")
}

/// The stage numbers of the files that lie in one folder.
fn staged_in(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for item in fs::read_dir(folder)? {
        let name = item?.file_name();
        let number = name.to_str().and_then(|n| n.strip_suffix(SUFFIX));
        let number = number.and_then(|n| n.parse::<u64>().ok());
        // Only as they are named here.
        numbers.extend(number.filter(|n| name == *name_of(*n)));
    }
    Ok(numbers)
}

/// A stage number that is open: its file goes with it unless it is kept.
pub struct Slot {
    staging: Arc<Staging>,
    stage_no: u64,
    is_kept: bool,
}

impl Slot {
    pub fn stage_no(&self) -> u64 {
        self.stage_no
    }

    /// Leaves the file in staging: it has a row in node.db.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.staging.remove(self.stage_no);
        }
        self.staging.lock().open.remove(&self.stage_no);
    }
}

/// A file being staged: written and hashed, not yet synced to its end.
pub struct Incoming {
    slot: Slot,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    synced: u64,
}

impl Incoming {
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        if self.hasher.len() - self.synced >= SYNC_EVERY_BYTES {
            platform::sync(&self.file)?;
            self.synced = self.hasher.len();
        }
        Ok(())
    }

    /// The digest and size of what was written.
    pub fn digest(&self) -> (Sha256Digest, u64) {
        (self.hasher.finish(), self.hasher.len())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was written, to read it back.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The whole file's slot; the file itself is closed.
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_numbers_grow_across_restarts_and_dropped_files_vanish() {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            let ledger = Ledger::open(&dir.path().join("node.db")).unwrap();
            Arc::new(Staging::open(dir.path(), ledger).unwrap())
        };
        let staging = open();
        let mut first = staging.begin().unwrap();
        first.write(b"abc").unwrap();
        assert_eq!(first.digest(), (Sha256Digest::of(b"abc"), 3));
        let dropped = staging.begin().unwrap().path().to_owned();
        assert!(!dropped.exists());
        let slot = first.into_slot();
        let n = slot.stage_no();
        staging.syncer().unwrap().sync(&[staging.path(n)]).unwrap();
        slot.keep();
        assert_eq!(staging.present().unwrap(), [n]);
        assert!(open().begin().unwrap().into_slot().stage_no() > n + 1);
    }

    #[test]
    fn what_an_older_version_staged_is_moved_to_its_folder() {
        let dir = tempfile::tempdir().unwrap();
        let old: Vec<u64> = vec![7, BLOCK, 9 * BLOCK + 1];
        for n in &old {
            fs::write(dir.path().join(name_of(*n)), n.to_string()).unwrap();
        }
        for other in ["x.partial", "7.staged"] {
            fs::write(dir.path().join(other), "").unwrap();
        }
        for _ in 0..2 {
            let ledger = Ledger::open(&dir.path().join("node.db")).unwrap();
            let staging = Staging::open(dir.path(), ledger).unwrap();
            let mut present = staging.present().unwrap();
            present.sort_unstable();
            assert_eq!(present, old);
            for n in &old {
                assert_eq!(fs::read_to_string(staging.path(*n)).unwrap(), n.to_string());
            }
        }
        for other in ["x.partial", "7.staged"] {
            assert!(dir.path().join(other).exists());
        }
    }

    #[test]
    fn a_folder_that_somebody_took_away_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("node.db")).unwrap();
        let staging = Arc::new(Staging::open(dir.path(), ledger).unwrap());
        for block in 0..FOLDERS {
            fs::remove_dir(dir.path().join(block.to_string())).unwrap();
        }
        let file = staging.begin().unwrap();
        assert!(file.path().exists());
    }

    #[test]
    fn a_number_that_is_still_written_holds_the_floor_down() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("node.db")).unwrap();
        let staging = Arc::new(Staging::open(dir.path(), ledger).unwrap());
        let slow = staging.begin().unwrap();
        let quick = staging.begin().unwrap().into_slot();
        let n = quick.stage_no();
        quick.keep();
        assert_eq!(staging.closed_number(), n - 2);
        drop(slow);
        assert_eq!(staging.closed_number(), n);
    }
}
