//! Sizes and durations as people write them; a bare number is refused.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A number of bytes, written `500MB`, `64KiB` or `12B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text that is not a quantity of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("{0:?} has no unit; write a size as 500MB, 64KiB or 12B")]
    BareSize(String),
    #[error("{0:?} is not a size; write 500MB, 64KiB or 12B")]
    Size(String),
    #[error("{0:?} is not a rate; write 2MB/s, 512KiB/s, 5Mbit/s or 64kbit/s")]
    Rate(String),
    #[error("{0:?} has no unit; write a duration as 500ms, 2s, 10m, 1h or 7d")]
    BareDuration(String),
    #[error("{0:?} is not a duration; write 500ms, 2s, 10m, 1h or 7d")]
    Duration(String),
}

const SIZE_UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

const DURATION_UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// The number before the unit, times the unit; decimals are taken (`1.5GiB`).
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, factor) =
        units.iter().find_map(|(unit, f)| Some((text.strip_suffix(unit)?.trim_end(), *f)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let mut value = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    if !fraction.is_empty() {
        let divisor = 10u64.pow(u32::try_from(fraction.len()).ok()?);
        let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor);
        value = value.checked_add(u64::try_from(part / u128::from(divisor)).ok()?)?;
    }
    Some(value)
}

fn is_bare(text: &str) -> bool {
    text.trim().parse::<f64>().is_ok()
}

impl FromStr for ByteSize {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        if is_bare(text) {
            return Err(QuantityError::BareSize(text.to_owned()));
        }
        scaled(text.trim(), &SIZE_UNITS).map(Self).ok_or(QuantityError::Size(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEPS: [(&str, u64); 4] =
            [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
        for (unit, factor) in STEPS {
            if self.0 >= factor {
                return write!(f, "{}.{} {unit}", self.0 / factor, self.0 % factor * 10 / factor);
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Bytes in a second, written `2MB/s`, `512KiB/s`, or in bits as `5Mbit/s` or `64kbit/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRate(u64);

/// Eight of these are a byte.
const BIT_UNITS: [(&str, u64); 4] =
    [("kbit/s", 1_000), ("Mbit/s", 1_000_000), ("Gbit/s", 1_000_000_000), ("bit/s", 1)];

impl ByteRate {
    /// How long so many bytes take.
    pub fn time_for(self, bytes: u64) -> Duration {
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(self.0.max(1));
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

impl FromStr for ByteRate {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let wrong = || QuantityError::Rate(text.to_owned());
        let bytes = match scaled(text.trim(), &BIT_UNITS) {
            Some(bits) => bits / 8,
            None => {
                let size = text.trim().strip_suffix("/s").ok_or_else(wrong)?;
                size.parse::<ByteSize>().map_err(|_| wrong())?.0
            }
        };
        if bytes == 0 { Err(wrong()) } else { Ok(Self(bytes)) }
    }
}

/// The duration that a text such as `500ms`, `2s`, `10m`, `1h` or `7d` names.
pub fn parse_duration(text: &str) -> Result<Duration, QuantityError> {
    if is_bare(text) {
        return Err(QuantityError::BareDuration(text.to_owned()));
    }
    scaled(text.trim(), &DURATION_UNITS)
        .map(Duration::from_millis)
        .ok_or(QuantityError::Duration(text.to_owned()))
}

/// A duration in the largest unit that keeps it whole, as [`parse_duration`] reads it.
pub fn format_duration(duration: Duration) -> String {
    let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (unit, factor) = DURATION_UNITS
        .iter()
        .rev()
        .find(|(_, f)| ms >= *f && ms.is_multiple_of(*f))
        .unwrap_or(&DURATION_UNITS[0]);
    format!("{}{unit}", ms / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        assert_eq!("500MB".parse(), Ok(ByteSize(500_000_000)));
        assert_eq!("1.5GiB".parse(), Ok(ByteSize(1_610_612_736)));
        assert_eq!("12 B".parse(), Ok(ByteSize(12)));
        assert!(matches!("500".parse::<ByteSize>(), Err(QuantityError::BareSize(_))));
        assert!("5 bananas".parse::<ByteSize>().is_err());
        assert!("99999999999TB".parse::<ByteSize>().is_err());
    }

    #[test]
    fn rates_are_bytes_or_bits_of_a_second() {
        let second = |text: &str| text.parse::<ByteRate>().unwrap().time_for(1_000_000);
        assert_eq!(second("2MB/s"), Duration::from_millis(500));
        assert_eq!(second("8Mbit/s"), Duration::from_secs(1));
        assert_eq!(second("64kbit/s"), Duration::from_secs(125));
        for wrong in ["2MB", "5", "5/s", "Mbit/s", "0B/s", "1bit/s"] {
            assert!(wrong.parse::<ByteRate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_round_trip() {
        for text in ["500ms", "2s", "10m", "1h", "7d"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        assert!(parse_duration("5").is_err());
        assert!(parse_duration("-5s").is_err());
    }
}
