//! What goes over the line while a node joins, which may be a plain one: who listens there, from the
//! making of the token on, learns nothing of what is handed over and cannot join instead.
//!
//! A token's secret makes a key pair. The hub keeps the digest of the public half, which tells nobody
//! how to sign for it. The answer is sealed under a key that both sides agree on (X25519, RFC 7748;
//! ChaCha20-Poly1305, RFC 8439), each with a key pair made for this one call.

use barque_bundle::digest::{hex, length_prefixed, unhex};
use barque_bundle::{PublicKey, SecretKey, Sha256Digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::SystemRandom;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Error;

const LABEL: &str = "barque-join-v2";

/// The key pair of an invitation.
pub fn invitation(secret: &str) -> SecretKey {
    let seed = Sha256Digest::of(&length_prefixed(&[b"barque-join-key-v1", secret.as_bytes()]));
    SecretKey::from_seed(*seed.as_bytes())
}

/// What the manifest keeps of an invitation.
pub fn name_of(invitation: &PublicKey) -> Sha256Digest {
    Sha256Digest::of(&length_prefixed(&[b"barque-join-id-v1", invitation.as_bytes()]))
}

/// A node asks to be let in.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The public half of the token's key, and its signature: the asker has the token.
    pub invitation: PublicKey,
    pub invited: String,
    pub node_id: String,
    pub public_key: PublicKey,
    /// The node's own signature: it owns the key that it hands in.
    pub proof: String,
    /// Hex of the public half of the key of this call.
    pub ephemeral: String,
}

/// An answer that opens for the asker alone.
#[derive(Debug, Serialize, Deserialize)]
pub struct Sealed {
    pub ephemeral: String,
    pub sealed: String,
}

/// The private half of the key of a call.
pub struct Asked(EphemeralPrivateKey);

fn fault() -> Error {
    Error::Tls("a key for one call cannot be made".to_owned())
}

fn foreign() -> Error {
    Error::Unusable("what answered is none of the token's hub".to_owned())
}

/// A key pair for one call: the private half, and the hex of the public one.
fn ephemeral() -> Result<(EphemeralPrivateKey, String), Error> {
    let key = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| fault())?;
    let public = hex(key.compute_public_key().map_err(|_| fault())?.as_ref());
    Ok((key, public))
}

impl Request {
    pub fn new(
        hub: &str,
        secret: &str,
        node_id: &str,
        node: &SecretKey,
    ) -> Result<(Self, Asked), Error> {
        let (private, ephemeral) = ephemeral()?;
        let invitation = invitation(secret);
        let mut request = Self {
            invitation: invitation.public(),
            invited: String::new(),
            node_id: node_id.to_owned(),
            public_key: node.public(),
            proof: String::new(),
            ephemeral,
        };
        let said = request.said(hub);
        let said: Vec<&[u8]> = said.iter().map(String::as_bytes).collect();
        (request.invited, request.proof) =
            (hex(&invitation.sign(LABEL, &said)), hex(&node.sign(LABEL, &said)));
        Ok((request, Asked(private)))
    }

    /// All that is asked, which both signatures are over.
    fn said(&self, hub: &str) -> [String; 5] {
        [
            hub.to_owned(),
            self.node_id.clone(),
            self.public_key.to_string(),
            self.invitation.to_string(),
            self.ephemeral.clone(),
        ]
    }

    /// Whether the asker has the token of this invitation, and the key that it hands in.
    pub fn is_proven(&self, hub: &str) -> bool {
        let said = self.said(hub);
        let said: Vec<&[u8]> = said.iter().map(String::as_bytes).collect();
        let signed = |key: &PublicKey, sig: &str| {
            unhex(sig).is_some_and(|sig| key.verify(LABEL, &said, &sig).is_ok())
        };
        signed(&self.invitation, &self.invited) && signed(&self.public_key, &self.proof)
    }

