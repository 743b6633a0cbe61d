//! A hub of several nodes, as real processes: started, killed, stopped and asked one by one.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use crate::netns::{Bridged, inside};
use crate::site::{HubProcess, Site, Spoke, barque, ended, json, own_address, run, wait_for};

/// A hub whose nodes are all up and know each other.
pub struct Hub {
    pub nodes: Vec<Node>,
    more: Vec<String>,
    /// Network namespaces, one for each node, if they have any.
    places: Vec<String>,
}

/// One node: its folders, its addresses, and its process while it runs.
pub struct Node {
    pub site: Site,
    pub listen: String,
    pub cluster: String,
    /// What other nodes call it by, if that is not where it listens.
    pub advertised: Option<String>,
    process: Option<HubProcess>,
}

impl Hub {
    pub fn new(nodes: usize) -> Self {
        Self::with(nodes, &[])
    }

    /// A hub whose nodes are served with further arguments.
    pub fn with(nodes: usize, more: &[&str]) -> Self {
        let more = more.iter().map(|m| (*m).to_owned()).collect();
        let mut hub = Self { nodes: vec![Node::of(Site::new())], more, places: Vec::new() };
        hub.start(0);
        for _ in 1..nodes {
            let n = hub.join(&[]);
            hub.start(n);
        }
        hub.wait_until_whole(nodes);
        hub
    }

    /// A hub each of whose nodes lives in a network namespace of its own.
    pub fn in_places(net: &Bridged) -> Self {
        let listens: Vec<String> =
            (0..net.places.len()).map(|n| format!("{}:7272", Bridged::address(n))).collect();
        let clusters: Vec<_> = listens.iter().map(|l| (l.as_str(), None)).collect();
        Self::in_places_at(net, &clusters)
    }

    /// The same, with where each node listens for others and what they call it by.
    pub fn in_places_at(net: &Bridged, clusters: &[(&str, Option<&str>)]) -> Self {
        let first = Node::of(Site::new()).at(0, clusters[0]);
        let mut hub = Self { nodes: vec![first], more: Vec::new(), places: net.places.clone() };
        hub.start(0);
        for (n, place) in clusters.iter().enumerate().skip(1) {
            hub.join(&[]);
            let node = hub.nodes.pop().unwrap().at(n, *place);
            hub.nodes.push(node);
            hub.start(n);
        }
        hub.wait_until_whole(net.places.len());
        hub
    }

    /// A command of ours as it is run where a node is.
    pub fn where_is(&self, n: usize, command: Command) -> Command {
        match self.places.get(n) {
            Some(place) => inside(place, &command),
            None => command,
        }
    }

    /// Makes one more node, not started yet.
    pub fn join(&mut self, how: &[&str]) -> usize {
        self.join_at(Site::empty(), how)
    }

    pub fn join_at(&mut self, site: Site, how: &[&str]) -> usize {
        let by = self.some_up();
        let token = self.token(by, how);
        let n = self.nodes.len();
        let joining = barque(&["hub", "join", &token, "--data", &site.data(), "--json"]);
        let (code, _, err) = ended(self.where_is(n, joining).output().unwrap());
        assert_eq!(code, 0, "{err}");
        self.nodes.push(Node::of(site));
        n
    }

    pub fn token(&self, by: usize, how: &[&str]) -> String {
        let data = self.data(by);
        let added = json(&[&["hub", "node", "add", "--data", &data, "--json"], how].concat());
        added["token"].as_str().unwrap().to_owned()
    }

    fn some_up(&self) -> usize {
        self.nodes.iter().position(|n| n.process.is_some()).expect("a node runs")
    }

    pub fn data(&self, n: usize) -> String {
        self.nodes[n].site.data()
    }

    pub fn command(&self, n: usize) -> Command {
        let node = &self.nodes[n];
        let mut command = node.site.serve(&node.listen);
        command.args(["--cluster-listen", &node.cluster]).args(&self.more);
        if let Some(name) = &node.advertised {
            command.args(["--cluster-advertise", name]);
        }
        self.where_is(n, command)
    }

    /// Starts a node and waits until it answers; it need not be ready.
    pub fn start(&mut self, n: usize) {
        let command = self.command(n);
        self.start_as(n, command);
    }

    pub fn start_as(&mut self, n: usize, command: Command) {
        self.start_without_waiting(n, command);
        let data = self.data(n);
        wait_for("a node answers", || run(&["hub", "node", "ls", "--data", &data]).0 == 0);
    }

    pub fn start_without_waiting(&mut self, n: usize, command: Command) {
        let process = self.nodes[n].site.start_process(command);
        self.nodes[n].process = Some(process);
    }

    pub fn kill(&mut self, n: usize) {
        self.nodes[n].process.take().expect("the node runs").kill();
    }

    /// SIGTERM, waited for.
    pub fn stop(&mut self, n: usize) {
        assert_eq!(self.nodes[n].process.take().expect("the node runs").stop(), 0);
    }

    /// Waits for a node that ends by itself.
    pub fn reap(&mut self, n: usize) {
        assert!(self.nodes[n].process.take().expect("the node runs").ended_by_signal());
    }

    pub fn pid(&self, n: usize) -> u32 {
        self.nodes[n].process.as_ref().expect("the node runs").pid()
    }

