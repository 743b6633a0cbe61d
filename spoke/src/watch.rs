//! Pushes whenever something changes, and from time to time: `barque push --watch`.
//!
//! Changes are heard from the system; since it may miss some (too many folders for its limits, a
//! network share), the tree is looked through from time to time as well. A hub that has nothing to
//! hear is called once an hour.

use std::path::Path;
use std::time::{Duration, Instant};

use notify::event::{AccessKind, AccessMode, EventKind};
use notify::{Config, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use crate::budget::Stop;
use crate::config::{SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::fault;
use crate::push::{CheckIn, Events, Options, PushReport, push};

/// How long a hub that has nothing to hear hears nothing.
const CHECK_IN_EVERY: Duration = Duration::from_secs(3600);
/// The longest wait after passes that came to nothing.
const RETRY_MAX: Duration = Duration::from_secs(300);
const RETRY_BASE: Duration = Duration::from_secs(5);
/// The shortest wait for a check-in.
const DUE_MIN: Duration = Duration::from_secs(60);
/// The shortest wait for a file that was not still.
const SOON_MIN: Duration = Duration::from_millis(100);
/// Changes that keep coming are not waited out for longer.
const GATHER_MAX: Duration = Duration::from_secs(30);

/// What a daemon is told.
pub struct Watch<'a> {
    pub state: &'a StateFolder,
    pub edge: &'a Edge,
    /// Its `stop` ends the daemon; `check_in` is chosen here.
    pub options: Options,
    /// How often the whole tree is looked through though nothing was heard.
    pub rescan: Duration,
    pub events: Events<'a>,
    /// Hears how each pass ended.
    pub told: &'a (dyn Fn(&Result<PushReport, Error>) + Sync),
}

impl Watch<'_> {
    /// Pushes until it is told to stop. Settings that are wrong at the start are an error; later
    /// ones are told, and what they were goes on to be tried.
    pub async fn run(&self) -> Result<(), Error> {
        let config = SpokeConfig::load(self.state)?;
        let settle = config.settle_time().map_err(Error::Usage)?;
        let mut changes = Changes::listen(&config.source, self.state.path());
        let stop = self.options.stop.clone();
        let (mut last_call, mut failed, mut restless) = (None::<Instant>, 0u32, 0u32);
        loop {
            let is_due = last_call.is_none_or(|at| at.elapsed() >= CHECK_IN_EVERY);
            let check_in = if is_due { CheckIn::Always } else { CheckIn::IfNeeded };
            let options = Options { check_in, ..self.options.clone() };
            // Heard from here on, it may be missed by the scan.
            changes.forget();
            let passed = push(self.state, self.edge, &options, self.events).await;
            (self.told)(&passed);
            if stop.is_told() {
                return Ok(());
            }
            match &passed {
                Err(e @ (Error::NotEnrolled(_) | Error::Usage(_)))
                    if last_call.is_none() && failed == 0 =>
                {
                    return Err(Error::Usage(e.to_string()));
                }
                Ok(r) if r.of_all().any(|r| r.hub_reached) => last_call = Some(Instant::now()),
                _ => {}
            }
            let next = next(&passed, failed, self.edge.id_bytes()[0]);
            failed = if matches!(next, Next::Retry { .. }) { failed.saturating_add(1) } else { 0 };
            restless = if next == Next::Soon { restless.saturating_add(1) } else { 0 };
            // Also when a call is overdue that this pass could not make.
            let since = last_call.map_or(Duration::ZERO, |at| at.elapsed());
            let due = CHECK_IN_EVERY.saturating_sub(since).max(DUE_MIN);
            // A file that is never still is not looked at all the time.
            let soon = settle.max(SOON_MIN).saturating_mul(1 << restless.min(10)).min(GATHER_MAX);
            self.rest(next, due, (settle, soon), &mut changes, &stop).await;
        }
    }

    /// Waits for whatever comes first.
    async fn rest(
        &self,
        next: Next,
        due: Duration,
        (settle, soon): (Duration, Duration),
        changes: &mut Changes,
        stop: &Stop,
    ) {
        let quiet = settle.max(Duration::from_millis(100));
        let waiting = async {
            match next {
                Next::Retry { wait, is_open: true } => {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = changes.gathered(quiet) => {}
                    }
                }
                // What changes meanwhile waits too: the way is shut.
                Next::Retry { wait, is_open: false } => tokio::time::sleep(wait).await,
                Next::Soon => tokio::time::sleep(soon).await,
                Next::Later => tokio::time::sleep(self.rescan.min(due)).await,
                Next::Change => {
                    tokio::select! {
                        () = tokio::time::sleep(self.rescan.min(due)) => {}
                        () = changes.gathered(quiet) => {}
                    }
                }
            }
        };
        tokio::select! {
            () = waiting => {}
            () = stop.told() => {}
        }
    }
}

/// What follows a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It came to less than it should have; open when another hub was reached.
    Retry {
        wait: Duration,
        is_open: bool,
    },
    /// A limit is used up: what changes meanwhile waits.
    Later,
    /// Files did not lie still yet.
    Soon,
    Change,
}

