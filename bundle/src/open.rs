//! Opens and verifies a bundle on a drive: a folder, a tar archive, or one compressed with zstd.
//!
//! In this order, so that everything is checked before bulk and nothing needs memory: head (version,
//! critical names), signature, entries (hash, digest, order, count, path rules), then the files one
//! by one (name, kind, size, SHA-256), then that nothing else is there. The first fault ends it and
//! names the file. docs/BUNDLE.md is the format.

mod archive;
mod error;
mod folder;
mod members;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use archive::{Archive, ENTRIES_MAX, Head, Reopen, Span};
pub use error::OpenError;
pub use folder::{ANSWER, walk};

use crate::entry::Lines;
use crate::platform::{self, Root, Uncached};
use crate::stream::{ENTRIES, Writer};
use members::Way;

/// Largest window that a compressed archive may ask for: 8 MiB, what RFC 8878 (3.1.1.1.2) asks
/// every decoder to support.
const WINDOW_LOG_MAX: u32 = 23;
/// How a zstd frame begins (RFC 8878, 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const BUFFER_BYTES: usize = 256 * 1024;

/// In which form a bundle stands on a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Folder,
    Tar,
    TarZst,
}

impl Form {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Tar => "tar",
            Self::TarZst => "tar.zst",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Folder, Self::Tar, Self::TarZst].into_iter().find(|f| f.as_str() == text)
    }
}

type Source = Box<dyn Read + Send>;

enum Body {
    Folder(Root),
    Archive { archive: Box<Archive<Source>>, form: Form, entries: Option<Span> },
}

/// A bundle whose head was read; nothing of it is trusted before it is verified.
pub struct Bundle {
    pub path: PathBuf,
    pub head: Head,
    body: Body,
}

/// The archive that a reader gives, decompressed when it begins as zstd does.
pub fn decompressed(mut source: impl Read + Send + 'static) -> io::Result<(Source, Form)> {
    let mut first = Vec::new();
    source.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut first)?;
    let is_zstd = first == ZSTD_MAGIC;
    let whole = io::Cursor::new(first).chain(source);
    if !is_zstd {
        return Ok((Box::new(whole), Form::Tar));
    }
    let has_fault = Arc::new(AtomicBool::new(false));
    let whole = Faults { inner: whole, has_fault: Arc::clone(&has_fault) };
    let mut decoder = zstd::stream::read::Decoder::new(whole)?;
    decoder.window_log_max(WINDOW_LOG_MAX)?;
    Ok((Box::new(Decoded { decoder, has_fault }), Form::TarZst))
}

/// Notes whether the source failed, and not what is made of it.
struct Faults<R> {
    inner: R,
    has_fault: Arc<AtomicBool>,
}

impl<R: Read> Read for Faults<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).inspect_err(|_| self.has_fault.store(true, Ordering::Relaxed))
    }
}

/// What comes out of a decoder; what it cannot make sense of is invalid data.
struct Decoded<R> {
    decoder: R,
    has_fault: Arc<AtomicBool>,
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer).map_err(|e| {
            let is_end = e.kind() == io::ErrorKind::UnexpectedEof;
            match is_end || self.has_fault.load(Ordering::Relaxed) {
                true => e,
                false => io::Error::new(io::ErrorKind::InvalidData, e),
            }
        })
    }
}

