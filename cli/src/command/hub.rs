//! `barque hub ...`.

mod files;
mod history;
mod import;
mod init;
mod join;
mod node;
mod recover;
mod schemas;
mod serve;
mod spoke;
mod status;
mod token;

use anyhow::Context as _;
use barque_hub::AdminClient;

use super::Context;
use crate::args::{HubTargetArgs, HubVerb};

pub async fn run(context: &Context, verb: HubVerb) -> anyhow::Result<u8> {
    match verb {
        HubVerb::Init(args) => init::run(context, args),
        HubVerb::Serve(args) => serve::run(context, args).await,
        HubVerb::Import(args) => import::run(context, args).await,
        HubVerb::History(args) => history::run(context, args).await,
        HubVerb::Spoke { verb } => spoke::run(context, verb).await,
        HubVerb::Token { verb } => token::run(context, verb).await,
        HubVerb::Files(args) => files::run(context, args).await,
        HubVerb::Schemas(args) => schemas::run(context, args).await,
        HubVerb::Join(args) => join::run(context, args).await,
        HubVerb::Node { verb } => node::run(context, verb).await,
        HubVerb::Recover(args) => recover::run(context, args),
        HubVerb::Status(args) => status::run(context, &args).await,
    }
}

/// A client of the hub that is meant.
fn client(context: &Context, target: &HubTargetArgs) -> anyhow::Result<AdminClient> {
    // A flag wins over the environment: BARQUE_URL counts only when no folder was named.
    let by_environment = || match target.data.data {
        None => std::env::var("BARQUE_URL").ok(),
        Some(_) => None,
    };
    let Some(url) = target.url.clone().or_else(by_environment) else {
        return Ok(AdminClient::local(&context.file.data(target.data.data.clone()))?);
    };
    let token = match &target.token_file {
        Some(path) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
        None => std::env::var("BARQUE_TOKEN")
            .context("--url needs a token: give --token-file, or set BARQUE_TOKEN")?,
    };
    let ca = match &target.cacert {
        Some(path) => {
            Some(std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?)
        }
        None => None,
    };
    Ok(AdminClient::remote(&url, token.trim().to_owned(), ca.as_deref())?)
}
