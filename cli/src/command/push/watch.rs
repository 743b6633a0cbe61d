//! `barque push --watch`.

use std::time::Duration;

use barque_spoke::budget::Stop;
use barque_spoke::push::{Mode, Options};
use barque_spoke::watch::Watch;
use barque_spoke::{PushReport, StateFolder};
use tokio::signal::unix::{SignalKind, signal};

use super::{Context, complain, edge, show, summary};
use crate::{exit, output};

/// A pass that does not end by itself after a signal is ended: what it did is safe at any point.
const END_WAIT: Duration = Duration::from_secs(8);

pub async fn run(
    context: &Context,
    state: &StateFolder,
    options: Options,
    rescan: Duration,
) -> anyhow::Result<u8> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let (tell, told) = tokio::sync::watch::channel(false);
    // A task of its own: a scan may keep the other one busy.
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        tell.send_replace(true);
        tokio::time::sleep(END_WAIT).await;
        std::process::exit(exit::OK.into());
    });
    let bar = output::bar(context.global.quiet || context.global.json);
    let edge = edge();
    let watch = Watch {
        state,
        edge: &edge,
        options: Options { stop: Stop::new(told), ..options },
        rescan,
        events: &|event| show(&bar, &event),
        told: &|passed| match passed {
            Ok(report) => bar.suspend(|| tell_of(context, report)),
            Err(e) => {
                let e = anyhow::anyhow!(barque_bundle::error::chain(e));
                bar.suspend(|| output::error(&e, exit::TRY_LATER, None, false));
            }
        },
    };
    let watched = watch.run().await;
    bar.finish_and_clear();
    watched?;
    Ok(exit::OK)
}

/// One line of JSON for a pass, or its summary; nothing for one that had nothing to do.
fn tell_of(context: &Context, report: &PushReport) {
    if report.of_all().all(|r| r.is_idle) {
        return;
    }
    if context.global.json {
        output::json_line(report);
    } else if !context.global.quiet {
        summary(report, Mode::Real);
    }
    complain(report, context);
}
