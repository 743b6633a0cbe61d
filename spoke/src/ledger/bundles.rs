//! Bundles on drives: what is planned for one, what went out with it, and what came back.
//!
//! A row that is planned for a bundle is pending and names it: a push may still take it. Only once
//! the bundle is sealed do its rows become exported; only a receipt makes them synced (D5).

use std::path::PathBuf;

use barque_bundle::header::InTransit;
use barque_bundle::open::Form;
use barque_bundle::{BundleId, FilePath, HubId, OutcomeLine, Ranges, SeriesId, Timestamp, receipt};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::answers::{Unsettled, apply_line};
use super::read::{COLUMNS, row as file_row};
use super::{FileRow, Ledger, signed, unsigned};
use crate::error::Error;

/// Bundles that a header or a check-in names at the most, newest first.
const IN_TRANSIT_MAX: u32 = 500;
/// Ranges of numbers that are told of one bundle; of more, only the first and the last number, since
/// a hub subtracts what it has answered.
const RANGES_MAX: usize = 40;

/// Files by their bundle, always through the index over those that have one: SQLite guesses that
/// going through all files of the hub is cheaper. A query with it cannot be prepared without
/// [`HAS_BUNDLE`].
const FILES: &str = "files INDEXED BY files_by_bundle";
/// In the words of that index.
const HAS_BUNDLE: &str = "state IN ('pending', 'exported') AND bundle_id IS NOT NULL";

/// Where a bundle stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BundleState {
    /// Not finished: the same export goes on with it.
    Writing,
    /// On its way.
    Exported,
    /// The hub has answered it.
    Acknowledged,
    /// A person took it back.
    Reverted,
    /// Never finished, and given up.
    Abandoned,
}

impl BundleState {
    const ALL: [Self; 5] =
        [Self::Writing, Self::Exported, Self::Acknowledged, Self::Reverted, Self::Abandoned];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Writing => "writing",
            Self::Exported => "exported",
            Self::Acknowledged => "acknowledged",
            Self::Reverted => "reverted",
            Self::Abandoned => "abandoned",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }
}

/// One bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleRow {
    pub bundle_id: BundleId,
    pub hub_id: HubId,
    pub state: BundleState,
    pub form: Form,
    /// The folder of the drive, as it was mounted then.
    pub folder: PathBuf,
    pub label: Option<String>,
    /// In the hub's time.
    pub created_at: Timestamp,
    pub series: SeriesId,
    pub files: u64,
    pub bytes: u64,
    pub seqs: Ranges,
    pub since: Timestamp,
}

/// What a bundle came to when it was sealed.
pub struct Sealed<'a> {
    pub header: &'a [u8],
    pub sig: &'a [u8],
    pub files: u64,
    pub bytes: u64,
    pub seqs: Ranges,
}

fn bundle_row(r: &Row<'_>) -> rusqlite::Result<BundleRow> {
    let malformed = || rusqlite::Error::InvalidQuery;
    let text = |column: &str| r.get::<_, String>(column);
    Ok(BundleRow {
        bundle_id: text("bundle_id")?.parse().map_err(|_| malformed())?,
        hub_id: text("hub_id")?.parse().map_err(|_| malformed())?,
        state: BundleState::parse(&text("state")?).ok_or_else(malformed)?,
        form: Form::parse(&text("form")?).ok_or_else(malformed)?,
        folder: text("folder")?.into(),
        label: r.get("label")?,
        created_at: Timestamp::from_unix_ms(r.get("created_at")?),
        series: text("series")?.parse().map_err(|_| malformed())?,
        files: unsigned(r.get("files")?),
        bytes: unsigned(r.get("bytes")?),
        seqs: serde_json::from_str(&text("seqs")?).map_err(|_| malformed())?,
        since: Timestamp::from_unix_ms(r.get("since")?),
    })
}

