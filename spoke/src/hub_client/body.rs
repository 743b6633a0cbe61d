//! A bundle stream as it is written by a blocking thread, and when something last moved.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use barque_bundle::header::Signed;
use barque_bundle::platform::Root;
use barque_bundle::{Entry, Header, stream};
use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use crate::budget::{Pace, STEP_BYTES};
use crate::ledger::StatRow;

/// Bytes that go to the network at once: few enough that a slow link is seen to move, and more once
/// it takes them at once.
const CHUNK_BYTES: usize = 16 * 1024;
const CHUNK_BYTES_MAX: usize = 64 * 1024;
const TAKEN_AT_ONCE: Duration = Duration::from_millis(2);
/// Chunks that wait for the network.
pub(super) const CHUNKS_WAITING: usize = 6;

/// One file to send: its entry, and the stat it must still have.
#[derive(Clone)]
pub struct Parcel {
    pub entry: Entry,
    pub stat: StatRow,
}

/// What moves while a bundle is sent.
pub trait Progress: Send + Sync {
    fn sent(&self, bytes: u64);
    /// All of the body was handed over.
    fn whole(&self) {}
}

/// When something last moved on the way to the hub, whichever call it was of: they have one line, and
/// what goes first holds the others up.
pub(super) struct Line {
    start: Instant,
    last_ms: AtomicU64,
}

