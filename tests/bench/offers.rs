//! Many known entries offered to a hub again, page by page.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::wire::{ReconcileRequest, SpokeReport, WireEntry};
use barque_bundle::{PublicKey, SpokeId, Timestamp};
use barque_hub::command::BundleRef;
use barque_spoke::Edge;
use barque_spoke::hub_client::{HubClient, Party, Way};
use barque_spoke::pin::Times;

use crate::manifest;
use crate::page::{Page, tell};
use crate::process::{Hub, cpu_s, peak_mib};
use crate::race::{Cost, say};
use crate::stats::Sorted;

/// Entries in one request: as many as a spoke offers.
const PAGE: u64 = 2_000;
/// Requests that wait for their answers at once, as many as a spoke has.
const AT_ONCE: usize = 3;

/// What a client has to know of the hub.
struct Known {
    roots: Vec<PublicKey>,
    hub_id: barque_bundle::HubId,
    bundle: Arc<BundleRef>,
}

pub fn run(page: &mut Page, files: u64, rounds: usize) {
    tell!(page, "\n{files} known entries offered in pages of {PAGE}, {AT_ONCE} at once\n");
    let root = crate::process::folder();
    let data = root.path().join("data");
    let known = fill(&data, files);
    let hub = Hub::over(root.path(), data.display().to_string());
    let pid = hub.nodes[0].process.as_ref().unwrap().pid();
    let client = Arc::new(client(&known, &hub.nodes[0].listen));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (mut seconds, mut of_hub) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut busy = 0.0;
        let cost = Cost::of(|| {
            let before = cpu_s(pid);
            runtime.block_on(offer_all(&client, &known.bundle, files));
            busy = cpu_s(pid) - before;
        });
        say(&format!(
            "round {}: {:.2} s, the hub's processors {busy:.2} s",
            round + 1,
            cost.seconds
        ));
        seconds.push(cost.seconds);
        of_hub.push(busy);
    }
    let (seconds, of_hub) = (Sorted::of(seconds), Sorted::of(of_hub));
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let files = files as f64;
    tell!(
        page,
        "| s, median | entries/s | the hub's processors s | entries for each of them | hub MiB |"
    );
    tell!(page, "|---|---|---|---|---|");
    tell!(
        page,
        "| {:.2} ({:.2} to {:.2}) | {:.0} | {:.2} | {:.0} | {:.0} |",
        seconds.median(),
        seconds.min(),
        seconds.max(),
        files / seconds.median(),
        of_hub.median(),
        files / of_hub.median(),
        peak_mib(pid).unwrap()
    );
}

/// A manifest of so many files of a spoke.
fn fill(data: &Path, files: u64) -> Known {
    manifest::create(data);
    let node = manifest::start(data);
    let bundle = manifest::prepare(&node);
    manifest::register_all(&node, &bundle, 0..files);
    let identity = &node.parts.identity;
    let known = Known { roots: vec![identity.root.public()], hub_id: identity.hub_id, bundle };
    node.stop();
    known
}

fn client(known: &Known, listen: &str) -> HubClient {
    let party = Party {
        hub_id: known.hub_id,
        urls: vec![format!("https://{listen}")],
        spoke_id: spoke(),
        key: manifest::key(),
        roots: known.roots.clone(),
    };
    let clock = || Timestamp::from_system(std::time::SystemTime::now());
    let edge = Edge { clock: Arc::new(clock), random: Arc::new(rand::random) };
    let way = Way { pace: None, stall: Duration::from_secs(60) };
    HubClient::new(party, Arc::new(Times::new(0, None)), edge, way).unwrap()
}

fn spoke() -> SpokeId {
    manifest::SPOKE.parse().unwrap()
}

async fn offer_all(client: &Arc<HubClient>, bundle: &Arc<BundleRef>, files: u64) {
    let mut callers = Vec::new();
    for caller in (0..).take(AT_ONCE) {
        let (client, bundle) = (Arc::clone(client), Arc::clone(bundle));
        callers.push(tokio::spawn(async move {
            for page in (caller..files.div_ceil(PAGE)).step_by(AT_ONCE) {
                let numbers = page * PAGE..files.min((page + 1) * PAGE);
                let request = offer_of(&bundle, files, numbers.clone());
                let (answer, _) = client.reconcile(&request).await.unwrap();
                assert_eq!(answer.present.len() as u64, numbers.end - numbers.start);
            }
        }));
    }
    for caller in callers {
        caller.await.unwrap();
    }
}

fn offer_of(bundle: &BundleRef, files: u64, numbers: std::ops::Range<u64>) -> ReconcileRequest {
    let entry = |n| {
        let (path, sha256, seq) = manifest::file(n);
        let path = path.to_string();
        WireEntry { path, sha256, size_bytes: manifest::SIZE, seq, modified_at: any_time() }
    };
    ReconcileRequest {
        series: bundle.series,
        seq_head: files,
        as_of: None,
        voids: barque_bundle::Ranges::default(),
        replaces: None,
        in_transit: Vec::new(),
        status: SpokeReport::default(),
        seen_position: 0,
        entries: numbers.map(entry).collect(),
    }
}

/// Any time: an offer is judged by path and digest.
fn any_time() -> Timestamp {
    Timestamp::from_unix_ms(1_700_000_000_000)
}
