//! What a process does, seen from outside by strace: SQLite's syncs failed, and the order of syncs
//! before an answer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use barque_bundle::platform;
use libtest_mimic::Trial;

use crate::site::{HubProcess, Site, Spoke, json, pass_of, sized, tiny, tree, wait_for};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(no_receipt_covers_what_a_failed_sync_of_the_hubs_databases_lost, needs lacks_strace()),
        trial!(a_spoke_whose_ledger_cannot_be_synced_says_so_and_sends_again, needs lacks_strace()),
        trial!(everything_that_a_receipt_says_is_synced_before_it_is_written, needs lacks_strace()),
        trial!(a_group_whose_one_sync_failed_is_condemned_and_sent_again, needs lacks_group_sync()),
        trial!(a_bundle_that_breaks_behind_a_check_in_leaves_no_wrong_backlog, needs lacks_group_sync()),
        trial!(an_upload_is_given_to_the_disk_as_it_comes_and_not_believed_where_that_fails, needs lacks_strace()),
    ]
}

/// Why many files are not synced by one call here, if they are not.
fn lacks_group_sync() -> Option<String> {
    let folder = fs::File::open(std::env::temp_dir()).unwrap();
    let tells = platform::reports_writes(&folder);
    let why = "needs ext4, xfs or btrfs below the folder for temporary files";
    lacks_strace().or_else(|| (!tells).then(|| why.to_owned()))
}

/// Files of one bundle that are synced as a group.
const GROUP: u64 = 20;

fn a_group_whose_one_sync_failed_is_condemned_and_sent_again() {
    let push = |sabotaged: Option<&str>| {
        let site = Site::new();
        let hub = site.hub();
        let spoke = site.spoke("s");
        for n in 0..GROUP {
            spoke.put(&format!("d/m/2024/03/31/00/f{n}.parquet"), &tiny(n));
        }
        let log = site.path().join("strace.log");
        let tracer = sabotaged.map(|call| {
            let (call, error) = call.split_once(' ').unwrap();
            meddle(&hub, &log, call, &format!("error={error}"))
        });
        let pass = spoke.push();
        drop(tracer);
        let was_failed = fs::read_to_string(&log).unwrap_or_default().contains("(INJECTED)");
        assert_eq!(was_failed, sabotaged.is_some());
        assert_eq!((pass.code, pass.count("sent"), pass.count("left")), (0, GROUP, 0), "{pass:?}");
        site.assert_landed(&[&spoke]);
        pass.count("wire_bytes")
    };
    // Until it goes in halves, whose files are synced one by one.
    let once = push(None);
    for call in ["sync_file_range EIO", "syncfs EIO"] {
        let again = push(Some(call));
        assert!(again > once + once / 2, "{call}: {again} bytes went, one try is {once}");
    }
    // A sandbox that lacks the call condemns nothing: each file is synced by itself.
    for call in ["sync_file_range ENOSYS", "sync_file_range EPERM", "syncfs ENOSYS"] {
        let bytes = push(Some(call));
        assert!(bytes < once + once / 2, "{call}: {bytes} bytes went, one try is {once}");
    }
}

/// strace on a hub, which does something to each call of one kind.
fn meddle(hub: &HubProcess, log: &Path, call: &str, how: &str) -> Tracer {
    let mut command = Command::new("strace");
    let (trace, inject) = (format!("trace={call}"), format!("inject={call}:{how}"));
    command.args(["-f", "-e", &trace, "-e", &inject, "-o"]).arg(log);
    command.args(["-p", &hub.pid().to_string()]);
    Tracer::start(command)
}

/// The bundle's sync takes so long that the check-in beside it is answered first, and then fails.
fn a_bundle_that_breaks_behind_a_check_in_leaves_no_wrong_backlog() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    for n in 0..GROUP {
        spoke.put(&format!("d/m/2024/03/31/00/f{n}.parquet"), &tiny(n));
    }
    let log = site.path().join("strace.log");
    let tracer = meddle(&hub, &log, "syncfs", "error=EIO:delay_enter=1500000");
    let push = spoke.start_push();
    wait_for("a sync has failed", || fs::read_to_string(&log).unwrap().contains("(INJECTED)"));
    // The next try is whole.
    drop(tracer);
    let pass = pass_of(push.wait_with_output().unwrap());
    assert_eq!((pass.code, pass.count("sent")), (0, GROUP), "{pass:?}");
    let shown = json(&["hub", "spoke", "show", "s", "--data", &site.data(), "--json"]);
    assert_eq!(shown["report"]["pending_files"], 0, "{shown}");
}

