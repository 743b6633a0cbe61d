//! Names and random identities, checked when made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::Timestamp;

/// Why a text is not a valid identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("a spoke id has 1 to 128 bytes, this one has {0}")]
    Length(usize),
    #[error(
        "a spoke id starts with a letter or digit and goes on with letters, digits, '.', '_' or '-'"
    )]
    Character,
    #[error("a spoke id holds no '..' and ends in no '.'")]
    Dots,
    #[error("{0:?} is a device name on Windows, and drives may be read there")]
    Reserved(String),
    #[error("an id of this kind is 26 characters of Crockford base32")]
    Base32,
}

/// The name of a spoke: 1 to 128 bytes, `[A-Za-z0-9][A-Za-z0-9._-]*`, unique ignoring case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpokeId(String);

impl SpokeId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The form under which names are compared: two spokes may not differ by case alone.
    pub fn folded(&self) -> String {
        self.0.to_ascii_lowercase()
    }
}

impl FromStr for SpokeId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        if text.is_empty() || text.len() > 128 {
            return Err(IdError::Length(text.len()));
        }
        let good = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
        if !text.as_bytes()[0].is_ascii_alphanumeric() || !text.bytes().all(good) {
            return Err(IdError::Character);
        }
        if text.contains("..") || text.ends_with('.') {
            return Err(IdError::Dots);
        }
        if is_device_name(text) {
            return Err(IdError::Reserved(text.to_owned()));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Whether Windows would take the name, with any extension, for a device.
pub fn is_device_name(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).to_ascii_uppercase();
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || (stem.len() == 4
            && (stem.starts_with("COM") || stem.starts_with("LPT"))
            && matches!(stem.as_bytes()[3], b'1'..=b'9'))
}

macro_rules! text_form {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

impl fmt::Display for SpokeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_form!(SpokeId);

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The time that it was made at, by the clock of whoever made it.
            pub fn made_at(&self) -> Timestamp {
                let bytes = self.0.iter().take(6).fold(0i64, |ms, b| ms << 8 | i64::from(*b));
                Timestamp::from_unix_ms(bytes)
            }

            /// An id that sorts by time: 48 bits of milliseconds, then 80 random bits.
            pub fn new(now: Timestamp, random: [u8; 10]) -> Self {
                let mut bytes = [0; 16];
                bytes[..6].copy_from_slice(&now.unix_ms().max(0).to_be_bytes()[2..]);
                bytes[6..].copy_from_slice(&random);
                Self(bytes)
            }

            pub fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&crockford(&self.0))
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                uncrockford(text).map(Self).ok_or(IdError::Base32)
            }
        }

        text_form!($name);
    };
}

random_id!(
    /// The identity of a bundle, in time order.
    BundleId
);
random_id!(
    /// The identity of a hub, made by `hub init` and kept for ever.
    HubId
);
random_id!(
    /// Which life of a hub's manifest this is: new after a restore or a forced recovery.
    HubEpoch
);
random_id!(
    /// A run of sequence numbers that a ledger opened for a hub.
    SeriesId
);

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Crockford's base32 (26 characters, most significant first) of 128 bits, as ULIDs are written.
fn crockford(bytes: &[u8; 16]) -> String {
    let mut value = u128::from_be_bytes(*bytes);
    let mut out = [0u8; 26];
    for slot in out.iter_mut().rev() {
        *slot = CROCKFORD[usize::from(value.to_le_bytes()[0] & 31)];
        value >>= 5;
    }
    out.iter().map(|b| char::from(*b)).collect()
}

fn uncrockford(text: &str) -> Option<[u8; 16]> {
    if text.len() != 26 || text.as_bytes()[0] > b'7' {
        return None;
    }
    let mut value: u128 = 0;
    for c in text.bytes() {
        let digit = CROCKFORD.iter().position(|d| *d == c)?;
        value = value << 5 | digit as u128;
    }
    Some(value.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spoke_ids_keep_the_rules() {
        for good in ["rocket-01", "a", "A.b_c-d", "0", &"x".repeat(128), "com0", "CONSOLE"] {
            assert!(good.parse::<SpokeId>().is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a..b", "a.", "a/b", "a\\b", "a\0", "ä", "con", "NUL.x", "lpt9"]
        {
            assert!(bad.parse::<SpokeId>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(129).parse::<SpokeId>().is_err());
    }

    #[test]
    fn random_ids_are_26_characters_sorted_by_time() {
        let a = BundleId::new(Timestamp::from_unix_ms(1), [255; 10]);
        let b = BundleId::new(Timestamp::from_unix_ms(2), [0; 10]);
        assert_eq!(a.to_string().len(), 26);
        assert!(a.to_string() < b.to_string());
        assert_eq!(a.to_string().parse(), Ok(a));
        assert!("8ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse::<BundleId>().is_err());
        assert!("0123456789abcdefghjkmnpqrs".parse::<BundleId>().is_err());
    }
}
