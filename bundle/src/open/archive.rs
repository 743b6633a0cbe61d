//! An archive of a drive's bundle, read in one pass: head, entries, then the files in their order.

use std::io::{self, BufRead, BufReader, Read, Write};

use super::OpenError;
use crate::archive::{ArchiveError, Member, Members};
use crate::entry::{self, Line, Lines};
use crate::header::{HEADER_MAX_BYTES, Header};
use crate::stream::{DATA, ENTRIES, HEADER, SIGNATURE};

/// Most files of one bundle on a drive.
pub const ENTRIES_MAX: u64 = 10_000_000;
/// How far an archive is read on to say whether a file is missing or out of order.
const LOOK_AHEAD_BYTES: u64 = 256 * 1024 * 1024;

/// What stands first in a bundle: read and bounded, not yet trusted.
#[derive(Clone, Debug)]
pub struct Head {
    pub header: Header,
    /// The exact bytes of `manifest.json`.
    pub bytes: Vec<u8>,
    pub sig: Vec<u8>,
}

impl Head {
    /// Reads a header's bytes; refuses one that declares too many files.
    pub fn parse(bytes: Vec<u8>, sig: Vec<u8>) -> Result<Self, OpenError> {
        let header = Header::parse(&bytes)?;
        if header.entry_count > ENTRIES_MAX {
            return Err(OpenError::TooMany { count: header.entry_count, max: ENTRIES_MAX });
        }
        Ok(Self { header, bytes, sig })
    }
}

/// Opens `entries.jsonl` anew from its start.
pub type Reopen = Box<dyn Fn() -> io::Result<Box<dyn BufRead + Send>> + Send + Sync>;

/// Where `entries.jsonl` lies in an archive.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub offset: u64,
    pub len: u64,
}

/// Reads a bundle's archive; what it gives is checked against what the header declares.
pub struct Archive<R> {
    members: Members<R>,
    /// How many files were met.
    met: u64,
    current: String,
    current_offset: u64,
}

impl<R: Read> Archive<R> {
    pub fn new(source: R) -> Self {
        Self { members: Members::new(source), met: 0, current: String::new(), current_offset: 0 }
    }

    /// Header and signature, with which every archive begins.
    pub fn head(&mut self) -> Result<Head, OpenError> {
        let bytes = self.small(HEADER, HEADER_MAX_BYTES as u64)?;
        let sig = self.small(SIGNATURE, 64)?;
        Head::parse(bytes, sig)
    }

    fn small(&mut self, expected: &'static str, max: u64) -> Result<Vec<u8>, OpenError> {
        self.expect_member(expected)?;
        Ok(self.members.bounded(expected, max)?)
    }

    fn expect_member(&mut self, expected: &'static str) -> Result<Member, OpenError> {
        match self.members.next_member()? {
            Some(member) if member.name == expected => Ok(member),
            None => Err(OpenError::Missing { member: expected.to_owned() }),
            Some(Member { name, .. }) => {
                let is_ours =
                    name.starts_with(DATA) || [HEADER, SIGNATURE, ENTRIES].contains(&name.as_str());
                let expected = expected.to_owned();
                Err(match is_ours {
                    true => OpenError::OutOfOrder { member: name, expected },
                    false => stranger(name),
                })
            }
        }
    }

    /// Reads `entries.jsonl` through, checks it against the header, and hands its bytes on.
    pub fn entries(&mut self, header: &Header, copy: impl Write) -> Result<Span, OpenError> {
        let member = self.expect_member(ENTRIES)?;
        let max = header.entry_count.saturating_mul(entry::LINE_MAX_BYTES as u64);
        if member.size > max {
            let name = ENTRIES.to_owned();
            return Err(ArchiveError::TooLarge { name, size: member.size, max }.into());
        }
        let source = Copied { inner: Current(&mut self.members), copy };
        check(BufReader::with_capacity(64 * 1024, source), header)?;
        Ok(Span { offset: member.offset, len: member.size })
    }

