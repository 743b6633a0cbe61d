//! How both sides open their SQLite files: private, WAL, versioned and migrated.
//!
//! A database carries its schema version in `user_version`. A newer one is refused by name; an
//! older one is copied aside (`NAME.v1` beside it) and brought up by numbered migrations.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};

use crate::platform;

/// Statements that a connection keeps prepared.
const STATEMENTS_MAX: usize = 128;

/// What a database of one kind is.
pub struct Kind {
    /// The newest schema, for a database that is made now.
    pub schema: &'static str,
    /// From schema version n to n + 1, n from 1.
    pub migrations: &'static [&'static str],
    /// SQLite's `synchronous`: FULL, or NORMAL where a lost tail is made again.
    pub synchronous: &'static str,
    /// Bytes that an idle journal keeps on disk.
    pub journal_bytes: i64,
    /// How long another connection's lock is waited for.
    pub busy_wait: Duration,
}

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("{path} cannot be used")]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error(
        "{path} is at schema version {found}; this program knows up to {known}: use the newer program that wrote it"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("{what}: {path}")]
    Io { what: &'static str, path: PathBuf, source: io::Error },
}

impl DatabaseError {
    fn sqlite(path: &Path) -> impl Fn(rusqlite::Error) -> Self {
        move |source| Self::Sqlite { path: path.to_owned(), source }
    }

    fn io(what: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, path: path.to_owned(), source }
    }
}

impl Kind {
    /// The schema version that this program writes.
    pub fn version(&self) -> i64 {
        i64::try_from(self.migrations.len()).unwrap_or(i64::MAX).saturating_add(1)
    }

    /// Opens the database for writing; makes it when it is not there, brings it up when it is old.
    pub fn open(&self, path: &Path) -> Result<Connection, DatabaseError> {
        platform::create_private(path).map_err(DatabaseError::io("cannot make", path))?;
        let mut connection = Connection::open(path).map_err(DatabaseError::sqlite(path))?;
        self.set_up(&mut connection).map_err(DatabaseError::sqlite(path))?;
        let is_old = |c: &Connection| -> Result<Option<i64>, DatabaseError> {
            let found = version(c).map_err(DatabaseError::sqlite(path))?;
            Ok((1..self.version()).contains(&found).then_some(found))
        };
        if is_old(&connection)?.is_some() {
            // One process copies and migrates; another that comes meanwhile waits and finds it done.
            let _turn = self.turn(path)?;
            if let Some(found) = is_old(&connection)? {
                copy_aside(&connection, path, found)?;
            }
            self.bring_up(&mut connection, path)?;
        }
        self.bring_up(&mut connection, path)?;
        Ok(connection)
    }

