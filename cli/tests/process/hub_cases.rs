//! Field reports of hubs: full disks, mounts in odd places, stale parts, peers that are half dead.

use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use barque_bundle::{jwt, platform};
use libtest_mimic::Trial;

use crate::identity::{Voice, entry, plain_site};
use crate::machine::{Mount, lacks_mounts};
use crate::proxy::CuttingProxy;
use crate::site::{HubProcess, Site, Spoke, json, pass_of, run, sized, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(hb_01_a_full_disk_is_507_and_everything_lands_once_there_is_room, needs lacks_mounts()),
        trial!(hb_01_full_databases_lose_nothing_and_go_on_by_themselves, needs lacks_mounts()),
        trial!(hb_02_staging_and_landing_are_on_one_file_system_or_the_hub_says_so, needs lacks_mounts()),
        trial!(hb_03_a_stale_part_is_never_spliced_and_the_file_lands),
        trial!(hb_03_two_uploads_of_one_file_at_once_land_it_once),
        trial!(hb_05_a_frozen_hub_ends_the_pass_and_nothing_is_lost),
        trial!(hb_05_slow_clients_lose_their_places_and_block_nobody),
        trial!(one_spoke_at_its_limit_is_throttled_and_others_are_not),
    ]
}

const NAME: &str = "d/m/2024/03/31/02/large.parquet";

/// A hub whose settings stand in a file.
fn hub_with_config(site: &Site, config: &str) -> HubProcess {
    let path = site.path().join("barque.toml");
    fs::write(&path, config).unwrap();
    let mut command = site.serve("127.0.0.1:0");
    command.env("BARQUE_CONFIG", &path);
    site.start(command)
}

fn put_many(spoke: &Spoke, files: u64, bytes: usize) {
    for n in 0..files {
        spoke.put(&format!("d/m/2024/03/31/{:02}/f{n}.parquet", n % 24), &sized(n, bytes));
    }
}

fn hb_01_a_full_disk_is_507_and_everything_lands_once_there_is_room() {
    let site = Site::new();
    let mount = Mount::of_size(site.path().join("disk"), "6m");
    let landing = mount.0.join("landing");
    let _hub = hub_with_config(&site, &format!("[hub.landing]\ndir = {landing:?}\n"));
    let spoke = site.spoke("s");
    // As many as there is room for; then more.
    put_many(&spoke, 20, 200_000);
    assert_eq!(spoke.push().count("sent"), 20);
    put_many(&spoke, 50, 200_000);
    for _ in 0..2 {
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("failed")), (75, 0), "{pass:?}");
        assert_eq!(pass.report["stopped_by"], "hub_full", "{pass:?}");
        let told = ["disk is full", mount.0.to_str().unwrap(), "free", "nothing was lost"];
        assert!(told.iter().all(|w| pass.stderr.contains(w)), "{}", pass.stderr);
        // Whole files only, each with the bytes that its source has.
        for (name, found) in tree(&landing) {
            let path = name.strip_prefix("s/").unwrap().to_owned();
            assert_eq!(Some(&found), tree(&spoke.source()).get(&path), "{name}");
        }
        assert_eq!(tree(&landing).len(), 20);
    }
    // It goes on to answer while it is full.
    assert_eq!(run(&["hub", "status", "--data", &site.data()]).0, 0);
    assert_eq!(run(&["hub", "spoke", "disable", "s", "--data", &site.data()]).0, 0);
    assert_eq!(run(&["hub", "spoke", "enable", "s", "--data", &site.data()]).0, 0);
    mount.remount("size=64m");
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("left")), (0, 0), "{pass:?}");
    assert_eq!(tree(&landing).len(), 50);
}

fn hb_01_full_databases_lose_nothing_and_go_on_by_themselves() {
    let site = Site::empty();
    let mount = Mount::of_size(PathBuf::from(site.data()), "64m");
    json(&["hub", "init", "--data", &site.data(), "--json"]);
    let landing = site.path().join("files");
    let _hub = hub_with_config(&site, &format!("[hub.landing]\ndir = {landing:?}\n"));
    let spoke = site.spoke("s");
    put_many(&spoke, 20, 1_000);
    assert_eq!(spoke.push().count("sent"), 20);
    // Somebody fills the file system with the databases.
    let filler = mount.0.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[7; 65_536]).is_ok() {}
    put_many(&spoke, 60, 1_000);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("failed")), (75, 0), "{pass:?}");
    assert_eq!(spoke.status()["synced"].as_u64(), Some(20 + pass.count("sent")));
    drop(file);
    fs::remove_file(filler).unwrap();
    // A process that is just being started may hold it open for a moment.
    wait_for("the space is free", || platform::free_bytes(&mount.0).unwrap() > 32 << 20);
    let last = spoke.push();
    assert_eq!((last.code, last.count("left")), (0, 0), "{last:?}");
    assert_eq!(tree(&landing).len(), 60);
}

