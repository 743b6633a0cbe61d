//! A bundle's header (`manifest.json`) and its detached signature (`manifest.sig`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::entry::{Entry, Summing, to_jsonl};
use crate::error::ErrorKind;
use crate::id::{BundleId, HubId, SeriesId, SpokeId};
use crate::key::{KeyError, KeyId, PublicKey, SecretKey};
use crate::ranges::Ranges;
use crate::time::Timestamp;

/// The format version that this crate writes and reads.
pub const VERSION: u32 = 2;
/// Largest `manifest.json` that is read, in bytes.
pub const HEADER_MAX_BYTES: usize = 1024 * 1024;
const LABEL: &str = "barque-bundle-v2";

/// What a spoke says of a bundle; the signature covers the exact bytes, unknown members too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub version: u32,
    pub bundle_id: BundleId,
    pub spoke_id: SpokeId,
    pub hub_id: HubId,
    pub created_at: Timestamp,
    pub series: SeriesId,
    /// The highest number given out in the series so far.
    pub seq_head: u64,
    /// The end of the last complete scan, if there was one.
    pub as_of: Option<Timestamp>,
    /// Numbers of the series that will never come.
    #[serde(default)]
    pub voids: Ranges,
    /// The series that this one replaces, when the ledger was rebuilt.
    #[serde(default)]
    pub replaces: Option<SeriesId>,
    /// Bundles exported and not yet acknowledged.
    #[serde(default)]
    pub in_transit: Vec<InTransit>,
    #[serde(default)]
    pub label: Option<String>,
    pub entry_count: u64,
    pub total_bytes: u64,
    /// SHA-256 of the exact bytes of `entries.jsonl`.
    pub entries_sha256: Sha256Digest,
    pub entries_digest: Sha256Digest,
    /// Reserved; only `null` is known.
    #[serde(default)]
    pub encryption: Option<serde_json::Value>,
    /// Names of members that a reader must understand or refuse the bundle.
    #[serde(default)]
    pub critical: Vec<String>,
    pub key_id: KeyId,
}

/// A bundle that left on a drive and has not been acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InTransit {
    pub bundle_id: BundleId,
    pub label: Option<String>,
    pub created_at: Timestamp,
    /// The series of its numbers, where it is another than the header's.
    #[serde(default)]
    pub series: Option<SeriesId>,
    pub seqs: Ranges,
}

/// Why a header is refused.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("manifest.json has {len} bytes, at most {HEADER_MAX_BYTES} are read")]
    TooLarge { len: usize },
    #[error("manifest.json is not a bundle header: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("bundle version {found} is not known here; this program reads version {VERSION}")]
    Version { found: u32 },
    #[error("the bundle needs {name:?}, which this program does not know; use a newer one")]
    Critical { name: String },
    #[error("the bundle is encrypted, which this program does not read")]
    Encrypted,
    #[error("the bundle is for hub {found}, not for {expected}")]
    OtherHub { expected: HubId, found: HubId },
    #[error("manifest.sig does not fit manifest.json and the key {key_id}")]
    BadSignature { key_id: KeyId, source: KeyError },
    #[error("entries.jsonl is not the one that was signed ({what})")]
    Entries { what: String },
}

impl HeaderError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Malformed(_) | Self::Version { .. } | Self::Critical { .. } => ErrorKind::Invalid,
            Self::Encrypted => ErrorKind::Invalid,
            Self::OtherHub { .. } => ErrorKind::Forbidden,
            Self::BadSignature { .. } => ErrorKind::Unauthenticated,
            Self::Entries { .. } => ErrorKind::Corrupt,
        }
    }

    /// A stable word for the reason.
    pub fn code(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "header_too_large",
            Self::Malformed(_) => "header_malformed",
            Self::Version { .. } => "unknown_version",
            Self::Critical { .. } => "unknown_critical",
            Self::Encrypted => "encrypted",
            Self::OtherHub { .. } => "wrong_hub",
            Self::BadSignature { .. } => "bad_signature",
            Self::Entries { .. } => "entries_mismatch",
        }
    }
}

/// A value with the exact bytes that were signed and the 64-byte signature.
#[derive(Clone, Debug)]
pub struct Signed<T> {
    pub value: T,
    pub bytes: Vec<u8>,
    pub sig: Vec<u8>,
}