    /// Whether a node was stopped, and not continued, by a signal.
    pub fn stands_still(&self, n: usize) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid(n))).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    pub fn signal(&self, n: usize, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid(n).to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// The nodes as one of them sees them, by their ids.
    pub fn seen_by(&self, n: usize) -> BTreeMap<String, Value> {
        let list = json(&["hub", "node", "ls", "--data", &self.data(n), "--json"]);
        let nodes = list["nodes"].as_array().unwrap().iter();
        nodes.map(|v| (v["node_id"].as_str().unwrap().to_owned(), v.clone())).collect()
    }

    pub fn status(&self, n: usize) -> Value {
        json(&["hub", "status", "--data", &self.data(n), "--json"])
    }

    pub fn id(&self, n: usize) -> String {
        let text = std::fs::read(format!("{}/identity.json", self.data(n))).unwrap();
        let identity: Value = serde_json::from_slice(&text).unwrap();
        format!("{:016x}", identity["node_id"].as_u64().unwrap())
    }

    /// Which of the nodes leads, as a node that runs sees it.
    pub fn leader(&self) -> usize {
        let mut found = None;
        wait_for("a leader is known", || {
            let leads = |v: &Value| v["leader"] == true && v["alive"] == true;
            let by = self.seen_by(self.some_up());
            let id = by.iter().find(|(_, v)| leads(v)).map(|(id, _)| id.clone());
            let is_up = |n: &usize| self.nodes[*n].process.is_some();
            found = id.and_then(|id| (0..self.nodes.len()).find(|n| self.id(*n) == id));
            found.as_ref().is_some_and(is_up)
        });
        found.unwrap()
    }

    /// A node that runs and does not lead.
    pub fn follower(&self) -> usize {
        let leader = self.leader();
        let is_one = |n: &usize| *n != leader && self.nodes[*n].process.is_some();
        (0..self.nodes.len()).find(is_one).expect("a follower runs")
    }

    /// Waits until so many nodes vote, live and are ready, as each that runs sees it.
    pub fn wait_until_whole(&self, nodes: usize) {
        for n in (0..self.nodes.len()).filter(|n| self.nodes[*n].process.is_some()) {
            wait_for("all nodes vote and live", || {
                let seen = self.seen_by(n);
                let is_whole = |v: &Value| v["role"] == "voter" && v["alive"] == true;
                seen.values().filter(|v| is_whole(v)).count() == nodes
            });
            self.wait_until_ready(n);
        }
    }

    /// Holds when, for longer than two elections would take, one node leads in one term.
    pub fn assert_no_election(&self, leader: usize, term: &Value) {
        let begun = Instant::now();
        wait_for("two elections could have been", || {
            assert_eq!((&self.status(leader)["term"], self.leader()), (term, leader));
            begun.elapsed() > Duration::from_secs(5)
        });
    }

    pub fn wait_until_ready(&self, n: usize) {
        let data = self.data(n);
        wait_for("a node is ready", || run(&["hub", "status", "--data", &data]).0 == 0);
    }

    /// A spoke that knows only one of the nodes.
    pub fn spoke_of(&self, n: usize, name: &str) -> Spoke {
        let spoke = self.nodes[n].site.spoke(name);
        spoke.call_only(&[&self.nodes[n].listen]);
        spoke
    }

    /// Waits until all nodes that run are at one position, and holds when their manifests are equal.
    pub fn assert_equal(&self) {
        let up: Vec<usize> =
            (0..self.nodes.len()).filter(|n| self.nodes[*n].process.is_some()).collect();
        let mut seen = Vec::new();
        wait_for("all nodes are equal", || {
            seen = up.iter().map(|n| dump(&self.data(*n))).collect();
            seen.windows(2).all(|w| w[0] == w[1])
        });
        assert!(!seen.is_empty());
    }
}

impl Node {
    pub fn of(site: Site) -> Self {
        let address = own_address();
        let (listen, cluster) = (format!("{address}:17171"), format!("{address}:17272"));
        Self { site, listen, cluster, advertised: None, process: None }
    }

    fn at(self, n: usize, (cluster, advertised): (&str, Option<&str>)) -> Self {
        let listen = format!("{}:7171", Bridged::address(n));
        let advertised = advertised.map(ToOwned::to_owned);
        Self { listen, cluster: cluster.to_owned(), advertised, ..self }
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.listen)
    }
}

/// Everything in a manifest but Raft's own position, as text.
pub fn dump(data: &str) -> String {
    let path = format!("{data}/manifest.db");
    let c = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    c.busy_timeout(Duration::from_secs(10)).unwrap();
    // One state for all tables.
    c.execute_batch("BEGIN").unwrap();
    let names = |sql: &str| -> Vec<String> {
        let mut s = c.prepare(sql).unwrap();
        s.query_map([], |r| r.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    let tables = names("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name");
    let mut out = String::new();
    for table in tables.iter().filter(|t| !t.starts_with("sqlite_")) {
        let list =
            names(&format!("SELECT 'quote(\"' || name || '\")' FROM pragma_table_info('{table}')"));
        let rest = if table == "meta" { "WHERE key <> 'raft_state'" } else { "" };
        let line = list.join(" || '|' || ");
        let mut rows = names(&format!("SELECT {line} FROM \"{table}\" {rest}"));
        rows.sort();
        for row in rows {
            out.push_str(&format!("{table}: {row}\n"));
        }
    }
    out
}

/// `GET` of a node with a bearer token: status, header lines, body.
pub fn get(node: &Node, ca: &str, token: &str, path: &str) -> (u16, String, Vec<u8>) {
    let output = Command::new("curl")
        .args(["-s", "-i", "--cacert", ca, "-H"])
        .arg(format!("Authorization: Bearer {token}"))
        .arg(format!("{}{path}", node.url()))
        .output()
        .unwrap();
    let raw = output.stdout;
    let end = raw.windows(4).position(|w| w == b"\r\n\r\n").expect("an HTTP answer");
    let head = String::from_utf8_lossy(&raw[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, raw[end + 4..].to_vec())
}

/// Runs a command to its end, with its exit code and both outputs.
pub fn said(args: &[&str]) -> (i32, String, String) {
    ended(barque(args).output().unwrap())
}
