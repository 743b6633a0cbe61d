//! `barque hub serve`.

use std::sync::Arc;

use barque_hub::Hub;
use tokio::signal::unix::{SignalKind, signal};

use super::Context;
use crate::args::HubServeArgs;
use crate::command::now;
use crate::exit;

pub async fn run(context: &Context, args: HubServeArgs) -> anyhow::Result<u8> {
    let config = context.file.hub(args.data.data, args.listen, args.plain);
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
