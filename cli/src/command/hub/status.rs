//! `barque hub status`.

use barque_bundle::ByteSize;
use barque_bundle::wire::HubStatus;

use super::{Context, client};
use crate::args::HubTargetArgs;
use crate::{exit, output};

/// A certificate that lives no longer than this should have been renewed.
const WARN_MS: i64 = 29 * 86_400_000;

/// State older than this is said to be.
const STALE_MS: u64 = 10_000;

pub async fn run(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    let s: HubStatus = client(context, target)?.get("/hub/status").await?;
    if context.global.json {
        output::json(&s)?;
        return Ok(exit::OK);
    }
    output::line(&format!("hub {} at {} (barque {})", s.hub_id, s.url, s.version));
    output::line(&format!(
        "  {} files, {}, {} spokes; {} free",
        s.files,
        ByteSize(s.bytes),
        s.spokes,
        ByteSize(s.free_bytes)
    ));
    output::line(&format!(
        "  node {}, leader {}, term {}, position {}, visible up to {}",
        s.node_id,
        s.leader.as_deref().unwrap_or("none"),
        s.term,
        s.position,
        s.promoted_position
    ));
    if s.nodes.len() > 1 {
        s.nodes.iter().for_each(|n| output::line(&format!("  {}", super::node::told(n))));
    }
    if let Some(why) = &s.outside {
        output::line(&format!("  warning: this node takes no part: {why}"));
    }
    if let Some(age) = s.age_ms.filter(|age| *age > STALE_MS) {
        output::line(&format!("  warning: what this node knows may be {} s old", age / 1000));
    }
    let now = crate::command::now();
    if let Some(end) = s.certificate_expires_at.filter(|e| e.since_ms(now) < WARN_MS) {
        output::line(&format!(
            "  warning: the server certificate ends {end}; it is renewed by itself 30 days before \
             its end, so see the hub's log for why that fails"
        ));
    }
    Ok(exit::OK)
}
