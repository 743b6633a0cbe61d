//! A line with a round trip, a pace and cuts in front of a server, for whoever connects to it.
//!
//! It is TCP at both ends, so nothing is lost on it and no congestion is played: every contender
//! sees the same delay and the same pace. A connection is open after one round trip, as if its
//! handshake had gone over the line too.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PIECE: usize = 16 * 1024;
/// What a router holds beside what is on the line.
const HELD_BYTES: f64 = 256.0 * 1024.0;
/// What is on a line without a pace at the most.
const UNPACED_BYTES: f64 = 64.0 * 1024.0 * 1024.0;

/// How a line is.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub round_trip: Duration,
    /// Of each direction.
    pub bits_per_second: Option<f64>,
    /// All connections end so often.
    pub cut_every: Option<Duration>,
}

/// A line that stands until it is dropped.
pub struct Link {
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    line: Line,
    up: Way,
    down: Way,
    open: Mutex<Vec<TcpStream>>,
    is_over: AtomicBool,
}

/// One direction, shared by all connections.
#[derive(Default)]
struct Way {
    /// When the line is free for the next piece.
    free: Mutex<Option<Instant>>,
    bytes: AtomicU64,
}

impl Way {
    /// When a piece that comes now has gone onto the line.
    fn enter(&self, line: Line, bytes: usize, not_before: Instant) -> Instant {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let now = Instant::now().max(not_before);
        let Some(pace) = line.bits_per_second else { return now };
        let mut free = self.free.lock().unwrap();
        #[expect(clippy::cast_precision_loss, reason = "pieces are small")]
        let takes = Duration::from_secs_f64(bytes as f64 * 8.0 / pace);
        let gone = free.map_or(now, |f| f.max(now)) + takes;
        *free = Some(gone);
        gone
    }
}

impl Link {
    /// A line in front of a server.
    pub fn to(server: &str, line: Line) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            line,
            up: Way::default(),
            down: Way::default(),
            open: Mutex::default(),
            is_over: false.into(),
        });
        let (accepting, server) = (Arc::clone(&shared), server.to_owned());
        std::thread::spawn(move || accepting.accept(&listener, &server));
        if let Some(every) = line.cut_every {
            let cutting = Arc::clone(&shared);
            std::thread::spawn(move || {
                while !cutting.is_over.load(Ordering::Relaxed) {
                    sleep(every);
                    cutting.cut();
                }
            });
        }
        Self { address, shared }
    }

    /// Bytes that came from clients so far.
    pub fn bytes_up(&self) -> u64 {
        self.shared.up.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.cut();
        // Wakes the accepting thread.
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    fn cut(&self) {
        for line in self.open.lock().unwrap().drain(..) {
            let _ = line.shutdown(Shutdown::Both);
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener, server: &str) {
        for near in listener.incoming().map(Result::unwrap) {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let Ok(far) = TcpStream::connect(server) else { continue };
            let open_from = Instant::now() + self.line.round_trip;
            for line in [&near, &far] {
                line.set_nodelay(true).unwrap();
                self.open.lock().unwrap().push(line.try_clone().unwrap());
            }
            self.carry(|s| &s.up, &near, &far, open_from);
            self.carry(|s| &s.down, &far, &near, open_from);
        }
    }

    /// Two threads for one direction of a connection: one that takes pieces, one that hands them
    /// over when they are due.
    fn carry(
        self: &Arc<Self>,
        way: fn(&Self) -> &Way,
        from: &TcpStream,
        to: &TcpStream,
        open_from: Instant,
    ) {
        let line = self.line;
        let on_the_way = line
            .bits_per_second
            .map_or(UNPACED_BYTES, |pace| pace / 8.0 * line.round_trip.as_secs_f64() + HELD_BYTES);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let pieces = (on_the_way / PIECE as f64).ceil() as usize;
        let (out, due) = sync_channel(pieces);
        let (me, mut from) = (Arc::clone(self), from.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut buffer = vec![0u8; PIECE];
            while let Ok(n) = from.read(&mut buffer) {
                let at = way(&me).enter(line, n, open_from) + line.round_trip / 2;
                if out.send((at, buffer[..n].to_vec())).is_err() || n == 0 {
                    return;
                }
            }
        });
        let to = to.try_clone().unwrap();
        std::thread::spawn(move || hand_over(&due, to));
    }
}

type Piece = (Instant, Vec<u8>);

fn hand_over(due: &Receiver<Piece>, mut to: TcpStream) {
    for (at, bytes) in due.iter() {
        sleep(at.saturating_duration_since(Instant::now()));
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
