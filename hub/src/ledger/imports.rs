//! Imports of bundles from drives, as this node knows them: what it imported, and how far it is.

use barque_bundle::{BundleId, Entry, FilePath, SpokeId, Timestamp};
use rusqlite::{OptionalExtension as _, Row, params};

use super::{Ledger, StagedRow, insert_staged, wrap};
use crate::command::ImportCounts;
use crate::error::Error;
use crate::manifest::query::{digest, signed, unsigned};

/// Which import it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportKey {
    pub spoke_id: SpokeId,
    pub bundle_id: BundleId,
}

/// A file of an import that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportFile {
    pub entry: Entry,
    /// Its copy in staging; none when the hub needed none.
    pub stage_no: Option<u64>,
    /// The rule that refuses it, and why.
    pub refused: Option<(String, String)>,
}

fn row(r: &Row<'_>) -> rusqlite::Result<ImportFile> {
    let path: String = r.get("path")?;
    let code: Option<String> = r.get("code")?;
    let detail: Option<String> = r.get("detail")?;
    Ok(ImportFile {
        entry: Entry {
            path: path.parse().map_err(|_| rusqlite::Error::InvalidQuery)?,
            sha256: digest(r, "sha256")?,
            size_bytes: unsigned(r.get("size_bytes")?),
            seq: unsigned(r.get("seq")?),
            modified_at: Timestamp::from_unix_ms(r.get("modified_at")?),
        },
        stage_no: r.get::<_, Option<i64>>("stage_no")?.map(unsigned),
        refused: code.map(|c| (c, detail.unwrap_or_default())),
    })
}

impl Ledger {
    /// Notes files that were verified, with the copies that are synced in staging; durable when
    /// this returns.
    pub fn note_import(
        &self,
        key: &ImportKey,
        files: &[ImportFile],
        staged: &[StagedRow],
        (claim, at): (u64, Timestamp),
    ) -> Result<(), Error> {
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        insert_staged(&tx, staged, at).map_err(wrap())?;
        {
            let mut insert = tx
                .prepare_cached(
                    "INSERT OR REPLACE INTO import_files (spoke_id, bundle_id, path, sha256,
                         size_bytes, seq, modified_at, stage_no, code, detail, noted_at,
                         claim)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                )
                .map_err(wrap())?;
            for file in files {
                insert
                    .execute(params![
                        key.spoke_id.as_str(),
                        key.bundle_id.to_string(),
                        file.entry.path.as_str(),
                        file.entry.sha256.as_bytes(),
                        signed(file.entry.size_bytes),
                        signed(file.entry.seq),
                        file.entry.modified_at.unix_ms(),
                        file.stage_no.map(signed),
                        file.refused.as_ref().map(|(code, _)| code),
                        file.refused.as_ref().map(|(_, detail)| detail),
                        at.unix_ms(),
                        signed(claim)
                    ])
                    .map_err(wrap())?;
            }
        }
        tx.commit().map_err(wrap())
    }

    /// Forgets what imports before this one noted of the bundle and this one did not meet.
    pub fn forget_other_claims(&self, key: &ImportKey, claim: u64) -> Result<(), Error> {
        self.lock()
            .execute(
                "DELETE FROM import_files
                 WHERE spoke_id = ?1 AND bundle_id = ?2 AND claim <> ?3",
                params![key.spoke_id.as_str(), key.bundle_id.to_string(), signed(claim)],
            )
            .map(drop)
            .map_err(wrap())
    }

    /// What an import before this one noted of a file.
    pub fn import_file(
        &self,
        key: &ImportKey,
        path: &FilePath,
    ) -> Result<Option<ImportFile>, Error> {
        self.lock()
            .prepare_cached(
                "SELECT * FROM import_files
                 WHERE spoke_id = ?1 AND bundle_id = ?2 AND path = ?3",
            )
            .and_then(|mut s| {
                s.query_row([key.spoke_id.as_str(), &key.bundle_id.to_string(), path.as_str()], row)
                    .optional()
            })
            .map_err(wrap())
    }

    /// Files of an import by name behind `after`.
    pub fn import_files(
        &self,
        key: &ImportKey,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ImportFile>, Error> {
        let c = self.lock();
        let mut statement = c
            .prepare_cached(
                "SELECT * FROM import_files WHERE spoke_id = ?1 AND bundle_id = ?2 AND path > ?3
                 ORDER BY path LIMIT ?4",
            )
            .map_err(wrap())?;
        let rows = statement
            .query_map(params![key.spoke_id.as_str(), key.bundle_id.to_string(), after, limit], row)
            .map_err(wrap())?;
        rows.collect::<Result<_, _>>().map_err(wrap())
    }

    /// Whether a staged copy is that of an import noted after a time, which may go on with it.
    pub fn is_of_import(&self, stage_no: u64, since: Timestamp) -> Result<bool, Error> {
        self.lock()
            .prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM import_files
                                WHERE stage_no = ?1 AND noted_at > ?2)",
            )
            .and_then(|mut s| s.query_row(params![signed(stage_no), since.unix_ms()], |r| r.get(0)))
            .map_err(wrap())
    }

    /// Forgets the files of imports that were noted before a time.
    pub fn forget_imports_before(&self, at: Timestamp) -> Result<(), Error> {
        self.lock()
            .execute("DELETE FROM import_files WHERE noted_at <= ?1", [at.unix_ms()])
            .map(drop)
            .map_err(wrap())
    }

    /// This node imported the bundle to its end; its files need no notes any more.
    pub fn record_import(
        &self,
        key: &ImportKey,
        label: Option<&str>,
        n: &ImportCounts,
        at: Timestamp,
    ) -> Result<(), Error> {
        let (spoke, bundle) = (key.spoke_id.as_str(), key.bundle_id.to_string());
        let mut c = self.lock();
        let tx = c.transaction().map_err(wrap())?;
        tx.execute(
            "INSERT OR REPLACE INTO sync_imported_bundles (spoke_id, bundle_id, label,
                 imported_at, files, bytes, committed, already_present, conflicts)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                spoke,
                bundle,
                label,
                at.unix_ms(),
                signed(n.files),
                signed(n.bytes),
                signed(n.committed),
                signed(n.already_present),
                signed(n.conflicts)
            ],
        )
        .and_then(|_| {
            tx.execute(
                "DELETE FROM import_files WHERE spoke_id = ?1 AND bundle_id = ?2",
                [spoke, &bundle],
            )
        })
        .map_err(wrap())?;
        tx.commit().map_err(wrap())
    }
}
