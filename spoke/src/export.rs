//! Writes what waits to a drive as a signed bundle; what a crash, a full or a pulled drive left is
//! gone on with.
//!
//! The order is: plan in the ledger, files, entries, header, sync, read back, signature, and only
//! then the ledger says exported. Exported is not synced (D5): only the hub's receipt makes it so.

mod archive;
mod files;
mod folder;
mod plan;
mod target;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use barque_bundle::fault::{self, Step};
use barque_bundle::header::Draft;
use barque_bundle::open::{Bundle, Form};
use barque_bundle::path::printable;
use barque_bundle::platform::{Assured, Root};
use barque_bundle::{BundleId, ByteSize, ErrorKind, Header, HubId, SeriesId, Timestamp, platform};
use serde::Serialize;

use crate::config::{SpokeConfig, StateFolder};
use crate::edge::Edge;
use crate::error::Error;
use crate::identity::Identity;
use crate::ledger::bundles::Sealed;
use crate::ledger::{BundleRow, BundleState, HubRow, Ledger};
use crate::lock::Lock;
use crate::push::{self, Mode};
use crate::scan::{ScanReport, Scanner, Unreadable};

pub use plan::{DEFAULT_BYTES_MAX, DEFAULT_FILES_MAX};

/// What a caller chooses.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which hub the bundle is for; needed when there are several.
    pub hub: Option<HubId>,
    pub folder: PathBuf,
    /// What is written on the drive, for people.
    pub label: Option<String>,
    pub files_max: u64,
    pub bytes_max: ByteSize,
    pub form: Form,
    pub read_back: ReadBack,
    pub mode: Mode,
}

/// Whether what was written is read from the drive again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadBack {
    Verify,
    Skip,
}

/// How sure it is that the drive holds what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Read {
    /// Read from the drive and equal.
    Verified,
    /// Read and equal, but perhaps from this machine's memory: the file system does not let it go.
    VerifiedFromMemory,
    NotRead,
}

/// What an export tells while it runs.
#[derive(Clone, Debug)]
pub enum Event {
    Scan(push::Event),
    /// Files and bytes that are to be written.
    Writing {
        files: u64,
        bytes: u64,
    },
    Moved(u64),
    ReadingBack,
}

pub type Events<'a> = &'a (dyn Fn(Event) + Sync);

/// A file that was planned and is not in the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub path: String,
    pub code: &'static str,
    pub detail: String,
}

/// An export that was not finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    pub bundle_id: BundleId,
    pub label: Option<String>,
    pub folder: PathBuf,
    pub created_at: Timestamp,
}

/// What an export came to.
#[derive(Clone, Debug, Serialize)]
pub struct ExportReport {
    pub hub_id: HubId,
    /// None when there is nothing to export.
    pub bundle_id: Option<BundleId>,
    pub path: Option<PathBuf>,
    pub label: Option<String>,
    pub form: &'static str,
    pub files: u64,
    pub bytes: u64,
    /// It went on with a bundle that was not finished.
    pub is_resumed: bool,
    /// Whether the file system said that all is on the drive.
    pub is_synced: bool,
    pub read_back: Read,
    /// Planned and not in it; at most 1,000 are named.
    pub left_out: Vec<LeftOut>,
    /// Files that still wait after this.
    pub left: u64,
    pub left_bytes: u64,
    pub unreadable: Vec<Unreadable>,
    /// Other exports that were not finished.
    pub unfinished: Vec<Unfinished>,
    pub is_dry: bool,
}

/// What is known once a bundle is whole on its drive.
pub(crate) struct Written {
    pub path: PathBuf,
    pub header: Vec<u8>,
    pub sig: Vec<u8>,
    pub files: u64,
    pub bytes: u64,
    pub seqs: barque_bundle::Ranges,
    pub left_out: Vec<LeftOut>,
    pub assured: Assured,
    pub read: Read,
}

/// Writes a bundle of what waits to a folder of a drive.
pub fn export(
    state: &StateFolder,
    edge: &Edge,
    options: &Options,
    events: Events<'_>,
) -> Result<ExportReport, Error> {
    export_locked(state, edge, options, events).map_err(Error::explained)
}

