//! A bundle as one tar stream: `manifest.json`, `manifest.sig`, `entries.jsonl`, then the files.
//!
//! Written as POSIX pax (IEEE 1003.1, pax interchange format); GNU long names are read too.
//! Reading is bounded: no member before the files may exceed its limit, and no size in a member's
//! header makes an allocation.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use crate::archive::{ArchiveError, Members, NAME_FIELD_BYTES, STATUS, WITHDRAWN, short_name};
use crate::entry::{self, EntriesError, Entry};
use crate::error::ErrorKind;
use crate::header::{HEADER_MAX_BYTES, Header, HeaderError, Signed};
use crate::path::FilePath;

/// Bytes of a tar block.
const BLOCK: usize = 512;
/// The media type of a bundle stream.
pub const MEDIA_TYPE: &str = "application/vnd.barque.bundle+tar";
/// Most entries of one stream.
pub const STREAM_ENTRIES_MAX: u64 = 1000;
/// What stands before a file's path in its member's name.
pub const DATA: &str = "data/";
/// Names of the members before the files, in their order.
pub const HEADER: &str = "manifest.json";
pub const SIGNATURE: &str = "manifest.sig";
pub const ENTRIES: &str = "entries.jsonl";

/// Why a stream is not a bundle.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("the stream ends early: {missing} of {declared} files did not come")]
    EndsEarly { missing: usize, declared: u64 },
    #[error("expected the member {expected}, found {found:?}")]
    Member { expected: &'static str, found: String },
    #[error("the member {name:?} is not declared in entries.jsonl")]
    Undeclared { name: String },
    #[error("the member {name:?} comes twice")]
    Twice { name: String },
    #[error("the member {name:?} has {found} bytes where {declared} are declared")]
    Size { name: String, declared: u64, found: u64 },
    #[error("a bundle stream holds at most {STREAM_ENTRIES_MAX} files, this one declares {0}")]
    TooManyEntries(u64),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error(transparent)]
    Header(#[from] HeaderError),
    #[error(transparent)]
    Entries(#[from] EntriesError),
}

impl StreamError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TooManyEntries(_) => ErrorKind::TooLarge,
            Self::Archive(e) => e.kind(),
            Self::Header(e) => e.kind(),
            _ => ErrorKind::Corrupt,
        }
    }

    /// A stable word for the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::EndsEarly { .. } => "stream_ends_early",
            Self::Member { .. } => "unexpected_member",
            Self::Undeclared { .. } => "undeclared_member",
            Self::Twice { .. } => "duplicate_member",
            Self::Size { .. } => "member_size",
            Self::TooManyEntries(_) => "too_many_entries",
            Self::Archive(e) => e.code(),
            Self::Header(e) => e.code(),
            Self::Entries(_) => "entries_malformed",
        }
    }
}

/// Bytes of a file that are read at once.
const COPY_BYTES: usize = 128 * 1024;

/// Writes a bundle stream member by member; memory is one buffer.
pub struct Writer<W: Write> {
    tar: tar::Builder<W>,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// Starts a stream: header, signature and entries go out.
    pub fn start(out: W, header: &Signed<Header>, entries: &[Entry]) -> io::Result<Self> {
        let mut writer = Self::empty(out);
        let entries = entry::to_jsonl(entries);
        writer.preamble(&header.bytes, &header.sig, (entries.len() as u64, entries.as_slice()))?;
        Ok(writer)
    }

    /// An archive with nothing in it yet.
    pub fn empty(out: W) -> Self {
        Self { tar: tar::Builder::new(out), buffer: vec![0; COPY_BYTES] }
    }

    /// Starts the archive of a bundle on a drive; `entries` are the length and the bytes of
    /// `entries.jsonl`.
    pub fn start_archive(
        out: W,
        (header, sig): (&[u8], &[u8]),
        entries: (u64, impl Read),
    ) -> io::Result<Self> {
        let mut writer = Self::empty(out);
        writer.preamble(header, sig, entries)?;
        Ok(writer)
    }

