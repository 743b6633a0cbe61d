//! How a spoke and a hub come to know each other: a one-time token over a network, or a request and
//! a grant as files where there is none.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::{Sha256Digest, hex, unhex};
use crate::id::{HubEpoch, HubId, SpokeId};
use crate::key::{PublicKey, SecretKey};
use crate::time::Timestamp;

/// What a one-time enrollment token carries, behind `barque-enroll-` in URL-safe base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnrollToken {
    pub spoke: SpokeId,
    pub hub: HubId,
    pub urls: Vec<String>,
    /// SHA-256 of the root's public key.
    pub root: Sha256Digest,
    pub secret: String,
    pub hub_time: Timestamp,
    pub expires_at: Timestamp,
}

const TOKEN_PREFIX: &str = "barque-enroll-";

/// A text that is not an enrollment token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is not an enrollment token; `barque hub spoke add ID` on the hub prints one, starting with {TOKEN_PREFIX}"
)]
pub struct TokenError;

impl EnrollToken {
    pub fn encode(&self) -> String {
        let json = serde_json::to_vec(self).expect("a token has only string keys");
        format!("{TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }

    pub fn decode(text: &str) -> Result<Self, TokenError> {
        let body = text.trim().strip_prefix(TOKEN_PREFIX).ok_or(TokenError)?;
        let json = URL_SAFE_NO_PAD.decode(body).map_err(|_| TokenError)?;
        serde_json::from_slice(&json).map_err(|_| TokenError)
    }
}

const ENROLL_LABEL: &str = "barque-enroll-v1";

/// `POST /api/v1/enroll`: a spoke hands in its key for a one-time token.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EnrollRequest {
    pub spoke_id: SpokeId,
    pub secret: String,
    pub public_key: PublicKey,
    /// Hex of the key's signature over the members above and the hub id: it owns what it hands in.
    pub proof: String,
}

impl EnrollRequest {
    pub fn new(token: &EnrollToken, key: &SecretKey) -> Self {
        let public_key = key.public();
        let text = public_key.to_string();
        let parts = proof_parts(&token.hub, &token.spoke, &token.secret, &text);
        let parts: Vec<&[u8]> = parts.iter().map(String::as_bytes).collect();
        let proof = hex(&key.sign(ENROLL_LABEL, &parts));
        Self { spoke_id: token.spoke.clone(), secret: token.secret.clone(), public_key, proof }
    }

    /// Whether the sender owns the key it hands in.
    pub fn is_proven(&self, hub: &HubId) -> bool {
        let text = self.public_key.to_string();
        let parts = proof_parts(hub, &self.spoke_id, &self.secret, &text);
        let parts: Vec<&[u8]> = parts.iter().map(String::as_bytes).collect();
        unhex(&self.proof)
            .is_some_and(|sig| self.public_key.verify(ENROLL_LABEL, &parts, &sig).is_ok())
    }
}

fn proof_parts(hub: &HubId, spoke: &SpokeId, secret: &str, key: &str) -> [String; 4] {
    [hub.to_string(), spoke.to_string(), secret.to_owned(), key.to_owned()]
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EnrollResponse {
    pub spoke_id: SpokeId,
    pub hub_id: HubId,
    pub hub_epoch: HubEpoch,
    /// The root's public key; its SHA-256 is what the token carried.
    pub root: PublicKey,
    pub hub_time: Timestamp,
}

const OFFLINE_LABEL: &str = "barque-enroll-offline-v1";
const GRANT_LABEL: &str = "barque-grant-v1";

/// What a spoke without a network hands in as a file: its name, its key, and that it owns it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct OfflineRequest {
    /// Always `barque-enroll-request`.
    pub kind: String,
    pub spoke_id: SpokeId,
    pub public_key: PublicKey,
    /// Hex of the key's signature over name and key.
    pub proof: String,
}

impl OfflineRequest {
    pub const KIND: &'static str = "barque-enroll-request";

    pub fn new(spoke_id: SpokeId, key: &SecretKey) -> Self {
        let public_key = key.public();
        let text = public_key.to_string();
        let proof = hex(&key.sign(OFFLINE_LABEL, &[spoke_id.as_str().as_bytes(), text.as_bytes()]));
        Self { kind: Self::KIND.to_owned(), spoke_id, public_key, proof }
    }

    /// Whether it is one, and its sender owns the key it hands in.
    pub fn is_proven(&self) -> bool {
        let text = self.public_key.to_string();
        let parts = [self.spoke_id.as_str().as_bytes(), text.as_bytes()];
        self.kind == Self::KIND
            && unhex(&self.proof)
                .is_some_and(|sig| self.public_key.verify(OFFLINE_LABEL, &parts, &sig).is_ok())
    }
}

/// The hub's answer as a file: who it is, and that it knows the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Grant {
    /// Always `barque-enroll-grant`.
    pub kind: String,
    pub spoke_id: SpokeId,
    pub public_key: PublicKey,
    pub hub_id: HubId,
    pub hub_epoch: HubEpoch,
    /// Addresses of the hub; none when spokes come to it by drive alone.
    pub urls: Vec<String>,
    pub root: PublicKey,
    pub hub_time: Timestamp,
    /// Hex of the root's signature over the members above, in this order, times and ids as texts.
    pub signature: String,
}

impl Grant {
    pub const KIND: &'static str = "barque-enroll-grant";

    /// Signs a grant whose other members are filled in.
    pub fn signed(mut self, root: &SecretKey) -> Self {
        self.signature = self.with_parts(|parts| hex(&root.sign(GRANT_LABEL, parts)));
        self
    }

    /// Whether it is one, and the root that it names signed it.
    pub fn is_signed(&self) -> bool {
        let Some(sig) = unhex(&self.signature) else { return false };
        self.kind == Self::KIND
            && self.with_parts(|parts| self.root.verify(GRANT_LABEL, parts, &sig).is_ok())
    }

    fn with_parts<T>(&self, f: impl FnOnce(&[&[u8]]) -> T) -> T {
        let mut parts = vec![
            self.spoke_id.to_string(),
            self.public_key.to_string(),
            self.hub_id.to_string(),
            self.hub_epoch.to_string(),
            self.root.to_string(),
            self.hub_time.to_string(),
        ];
        parts.extend(self.urls.iter().cloned());
        let parts: Vec<&[u8]> = parts.iter().map(String::as_bytes).collect();
        f(&parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_its_keys_and_a_grant_is_its_roots() {
        let (key, root) = (SecretKey::from_seed([1; 32]), SecretKey::from_seed([2; 32]));
        let request = OfflineRequest::new("submarine-01".parse().unwrap(), &key);
        assert!(request.is_proven());
        let renamed = OfflineRequest { spoke_id: "other".parse().unwrap(), ..request.clone() };
        assert!(!renamed.is_proven());
        let now = Timestamp::from_unix_ms(1_700_000_000_000);
        let grant = Grant {
            kind: Grant::KIND.to_owned(),
            spoke_id: request.spoke_id,
            public_key: request.public_key,
            hub_id: HubId::new(now, [1; 10]),
            hub_epoch: HubEpoch::new(now, [2; 10]),
            urls: vec!["https://hub:7171".into()],
            root: root.public(),
            hub_time: now,
            signature: String::new(),
        }
        .signed(&root);
        assert!(grant.is_signed());
        let elsewhere = Grant { urls: vec!["https://evil:7171".into()], ..grant.clone() };
        assert!(!elsewhere.is_signed());
        assert!(!Grant { kind: "x".into(), ..grant }.is_signed());
    }
}
