//! Reads of the manifest. None of them changes anything.

use barque_bundle::wire::{ChangeLine, FileLine, Role, SpokeLine, TokenLine};
use barque_bundle::{
    HubEpoch, HubId, KeyId, PublicKey, SeriesId, Sha256Digest, SpokeId, Timestamp, receipt::Wanted,
};
use rusqlite::{Connection, OptionalExtension as _, Row, RowIndex, params};

use crate::error::Error;

mod digest;
mod imports;
mod nodes;
mod numbers;
mod schemas;

pub use digest::{Digested, digest as manifest_digest};
pub use imports::{arrived, claim_renewals, has_claims, imported, imports, not_arrived};
pub use nodes::{
    NodeRow, count_only_on, files_held, files_only_on, held_only_by, holders, holds_any,
    invitations, nodes,
};
pub use numbers::{Numbers, numbers};
pub use schemas::{SchemasPage, columns, schemas, undescribed, undescribed_count};

fn wrap() -> impl FnOnce(rusqlite::Error) -> Error {
    Error::sql("the manifest cannot be read")
}

fn malformed(what: &str) -> Error {
    Error::Malformed(format!("manifest.db: {what}"))
}

/// A counter by name; 0 before its first use.
pub fn counter(c: &Connection, name: &str) -> Result<u64, Error> {
    let value: Option<i64> = c
        .prepare_cached("SELECT value FROM counters WHERE name = ?1")
        .and_then(|mut s| s.query_row([name], |r| r.get(0)).optional())
        .map_err(wrap())?;
    Ok(value.and_then(|v| u64::try_from(v).ok()).unwrap_or(0))
}

/// Which hub this manifest is of; none before the first command.
pub fn hub(c: &Connection) -> Result<Option<(HubId, HubEpoch)>, Error> {
    let text = |key: &str| -> Result<Option<String>, Error> {
        c.query_row("SELECT CAST(value AS TEXT) FROM meta WHERE key = ?1", [key], |r| r.get(0))
            .optional()
            .map_err(wrap())
    };
    match (text("hub_id")?, text("hub_epoch")?) {
        (Some(id), Some(epoch)) => Ok(Some((
            id.parse().map_err(|_| malformed("hub_id"))?,
            epoch.parse().map_err(|_| malformed("hub_epoch"))?,
        ))),
        _ => Ok(None),
    }
}

/// What the manifest knows of one landed name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRow {
    pub file_id: i64,
    pub state: FileState,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    pub bundle_id: String,
    pub series: SeriesId,
    pub seq: u64,
    pub received_at: Timestamp,
    pub modified_at: Timestamp,
    pub position: u64,
    pub copies: u32,
}

impl FileRow {
    /// Since when this content stands under its path, for whoever brings another one.
    pub fn story(&self) -> String {
        format!("modified {}, landed {}", self.modified_at, self.received_at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    Held,
    Lost,
    Removed,
    Replaced,
}

impl FileState {
    fn parse(text: &str) -> rusqlite::Result<Self> {
        match text {
            "held" => Ok(Self::Held),
            "lost" => Ok(Self::Lost),
            "removed" => Ok(Self::Removed),
            "replaced" => Ok(Self::Replaced),
            _ => Err(rusqlite::Error::InvalidQuery),
        }
    }
}

pub(crate) fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

pub(crate) fn digest(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Sha256Digest> {
    let bytes = row.get_ref(column)?.as_blob()?;
    Sha256Digest::try_from(bytes).map_err(|_| rusqlite::Error::InvalidQuery)
}

fn time(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_unix_ms)
}

/// The row of a landed name, with the number of its holders.
pub fn file(c: &Connection, landed: &str) -> rusqlite::Result<Option<FileRow>> {
    c.prepare_cached(
        "SELECT file_id, state, sha256, size_bytes, bundle_id, series, seq, received_at,
                modified_at, position,
                (SELECT count(*) FROM holders h WHERE h.file_id = f.file_id) AS copies
         FROM files f WHERE path = ?1",
    )?
    .query_row([landed], |r| {
        Ok(FileRow {
            file_id: r.get(0)?,
            state: FileState::parse(r.get_ref(1)?.as_str()?)?,
            sha256: digest(r, 2)?,
            size_bytes: unsigned(r.get(3)?),
            bundle_id: r.get(4)?,
            series: (r.get_ref(5)?.as_str()?.parse()).map_err(|_| rusqlite::Error::InvalidQuery)?,
            seq: unsigned(r.get(6)?),
            received_at: time(r, 7)?,
            modified_at: time(r, 8)?,
            position: unsigned(r.get(9)?),
            copies: r.get(10)?,
        })
    })
    .optional()
}

/// [`file`], for callers outside `apply`.
pub fn lookup(c: &Connection, landed: &str) -> Result<Option<FileRow>, Error> {
    file(c, landed).map_err(wrap())
}

/// Whether a number of a series is answered for good.
pub fn is_answered(
    c: &Connection,
    spoke: &SpokeId,
    series: SeriesId,
    seq: u64,
) -> Result<bool, Error> {
    c.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM (
             SELECT hi FROM answered WHERE spoke_id = ?1 AND series = ?2 AND lo <= ?3
             ORDER BY lo DESC LIMIT 1) WHERE hi >= ?3)",
    )
    .and_then(|mut s| {
        s.query_row(params![spoke.as_str(), series.to_string(), signed(seq)], |r| r.get(0))
    })
    .map_err(wrap())
}

