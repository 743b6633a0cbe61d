//! The EdDSA JWT (RFC 7519, RFC 8037) that a spoke signs for one request.
//!
//! It says who calls (`kid`, `sub`), which hub is meant (`aud`), until when (`exp`, at most 300 s
//! after `iat`), and what it is for: method, path, and the body's digest or the header's
//! `entries_digest`. A stolen token is good for that one request, and redelivery is a no-op (D2).

mod eddsa;

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Validation};
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Digest;
use crate::error::ErrorKind;
use crate::id::{HubId, SpokeId};
use crate::key::{KeyId, PublicKey, SecretKey};
use crate::time::Timestamp;

/// Longest life of a token, in seconds.
pub const LIFETIME_MAX_S: i64 = 300;
/// How far clocks may differ, in seconds.
pub const SKEW_S: i64 = 60;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    pub sub: SpokeId,
    pub aud: HubId,
    /// Seconds since 1970.
    pub iat: i64,
    pub exp: i64,
    pub jti: String,
    /// HTTP method.
    pub htm: String,
    /// Path of the URL.
    pub htu: String,
    /// SHA-256 of the JSON body, or the `entries_digest` of a stream's header.
    pub dig: Sha256Digest,
}

/// Why a token does not count; each has its own code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    #[error("the request carries no token of a spoke")]
    Missing,
    #[error("the token is malformed")]
    Malformed,
    #[error("the key {0} is not registered here")]
    UnknownKey(KeyId),
    #[error("the token's signature does not fit the key")]
    BadSignature,
    #[error("the token names another spoke than its key belongs to")]
    WrongSpoke,
    #[error("the token is for hub {found}, this is {expected}")]
    WrongHub { expected: HubId, found: HubId },
    #[error("the token is for another method or path")]
    WrongRequest,
    #[error("the token is for another body")]
    WrongBody,
    #[error("the token lives longer than {LIFETIME_MAX_S} s")]
    TooLong,
    #[error("the token expired at {exp}; the hub's time is {hub_time}")]
    Expired { exp: Timestamp, hub_time: Timestamp },
    #[error("the spoke's clock says {iat}, the hub's {hub_time}")]
    ClockSkew { iat: Timestamp, hub_time: Timestamp },
}

impl JwtError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing => "token_missing",
            Self::Malformed => "token_malformed",
            Self::UnknownKey(_) => "unknown_key",
            Self::BadSignature => "bad_signature",
            Self::WrongSpoke => "wrong_spoke",
            Self::WrongHub { .. } => "wrong_hub",
            Self::WrongRequest => "wrong_request",
            Self::WrongBody => "wrong_body",
            Self::TooLong => "token_too_long",
            Self::Expired { .. } => "token_expired",
            Self::ClockSkew { .. } => "clock_skew",
        }
    }

    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Unauthenticated
    }
}

/// The signed token for one request, valid from `now` for the longest life.
pub fn sign(key: &SecretKey, claims: &Claims) -> String {
    eddsa::install();
    let mut header = jsonwebtoken::Header::new(Algorithm::EdDSA);
    header.kid = Some(key.public().key_id().to_string());
    let encoding = EncodingKey::from_ed_der(&key.to_pkcs8());
    jsonwebtoken::encode(&header, claims, &encoding).expect("claims have only string keys")
}

/// The key id that a token names; nothing about it is proven yet.
pub fn key_id(token: &str) -> Result<KeyId, JwtError> {
    let header = jsonwebtoken::decode_header(token).map_err(|_| JwtError::Malformed)?;
    if header.alg != Algorithm::EdDSA {
        return Err(JwtError::Malformed);
    }
    header.kid.map(|kid| KeyId::from(kid.as_str())).ok_or(JwtError::Malformed)
}

/// What a request must be for its token to count.
pub struct Request<'a> {
    pub hub_id: HubId,
    pub method: &'a str,
    pub path: &'a str,
    pub now: Timestamp,
}

/// The claims, once signature, hub, request and time hold; the caller compares `dig` and `sub`.
pub fn verify(token: &str, key: &PublicKey, request: &Request<'_>) -> Result<Claims, JwtError> {
    eddsa::install();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.validate_exp = false;
    validation.validate_aud = false;
    validation.required_spec_claims.clear();
    let decoding = DecodingKey::from_ed_der(key.as_bytes());
    let claims = jsonwebtoken::decode::<Claims>(token, &decoding, &validation)
        .map_err(|e| match e.kind() {
            jsonwebtoken::errors::ErrorKind::InvalidSignature => JwtError::BadSignature,
            _ => JwtError::Malformed,
        })?
        .claims;
    judge(&claims, request)?;
    Ok(claims)
}

