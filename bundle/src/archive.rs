//! Regular files out of a tar archive, one by one: bounded, and nothing else is taken.
//!
//! Read are POSIX pax (IEEE Std 1003.1, pax interchange format), ustar, and GNU long names. Links,
//! devices, folders, sparse members, set-id bits, and members whose two names disagree are refused.
//! No size in a header makes an allocation.

use std::io::{self, Read};

use crate::digest::Sha256Digest;
use crate::error::ErrorKind;
use crate::path::printable;

/// Largest pax header or GNU long name that is read, in bytes.
const EXTENSION_MAX_BYTES: u64 = 64 * 1024;
/// Extension headers in a row before one member.
const EXTENSIONS_MAX: u32 = 8;
/// Bytes of a plain header's name field.
pub(crate) const NAME_FIELD_BYTES: usize = 100;
/// What may stand behind the last member: two zero blocks, and a record that is filled up.
const TAIL_MAX_BYTES: u64 = 1024 * 1024;
const BLOCK: u64 = 512;
pub(crate) const STATUS: &str = "BARQUE.status";
pub(crate) const WITHDRAWN: &str = "withdrawn";

/// Why something is no archive of regular files.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the archive cannot be read")]
    Io(#[source] io::Error),
    #[error("the archive ends early, at byte {offset}")]
    EndsEarly { offset: u64 },
    #[error("the archive is malformed at byte {offset}: {why}")]
    Malformed { offset: u64, why: &'static str },
    #[error("the compressed archive is malformed behind byte {offset} of what is in it")]
    Compressed { offset: u64, source: io::Error },
    #[error("the member {name:?} has {size} bytes, at most {max} are read")]
    TooLarge { name: String, size: u64, max: u64 },
    #[error("the member {name:?} is {what}, and only regular files are taken")]
    NotAFile { name: String, what: &'static str },
    #[error("the member {name:?} is sparse, and no sparse members are taken")]
    Sparse { name: String },
    #[error("the member {name:?} has the set-id bits {mode:o}, and none are taken")]
    SetId { name: String, mode: u32 },
    #[error("a member is named {pax:?} in its pax header and {plain:?} in its plain one")]
    NamesDisagree { pax: String, plain: String },
    #[error("bytes stand behind the end of the archive, at byte {offset}")]
    Tail { offset: u64 },
}

impl ArchiveError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(_) => ErrorKind::Unavailable,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            _ => ErrorKind::Corrupt,
        }
    }

    /// A stable word for the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io(_) => "stream_unreadable",
            Self::EndsEarly { .. } => "ends_early",
            Self::Malformed { .. } | Self::Compressed { .. } => "archive_malformed",
            Self::TooLarge { .. } => "member_too_large",
            Self::NotAFile { .. } => "member_not_a_file",
            Self::Sparse { .. } => "member_sparse",
            Self::SetId { .. } => "member_set_id",
            Self::NamesDisagree { .. } => "names_disagree",
            Self::Tail { .. } => "bytes_behind_the_end",
        }
    }
}

/// A regular file's header in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub name: String,
    pub size: u64,
    /// Its sender took it back (`BARQUE.status=withdrawn`).
    pub is_withdrawn: bool,
    /// Where its bytes begin, counted from the start of the archive.
    pub offset: u64,
}

/// Reads members in one pass.
pub struct Members<R> {
    source: R,
    offset: u64,
    /// Bytes of the current member that are unread, then its padding to the next block.
    left: u64,
    padding: u64,
}

impl<R: Read> Members<R> {
    pub fn new(source: R) -> Self {
        Self { source, offset: 0, left: 0, padding: 0 }
    }