    /// The right to migrate, given back when it is dropped.
    fn turn(&self, path: &Path) -> Result<std::fs::File, DatabaseError> {
        let name = with_suffix(path, ".migrating");
        let io = DatabaseError::io("cannot lock", &name);
        platform::create_private(&name).map_err(&io)?;
        let file = std::fs::File::open(&name).map_err(&io)?;
        let end = std::time::Instant::now() + self.busy_wait;
        while !platform::try_lock(&file).map_err(&io)? {
            if std::time::Instant::now() > end {
                return Err(io(io::Error::other("another process migrates and does not end")));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(file)
    }

    fn set_up(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        // A transaction that reads and then writes would not wait for another's lock but fail.
        connection.set_transaction_behavior(TransactionBehavior::Immediate);
        connection.busy_timeout(self.busy_wait)?;
        steady(connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", self.synchronous)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "journal_size_limit", self.journal_bytes)?;
        Ok(())
    }

    /// Makes or migrates the schema in one transaction; a newer one is refused.
    pub fn bring_up(&self, connection: &mut Connection, path: &Path) -> Result<(), DatabaseError> {
        let wrap = DatabaseError::sqlite(path);
        let known = self.version();
        let found = version(connection).map_err(&wrap)?;
        if found > known {
            return Err(DatabaseError::Newer { path: path.to_owned(), found, known });
        }
        if found == known {
            return Ok(());
        }
        let tx = connection.transaction().map_err(&wrap)?;
        // Another process may have been quicker.
        let found = version(&tx).map_err(&wrap)?;
        if found >= known {
            drop(tx);
            return self.bring_up(connection, path);
        }
        if found == 0 {
            tx.execute_batch(self.schema).map_err(&wrap)?;
        } else {
            let done = usize::try_from(found - 1).unwrap_or(usize::MAX);
            for migration in self.migrations.iter().skip(done) {
                tx.execute_batch(migration).map_err(&wrap)?;
            }
        }
        tx.pragma_update(None, "user_version", known).map_err(&wrap)?;
        tx.commit().map_err(&wrap)
    }

    /// Opens the database for reading beside its writer.
    pub fn open_reader(&self, path: &Path) -> Result<Connection, DatabaseError> {
        let open = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(path)?;
            connection.pragma_update(None, "query_only", true)?;
            connection.busy_timeout(self.busy_wait)?;
            steady(&connection)?;
            Ok(connection)
        };
        open().map_err(DatabaseError::sqlite(path))
    }
}

/// Has statements keep the plan that they were prepared with (SQLite's query planner stability
/// guarantee). Without it a statement beside a partial index is planned anew for each value that is
/// bound, which took a third of a small read.
fn steady(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |r| r.get(0))
}

/// The name of the copy that is made before a migration: `ledger.db.v1` of `ledger.db`.
pub fn copy_name(path: &Path, version: i64) -> PathBuf {
    with_suffix(path, &format!(".v{version}"))
}

/// The name of the write-ahead log of a database.
pub fn wal_name(path: &Path) -> PathBuf {
    with_suffix(path, "-wal")
}

/// The path with something behind its name: `ledger.db-wal` of `ledger.db`.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Keeps the database as it is under another name, whole and durable, before it is changed.
fn copy_aside(connection: &Connection, path: &Path, version: i64) -> Result<(), DatabaseError> {
    let copy = copy_name(path, version);
    let unfinished = with_suffix(&copy, ".tmp");
    let io = DatabaseError::io("cannot copy the database aside to", &copy);
    match std::fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(io(e)),
        _ => {}
    }
    let Some(name) = unfinished.to_str() else {
        return Err(io(io::Error::other("its folder's name is no UTF-8, which SQLite needs here")));
    };
    platform::create_private(&unfinished).map_err(&io)?;
    let copied = connection.execute("VACUUM INTO ?1", [name]).map_err(DatabaseError::sqlite(path));
    let finish = || {
        platform::sync(&std::fs::File::open(&unfinished)?)?;
        std::fs::rename(&unfinished, &copy)?;
        platform::sync_folder(path.parent().unwrap_or(Path::new(".")))
    };
    copied.and_then(|_| finish().map_err(&io)).inspect_err(|_| {
        // A disk that is full stays no fuller than it was.
        let _ = std::fs::remove_file(&unfinished);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Kind = Kind {
        schema: "CREATE TABLE a (x INTEGER)",
        migrations: &[],
        synchronous: "FULL",
        journal_bytes: 1 << 20,
        busy_wait: Duration::from_secs(5),
    };
    const NEW: Kind = Kind {
        schema: "CREATE TABLE a (x INTEGER); CREATE TABLE b (y INTEGER); CREATE TABLE c (z INTEGER)",
        migrations: &["CREATE TABLE b (y INTEGER)", "CREATE TABLE c (z INTEGER)"],
        ..OLD
    };

    fn tables(c: &Connection) -> Vec<String> {
        let mut s = c.prepare("SELECT name FROM sqlite_master ORDER BY name").unwrap();
        s.query_map([], |r| r.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn an_old_database_is_copied_aside_and_brought_up_and_a_newer_one_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        OLD.open(&path).unwrap().execute("INSERT INTO a VALUES (7)", []).unwrap();
        let new = NEW.open(&path).unwrap();
        assert_eq!(tables(&new), ["a", "b", "c"]);
        assert_eq!(version(&new).unwrap(), 3);
        assert_eq!(new.query_row("SELECT x FROM a", [], |r| r.get::<_, i64>(0)).unwrap(), 7);
        // The copy is the database as it was, private, and still opens with the old program.
        let copy = copy_name(&path, 1);
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        let old = OLD.open(&copy).unwrap();
        assert_eq!(tables(&old), ["a"]);
        assert_eq!(old.query_row("SELECT x FROM a", [], |r| r.get::<_, i64>(0)).unwrap(), 7);
        drop(new);
        let refused = OLD.open(&path).unwrap_err().to_string();
        for word in ["x.db", "version 3", "up to 1"] {
            assert!(refused.contains(word), "{refused}");
        }
        // A fresh one is made at once, without a copy.
        let fresh = dir.path().join("y.db");
        assert_eq!(tables(&NEW.open(&fresh).unwrap()), ["a", "b", "c"]);
        assert!(!copy_name(&fresh, 1).exists());
    }

    #[test]
    fn a_copy_that_was_not_finished_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        drop(OLD.open(&path).unwrap());
        std::fs::write(dir.path().join("x.db.v1.tmp"), "half").unwrap();
        drop(NEW.open(&path).unwrap());
        assert_eq!(tables(&OLD.open(&copy_name(&path, 1)).unwrap()), ["a"]);
    }

    #[test]
    fn of_many_that_open_an_old_database_one_migrates_and_the_copy_stays_the_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        OLD.open(&path).unwrap().execute("INSERT INTO a VALUES (7)", []).unwrap();
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| assert_eq!(tables(&NEW.open(&path).unwrap()), ["a", "b", "c"]));
            }
        });
        assert_eq!(tables(&OLD.open(&copy_name(&path, 1)).unwrap()), ["a"]);
    }

    #[test]
    fn settings_are_the_ones_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let c = OLD.open(&dir.path().join("x.db")).unwrap();
        let number = |name: &str| -> i64 {
            c.query_row(&format!("PRAGMA {name}"), [], |r| r.get(0)).unwrap()
        };
        assert_eq!((number("synchronous"), number("foreign_keys")), (2, 1));
        assert_eq!((number("busy_timeout"), number("journal_size_limit")), (5_000, 1 << 20));
        let mode: String = c.query_row("PRAGMA journal_mode", [], |r| r.get(0)).unwrap();
        assert_eq!(mode, "wal");
    }
}
