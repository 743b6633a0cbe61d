//! Drives as machines see them: a real exFAT stick, a stranger's verifier, proposals, memory.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use barque_bundle::platform;
use libtest_mimic::Trial;

use crate::drives::{AWKWARD, ack, drive, export, exported, import};
use crate::memory::peak_kib;
use crate::site::{Site, Spoke, barque, json, run, sized, tiny};
use crate::{fixture, here, lacks_shared, shared, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_strangers_verifier_agrees_about_every_golden_bundle, needs lacks_cryptography()),
        trial!(awkward_names_come_through_a_real_exfat_drive, needs lacks_exfat()),
        trial!(awkward_names_from_elsewhere_come_through_a_real_exfat_drive, needs lacks_shared("cases/out/trees/awkward_names.tar").or_else(lacks_exfat)),
        trial!(ten_thousand_files_with_the_longest_names_are_imported_in_ten_proposals),
        trial!(memory_stays_small_with_many_entries_on_a_drive),
    ]
}

fn lacks_cryptography() -> Option<String> {
    let works = Command::new("python3").args(["-c", "import cryptography"]).output();
    let works = works.is_ok_and(|o| o.status.success());
    (!works).then(|| "needs python3 with cryptography".to_owned())
}

/// What `tests/verify_bundle.py` says, which was written from docs/BUNDLE.md alone.
fn strangers_word(bundle: &Path, key: &Path) -> String {
    let script = here().join("../tests/verify_bundle.py");
    let output = Command::new("python3").arg(script).arg(bundle).arg(key).output().unwrap();
    let word = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert_eq!(output.status.success(), word == "whole", "{word}");
    word
}

fn a_strangers_verifier_agrees_about_every_golden_bundle() {
    let at = fixture("bundles");
    let expected = fs::read(at.join("expected.json")).unwrap();
    let expected: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&expected).unwrap();
    // It reads no zstd, which is another tool's work.
    for (name, word) in expected.iter().filter(|(n, _)| !n.ends_with(".zst")) {
        assert_eq!(strangers_word(&at.join(name), &at.join("spoke.pub")), *word, "{name}");
        // And Barque itself, by the key alone.
        let (path, key) = (at.join(name), at.join("spoke.pub"));
        let args = [path.as_os_str(), "--key".as_ref(), key.as_os_str()];
        let ended = barque(&["bundle", "verify", "--json"]).args(args).output().unwrap();
        let told: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        match word.as_str() {
            Some("whole") => assert_eq!(told["signature"], "good", "{name}"),
            _ => assert_eq!(told["code"], *word, "{name}"),
        }
    }
    // A bundle of today, as it is and with one byte changed.
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    AWKWARD.iter().zip(0u64..).for_each(|(name, n)| drop(spoke.put(name, &tiny(n))));
    let path = PathBuf::from(exported(&spoke, &drive(&site), &[]));
    let shown = json(&["hub", "spoke", "show", "s", "--data", &site.data(), "--json"]);
    let key = site.path().join("s.pub");
    fs::write(&key, shown["public_key"].as_str().unwrap()).unwrap();
    assert_eq!(strangers_word(&path, &key), "whole");
    let by_key = [path.to_str().unwrap(), "--key", key.to_str().unwrap()];
    assert_eq!(run(&[&["bundle", "verify"], &by_key[..]].concat()).0, 0);
    let header = path.join("manifest.json");
    let text =
        fs::read_to_string(&header).unwrap().replacen("\"seq_head\":16", "\"seq_head\":17", 1);
    fs::write(&header, text).unwrap();
    assert_eq!(strangers_word(&path, &key), "bad_signature");
}

fn lacks_exfat() -> Option<String> {
    if platform::effective_uid() != 0 {
        return Some("needs root, for a loop device".to_owned());
    }
    let has =
        |tool: &str| Command::new("which").arg(tool).output().is_ok_and(|o| o.status.success());
    let missing = ["mkfs.exfat", "mount.exfat-fuse", "losetup"].into_iter().find(|t| !has(t));
    missing.map(|t| format!("needs {t}"))
}

/// A new exFAT file system on a loop device, gone with this value.
struct Stick {
    at: PathBuf,
    device: String,
}

impl Stick {
    fn new(site: &Site) -> Self {
        let (image, at) = (site.path().join("stick.img"), site.path().join("stick"));
        fs::create_dir(&at).unwrap();
        fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let made = Command::new("mkfs.exfat").arg(&image).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let looped = Command::new("losetup").args(["-f", "--show"]).arg(&image).output().unwrap();
        let device = String::from_utf8(looped.stdout).unwrap().trim().to_owned();
        let stick = Self { at, device };
        stick.plug_in();
        stick
    }

    fn plug_in(&self) {
        let mounted = Command::new("mount.exfat-fuse").arg(&self.device).arg(&self.at).output();
        let mounted = mounted.unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
    }

    fn pull(&self) {
        let mut unmounted = false;
        crate::site::wait_for("the stick is unmounted", || {
            unmounted = Command::new("umount")
                .arg(&self.at)
                .stderr(Stdio::null())
                .status()
                .unwrap()
                .success();
            unmounted
        });
    }
}

impl Drop for Stick {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).stderr(Stdio::null()).status();
        let _ = Command::new("losetup").args(["-d", &self.device]).status();
    }
}

