//! `barque enroll`.

use std::io::Read as _;

use anyhow::Context as _;
use barque_spoke::enroll::{self, Who};

use super::{Context, edge};
use crate::args::EnrollArgs;
use crate::{exit, output};

/// Longest token that is read from stdin, in bytes.
const TOKEN_MAX_BYTES: u64 = 64 * 1024;

pub async fn run(context: &Context, args: EnrollArgs) -> anyhow::Result<u8> {
    let state = context.state(&args.state);
    let token = if args.token == "-" { from_stdin()? } else { args.token };
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

fn from_stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .take(TOKEN_MAX_BYTES)
        .read_to_string(&mut text)
        .context("cannot read the token from stdin")?;
    Ok(text)
}
