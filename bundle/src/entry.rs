//! One file of a bundle, and the digest and text form of a set of them.

use std::io::{self, BufRead};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::{Hasher, Sha256Digest};
use crate::path::FilePath;
use crate::portable;
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
    #[error("the entry {path} names another member than its digest says")]
    StoredAs { path: String },
    #[error("entries.jsonl holds more than the {max} entries that are declared or allowed")]
    TooMany { max: u64 },
    #[error("entries.jsonl cannot be read")]
    Io(#[from] io::Error),
}

impl EntriesError {
    /// A stable word for the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Order { .. } => "entries_out_of_order",
            Self::TooMany { .. } => "entries_too_many",
            Self::Io(_) => "entries_unreadable",
            _ => "entries_malformed",
        }
    }
}

/// A line of `entries.jsonl` on a drive: the entry, and the member's name where that is another
/// than `data/{path}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    #[serde(flatten)]
    pub entry: Entry,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_as: Option<String>,
}

impl Line {
    /// The name of the member that holds the file's bytes.
    pub fn member(&self) -> String {
        self.stored_as
            .clone()
            .unwrap_or_else(|| format!("{}{}", crate::stream::DATA, self.entry.path))
    }
}

/// What a header says of its entries, gathered one by one.
#[derive(Clone, Default)]
pub struct Summing {
    text: Hasher,
    digest: Hasher,
    sums: Sums,
}

/// What a header says of its entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub count: u64,
    /// None when the sizes add up to more than a number holds.
    pub total_bytes: Option<u64>,
    /// The lowest and the highest number.
    pub seqs: Option<(u64, u64)>,
}

impl Summing {
    pub fn new() -> Self {
        let sums = Sums { total_bytes: Some(0), ..Sums::default() };
        Self { sums, ..Self::default() }
    }

    /// Adds the next entry in path order, and the exact bytes of its line with its end.
    pub fn add(&mut self, entry: &Entry, line: &[u8]) {
        self.text.update(line);
        digest_into(&mut self.digest, entry);
        let sums = &mut self.sums;
        sums.count += 1;
        sums.total_bytes = sums.total_bytes.and_then(|t| t.checked_add(entry.size_bytes));
        let (lo, hi) = sums.seqs.unwrap_or((entry.seq, entry.seq));
        sums.seqs = Some((lo.min(entry.seq), hi.max(entry.seq)));
    }

    /// Takes these bytes for the text of all lines.
    pub(crate) fn text_is(&mut self, jsonl: &[u8]) {
        self.text = Hasher::new();
        self.text.update(jsonl);
    }

    pub fn sums(&self) -> &Sums {
        &self.sums
    }

    /// SHA-256 of the lines.
    pub fn entries_sha256(&self) -> Sha256Digest {
        self.text.finish()
    }

    pub fn entries_digest(&self) -> Sha256Digest {
        self.digest.finish()
    }
}

fn digest_into(hasher: &mut Hasher, e: &Entry) {
    hasher.update_lp(e.path.as_str().as_bytes());
    hasher.update_lp(e.sha256.to_string().as_bytes());
    hasher.update_lp(e.size_bytes.to_string().as_bytes());
    hasher.update_lp(e.seq.to_string().as_bytes());
}

/// SHA-256 over LP(path) LP(sha256) LP(size) LP(seq) of entries that the caller gives in path order.
pub fn entries_digest<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Sha256Digest {
    let mut hasher = Hasher::new();
    entries.into_iter().for_each(|e| digest_into(&mut hasher, e));
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

/// Reads `entries.jsonl` line by line in bounded memory, adding it up on the way.
pub struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    number: usize,
    last: Option<FilePath>,
    max: u64,
    summing: Summing,
}

impl<R: BufRead> Lines<R> {
    /// At most `max` entries are read.
    pub fn new(reader: R, max: u64) -> Self {
        Self { reader, buffer: Vec::new(), number: 0, last: None, max, summing: Summing::new() }
    }

    /// The next entry; fails at a line that is not one or not in order.
    pub fn next_line(&mut self) -> Result<Option<Line>, EntriesError> {
        self.number += 1;
        let line = self.number;
        if !read_line(&mut self.reader, &mut self.buffer, line)? {
            return Ok(None);
        }
        let text = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let read: Line =
            serde_json::from_slice(text).map_err(|source| EntriesError::Line { line, source })?;
        let path = &read.entry.path;
        if self.last.as_ref().is_some_and(|last| last >= path) {
            return Err(EntriesError::Order { path: path.to_string() });
        }
        if read.stored_as.as_ref().is_some_and(|s| *s != portable::stored_as(path)) {
            return Err(EntriesError::StoredAs { path: path.to_string() });
        }
        if self.summing.sums().count >= self.max {
            return Err(EntriesError::TooMany { max: self.max });
        }
        self.summing.add(&read.entry, &self.buffer);
        self.last = Some(path.clone());
        Ok(Some(read))
    }

    /// What the lines so far add up to.
    pub fn summing(&self) -> &Summing {
        &self.summing
    }
}

/// Reads at most `max` entries; fails at the first line that is not one or not in order.
pub fn from_jsonl(reader: impl BufRead, max: u64) -> Result<Vec<Entry>, EntriesError> {
    let mut lines = Lines::new(reader, max);
    let mut entries = Vec::new();
    while let Some(line) = lines.next_line()? {
        entries.push(line.entry);
    }
    Ok(entries)
}

/// One whole line with its end into `buffer`; false at the end of the input.
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
    if buffer.last() != Some(&b'\n') {
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
