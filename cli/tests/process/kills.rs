//! kill -9 at random points, hub and spoke: the same command again ends as if nothing had happened.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use barque_bundle::platform;
use libtest_mimic::Trial;

use crate::site::{Site, Spoke, pass_of, sized, tiny, tree};
use crate::{here, trial};

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(kills_of_each_side_end_in_the_same_content),
        trial!(a_hundred_kills_of_each_side_show_no_name_but_final_ones, needs lacks_fanotify()),
    ]
}

const FILES_A_ROUND: u64 = 12;

/// A repeatable number below `below`.
pub fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

fn folder_of(round: u64) -> String {
    format!("d/round{round}")
}

/// What a round has written on the hub's side so far: names in staging and landing, and their
/// bytes.
fn progress(site: &Site, round: u64) -> u64 {
    let mut sum = 0;
    let mut folders =
        vec![site.path().join("hub/staging"), site.landing().join("s").join(folder_of(round))];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match item.metadata() {
                Ok(m) if m.is_dir() => folders.push(item.path()),
                Ok(m) => sum += 1 + m.len() / 1024,
                Err(_) => {}
            }
        }
    }
    sum
}

fn add_files(spoke: &Spoke, round: u64) {
    let folder = folder_of(round);
    for n in 0..FILES_A_ROUND {
        spoke.put(
            &format!("{folder}/2024/03/01/{:02}/f{n}.parquet", n % 24),
            &tiny(round * 1000 + n),
        );
    }
    spoke.put(&format!("{folder}/large/2024/03/01/00/f.parquet"), &sized(round, 600_000));
}

/// Waits until the hub's side has moved by about so much, or the pass has ended.
fn until_progress(site: &Site, round: u64, push: &mut Child, by: u64) {
    let start = progress(site, round);
    while progress(site, round) < start + by && push.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
}

/// Kills spoke and hub in turn until each was killed so often in the middle of a pass, then lets a
/// last pass end.
fn kill_in_turn(site: &Site, kills: u64) {
    let mut seed = 7;
    let mut hub = Some(site.hub());
    let address = hub.as_ref().unwrap().address.clone();
    let spoke = site.spoke("s");
    // How often a kill of the spoke, and of the hub, hit a running pass.
    let mut hits = [0u64; 2];
    for round in 0.. {
        let side = usize::from(hits[1] < hits[0]);
        if hits[side] >= kills {
            break;
        }
        assert!(round < 6 * kills, "after {round} rounds only {hits:?} kills hit a running pass");
        add_files(&spoke, round);
        let mut push = spoke.start_push();
        // A round writes about 600 units and more to its end: most kills fall into the middle.
        until_progress(site, round, &mut push, random(&mut seed, 450));
        hits[side] += u64::from(push.try_wait().unwrap().is_none());
        if side == 0 {
            push.kill().unwrap();
            push.wait().unwrap();
        } else {
            hub.take().unwrap().kill();
            let pass = pass_of(push.wait_with_output().unwrap());
            assert!(matches!(pass.code, 0 | 75), "{pass:?}");
            assert_eq!(pass.count("failed"), 0, "{pass:?}");
            hub = Some(site.hub_with(&address, &[]));
        }
    }
    let last = spoke.push();
    assert_eq!((last.code, last.count("left"), last.count("failed")), (0, 0, 0), "{last:?}");
    assert_eq!(spoke.push().count("sent"), 0);
    site.assert_landed(&[&spoke]);
    let source: BTreeMap<String, (String, u64, String)> = tree(&spoke.source())
        .into_iter()
        .map(|(p, (sha, size))| (format!("s/{p}"), (sha.to_string(), size, "held".to_owned())))
        .collect();
    assert_eq!(site.manifest(), source);
    let status = spoke.status();
    assert_eq!(status["synced"].as_u64().unwrap(), source.len() as u64);
    assert_eq!(status["pending"].as_u64().unwrap() + status["in_flight"].as_u64().unwrap(), 0);
    // The clean-up at a start leaves nothing in staging.
    hub.take().unwrap().kill();
    let _hub = site.hub_with(&address, &[]);
    assert_eq!(tree(&site.path().join("hub/staging")).len(), 0);
}

fn kills_of_each_side_end_in_the_same_content() {
    kill_in_turn(&Site::new(), 10);
}

fn lacks_fanotify() -> Option<String> {
    if platform::effective_uid() != 0 {
        return Some("needs root, for fanotify".to_owned());
    }
    let dir = tempfile::tempdir().unwrap();
    let probe = Command::new("python3").arg(script()).arg(dir.path()).stdin(Stdio::null()).output();
    let works = probe.is_ok_and(|o| o.stdout.starts_with(b"watching\n"));
    (!works).then(|| "needs python3, and fanotify on the temporary folder".to_owned())
}

fn script() -> std::path::PathBuf {
    here().join("tests/process/fanotify.py")
}

/// Every name that appears below a folder, as the kernel tells it.
struct Watch {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Watch {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new("python3")
            .arg(script())
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).unwrap();
        assert_eq!(first, "watching\n", "fanotify does not work here");
        Self { child, out }
    }

    fn names(mut self) -> Vec<(String, String)> {
        drop(self.child.stdin.take());
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success() && text.ends_with("done\n"), "{text}");
        let lines = text.lines().filter(|l| *l != "done");
        lines.map(|l| l.split_once(' ').map(|(k, n)| (k.into(), n.into())).unwrap()).collect()
    }
}

fn a_hundred_kills_of_each_side_show_no_name_but_final_ones() {
    let site = Site::new();
    std::fs::create_dir_all(site.landing()).unwrap();
    let watch = Watch::start(&site.landing());
    kill_in_turn(&site, 100);
    let names = watch.names();
    let landed = tree(&site.landing());
    let (files, folders): (Vec<_>, Vec<_>) = names.into_iter().partition(|(k, _)| k == "file");
    // Each file appeared once, under the name that it has, and nothing else ever did.
    let mut files: Vec<String> = files.into_iter().map(|(_, name)| name).collect();
    files.sort();
    assert_eq!(files, landed.keys().cloned().collect::<Vec<_>>());
    for (_, folder) in folders {
        let folder = folder.trim_start_matches("./");
        let is_final = landed.keys().any(|name| name.starts_with(&format!("{folder}/")));
        assert!(is_final, "the folder {folder} stood in landing");
    }
}
