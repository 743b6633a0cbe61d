//! A push that watches, and what starts passes and hubs: cron, systemd, a link that comes up.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use serde_json::Value;

use crate::badnet::{BadNet, Shape};
use crate::site::{Site, Spoke, bytes_below, json, sized, tiny, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_watching_push_ships_what_changes_and_says_nothing_when_nothing_does),
        trial!(a_watching_push_outlives_a_hub_that_is_down_and_ends_cleanly_in_a_transfer),
        trial!(units_are_sound_as_systemd_sees_it, needs lacks("systemd-analyze")),
        trial!(the_cron_line_runs_with_an_empty_environment),
        trial!(a_link_that_comes_up_starts_a_pass_and_other_events_do_not),
        trial!(a_hub_tells_its_service_manager_when_it_is_ready_reloads_and_stops),
    ]
}

fn lacks(tool: &str) -> Option<String> {
    let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
    (!found.status.success()).then(|| format!("{tool} is absent"))
}

fn packaging(path: &str) -> PathBuf {
    crate::here().join("../packaging").join(path)
}

/// A daemon and the reports that it prints.
struct Daemon {
    child: Child,
    reports: mpsc::Receiver<Value>,
}

impl Daemon {
    fn start(spoke: &Spoke, flags: &[&str]) -> Self {
        let mut command = spoke.push_command();
        let log = fs::File::create(Path::new(&spoke.state()).join("daemon.log")).unwrap();
        let mut child =
            command.arg("--watch").args(flags).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, reports) = mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, reports }
    }

    fn next(&self) -> Value {
        self.reports.recv_timeout(crate::site::DEADLINE).expect("the daemon reports in time")
    }

    /// SIGTERM; its exit code, and how long it took.
    fn stop(mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        let status = self.child.wait().unwrap();
        (status.code(), started.elapsed())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn a_watching_push_ships_what_changes_and_says_nothing_when_nothing_does() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/first.parquet", &tiny(1));
    let net = BadNet::start(&hub.address, Shape::Cut(u64::MAX), None);
    spoke.edit_config(&hub.address, &net.address);
    let daemon = Daemon::start(&spoke, &["--rescan", "1s"]);
    assert_eq!(daemon.next()["sent"], 1);
    // A file in a new folder, and one that is renamed to its final name.
    spoke.put("d/m/2024/04/01/00/second.parquet", &tiny(2));
    assert_eq!(daemon.next()["sent"], 1);
    let unfinished = spoke.put("d/m/2024/04/01/00/third.parquet.tmp", &tiny(3));
    fs::rename(&unfinished, unfinished.with_extension("")).unwrap();
    assert_eq!(daemon.next()["sent"], 1);
    site.assert_landed(&[&spoke]);
    // It looks through the tree each second, and not a byte goes to the hub for it.
    wait_for("the last pass' connection is closed", || net.open() == 0);
    let settled = net.carried();
    let more = daemon.reports.recv_timeout(Duration::from_secs(4));
    assert!(more.is_err(), "{more:?}");
    assert_eq!(net.carried(), settled);
    // Others may push beside it.
    assert_eq!(spoke.push().count("present"), 3);
    let (code, took) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(10), "{took:?}");
    let passes = json(&["passes", "--state", &spoke.state(), "--json"]);
    // Passes that did nothing are not listed.
    assert_eq!(passes["passes"].as_array().unwrap().len(), 4);
}

fn a_watching_push_outlives_a_hub_that_is_down_and_ends_cleanly_in_a_transfer() {
    let site = Site::new();
    let hub = site.hub();
    let address = hub.address.clone();
    let spoke = site.spoke("s");
    hub.kill();
    spoke.put("d/m/2024/03/31/02/small.parquet", &tiny(1));
    let daemon = Daemon::start(&spoke, &[]);
    let first = daemon.next();
    assert_eq!((&first["hub_reached"], &first["left"]), (&false.into(), &1.into()), "{first}");
    let _hub = site.hub_with(&address, &[]);
    // It comes back by itself, with nothing that changes.
    let mut sent = 0;
    while sent == 0 {
        sent = daemon.next()["sent"].as_u64().unwrap();
    }
    assert_eq!(daemon.stop().0, Some(0));
    // A transfer that would take minutes.
    spoke.put("d/m/2024/03/31/03/large.parquet", &sized(2, 40_000_000));
    let daemon = Daemon::start(&spoke, &["--bandwidth", "300kB/s"]);
    let staging = site.path().join("hub/staging");
    wait_for("the transfer runs", || bytes_below(&staging) > 300_000);
    let (code, took) = daemon.stop();
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(10), "{took:?}");
    let passes = json(&["passes", "--limit", "1", "--state", &spoke.state(), "--json"]);
    assert_eq!(passes["passes"][0]["reason"], "stopped", "{passes}");
    let rest = spoke.push();
    assert_eq!((rest.code, rest.count("sent")), (0, 1), "{rest:?}");
    assert!(rest.report["resumed"][0]["offset"].as_u64().unwrap() > 0, "{rest:?}");
    site.assert_landed(&[&spoke]);
}

