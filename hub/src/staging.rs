//! Where bytes wait until they are verified, durable and agreed on; never a place for readers.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use barque_bundle::digest::Hasher;
use barque_bundle::{Sha256Digest, platform};

use crate::error::Error;
use crate::landing;
use crate::ledger::Ledger;

/// Stage numbers reserved at once, so that the ledger is written rarely.
const RESERVED: u64 = 10_000;
/// Threads that sync a group of files.
const SYNC_THREADS: usize = 8;

/// Hands out growing stage numbers and the files under them.
pub struct Staging {
    folder: PathBuf,
    ledger: Ledger,
    /// The next number and the end of the reserved ones.
    numbers: Mutex<(u64, u64)>,
}

impl Staging {
    /// Opens the folder; numbers go on above all that were ever given out.
    pub fn open(folder: &Path, ledger: Ledger) -> Result<Self, Error> {
        let next = ledger.stage_ceiling()? + 1;
        Ok(Self { folder: folder.to_owned(), ledger, numbers: Mutex::new((next, next)) })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn path(&self, stage_no: u64) -> PathBuf {
        self.folder.join(format!("{stage_no:016}.staged"))
    }

    fn next_number(&self) -> Result<u64, Error> {
        let mut numbers = self.numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if numbers.0 == numbers.1 {
            let first = self.ledger.reserve_stage_numbers(RESERVED)?;
            *numbers = (first, first + RESERVED);
        }
        numbers.0 += 1;
        Ok(numbers.0 - 1)
    }

    /// The highest number given out so far: everything after it is newer.
    pub fn newest_number(&self) -> u64 {
        self.numbers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0 - 1
    }

    /// A new, empty file to write and hash into; it is deleted unless it is kept.
    pub fn begin(&self) -> Result<Incoming, Error> {
        let stage_no = self.next_number()?;
        let path = self.path(stage_no);
        let open = || {
            let file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(landing::FILE_MODE)
                .open(&path)?;
            // The mode that readers need after the rename, whatever the umask says.
            file.set_permissions(fs::Permissions::from_mode(landing::FILE_MODE))?;
            Ok(file)
        };
        let file = open().map_err(Error::io("cannot stage", &path))?;
        Ok(Incoming { stage_no, path, file, hasher: Hasher::new(), is_kept: false })
    }

    /// Makes whole files durable, with their names; after an error none of them may be trusted.
    pub fn sync(&self, stage_nos: &[u64]) -> io::Result<()> {
        let per_thread = stage_nos.len().div_ceil(SYNC_THREADS).max(1);
        std::thread::scope(|scope| {
            let threads: Vec<_> = stage_nos
                .chunks(per_thread)
                .map(|part| {
                    scope.spawn(move || {
                        part.iter().try_for_each(|n| platform::sync(&File::open(self.path(*n))?))
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|t| {
                t.join().unwrap_or_else(|_| Err(io::Error::other("a syncing thread panicked")))
            })
        })?;
        platform::sync_folder(&self.folder)
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
        for item in fs::read_dir(&self.folder).map_err(wrap())? {
            let name = item.map_err(wrap())?.file_name();
            let number = name.to_str().and_then(|n| n.strip_suffix(".staged"));
            numbers.extend(number.and_then(|n| n.parse::<u64>().ok()));
        }
        Ok(numbers)
    }
}

/// A file being staged: written and hashed, not yet synced.
pub struct Incoming {
    pub stage_no: u64,
    path: PathBuf,
    file: File,
    hasher: Hasher,
    is_kept: bool,
}

impl Incoming {
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// The digest and size of what was written.
    pub fn digest(&self) -> (Sha256Digest, u64) {
        (self.hasher.finish(), self.hasher.len())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file in staging.
    pub fn keep(mut self) -> u64 {
        self.is_kept = true;
        self.stage_no
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
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
            Staging::open(dir.path(), ledger).unwrap()
        };
        let staging = open();
        let mut first = staging.begin().unwrap();
        first.write(b"abc").unwrap();
        assert_eq!(first.digest(), (Sha256Digest::of(b"abc"), 3));
        let dropped = staging.begin().unwrap().path().to_owned();
        assert!(!dropped.exists());
        let n = first.keep();
        staging.sync(&[n]).unwrap();
        assert_eq!(staging.present().unwrap(), [n]);
        assert!(open().begin().unwrap().stage_no > n + 1);
    }
}
