//! Who may call: spokes by their keys, operators and readers by their tokens.

use std::path::Path;

use barque_bundle::header::Header;
use barque_bundle::jwt::{self, JwtError};
use barque_bundle::wire::Role;
use barque_bundle::{ErrorKind, HubId, KeyId, PublicKey, Sha256Digest, SpokeId, Timestamp};

use rusqlite::Connection;

use crate::config::DataFolder;
use crate::error::{Error, Refusal};
use crate::identity::Identity;
use crate::manifest::Readers;
use crate::manifest::query;

/// A spoke whose token held for the request at hand; `digest` is still to be compared.
#[derive(Clone, Debug)]
pub struct Caller {
    pub spoke_id: SpokeId,
    pub key_id: KeyId,
    pub public_key: PublicKey,
    /// What the token says the body, or the header's entries, must be.
    pub digest: Sha256Digest,
}

/// What a request is, for its token to be judged.
pub struct Request<'a> {
    pub hub_id: HubId,
    pub method: &'a str,
    pub path: &'a str,
    pub token: Option<&'a str>,
    pub now: Timestamp,
}

impl Caller {
    /// The spoke that signed the request, or why its token does not count (each with its code).
    pub fn identify(readers: &Readers, request: &Request<'_>) -> Result<Self, Error> {
        let token = request.token.ok_or(JwtError::Missing).map_err(refuse)?;
        let key_id = jwt::key_id(token).map_err(refuse)?;
        let row = readers.read(|c| query::key(c, &key_id))?;
        let row = row.ok_or_else(|| refuse(JwtError::UnknownKey(key_id.clone())))?;
        let asked = jwt::Request {
            hub_id: request.hub_id,
            method: request.method,
            path: request.path,
            now: request.now,
        };
        let claims = jwt::verify(token, &row.public_key, &asked).map_err(refuse)?;
        if claims.sub != row.spoke_id {
            return Err(refuse(JwtError::WrongSpoke).into());
        }
        if !row.is_live {
            return Err(Refusal::new(
                ErrorKind::Forbidden,
                "spoke_disabled",
                format!("{} is disabled on this hub; an operator has to enable it", row.spoke_id),
            )
            .into());
        }
        let query::KeyRow { spoke_id, public_key, .. } = row;
        Ok(Self { spoke_id, key_id, public_key, digest: claims.dig })
    }

    /// Holds when the body, or the header's entries, are the ones the token was signed for.
    pub fn check_digest(&self, found: Sha256Digest) -> Result<(), Refusal> {
        if self.digest == found { Ok(()) } else { Err(refuse(JwtError::WrongBody)) }
    }
}

/// The refusal of a token; the hub's time is told only after the signature was good.
fn refuse(e: JwtError) -> Refusal {
    let hub_time = match &e {
        JwtError::Expired { hub_time, .. } | JwtError::ClockSkew { hub_time, .. } => {
            Some(*hub_time)
        }
        _ => None,
    };
    Refusal { hub_time, ..Refusal::new(e.kind(), e.code(), e.to_string()) }
}

/// The key that a bundle's header names, and the hub it has to be for, from a hub's data folder; the
/// hub need not run. Refused where an import would be: an unknown or disabled spoke, a dead key.
pub fn key_of_bundle(data: &Path, header: &Header) -> Result<(PublicKey, HubId), Error> {
    let identity = Identity::load(data)?;
    let readers = Readers::new(DataFolder(data).manifest_db());
    let key = readers.read(|c| bundle_key(c, header))?;
    Ok((key, identity.hub_id))
}

/// The live key that signed a bundle, or why it counts for nothing.
pub fn bundle_key(c: &Connection, header: &Header) -> Result<PublicKey, Error> {
    let spoke = &header.spoke_id;
    let refuse = |kind, code, detail: String| Err(Refusal::new(kind, code, detail).into());
    let Some(line) = query::spokes(c, Some(spoke))?.into_iter().next() else {
        let detail = format!("there is no spoke named {spoke} on this hub; nothing was taken");
        return refuse(ErrorKind::Forbidden, "unknown_spoke", detail);
    };
    if line.state != "active" {
        let detail = format!("{spoke} is {} on this hub; an operator has to enable it", line.state);
        return refuse(ErrorKind::Forbidden, "spoke_disabled", detail);
    }
    match query::key(c, &header.key_id)? {
        Some(key) if key.spoke_id == *spoke && key.is_live => Ok(key.public_key),
        Some(key) if key.spoke_id == *spoke => {
            let detail = format!("the key {} of {spoke} is revoked", header.key_id);
            refuse(ErrorKind::Forbidden, "key_revoked", detail)
        }
        _ => {
            let detail = format!("the key {} is none of {spoke}'s", header.key_id);
            refuse(ErrorKind::Unauthenticated, "unknown_key", detail)
        }
    }
}

/// The role of a bearer token; refused when there is none or it is unknown.
pub fn role_of(readers: &Readers, token: Option<&str>) -> Result<Role, Error> {
    let missing = || {
        Refusal::new(
            ErrorKind::Unauthenticated,
            "bearer_missing",
            "this needs a bearer token; `barque hub token add` on the hub makes one",
        )
    };
    let token = token.ok_or_else(missing)?;
    let hash = Sha256Digest::of(token.as_bytes());
    readers.read(|c| query::token_role(c, &hash))?.ok_or_else(|| {
        Refusal::new(
            ErrorKind::Unauthenticated,
            "bearer_unknown",
            "the bearer token is not known here",
        )
        .into()
    })
}

/// Refuses a role below the one that is needed.
pub fn require(role: Role, needed: Role) -> Result<(), Refusal> {
    if role >= needed {
        return Ok(());
    }
    Err(Refusal::new(
        ErrorKind::Forbidden,
        "role_too_low",
        format!("this needs the role {}, the token has {}", needed.as_str(), role.as_str()),
    ))
}
