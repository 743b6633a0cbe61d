//! Two devices of Syncthing on one machine: one that sends a folder, one that receives it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::{Running, free_address};
use crate::race::Cost;
use crate::tree::Tree;

const KEY: &str = "bench";
/// How often the receiver is asked whether it has everything.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// It has broken by then.
const LONGEST: Duration = Duration::from_secs(1_800);

/// A device: its home, its id and its addresses.
struct Device {
    home: PathBuf,
    id: String,
    listen: String,
    gui: String,
}

impl Device {
    fn new(home: PathBuf) -> Self {
        std::fs::create_dir_all(&home).unwrap();
        let home_flag = format!("--home={}", home.display());
        let made = Command::new("syncthing").args(["generate", &home_flag]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let id = Command::new("syncthing").args(["--device-id", &home_flag]).output().unwrap();
        let id = String::from_utf8(id.stdout).unwrap().trim().to_owned();
        Self { home, id, listen: free_address(), gui: free_address() }
    }

    /// Settings for one folder shared with one other device, and nobody else called.
    fn settle(&self, other: &Self, kind: &str, folder: &Path) {
        let device = |d: &Self| {
            let (id, at) = (&d.id, &d.listen);
            format!("<device id=\"{id}\"><address>tcp://{at}</address></device>")
        };
        let text = format!(
            "<configuration version=\"35\">
             <folder id=\"f\" path=\"{folder}\" type=\"{kind}\" rescanIntervalS=\"0\"
                     fsWatcherEnabled=\"false\">
               <device id=\"{own}\"></device><device id=\"{their}\"></device>
             </folder>
             {}{}
             <gui enabled=\"true\" tls=\"false\"><address>{gui}</address><apikey>{KEY}</apikey></gui>
             <options>
               <listenAddress>tcp://{listen}</listenAddress>
               <globalAnnounceEnabled>false</globalAnnounceEnabled>
               <localAnnounceEnabled>false</localAnnounceEnabled>
               <relaysEnabled>false</relaysEnabled><natEnabled>false</natEnabled>
               <reconnectionIntervalS>1</reconnectionIntervalS>
               <startBrowser>false</startBrowser><urAccepted>-1</urAccepted>
               <autoUpgradeIntervalH>0</autoUpgradeIntervalH>
               <crashReportingEnabled>false</crashReportingEnabled>
             </options></configuration>",
            device(self),
            device(other),
            folder = folder.display(),
            own = self.id,
            their = other.id,
            gui = self.gui,
            listen = self.listen,
        );
        std::fs::write(self.home.join("config.xml"), text).unwrap();
    }

    fn start(&self) -> Started<'_> {
        let mut command = Command::new("syncthing");
        command.arg(format!("--home={}", self.home.display()));
        command.args(["--no-browser", "--no-restart", "--no-default-folder"]);
        command.stdin(Stdio::null());
        Started(self, Running::start(&mut command, &self.home.with_extension("log")))
    }

    /// Calls its interface; what it says, if it answers.
    fn call(&self, method: &str, path: &str) -> Option<Vec<u8>> {
        let (url, key) = (format!("http://{}/rest/{path}", self.gui), format!("X-API-Key: {KEY}"));
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--request", method, "--header", &key, &url]);
        let answer = curl.output().unwrap();
        answer.status.success().then_some(answer.stdout)
    }

    /// Files that the folder should hold here, and those that it holds; none while it starts.
    fn files(&self) -> Option<(u64, u64)> {
        let answer = self.call("GET", "db/status?folder=f")?;
        let status: serde_json::Value = serde_json::from_slice(&answer).ok()?;
        Some((status["globalFiles"].as_u64()?, status["inSyncFiles"].as_u64()?))
    }
}

/// A device that runs. It has a process below its own, which ends only when it is told to.
struct Started<'d>(&'d Device, Running);

impl Drop for Started<'_> {
    fn drop(&mut self) {
        self.0.call("POST", "system/shutdown");
        let end = Instant::now() + Duration::from_secs(30);
        while self.1.goes_on() && Instant::now() < end {
            std::thread::sleep(ASKED_EVERY);
        }
    }
}

/// From the start of the device that has the files, which scans them, until the other one has all;
/// it syncs each file, as it does unless it is told not to.
pub fn push(tree: &Tree, root: &Path) -> Cost {
    let to = root.join("to");
    std::fs::create_dir_all(&to).unwrap();
    for folder in [&tree.root, &to] {
        std::fs::create_dir_all(folder.join(".stfolder")).unwrap();
    }
    let (sender, receiver) = (Device::new(root.join("sender")), Device::new(root.join("receiver")));
    sender.settle(&receiver, "sendonly", &tree.root);
    receiver.settle(&sender, "receiveonly", &to);
    let _receiving = receiver.start();
    crate::process::wait_for("Syncthing answers", || receiver.files().is_some());
    let mut sending = None;
    let cost = Cost::of(|| {
        sending = Some(sender.start());
        let begun = Instant::now();
        while receiver.files() != Some((tree.files, tree.files)) {
            assert!(begun.elapsed() < LONGEST, "Syncthing did not end");
            std::thread::sleep(ASKED_EVERY);
        }
    });
    drop(sending);
    std::fs::remove_dir(tree.root.join(".stfolder")).unwrap();
    cost
}
