//! What a hub counts, for Prometheus: counters as things happen, gauges when somebody asks.
//!
//! Source of the form: Prometheus text format 0.0.4. No label carries a name from outside, so the
//! number of series is bounded.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::Method;
use barque_bundle::{Outcome, platform};
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder,
};

/// Upper bounds of the request histogram, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0];

/// The counters of a hub node.
pub struct Metrics {
    registry: Registry,
    outcomes: IntCounterVec,
    received_bytes: IntCounter,
    requests: HistogramVec,
    gauges: Gauges,
    /// One reading at a time.
    turn: Mutex<()>,
}

/// What is set when somebody asks.
struct Gauges {
    build: IntGaugeVec,
    spokes: IntGaugeVec,
    free_bytes: IntGaugeVec,
    wal_bytes: IntGaugeVec,
    single: Vec<(&'static str, IntGauge)>,
    by_node: Vec<(&'static str, IntGaugeVec)>,
    totals: Vec<(&'static str, IntCounter)>,
    syncs: IntCounterVec,
}

/// Gauges without labels, and what they say.
const SINGLE: [(&str, &str); 24] = [
    ("barque_ready", "1 when spokes may call."),
    ("barque_files", "Files in the manifest."),
    ("barque_landed_bytes", "Bytes of the files in the manifest."),
    ("barque_undescribed_files", "Landed files whose footers were not looked at yet."),
    ("barque_staged_files", "Whole files in staging that are not visible yet."),
    ("barque_staged_bytes", "Bytes of those files."),
    ("barque_announced_bytes", "Bytes that streams under way have announced and not brought."),
    ("barque_open_streams", "Bundle streams that are being read."),
    ("barque_position", "The manifest's position on this node."),
    ("barque_promoted_position", "Up to which position this node's copies are visible."),
    ("barque_changes_horizon", "Changes up to this position are not kept any more."),
    ("barque_raft_term", "The Raft term."),
    ("barque_raft_is_leader", "1 on the node that leads."),
    ("barque_raft_has_leader", "1 while a leader is known."),
    ("barque_raft_last_log_index", "The last entry of the Raft log."),
    ("barque_raft_applied_index", "The last applied entry of the Raft log."),
    ("barque_raft_is_stalled", "1 while a full disk holds this node up."),
    ("barque_nodes", "Nodes of the hub that were not removed."),
    ("barque_nodes_alive", "Of those, the ones that this node hears."),
    ("barque_node_takes_part", "0 on a node that was removed, or is of another life of the hub."),
    ("barque_node_lag_entries", "On the leader: log entries that the slowest node lacks."),
    ("barque_files_held", "Files of which this node holds a copy."),
    ("barque_state_age_seconds", "How long ago this node was up to date for sure."),
    ("barque_start_time_seconds", "When the hub started, in seconds since 1970."),
];

/// Gauges of each node of the hub, by its id, as this node sees it.
const BY_NODE: [(&str, &str); 8] = [
    ("barque_cluster_node_up", "1 for this node and each that it hears."),
    ("barque_cluster_node_is_voter", "1 for a node that votes."),
    ("barque_cluster_node_is_leader", "1 for the node that leads."),
    ("barque_cluster_node_last_contact_seconds", "How long ago the node was heard; not of itself."),
    ("barque_cluster_node_has_error", "1 while the last call to the node failed."),
    ("barque_cluster_node_position", "The position that the node said last."),
    ("barque_cluster_node_lag_entries", "Log entries that the node lacks; the leader knows."),
    ("barque_cluster_node_files_held", "Files of which the node holds a copy."),
];

/// Counters that are kept elsewhere.
const TOTALS: [(&str, &str); 2] = [
    ("barque_proposals_total", "Proposals of batches to Raft."),
    ("barque_operations_total", "Operations in those batches."),
];

/// What a node knows when it is asked for its metrics; names as in [`SINGLE`] without `barque_`.
pub struct Reading {
    pub single: Vec<(&'static str, u64)>,
    pub proposals: u64,
    pub operations: u64,
    /// Names as in [`BY_NODE`], with the node's id; what is not known is left out.
    pub by_node: Vec<(&'static str, String, u64)>,
    /// Spokes by state.
    pub spokes: Vec<(String, u64)>,
    /// Free bytes by folder.
    pub free_bytes: Vec<(&'static str, u64)>,
    /// Bytes of write-ahead logs by database.
    pub wal_bytes: Vec<(&'static str, u64)>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::new();
        let outcomes = counters(&registry, "barque_outcomes_total", "Files by outcome.", "outcome");
        for outcome in Outcome::ALL {
            outcomes.with_label_values(&[outcome.as_str()]);
        }
        let received_bytes =
            counter(&registry, "barque_received_bytes_total", "Bytes of files that came whole.");
        let requests = HistogramVec::new(
            HistogramOpts::new(
                "barque_request_duration_seconds",
                "Time from a request to the head of its answer.",
            )
            .buckets(BUCKETS.to_vec()),
            &["method", "route", "status"],
        )
        .expect("the names above are valid");
        register(&registry, &requests);
        let gauges = Gauges::new(&registry);
        Self { outcomes, received_bytes, requests, gauges, registry, turn: Mutex::default() }
    }
}

fn register<C: prometheus::core::Collector + Clone + 'static>(registry: &Registry, metric: &C) {
    registry.register(Box::new(metric.clone())).expect("each name stands here once");
}

fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    let counter = IntCounter::new(name, help).expect("the names above are valid");
    register(registry, &counter);
    counter
}

fn counters(registry: &Registry, name: &str, help: &str, label: &str) -> IntCounterVec {
    let counters =
        IntCounterVec::new(Opts::new(name, help), &[label]).expect("the names above are valid");
    register(registry, &counters);
    counters
}

impl Gauges {
    fn new(registry: &Registry) -> Self {
        let by = |name: &str, help: &str, label: &str| {
            let gauge =
                IntGaugeVec::new(Opts::new(name, help), &[label]).expect("the names are valid");
            register(registry, &gauge);
            gauge
        };
        let single = SINGLE.map(|(name, help)| {
            let gauge = IntGauge::new(name, help).expect("the names are valid");
            register(registry, &gauge);
            (name, gauge)
        });
        let totals = TOTALS.map(|(name, help)| (name, counter(registry, name, help)));
        Self {
            build: by("barque_build_info", "1, with the version as label.", "version"),
            spokes: by("barque_spokes", "Spokes by state.", "state"),
            free_bytes: by("barque_free_bytes", "Free bytes of a file system.", "folder"),
            wal_bytes: by("barque_wal_bytes", "Bytes of a write-ahead log.", "database"),
            single: single.into(),
            by_node: BY_NODE.map(|(name, help)| (name, by(name, help, "node"))).into(),
            totals: totals.into(),
            syncs: counters(
                registry,
                "barque_syncs_total",
                "Syncs of files and folders.",
                "result",
            ),
        }
    }
}

impl Metrics {
    /// A file got its outcome.
    pub fn settled(&self, outcome: Outcome) {
        self.outcomes.with_label_values(&[outcome.as_str()]).inc();
    }

    /// A file came whole.
    pub fn received(&self, bytes: u64) {
        self.received_bytes.inc_by(bytes);
    }

    /// A request was answered; `route` is the pattern, not the path.
    pub fn answered(&self, method: &Method, route: &str, status: u16, took: Duration) {
        // A made-up method is no reason for a new series.
        let method = match method.as_str() {
            word @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE") => word,
            _ => "other",
        };
        let labels = [method, route, &status.to_string()];
        self.requests.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// Everything in Prometheus' text format.
    pub fn text(&self, reading: &Reading) -> Result<String, prometheus::Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(reading);
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn set(&self, reading: &Reading) {
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let g = &self.gauges;
        g.build.with_label_values(&[crate::VERSION]).set(1);
        for (name, value) in &reading.single {
            if let Some((_, gauge)) = g.single.iter().find(|(n, _)| n == name) {
                gauge.set(signed(*value));
            }
        }
        for (total, value) in g.totals.iter().zip([reading.proposals, reading.operations]) {
            raise(&total.1, value);
        }
        // A node that was removed is not there any more.
        g.by_node.iter().for_each(|(_, gauge)| gauge.reset());
        for (name, node, value) in &reading.by_node {
            if let Some((_, gauge)) = g.by_node.iter().find(|(n, _)| n == name) {
                gauge.with_label_values(&[node]).set(signed(*value));
            }
        }
        g.spokes.reset();
        for (state, n) in &reading.spokes {
            g.spokes.with_label_values(&[state]).set(signed(*n));
        }
        for (folder, n) in &reading.free_bytes {
            g.free_bytes.with_label_values(&[*folder]).set(signed(*n));
        }
        for (database, n) in &reading.wal_bytes {
            g.wal_bytes.with_label_values(&[*database]).set(signed(*n));
        }
        let syncs = platform::syncs();
        for (result, n) in [("done", syncs.done), ("failed", syncs.failed)] {
            raise(&g.syncs.with_label_values(&[result]), n);
        }
    }
}

/// Brings a counter up to a count that is kept elsewhere.
fn raise(counter: &IntCounter, to: u64) {
    counter.inc_by(to.saturating_sub(counter.get()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_says_what_it_is_and_counts_what_happened() {
        let metrics = Metrics::default();
        metrics.settled(Outcome::Registered);
        metrics.received(42);
        let took = Duration::from_millis(3);
        metrics.answered(&Method::GET, "/api/v1/files", 200, took);
        metrics.answered(&Method::from_bytes(b"BREW").unwrap(), "none", 404, took);
        let reading = Reading {
            single: SINGLE.iter().map(|(name, _)| (*name, 7)).collect(),
            by_node: BY_NODE.map(|(name, _)| (name, "00000000000000a1".to_owned(), 8)).into(),
            proposals: 3,
            operations: 9,
            spokes: vec![("active".into(), 2)],
            free_bytes: vec![("data", 5)],
            wal_bytes: vec![("manifest", 6)],
        };
        metrics.text(&reading).unwrap();
        let text = metrics.text(&reading).unwrap();
        for line in [
            "barque_outcomes_total{outcome=\"registered\"} 1",
            "barque_outcomes_total{outcome=\"conflict\"} 0",
            "barque_received_bytes_total 42",
            "barque_proposals_total 3",
            "barque_operations_total 9",
            "barque_raft_term 7",
            "barque_spokes{state=\"active\"} 2",
            "barque_cluster_node_position{node=\"00000000000000a1\"} 8",
            "barque_request_duration_seconds_count{method=\"other\",route=\"none\",status=\"404\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        }
        for (name, _) in SINGLE.iter().chain(&BY_NODE) {
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        }
    }
}
