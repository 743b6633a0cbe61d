//! `barque passes`.

use barque_bundle::ByteSize;
use barque_spoke::ledger::PassRow;

use super::Context;
use crate::args::PassesArgs;
use crate::{exit, output};

pub fn run(context: &Context, args: &PassesArgs) -> anyhow::Result<u8> {
    let passes = barque_spoke::status::passes(&context.state(&args.state), args.limit)?;
    if context.global.json {
        output::json(&serde_json::json!({ "passes": passes }))?;
    } else {
        passes.iter().for_each(print);
    }
    Ok(exit::OK)
}

fn print(p: &PassRow) {
    let took = match (p.ended_at, p.duration_ms) {
        (Some(_), Some(ms)) => format!("{:.1} s", ms as f64 / 1000.0),
        (Some(_), None) => "the clock was set back".to_owned(),
        (None, _) => "no end".to_owned(),
    };
    let c = &p.counts;
    output::line(&format!(
        "{}  {took}  exit {}  {} files: {} sent ({}), {} present, {} left, {} for a person{}",
        p.started_at,
        p.exit_code.map_or("-".to_owned(), |code| code.to_string()),
        c.discovered,
        c.sent,
        ByteSize(c.bytes_sent),
        c.present,
        c.left,
        c.conflict + c.modified + c.failed,
        p.reason.as_ref().map_or(String::new(), |r| format!("  {r}")),
    ));
}