    /// How many bytes of the archive are read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the current member that are unread.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next member, past what is unread of the current one; `None` at the archive's end.
    pub fn next_member(&mut self) -> Result<Option<Member>, ArchiveError> {
        let mut extensions = Extensions::default();
        for _ in 0..EXTENSIONS_MAX {
            self.skip_rest()?;
            let start = self.offset;
            let malformed = move |why| ArchiveError::Malformed { offset: start, why };
            let Some(header) = self.block()? else {
                return match extensions.is_empty() {
                    true => Ok(None),
                    false => Err(malformed("an extension header stands before nothing")),
                };
            };
            let kind = header.entry_type();
            let size = header.entry_size().map_err(|_| malformed("a size is no number"))?;
            let plain = header.path_bytes().into_owned();
            let shown = printable(&String::from_utf8_lossy(&plain));
            match kind {
                tar::EntryType::XHeader => {
                    self.open_member(size);
                    let bytes = self.bounded(&shown, EXTENSION_MAX_BYTES)?;
                    extensions.pax(&bytes, start)?;
                }
                tar::EntryType::GNULongName => {
                    self.open_member(size);
                    let mut name = self.bounded(&shown, EXTENSION_MAX_BYTES)?;
                    while name.last() == Some(&0) {
                        name.pop();
                    }
                    extensions.name = Some(name);
                }
                tar::EntryType::Regular => {
                    return self.regular(&header, &plain, size, extensions).map(Some);
                }
                kind => {
                    let what = word(kind);
                    return Err(ArchiveError::NotAFile { name: shown, what });
                }
            }
        }
        let why = "too many extension headers in a row";
        Err(ArchiveError::Malformed { offset: self.offset, why })
    }

    fn regular(
        &mut self,
        header: &tar::Header,
        plain: &[u8],
        size: u64,
        extensions: Extensions,
    ) -> Result<Member, ArchiveError> {
        let malformed = |why| ArchiveError::Malformed { offset: self.offset, why };
        let bytes = extensions.name.as_deref().unwrap_or(plain);
        let name = std::str::from_utf8(bytes).map_err(|_| malformed("a name is not UTF-8"))?;
        let name = name.to_owned();
        if extensions.is_sparse {
            return Err(ArchiveError::Sparse { name });
        }
        if extensions.name.is_some() && !names_agree(&name, plain) {
            let plain = String::from_utf8_lossy(plain).into_owned();
            return Err(ArchiveError::NamesDisagree { pax: name, plain });
        }
        // No mode is ever applied; one that is no number says nothing.
        let mode = header.mode().unwrap_or(0);
        if mode & 0o7000 != 0 {
            return Err(ArchiveError::SetId { name, mode: mode & 0o7000 });
        }
        let size = extensions.size.unwrap_or(size);
        self.open_member(size);
        Ok(Member { name, size, is_withdrawn: extensions.is_withdrawn, offset: self.offset })
    }