fn export_locked(
    state: &StateFolder,
    edge: &Edge,
    options: &Options,
    events: Events<'_>,
) -> Result<ExportReport, Error> {
    let config = SpokeConfig::load(state)?;
    let identity = Identity::load(state)?;
    let (identity, hub_id) = for_one_hub(state, identity, &config, options.hub)?;
    let folder = target::check(&options.folder, &config.source, state.path())?;
    let _lock = Lock::take(state, edge.now())?;
    let mut ledger = Ledger::open(&state.ledger())?;
    ledger.add_hub_if_missing(hub_id, SeriesId::new(edge.now(), edge.id_bytes()))?;
    let source = Arc::new(
        Root::open(&config.source)
            .map_err(Error::io("cannot open the source folder", &config.source))?,
    );
    let mut run =
        Run { edge, options, events, config: &config, identity: &identity, hub_id, folder };
    run.export(state, &mut ledger, &source)
}

/// The identity, and the one hub that is meant.
fn for_one_hub(
    state: &StateFolder,
    identity: Option<Identity>,
    config: &SpokeConfig,
    only: Option<HubId>,
) -> Result<(Identity, HubId), Error> {
    let (identity, hubs) = push::enrolled(state, identity, config, only)?;
    match hubs.as_slice() {
        [hub] => Ok((identity, hub.hub_id)),
        hubs => {
            let ids: Vec<String> = hubs.iter().map(|h| h.hub_id.to_string()).collect();
            Err(Error::Usage(format!(
                "this spoke has {} hubs, and a bundle is for one: give --hub, one of {}",
                ids.len(),
                ids.join(", ")
            )))
        }
    }
}

struct Run<'a> {
    edge: &'a Edge,
    options: &'a Options,
    events: Events<'a>,
    config: &'a SpokeConfig,
    identity: &'a Identity,
    hub_id: HubId,
    folder: PathBuf,
}

