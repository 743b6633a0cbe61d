//! All parts of a hub node in one place; start and stop read from top to bottom.

use std::fs::File;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use barque_bundle::digest::hex;
use barque_bundle::{ErrorKind, HubEpoch, Timestamp, platform};
use barque_raft::{Node, ProposeError};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;

use crate::client::NodeClient;
use crate::cluster::token::ClusterToken;
use crate::cluster::wire::{Nobody, Wire};
use crate::cluster::{self, Cluster, RaftTransport};
use crate::command::{Command, Init, NodeState};
use crate::config::{DataFolder, HubConfig};
use crate::describe;
use crate::error::{Error, Refusal};
use crate::gate::Gate;
use crate::http::{self, Front};
use crate::identity::Identity;
use crate::import::{self, Claims, Imports};
use crate::landing::Landing;
use crate::ledger::Ledger;
use crate::manifest::{Readers, query};
use crate::metrics::Metrics;
use crate::promote::Promoter;
use crate::propose::Proposer;
use crate::staging::Staging;
use crate::stores::Stores;
use crate::sweep;
use crate::tls;
use crate::upload::Uploads;

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Enrollments answered at once.
const ENROLLMENTS_MAX: usize = 32;
const PREPARE_AGAIN: Duration = Duration::from_millis(200);
/// How long one try to reach the hub's state takes.
const CATCH_UP_WAIT: Duration = Duration::from_secs(5);
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
    pub claims: Claims,
    pub landing: Landing,
    pub node: Arc<Node>,
    pub cluster: Arc<Cluster>,
    pub proposer: Proposer,
    pub clock: Clock,
    /// Where work is done that another runtime asks for.
    pub work: Handle,
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
    /// The address that other nodes call; none without a listener for them.
    pub address: OnceLock<Option<String>>,
}

impl Parts {
    /// The life of the manifest; known once the hub is ready.
    pub fn epoch(&self) -> HubEpoch {
        *self.cluster.epoch.get().expect("calls that need the epoch wait until the hub is ready")
    }

    /// What clients call this hub by: this node first, then the others that take part.
    pub fn urls(&self) -> Vec<String> {
        let nodes = self.cluster.nodes();
        let others = nodes.values().filter(|n| n.state == NodeState::Active);
        let mut urls: Vec<String> = self.url.get().cloned().into_iter().collect();
        urls.extend(others.filter_map(|n| n.url.clone()));
        let mut seen = std::collections::BTreeSet::new();
        urls.retain(|url| seen.insert(url.clone()));
        urls
    }

