//! A look at one file: is it whole, and what is its digest? Nothing is changed.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::time::Duration;

use barque_bundle::platform::Root;
use barque_bundle::{Sha256Digest, Timestamp, door, platform};

use crate::ledger::StatRow;

/// Files up to this size are in memory while they are looked at.
const IN_MEMORY_BYTES: u64 = 256 * 1024;

/// What a look found.
#[derive(Debug)]
pub enum Looked {
    /// A whole Parquet file that lay still while it was read.
    Whole {
        sha256: Sha256Digest,
        stat: StatRow,
    },
    /// Still, and not a whole Parquet file.
    Held {
        stat: StatRow,
        code: &'static str,
        detail: String,
    },
    /// It changed while it was read.
    Moving,
    /// There is no such file any more, or no regular one.
    Gone,
    Unreadable(io::Error),
}

/// Reads the file once: door rule, then digest, with its stat compared before and after.
pub fn look(root: &Root, path: &str) -> Looked {
    look_at(root, path, None)
}

/// [`look`], at a file that may be open already, and what it was when it was opened.
pub fn look_at(root: &Root, path: &str, opened: Option<(File, Metadata)>) -> Looked {
    try_look(root, path, opened).unwrap_or_else(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            Looked::Gone
        }
        _ if platform::is_link(&e) => Looked::Gone,
        _ => Looked::Unreadable(e),
    })
}

fn try_look(root: &Root, path: &str, opened: Option<(File, Metadata)>) -> io::Result<Looked> {
    let (mut file, metadata) = match opened {
        Some(opened) => opened,
        None => root.open_with_metadata(path)?,
    };
    let stat = StatRow::of(&metadata);
    let (judged, digest) = match stat.size_bytes <= IN_MEMORY_BYTES {
        true => read_small(file.by_ref(), stat.size_bytes)?,
        false => read_large(&mut file)?,
    };
    let is_still = |m: io::Result<Metadata>| m.map(|m| StatRow::of(&m) == stat);
    if !is_still(file.metadata())? || !is_still(root.metadata(path))? {
        return Ok(Looked::Moving);
    }
    Ok(match (judged, digest) {
        (Err(e), _) => Looked::Held { stat, code: e.code(), detail: e.to_string() },
        (Ok(_), Some((sha256, size))) if size == stat.size_bytes => Looked::Whole { sha256, stat },
        _ => Looked::Moving,
    })
}

/// The door rule's word, and the digest and size of a file that keeps it.
type Read = (Result<door::Kind, door::DoorError>, Option<(Sha256Digest, u64)>);

/// A file that is read at once.
fn read_small(file: impl io::Read, size: u64) -> io::Result<Read> {
    // One byte more shows that it grew.
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    file.take(size + 1).read_to_end(&mut bytes)?;
    let judged = door::check(&mut io::Cursor::new(&bytes));
    let digest = judged.is_ok().then(|| (Sha256Digest::of(&bytes), bytes.len() as u64));
    Ok((judged, digest))
}

fn read_large(file: &mut (impl io::Read + io::Seek)) -> io::Result<Read> {
    let judged = match door::check(file) {
        Err(door::DoorError::Io(e)) => return Err(e),
        judged => judged,
    };
    if judged.is_err() {
        return Ok((judged, None));
    }
    file.rewind()?;
    let digest = Sha256Digest::of_reader(file)?;
    Ok((judged, Some(digest)))
}

/// Whether a file's times are old enough to believe that nobody writes it.
pub fn lies_still(stat: &StatRow, now: Timestamp, settle: Duration) -> bool {
    let newest_ms = stat.mtime_ns.max(stat.ctime_ns).div_euclid(1_000_000);
    let age_ms = now.unix_ms().saturating_sub(newest_ms);
    u64::try_from(age_ms).is_ok_and(|age| Duration::from_millis(age) >= settle)
}
