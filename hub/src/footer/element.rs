//! One `SchemaElement` of a footer, and the words for its types.

use barque_bundle::thrift::{BINARY, FALSE, I8, I32, STRUCT, TRUE, ThriftError};
use barque_bundle::wire::Column;

use super::Walker;

/// Longest name of a column or group, in bytes.
const NAME_BYTES_MAX: u64 = 64 * 1024;

/// What a footer says of one group or column.
#[derive(Debug, Default)]
pub(super) struct Element {
    pub name: String,
    pub children: u64,
    physical: Option<i64>,
    length: Option<i64>,
    repetition: Option<i64>,
    converted: Option<i64>,
    scale: Option<i64>,
    precision: Option<i64>,
    logical: Option<String>,
}

fn malformed(why: &'static str) -> ThriftError {
    ThriftError::Malformed(why)
}

impl Element {
    pub(super) fn read(walker: &mut Walker<'_>) -> Result<Self, ThriftError> {
        let mut element = Self::default();
        let mut last = 0;
        while let Some(field) = walker.field(last)? {
            if field.id <= last {
                return Err(malformed("fields of the schema are out of order"));
            }
            last = field.id;
            match (field.id, field.kind) {
                (1, I32) => element.physical = Some(walker.number()?),
                (2, I32) => element.length = Some(walker.number()?),
                (3, I32) => element.repetition = Some(walker.number()?),
                (4, BINARY) => element.name = walker.text(NAME_BYTES_MAX)?,
                (5, I32) => {
                    element.children = u64::try_from(walker.number()?)
                        .map_err(|_| malformed("a group has fewer than no children"))?;
                }
                (6, I32) => element.converted = Some(walker.number()?),
                (7, I32) => element.scale = Some(walker.number()?),
                (8, I32) => element.precision = Some(walker.number()?),
                (10, STRUCT) => element.logical = Some(logical(walker)?),
                (1..=8 | 10, _) => return Err(malformed("a field of the schema has another type")),
                _ => walker.skip_field(field)?,
            }
        }
        Ok(element)
    }

    /// The column in words; fails when it has no known physical type or repetition.
    pub(super) fn into_column(self, path: String) -> Result<Column, String> {
        let physical = match self.physical {
            Some(0) => "BOOLEAN".to_owned(),
            Some(1) => "INT32".to_owned(),
            Some(2) => "INT64".to_owned(),
            Some(3) => "INT96".to_owned(),
            Some(4) => "FLOAT".to_owned(),
            Some(5) => "DOUBLE".to_owned(),
            Some(6) => "BYTE_ARRAY".to_owned(),
            Some(7) => format!("FIXED_LEN_BYTE_ARRAY({})", self.length.unwrap_or(0)),
            // A group without children is no column; writers of empty structs leave it so.
            None => "GROUP".to_owned(),
            Some(n) => return Err(format!("its schema has the unknown type {n}")),
        };
        let repetition = match self.repetition {
            Some(0) => "REQUIRED",
            Some(1) => "OPTIONAL",
            Some(2) => "REPEATED",
            other => return Err(format!("its schema has the unknown repetition {other:?}")),
        };
        let logical = match self.logical {
            Some(logical) => logical,
            None => self.converted_words(),
        };
        Ok(Column { path, physical, logical, repetition: repetition.to_owned() })
    }

    /// The old form in the words of the new one; old writers' times are in UTC (Parquet format,
    /// "LogicalTypes", compatibility).
    fn converted_words(&self) -> String {
        let words = match self.converted {
            None => "",
            Some(0) => "string",
            Some(1 | 2) => "map",
            Some(3) => "list",
            Some(4) => "enum",
            Some(5) => {
                let (precision, scale) = (self.precision.unwrap_or(0), self.scale.unwrap_or(0));
                return format!("decimal({precision},{scale})");
            }
            Some(6) => "date",
            Some(7) => "time(ms,utc)",
            Some(8) => "time(us,utc)",
            Some(9) => "timestamp(ms,utc)",
            Some(10) => "timestamp(us,utc)",
            Some(11) => "uint8",
            Some(12) => "uint16",
            Some(13) => "uint32",
            Some(14) => "uint64",
            Some(15) => "int8",
            Some(16) => "int16",
            Some(17) => "int32",
            Some(18) => "int64",
            Some(19) => "json",
            Some(20) => "bson",
            Some(21) => "interval",
            Some(n) => return format!("other({n})"),
        };
        words.to_owned()
    }
}

