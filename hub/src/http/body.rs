//! Request bodies: bounded JSON, and a stream that a blocking thread reads.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use barque_bundle::ErrorKind;
use bytes::Bytes;
use futures_util::StreamExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::error::Refusal;
use crate::upload::Pieces;

/// What a JSON body may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: usize,
    /// From the first piece to the last; a page over a slow link takes its time.
    pub time: Duration,
}

/// A page of a reconcile.
pub const PAGE: Limits = Limits { bytes: 32 * 1024 * 1024, time: Duration::from_secs(30 * 60) };
/// A signed header of one file, in base64.
pub const UPLOAD: Limits = Limits { bytes: 2 * 1024 * 1024, time: Duration::from_secs(5 * 60) };
/// Everything else: a name, a key, a role.
pub const SMALL: Limits = Limits { bytes: 64 * 1024, time: Duration::from_secs(60) };
/// Pieces that go from network to reader at once, as far as they are here, and how many of such
/// bunches wait between the two: a piece is 64 KiB at the most over HTTP/2.
const BUNCH: usize = 4;
const WAITING: usize = 1;
/// What is still read of a body after an early answer, so that the answer is heard: a bundle that
/// is not one large file. A client that goes on for longer has to read while it sends.
const DRAIN_BYTES: usize = 32 * 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The whole body within its limits, in bounded time between pieces.
pub async fn whole(body: Body, idle: Duration, limits: Limits) -> Result<Bytes, Refusal> {
    let late = |seconds: u64| {
        let detail = format!("the body did not come within {seconds} s");
        Refusal::new(ErrorKind::Unknown, "body_late", detail)
    };
    match tokio::time::timeout(limits.time, collect(body, idle, limits.bytes)).await {
        Ok(Some(collected)) => collected,
        Ok(None) => Err(late(idle.as_secs())),
        Err(_) => Err(late(limits.time.as_secs())),
    }
}

/// None when nothing came for too long.
async fn collect(body: Body, idle: Duration, max: usize) -> Option<Result<Bytes, Refusal>> {
    let mut stream = body.into_data_stream();
    let mut out = bytes::BytesMut::new();
    let mut rate = Rate::new(idle);
    loop {
        let piece = tokio::time::timeout(idle, stream.next()).await.ok()?;
        rate.is_kept(piece.as_ref().and_then(|p| p.as_ref().ok()).map_or(0, Bytes::len))
            .then_some(())?;
        match piece {
            None => return Some(Ok(out.freeze())),
            Some(Ok(piece)) if out.len() + piece.len() <= max => out.extend_from_slice(&piece),
            Some(Ok(_)) => {
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(DRAIN_TIME, drain(&mut stream)).await;
                });
                let detail = format!("the body is over {max} bytes; send less at once");
                let refusal = Refusal::new(ErrorKind::TooLarge, "body_too_large", detail);
                return Some(Err(Refusal { limit_bytes: Some(max as u64), ..refusal }));
            }
            Some(Err(e)) => {
                let refusal = Refusal::new(ErrorKind::Invalid, "body_broken", e.to_string());
                return Some(Err(refusal));
            }
        }
    }
}

/// Reads on for a little after an early answer, so that a client that still sends hears it.
pub fn discard(body: Body) {
    tokio::spawn(async move {
        let _ = tokio::time::timeout(DRAIN_TIME, drain(&mut body.into_data_stream())).await;
    });
}

/// A JSON value, whatever the Content-Type says.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|e| {
        Refusal::new(
            ErrorKind::Invalid,
            "body_malformed",
            format!("the body is not understood: {e}"),
        )
    })
}

/// How far a body has come, for whoever waits for what is made of it.
#[derive(Debug, Default)]
pub struct Received {
    bytes: AtomicU64,
    is_whole: AtomicBool,
}

impl Received {
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether all of the body is here, so that only the hub is at work.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }
}

/// A body as a blocking [`Read`]; a silent or broken body is an error, never an early end.
pub fn reader(body: Body, idle: Duration) -> BodyReader {
    reader_until(body, idle, std::future::pending())
}

