//! What a landed file's footer says: rows, row groups, leaf columns. Never a reason to hold data
//! back: a footer that this cannot read leaves its file `unread`, with why.
//!
//! Source: Apache Parquet format, `FileMetaData` and `SchemaElement`; Thrift compact protocol.
//! The footer comes from outside and a hub must outlive it, so it is walked here with strict types
//! and fixed limits. A general reader is not asked: it recurses into the schema, allocates by the
//! counts that stand there, and copies the names above into every column.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use barque_bundle::Sha256Digest;
use barque_bundle::digest::Hasher;
use barque_bundle::path::printable;
use barque_bundle::thrift::{self, Field, ThriftError};
use barque_bundle::wire::Column;

mod element;

use element::Element;

/// Largest footer that is read.
const FOOTER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most leaf columns, deepest nesting, and most bytes of all columns' paths.
const COLUMNS_MAX: usize = 10_000;
const NESTING_MAX: usize = 100;
const PATHS_BYTES_MAX: usize = 512 * 1024;
/// Most rows that are believed: more would not fit one file.
const ROWS_MAX: u64 = 1 << 48;

type Walker<'a> = thrift::Walker<&'a [u8]>;

/// What a footer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub rows: u64,
    pub row_groups: u64,
    pub columns: Vec<Column>,
}

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
pub enum FooterError {
    /// The file could not be read now; another time it may.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    /// What stands there is not understood, and never will be.
    #[error("{0}")]
    Unread(String),
}

impl From<ThriftError> for FooterError {
    fn from(e: ThriftError) -> Self {
        match e {
            ThriftError::Io(e) => Self::Io(e),
            ThriftError::Malformed(why) => unread(format!("its footer is malformed: {why}")),
        }
    }
}

fn unread(why: impl AsRef<str>) -> FooterError {
    FooterError::Unread(printable(why.as_ref()))
}

impl Facts {
    /// SHA-256 over the leaf columns in order: LP(path) LP(physical) LP(logical) LP(repetition).
    pub fn schema_id(&self) -> Sha256Digest {
        let mut hasher = Hasher::new();
        for c in &self.columns {
            for part in [&c.path, &c.physical, &c.logical, &c.repetition] {
                hasher.update_lp(part.as_bytes());
            }
        }
        hasher.finish()
    }
}

/// The facts of a file, or why there are none.
pub fn read(file: &mut File) -> Result<Facts, FooterError> {
    parse(&footer_bytes(file)?)
}

fn footer_bytes(file: &mut File) -> Result<Vec<u8>, FooterError> {
    let size = file.seek(SeekFrom::End(0))?;
    let mut tail = [0u8; 8];
    file.seek(SeekFrom::Start(size.saturating_sub(8)))?;
    file.read_exact(&mut tail)?;
    if &tail[4..] == b"PARE" {
        return Err(unread("its footer is encrypted"));
    }
    let len = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if len > FOOTER_BYTES_MAX || len + 8 > size {
        return Err(unread(format!("its footer of {len} bytes is over {FOOTER_BYTES_MAX}")));
    }
    file.seek(SeekFrom::Start(size - 8 - len))?;
    let mut footer = Vec::new();
    file.take(len).read_to_end(&mut footer)?;
    Ok(footer)
}

/// `FileMetaData`: 2 schema, 3 num_rows, 4 row_groups; each once and of its type.
fn parse(footer: &[u8]) -> Result<Facts, FooterError> {
    let mut walker = Walker::new(footer, footer.len() as u64);
    let (mut columns, mut rows, mut row_groups) = (None, None, None);
    let mut last = 0;
    while let Some(field) = walker.field(last)? {
        if field.id <= last {
            return Err(unread("its footer is malformed: fields are out of order"));
        }
        last = field.id;
        match (field.id, field.kind) {
            (2, thrift::LIST) => columns = Some(leaves(schema(&mut walker)?)?),
            (3, thrift::I64) => rows = Some(walker.number()?),
            (4, thrift::LIST) => row_groups = Some(count(&mut walker)?),
            (2..=4, _) => return Err(unread("its footer is malformed: a field has another type")),
            _ => walker.skip_field(field)?,
        }
    }
    let lacks = |what: &str| unread(format!("its footer has no {what}"));
    let rows = rows.and_then(|r| u64::try_from(r).ok()).filter(|r| *r <= ROWS_MAX);
    Ok(Facts {
        rows: rows.ok_or_else(|| lacks("number of rows"))?,
        row_groups: row_groups.ok_or_else(|| lacks("row groups"))?,
        columns: columns.ok_or_else(|| lacks("schema"))?,
    })
}

/// How many structs a list holds.
fn count(walker: &mut Walker<'_>) -> Result<u64, FooterError> {
    let (kind, count) = walker.list()?;
    if kind != thrift::STRUCT && count > 0 {
        return Err(unread("its footer is malformed: a list has another type"));
    }
    for _ in 0..count {
        walker.skip_field(Field { id: 0, kind: thrift::STRUCT })?;
    }
    Ok(count)
}

/// The schema as it stands there: a tree in depth-first order, each element with its children's
/// number.
fn schema(walker: &mut Walker<'_>) -> Result<Vec<Element>, FooterError> {
    let (kind, count) = walker.list()?;
    if kind != thrift::STRUCT {
        return Err(unread("its schema is no list of structs"));
    }
    // Groups and leaves: a useful schema has fewer groups than leaves.
    if count > 2 * COLUMNS_MAX as u64 {
        return Err(unread(format!("its schema has over {COLUMNS_MAX} columns")));
    }
    let mut elements = Vec::new();
    for _ in 0..count {
        elements.push(Element::read(walker)?);
    }
    Ok(elements)
}

/// A group that is being walked: its path and how many children are still to come.
struct Open {
    path: String,
    left: u64,
}

/// The leaf columns, with their paths from the top.
fn leaves(elements: Vec<Element>) -> Result<Vec<Column>, FooterError> {
    let mut elements = elements.into_iter();
    let root = elements.next().ok_or_else(|| unread("its schema is empty"))?;
    let mut open = vec![Open { path: String::new(), left: root.children }];
    let (mut columns, mut bytes) = (Vec::new(), 0);
    for element in elements {
        while open.last().is_some_and(|o| o.left == 0) {
            open.pop();
        }
        let Some(parent) = open.last_mut() else {
            return Err(unread("its schema has more than one root"));
        };
        parent.left -= 1;
        let path = match parent.path.as_str() {
            "" => element.name.clone(),
            above => format!("{above}.{}", element.name),
        };
        bytes += path.len();
        if bytes > PATHS_BYTES_MAX {
            return Err(unread(format!("its columns' names have over {PATHS_BYTES_MAX} bytes")));
        }
        if element.children > 0 {
            open.push(Open { path, left: element.children });
            if open.len() > NESTING_MAX {
                return Err(unread(format!("its schema nests deeper than {NESTING_MAX}")));
            }
        } else {
            columns.push(element.into_column(path).map_err(unread)?);
        }
        if columns.len() > COLUMNS_MAX {
            return Err(unread(format!("its schema has over {COLUMNS_MAX} columns")));
        }
    }
    if open.iter().any(|o| o.left > 0) {
        return Err(unread("its schema counts more children than there are"));
    }
    Ok(columns)
}

#[cfg(test)]
mod tests;
