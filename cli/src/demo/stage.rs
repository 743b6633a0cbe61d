//! What demos share: a folder with spokes in it, and the table of what was done.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use barque_bundle::ByteSize;
use serde_json::Value;

use super::process::{Running, barque, run_json};
use super::{sent, text};
use crate::sample::{self, Plan};
use crate::{exit, output};

const ROWS: u32 = 2_000;

/// One line of the table.
struct Step {
    what: String,
    pid: String,
    result: String,
}

pub struct Stage {
    pub root: PathBuf,
    steps: Vec<Step>,
    json: bool,
    started: Instant,
}

impl Stage {
    pub fn new(root: PathBuf, json: bool) -> Self {
        Self { root, steps: Vec::new(), json, started: Instant::now() }
    }

    pub fn step(&mut self, what: impl Into<String>, pid: Option<u32>, result: impl Into<String>) {
        let pid = pid.map_or(String::new(), |p| p.to_string());
        let step = Step { what: what.into(), pid, result: result.into() };
        if !self.json {
            output::say(&format!("{}: {}", step.what, step.result));
        }
        self.steps.push(step);
    }

    /// All steps as one table, or as JSON.
    pub fn print(&self) {
        let (steps, took) = (&self.steps, self.started.elapsed());
        if self.json {
            let steps: Vec<Value> = steps
                .iter()
                .map(|s| serde_json::json!({ "step": s.what, "pid": s.pid, "result": s.result }))
                .collect();
            let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            output::line(
                &serde_json::json!({ "steps": steps, "duration_ms": duration_ms }).to_string(),
            );
            return;
        }
        let width = steps.iter().map(|s| s.what.len()).max().unwrap_or(0);
        output::line(&format!("\n{:width$}  {:>8}  result", "step", "pid"));
        for s in steps {
            output::line(&format!("{:width$}  {:>8}  {}", s.what, s.pid, s.result));
        }
        output::line(&format!("{:width$}  {:>8}  {:.1} s", "all", "", took.as_secs_f64()));
    }

    pub fn source(&self, spoke: &str) -> PathBuf {
        self.root.join(spoke).join("source")
    }

    pub fn state(&self, spoke: &str) -> String {
        self.root.join(spoke).join("state").display().to_string()
    }

    /// Makes a spoke's files, the same for the same seed; their bytes.
    pub fn samples(
        &mut self,
        spoke: &str,
        files: u64,
        large: Option<ByteSize>,
        seed: u64,
    ) -> anyhow::Result<u64> {
        let plan = Plan { files, rows: ROWS, large, seed };
        let written = sample::write(&self.source(spoke), &plan, |_| ())?;
        let result = format!("{} files, {}", written.files, ByteSize(written.bytes));
        self.step(format!("sample data for {spoke}"), None, result);
        Ok(written.bytes)
    }

    /// Enrolls a spoke at the hub that a folder is of.
    pub fn enroll(&mut self, spoke: &str, data: &str) -> anyhow::Result<()> {
        let added = run_json(&["hub", "spoke", "add", spoke, "--data", data, "--json"])?;
        let (token, state) = (text(&added, "token"), self.state(spoke));
        let source = self.source(spoke).display().to_string();
        run_json(&["enroll", &token, "--state", &state, "--source", &source, "--json"])?;
        self.step(format!("{spoke} enrolled"), None, "one-time token, root pinned");
        Ok(())
    }

    pub fn start_push(&self, spoke: &str) -> anyhow::Result<Running> {
        let log = self.root.join(format!("{spoke}.log"));
        Running::start_piped(&mut barque(&["push", "--state", &self.state(spoke), "--json"]), &log)
    }

    /// Waits for a push through which a hub was killed.
    pub fn end_push(&mut self, spoke: &str, push: Running) -> anyhow::Result<()> {
        let (pid, code, report) = push.report()?;
        ensure!(code == exit::OK || code == exit::TRY_LATER, "{spoke} ended with {code}");
        let result = format!("{}, exit {code}", sent(&report));
        self.step(format!("{spoke} pushes"), Some(pid), result);
        Ok(())
    }

    /// The drive is back at its spoke: its receipt covers all of its files.
    pub fn acknowledge(&mut self, spoke: &str, bundle: &str, files: u64) -> anyhow::Result<()> {
        let state = self.state(spoke);
        let acked = run_json(&["bundle", "ack", bundle, "--state", &state, "--json"])?;
        let synced = acked.pointer("/receipts/0/synced").and_then(Value::as_u64).unwrap_or(0);
        ensure!(synced == files, "{synced} of {files} files are synced: {acked}");
        self.step("the drive is back", None, format!("{synced} files synced by the receipt"));
        Ok(())
    }

    pub fn all_equal(&mut self, files: u64) {
        let result = format!("{files} equal their sources, 0 differ");
        self.step("every landed file hashed", None, result);
    }
}
