//! `barque hub import`: a drive's bundle goes to the hub, its receipt comes back to the drive.

mod receipt;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use barque_bundle::open::{Bundle, Form, Head, SendError};
use barque_bundle::path::printable;
use barque_bundle::wire::{
    ALREADY_IMPORTED, IMPORT, IN_PROGRESS, ImportCheck, ImportJob, ImportPath, ImportRefusal,
    ImportState, Problem,
};
use barque_bundle::{ErrorKind, platform};
use barque_hub::AdminClient;
use barque_hub::client::ClientError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use indicatif::ProgressBar;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Context, client};
use crate::args::HubImportArgs;
use crate::command::bundle::{amount, named};
use crate::{exit, output};

/// Pieces that wait for the network, and their size.
const PIECES: usize = 16;
const PIECE_BYTES: usize = 256 * 1024;
const POLLED_EVERY: Duration = Duration::from_millis(100);

pub async fn run(context: &Context, args: HubImportArgs) -> anyhow::Result<u8> {
    let client = client(context, &args.target)?;
    let bar = output::bar(context.global.quiet || context.global.json);
    let import = Import { context, args: &args, client: &client, bar: &bar };
    let ended = import.run().await;
    bar.finish_and_clear();
    ended
}

struct Import<'a> {
    context: &'a Context,
    args: &'a HubImportArgs,
    client: &'a AdminClient,
    bar: &'a ProgressBar,
}

