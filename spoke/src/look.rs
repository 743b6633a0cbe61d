//! A look at one file: is it whole, and what is its digest? Nothing is changed.

use std::io;
use std::time::Duration;

use barque_bundle::platform::Root;
use barque_bundle::{Sha256Digest, Timestamp, door, platform};

use crate::ledger::StatRow;

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
    try_look(root, path).unwrap_or_else(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            Looked::Gone
        }
        _ if platform::is_link(&e) => Looked::Gone,
        _ => Looked::Unreadable(e),
    })
}

fn try_look(root: &Root, path: &str) -> io::Result<Looked> {
    let mut file = root.open_regular(path)?;
    let stat = StatRow::of(&file.metadata()?);
    let judged = match door::check(&mut file) {
        Err(door::DoorError::Io(e)) => return Err(e),
        judged => judged,
    };
    let digest = match &judged {
        Ok(_) => {
            io::Seek::rewind(&mut file)?;
            Some(Sha256Digest::of_reader(&mut file)?)
        }
        Err(_) => None,
    };
    let is_still = |m: io::Result<std::fs::Metadata>| m.map(|m| StatRow::of(&m) == stat);
    if !is_still(file.metadata())? || !is_still(root.metadata(path))? {
        return Ok(Looked::Moving);
    }
    Ok(match (judged, digest) {
        (Err(e), _) => Looked::Held { stat, code: e.code(), detail: e.to_string() },
        (Ok(_), Some((sha256, size))) if size == stat.size_bytes => Looked::Whole { sha256, stat },
        _ => Looked::Moving,
    })
}

/// Whether a file's times are old enough to believe that nobody writes it.
pub fn lies_still(stat: &StatRow, now: Timestamp, settle: Duration) -> bool {
    let newest_ms = stat.mtime_ns.max(stat.ctime_ns).div_euclid(1_000_000);
    let age_ms = now.unix_ms().saturating_sub(newest_ms);
    u64::try_from(age_ms).is_ok_and(|age| Duration::from_millis(age) >= settle)
}