impl Ledger {
    /// Notes a bundle that is to be written.
    pub fn begin_bundle(&mut self, row: &BundleRow) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute(
                "INSERT INTO bundles (bundle_id, hub_id, state, form, folder, label, created_at,
                                      series, since)
                 VALUES (?1, ?2, 'writing', ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    row.bundle_id.to_string(),
                    row.hub_id.to_string(),
                    row.form.as_str(),
                    row.folder.to_string_lossy(),
                    row.label,
                    row.created_at.unix_ms(),
                    row.series.to_string(),
                    row.since.unix_ms()
                ],
            )
            .map(drop)
        })
    }

    pub fn bundle(&self, bundle_id: BundleId) -> Result<Option<BundleRow>, Error> {
        self.connection
            .query_row(
                "SELECT * FROM bundles WHERE bundle_id = ?1",
                [bundle_id.to_string()],
                bundle_row,
            )
            .optional()
            .map_err(self.wrap())
    }

    /// Bundles in a state, newest first; of all hubs, or of one.
    pub fn bundles(
        &self,
        hub_id: Option<HubId>,
        state: BundleState,
    ) -> Result<Vec<BundleRow>, Error> {
        self.rows(
            "SELECT * FROM bundles WHERE (?1 IS NULL OR hub_id = ?1) AND state = ?2
             ORDER BY bundle_id DESC",
            params![hub_id.map(|h| h.to_string()), state.as_str()],
            bundle_row,
        )
    }

    /// Bundles that are on their way to a hub, as headers and check-ins name them.
    pub fn in_transit(&self, hub_id: HubId) -> Result<Vec<InTransit>, Error> {
        let rows = self.rows(
            "SELECT * FROM bundles WHERE hub_id = ?1 AND state = 'exported'
             ORDER BY bundle_id DESC LIMIT ?2",
            params![hub_id.to_string(), IN_TRANSIT_MAX],
            bundle_row,
        )?;
        let told = rows.into_iter().map(|row| InTransit {
            bundle_id: row.bundle_id,
            label: row.label,
            created_at: row.created_at,
            series: Some(row.series),
            seqs: row.seqs,
        });
        Ok(told.collect())
    }

    /// Plans pending files for a bundle, or (none) takes them out of the one that they name.
    pub fn plan_for(
        &mut self,
        hub_id: HubId,
        bundle_id: Option<BundleId>,
        paths: &[FilePath],
    ) -> Result<(), Error> {
        self.transaction(|c| {
            let mut update = c.prepare_cached(
                "UPDATE files SET bundle_id = ?3
                 WHERE hub_id = ?1 AND path = ?2 AND state = 'pending'",
            )?;
            let (hub, bundle) = (hub_id.to_string(), bundle_id.map(|b| b.to_string()));
            for path in paths {
                update.execute(params![hub, path.as_str(), bundle])?;
            }
            Ok(())
        })
    }

    /// Files that are planned for a bundle, or went out with it, by name behind `after`.
    pub fn files_of_bundle(
        &self,
        hub_id: HubId,
        bundle_id: BundleId,
        after: &str,
        limit: usize,
    ) -> Result<Vec<FileRow>, Error> {
        let sql = format!(
            "SELECT {COLUMNS} FROM {FILES} WHERE hub_id = ?1 AND bundle_id = ?2 AND path > ?3
               AND {HAS_BUNDLE} ORDER BY path LIMIT ?4"
        );
        self.rows(
            &sql,
            params![hub_id.to_string(), bundle_id.to_string(), after, signed(limit as u64)],
            file_row,
        )
    }

    /// The bundle is whole on its drive: what is planned for it is exported.
    pub fn seal_bundle(
        &mut self,
        hub_id: HubId,
        bundle_id: BundleId,
        sealed: &Sealed<'_>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let (hub, bundle) = (hub_id.to_string(), bundle_id.to_string());
        let seqs = serde_json::to_string(&told(&sealed.seqs)).unwrap_or_default();
        self.transaction(|c| {
            let sql = format!(
                "UPDATE {FILES} SET state = 'exported', since = ?3
                 WHERE hub_id = ?1 AND bundle_id = ?2 AND {HAS_BUNDLE} AND state = 'pending'"
            );
            c.execute(&sql, params![hub, bundle, now.unix_ms()])?;
            c.execute(
                "UPDATE bundles SET state = 'exported', files = ?2, bytes = ?3, seqs = ?4,
                        header = ?5, sig = ?6, since = ?7 WHERE bundle_id = ?1",
                params![
                    bundle,
                    signed(sealed.files),
                    signed(sealed.bytes),
                    seqs,
                    sealed.header,
                    sealed.sig,
                    now.unix_ms()
                ],
            )
            .map(drop)
        })
    }

    /// Ends a bundle: what is exported or planned with it is pending again, under the number that
    /// it has, or a new one if its series was replaced. How many files that was.
    pub fn take_back(
        &mut self,
        hub_id: HubId,
        bundle_id: BundleId,
        to: BundleState,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let (hub, bundle) = (hub_id.to_string(), bundle_id.to_string());
        self.transaction(|c| {
            renumber(c, &hub, &bundle)?;
            let n = let_wait(c, &hub, &bundle, "state IN ('pending', 'exported')", now)?;
            set_state(c, &bundle, to, now)?;
            Ok(n)
        })
    }

    /// Files of a bundle that the hub has imported and lacks all the same are pending again.
    pub fn give_back_exported(
        &mut self,
        hub_id: HubId,
        paths: &[String],
        now: Timestamp,
    ) -> Result<(), Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let mut update = c.prepare_cached(
                "UPDATE files SET state = 'pending', bundle_id = NULL, since = ?3
                 WHERE hub_id = ?1 AND path = ?2 AND state = 'exported' AND seq IS NOT NULL",
            )?;
            for path in paths {
                update.execute(params![hub, path, now.unix_ms()])?;
            }
            Ok(())
        })
    }

    /// Bundles of which no file waits any more are acknowledged.
    pub fn close_bundles(&mut self, hub_id: HubId, now: Timestamp) -> Result<(), Error> {
        self.transaction(|c| {
            let sql = format!(
                "UPDATE bundles AS b SET state = 'acknowledged', since = ?2
                 WHERE hub_id = ?1 AND state = 'exported' AND NOT EXISTS
                     (SELECT 1 FROM {FILES} WHERE hub_id = b.hub_id
                        AND bundle_id = b.bundle_id AND {HAS_BUNDLE} AND state = 'exported')"
            );
            c.execute(&sql, params![hub_id.to_string(), now.unix_ms()]).map(drop)
        })
    }

    /// The hub has answered the bundle; what it left open waits again. How many files that is.
    pub fn acknowledge_bundle(
        &mut self,
        hub_id: HubId,
        bundle_id: BundleId,
        now: Timestamp,
    ) -> Result<u64, Error> {
        let (hub, bundle) = (hub_id.to_string(), bundle_id.to_string());
        self.transaction(|c| {
            renumber(c, &hub, &bundle)?;
            let n = let_wait(c, &hub, &bundle, "state = 'exported'", now)?;
            let state: Option<String> = c
                .query_row("SELECT state FROM bundles WHERE bundle_id = ?1", [&bundle], |r| {
                    r.get(0)
                })
                .optional()?;
            // One that was taken back stays so.
            if state.as_deref() == Some("exported") {
                set_state(c, &bundle, BundleState::Acknowledged, now)?;
            }
            Ok(n)
        })
    }

    /// Numbers of the present series for exported files whose own series was replaced.
    pub(crate) fn renumber_exported(
        &mut self,
        hub_id: HubId,
        bundle_id: BundleId,
    ) -> Result<(), Error> {
        self.transaction(|c| renumber(c, &hub_id.to_string(), &bundle_id.to_string()))
    }

    /// What a bundle that is sealed said of its series: the exact bytes of its header.
    pub(crate) fn bundle_header(&self, bundle_id: BundleId) -> Result<Option<Vec<u8>>, Error> {
        let header = self.connection.query_row(
            "SELECT header FROM bundles WHERE bundle_id = ?1",
            [bundle_id.to_string()],
            |r| r.get(0),
        );
        header.optional().map(Option::flatten).map_err(self.wrap())
    }

    /// The stored receipt with these exact bytes; stored before anything counts on it, with room
    /// for its outcomes.
    pub(crate) fn begin_receipt(
        &mut self,
        hub_id: HubId,
        head: &receipt::Head,
        (ack, sig): (&[u8], &[u8]),
        outcomes_bytes: u64,
    ) -> Result<i64, Error> {
        let answers = serde_json::to_string(&head.answers).unwrap_or_default();
        let hub = hub_id.to_string();
        self.transaction(|c| {
            c.execute(
                "INSERT INTO receipts (hub_id, answers, received_at, ack, sig, outcomes)
                 VALUES (?1, ?2, ?3, ?4, ?5, zeroblob(?6))",
                params![hub, answers, head.received_at.unix_ms(), ack, sig, signed(outcomes_bytes)],
            )?;
            Ok(c.last_insert_rowid())
        })
    }

    /// The receipt that was stored with these exact bytes before, if it was.
    pub(crate) fn stored_receipt(&self, hub_id: HubId, ack: &[u8]) -> Result<Option<i64>, Error> {
        self.connection
            .query_row(
                "SELECT receipt_id FROM receipts WHERE hub_id = ?1 AND ack = ?2",
                params![hub_id.to_string(), ack],
                |r| r.get(0),
            )
            .optional()
            .map_err(self.wrap())
    }

    /// Fills the outcomes of a receipt that was begun.
    pub(crate) fn fill_receipt(
        &mut self,
        receipt_id: i64,
        len: u64,
        outcomes: &std::fs::File,
    ) -> Result<(), Error> {
        // A try before this one may have been of another length.
        self.transaction(|c| {
            c.execute(
                "UPDATE receipts SET outcomes = zeroblob(?2) WHERE receipt_id = ?1",
                params![receipt_id, signed(len)],
            )
        })?;
        let mut outcomes = std::io::Read::take(outcomes, len);
        let mut blob = self
            .connection
            .blob_open("main", "receipts", "outcomes", receipt_id, false)
            .map_err(self.wrap())?;
        std::io::copy(&mut outcomes, &mut blob)
            .map(drop)
            .map_err(Error::io("cannot store the receipt in", &self.path))?;
        Ok(())
    }

    /// The outcomes of a stored receipt, read beside what is written meanwhile.
    pub(crate) fn stored_outcomes(&self, receipt_id: i64) -> Result<StoredOutcomes, Error> {
        let connection = super::KIND.open_reader(&self.path)?;
        Ok(StoredOutcomes { connection, receipt_id, path: self.path.clone(), at: 0 })
    }

    pub(crate) fn drop_receipt(&mut self, receipt_id: i64) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute("DELETE FROM receipts WHERE receipt_id = ?1", [receipt_id]).map(drop)
        })
    }

    /// The hub's time is at least this.
    pub(crate) fn raise_hub_time(&mut self, hub_id: HubId, at: Timestamp) -> Result<(), Error> {
        self.transaction(|c| {
            c.execute(
                "UPDATE hubs SET hub_time = max(coalesce(hub_time, ?2), ?2) WHERE hub_id = ?1",
                params![hub_id.to_string(), at.unix_ms()],
            )
            .map(drop)
        })
    }

    /// Applies lines of a stored receipt whose path and digest equal their rows; those that did.
    pub(crate) fn apply_lines(
        &mut self,
        hub_id: HubId,
        receipt_id: i64,
        lines: &[OutcomeLine],
        now: Timestamp,
    ) -> Result<Vec<OutcomeLine>, Error> {
        let hub = hub_id.to_string();
        self.transaction(|c| {
            let mut applied = Vec::new();
            for line in lines {
                if apply_line(c, &hub, line, (receipt_id, now), Unsettled::Passes)? {
                    applied.push(line.clone());
                }
            }
            Ok(applied)
        })
    }
}

