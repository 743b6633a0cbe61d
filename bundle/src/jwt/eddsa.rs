//! The one algorithm of our tokens for jsonwebtoken, by the Ed25519 that everything else here is
//! signed with: its own providers bring RSA and two other curves along.

use ed25519_dalek::pkcs8::DecodePrivateKey as _;
use ed25519_dalek::{Signature, SignatureError, Signer, SigningKey, Verifier, VerifyingKey};
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    // Keys in JSON (RFC 7517) are not read here.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has jsonwebtoken sign and verify EdDSA (RFC 8037), and nothing else. Without effect once it does.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

fn require_eddsa(algorithm: Algorithm) -> Result<()> {
    match algorithm {
        Algorithm::EdDSA => Ok(()),
        _ => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    require_eddsa(*algorithm)?;
    let key = SigningKey::from_pkcs8_der(key.as_bytes()).map_err(|_| ErrorKind::InvalidEddsaKey)?;
    Ok(Box::new(OurSigner(key)))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    require_eddsa(*algorithm)?;
    let key =
        VerifyingKey::try_from(key.try_get_as_bytes()?).map_err(|_| ErrorKind::InvalidEddsaKey)?;
    Ok(Box::new(OurVerifier(key)))
}

struct OurSigner(SigningKey);

impl Signer<Vec<u8>> for OurSigner {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, SignatureError> {
        Ok(self.0.try_sign(message)?.to_vec())
    }
}

impl JwtSigner for OurSigner {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}

struct OurVerifier(VerifyingKey);

impl Verifier<Vec<u8>> for OurVerifier {
    fn verify(&self, message: &[u8], sig: &Vec<u8>) -> std::result::Result<(), SignatureError> {
        self.0.verify_strict(message, &Signature::from_slice(sig)?)
    }
}

impl JwtVerifier for OurVerifier {
    fn algorithm(&self) -> Algorithm {
        Algorithm::EdDSA
    }
}
