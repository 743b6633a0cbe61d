//! The receipt of an import, kept in staging as the very archive that is handed out.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use barque_bundle::open::ANSWER;
use barque_bundle::receipt::{Answers, Draft};
use barque_bundle::stream::Writer;
use barque_bundle::{Signed, Timestamp, fault, platform};

use super::intake::Verified;
use super::register::Done;
use super::{modified, scratch};
use crate::error::Error;
use crate::hub::Parts;
use crate::ledger::ImportKey;
use crate::manifest::query;

const ENDING: &str = "receipt";

/// Signs the receipt and keeps it, whole and durable.
pub(super) async fn write(
    parts: &Arc<Parts>,
    verified: &Verified,
    done: Done,
) -> Result<(), Error> {
    let position = parts.readers.read_async(|c| query::counter(c, "position")).await?;
    let draft = Draft {
        answers: Answers::Bundle(verified.key.bundle_id),
        spoke_id: verified.key.spoke_id.clone(),
        hub_id: parts.identity.hub_id,
        hub_epoch: parts.epoch(),
        position,
        received_at: (parts.clock)(),
        wanted: Vec::new(),
    };
    let identity = &parts.identity;
    let Done { outcomes, summary } = done;
    let signed = summary.sign(draft, identity.certificate.clone(), &identity.node);
    fault::after(fault::Step::ReceiptSigned);
    let to = scratch(parts, &verified.key, ENDING);
    let unfinished = scratch(parts, &verified.key, "unfinished");
    let written = tokio::task::spawn_blocking(move || {
        let Signed { bytes: ack, sig, .. } = signed;
        archive(&unfinished, (&ack, &sig), &outcomes.0)
            .and_then(|()| std::fs::rename(&unfinished, &to))
            .and_then(|()| platform::sync_folder(to.parent().unwrap_or(Path::new("."))))
            .map_err(Error::io("cannot write", &to))
    });
    written.await.unwrap_or_else(|e| Err(Error::Malformed(e.to_string())))
}

fn archive(to: &Path, (ack, sig): (&[u8], &[u8]), outcomes: &Path) -> io::Result<()> {
    let out = io::BufWriter::with_capacity(64 * 1024, File::create(to)?);
    let mut writer = Writer::empty(out);
    let [ack_name, sig_name, outcomes_name] = ANSWER;
    writer.member(ack_name, ack.len() as u64, ack)?;
    writer.member(sig_name, sig.len() as u64, sig)?;
    let file = File::open(outcomes)?;
    writer.member(outcomes_name, file.metadata()?.len(), file)?;
    let file = writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    platform::sync(&file)
}

/// The receipt's archive, if this node keeps it.
pub fn kept(parts: &Parts, key: &ImportKey) -> Option<PathBuf> {
    let path = scratch(parts, key, ENDING);
    path.is_file().then_some(path)
}

pub(super) fn is_kept(parts: &Parts, key: &ImportKey) -> bool {
    kept(parts, key).is_some()
}

/// Removes receipts that were made before a time.
pub(super) fn sweep(parts: &Parts, before: Timestamp) -> Result<(), Error> {
    let folder = parts.staging.folder();
    for item in std::fs::read_dir(folder).map_err(Error::io("cannot list", folder))? {
        let path = item.map_err(Error::io("cannot list", folder))?.path();
        let is_receipt = path.extension().is_some_and(|e| e == ENDING);
        if is_receipt && modified(&path).is_some_and(|at| at < before) {
            std::fs::remove_file(&path).map_err(Error::io("cannot remove", &path))?;
        }
    }
    Ok(())
}
