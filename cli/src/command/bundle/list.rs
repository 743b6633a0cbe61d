//! `barque bundle ls`.

use barque_bundle::path::printable;
use barque_spoke::drive::{self, BundleLine, FoundLine};
use barque_spoke::ledger::BundleState;

use super::{amount, named};
use crate::args::bundle::BundleLsArgs;
use crate::command::Context;
use crate::{exit, output};

pub fn run(context: &Context, args: &BundleLsArgs) -> anyhow::Result<u8> {
    let listing = drive::list(&context.state(&args.state), args.dir.as_deref())?;
    if context.global.json {
        output::json(&listing)?;
        return Ok(exit::OK);
    }
    listing.in_transit.iter().for_each(under_way);
    listing.on_drive.iter().for_each(on_drive);
    let is_empty = listing.in_transit.is_empty() && listing.on_drive.is_empty();
    if is_empty && !context.global.quiet {
        output::say("no bundle is under way");
    }
    Ok(exit::OK)
}

fn under_way(b: &BundleLine) {
    let what = match b.state {
        BundleState::Writing => "not finished".to_owned(),
        _ => format!("in transit, {}", amount(b.files, b.bytes)),
    };
    output::line(&format!(
        "{}: {what}, since {}, written to {}",
        named(b.bundle_id, b.label.as_deref()),
        b.created_at,
        printable(&b.folder.display().to_string())
    ));
}

fn on_drive(f: &FoundLine) {
    let path = printable(&f.path.display().to_string());
    if let Some(fault) = &f.fault {
        output::line(&format!("{path}: {fault}"));
        return;
    }
    let spoke = f.spoke_id.as_ref().map_or(String::new(), |s| format!(" of {s}"));
    let made = f.created_at.map_or(String::new(), |t| format!(", made {t}"));
    let label = f.label.as_deref().map_or(String::new(), |l| format!(" '{}'", printable(l)));
    let receipt = if f.has_receipt { "with a receipt" } else { "no receipt yet" };
    let state = f.state.map_or(String::new(), |s| format!(", {}", s.as_str()));
    output::line(&format!(
        "{path}:{spoke}{label}, {}{made}, {receipt}{state}",
        amount(f.files, f.bytes)
    ));
}
