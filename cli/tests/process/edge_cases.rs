//! Field reports of spokes and of whole fleets: rights, clocks, certificates, everybody at once.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use barque_bundle::platform;
use libtest_mimic::Trial;

use crate::errors::lacks_faketime;
use crate::site::{Pass, Site, Spoke, barque, json, pass_of, run, tiny, wait_for, with_clock};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(sp_04_an_unreadable_folder_is_named_and_the_rest_lands, needs lacks_root()),
        trial!(op_02_clocks_that_are_off_or_jump_back_decide_nothing, needs lacks_faketime()),
        trial!(op_03_a_certificate_that_expired_while_the_hub_was_off_is_renewed, needs lacks_faketime()),
        trial!(op_03_a_certificate_that_is_replaced_on_disk_is_served_without_a_restart),
        trial!(op_04_everybody_at_once_is_served_a_few_at_a_time),
    ]
}

fn lacks_root() -> Option<String> {
    (platform::effective_uid() != 0).then(|| "needs root, to become another user".to_owned())
}

const NOBODY: u32 = 65_534;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A pass of a user who may not read everything, with a program that this user may run.
fn push_as_nobody(site: &Site, spoke: &Spoke) -> Pass {
    let program = site.path().join("barque");
    if !program.exists() {
        fs::copy(env!("CARGO_BIN_EXE_barque"), &program).unwrap();
    }
    let mut push = Command::new(program);
    push.args(["push", "--json", "--state", &spoke.state()]).env_clear();
    push.env("BARQUE_CONFIG", "/dev/null").current_dir("/");
    let pass = pass_of(push.uid(NOBODY).gid(NOBODY).output().unwrap());
    pass.assert_closes();
    pass
}

fn sp_04_an_unreadable_folder_is_named_and_the_rest_lands() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    let hour = |h: u32| format!("factory/line1/2024/03/31/{h:02}");
    for h in 0..5 {
        spoke.put(&format!("{}/f.parquet", hour(h)), &tiny(h.into()));
    }
    let owned = Command::new("chown").args(["-R", "65534:65534"]).arg(spoke.state()).status();
    assert!(owned.unwrap().success());
    // All of it is seen once, so that something could be called gone.
    assert_eq!(push_as_nobody(&site, &spoke).count("sent"), 5);
    for h in 0..5 {
        spoke.put(&format!("{}/more.parquet", hour(h)), &tiny(u64::from(h) + 10));
    }
    let source = spoke.source();
    chmod(&source.join(hour(2)), 0o000);
    chmod(&source.join(hour(3)), 0o444);
    chmod(&source.join(hour(4)).join("more.parquet"), 0o000);
    let pass = push_as_nobody(&site, &spoke);
    assert_eq!((pass.code, pass.count("sent"), pass.count("failed")), (3, 2, 0), "{pass:?}");
    let named: Vec<&str> = pass.report["unreadable"]
        .as_array()
        .unwrap()
        .iter()
        .map(|u| u["path"].as_str().unwrap())
        .collect();
    for path in [hour(2), hour(3), format!("{}/more.parquet", hour(4))] {
        assert!(named.iter().any(|n| n.starts_with(&path)), "{path}: {named:?}");
    }
    // Nothing that cannot be seen counts as gone.
    let status = spoke.status();
    assert_eq!(
        (&status["synced"], &status["removed"], &status["skipped"]),
        (&7.into(), &0.into(), &0.into())
    );
    for h in [2, 3] {
        chmod(&source.join(hour(h)), 0o755);
    }
    chmod(&source.join(hour(4)).join("more.parquet"), 0o644);
    let pass = push_as_nobody(&site, &spoke);
    assert_eq!((pass.code, pass.count("sent"), pass.count("present")), (0, 3, 7), "{pass:?}");
    site.assert_landed(&[&spoke]);
}

fn op_02_clocks_that_are_off_or_jump_back_decide_nothing() {
    let site = Site::new();
    let mut serve = site.serve("127.0.0.1:0");
    // The hub is ten minutes off as well.
    with_clock(&mut serve, "+10m");
    let _hub = site.start(serve);
    let spoke = site.spoke("s");
    // One after the other, so that each jump is from the clock before it.
    let clocks = [
        "+0s",
        "-1h",
        "+3m",
        "+1h",
        "@1970-01-01 00:05:00",
        "@2038-02-01 00:00:00",
        "-2h",
        "@2099-12-31 23:59:00",
        "+0s",
    ];
    for (n, clock) in (0u64..).zip(clocks) {
        spoke.put(&format!("d/m/2024/03/31/02/f{n}.parquet"), &tiny(n));
        let mut push = spoke.push_command();
        // Where clocks are put back at half past two; these three are in UTC.
        if !clock.starts_with('@') {
            push.env("TZ", if n % 2 == 0 { "Europe/Berlin" } else { "America/St_Johns" });
        }
        with_clock(&mut push, clock);
        let pass = pass_of(push.output().unwrap());
        let counts = (pass.code, pass.count("sent"), pass.count("present"), pass.count("left"));
        assert_eq!(counts, (0, 1, n, 0), "{clock}: {pass:?}");
        let warned = pass.report["warnings"].to_string();
        assert!(warned.contains("clock"), "{clock}: {warned}");
    }
    site.assert_landed(&[&spoke]);
    let passes = json(&["passes", "--state", &spoke.state(), "--json"]);
    assert_eq!(passes["passes"].as_array().unwrap().len(), clocks.len());
}

