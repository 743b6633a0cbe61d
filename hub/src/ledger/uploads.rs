//! Files that arrive in pieces: what of them is on disk, and which bundle of one brings them.

use barque_bundle::{BundleId, Entry, FilePath, Sha256Digest, SpokeId, Timestamp};
use rusqlite::{OptionalExtension as _, Row, params};
use serde::{Deserialize, Serialize};

use super::{Ledger, wrap};
use crate::command::BundleRef;
use crate::error::Error;
use crate::manifest::query::{digest, signed, unsigned};

/// Which file it is: never spliced with another spoke's, path's or content's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UploadKey {
    pub spoke_id: SpokeId,
    pub path: FilePath,
    pub sha256: Sha256Digest,
}

/// A file of which a part has come.
#[derive(Clone, Debug)]
pub struct UploadRow {
    pub key: UploadKey,
    pub size_bytes: u64,
    /// Bytes from the start that are on disk for good.
    pub synced: u64,
    /// The bundle of one that brings it; none for what a cut stream left.
    pub bundle: Option<UploadBundle>,
    pub touched_at: Timestamp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UploadBundle {
    pub bundle: BundleRef,
    pub entry: Entry,
    pub entries_digest: Sha256Digest,
}

fn row(r: &Row<'_>) -> rusqlite::Result<UploadRow> {
    let malformed = || rusqlite::Error::InvalidQuery;
    let (spoke, path): (String, String) = (r.get("spoke_id")?, r.get("path")?);
    let bundle: Option<Vec<u8>> = r.get("bundle")?;
    Ok(UploadRow {
        key: UploadKey {
            spoke_id: spoke.parse().map_err(|_| malformed())?,
            path: path.parse().map_err(|_| malformed())?,
            sha256: digest(r, "sha256")?,
        },
        size_bytes: unsigned(r.get("size_bytes")?),
        synced: unsigned(r.get("synced")?),
        bundle: bundle.map(|b| rmp_serde::from_slice(&b).map_err(|_| malformed())).transpose()?,
        touched_at: Timestamp::from_unix_ms(r.get("touched_at")?),
    })
}

impl Ledger {
    pub fn upload(&self, key: &UploadKey) -> Result<Option<UploadRow>, Error> {
        self.lock()
            .prepare_cached(
                "SELECT * FROM uploads WHERE spoke_id = ?1 AND path = ?2 AND sha256 = ?3",
            )
            .and_then(|mut s| {
                let key = params![key.spoke_id.as_str(), key.path.as_str(), key.sha256.as_bytes()];
                s.query_row(key, row).optional()
            })
            .map_err(wrap())
    }

    pub fn upload_of_bundle(
        &self,
        spoke: &SpokeId,
        bundle_id: BundleId,
    ) -> Result<Option<UploadRow>, Error> {
        self.lock()
            .prepare_cached("SELECT * FROM uploads WHERE spoke_id = ?1 AND bundle_id = ?2")
            .and_then(|mut s| s.query_row([spoke.as_str(), &bundle_id.to_string()], row).optional())
            .map_err(wrap())
    }

    /// How many bytes of an upload are here; none when there is none of this id.
    pub fn bytes_of_upload(&self, bundle_id: BundleId) -> Result<Option<u64>, Error> {
        self.lock()
            .prepare_cached("SELECT synced FROM uploads WHERE bundle_id = ?1")
            .and_then(|mut s| {
                s.query_row([bundle_id.to_string()], |r| r.get(0).map(unsigned)).optional()
            })
            .map_err(wrap())
    }

    /// All uploads of a spoke, or of all spokes.
    pub fn uploads(&self, spoke: Option<&SpokeId>) -> Result<Vec<UploadRow>, Error> {
        let c = self.lock();
        let mut statement = c
            .prepare_cached("SELECT * FROM uploads WHERE ?1 IS NULL OR spoke_id = ?1")
            .map_err(wrap())?;
        let rows = statement.query_map([spoke.map(SpokeId::as_str)], row).map_err(wrap())?;
        rows.collect::<Result<_, _>>().map_err(wrap())
    }

    /// Makes or renews an upload; a bundle that is given replaces the one before.
    pub fn put_upload(&self, upload: &UploadRow) -> Result<(), Error> {
        let bundle = upload.bundle.as_ref();
        let bytes = bundle.map(rmp_serde::to_vec).transpose();
        let bytes = bytes.map_err(|e| Error::Malformed(e.to_string()))?;
        self.lock()
            .prepare_cached(
                "INSERT INTO uploads (spoke_id, path, sha256, size_bytes, synced, bundle_id,
                                      bundle, touched_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
                 ON CONFLICT (spoke_id, path, sha256) DO UPDATE SET
                     synced = excluded.synced, size_bytes = excluded.size_bytes,
                     touched_at = excluded.touched_at,
                     bundle_id = coalesce(excluded.bundle_id, bundle_id),
                     bundle = coalesce(excluded.bundle, bundle)",
            )
            .and_then(|mut s| {
                s.execute(params![
                    upload.key.spoke_id.as_str(),
                    upload.key.path.as_str(),
                    upload.key.sha256.as_bytes(),
                    signed(upload.size_bytes),
                    signed(upload.synced),
                    bundle.map(|b| b.bundle.bundle_id.to_string()),
                    bytes,
                    upload.touched_at.unix_ms()
                ])
            })
            .map(drop)
            .map_err(wrap())
    }

    /// Notes that the spoke still has these files in mind.
    pub fn touch_uploads(&self, keys: &[UploadKey], at: Timestamp) -> Result<(), Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        for key in keys {
            tx.prepare_cached(
                "UPDATE uploads SET touched_at = ?4
                 WHERE spoke_id = ?1 AND path = ?2 AND sha256 = ?3",
            )
            .and_then(|mut s| {
                s.execute(params![
                    key.spoke_id.as_str(),
                    key.path.as_str(),
                    key.sha256.as_bytes(),
                    at.unix_ms()
                ])
            })
            .map_err(wrap())?;
        }
        tx.commit().map_err(wrap())
    }

    pub fn remove_upload(&self, key: &UploadKey) -> Result<(), Error> {
        self.lock()
            .execute(
                "DELETE FROM uploads WHERE spoke_id = ?1 AND path = ?2 AND sha256 = ?3",
                params![key.spoke_id.as_str(), key.path.as_str(), key.sha256.as_bytes()],
            )
            .map(drop)
            .map_err(wrap())
    }
}
