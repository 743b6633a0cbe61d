//! A bundle stream as it is written by a blocking thread, and when something last moved.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use barque_bundle::header::Signed;
use barque_bundle::platform::Root;
use barque_bundle::{Entry, Header, stream};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::budget::{Pace, STEP_BYTES};
use crate::ledger::StatRow;

/// Bytes that go to the network at once.
pub(super) const PIECE_BYTES: usize = 256 * 1024;

/// One file to send: its entry, and the stat it must still have.
#[derive(Clone)]
pub struct Parcel {
    pub entry: Entry,
    pub stat: StatRow,
}

/// What moves while a bundle is sent.
pub trait Progress: Send + Sync {
    fn sent(&self, bytes: u64);
    fn settled(&self);
}

/// When something last moved in either direction.
pub(super) struct Moved {
    start: Instant,
    last_ms: AtomicU64,
}

impl Moved {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    pub(super) fn mark(&self) {
        let ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    fn since(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }

    /// The future's value, or none once nothing has moved for so long.
    pub(super) async fn unless_stalled<T>(
        &self,
        wait: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(future);
        loop {
            let left = wait.saturating_sub(self.since());
            if left.is_zero() {
                return None;
            }
            if let Ok(value) = tokio::time::timeout(left, &mut future).await {
                return Some(value);
            }
        }
    }
}

/// Hands what is written to the network in pieces.
pub(super) struct ChannelWriter {
    pub out: mpsc::Sender<Result<Bytes, io::Error>>,
    pub moved: Arc<Moved>,
    pub progress: Arc<dyn Progress>,
    pub pace: Option<Arc<Pace>>,
}

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = match &self.pace {
            Some(pace) => {
                let step = &bytes[..bytes.len().min(STEP_BYTES)];
                pace.wait(step.len());
                step
            }
            None => bytes,
        };
        let piece = Bytes::copy_from_slice(bytes);
        self.out
            .blocking_send(Ok(piece))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.moved.mark();
        self.progress.sent(bytes.len() as u64);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the whole stream; a file that changed or vanished since it was hashed is withdrawn.
pub(super) fn write_stream(
    sink: ChannelWriter,
    header: &Signed<Header>,
    source: &Root,
    parcels: &[Parcel],
) -> io::Result<()> {
    let out = sink.out.clone();
    let write = || {
        let buffered = io::BufWriter::with_capacity(PIECE_BYTES, sink);
        let mut entries: Vec<Entry> = parcels.iter().map(|p| p.entry.clone()).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let mut stream = stream::Writer::start(buffered, header, &entries)?;
        for parcel in parcels {
            match open_unchanged(source, parcel) {
                Some(file) => stream.file(&parcel.entry, file).map(drop)?,
                None => stream.withdrawn(&parcel.entry)?,
            }
        }
        stream.finish()?.flush()
    };
    let written = write();
    if let Err(e) = &written {
        // The body must not look whole.
        let _ = out.blocking_send(Err(io::Error::new(e.kind(), e.to_string())));
    }
    written
}

pub(super) fn open_unchanged(source: &Root, parcel: &Parcel) -> Option<std::fs::File> {
    let file = source.open_regular(parcel.entry.path.as_str()).ok()?;
    (StatRow::of(&file.metadata().ok()?) == parcel.stat).then_some(file)
}