/// The members of a header that the writer decides; the rest follows from the entries.
pub struct Draft {
    pub bundle_id: BundleId,
    pub spoke_id: SpokeId,
    pub hub_id: HubId,
    pub created_at: Timestamp,
    pub series: SeriesId,
    pub seq_head: u64,
    pub as_of: Option<Timestamp>,
    pub voids: Ranges,
    pub replaces: Option<SeriesId>,
    pub in_transit: Vec<InTransit>,
    pub label: Option<String>,
}

impl Header {
    /// A signed header over entries in path order.
    pub fn sign(draft: Draft, entries: &[Entry], key: &SecretKey) -> Signed<Header> {
        Self::seal(draft, &summed(&to_jsonl(entries), entries), key)
    }

    /// A signed header over entries that were added up.
    pub fn seal(draft: Draft, entries: &Summing, key: &SecretKey) -> Signed<Header> {
        let header = Header {
            version: VERSION,
            bundle_id: draft.bundle_id,
            spoke_id: draft.spoke_id,
            hub_id: draft.hub_id,
            created_at: draft.created_at,
            series: draft.series,
            seq_head: draft.seq_head,
            as_of: draft.as_of,
            voids: draft.voids,
            replaces: draft.replaces,
            in_transit: draft.in_transit,
            label: draft.label,
            entry_count: entries.sums().count,
            total_bytes: entries.sums().total_bytes.unwrap_or(u64::MAX),
            entries_sha256: entries.entries_sha256(),
            entries_digest: entries.entries_digest(),
            encryption: None,
            critical: Vec::new(),
            key_id: key.public().key_id(),
        };
        let bytes = serde_json::to_vec(&header).expect("a header has only string keys");
        let sig = key.sign(LABEL, &[Sha256Digest::of(&bytes).to_string().as_bytes()]).to_vec();
        Signed { value: header, bytes, sig }
    }

    /// Reads a header without judging its signature: enough to know whose key to ask for.
    pub fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
        if bytes.len() > HEADER_MAX_BYTES {
            return Err(HeaderError::TooLarge { len: bytes.len() });
        }
        #[derive(Deserialize)]
        struct Version {
            version: u32,
            #[serde(default)]
            critical: Vec<String>,
        }
        let Version { version, critical } = serde_json::from_slice(bytes)?;
        if version != VERSION {
            return Err(HeaderError::Version { found: version });
        }
        if let Some(name) = critical.into_iter().find(|n| !is_known(n)) {
            return Err(HeaderError::Critical { name });
        }
        let header: Header = serde_json::from_slice(bytes)?;
        if header.encryption.is_some() {
            return Err(HeaderError::Encrypted);
        }
        Ok(header)
    }

    /// Holds when `sig` is the key's over the exact bytes and the bundle is for this hub.
    pub fn verify(
        &self,
        bytes: &[u8],
        sig: &[u8],
        key: &PublicKey,
        hub_id: HubId,
    ) -> Result<(), HeaderError> {
        key.verify(LABEL, &[Sha256Digest::of(bytes).to_string().as_bytes()], sig)
            .map_err(|source| HeaderError::BadSignature { key_id: self.key_id.clone(), source })?;
        if self.hub_id != hub_id {
            return Err(HeaderError::OtherHub { expected: hub_id, found: self.hub_id });
        }
        Ok(())
    }

    /// Holds when the entries, read from these bytes, are the ones that the header declares.
    pub fn verify_entries(&self, jsonl: &[u8], entries: &[Entry]) -> Result<(), HeaderError> {
        self.verify_sums(&summed(jsonl, entries))
    }

    /// Holds when entries that were added up are the ones that the header declares.
    pub fn verify_sums(&self, entries: &Summing) -> Result<(), HeaderError> {
        let sums = entries.sums();
        let is_outside = |(lo, hi): (u64, u64)| lo == 0 || hi > self.seq_head;
        let what = if sums.count != self.entry_count {
            format!("entry_count is {}, {} are there", self.entry_count, sums.count)
        } else if sums.total_bytes != Some(self.total_bytes) {
            format!(
                "total_bytes is {}, the sizes add up to {:?}",
                self.total_bytes, sums.total_bytes
            )
        } else if entries.entries_sha256() != self.entries_sha256 {
            format!("entries_sha256 is {}, found {}", self.entries_sha256, entries.entries_sha256())
        } else if entries.entries_digest() != self.entries_digest {
            format!("entries_digest is {}, found {}", self.entries_digest, entries.entries_digest())
        } else if sums.seqs.is_some_and(is_outside) {
            "a number is above seq_head".to_owned()
        } else {
            return Ok(());
        };
        Err(HeaderError::Entries { what })
    }
}

