//! `barque enroll`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use barque_bundle::SpokeId;
use barque_bundle::wire::Grant;
use barque_spoke::StateFolder;
use barque_spoke::enroll::{self, Who};

use super::{Context, edge};
use crate::args::EnrollArgs;
use crate::{exit, output};

/// Longest token that is read from stdin, in bytes.
const TOKEN_MAX_BYTES: u64 = 64 * 1024;

pub async fn run(context: &Context, args: EnrollArgs) -> anyhow::Result<u8> {
    let state = context.state(&args.state);
    if args.offline {
        return offline(context, &state, &args);
    }
    let token = if args.token == "-" { from_stdin()? } else { args.token };
    if let Some(grant) = grant(&token)? {
        return accept(context, &state, &grant);
    }
    let identity = if args.new_identity { Who::Another } else { Who::AsBefore };
    let source = args.source.as_deref();
    let answer = enroll::enroll(&state, &token, source, identity, &edge()).await?;
    if context.global.json {
        output::json(&serde_json::json!({
            "spoke_id": answer.spoke_id,
            "hub_id": answer.hub_id,
            "root": answer.root.fingerprint(),
            "state": state.path(),
        }))?;
    } else if !context.global.quiet {
        output::line(&format!("{} is enrolled at hub {}", answer.spoke_id, answer.hub_id));
        output::line(&format!("ship with: barque push --state {}", state.path().display()));
    }
    Ok(exit::OK)
}

/// Makes the request file of a spoke that has no way to its hub.
fn offline(context: &Context, state: &StateFolder, args: &EnrollArgs) -> anyhow::Result<u8> {
    let spoke: SpokeId =
        args.token.parse().with_context(|| format!("{:?} is no name of a spoke", args.token))?;
    let request = enroll::request_offline(state, &spoke, args.source.as_deref(), &edge())?;
    let default = PathBuf::from(format!("{spoke}.request.json"));
    let out = args.out.clone().unwrap_or(default);
    if !output::file(&out, &request)? && !context.global.quiet {
        output::say(&format!(
            "carry {} to the hub, and there: barque hub spoke approve {}",
            out.display(),
            out.file_name().unwrap_or_default().to_string_lossy()
        ));
    }
    Ok(exit::OK)
}

/// The grant in a file that was named, or in a text.
fn grant(text: &str) -> anyhow::Result<Option<Grant>> {
    let json = match text.trim_start().starts_with('{') {
        true => text.to_owned(),
        false if Path::new(text).is_file() => {
            std::fs::read_to_string(text).with_context(|| format!("cannot read {text}"))?
        }
        false => return Ok(None),
    };
    let grant = serde_json::from_str(&json);
    grant.map(Some).context("this is no grant of a hub; `barque hub spoke approve` makes one")
}

fn accept(context: &Context, state: &StateFolder, grant: &Grant) -> anyhow::Result<u8> {
    enroll::accept_grant(state, grant, &edge())?;
    if context.global.json {
        output::json(&serde_json::json!({
            "spoke_id": grant.spoke_id,
            "hub_id": grant.hub_id,
            "root": grant.root.fingerprint(),
            "state": state.path(),
        }))?;
    } else if !context.global.quiet {
        output::line(&format!("{} is enrolled at hub {}", grant.spoke_id, grant.hub_id));
        output::line(&format!(
            "the hub's root is {}: compare it with what `barque hub spoke approve` said",
            grant.root.fingerprint()
        ));
        let way = if grant.urls.is_empty() { "bundle export DIR" } else { "push" };
        output::line(&format!("ship with: barque {way} --state {}", state.path().display()));
    }
    Ok(exit::OK)
}

fn from_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .take(TOKEN_MAX_BYTES)
        .read_to_string(&mut text)
        .context("cannot read the token from stdin")?;
    Ok(text)
}