impl Line {
    pub(super) fn new() -> Self {
        Self { start: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    fn mark(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now, Ordering::Relaxed);
    }

    fn since(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }
}

/// When something last moved in either direction, and how fast the body went.
pub(super) struct Moved {
    line: Arc<Line>,
    start: Instant,
    bytes: AtomicU64,
    /// When the whole body had been handed over; 0 before.
    whole_ms: AtomicU64,
}

/// What the system may still hold of a body that was handed over.
const HELD_BYTES: u64 = 2 * 1024 * 1024;
/// Longest extra wait for that on a slow link.
const HELD_WAIT_MAX: Duration = Duration::from_secs(15 * 60);

impl Moved {
    pub(super) fn new(line: &Arc<Line>) -> Self {
        line.mark();
        Self {
            line: Arc::clone(line),
            start: Instant::now(),
            bytes: AtomicU64::new(0),
            whole_ms: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn mark(&self) {
        self.line.mark();
    }

    fn handed_over(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.mark();
    }

    pub(super) fn whole(&self) {
        self.whole_ms.store(self.now_ms().max(1), Ordering::Relaxed);
    }

    /// How long nothing may move: once all is handed over, what the system still holds has to get
    /// out at the pace that the rest had.
    fn patience(&self, wait: Duration) -> Duration {
        let whole_ms = self.whole_ms.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        if whole_ms == 0 || bytes == 0 {
            return wait;
        }
        let held_ms = u128::from(whole_ms) * u128::from(HELD_BYTES.min(bytes)) / u128::from(bytes);
        wait + Duration::from_millis(u64::try_from(held_ms).unwrap_or(u64::MAX)).min(HELD_WAIT_MAX)
    }

    /// The future's value, or none once nothing has moved for so long.
    pub(super) async fn unless_stalled<T>(
        &self,
        wait: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(future);
        loop {
            let left = self.patience(wait).saturating_sub(self.line.since());
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
    /// How many bytes go at once.
    chunk: usize,
    /// What waits until they are so many.
    waiting: BytesMut,
}

impl ChannelWriter {
    pub(super) fn new(
        out: mpsc::Sender<Result<Bytes, io::Error>>,
        moved: Arc<Moved>,
        progress: Arc<dyn Progress>,
        pace: Option<Arc<Pace>>,
    ) -> Self {
        Self { out, moved, progress, pace, chunk: CHUNK_BYTES, waiting: BytesMut::new() }
    }

    /// The last chunk was taken after so long.
    fn taken(&mut self, after: Duration) {
        self.chunk = match after {
            t if t <= TAKEN_AT_ONCE => (self.chunk * 2).min(CHUNK_BYTES_MAX),
            t if t > 20 * TAKEN_AT_ONCE => CHUNK_BYTES,
            _ => self.chunk,
        };
    }
}

impl ChannelWriter {
    /// Hands on what the source gives at once, without a copy where no pace is set; how many bytes that
    /// were.
    pub(super) fn pass_on(&mut self, source: &mut impl Read) -> io::Result<usize> {
        let mut chunk = vec![0; self.chunk];
        let n = source.read(&mut chunk)?;
        chunk.truncate(n);
        match self.pace {
            Some(_) => self.write_all(&chunk)?,
            None if n == 0 => {}
            None => {
                self.flush()?;
                self.hand_over(chunk.into())?;
            }
        }
        Ok(n)
    }

    fn send(&mut self, len: usize) -> io::Result<()> {
        let chunk = self.waiting.split_to(len).freeze();
        self.hand_over(chunk)
    }

    fn hand_over(&mut self, chunk: Bytes) -> io::Result<()> {
        let (len, begun) = (chunk.len(), Instant::now());
        self.out
            .blocking_send(Ok(chunk))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.taken(begun.elapsed());
        self.moved.handed_over(len);
        self.progress.sent(len as u64);
        Ok(())
    }
}

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(pace) = &self.pace {
            let step = pace.step(bytes.len());
            self.waiting.extend_from_slice(&bytes[..step]);
            // What the pace lets go does not wait for more.
            return match self.waiting.len() >= STEP_BYTES {
                true => self.flush().map(|()| step),
                false => Ok(step),
            };
        }
        self.waiting.extend_from_slice(bytes);
        while self.waiting.len() >= self.chunk {
            self.send(self.chunk)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            self.send(self.waiting.len().min(self.chunk))?;
        }
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
    let (out, moved) = (sink.out.clone(), Arc::clone(&sink.moved));
    let progress = Arc::clone(&sink.progress);
    let write = || {
        let mut entries: Vec<Entry> = parcels.iter().map(|p| p.entry.clone()).collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        let mut stream = stream::Writer::start(sink, header, &entries)?;
        for parcel in parcels {
            match open_unchanged(source, parcel) {
                Some(file) => stream.file(&parcel.entry, file)?,
                None => stream.withdrawn(&parcel.entry)?,
            }
        }
        stream.finish()?.flush()
    };
    let written = write();
    moved.whole();
    progress.whole();
    if let Err(e) = &written {
        // The body must not look whole.
        let _ = out.blocking_send(Err(io::Error::new(e.kind(), e.to_string())));
    }
    written
}

pub(super) fn open_unchanged(source: &Root, parcel: &Parcel) -> Option<std::fs::File> {
    let (file, metadata) = source.open_with_metadata(parcel.entry.path.as_str()).ok()?;
    (StatRow::of(&metadata) == parcel.stat).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_moves_in_one_call_keeps_the_others_waiting() {
        let line = Arc::new(Line::new());
        let (one, other) = (Moved::new(&line), Moved::new(&line));
        let wait = Duration::from_millis(100);
        let moving = async {
            for _ in 0..10 {
                tokio::time::sleep(wait / 2).await;
                one.mark();
            }
        };
        let waiting = other.unless_stalled(wait, std::future::pending::<()>());
        tokio::pin!(waiting);
        tokio::select! {
            _ = &mut waiting => panic!("it gave up while the line moved"),
            () = moving => {}
        }
        assert_eq!(waiting.await, None);
    }

    #[test]
    fn the_tail_of_a_body_on_a_slow_link_is_waited_for() {
        let wait = Duration::from_secs(60);
        let moved = Moved::new(&Arc::new(Line::new()));
        moved.handed_over(8 << 20);
        assert_eq!(moved.patience(wait), wait);
        moved.whole_ms.store(400_000, Ordering::Relaxed);
        // 8 MiB took 400 s: 2 MiB take 100 s more.
        assert_eq!(moved.patience(wait), wait + Duration::from_secs(100));
        moved.whole_ms.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(moved.patience(wait), wait + HELD_WAIT_MAX);
    }
}
