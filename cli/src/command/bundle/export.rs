//! `barque bundle export`.

use barque_bundle::path::printable;
use barque_bundle::{ByteSize, ErrorKind};
use barque_spoke::export::{self, Event, ExportReport, Options, Read, ReadBack};
use barque_spoke::push::{self, Mode};
use indicatif::ProgressBar;

use super::{amount, named};
use crate::args::bundle::{Archive, BundleExportArgs};
use crate::command::{Context, edge};
use crate::{exit, output};

pub fn run(context: &Context, args: &BundleExportArgs) -> anyhow::Result<u8> {
    let options = Options {
        hub: args.hub,
        folder: args.dir.clone(),
        label: args.label.clone(),
        files_max: args.limit,
        bytes_max: args.max_bytes,
        form: Archive::form(args.archive),
        read_back: if args.no_verify { ReadBack::Skip } else { ReadBack::Verify },
        mode: if args.dry_run { Mode::DryRun } else { Mode::Real },
    };
    let bar = output::bar(context.global.quiet || context.global.json);
    let show = |event| show(&bar, &event);
    let report = export::export(&context.state(&args.state), &edge(), &options, &show);
    bar.finish_and_clear();
    let report = report?;
    if context.global.json {
        output::json(&report)?;
    } else {
        complain(&report);
        if !context.global.quiet {
            summary(&report);
        }
    }
    Ok(exit_code(&report))
}

fn exit_code(r: &ExportReport) -> u8 {
    let is_full = r.files == 0 && r.left_out.iter().any(|l| l.code == "no_room");
    match () {
        () if is_full => ErrorKind::Full.exit_code(),
        () if !r.unreadable.is_empty() => exit::NEEDS_A_PERSON,
        () => exit::OK,
    }
}

fn show(bar: &ProgressBar, event: &Event) {
    match event {
        Event::Scan(push::Event::Scanning { files, hashed_bytes }) => {
            bar.set_message(format!("scanning: {files} files, {} hashed", ByteSize(*hashed_bytes)));
        }
        Event::Scan(_) => {}
        Event::Writing { files, bytes } => {
            bar.set_position(0);
            output::measure(bar, *bytes);
            bar.set_message(format!("{files} files to the drive"));
        }
        Event::Moved(n) => bar.inc(*n),
        Event::ReadingBack => {
            bar.set_position(0);
            bar.set_message("reading back");
        }
    }
}

fn complain(r: &ExportReport) {
    for l in &r.left_out {
        output::say(&format!("left out: {}: {} ({})", l.path, l.detail, l.code));
    }
    for u in &r.unreadable {
        output::say(&format!("incomplete: cannot read {}: {}", u.path, u.detail));
    }
    for u in &r.unfinished {
        output::say(&format!(
            "not finished: {} of {} in {}; export to that drive again to go on with it, or give it \
             up with: barque bundle rm {}",
            named(u.bundle_id, u.label.as_deref()),
            u.created_at,
            printable(&u.folder.display().to_string()),
            u.bundle_id
        ));
    }
}

fn summary(r: &ExportReport) {
    let left = format!("{} still wait", amount(r.left, r.left_bytes));
    let Some(id) = r.bundle_id else {
        output::line(&match (r.is_dry, r.files) {
            (true, n) if n > 0 => format!("would export {}; {left}", amount(n, r.bytes)),
            _ if r.left == 0 => "nothing to export".to_owned(),
            _ => format!("nothing was exported; {left}"),
        });
        return;
    };
    let read = match r.read_back {
        Read::Verified => ", read back and verified",
        Read::VerifiedFromMemory => {
            "; read back and equal, but this file system does not say whether from the drive or \
             from memory: unmount it, and `barque bundle verify` then tells"
        }
        Read::NotRead => ", not read back",
    };
    if r.is_resumed {
        output::line("went on with the bundle that was not finished");
    }
    let what = format!("{} ({}){read}", named(id, r.label.as_deref()), amount(r.files, r.bytes));
    match r.is_synced {
        true => output::line(&format!("Safe to remove: {what}")),
        false => output::line(&format!(
            "Unmount before you remove it: {what}. This file system does not know how to say that \
             all is on the drive"
        )),
    }
    if r.left > 0 {
        output::line(&left);
    }
}
