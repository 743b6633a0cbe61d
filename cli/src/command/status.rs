//! `barque status`.

use barque_bundle::ByteSize;

use super::Context;
use crate::args::StateArgs;
use crate::{exit, output};

pub fn run(context: &Context, args: &StateArgs) -> anyhow::Result<u8> {
    let status = barque_spoke::status::status(&context.state(args))?;
    if context.global.json {
        output::json(&status)?;
        return Ok(exit::OK);
    }
    if let Some(id) = &status.spoke_id {
        output::line(&format!("spoke {id}"));
    }
    for hub in &status.hubs {
        output::line(&format!("hub {} at {}", hub.hub_id, hub.urls.join(", ")));
        output::line(&format!(
            "  {} synced, {} pending ({}), {} exported, {} skipped",
            hub.synced,
            hub.pending + hub.in_flight,
            ByteSize(hub.pending_bytes),
            hub.exported,
            hub.skipped
        ));
        output::line(&format!(
            "  for a person: {} conflict, {} modified, {} failed",
            hub.conflict, hub.modified, hub.failed
        ));
        let time =
            |t: Option<barque_bundle::Timestamp>| t.map_or("never".to_owned(), |t| t.to_string());
        output::line(&format!("  last whole pass: {}", time(hub.last_success)));
        if let Some(oldest) = hub.oldest_pending {
            output::line(&format!("  oldest file waits since {oldest}"));
        }
    }
    Ok(exit::OK)
}
