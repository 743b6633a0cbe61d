//! What a work found, as Markdown: shown as it comes, and written into a document.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plot::Plot;

/// The findings of one work.
pub struct Page {
    name: &'static str,
    text: String,
    /// Where plots go.
    plots: PathBuf,
}

/// Adds a line to a page.
macro_rules! tell {
    ($page:expr, $($line:tt)*) => { $page.line(format_args!($($line)*)) };
}
pub(crate) use tell;

impl Page {
    /// A page of this work; its plots go to a folder `plots` beside the document, or here.
    pub fn new(name: &'static str, document: Option<&Path>) -> Self {
        let plots = document.map_or("plots".into(), |d| d.with_file_name("plots"));
        Self { name, text: String::new(), plots }
    }

    #[expect(clippy::print_stdout, reason = "its result is for people")]
    pub fn line(&mut self, line: std::fmt::Arguments<'_>) {
        println!("{line}");
        writeln!(self.text, "{line}").unwrap();
    }

    /// Draws a plot, and shows it.
    pub fn plot(&mut self, file: &str, plot: &Plot) {
        std::fs::create_dir_all(&self.plots).unwrap();
        plot.write(&self.plots.join(file));
        tell!(self, "\n![{}](plots/{file})", plot.title);
    }

    /// Puts the page between its marks in a document, or at its end, with what it was measured on.
    pub fn write_into(&self, document: &Path, is_quick: bool, commit: &str) {
        let before = std::fs::read_to_string(document).unwrap();
        let (begin, end) =
            (format!("<!-- {} -->\n", self.name), format!("<!-- /{} -->\n", self.name));
        let body =
            format!("{begin}{}\n\n{}\n{end}", self.origin(is_quick, commit), self.text.trim());
        let after = match (before.find(&begin), before.find(&end)) {
            (Some(from), Some(to)) if from < to => {
                format!("{}{body}{}", &before[..from], &before[to + end.len()..])
            }
            (None, None) => format!("{before}\n{body}"),
            _ => panic!("{}: the marks of {} are no pair", document.display(), self.name),
        };
        std::fs::write(document, after).unwrap();
    }

    /// The command that repeats it, and when, where and of what this was measured.
    fn origin(&self, is_quick: bool, commit: &str) -> String {
        let quick = if is_quick { "--quick " } else { "" };
        let version = |program: &str| said(Command::new(program).arg("--version"));
        let versions: Vec<String> = PEERS.into_iter().filter_map(version).map(short).collect();
        let day = said(Command::new("date").args(["-u", "+%F"])).unwrap_or_default();
        format!(
            "`just bench {quick}{}`, {day}, at {}; {}; {}.",
            self.name,
            commit,
            machine(),
            versions.join(", ")
        )
    }
}

const PEERS: [&str; 4] = ["rsync", "rclone", "curl", "syncthing"];

/// The commit that is measured, by its short name.
pub fn commit() -> String {
    let found = said(Command::new("git").args(["describe", "--always", "--dirty"]));
    found.unwrap_or_else(|| "no commit".to_owned())
}

/// The first line that a program says.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_owned())
}

/// The name and the version of a program, without the rest of its first line.
fn short(line: String) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let version =
        words.iter().position(|w| w.starts_with(|c: char| c.is_ascii_digit() || c == 'v'));
    let version = version.filter(|at| *at > 0).and_then(|at| words.get(at));
    match (words.first(), version.filter(|v| **v != "version")) {
        (Some(name), Some(version)) => format!("{name} {}", version.trim_start_matches('v')),
        (Some(name), None) => format!("{name} {}", words.last().unwrap_or(&"")),
        _ => line,
    }
}

/// Processors, memory and kernel of this machine.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let after = |text: &str, key: &str| {
        let line = text.lines().find(|l| l.starts_with(key)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let cpus = read("/proc/cpuinfo");
    let threads = cpus.lines().filter(|l| l.starts_with("processor")).count();
    let memory = after(&read("/proc/meminfo"), "MemTotal");
    let kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    format!(
        "{threads} threads of {}, {} GiB, Linux {}",
        after(&cpus, "model name"),
        kib.div_ceil(1 << 20),
        read("/proc/sys/kernel/osrelease").trim()
    )
}
