//! `barque bundle ...`.

mod export;
mod list;
mod verify;

use barque_bundle::{ByteSize, ErrorKind};
use barque_spoke::drive::{self, Acked, TakenBack};

use super::{Context, edge};
use crate::args::bundle::{BundleAckArgs, BundleIdArgs, BundleVerb};
use crate::{exit, output};

pub async fn run(context: &Context, verb: BundleVerb) -> anyhow::Result<u8> {
    // A drive is slow and blocks: nothing else waits on this thread.
    tokio::task::block_in_place(|| match verb {
        BundleVerb::Export(args) => export::run(context, &args),
        BundleVerb::Verify(args) => verify::run(context, &args),
        BundleVerb::Ls(args) => list::run(context, &args),
        BundleVerb::Ack(args) => ack(context, &args),
        BundleVerb::Revert(args) => {
            let back = drive::revert(&context.state(&args.state), &edge(), args.id)?;
            taken_back(context, &args, &back)
        }
        BundleVerb::Rm(args) => {
            let back = drive::remove(&context.state(&args.state), &edge(), args.id)?;
            taken_back(context, &args, &back)
        }
    })
}

/// `bundle 01HX... on 'drive 7'`.
pub(crate) fn named(id: impl std::fmt::Display, label: Option<&str>) -> String {
    match label {
        Some(label) => {
            format!("bundle {id} on '{}'", barque_bundle::path::printable(label))
        }
        None => format!("bundle {id}"),
    }
}

/// `1,204 files, 3.1 GB`.
pub(crate) fn amount(files: u64, bytes: u64) -> String {
    format!("{} files, {}", output::thousands(files), ByteSize(bytes))
}

fn ack(context: &Context, args: &BundleAckArgs) -> anyhow::Result<u8> {
    let report = drive::ack(&context.state(&args.state), &edge(), &args.path)?;
    if context.global.json {
        output::json(&report)?;
    } else {
        report.receipts.iter().for_each(|a| tell(context, a));
    }
    for fault in &report.faults {
        let path = barque_bundle::path::printable(&fault.path.display().to_string());
        output::say(&format!("not counted: {path}: {}", fault.detail));
    }
    let needs_a_person = report.receipts.iter().any(|a| a.conflict + a.failed > 0);
    Ok(match (report.faults.is_empty(), needs_a_person) {
        (false, _) => ErrorKind::Corrupt.exit_code(),
        (true, true) => exit::NEEDS_A_PERSON,
        (true, false) => exit::OK,
    })
}

fn tell(context: &Context, a: &Acked) {
    if !context.global.quiet {
        output::line(&format!(
            "{}, imported {}: {} synced, {} already, {} conflict, {} failed, {} removed at the hub, {} wait again",
            named(a.bundle_id, a.label.as_deref()),
            a.imported_at,
            output::thousands(a.synced),
            output::thousands(a.already),
            a.conflict,
            a.failed,
            a.removed,
            a.waiting
        ));
    }
    for f in &a.files {
        let why = f.detail.as_deref().unwrap_or("the hub has other content under this path");
        output::say(&format!("{}: {}: {why}", f.outcome.as_str(), f.path));
    }
}

fn taken_back(context: &Context, args: &BundleIdArgs, back: &TakenBack) -> anyhow::Result<u8> {
    if context.global.json {
        output::json(back)?;
    } else if !context.global.quiet {
        let removed = back.removed.as_ref().map_or(String::new(), |p| {
            format!("; removed {}", barque_bundle::path::printable(&p.display().to_string()))
        });
        output::line(&format!(
            "{}: {} files wait again{removed}",
            named(args.id, back.label.as_deref()),
            output::thousands(back.files)
        ));
    }
    Ok(exit::OK)
}
