//! Data on stdout, talk on stderr, logs on stderr one line an event.

use std::io::{IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::args::{Global, LogFormat};

pub fn start_logging(global: &Global, default_level: &str) {
    let filter = global
        .log
        .as_deref()
        .and_then(|l| EnvFilter::try_new(l).ok())
        .unwrap_or_else(|| EnvFilter::new(format!("{default_level},openraft=error")));
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter)
        .with_target(false);
    match global.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().init(),
    }
}

/// Prints a value as one JSON object; a closed pipe is no error.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Writes a value as JSON to a file, or to stdout when that is `-`; true when it was stdout.
pub fn file(to: &std::path::Path, value: &impl Serialize) -> anyhow::Result<bool> {
    let text = serde_json::to_string_pretty(value)?;
    if to.as_os_str() == "-" {
        line(&text);
        return Ok(true);
    }
    std::fs::write(to, text + "\n")
        .map_err(|e| anyhow::Error::new(e).context(format!("cannot write {}", to.display())))?;
    Ok(false)
}

/// Prints a value as JSON on one line.
pub fn json_line(value: &impl Serialize) {
    line(&serde_json::to_string(value).unwrap_or_default());
}

/// One line of data.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// One line of talk.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The whole chain of an error in one line; as an object on stdout as well when asked for JSON.
pub fn error(error: &anyhow::Error, code: u8, word: Option<&str>, as_json: bool) {
    let text = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    eprintln!("error: {text}");
    if as_json {
        println!("{}", serde_json::json!({ "error": text, "exit_code": code, "code": word }));
    }
}

/// A number with commas, as `1,204`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A bar for long work, shown on a terminal only and never when quiet.
pub fn bar(quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(std::time::Duration::from_millis(120));
    bar
}

/// Turns a spinner into a bar of bytes.
pub fn measure(bar: &ProgressBar, bytes: u64) {
    let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_length(bytes);
}
