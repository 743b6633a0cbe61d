//! All parts of a hub node in one place; start and stop read from top to bottom.

use std::fs::File;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use barque_bundle::{ErrorKind, HubEpoch, Timestamp, platform};
use barque_raft::{Alone, LogStore, Node, ProposeError};
use tokio::sync::{Notify, Semaphore, watch};

use crate::command::{Command, Init};
use crate::config::{DataFolder, HubConfig};
use crate::describe;
use crate::error::{Error, Refusal};
use crate::gate::Gate;
use crate::http;
use crate::identity::Identity;
use crate::import::{self, Imports};
use crate::landing::Landing;
use crate::ledger::Ledger;
use crate::manifest::{Manifest, Readers, query};
use crate::metrics::Metrics;
use crate::promote::Promoter;
use crate::propose::Proposer;
use crate::staging::Staging;
use crate::sweep;
use crate::tls;
use crate::upload::Uploads;

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Enrollments answered at once.
const ENROLLMENTS_MAX: usize = 32;
/// How long a stopping hub lets requests end.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// What requests and background tasks work with.
pub struct Parts {
    pub config: HubConfig,
    pub identity: Identity,
    pub readers: Readers,
    pub ledger: Ledger,
    pub staging: Arc<Staging>,
    pub uploads: Arc<Uploads>,
    pub imports: Imports,
    pub landing: Landing,
    pub node: Arc<Node>,
    pub proposer: Proposer,
    pub clock: Clock,
    /// The manifest's position on this node.
    pub position: watch::Receiver<u64>,
    /// Up to which position this node's copies are visible.
    pub promoted: watch::Receiver<u64>,
    pub ready: watch::Receiver<bool>,
    /// What is under way, in all and of each spoke.
    pub gate: Arc<Gate>,
    /// Requests answered at once.
    pub requests: Arc<Semaphore>,
    /// Enrollments, which anybody may call, answered at once.
    pub enrollments: Arc<Semaphore>,
    /// Told to look at the TLS files again.
    pub reload: Arc<Notify>,
    pub started_at: Timestamp,
    pub metrics: Metrics,
    /// The address that tokens carry.
    pub url: OnceLock<String>,
    epoch: OnceLock<HubEpoch>,
}

impl Parts {
    /// The life of the manifest; known once the hub is ready.
    pub fn epoch(&self) -> HubEpoch {
        *self.epoch.get().expect("calls that need the epoch wait until the hub is ready")
    }

    /// Refuses while the hub catches up with its own log.
    pub fn require_ready(&self) -> Result<(), Refusal> {
        if *self.ready.borrow() && self.epoch.get().is_some() {
            return Ok(());
        }
        let refusal = Refusal::new(
            ErrorKind::Unavailable,
            "starting",
            "the hub is starting and not ready yet; try again",
        );
        Err(Refusal { retry_after_ms: Some(1000), ..refusal })
    }
}

/// A hub node that is about to run.
pub struct Hub {
    parts: Arc<Parts>,
    tasks: Tasks,
    _lock: File,
}

/// The sending halves that the background tasks get.
struct Tasks {
    ready: watch::Sender<bool>,
    promoted: watch::Sender<u64>,
}

