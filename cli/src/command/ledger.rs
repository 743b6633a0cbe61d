//! `barque ledger requeue|dismiss`.

use barque_bundle::path::printable;
use barque_spoke::plan::State;
use barque_spoke::requeue::{self, Mode, Verb, Which};

use super::{Context, edge};
use crate::args::{LedgerArgs, LedgerVerb};
use crate::{exit, output};

pub fn run(context: &Context, verb: LedgerVerb) -> anyhow::Result<u8> {
    let (verb, args) = match verb {
        LedgerVerb::Requeue(args) => (Verb::Requeue, args),
        LedgerVerb::Dismiss(args) => (Verb::Dismiss, args),
    };
    let state = context.state(&args.state);
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Real };
    let decided = requeue::decide(&state, &edge(), verb, &which(&args)?, mode)?;
    if context.global.json {
        output::json(&decided)?;
    } else {
        let word = match (verb, mode) {
            (Verb::Requeue, Mode::Real) => "requeued",
            (Verb::Dismiss, Mode::Real) => "dismissed",
            (Verb::Requeue, Mode::DryRun) => "would requeue",
            (Verb::Dismiss, Mode::DryRun) => "would dismiss",
        };
        for path in decided.changed.iter().filter(|_| !context.global.quiet) {
            output::line(&format!("{word} {}", printable(path)));
        }
        for u in &decided.unchanged {
            output::say(&format!("unchanged: {}: {}", u.path, u.detail));
        }
    }
    Ok(if decided.unchanged.is_empty() { exit::OK } else { exit::FAILED })
}

fn which(args: &LedgerArgs) -> anyhow::Result<Which> {
    let Some(name) = &args.all else {
        return Ok(Which::Paths(args.paths.clone()));
    };
    State::parse(name).map(Which::State).ok_or_else(|| {
        anyhow::anyhow!(
            "{name:?} is no state; there are conflict, failed, modified, dismissed, removed and skipped"
        )
    })
}
