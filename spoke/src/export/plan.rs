//! Which files a bundle takes: as a push would send them, as many as fit the drive and the limits.

use std::path::Path;

use barque_bundle::path::printable;
use barque_bundle::{BundleId, FilePath, HubId, platform};

use super::{LeftOut, Options, free};
use crate::error::Error;
use crate::ledger::{FileRow, Ledger, PageKey};
use crate::scan::NAMED_MAX;

/// Files and bytes of a bundle unless a caller says otherwise.
pub const DEFAULT_FILES_MAX: u64 = 10_000;
pub const DEFAULT_BYTES_MAX: u64 = 64 << 30;
/// What stays free on the drive: a hundredth of what is, at most this.
const MARGIN_MAX_BYTES: u64 = 64 << 20;
/// What a file takes beside its own blocks: its entry, its name, its share of a folder.
const FILE_BYTES: u64 = 1024;
/// Files in a row that do not fit, after which no more are tried.
const MISSES_MAX: u32 = 1_000;
const PAGE: usize = 1_000;

/// What was chosen; the paths lie in a table of the ledger's connection.
pub(super) struct Chosen {
    pub files: u64,
    pub bytes: u64,
    pub left_out: Vec<LeftOut>,
}

/// Chooses pending files that the scan met, most urgent and newest first.
pub(super) fn choose(
    ledger: &mut Ledger,
    hub_id: HubId,
    folder: &Path,
    options: &Options,
) -> Result<Chosen, Error> {
    let block = platform::block_bytes(folder).map_err(Error::io("cannot look at", folder))?;
    let free = free(folder)?;
    let mut room = free.saturating_sub((free / 100).min(MARGIN_MAX_BYTES));
    let mut chosen = Chosen { files: 0, bytes: 0, left_out: Vec::new() };
    ledger.clear_chosen()?;
    let (mut after, mut misses) = (PageKey::first(), 0);
    'pages: loop {
        let page = ledger.pending_page(hub_id, &after, PAGE)?;
        let Some(last) = page.last() else { break };
        after = last.page_key();
        let mut paths = Vec::with_capacity(page.len());
        for row in &page {
            if chosen.files >= options.files_max || misses >= MISSES_MAX {
                ledger.add_chosen(&paths)?;
                break 'pages;
            }
            if !ledger.is_met(&row.path)? {
                continue;
            }
            let takes = row.stat.size_bytes.div_ceil(block) * block + FILE_BYTES;
            if takes > room {
                no_room(row, &mut chosen);
                misses += 1;
                continue;
            }
            let is_over = chosen.bytes.saturating_add(row.stat.size_bytes) > options.bytes_max.0;
            // At least one file, of whatever size.
            if is_over && chosen.files > 0 {
                misses += 1;
                continue;
            }
            misses = 0;
            room -= takes;
            chosen.files += 1;
            chosen.bytes += row.stat.size_bytes;
            paths.push(&row.path);
        }
        ledger.add_chosen(&paths)?;
    }
    if chosen.files > 0 {
        // What waits for the next drive is no surprise.
        chosen.left_out.clear();
    }
    Ok(chosen)
}

/// Named only when it keeps the whole export from anything.
fn no_room(row: &FileRow, chosen: &mut Chosen) {
    if chosen.files == 0 && chosen.left_out.len() < NAMED_MAX {
        chosen.left_out.push(LeftOut {
            path: printable(row.path.as_str()),
            code: "no_room",
            detail: format!(
                "it has {} and does not fit on the drive",
                barque_bundle::ByteSize(row.stat.size_bytes)
            ),
        });
    }
}

/// Plans all that was chosen for a bundle.
pub(super) fn mark(ledger: &mut Ledger, hub_id: HubId, bundle_id: BundleId) -> Result<(), Error> {
    let mut after = String::new();
    loop {
        let paths: Vec<FilePath> = ledger.chosen_page(&after, PAGE)?;
        let Some(last) = paths.last() else { return Ok(()) };
        after = last.to_string();
        ledger.plan_for(hub_id, Some(bundle_id), &paths)?;
    }
}
