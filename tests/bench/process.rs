//! Real processes of the command line's release binary: nodes of a hub, and spokes.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::tree;

pub const DEADLINE: Duration = Duration::from_secs(600);

/// The program beside this benchmark, or the one that `BARQUE` names.
pub fn program() -> PathBuf {
    std::env::var_os("BARQUE").map_or_else(
        || {
            let this = std::env::current_exe().unwrap();
            this.parent().unwrap().with_file_name("barque")
        },
        PathBuf::from,
    )
}

/// The program with these arguments, deaf to settings of the machine.
pub fn barque(args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).env("BARQUE_CONFIG", "/dev/null").stdin(Stdio::null());
    command
}

/// Its JSON, or nothing when it did not end well.
pub fn try_json(args: &[&str]) -> Option<Value> {
    let output = barque(args).output().unwrap();
    serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
}

pub fn json(args: &[&str]) -> Value {
    let output = barque(args).output().unwrap();
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "barque {}: {}", args.join(" "), said());
    serde_json::from_slice(&output.stdout).unwrap()
}

pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A new folder for one work, which goes with it unless `BENCH_KEEP` is set: ext4 makes files slowly
/// for minutes where many were deleted, so a work behind another one should not meet that.
pub fn folder() -> tempfile::TempDir {
    let mut folder = tempfile::tempdir_in(".").unwrap();
    folder.disable_cleanup(std::env::var_os("BENCH_KEEP").is_some());
    folder
}

/// An address that nobody listens on at the moment.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Peak resident memory of a process in MiB, as the kernel counts it; none once it has ended.
pub fn peak_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<f64>().ok()? / 1024.0)
}

/// Time that all processors were busy since the machine started, in seconds (proc_stat(5), in units
/// of 10 ms on Linux): children of daemons are in no other sum.
pub fn busy_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let all = stat.lines().next().unwrap().split_whitespace().skip(1);
    let ticks: Vec<f64> = all.flat_map(str::parse).collect();
    // user, nice, system, (idle, iowait), irq, softirq, steal.
    [0, 1, 2, 5, 6, 7].iter().map(|n| ticks[*n]).sum::<f64>() / 100.0
}

/// Time of processors that a process took so far, in seconds (proc_pid_stat(5): utime and stime).
pub fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind_name = stat.rsplit(')').next().unwrap();
    let ticks: Vec<f64> = behind_name.split_whitespace().flat_map(str::parse).collect();
    // The state, which is no number, is not among them: ppid is the first.
    (ticks[10] + ticks[11]) / 100.0
}

/// Waits until the machine does nothing that is left over from before.
pub fn wait_until_quiet() {
    const SPAN: Duration = Duration::from_millis(300);
    wait_for("the machine is quiet", || {
        let before = busy_s();
        std::thread::sleep(SPAN);
        busy_s() - before < 0.04
    });
}

/// Has the system write out what was written before (`sync(1)`).
pub fn write_out() {
    assert!(Command::new("sync").status().unwrap().success());
}

/// A child that is killed when it is dropped.
pub struct Running(Child);

impl Running {
    pub fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end.
    pub fn wait(mut self) {
        self.0.wait().unwrap();
    }