    fn preamble(
        &mut self,
        header: &[u8],
        sig: &[u8],
        (len, entries): (u64, impl Read),
    ) -> io::Result<()> {
        self.append(HEADER, header.len() as u64, &[], header)?;
        self.append(SIGNATURE, sig.len() as u64, &[], sig)?;
        self.append(ENTRIES, len, &[], entries.take(len))
    }

    /// Adds a member of a bundle on a drive, whose source has exactly `size` bytes.
    pub fn member(&mut self, name: &str, size: u64, source: impl Read) -> io::Result<()> {
        let mut source = Counted { inner: source.take(size), left: size };
        self.append(name, size, &[], &mut source)?;
        match source.left {
            0 => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends one file. A source that is shorter than declared, or cannot be read to its end, is
    /// filled with zeros, so that the stream stays whole for the other files and the hub's hash
    /// says `mismatch`.
    pub fn file(&mut self, entry: &Entry, source: impl Read) -> io::Result<()> {
        let mut exact = Exact { inner: source, left: entry.size_bytes };
        self.append(&format!("{DATA}{}", entry.path), entry.size_bytes, &[], &mut exact)
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
        let plain = name.len() <= NAME_FIELD_BYTES && name.is_ascii();
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
        let short = if plain { name.to_owned() } else { short_name(name) };
        set_name(&mut header, &short);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_cksum();
        self.tar.get_mut().write_all(header.as_bytes())?;
        self.copy(data)
    }

    /// The bytes of a member and its padding, in as few pieces as may be.
    fn copy(&mut self, mut data: impl Read) -> io::Result<()> {
        let out = self.tar.get_mut();
        let mut copied = 0;
        loop {
            match data.read(&mut self.buffer) {
                Ok(0) => break,
                Ok(n) => {
                    out.write_all(&self.buffer[..n])?;
                    copied += n;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        out.write_all(&[0; BLOCK][..copied.next_multiple_of(BLOCK) - copied])
    }
}

/// Puts the name into the header as it is; `Header::set_path` would tidy it up.
fn set_name(header: &mut tar::Header, name: &str) {
    let field = &mut header.as_old_mut().name;
    field.fill(0);
    field[..name.len()].copy_from_slice(name.as_bytes());
}

/// A source that counts what is left of it.
struct Counted<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left -= n as u64;
        Ok(n)
    }
}

/// Exactly `left` bytes of a source, zeros after its end or first fault.
struct Exact<R> {
    inner: R,
    left: u64,
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
    members: Members<R>,
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

impl<R: Read> Reader<R> {
    pub fn new(source: R) -> Self {
        Self { members: Members::new(source), expected: BTreeMap::new(), declared: 0 }
    }

    /// Reads header, signature and the bytes of the entries; the caller verifies them next.
    pub fn preamble(&mut self) -> Result<Preamble, StreamError> {
        let header_bytes = self.small(HEADER, HEADER_MAX_BYTES as u64)?;
        let header = Header::parse(&header_bytes)?;
        if header.entry_count > STREAM_ENTRIES_MAX {
            return Err(StreamError::TooManyEntries(header.entry_count));
        }
        let sig = self.small(SIGNATURE, 64)?;
        let max = header.entry_count * entry::LINE_MAX_BYTES as u64;
        let entries_jsonl = self.small(ENTRIES, max)?;
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
        let Some(raw) = self.members.next_member()? else {
            return match self.expected.len() {
                0 => Ok(None),
                missing => Err(StreamError::EndsEarly { missing, declared: self.declared }),
            };
        };
        let undeclared = || StreamError::Undeclared { name: raw.name.clone() };
        let path: FilePath =
            raw.name.strip_prefix(DATA).and_then(|p| p.parse().ok()).ok_or_else(undeclared)?;
        let entry = self.expected.remove(&path).ok_or_else(undeclared)?;
        if raw.is_withdrawn && raw.size == 0 {
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
        Ok(self.members.read(buffer)?)
    }

    fn small(&mut self, expected: &'static str, max: u64) -> Result<Vec<u8>, StreamError> {
        let found = self.members.next_member()?.map_or_else(String::new, |m| m.name);
        if found != expected {
            return Err(StreamError::Member { expected, found });
        }
        Ok(self.members.bounded(expected, max)?)
    }
}

#[cfg(test)]
#[path = "stream/tests.rs"]
mod tests;
