//! What a pass tells a person: what happened, what it means for the data, what to do.

use barque_bundle::path::printable;
use barque_bundle::{ByteSize, ErrorKind};
use barque_spoke::PushReport;
use barque_spoke::hub_client::CallError;
use barque_spoke::push::Conflict;

/// What ended a pass before its time; none when nothing did.
pub fn fault(report: &PushReport) -> Option<String> {
    let error = report.error.as_ref()?;
    let next = match error {
        _ if !report.is_refused => "nothing is lost, the next push goes on".to_owned(),
        CallError::WrongRoot { .. } => {
            "nothing was sent. If the hub was set up anew, enroll this spoke again: \
             barque hub spoke add NAME there, barque enroll TOKEN here; if not, find out who answers"
                .to_owned()
        }
        CallError::Refused(p) if p.code == "spoke_disabled" => {
            "nothing is lost; the hub's operator lets it in again: barque hub spoke enable NAME"
                .to_owned()
        }
        CallError::Refused(p) if p.code == "unknown_key" => {
            "nothing is lost; enroll this spoke again with a token of that hub".to_owned()
        }
        _ if error.kind() == ErrorKind::Full => {
            "nothing is lost, the next push tries again".to_owned()
        }
        _ => "nothing is lost, and trying again will not help before that is mended".to_owned(),
    };
    let error = barque_bundle::error::chain(error);
    Some(format!("error: {error}; {}; {next}", waiting(report)))
}

/// What waits, and since when.
fn waiting(report: &PushReport) -> String {
    match (report.left, report.left_since) {
        (0, _) => "no file waits".to_owned(),
        (n, since) => {
            let (files, wait) = if n == 1 { ("file", "waits") } else { ("files", "wait") };
            let since = since.map_or(String::new(), |t| format!(", the oldest since {t}"));
            format!("{n} {files} ({}) {wait}{since}", ByteSize(report.left_bytes))
        }
    }
}

/// Both contents of a path, and the ways out.
pub fn conflict(c: &Conflict) -> String {
    let digest =
        |d: Option<barque_bundle::Sha256Digest>| d.map_or("unknown".to_owned(), |d| d.to_string());
    let path = printable(&c.path);
    format!(
        "conflict: {path}: the hub holds other content under this path, and keeps it\n\
         \x20 ours:  {}, modified {}\n\
         \x20 hub's: {}, {}\n\
         \x20 rename the file to ship it beside the hub's, or set it aside: barque ledger dismiss '{path}'",
        digest(c.sha256),
        c.modified_at,
        digest(c.their_sha256),
        c.theirs.as_deref().unwrap_or("time unknown")
    )
}
