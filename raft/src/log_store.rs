//! The log, the vote and the node's own id in `raft.db`, durable before anything is answered (A3).

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, ErrorSubject, ErrorVerb, LogState, OptionalSend, RaftLogReader, StorageIOError,
};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::types::{Entry, LogId, StorageError, TypeConfig, Vote};

/// The schema version that this program writes.
const SCHEMA_VERSION: i64 = 1;
/// Most bytes that one read of the log returns (but always one entry).
const READ_MAX_BYTES: usize = 4 * 1024 * 1024;

/// Why `raft.db` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogStoreError {
    #[error(
        "{path} is at schema version {found}; this program knows up to {SCHEMA_VERSION}: use the newer program that wrote it"
    )]
    Newer { path: PathBuf, found: i64 },
    #[error("{path} has no node id; it was not made by `barque hub init`")]
    NoIdentity { path: PathBuf },
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
        Ok(Self { connection: Arc::new(Mutex::new(connection)), node_id })
    }

    /// Opens a log that [`LogStore::create`] made.
    pub fn open(path: &Path) -> Result<Self, LogStoreError> {
        let wrap = |source| LogStoreError::Sqlite { path: path.to_owned(), source };
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
        Ok(Self { connection: Arc::new(Mutex::new(connection)), node_id })
    }

    pub fn node_id(&self) -> u64 {
        self.node_id
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
        {
            let mut insert =
                tx.prepare_cached("INSERT INTO log (log_index, entry) VALUES (?1, ?2)")?;
            for entry in entries {
                insert.execute(params![to_sql(entry.log_id.index), encode(entry)?])?;
            }
        }
        tx.commit()
    }

    fn purge_upto(&self, log_id: LogId) -> rusqlite::Result<()> {
        let mut connection = self.lock();
        let tx = connection.transaction()?;
        put(&tx, "purged", &log_id)?;
        tx.execute("DELETE FROM log WHERE log_index <= ?1", [to_sql(log_id.index)])?;
        tx.commit()
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
        put(&self.lock(), "vote", vote)
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
        match self.append_all(&entries) {
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
        self.lock()
            .execute("DELETE FROM log WHERE log_index >= ?1", [to_sql(log_id.index)])
            .map(drop)
            .map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Delete, &e))
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), StorageError> {
        self.purge_upto(log_id)
            .map_err(|e| storage_error(ErrorSubject::Logs, ErrorVerb::Delete, &e))
    }
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
