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

    fn start(&self) -> Running {
        let mut command = Command::new("syncthing");
        command.arg(format!("--home={}", self.home.display()));
        command.args(["--no-browser", "--no-restart", "--no-default-folder"]);
        command.stdin(Stdio::null());
        Running::start(&mut command, &self.home.with_extension("log"))
    }

    /// Files that the folder should hold here, and those that it holds; none while it starts.
    fn files(&self) -> Option<(u64, u64)> {
        let url = format!("http://{}/rest/db/status?folder=f", self.gui);
        let key = format!("X-API-Key: {KEY}");
        let answer =
            Command::new("curl").args(["--silent", "--fail", "-H", &key, &url]).output().unwrap();
        let status: serde_json::Value = serde_json::from_slice(&answer.stdout).ok()?;
        Some((status["globalFiles"].as_u64()?, status["inSyncFiles"].as_u64()?))
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
    let cost = Cost::of(|| {
        let _sending = sender.start();
        let begun = Instant::now();
        while receiver.files() != Some((tree.files, tree.files)) {
            assert!(begun.elapsed() < LONGEST, "Syncthing did not end");
            std::thread::sleep(ASKED_EVERY);
        }
    });
    std::fs::remove_dir(tree.root.join(".stfolder")).unwrap();
    cost
}
