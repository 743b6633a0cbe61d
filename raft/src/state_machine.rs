//! What a replicated state has to do, and how openraft is made to see it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::RaftStateMachine;
use openraft::{EntryPayload, ErrorSubject, ErrorVerb, OptionalSend, RaftSnapshotBuilder};
use serde::{Deserialize, Serialize};

use crate::log_store::storage_error;
use crate::snapshot::{self, SnapshotFile, SnapshotView};
use crate::stall::Stall;
use crate::types::{
    Entry, LogId, Reply, Snapshot, SnapshotMeta, StorageError, StoredMembership, TypeConfig,
};

/// A deterministic state that commands change (invariant A1: no clock, randomness, environment
/// or I/O outside its own database).
pub trait StateMachine: Send + 'static {
    type Error: std::error::Error + Send + Sync + 'static;

    /// The bytes that the last `apply` or `install` stored as the Raft position; none when new.
    fn raft_state(&self) -> Result<Option<Vec<u8>>, Self::Error>;

    /// Applies the commands in order and stores `raft_state` in the same transaction (A2).
    ///
    /// One reply a command. An unknown command version is an error: the node stops rather than
    /// skips, and nothing of the call is kept.
    fn apply(&mut self, commands: &[&[u8]], raft_state: &[u8])
    -> Result<Vec<Vec<u8>>, Self::Error>;

    /// Makes everything applied durable: the log before it may go afterwards.
    fn checkpoint(&mut self) -> Result<(), Self::Error>;

    /// A frozen view of the present state.
    fn view(&self) -> Result<Box<dyn SnapshotView>, Self::Error>;

    /// Replaces the whole state with a file that a view wrote, and removes it.
    fn install(&mut self, file: &Path) -> Result<(), Self::Error>;

    /// Whether an error says that there was no room and nothing was changed: then the same is tried
    /// again until there is.
    fn is_full(error: &Self::Error) -> bool;
}

/// The Raft position that stands beside the state's rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Applied {
    pub last: Option<LogId>,
    pub membership: StoredMembership,
}

impl Applied {
    pub(crate) fn of<M: StateMachine>(machine: &M) -> Result<Self, StorageError> {
        let bytes = machine.raft_state().map_err(failed(ErrorVerb::Read))?;
        bytes.map_or(Ok(Self::default()), |b| {
            rmp_serde::from_slice(&b).map_err(failed(ErrorVerb::Read))
        })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, StorageError> {
        rmp_serde::to_vec_named(self).map_err(failed(ErrorVerb::Write))
    }
}

/// A [`StateMachine`] as openraft sees it.
pub(crate) struct Adapter<M> {
    machine: Arc<Mutex<M>>,
    folder: PathBuf,
    stall: Stall,
}

impl<M: StateMachine> Adapter<M> {
    /// `folder` is where an arriving snapshot is put together.
    pub(crate) fn new(machine: M, folder: PathBuf, stall: Stall) -> Self {
        Self { machine: Arc::new(Mutex::new(machine)), folder, stall }
    }

