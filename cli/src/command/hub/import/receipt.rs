//! Writes a receipt to a drive: whole under temporary names, then named, the signature last.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use barque_bundle::archive::Members;
use barque_bundle::open::ANSWER;
use barque_bundle::platform;
use barque_hub::client::Fetched;
use bytes::Bytes;
use tokio::sync::mpsc;

/// Pieces that wait for the drive.
const PIECES: usize = 16;

/// Writes the archive that arrives into a folder, and syncs it.
pub async fn write(mut fetched: Fetched, to: &Path) -> anyhow::Result<()> {
    let (out, pieces) = mpsc::channel::<Bytes>(PIECES);
    let folder = to.to_owned();
    let writing = tokio::task::spawn_blocking(move || {
        unpack(Arriving { pieces, current: Bytes::new() }, &folder)
    });
    let mut fault = None;
    loop {
        match fetched.piece().await {
            Ok(Some(piece)) => {
                if out.send(piece).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(e) => {
                fault = Some(e);
                break;
            }
        }
    }
    drop(out);
    let written = writing.await?;
    // Half an archive cannot be unpacked either; why it is half comes first.
    match fault {
        Some(e) => Err(e.into()),
        None => written,
    }
}

/// Whether a whole receipt stands there; one whose writing was cut short is none.
pub fn is_there(folder: &Path) -> bool {
    let [ack, sig, outcomes] = ANSWER.map(|name| folder.join(name));
    let (Ok(ack), Ok(sig), Ok(outcomes)) =
        (std::fs::read(ack), std::fs::read(sig), platform::open_regular(&outcomes))
    else {
        return false;
    };
    barque_bundle::receipt::is_whole(&ack, &sig, io::BufReader::new(outcomes))
}

fn unpack(source: impl Read, folder: &Path) -> anyhow::Result<()> {
    // Others have had the drive: nothing is written through a link.
    if std::fs::symlink_metadata(folder).is_ok_and(|m| !m.is_dir()) {
        anyhow::bail!("something else than a folder stands there; move it away");
    }
    std::fs::create_dir_all(folder)?;
    let mut members = Members::new(source);
    let mut written = Vec::new();
    while let Some(member) = members.next_member()? {
        anyhow::ensure!(ANSWER.contains(&member.name.as_str()), "{} is no receipt", member.name);
        let temporary = folder.join(format!("{}.part", member.name));
        let copied = copy(&mut members, &temporary);
        if copied.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        copied.with_context(|| format!("cannot write {}", temporary.display()))?;
        written.push((temporary, folder.join(member.name)));
    }
    anyhow::ensure!(written.len() == ANSWER.len(), "the hub's answer is not whole");
    // Without its signature a receipt is none, so that comes last.
    written.sort_by_key(|(_, name)| name.ends_with(ANSWER[1]));
    written.iter().try_for_each(|(from, to): &(PathBuf, PathBuf)| std::fs::rename(from, to))?;
    for folder in [Some(folder), folder.parent()].into_iter().flatten() {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let open = File::open(folder)?;
        platform::sync_if_known(&open)?;
        platform::sync_file_system(&open)?;
    }
    Ok(())
}

fn copy(members: &mut Members<impl Read>, to: &Path) -> anyhow::Result<()> {
    let _ = std::fs::remove_file(to);
    let mut file = File::create_new(to)?;
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        match members.read(&mut buffer)? {
            0 => break,
            n => file.write_all(&buffer[..n])?,
        }
    }
    platform::sync_if_known(&file)?;
    Ok(())
}

/// Pieces as a blocking reader.
struct Arriving {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let n = buffer.len().min(self.current.len());
        buffer[..n].copy_from_slice(&self.current.split_to(n));
        Ok(n)
    }
}