impl Hub {
    /// Opens everything in the data folder; refuses what would break an invariant, naming it.
    pub fn open(config: HubConfig, clock: Clock) -> Result<Self, Error> {
        let folder = DataFolder(&config.data);
        let identity = Identity::load(&config.data)?;
        let lock =
            File::open(folder.identity()).map_err(Error::io("cannot open", folder.identity()))?;
        if !platform::try_lock(&lock).map_err(Error::io("cannot lock", folder.identity()))? {
            return Err(Error::Unusable(format!(
                "another hub runs on {}; stop it first",
                config.data.display()
            )));
        }
        let log = LogStore::open(&folder.raft_db())?;
        if log.node_id() != identity.node_id {
            return Err(Error::Unusable(format!(
                "{} is the log of another node than identity.json; one of them was copied here",
                folder.raft_db().display()
            )));
        }
        let manifest = Manifest::open(&folder.manifest_db())?;
        let (readers, position) = (manifest.readers(), manifest.watch());
        let ledger = Ledger::open(&folder.node_db())?;
        let staging_folder = config.staging();
        let landing = Landing::open(&config.landing(), &staging_folder)?;
        let staging = Arc::new(Staging::open(&staging_folder, ledger.clone())?);
        let kept_bytes_max = config.kept_bytes_per_spoke;
        let uploads =
            Uploads::new(&staging_folder, ledger.clone(), Arc::clone(&clock), kept_bytes_max);
        uploads.clean_up()?;
        let imports = Imports::new(ledger.next_start()?, config.import_dirs.clone());
        let node = Arc::new(Node::start(log, manifest, Alone, config.data.clone())?);
        let proposer = Proposer::start(Arc::clone(&node), Arc::clone(&clock), &config.data);
        let promoted = watch::Sender::new(ledger.promotion_cursor()?);
        let ready = watch::Sender::new(false);
        let started_at = clock();
        let parts = Arc::new(Parts {
            gate: Arc::new(Gate::new(config.limits)),
            requests: Arc::new(Semaphore::new(config.requests_max)),
            enrollments: Arc::new(Semaphore::new(ENROLLMENTS_MAX)),
            reload: Arc::default(),
            config,
            identity,
            readers,
            ledger,
            staging,
            uploads: Arc::new(uploads),
            imports,
            landing,
            node,
            proposer,
            clock,
            position,
            promoted: promoted.subscribe(),
            ready: ready.subscribe(),
            started_at,
            metrics: Metrics::default(),
            url: OnceLock::new(),
            epoch: OnceLock::new(),
        });
        import::clean_up(&parts)?;
        let orphans = sweep::remove_orphans(&parts)?;
        if orphans > 0 {
            tracing::info!(orphans, "removed unfinished files from staging");
        }
        Ok(Self { parts, tasks: Tasks { ready, promoted }, _lock: lock })
    }

    /// Tells when spokes are let in.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.parts.ready.clone()
    }

    /// Makes the hub look at its TLS files again when it is notified.
    pub fn reload(&self) -> Arc<Notify> {
        Arc::clone(&self.parts.reload)
    }

    /// Serves until `stop` ends, then lets requests finish for a few seconds.
    pub async fn run(
        self,
        entropy: impl Fn() -> [u8; 10],
        stop: impl Future<Output = ()>,
    ) -> Result<(), Error> {
        let Self { parts, tasks, _lock } = self;
        let listeners = http::Listeners::bind(&parts)?;
        let mut work = tokio::spawn(work(Arc::clone(&parts), tasks, entropy()));
        let mut fault = None;
        let until = async {
            tokio::select! {
                () = stop => {}
                ended = &mut work => {
                    let lost = |e| Err(Error::Unusable(format!("a background task ended: {e}")));
                    fault = ended.unwrap_or_else(lost).err();
                }
            }
        };
        let served = listeners.serve(Arc::clone(&parts), until, STOP_WAIT).await;
        work.abort();
        tracing::info!("the hub has stopped");
        fault.map_or(served, Err)
    }
}

