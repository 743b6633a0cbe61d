//! Reads a bundle once: head, entries, then every file, hashed on the way and staged where the hub
//! lacks it. Nothing is proposed here; the first fault refuses the whole bundle by name (V1).

use std::fs::File;
use std::io::{BufReader, Read};
use std::sync::Arc;
use std::time::Duration;

use barque_bundle::digest::Hasher;
use barque_bundle::entry::{Line, Lines};
use barque_bundle::fault::{self, Step};
use barque_bundle::open::{Archive, Head, OpenError, Reopen, decompressed};
use barque_bundle::{Entry, LandedName};
use tokio::runtime::Handle;

use super::claim::Claim;
use super::source::{Opened, Source};
use super::{Again, Job, already_imported, scratch};
use crate::command::BundleRef;
use crate::error::{Error, Refusal};
use crate::hub::Parts;
use crate::landing::Seen;
use crate::ledger::{ImportFile, ImportKey, StagedRow};
use crate::manifest::query::{self, FileState};
use crate::receive::{Item, Reserved, admit};
use crate::registry;
use crate::staging::{Slot, Syncer};

/// How long the state of the whole hub is waited for.
const KNOWN_WAIT: Duration = Duration::from_secs(5);
const BUFFER_BYTES: usize = 64 * 1024;
/// Files, and bytes of them, that are synced together.
const GROUP_FILES: usize = 1_000;
const GROUP_BYTES: u64 = 64 * 1024 * 1024;

pub(super) struct Intake {
    pub parts: Arc<Parts>,
    pub job: Arc<Job>,
    pub again: Again,
}

/// A bundle that was read whole and is what it declares.
pub(super) struct Verified {
    pub head: Head,
    pub key: ImportKey,
    pub bundle: Arc<BundleRef>,
    pub claim: Claim,
    /// It was imported before, and stays recorded so.
    pub is_recorded: bool,
    /// Keeps staged copies above the node's floor until they are registered.
    _hold: Slot,
}

/// When and where it was imported, if it was.
type Recorded = Option<barque_bundle::wire::ImportLine>;

/// The signature, the spoke and the hub of a bundle hold; whether it was imported before.
fn admit_head(parts: &Parts, head: &Head) -> Result<Recorded, Error> {
    let header = &head.header;
    parts.readers.read(|c| {
        let key = registry::bundle_key(c, header)?;
        header
            .verify(&head.bytes, &head.sig, &key, parts.identity.hub_id)
            .map_err(|e| Refusal::from(OpenError::from(e)))?;
        query::imported(c, &header.spoke_id, header.bundle_id)
    })
}

/// Whether a bundle with this head would be taken, as far as that can be said without its entries.
pub fn check(parts: &Parts, head: &Head, again: Again) -> Result<(), Error> {
    let before = admit_head(parts, head)?;
    parts.imports.require_idle()?;
    let spoke = &head.header.spoke_id;
    let Some(line) = before.filter(|_| again == Again::Refuse) else { return Ok(()) };
    // Something was lost since, or could not land then: the entries decide.
    if line.refused > 0 || !parts.readers.read(|c| query::wanted(c, spoke, 1))?.is_empty() {
        return Ok(());
    }
    let key = ImportKey { spoke_id: spoke.clone(), bundle_id: head.header.bundle_id };
    Err(already_imported(parts, &line, &key).into())
}

impl Intake {
    /// Reads the source to its end or its first fault.
    pub fn run(&self, source: Source, runtime: &Handle) -> Result<Verified, Error> {
        let Opened { bytes, writer } = source.open(self.parts.imports.allowed())?;
        let (bytes, _) = decompressed(bytes)
            .map_err(|e| OpenError::from(barque_bundle::archive::ArchiveError::Io(e)))
            .map_err(Refusal::from)?;
        let mut archive = Archive::new(bytes);
        let read = self.read(&mut archive, runtime);
        let opened = Opened { bytes: Box::new(std::io::empty()), writer };
        drop(archive);
        match read {
            // A writer that ended badly is the cause of what was missing here.
            Err(e) => Err(opened.fault().map_or(e, Error::from)),
            Ok(verified) => match opened.fault() {
                Some(refusal) => Err(refusal.into()),
                None => Ok(verified),
            },
        }
    }

