//! `barque hub recover`.

use barque_hub::recover::{self, Plan};

use super::Context;
use crate::args::HubRecoverArgs;
use crate::command::now;
use crate::{exit, output};

pub fn run(context: &Context, args: HubRecoverArgs) -> anyhow::Result<u8> {
    let data = context.file.data(args.data.data);
    let plan = match args.yes {
        true => recover::recover(&data, rand::random(), now())?,
        false => recover::plan(&data)?,
    };
    let gone: Vec<String> = plan.gone.iter().map(|n| format!("{:016x}", n.node_id)).collect();
    if context.global.json {
        output::json(&serde_json::json!({
            "recovered": args.yes,
            "node_id": format!("{:016x}", plan.node_id),
            "position": plan.position,
            "log_term": plan.last_log.map(|(term, _)| term),
            "log_entry": plan.last_log.map(|(_, entry)| entry),
            "files": plan.files,
            "files_elsewhere": plan.files_elsewhere,
            "gone": gone,
        }))?;
        return Ok(exit::OK);
    }
    tell(&plan, &gone);
    let dir = data.display();
    output::say(&match args.yes {
        true => {
            format!("done: it is the hub's only node. Start it with: barque hub serve --data {dir}")
        }
        false => format!(
            "nothing was changed. Be sure that the others are off for good: two that still run \
             would go on as the hub of before. Then: barque hub recover --data {dir} --yes"
        ),
    });
    Ok(exit::OK)
}

fn tell(plan: &Plan, gone: &[String]) {
    output::line(&format!(
        "node {:016x} knows {} files, up to position {}",
        plan.node_id, plan.files, plan.position
    ));
    let (term, entry) = plan.last_log.unwrap_or_default();
    output::line(&format!(
        "its log ends at term {term}, entry {entry}: of the nodes that are left, recover the one with \
         the highest term, and of those the highest entry"
    ));
    output::line(&format!(
        "given up: {}",
        if gone.is_empty() { "no node".into() } else { gone.join(", ") }
    ));
    output::line(&format!(
        "what was agreed on without this node is lost here, and {} files have no copy here: their \
         spokes are asked for them again",
        plan.files_elsewhere
    ));
}
