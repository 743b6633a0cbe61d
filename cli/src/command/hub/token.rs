//! `barque hub token add|ls|rm`.

use barque_bundle::wire::{AddTokenRequest, AddTokenResponse, TOKENS, TokenList};

use super::{Context, client};
use crate::args::{HubTargetArgs, HubTokenAddArgs, HubTokenRmArgs, HubTokenVerb};
use crate::{exit, output};

pub async fn run(context: &Context, verb: HubTokenVerb) -> anyhow::Result<u8> {
    match verb {
        HubTokenVerb::Add(args) => add(context, args).await,
        HubTokenVerb::Ls(target) => list(context, &target).await,
        HubTokenVerb::Rm(args) => remove(context, args).await,
    }
}

async fn add(context: &Context, args: HubTokenAddArgs) -> anyhow::Result<u8> {
    let request = AddTokenRequest { name: args.name, role: args.role };
    let answer: AddTokenResponse = client(context, &args.target)?.post(TOKENS, &request).await?;
    if context.global.json {
        output::json(&answer)?;
    } else {
        output::line(&answer.token);
    }
    Ok(exit::OK)
}

async fn list(context: &Context, target: &HubTargetArgs) -> anyhow::Result<u8> {
    let list: TokenList = client(context, target)?.get(TOKENS).await?;
    if context.global.json {
        output::json(&list)?;
        return Ok(exit::OK);
    }
    for t in &list.tokens {
        output::line(&format!("{}  {}  since {}", t.name, t.role.as_str(), t.created_at));
    }
    Ok(exit::OK)
}

async fn remove(context: &Context, args: HubTokenRmArgs) -> anyhow::Result<u8> {
    let path = format!("{TOKENS}/{}", barque_bundle::wire::url_segment(&args.name));
    let answer: serde_json::Value = client(context, &args.target)?.delete(&path).await?;
    if context.global.json {
        output::json(&answer)?;
    } else if !context.global.quiet {
        output::line(&format!("removed {}", args.name));
    }
    Ok(exit::OK)
}