    fn read(&self, archive: &mut Archive<impl Read>, runtime: &Handle) -> Result<Verified, Error> {
        let head = archive.head().map_err(Refusal::from)?;
        let header = &head.header;
        // What another node has recorded so far is known here too.
        runtime.block_on(self.parts.cluster.barrier(&self.parts.node, KNOWN_WAIT))?;
        admit_head(&self.parts, &head)?;
        self.job.is_of(header);
        let key = ImportKey { spoke_id: header.spoke_id.clone(), bundle_id: header.bundle_id };
        let spool = Spool::make(&self.parts, &key)?;
        archive.entries(header, &spool.file).map_err(Refusal::from)?;
        let all = spool.reopen();
        let (recorded, survey) = self.decide(&key, &head, &all)?;
        let claim = runtime.block_on(Claim::take(&self.parts, &self.job, &key))?;
        fault::after(Step::ImportClaimed);
        // Another node may have brought it to its end just before the claim.
        runtime.block_on(self.parts.cluster.barrier(&self.parts.node, KNOWN_WAIT))?;
        let (recorded, survey) = match recorded {
            None => self.decide(&key, &head, &all)?,
            some => (some, survey),
        };
        let reserved = Reserved::take(&self.parts, &header.spoke_id, survey.needed_bytes)?;
        let hold = self.parts.staging.hold()?;
        let number = claim.number();
        let mut stage = Stage {
            intake: self,
            key: &key,
            claim: number,
            reserved,
            syncer: self.parts.staging.syncer()?,
            seen: Seen::default(),
            group: Group::default(),
        };
        stage.all(archive, &head, &all)?;
        // Nothing but what this bundle declares is registered, whatever was noted before.
        self.parts.ledger.forget_other_claims(&key, number)?;
        fault::after(Step::ImportStaged);
        let bundle =
            BundleRef::of(header, head.bytes.clone(), head.sig.clone(), Some(claim.number()));
        Ok(Verified {
            key,
            bundle: Arc::new(bundle),
            claim,
            is_recorded: recorded.is_some(),
            head,
            _hold: hold,
        })
    }

    /// Whether the bundle was imported before, and what the manifest lacks of it; refused when that
    /// is nothing.
    fn decide(
        &self,
        key: &ImportKey,
        head: &Head,
        all: &Reopen,
    ) -> Result<(Recorded, Survey), Error> {
        let recorded = admit_head(&self.parts, head)?;
        let survey = self.survey(key, head, all)?;
        if let Some(line) = &recorded
            && self.again == Again::Refuse
            && survey.all_stand
        {
            return Err(already_imported(&self.parts, line, key).into());
        }
        Ok((recorded, survey))
    }

    /// What the manifest lacks of the entries, before any file is read.
    fn survey(&self, key: &ImportKey, head: &Head, all: &Reopen) -> Result<Survey, Error> {
        let series = head.header.series;
        let mut survey = Survey { needed_bytes: 0, all_stand: true };
        let mut lines = open_lines(all, head)?;
        while let Some(Line { entry, .. }) = lines.next_line().map_err(refuse)? {
            let row = match LandedName::new(&key.spoke_id, &entry.path) {
                Ok(landed) => self.parts.readers.read(|c| query::lookup(c, landed.as_str()))?,
                Err(_) => None,
            };
            let stands = match row {
                Some(row) => row.state != FileState::Lost,
                // Refused for good by a rule, if it was answered.
                None => self
                    .parts
                    .readers
                    .read(|c| query::is_answered(c, &key.spoke_id, series, entry.seq))?,
            };
            if !stands {
                survey.all_stand = false;
                let is_staged = earlier(&self.parts, key, &entry)?.is_some();
                let more = if is_staged { 0 } else { entry.size_bytes };
                survey.needed_bytes = survey.needed_bytes.saturating_add(more);
            }
        }
        Ok(survey)
    }
}

