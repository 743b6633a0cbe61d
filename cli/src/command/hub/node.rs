//! `barque hub node add|ls|drain|remove`.

use barque_bundle::quantity::parse_duration;
use barque_bundle::wire::{
    AddNodeRequest, AddNodeResponse, CLUSTER_TOKEN, MANIFEST_DIGEST, ManifestDigest, NODES,
    NodeLine, NodeList, SetNodeRequest, url_segment,
};

use super::{Context, client};
use crate::args::{
    HubNodeAddArgs, HubNodeDrainArgs, HubNodeRemoveArgs, HubNodeVerb, HubTargetArgs,
};
use crate::{exit, output};

pub async fn run(context: &Context, verb: HubNodeVerb) -> anyhow::Result<u8> {
    match verb {
        HubNodeVerb::Add(args) => add(context, args).await,
        HubNodeVerb::Ls(target) => list(context, &target).await,
        HubNodeVerb::Drain(args) => drain(context, args).await,
        HubNodeVerb::Digest(target) => digest(context, &target).await,
        HubNodeVerb::RotateToken(target) => rotate(context, &target).await,
        HubNodeVerb::Remove(args) => remove(context, args).await,
    }
}

async fn add(context: &Context, args: HubNodeAddArgs) -> anyhow::Result<u8> {
    let expires = parse_duration(&args.expires).map_err(anyhow::Error::msg)?;
    let expires_in_ms = u64::try_from(expires.as_millis()).unwrap_or(u64::MAX);
    let request = AddNodeRequest { reader: args.reader, expires_in_ms };
    let answer: AddNodeResponse = client(context, &args.target)?.post(NODES, &request).await?;
    if context.global.json {
        output::json(&answer)?;
    } else {
        output::line(&answer.token);
        output::say(&format!(
            "good for one node until {}; on its machine: barque hub join TOKEN --data DIR",
            answer.expires_at
        ));
    }
    Ok(exit::OK)
}

async fn list(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    show(context, &client(context, target)?.get(NODES).await?)
}

fn show(context: &Context, list: &NodeList) -> anyhow::Result<u8> {
    if context.global.json {
        output::json(list)?;
        return Ok(exit::OK);
    }
    list.nodes.iter().for_each(|n| output::line(&told(n)));
    Ok(exit::OK)
}

/// A node as one line.
pub fn told(n: &NodeLine) -> String {
    let mut line = format!("{}  {:<7}  {:<8}", n.node_id, n.role, n.state);
    line.push_str(match (n.leader, n.alive) {
        (true, _) => "  leader",
        (false, true) => "  up    ",
        (false, false) => "  DOWN  ",
    });
    line.push_str(&format!("  holds {} files ({:.0} %)", n.files_held, n.share_held * 100.0));
    if let Some(position) = n.position {
        line.push_str(&format!(", position {position}"));
    }
    if let Some(lag) = n.lag_entries.filter(|lag| *lag > 0) {
        line.push_str(&format!(", {lag} entries behind"));
    }
    if let Some(ms) = n.last_contact_ms.filter(|_| !n.alive) {
        line.push_str(&format!(", last heard {} s ago", ms / 1000));
    }
    if let Some(error) = n.last_error.as_ref().filter(|_| !n.alive) {
        line.push_str(&format!(", {error}"));
    }
    line.push_str(&format!("  {} {}", n.name, n.url.as_deref().unwrap_or_default()));
    line.trim_end().to_owned()
}

async fn drain(context: &Context, args: HubNodeDrainArgs) -> anyhow::Result<u8> {
    let state = if args.undo { "active" } else { "draining" };
    let path = format!("{NODES}/{}", url_segment(&args.node));
    let request = SetNodeRequest { state: state.to_owned() };
    show(context, &client(context, &args.target)?.post(&path, &request).await?)
}

async fn digest(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    let d: ManifestDigest = client(context, target)?.get(MANIFEST_DIGEST).await?;
    if context.global.json {
        output::json(&d)?;
    } else {
        output::line(&format!(
            "{}  position {}, log entry {}  {}",
            d.node_id, d.position, d.applied, d.sha256
        ));
    }
    Ok(exit::OK)
}

async fn rotate(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    let answer: serde_json::Value =
        client(context, target)?.post(CLUSTER_TOKEN, &serde_json::json!({})).await?;
    if context.global.json {
        output::json(&answer)?;
    } else if !context.global.quiet {
        output::line("all nodes have another cluster token");
    }
    Ok(exit::OK)
}

async fn remove(context: &Context, args: HubNodeRemoveArgs) -> anyhow::Result<u8> {
    let mut path = format!("{NODES}/{}", url_segment(&args.node));
    if args.abandon_files {
        path.push_str("?abandon_files=true");
    }
    show(context, &client(context, &args.target)?.delete(&path).await?)
}
