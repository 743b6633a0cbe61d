//! This program as child processes.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

/// This program with these arguments, deaf to settings of the machine.
pub fn barque(args: &[&str]) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "barque".into());
    let mut command = Command::new(program);
    command.args(args);
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("BARQUE_"))
    {
        command.env_remove(name);
    }
    command.env("BARQUE_CONFIG", "/dev/null");
    command
}

/// Runs to the end and gives the JSON that came on stdout.
pub fn run_json(args: &[&str]) -> anyhow::Result<Value> {
    let output = barque(args).output()?;
    if !output.status.success() {
        bail!("barque {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("the answer is no JSON")
}

/// A child that is killed when it is dropped.
pub struct Running(Option<Child>);

impl Running {
    pub fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        Ok(Self(Some(child)))
    }

    pub fn start_piped(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let log = File::options().create(true).append(true).open(log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
        Ok(Self(Some(child)))
    }

    pub fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    /// SIGKILL, and the end of the process.
    pub fn kill(mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.0.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// Waits for the end: process id, exit code and the JSON on stdout.
    pub fn report(mut self) -> anyhow::Result<(u32, u8, Value)> {
        let child = self.0.take().context("the process was taken before")?;
        let pid = child.id();
        let output = child.wait_with_output()?;
        let code = output.status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(255);
        let report = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("process {pid} ended with {code} and no report"))?;
        Ok((pid, code, report))
    }

    /// Lets the process run on.
    pub fn leave(mut self) {
        self.0.take();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
