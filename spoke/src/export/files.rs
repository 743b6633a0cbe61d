//! The files of a bundle: planned rows in path order, and one file's way to the drive.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use barque_bundle::digest::Hasher;
use barque_bundle::entry::Lines;
use barque_bundle::open::{ENTRIES_MAX, Reopen};
use barque_bundle::platform::{self, Assured, Root, Uncached};
use barque_bundle::{BundleId, HubId, Ranges, Sha256Digest};

use super::LeftOut;
use super::target::{Durability, drive_fault};
use crate::error::Error;
use crate::ledger::{FileRow, Ledger};

const PAGE: usize = 1_000;

/// What is planned for a bundle, by path.
pub(super) struct Planned<'a> {
    ledger: &'a Ledger,
    hub_id: HubId,
    bundle_id: BundleId,
    page: VecDeque<FileRow>,
    after: String,
}

impl<'a> Planned<'a> {
    pub fn new(ledger: &'a Ledger, hub_id: HubId, bundle_id: BundleId) -> Self {
        Self { ledger, hub_id, bundle_id, page: VecDeque::new(), after: String::new() }
    }

    pub fn next_row(&mut self) -> Result<Option<FileRow>, Error> {
        if self.page.is_empty() {
            let (hub, bundle) = (self.hub_id, self.bundle_id);
            self.page = self.ledger.files_of_bundle(hub, bundle, &self.after, PAGE)?.into();
            if let Some(last) = self.page.back() {
                self.after = last.path.to_string();
            }
        }
        Ok(self.page.pop_front())
    }

    /// Files and bytes of all.
    pub fn sum(mut self) -> Result<(u64, u64), Error> {
        let (mut files, mut bytes) = (0, 0);
        while let Some(row) = self.next_row()? {
            files += 1;
            bytes += row.stat.size_bytes;
        }
        Ok((files, bytes))
    }
}

/// The numbers of a bundle's entries, and what was planned for it and is not in it.
pub(super) fn in_bundle(
    mut planned: Planned<'_>,
    all: &Reopen,
) -> Result<(Ranges, Vec<LeftOut>), Error> {
    let source = all().map_err(Error::io("cannot read", "entries.jsonl"))?;
    let mut lines = Lines::new(source, ENTRIES_MAX);
    let (mut numbers, mut left_out) = (Vec::new(), Vec::new());
    let mut row = planned.next_row()?;
    // Both come in path order.
    while let Some(line) = lines.next_line().map_err(barque_bundle::open::OpenError::from)? {
        numbers.push(line.entry.seq);
        while let Some(before) = row.take_if(|r| r.path < line.entry.path) {
            left_out.push(not_in_it(&before));
            row = planned.next_row()?;
        }
        if row.as_ref().is_some_and(|r| r.path == line.entry.path) {
            row = planned.next_row()?;
        }
    }
    while let Some(behind) = row {
        left_out.push(not_in_it(&behind));
        row = planned.next_row()?;
    }
    Ok((Ranges::from_numbers(numbers), left_out))
}

fn not_in_it(row: &FileRow) -> LeftOut {
    left_out(row, "left_out_before", "the bundle was finished without it; it goes with the next")
}

/// What became of one file.
pub(super) enum Copied {
    Whole(Assured),
    LeftOut(LeftOut),
}

pub(super) fn left_out(row: &FileRow, code: &'static str, detail: impl Into<String>) -> LeftOut {
    LeftOut { path: row.path.to_string(), code, detail: detail.into() }
}

/// Opens a file of the source whose size is still the planned one.
pub(super) fn open(source: &Root, row: &FileRow) -> Result<File, LeftOut> {
    let opened = source.open_regular(row.path.as_str());
    let file = opened.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            left_out(row, "vanished", "the file is not there any more")
        }
        _ if platform::is_link(&e) => left_out(row, "vanished", "a link stands in its place"),
        _ => {
            left_out(row, "unreadable", format!("{e}; give the spoke's user the right to read it"))
        }
    })?;
    match file.metadata() {
        Ok(m) if m.len() == row.stat.size_bytes => Ok(file),
        Ok(_) => Err(changed(row)),
        Err(e) => Err(left_out(row, "unreadable", e.to_string())),
    }
}

