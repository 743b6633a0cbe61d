//! `barque hub join`.

use std::io::Read as _;

use anyhow::Context as _;
use barque_hub::cluster::join::{self, Seeds};

use super::Context;
use crate::args::HubJoinArgs;
use crate::command::now;
use crate::{exit, output};

pub async fn run(context: &Context, args: HubJoinArgs) -> anyhow::Result<u8> {
    let data = context.file.data(args.data.data);
    let mut token = args.token;
    if token == "-" {
        token.clear();
        std::io::stdin().read_to_string(&mut token).context("cannot read the token")?;
    }
    let seeds = Seeds { node_id: rand::random(), node: rand::random() };
    let identity = join::join(&data, &token, args.url, seeds, now()).await?;
    let node_id = format!("{:016x}", identity.node_id);
    if context.global.json {
        output::json(&serde_json::json!({
            "hub_id": identity.hub_id,
            "node_id": node_id,
            "data": data,
        }))?;
    } else if !context.global.quiet {
        let dir = data.display();
        output::line(&format!("{dir} is node {node_id} of hub {}", identity.hub_id));
        output::say(&format!(
            "start it with: barque hub serve --data {dir} --cluster-listen ADDR (an address that \
             the other nodes reach). The folder holds the hub's root: guard it as the first one's"
        ));
    }
    Ok(exit::OK)
}
