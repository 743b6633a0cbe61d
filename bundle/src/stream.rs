//! A bundle as one tar stream: `manifest.json`, `manifest.sig`, `entries.jsonl`, then the files.
//!
//! Written as POSIX pax (IEEE 1003.1, pax interchange format); GNU long names are read too.
//! Reading is bounded: no member before the files may exceed its limit, and no size in a member's
//! header makes an allocation.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use crate::digest::{Hasher, Sha256Digest};
use crate::entry::{self, EntriesError, Entry};
use crate::error::ErrorKind;
use crate::header::{HEADER_MAX_BYTES, Header, HeaderError, Signed};
use crate::path::FilePath;

/// The media type of a bundle stream.
pub const MEDIA_TYPE: &str = "application/vnd.barque.bundle+tar";
/// Most entries of one stream.
pub const STREAM_ENTRIES_MAX: u64 = 1000;
const DATA: &str = "data/";
const STATUS: &str = "BARQUE.status";
const WITHDRAWN: &str = "withdrawn";
/// Largest pax header or GNU long name that is read, in bytes.
const EXTENSION_MAX_BYTES: u64 = 64 * 1024;
/// Longest name that every tar reader takes from the plain header, in bytes.
const PLAIN_NAME_MAX: usize = 100;

/// Why a stream is not a bundle.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the stream cannot be read")]
    Io(#[source] io::Error),
    #[error("the stream ends early: {missing} of {declared} files did not come")]
    EndsEarly { missing: usize, declared: u64 },
    #[error("expected the member {expected}, found {found:?}")]
    Member { expected: &'static str, found: String },
    #[error("the member {name:?} has {size} bytes, at most {max} are read")]
    MemberTooLarge { name: String, size: u64, max: u64 },
    #[error("the member {name:?} is not a regular file")]
    NotAFile { name: String },
    #[error("the member {name:?} is not declared in entries.jsonl")]
    Undeclared { name: String },
    #[error("the member {name:?} comes twice")]
    Twice { name: String },
    #[error("the member {name:?} has {found} bytes where {declared} are declared")]
    Size { name: String, declared: u64, found: u64 },
    #[error("a bundle stream holds at most {STREAM_ENTRIES_MAX} files, this one declares {0}")]
    TooManyEntries(u64),
    #[error("the archive is malformed: {0}")]
    Archive(String),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Entries(#[from] EntriesError),
}

impl StreamError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Io(_) => ErrorKind::Unavailable,
            Self::MemberTooLarge { .. } | Self::TooManyEntries(_) => ErrorKind::TooLarge,
            Self::Header(e) => e.kind(),
            _ => ErrorKind::Corrupt,
        }
    }

    /// A stable word for the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io(_) => "stream_unreadable",
            Self::EndsEarly { .. } => "stream_ends_early",
            Self::Member { .. } => "unexpected_member",
            Self::MemberTooLarge { .. } => "member_too_large",
            Self::NotAFile { .. } => "member_not_a_file",
            Self::Undeclared { .. } => "undeclared_member",
            Self::Twice { .. } => "duplicate_member",
            Self::Size { .. } => "member_size",
            Self::TooManyEntries(_) => "too_many_entries",
            Self::Archive(_) => "archive_malformed",
            Self::Header(e) => e.code(),
            Self::Entries(_) => "entries_malformed",
        }
    }
}

/// Writes a bundle stream member by member; memory is one buffer.
pub struct Writer<W: Write> {
    tar: tar::Builder<W>,
}

impl<W: Write> Writer<W> {
    /// Starts a stream: header, signature and entries go out.
    pub fn start(out: W, header: &Signed<Header>, entries: &[Entry]) -> io::Result<Self> {
        let mut writer = Self { tar: tar::Builder::new(out) };
        writer.member("manifest.json", &header.bytes)?;
        writer.member("manifest.sig", &header.sig)?;
        writer.member("entries.jsonl", &entry::to_jsonl(entries))?;
        Ok(writer)
    }

    fn member(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.append(name, bytes.len() as u64, &[], bytes)
    }

    /// Sends one file. A source that is shorter than declared, or cannot be read to its end, is
    /// filled with zeros, so that the stream stays whole for the other files and the hub's hash
    /// says `mismatch`; the digest of what was sent returns.
    pub fn file(&mut self, entry: &Entry, source: impl Read) -> io::Result<Sha256Digest> {
        let mut exact = Exact { inner: source, left: entry.size_bytes, hasher: Hasher::new() };
        let name = format!("{DATA}{}", entry.path);
        self.append(&name, entry.size_bytes, &[], &mut exact)?;
        Ok(exact.hasher.finish())
    }

    /// Says that a declared file does not come after all.
    pub fn withdrawn(&mut self, entry: &Entry) -> io::Result<()> {
        let record = (STATUS, WITHDRAWN.as_bytes());
        self.append(&format!("{DATA}{}", entry.path), 0, &[record], io::empty())
    }

