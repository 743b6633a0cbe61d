//! The log, the vote and the node's own id in `raft.db`, durable before anything is answered (A3).

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, ErrorSubject, ErrorVerb, LogState, OptionalSend, RaftLogReader, StorageIOError,
};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::stall::Stall;
use crate::types::{Entry, LogId, StorageError, TypeConfig, Vote};

/// The schema version that this program writes.
const SCHEMA_VERSION: i64 = 1;
/// Most bytes that one read of the log returns (but always one entry).
const READ_MAX_BYTES: usize = 1024 * 1024;

/// Why `raft.db` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogStoreError {
    #[error(
        "{path} is at schema version {found}; this program knows up to {SCHEMA_VERSION}: use the newer program that wrote it"
    )]
    Newer { path: PathBuf, found: i64 },
    #[error("{path} has no node id; it was not made by `barque hub init` or `join`")]
    NoIdentity { path: PathBuf },
    #[error("{path} is gone")]
    Gone { path: PathBuf },
    #[error("{path} cannot be made")]
    Create { path: PathBuf, source: std::io::Error },
    #[error("{path} cannot be used")]
    Sqlite { path: PathBuf, source: rusqlite::Error },
}

/// A handle on the log; clones share one connection, so writes are in order.
#[derive(Clone)]
pub struct LogStore {
    connection: Arc<Mutex<Connection>>,
    node_id: u64,
    path: PathBuf,
    /// Bytes of each entry that is kept.
    sizes: Arc<Mutex<BTreeMap<u64, u64>>>,
    stall: Stall,
}

