//! SHA-256 digests (FIPS 180-4) and the length-prefixed form that signatures and digests cover.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Digest as _;

/// A SHA-256 digest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sha256Digest([u8; 32]);

/// A text that is not 64 lower-case hex digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest is 64 lower-case hex digits")]
pub struct DigestError;

impl Sha256Digest {
    /// The digest of the bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }

    /// The digest of everything a reader gives, and how many bytes that was.
    pub fn of_reader(reader: &mut impl Read) -> io::Result<(Self, u64)> {
        let mut hasher = Hasher::new();
        let mut buffer = vec![0u8; 64 * 1024];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) => return Ok((hasher.finish(), hasher.len())),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            hasher.update(&buffer[..n]);
        }
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Sha256Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<&[u8]> for Sha256Digest {
    type Error = DigestError;
    fn try_from(bytes: &[u8]) -> Result<Self, DigestError> {
        bytes.try_into().map(Self).map_err(|_| DigestError)
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sha256Digest {
    type Err = DigestError;
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let bytes = unhex(text).ok_or(DigestError)?;
        Self::try_from(bytes.as_slice())
    }
}

impl Serialize for Sha256Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Sha256Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(D::Error::custom)
        } else {
            deserializer.deserialize_bytes(BytesVisitor)
        }
    }
}

struct BytesVisitor;

impl serde::de::Visitor<'_> for BytesVisitor {
    type Value = Sha256Digest;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("32 bytes")
    }
    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Sha256Digest, E> {
        Sha256Digest::try_from(bytes).map_err(E::custom)
    }
}

/// A running SHA-256 that also counts the bytes it has seen.
#[derive(Clone, Default)]
pub struct Hasher {
    state: sha2::Sha256,
    len: u64,
}

impl Hasher {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// Adds LP(x): the decimal byte length, a colon, and the bytes.
    pub fn update_lp(&mut self, bytes: &[u8]) {
        self.update(format!("{}:", bytes.len()).as_bytes());
        self.update(bytes);
    }

    /// How many bytes went in.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The digest of what went in so far.
    pub fn finish(&self) -> Sha256Digest {
        Sha256Digest(self.state.clone().finalize().into())
    }
}

/// Concatenated LP(x) of the parts: what a signature covers.
pub fn length_prefixed(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(format!("{}:", part.len()).as_bytes());
        out.extend_from_slice(part);
    }
    out
}

/// Lower-case hex of the bytes.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        out.push(DIGITS[usize::from(b >> 4)] as char);
        out.push(DIGITS[usize::from(b & 15)] as char);
    }
    out
}

/// The bytes of a lower-case hex text; `None` for anything else.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(2) {
        return None;
    }
    bytes.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_abc_is_the_one_in_fips_180() {
        let d = Sha256Digest::of(b"abc");
        assert_eq!(
            d.to_string(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(d.to_string().parse::<Sha256Digest>(), Ok(d));
    }

    #[test]
    fn upper_case_and_short_digests_are_refused() {
        assert!("BA78".parse::<Sha256Digest>().is_err());
        assert!(
            "Ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
                .parse::<Sha256Digest>()
                .is_err()
        );
    }

    #[test]
    fn length_prefixes_keep_borders_apart() {
        assert_ne!(length_prefixed(&[b"ab", b"c"]), length_prefixed(&[b"a", b"bc"]));
        assert_eq!(length_prefixed(&[b"ab", b""]), b"2:ab0:");
    }
}
