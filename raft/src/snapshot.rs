//! A snapshot is a consistent view of the state machine's own database, copied only when asked.

use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::message::SnapshotPiece;

/// A frozen view of a state machine, as long as it lives.
pub trait SnapshotView: Send + 'static {
    /// Writes the view as one file that [`crate::StateMachine::install`] takes.
    fn copy_to(self: Box<Self>, path: &Path) -> io::Result<()>;
}

/// A snapshot that a node sends (a view of its own state) or has received (a file).
pub enum SnapshotFile {
    /// Not copied yet; building a snapshot costs nothing until a peer needs it.
    View(Box<dyn SnapshotView>),
    /// A whole file.
    File(PathBuf),
    /// Nothing yet: where openraft wants a value before data arrives.
    Empty,
}

impl SnapshotFile {
    /// The snapshot as a file at `path`.
    pub fn into_file(self, path: &Path) -> io::Result<()> {
        match self {
            Self::View(view) => view.copy_to(path),
            Self::File(from) => std::fs::rename(from, path),
            Self::Empty => Err(io::Error::other("the snapshot was never filled")),
        }
    }
}

impl std::fmt::Debug for SnapshotFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::View(_) => f.write_str("SnapshotFile::View"),
            Self::File(path) => write!(f, "SnapshotFile::File({})", path.display()),
            Self::Empty => f.write_str("SnapshotFile::Empty"),
        }
    }
}

const ARRIVING: &str = "snapshot.arriving.";
/// While it is sent, and while it is taken over.
const SENDING: &str = "snapshot.sending.";
const INSTALLING: &str = "snapshot.installing";

/// Where a snapshot is put together: one file for each content, so that pieces of two never mix.
pub(crate) fn arriving(folder: &Path, sha256: &[u8]) -> PathBuf {
    let hex: String = sha256.iter().map(|b| format!("{b:02x}")).collect();
    folder.join(format!("{ARRIVING}{hex}"))
}

/// A copy of a snapshot for another node, open and without a name, and its SHA-256. Each copy has a
/// name of its own meanwhile: one that nobody waits for any more may still be under way.
pub(crate) fn copy_for(
    folder: &Path,
    target: u64,
    snapshot: SnapshotFile,
) -> io::Result<(fs::File, Vec<u8>)> {
    static COPIES: AtomicU64 = AtomicU64::new(0);
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("{SENDING}{target:016x}.{number}"));
    let copied =
        snapshot.into_file(&path).and_then(|()| Ok((fs::File::open(&path)?, digest(&path)?)));
    // The open file stays readable; the name need not survive a crash.
    let _ = fs::remove_file(&path);
    copied
}

/// Where a whole snapshot stands while it is taken over.
pub(crate) fn installing(folder: &Path) -> PathBuf {
    folder.join(INSTALLING)
}

fn each(folder: &Path, mut f: impl FnMut(&str, &Path)) -> io::Result<()> {
    for item in fs::read_dir(folder)? {
        let item = item?;
        if let Some(name) = item.file_name().to_str() {
            f(name, &item.path());
        }
    }
    Ok(())
}

/// Removes what a crash left; one that was arriving goes on where it was, and one that was being
/// installed is still needed.
pub(crate) fn clean_up(folder: &Path) -> io::Result<()> {
    each(folder, |name, path| {
        if name.starts_with(SENDING) {
            let _ = fs::remove_file(path);
        }
    })
}

/// Removes what no piece has come of for so long: its sender goes on otherwise.
pub(crate) fn forget_arriving(folder: &Path, silent_for: Duration) -> io::Result<()> {
    each(folder, |name, path| {
        let modified = fs::metadata(path).and_then(|m| m.modified()).ok();
        let silence = modified.and_then(|at| at.elapsed().ok());
        if name.starts_with(ARRIVING) && silence.is_some_and(|s| s > silent_for) {
            let _ = fs::remove_file(path);
        }
    })
}