impl Run<'_> {
    fn export(
        &mut self,
        state: &StateFolder,
        ledger: &mut Ledger,
        source: &Arc<Root>,
    ) -> Result<ExportReport, Error> {
        let is_dry = self.options.mode == Mode::DryRun;
        if !is_dry {
            ledger.recover()?;
        }
        let scan = self.scan(state, ledger, source)?;
        let (mut resumed, unfinished) = self.unfinished(ledger)?;
        if let Some(bundle) = resumed.take_if(|_| !is_dry) {
            // All that was planned for it may have gone by another road since.
            let planned = files::Planned::new(ledger, bundle.hub_id, bundle.bundle_id);
            match planned.sum()? {
                (0, _) => self.give_up(ledger, &bundle)?,
                _ => resumed = Some(bundle),
            }
        }
        let mut report = self.empty_report(scan, unfinished);
        let bundle = match resumed {
            Some(bundle) if !is_dry => Some(bundle),
            _ => None,
        };
        report.is_resumed = bundle.is_some();
        let bundle = match bundle {
            Some(bundle) => Some(bundle),
            None => {
                let chosen = plan::choose(ledger, self.hub_id, &self.folder, self.options)?;
                (report.files, report.bytes) = (chosen.files, chosen.bytes);
                report.left_out = chosen.left_out;
                match (chosen.files, is_dry) {
                    (0, _) | (_, true) => None,
                    _ => Some(self.begin(ledger)?),
                }
            }
        };
        if let Some(bundle) = bundle {
            self.write(ledger, source, &bundle, &mut report)?;
        }
        let tally = ledger.tally(self.hub_id)?;
        let planned = if is_dry { (report.files, report.bytes) } else { (0, 0) };
        report.left = tally.of(crate::plan::State::Pending).saturating_sub(planned.0);
        report.left_bytes = tally.pending_bytes.saturating_sub(planned.1);
        ledger.tidy()?;
        Ok(report)
    }

    /// Ends an export of which nothing is left to write, and removes what it wrote.
    fn give_up(&self, ledger: &mut Ledger, bundle: &BundleRow) -> Result<(), Error> {
        let now = self.edge.now();
        ledger.take_back(bundle.hub_id, bundle.bundle_id, BundleState::Abandoned, now)?;
        for path in self.places(bundle) {
            let removed = match std::fs::symlink_metadata(&path) {
                Ok(m) if m.is_dir() => std::fs::remove_dir_all(&path),
                Ok(_) => std::fs::remove_file(&path),
                Err(_) => Ok(()),
            };
            removed.map_err(target::drive_fault(&path))?;
        }
        Ok(())
    }

    fn empty_report(&self, scan: ScanReport, unfinished: Vec<Unfinished>) -> ExportReport {
        ExportReport {
            hub_id: self.hub_id,
            bundle_id: None,
            path: None,
            label: self.options.label.clone(),
            form: self.options.form.as_str(),
            files: 0,
            bytes: 0,
            is_resumed: false,
            is_synced: false,
            read_back: Read::NotRead,
            left_out: Vec::new(),
            left: 0,
            left_bytes: 0,
            unreadable: scan.unreadable,
            unfinished,
            is_dry: self.options.mode == Mode::DryRun,
        }
    }

    fn scan(
        &self,
        state: &StateFolder,
        ledger: &mut Ledger,
        source: &Root,
    ) -> Result<ScanReport, Error> {
        let select = self.config.select(&[], &[]).map_err(Error::Usage)?;
        let priorities = self.config.priorities().map_err(Error::Usage)?;
        let began = self.hub_now(ledger)?;
        let report = Scanner {
            source,
            state_folder: state.path(),
            spoke_id: &self.identity.spoke_id,
            hub_id: self.hub_id,
            ledger,
            edge: self.edge,
            settle: self.config.settle_time().map_err(Error::Usage)?,
            select: &select,
            priorities: &priorities,
            dry: self.options.mode == Mode::DryRun,
            is_over: &|| false,
            events: &|event| (self.events)(Event::Scan(event)),
        }
        .scan()?;
        if report.is_complete() && self.options.mode == Mode::Real {
            ledger.set_as_of(self.hub_id, began)?;
        }
        Ok(report)
    }

    fn hub_row(&self, ledger: &Ledger) -> Result<HubRow, Error> {
        ledger.hub(self.hub_id)?.ok_or_else(|| {
            Error::NotEnrolled(format!("the ledger does not know hub {}", self.hub_id))
        })
    }

    /// The hub's time, as far as it is known.
    fn hub_now(&self, ledger: &Ledger) -> Result<Timestamp, Error> {
        Ok(self.edge.now().plus_ms(self.hub_row(ledger)?.clock_offset_ms))
    }

    /// The unfinished bundle that lies on this drive, and all others.
    fn unfinished(&self, ledger: &Ledger) -> Result<(Option<BundleRow>, Vec<Unfinished>), Error> {
        let rows = ledger.bundles(Some(self.hub_id), BundleState::Writing)?;
        let is_here = |row: &BundleRow| {
            row.form == self.options.form
                && self.places(row).iter().any(|p| std::fs::symlink_metadata(p).is_ok())
        };
        let (mut here, mut others) = (None, Vec::new());
        for row in rows {
            if here.is_none() && is_here(&row) {
                here = Some(row);
                continue;
            }
            others.push(Unfinished {
                bundle_id: row.bundle_id,
                label: row.label,
                folder: row.folder,
                created_at: row.created_at,
            });
        }
        Ok((here, others))
    }

    /// Where a bundle stands once it is whole, and while it is written.
    fn places(&self, row: &BundleRow) -> [PathBuf; 2] {
        let name = bundle_name(&self.identity.spoke_id, row.bundle_id, row.form);
        let whole = self.folder.join(&name);
        match row.form {
            Form::Folder => [whole.clone(), whole],
            _ => [whole, self.folder.join(format!("{name}.partial"))],
        }
    }

    fn begin(&self, ledger: &mut Ledger) -> Result<BundleRow, Error> {
        let hub = self.hub_row(ledger)?;
        let created_at = self.hub_now(ledger)?;
        let row = BundleRow {
            bundle_id: BundleId::new(created_at, self.edge.id_bytes()),
            hub_id: self.hub_id,
            state: BundleState::Writing,
            form: self.options.form,
            folder: self.folder.clone(),
            label: self.options.label.clone(),
            created_at,
            series: hub.series,
            files: 0,
            bytes: 0,
            seqs: barque_bundle::Ranges::default(),
            since: self.edge.now(),
        };
        // The plan first: a bundle without files is nothing to go on with.
        plan::mark(ledger, self.hub_id, row.bundle_id)?;
        ledger.begin_bundle(&row)?;
        fault::after(Step::ExportPlanned);
        Ok(row)
    }

    fn draft(&self, ledger: &Ledger, bundle: &BundleRow) -> Result<Draft, Error> {
        let hub = self.hub_row(ledger)?;
        Ok(Draft {
            bundle_id: bundle.bundle_id,
            spoke_id: self.identity.spoke_id.clone(),
            hub_id: self.hub_id,
            created_at: bundle.created_at,
            series: hub.series,
            seq_head: hub.seq_head,
            as_of: hub.as_of,
            voids: ledger.untold_voids(self.hub_id, hub.series)?,
            replaces: hub.replaces,
            in_transit: ledger.in_transit(self.hub_id)?,
            label: bundle.label.clone(),
        })
    }

    fn write(
        &self,
        ledger: &mut Ledger,
        source: &Arc<Root>,
        bundle: &BundleRow,
        report: &mut ExportReport,
    ) -> Result<(), Error> {
        let [whole, partial] = self.places(bundle);
        let written = match self.already_whole(ledger, &whole, bundle)? {
            Some(written) => written,
            None => match bundle.form {
                Form::Folder => folder::write(self, ledger, source, bundle, &whole)?,
                _ => archive::write(self, ledger, source, bundle, (&whole, &partial))?,
            },
        };
        fault::after(Step::ExportSealed);
        let sealed = Sealed {
            header: &written.header,
            sig: &written.sig,
            files: written.files,
            bytes: written.bytes,
            seqs: written.seqs,
        };
        let out: Vec<_> = written.left_out.iter().filter_map(|l| l.path.parse().ok()).collect();
        ledger.plan_for(self.hub_id, None, &out)?;
        ledger.seal_bundle(self.hub_id, bundle.bundle_id, &sealed, self.edge.now())?;
        fault::after(Step::ExportRecorded);
        report.bundle_id = Some(bundle.bundle_id);
        report.label.clone_from(&bundle.label);
        report.path = Some(written.path);
        (report.files, report.bytes) = (written.files, written.bytes);
        report.is_synced = written.assured == Assured::Yes;
        report.read_back = written.read;
        report.left_out.extend(
            written.left_out.into_iter().map(|l| LeftOut { path: printable(&l.path), ..l }),
        );
        report.left_out.truncate(crate::scan::NAMED_MAX);
        Ok(())
    }

    /// A bundle that was finished just before the ledger could say so; it is verified anew.
    fn already_whole(
        &self,
        ledger: &Ledger,
        whole: &Path,
        row: &BundleRow,
    ) -> Result<Option<Written>, Error> {
        // Not there, not finished, or its last bytes did not reach the drive: it is gone on with.
        let Ok(mut bundle) = Bundle::open(whole) else { return Ok(None) };
        let head = bundle.head.clone();
        let key = self.identity.key.public();
        let is_ours = head.header.verify(&head.bytes, &head.sig, &key, self.hub_id).is_ok()
            && head.header.bundle_id == row.bundle_id;
        if !is_ours || bundle.check_entries().is_err() {
            return Ok(None);
        }
        let planned = files::Planned::new(ledger, row.hub_id, row.bundle_id);
        let (seqs, left_out) = files::in_bundle(planned, &bundle.entries())?;
        (self.events)(Event::Writing {
            files: head.header.entry_count,
            bytes: head.header.total_bytes,
        });
        (self.events)(Event::ReadingBack);
        let is_fresh = match bundle.read_back(&|n| (self.events)(Event::Moved(n))) {
            Ok(is_fresh) => is_fresh,
            Err(e) if e.kind() == ErrorKind::Corrupt => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let assured = target::sync_all(whole, &self.folder)?;
        Ok(Some(Written {
            path: whole.to_owned(),
            header: head.bytes,
            sig: head.sig,
            files: head.header.entry_count,
            bytes: head.header.total_bytes,
            seqs,
            left_out,
            assured,
            read: if is_fresh { Read::Verified } else { Read::VerifiedFromMemory },
        }))
    }

    /// Reads what was written from the drive, unless it is not wanted.
    fn read_back(&self, mut bundle: Bundle) -> Result<Read, Error> {
        if self.options.read_back == ReadBack::Skip {
            return Ok(Read::NotRead);
        }
        (self.events)(Event::ReadingBack);
        bundle.check_entries()?;
        let is_fresh = bundle.read_back(&|n| (self.events)(Event::Moved(n)))?;
        fault::after(Step::ExportReadBack);
        Ok(if is_fresh { Read::Verified } else { Read::VerifiedFromMemory })
    }

    /// The signed header over entries that were added up.
    fn seal(
        &self,
        ledger: &Ledger,
        bundle: &BundleRow,
        entries: &barque_bundle::entry::Summing,
    ) -> Result<barque_bundle::Signed<Header>, Error> {
        Ok(Header::seal(self.draft(ledger, bundle)?, entries, &self.identity.key))
    }
}

/// `bundle-{spoke}-{id}`, with the ending of an archive.
pub fn bundle_name(spoke: &barque_bundle::SpokeId, id: BundleId, form: Form) -> String {
    let ending = match form {
        Form::Folder => "",
        Form::Tar => ".tar",
        Form::TarZst => ".tar.zst",
    };
    format!("bundle-{spoke}-{id}{ending}")
}

/// Bytes that are free on the drive now.
pub(crate) fn free(folder: &Path) -> Result<u64, Error> {
    platform::free_bytes(folder).map_err(Error::io("cannot look at", folder))
}