pub(super) fn changed(row: &FileRow) -> LeftOut {
    left_out(row, "changed", "it changed since it was hashed; the next export looks at it again")
}

/// Brings one file to the drive, whole and synced; what is there already and right stays.
pub(super) fn copy(
    source: &Root,
    row: &FileRow,
    to: &Path,
    buffer: &mut [u8],
    moved: &(dyn Fn(u64) + Sync),
    durability: &Durability,
) -> Result<Copied, Error> {
    if let Some(assured) = is_there(row, to, buffer, moved)? {
        return Ok(Copied::Whole(assured));
    }
    let mut from = match open(source, row) {
        Ok(file) => file,
        Err(out) => {
            remove(to)?;
            return Ok(Copied::LeftOut(out));
        }
    };
    let mut file = create(to)?;
    let mut hasher = Hasher::new();
    loop {
        let n = match from.read(buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                remove(to)?;
                return Ok(Copied::LeftOut(left_out(row, "unreadable", e.to_string())));
            }
        };
        hasher.update(&buffer[..n]);
        match file.write_all(&buffer[..n]) {
            Ok(()) => moved(n as u64),
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                remove(to)?;
                let why = "the drive's file system takes no file of this size; format it as exFAT";
                return Ok(Copied::LeftOut(left_out(row, "too_large_for_drive", why)));
            }
            Err(e) => return Err(drive_fault(to)(e)),
        }
        // A file that grows without end is left out all the same.
        if hasher.len() > row.stat.size_bytes {
            break;
        }
    }
    if Some(hasher.finish()) != row.sha256 || hasher.len() != row.stat.size_bytes {
        remove(to)?;
        return Ok(Copied::LeftOut(changed(row)));
    }
    durability.file(&file).map(Copied::Whole).map_err(drive_fault(to))
}

/// Whether an export before this one brought the file already: read from the drive where the system
/// can tell, since what a failed sync left in memory counts for nothing.
fn is_there(
    row: &FileRow,
    to: &Path,
    buffer: &mut [u8],
    moved: &(dyn Fn(u64) + Sync),
) -> Result<Option<Assured>, Error> {
    let Ok(file) = platform::open_regular(to) else { return Ok(None) };
    let len = file.metadata().map_err(drive_fault(to))?.len();
    if len != row.stat.size_bytes {
        return Ok(None);
    }
    let (folder, name) = (to.parent(), to.file_name().and_then(|n| n.to_str()));
    let uncached = match (folder, name) {
        (Some(folder), Some(name)) => Root::open(folder).and_then(|r| r.open_uncached(name)),
        _ => Ok(None),
    };
    let found = match uncached.map_err(drive_fault(to))? {
        Some(file) => hashed(&mut Uncached::new(file).map_err(drive_fault(to))?, buffer, to)?,
        None => hashed(&mut &file, buffer, to)?,
    };
    if row.sha256 != Some(found) {
        return Ok(None);
    }
    moved(len);
    platform::sync_if_known(&file).map(Some).map_err(drive_fault(to))
}

fn hashed(file: &mut impl io::Read, buffer: &mut [u8], at: &Path) -> Result<Sha256Digest, Error> {
    let mut hasher = Hasher::new();
    loop {
        match file.read(buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(n) => hasher.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(drive_fault(at)(e)),
        }
    }
}

/// A new file on the drive, with the folders above it.
fn create(to: &Path) -> Result<File, Error> {
    match File::create(to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = to.parent() {
                std::fs::create_dir_all(folder).map_err(drive_fault(folder))?;
            }
            File::create(to).map_err(drive_fault(to))
        }
        created => created.map_err(drive_fault(to)),
    }
}

pub(super) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err(drive_fault(path)(e))
        }
        _ => Ok(()),
    }
}
