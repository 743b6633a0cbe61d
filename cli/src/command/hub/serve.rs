//! `barque hub serve`.

use std::sync::Arc;

use barque_hub::Hub;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use super::Context;
use crate::args::HubServeArgs;
use crate::command::now;
use crate::exit;

pub async fn run(context: &Context, args: HubServeArgs) -> anyhow::Result<u8> {
    if let Err(e) = barque_bundle::platform::raise_open_files() {
        tracing::warn!(error = %e, "the limit of open files stays as it is");
    }
    let mut config = context.file.hub(args.data.data, args.listen, args.plain);
    if !args.allow_dir.is_empty() {
        config.import_dirs = args.allow_dir;
    }
    config.import_only = args.import_only.unwrap_or(config.import_only);
    let cluster = args.cluster;
    config.cluster_listen = cluster.cluster_listen.or(config.cluster_listen);
    config.cluster_advertise = cluster.cluster_advertise.or(config.cluster_advertise);
    config.cluster_plain = cluster.cluster_plain.unwrap_or(config.cluster_plain);
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let hub = Hub::open(config, Arc::new(now))?;
    let (ready, reload) = (hub.ready(), hub.reload());
    tokio::spawn(async move {
        tell_when_ready(ready.clone()).await;
        while hung_up.recv().await.is_some() {
            tell_of_reload(&reload, *ready.borrow());
        }
    });
    let stop = async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        tell(&[NotifyState::Stopping]);
    };
    hub.run(rand::random, stop).await?;
    Ok(exit::OK)
}

/// Tells the service manager, if there is one (sd_notify(3)).
fn tell(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        tracing::warn!(error = %e, "the service manager cannot be told");
    }
}

async fn tell_when_ready(mut ready: watch::Receiver<bool>) {
    if ready.wait_for(|r| *r).await.is_ok() {
        tell(&[NotifyState::Ready]);
    }
}

/// SIGHUP: the certificate on disk is looked at again.
fn tell_of_reload(reload: &Notify, is_ready: bool) {
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
    reload.notify_one();
    if is_ready {
        tell(&[NotifyState::Ready]);
    }
}