    pub fn goes_on(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end, which has to be a good one; its peak of memory in MiB.
pub fn peak_of(command: &mut Command, log: &Path) -> f64 {
    let mut running = Running::start(command, log);
    let mut peak = 0.0;
    while running.goes_on() {
        peak = peak_mib(running.pid()).unwrap_or(peak);
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = running.0.wait().unwrap();
    assert!(ended.success(), "{command:?}: {ended}");
    peak
}

/// One node: its folder, its addresses, its process while it runs.
pub struct Node {
    pub data: String,
    pub listen: String,
    cluster: String,
    pub process: Option<Running>,
}

/// A hub of real processes.
pub struct Hub {
    pub nodes: Vec<Node>,
    root: PathBuf,
}

impl Hub {
    pub fn new(root: &Path, nodes: usize) -> Self {
        let data = root.join("node-1").display().to_string();
        json(&["hub", "init", "--data", &data, "--json"]);
        let mut hub = Self::over(root, data);
        (1..nodes).for_each(|_| hub.add_node());
        hub.wait_until_whole();
        hub
    }

    /// A hub whose first node has a data folder already.
    pub fn over(root: &Path, data: String) -> Self {
        let (listen, cluster) = (free_address(), free_address());
        let first = Node { data, listen, cluster, process: None };
        let mut hub = Self { nodes: vec![first], root: root.to_owned() };
        hub.start(0);
        hub
    }

    pub fn add_node(&mut self) {
        let n = self.nodes.len();
        let data = self.root.join(format!("node-{}", n + 1)).display().to_string();
        let by = &self.nodes[0].data;
        let added = json(&["hub", "node", "add", "--data", by, "--json"]);
        json(&["hub", "join", added["token"].as_str().unwrap(), "--data", &data, "--json"]);
        let (listen, cluster) = (free_address(), free_address());
        self.nodes.push(Node { data, listen, cluster, process: None });
        self.start(n);
    }

    /// Starts a node and waits until it is ready.
    pub fn start(&mut self, n: usize) {
        let Node { data, listen, cluster, .. } = &self.nodes[n];
        let args =
            ["hub", "serve", "--data", data, "--listen", listen, "--cluster-listen", cluster];
        let log = PathBuf::from(format!("{data}.log"));
        let running = Running::start(&mut barque(&args), &log);
        let data = data.clone();
        self.nodes[n].process = Some(running);
        wait_for("a node is ready", || {
            try_json(&["hub", "status", "--data", &data, "--json"]).is_some()
        });
    }

    /// A figure of a node's `/metrics`, summed over its labels.
    pub fn metric(&self, n: usize, name: &str) -> f64 {
        use std::io::{Read as _, Write as _};
        let socket = Path::new(&self.nodes[n].data).join("hub.sock");
        let mut line = std::os::unix::net::UnixStream::connect(socket).unwrap();
        line.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        line.read_to_string(&mut text).unwrap();
        let of_it = |l: &&str| l.split(['{', ' ']).next() == Some(name);
        let numbers = text.lines().filter(of_it).flat_map(|l| l.rsplit(' ').next());
        numbers.map(|n| n.parse::<f64>().unwrap()).sum()
    }

    pub fn seen_by(&self, n: usize) -> Vec<Value> {
        let list = try_json(&["hub", "node", "ls", "--data", &self.nodes[n].data, "--json"]);
        list.and_then(|l| l["nodes"].as_array().cloned()).unwrap_or_default()
    }

    /// Waits until all nodes vote and live, in the eyes of each that runs.
    pub fn wait_until_whole(&self) {
        let is_whole = |v: &Value| v["role"] == "voter" && v["alive"] == true;
        for n in 0..self.nodes.len() {
            wait_for("all nodes vote and live", || {
                let seen = self.seen_by(n);
                seen.iter().filter(|v| is_whole(v)).count() == self.nodes.len()
            });
        }
    }

    /// The node that leads and runs, by the word of one that runs.
    pub fn leader(&self) -> usize {
        let up = |n: &Node| n.process.is_some();
        let by = self.nodes.iter().position(up).unwrap();
        let mut found = None;
        wait_for("a leader is known", || {
            let seen = self.seen_by(by);
            let leads = |v: &&Value| v["leader"] == true && v["alive"] == true;
            let url = seen.iter().find(leads).map(|v| v["url"].clone());
            let is_it = |n: &Node| url == Some(format!("https://{}", n.listen).into());
            found = self.nodes.iter().position(is_it);
            found.is_some_and(|n| up(&self.nodes[n]))
        });
        found.unwrap()
    }

    /// Waits until all manifests are equal; the log entry that they are at, and their digest.
    pub fn wait_until_equal(&self) -> (u64, String) {
        let mut seen: Vec<(u64, String)> = Vec::new();
        wait_for("all manifests are equal", || {
            let digests = self.nodes.iter().map(|n| {
                let d = json(&["hub", "node", "digest", "--data", &n.data, "--json"]);
                (d["applied"].as_u64().unwrap(), d["sha256"].as_str().unwrap().to_owned())
            });
            seen = digests.collect();
            seen.windows(2).all(|w| w[0].0 == w[1].0)
        });
        assert!(seen.windows(2).all(|w| w[0] == w[1]), "the manifests differ: {seen:?}");
        seen.swap_remove(0)
    }

    /// A spoke of the hub with an empty source.
    pub fn spoke(&self, name: &str) -> Spoke {
        self.spoke_of(name, &self.root.join(name).join("source"))
    }

    /// A spoke of the hub with this source.
    pub fn spoke_of(&self, name: &str, source: &Path) -> Spoke {
        let by = &self.nodes[0].data;
        let added = json(&["hub", "spoke", "add", name, "--data", by, "--json"]);
        let dir = self.root.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let spoke = Spoke { dir, name: name.to_owned(), source: source.to_owned() };
        std::fs::create_dir_all(source).unwrap();
        let (state, source) = (spoke.state(), source.display().to_string());
        let token = added["token"].as_str().unwrap();
        json(&["enroll", token, "--state", &state, "--source", &source, "--json"]);
        let settings = std::fs::read_to_string(spoke.config()).unwrap();
        let settings = settings.replace("settle = \"2s\"", "settle = \"50ms\"");
        std::fs::write(spoke.config(), settings).unwrap();
        spoke
    }
}

/// One spoke: its name, and a folder with its state and its source.
pub struct Spoke {
    pub name: String,
    dir: PathBuf,
    source: PathBuf,
}

impl Spoke {
    pub fn state(&self) -> String {
        self.dir.join("state").display().to_string()
    }

    fn config(&self) -> PathBuf {
        self.dir.join("state/spoke.toml")
    }

    /// Leaves these addresses, in this order, to the spoke's hub.
    pub fn call(&self, listens: &[&str]) {
        let text = std::fs::read_to_string(self.config()).unwrap();
        let (before, rest) = text.split_once("urls = [").unwrap();
        let (_, after) = rest.split_once(']').unwrap();
        let urls: Vec<String> = listens.iter().map(|a| format!("\"https://{a}\"")).collect();
        let text = format!("{before}urls = [{}]{after}", urls.join(", "));
        std::fs::write(self.config(), text).unwrap();
    }

    /// Files of these numbers, as [`tree::fill`] makes them.
    pub fn fill(&self, numbers: std::ops::Range<u64>, size: usize) {
        tree::fill(&self.source, numbers, size);
    }

    /// Holds when nothing waits for an answer.
    pub fn require_all_synced(&self) {
        let status = json(&["status", "--state", &self.state(), "--json"]);
        assert_eq!(status["hubs"][0]["pending"], 0, "{}: {status}", self.name);
    }

    pub fn push(&self) -> Command {
        barque(&["push", "--state", &self.state(), "--json"])
    }

    /// One pass: its report, if it ended in a way that one may try again after.
    pub fn pass(&self) -> Option<Value> {
        let output = self.push().output().unwrap();
        let may_go_on = matches!(output.status.code(), Some(0 | 75));
        let said = || String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(may_go_on, "{}: {}", output.status, said());
        serde_json::from_slice(&output.stdout).ok()
    }
}

/// Which nodes hold which landed files, from the manifest of one.
pub fn held(data: &str) -> BTreeMap<String, String> {
    let path = format!("{data}/manifest.db");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let c = rusqlite::Connection::open_with_flags(path, flags).unwrap();
    let mut rows = c.prepare("SELECT path, hex(sha256) FROM files").unwrap();
    let rows = rows.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}
