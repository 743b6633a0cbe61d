//! `barque push`.

mod explain;
mod watch;

use barque_bundle::ByteSize;
use barque_spoke::PushReport;
use barque_spoke::budget::Limits;
use barque_spoke::push::{self, Event, Mode, Options};
use indicatif::ProgressBar;

use super::{Context, edge};
use crate::args::PushArgs;
use crate::output;

/// Held-back files that are named on a terminal.
const HELD_BACK_SHOWN: usize = 10;

pub async fn run(context: &Context, args: &PushArgs) -> anyhow::Result<u8> {
    let state = context.state(&args.state);
    let mode = if args.dry_run { Mode::DryRun } else { Mode::Real };
    if let Some(splay) = args.splay {
        tokio::time::sleep(splay.mul_f64(rand::random::<f64>())).await;
    }
    let options = Options { mode, ..options(args) };
    if args.watch {
        return watch::run(context, &state, options, args.rescan).await;
    }
    let bar = output::bar(context.global.quiet || context.global.json);
    let report = push::push(&state, &edge(), &options, &|event| show(&bar, &event)).await;
    bar.finish_and_clear();
    let report = report?;
    if context.global.json {
        output::json(&report)?;
    } else if !context.global.quiet {
        summary(&report, mode);
    }
    complain(&report, context);
    Ok(report.exit_code())
}

fn options(args: &PushArgs) -> Options {
    Options {
        hub: args.hub,
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        limits: Limits {
            max_bytes: args.max_bytes,
            max_duration: args.max_duration,
            bandwidth: args.bandwidth.clone(),
            budget: args.budget,
        },
        ..Options::default()
    }
}

fn show(bar: &ProgressBar, event: &Event) {
    match event {
        Event::Scanning { files, hashed_bytes } => {
            bar.set_message(format!("scanning: {files} files, {} hashed", ByteSize(*hashed_bytes)));
        }
        Event::Scanned { pending_bytes, .. } => output::measure(bar, *pending_bytes),
        Event::Sending { files, .. } => bar.set_message(format!("{files} files")),
        Event::SentBytes(n) => bar.inc(*n),
        Event::Waiting { why, ms } => bar.set_message(format!("waiting {ms} ms: {why}")),
    }
}

/// What a pass came to, a line for each hub.
fn summary(report: &PushReport, mode: Mode) {
    for r in report.of_all() {
        if !report.other_hubs.is_empty() {
            output::line(&format!("hub {}", r.hub_id));
        }
        summary_of_hub(r, mode);
    }
}

fn summary_of_hub(r: &PushReport, mode: Mode) {
    let verb = if mode == Mode::DryRun { "would send" } else { "left" };
    output::line(&format!(
        "{} files: {} sent ({}), {} present, {} {verb}, {} conflict, {} modified, {} failed, \
         {} skipped, {} not settled; {:.1} s",
        r.discovered,
        r.sent,
        ByteSize(r.bytes_sent),
        r.present,
        r.left,
        r.conflict,
        r.modified,
        r.failed,
        r.skipped,
        r.not_settled,
        r.duration_ms as f64 / 1000.0
    ));
    for h in r.held_back.iter().take(HELD_BACK_SHOWN) {
        output::line(&format!("held back: {} ({})", h.path, h.code));
    }
    if r.held_back.len() > HELD_BACK_SHOWN {
        let by: Vec<String> = r.skipped_by.iter().map(|(code, n)| format!("{n} {code}")).collect();
        output::line(&format!("and more, {} in all: --json names them", by.join(", ")));
    }
}

/// What a person has to know, on stderr also when quiet: cron mails it.
fn complain(report: &PushReport, context: &Context) {
    report.of_all().for_each(|r| complain_of_hub(r, context));
}

fn complain_of_hub(r: &PushReport, context: &Context) {
    if let Some(fault) = explain::fault(r) {
        output::say(&fault);
    }
    if context.global.json {
        return;
    }
    for w in &r.warnings {
        output::say(&format!("warning: {}: {}", w.code, w.detail));
    }
    for c in &r.conflicts {
        output::say(&explain::conflict(c));
    }
    for f in &r.failures {
        output::say(&format!("{}: {} ({})", f.state, f.detail, f.code));
    }
    for u in &r.unreadable {
        output::say(&format!("incomplete: cannot read {}: {}", u.path, u.detail));
    }
}