/// The certificate that a hub serves now, as its bytes, in a handshake as a spoke makes it.
fn served(address: &str, spoke: &Spoke) -> Vec<u8> {
    use barque_spoke::config::StateFolder;
    use barque_spoke::identity::Identity;
    use barque_spoke::pin::{PinnedTls, Roots, Times};
    let identity = Identity::load(&StateFolder::new(spoke.state())).unwrap().unwrap();
    // Also a certificate of a hub whose clock is as far behind as its tests set it.
    let times = Arc::new(Times::new(-100 * 86_400_000, None));
    let tls = PinnedTls::new(Roots::Keys(identity.hubs[0].roots.clone()), times);
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(tls.config), name).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).unwrap();
    }
    connection.peer_certificates().unwrap()[0].to_vec()
}

fn op_03_a_certificate_that_expired_while_the_hub_was_off_is_renewed() {
    let site = Site::empty();
    let mut init = barque(&["hub", "init", "--data", &site.data()]);
    with_clock(&mut init, "-101d");
    assert!(init.output().unwrap().status.success());
    let mut serve = site.serve("127.0.0.1:0");
    // It was switched off more than the 90 days ago that its certificate lives.
    with_clock(&mut serve, "-100d");
    let hub = site.start(serve);
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    let mut push = spoke.push_command();
    with_clock(&mut push, "-100d");
    assert_eq!(pass_of(push.output().unwrap()).count("sent"), 1);
    let old = served(&address, &spoke);
    assert_eq!(hub.stop(), 0);
    let hub = site.hub_with(&address, &[]);
    assert_ne!(served(&hub.address, &spoke), old);
    spoke.put("d/m/2024/03/31/03/b.parquet", &tiny(2));
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    let status = json(&["hub", "status", "--data", &site.data(), "--json"]);
    let end: barque_bundle::Timestamp =
        status["certificate_expires_at"].as_str().unwrap().parse().unwrap();
    let now = barque_bundle::Timestamp::from_system(std::time::SystemTime::now());
    assert!(end.since_ms(now) > 80 * 86_400_000, "{status}");
}

fn op_03_a_certificate_that_is_replaced_on_disk_is_served_without_a_restart() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    // Another pair by the same authority, made by a second hub on a copy of the TLS folder.
    let (tls, other) = (site.path().join("hub/tls"), Site::new());
    for file in ["ca.key", "ca.pem"] {
        fs::copy(tls.join(file), other.path().join("hub/tls").join(file)).unwrap();
    }
    drop(other.hub());
    let put = |file: &str| {
        let to = tls.join(file);
        fs::copy(other.path().join("hub/tls").join(file), to.with_extension("new")).unwrap();
        fs::rename(to.with_extension("new"), to).unwrap();
    };
    let old = served(&hub.address, &spoke);
    let reload = || {
        let pid = hub.pid().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    };
    let log = || fs::read_to_string(site.path().join("hub.log")).unwrap();
    // The key first: a pair that does not fit is not taken.
    put("server.key");
    reload();
    wait_for("the mismatch is told", || log().contains("cannot be used; the one before goes on"));
    assert_eq!(served(&hub.address, &spoke), old);
    spoke.put("d/m/2024/03/31/02/a.parquet", &tiny(1));
    assert_eq!(spoke.push().count("sent"), 1);
    // Then the certificate, and nobody tells the hub.
    put("server.pem");
    wait_for("the new certificate is served", || served(&hub.address, &spoke) != old);
    spoke.put("d/m/2024/03/31/03/b.parquet", &tiny(2));
    assert_eq!(spoke.push().count("sent"), 1);
    site.assert_landed(&[&spoke]);
}

fn op_04_everybody_at_once_is_served_a_few_at_a_time() {
    const SPOKES: usize = 24;
    let site = Site::new();
    let config = site.path().join("barque.toml");
    fs::write(&config, "[hub.limits]\nstreams = 3\nrequests = 6\n").unwrap();
    let mut serve = site.serve("127.0.0.1:0");
    serve.arg("--plain").env("BARQUE_CONFIG", &config);
    let hub = site.start(serve);
    let spokes: Vec<Spoke> = (0..SPOKES).map(|n| site.spoke(&format!("s{n:02}"))).collect();
    for (n, spoke) in (0u64..).zip(&spokes) {
        for f in 0..10 {
            spoke.put(
                &format!("d/m/2024/03/31/02/f{f}.parquet"),
                &crate::site::sized(100 * n + f, 60_000),
            );
        }
    }
    let mut waiting: Vec<&Spoke> = spokes.iter().collect();
    for round in 0..6 {
        let start = |s: &&Spoke| {
            let mut push = s.push_command();
            push.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let pushes: Vec<_> = waiting.iter().map(start).collect();
        let passes = pushes.into_iter().map(|p| pass_of(p.wait_with_output().unwrap()));
        let passes: Vec<Pass> = passes.collect();
        for pass in &passes {
            assert!(matches!(pass.code, 0 | 75), "{pass:?}");
            assert_eq!(pass.count("failed"), 0, "{pass:?}");
            assert!(pass.count("duration_ms") < 120_000, "{pass:?}");
        }
        let done = passes.iter().filter(|p| p.count("left") == 0).count();
        assert!(round > 0 || done > 0, "nobody got through at first");
        waiting = waiting
            .into_iter()
            .zip(passes)
            .filter(|(_, p)| p.count("left") > 0)
            .map(|(s, _)| s)
            .collect();
        if waiting.is_empty() {
            break;
        }
    }
    assert!(waiting.is_empty(), "{} spokes wait", waiting.len());
    // Some were really sent away.
    let metrics = crate::operator::metrics_of(&site, &hub.address);
    let is_refusal = |l: &str| l.contains("status=\"429\"") || l.contains("status=\"503\"");
    assert!(metrics.lines().any(is_refusal), "{metrics}");
    site.assert_landed(&spokes.iter().collect::<Vec<_>>());
    assert_eq!(run(&["hub", "status", "--data", &site.data()]).0, 0);
}
