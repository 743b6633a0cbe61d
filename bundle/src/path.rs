//! Paths of files as both sides name them, and what a path says about its content.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::{Date, Month, PrimitiveDateTime, Time};

use crate::id::SpokeId;
use crate::time::Timestamp;

/// Longest landed name (namespace, slash, path) in bytes.
pub const LANDED_NAME_MAX_BYTES: usize = 1019;
/// Longest segment of a path in bytes.
pub const SEGMENT_MAX_BYTES: usize = 255;
/// What every shipped name ends in, in exactly this case.
pub const SUFFIX: &str = ".parquet";

/// Why a text is not a path that Barque carries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the name is not UTF-8")]
    NotUtf8,
    #[error("the path is empty")]
    Empty,
    #[error("the path has {len} bytes, at most {max} fit below this namespace")]
    TooLong { len: usize, max: usize },
    #[error("a segment has {0} bytes, at most {SEGMENT_MAX_BYTES} are allowed")]
    SegmentTooLong(usize),
    #[error("an empty segment: the path starts or ends with a slash, or holds two in a row")]
    EmptySegment,
    #[error("a segment starts with a dot")]
    Hidden,
    #[error("the path holds a control character")]
    Control,
    #[error("the path holds a backslash")]
    Backslash,
    #[error("the name does not end in {SUFFIX}")]
    Suffix,
    #[error("a folder's name ends in {SUFFIX}")]
    FolderSuffix,
}

impl PathError {
    /// A stable word for the rule that was broken.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotUtf8 => "path_not_utf8",
            Self::Empty => "path_empty",
            Self::TooLong { .. } => "path_too_long",
            Self::SegmentTooLong(_) => "segment_too_long",
            Self::EmptySegment => "path_empty_segment",
            Self::Hidden => "path_hidden",
            Self::Control => "path_control_character",
            Self::Backslash => "path_backslash",
            Self::Suffix => "path_not_parquet",
            Self::FolderSuffix => "path_folder_named_parquet",
        }
    }
}

/// A checked path below a spoke's source folder: UTF-8, relative, `/` between segments.
///
/// Kept byte for byte: `%20` stays, and NFC and NFD forms are two names.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FilePath(String);

