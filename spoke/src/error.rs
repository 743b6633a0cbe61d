//! Failures that end a spoke's command; what befalls one file is in the ledger instead.

use std::path::PathBuf;

use barque_bundle::database::DatabaseError;
pub(crate) use barque_bundle::error::chain;
use barque_bundle::header::HeaderError;
use barque_bundle::open::OpenError;
use barque_bundle::receipt::ReceiptError;
use barque_bundle::{ByteSize, ErrorKind, platform};

use crate::hub_client::CallError;

/// Less than SQLite's index of a write-ahead log takes, twice.
const JOURNAL_BYTES: u64 = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{what}: {path}")]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{path} cannot be used")]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error(
        "{path} is at schema version {found}; this program knows up to {known}: use the newer program that wrote it"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error(
        "{path} cannot be written: the file system mounted at {mount} is read-only; nothing is \
         lost, remount it writable (a worn SD card turns itself read-only) and run again"
    )]
    ReadOnly { path: PathBuf, mount: PathBuf, source: Box<Error> },
    #[error(
        "{path} cannot be written: {free} are free on its file system; nothing is lost, make room \
         and run again"
    )]
    NoRoom { path: PathBuf, free: ByteSize, source: Box<Error> },
    #[error("{path} is malformed: {why}")]
    Malformed { path: PathBuf, why: String },
    /// The holder is unknown while it has the lock and has not said so yet.
    #[error("another pass is already running on {path}{}", .holder.as_deref().map_or(String::new(), |h| format!(": {h}")))]
    AlreadyRunning { path: PathBuf, holder: Option<String> },
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotEnrolled(String),
    #[error("{0}")]
    Missing(String),
    #[error(
        "the drive cannot be written at {path}; no file is lost, all stay pending: make room, or \
         plug it in again, and run the same command, which goes on with this bundle"
    )]
    Drive { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Bundle(#[from] OpenError),
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } if barque_bundle::platform::is_full(source) => ErrorKind::Full,
            Self::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DiskFull) => ErrorKind::Full,
                Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked) => {
                    ErrorKind::Unavailable
                }
                _ => ErrorKind::Internal,
            },
            Self::NoRoom { .. } => ErrorKind::Full,
            Self::Drive { source, .. } if platform::is_full(source) => ErrorKind::Full,
            Self::Drive { .. } => ErrorKind::Unavailable,
            Self::Bundle(e) => e.kind(),
            Self::Receipt(e) => e.kind(),
            Self::Io { .. } => ErrorKind::Internal,
            Self::AlreadyRunning { .. } | Self::ReadOnly { .. } => ErrorKind::Unavailable,
            Self::Malformed { .. } => ErrorKind::Corrupt,
            Self::Missing(_) => ErrorKind::NotFound,
            Self::Newer { .. } | Self::Usage(_) | Self::NotEnrolled(_) => ErrorKind::Invalid,
            Self::Call(e) => e.kind(),
        }
    }

    /// Whether a database cannot be believed any more; a ledger can be made anew from the hub.
    pub fn is_damage(&self) -> bool {
        use rusqlite::ErrorCode;
        let Self::Sqlite { source, .. } = self else {
            return false;
        };
        let is_code = matches!(
            source.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        );
        // A value that its own reader cannot read was not written by it.
        is_code || matches!(source, rusqlite::Error::InvalidQuery)
    }

    /// Says of the file system what kept a file from being written: that it is read-only, or full.
    pub(crate) fn explained(self) -> Self {
        use rusqlite::ErrorCode::{CannotOpen, DiskFull, ReadOnly, SystemIoFailure};
        let (path, is_full, may_be) = match &self {
            Self::Sqlite { path, source } => {
                let code = source.sqlite_error_code();
                let may_be = matches!(code, Some(ReadOnly | CannotOpen | SystemIoFailure));
                (path.clone(), code == Some(DiskFull), may_be)
            }
            Self::Io { path, source, .. } => {
                let is_read_only = source.kind() == std::io::ErrorKind::ReadOnlyFilesystem;
                (path.clone(), platform::is_full(source), is_read_only)
            }
            _ => return self,
        };
        if let Some(mount) = may_be.then(|| platform::read_only_mount(&path)).flatten() {
            return Self::ReadOnly { path, mount, source: Box::new(self) };
        }
        let folder = path.parent().unwrap_or(&path);
        match platform::free_bytes(folder) {
            // What SQLite needs beside a database before it reads from it is an I/O fault to it.
            Ok(free) if is_full || (may_be && free < JOURNAL_BYTES) => {
                Self::NoRoom { path, free: ByteSize(free), source: Box::new(self) }
            }
            _ => self,
        }
    }

    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

impl From<HeaderError> for Error {
    fn from(e: HeaderError) -> Self {
        Self::Bundle(e.into())
    }
}

impl From<DatabaseError> for Error {
    fn from(e: DatabaseError) -> Self {
        match e {
            DatabaseError::Sqlite { path, source } => Self::Sqlite { path, source },
            DatabaseError::Newer { path, found, known } => Self::Newer { path, found, known },
            DatabaseError::Io { what, path, source } => Self::Io { what, path, source },
        }
    }
}
