//! The manifest: the replicated state in `manifest.db`, changed by `apply` alone.
//!
//! It keeps V2, V3 (what it decides is decided everywhere), A1 (no clock, randomness, environment
//! or I/O outside its database) and A2 (rows and Raft position move in one transaction).

pub mod apply;
pub mod query;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use barque_bundle::database::Kind;
use barque_bundle::{fault, platform};
use barque_raft::{SnapshotView, StateMachine};
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use tokio::sync::watch;

use crate::command::{self, Envelope};
use crate::error::Error;
use query::NodeRow;

const KIND: Kind = Kind {
    schema: include_str!("manifest/schema.sql"),
    migrations: &[
        include_str!("manifest/migrations/2.sql"),
        include_str!("manifest/migrations/3.sql"),
        include_str!("manifest/migrations/4.sql"),
    ],
    // The log is purged only up to a checkpoint, so a lost tail is applied again.
    synchronous: "NORMAL",
    journal_bytes: 64 << 20,
    busy_wait: Duration::from_secs(30),
};

/// The writing side, owned by Raft.
pub struct Manifest {
    path: PathBuf,
    connection: Connection,
    position: watch::Sender<u64>,
    nodes: watch::Sender<Nodes>,
    readers: Readers,
}

/// The nodes of a cluster at some position, by their id.
pub type Nodes = Arc<BTreeMap<u64, NodeRow>>;

impl Manifest {
    /// Opens or makes the database; a newer one is refused by name.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let connection = KIND.open(path)?;
        let position = query::counter(&connection, "position")?;
        let nodes = Arc::new(query::nodes(&connection)?);
        let readers = Readers::new(path.to_owned());
        Ok(Self {
            path: path.to_owned(),
            connection,
            position: watch::Sender::new(position),
            nodes: watch::Sender::new(nodes),
            readers,
        })
    }

    /// Hears of the nodes whenever they change, after the transaction is committed.
    pub fn watch_nodes(&self) -> watch::Receiver<Nodes> {
        self.nodes.subscribe()
    }

    /// Hears of each new position after its transaction is committed.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.position.subscribe()
    }

    pub fn readers(&self) -> Readers {
        self.readers.clone()
    }
}

impl StateMachine for Manifest {
    type Error = Error;

    fn raft_state(&self) -> Result<Option<Vec<u8>>, Error> {
        self.connection
            .query_row("SELECT value FROM meta WHERE key = 'raft_state'", [], |r| r.get(0))
            .optional()
            .map_err(Error::sql("the Raft position cannot be read"))
    }

    fn apply(&mut self, commands: &[&[u8]], raft_state: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let wrap = || Error::sql("a command cannot be applied");
        let tx = self.connection.transaction().map_err(wrap())?;
        let mut replies = Vec::with_capacity(commands.len());
        let (mut registers, mut changes_nodes) = (false, false);
        for bytes in commands {
            let envelope: Envelope = command::decode(bytes)?;
            registers |= envelope.command.registers();
            changes_nodes |= envelope.command.changes_nodes();
            if registers {
                fault::after(fault::Step::Committed);
            }
            replies.push(command::encode_reply(&apply::apply(&tx, &envelope).map_err(wrap())?));
        }
        tx.execute(
            "INSERT OR REPLACE INTO meta (key, value) VALUES ('raft_state', ?1)",
            [raft_state],
        )
        .map_err(wrap())?;
        let position = query::counter(&tx, "position")?;
        tx.commit().map_err(wrap())?;
        if registers {
            fault::after(fault::Step::Applied);
        }
        // Committed: nothing from here on may make the caller apply it again.
        if changes_nodes {
            match query::nodes(&self.connection) {
                Ok(nodes) => drop(self.nodes.send_replace(Arc::new(nodes))),
                Err(e) => tracing::error!(error = %e, "the nodes cannot be read"),
            }
        }
        self.position.send_replace(position);
        Ok(replies)
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        let wrap = || Error::sql("manifest.db cannot be checkpointed");
        // It waits for no reader, who may take long: what stays in the WAL is made durable there.
        self.connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .map_err(wrap())?;
        for path in [self.path.with_extension("db-wal"), self.path.clone()] {
            let file = match std::fs::File::open(&path) {
                Ok(file) => file,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                Err(e) => return Err(Error::io("cannot open", &path)(e)),
            };
            platform::sync(&file).map_err(Error::io("cannot sync", &path))?;
        }
        Ok(())
    }

    fn view(&self) -> Result<Box<dyn SnapshotView>, Error> {
        let connection = KIND.open_reader(&self.path)?;
        // A deferred transaction freezes at its first read.
        connection
            .execute_batch("BEGIN; SELECT count(*) FROM meta;")
            .map_err(Error::sql("a view of the manifest cannot be taken"))?;
        Ok(Box::new(View(connection)))
    }

    fn install(&mut self, file: &Path) -> Result<(), Error> {
        let wrap = || Error::sql("a snapshot cannot be installed");
        let source =
            Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(wrap())?;
        {
            let backup =
                rusqlite::backup::Backup::new(&source, &mut self.connection).map_err(wrap())?;
            backup.run_to_completion(1024, Duration::ZERO, None).map_err(wrap())?;
        }
        // A peer may still be at an older schema.
        KIND.bring_up(&mut self.connection, &self.path)?;
        self.checkpoint()?;
        self.nodes.send_replace(Arc::new(query::nodes(&self.connection)?));
        self.position.send_replace(query::counter(&self.connection, "position")?);
        std::fs::remove_file(file).map_err(Error::io("cannot remove", file))
    }

    fn is_full(error: &Error) -> bool {
        match error {
            Error::Sqlite { source, .. } => barque_raft::log_store::is_full(source),
            Error::Io { source, .. } => platform::is_full(source),
            _ => false,
        }
    }
}

/// A frozen read transaction; copied only when a peer needs it.
struct View(Connection);

impl SnapshotView for View {
    fn copy_to(self: Box<Self>, path: &Path) -> std::io::Result<()> {
        let copy = || -> rusqlite::Result<()> {
            let mut target = Connection::open(path)?;
            rusqlite::backup::Backup::new(&self.0, &mut target)?.run_to_completion(
                1024,
                Duration::ZERO,
                None,
            )?;
            // One file, that whoever opens it needs no other beside.
            target.pragma_update(None, "journal_mode", "DELETE")
        };
        copy().map_err(std::io::Error::other)
    }
}

/// Connections that read the manifest beside its writer; each read sees one committed state.
#[derive(Clone)]
pub struct Readers {
    path: PathBuf,
    idle: Arc<Mutex<Vec<Connection>>>,
}

/// Idle connections that are kept.
const IDLE_MAX: usize = 8;

impl Readers {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, idle: Arc::default() }
    }

    /// Runs a read on this thread, which it may block for the time of the query.
    pub fn read<T>(&self, f: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => KIND.open_reader(&self.path)?,
        };
        let answer = {
            // Its first read takes the state that all of them see, and the locks for it once.
            let tx = connection.unchecked_transaction().map_err(Error::sql("the manifest"))?;
            f(&tx)
        };
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(connection);
        }
        answer
    }

    /// [`Readers::read`] on a thread that may block.
    pub async fn read_async<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let readers = self.clone();
        tokio::task::spawn_blocking(move || readers.read(f))
            .await
            .unwrap_or_else(|e| Err(Error::Malformed(format!("a read ended badly: {e}"))))
    }
}

#[cfg(test)]
mod tests;
