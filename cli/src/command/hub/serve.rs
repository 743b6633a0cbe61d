//! `barque hub serve`.

use std::sync::Arc;

use barque_hub::{Hub, HubConfig};
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use crate::args::HubServeArgs;
use crate::command::now;
use crate::exit;

pub async fn run(context: &Context, args: HubServeArgs) -> anyhow::Result<u8> {
    let file = &context.file.hub;
    let mut config = HubConfig::new(context.file.data(args.data.data));
    if let Some(listen) = args.listen.or_else(|| file.listen.clone()) {
        config.listen = listen;
    }
    config.plain = args.plain.or(file.plain).unwrap_or(false);
    config.landing_dir = file.landing.dir.clone();
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    };
    let hub = Hub::open(config, Arc::new(now))?;
    hub.run(rand::random, stop).await?;
    Ok(exit::OK)
}