/// [`reader`], which breaks off when `end` comes: what has arrived by then is still read.
pub fn reader_until(
    body: Body,
    idle: Duration,
    end: impl Future<Output = ()> + Send + 'static,
) -> BodyReader {
    let (out, pieces) = mpsc::channel(WAITING);
    let received = Arc::new(Received::default());
    let hearing = Arc::clone(&received);
    tokio::spawn(async move {
        let mut stream = body.into_data_stream();
        let is_through = tokio::select! {
            () = pump(&mut stream, idle, &out, &hearing) => true,
            () = end => false,
        };
        if !is_through {
            let rest = pump(&mut stream, ARRIVED_IDLE, &out, &hearing);
            let _ = tokio::time::timeout(ARRIVED_TIME, rest).await;
            let _ = out.send(vec![Err(io::Error::other("it was ended"))]).await;
        }
    });
    BodyReader { bunches: pieces, bunch: VecDeque::new(), current: Bytes::new(), received }
}

/// A silence after which nothing more has arrived already, and the time for what has.
const ARRIVED_IDLE: Duration = Duration::from_millis(50);
const ARRIVED_TIME: Duration = Duration::from_secs(1);

/// Hands pieces on, as many at once as are here. It may be dropped at any point and go on with the
/// same stream: pieces are taken only when there is room for them.
async fn pump(
    stream: &mut axum::body::BodyDataStream,
    idle: Duration,
    out: &mpsc::Sender<Bunch>,
    received: &Received,
) {
    let timed_out = |why: String| io::Error::new(io::ErrorKind::TimedOut, why);
    let mut rate = Rate::new(idle);
    loop {
        let Ok(room) = out.reserve().await else {
            let _ = tokio::time::timeout(DRAIN_TIME, drain(stream)).await;
            return;
        };
        let mut here = (&mut *stream).ready_chunks(BUNCH);
        let bunch = match tokio::time::timeout(idle, here.next()).await {
            Ok(None) => {
                received.is_whole.store(true, Ordering::Relaxed);
                return;
            }
            Ok(Some(pieces)) => pieces.into_iter().map(|p| p.map_err(io::Error::other)).collect(),
            Err(_) => vec![Err(timed_out(format!("nothing came for {} s", idle.as_secs())))],
        };
        let bytes = bunch.iter().flatten().map(Bytes::len).sum();
        let mut failed = bunch.iter().any(Result::is_err);
        received.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut bunch: Bunch = bunch;
        if !rate.is_kept(bytes) && !failed {
            let within = idle.as_secs();
            let why = format!("less than {WINDOW_BYTES_MIN} bytes came in {within} s");
            bunch.push(Err(timed_out(why)));
            failed = true;
        }
        room.send(bunch);
        if failed {
            return;
        }
    }
}

/// Pieces that were here at one time, in their order; a fault is the last.
type Bunch = Vec<io::Result<Bytes>>;

/// Fewest bytes of a body in the time of the longest silence: a body that comes slower holds a
/// place for nothing.
const WINDOW_BYTES_MIN: usize = 1024;

/// Whether a body comes fast enough. A body that ends within its first window always does.
struct Rate {
    window: Duration,
    since: Instant,
    bytes: usize,
}

impl Rate {
    fn new(window: Duration) -> Self {
        Self { window, since: Instant::now(), bytes: 0 }
    }

    /// Counts what came; false once a window brought too little.
    fn is_kept(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        if self.since.elapsed() < self.window {
            return true;
        }
        let is_kept = self.bytes >= WINDOW_BYTES_MIN;
        (self.since, self.bytes) = (Instant::now(), 0);
        is_kept
    }
}

async fn drain(stream: &mut axum::body::BodyDataStream) {
    let mut drained = 0;
    while let Some(Ok(piece)) = stream.next().await {
        drained += piece.len();
        if drained > DRAIN_BYTES {
            return;
        }
    }
}

/// The reading half of [`reader`].
pub struct BodyReader {
    bunches: mpsc::Receiver<Bunch>,
    bunch: VecDeque<io::Result<Bytes>>,
    current: Bytes,
    received: Arc<Received>,
}

impl BodyReader {
    pub fn received(&self) -> Arc<Received> {
        Arc::clone(&self.received)
    }
}

impl Pieces for BodyReader {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if !self.current.is_empty() {
                return Ok(Some(std::mem::take(&mut self.current)));
            }
            match self.bunch.pop_front() {
                Some(piece) => self.current = piece?,
                None => match self.bunches.blocking_recv() {
                    None => return Ok(None),
                    Some(bunch) => self.bunch = bunch.into(),
                },
            }
        }
    }
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(mut piece) = self.next()? else { return Ok(0) };
        let n = buffer.len().min(piece.len());
        buffer[..n].copy_from_slice(&piece.split_to(n));
        self.current = piece;
        Ok(n)
    }
}