fn an_upload_is_given_to_the_disk_as_it_comes_and_not_believed_where_that_fails() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    // More than goes in a bundle, and less than two syncs' worth behind the last one.
    spoke.put("d/m/2024/03/31/00/large.parquet", &sized(1, 40_000_000));
    let log = site.path().join("strace.log");
    let tracer = meddle(&hub, &log, "sync_file_range", "error=EIO");
    let pass = spoke.push();
    drop(tracer);
    let failed = fs::read_to_string(&log).unwrap();
    assert!(failed.contains("SYNC_FILE_RANGE_WRITE) = -1 EIO"), "{failed}");
    assert_eq!((pass.count("sent"), pass.count("left")), (0, 1), "{pass:?}");
    let landed = site.landing().join("s/d/m/2024/03/31/00/large.parquet");
    assert!(!landed.exists());
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    site.assert_landed(&[&spoke]);
}

pub fn lacks_strace() -> Option<String> {
    let works = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    let works = works.is_ok_and(|s| s.success());
    (!works).then(|| "needs strace, and the right to trace".to_owned())
}

/// A loop over the first sync that fails ends where none is reached.
const SYNCS_MAX: usize = 30;

/// Fails the n-th sync of a thread and all behind it: strace counts by thread.
fn injection(nth: usize) -> String {
    format!("inject=fsync,fdatasync:error=EIO:when={nth}+")
}

/// strace attached to a running process, which is let go when this is dropped.
struct Tracer(Child);

impl Tracer {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        // It says on stderr when it is there.
        let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("attached") {
            line.clear();
            let n = std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
            assert!(n > 0, "strace did not attach");
        }
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
        Self(child)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        let _ = self.0.wait();
    }
}

/// strace on a running process, which fails syncs of one file from the n-th on.
struct Saboteur {
    tracer: Tracer,
    log: PathBuf,
}

impl Saboteur {
    fn attach(site: &Site, pid: u32, file: &Path, nth: usize) -> Self {
        let log = site.path().join("strace.log");
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=fsync,fdatasync", "-e", &injection(nth)]);
        command.arg("-P").arg(file).arg("-o").arg(&log);
        command.args(["-p", &pid.to_string()]);
        Self { tracer: Tracer::start(command), log }
    }

    fn has_failed(&self) -> bool {
        fs::read_to_string(&self.log).unwrap_or_default().contains("(INJECTED)")
    }

    /// Whether it failed a sync; the process runs on untraced.
    fn leave(self) -> bool {
        let Self { tracer, log } = self;
        drop(tracer);
        fs::read_to_string(log).unwrap_or_default().contains("(INJECTED)")
    }
}

fn no_receipt_covers_what_a_failed_sync_of_the_hubs_databases_lost() {
    for (name, nth) in
        [("raft.db-wal", 1), ("raft.db-wal", 2), ("node.db-wal", 1), ("node.db-wal", 2)]
    {
        let what = format!("{name}, from sync {nth} on");
        let site = Site::new();
        let mut hub = site.hub();
        let address = hub.address.clone();
        let spoke = site.spoke("s");
        spoke.put("d/m/2024/03/31/00/a.parquet", &tiny(1));
        spoke.put("d/m/2024/03/31/01/b.parquet", &tiny(2));
        let file = fs::canonicalize(site.path().join("hub")).unwrap().join(name);
        let saboteur = Saboteur::attach(&site, hub.pid(), &file, nth);
        let (mut pass, mut files) = (spoke.push(), 2);
        // Whichever thread comes to its second sync.
        while nth > 1 && !saboteur.has_failed() && files < 20 {
            files += 1;
            spoke.put(&format!("d/m/2024/03/31/01/{files}.parquet"), &tiny(files));
            pass = spoke.push();
        }
        assert_eq!(pass.count("failed"), 0, "{what}: {pass:?}");
        let synced = spoke.status()["synced"].as_u64().unwrap();
        let landed = tree(&site.landing()).len() as u64;
        assert!(synced <= landed, "{what}: {synced} are synced, {landed} landed: {pass:?}");
        assert!(saboteur.leave(), "{what}: no sync was failed");
        if nth == 1 {
            // Every sync failed, so nothing may have been answered for.
            let counts = (pass.code, synced, pass.count("sent"));
            assert_eq!(counts, (75, 0, 0), "{what}: {pass:?}");
        }
        // A hub whose Raft log cannot be synced ends; one whose ledger cannot goes on.
        if name.starts_with("raft") {
            wait_for("the hub ended", || hub.has_ended());
            hub = site.hub_with(&address, &[]);
        }
        assert!(!hub.has_ended(), "{what}");
        let whole = spoke.push();
        assert_eq!((whole.code, whole.count("left")), (0, 0), "{what}: {whole:?}");
        // What no receipt covered was offered again, and sent unless the hub had it.
        let again = whole.count("sent") + whole.count("present");
        let all = (files, Some(files));
        assert_eq!((again, spoke.status()["synced"].as_u64()), all, "{what}: {whole:?}");
        site.assert_landed(&[&spoke]);
        drop(hub);
    }
}