impl LogStore {
    /// Makes a new log with a node id that was minted for it; the id is never changed or reused.
    pub fn create(path: &Path, node_id: u64) -> Result<Self, LogStoreError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let wrap = |source| LogStoreError::Sqlite { path: path.to_owned(), source };
        // SQLite gives its journals the mode of the database.
        std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| LogStoreError::Create { path: path.to_owned(), source })?;
        let mut connection = connect(path).map_err(wrap)?;
        let tx = connection.transaction().map_err(wrap)?;
        tx.execute_batch(include_str!("schema.sql")).map_err(wrap)?;
        tx.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(wrap)?;
        put(&tx, "node_id", &node_id).map_err(wrap)?;
        tx.commit().map_err(wrap)?;
        Self::of(connection, node_id, path).map_err(wrap)
    }

    fn of(connection: Connection, node_id: u64, path: &Path) -> rusqlite::Result<Self> {
        let sizes: BTreeMap<u64, u64> = connection
            .prepare("SELECT log_index, length(entry) FROM log")?
            .query_map([], |r| Ok((from_sql(r.get(0)?), from_sql(r.get(1)?))))?
            .collect::<Result<_, _>>()?;
        Ok(Self {
            connection: Arc::new(Mutex::new(connection)),
            node_id,
            path: path.to_owned(),
            sizes: Arc::new(Mutex::new(sizes)),
            stall: Stall::default(),
        })
    }

    /// Opens a log that [`LogStore::create`] made.
    pub fn open(path: &Path) -> Result<Self, LogStoreError> {
        let wrap = |source| LogStoreError::Sqlite { path: path.to_owned(), source };
        // SQLite would make an empty one.
        if !path.exists() {
            return Err(LogStoreError::Gone { path: path.to_owned() });
        }
        let connection = connect(path).map_err(wrap)?;
        let found: i64 =
            connection.query_row("PRAGMA user_version", [], |r| r.get(0)).map_err(wrap)?;
        if found > SCHEMA_VERSION {
            return Err(LogStoreError::Newer { path: path.to_owned(), found });
        }
        if found < SCHEMA_VERSION {
            return Err(LogStoreError::NoIdentity { path: path.to_owned() });
        }
        let node_id = get(&connection, "node_id").map_err(wrap)?;
        let node_id = node_id.ok_or_else(|| LogStoreError::NoIdentity { path: path.to_owned() })?;
        Self::of(connection, node_id, path).map_err(wrap)
    }

    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// The number of a start of this node, which no other one had; durable when this returns.
    pub fn next_start(&self) -> Result<u64, LogStoreError> {
        let counted = || -> rusqlite::Result<u64> {
            let mut c = self.lock();
            let tx = c.transaction()?;
            let start = get::<u64>(&tx, "starts")?.unwrap_or(0) + 1;
            put(&tx, "starts", &start)?;
            tx.commit()?;
            Ok(start)
        };
        counted().map_err(|source| LogStoreError::Sqlite { path: self.path.clone(), source })
    }

    /// The index up to which the log goes, and the term that this node last took part in.
    pub fn extent(&self) -> Result<(u64, u64), LogStoreError> {
        let c = self.lock();
        let of = |c: &Connection| -> rusqlite::Result<(u64, u64)> {
            let vote: Option<Vote> = get(c, "vote")?;
            let last: Option<i64> =
                c.query_row("SELECT max(log_index) FROM log", [], |r| r.get(0))?;
            let purged: Option<LogId> = get(c, "purged")?;
            let last = last.and_then(|n| u64::try_from(n).ok());
            let last = last.or(purged.map(|id| id.index)).unwrap_or(0);
            Ok((last, vote.map_or(0, |v| v.leader_id.term)))
        };
        of(&c).map_err(|source| LogStoreError::Sqlite { path: self.path.clone(), source })
    }

    /// Term and index of the last entry, also of one that was cut off since; none before the first. Of
    /// two logs the one with the higher term, then the higher index, has all that was agreed on.
    pub fn last_id(&self) -> Result<Option<(u64, u64)>, LogStoreError> {
        let of = || -> rusqlite::Result<Option<LogId>> {
            let last: Option<i64> =
                self.lock().query_row("SELECT max(log_index) FROM log", [], |r| r.get(0))?;
            match last.and_then(|n| u64::try_from(n).ok()) {
                Some(index) => Ok(self.from(index)?.last().map(|entry| entry.log_id)),
                None => get(&self.lock(), "purged"),
            }
        };
        let last =
            of().map_err(|source| LogStoreError::Sqlite { path: self.path.clone(), source })?;
        Ok(last.map(|id| (id.leader_id.term, id.index)))
    }

    /// All entries from an index on.
    pub(crate) fn from(&self, index: u64) -> rusqlite::Result<Vec<Entry>> {
        self.entries(index.., usize::MAX)
    }

    /// The last index that was cut off the log.
    pub(crate) fn purged(&self) -> rusqlite::Result<Option<u64>> {
        let purged: Option<LogId> = get(&self.lock(), "purged")?;
        Ok(purged.map(|id| id.index))
    }

    pub(crate) fn vote(&self) -> rusqlite::Result<Option<Vote>> {
        get(&self.lock(), "vote")
    }

    /// Leaves nothing in the log, which ends at this id; all at once.
    pub(crate) fn begin_anew(&self, at: LogId, vote: Vote) -> rusqlite::Result<()> {
        let mut connection = self.lock();
        let tx = connection.transaction()?;
        put(&tx, "purged", &at)?;
        put(&tx, "vote", &vote)?;
        tx.execute("DELETE FROM log", [])?;
        tx.commit()?;
        self.sizes().clear();
        Ok(())
    }

    /// Says while a full disk holds the log up.
    pub(crate) fn stall(&self) -> Stall {
        self.stall.clone()
    }

    fn sizes(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Up to which index the log has to go for the rest to be within limits; none when all of it is.
    pub(crate) fn beyond(&self, entries_max: usize, bytes_max: u64) -> Option<u64> {
        let sizes = self.sizes();
        let (mut entries, mut bytes) = (0, 0u64);
        for (index, size) in sizes.iter().rev() {
            (entries, bytes) = (entries + 1, bytes.saturating_add(*size));
            if entries > entries_max || bytes > bytes_max {
                return Some(*index);
            }
        }
        None
    }

    /// Bytes of the entries behind an index.
    pub(crate) fn bytes_after(&self, index: u64) -> u64 {
        self.sizes().range(index.saturating_add(1)..).map(|(_, size)| size).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic inside a transaction rolls it back, so the connection itself stays sound.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(
        &self,
        range: impl RangeBounds<u64>,
        max_bytes: usize,
    ) -> rusqlite::Result<Vec<Entry>> {
        let lo = match range.start_bound() {
            Bound::Included(n) => *n,
            Bound::Excluded(n) => n + 1,
            Bound::Unbounded => 0,
        };
        let hi = match range.end_bound() {
            Bound::Included(n) => *n,
            Bound::Excluded(0) => return Ok(Vec::new()),
            Bound::Excluded(n) => n - 1,
            Bound::Unbounded => u64::MAX,
        };
        let (lo, hi) = (to_sql(lo), to_sql(hi));
        let connection = self.lock();
        let mut statement = connection.prepare_cached(
            "SELECT entry FROM log WHERE log_index BETWEEN ?1 AND ?2 ORDER BY log_index",
        )?;
        let mut rows = statement.query(params![lo, hi])?;
        let (mut entries, mut bytes) = (Vec::new(), 0usize);
        while let Some(row) = rows.next()? {
            let blob = row.get_ref(0)?.as_blob()?;
            bytes = bytes.saturating_add(blob.len());
            if bytes > max_bytes && !entries.is_empty() {
                break;
            }
            entries.push(decode(blob)?);
        }
        Ok(entries)
    }

    fn append_all(&self, entries: &[Entry]) -> rusqlite::Result<()> {
        let mut connection = self.lock();
        let tx = connection.transaction()?;
        let mut written = Vec::with_capacity(entries.len());
        {
            let mut insert =
                tx.prepare_cached("INSERT INTO log (log_index, entry) VALUES (?1, ?2)")?;
            for entry in entries {
                let bytes = encode(entry)?;
                insert.execute(params![to_sql(entry.log_id.index), bytes])?;
                written.push((entry.log_id.index, bytes.len() as u64));
            }
        }
        tx.commit()?;
        self.sizes().extend(written);
        Ok(())
    }

    fn truncate_from(&self, log_id: LogId) -> rusqlite::Result<()> {
        let lo = to_sql(log_id.index);
        self.lock().execute("DELETE FROM log WHERE log_index >= ?1", [lo])?;
        self.sizes().retain(|index, _| *index < log_id.index);
        Ok(())
    }

    fn purge_upto(&self, log_id: LogId) -> rusqlite::Result<()> {
        let mut connection = self.lock();
        let tx = connection.transaction()?;
        put(&tx, "purged", &log_id)?;
        tx.execute("DELETE FROM log WHERE log_index <= ?1", [to_sql(log_id.index)])?;
        tx.commit()?;
        self.sizes().retain(|index, _| *index > log_id.index);
        Ok(())
    }

    fn state(&self) -> rusqlite::Result<LogState<TypeConfig>> {
        let connection = self.lock();
        let last_purged_log_id: Option<LogId> = get(&connection, "purged")?;
        let last: Option<Vec<u8>> = connection
            .query_row("SELECT entry FROM log ORDER BY log_index DESC LIMIT 1", [], |r| r.get(0))
            .optional()?;
        let last = last.map(|blob| decode::<Entry>(&blob)).transpose()?;
        let last_log_id = last.map(|e| e.log_id).or(last_purged_log_id);
        Ok(LogState { last_purged_log_id, last_log_id })
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open(path)?;
    connection.set_transaction_behavior(rusqlite::TransactionBehavior::Immediate);
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "journal_size_limit", 16 * 1024 * 1024)?;
    connection.busy_timeout(std::time::Duration::from_secs(30))?;
    Ok(connection)
}

fn from_sql(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn to_sql(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn encode<T: serde::Serialize>(value: &T) -> rusqlite::Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> rusqlite::Result<T> {
    rmp_serde::from_slice(bytes).map_err(|e| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, e.into())
    })
}

fn put<T: serde::Serialize>(c: &Connection, key: &str, value: &T) -> rusqlite::Result<()> {
    c.execute(
        "INSERT OR REPLACE INTO state (key, value) VALUES (?1, ?2)",
        params![key, encode(value)?],
    )?;
    Ok(())
}

fn get<T: serde::de::DeserializeOwned>(c: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    let blob: Option<Vec<u8>> =
        c.query_row("SELECT value FROM state WHERE key = ?1", [key], |r| r.get(0)).optional()?;
    blob.map(|b| decode(&b)).transpose()
}

pub(crate) fn storage_error(
    subject: ErrorSubject<u64>,
    verb: ErrorVerb,
    error: &(impl std::error::Error + 'static),
) -> StorageError {
    StorageIOError::new(subject, verb, AnyError::new(error)).into()
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError> {
        self.entries(range, usize::MAX)
            .map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Read, &e))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, StorageError> {
        self.entries(start..end, READ_MAX_BYTES)
            .map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Read, &e))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError> {
        self.state().map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Read, &e))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), StorageError> {
        self.stall
            .ride_out("the vote", is_full, || put(&self.lock(), "vote", vote))
            .await
            .map_err(|e| storage_error(ErrorSubject::Vote, ErrorVerb::Write, &e))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, StorageError> {
        get(&self.lock(), "vote")
            .map_err(|e| storage_error(ErrorSubject::Vote, ErrorVerb::Read, &e))
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<TypeConfig>,
    ) -> Result<(), StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        match self.stall.ride_out("the log", is_full, || self.append_all(&entries)).await {
            Ok(()) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Err(e) => {
                let error = storage_error(ErrorSubject::Logs, ErrorVerb::Write, &e);
                callback.log_io_completed(Err(std::io::Error::other(e)));
                Err(error)
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.stall
            .ride_out("the log", is_full, || self.truncate_from(log_id))
            .await
            .map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Delete, &e))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.stall
            .ride_out("the log", is_full, || self.purge_upto(log_id))
            .await
            .map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Delete, &e))
    }
}

/// Whether nothing was written for want of room, so that the same may be tried again. A sync that
/// failed is none of it: what it covered is not believed any more.
pub fn is_full(e: &rusqlite::Error) -> bool {
    let code = e.sqlite_error().map(|e| (e.code, e.extended_code));
    matches!(
        code,
        Some((rusqlite::ErrorCode::DiskFull, _))
            | Some((_, rusqlite::ffi::SQLITE_IOERR_WRITE | rusqlite::ffi::SQLITE_IOERR_SHMSIZE))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_and_vote_are_on_disk_before_this_node_speaks() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogStore::create(&dir.path().join("raft.db"), 7).unwrap();
        let c = log.lock();
        let synchronous: i64 = c.query_row("PRAGMA synchronous", [], |r| r.get(0)).unwrap();
        let mode: String = c.query_row("PRAGMA journal_mode", [], |r| r.get(0)).unwrap();
        // 2 is FULL.
        assert_eq!((synchronous, mode.as_str()), (2, "wal"));
    }
}
