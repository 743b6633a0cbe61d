//! Makes files durable group by group: the group is the unit, not the file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use barque_bundle::platform;

/// Threads that write out, or sync, the files of a group.
const THREADS: usize = 8;
/// Fewer files are cheaper one by one, and do not wait for what others write to the disk.
const AT_ONCE_MIN: usize = 16;

/// Syncs files below one folder, on its file system, that are written after it was opened.
///
/// Many are written out, each telling what failed, and then made durable by one sync of the whole
/// file system, where that tells of every write that failed since the folder was opened (ext4, xfs
/// and btrfs from Linux 5.17 on, syncfs(2)). It tells once, so whoever writes opens one of its own,
/// and trusts nothing more after an error.
pub struct Syncer {
    folder: File,
    tells: bool,
}

impl Syncer {
    pub fn open(path: &Path) -> io::Result<Self> {
        let folder = File::open(path)?;
        let tells = platform::reports_writes(&folder);
        Ok(Self { folder, tells })
    }

    /// Makes whole files durable, with their names; after an error none of them may be trusted.
    pub fn sync(&self, files: &[PathBuf]) -> io::Result<()> {
        match self.tells && files.len() >= AT_ONCE_MIN {
            true => {
                one_by_one(files, platform::write_out)?;
                match platform::sync_all_of(&self.folder) {
                    // The system does not let the call through: as where it tells nothing.
                    Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                        one_by_one(files, platform::sync)?;
                    }
                    synced => synced?,
                }
            }
            false => one_by_one(files, platform::sync)?,
        }
        let folders: BTreeSet<&Path> = files.iter().filter_map(|f| f.parent()).collect();
        folders.into_iter().try_for_each(platform::sync_folder)
    }
}

fn one_by_one(files: &[PathBuf], f: impl Fn(&File) -> io::Result<()> + Sync) -> io::Result<()> {
    let per_thread = files.len().div_ceil(THREADS).max(1);
    let sync = |part: &[PathBuf]| part.iter().try_for_each(|p| f(&File::open(p)?));
    if let [one] = files {
        return sync(std::slice::from_ref(one));
    }
    let sync = &sync;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            files.chunks(per_thread).map(|part| scope.spawn(move || sync(part))).collect();
        threads.into_iter().try_for_each(|t| {
            t.join().unwrap_or_else(|_| Err(io::Error::other("a syncing thread panicked")))
        })
    })
}
