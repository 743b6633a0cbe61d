//! One hub and its spokes in a temporary folder, as real processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use barque_bundle::Sha256Digest;
use serde_json::Value;

pub const DEADLINE: Duration = Duration::from_secs(60);

/// The program under test, deaf to the machine's settings.
pub fn barque(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_barque"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("BARQUE_") {
            command.env_remove(name);
        }
    }
    command.args(args).env("BARQUE_CONFIG", "/dev/null").stdin(Stdio::null());
    if let Some(clock) = std::env::var_os(CLOCK).filter(|_| is_of_a_spoke(args)) {
        with_clock(&mut command, &clock.to_string_lossy());
    }
    command
}

/// Set, every command of a spoke runs with this clock, in faketime's notation.
pub const CLOCK: &str = "TEST_SPOKE_CLOCK";

fn is_of_a_spoke(args: &[&str]) -> bool {
    matches!(args.first(), Some(&("push" | "enroll" | "status" | "passes" | "ledger" | "bundle")))
}

/// Where Debian keeps libfaketime; the folder is named for the machine.
pub fn faketime_library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    folders.map(|f| f.path().join("faketime/libfaketimeMT.so.1")).find(|p| p.exists())
}

/// Lets a command run with a clock of its own (faketime(1)); files keep their real times, and
/// what counts time passing goes on as it is.
pub fn with_clock(command: &mut Command, clock: &str) {
    let library = faketime_library().expect("libfaketime is installed");
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME", clock)
        .env("NO_FAKE_STAT", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

pub fn run(args: &[&str]) -> (i32, String, String) {
    ended(barque(args).output().unwrap())
}

pub fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Runs to a successful end and reads its JSON.
pub fn json(args: &[&str]) -> Value {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "barque {}: {err}", args.join(" "));
    serde_json::from_str(&out).unwrap()
}

/// Waits until the condition holds; panics after the deadline.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::yield_now();
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// A loopback address that no other test of this machine listens on, so that what listened there and
/// was killed stays away until its own test starts it again.
pub fn own_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (n, process) = (NEXT.fetch_add(1, Ordering::Relaxed) + 1, std::process::id());
    assert!(n < 255, "a test binary has 254 addresses");
    format!("127.{}.{}.{n}", 64 + process / 256 % 128, process % 256)
}

/// How much of a hub's log is shown when its test fails.
const LINES_OF_A_FAILURE: usize = 30;

pub struct Site {
    dir: tempfile::TempDir,
}

/// The end of what its hub said goes with a test that failed.
impl Drop for Site {
    #[expect(clippy::print_stderr, reason = "beside what the test itself says")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path().join("hub.log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(LINES_OF_A_FAILURE)..];
            eprintln!("the end of {}/hub.log:\n{}", self.path().display(), end.join("\n"));
        }
    }
}

impl Site {
    /// A folder in which a hub was made; others than its user may pass through.
    pub fn new() -> Self {
        let site = Self::empty();
        json(&["hub", "init", "--data", &site.data(), "--json"]);
        site
    }

    /// [`Site::new`] in memory where there is room, for what is not about disks.
    pub fn in_memory() -> Self {
        let shm = Path::new("/dev/shm");
        let has_room = barque_bundle::platform::free_bytes(shm).is_ok_and(|f| f > 4 << 30);
        let mut builder = tempfile::Builder::new();
        builder.prefix("barque-test-");
        let dir = if has_room { builder.tempdir_in(shm) } else { builder.tempdir() };
        let site = Self { dir: dir.unwrap() };
        open_to_all(site.path());
        json(&["hub", "init", "--data", &site.data(), "--json"]);
        site
    }