    /// Ends the archive and gives the writer back.
    pub fn finish(self) -> io::Result<W> {
        self.tar.into_inner()
    }

    fn append(
        &mut self,
        name: &str,
        size: u64,
        records: &[(&str, &[u8])],
        data: impl Read,
    ) -> io::Result<()> {
        let plain = name.len() <= PLAIN_NAME_MAX && name.is_ascii();
        let size_text = size.to_string();
        let mut pax: Vec<(&str, &[u8])> = records.to_vec();
        if !plain {
            pax.push(("path", name.as_bytes()));
        }
        // The plain header's octal field ends at 8 GiB.
        if size >= 1 << 33 {
            pax.push(("size", size_text.as_bytes()));
        }
        self.tar.append_pax_extensions(pax)?;
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Regular);
        let short = if plain {
            name.to_owned()
        } else {
            format!("pax/{}", Sha256Digest::of(name.as_bytes()))
        };
        set_name(&mut header, &short);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_cksum();
        self.tar.append(&header, data)
    }
}

/// Puts the name into the header as it is; `Header::set_path` would tidy it up.
fn set_name(header: &mut tar::Header, name: &str) {
    let field = &mut header.as_old_mut().name;
    field.fill(0);
    field[..name.len()].copy_from_slice(name.as_bytes());
}

/// Exactly `left` bytes of a source, zeros after its end or first fault, hashed on the way.
struct Exact<R> {
    inner: R,
    left: u64,
    hasher: Hasher,
}

impl<R: Read> Read for Exact<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let mut n = match self.inner.read(&mut buffer[..want]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(e),
            other => other.unwrap_or(0),
        };
        if n == 0 {
            buffer[..want].fill(0);
            n = want;
        }
        self.left -= n as u64;
        self.hasher.update(&buffer[..n]);
        Ok(n)
    }
}

/// One file of a stream as it arrives.
pub enum Member {
    /// Its bytes are read with [`Reader::read`].
    File(Entry),
    /// The spoke took it back.
    Withdrawn(Entry),
}

/// Reads a bundle stream in one pass.
pub struct Reader<R: Read> {
    source: R,
    /// Bytes of the current member that are unread, then its padding to the next block.
    left: u64,
    padding: u64,
    expected: BTreeMap<FilePath, Entry>,
    declared: u64,
}

/// What stands before the files: read and bounded, not yet trusted.
pub struct Preamble {
    pub header: Header,
    pub header_bytes: Vec<u8>,
    pub sig: Vec<u8>,
    pub entries_jsonl: Vec<u8>,
}

struct RawMember {
    name: String,
    size: u64,
    withdrawn: bool,
}

const BLOCK: u64 = 512;

impl<R: Read> Reader<R> {
    pub fn new(source: R) -> Self {
        Self { source, left: 0, padding: 0, expected: BTreeMap::new(), declared: 0 }
    }

    /// Reads header, signature and the bytes of the entries; the caller verifies them next.
    pub fn preamble(&mut self) -> Result<Preamble, StreamError> {
        let header_bytes = self.small("manifest.json", HEADER_MAX_BYTES as u64)?;
        let header = Header::parse(&header_bytes)?;
        if header.entry_count > STREAM_ENTRIES_MAX {
            return Err(StreamError::TooManyEntries(header.entry_count));
        }
        let sig = self.small("manifest.sig", 64)?;
        let max = header.entry_count * entry::LINE_MAX_BYTES as u64;
        let entries_jsonl = self.small("entries.jsonl", max)?;
        Ok(Preamble { header, header_bytes, sig, entries_jsonl })
    }

    /// Checks the entries against the (verified) header and expects exactly these files.
    pub fn expect_entries(&mut self, preamble: &Preamble) -> Result<Vec<Entry>, StreamError> {
        let entries =
            entry::from_jsonl(preamble.entries_jsonl.as_slice(), preamble.header.entry_count)?;
        preamble.header.verify_entries(&preamble.entries_jsonl, &entries)?;
        self.declared = preamble.header.entry_count;
        self.expected = entries.iter().map(|e| (e.path.clone(), e.clone())).collect();
        Ok(entries)
    }

    /// The next file, or `None` at the end of a stream in which every entry came once.
    pub fn next_member(&mut self) -> Result<Option<Member>, StreamError> {
        self.skip_rest()?;
        let Some(raw) = self.raw_member()? else {
            return match self.expected.len() {
                0 => Ok(None),
                missing => Err(StreamError::EndsEarly { missing, declared: self.declared }),
            };
        };
        let undeclared = || StreamError::Undeclared { name: raw.name.clone() };
        let path: FilePath =
            raw.name.strip_prefix(DATA).and_then(|p| p.parse().ok()).ok_or_else(undeclared)?;
        let entry = self.expected.remove(&path).ok_or_else(undeclared)?;
        if raw.withdrawn && raw.size == 0 {
            return Ok(Some(Member::Withdrawn(entry)));
        }
        if raw.size != entry.size_bytes {
            let (declared, found) = (entry.size_bytes, raw.size);
            return Err(StreamError::Size { name: raw.name, declared, found });
        }
        Ok(Some(Member::File(entry)))
    }