fn told(seqs: &Ranges) -> Ranges {
    match seqs.as_slice() {
        [(lo, _), .., (_, hi)] if seqs.as_slice().len() > RANGES_MAX => {
            Ranges::from_ranges(vec![(*lo, *hi)])
        }
        _ => seqs.clone(),
    }
}

/// The bytes of a stored receipt's outcomes, a piece at a time.
pub(crate) struct StoredOutcomes {
    connection: Connection,
    receipt_id: i64,
    path: PathBuf,
    at: usize,
}

impl std::io::Read for StoredOutcomes {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let blob = self.connection.blob_open("main", "receipts", "outcomes", self.receipt_id, true);
        let read = blob.and_then(|blob| {
            let n = blob.len().saturating_sub(self.at).min(buffer.len());
            blob.read_at_exact(&mut buffer[..n], self.at).map(|()| n)
        });
        let n = read.map_err(|e| {
            std::io::Error::other(format!("{} cannot be used: {e}", self.path.display()))
        })?;
        self.at += n;
        Ok(n)
    }
}

fn set_state(
    c: &Connection,
    bundle: &str,
    to: BundleState,
    now: Timestamp,
) -> rusqlite::Result<()> {
    c.execute(
        "UPDATE bundles SET state = ?2, since = ?3 WHERE bundle_id = ?1",
        params![bundle, to.as_str(), now.unix_ms()],
    )
    .map(drop)
}