    /// Goes on to the file of this line, which is the next one in path order.
    pub fn file(&mut self, line: &Line, all: &Reopen) -> Result<(), OpenError> {
        let expected = line.member();
        let found = self.members.next_member()?;
        let member = match found {
            Some(member) if member.name == expected => member,
            found => return Err(self.misplaced(found, expected, all)),
        };
        if member.is_withdrawn {
            return Err(OpenError::Withdrawn { member: expected });
        }
        if member.size != line.entry.size_bytes {
            let (declared, found) = (line.entry.size_bytes, member.size);
            return Err(OpenError::Size { member: expected, expected: declared, found });
        }
        self.met += 1;
        (self.current, self.current_offset) = (expected, member.offset);
        Ok(())
    }

    /// Bytes of the current file; 0 at its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, OpenError> {
        Ok(self.members.read(buffer)?)
    }

    /// Name of the current file, and where its bytes begin.
    pub fn current(&self) -> (&str, u64) {
        (&self.current, self.current_offset)
    }

    /// Holds when nothing comes behind the last file.
    pub fn end(&mut self, all: &Reopen) -> Result<(), OpenError> {
        match self.members.next_member()? {
            None => Ok(self.members.expect_end()?),
            Some(member) => Err(self.unexpected(member.name, all)),
        }
    }

    /// Why another member than the expected one stands here.
    fn misplaced(&mut self, found: Option<Member>, expected: String, all: &Reopen) -> OpenError {
        let Some(Member { name, .. }) = found else {
            return OpenError::Missing { member: expected };
        };
        match place(all, &name) {
            Ok(Some(n)) if n > self.met => match self.comes_later(&expected) {
                Ok(Some(true)) => OpenError::OutOfOrder { member: name, expected },
                Ok(Some(false)) => OpenError::Missing { member: expected },
                Ok(None) => OpenError::Misplaced { member: name, expected },
                Err(e) => e,
            },
            _ => self.unexpected(name, all),
        }
    }

    fn unexpected(&self, name: String, all: &Reopen) -> OpenError {
        if [HEADER, SIGNATURE, ENTRIES].contains(&name.as_str()) {
            return OpenError::Twice { member: name };
        }
        match place(all, &name) {
            Ok(Some(_)) => OpenError::Twice { member: name },
            Ok(None) => stranger(name),
            Err(e) => e,
        }
    }

    /// Whether a member comes further on; none when that is too far to say.
    fn comes_later(&mut self, name: &str) -> Result<Option<bool>, OpenError> {
        if self.members.left() > LOOK_AHEAD_BYTES {
            return Ok(None);
        }
        let end = self.members.offset().saturating_add(LOOK_AHEAD_BYTES);
        while let Some(member) = self.members.next_member()? {
            if member.name == name {
                return Ok(Some(true));
            }
            if member.offset.saturating_add(member.size) > end {
                return Ok(None);
            }
        }
        Ok(Some(false))
    }
}

/// A member that no entry names: one that leads elsewhere is called so.
fn stranger(name: String) -> OpenError {
    let leads_out = name.starts_with('/')
        || name.contains('\\')
        || name.split('/').any(|s| s == ".." || s == "." || s.is_empty());
    match leads_out {
        true => OpenError::Escapes { member: name },
        false => OpenError::Undeclared { member: name },
    }
}

/// The place of the line whose member has this name, from 0.
fn place(all: &Reopen, name: &str) -> Result<Option<u64>, OpenError> {
    let source = all().map_err(OpenError::io(ENTRIES))?;
    let mut lines = Lines::new(source, ENTRIES_MAX);
    let mut n = 0;
    while let Some(line) = lines.next_line()? {
        if line.member() == name {
            return Ok(Some(n));
        }
        n += 1;
    }
    Ok(None)
}

/// Reads all lines and holds when they are the ones that the header declares.
pub(super) fn check(source: impl BufRead, header: &Header) -> Result<(), OpenError> {
    let mut lines = Lines::new(source, header.entry_count);
    while lines.next_line()?.is_some() {}
    Ok(header.verify_sums(lines.summing())?)
}

/// The bytes of the current member.
struct Current<'a, R>(&'a mut Members<R>);

impl<R: Read> Read for Current<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(io::Error::other)
    }
}

/// A reader whose bytes are written elsewhere as they are read.
struct Copied<R, W> {
    inner: R,
    copy: W,
}

impl<R: Read, W: Write> Read for Copied<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.copy.write_all(&buffer[..n])?;
        Ok(n)
    }
}
