//! `barque hub spoke add|ls|show|disable|enable|rm`.

use anyhow::Context as _;
use barque_bundle::ByteSize;
use barque_bundle::quantity::parse_duration;
use barque_bundle::wire::{
    AddSpokeRequest, AddSpokeResponse, ENROLL_OFFLINE, Grant, OfflineRequest, SPOKES,
    SetSpokeRequest, SpokeLine, SpokeList,
};

use super::{Context, client};
use crate::args::{
    HubSpokeAddArgs, HubSpokeApproveArgs, HubSpokeArgs, HubSpokeVerb, HubTargetArgs,
};
use crate::{exit, output};

pub async fn run(context: &Context, verb: HubSpokeVerb) -> anyhow::Result<u8> {
    match verb {
        HubSpokeVerb::Add(args) => add(context, args).await,
        HubSpokeVerb::Approve(args) => approve(context, &args).await,
        HubSpokeVerb::Ls(target) => list(context, &target).await,
        HubSpokeVerb::Show(args) => {
            let line = client(context, &args.target)?.get(&path(&args)).await?;
            show(context, &line)
        }
        HubSpokeVerb::Disable(args) => set(context, &args, false).await,
        HubSpokeVerb::Enable(args) => set(context, &args, true).await,
        HubSpokeVerb::Rm(args) => {
            let line = client(context, &args.target)?.delete(&path(&args)).await?;
            show(context, &line)
        }
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

async fn approve(context: &Context, args: &HubSpokeApproveArgs) -> anyhow::Result<u8> {
    let text = match args.request.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin().lock()).context("cannot read stdin")?,
        false => std::fs::read_to_string(&args.request)
            .with_context(|| format!("cannot read {}", args.request.display()))?,
    };
    let request: OfflineRequest = serde_json::from_str(&text)
        .context("this is no request of a spoke; `barque enroll --offline` makes one")?;
    let grant: Grant = client(context, &args.target)?.post(ENROLL_OFFLINE, &request).await?;
    let name = format!("{}.grant.json", grant.spoke_id);
    let out = args.out.clone().unwrap_or_else(|| match args.request.as_os_str() == "-" {
        true => name.clone().into(),
        false => args.request.with_file_name(&name),
    });
    if output::file(&out, &grant)? {
        return Ok(exit::OK);
    }
    if context.global.json {
        output::json(&grant)?;
    } else if !context.global.quiet {
        output::line(&format!("{} is let in", grant.spoke_id));
        output::say(&format!("this hub's root is {}", grant.root.fingerprint()));
        output::say(&format!(
            "carry {} back to it, and there: barque enroll {name}",
            out.display()
        ));
    }
    Ok(exit::OK)
}

async fn list(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    let list: SpokeList = client(context, target)?.get(SPOKES).await?;
    if context.global.json {
        output::json(&list)?;
        return Ok(exit::OK);
    }
    list.spokes.iter().for_each(print);
    Ok(exit::OK)
}

fn path(args: &HubSpokeArgs) -> String {
    format!("{SPOKES}/{}", args.id)
}

async fn set(context: &Context, args: &HubSpokeArgs, enabled: bool) -> anyhow::Result<u8> {
    let request = SetSpokeRequest { enabled };
    let line = client(context, &args.target)?.post(&path(args), &request).await?;
    show(context, &line)
}

fn show(context: &Context, line: &SpokeLine) -> anyhow::Result<u8> {
    if context.global.json {
        output::json(line)?;
    } else if !context.global.quiet {
        whole(line);
    }
    Ok(exit::OK)
}

/// Everything of one spoke, a line each.
fn whole(s: &SpokeLine) {
    let time =
        |t: Option<barque_bundle::Timestamp>| t.map_or("never".to_owned(), |t| t.to_string());
    output::line(&format!("spoke {} ({})", s.spoke_id, s.state));
    output::line(&format!("  received {} files, {}", s.files, ByteSize(s.bytes)));
    output::line(&format!("  first seen {}, last seen {}", time(s.first_seen), time(s.last_seen)));
    let version = if s.report.version.is_empty() { "not told" } else { &s.report.version };
    output::line(&format!(
        "  version {version}; backlog {} files, {}",
        s.report.pending_files,
        ByteSize(s.report.pending_bytes)
    ));
    output::line(&format!(
        "  key {}, public key {}",
        s.key_id.as_deref().unwrap_or("none"),
        s.public_key.as_deref().unwrap_or("none")
    ));
    if let Some(at) = s.forked_at {
        output::line(&format!(
            "  warning: forked_series: two machines pushed with one state folder, last at {at}; \
             give one of them a name of its own (barque enroll --new-identity)"
        ));
    }
}

fn print(s: &SpokeLine) {
    output::line(&format!(
        "{}  {}  {} files  {}  last seen {}  {} pending ({})  key {}",
        s.spoke_id,
        s.state,
        s.files,
        ByteSize(s.bytes),
        s.last_seen.map_or("never".to_owned(), |t| t.to_string()),
        s.report.pending_files,
        ByteSize(s.report.pending_bytes),
        s.key_id.as_deref().unwrap_or("none")
    ));
}
