//! `barque sample`.

use super::Context;
use crate::args::SampleArgs;
use crate::sample::{self, Plan};
use crate::{exit, output};

pub fn run(context: &Context, args: &SampleArgs) -> anyhow::Result<u8> {
    let plan = Plan { files: args.files, rows: args.rows, large: args.large, seed: args.seed };
    let bar = output::bar(context.global.quiet || context.global.json);
    let written = sample::write(&args.dir, &plan, |n| {
        bar.set_message(format!("{n} of {} files", args.files));
    })?;
    bar.finish_and_clear();
    if context.global.json {
        output::json(&written)?;
    } else if !context.global.quiet {
        output::line(&format!(
            "{} files, {} rows, {} below {}",
            written.files,
            written.rows,
            barque_bundle::ByteSize(written.bytes),
            args.dir.display()
        ));
    }
    Ok(exit::OK)
}