    /// Bytes of the current member; 0 at its end. Fails when the archive ends inside it.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let n = self.pull(&mut buffer[..want])?;
        if n == 0 {
            return Err(ArchiveError::EndsEarly { offset: self.offset });
        }
        self.left -= n as u64;
        Ok(n)
    }

    /// All that is left of the current member, which may have at most `max` bytes.
    pub fn bounded(&mut self, name: &str, max: u64) -> Result<Vec<u8>, ArchiveError> {
        if self.left > max {
            return Err(ArchiveError::TooLarge { name: name.to_owned(), size: self.left, max });
        }
        let mut bytes = Vec::new();
        let mut buffer = [0u8; 8192];
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(bytes),
                n => bytes.extend_from_slice(&buffer[..n]),
            }
        }
    }

    /// Holds when nothing but the filling of a tar record stands behind the last member.
    pub fn expect_end(&mut self) -> Result<(), ArchiveError> {
        let mut buffer = [0u8; 8192];
        let mut tail = 0;
        loop {
            let offset = self.offset;
            let n = self.pull(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            tail += n as u64;
            if tail > TAIL_MAX_BYTES || buffer[..n].iter().any(|b| *b != 0) {
                return Err(ArchiveError::Tail { offset });
            }
        }
    }

    fn pull(&mut self, buffer: &mut [u8]) -> Result<usize, ArchiveError> {
        loop {
            match self.source.read(buffer) {
                Ok(n) => {
                    self.offset += n as u64;
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A compressed frame that is cut.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(ArchiveError::EndsEarly { offset: self.offset });
                }
                Err(source) if source.kind() == io::ErrorKind::InvalidData => {
                    return Err(ArchiveError::Compressed { offset: self.offset, source });
                }
                Err(e) => return Err(ArchiveError::Io(e)),
            }
        }
    }

    fn skip_rest(&mut self) -> Result<(), ArchiveError> {
        let mut left = self.left.saturating_add(self.padding);
        (self.left, self.padding) = (0, 0);
        let mut buffer = [0u8; 8192];
        while left > 0 {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            match self.pull(&mut buffer[..want])? {
                0 => return Err(ArchiveError::EndsEarly { offset: self.offset }),
                n => left -= n as u64,
            }
        }
        Ok(())
    }

    fn open_member(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    /// One header block; `None` at a zero block or a clean end of the source.
    fn block(&mut self) -> Result<Option<tar::Header>, ArchiveError> {
        let start = self.offset;
        let mut header = tar::Header::new_old();
        let block = header.as_mut_bytes();
        let mut got = 0;
        while got < block.len() {
            match self.pull(&mut block[got..])? {
                0 if got == 0 => return Ok(None),
                0 => return Err(ArchiveError::EndsEarly { offset: self.offset }),
                n => got += n,
            }
        }
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(i, b)| {
                // The checksum field itself counts as spaces.
                if (148..156).contains(&i) { 32 } else { u32::from(*b) }
            })
            .sum();
        match header.cksum() {
            Ok(stated) if stated == sum => Ok(Some(header)),
            _ => {
                let why = "a member's header has a wrong checksum";
                Err(ArchiveError::Malformed { offset: start, why })
            }
        }
    }
}

fn word(kind: tar::EntryType) -> &'static str {
    match kind {
        tar::EntryType::Symlink => "a symbolic link",
        tar::EntryType::Link => "a hard link",
        tar::EntryType::Directory => "a folder",
        tar::EntryType::Char | tar::EntryType::Block => "a device",
        tar::EntryType::Fifo => "a FIFO",
        tar::EntryType::GNUSparse => "a sparse file",
        _ => "of a kind that is not known here",
    }
}

/// Whether a plain header's name is the long name, as writers shorten it: cut at the end of its
/// field, with `?` for what is not ASCII, or named by its digest as this crate does.
fn names_agree(long: &str, plain: &[u8]) -> bool {
    let is_cut_of = |whole: &[u8]| {
        whole == plain || (plain.len() + 1 >= NAME_FIELD_BYTES && whole.starts_with(plain))
    };
    let ascii: String = long.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect();
    is_cut_of(long.as_bytes())
        || is_cut_of(ascii.as_bytes())
        || plain == short_name(long).as_bytes()
}

/// The plain name that this crate gives a member whose own does not fit.
pub(crate) fn short_name(long: &str) -> String {
    format!("pax/{}", Sha256Digest::of(long.as_bytes()))
}

/// What extension headers say of the member behind them; other pax records are passed over.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    is_withdrawn: bool,
    is_sparse: bool,
    any: bool,
}

impl Extensions {
    fn is_empty(&self) -> bool {
        !self.any && self.name.is_none()
    }

    fn pax(&mut self, bytes: &[u8], offset: u64) -> Result<(), ArchiveError> {
        let malformed = || ArchiveError::Malformed { offset, why: "a pax record is malformed" };
        self.any = true;
        for record in tar::PaxExtensions::new(bytes) {
            let record = record.map_err(|_| malformed())?;
            match record.key_bytes() {
                b"path" => self.name = Some(record.value_bytes().to_vec()),
                b"size" => {
                    let text = record.value().map_err(|_| malformed())?;
                    self.size = Some(text.parse().map_err(|_| malformed())?);
                }
                key if key == STATUS.as_bytes() => {
                    self.is_withdrawn = record.value_bytes() == WITHDRAWN.as_bytes();
                }
                key if key.starts_with(b"GNU.sparse") => self.is_sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}