fn judge(claims: &Claims, request: &Request<'_>) -> Result<(), JwtError> {
    if claims.aud != request.hub_id {
        return Err(JwtError::WrongHub { expected: request.hub_id, found: claims.aud });
    }
    if claims.htm != request.method || claims.htu != request.path {
        return Err(JwtError::WrongRequest);
    }
    let (now, hub_time) = (request.now.unix_seconds(), request.now);
    let at = |s: i64| Timestamp::from_unix_ms(s.saturating_mul(1000));
    if claims.iat.saturating_sub(SKEW_S) > now {
        return Err(JwtError::ClockSkew { iat: at(claims.iat), hub_time });
    }
    let lifetime = claims.exp.saturating_sub(claims.iat);
    if !(0..=LIFETIME_MAX_S).contains(&lifetime) {
        return Err(JwtError::TooLong);
    }
    if claims.exp.saturating_add(SKEW_S) < now {
        return Err(JwtError::Expired { exp: at(claims.exp), hub_time });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::tests::hub;

    fn claims(iat: i64) -> Claims {
        Claims {
            sub: "rocket-01".parse().unwrap(),
            aud: hub(1),
            iat,
            exp: iat + LIFETIME_MAX_S,
            jti: "1".into(),
            htm: "POST".into(),
            htu: "/api/v1/sync/reconcile".into(),
            dig: Sha256Digest::of(b"{}"),
        }
    }

    fn judged(claims: &Claims, hub_n: u8, path: &str, now_s: i64) -> Result<Claims, &'static str> {
        let key = SecretKey::from_seed([4; 32]);
        let request = Request {
            hub_id: hub(hub_n),
            method: "POST",
            path,
            now: Timestamp::from_unix_ms(now_s * 1000),
        };
        verify(&sign(&key, claims), &key.public(), &request).map_err(|e| e.code())
    }

    const PATH: &str = "/api/v1/sync/reconcile";

    #[test]
    fn a_token_counts_for_its_hub_request_and_time_only() {
        let c = claims(1000);
        assert_eq!(judged(&c, 1, PATH, 1000), Ok(c.clone()));
        assert_eq!(judged(&c, 2, PATH, 1000), Err("wrong_hub"));
        assert_eq!(judged(&c, 1, "/api/v1/sync/bundles", 1000), Err("wrong_request"));
        assert_eq!(judged(&c, 1, PATH, 1360), Ok(c.clone()));
        assert_eq!(judged(&c, 1, PATH, 1361), Err("token_expired"));
        assert_eq!(judged(&c, 1, PATH, 940), Ok(c.clone()));
        assert_eq!(judged(&c, 1, PATH, 939), Err("clock_skew"));
        let long = Claims { exp: c.iat + LIFETIME_MAX_S + 1, ..c };
        assert_eq!(judged(&long, 1, PATH, 1000), Err("token_too_long"));
    }

    #[test]
    fn a_token_of_another_key_or_of_no_algorithm_is_refused() {
        let key = SecretKey::from_seed([4; 32]);
        let token = sign(&SecretKey::from_seed([5; 32]), &claims(1000));
        let request = Request {
            hub_id: hub(1),
            method: "POST",
            path: PATH,
            now: Timestamp::from_unix_ms(1_000_000),
        };
        assert_eq!(verify(&token, &key.public(), &request), Err(JwtError::BadSignature));
        assert_eq!(key_id("eyJhbGciOiJub25lIn0.e30."), Err(JwtError::Malformed));
        // {"alg":"HS256"}: the public key would be its secret.
        let (_, rest) = token.split_once('.').unwrap();
        let forged = format!("eyJhbGciOiJIUzI1NiJ9.{rest}");
        assert_eq!(key_id(&forged), Err(JwtError::Malformed));
        assert_eq!(verify(&forged, &key.public(), &request), Err(JwtError::Malformed));
        assert_eq!(key_id("x"), Err(JwtError::Malformed));
    }
}