fn a_spoke_whose_ledger_cannot_be_synced_says_so_and_sends_again() {
    let mut reached = 0;
    for nth in 1..=SYNCS_MAX {
        let site = Site::new();
        let _hub = site.hub();
        let spoke = site.spoke("s");
        spoke.put("d/m/2024/03/31/00/a.parquet", &tiny(1));
        let state = fs::canonicalize(spoke.state()).unwrap();
        let log = site.path().join("strace.log");
        let push = spoke.push_command();
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=fsync,fdatasync", "-e", &injection(nth)]);
        command.arg("-P").arg(state.join("ledger.db-wal")).arg("-o").arg(&log);
        command.arg(push.get_program()).args(push.get_args()).env("BARQUE_CONFIG", "/dev/null");
        let output = command.output().unwrap();
        let was_failed = fs::read_to_string(&log).unwrap().contains("(INJECTED)");
        if !was_failed {
            assert_eq!(pass_of(output).code, 0);
            break;
        }
        reached = nth;
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(err.contains("ledger.db") || err.contains("the end of the pass"), "{nth}: {err}");
        // Only what stands in the ledger counts, and it is never ahead of the hub.
        let synced = spoke.status()["synced"].as_u64().unwrap();
        assert!(output.status.code() != Some(0) || synced == 1, "sync {nth}: {err}");
        assert!(synced <= tree(&site.landing()).len() as u64, "sync {nth}");
        let whole = spoke.push();
        assert_eq!((whole.code, whole.count("left")), (0, 0), "sync {nth}: {whole:?}");
        assert_eq!(spoke.status()["synced"], 1, "sync {nth}");
        site.assert_landed(&[&spoke]);
    }
    assert!((4..SYNCS_MAX).contains(&reached), "{reached} syncs were failed");
}

/// A system call that ended well: its text, when it began and when it ended.
#[derive(Debug)]
struct Call {
    text: String,
    began: f64,
    ended: f64,
}

/// The calls of all threads, from one strace file a thread, in the order of their ends.
fn calls(folder: &Path) -> Vec<Call> {
    let mut calls = Vec::new();
    for item in fs::read_dir(folder).unwrap() {
        let text = fs::read(item.unwrap().path()).unwrap();
        for line in String::from_utf8_lossy(&text).lines() {
            // `1700000000.123456 fsync(9</x>) = 0 <0.000123>`
            let Some((began, rest)) = line.split_once(' ') else { continue };
            let Ok(began) = began.parse::<f64>() else { continue };
            let took =
                rest.rsplit_once('<').and_then(|(_, t)| t.trim_end_matches('>').parse().ok());
            let Some(took): Option<f64> = took else { continue };
            if !rest.contains(" = -1 ") {
                calls.push(Call { text: rest.to_owned(), began, ended: began + took });
            }
        }
    }
    calls.sort_by(|a, b| a.ended.total_cmp(&b.ended));
    calls
}