/// The union `LogicalType`, one member of which is set. Its words must never change: schema ids
/// are made of them.
fn logical(walker: &mut Walker<'_>) -> Result<String, ThriftError> {
    let Some(field) = walker.field(0)? else {
        return Ok(String::new());
    };
    if field.kind != STRUCT {
        return Err(malformed("a logical type is no struct"));
    }
    let words = match field.id {
        5 => {
            let [scale, precision] = numbers(walker, I32)?;
            format!("decimal({precision},{scale})")
        }
        7 => format!("time({})", time(walker)?),
        8 => format!("timestamp({})", time(walker)?),
        10 => integer(walker)?,
        id => {
            walker.skip_field(field)?;
            match id {
                1 => "string".to_owned(),
                2 => "map".to_owned(),
                3 => "list".to_owned(),
                4 => "enum".to_owned(),
                6 => "date".to_owned(),
                11 => "null".to_owned(),
                12 => "json".to_owned(),
                13 => "bson".to_owned(),
                14 => "uuid".to_owned(),
                15 => "float16".to_owned(),
                16 => "variant".to_owned(),
                17 => "geometry".to_owned(),
                18 => "geography".to_owned(),
                n => format!("other({n})"),
            }
        }
    };
    match walker.field(field.id)? {
        None => Ok(words),
        Some(_) => Err(malformed("a logical type is two at once")),
    }
}

/// Fields 1 and 2 of a struct, numbers of one kind; absent ones are 0.
fn numbers(walker: &mut Walker<'_>, kind: u8) -> Result<[i64; 2], ThriftError> {
    let (mut found, mut last) = ([0; 2], 0);
    while let Some(field) = walker.field(last)? {
        last = field.id;
        match field.id {
            1 if field.kind == kind => found[0] = walker.number()?,
            2 if field.kind == kind => found[1] = walker.number()?,
            _ => walker.skip_field(field)?,
        }
    }
    Ok(found)
}

/// `TimeType` and `TimestampType`: 1 isAdjustedToUTC, 2 unit.
fn time(walker: &mut Walker<'_>) -> Result<String, ThriftError> {
    let (mut zone, mut unit, mut last) = ("local", "other", 0);
    while let Some(field) = walker.field(last)? {
        last = field.id;
        match (field.id, field.kind) {
            (1, TRUE) => zone = "utc",
            (1, FALSE) => zone = "local",
            (2, STRUCT) => {
                if let Some(member) = walker.field(0)? {
                    walker.skip_field(member)?;
                    unit = match member.id {
                        1 => "ms",
                        2 => "us",
                        3 => "ns",
                        _ => "other",
                    };
                    walker.skip_struct()?;
                }
            }
            _ => walker.skip_field(field)?,
        }
    }
    Ok(format!("{unit},{zone}"))
}

/// `IntType`: 1 bitWidth, 2 isSigned.
fn integer(walker: &mut Walker<'_>) -> Result<String, ThriftError> {
    let (mut sign, mut width, mut last) = ("u", 0, 0);
    while let Some(field) = walker.field(last)? {
        last = field.id;
        match (field.id, field.kind) {
            (1, I8) => width = walker.byte_value()?,
            (2, TRUE) => sign = "",
            (2, FALSE) => sign = "u",
            _ => walker.skip_field(field)?,
        }
    }
    Ok(format!("{sign}int{width}"))
}