fn summed(jsonl: &[u8], entries: &[Entry]) -> Summing {
    let mut summing = Summing::new();
    // The text as a whole first, so that what is no line of an entry counts as well.
    entries.iter().for_each(|e| summing.add(e, b""));
    summing.text_is(jsonl);
    summing
}

fn is_known(member: &str) -> bool {
    matches!(
        member,
        "version"
            | "bundle_id"
            | "spoke_id"
            | "hub_id"
            | "created_at"
            | "series"
            | "seq_head"
            | "as_of"
            | "voids"
            | "replaces"
            | "in_transit"
            | "label"
            | "entry_count"
            | "total_bytes"
            | "entries_sha256"
            | "entries_digest"
            | "key_id"
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::entry::tests::entry;

    pub fn hub(n: u8) -> HubId {
        HubId::new(Timestamp::from_unix_ms(1), [n; 10])
    }

    pub fn signed(entries: &[Entry], key: &SecretKey) -> Signed<Header> {
        let now = Timestamp::from_unix_ms(1_700_000_000_000);
        let draft = Draft {
            bundle_id: BundleId::new(now, [1; 10]),
            spoke_id: "rocket-01".parse().unwrap(),
            hub_id: hub(1),
            created_at: now,
            series: SeriesId::new(now, [2; 10]),
            seq_head: 100,
            as_of: Some(now),
            voids: Ranges::from_numbers(vec![3]),
            replaces: None,
            in_transit: Vec::new(),
            label: None,
        };
        Header::sign(draft, entries, key)
    }

    #[test]
    fn a_header_comes_back_from_its_bytes_and_verifies() {
        let key = SecretKey::from_seed([9; 32]);
        let entries = [entry("a.parquet", 1), entry("b.parquet", 2)];
        let s = signed(&entries, &key);
        let header = Header::parse(&s.bytes).unwrap();
        assert_eq!(header, s.value);
        header.verify(&s.bytes, &s.sig, &key.public(), hub(1)).unwrap();
        header.verify_entries(&to_jsonl(&entries), &entries).unwrap();
    }

    #[test]
    fn a_header_for_another_hub_is_refused() {
        let key = SecretKey::from_seed([9; 32]);
        let s = signed(&[], &key);
        let e = s.value.verify(&s.bytes, &s.sig, &key.public(), hub(2)).unwrap_err();
        assert_eq!(e.code(), "wrong_hub");
    }

    #[test]
    fn unknown_versions_and_critical_members_are_refused_by_name() {
        let key = SecretKey::from_seed([9; 32]);
        let text = String::from_utf8(signed(&[], &key).bytes).unwrap();
        let newer = text.replacen("\"version\":2", "\"version\":3", 1);
        assert_eq!(Header::parse(newer.as_bytes()).unwrap_err().code(), "unknown_version");
        let critical = text.replacen("\"critical\":[]", "\"critical\":[\"parts\"]", 1);
        assert_eq!(Header::parse(critical.as_bytes()).unwrap_err().code(), "unknown_critical");
        let unknown = text.replacen("\"critical\":[]", "\"colour\":1,\"critical\":[]", 1);
        assert!(Header::parse(unknown.as_bytes()).is_ok());
    }

    #[test]
    fn entries_that_were_not_signed_are_refused() {
        let key = SecretKey::from_seed([9; 32]);
        let entries = [entry("a.parquet", 1), entry("b.parquet", 2)];
        let s = signed(&entries, &key);
        let fewer = &entries[..1];
        assert!(s.value.verify_entries(&to_jsonl(fewer), fewer).is_err());
        let renumbered = [entry("a.parquet", 1), entry("b.parquet", 3)];
        assert!(s.value.verify_entries(&to_jsonl(&renumbered), &renumbered).is_err());
    }
}