/// Two files that go alone, and a group; the names of the first of each.
fn push_alone_and_as_a_group(spoke: &Spoke) -> [&'static str; 3] {
    let names = [
        "d/m/2024/03/31/00/a.parquet",
        "d/m/2024/03/31/01/b.parquet",
        "d/m/2024/03/31/02/0.parquet",
    ];
    for (n, name) in (1..).zip(&names[..2]) {
        spoke.put(name, &tiny(n));
        assert_eq!(spoke.push().count("sent"), 1);
    }
    for n in 0..GROUP {
        spoke.put(&format!("d/m/2024/03/31/02/{n}.parquet"), &tiny(100 + n));
    }
    assert_eq!(spoke.push().count("sent"), GROUP);
    names
}

fn everything_that_a_receipt_says_is_synced_before_it_is_written() {
    let site = Site::new();
    let trace = site.path().join("trace");
    fs::create_dir(&trace).unwrap();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("s");
    let mut command = Command::new("strace");
    command.args(["-ff", "-ttt", "-T", "-y", "-s", "100000", "-e"]);
    command.arg("trace=fsync,fdatasync,syncfs,renameat2,mkdir,write,writev,sendto,sendmsg");
    command.arg("-o").arg(trace.join("t")).args(["-p", &hub.pid().to_string()]);
    let tracer = Tracer::start(command);
    let names = push_alone_and_as_a_group(&spoke);
    drop(tracer);
    drop(hub);
    let data = fs::canonicalize(site.path().join("hub")).unwrap();
    let calls = calls(&trace);
    let receipts: Vec<&Call> = calls
        .iter()
        .filter(|c| !c.text.starts_with("f") && c.text.contains(r#"{\"done\":{\"receipt\""#))
        .collect();
    assert_eq!(receipts.len(), 3, "one receipt a bundle");
    let at_once = platform::reports_writes(&fs::File::open(&data).unwrap());
    // Folders of landing that were durable before.
    let mut durable: BTreeSet<PathBuf> = BTreeSet::new();
    let mut since = 0.0;
    for (receipt, name) in receipts.into_iter().zip(names) {
        let within = |c: &&Call| c.began > since && c.ended < receipt.began;
        let of_this: Vec<&Call> = calls.iter().filter(within).collect();
        let first = |what: &str, after: f64, is: &dyn Fn(&str) -> bool| -> f64 {
            let found = of_this.iter().find(|c| c.began >= after && is(&c.text));
            found
                .unwrap_or_else(|| panic!("{name}: no {what} before the receipt: {of_this:#?}"))
                .ended
        };
        let is_sync = |t: &str| t.starts_with("fsync") || t.starts_with("fdatasync");
        let of = |path: PathBuf| format!("<{}>", path.display());
        // Each step begins after the one before it has ended.
        let folder = of(data.join("staging"));
        let is_group = at_once && name == names[2];
        let staged = first("sync of what is staged", since, &|t| match is_group {
            true => t.starts_with("syncfs") && t.contains(&folder),
            false => is_sync(t) && t.contains(".staged>"),
        });
        let below = format!("<{}/", data.join("staging").display());
        let listed = first("sync of the staged file's folder", staged, &|t| {
            is_sync(t) && t.contains(&below) && !t.contains(".staged>")
        });
        let wal = |db: &str| of(data.join(format!("{db}-wal")));
        let (node, raft) = (wal("node.db"), wal("raft.db"));
        let noted = first("sync of node.db", listed, &|t| is_sync(t) && t.contains(&node));
        let agreed = first("sync of raft.db", noted, &|t| is_sync(t) && t.contains(&raft));
        let landed = data.join("landing/s").join(name).display().to_string();
        let shown = first("rename", agreed, &|t| t.starts_with("renameat2") && t.contains(&landed));
        // The file's folder and every one above it that is new.
        let mut last = shown;
        for above in Path::new(&landed)
            .ancestors()
            .skip(1)
            .take_while(|p| p.starts_with(data.join("landing")))
        {
            let at = of(above.to_owned());
            last = last.max(first("sync of a folder", shown, &|t| is_sync(t) && t.contains(&at)));
            // The one that has the new name, and none above it.
            if !durable.insert(above.to_owned()) {
                break;
            }
        }
        first("sync of node.db after the rename", last, &|t| is_sync(t) && t.contains(&node));
        since = receipt.ended;
    }
}
