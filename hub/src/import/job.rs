//! The imports of a node: one at a time, the last ones remembered.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use barque_bundle::digest::hex;
use barque_bundle::header::Header;
use barque_bundle::wire::{self, ImportJob, ImportRefusal, ImportState};
use barque_bundle::{ErrorKind, Timestamp};

use crate::command::NodeState;
use crate::error::Refusal;
use crate::hub::Parts;

/// Jobs that can still be asked for.
const JOBS_MAX: usize = 100;

/// What a node imports and imported since it started.
pub struct Imports {
    start_no: u64,
    /// Folders below which a path on the node may lie, links resolved.
    allowed: Vec<PathBuf>,
    jobs: Mutex<Jobs>,
}

#[derive(Default)]
struct Jobs {
    current: Option<Arc<Job>>,
    all: VecDeque<Arc<Job>>,
}

/// One import.
pub struct Job {
    id: String,
    shown: Mutex<ImportJob>,
    /// Why it is to end.
    ended_by: OnceLock<Refusal>,
}

/// The seat at which a node imports, until it is dropped.
pub struct Running {
    parts: Arc<Parts>,
    job: Arc<Job>,
}

impl Running {
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.parts.imports.lock().current = None;
    }
}

impl Imports {
    pub fn new(start_no: u64, allowed: Vec<PathBuf>) -> Self {
        Self { start_no, allowed, jobs: Mutex::default() }
    }

    pub fn start_no(&self) -> u64 {
        self.start_no
    }

    pub fn allowed(&self) -> &[PathBuf] {
        &self.allowed
    }

    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_busy(&self) -> bool {
        self.lock().current.is_some()
    }

    /// Takes the seat, or says who has it, or which nodes do take drives.
    pub fn begin(&self, parts: &Arc<Parts>) -> Result<Running, Refusal> {
        require_enabled(parts)?;
        let mut jobs = self.lock();
        if let Some(current) = &jobs.current {
            return Err(in_progress(&current.shown()));
        }
        let job = Arc::new(Job::new(hex(&rand::random::<[u8; 8]>()), (parts.clock)()));
        jobs.current = Some(Arc::clone(&job));
        jobs.all.push_back(Arc::clone(&job));
        if jobs.all.len() > JOBS_MAX {
            jobs.all.pop_front();
        }
        Ok(Running { parts: Arc::clone(parts), job })
    }

    /// Refuses while an import runs.
    pub fn require_idle(&self) -> Result<(), Refusal> {
        match &self.lock().current {
            Some(current) => Err(in_progress(&current.shown())),
            None => Ok(()),
        }
    }

    pub fn job(&self, id: &str) -> Option<Arc<Job>> {
        self.lock().all.iter().find(|j| j.id == id).cloned()
    }
}

/// Refuses on a node that takes no drives, naming those that do.
pub fn require_enabled(parts: &Parts) -> Result<(), Refusal> {
    if parts.config.imports {
        return Ok(());
    }
    let nodes = parts.cluster.nodes();
    let there = nodes.values().filter(|n| n.imports && n.state == NodeState::Active);
    let names: Vec<String> = there
        .map(|n| {
            let url = n.url.as_deref().map_or(String::new(), |url| format!(" at {url}"));
            format!("{}{url}", parts.cluster.title(n.node_id))
        })
        .collect();
    let detail = match names.as_slice() {
        [] => {
            "this node takes no drives, and no other of this hub does (hub.import.enabled)".into()
        }
        names => format!("this node takes no drives; these do: {}", names.join(", ")),
    };
    Err(Refusal::new(ErrorKind::Conflict, "import_disabled", detail))
}

fn in_progress(job: &ImportJob) -> Refusal {
    let what = job.bundle_id.map_or("another bundle".to_owned(), |b| format!("bundle {b}"));
    let label = job.label.as_deref().map_or(String::new(), |l| format!(" on '{l}'"));
    let detail = format!(
        "this node imports {what}{label} since {} (job {}), and one drive at a time; try again \
         when it is done",
        job.since, job.job
    );
    let import = ImportRefusal {
        imported: false,
        reason: wire::IN_PROGRESS.to_owned(),
        job: Some(job.job.clone()),
        since: Some(job.since),
        bundle_id: job.bundle_id,
        imported_at: None,
        node: None,
        files: None,
        receipt: None,
    };
    let refusal = Refusal::new(ErrorKind::Conflict, "import_in_progress", detail);
    Refusal { import: Some(Box::new(import)), retry_after_ms: Some(10_000), ..refusal }
}

impl Job {
    fn new(id: String, since: Timestamp) -> Self {
        let shown = ImportJob {
            job: id.clone(),
            state: ImportState::Receiving,
            since,
            spoke_id: None,
            bundle_id: None,
            label: None,
            files: 0,
            bytes: 0,
            verified_files: 0,
            verified_bytes: 0,
            settled_files: 0,
            committed: 0,
            already_present: 0,
            conflicts: 0,
            refused: 0,
            removed: 0,
            receipt: None,
            code: None,
            detail: None,
            status: None,
        };
        Self { id, shown: Mutex::new(shown), ended_by: OnceLock::new() }
    }

    pub fn shown(&self) -> ImportJob {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn update(&self, f: impl FnOnce(&mut ImportJob)) {
        f(&mut self.shown.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn is_of(&self, header: &Header) {
        self.update(|j| {
            j.spoke_id = Some(header.spoke_id.clone());
            j.bundle_id = Some(header.bundle_id);
            j.label.clone_from(&header.label);
            (j.files, j.bytes) = (header.entry_count, header.total_bytes);
        });
    }

    pub(super) fn failed(&self, refusal: &Refusal) {
        self.update(|j| {
            let is_cancelled = refusal.code == CANCELLED;
            j.state = if is_cancelled { ImportState::Cancelled } else { ImportState::Failed };
            j.code = Some(refusal.code.to_owned());
            j.detail = Some(refusal.detail.to_string());
            j.status = Some(refusal.kind.http_status());
        });
    }

    /// Ends it at the next file, or batch.
    pub fn cancel(&self) {
        let detail = "the import was cancelled; what was registered stands, and importing again \
                      completes it";
        self.end(Refusal::new(ErrorKind::Conflict, CANCELLED, detail));
    }

    /// Ends it at the next file, or batch, with these words, unless others came first.
    pub(super) fn end(&self, why: Refusal) {
        let _ = self.ended_by.set(why);
    }

    pub(super) fn require_going_on(&self) -> Result<(), Refusal> {
        self.ended_by.get().map_or(Ok(()), |why| Err(why.clone()))
    }
}

const CANCELLED: &str = "import_cancelled";