/// What runs beside the requests; ends only with a fault that no restart of a part would mend.
async fn work(parts: Arc<Parts>, tasks: Tasks, entropy: [u8; 10]) -> Result<(), Error> {
    become_leader_and_apply(&parts).await?;
    let epoch = manifest_epoch(&parts, entropy).await?;
    let _ = parts.epoch.set(epoch);
    import::drop_claims(&parts).await?;
    let promoter = Arc::new(Promoter {
        node_id: parts.identity.node_id,
        readers: parts.readers.clone(),
        ledger: parts.ledger.clone(),
        staging: Arc::clone(&parts.staging),
        landing: parts.landing.clone(),
        clock: Arc::clone(&parts.clock),
    });
    sweep::once(&parts, &promoter, parts.staging.closed_number()).await;
    let promoting = Arc::clone(&promoter).run(parts.position.clone(), tasks.promoted);
    let catching_up = async {
        let head = *parts.position.borrow();
        let mut promoted = parts.promoted.clone();
        let _ = promoted.wait_for(|p| *p >= head).await;
        tasks.ready.send_replace(true);
        tracing::info!(hub = %parts.identity.hub_id, position = head, "the hub is ready");
        tokio::join!(
            sweep::run(Arc::clone(&parts), Arc::clone(&promoter)),
            describe::run(Arc::clone(&parts))
        );
    };
    tokio::select! {
        () = promoting => Err(Error::Unusable("promotion ended".to_owned())),
        () = catching_up => Err(Error::Unusable("the sweep ended".to_owned())),
        why = parts.node.stopped() => {
            tasks.ready.send_replace(false);
            Err(Error::Unusable(format!(
                "the Raft node has stopped ({why}); what was acknowledged is safe. \
                 Mend the cause (a full disk?) and start the hub again"
            )))
        }
    }
}

/// Waits until everything in the log is applied here.
async fn become_leader_and_apply(parts: &Parts) -> Result<(), Error> {
    let stopped = |e: ProposeError| Error::Unusable(e.to_string());
    parts.node.initialize("self").await.map_err(stopped)?;
    loop {
        match parts.node.read_barrier().await {
            Ok(()) => return Ok(()),
            Err(ProposeError::NotLeader { .. }) => {
                parts.node.wait_for_leader(Duration::from_secs(5)).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(e) => return Err(stopped(e)),
        }
    }
}

async fn manifest_epoch(parts: &Parts, entropy: [u8; 10]) -> Result<HubEpoch, Error> {
    match parts.readers.read_async(query::hub).await? {
        Some((hub_id, epoch)) if hub_id == parts.identity.hub_id => Ok(epoch),
        Some((hub_id, _)) => Err(Error::Unusable(format!(
            "manifest.db is of hub {hub_id}, identity.json of {}; one of them was copied here",
            parts.identity.hub_id
        ))),
        None => init_manifest(parts, entropy).await,
    }
}

async fn init_manifest(parts: &Parts, entropy: [u8; 10]) -> Result<HubEpoch, Error> {
    let init = Init {
        hub_id: parts.identity.hub_id,
        hub_epoch: HubEpoch::new((parts.clock)(), entropy),
        node_id: parts.identity.node_id,
        node_key: parts.identity.node.public(),
    };
    parts.proposer.command(Command::Init(init)).await?;
    let hub = parts.readers.read_async(query::hub).await?;
    hub.map(|(_, epoch)| epoch)
        .ok_or_else(|| Error::Malformed("the manifest has no hub id after Init".to_owned()))
}

/// The address that tokens carry: as given, or the one served with a wildcard made the host name.
pub fn public_url(config: &HubConfig, given: Option<&str>, port: u16) -> String {
    if let Some(url) = given {
        return url.trim_end_matches('/').to_owned();
    }
    let scheme = if config.plain { "http" } else { "https" };
    let host = config.listen.rsplit_once(':').map_or(config.listen.as_str(), |(host, _)| host);
    let host = match host {
        "0.0.0.0" | "[::]" | "" => platform::host_name(),
        other => other.to_owned(),
    };
    format!("{scheme}://{host}:{port}")
}

/// The server names and TLS configuration of a hub, renewed when due.
pub fn tls_config(parts: &Parts) -> Result<Arc<rustls::ServerConfig>, Error> {
    let names = tls::server_names(&platform::host_name(), parts.url.get().map(String::as_str));
    tls::server_config(&DataFolder(&parts.config.data).tls(), &names, (parts.clock)())
}
