//! What a landed file's footer says: rows, row groups, leaf columns. Never a reason to hold data
//! back: a file that this cannot read is `unread`, with why.
//!
//! The footer comes from outside, so its schema is bounded before the parquet crate builds it:
//! that crate recurses into it and allocates by the counts that stand there.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};

use barque_bundle::Sha256Digest;
use barque_bundle::digest::Hasher;
use barque_bundle::thrift::{self, ThriftError, Walker};
use barque_bundle::wire::Column;
use parquet::basic::{ConvertedType, LogicalType, TimeUnit};
use parquet::file::metadata::ParquetMetaDataReader;
use parquet::schema::types::ColumnDescriptor;

/// Largest footer that is read.
const FOOTER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most leaf columns, and deepest nesting, of a schema that is kept.
const COLUMNS_MAX: usize = 10_000;
const NESTING_MAX: usize = 100;
/// Most bytes of a reason that are kept.
const REASON_MAX_CHARS: usize = 200;

/// What a footer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub rows: u64,
    pub row_groups: u64,
    pub columns: Vec<Column>,
}

impl Facts {
    /// SHA-256 over the leaf columns in order: LP(path) LP(physical) LP(logical) LP(repetition).
    pub fn schema_id(&self) -> Sha256Digest {
        let mut hasher = Hasher::new();
        for c in &self.columns {
            for part in [&c.path, &c.physical, &c.logical, &c.repetition] {
                hasher.update(format!("{}:", part.len()).as_bytes());
                hasher.update(part.as_bytes());
            }
        }
        hasher.finish()
    }
}

/// The facts of a file, or why it is unread.
pub fn read(file: &mut File) -> Result<Facts, String> {
    let footer = footer_bytes(file)?;
    bound_schema(&footer)?;
    // A bug of the reader that a strange footer finds is no reason to stop the hub.
    catch_unwind(AssertUnwindSafe(|| decode(&footer)))
        .unwrap_or_else(|_| Err("the Parquet reader failed on it".to_owned()))
        .map_err(|why| why.chars().take(REASON_MAX_CHARS).collect())
}

fn footer_bytes(file: &mut File) -> Result<Vec<u8>, String> {
    let unreadable = |e: std::io::Error| format!("it cannot be read: {e}");
    let size = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let mut tail = [0u8; 8];
    file.seek(SeekFrom::Start(size.saturating_sub(8))).map_err(unreadable)?;
    file.read_exact(&mut tail).map_err(unreadable)?;
    if &tail[4..] == b"PARE" {
        return Err("its footer is encrypted".to_owned());
    }
    let len = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    if len > FOOTER_BYTES_MAX || len + 8 > size {
        return Err(format!("its footer of {len} bytes is over {FOOTER_BYTES_MAX}"));
    }
    file.seek(SeekFrom::Start(size - 8 - len)).map_err(unreadable)?;
    let mut footer = Vec::new();
    file.take(len).read_to_end(&mut footer).map_err(unreadable)?;
    Ok(footer)
}

/// Holds when the schema's counts fit each other and its nesting is bounded.
fn bound_schema(footer: &[u8]) -> Result<(), String> {
    let children = children(footer).map_err(|e| format!("its footer is malformed: {e}"))?;
    if children.len() > 2 * COLUMNS_MAX {
        return Err(format!("its schema has over {COLUMNS_MAX} columns"));
    }
    let mut open: Vec<u64> = Vec::new();
    for (at, n) in children.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if *n > (children.len() - at) as u64 {
            return Err("its schema counts more children than there are".to_owned());
        }
        open.push(*n);
        if open.len() > NESTING_MAX {
            return Err(format!("its schema nests deeper than {NESTING_MAX}"));
        }
    }
    Ok(())
}

/// The number of children of each schema element (FileMetaData field 2, SchemaElement field 5).
fn children(footer: &[u8]) -> Result<Vec<u64>, ThriftError> {
    let mut walker = Walker::new(footer, footer.len() as u64);
    let mut children = Vec::new();
    let mut last = 0;
    while let Some(field) = walker.field(last)? {
        last = field.id;
        if (field.id, field.kind) != (2, thrift::LIST) {
            walker.skip_field(field)?;
            continue;
        }
        let (kind, count) = walker.list()?;
        if kind != thrift::STRUCT {
            return Err(ThriftError::Malformed("its schema is no list of structs"));
        }
        for _ in 0..count {
            children.push(children_of_one(&mut walker)?);
        }
    }
    Ok(children)
}