impl Import<'_> {
    async fn run(&self) -> anyhow::Result<u8> {
        let sent = match self.args.on_node {
            true => self.name(self.args.reissue_receipt).await,
            false => self.send(self.args.reissue_receipt).await,
        };
        let refusal = match sent {
            Ok(job) => return self.follow(job).await,
            Err(e) => import_refusal(&e).ok_or(e)?,
        };
        match refusal.reason.as_str() {
            ALREADY_IMPORTED => self.already(&refusal).await,
            IN_PROGRESS => self.in_progress(&refusal),
            reason => anyhow::bail!("the hub refused the bundle: {reason}"),
        }
    }

    /// Only the path goes to the hub, which reads the bundle itself.
    async fn name(&self, reissue: bool) -> anyhow::Result<ImportJob> {
        let path = match self.args.target.url {
            Some(_) => self.args.path.clone(),
            None => std::fs::canonicalize(&self.args.path)
                .with_context(|| format!("cannot read {}", self.args.path.display()))?,
        };
        let path = path.to_str().context("the path is not UTF-8")?.to_owned();
        Ok(self.client.post(IMPORT, &ImportPath { path, reissue }).await?)
    }

    /// The bundle is opened here, with the caller's rights, and goes to the hub as an archive.
    async fn send(&self, reissue: bool) -> anyhow::Result<ImportJob> {
        let bundle = tokio::task::block_in_place(|| Bundle::open(&self.args.path))?;
        let Head { header, bytes, sig } = &bundle.head;
        // Before the bulk: a refusal costs nothing then.
        let check =
            ImportCheck { manifest: BASE64.encode(bytes), sig: BASE64.encode(sig), reissue };
        let _: Value = self.client.post(&format!("{IMPORT}/check"), &check).await?;
        output::measure(self.bar, header.total_bytes);
        self.bar.set_message(format!("{} files to the hub", header.entry_count));
        let (out, pieces) = mpsc::channel(PIECES);
        let bar = self.bar.clone();
        let reading = tokio::task::spawn_blocking(move || read(&bundle, &out, &bar));
        let path = format!("{IMPORT}?reissue={reissue}");
        let answered = self.client.send(&path, pieces).await;
        match reading.await? {
            // The drive's own fault comes before what the hub made of it.
            Err(SendError::Bundle(e)) => Err(e.into()),
            _ => Ok(answered?),
        }
    }

    /// Waits for the end of the job, then brings the receipt to the drive.
    async fn follow(&self, mut job: ImportJob) -> anyhow::Result<u8> {
        let path = format!("{IMPORT}/jobs/{}", job.job);
        self.bar.set_position(0);
        self.bar.set_length(job.files);
        self.bar.set_message("files registered");
        while matches!(job.state, ImportState::Receiving | ImportState::Registering) {
            tokio::time::sleep(POLLED_EVERY).await;
            job = self.client.get_now(&path).await.context(
                "the hub does not say any more how the import goes; importing again says what \
                 became of it, and completes it",
            )?;
            self.bar.set_position(job.settled_files);
        }
        if job.state != ImportState::Done {
            return Err(ClientError::Refused(Box::new(Problem {
                status: job.status.unwrap_or(500),
                code: job.code.unwrap_or_default(),
                detail: format!(
                    "{}; {} files were registered before that and stand",
                    job.detail.unwrap_or_default(),
                    job.settled_files
                ),
                ..Problem::default()
            }))
            .into());
        }
        let receipt = self.bring_receipt(&format!("{path}/receipt"), &job).await;
        self.tell(&job, receipt.as_deref().ok())?;
        receipt?;
        let needs_a_person = job.conflicts + job.refused > 0;
        Ok(if needs_a_person { exit::NEEDS_A_PERSON } else { exit::OK })
    }

    fn tell(&self, job: &ImportJob, receipt: Option<&Path>) -> anyhow::Result<()> {
        if self.context.global.json {
            let mut value = serde_json::to_value(job)?;
            value["imported"] = true.into();
            value["receipt"] = json!(receipt);
            return output::json(&value);
        }
        if self.context.global.quiet {
            return Ok(());
        }
        let id = job.bundle_id.map_or(String::new(), |b| b.to_string());
        output::line(&format!(
            "imported {} ({}): {} new, {} already present, {} conflicts, {} refused, {} removed \
             before",
            named(id, job.label.as_deref()),
            amount(job.files, job.bytes),
            output::thousands(job.committed),
            output::thousands(job.already_present),
            job.conflicts,
            job.refused,
            job.removed
        ));
        if let Some(path) = receipt {
            output::line(&format!(
                "receipt written to {}: bring the drive back, and run there barque bundle ack",
                printable(&path.display().to_string())
            ));
        }
        Ok(())
    }

    async fn bring_receipt(&self, from: &str, job: &ImportJob) -> anyhow::Result<PathBuf> {
        let to = self.receipt_folder(job.spoke_id.as_ref().map(ToString::to_string), job.bundle_id);
        self.write_receipt(from, to).await
    }

    async fn write_receipt(&self, from: &str, to: PathBuf) -> anyhow::Result<PathBuf> {
        let fetched = self.client.fetch(from).await?;
        receipt::write(fetched, &to).await.with_context(|| {
            format!(
                "the bundle is imported, and its receipt could not be written to {}; run the same \
                 command again with --receipt-out DIR, which imports nothing twice",
                printable(&to.display().to_string())
            )
        })?;
        Ok(to)
    }

    /// Where the receipt goes: to the drive, or below the folder that was asked for.
    fn receipt_folder(
        &self,
        spoke: Option<String>,
        bundle: Option<barque_bundle::BundleId>,
    ) -> PathBuf {
        match (&self.args.receipt_out, spoke, bundle) {
            (Some(out), Some(spoke), Some(bundle)) => out.join(format!("receipt-{spoke}-{bundle}")),
            _ => barque_spoke::drive::receipt_folder(&self.args.path),
        }
    }

    /// A bundle that was imported before; a drive that lost its receipt, or never got it, gets it.
    async fn already(&self, refusal: &ImportRefusal) -> anyhow::Result<u8> {
        let spoke = tokio::task::block_in_place(|| Bundle::open(&self.args.path))
            .ok()
            .map(|b| b.head.header.spoke_id.to_string());
        let to = self.receipt_folder(spoke, refusal.bundle_id);
        let is_there = tokio::task::block_in_place(|| receipt::is_there(&to));
        if !is_there && refusal.receipt.is_none() {
            // Nobody keeps the receipt any more: the present state is signed anew.
            let job = match self.args.on_node {
                true => self.name(true).await?,
                false => self.send(true).await?,
            };
            return self.follow(job).await;
        }
        let mut written = None;
        if let Some(from) = refusal.receipt.as_deref().filter(|_| !is_there) {
            written = Some(self.write_receipt(from, to).await?);
        }
        if self.context.global.json {
            let mut value = serde_json::to_value(refusal)?;
            value["receipt"] = json!(written);
            output::json(&value)?;
        } else if !self.context.global.quiet {
            let when = refusal.imported_at.map_or(String::new(), |t| format!(" on {t}"));
            let node = refusal.node.as_deref().map_or(String::new(), |n| format!(" by node {n}"));
            let id = refusal.bundle_id.map_or(String::new(), |b| b.to_string());
            let files = refusal.files.unwrap_or(0);
            output::line(&format!(
                "already imported{when}{node}: bundle {id}, {} files; nothing to do",
                output::thousands(files)
            ));
            if let Some(path) = written {
                let path = printable(&path.display().to_string());
                output::line(&format!("its receipt was not on the drive: written to {path}"));
            }
        }
        Ok(exit::OK)
    }

    fn in_progress(&self, refusal: &ImportRefusal) -> anyhow::Result<u8> {
        if self.context.global.json {
            output::json(refusal)?;
        }
        let since = refusal.since.map_or(String::new(), |t| format!(" since {t}"));
        let bundle = refusal.bundle_id.map_or(String::new(), |b| format!(" of bundle {b}"));
        output::say(&format!(
            "import in progress{bundle}{since}: a node takes one drive at a time; try again when \
             it is done"
        ));
        Ok(ErrorKind::Unavailable.exit_code())
    }
}

