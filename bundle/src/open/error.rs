//! Why a bundle on a drive is refused, each reason with its word and the file it is about.

use std::io;
use std::path::PathBuf;

use crate::archive::ArchiveError;
use crate::digest::Sha256Digest;
use crate::entry::EntriesError;
use crate::error::ErrorKind;
use crate::header::HeaderError;
use crate::path::printable;
use crate::platform;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("{} cannot be read", printable(&.path.display().to_string()))]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{} is no bundle: {why}; a bundle is a folder, a .tar or a .tar.zst that `barque bundle export` made",
        printable(&.path.display().to_string())
    )]
    NotABundle { path: PathBuf, why: String },
    #[error(
        "{} has no manifest.sig: an export that was not finished. Run the same `barque bundle export` again with this drive",
        printable(&.path.display().to_string())
    )]
    Unfinished { path: PathBuf },
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Entries(EntriesError),
    #[error("the bundle declares {count} files, at most {max} are read")]
    TooMany { count: u64, max: u64 },
    #[error("{} is out of order: {} has to come before it", printable(.member), printable(.expected))]
    OutOfOrder { member: String, expected: String },
    #[error("{} is declared and missing", printable(.member))]
    Missing { member: String },
    #[error("expected {}, found {}: a file is missing, or the archive is out of order", printable(.expected), printable(.member))]
    Misplaced { member: String, expected: String },
    #[error("{} is not declared in entries.jsonl; nothing but what was exported may be in a bundle, move it away", printable(.member))]
    Undeclared { member: String },
    #[error("{} leads out of the bundle", printable(.member))]
    Escapes { member: String },
    #[error("{} is in the archive twice", printable(.member))]
    Twice { member: String },
    #[error("{} is {what}, and only regular files are taken", printable(.member))]
    NotAFile { member: String, what: &'static str },
    #[error("{} has {found} bytes, {expected} are declared", printable(.member))]
    Size { member: String, expected: u64, found: u64 },
    #[error(
        "{} is damaged: its SHA-256 is {found}, declared is {expected}{}",
        printable(.member), at(*.offset)
    )]
    Digest { member: String, expected: Sha256Digest, found: Sha256Digest, offset: Option<u64> },
    #[error("{} was withdrawn by its sender, which a drive cannot say", printable(.member))]
    Withdrawn { member: String },
}

fn at(offset: Option<u64>) -> String {
    offset.map_or(String::new(), |o| format!(" (its bytes begin at {o} of the archive)"))
}

impl OpenError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                ErrorKind::NotFound
            }
            Self::Io { source, .. } if platform::is_link(source) => ErrorKind::Corrupt,
            Self::Io { .. } => ErrorKind::Unavailable,
            Self::NotABundle { .. } => ErrorKind::Invalid,
            Self::Archive(e) => e.kind(),
            Self::Header(e) => e.kind(),
            Self::TooMany { .. } => ErrorKind::TooLarge,
            _ => ErrorKind::Corrupt,
        }
    }

    /// A stable word for the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "bundle_unreadable",
            Self::NotABundle { .. } => "not_a_bundle",
            Self::Unfinished { .. } => "bundle_unfinished",
            Self::Archive(e) => e.code(),
            Self::Header(e) => e.code(),
            Self::Entries(e) => e.code(),
            Self::TooMany { .. } => "too_many_entries",
            Self::OutOfOrder { .. } => "member_out_of_order",
            Self::Missing { .. } => "member_missing",
            Self::Misplaced { .. } => "member_misplaced",
            Self::Undeclared { .. } => "undeclared_member",
            Self::Escapes { .. } => "path_escapes",
            Self::Twice { .. } => "duplicate_member",
            Self::NotAFile { .. } => "member_not_a_file",
            Self::Size { .. } => "member_size",
            Self::Digest { .. } => "member_damaged",
            Self::Withdrawn { .. } => "member_withdrawn",
        }
    }

    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

impl From<EntriesError> for OpenError {
    fn from(e: EntriesError) -> Self {
        match e {
            // What an archive said below a reader of lines.
            EntriesError::Io(io) => match io.downcast::<ArchiveError>() {
                Ok(e) => Self::Archive(e),
                Err(io) => Self::Entries(EntriesError::Io(io)),
            },
            e => Self::Entries(e),
        }
    }
}
