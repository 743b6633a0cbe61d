//! A look at one file: is it whole, and what is its digest? Nothing is changed.

use std::io;
use std::path::Path;

use barque_bundle::{Sha256Digest, door, platform};

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
pub fn look(path: &Path) -> Looked {
    try_look(path).unwrap_or_else(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            Looked::Gone
        }
        _ if platform::is_link(&e) => Looked::Gone,
        _ => Looked::Unreadable(e),
    })
}

fn try_look(path: &Path) -> io::Result<Looked> {
    let mut file = platform::open_regular(path)?;
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
    if StatRow::of(&file.metadata()?) != stat
        || StatRow::of(&std::fs::symlink_metadata(path)?) != stat
    {
        return Ok(Looked::Moving);
    }
    Ok(match (judged, digest) {
        (Err(e), _) => Looked::Held { stat, code: e.code(), detail: e.to_string() },
        (Ok(_), Some((sha256, size))) if size == stat.size_bytes => Looked::Whole { sha256, stat },
        _ => Looked::Moving,
    })
}