/// What an error says of another import, if it does.
fn import_refusal(e: &anyhow::Error) -> Option<ImportRefusal> {
    match e.downcast_ref::<ClientError>()? {
        ClientError::Refused(problem) => problem.import.as_deref().cloned(),
        _ => None,
    }
}

/// Reads the bundle as an archive, into pieces for the network.
fn read(
    bundle: &Bundle,
    out: &mpsc::Sender<std::io::Result<bytes::Bytes>>,
    bar: &ProgressBar,
) -> Result<(), SendError> {
    let mut pieces = std::io::BufWriter::with_capacity(PIECE_BYTES, Pieces { out, bar });
    let read = match bundle.form() {
        Form::Folder => bundle.write_archive(&mut pieces),
        _ => copy(&bundle.path, &mut pieces),
    };
    if let Err(e) = &read {
        // The hub must not take what is here for all of it.
        let _ = out.blocking_send(Err(std::io::Error::other(e.to_string())));
    }
    read
}

fn copy(path: &Path, out: &mut impl std::io::Write) -> Result<(), SendError> {
    let unreadable = |source| {
        SendError::Bundle(barque_bundle::open::OpenError::Io { path: path.to_owned(), source })
    };
    let real = std::fs::canonicalize(path).map_err(unreadable)?;
    let mut file = platform::open_regular(&real).map_err(unreadable)?;
    let mut buffer = vec![0u8; PIECE_BYTES];
    loop {
        match std::io::Read::read(&mut file, &mut buffer) {
            Ok(0) => return out.flush().map_err(SendError::Out),
            Ok(n) => out.write_all(&buffer[..n]).map_err(SendError::Out)?,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(unreadable(e)),
        }
    }
}

struct Pieces<'a> {
    out: &'a mpsc::Sender<std::io::Result<bytes::Bytes>>,
    bar: &'a ProgressBar,
}

impl std::io::Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let piece = bytes::Bytes::copy_from_slice(bytes);
        self.out
            .blocking_send(Ok(piece))
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        self.bar.inc(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
