//! `barque hub init`.

use barque_hub::Identity;
use barque_hub::identity::Seeds;

use super::Context;
use crate::args::HubInitArgs;
use crate::command::now;
use crate::{exit, output};

pub fn run(context: &Context, args: HubInitArgs) -> anyhow::Result<u8> {
    let data = context.file.data(args.data.data);
    if let Some(url) = &args.url {
        let is_url = url.starts_with("https://") || url.starts_with("http://");
        anyhow::ensure!(is_url, "--url is an address such as https://hub.example.org:7171");
    }
    let seeds = Seeds {
        now: now(),
        hub_id: rand::random(),
        node_id: rand::random(),
        root: rand::random(),
        node: rand::random(),
    };
    let identity = Identity::create(&data, args.url, seeds)?;
    let root = identity.root_public().fingerprint();
    if context.global.json {
        output::json(&serde_json::json!({
            "hub_id": identity.hub_id,
            "data": data,
            "root": root,
            "url": identity.url,
        }))?;
    } else if !context.global.quiet {
        let dir = data.display();
        output::line(&format!("hub {} is made in {dir}", identity.hub_id));
        output::line(&format!("root {root}"));
        output::say(&format!(
            "keep a copy of {dir}/identity.json and {dir}/tls/ca.key elsewhere, as secret as a \
             password: without them spokes must enroll anew"
        ));
        output::say(&format!("start it with: barque hub serve --data {dir}"));
    }
    Ok(exit::OK)
}
