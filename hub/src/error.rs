//! Failures of the hub: refusals that a caller can act on, and faults of our own.

use std::path::PathBuf;

use barque_bundle::database::DatabaseError;
pub use barque_bundle::error::chain;
use barque_bundle::open::OpenError;
use barque_bundle::wire::ImportRefusal;
use barque_bundle::{ErrorKind, Timestamp, platform};
use barque_raft::LogStoreError;

/// A refusal as it reaches a caller: kind, stable code, sentence, and what is needed to act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    pub kind: ErrorKind,
    pub code: &'static str,
    pub detail: Box<str>,
    pub hub_time: Option<Timestamp>,
    pub max_entries: Option<u32>,
    pub limit_bytes: Option<u64>,
    pub retry_after_ms: Option<u64>,
    /// Where an upload goes on.
    pub upload_offset: Option<u64>,
    /// The other import that is in the way.
    pub import: Option<Box<ImportRefusal>>,
}

impl From<OpenError> for Refusal {
    fn from(e: OpenError) -> Self {
        Self::new(e.kind(), e.code(), chain(&e))
    }
}

impl Refusal {
    pub fn new(kind: ErrorKind, code: &'static str, detail: impl Into<String>) -> Self {
        let retry = matches!(
            kind,
            ErrorKind::Unavailable | ErrorKind::Throttled | ErrorKind::Full | ErrorKind::Unknown
        );
        Self {
            kind,
            code,
            detail: detail.into().into_boxed_str(),
            hub_time: None,
            max_entries: None,
            limit_bytes: None,
            retry_after_ms: retry.then_some(5_000),
            upload_offset: None,
            import: None,
        }
    }
}

/// Anything that keeps a hub from doing what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("{what}")]
    Sqlite { what: &'static str, source: rusqlite::Error },
    #[error("{what}: {path}")]
    Io { what: &'static str, path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(
        "{path} is at version {found}; this program knows up to {known}: use the newer program that wrote it"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error(
        "a command of version {found} is in the log; this program knows up to {known}: use the newer program"
    )]
    CommandVersion { found: u8, known: u8 },
    #[error("a stored or replicated value is malformed: {0}")]
    Malformed(String),
    #[error(transparent)]
    Log(#[from] barque_raft::LogStoreError),
    #[error(transparent)]
    Raft(#[from] barque_raft::StartError),
    #[error("{0}")]
    Unusable(String),
    #[error("TLS: {0}")]
    Tls(String),
}

impl Error {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused(r) => r.kind,
            Self::Io { source, .. } if barque_bundle::platform::is_full(source) => ErrorKind::Full,
            Self::Sqlite { source, .. } | Self::Database(DatabaseError::Sqlite { source, .. })
                if is_disk_full(source) =>
            {
                ErrorKind::Full
            }
            Self::Database(DatabaseError::Io { source, .. }) if platform::is_full(source) => {
                ErrorKind::Full
            }
            _ if self.is_read_only() => ErrorKind::Unavailable,
            Self::Database(DatabaseError::Newer { .. })
            | Self::Newer { .. }
            | Self::Log(LogStoreError::Newer { .. })
            | Self::Unusable(_) => ErrorKind::Invalid,
            _ => ErrorKind::Internal,
        }
    }

    /// Whether a file system let nothing be written.
    fn is_read_only(&self) -> bool {
        match self {
            Self::Io { source, .. } | Self::Database(DatabaseError::Io { source, .. }) => {
                source.kind() == std::io::ErrorKind::ReadOnlyFilesystem
            }
            Self::Sqlite { source, .. } | Self::Database(DatabaseError::Sqlite { source, .. }) => {
                source.sqlite_error_code() == Some(rusqlite::ErrorCode::ReadOnly)
            }
            _ => false,
        }
    }

    /// The whole chain for the log; a read-only file system is named by its mount.
    pub fn told(&self) -> String {
        let path = match self {
            Self::Io { path, .. } if self.is_read_only() => path,
            _ => return chain(self),
        };
        match platform::read_only_mount(path) {
            Some(mount) => format!(
                "{}; the file system mounted at {} is read-only: remount it writable, the hub \
                 goes on by itself",
                chain(self),
                mount.display()
            ),
            None => chain(self),
        }
    }

    /// Attaches what was being done, and where, to an I/O error.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }

    /// Attaches what was being done to a database error.
    pub fn sql(what: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sqlite { what, source }
    }

    /// What a caller may hear of it: refusals as they are, faults without our insides.
    pub fn to_refusal(&self) -> Refusal {
        match self {
            Self::Refused(r) => r.clone(),
            e if e.kind() == ErrorKind::Full => Refusal::new(
                ErrorKind::Full,
                "hub_full",
                "the hub has no space left; nothing was lost, what was not acknowledged comes again",
            ),
            e if e.is_read_only() => read_only(),
            _ => Refusal::new(
                ErrorKind::Internal,
                "hub_fault",
                "the hub met a fault of its own, its log says which; what was not acknowledged comes again",
            ),
        }
    }
}

/// The refusal while a file system of the hub is read-only.
pub fn read_only() -> Refusal {
    Refusal::new(
        ErrorKind::Unavailable,
        "hub_read_only",
        "a file system of the hub is read-only; nothing was lost, its operator has to remount it",
    )
}

fn is_disk_full(e: &rusqlite::Error) -> bool {
    e.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull)
}