fn units_are_sound_as_systemd_sees_it() {
    let dir = tempfile::tempdir().unwrap();
    let units =
        ["barque-push.service", "barque-push.timer", "barque-watch.service", "barque-hub.service"];
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    for unit in units {
        let text = fs::read_to_string(packaging("systemd").join(unit)).unwrap();
        let text = text.replace("/usr/local/bin/barque", env!("CARGO_BIN_EXE_barque"));
        fs::write(dir.path().join(unit), text).unwrap();
        verify.arg(dir.path().join(unit));
    }
    let output = verify.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = said.lines().filter(|l| l.contains("barque")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");
}

/// The command of a crontab line of /etc/cron.d, without its times and user.
fn cron_command() -> String {
    let text = fs::read_to_string(packaging("cron.d/barque")).unwrap();
    let line = text.lines().find(|l| !l.starts_with('#') && !l.is_empty()).unwrap().to_owned();
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(fields[..5], ["*/10", "*", "*", "*", "*"]);
    fields[6..].join(" ")
}

fn the_cron_line_runs_with_an_empty_environment() {
    let site = Site::new();
    let _hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/2024/03/31/02/f.parquet", &tiny(1));
    let command = cron_command()
        .replace("5m", "200ms")
        .replace("/usr/local/bin/barque", env!("CARGO_BIN_EXE_barque"))
        .replace("/var/lib/barque/spoke", &spoke.state());
    let run = || {
        let mut env = Command::new("env");
        env.args(["-i", "PATH=/usr/bin:/bin", "SHELL=/bin/sh", "LOGNAME=nobody", "/bin/sh", "-c"]);
        env.arg(&command).current_dir("/").output().unwrap()
    };
    let output = run();
    let said =
        (output.status.code(), output.stdout.len(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(said, (Some(0), 0, String::new()));
    site.assert_landed(&[&spoke]);
    // What needs a person is said, so that cron mails it.
    spoke.put("d/m/2024/03/31/02/f.parquet", &tiny(2));
    let output = run();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert!(said.contains("modified") && said.contains("f.parquet"), "{said}");
}

fn a_link_that_comes_up_starts_a_pass_and_other_events_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let fake = dir.path().join("systemctl");
    fs::write(&fake, format!("#!/bin/sh\necho \"$@\" >> {}\n", log.display())).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let mut hook = Command::new(packaging("link-up/50-barque-push"));
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        hook.args(args).env_clear().env("PATH", path).envs(env.iter().copied());
        assert!(hook.status().unwrap().success());
        fs::read_to_string(&log).unwrap_or_default().lines().count()
    };
    assert_eq!(run(&["wwan0", "up"], &[]), 1);
    assert_eq!(run(&["wwan0", "down"], &[]), 1);
    assert_eq!(run(&["wwan0", "dhcp4-change"], &[]), 1);
    assert_eq!(run(&["lo", "up"], &[]), 1);
    assert_eq!(run(&[], &[("IFACE", "eth0"), ("MODE", "start")]), 2);
    assert_eq!(run(&[], &[("IFACE", "lo"), ("MODE", "start")]), 2);
    let said = fs::read_to_string(&log).unwrap();
    assert!(said.lines().all(|l| l == "start --no-block barque-push.service"), "{said}");
}

fn a_hub_tells_its_service_manager_when_it_is_ready_reloads_and_stops() {
    let site = Site::new();
    let at = site.path().join("notify");
    let manager = UnixDatagram::bind(&at).unwrap();
    manager.set_read_timeout(Some(crate::site::DEADLINE)).unwrap();
    let mut command = site.serve("127.0.0.1:0");
    command.env("NOTIFY_SOCKET", &at);
    let hub = site.start(command);
    let hear = || {
        let mut buffer = [0u8; 512];
        let n = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    };
    assert!(hear().contains("READY=1"));
    let pid = hub.pid().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    let reloading = hear();
    assert!(
        reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="),
        "{reloading}"
    );
    assert!(hear().contains("READY=1"));
    assert_eq!(hub.stop(), 0);
    assert!(hear().contains("STOPPING=1"));
}
