//! A snapshot is a consistent view of the state machine's own database, copied only when asked.

use std::io;
use std::path::{Path, PathBuf};

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
