//! How this crate opens its SQLite files: private, WAL, versioned; a newer one is refused by name.

use std::path::Path;
use std::time::Duration;

use barque_bundle::platform;
use rusqlite::Connection;

use crate::error::Error;

/// What a database of one kind is.
pub struct Kind {
    pub name: &'static str,
    pub version: i64,
    pub schema: &'static str,
    /// SQLite's `synchronous`: FULL, or NORMAL where a lost tail is made again.
    pub synchronous: &'static str,
    /// Bytes that an idle journal keeps on disk.
    pub journal_bytes: i64,
}

/// How long another connection's lock is waited for.
const BUSY_WAIT: Duration = Duration::from_secs(10);

impl Kind {
    fn failed(&self) -> impl FnOnce(rusqlite::Error) -> Error + use<> {
        let what = self.name;
        move |source| Error::Sqlite { what, source }
    }

    /// Opens the database for writing, and makes it when it is not there.
    pub fn open(&self, path: &Path) -> Result<Connection, Error> {
        platform::create_private(path).map_err(Error::io("cannot make", path))?;
        let mut connection = Connection::open(path).map_err(self.failed())?;
        self.set_up(&connection).map_err(self.failed())?;
        let found = version(&connection).map_err(self.failed())?;
        if found > self.version {
            return Err(Error::Newer { path: path.to_owned(), found, known: self.version });
        }
        if found == 0 {
            self.make(&mut connection).map_err(self.failed())?;
        }
        Ok(connection)
    }

    fn set_up(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", self.synchronous)?;
        connection.pragma_update(None, "journal_size_limit", self.journal_bytes)?;
        connection.set_prepared_statement_cache_capacity(64);
        connection.busy_timeout(BUSY_WAIT)
    }

    fn make(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let tx = connection.transaction()?;
        tx.execute_batch(self.schema)?;
        tx.pragma_update(None, "user_version", self.version)?;
        tx.commit()
    }

    /// Opens the database for reading beside its writer.
    pub fn open_reader(&self, path: &Path) -> Result<Connection, Error> {
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(path)?;
            connection.pragma_update(None, "query_only", true)?;
            connection.set_prepared_statement_cache_capacity(32);
            connection.busy_timeout(BUSY_WAIT)?;
            Ok(connection)
        };
        open().map_err(self.failed())
    }
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |r| r.get(0))
}