impl FilePath {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn segments(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The first segment, when the path has at least three.
    pub fn database(&self) -> Option<&str> {
        let mut s = self.0.splitn(3, '/');
        let first = s.next();
        s.nth(1).and(first)
    }

    /// The second segment, when the path has at least three.
    pub fn measurement(&self) -> Option<&str> {
        let mut s = self.0.splitn(3, '/');
        s.next();
        let second = s.next();
        s.next().and(second)
    }

    /// The UTC time that the folders after database and measurement name; never a guess.
    ///
    /// Read are `YYYY/MM/DD[/HH]`, `year=/month=/day=[/hour=]`, `date=` and `dt=` (YYYY-MM-DD).
    pub fn partition(&self) -> Option<Partition> {
        let segments: Vec<&str> = self.0.split('/').collect();
        let folders = segments.get(2..segments.len().checked_sub(1)?)?;
        (0..folders.len()).find_map(|i| partition_at(&folders[i..]))
    }
}

fn check(text: &str) -> Result<(), PathError> {
    if text.is_empty() {
        return Err(PathError::Empty);
    }
    // The shortest namespace is one byte and a slash.
    let max = LANDED_NAME_MAX_BYTES - 2;
    if text.len() > max {
        return Err(PathError::TooLong { len: text.len(), max });
    }
    if text.chars().any(char::is_control) {
        return Err(PathError::Control);
    }
    if text.contains('\\') {
        return Err(PathError::Backslash);
    }
    let mut segments = text.split('/').peekable();
    while let Some(segment) = segments.next() {
        if segment.is_empty() {
            return Err(PathError::EmptySegment);
        }
        if segment.starts_with('.') {
            return Err(PathError::Hidden);
        }
        if segment.len() > SEGMENT_MAX_BYTES {
            return Err(PathError::SegmentTooLong(segment.len()));
        }
        let last = segments.peek().is_none();
        if last && !segment.ends_with(SUFFIX) {
            return Err(PathError::Suffix);
        }
        if !last && segment.ends_with(SUFFIX) {
            return Err(PathError::FolderSuffix);
        }
    }
    Ok(())
}

impl FromStr for FilePath {
    type Err = PathError;
    fn from_str(text: &str) -> Result<Self, PathError> {
        check(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The name of a landed file below `landing/`: `{spoke_id}/{path}`, at most 1,019 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LandedName(String);

impl LandedName {
    /// The landed name of a spoke's file, or how much too long it is.
    pub fn new(spoke: &SpokeId, path: &FilePath) -> Result<Self, PathError> {
        let max = LANDED_NAME_MAX_BYTES - spoke.as_str().len() - 1;
        if path.as_str().len() > max {
            return Err(PathError::TooLong { len: path.as_str().len(), max });
        }
        Ok(Self(format!("{spoke}/{path}")))
    }

    /// Splits `{spoke_id}/{path}` and checks both halves.
    pub fn parse(text: &str) -> Option<(SpokeId, FilePath)> {
        let (spoke, path) = text.split_once('/')?;
        Some((spoke.parse().ok()?, path.parse().ok()?))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The time span that a partition folder names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    pub start: Timestamp,
    pub precision: Precision,
}

/// How long a partition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    Day,
    Hour,
}

impl Precision {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Hour => "hour",
        }
    }
}

fn partition_at(folders: &[&str]) -> Option<Partition> {
    let get = |i: usize| folders.get(i).copied();
    if let Some(day) = get(0).and_then(|s| s.strip_prefix("date=").or(s.strip_prefix("dt="))) {
        let mut parts = day.splitn(3, '-');
        let date = calendar(parts.next()?, parts.next()?, parts.next()?)?;
        return Some(partition_of(date, None));
    }
    let keyed = get(0)?.starts_with("year=");
    let field = |i: usize, key: &str| {
        let s = get(i)?;
        if keyed { s.strip_prefix(key)?.strip_prefix('=') } else { Some(s) }
    };
    let date = calendar(field(0, "year")?, field(1, "month")?, field(2, "day")?)?;
    let hour = field(3, "hour").and_then(|h| number(h, 2)).and_then(|h| u8::try_from(h).ok());
    Some(partition_of(date, hour.filter(|h| *h < 24)))
}

fn calendar(year: &str, month: &str, day: &str) -> Option<Date> {
    let year = i32::try_from(number(year, 4)?).ok()?;
    let month = Month::try_from(u8::try_from(number(month, 2)?).ok()?).ok()?;
    Date::from_calendar_date(year, month, u8::try_from(number(day, 2)?).ok()?).ok()
}

/// Exactly `digits` decimal digits (one digit is taken where two are usual: `month=3`).
fn number(text: &str, digits: usize) -> Option<u32> {
    let fits = text.len() == digits || (digits == 2 && text.len() == 1);
    if !fits || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn partition_of(date: Date, hour: Option<u8>) -> Partition {
    let time = Time::from_hms(hour.unwrap_or(0), 0, 0).unwrap_or(Time::MIDNIGHT);
    let seconds = PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp();
    Partition {
        start: Timestamp::from_unix_ms(seconds * 1000),
        precision: if hour.is_some() { Precision::Hour } else { Precision::Day },
    }
}

/// A name made safe for terminals and logs: control, bidi and invisible characters are escaped.
pub fn printable(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        let unsafe_char = c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        if unsafe_char || c == '\\' {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        text.parse().unwrap()
    }

    #[test]
    fn paths_outside_the_rules_are_refused_by_rule() {
        let long = format!("{}.parquet", "x".repeat(248));
        for (bad, code) in [
            ("", "path_empty"),
            ("/a.parquet", "path_empty_segment"),
            ("a//b.parquet", "path_empty_segment"),
            ("../a.parquet", "path_hidden"),
            ("a/../b.parquet", "path_hidden"),
            ("a/./b.parquet", "path_hidden"),
            (".a.parquet", "path_hidden"),
            ("a\nb.parquet", "path_control_character"),
            ("a\u{7f}.parquet", "path_control_character"),
            ("a\\b.parquet", "path_backslash"),
            ("a.PARQUET", "path_not_parquet"),
            ("a.parquet/", "path_folder_named_parquet"),
            ("a.parquet/b.parquet", "path_folder_named_parquet"),
            (long.as_str(), "segment_too_long"),
        ] {
            let e = bad.parse::<FilePath>().expect_err(bad);
            assert_eq!(e.code(), code, "{bad:?}");
        }
    }

    #[test]
    fn every_other_name_is_kept_byte_for_byte() {
        for good in [
            "a.parquet",
            "m=1/percent%20.parquet",
            "caf\u{e9}.parquet",
            "cafe\u{301}.parquet",
            "a b/#?+&;'\"*|<>:.parquet",
            "rtl_\u{202e}gnp.parquet",
            "dots...in..name.parquet",
        ] {
            assert_eq!(path(good).as_str(), good);
        }
    }

    #[test]
    fn a_landed_name_is_at_most_1019_bytes() {
        let spoke: SpokeId = "s".repeat(128).parse().unwrap();
        let folder = format!("{}/", "d".repeat(200)).repeat(4);
        let fits = format!("{folder}{}.parquet", "f".repeat(1019 - 129 - 804 - 8));
        assert_eq!(LandedName::new(&spoke, &path(&fits)).unwrap().as_str().len(), 1019);
        let over = format!("{folder}{}.parquet", "f".repeat(1019 - 129 - 804 - 7));
        assert!(LandedName::new(&spoke, &path(&over)).is_err());
    }

    #[test]
    fn database_and_measurement_need_three_segments() {
        assert_eq!(path("a/b.parquet").database(), None);
        assert_eq!(path("a/b/c.parquet").database(), Some("a"));
        assert_eq!(path("a/b/c/d.parquet").measurement(), Some("b"));
    }

    #[test]
    fn partitions_are_read_or_absent_never_guessed() {
        let at = |p: &str| path(p).partition().map(|p| (p.start.to_string(), p.precision));
        let hour = Some(("2024-03-31T02:00:00.000Z".to_owned(), Precision::Hour));
        let day = Some(("2024-03-31T00:00:00.000Z".to_owned(), Precision::Day));
        assert_eq!(at("d/m/2024/03/31/02/x.parquet"), hour);
        assert_eq!(at("d/m/2024/03/31/x.parquet"), day);
        assert_eq!(at("d/m/year=2024/month=3/day=31/hour=2/x.parquet"), hour);
        assert_eq!(at("d/m/date=2024-03-31/x.parquet"), day);
        assert_eq!(at("d/m/dt=2024-03-31/x.parquet"), day);
        assert_eq!(at("d/m/site=9/2024/03/31/02/x.parquet"), hour);
        for absent in [
            "2024/03/31/x.parquet",
            "d/m/2024/13/01/x.parquet",
            "d/m/2024/02/30/x.parquet",
            "d/m/24/03/31/x.parquet",
            "d/m/x.parquet",
        ] {
            assert_eq!(at(absent), None, "{absent}");
        }
    }

    #[test]
    fn names_are_escaped_for_terminals() {
        assert_eq!(printable("a\nb\u{7}\u{202e}\\"), "a\\nb\\u{7}\\u{202e}\\\\");
        assert_eq!(printable("Zürich 🌡"), "Zürich 🌡");
    }
}