    /// Refuses while the hub catches up with its own log.
    pub fn require_ready(&self) -> Result<(), Refusal> {
        self.cluster.require_inside()?;
        if *self.ready.borrow() && self.cluster.epoch.get().is_some() {
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

/// The ways into a hub within its process.
pub struct Fronts {
    pub public: Front,
    pub operator: Front,
    pub nodes: Front,
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
    ///
    /// Called on the runtime that the hub is to work on.
    pub fn open(config: HubConfig, clock: Clock) -> Result<Self, Error> {
        let identity = Identity::load(&config.data)?;
        let wire: Arc<dyn Wire> = match config.cluster_listen {
            None => Arc::new(Nobody),
            Some(_) => {
                let (root, node) = (&identity.root, &identity.node);
                let own = cluster::tls::Credentials::issue(root, node, identity.node_id)?;
                Arc::new(NodeClient::new(&root.public(), &own, config.cluster_plain)?)
            }
        };
        Self::open_with(config, identity, clock, wire)
    }

    /// [`Hub::open`], with a wire to other nodes of the caller's choice.
    pub fn open_with(
        config: HubConfig,
        identity: Identity,
        clock: Clock,
        wire: Arc<dyn Wire>,
    ) -> Result<Self, Error> {
        let stores = Stores::open(&config, &identity, &clock)?;
        let Stores { lock, log, manifest, ledger, landing, staging, uploads } = stores;
        let instance = cluster::instance::Instance::new(log.next_start()?);
        let (readers, position) = (manifest.readers(), manifest.watch());
        let imports = Imports::new(ledger.next_start()?, config.import_dirs.clone());
        let cluster = Arc::new(Cluster::new(
            (identity.hub_id, identity.node_id, instance),
            cluster_token(&config, &identity)?,
            manifest.watch_nodes(),
            cluster::join::known(&config.data),
            wire,
        ));
        // Known before others are heard: a node of another life is told so at its first word.
        if let Some((_, epoch)) = readers.read(query::hub)? {
            let _ = cluster.epoch.set(epoch);
        }
        let transport = RaftTransport(Arc::clone(&cluster));
        let node =
            Arc::new(Node::start(log, manifest, transport, config.data.clone(), config.raft)?);
        let (way, clocked) = (Arc::clone(&cluster), Arc::clone(&clock));
        let proposer = Proposer::start(Arc::clone(&node), way, clocked, &config.data);
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
            claims: Claims::default(),
            landing,
            node,
            cluster,
            proposer,
            clock,
            work: Handle::current(),
            position,
            promoted: promoted.subscribe(),
            ready: ready.subscribe(),
            started_at,
            metrics: Metrics::default(),
            url: OnceLock::new(),
            address: OnceLock::new(),
        });
        import::clean_up(&parts)?;
        let orphans = sweep::remove_orphans(&parts)?;
        if orphans > 0 {
            tracing::info!(orphans, "removed unfinished files from staging");
        }
        Ok(Self { parts, tasks: Tasks { ready, promoted }, _lock: lock })
    }

    /// The ways into this hub within its process: for spokes and readers, for its operator, and for
    /// other nodes.
    pub fn fronts(&self) -> Fronts {
        let parts = &self.parts;
        Fronts {
            public: Front::public(parts),
            operator: Front::operator(parts),
            nodes: Front::nodes(parts),
        }
    }

    /// What requests and background tasks of this hub work with.
    pub fn parts(&self) -> Arc<Parts> {
        Arc::clone(&self.parts)
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
    let in_cluster = tokio::spawn(cluster::tasks::run(Arc::clone(&parts)));
    let _ended_with_this = AbortOnDrop(in_cluster.abort_handle());
    let stopped = why_stopped(&parts);
    tokio::select! {
        prepared = prepare(&parts, entropy) => prepared?,
        e = stopped => return Err(e),
    }
    let promoter = Arc::new(Promoter {
        node_id: parts.identity.node_id,
        readers: parts.readers.clone(),
        ledger: parts.ledger.clone(),
        staging: Arc::clone(&parts.staging),
        landing: parts.landing.clone(),
        clock: Arc::clone(&parts.clock),
        turn: std::sync::Mutex::default(),
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
            describe::run(Arc::clone(&parts)),
            Claims::watch(Arc::clone(&parts))
        );
    };
    tokio::select! {
        () = promoting => Err(why_ended(&parts, "promotion").await),
        () = catching_up => Err(why_ended(&parts, "the sweep").await),
        e = why_stopped(&parts) => {
            tasks.ready.send_replace(false);
            Err(e)
        }
    }
}

/// Ends a task together with whatever holds this.
pub(crate) struct AbortOnDrop(pub AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn why_stopped(parts: &Parts) -> Error {
    let why = parts.node.stopped().await;
    Error::Unusable(format!(
        "the Raft node has stopped ({why}); what was acknowledged is safe. \
         Mend the cause (a full disk?) and start the hub again"
    ))
}

/// Why a part that never ends has: mostly since Raft has, which says so a moment later.
async fn why_ended(parts: &Parts, part: &str) -> Error {
    let stopped = tokio::time::timeout(STOP_WAIT, why_stopped(parts)).await;
    stopped.unwrap_or_else(|_| {
        Error::Unusable(format!("{part} ended, the log says why; start the hub again"))
    })
}

/// Gets this node to where the hub is: it knows its epoch, and holds no claim of before.
async fn prepare(parts: &Parts, entropy: [u8; 10]) -> Result<(), Error> {
    catch_up(parts).await?;
    let epoch = manifest_epoch(parts, entropy).await?;
    let _ = parts.cluster.epoch.set(epoch);
    // A node whose leader went away in between waits for the next one.
    loop {
        match import::drop_claims(parts).await {
            Err(Error::Refused(refusal))
                if matches!(
                    refusal.kind,
                    ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Full
                ) =>
            {
                tracing::warn!(code = refusal.code, "not ready yet");
                tokio::time::sleep(PREPARE_AGAIN).await;
            }
            done => return done,
        }
    }
}

/// Waits until everything that was agreed is applied here; for ever, while no leader is heard.
async fn catch_up(parts: &Parts) -> Result<(), Error> {
    if !parts.identity.has_joined {
        let stopped = |e: ProposeError| Error::Unusable(e.to_string());
        parts.node.initialize("self").await.map_err(stopped)?;
    }
    let mut told = false;
    loop {
        match parts.cluster.barrier(&parts.node, CATCH_UP_WAIT).await {
            // A node that joins hears nothing before a leader knows it.
            Ok(()) if parts.identity.has_joined && parts.cluster.nodes().is_empty() => {}
            Ok(()) => return Ok(()),
            Err(refusal) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(code = refusal.code, "waiting for the hub's other nodes");
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The secret between nodes, if there can be any others.
fn cluster_token(config: &HubConfig, identity: &Identity) -> Result<Option<ClusterToken>, Error> {
    if config.cluster_listen.is_none() {
        return Ok(None);
    }
    let fresh = (!identity.has_joined).then(|| hex(&rand::random::<[u8; 32]>()));
    ClusterToken::open(DataFolder(&config.data).cluster_token(), fresh).map(Some)
}

async fn manifest_epoch(parts: &Parts, entropy: [u8; 10]) -> Result<HubEpoch, Error> {
    match parts.readers.read_async(query::hub).await? {
        Some((hub_id, epoch)) if hub_id == parts.identity.hub_id => Ok(epoch),
        Some((hub_id, _)) => Err(Error::Unusable(format!(
            "manifest.db is of hub {hub_id}, identity.json of {}; one of them was copied here",
            parts.identity.hub_id
        ))),
        None if parts.identity.has_joined => {
            Err(Error::Malformed("the manifest of a hub that was joined says no hub id".to_owned()))
        }
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
