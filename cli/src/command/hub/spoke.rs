//! `barque hub spoke add|ls`.

use barque_bundle::ByteSize;
use barque_bundle::quantity::parse_duration;
use barque_bundle::wire::{AddSpokeRequest, AddSpokeResponse, SPOKES, SpokeList};

use super::{Context, client};
use crate::args::{HubSpokeAddArgs, HubSpokeVerb, HubTargetArgs};
use crate::{exit, output};

pub async fn run(context: &Context, verb: HubSpokeVerb) -> anyhow::Result<u8> {
    match verb {
        HubSpokeVerb::Add(args) => add(context, args).await,
        HubSpokeVerb::Ls(target) => list(context, &target).await,
    }
}

async fn add(context: &Context, args: HubSpokeAddArgs) -> anyhow::Result<u8> {
    let expires = parse_duration(&args.expires)?;
    let request = AddSpokeRequest {
        spoke_id: args.id,
        expires_in_ms: u64::try_from(expires.as_millis()).unwrap_or(u64::MAX),
    };
    let answer: AddSpokeResponse = client(context, &args.target)?.post(SPOKES, &request).await?;
    if context.global.json {
        output::json(&answer)?;
    } else {
        output::line(&answer.token);
        if !context.global.quiet {
            output::say(&format!(
                "{} may enroll until {} with: barque enroll TOKEN --state DIR --source DIR",
                answer.spoke_id, answer.expires_at
            ));
        }
    }
    Ok(exit::OK)
}

async fn list(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    let list: SpokeList = client(context, target)?.get(SPOKES).await?;
    if context.global.json {
        output::json(&list)?;
        return Ok(exit::OK);
    }
    for s in &list.spokes {
        output::line(&format!(
            "{}  {}  {} files  {}  last seen {}  {} pending",
            s.spoke_id,
            s.state,
            s.files,
            ByteSize(s.bytes),
            s.last_seen.map_or("never".to_owned(), |t| t.to_string()),
            s.report.pending_files
        ));
    }
    Ok(exit::OK)
}
