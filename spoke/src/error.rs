//! Failures that end a spoke's command; what befalls one file is in the ledger instead.

use std::path::PathBuf;

use barque_bundle::database::DatabaseError;
pub(crate) use barque_bundle::error::chain;
use barque_bundle::{ErrorKind, platform};

use crate::hub_client::CallError;

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
    #[error("{path} is malformed: {why}")]
    Malformed { path: PathBuf, why: String },
    #[error("another pass is already running on {path}: {since}")]
    AlreadyRunning { path: PathBuf, since: String },
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    NotEnrolled(String),
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
            Self::Io { .. } => ErrorKind::Internal,
            Self::AlreadyRunning { .. } | Self::ReadOnly { .. } => ErrorKind::Unavailable,
            Self::Malformed { .. } => ErrorKind::Corrupt,
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

    /// Says which mount is read-only when that is what kept a file from being written.
    pub(crate) fn explained(self) -> Self {
        use rusqlite::ErrorCode;
        let (path, may_be) = match &self {
            Self::Sqlite { path, source } => {
                let code = source.sqlite_error_code();
                (
                    path,
                    matches!(
                        code,
                        Some(
                            ErrorCode::ReadOnly
                                | ErrorCode::CannotOpen
                                | ErrorCode::SystemIoFailure
                        )
                    ),
                )
            }
            Self::Io { path, source, .. } => {
                (path, source.kind() == std::io::ErrorKind::ReadOnlyFilesystem)
            }
            _ => return self,
        };
        match may_be.then(|| platform::read_only_mount(path)).flatten() {
            Some(mount) => Self::ReadOnly { path: path.clone(), mount, source: Box::new(self) },
            None => self,
        }
    }

    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
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
