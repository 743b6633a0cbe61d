//! A bundle as a folder on the drive: any reader of files can look at it, and it goes on file by
//! file after a crash.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError, mpsc};

use barque_bundle::entry::{Line, Summing};
use barque_bundle::fault::{self, Step};
use barque_bundle::open::{Bundle, Head, walk};
use barque_bundle::platform::{self, Assured, Root};
use barque_bundle::portable::Names;
use barque_bundle::stream::{DATA, ENTRIES, HEADER, SIGNATURE};
use barque_bundle::{FilePath, Ranges, Signed};

use super::files::{self, Copied, Planned};
use super::target::{self, Durability, drive_fault};
use super::{Event, LeftOut, Run, Written};
use crate::error::Error;
use crate::ledger::{BundleRow, FileRow, Ledger};

/// Files on their way to the drive at once: a sync waits for the drive and not for this machine.
const THREADS: usize = 8;
const WAITING: usize = 32;
const BUFFER_BYTES: usize = 64 * 1024;

/// Writes the bundle into a folder of its own; the signature last.
pub(super) fn write(
    run: &Run<'_>,
    ledger: &Ledger,
    source: &Root,
    bundle: &BundleRow,
    folder: &Path,
) -> Result<Written, Error> {
    let durability = Durability::of(&run.folder)?;
    let left = start(folder)?;
    let planned = || Planned::new(ledger, bundle.hub_id, bundle.bundle_id);
    let (files, bytes) = planned().sum()?;
    (run.events)(Event::Writing { files, bytes });
    let (left_out, mut assured) = copy_all(run, planned(), source, (folder, &durability))?;
    fault::after(Step::ExportFiles);
    let gone: BTreeSet<&str> = left_out.iter().map(|l| l.path.as_str()).collect();
    let listed = list(planned(), &gone, &folder.join(ENTRIES), left)?;
    assured = assured.and(listed.assured);
    if left == Left::ByAnother {
        remove_others(folder, &listed)?;
    }
    let header = run.seal(ledger, bundle, &listed.entries)?;
    assured = assured.and(target::write(&folder.join(HEADER), &header.bytes)?);
    fault::after(Step::ExportHeader);
    assured = assured.and(durability.all(folder, &run.folder)?);
    let Signed { bytes: header, sig, .. } = header;
    let head = Head::parse(header.clone(), sig.clone())?;
    let read = run.read_back(Bundle::unsealed(folder, head)?)?;
    // Whole or not there: without it the bundle is not finished.
    let (unfinished, signature) = (folder.join(UNFINISHED), folder.join(SIGNATURE));
    assured = assured.and(target::write(&unfinished, &sig)?);
    std::fs::rename(&unfinished, &signature).map_err(drive_fault(&signature))?;
    assured = assured.and(durability.all(folder, &run.folder)?);
    Ok(Written {
        path: folder.to_owned(),
        header,
        sig,
        files: listed.entries.sums().count,
        bytes: listed.entries.sums().total_bytes.unwrap_or(u64::MAX),
        seqs: listed.seqs,
        left_out,
        assured,
        read,
    })
}

/// The signature while it is written.
const UNFINISHED: &str = "manifest.sig.part";

/// Makes the bundle's folder, or looks at what an export before this one left in it: somebody may
/// have had the drive since, so nothing is written through a link.
fn start(folder: &Path) -> Result<Left, Error> {
    match std::fs::symlink_metadata(folder) {
        Ok(m) if m.is_dir() => {
            walk(folder, &mut |_| Ok(()))?;
            files::remove(&folder.join(SIGNATURE)).map(|()| Left::ByAnother)
        }
        Ok(_) => Err(Error::Usage(format!(
            "{} is no folder: move it away, and export again",
            folder.display()
        ))),
        Err(_) => std::fs::create_dir(folder).map(|()| Left::Nothing).map_err(drive_fault(folder)),
    }
}

/// What lies in the bundle's folder before the first file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// Files of an export before this one, of which some may not be planned any more.
    ByAnother,
}

type Job = (FileRow, String);