impl Bundle {
    /// Opens a bundle and reads its head.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let wrap = || OpenError::io(path);
        let found = std::fs::metadata(path).map_err(wrap())?;
        if found.is_dir() {
            let root = Root::open(path).map_err(wrap())?;
            let head = folder::head(&root)?;
            return Ok(Self { path: path.to_owned(), head, body: Body::Folder(root) });
        }
        if !found.is_file() {
            let why = "it is neither a folder nor a regular file".to_owned();
            return Err(OpenError::NotABundle { path: path.to_owned(), why });
        }
        let (source, form) = decompressed(archive_file(path)?).map_err(wrap())?;
        let mut archive = Box::new(Archive::new(source));
        let head = archive.head().map_err(|e| unlike_an_archive(path, e))?;
        Ok(Self {
            path: path.to_owned(),
            head,
            body: Body::Archive { archive, form, entries: None },
        })
    }

    /// A folder whose signature is not on the drive yet, to be read back before it is.
    pub fn unsealed(path: &Path, head: Head) -> Result<Self, OpenError> {
        let root = Root::open(path).map_err(OpenError::io(path))?;
        Ok(Self { path: path.to_owned(), head, body: Body::Folder(root) })
    }

    pub fn form(&self) -> Form {
        match &self.body {
            Body::Folder(_) => Form::Folder,
            Body::Archive { form, .. } => *form,
        }
    }

    /// Holds when the entries are the ones that the header declares; before the files are read.
    pub fn check_entries(&mut self) -> Result<(), OpenError> {
        let header = &self.head.header;
        match &mut self.body {
            Body::Folder(root) => archive::check(folder::entries(root)?, header),
            Body::Archive { archive, entries, .. } => {
                *entries = Some(archive.entries(header, io::sink())?);
                Ok(())
            }
        }
    }

    /// Opens `entries.jsonl` anew, after [`Bundle::check_entries`].
    pub fn entries(&self) -> Reopen {
        let path = self.path.clone();
        match &self.body {
            Body::Folder(_) => Box::new(move || {
                let root = Root::open(&path)?;
                folder::entries(&root).map_err(io::Error::other)
            }),
            Body::Archive { form, entries, .. } => {
                let (form, span) = (*form, entries.unwrap_or(Span { offset: 0, len: 0 }));
                Box::new(move || reopen(&path, form, span))
            }
        }
    }

    /// Reads every file and holds when each is the declared one and nothing else is there; `moved`
    /// hears of bytes as they are checked. Only after [`Bundle::check_entries`].
    pub fn check_members(self, moved: &(dyn Fn(u64) + Sync)) -> Result<(), OpenError> {
        let (all, count) = (self.entries(), self.head.header.entry_count);
        match self.body {
            Body::Folder(root) => {
                folder::nothing_else(&root, count, &all)?;
                members::check_folder(&root, &all, moved, Way::Any)
            }
            Body::Archive { mut archive, .. } => members::check_archive(&mut archive, &all, moved),
        }
    }

    /// [`Bundle::check_members`] of what was just written, past what the system holds in memory;
    /// false when it may have come from there all the same.
    pub fn read_back(self, moved: &(dyn Fn(u64) + Sync)) -> Result<bool, OpenError> {
        let (all, count) = (self.entries(), self.head.header.entry_count);
        match self.body {
            Body::Folder(root) => {
                let is_fresh = AtomicBool::new(true);
                folder::nothing_else(&root, count, &all)?;
                members::check_folder(&root, &all, moved, Way::PastMemory(&is_fresh))?;
                Ok(is_fresh.into_inner())
            }
            Body::Archive { .. } => {
                let (source, is_fresh) = archive_past_memory(&self.path)?;
                let (source, _) = decompressed(source).map_err(OpenError::io(&self.path))?;
                let mut archive = Archive::new(source);
                let head = archive.head()?;
                archive.entries(&head.header, io::sink())?;
                members::check_archive(&mut archive, &all, moved)?;
                Ok(is_fresh)
            }
        }
    }

    /// Writes the bundle as an archive, as it stands; what is missing or has another size is an
    /// error that names the file, all else is the receiver's to find. Only for a folder.
    pub fn write_archive(&self, out: impl Write) -> Result<(), SendError> {
        let Body::Folder(root) = &self.body else {
            let why = "it is an archive already".to_owned();
            return Err(OpenError::NotABundle { path: self.path.clone(), why }.into());
        };
        let all = self.entries();
        folder::nothing_else(root, self.head.header.entry_count, &all)?;
        let entries = folder::open(root, ENTRIES)?;
        let path = || self.path.join(ENTRIES);
        let len = entries.metadata().map_err(OpenError::io(path()))?.len();
        let head = (self.head.bytes.as_slice(), self.head.sig.as_slice());
        let mut writer =
            Writer::start_archive(out, head, (len, entries)).map_err(SendError::Out)?;
        let mut lines = Lines::new(folder::entries(root)?, self.head.header.entry_count);
        while let Some(line) = lines.next_line().map_err(OpenError::from)? {
            let (file, member) = folder::sized(root, &line)?;
            let mut fault = None;
            let file = Noted { inner: file, fault: &mut fault };
            let written = writer.member(&member, line.entry.size_bytes, file);
            if let Some(source) = fault {
                return Err(OpenError::Io { path: root.path().join(member), source }.into());
            }
            written.map_err(SendError::Out)?;
        }
        writer.finish().and_then(|mut out| out.flush()).map_err(SendError::Out)
    }
}

/// Why a bundle could not be sent on.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error(transparent)]
    Bundle(#[from] OpenError),
    /// Whoever takes it does not go on.
    #[error("the archive cannot be written")]
    Out(#[source] io::Error),
}

/// A source whose fault is told apart from that of where its bytes go.
struct Noted<'a, R> {
    inner: R,
    fault: &'a mut Option<io::Error>,
}

impl<R: Read> Read for Noted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.inner.read(buffer) {
            Ok(0) if !buffer.is_empty() => Ok(0),
            Ok(n) => Ok(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let told = io::Error::new(e.kind(), e.to_string());
                *self.fault = Some(e);
                Err(told)
            }
        }
    }
}

fn archive_file(path: &Path) -> Result<BufReader<File>, OpenError> {
    // The path's own last part may be a link: it is what the caller named.
    let real = std::fs::canonicalize(path).map_err(OpenError::io(path))?;
    let file = platform::open_regular(&real).map_err(OpenError::io(path))?;
    Ok(BufReader::with_capacity(BUFFER_BYTES, file))
}

/// An archive's bytes as they come from the drive; false where the system cannot tell.
fn archive_past_memory(path: &Path) -> Result<(Source, bool), OpenError> {
    let wrap = || OpenError::io(path);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let uncached = Root::open(folder).and_then(|root| root.open_uncached(&name)).map_err(wrap())?;
    Ok(match uncached {
        Some(file) => (Box::new(Uncached::new(file).map_err(wrap())?), true),
        None => (Box::new(archive_file(path)?), false),
    })
}

/// A file whose beginning is no archive at all is told so.
fn unlike_an_archive(path: &Path, e: OpenError) -> OpenError {
    use crate::archive::ArchiveError::{EndsEarly, Malformed};
    let why = match &e {
        OpenError::Archive(Malformed { offset: 0, .. } | EndsEarly { offset: 0..512 }) => {
            "it does not begin as an archive does"
        }
        OpenError::Missing { .. } => "it is empty",
        _ => return e,
    };
    OpenError::NotABundle { path: path.to_owned(), why: why.to_owned() }
}

fn reopen(path: &Path, form: Form, span: Span) -> io::Result<Box<dyn BufRead + Send>> {
    let mut file = archive_file(path).map_err(io::Error::other)?;
    if form == Form::Tar {
        file.seek(SeekFrom::Start(span.offset))?;
        return Ok(Box::new(file.take(span.len)));
    }
    let (mut source, _) = decompressed(file)?;
    io::copy(&mut source.by_ref().take(span.offset), &mut io::sink())?;
    Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, source.take(span.len))))
}

#[cfg(test)]
mod tests;
