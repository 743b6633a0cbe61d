//! `barque hub files`.

use barque_bundle::path::printable;
use barque_bundle::wire::{FILES, FileLine, FileList, url_segment};

use super::{Context, client};
use crate::args::HubFilesArgs;
use crate::{exit, output};

const PAGE: u64 = 1_000;

pub async fn run(context: &Context, args: HubFilesArgs) -> anyhow::Result<u8> {
    let client = client(context, &args.target)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut after = String::new();
    let mut all: Vec<FileLine> = Vec::new();
    while left > 0 {
        let path = format!(
            "{FILES}?prefix={}&after_path={}&limit={}",
            url_segment(&args.prefix),
            url_segment(&after),
            left.min(PAGE)
        );
        let page: FileList = client.get(&path).await?;
        left = left.saturating_sub(page.files.len() as u64);
        if context.global.json {
            all.extend(page.files);
        } else {
            page.files.iter().for_each(print);
        }
        match page.next_after_path {
            Some(next) => after = next,
            None => break,
        }
    }
    if context.global.json {
        output::json(&serde_json::json!({ "files": all }))?;
    }
    Ok(exit::OK)
}

fn print(f: &FileLine) {
    output::line(&format!(
        "{}  {:>12}  {}  {}",
        f.sha256,
        f.size_bytes,
        f.state,
        printable(&f.path)
    ));
}
