//! Faults on purpose, for tests, as `BARQUE_FAULT` tells: `abort-after:STEP` ends the process at a
//! step, `stop-after:STEP` stops it there until SIGCONT, once; `fail-sync:N` fails the N-th sync of
//! the process, `fail-sync:N:TEXT` the N-th of those whose file or folder has TEXT in its path.
//!
//! Only with the feature `fault`, which nothing but the tests of the command line turns on; a
//! release knows nothing of it. This is the one place of a library that reads the environment.

/// Durable steps on a file's way, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Whole in staging, not synced.
    Staged,
    /// Synced, not in node.db.
    StagedSynced,
    /// In node.db, about to be proposed.
    Proposed,
    /// In the log of a majority, not applied.
    Committed,
    /// In the manifest, not visible.
    Applied,
    /// Renamed, folders not synced.
    Promoted,
    /// Folders synced, not marked.
    PromotedSynced,
    ReceiptSigned,
    ReceiptSent,
    /// The spoke stored the receipt.
    LedgerWritten,
    /// The old ledger of a rebuild is kept, the new one is not in its place.
    LedgerKept,
    /// An export: its files are planned in the ledger.
    ExportPlanned,
    /// Every file is on the drive.
    ExportFiles,
    /// Entries and header are.
    ExportHeader,
    ExportReadBack,
    /// The bundle is whole, the ledger does not say so.
    ExportSealed,
    ExportRecorded,
    /// An import: claimed in the manifest.
    ImportClaimed,
    /// All is staged and verified, nothing is proposed.
    ImportStaged,
    /// A batch is registered and visible.
    ImportBatch,
    /// All are, the dedup row is not in the manifest.
    ImportRegistered,
    /// It is, node.db does not have it.
    ImportRecorded,
    /// Both have it, the receipt is not written.
    ImportNoted,
    ImportReceipt,
    /// An acknowledgement: the receipt is stored, no row rests on it.
    AckStored,
    /// Some lines are applied.
    AckPart,
    AckApplied,
}

impl Step {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::StagedSynced => "staged-synced",
            Self::Proposed => "proposed",
            Self::Committed => "committed",
            Self::Applied => "applied",
            Self::Promoted => "promoted",
            Self::PromotedSynced => "promoted-synced",
            Self::ReceiptSigned => "receipt-signed",
            Self::ReceiptSent => "receipt-sent",
            Self::LedgerWritten => "ledger-written",
            Self::LedgerKept => "ledger-kept",
            Self::ExportPlanned => "export-planned",
            Self::ExportFiles => "export-files",
            Self::ExportHeader => "export-header",
            Self::ExportReadBack => "export-read-back",
            Self::ExportSealed => "export-sealed",
            Self::ExportRecorded => "export-recorded",
            Self::ImportClaimed => "import-claimed",
            Self::ImportStaged => "import-staged",
            Self::ImportBatch => "import-batch",
            Self::ImportRegistered => "import-registered",
            Self::ImportRecorded => "import-recorded",
            Self::ImportNoted => "import-noted",
            Self::ImportReceipt => "import-receipt",
            Self::AckStored => "ack-stored",
            Self::AckPart => "ack-part",
            Self::AckApplied => "ack-applied",
        }
    }
}

/// Says that a step is done; with the feature, the process ends or stops here when it was told to.
#[cfg(feature = "fault")]
pub fn after(step: Step) {
    use std::sync::atomic::{AtomicBool, Ordering};
    static HAS_STOPPED: AtomicBool = AtomicBool::new(false);
    let told = std::env::var("BARQUE_FAULT").unwrap_or_default();
    match told.split_once("-after:") {
        Some(("abort", at)) if at == step.as_str() => std::process::abort(),
        Some(("stop", at)) if at == step.as_str() && !HAS_STOPPED.swap(true, Ordering::SeqCst) => {
            crate::platform::stop_this_process().expect("a process may stop itself");
        }
        _ => {}
    }
}

/// Says that a step is done.
#[cfg(not(feature = "fault"))]
pub fn after(_step: Step) {}

/// Fails when this sync is the one that is told to.
#[cfg(feature = "fault")]
pub fn before_sync(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::fd::AsRawFd as _;
    use std::sync::atomic::{AtomicU64, Ordering};
    static SYNCS: AtomicU64 = AtomicU64::new(0);
    let told = std::env::var("BARQUE_FAULT").unwrap_or_default();
    let Some(told) = told.strip_prefix("fail-sync:") else { return Ok(()) };
    let (nth, text) = told.split_once(':').unwrap_or((told, ""));
    if !text.is_empty() {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if !path.to_string_lossy().contains(text) {
            return Ok(());
        }
    }
    if nth.parse() == Ok(SYNCS.fetch_add(1, Ordering::SeqCst) + 1) {
        return Err(std::io::Error::other(SYNC_FAULT));
    }
    Ok(())
}

/// What a sync that was failed on purpose says.
pub const SYNC_FAULT: &str = "the sync was failed on purpose";

/// Fails when this sync is the one that is told to.
#[cfg(not(feature = "fault"))]
pub fn before_sync(_file: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}