    /// An answer that opens for whoever asked.
    pub fn seal(&self, hub: &str, answer: &impl Serialize) -> Result<Sealed, Error> {
        let mut bytes = serde_json::to_vec(answer).map_err(|e| Error::Malformed(e.to_string()))?;
        let (private, ephemeral) = ephemeral()?;
        let key = self.agree(hub, private, &self.ephemeral, &ephemeral).ok_or_else(fault)?;
        key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut bytes).map_err(|_| fault())?;
        Ok(Sealed { ephemeral, sealed: URL_SAFE_NO_PAD.encode(bytes) })
    }

    pub fn open<T: DeserializeOwned>(
        &self,
        hub: &str,
        asked: Asked,
        sealed: &Sealed,
    ) -> Result<T, Error> {
        let key = self.agree(hub, asked.0, &sealed.ephemeral, &sealed.ephemeral);
        let key = key.ok_or_else(foreign)?;
        let mut bytes = URL_SAFE_NO_PAD.decode(&sealed.sealed).map_err(|_| foreign())?;
        let opened = key.open_in_place(nonce(), Aad::empty(), &mut bytes);
        serde_json::from_slice(opened.map_err(|_| foreign())?).map_err(|_| foreign())
    }

    /// The key of this call, for which both sides' halves and all that was asked count.
    fn agree(
        &self,
        hub: &str,
        own: EphemeralPrivateKey,
        others: &str,
        answered: &str,
    ) -> Option<LessSafeKey> {
        let others = UnparsedPublicKey::new(&X25519, unhex(others)?);
        let said = self.said(hub);
        let key = agree_ephemeral(own, &others, |agreed| {
            let mut parts: Vec<&[u8]> = vec![b"barque-join-seal-v2", agreed, answered.as_bytes()];
            parts.extend(said.iter().map(|s| s.as_bytes()));
            Sha256Digest::of(&length_prefixed(&parts))
        });
        UnboundKey::new(&CHACHA20_POLY1305, key.ok()?.as_bytes()).ok().map(LessSafeKey::new)
    }
}

/// Each key seals one answer.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: u8) -> SecretKey {
        SecretKey::from_seed([n; 32])
    }

    #[test]
    fn an_answer_opens_for_the_asker_alone() {
        let (request, asked) = Request::new("hub", "secret", "ab", &node(2)).unwrap();
        assert!(request.is_proven("hub"));
        let sealed = request.seal("hub", &"the root key").unwrap();
        assert!(!sealed.sealed.contains(&URL_SAFE_NO_PAD.encode("the root key")));
        // Who knows the token, and heard all that went over the line, has no key of this call.
        let (_, other) = Request::new("hub", "secret", "ab", &node(2)).unwrap();
        assert!(request.open::<String>("hub", other, &sealed).is_err());
        let (_, again) = Request::new("hub", "secret", "ab", &node(2)).unwrap();
        let cut = Sealed { ephemeral: sealed.ephemeral.clone(), sealed: "AAAA".to_owned() };
        assert!(request.open::<String>("hub", again, &cut).is_err());
        assert_eq!(request.open::<String>("hub", asked, &sealed).unwrap(), "the root key");
    }

    #[test]
    fn only_who_has_the_token_and_the_nodes_key_asks() {
        let (genuine, _) = Request::new("hub", "secret", "ab", &node(2)).unwrap();
        assert!(!genuine.is_proven("another hub"));
        // A listener knows the invitation's public half, and puts a node of its own in.
        let (mut forged, _) = Request::new("hub", "guess", "cd", &node(3)).unwrap();
        assert_ne!(name_of(&forged.invitation), name_of(&genuine.invitation));
        forged.invitation = genuine.invitation.clone();
        assert!(!forged.is_proven("hub"));
        for change in [
            |r: &mut Request| r.node_id = "cd".to_owned(),
            |r: &mut Request| r.public_key = node(3).public(),
            |r: &mut Request| r.ephemeral = "00".repeat(32),
        ] {
            let (mut changed, _) = Request::new("hub", "secret", "ab", &node(2)).unwrap();
            change(&mut changed);
            assert!(!changed.is_proven("hub"), "{changed:?}");
        }
    }
}