fn children_of_one(walker: &mut Walker<&[u8]>) -> Result<u64, ThriftError> {
    let (mut last, mut children) = (0, 0);
    while let Some(field) = walker.field(last)? {
        last = field.id;
        if (field.id, field.kind) == (5, thrift::I32) {
            children = u64::try_from(walker.number()?)
                .map_err(|_| ThriftError::Malformed("a group has fewer than no children"))?;
        } else {
            walker.skip_field(field)?;
        }
    }
    Ok(children)
}

fn decode(footer: &[u8]) -> Result<Facts, String> {
    let metadata = ParquetMetaDataReader::decode_metadata(footer).map_err(|e| e.to_string())?;
    let columns = metadata.file_metadata().schema_descr().columns();
    if columns.len() > COLUMNS_MAX {
        return Err(format!("its schema has over {COLUMNS_MAX} columns"));
    }
    let rows = u64::try_from(metadata.file_metadata().num_rows())
        .map_err(|_| "it counts fewer than no rows".to_owned())?;
    Ok(Facts {
        rows,
        row_groups: metadata.num_row_groups() as u64,
        columns: columns.iter().map(|c| column(c)).collect(),
    })
}

fn column(c: &ColumnDescriptor) -> Column {
    let physical = match c.type_length() {
        n if n >= 0 && c.physical_type() == parquet::basic::Type::FIXED_LEN_BYTE_ARRAY => {
            format!("FIXED_LEN_BYTE_ARRAY({n})")
        }
        _ => c.physical_type().to_string(),
    };
    Column {
        path: c.path().string(),
        physical,
        logical: logical(c),
        repetition: c.self_type().get_basic_info().repetition().to_string(),
    }
}

/// The logical type in words of our own, the same for the old form (converted type) and the new,
/// and the same in every version of the parquet crate, since schema ids are made of it.
fn logical(c: &ColumnDescriptor) -> String {
    let unit = |u: &TimeUnit| match u {
        TimeUnit::MILLIS => "ms",
        TimeUnit::MICROS => "us",
        TimeUnit::NANOS => "ns",
    };
    let zone = |utc: bool| if utc { "utc" } else { "local" };
    let Some(logical) = c.logical_type_ref() else {
        return converted(c);
    };
    match logical {
        LogicalType::String => "string".to_owned(),
        LogicalType::Map => "map".to_owned(),
        LogicalType::List => "list".to_owned(),
        LogicalType::Enum => "enum".to_owned(),
        LogicalType::Decimal(d) => format!("decimal({},{})", d.precision, d.scale),
        LogicalType::Date => "date".to_owned(),
        LogicalType::Time(t) => {
            format!("time({},{})", unit(&t.unit), zone(t.is_adjusted_to_u_t_c))
        }
        LogicalType::Timestamp(t) => {
            format!("timestamp({},{})", unit(&t.unit), zone(t.is_adjusted_to_u_t_c))
        }
        LogicalType::Integer(i) => {
            format!("{}int{}", if i.is_signed { "" } else { "u" }, i.bit_width)
        }
        LogicalType::Unknown => "null".to_owned(),
        LogicalType::Json => "json".to_owned(),
        LogicalType::Bson => "bson".to_owned(),
        LogicalType::Uuid => "uuid".to_owned(),
        LogicalType::Float16 => "float16".to_owned(),
        LogicalType::Variant(_) => "variant".to_owned(),
        LogicalType::Geometry(_) => "geometry".to_owned(),
        LogicalType::Geography(_) => "geography".to_owned(),
        _ => "other".to_owned(),
    }
}

