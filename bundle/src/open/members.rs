//! Hashes the files of a bundle against their entries, on as many threads as are worth it.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

use super::{Archive, ENTRIES_MAX, OpenError, Reopen, folder};
use crate::digest::{Hasher, Sha256Digest};
use crate::entry::{Line, Lines};
use crate::platform::{Root, Uncached};
use crate::stream::ENTRIES;

/// Small enough to stay in the cache between the reading and the hashing of it.
const BUFFER_BYTES: usize = 64 * 1024;
/// Files, or pieces of them, that wait for a thread.
const WAITING: usize = 32;
/// Threads that hash the files of a folder.
const THREADS_MAX: usize = 8;

type Moved<'a> = &'a (dyn Fn(u64) + Sync);

fn digest_error(member: &str, line: &Line, found: Sha256Digest, at: Option<u64>) -> OpenError {
    let (member, expected) = (member.to_owned(), line.entry.sha256);
    OpenError::Digest { member, expected, found, offset: at }
}

/// Every file of a folder; of several faults the first in path order is told.
pub(super) fn check_folder(
    root: &Root,
    all: &Reopen,
    moved: Moved<'_>,
    way: Way<'_>,
) -> Result<(), OpenError> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, THREADS_MAX);
    let (out, lines) = mpsc::sync_channel::<(u64, Line)>(WAITING);
    let lines = Mutex::new(lines);
    let fault: Mutex<Option<(u64, OpenError)>> = Mutex::new(None);
    let has_fault = AtomicBool::new(false);
    let note = |n: u64, e: OpenError| {
        let mut first = fault.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(at, _)| n < *at) {
            *first = Some((n, e));
        }
        has_fault.store(true, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffers = Buffers { plain: vec![0u8; BUFFER_BYTES], uncached: Vec::new() };
                loop {
                    let next = lines.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((n, line)) = next else { return };
                    if let Err(e) = check_file(root, &line, &mut buffers, moved, way) {
                        note(n, e);
                    }
                }
            });
        }
        hand_out(all, &out, &has_fault).unwrap_or_else(|(n, e)| note(n, e));
        drop(out);
    });
    match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some((_, e)) => Err(e),
        None => Ok(()),
    }
}

/// Gives each line to a thread, until there is a fault: what waits before it is still looked at.
fn hand_out(
    all: &Reopen,
    out: &mpsc::SyncSender<(u64, Line)>,
    has_fault: &AtomicBool,
) -> Result<(), (u64, OpenError)> {
    let source = all().map_err(|e| (0, OpenError::io(ENTRIES)(e)))?;
    let mut lines = Lines::new(source, ENTRIES_MAX);
    for n in 0.. {
        let line = lines.next_line().map_err(|e| (n, e.into()))?;
        let Some(line) = line.filter(|_| !has_fault.load(Ordering::Relaxed)) else { break };
        if out.send((n, line)).is_err() {
            break;
        }
    }
    Ok(())
}

fn check_file(
    root: &Root,
    line: &Line,
    buffers: &mut Buffers,
    moved: Moved<'_>,
    way: Way<'_>,
) -> Result<(), OpenError> {
    let (file, member) = folder::sized(root, line)?;
    let wrap = || OpenError::io(root.path().join(&member));
    let uncached = match way {
        Way::Any => None,
        Way::PastMemory(_) => root.open_uncached(&member).map_err(wrap())?,
    };
    let hashed = match (uncached, way) {
        (Some(uncached), _) => {
            drop(file);
            let kept = std::mem::take(&mut buffers.uncached);
            let mut reader = Uncached::with_buffer(uncached, kept).map_err(wrap())?;
            let hashed = hash(&mut reader, &mut buffers.plain, moved);
            buffers.uncached = reader.into_buffer();
            hashed
        }
        (None, way) => {
            if let Way::PastMemory(is_fresh) = way {
                is_fresh.store(false, Ordering::Relaxed);
            }
            hash(file, &mut buffers.plain, moved)
        }
    };
    let (found, size) = hashed.map_err(wrap())?;
    if size != line.entry.size_bytes {
        return Err(OpenError::Size { member, expected: line.entry.size_bytes, found: size });
    }
    match found == line.entry.sha256 {
        true => Ok(()),
        false => Err(digest_error(&member, line, found, None)),
    }
}

/// How files are read.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    Any,
    /// From the drive; false is left where that cannot be told.
    PastMemory(&'a AtomicBool),
}

struct Buffers {
    plain: Vec<u8>,
    uncached: Vec<u8>,
}

fn hash(
    mut file: impl Read,
    buffer: &mut [u8],
    moved: Moved<'_>,
) -> std::io::Result<(Sha256Digest, u64)> {
    let mut hasher = Hasher::new();
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok((hasher.finish(), hasher.len())),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                moved(n as u64);
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// Every file of an archive, in its order: this thread reads, another one hashes.
pub(super) fn check_archive(
    archive: &mut Archive<impl Read>,
    all: &Reopen,
    moved: Moved<'_>,
) -> Result<(), OpenError> {
    let (out, pieces) = mpsc::sync_channel(WAITING);
    let (back, used) = mpsc::channel();
    std::thread::scope(|scope| {
        let hashing = scope.spawn(move || hash_pieces(&pieces, &back));
        let read = read_pieces(archive, all, &out, &used, moved);
        drop(out);
        let hashed = hashing.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
        // What was hashed comes before what was being read.
        hashed.and(read)
    })
}

enum Piece {
    Bytes(Vec<u8>, usize),
    /// A file is through.
    End(Box<Line>, u64),
}

fn read_pieces(
    archive: &mut Archive<impl Read>,
    all: &Reopen,
    out: &mpsc::SyncSender<Piece>,
    used: &mpsc::Receiver<Vec<u8>>,
    moved: Moved<'_>,
) -> Result<(), OpenError> {
    let mut lines = Lines::new(all().map_err(OpenError::io(ENTRIES))?, ENTRIES_MAX);
    let mut spare: Option<Vec<u8>> = None;
    while let Some(line) = lines.next_line()? {
        archive.file(&line, all)?;
        let (_, offset) = archive.current();
        loop {
            let mut buffer = spare
                .take()
                .or_else(|| used.try_recv().ok())
                .unwrap_or_else(|| vec![0; BUFFER_BYTES]);
            let n = archive.read(&mut buffer)?;
            if n == 0 {
                spare = Some(buffer);
                break;
            }
            moved(n as u64);
            if out.send(Piece::Bytes(buffer, n)).is_err() {
                return Ok(());
            }
        }
        if out.send(Piece::End(Box::new(line), offset)).is_err() {
            return Ok(());
        }
    }
    archive.end(all)
}

fn hash_pieces(
    pieces: &mpsc::Receiver<Piece>,
    back: &mpsc::Sender<Vec<u8>>,
) -> Result<(), OpenError> {
    let mut hasher = Hasher::new();
    for piece in pieces {
        match piece {
            Piece::Bytes(buffer, n) => {
                hasher.update(&buffer[..n]);
                let _ = back.send(buffer);
            }
            Piece::End(line, offset) => {
                let found = std::mem::take(&mut hasher).finish();
                if found != line.entry.sha256 {
                    return Err(digest_error(&line.member(), &line, found, Some(offset)));
                }
            }
        }
    }
    Ok(())
}