    /// A folder without a hub in it.
    pub fn empty() -> Self {
        let dir = tempfile::Builder::new().prefix("barque-test-").tempdir().unwrap();
        open_to_all(dir.path());
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn data(&self) -> String {
        self.path().join("hub").display().to_string()
    }

    pub fn landing(&self) -> PathBuf {
        self.path().join("hub/landing")
    }

    pub fn hub(&self) -> HubProcess {
        self.hub_with("127.0.0.1:0", &[])
    }

    pub fn hub_with(&self, listen: &str, more: &[&str]) -> HubProcess {
        let mut command = self.serve(listen);
        command.args(more);
        self.start(command)
    }

    /// A hub that ends by itself at a step.
    pub fn hub_told(&self, listen: &str, fault: &str) -> HubProcess {
        let mut command = self.serve(listen);
        command.env("BARQUE_FAULT", fault);
        self.start(command)
    }

    /// [`Site::hub_told`], or none when the hub does not start because of the fault.
    pub fn try_hub_told(&self, listen: &str, fault: &str) -> Option<HubProcess> {
        let mut command = self.serve(listen);
        command.env("BARQUE_FAULT", fault);
        let log = fs::File::options().create(true).append(true).open(self.path().join("hub.log"));
        let child = command.stdout(Stdio::null()).stderr(log.unwrap()).spawn().unwrap();
        let mut hub = HubProcess { child, address: listen.to_owned() };
        let socket = self.path().join("hub/hub.sock");
        let mut has_ended = false;
        wait_for("the hub listens or has ended", || {
            has_ended = hub.child.try_wait().unwrap().is_some();
            let ready = || run(&["hub", "status", "--data", &self.data()]).0 == 0;
            has_ended || (socket.exists() && ready())
        });
        (!has_ended).then_some(hub)
    }

    pub fn serve(&self, listen: &str) -> Command {
        barque(&["hub", "serve", "--data", &self.data(), "--listen", listen])
    }

    /// Starts a hub and waits for nothing; its address is not known.
    pub fn start_process(&self, mut command: Command) -> HubProcess {
        let log = fs::File::options().create(true).append(true).open(self.path().join("hub.log"));
        let child = command.stdout(Stdio::null()).stderr(log.unwrap()).spawn().unwrap();
        HubProcess { child, address: String::new() }
    }

    pub fn start(&self, command: Command) -> HubProcess {
        let mut hub = self.start_process(command);
        let status = json(&["hub", "status", "--data", &self.data(), "--json"]);
        hub.address = status["url"].as_str().unwrap().split("://").nth(1).unwrap().to_owned();
        hub
    }

    /// A spoke's folders with an empty source.
    pub fn unenrolled(&self, name: &str) -> Spoke {
        let spoke = Spoke { name: name.to_owned(), dir: self.path().join(name) };
        fs::create_dir_all(spoke.source()).unwrap();
        spoke
    }

    /// A spoke with an empty source, enrolled; files need not lie still for long.
    pub fn spoke(&self, name: &str) -> Spoke {
        let spoke = self.unenrolled(name);
        let added = json(&["hub", "spoke", "add", name, "--data", &self.data(), "--json"]);
        spoke.enroll(added["token"].as_str().unwrap());
        spoke
    }

    /// Landed name to digest, size and state, as the hub lists it.
    pub fn manifest(&self) -> BTreeMap<String, (String, u64, String)> {
        let list = json(&["hub", "files", "--data", &self.data(), "--json"]);
        list["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| {
                let text = |k: &str| f[k].as_str().unwrap().to_owned();
                (text("path"), (text("sha256"), f["size_bytes"].as_u64().unwrap(), text("state")))
            })
            .collect()
    }

    /// Holds when exactly these spokes' sources have landed, bit for bit, and nothing else.
    pub fn assert_landed(&self, spokes: &[&Spoke]) {
        let mut expected = BTreeMap::new();
        for spoke in spokes {
            for (path, bytes) in tree(&spoke.source()) {
                expected.insert(format!("{}/{path}", spoke.name), bytes);
            }
        }
        assert_eq!(tree(&self.landing()), expected);
    }
}

pub fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Every file below a folder by its path: digest and size.
pub fn tree(root: &Path) -> BTreeMap<String, (Sha256Digest, u64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(&folder).into_iter().flatten() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                let mut file = fs::File::open(&path).unwrap();
                found.insert(name, Sha256Digest::of_reader(&mut file).unwrap());
            }
        }
    }
    found
}

/// The bytes of all files below a folder, which may change meanwhile.
pub fn bytes_below(root: &Path) -> u64 {
    let (mut sum, mut folders) = (0, vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder).into_iter().flatten().flatten() {
            match item.metadata() {
                Ok(m) if m.is_dir() => folders.push(item.path()),
                Ok(m) => sum += m.len(),
                Err(_) => {}
            }
        }
    }
    sum
}

/// How many names below a folder are candidates by the rules of the README, counted anew here.
fn candidates(folder: &Path) -> u64 {
    let mut count = 0;
    for item in fs::read_dir(folder).into_iter().flatten() {
        let item = item.unwrap();
        let name = item.file_name().to_string_lossy().into_owned();
        let is_folder = item.file_type().unwrap().is_dir();
        if name.starts_with('.') || (is_folder && (name == "_temporary" || name == "lost+found")) {
            continue;
        }
        match (is_folder, name.ends_with(".parquet")) {
            (true, false) => count += candidates(&item.path()),
            (false, true) => count += 1,
            _ => {}
        }
    }
    count
}

