//! A push beside others on a thin link: two network namespaces with a shaped pair between them.

use std::io::Write as _;
use std::process::{Command, Stdio};

use libtest_mimic::Trial;

use crate::netns::{inside, lacks, must};
use crate::site::{Site, barque, bytes_below, ended, json, pass_of, sized};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![trial!(a_ping_beside_a_paced_push_stays_under_twice_idle, needs lacks_tools())]
}

fn lacks_tools() -> Option<String> {
    lacks(&["ip", "tc", "ping", "chrt"])
}

/// Two namespaces, gone with this value.
struct Link {
    spoke: String,
    hub: String,
}

impl Link {
    const HUB: &str = "10.201.7.1";

    /// What goes from the spoke to the hub is shaped.
    fn new(rate: &str) -> Self {
        let id = std::process::id();
        let link = Self { spoke: format!("bq-s-{id}"), hub: format!("bq-h-{id}") };
        let (s, h) = (link.spoke.as_str(), link.hub.as_str());
        must("ip", &["netns", "add", s]);
        must("ip", &["netns", "add", h]);
        must(
            "ip",
            &[
                "link", "add", "veth0", "netns", s, "type", "veth", "peer", "name", "veth0",
                "netns", h,
            ],
        );
        for (ns, address) in [(s, "10.201.7.2/24"), (h, "10.201.7.1/24")] {
            must("ip", &["-n", ns, "address", "add", address, "dev", "veth0"]);
            must("ip", &["-n", ns, "link", "set", "veth0", "up"]);
            must("ip", &["-n", ns, "link", "set", "lo", "up"]);
        }
        must(
            "tc",
            &[
                "-n", s, "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", rate, "burst",
                "16kb", "latency", "400ms",
            ],
        );
        link
    }

    fn inside(&self, namespace: &str, args: &[&str]) -> Command {
        inside(namespace, &barque(args))
    }

    /// The median of pings from the spoke's side, in ms.
    fn ping(&self) -> f64 {
        // Ahead of whatever else the machine does.
        let mut ping = Command::new("ip");
        ping.args(["netns", "exec", &self.spoke, "chrt", "--rr", "50", "ping", "-n", "-i", "0.05"]);
        ping.args(["-c", "100", Self::HUB]);
        let (code, out, err) = ended(ping.output().unwrap());
        assert_eq!(code, 0, "{out} {err}");
        let mut times: Vec<f64> = out
            .lines()
            .filter_map(|l| l.split("time=").nth(1)?.split(' ').next()?.parse().ok())
            .collect();
        assert!(times.len() >= 90, "{out}");
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for ns in [&self.spoke, &self.hub] {
            let _ = Command::new("ip").args(["netns", "delete", ns]).output();
        }
    }
}

fn a_ping_beside_a_paced_push_stays_under_twice_idle() {
    let site = Site::new();
    let link = Link::new("8mbit");
    let listen = format!("{}:7171", Link::HUB);
    let hub = site.start(
        link.inside(&link.hub, &["hub", "serve", "--data", &site.data(), "--listen", &listen]),
    );
    let spoke = site.unenrolled("s");
    let added = json(&["hub", "spoke", "add", "s", "--data", &site.data(), "--json"]);
    let (token, source) = (added["token"].as_str().unwrap(), spoke.source().display().to_string());
    let state = spoke.state();
    let enroll = ["enroll", token, "--state", &state, "--source", &source];
    assert!(link.inside(&link.spoke, &enroll).output().unwrap().status.success());
    spoke.put("d/m/2024/03/31/02/f.parquet", &sized(1, 30_000_000));
    let idle = link.ping();
    // Four fifths of the link.
    let args =
        ["push", "--json", "--state", &state, "--max-duration", "15s", "--bandwidth", "6400kbit/s"];
    let mut push = link.inside(&link.spoke, &args);
    let mut push = push.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let staging = site.path().join("hub/staging");
    let staged = || bytes_below(&staging);
    let is_under_way = |from: u64| {
        crate::site::wait_for("the push is under way", || staged() > from + 500_000);
    };
    is_under_way(0);
    let beside = link.ping();
    assert!(push.try_wait().unwrap().is_none(), "the push ended before the pings did");
    let pass = pass_of(push.wait_with_output().unwrap());
    let mut free =
        link.inside(&link.spoke, &["push", "--json", "--state", &state, "--max-duration", "12s"]);
    let before = staged();
    let mut free = free.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    is_under_way(before);
    let unpaced = link.ping();
    let _ = free.wait();
    let line = format!(
        "median ping: idle {idle} ms, beside a paced push {beside} ms, unpaced {unpaced} ms"
    );
    let _ = writeln!(std::io::stdout(), "{line}");
    assert_eq!((pass.code, &pass.report["stopped_by"]), (0, &"max_duration".into()), "{pass:?}");
    assert!(pass.count("wire_bytes") > 8_000_000, "{pass:?}");
    assert!(beside < 2.0 * idle, "{line}");
    // What a push without a pace does to a neighbour: so the link is really the narrow place.
    assert!(unpaced > 10.0 * idle, "{line}");
    drop(hub);
}