    /// Bytes of the current file; 0 at its end. Fails when the stream ends inside it.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, StreamError> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        let n = self.source.read(&mut buffer[..want]).map_err(StreamError::Io)?;
        if n == 0 {
            return Err(StreamError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        self.left -= n as u64;
        Ok(n)
    }

    fn skip_rest(&mut self) -> Result<(), StreamError> {
        let n = self.left + self.padding;
        let skipped =
            io::copy(&mut (&mut self.source).take(n), &mut io::sink()).map_err(StreamError::Io)?;
        if skipped != n {
            return Err(StreamError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }

    fn small(&mut self, expected: &'static str, max: u64) -> Result<Vec<u8>, StreamError> {
        self.skip_rest()?;
        let raw = self.raw_member()?;
        let found = raw.as_ref().map_or_else(String::new, |m| m.name.clone());
        if found != expected {
            return Err(StreamError::Member { expected, found });
        }
        self.bounded(&found, self.left, max)
    }

    /// All of the current member, which may have at most `max` bytes.
    fn bounded(&mut self, name: &str, size: u64, max: u64) -> Result<Vec<u8>, StreamError> {
        if size > max {
            return Err(StreamError::MemberTooLarge { name: name.to_owned(), size, max });
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

    /// The next real member, its pax records and GNU long name applied; `None` at the end.
    fn raw_member(&mut self) -> Result<Option<RawMember>, StreamError> {
        let mut long_name: Option<Vec<u8>> = None;
        let mut pax = Pax::default();
        loop {
            self.skip_rest()?;
            let Some(header) = self.block()? else {
                return Ok(None);
            };
            let size = header.entry_size().map_err(|e| StreamError::Archive(e.to_string()))?;
            let kind = header.entry_type();
            let own_name = String::from_utf8_lossy(&header.path_bytes()).into_owned();
            self.open_member(if is_extension(kind) { size } else { pax.size.unwrap_or(size) });
            match kind {
                tar::EntryType::XHeader => {
                    pax = Pax::parse(&self.bounded(&own_name, size, EXTENSION_MAX_BYTES)?)?;
                }
                tar::EntryType::GNULongName => {
                    let mut name = self.bounded(&own_name, size, EXTENSION_MAX_BYTES)?;
                    while name.last() == Some(&0) {
                        name.pop();
                    }
                    long_name = Some(name);
                }
                tar::EntryType::Regular => {
                    let name = match pax.path.or(long_name) {
                        Some(bytes) => String::from_utf8(bytes)
                            .map_err(|_| StreamError::Archive("a name is not UTF-8".into()))?,
                        None => own_name,
                    };
                    let size = self.left;
                    return Ok(Some(RawMember { name, size, withdrawn: pax.withdrawn }));
                }
                _ => return Err(StreamError::NotAFile { name: own_name }),
            }
        }
    }

    fn open_member(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK - size % BLOCK) % BLOCK;
    }

    /// One header block; `None` at a zero block or a clean end of the source.
    fn block(&mut self) -> Result<Option<tar::Header>, StreamError> {
        let mut header = tar::Header::new_old();
        let block = header.as_mut_bytes();
        let mut got = 0;
        while got < block.len() {
            match self.source.read(&mut block[got..]).map_err(StreamError::Io)? {
                0 if got == 0 => return Ok(None),
                0 => return Err(StreamError::Io(io::ErrorKind::UnexpectedEof.into())),
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
            _ => Err(StreamError::Archive("a member's header has a wrong checksum".into())),
        }
    }
}

fn is_extension(kind: tar::EntryType) -> bool {
    matches!(kind, tar::EntryType::XHeader | tar::EntryType::GNULongName)
}

/// The pax records that count here; all others are passed over.
#[derive(Default)]
struct Pax {
    path: Option<Vec<u8>>,
    size: Option<u64>,
    withdrawn: bool,
}

impl Pax {
    fn parse(bytes: &[u8]) -> Result<Self, StreamError> {
        let malformed = || StreamError::Archive("a pax record is malformed".into());
        let mut pax = Self::default();
        for record in tar::PaxExtensions::new(bytes) {
            let record = record.map_err(|_| malformed())?;
            match record.key_bytes() {
                b"path" => pax.path = Some(record.value_bytes().to_vec()),
                b"size" => {
                    let text = record.value().map_err(|_| malformed())?;
                    pax.size = Some(text.parse().map_err(|_| malformed())?);
                }
                key if key == STATUS.as_bytes() => {
                    pax.withdrawn = record.value_bytes() == WITHDRAWN.as_bytes();
                }
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(StreamError::Archive("a member is sparse".into()));
                }
                _ => {}
            }
        }
        Ok(pax)
    }
}

#[cfg(test)]
#[path = "stream/tests.rs"]
mod tests;
