//! A bundle as one archive on the drive: header first, so every file's digest is known before.
//!
//! A file that turns out to have changed is left out and the archive begun again without it. What
//! stands there already and is what would be written is not written again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::path::Path;

use barque_bundle::digest::Hasher;
use barque_bundle::entry::Summing;
use barque_bundle::fault::{self, Step};
use barque_bundle::open::{Bundle, Form, Head};
use barque_bundle::platform::{self, Root};
use barque_bundle::stream::{DATA, Writer};
use barque_bundle::{Ranges, Sha256Digest, Signed};

use super::files::{self, Planned};
use super::target::{self, drive_fault};
use super::{Event, LeftOut, Run, Written};
use crate::error::Error;
use crate::ledger::{BundleRow, FileRow, Ledger};

const BUFFER_BYTES: usize = 256 * 1024;
/// zstd's own default level.
const LEVEL: i32 = 3;

/// Writes the archive under the second name, and gives it the first once it is whole.
pub(super) fn write(
    run: &Run<'_>,
    ledger: &Ledger,
    source: &Root,
    bundle: &BundleRow,
    (whole, partial): (&Path, &Path),
) -> Result<Written, Error> {
    let mut work = Work { run, ledger, source, bundle, left_out: Vec::new() };
    work.leave_out_what_is_gone()?;
    let (header, listed) = loop {
        let listed = work.list()?;
        let header = match work.sealed_before(partial, &listed) {
            Some(header) => header,
            None => {
                let Signed { bytes, sig, .. } = run.seal(ledger, bundle, &listed.entries)?;
                (bytes, sig)
            }
        };
        let sums = listed.entries.sums();
        let bytes = sums.total_bytes.unwrap_or(u64::MAX);
        (run.events)(Event::Writing { files: sums.count, bytes });
        match work.write_once(partial, (&header.0, &header.1), listed.text_bytes)? {
            None => break (header, listed),
            Some(out) => work.left_out.push(out),
        }
        // What else has changed meanwhile is left out in one go.
        work.leave_out_what_is_gone()?;
    };
    fault::after(Step::ExportHeader);
    let mut assured = target::sync_all(partial, &run.folder)?;
    let read = run.read_back(Bundle::open(partial)?)?;
    std::fs::rename(partial, whole).map_err(drive_fault(whole))?;
    assured = assured.and(target::sync_all(whole, &run.folder)?);
    let sums = listed.entries.sums();
    Ok(Written {
        path: whole.to_owned(),
        header: header.0,
        sig: header.1,
        files: sums.count,
        bytes: sums.total_bytes.unwrap_or(u64::MAX),
        seqs: listed.seqs,
        left_out: work.left_out,
        assured,
        read,
    })
}

struct Work<'a> {
    run: &'a Run<'a>,
    ledger: &'a Ledger,
    source: &'a Root,
    bundle: &'a BundleRow,
    left_out: Vec<LeftOut>,
}

/// What stands in `entries.jsonl`.
struct Listed {
    entries: Summing,
    seqs: Ranges,
    text_bytes: u64,
}

impl Work<'_> {
    fn gone(&self) -> BTreeSet<String> {
        self.left_out.iter().map(|l| l.path.clone()).collect()
    }

    fn rows(&self) -> Rows<'_> {
        let planned = Planned::new(self.ledger, self.bundle.hub_id, self.bundle.bundle_id);
        Rows { planned, gone: self.gone() }
    }

    /// Leaves out what is not there any more, or not of its size.
    fn leave_out_what_is_gone(&mut self) -> Result<(), Error> {
        let mut rows = self.rows();
        let mut found = Vec::new();
        while let Some(row) = rows.next_row()? {
            found.extend(files::open(self.source, &row).err());
        }
        self.left_out.extend(found);
        self.left_out.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }

    /// The header of an export before this one, if it is our own and of these very entries: then
    /// what stands behind it is gone on with.
    fn sealed_before(&self, partial: &Path, listed: &Listed) -> Option<(Vec<u8>, Vec<u8>)> {
        let Head { header, bytes, sig } = Bundle::open(partial).ok()?.head;
        let key = self.run.identity.key.public();
        let is_ours = header.verify(&bytes, &sig, &key, self.run.hub_id).is_ok()
            && header.bundle_id == self.bundle.bundle_id
            && header.verify_sums(&listed.entries).is_ok();
        is_ours.then_some((bytes, sig))
    }

    fn list(&self) -> Result<Listed, Error> {
        let (mut rows, mut text_bytes) = (self.rows(), 0);
        let (mut entries, mut numbers) = (Summing::new(), Vec::new());
        while let Some(row) = rows.next_row()? {
            let Some(entry) = row.entry() else { continue };
            let text = line_of(&row);
            entries.add(&entry, &text);
            text_bytes += text.len() as u64;
            numbers.push(entry.seq);
        }
        Ok(Listed { entries, seqs: Ranges::from_numbers(numbers), text_bytes })
    }

    /// One try; the file that kept it from being whole.
    fn write_once(
        &self,
        to: &Path,
        head: (&[u8], &[u8]),
        text_bytes: u64,
    ) -> Result<Option<LeftOut>, Error> {
        let out =
            BufWriter::with_capacity(BUFFER_BYTES, GoingOn::open(to).map_err(drive_fault(to))?);
        match self.bundle.form {
            Form::TarZst => {
                let encoder = zstd::stream::write::Encoder::new(out, LEVEL);
                let encoder = encoder.map_err(drive_fault(to))?;
                match self.fill(encoder, to, head, text_bytes)? {
                    Filled::Whole(encoder) => {
                        let out = encoder.finish().map_err(drive_fault(to))?;
                        end(out).map_err(drive_fault(to))?;
                        Ok(None)
                    }
                    Filled::Without(left_out) => Ok(Some(left_out)),
                }
            }
            _ => match self.fill(out, to, head, text_bytes)? {
                Filled::Whole(out) => end(out).map(|()| None).map_err(drive_fault(to)),
                Filled::Without(left_out) => Ok(Some(left_out)),
            },
        }
    }

    fn fill<W: Write>(
        &self,
        out: W,
        to: &Path,
        head: (&[u8], &[u8]),
        text_bytes: u64,
    ) -> Result<Filled<W>, Error> {
        let mut text = Text { rows: self.rows(), line: io::Cursor::new(Vec::new()), fault: None };
        let started = Writer::start_archive(out, head, (text_bytes, &mut text));
        if let Some(e) = text.fault {
            return Err(e);
        }
        let mut writer = started.map_err(drive_fault(to))?;
        let mut rows = self.rows();
        while let Some(row) = rows.next_row()? {
            let file = match files::open(self.source, &row) {
                Ok(file) => file,
                Err(out) => return Ok(Filled::Without(out)),
            };
            let mut file = Hashing { file, hasher: Hasher::new(), fault: None, run: self.run };
            let name = format!("{DATA}{}", row.path);
            let written = writer.member(&name, row.stat.size_bytes, &mut file);
            if let Some(e) = file.fault {
                return Ok(Filled::Without(files::left_out(&row, "unreadable", e.to_string())));
            }
            match written {
                // Shorter than it was.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(Filled::Without(files::changed(&row)));
                }
                written => written.map_err(drive_fault(to))?,
            }
            let found: Sha256Digest = file.hasher.finish();
            if Some(found) != row.sha256 {
                return Ok(Filled::Without(files::changed(&row)));
            }
        }
        fault::after(Step::ExportFiles);
        writer.finish().map(Filled::Whole).map_err(drive_fault(to))
    }
}