/// Out, in, and back, with the stick pulled and plugged in between.
fn over_exfat(site: &Site, spoke: &Spoke) {
    let stick = Stick::new(site);
    let done = export(spoke, &stick.at, &["--label", "stick"]);
    assert_eq!(done.code, 0, "{done:?}");
    // It cannot be told from here whether what was read back came from the stick.
    assert_eq!(done.json["read_back"], "verified_from_memory", "{done:?}");
    let (path, files) = (done.path(), done.count("files"));
    stick.pull();
    stick.plug_in();
    assert_eq!(run(&["bundle", "verify", &path, "--state", &spoke.state()]).0, 0);
    let imported = import(site, &path, &[]);
    assert_eq!((imported.code, imported.count("committed")), (0, files), "{imported:?}");
    stick.pull();
    stick.plug_in();
    assert_eq!(ack(spoke, &path).json["receipts"][0]["synced"], files);
}

fn awkward_names_come_through_a_real_exfat_drive() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    AWKWARD.iter().zip(0u64..).for_each(|(name, n)| drop(spoke.put(name, &tiny(n))));
    over_exfat(&site, &spoke);
    site.assert_landed(&[&spoke]);
}

fn awkward_names_from_elsewhere_come_through_a_real_exfat_drive() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let unpacked = Command::new("tar")
        .arg("-C")
        .arg(spoke.source())
        .arg("-xf")
        .arg(shared("cases/out/trees/awkward_names.tar"))
        .status()
        .unwrap();
    assert!(unpacked.success());
    over_exfat(&site, &spoke);
    // What a name's rule holds back is the same by every road: all that is not lands by a push.
    let pass = spoke.push();
    assert_eq!((pass.count("sent"), pass.count("left")), (0, 0), "{pass:?}");
    assert_eq!(spoke.status()["synced"].as_u64().unwrap(), site.manifest().len() as u64);
    let landed = crate::site::tree(&site.landing().join("s"));
    let source = crate::site::tree(&spoke.source());
    assert!(landed.len() >= 20, "{}", landed.len());
    assert!(landed.iter().all(|(name, bytes)| source.get(name) == Some(bytes)));
    let twins = landed.keys().filter(|n| n.contains("same_caf")).count();
    assert_eq!(twins, 2, "both forms of one name land");
}

fn ten_thousand_files_with_the_longest_names_are_imported_in_ten_proposals() {
    const FILES: u64 = 10_000;
    let site = Site::in_memory();
    let hub = site.hub();
    let spoke = site.spoke("s");
    // With the namespace exactly 1,019 bytes.
    let folder = format!("{}/", "d".repeat(200)).repeat(4);
    for n in 0..FILES {
        let path = format!("{folder}{n:0>205}.parquet");
        assert_eq!("s/".len() + path.len(), 1019);
        spoke.put(&path, &tiny(n));
    }
    let path = exported(&spoke, &drive(&site), &[]);
    let proposals = || -> u64 {
        let status = crate::site::json(&["hub", "status", "--data", &site.data(), "--json"]);
        status["proposals"].as_u64().unwrap()
    };
    let before = proposals();
    assert_eq!(import(&site, &path, &[]).count("committed"), FILES);
    assert_eq!(proposals() - before, 10);
    let metrics = Command::new("curl")
        .args(["-s", "--unix-socket"])
        .arg(site.path().join("hub/hub.sock"))
        .arg("http://localhost/metrics")
        .output()
        .unwrap();
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    let line = metrics.lines().find(|l| l.starts_with("barque_proposals_total "));
    assert_eq!(line.unwrap(), format!("barque_proposals_total {}", before + 10));
    assert_eq!(ack(&spoke, &path).json["receipts"][0]["synced"], FILES);
    drop(hub);
}

const CLI_MAX_KIB: u64 = 64 * 1024;
const HUB_MAX_KIB: u64 = 128 * 1024;

/// Runs a command to its end; its peak memory, as the kernel counts it.
fn peak_of(mut command: Command) -> u64 {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        peak = peak_kib(child.id()).unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    };
    assert!(status.success(), "{command:?}");
    peak
}

fn memory_stays_small_with_many_entries_on_a_drive() {
    let (files, site) = match std::env::var("TEST_MEMORY").as_deref() {
        Ok("full") => (1_000_000, Site::new()),
        _ => (100_000, Site::in_memory()),
    };
    let hub = site.hub();
    let spoke = site.spoke("many");
    for n in 0..files {
        let path = format!("d/m{}/2024/03/{:02}/{:02}/F{n}.parquet", n % 7, n % 28 + 1, n % 24);
        spoke.put(&path, &sized(n, 100));
    }
    let drive = drive(&site);
    let (state, data, limit) = (spoke.state(), site.data(), files.to_string());
    let mut export = barque(&["bundle", "export", "--limit", &limit, "--state", &state]);
    export.arg(&drive);
    let exported = peak_of(export);
    let path = fs::read_dir(&drive).unwrap().next().unwrap().unwrap().path().display().to_string();
    let verified = peak_of(barque(&["bundle", "verify", &path, "--state", &state]));
    let imported = peak_of(barque(&["hub", "import", &path, "--data", &data]));
    let acked = peak_of(barque(&["bundle", "ack", &path, "--state", &state]));
    assert_eq!(spoke.status()["synced"], files);
    let hub_kib = peak_kib(hub.pid()).unwrap();
    let line = format!(
        "peak memory with {files} entries on a drive: export {} MiB, verify {} MiB, import {} MiB, ack {} MiB, hub {} MiB",
        exported / 1024,
        verified / 1024,
        imported / 1024,
        acked / 1024,
        hub_kib / 1024
    );
    let _ = writeln!(std::io::stdout(), "{line}");
    for (name, kib) in
        [("export", exported), ("verify", verified), ("import", imported), ("ack", acked)]
    {
        assert!(0 < kib && kib < CLI_MAX_KIB, "{name} took {kib} KiB");
    }
    assert!(hub_kib < HUB_MAX_KIB, "the hub took {hub_kib} KiB");
}
