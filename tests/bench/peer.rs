//! Other tools that carry files, set up as somebody who knows them would.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::link::{Line, Link};
use crate::process::{Running, free_address, peak_of, wait_for};
use crate::race::{Cost, say};
use crate::tree::Tree;

/// Whether a program is there; one that is not is left out of a race, and said.
pub fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        say(&format!("{program} is not installed: left out"));
    }
    found
}

fn run(command: &mut Command) {
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output().unwrap();
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}", said());
}

/// A server of another tool, and the folder that it writes to.
struct Server {
    _process: Running,
    /// The line that it is called over, where there is one.
    _link: Option<Link>,
    address: String,
    folder: PathBuf,
}

impl Server {
    fn start(
        name: &str,
        root: &Path,
        line: Option<Line>,
        command: impl FnOnce(&str, &Path) -> Command,
    ) -> Self {
        let folder = root.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let address = free_address();
        let mut command = command(&address, &folder);
        let process = Running::start(&mut command, &root.join(format!("{name}.log")));
        wait_for("a peer listens", || TcpStream::connect(&address).is_ok());
        let link = line.map(|line| Link::to(&address, line));
        let address = link.as_ref().map_or(address, |l| l.address.clone());
        Self { _process: process, _link: link, address, folder }
    }

    /// Holds when as many files arrived below a folder as were sent.
    fn require(&self, below: &str, tree: &Tree) {
        let mut files = 0;
        let mut folders = vec![self.folder.join(below)];
        while let Some(folder) = folders.pop() {
            for item in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                match item.file_type().unwrap().is_dir() {
                    true => folders.push(item.path()),
                    false => files += 1,
                }
            }
        }
        assert_eq!(files, tree.files, "files of {below} in {}", self.folder.display());
    }
}

/// A daemon of rsync, without encryption.
pub struct Rsync(Server);

impl Rsync {
    pub fn start(root: &Path, line: Option<Line>) -> Self {
        Self(Server::start("rsync", root, line, |address, folder| {
            let (host, port) = address.split_once(':').unwrap();
            let settings = folder.with_extension("conf");
            let text = format!(
                "use chroot = no\n[m]\npath = {}\nread only = no\nuid = {uid}\ngid = {gid}\n",
                folder.display(),
                uid = id("-u"),
                gid = id("-g"),
            );
            std::fs::write(&settings, text).unwrap();
            let mut command = Command::new("rsync");
            command.args(["--daemon", "--no-detach", "--address", host, "--port", port]);
            command.arg("--config").arg(settings);
            command
        }))
    }

    /// `rsync -a` of a tree to a new folder.
    pub fn push(&self, tree: &Tree, to: &str, more: &[&str]) -> Cost {
        let cost = Cost::of(|| run(&mut self.command(tree, to, more)));
        self.0.require(to, tree);
        cost
    }

    /// [`Rsync::push`], with the peak of memory of the one that sends.
    pub fn push_and_peak(&self, tree: &Tree, to: &str, more: &[&str]) -> (Cost, f64) {
        let log = self.0.folder.with_extension("push.log");
        let mut peak = 0.0;
        let cost = Cost::of(|| peak = peak_of(&mut self.command(tree, to, more), &log));
        self.0.require(to, tree);
        (cost, peak)
    }

    fn command(&self, tree: &Tree, to: &str, more: &[&str]) -> Command {
        let from = format!("{}/", tree.root.display());
        let url = format!("rsync://{}/m/{to}/", self.0.address);
        let mut command = Command::new("rsync");
        command.arg("-a").args(more).args([&from, &url]);
        command
    }
}

fn id(flag: &str) -> String {
    let output = Command::new("id").arg(flag).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// One of the servers that rclone brings along, without encryption.
pub struct Rclone {
    server: Server,
    protocol: &'static str,
}

const S3_KEYS: (&str, &str) = ("bench", "benchbench");

impl Rclone {
    pub fn webdav(root: &Path, line: Option<Line>) -> Self {
        let server = Server::start("webdav", root, line, |address, folder| {
            let mut command = rclone();
            command.args(["serve", "webdav"]).arg(folder).args(["--addr", address]);
            command
        });
        Self { server, protocol: "webdav" }
    }

    pub fn s3(root: &Path, line: Option<Line>) -> Self {
        let server = Server::start("s3", root, line, |address, folder| {
            std::fs::create_dir_all(folder.join("bucket")).unwrap();
            let (key, secret) = S3_KEYS;
            let mut command = rclone();
            command.args(["serve", "s3"]).arg(folder).args(["--addr", address]);
            command.arg("--auth-key").arg(format!("{key},{secret}"));
            command
        });
        Self { server, protocol: "s3" }
    }

    /// `rclone copy` of a tree to a new folder, so many files at once, and calls as fast as they go.
    pub fn push(&self, tree: &Tree, to: &str, transfers: usize) -> Cost {
        self.copy(tree, to, transfers, ",pacer_min_sleep=0s")
    }

    /// [`Self::push`] as rclone comes: 10 ms from one call of WebDAV to the next.
    pub fn push_paced(&self, tree: &Tree, to: &str, transfers: usize) -> Cost {
        self.copy(tree, to, transfers, "")
    }

    fn copy(&self, tree: &Tree, to: &str, transfers: usize, webdav: &str) -> Cost {
        let address = &self.server.address;
        let to = if self.protocol == "s3" { format!("bucket/{to}") } else { to.to_owned() };
        let (key, secret) = S3_KEYS;
        let remote = match self.protocol {
            "s3" => format!(
                ":s3,provider=Rclone,endpoint='http://{address}',access_key_id={key},\
                 secret_access_key={secret},force_path_style=true:{to}"
            ),
            _ => format!(":webdav,url='http://{address}'{webdav}:{to}"),
        };
        let transfers = transfers.to_string();
        let cost = Cost::of(|| {
            let mut command = rclone();
            command.arg("copy").arg(&tree.root).arg(remote);
            run(command.args(["--transfers", &transfers, "--checkers", &transfers]));
        });
        self.server.require(&to, tree);
        cost
    }

    /// `curl --parallel -T` of every file to the same server.
    pub fn curl(&self, tree: &Tree, to: &str) -> Cost {
        let base = format!("http://{}/{to}", self.server.address);
        let list = self.server.folder.with_extension("curl");
        // WebDAV makes no folders by itself.
        let (mut text, mut folders) = (String::new(), BTreeSet::new());
        for path in tree.paths() {
            let relative = path.strip_prefix(&tree.root).unwrap();
            folders.extend(relative.ancestors().skip(1).map(Path::to_owned));
            let (path, relative) = (path.display(), relative.display());
            text += &format!("upload-file = \"{path}\"\nurl = \"{base}/{relative}\"\n");
        }
        // In their order, the ones above first.
        for folder in folders {
            let mut command = Command::new("curl");
            command.args(["--silent", "--fail", "--request", "MKCOL"]);
            run(command.arg(format!("{base}/{}", folder.display())));
        }
        std::fs::write(&list, text).unwrap();
        let cost = Cost::of(|| {
            let mut command = Command::new("curl");
            command.args(["--silent", "--fail", "--parallel", "--parallel-max", "16", "--config"]);
            run(command.arg(&list));
        });
        self.server.require(to, tree);
        cost
    }
}

/// rclone, deaf to settings of the machine.
fn rclone() -> Command {
    let mut command = Command::new("rclone");
    command.args(["--config", "/dev/null"]);
    command
}
