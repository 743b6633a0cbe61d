//! `barque ledger ls|requeue|dismiss|rebuild`.

use barque_bundle::path::printable;
use barque_spoke::plan::State;
use barque_spoke::rebuild;
use barque_spoke::requeue::{self, Mode, Verb, Which};
use barque_spoke::status::{self, FileLine};

use super::{Context, edge};
use crate::args::{LedgerArgs, LedgerLsArgs, LedgerRebuildArgs, LedgerVerb};
use crate::{exit, output};

pub fn run(context: &Context, verb: LedgerVerb) -> anyhow::Result<u8> {
    let (verb, args) = match verb {
        LedgerVerb::Ls(args) => return list(context, &args),
        LedgerVerb::Rebuild(args) => return rebuild(context, &args),
        LedgerVerb::Requeue(args) => (Verb::Requeue, args),
        LedgerVerb::Dismiss(args) => (Verb::Dismiss, args),
    };
    let state = context.state(&args.state);
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Real };
    let decided = requeue::decide(&state, &edge(), verb, &which(&args)?, args.hub, mode)?;
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

fn rebuild(context: &Context, args: &LedgerRebuildArgs) -> anyhow::Result<u8> {
    let state = context.state(&args.state);
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Real };
    let rebuilt = rebuild::rebuild(&state, &edge(), mode)?;
    if context.global.json {
        output::json(&rebuilt)?;
    } else if args.dry_run {
        output::line(&format!(
            "would set {} aside; the next push would hash every file and ask the hub",
            state.ledger().display()
        ));
    } else if !context.global.quiet {
        if let Some(aside) = &rebuilt.aside {
            output::line(&format!("the old ledger is kept as {}", aside.display()));
        }
        output::line(
            "now run barque push: it hashes the files, asks the hub, and sends nothing again that the hub holds",
        );
    }
    Ok(exit::OK)
}

fn list(context: &Context, args: &LedgerLsArgs) -> anyhow::Result<u8> {
    let state = args.state_is.as_deref().map(parse).transpose()?;
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut files: Vec<FileLine> = Vec::new();
    status::files(&context.state(&args.state), state, limit, |file| {
        if context.global.json {
            files.push(file);
        } else {
            print(&file);
        }
    })?;
    if context.global.json {
        output::json(&serde_json::json!({ "files": files }))?;
    }
    Ok(exit::OK)
}

fn print(f: &FileLine) {
    let why = match (&f.code, &f.detail) {
        (Some(code), Some(detail)) => format!("  {code}: {}", printable(detail)),
        _ => String::new(),
    };
    output::line(&format!(
        "{:9}  {:>12}  since {}  {}{why}",
        f.state,
        f.size_bytes,
        f.since,
        printable(&f.path)
    ));
}

fn which(args: &LedgerArgs) -> anyhow::Result<Which> {
    let Some(name) = &args.all else {
        return Ok(Which::Paths(args.paths.clone()));
    };
    parse(name).map(Which::State)
}

fn parse(name: &str) -> anyhow::Result<State> {
    State::parse(name).ok_or_else(|| {
        let names = State::ALL.map(State::as_str).join(", ");
        anyhow::anyhow!("{name:?} is no state; there are {names}")
    })
}