fn next(passed: &Result<PushReport, Error>, failed: u32, random: u8) -> Next {
    let retry = |asked: Option<Duration>| {
        let doubled = RETRY_BASE.saturating_mul(1 << failed.min(10)).min(RETRY_MAX);
        let wait = doubled.max(asked.unwrap_or_default());
        // As many as start again together spread out.
        wait.mul_f64(1.0 + f64::from(random) / 512.0)
    };
    let Ok(report) = passed else {
        return Next::Retry { wait: retry(None), is_open: false };
    };
    let asked = report.of_all().filter_map(|r| r.error.as_ref()?.retry_after()).max();
    let is_short = |r: &PushReport| r.stopped_by.is_some() && !r.is_used_up;
    if report.of_all().any(|r| is_short(r) || r.is_refused) {
        let wait = retry(asked.map(|a| a.min(fault::ASKED_MAX * 30)));
        let is_open = report.of_all().any(|r| r.hub_reached && !is_short(r));
        return Next::Retry { wait, is_open };
    }
    if report.of_all().any(|r| r.is_used_up) {
        return Next::Later;
    }
    if report.of_all().any(|r| r.not_settled > 0) { Next::Soon } else { Next::Change }
}

/// What the system tells of changes below the source.
struct Changes {
    heard: mpsc::Receiver<()>,
    /// Kept alive; none when the system cannot tell.
    _watcher: Option<RecommendedWatcher>,
}

impl Changes {
    fn listen(source: &Path, state: &Path) -> Self {
        let (tell, heard) = mpsc::channel(1);
        // Without links, so that what the system tells of is recognized.
        let real = |p: &Path| std::fs::canonicalize(p).unwrap_or_else(|_| p.to_owned());
        let (own, source) = (real(state), real(source));
        let handler = move |event: notify::Result<notify::Event>| {
            if event.is_ok_and(|e| is_of_interest(&e, &own)) {
                // One that waits to be heard is enough.
                let _ = tell.try_send(());
            }
        };
        let config = Config::default().with_follow_symlinks(false);
        let watcher = RecommendedWatcher::new(handler, config)
            .and_then(|mut w| w.watch(&source, RecursiveMode::Recursive).map(|()| w));
        if let Err(e) = &watcher {
            tracing::warn!(
                source = %source.display(),
                error = %e,
                "the system does not tell of changes below the source; it is only looked through \
                 from time to time (more folders: sysctl fs.inotify.max_user_watches)"
            );
        }
        Self { heard, _watcher: watcher.ok() }
    }

    fn forget(&mut self) {
        while self.heard.try_recv().is_ok() {}
    }

    /// Ends once something has changed and then nothing for a while.
    async fn gathered(&mut self, quiet: Duration) {
        if self.heard.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        let end = Instant::now() + GATHER_MAX;
        while Instant::now() < end {
            match tokio::time::timeout(quiet, self.heard.recv()).await {
                Ok(Some(())) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// Whether an event may mean that there is a new file. Reading, as a scan does, is none.
fn is_of_interest(event: &notify::Event, own: &Path) -> bool {
    if event.need_rescan() {
        return true;
    }
    let is_change = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        EventKind::Remove(_) => false,
        _ => true,
    };
    is_change && event.paths.iter().any(|p| may_be_data(p, own))
}

/// A name that ends as data does, or a folder's.
fn may_be_data(path: &Path, own: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_data = name.ends_with(".parquet") || !name.contains('.') || path.is_dir();
    is_data && !path.starts_with(own)
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, ModifyKind, RemoveKind};

    use super::*;

    /// 200 machines that lost their hub at one moment, and the hub back after half an hour.
    #[test]
    fn those_who_wait_for_one_hub_come_back_spread_out() {
        let lost = || Err(Error::Usage("not reached".to_owned()));
        let mut random = 7u32;
        let mut byte = move || {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            random.to_be_bytes()[0]
        };
        let mut arrivals: Vec<u64> = Vec::new();
        for _ in 0..200 {
            let (mut at, mut failed) = (Duration::ZERO, 0);
            while at < Duration::from_secs(1_800) {
                let Next::Retry { wait, .. } = next(&lost(), failed, byte()) else { panic!() };
                at += wait;
                failed += 1;
            }
            arrivals.push(at.as_secs());
        }
        let (first, last) = (arrivals.iter().min().unwrap(), arrivals.iter().max().unwrap());
        let mut per_bucket = vec![0f64; usize::try_from((last - first) / 20 + 1).unwrap()];
        for at in &arrivals {
            per_bucket[usize::try_from((at - first) / 20).unwrap()] += 1.0;
        }
        let mean = 200.0 / per_bucket.len() as f64;
        let peak = per_bucket.iter().copied().fold(0.0, f64::max);
        assert!(last - first > 200, "{first} to {last}");
        assert!(peak / mean < 3.0, "{per_bucket:?}");
    }

    #[test]
    fn only_what_may_be_a_new_file_wakes_the_daemon() {
        let of = |kind: EventKind, path: &str| {
            let event = notify::Event::new(kind).add_path(path.into());
            is_of_interest(&event, Path::new("/src/state"))
        };
        let created = EventKind::Create(CreateKind::File);
        assert!(of(created, "/src/d/m/a.parquet"));
        assert!(of(EventKind::Create(CreateKind::Folder), "/src/d/m"));
        assert!(of(EventKind::Modify(ModifyKind::Any), "/src/d/m/a.parquet"));
        assert!(of(EventKind::Access(AccessKind::Close(AccessMode::Write)), "/src/a.parquet"));
        assert!(!of(EventKind::Access(AccessKind::Open(AccessMode::Read)), "/src/a.parquet"));
        assert!(!of(EventKind::Remove(RemoveKind::File), "/src/a.parquet"));
        assert!(!of(created, "/src/a.parquet.tmp"));
        assert!(!of(created, "/src/state/ledger.parquet"));
    }
}