/// A registered key and whose it is.
#[derive(Clone, Debug)]
pub struct KeyRow {
    pub spoke_id: SpokeId,
    pub public_key: PublicKey,
    /// The spoke may call and the key may sign.
    pub is_live: bool,
}

pub fn key(c: &Connection, key_id: &KeyId) -> Result<Option<KeyRow>, Error> {
    let row: Option<(String, String, String, String)> = c
        .prepare_cached(
            "SELECT k.spoke_id, k.public_key, k.state, s.state
             FROM keys k JOIN spokes s ON s.spoke_id = k.spoke_id WHERE k.key_id = ?1",
        )
        .and_then(|mut s| {
            s.query_row([key_id.as_str()], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?)))
                .optional()
        })
        .map_err(wrap())?;
    row.map(|(spoke, key, key_state, spoke_state)| {
        Ok(KeyRow {
            spoke_id: spoke.parse().map_err(|_| malformed("spoke_id"))?,
            public_key: key.parse().map_err(|_| malformed("public_key"))?,
            is_live: key_state == "active" && spoke_state == "active",
        })
    })
    .transpose()
}

/// Every spoke, or the one asked for.
pub fn spokes(c: &Connection, only: Option<&SpokeId>) -> Result<Vec<SpokeLine>, Error> {
    let mut statement = c
        .prepare(
            "SELECT s.*, a.key_id, a.public_key,
                    (SELECT min(k.added_at) FROM keys k WHERE k.spoke_id = s.spoke_id) AS first_seen,
                    (SELECT max(x.forked) FROM series x WHERE x.spoke_id = s.spoke_id) AS forked_at
             FROM spokes s LEFT JOIN keys a ON a.key_id =
                 (SELECT k.key_id FROM keys k
                  WHERE k.spoke_id = s.spoke_id AND k.state = 'active' LIMIT 1)
             WHERE ?1 IS NULL OR s.spoke_id = ?1 ORDER BY s.spoke_id",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map([only.map(SpokeId::as_str)], |r| {
            let id: String = r.get("spoke_id")?;
            let report: String = r.get("report")?;
            let forked: Option<i64> = r.get("forked_at")?;
            Ok(SpokeLine {
                spoke_id: id.parse().map_err(|_| rusqlite::Error::InvalidQuery)?,
                state: r.get("state")?,
                key_id: r.get("key_id")?,
                public_key: r.get("public_key")?,
                created_at: time(r, "created_at")?,
                first_seen: r.get::<_, Option<i64>>("first_seen")?.map(Timestamp::from_unix_ms),
                last_seen: r.get::<_, Option<i64>>("last_seen")?.map(Timestamp::from_unix_ms),
                files: unsigned(r.get("files")?),
                bytes: unsigned(r.get("bytes")?),
                report: serde_json::from_str(&report).unwrap_or_default(),
                forked_at: forked.filter(|at| *at > 1).map(Timestamp::from_unix_ms),
            })
        })
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// How many spokes are in each state.
pub fn spokes_by_state(c: &Connection) -> Result<Vec<(String, u64)>, Error> {
    let mut statement =
        c.prepare_cached("SELECT state, count(*) FROM spokes GROUP BY state").map_err(wrap())?;
    let rows = statement.query_map([], |r| Ok((r.get(0)?, unsigned(r.get(1)?)))).map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

pub fn spoke_count(c: &Connection) -> Result<u64, Error> {
    c.query_row("SELECT count(*) FROM spokes", [], |r| r.get::<_, i64>(0).map(unsigned))
        .map_err(wrap())
}

/// The role of a bearer token by its hash.
pub fn token_role(c: &Connection, hash: &Sha256Digest) -> Result<Option<Role>, Error> {
    let role: Option<String> = c
        .prepare_cached("SELECT role FROM tokens WHERE hash = ?1")
        .and_then(|mut s| s.query_row([hash.as_bytes()], |r| r.get(0)).optional())
        .map_err(wrap())?;
    role.map(|r| r.parse().map_err(|e: String| malformed(&e))).transpose()
}

/// Whether a one-time secret with this hash was given out for the spoke.
pub fn is_announced(c: &Connection, spoke: &SpokeId, hash: &Sha256Digest) -> Result<bool, Error> {
    c.query_row(
        "SELECT EXISTS (SELECT 1 FROM enrollments WHERE secret_hash = ?1 AND spoke_id = ?2)",
        params![hash.as_bytes(), spoke.as_str()],
        |r| r.get(0),
    )
    .map_err(wrap())
}

pub fn tokens(c: &Connection) -> Result<Vec<TokenLine>, Error> {
    let mut statement =
        c.prepare("SELECT name, role, created_at FROM tokens ORDER BY name").map_err(wrap())?;
    let rows = statement
        .query_map([], |r| {
            let role: String = r.get("role")?;
            Ok(TokenLine {
                name: r.get("name")?,
                role: role.parse().map_err(|_| rusqlite::Error::InvalidQuery)?,
                created_at: time(r, "created_at")?,
            })
        })
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// A page of files by name.
pub struct FilesPage<'a> {
    pub prefix: &'a str,
    pub after: &'a str,
    pub limit: u32,
}

pub fn files(c: &Connection, page: &FilesPage<'_>) -> Result<Vec<FileLine>, Error> {
    // Names at or above the prefix in byte order, until one no longer starts with it; one lower
    // bound, so that the index finds it.
    let is_after = page.after >= page.prefix;
    let from = if is_after { page.after } else { page.prefix };
    let limit = page.limit.saturating_add(u32::from(is_after));
    let mut statement = c
        .prepare_cached(
            "SELECT f.*, (SELECT count(*) FROM holders h WHERE h.file_id = f.file_id) AS copies
             FROM files f WHERE path >= ?1 ORDER BY path LIMIT ?2",
        )
        .map_err(wrap())?;
    let mut rows = statement.query(params![from, limit]).map_err(wrap())?;
    let mut out = Vec::new();
    while let Some(row) = rows.next().map_err(wrap())? {
        let line = file_line(row).map_err(wrap())?;
        if is_after && line.path == page.after {
            continue;
        }
        if !line.path.starts_with(page.prefix) {
            break;
        }
        out.push(line);
    }
    out.truncate(page.limit as usize);
    Ok(out)
}

fn file_line(r: &Row<'_>) -> rusqlite::Result<FileLine> {
    let spoke: String = r.get("spoke_id")?;
    Ok(FileLine {
        path: r.get("path")?,
        sha256: digest(r, "sha256")?,
        size_bytes: unsigned(r.get("size_bytes")?),
        spoke_id: spoke.parse().map_err(|_| rusqlite::Error::InvalidQuery)?,
        database: r.get("database")?,
        measurement: r.get("measurement")?,
        partition_start: r.get::<_, Option<i64>>("partition_start")?.map(Timestamp::from_unix_ms),
        partition_precision: r.get("partition_precision")?,
        modified_at: time(r, "modified_at")?,
        received_at: time(r, "received_at")?,
        state: r.get("state")?,
        copies: r.get("copies")?,
        position: unsigned(r.get("position")?),
        rows: r.get::<_, Option<i64>>("rows")?.map(unsigned),
        row_groups: r.get::<_, Option<i64>>("row_groups")?.map(unsigned),
        schema_id: match r.get_ref("schema_id")? {
            rusqlite::types::ValueRef::Null => None,
            _ => Some(digest(r, "schema_id")?),
        },
        unread: r.get("unread")?,
    })
}

/// Files of a spoke that the hub knew and lost, at most `limit`.
pub fn wanted(c: &Connection, spoke: &SpokeId, limit: u32) -> Result<Vec<Wanted>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT path, sha256 FROM files
             WHERE namespace = ?1 AND state = 'lost' ORDER BY path LIMIT ?2",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map(params![spoke.as_str(), limit], |r| {
            let landed: String = r.get(0)?;
            let (_, path) =
                barque_bundle::LandedName::parse(&landed).ok_or(rusqlite::Error::InvalidQuery)?;
            Ok(Wanted { path, sha256: digest(r, "sha256")? })
        })
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// Changes behind a position, in commit order.
pub fn changes(c: &Connection, after: u64, limit: u32) -> Result<Vec<ChangeLine>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT c.position, c.kind, c.path, f.sha256, f.size_bytes, f.state
             FROM changes c JOIN files f ON f.path = c.path
             WHERE c.position > ?1 ORDER BY c.position LIMIT ?2",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map(params![signed(after), limit], |r| {
            Ok(ChangeLine {
                position: unsigned(r.get("position")?),
                kind: r.get("kind")?,
                path: r.get("path")?,
                sha256: digest(r, "sha256")?,
                size_bytes: unsigned(r.get("size_bytes")?),
                state: r.get("state")?,
            })
        })
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// A file that a node holds by the manifest's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// Where to go on after this row: a change position or a file id.
    pub cursor: u64,
    pub landed: String,
    pub sha256: Sha256Digest,
    pub size_bytes: u64,
    /// Whether the node asked for is a holder of the file as it stands now.
    pub is_mine: bool,
    pub stage_no: u64,
}

