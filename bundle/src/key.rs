//! Ed25519 keys (RFC 8032), their short names, and the certificate a hub's root gives a node.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::Signer as _;
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::digest::{Sha256Digest, hex, length_prefixed};
use crate::id::HubId;
use crate::time::Timestamp;

/// A signature or key that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("not an Ed25519 key in base64")]
    Malformed,
    #[error("the signature does not fit the key and the bytes")]
    BadSignature,
    #[error("the node's certificate is not signed by a root this spoke trusts (wrong root)")]
    WrongRoot,
    #[error("the node's certificate is of hub {found}, not of {expected}")]
    OtherHub { expected: HubId, found: HubId },
}

/// The first 16 hex digits of SHA-256(public key).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyId(String);

impl KeyId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for KeyId {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A private key; its debug form shows only its name.
#[derive(Clone)]
pub struct SecretKey(ed25519_dalek::SigningKey);

impl SecretKey {
    /// The key of 32 secret random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key())
    }

    /// The 64-byte signature over LP(label) LP(part)...
    pub fn sign(&self, label: &str, parts: &[&[u8]]) -> [u8; 64] {
        self.0.sign(&labelled(label, parts)).to_bytes()
    }

    /// The PKCS#8 (RFC 5958) form, as TLS and JWT libraries read it.
    pub fn to_pkcs8(&self) -> Vec<u8> {
        self.0.to_pkcs8_der().expect("an Ed25519 key has a PKCS#8 form").as_bytes().to_vec()
    }

    /// The seed in base64, for a file of mode 0600 and nothing else.
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.0.as_bytes())
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({})", self.public().key_id())
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = BASE64.decode(text).map_err(|_| KeyError::Malformed)?;
        Ok(Self::from_seed(bytes.try_into().map_err(|_| KeyError::Malformed)?))
    }
}

fn labelled(label: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut all = vec![label.as_bytes()];
    all.extend_from_slice(parts);
    length_prefixed(&all)
}

/// A public key, written as base64 of its 32 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey(ed25519_dalek::VerifyingKey);

impl PublicKey {
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes: &[u8; 32] = bytes.try_into().map_err(|_| KeyError::Malformed)?;
        ed25519_dalek::VerifyingKey::from_bytes(bytes).map(Self).map_err(|_| KeyError::Malformed)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// SHA-256 of the 32 bytes: what an enrollment token carries of the root.
    pub fn fingerprint(&self) -> Sha256Digest {
        Sha256Digest::of(self.as_bytes())
    }

    pub fn key_id(&self) -> KeyId {
        KeyId(hex(&self.fingerprint().as_bytes()[..8]))
    }

    /// Strict verification (no small-order keys, canonical form) of what [`SecretKey::sign`] made.
    pub fn verify(&self, label: &str, parts: &[&[u8]], sig: &[u8]) -> Result<(), KeyError> {
        let sig = ed25519_dalek::Signature::from_slice(sig).map_err(|_| KeyError::BadSignature)?;
        self.0.verify_strict(&labelled(label, parts), &sig).map_err(|_| KeyError::BadSignature)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(self.as_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.key_id())
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        Self::from_bytes(&BASE64.decode(text).map_err(|_| KeyError::Malformed)?)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

const CERTIFICATE_LABEL: &str = "barque-node-v1";

/// A hub root's word that a key is a node's own: nodes sign receipts, spokes pin the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificate {
    pub hub_id: HubId,
    /// The node's Raft id in 16 hex digits.
    pub node_id: String,
    pub public_key: PublicKey,
    pub issued_at: Timestamp,
    /// The root's Ed25519 signature over LP("barque-node-v1") and LP of each member above, base64.
    pub signature: String,
}

impl NodeCertificate {
    pub fn issue(
        root: &SecretKey,
        hub_id: HubId,
        node_id: String,
        public_key: PublicKey,
        issued_at: Timestamp,
    ) -> Self {
        let mut certificate =
            Self { hub_id, node_id, public_key, issued_at, signature: String::new() };
        let sig = certificate.with_parts(|parts| root.sign(CERTIFICATE_LABEL, parts));
        certificate.signature = BASE64.encode(sig);
        certificate
    }

    /// Holds when one of the roots signed it for this hub.
    pub fn verify(&self, roots: &[PublicKey], hub_id: HubId) -> Result<(), KeyError> {
        if self.hub_id != hub_id {
            return Err(KeyError::OtherHub { expected: hub_id, found: self.hub_id });
        }
        let sig = BASE64.decode(&self.signature).map_err(|_| KeyError::BadSignature)?;
        let good = |root: &PublicKey| {
            self.with_parts(|parts| root.verify(CERTIFICATE_LABEL, parts, &sig)).is_ok()
        };
        if roots.iter().any(good) { Ok(()) } else { Err(KeyError::WrongRoot) }
    }

    fn with_parts<T>(&self, f: impl FnOnce(&[&[u8]]) -> T) -> T {
        f(&[
            self.hub_id.to_string().as_bytes(),
            self.node_id.as_bytes(),
            self.public_key.to_string().as_bytes(),
            self.issued_at.to_string().as_bytes(),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_its_key_label_and_parts_only() {
        let key = SecretKey::from_seed([7; 32]);
        let sig = key.sign("l", &[b"a", b"b"]);
        assert!(key.public().verify("l", &[b"a", b"b"], &sig).is_ok());
        assert!(key.public().verify("l", &[b"ab", b""], &sig).is_err());
        assert!(key.public().verify("m", &[b"a", b"b"], &sig).is_err());
        assert!(SecretKey::from_seed([8; 32]).public().verify("l", &[b"a", b"b"], &sig).is_err());
    }

    #[test]
    fn a_certificate_holds_for_its_root_and_hub_only() {
        let root = SecretKey::from_seed([1; 32]);
        let hub = HubId::new(Timestamp::from_unix_ms(5), [1; 10]);
        let node = SecretKey::from_seed([2; 32]).public();
        let at = Timestamp::from_unix_ms(9);
        let cert = NodeCertificate::issue(&root, hub, "00ff".into(), node, at);
        assert!(cert.verify(&[root.public()], hub).is_ok());
        let other = SecretKey::from_seed([3; 32]).public();
        assert_eq!(cert.verify(&[other], hub), Err(KeyError::WrongRoot));
        let hub2 = HubId::new(at, [2; 10]);
        assert!(matches!(cert.verify(&[root.public()], hub2), Err(KeyError::OtherHub { .. })));
        let mut forged = cert;
        forged.node_id = "00fe".into();
        assert_eq!(forged.verify(&[root.public()], hub), Err(KeyError::WrongRoot));
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let key = SecretKey::from_seed([7; 32]);
        assert!(!format!("{key:?}").contains(&key.to_base64()));
    }
}
