//! `barque demo`: the main job with real processes, told as one table.
//!
//! A hub with TLS and four spokes, of which a drive alone connects one. The hub is killed with -9 in
//! the middle of the pushes, and the link of one is cut in the middle of its large file; at the end
//! every landed file is hashed against its source. Anything that differs is a failure.

mod drive;
mod link;
mod nodes;
mod process;
mod stage;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use barque_bundle::{ByteSize, Sha256Digest};
use serde_json::Value;

use crate::args::DemoArgs;
use crate::command::Context;
use crate::{exit, output};
use link::Link;
use process::{Running, barque, run_json};
use stage::Stage;

const SPOKES: [(&str, u64); 2] = [("rocket-01", 2000), ("submarine-01", 1000)];
/// The spoke with the large file and the bad link.
const MINE: &str = "mine-01";
const LARGE: ByteSize = ByteSize(256 * 1024 * 1024);
/// Most bytes that may go over the link for a file, in hundredths of its size.
const WIRE_PERCENT_MAX: u64 = 105;
const LEAST_BYTES: u64 = 400 * 1024 * 1024;

struct Demo {
    stage: Stage,
    hub: Option<Running>,
}

pub async fn run(context: &Context, args: &DemoArgs) -> anyhow::Result<u8> {
    if args.nodes > 1 {
        return tokio::task::block_in_place(|| nodes::run(context, args));
    }
    let folder = tempfile::Builder::new().prefix("barque-demo-").tempdir()?;
    let stage = Stage::new(folder.path().to_owned(), context.global.json);
    let mut demo = Demo { stage, hub: None };
    let outcome = tokio::task::block_in_place(|| demo.play());
    demo.stage.print();
    if args.keep {
        let root = folder.keep();
        demo.leave(&root);
    }
    outcome?;
    Ok(exit::OK)
}

impl Demo {
    fn play(&mut self) -> anyhow::Result<()> {
        let bytes = self.make_samples()?;
        ensure!(bytes >= LEAST_BYTES, "the samples have only {bytes} bytes");
        let listen = self.start_hub("127.0.0.1:0")?;
        for (spoke, _) in SPOKES {
            self.enroll(spoke)?;
        }
        self.push_through_a_kill(&listen)?;
        for (spoke, _) in SPOKES {
            self.push_nothing(spoke)?;
        }
        self.push_through_a_cut(&listen)?;
        self.carry_a_drive()?;
        self.change_one_file()?;
        self.compare()
    }

    fn data(&self) -> String {
        self.stage.root.join("hub").display().to_string()
    }

    fn make_samples(&mut self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        let more = [(MINE, 0), (drive::ISLAND, 300)];
        for (seed, (spoke, files)) in (1..).zip(SPOKES.into_iter().chain(more)) {
            let large = (spoke == MINE).then_some(LARGE);
            bytes += self.stage.samples(spoke, files, large, seed)?;
        }
        Ok(bytes)
    }

    /// Starts the hub on its folder; the address that it really listens on.
    fn start_hub(&mut self, listen: &str) -> anyhow::Result<String> {
        let data = self.data();
        if !Path::new(&data).exists() {
            run_json(&["hub", "init", "--data", &data, "--json"])?;
        }
        let log = self.stage.root.join("hub.log");
        let mut command = barque(&["hub", "serve", "--data", &data, "--listen", listen]);
        let hub = Running::start(&mut command, &log)?;
        let pid = hub.pid();
        self.hub = Some(hub);
        let status = run_json(&["hub", "status", "--data", &data, "--json"])
            .with_context(|| format!("the hub does not start, see {}", log.display()))?;
        let url = text(&status, "url");
        self.stage.step(
            "hub serves",
            Some(pid),
            format!("{url}, {} files", number(&status, "files")),
        );
        Ok(url.trim_start_matches("https://").to_owned())
    }

    fn enroll(&mut self, spoke: &str) -> anyhow::Result<()> {
        let data = self.data();
        self.stage.enroll(spoke, &data)
    }