/// SHA-256 of a whole file.
pub(crate) fn digest(path: &Path) -> io::Result<Vec<u8>> {
    use sha2::Digest as _;
    let (mut hasher, mut file) = (sha2::Sha256::new(), fs::File::open(path)?);
    let mut buffer = vec![0u8; 256 * 1024];
    loop {
        match io::Read::read(&mut file, &mut buffer)? {
            0 => return Ok(hasher.finalize().to_vec()),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Gives a whole snapshot the name under which a crash does not lose it: from here on the log may be
/// cut up to it. Refused when it is not what was sent.
pub(crate) fn accept(folder: &Path, arrived: &Path, sha256: &[u8]) -> io::Result<PathBuf> {
    if digest(arrived)? != sha256 {
        fs::remove_file(arrived)?;
        return Err(io::Error::other("the snapshot is not what was sent; it comes again"));
    }
    // Whoever wrote its last piece may have died before it was durable.
    fs::File::open(arrived)?.sync_all()?;
    let to = installing(folder);
    fs::rename(arrived, &to)?;
    fs::File::open(folder)?.sync_all()?;
    Ok(to)
}

/// Writes the piece if it goes on where the file ends; the length of the file afterwards. One
/// snapshot arrives at a time: what is there of another one goes.
pub(crate) fn write_piece(folder: &Path, path: &Path, piece: &SnapshotPiece) -> io::Result<u64> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if piece.offset == 0 {
        each(folder, |name, found| {
            if name.starts_with(ARRIVING) && found != path {
                let _ = fs::remove_file(found);
            }
        })?;
    }
    let written = || -> io::Result<u64> {
        let mut options = fs::OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let mut file = options.open(path)?;
        let len = file.seek(SeekFrom::End(0))?;
        // What is longer than the piece's place has it already.
        if len != piece.offset {
            return Ok(len);
        }
        file.write_all(&piece.data)?;
        if piece.done {
            file.sync_all()?;
        }
        Ok(len + piece.data.len() as u64)
    };
    written().inspect_err(|_| {
        // From the start again: nothing of a file that could not be written is trusted.
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Barrier;

    use super::*;

    /// Writes its bytes in two halves, and waits between them at each of the barriers.
    struct Halting(&'static [u8], &'static [Barrier]);

    impl SnapshotView for Halting {
        fn copy_to(self: Box<Self>, path: &Path) -> io::Result<()> {
            let (first, second) = self.0.split_at(self.0.len() / 2);
            let mut file = fs::File::create(path)?;
            file.write_all(first)?;
            for barrier in self.1 {
                barrier.wait();
            }
            file.write_all(second)
        }
    }

    #[test]
    fn copies_for_one_node_at_once_never_meet_and_leave_no_name() {
        static BETWEEN: [Barrier; 2] = [Barrier::new(2), Barrier::new(2)];
        let dir = tempfile::tempdir().unwrap();
        let copy = |bytes, barriers| {
            let view = SnapshotFile::View(Box::new(Halting(bytes, barriers)));
            let (mut file, sha256) = copy_for(dir.path(), 7, view).unwrap();
            let mut found = Vec::new();
            file.read_to_end(&mut found).unwrap();
            (found, sha256)
        };
        // One that nobody waits for any more goes on after the next one is done.
        std::thread::scope(|scope| {
            let late = scope.spawn(|| copy(b"the older state", &BETWEEN));
            BETWEEN[0].wait();
            let next = copy(b"the state now", &[]);
            BETWEEN[1].wait();
            for ((found, sha256), bytes) in
                [(next, &b"the state now"[..]), (late.join().unwrap(), b"the older state")]
            {
                use sha2::Digest as _;
                assert_eq!(
                    (found.as_slice(), sha256),
                    (bytes, sha2::Sha256::digest(bytes).to_vec())
                );
            }
        });
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