/// These files of a bundle wait again; how many they are.
fn let_wait(
    c: &Connection,
    hub: &str,
    bundle: &str,
    which: &str,
    now: Timestamp,
) -> rusqlite::Result<u64> {
    let sql = format!(
        "UPDATE {FILES} SET state = 'pending', bundle_id = NULL, since = ?3
         WHERE hub_id = ?1 AND bundle_id = ?2 AND {HAS_BUNDLE} AND {which}"
    );
    c.execute(&sql, params![hub, bundle, now.unix_ms()]).map(|n| n as u64)
}

/// Gives numbers of the present series to exported files whose own series was replaced.
fn renumber(c: &Connection, hub: &str, bundle: &str) -> rusqlite::Result<()> {
    let sql = format!(
        "UPDATE files SET seq = n.seq
         FROM (SELECT path, (SELECT seq_head FROM hubs WHERE hub_id = ?1)
                      + row_number() OVER (ORDER BY path) AS seq
               FROM {FILES} WHERE hub_id = ?1 AND bundle_id = ?2
                 AND {HAS_BUNDLE} AND state = 'exported' AND seq IS NULL) AS n
         WHERE files.hub_id = ?1 AND files.path = n.path"
    );
    let n = c.execute(&sql, [hub, bundle])?;
    c.execute(
        "UPDATE hubs SET seq_head = seq_head + ?2 WHERE hub_id = ?1",
        params![hub, signed(n as u64)],
    )
    .map(drop)
}