fn hb_02_staging_and_landing_are_on_one_file_system_or_the_hub_says_so() {
    // Another file system on the staging folder: refused at the start, naming both.
    let site = Site::new();
    let staging = Mount::of_size(site.path().join("hub/staging"), "8m");
    let (code, _, err) = run(&["hub", "serve", "--data", &site.data(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, 1, "{err}");
    for word in ["staging", "landing", "different file systems"] {
        assert!(err.contains(word), "{word}: {err}");
    }
    drop(staging);
    // On a folder inside landing: found before a byte of the file is taken, and it lands once that
    // is mended. Other files are not held up.
    let hub = site.hub();
    let spoke = site.spoke("s");
    let inside = Mount::of_size(site.landing().join("s/mounted"), "8m");
    spoke.put("mounted/m/2024/03/31/02/f.parquet", &sized(1, 400_000));
    put_many(&spoke, 5, 1_000);
    let net = CuttingProxy::start(&hub.address, u64::MAX);
    spoke.edit_config(&hub.address, &net.address);
    let pass = spoke.push();
    let counts = (pass.code, pass.count("sent"), pass.count("left"), pass.count("failed"));
    assert_eq!(counts, (75, 5, 1, 0), "{pass:?}");
    assert_eq!(pass.report["stopped_by"], "landing_blocked");
    // From then on the hub is asked before any of its bytes go.
    let before = net.carried();
    assert_eq!(spoke.push().report["stopped_by"], "landing_blocked");
    assert!(net.carried() - before < 100_000, "{} bytes", net.carried() - before);
    assert!(pass.stderr.contains("mounted/m/2024/03/31/02/f.parquet"), "{}", pass.stderr);
    let log = fs::read_to_string(site.path().join("hub.log")).unwrap();
    assert!(log.contains("another file system is mounted there"), "{log}");
    drop(inside);
    let _ = fs::remove_dir(site.landing().join("s/mounted"));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    site.assert_landed(&[&spoke]);
    // TMPDIR means nothing to either side.
    let mut push = spoke.push_command();
    spoke.put("d/m/2024/04/01/00/f.parquet", &tiny(9));
    let pass = pass_of(push.env("TMPDIR", "/nowhere").output().unwrap());
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
}

fn part(site: &Site) -> PathBuf {
    let items = fs::read_dir(site.path().join("hub/staging")).unwrap().flatten();
    let mut parts =
        items.map(|i| i.path()).filter(|p| p.extension().is_some_and(|e| e == "partial"));
    parts.next().expect("a part is kept")
}

/// Forms (a) to (d): the part deleted, cut, grown by junk, and the source replaced.
fn hb_03_a_stale_part_is_never_spliced_and_the_file_lands() {
    const BYTES: usize = 5_000_000;
    type Form = (&'static str, fn(&Path, &Spoke));
    let forms: [Form; 4] = [
        ("deleted", |part, _| fs::remove_file(part).unwrap()),
        ("cut", |part, _| {
            fs::File::options().write(true).open(part).unwrap().set_len(1_000_000).unwrap()
        }),
        ("grown", |part, _| {
            let mut file = fs::File::options().write(true).open(part).unwrap();
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(&[0xaa; 100]).unwrap();
        }),
        ("another version", |_, spoke| {
            spoke.put(NAME, &sized(2, BYTES));
        }),
    ];
    for restart in [false, true] {
        for (form, spoil) in forms {
            let site = Site::new();
            let mut hub = Some(site.hub());
            let address = hub.as_ref().unwrap().address.clone();
            let spoke = site.spoke("s");
            spoke.edit_config("32MiB", "1MiB");
            let net = CuttingProxy::start(&address, 3_000_000);
            spoke.edit_config(&address, &net.address);
            spoke.put(NAME, &sized(1, BYTES));
            assert_eq!(spoke.push().code, 75, "{form}");
            spoil(&part(&site), &spoke);
            if restart {
                hub.take().unwrap().kill();
                hub = Some(site.hub_with(&address, &[]));
            }
            net.allow(u64::MAX);
            let pass = spoke.push();
            assert_eq!((pass.code, pass.count("sent")), (0, 1), "{form}: {pass:?}");
            site.assert_landed(&[&spoke]);
            assert_eq!(tree(&site.path().join("hub/staging")).len(), 0, "{form}");
            drop(hub.take());
        }
    }
}

fn hb_03_two_uploads_of_one_file_at_once_land_it_once() {
    const BYTES: usize = 20_000_000;
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.edit_config("32MiB", "1MiB");
    spoke.put(NAME, &sized(1, BYTES));
    // A copy of the state folder: the same spoke, the same file, at the same time.
    let copy = site.unenrolled("copy");
    fs::create_dir_all(copy.state()).unwrap();
    for file in ["ledger.db", "identity.json", "spoke.toml"] {
        fs::copy(Path::new(&spoke.state()).join(file), Path::new(&copy.state()).join(file))
            .unwrap();
    }
    let slow = ["--bandwidth", "10MB/s"];
    let start = |s: &Spoke| {
        let mut command = s.push_command();
        command
            .args(slow)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let pushes = [start(&spoke), start(&copy)];
    let passes = pushes.map(|p| pass_of(p.wait_with_output().unwrap()));
    for pass in &passes {
        assert!(matches!(pass.code, 0 | 75), "{pass:?}");
        assert_eq!(pass.count("failed") + pass.count("conflict"), 0, "{pass:?}");
    }
    for s in [&spoke, &copy] {
        let pass = pass_of(s.push_command().output().unwrap());
        assert_eq!((pass.code, pass.count("left")), (0, 0), "{pass:?}");
    }
    assert_eq!(site.manifest().len(), 1);
    site.assert_landed(&[&spoke]);
}

fn hb_05_a_frozen_hub_ends_the_pass_and_nothing_is_lost() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    spoke.edit_config("stall = \"60s\"", "stall = \"1s\"");
    put_many(&spoke, 20, 2_000);
    let signal = |name: &str| {
        let pid = hub.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    let pass = spoke.push();
    signal("-CONT");
    assert_eq!((pass.code, pass.count("left"), pass.count("failed")), (75, 20, 0), "{pass:?}");
    assert!(pass.count("duration_ms") < 60_000, "{pass:?}");
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("left")), (0, 0), "{pass:?}");
    site.assert_landed(&[&spoke]);
}

/// An upload that is opened, and a body of it that goes on without end.
fn slow_body(address: &str, voice: &Voice, n: u64) -> TcpStream {
    let bytes = sized(n, 100_000);
    let e = entry(&format!("d/m/2024/03/31/02/slow{n}.parquet"), &bytes, n + 1);
    let key = voice.key.clone();
    let (header, body) = voice.bundle(voice.hub_id, &voice.spoke_id, &key, &[(e, bytes)]);
    let path = barque_bundle::wire::BUNDLES;
    let token = jwt::sign(&voice.key, &voice.claims(path, header.value.entries_digest));
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body[..20_000]).unwrap();
    stream
}

fn hb_05_slow_clients_lose_their_places_and_block_nobody() {
    let site = Site::new();
    let path = site.path().join("barque.toml");
    // All places of the hub, though not of one spoke; and a second in place of a minute.
    fs::write(&path, "[hub.limits]\nstreams = 40\nstreams_per_spoke = 40\nbody_idle = \"1s\"\n")
        .unwrap();
    let mut command = site.serve("127.0.0.1:0");
    command.args(["--plain"]).env("BARQUE_CONFIG", &path);
    let hub = site.start(command);
    let (frozen, spoke) = (site.spoke("frozen"), site.spoke("s"));
    put_many(&spoke, 10, 2_000);
    let voice = Voice::of(&frozen);
    let mut streams: Vec<TcpStream> = (0..40).map(|n| slow_body(&hub.address, &voice, n)).collect();
    // Each sends a byte now and then, so that none is ever silent.
    let started = Instant::now();
    let pushing = std::thread::scope(|s| {
        let push = s.spawn(|| spoke.push());
        // Until the hub has let each of them go: a write to such a connection fails in the end.
        let mut alive = vec![true; streams.len()];
        while alive.contains(&true) {
            assert!(started.elapsed() < Duration::from_secs(20), "slow bodies keep their places");
            for (stream, alive) in streams.iter_mut().zip(&mut alive) {
                *alive = *alive && stream.write_all(b"x").is_ok();
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
        push.join().unwrap()
    });
    assert_eq!((pushing.code, pushing.count("sent")), (0, 10), "{pushing:?}");
    site.assert_landed(&[&spoke]);
}

fn one_spoke_at_its_limit_is_throttled_and_others_are_not() {
    let (site, hub, frozen) = plain_site();
    let spoke = site.spoke("other");
    put_many(&spoke, 5, 1_000);
    let voice = Voice::of(&frozen);
    let mut streams: Vec<TcpStream> = (0..8).map(|n| slow_body(&hub.address, &voice, n)).collect();
    // Each has its place once the hub has begun to answer.
    for stream in &mut streams {
        stream.set_read_timeout(Some(crate::site::DEADLINE)).unwrap();
        let mut status = [0u8; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
    // The ninth body of that spoke is one too many.
    let mut ninth = slow_body(&hub.address, &voice, 9);
    ninth.set_read_timeout(Some(crate::site::DEADLINE)).unwrap();
    let mut answer = [0u8; 4096];
    let n = ninth.read(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer[..n]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(
        answer.contains("retry-after: ") && answer.contains("too_many_streams_of_spoke"),
        "{answer}"
    );
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 5), "{pass:?}");
}