struct Survey {
    needed_bytes: u64,
    /// Every entry has its answer, and no file was lost since.
    all_stand: bool,
}

fn refuse(e: impl Into<OpenError>) -> Error {
    Refusal::from(e.into()).into()
}

fn open_lines(all: &Reopen, head: &Head) -> Result<Lines<Box<dyn std::io::BufRead + Send>>, Error> {
    let source = all().map_err(Error::io("cannot read", "entries.jsonl"))?;
    Ok(Lines::new(source, head.header.entry_count))
}

/// The copy that an import before this one staged of a file.
fn earlier(parts: &Parts, key: &ImportKey, entry: &Entry) -> Result<Option<u64>, Error> {
    let Some(file) = parts.ledger.import_file(key, &entry.path)? else { return Ok(None) };
    let is_same = file.entry.sha256 == entry.sha256 && file.entry.size_bytes == entry.size_bytes;
    let Some(stage_no) = file.stage_no.filter(|_| is_same) else { return Ok(None) };
    let len = std::fs::metadata(parts.staging.path(stage_no)).map_or(u64::MAX, |m| m.len());
    let is_there = len == entry.size_bytes && parts.ledger.is_staged(stage_no)?;
    Ok(is_there.then_some(stage_no))
}

/// `entries.jsonl` in staging, gone when it is dropped.
struct Spool {
    path: std::path::PathBuf,
    file: File,
}

impl Spool {
    fn make(parts: &Parts, key: &ImportKey) -> Result<Self, Error> {
        let path = scratch(parts, key, "entries");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).map_err(Error::io("cannot write", &path))?;
        Ok(Self { path, file })
    }

    fn reopen(&self) -> Reopen {
        let path = self.path.clone();
        Box::new(move || Ok(Box::new(BufReader::with_capacity(64 * 1024, File::open(&path)?))))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Files that are synced and noted together.
#[derive(Default)]
struct Group {
    files: Vec<ImportFile>,
    staged: Vec<StagedRow>,
    slots: Vec<Slot>,
    /// Copies of an import before this one that have a new number now.
    replaced: Vec<u64>,
    bytes: u64,
}

struct Stage<'a> {
    intake: &'a Intake,
    key: &'a ImportKey,
    claim: u64,
    reserved: Reserved,
    syncer: Syncer,
    seen: Seen,
    group: Group,
}

