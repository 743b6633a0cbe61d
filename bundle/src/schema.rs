//! JSON Schemas of the types that are texts on the wire, for the hub's `/openapi.json`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    BundleId, FilePath, HubEpoch, HubId, KeyId, PublicKey, Ranges, SeriesId, Sha256Digest, SpokeId,
    Timestamp,
};

/// A text of a stated form.
macro_rules! text {
    ($type:ty, $name:literal, $pattern:literal, $says:literal) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "pattern": $pattern, "description": $says })
            }
        }
    };
}

text!(Sha256Digest, "Sha256Digest", "^[0-9a-f]{64}$", "SHA-256 in lower-case hex.");
text!(
    PublicKey,
    "PublicKey",
    "^[A-Za-z0-9+/]{43}=$",
    "The 32 bytes of an Ed25519 public key (RFC 8032) in base64."
);
text!(KeyId, "KeyId", "^[0-9a-f]{16}$", "The first 16 hex digits of SHA-256 of a public key.");
text!(
    SpokeId,
    "SpokeId",
    "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
    "A spoke's name; no `..`, no trailing dot."
);
text!(
    FilePath,
    "FilePath",
    "\\.parquet$",
    "A relative path with `/`, ending in `.parquet`; 255 bytes a segment."
);
text!(HubId, "HubId", "^[0-9A-HJKMNP-TV-Z]{26}$", "16 bytes in Crockford base32.");
text!(HubEpoch, "HubEpoch", "^[0-9A-HJKMNP-TV-Z]{26}$", "One life of a manifest.");
text!(SeriesId, "SeriesId", "^[0-9A-HJKMNP-TV-Z]{26}$", "A ledger's run of numbers.");
text!(BundleId, "BundleId", "^[0-9A-HJKMNP-TV-Z]{26}$", "16 bytes in Crockford base32.");

impl JsonSchema for Timestamp {
    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "format": "date-time",
            "description": "RFC 3339 in UTC with milliseconds."
        })
    }
}

impl JsonSchema for Ranges {
    fn schema_name() -> Cow<'static, str> {
        "Ranges".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "items": {
                "type": "array", "items": { "type": "integer", "minimum": 0 },
                "minItems": 2, "maxItems": 2
            },
            "description": "Numbers as inclusive ranges [lo, hi]."
        })
    }
}