fn held_row(r: &Row<'_>) -> rusqlite::Result<HeldRow> {
    let stage_no: Option<i64> = r.get("stage_no")?;
    Ok(HeldRow {
        cursor: unsigned(r.get("cursor")?),
        landed: r.get("path")?,
        sha256: digest(r, "sha256")?,
        size_bytes: unsigned(r.get("size_bytes")?),
        is_mine: stage_no.is_some(),
        stage_no: stage_no.map_or(0, unsigned),
    })
}

/// Changes behind a position, in order, with what they mean for one node.
pub fn changes_for_node(
    c: &Connection,
    node_id: u64,
    after: u64,
    limit: u32,
) -> Result<Vec<HeldRow>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT c.position AS cursor, f.path, f.sha256, f.size_bytes, h.stage_no
             FROM changes c JOIN files f ON f.path = c.path
             LEFT JOIN holders h
                    ON h.file_id = f.file_id AND h.node_id = ?1 AND f.state = 'held'
             WHERE c.position > ?2 ORDER BY c.position LIMIT ?3",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map(params![signed(node_id), signed(after), limit], held_row)
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// All files that a node holds, by file id: the full comparison.
pub fn held_by_node(
    c: &Connection,
    node_id: u64,
    after_file: u64,
    limit: u32,
) -> Result<Vec<HeldRow>, Error> {
    let mut statement = c
        .prepare_cached(
            "SELECT f.file_id AS cursor, f.path, f.sha256, f.size_bytes, h.stage_no
             FROM holders h JOIN files f ON f.file_id = h.file_id
             WHERE h.node_id = ?1 AND h.file_id > ?2 AND f.state = 'held'
             ORDER BY h.file_id LIMIT ?3",
        )
        .map_err(wrap())?;
    let rows = statement
        .query_map(params![signed(node_id), signed(after_file), limit], held_row)
        .map_err(wrap())?;
    rows.collect::<Result<_, _>>().map_err(wrap())
}

/// Whether the manifest names this stage number of the node as a copy.
pub fn names_stage(
    c: &Connection,
    node_id: u64,
    landed: &str,
    stage_no: u64,
) -> Result<bool, Error> {
    c.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM files f JOIN holders h ON h.file_id = f.file_id
                        WHERE f.path = ?1 AND f.state = 'held' AND h.node_id = ?2 AND h.stage_no = ?3)",
    )
    .and_then(|mut s| s.query_row(params![landed, signed(node_id), signed(stage_no)], |r| r.get(0)))
    .map_err(wrap())
}

pub(crate) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