/// Brings all files to the drive on a few threads; those that were left out.
fn copy_all(
    run: &Run<'_>,
    mut planned: Planned<'_>,
    source: &Root,
    (folder, durability): (&Path, &Durability),
) -> Result<(Vec<LeftOut>, Assured), Error> {
    let (out, jobs) = mpsc::sync_channel::<Job>(WAITING);
    let jobs = Mutex::new(jobs);
    let done: Mutex<Result<(Vec<LeftOut>, Assured), Error>> =
        Mutex::new(Ok((Vec::new(), Assured::Yes)));
    let lock = || done.lock().unwrap_or_else(PoisonError::into_inner);
    let moved = |n| (run.events)(Event::Moved(n));
    let work = || {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        loop {
            let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((row, member)) = next else { return };
            // After a fault of the drive nothing more is tried.
            if lock().is_err() {
                continue;
            }
            let to = folder.join(member);
            let copied = files::copy(source, &row, &to, &mut buffer, &moved, durability);
            let mut done = lock();
            match (copied, done.as_mut()) {
                (Err(e), Ok(_)) => *done = Err(e),
                (Ok(Copied::Whole(a)), Ok((_, assured))) => *assured = assured.and(a),
                (Ok(Copied::LeftOut(l)), Ok((out, _))) => out.push(l),
                (_, Err(_)) => {}
            }
        }
    };
    let handed_out = std::thread::scope(|scope| -> Result<(), Error> {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
        let out = out;
        let mut names = Names::new();
        while let Some(row) = planned.next_row()? {
            let member = member(&mut names, &row.path);
            if lock().is_err() || out.send((row, member)).is_err() {
                break;
            }
        }
        Ok(())
    });
    let (mut left_out, assured) = done.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    handed_out?;
    left_out.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((left_out, assured))
}

fn member(names: &mut Names, path: &FilePath) -> String {
    names.place(path).unwrap_or_else(|| format!("{DATA}{path}"))
}

/// What stands in `entries.jsonl`.
struct Listed {
    entries: Summing,
    seqs: Ranges,
    assured: Assured,
    hashing: RandomState,
    /// Hashes of the members' names, ascending; none where nothing else can be there.
    members: Vec<u64>,
}

/// Writes `entries.jsonl` over what was planned and not left out.
fn list(
    mut planned: Planned<'_>,
    gone: &BTreeSet<&str>,
    to: &Path,
    left: Left,
) -> Result<Listed, Error> {
    let mut out = BufWriter::new(File::create(to).map_err(drive_fault(to))?);
    let (mut entries, mut numbers) = (Summing::new(), Vec::new());
    let (hashing, mut members) = (RandomState::new(), Vec::new());
    let mut names = Names::new();
    while let Some(row) = planned.next_row()? {
        // Also of what was left out, so that each name is the one it was written under.
        let stored_as = names.place(&row.path);
        let Some(entry) = row.entry().filter(|_| !gone.contains(row.path.as_str())) else {
            continue;
        };
        let line = Line { entry, stored_as };
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        entries.add(&line.entry, &text);
        numbers.push(line.entry.seq);
        if left == Left::ByAnother {
            members.push(hashing.hash_one(line.member()));
        }
        out.write_all(&text).map_err(drive_fault(to))?;
    }
    members.sort_unstable();
    let file = out.into_inner().map_err(|e| drive_fault(to)(e.into_error()))?;
    let assured = platform::sync_if_known(&file).map_err(drive_fault(to))?;
    Ok(Listed { entries, seqs: Ranges::from_numbers(numbers), assured, hashing, members })
}

/// Removes what an export before this one left and is not listed any more.
fn remove_others(folder: &Path, listed: &Listed) -> Result<(), Error> {
    let mut others = Vec::new();
    walk(folder, &mut |name| {
        let is_ours = [ENTRIES, HEADER, SIGNATURE].contains(&name);
        if !is_ours && listed.members.binary_search(&listed.hashing.hash_one(name)).is_err() {
            others.push(name.to_owned());
        }
        Ok(())
    })?;
    others.iter().try_for_each(|name| files::remove(&folder.join(name)))
}
