//! Makes a ledger anew at a person's wish: the old one is set aside, and the next push hashes the
//! files and asks the hubs, which sends nothing again that they hold.

use std::path::{Path, PathBuf};

use barque_bundle::{HubId, SeriesId, database};
use rusqlite::Connection;
use serde::Serialize;

use crate::config::{SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::ledger::{HubRow, JOURNALS, Ledger};
use crate::lock::Lock;
use crate::requeue::Mode;

/// What a rebuild did, or would do.
#[derive(Clone, Debug, Serialize)]
pub struct Rebuilt {
    /// Where the old ledger lies now.
    pub aside: Option<PathBuf>,
    pub hubs: Vec<RebuiltHub>,
    /// Files that a person had set aside, which they stay.
    pub dismissed: u64,
}

/// A hub's new series.
#[derive(Clone, Debug, Serialize)]
pub struct RebuiltHub {
    pub hub_id: HubId,
    pub series: SeriesId,
    /// The series before, whose open numbers are void.
    pub replaces: Option<SeriesId>,
}

/// Sets the ledger aside and makes a new one; takes the lock of the state folder.
pub fn rebuild(state: &StateFolder, edge: &Edge, mode: Mode) -> Result<Rebuilt, Error> {
    rebuild_locked(state, edge, mode).map_err(Error::explained)
}

fn rebuild_locked(state: &StateFolder, edge: &Edge, mode: Mode) -> Result<Rebuilt, Error> {
    let config = SpokeConfig::load(state)?;
    let _lock = Lock::take(state, edge.now())?;
    let path = state.ledger();
    let known = known(&path, &config);
    let hubs: Vec<Hub> = config
        .hubs
        .iter()
        .map(|h| {
            let row = known.as_ref().and_then(|k| k.iter().find(|r| r.hub_id == h.hub_id)).cloned();
            (h.hub_id, row, SeriesId::new(edge.now(), edge.id_bytes()))
        })
        .collect();
    let rebuilt_hubs = hubs
        .iter()
        .map(|(hub_id, row, series)| RebuiltHub {
            hub_id: *hub_id,
            series: *series,
            replaces: row.as_ref().map(|r| r.series),
        })
        .collect();
    if mode == Mode::DryRun {
        return Ok(Rebuilt { aside: None, hubs: rebuilt_hubs, dismissed: 0 });
    }
    // Whole before it takes the place of the old one, which is kept under another name.
    let fresh = state.path().join("ledger.db.new");
    remove_with_journals(&fresh)?;
    let there = path.exists();
    let filled = fill(&fresh, &hubs, there.then_some(path.as_path()));
    if filled.is_err() {
        remove_with_journals(&fresh)?;
    }
    let dismissed = filled?;
    let aside = match there {
        true => Some(Ledger::replace(&path, &fresh, "rebuilt", edge.now())?),
        false => std::fs::rename(&fresh, &path)
            .map(|()| None)
            .map_err(Error::io("cannot put in place", &path))?,
    };
    barque_bundle::platform::sync_folder(state.path())
        .map_err(Error::io("cannot sync", state.path()))?;
    Ok(Rebuilt { aside, hubs: rebuilt_hubs, dismissed })
}

type Hub = (HubId, Option<HubRow>, SeriesId);

/// Makes the new ledger, with what the old one has to tell; how many dismissals that is.
fn fill(fresh: &Path, hubs: &[Hub], old: Option<&Path>) -> Result<u64, Error> {
    let ledger = Ledger::open(fresh)?;
    for (hub_id, row, series) in hubs {
        ledger.add_rebuilt_hub(*hub_id, *series, row.as_ref())?;
    }
    let dismissed = match old.map_or(Ok(0), |old| carry(&ledger, old)) {
        Err(e) if is_its_content(&e) => {
            tracing::warn!(error = %crate::error::chain(&e), "nothing of the old ledger can be read");
            0
        }
        carried => carried?,
    };
    // Closed, it has no journal beside it.
    ledger.tidy()?;
    Ok(dismissed)
}

/// Whether a ledger cannot be read for what it holds, and not for want of room, rights or peace.
fn is_its_content(e: &Error) -> bool {
    use rusqlite::ErrorCode::{ConstraintViolation, Unknown};
    let code = match e {
        Error::Sqlite { source, .. } => source.sqlite_error_code(),
        _ => None,
    };
    e.is_damage() || matches!(code, Some(Unknown | ConstraintViolation))
}

/// What an interrupted rebuild left.
fn remove_with_journals(path: &Path) -> Result<(), Error> {
    for suffix in [""].into_iter().chain(JOURNALS) {
        let name = database::with_suffix(path, suffix);
        match std::fs::remove_file(&name) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("cannot remove", name)(e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What the old ledger knows of the hubs; none when it cannot be read.
fn known(path: &Path, config: &SpokeConfig) -> Option<Vec<HubRow>> {
    let ledger = path.exists().then(|| Ledger::open(path).ok()).flatten()?;
    Some(config.hubs.iter().filter_map(|h| ledger.hub(h.hub_id).ok().flatten()).collect())
}

/// Takes over what only the old ledger knows: a person's dismissals, the passes, what was spent.
fn carry(ledger: &Ledger, old: &Path) -> Result<u64, Error> {
    // A connection of its own brings an old schema up before it is read.
    drop(Ledger::open(old)?);
    let wrap = |source| Error::Sqlite { path: old.to_owned(), source };
    let carry = |c: &Connection| -> rusqlite::Result<u64> {
        c.execute("ATTACH ?1 AS old", [old.to_string_lossy()])?;
        let carried = c.execute_batch(
            "BEGIN IMMEDIATE;
             INSERT OR IGNORE INTO spent SELECT * FROM old.spent;
             INSERT OR IGNORE INTO passes SELECT * FROM old.passes;
             INSERT OR IGNORE INTO files (hub_id, path, state, sha256, size_bytes, mtime_ns,
                 ctime_ns, inode, partition_ms, code, detail, since, class)
             SELECT hub_id, path, state, sha256, size_bytes, mtime_ns, ctime_ns, inode,
                 partition_ms, code, detail, since, class
             FROM old.files WHERE state = 'dismissed';
             COMMIT;",
        );
        if carried.is_err() && !c.is_autocommit() {
            c.execute_batch("ROLLBACK")?;
        }
        c.execute_batch("DETACH old")?;
        carried?;
        c.query_row("SELECT count(*) FROM files WHERE state = 'dismissed'", [], |r| {
            r.get::<_, i64>(0).map(crate::ledger::unsigned)
        })
    };
    carry(&ledger.connection).map_err(wrap)
}
