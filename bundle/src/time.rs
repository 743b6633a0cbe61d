//! Points in time: milliseconds since 1970 UTC inside, RFC 3339 UTC outside.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

/// Milliseconds since 1970-01-01T00:00:00Z, written as `2026-11-29T15:44:50.123Z` (RFC 3339).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(i64);

/// A text that is not an RFC 3339 time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an RFC 3339 time such as 2026-11-29T15:44:50.123Z")]
pub struct TimestampError(String);

impl Timestamp {
    pub const fn from_unix_ms(ms: i64) -> Self {
        Self(ms)
    }

    pub const fn unix_ms(self) -> i64 {
        self.0
    }

    pub const fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// The time a system clock shows. Only edges call it: times enter as values below.
    pub fn from_system(t: std::time::SystemTime) -> Self {
        match t.duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => Self(i64::try_from(d.as_millis()).unwrap_or(i64::MAX)),
            Err(e) => Self(i64::try_from(e.duration().as_millis()).map_or(i64::MIN, |ms| -ms)),
        }
    }

    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// `self - earlier` in milliseconds; negative when `earlier` is later.
    pub const fn since_ms(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The UTC calendar form, clamped to the years that RFC 3339 can write (0 to 9999).
    pub fn to_datetime(self) -> OffsetDateTime {
        const FIRST_MS: i64 = -62_167_219_200_000;
        const LAST_MS: i64 = 253_402_300_799_999;
        let ms = self.0.clamp(FIRST_MS, LAST_MS);
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
            .unwrap_or(OffsetDateTime::UNIX_EPOCH)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = self.to_datetime();
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            t.year(),
            u8::from(t.month()),
            t.day(),
            t.hour(),
            t.minute(),
            t.second(),
            t.millisecond()
        )
    }
}

impl FromStr for Timestamp {
    type Err = TimestampError;
    fn from_str(text: &str) -> Result<Self, TimestampError> {
        let t = OffsetDateTime::parse(text, &Rfc3339)
            .map_err(|_| TimestampError(text.to_owned()))?
            .to_offset(UtcOffset::UTC);
        i64::try_from(t.unix_timestamp_nanos().div_euclid(1_000_000))
            .map(Self)
            .map_err(|_| TimestampError(text.to_owned()))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_i64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
        } else {
            i64::deserialize(deserializer).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_in_utc_with_milliseconds_and_read_back() {
        let t = Timestamp::from_unix_ms(1_711_846_800_007);
        assert_eq!(t.to_string(), "2024-03-31T01:00:00.007Z");
        assert_eq!(t.to_string().parse(), Ok(t));
        assert_eq!("2024-03-31T03:00:00.007+02:00".parse(), Ok(t));
    }

    #[test]
    fn times_before_1970_keep_their_order() {
        let t: Timestamp = "1969-12-31T23:59:59.999Z".parse().unwrap();
        assert_eq!(t.unix_ms(), -1);
        assert_eq!(t.unix_seconds(), -1);
    }
}