    /// Both spokes push at once; the hub is killed when a third has landed, and started again.
    fn push_through_a_kill(&mut self, listen: &str) -> anyhow::Result<()> {
        let pushes = SPOKES.map(|(spoke, _)| self.stage.start_push(spoke));
        let third = SPOKES.iter().map(|(_, n)| n).sum::<u64>() / 3;
        let deadline = Instant::now() + Duration::from_secs(60);
        while count_files(&self.stage.root.join("hub/landing")) < third {
            ensure!(Instant::now() < deadline, "nothing lands");
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(hub) = self.hub.take() {
            let pid = hub.pid();
            hub.kill()?;
            let landed = count_files(&self.stage.root.join("hub/landing"));
            self.stage.step("hub killed with -9", Some(pid), format!("{landed} files had landed"));
        }
        for (push, (spoke, _)) in pushes.into_iter().zip(SPOKES) {
            self.stage.end_push(spoke, push?)?;
        }
        self.start_hub(listen)?;
        for (spoke, _) in SPOKES {
            let (pid, code, report) = self.stage.start_push(spoke)?.report()?;
            ensure!(code == exit::OK, "{spoke} ended with {code}: {report}");
            ensure!(number(&report, "left") == 0, "{spoke} has files left");
            self.stage.step(format!("{spoke} pushes the rest"), Some(pid), sent(&report));
        }
        Ok(())
    }

    fn push_nothing(&mut self, spoke: &str) -> anyhow::Result<()> {
        let (pid, code, report) = self.stage.start_push(spoke)?.report()?;
        ensure!(code == exit::OK && number(&report, "sent") == 0, "{spoke} sent again: {report}");
        self.stage.step(format!("{spoke} pushes again"), Some(pid), sent(&report));
        Ok(())
    }

    /// A link that breaks when half of the large file has gone: the rest goes on from there.
    fn push_through_a_cut(&mut self, hub: &str) -> anyhow::Result<()> {
        self.enroll(MINE)?;
        let bytes: u64 = files_below(&self.stage.source(MINE))
            .iter()
            .map(|p| std::fs::metadata(p).map(|m| m.len()))
            .sum::<Result<_, _>>()?;
        let link = Link::start(hub, bytes / 2)?;
        let config = Path::new(&self.stage.state(MINE)).join("spoke.toml");
        let text = std::fs::read_to_string(&config)?;
        ensure!(text.contains(hub), "{} does not name the hub", config.display());
        std::fs::write(&config, text.replace(hub, &link.address))?;
        let (pid, code, report) = self.stage.start_push(MINE)?.report()?;
        ensure!(code == exit::OK, "{MINE} ended with {code}: {report}");
        let offset = report.pointer("/resumed/0/offset").and_then(Value::as_u64).unwrap_or(0);
        ensure!(offset > 0, "the file did not go on where it broke off: {report}");
        let wire = link.carried();
        ensure!(
            wire <= bytes / 100 * WIRE_PERCENT_MAX,
            "{wire} bytes went over the link for a file of {bytes}"
        );
        let result = format!(
            "file {}, on the wire {}, resumed from {}",
            ByteSize(bytes),
            ByteSize(wire),
            ByteSize(offset)
        );
        self.stage.step(format!("{MINE} pushes, link cut"), Some(pid), result);
        Ok(())
    }

    /// A synced file changes: first `modified`, and once requeued a `conflict`; the hub's stays.
    fn change_one_file(&mut self) -> anyhow::Result<()> {
        let (spoke, _) = SPOKES[1];
        let path = "factory/temperature/2024/03/31/00/part-000.parquet";
        let other =
            self.stage.source(spoke).join("factory/temperature/2024/03/31/01/part-000.parquet");
        let file = self.stage.source(spoke).join(path);
        let original = std::fs::read(&file)?;
        std::fs::write(&file, std::fs::read(&other)?)?;
        let (pid, code, report) = self.stage.start_push(spoke)?.report()?;
        ensure!(number(&report, "modified") == 1, "not seen as modified: {report}");
        let result = format!("{} modified, {}, exit {code}", 1, sent(&report));
        self.stage.step("a synced file changed", Some(pid), result);
        run_json(&["ledger", "requeue", path, "--state", &self.stage.state(spoke), "--json"])?;
        let (pid, code, report) = self.stage.start_push(spoke)?.report()?;
        ensure!(number(&report, "conflict") == 1, "not a conflict: {report}");
        ensure!(code == exit::NEEDS_A_PERSON, "a conflict ended with {code}");
        let result = format!("{} conflict, {}, exit {code}", 1, sent(&report));
        self.stage.step("requeued and pushed", Some(pid), result);
        std::fs::write(&file, original)?;
        Ok(())
    }

    /// Hashes every source file and its landed copy.
    fn compare(&mut self) -> anyhow::Result<()> {
        let mut equal = 0;
        for spoke in SPOKES.map(|(spoke, _)| spoke).into_iter().chain([MINE, drive::ISLAND]) {
            let source = self.stage.source(spoke);
            let landed = self.stage.root.join("hub/landing").join(spoke);
            for path in files_below(&source) {
                let relative = path.strip_prefix(&source)?;
                let there = landed.join(relative);
                ensure!(digest(&path)? == digest(&there)?, "{} differs", there.display());
                equal += 1;
            }
        }
        let landed = count_files(&self.stage.root.join("hub/landing"));
        ensure!(landed == equal, "{landed} files landed, {equal} were sent");
        self.stage.all_equal(equal);
        Ok(())
    }

    fn leave(&mut self, root: &Path) {
        let landing = root.join("hub/landing");
        if let Some(hub) = self.hub.take() {
            output::line(&format!(
                "\nthe hub runs on as process {}; all is in {}",
                hub.pid(),
                root.display()
            ));
            hub.leave();
        }
        output::line(&format!(
            "query it: duckdb -c \"select count(*) from '{}/**/*.parquet'\"",
            landing.display()
        ));
    }
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

fn sent(report: &Value) -> String {
    format!(
        "{} sent, {} present, {} left",
        number(report, "sent"),
        number(report, "present"),
        number(report, "left")
    )
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for item in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match item.file_type() {
                Ok(t) if t.is_dir() => folders.push(item.path()),
                Ok(t) if t.is_file() => found.push(item.path()),
                _ => {}
            }
        }
    }
    found
}

fn count_files(folder: &Path) -> u64 {
    files_below(folder).len() as u64
}

fn digest(path: &Path) -> anyhow::Result<Sha256Digest> {
    let mut file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    Ok(Sha256Digest::of_reader(&mut file)?.0)
}
