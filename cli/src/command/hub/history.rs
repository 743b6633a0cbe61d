//! `barque hub history`.

use barque_bundle::ByteSize;
use barque_bundle::path::printable;
use barque_bundle::wire::{IMPORT, ImportHistory, ImportLine};

use super::{Context, client};
use crate::args::HubHistoryArgs;
use crate::{exit, output};

pub async fn run(context: &Context, args: HubHistoryArgs) -> anyhow::Result<u8> {
    let path = format!("{IMPORT}/history/{}?limit={}", args.spoke, args.limit);
    let history: ImportHistory = client(context, &args.target)?.get(&path).await?;
    if context.global.json {
        output::json(&history)?;
        return Ok(exit::OK);
    }
    history.bundles.iter().for_each(print);
    if history.bundles.is_empty() && !context.global.quiet {
        output::say(&format!("no drive of {} was imported", args.spoke));
    }
    for missing in &history.not_arrived {
        output::line(&printable(&missing.detail));
    }
    Ok(exit::OK)
}

fn print(b: &ImportLine) {
    let label = b.label.as_deref().map_or(String::new(), |l| format!(" '{}'", printable(l)));
    output::line(&format!(
        "{}{label}, made {}, imported {} by node {}: {} files, {}; {} new, {} already present, {} \
         conflicts",
        b.bundle_id,
        b.created_at,
        b.imported_at,
        b.node,
        output::thousands(b.files),
        ByteSize(b.bytes),
        output::thousands(b.committed),
        output::thousands(b.already_present),
        b.conflicts
    ));
}