    fn lock(&self) -> MutexGuard<'_, M> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed<E: std::error::Error + 'static>(verb: ErrorVerb) -> impl FnOnce(E) -> StorageError {
    move |e| storage_error(ErrorSubject::StateMachine, verb, &e)
}

/// The commands of entries, and the state that stands once they are applied.
fn applying<'a>(
    before: &Applied,
    entries: &'a [Entry],
) -> Result<(Vec<&'a [u8]>, Vec<u8>), StorageError> {
    let mut position = before.clone();
    let mut commands: Vec<&[u8]> = Vec::new();
    for entry in entries {
        position.last = Some(entry.log_id);
        match &entry.payload {
            EntryPayload::Normal(command) => commands.push(&command.0),
            EntryPayload::Membership(m) => {
                position.membership = StoredMembership::new(Some(entry.log_id), m.clone());
            }
            EntryPayload::Blank => {}
        }
    }
    Ok((commands, position.encode()?))
}

fn replies_of(entries: &[Entry], replies: Vec<Vec<u8>>) -> Vec<Reply> {
    let mut replies = replies.into_iter();
    entries
        .iter()
        .map(|entry| match entry.payload {
            EntryPayload::Normal(_) => Reply(replies.next().unwrap_or_default()),
            _ => Reply::default(),
        })
        .collect()
}

/// Applies entries to a machine that no node runs on.
pub(crate) fn apply_entries<M: StateMachine>(
    machine: &mut M,
    entries: &[Entry],
) -> Result<(), StorageError> {
    let (commands, state) = applying(&Applied::of(machine)?, entries)?;
    machine.apply(&commands, &state).map(drop).map_err(failed(ErrorVerb::Write))
}

/// The index of the last entry that a stored `raft_state` counts as applied; 0 before the first.
pub fn applied_index(raft_state: &[u8]) -> Result<u64, rmp_serde::decode::Error> {
    let applied: Applied = rmp_serde::from_slice(raft_state)?;
    Ok(applied.last.map_or(0, |id| id.index))
}

/// The id follows from the position, so the same state has the same snapshot on every node.
fn meta_of(applied: &Applied) -> SnapshotMeta {
    SnapshotMeta {
        last_log_id: applied.last,
        last_membership: applied.membership.clone(),
        snapshot_id: applied
            .last
            .map_or_else(|| "empty".to_owned(), |l| format!("{}-{}", l.leader_id, l.index)),
    }
}

fn snapshot_of<M: StateMachine>(machine: &M) -> Result<Snapshot, StorageError> {
    let applied = Applied::of(machine)?;
    let view = machine.view().map_err(failed(ErrorVerb::Read))?;
    Ok(Snapshot { meta: meta_of(&applied), snapshot: Box::new(SnapshotFile::View(view)) })
}

pub(crate) struct Builder<M>(Arc<Mutex<M>>, Stall);

impl<M: StateMachine> RaftSnapshotBuilder<TypeConfig> for Builder<M> {
    // openraft purges the log up to what this returns, so it must be durable before.
    async fn build_snapshot(&mut self) -> Result<Snapshot, StorageError> {
        // Under one lock: what the view shows is what was made durable, and nothing later.
        let building = || {
            let mut machine = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            machine.checkpoint().map(|()| snapshot_of(&*machine))
        };
        let built = self.1.ride_out("a checkpoint", M::is_full, building).await;
        built.map_err(failed(ErrorVerb::Write))?
    }
}

impl<M: StateMachine> RaftStateMachine<TypeConfig> for Adapter<M> {
    type SnapshotBuilder = Builder<M>;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), StorageError> {
        let applied = Applied::of(&*self.lock())?;
        Ok((applied.last, applied.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Reply>, StorageError>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        let (commands, state) = applying(&Applied::of(&*self.lock())?, &entries)?;
        let apply = || self.lock().apply(&commands, &state);
        let applied = self.stall.ride_out("the manifest", M::is_full, apply).await;
        Ok(replies_of(&entries, applied.map_err(failed(ErrorVerb::Write))?))
    }

    async fn get_snapshot_builder(&mut self) -> Builder<M> {
        Builder(Arc::clone(&self.machine), self.stall.clone())
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotFile>, StorageError> {
        Ok(Box::new(SnapshotFile::Empty))
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta,
        snapshot: Box<SnapshotFile>,
    ) -> Result<(), StorageError> {
        let file = snapshot::installing(&self.folder);
        (*snapshot).into_file(&file).map_err(failed(ErrorVerb::Write))?;
        let installing = || self.lock().install(&file);
        let installed = self.stall.ride_out("a snapshot", M::is_full, installing).await;
        installed.map_err(failed(ErrorVerb::Write))
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot>, StorageError> {
        let machine = self.lock();
        match Applied::of(&*machine)?.last {
            Some(_) => snapshot_of(&*machine).map(Some),
            None => Ok(None),
        }
    }
}
