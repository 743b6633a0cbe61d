//! One file of a bundle, and the digest and text form of a set of them.

use std::io::{self, BufRead};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::{Hasher, Sha256Digest};
use crate::path::FilePath;
use crate::time::Timestamp;

/// What a spoke declares of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    pub path: FilePath,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    /// The file's number in the header's series.
    pub seq: u64,
    /// The file's modification time on the spoke; information only.
    pub modified_at: Timestamp,
}

/// Longest line of `entries.jsonl` that is read, in bytes.
pub const LINE_MAX_BYTES: usize = 16 * 1024;

/// Why an `entries.jsonl` is not one.
#[derive(Debug, thiserror::Error)]
pub enum EntriesError {
    #[error("line {line} of entries.jsonl is not an entry: {source}")]
    Line { line: usize, source: serde_json::Error },
    #[error("line {line} of entries.jsonl is longer than {LINE_MAX_BYTES} bytes or has no end")]
    LineLength { line: usize },
    #[error("entries.jsonl is out of order at {path}: paths ascend, each once")]
    Order { path: String },
    #[error("entries.jsonl holds more than the {max} entries that are declared or allowed")]
    TooMany { max: u64 },
    #[error("entries.jsonl cannot be read")]
    Io(#[from] io::Error),
}

/// SHA-256 over LP(path) LP(sha256) LP(size) LP(seq) of entries that the caller gives in path order.
pub fn entries_digest<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Sha256Digest {
    let mut hasher = Hasher::new();
    for e in entries {
        hasher.update_lp(e.path.as_str().as_bytes());
        hasher.update_lp(e.sha256.to_string().as_bytes());
        hasher.update_lp(e.size_bytes.to_string().as_bytes());
        hasher.update_lp(e.seq.to_string().as_bytes());
    }
    hasher.finish()
}

/// The exact bytes of `entries.jsonl`: one JSON object a line, ascending by path bytes.
pub fn to_jsonl(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * 256);
    for e in entries {
        serde_json::to_writer(&mut out, e).expect("an entry has only string keys");
        out.push(b'\n');
    }
    out
}

/// Reads at most `max` entries; fails at the first line that is not one or not in order.
pub fn from_jsonl(mut reader: impl BufRead, max: u64) -> Result<Vec<Entry>, EntriesError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut buffer = Vec::new();
    for line in 1.. {
        if !read_line(&mut reader, &mut buffer, line)? {
            break;
        }
        let entry: Entry = serde_json::from_slice(&buffer)
            .map_err(|source| EntriesError::Line { line, source })?;
        if entries.last().is_some_and(|last| last.path >= entry.path) {
            return Err(EntriesError::Order { path: entry.path.to_string() });
        }
        if entries.len() as u64 >= max {
            return Err(EntriesError::TooMany { max });
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// One whole line without its end into `buffer`; false at the end of the input.
fn read_line(
    reader: &mut impl BufRead,
    buffer: &mut Vec<u8>,
    line: usize,
) -> Result<bool, EntriesError> {
    buffer.clear();
    let limit = LINE_MAX_BYTES as u64 + 1;
    io::Read::take(reader, limit).read_until(b'\n', buffer)?;
    if buffer.is_empty() {
        return Ok(false);
    }
    if buffer.pop() != Some(b'\n') {
        return Err(EntriesError::LineLength { line });
    }
    Ok(true)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub fn entry(path: &str, seq: u64) -> Entry {
        Entry {
            path: path.parse().unwrap(),
            sha256: Sha256Digest::of(path.as_bytes()),
            size_bytes: 10,
            seq,
            modified_at: Timestamp::from_unix_ms(1_700_000_000_000),
        }
    }

    #[test]
    fn entries_survive_their_text_form() {
        let entries = vec![entry("a/\"quote\".parquet", 2), entry("b.parquet", 1)];
        assert_eq!(from_jsonl(to_jsonl(&entries).as_slice(), 2).unwrap(), entries);
        assert!(matches!(
            from_jsonl(to_jsonl(&entries).as_slice(), 1),
            Err(EntriesError::TooMany { max: 1 })
        ));
    }

    #[test]
    fn entries_out_of_order_or_twice_are_refused() {
        for pair in [["b.parquet", "a.parquet"], ["a.parquet", "a.parquet"]] {
            let text = to_jsonl(&[entry(pair[0], 1), entry(pair[1], 2)]);
            assert!(matches!(from_jsonl(text.as_slice(), 9), Err(EntriesError::Order { .. })));
        }
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut text = to_jsonl(&[entry("a.parquet", 1)]);
        text.pop();
        assert!(matches!(
            from_jsonl(text.as_slice(), 9),
            Err(EntriesError::LineLength { line: 1 })
        ));
        let endless = vec![b'x'; LINE_MAX_BYTES * 2];
        assert!(from_jsonl(endless.as_slice(), 9).is_err());
    }

    #[test]
    fn the_digest_is_pinned() {
        // SHA-256 of "9:a.parquet64:<hex>2:101:1", worked out by hand from the definition.
        let e = entry("a.parquet", 1);
        let text = format!("9:a.parquet64:{}2:101:1", e.sha256);
        assert_eq!(entries_digest([&e]), Sha256Digest::of(text.as_bytes()));
    }
}
