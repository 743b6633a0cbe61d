//! The demo with several nodes: a balancer in front, the leader killed in the middle of a push and of
//! an import, and at the end what each node holds and that all manifests are equal.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::process::{Running, barque, run_json};
use super::stage::Stage;
use super::{digest, files_below, number, sent, text};
use crate::args::DemoArgs;
use crate::command::Context;
use crate::{exit, output};

const SPOKES: [(&str, u64); 2] = [("rocket-01", 2000), ("submarine-01", 1000)];
const ISLAND: (&str, u64) = ("island-01", 300);
const WAIT: Duration = Duration::from_secs(90);

/// One node: its folder, its addresses, its process while it runs.
struct Node {
    data: String,
    listen: String,
    cluster: String,
    process: Option<Running>,
}

struct Demo {
    stage: Stage,
    nodes: Vec<Node>,
}

pub fn run(context: &Context, args: &DemoArgs) -> anyhow::Result<u8> {
    ensure!(args.nodes > 2, "two nodes outlive none; --nodes takes 1, or 3 to 7");
    let folder = tempfile::Builder::new().prefix("barque-demo-").tempdir()?;
    let stage = Stage::new(folder.path().to_owned(), context.global.json);
    let mut demo = Demo { stage, nodes: Vec::new() };
    let outcome = demo.play(usize::from(args.nodes));
    demo.stage.print();
    outcome?;
    if args.keep {
        let root = folder.keep();
        demo.leave(&root)?;
    }
    Ok(exit::OK)
}