enum Filled<W> {
    Whole(W),
    Without(LeftOut),
}

/// Planned rows but for those that were left out.
struct Rows<'a> {
    planned: Planned<'a>,
    gone: BTreeSet<String>,
}

impl Rows<'_> {
    fn next_row(&mut self) -> Result<Option<FileRow>, Error> {
        while let Some(row) = self.planned.next_row()? {
            if !self.gone.contains(row.path.as_str()) {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

fn line_of(row: &FileRow) -> Vec<u8> {
    let mut text = row.entry().map(|e| serde_json::to_vec(&e).unwrap_or_default());
    text.iter_mut().for_each(|t| t.push(b'\n'));
    text.unwrap_or_default()
}

/// `entries.jsonl` as it is read from the ledger.
struct Text<'a> {
    rows: Rows<'a>,
    line: io::Cursor<Vec<u8>>,
    fault: Option<Error>,
}

impl Read for &mut Text<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.line.read(buffer)? {
                0 if !buffer.is_empty() => {}
                n => return Ok(n),
            }
            match self.rows.next_row() {
                Ok(Some(row)) => self.line = io::Cursor::new(line_of(&row)),
                Ok(None) => return Ok(0),
                Err(e) => {
                    self.fault = Some(e);
                    return Err(io::Error::other("the ledger cannot be read"));
                }
            }
        }
    }
}

/// A file of the source that is hashed as it is read.
struct Hashing<'a> {
    file: File,
    hasher: Hasher,
    fault: Option<io::Error>,
    run: &'a Run<'a>,
}

impl Read for &mut Hashing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.file.read(buffer) {
            Ok(n) => {
                self.hasher.update(&buffer[..n]);
                (self.run.events)(Event::Moved(n as u64));
                Ok(n)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                self.fault = Some(e);
                Err(io::Error::other("the source cannot be read"))
            }
        }
    }
}

/// A file that is written over what an export before this one left: as long as that is the same,
/// it is only read; from the first difference on it is written anew.
struct GoingOn {
    file: File,
    /// Bytes that stood there and are not compared yet.
    left: u64,
    at: u64,
}

impl GoingOn {
    fn open(path: &Path) -> io::Result<Self> {
        // Somebody may have had the drive: nothing is written through a link, and no FIFO waits.
        if std::fs::symlink_metadata(path).is_ok_and(|m| !m.is_file()) {
            let why = "something else than a file stands there; move it away";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        let left = file.metadata()?.len();
        Ok(Self { file, left, at: 0 })
    }

    /// How many of these bytes stand there.
    fn same(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut there =
            vec![0u8; bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX))];
        self.file.read_exact(&mut there)?;
        Ok(there.iter().zip(bytes).take_while(|(a, b)| a == b).count())
    }
}

impl Write for GoingOn {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            let n = self.file.write(bytes)?;
            self.at += n as u64;
            return Ok(n);
        }
        let same = self.same(bytes)?;
        self.at += same as u64;
        self.left -= same as u64;
        if same < bytes.len() && self.left > 0 {
            self.file.set_len(self.at)?;
            self.left = 0;
        }
        self.file.seek(SeekFrom::Start(self.at))?;
        match same {
            0 => self.write(bytes),
            same => Ok(same),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Ends the file where the archive ends.
fn end(out: BufWriter<GoingOn>) -> io::Result<()> {
    let going_on = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    going_on.file.set_len(going_on.at)?;
    platform::sync_if_known(&going_on.file).map(drop)
}