impl Stage<'_> {
    fn parts(&self) -> &Arc<Parts> {
        &self.intake.parts
    }

    fn all(
        &mut self,
        archive: &mut Archive<impl Read>,
        head: &Head,
        all: &Reopen,
    ) -> Result<(), Error> {
        let mut buffer = vec![0u8; BUFFER_BYTES];
        let mut lines = open_lines(all, head)?;
        while let Some(line) = lines.next_line().map_err(refuse)? {
            self.intake.job.require_going_on()?;
            archive.file(&line, all).map_err(refuse)?;
            let bytes = line.entry.size_bytes;
            let file = self.file(archive, line, &mut buffer)?;
            self.group.files.push(file);
            self.group.bytes += bytes;
            self.intake.job.update(|j| {
                j.verified_files += 1;
                j.verified_bytes += bytes;
            });
            if self.group.files.len() >= GROUP_FILES || self.group.bytes >= GROUP_BYTES {
                self.flush()?;
            }
        }
        self.flush()?;
        archive.end(all).map_err(refuse)
    }

    /// One file: hashed whatever becomes of it, written only where the hub lacks it.
    fn file(
        &mut self,
        archive: &mut Archive<impl Read>,
        line: Line,
        buffer: &mut [u8],
    ) -> Result<ImportFile, Error> {
        let entry = line.entry;
        let (parts, spoke) = (&self.intake.parts, &self.key.spoke_id);
        let refused = match admit::decided(parts, spoke, &entry, &mut self.seen)? {
            None => return self.stage(archive, entry, buffer),
            Some(Item::Decided { line, .. }) => {
                Some((line.code.unwrap_or_default(), line.detail.unwrap_or_default()))
            }
            Some(_) => None,
        };
        hash(archive, &entry, buffer)?;
        self.reserved.release(entry.size_bytes);
        Ok(ImportFile { entry, stage_no: None, refused })
    }

    fn stage(
        &mut self,
        archive: &mut Archive<impl Read>,
        entry: Entry,
        buffer: &mut [u8],
    ) -> Result<ImportFile, Error> {
        let parts = Arc::clone(self.parts());
        if let Some(stage_no) = earlier(&parts, self.key, &entry)? {
            hash(archive, &entry, buffer)?;
            let slot = parts.staging.adopt(&parts.staging.path(stage_no))?;
            self.group.replaced.push(stage_no);
            return Ok(self.staged(entry, slot));
        }
        let mut incoming = parts.staging.begin()?;
        loop {
            let n = archive.read(buffer).map_err(refuse)?;
            if n == 0 {
                break;
            }
            let path = incoming.path().to_owned();
            incoming.write(&buffer[..n]).map_err(Error::io("cannot write", path))?;
            self.reserved.release(n as u64);
        }
        let (found, _) = incoming.digest();
        compare(archive, &entry, found)?;
        let path = incoming.path().to_owned();
        let judged = admit::judge(&mut incoming.file(), &path, &entry)?;
        if let Some(Item::Decided { line, .. }) = judged {
            let refused = (line.code.unwrap_or_default(), line.detail.unwrap_or_default());
            return Ok(ImportFile { entry, stage_no: None, refused: Some(refused) });
        }
        parts.metrics.received(entry.size_bytes);
        Ok(self.staged(entry, incoming.into_slot()))
    }

    fn staged(&mut self, entry: Entry, slot: Slot) -> ImportFile {
        let stage_no = slot.stage_no();
        self.group.staged.push(StagedRow {
            stage_no,
            landed: barque_bundle::wire::landed(&self.key.spoke_id, &entry.path),
            sha256: entry.sha256,
            size_bytes: entry.size_bytes,
        });
        self.group.slots.push(slot);
        ImportFile { entry, stage_no: Some(stage_no), refused: None }
    }

    /// Syncs the group's copies and notes them; a failed sync condemns all of them.
    fn flush(&mut self) -> Result<(), Error> {
        let Group { files, staged, slots, replaced, .. } = std::mem::take(&mut self.group);
        // A drive takes hours: what stands in landing is looked at anew.
        self.seen = Seen::default();
        let parts = self.parts();
        if !staged.is_empty() {
            let files: Vec<_> = staged.iter().map(|r| parts.staging.path(r.stage_no)).collect();
            self.syncer
                .sync(&files)
                .map_err(Error::io("cannot sync files in", parts.staging.folder()))?;
        }
        parts.ledger.note_import(self.key, &files, &staged, (self.claim, (parts.clock)()))?;
        slots.into_iter().for_each(Slot::keep);
        for stage_no in replaced {
            let path = parts.staging.path(stage_no);
            parts.staging.remove(stage_no).map_err(Error::io("cannot remove", path))?;
            parts.ledger.forget_staged(stage_no)?;
        }
        Ok(())
    }
}

fn hash(archive: &mut Archive<impl Read>, entry: &Entry, buffer: &mut [u8]) -> Result<(), Error> {
    let mut hasher = Hasher::new();
    loop {
        match archive.read(buffer).map_err(refuse)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    compare(archive, entry, hasher.finish())
}

fn compare(
    archive: &Archive<impl Read>,
    entry: &Entry,
    found: barque_bundle::Sha256Digest,
) -> Result<(), Error> {
    if found == entry.sha256 {
        return Ok(());
    }
    let (member, offset) = archive.current();
    let (member, expected) = (member.to_owned(), entry.sha256);
    Err(refuse(OpenError::Digest { member, expected, found, offset: Some(offset) }))
}