/// An address that nobody listens on at the moment.
fn free_address() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Waits until something holds.
fn wait_for(what: &str, mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + WAIT;
    loop {
        // While nodes come and go, a call may fail; the deadline decides.
        match holds() {
            Ok(true) => return Ok(()),
            Err(e) if Instant::now() >= deadline => return Err(e.context(what.to_owned())),
            _ => ensure!(Instant::now() < deadline, "waited in vain until {what}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Demo {
    fn play(&mut self, nodes: usize) -> anyhow::Result<()> {
        for (seed, (spoke, files)) in (1..).zip(SPOKES.into_iter().chain([ISLAND])) {
            self.stage.samples(spoke, files, None, seed)?;
        }
        for n in 0..nodes {
            self.add_node(n)?;
        }
        self.wait_until_whole()?;
        let listens = self.nodes.iter().map(|n| n.listen.clone()).collect();
        let balancer = balance(listens)?;
        self.stage.step(
            "a balancer in front",
            None,
            format!("{balancer}, each connection to the next"),
        );
        for (spoke, _) in SPOKES.into_iter().chain([ISLAND]) {
            self.enroll(spoke, &balancer)?;
        }
        self.push_through_a_kill()?;
        self.import_through_a_kill()?;
        self.compare()
    }

    fn add_node(&mut self, n: usize) -> anyhow::Result<()> {
        let data = self.stage.root.join(format!("node-{}", n + 1)).display().to_string();
        match self.nodes.first() {
            None => drop(run_json(&["hub", "init", "--data", &data, "--json"])?),
            Some(first) => {
                let added = run_json(&["hub", "node", "add", "--data", &first.data, "--json"])?;
                let token = text(&added, "token");
                run_json(&["hub", "join", &token, "--data", &data, "--json"])?;
            }
        }
        let (listen, cluster) = (free_address()?, free_address()?);
        self.nodes.push(Node { data, listen, cluster, process: None });
        self.start(n)
    }

    fn start(&mut self, n: usize) -> anyhow::Result<()> {
        let node = &mut self.nodes[n];
        let (data, listen, cluster) = (&node.data, &node.listen, &node.cluster);
        let args =
            ["hub", "serve", "--data", data, "--listen", listen, "--cluster-listen", cluster];
        let running = Running::start(&mut barque(&args), &PathBuf::from(format!("{data}.log")))?;
        let (pid, url) = (running.pid(), format!("https://{listen}"));
        node.process = Some(running);
        let data = node.data.clone();
        wait_for("the node is ready", || {
            Ok(run_json(&["hub", "status", "--data", &data, "--json"]).is_ok())
        })?;
        self.stage.step(format!("node {} serves", n + 1), Some(pid), url);
        Ok(())
    }

    fn seen_by(&self, n: usize) -> anyhow::Result<Vec<Value>> {
        let list = run_json(&["hub", "node", "ls", "--data", &self.nodes[n].data, "--json"])?;
        Ok(list.get("nodes").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    fn wait_until_whole(&self) -> anyhow::Result<()> {
        for n in 0..self.nodes.len() {
            wait_for("all nodes vote and live", || {
                let seen = self.seen_by(n)?;
                let is_whole = |v: &&Value| text(v, "role") == "voter" && v["alive"] == true;
                Ok(seen.iter().filter(is_whole).count() == self.nodes.len())
            })?;
        }
        Ok(())
    }

    /// Which node leads, by the word of one that runs.
    fn leader(&self) -> anyhow::Result<usize> {
        let by = self.nodes.iter().position(|n| n.process.is_some()).context("no node runs")?;
        let mut found = None;
        wait_for("a leader is known", || {
            let seen = self.seen_by(by)?;
            let url = seen.iter().find(|v| v["leader"] == true).map(|v| text(v, "url"));
            let is_there = |n: &Node| url == Some(format!("https://{}", n.listen));
            found = self.nodes.iter().position(is_there);
            Ok(found.is_some_and(|n| self.nodes[n].process.is_some()))
        })?;
        found.context("no leader")
    }

    fn kill_leader(&mut self, when: &str) -> anyhow::Result<usize> {
        let leader = self.leader()?;
        let process = self.nodes[leader].process.take().context("the leader does not run")?;
        let pid = process.pid();
        process.kill()?;
        let what = format!("node {} leads: killed with -9", leader + 1);
        self.stage.step(what, Some(pid), when);
        Ok(leader)
    }

    fn enroll(&mut self, spoke: &str, balancer: &str) -> anyhow::Result<()> {
        self.stage.enroll(spoke, &self.nodes[0].data)?;
        self.call(spoke, &[balancer.to_owned()])
    }

    /// Leaves these addresses, and no others, to a spoke's hub.
    fn call(&self, spoke: &str, addresses: &[String]) -> anyhow::Result<()> {
        let config = Path::new(&self.stage.state(spoke)).join("spoke.toml");
        let settings = std::fs::read_to_string(&config)?;
        let list = settings.split_once("urls = [");
        let list = list.and_then(|(before, rest)| Some((before, rest.split_once(']')?.1)));
        let (before, after) = list.with_context(|| format!("no urls in {}", config.display()))?;
        let urls: Vec<String> = addresses.iter().map(|a| format!("\"https://{a}\"")).collect();
        std::fs::write(&config, format!("{before}urls = [{}]{after}", urls.join(", ")))?;
        Ok(())
    }

    fn files_known(&self) -> anyhow::Result<u64> {
        let up = self.nodes.iter().find(|n| n.process.is_some()).context("no node runs")?;
        Ok(number(&run_json(&["hub", "status", "--data", &up.data, "--json"])?, "files"))
    }

    /// Both spokes push at once; the leader is killed when a third is known, and started at the end.
    fn push_through_a_kill(&mut self) -> anyhow::Result<()> {
        let pushes = SPOKES.map(|(spoke, _)| self.stage.start_push(spoke));
        let third = SPOKES.iter().map(|(_, n)| n).sum::<u64>() / 3;
        wait_for("a third is known", || Ok(self.files_known()? >= third))?;
        let known = self.files_known()?;
        let killed = self.kill_leader(&format!("{known} files were known"))?;
        for (push, (spoke, _)) in pushes.into_iter().zip(SPOKES) {
            self.stage.end_push(spoke, push?)?;
        }
        for (spoke, _) in SPOKES {
            let mut last = None;
            wait_for("the rest is pushed", || {
                let (pid, code, report) = self.stage.start_push(spoke)?.report()?;
                let is_done = code == exit::OK && number(&report, "left") == 0;
                last = Some((pid, report));
                Ok(is_done)
            })?;
            if let Some((pid, report)) = last {
                self.stage.step(format!("{spoke} pushes the rest"), Some(pid), sent(&report));
            }
        }
        self.start(killed)?;
        self.wait_until_whole()
    }

    /// A drive comes to a node that does not lead; the leader is killed meanwhile.
    fn import_through_a_kill(&mut self) -> anyhow::Result<()> {
        let (spoke, files) = ISLAND;
        let (state, drive) = (self.stage.state(spoke), self.stage.root.join("drive"));
        std::fs::create_dir(&drive)?;
        let to = drive.display().to_string();
        let export = ["bundle", "export", &to, "--label", "drive 7", "--state", &state, "--json"];
        let bundle = text(&run_json(&export)?, "path");
        self.stage.step(format!("{spoke} exports to a drive"), None, format!("{files} files"));
        let leader = self.leader()?;
        let importer = (leader + 1) % self.nodes.len();
        let data = self.nodes[importer].data.clone();
        let import = ["hub", "import", &bundle, "--data", &data, "--json"];
        let log = self.stage.root.join("import.log");
        let importing = Running::start_piped(&mut barque(&import), &log)?;
        let killed = self.kill_leader("in the middle of an import")?;
        let pid = importing.pid();
        let first = importing.report();
        let said =
            first.map_or_else(|_| "broke off".to_owned(), |(_, code, _)| format!("exit {code}"));
        self.stage.step(format!("node {} imports the drive", importer + 1), Some(pid), said);
        wait_for("the drive is imported", || Ok(run_json(&import).is_ok()))?;
        let other =
            (0..self.nodes.len()).find(|n| *n != importer && *n != killed).unwrap_or(importer);
        let again = ["hub", "import", &bundle, "--data", &self.nodes[other].data, "--json"];
        let again = run_json(&again)?;
        ensure!(text(&again, "reason") == "already imported", "imported twice: {again}");
        let what = format!("node {} is asked to", other + 1);
        self.stage.step(what, None, format!("already imported, {}", text(&again, "imported_at")));
        self.stage.acknowledge(spoke, &bundle, files)?;
        self.start(killed)?;
        self.wait_until_whole()
    }

    /// What each node holds, that all manifests are equal, and that every file is there.
    fn compare(&mut self) -> anyhow::Result<()> {
        let mut digests = Vec::new();
        wait_for("all manifests are equal", || {
            digests.clear();
            for node in &self.nodes {
                let d = run_json(&["hub", "node", "digest", "--data", &node.data, "--json"])?;
                digests.push((number(&d, "position"), number(&d, "applied"), text(&d, "sha256")));
            }
            Ok(digests.windows(2).all(|w| w[0] == w[1]))
        })?;
        let seen = self.seen_by(0)?;
        for (n, (position, _, sha256)) in digests.iter().enumerate() {
            let url = format!("https://{}", self.nodes[n].listen);
            let held = seen.iter().find(|v| text(v, "url") == url);
            let held = held.map_or(0, |v| number(v, "files_held"));
            let short = sha256.get(..16).unwrap_or_default();
            let what = format!("node {}", n + 1);
            self.stage.step(
                what,
                None,
                format!("holds {held} files; position {position}, manifest {short}"),
            );
        }
        let mut equal = 0;
        for (spoke, _) in SPOKES.into_iter().chain([ISLAND]) {
            let source = self.stage.source(spoke);
            for path in files_below(&source) {
                let relative = Path::new(spoke).join(path.strip_prefix(&source)?);
                let here = |n: &&Node| Path::new(&n.data).join("landing").join(&relative).exists();
                let holders: Vec<&Node> = self.nodes.iter().filter(here).collect();
                ensure!(!holders.is_empty(), "{} is on no node", relative.display());
                for node in holders {
                    let there = Path::new(&node.data).join("landing").join(&relative);
                    ensure!(digest(&path)? == digest(&there)?, "{} differs", there.display());
                }
                equal += 1;
            }
        }
        let known = self.files_known()?;
        ensure!(known == equal, "{known} files are known, {equal} were sent");
        self.stage.all_equal(equal);
        Ok(())
    }

    /// Leaves the nodes and two spokes running, with what to do with them.
    fn leave(&mut self, root: &Path) -> anyhow::Result<()> {
        output::line(&format!("\nall is in {}; the nodes run on:", root.display()));
        let mut watching = Vec::new();
        let listens: Vec<String> = self.nodes.iter().map(|n| n.listen.clone()).collect();
        for (spoke, _) in SPOKES {
            // The balancer ends with the demo.
            self.call(spoke, &listens)?;
            let log = self.stage.root.join(format!("{spoke}.log"));
            let args = ["push", "--watch", "--state", &self.stage.state(spoke)];
            watching.push((spoke, Running::start(&mut barque(&args), &log)?));
        }
        for (n, node) in self.nodes.iter_mut().enumerate() {
            if let Some(process) = node.process.take() {
                let (pid, data) = (process.pid(), &node.data);
                output::line(&format!(
                    "  node {}, process {pid}: barque hub node ls --data {data}",
                    n + 1
                ));
                process.leave();
            }
        }
        for (spoke, process) in watching {
            let (pid, state, source) =
                (process.pid(), self.stage.state(spoke), self.stage.source(spoke));
            output::line(&format!(
                "  {spoke}, process {pid}, watches {}: barque status --state {state}",
                source.display()
            ));
            process.leave();
        }
        Ok(())
    }
}

/// A balancer of the simplest kind: each connection goes to the next node that takes it.
fn balance(nodes: Vec<String>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let next = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (nodes, next) = (nodes.clone(), Arc::clone(&next));
            std::thread::spawn(move || carry(client, &nodes, &next));
        }
    });
    Ok(address)
}

fn carry(client: TcpStream, nodes: &[String], next: &AtomicUsize) {
    let at = || &nodes[next.fetch_add(1, Ordering::Relaxed) % nodes.len()];
    let Some(node) = (0..nodes.len()).find_map(|_| TcpStream::connect(at()).ok()) else { return };
    let (Ok(mut from), Ok(mut to)) = (node.try_clone(), client.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
    let (mut from, mut to) = (client, node);
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}