/// Old writers' times are in UTC (Parquet format, "LogicalTypes", compatibility).
fn converted(c: &ColumnDescriptor) -> String {
    let name = match c.converted_type() {
        ConvertedType::NONE => "",
        ConvertedType::UTF8 => "string",
        ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE => "map",
        ConvertedType::LIST => "list",
        ConvertedType::ENUM => "enum",
        ConvertedType::DECIMAL => {
            return format!("decimal({},{})", c.type_precision(), c.type_scale());
        }
        ConvertedType::DATE => "date",
        ConvertedType::TIME_MILLIS => "time(ms,utc)",
        ConvertedType::TIME_MICROS => "time(us,utc)",
        ConvertedType::TIMESTAMP_MILLIS => "timestamp(ms,utc)",
        ConvertedType::TIMESTAMP_MICROS => "timestamp(us,utc)",
        ConvertedType::UINT_8 => "uint8",
        ConvertedType::UINT_16 => "uint16",
        ConvertedType::UINT_32 => "uint32",
        ConvertedType::UINT_64 => "uint64",
        ConvertedType::INT_8 => "int8",
        ConvertedType::INT_16 => "int16",
        ConvertedType::INT_32 => "int32",
        ConvertedType::INT_64 => "int64",
        ConvertedType::JSON => "json",
        ConvertedType::BSON => "bson",
        ConvertedType::INTERVAL => "interval",
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn facts_of(bytes: &[u8]) -> Result<Facts, String> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        read(&mut file)
    }

    fn fixture(name: &str) -> Vec<u8> {
        let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
        let path = std::path::Path::new(&here).join("../fixtures/parquet").join(name);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_footer_says_rows_row_groups_and_columns_in_stable_words() {
        let facts = facts_of(&fixture("good.parquet")).unwrap();
        assert_eq!((facts.rows, facts.row_groups), (40, 2), "{facts:?}");
        let words: Vec<String> = facts
            .columns
            .iter()
            .map(|c| format!("{} {} {} {}", c.path, c.physical, c.logical, c.repetition))
            .collect();
        assert_eq!(
            words,
            [
                "time INT64 timestamp(us,utc) REQUIRED",
                "device BYTE_ARRAY string REQUIRED",
                "celsius DOUBLE  REQUIRED",
                "humidity DOUBLE  REQUIRED",
            ]
        );
        // Pages are not read, so a flipped bit there changes nothing of this.
        assert_eq!(facts_of(&fixture("page_flipped.parquet")).unwrap(), facts);
        // This must never change: manifests hold it.
        assert_eq!(
            facts.schema_id().to_string(),
            "6beb90dd1f264a65d47f7cff70f35a4e604b5b65e69d8dcf21d17ac456a3fa4f"
        );
    }

    #[test]
    fn an_encrypted_or_malformed_footer_is_unread_with_its_reason() {
        let e = facts_of(&fixture("encrypted_footer.parquet")).unwrap_err();
        assert!(e.contains("encrypted"), "{e}");
        let not_metadata = [&b"PAR1"[..], &[0x15, 2, 0, 3, 0, 0, 0], b"PAR1"].concat();
        assert!(facts_of(&not_metadata).is_err());
        let long = [&b"PAR1"[..], &[0, 0, 0, 0x7f], b"PAR1"].concat();
        assert!(facts_of(&long).unwrap_err().contains("over"));
    }

    /// A footer whose schema is elements with these numbers of children.
    fn schema(children: &[u32]) -> Vec<u8> {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        let varint = |out: &mut Vec<u8>, mut n: u32| {
            while n > 0x7f {
                out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
                n >>= 7;
            }
            out.push(u8::try_from(n).unwrap());
        };
        varint(&mut footer, u32::try_from(children.len()).unwrap());
        for n in children {
            // repetition, name, children
            footer.extend([0x35, 2, 0x18, 1, b'a', 0x15]);
            varint(&mut footer, n << 1);
            footer.push(0);
        }
        footer.push(0);
        let len = u32::try_from(footer.len()).unwrap();
        [b"PAR1", &footer[..], &len.to_le_bytes(), b"PAR1"].concat()
    }

    #[test]
    fn a_schema_that_would_exhaust_stack_or_memory_is_never_built() {
        let deep = schema(&vec![1; 100_000]);
        assert!(facts_of(&deep).unwrap_err().contains("columns"));
        let nested = schema(&vec![1; 5_000]);
        assert!(facts_of(&nested).unwrap_err().contains("nests"));
        let lying = schema(&[0x3fff_ffff, 0]);
        assert!(facts_of(&lying).unwrap_err().contains("more children"));
    }
}