pub struct HubProcess {
    child: Child,
    /// Host and port.
    pub address: String,
}

impl HubProcess {
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Whether the process has ended by a signal; waits for its end.
    pub fn ended_by_signal(mut self) -> bool {
        let mut status = None;
        wait_for("the hub ended", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|s| s.code()).is_none()
    }

    /// SIGTERM, and its exit code.
    pub fn stop(mut self) -> i32 {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for HubProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Spoke {
    pub name: String,
    dir: PathBuf,
}

/// What a pass ended with.
#[derive(Debug)]
pub struct Pass {
    pub code: i32,
    pub report: Value,
    pub stderr: String,
}

impl Pass {
    pub fn count(&self, key: &str) -> u64 {
        self.report[key].as_u64().unwrap_or_else(|| panic!("no {key} in {self:?}"))
    }

    /// The codes of what a person should know, but for a clock that the suite has put wrong.
    pub fn warnings(&self) -> Vec<&str> {
        let all = self.report["warnings"].as_array().unwrap();
        let codes = all.iter().map(|w| w["code"].as_str().unwrap());
        codes.filter(|c| *c != "clock" || std::env::var_os(CLOCK).is_none()).collect()
    }

    /// Holds when every file that was discovered is in exactly one of the counts.
    pub fn assert_closes(&self) {
        let parts =
            ["present", "sent", "conflict", "modified", "failed", "skipped", "not_settled", "left"];
        let sum: u64 = parts.iter().map(|k| self.count(k)).sum();
        assert_eq!(self.count("discovered"), sum, "{self:?}");
    }
}

impl Spoke {
    pub fn source(&self) -> PathBuf {
        self.dir.join("source")
    }

    pub fn state(&self) -> String {
        self.dir.join("state").display().to_string()
    }

    pub fn config(&self) -> PathBuf {
        self.dir.join("state/spoke.toml")
    }

    pub fn enroll(&self, token: &str) {
        let source = self.source().display().to_string();
        json(&["enroll", token, "--state", &self.state(), "--source", &source, "--json"]);
        self.edit_config("settle = \"2s\"", "settle = \"50ms\"");
    }

    /// Leaves these addresses, and no others, to the spoke's hub.
    pub fn call_only(&self, addresses: &[&str]) {
        let text = fs::read_to_string(self.config()).unwrap();
        let (before, rest) = text.split_once("urls = [").expect("a hub's addresses");
        let (_, after) = rest.split_once(']').unwrap();
        let urls: Vec<String> = addresses.iter().map(|a| format!("\"https://{a}\"")).collect();
        fs::write(self.config(), format!("{before}urls = [{}]{after}", urls.join(", "))).unwrap();
    }

    pub fn edit_config(&self, from: &str, to: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(self.config(), text.replace(from, to)).unwrap();
    }

    pub fn put(&self, path: &str, bytes: &[u8]) -> PathBuf {
        let at = self.source().join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(&at, bytes).unwrap();
        at
    }

    pub fn push_command(&self) -> Command {
        barque(&["push", "--json", "--state", &self.state()])
    }

    pub fn start_push(&self) -> Child {
        self.push_command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A pass whose counts close, over exactly the candidates that lie in the source.
    pub fn push(&self) -> Pass {
        let pass = self.push_while_files_move();
        assert_eq!(pass.count("discovered"), candidates(&self.source()), "{pass:?}");
        pass
    }

    /// A pass whose counts close, while files come and go.
    pub fn push_while_files_move(&self) -> Pass {
        let pass = pass_of(self.push_command().output().unwrap());
        pass.assert_closes();
        pass
    }

    pub fn status(&self) -> Value {
        json(&["status", "--json", "--state", &self.state()])["hubs"][0].clone()
    }
}

pub fn pass_of(output: Output) -> Pass {
    let (code, out, stderr) = ended(output);
    let report = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out:?} {stderr}"));
    Pass { code, report, stderr }
}

/// A whole Parquet file by structure, different for each number.
pub fn tiny(n: u64) -> Vec<u8> {
    sized(n, 64)
}

/// A whole Parquet file by structure of this many bytes of pages.
pub fn sized(n: u64, bytes: usize) -> Vec<u8> {
    let mut file = b"PAR1".to_vec();
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while file.len() < bytes + 4 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        file.extend_from_slice(&x.to_le_bytes());
    }
    file.extend_from_slice(&n.to_le_bytes());
    // A struct with one i32, then its length and the magic.
    file.extend_from_slice(&[0x15, 2, 0, 3, 0, 0, 0]);
    file.extend_from_slice(b"PAR1");
    file
}
