//! A middlebox that misbehaves on purpose, in front of a hub.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::proxy::DAMAGED;

/// What it does to a connection that it treats badly.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// After so many bytes to the hub, both sides are reset.
    Cut(u64),
    /// So long after its start, both sides are reset.
    CutAfter(Duration),
    /// After so many bytes to the hub nothing goes on in either direction; nothing is closed.
    Hang(u64),
    /// Bytes a second to the hub.
    Trickle(u64),
    /// Each piece arrives so much later, in both directions.
    Delay(Duration),
    /// Once so many bytes went to the hub, its answer is swallowed and the client reset.
    DropReply(u64),
    /// Nothing is closed, and nothing goes on, once it was silent for so long.
    IdleDeath(Duration),
    /// Plain HTTP: a request whose body is over so many bytes gets 413 and a page.
    TooLarge(u64),
    /// Plain HTTP: a page for a log-in instead of the hub's answer.
    Page,
    /// Plain HTTP: a redirect to another host.
    Redirect,
    /// Plain HTTP: no `100 Continue` gets through.
    No100,
    /// Plain HTTP: bodies of answers are wrapped as gzip has it.
    Reencode,
    /// Plain HTTP: both sides are reset when [`DAMAGED`] goes by in one piece.
    Censor,
}

/// A box that listens on a port of its own until the test's process ends.
pub struct BadNet {
    pub address: String,
    line: Arc<Line>,
}

const PAGE: &str = "<html><body>Guest network: please log in</body></html>";

impl BadNet {
    /// Treats connections badly; lets every `good`-th through, if that is given.
    pub fn start(hub: &str, shape: Shape, good: Option<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let line = Arc::new(Line {
            hub: hub.to_owned(),
            shape,
            to_hub: AtomicU64::new(0),
            treated: AtomicU64::new(0),
            open: AtomicU64::new(0),
        });
        let net = Self { address, line: Arc::clone(&line) };
        std::thread::spawn(move || {
            for (n, client) in (1..).zip(listener.incoming().flatten()) {
                let (line, is_bad) = (Arc::clone(&line), good.is_none_or(|good| n % good != 0));
                line.open.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    line.carry(client, is_bad);
                    line.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        net
    }

    /// Bytes that went on to the hub.
    pub fn carried(&self) -> u64 {
        self.line.to_hub.load(Ordering::SeqCst)
    }

    /// Connections, or requests, that met the worst of it.
    pub fn treated(&self) -> u64 {
        self.line.treated.load(Ordering::SeqCst)
    }

    /// Connections that are not over.
    pub fn open(&self) -> u64 {
        self.line.open.load(Ordering::SeqCst)
    }
}

struct Line {
    hub: String,
    shape: Shape,
    to_hub: AtomicU64,
    treated: AtomicU64,
    open: AtomicU64,
}

impl Line {
    fn carry(&self, client: TcpStream, is_bad: bool) {
        match self.shape {
            Shape::Page | Shape::Redirect | Shape::TooLarge(_) if is_bad => self.answer(client),
            _ => {
                let Ok(hub) = TcpStream::connect(&self.hub) else { return };
                self.pipe(&client, &hub, is_bad);
            }
        }
    }

    /// Bytes in both directions, as the shape has it.
    fn pipe(&self, client: &TcpStream, hub: &TcpStream, is_bad: bool) {
        let link = Link {
            client,
            hub,
            shape: is_bad.then_some(self.shape),
            up: AtomicU64::new(0),
            is_dead: false.into(),
            started: Instant::now(),
            touched_ms: AtomicU64::new(0),
            over: Over::default(),
            line: self,
        };
        std::thread::scope(|s| {
            s.spawn(|| link.down());
            link.up();
        });
    }

    /// Answers one request in the hub's place, or carries it and closes.
    fn answer(&self, mut client: TcpStream) {
        let Some(request) = Request::read(&mut client, self.shape) else { return };
        let answer = match self.shape {
            Shape::TooLarge(_) if !request.is_too_large => {
                let Ok(mut hub) = TcpStream::connect(&self.hub) else { return };
                self.to_hub.fetch_add(request.bytes.len() as u64, Ordering::SeqCst);
                if hub.write_all(&request.bytes).is_ok() {
                    let _ = std::io::copy(&mut hub, &mut client);
                }
                let _ = client.shutdown(Shutdown::Write);
                return;
            }
            Shape::TooLarge(_) => {
                "HTTP/1.1 413 Request Entity Too Large\r\nServer: nginx\r\n".to_owned()
            }
            Shape::Redirect => {
                "HTTP/1.1 302 Found\r\nLocation: http://login.invalid/\r\n".to_owned()
            }
            _ => "HTTP/1.1 200 OK\r\nServer: portal/1.0\r\n".to_owned(),
        };
        self.treated.fetch_add(1, Ordering::SeqCst);
        let len = PAGE.len();
        let head = format!(
            "{answer}Content-Type: text/html\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
        );
        let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(PAGE.as_bytes()));
        // As careful servers do: what the client still sends is read, so that it hears the answer.
        let _ = client.shutdown(Shutdown::Write);
        let _ = client.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = std::io::copy(&mut client, &mut std::io::sink());
    }
}

/// A request over plain HTTP/1.1, whole.
struct Request {
    bytes: Vec<u8>,
    is_too_large: bool,
}

impl Request {
    fn read(client: &mut TcpStream, shape: Shape) -> Option<Self> {
        let mut head = Vec::new();
        let mut byte = [0u8; 1];
        while !head.ends_with(b"\r\n\r\n") {
            if client.read(&mut byte).ok()? == 0 {
                return None;
            }
            head.push(byte[0]);
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        let length =
            text.lines().find_map(|l| l.strip_prefix("content-length: ")?.trim().parse().ok());
        let is_chunked = text.contains("transfer-encoding: chunked");
        let max = match shape {
            Shape::TooLarge(max) => max,
            _ => 0,
        };
        // One request a connection: the hub closes after its answer.
        head.truncate(head.len() - 2);
        head.extend_from_slice(b"Connection: close\r\n\r\n");
        let mut request = Self { bytes: head, is_too_large: length.is_some_and(|l: u64| l > max) };
        let mut body = 0u64;
        let mut buffer = [0u8; 8192];
        let is_whole = |request: &Self, body: u64| match (length, is_chunked) {
            (Some(length), _) => body >= length,
            (None, true) => request.bytes.ends_with(b"0\r\n\r\n"),
            (None, false) => true,
        };
        while !request.is_too_large && !is_whole(&request, body) {
            let n = client.read(&mut buffer).ok().filter(|n| *n > 0)?;
            request.bytes.extend_from_slice(&buffer[..n]);
            body += n as u64;
            request.is_too_large = body > max;
        }
        Some(request)
    }
}

struct Link<'a> {
    client: &'a TcpStream,
    hub: &'a TcpStream,
    shape: Option<Shape>,
    up: AtomicU64,
    is_dead: std::sync::atomic::AtomicBool,
    started: Instant,
    touched_ms: AtomicU64,
    over: Over,
    line: &'a Line,
}

/// Set when nothing gets through a connection any more, so that what is on its way is not waited
/// for.
#[derive(Default)]
struct Over {
    is_over: Mutex<bool>,
    told: Condvar,
}

impl Over {
    fn set(&self) {
        *self.is_over.lock().unwrap() = true;
        self.told.notify_all();
    }

    /// Waits until bytes that need so long on their way arrive.
    fn or_after(&self, time: Duration) {
        let guard = self.is_over.lock().unwrap();
        drop(self.told.wait_timeout_while(guard, time, |is_over| !*is_over).unwrap());
    }
}

/// A hub that says nothing for so long has said all.
const SAID_ALL: Duration = Duration::from_millis(300);
/// A hub that never ends is not listened to for longer.
const SWALLOW_MAX: Duration = Duration::from_secs(10);

impl Link<'_> {
    fn reset(&self) {
        self.over.set();
        self.line.treated.fetch_add(1, Ordering::SeqCst);
        // What went through before arrives: the hub sees an end.
        let _ = self.hub.shutdown(Shutdown::Write);
        let _ = self.client.shutdown(Shutdown::Both);
    }

    /// From now on nothing moves, and nobody is told, until the client gives up.
    fn die(&self) {
        if !self.is_dead.swap(true, Ordering::SeqCst) {
            self.line.treated.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    fn touch(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap();
        let silent = now - self.touched_ms.swap(now, Ordering::SeqCst);
        if let Some(Shape::IdleDeath(max)) = self.shape
            && u128::from(silent) > max.as_millis()
        {
            self.die();
        }
    }

    /// Takes in all that the hub says.
    fn swallow(&self) {
        let (mut hub, mut buffer) = (self.hub, [0u8; 16384]);
        hub.set_read_timeout(Some(SAID_ALL)).unwrap();
        let end = Instant::now() + SWALLOW_MAX;
        while Instant::now() < end && matches!(hub.read(&mut buffer), Ok(1..)) {}
    }

    /// Reads with a look at the clock now and then; none at the end.
    fn read(&self, mut from: &TcpStream, buffer: &mut [u8]) -> Option<usize> {
        from.set_read_timeout(Some(Duration::from_millis(50))).ok()?;
        loop {
            match from.read(buffer) {
                Ok(0) => return None,
                Ok(n) => return Some(n),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if let Some(Shape::CutAfter(time)) = self.shape
                        && self.started.elapsed() > time
                    {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
    }

    fn up(&self) {
        let mut buffer = [0u8; 4096];
        while let Some(n) = self.read(self.client, &mut buffer) {
            self.touch();
            if self.is_dead() {
                continue;
            }
            let before = self.up.fetch_add(n as u64, Ordering::SeqCst);
            let mut allowed = n;
            match self.shape {
                Some(Shape::Cut(max) | Shape::Hang(max)) => {
                    allowed = usize::try_from(max.saturating_sub(before)).unwrap().min(n);
                }
                Some(Shape::Trickle(rate)) => {
                    self.over.or_after(Duration::from_secs_f64(n as f64 / rate as f64));
                }
                Some(Shape::Delay(time)) => self.over.or_after(time),
                Some(Shape::CutAfter(time)) if self.started.elapsed() > time => allowed = 0,
                Some(Shape::Censor) if buffer[..n].windows(16).any(|w| w == DAMAGED) => allowed = 0,
                _ => {}
            }
            let mut hub = self.hub;
            if hub.write_all(&buffer[..allowed]).is_err() {
                self.over.set();
                break;
            }
            self.line.to_hub.fetch_add(allowed as u64, Ordering::SeqCst);
            if allowed < n {
                match self.shape {
                    Some(Shape::Hang(_)) => self.die(),
                    _ => return self.reset(),
                }
            }
        }
        if let Some(Shape::CutAfter(time)) = self.shape
            && self.started.elapsed() > time
        {
            return self.reset();
        }
        let _ = self.hub.shutdown(Shutdown::Write);
        if self.is_dead() {
            let _ = self.hub.shutdown(Shutdown::Both);
        }
    }

    fn down(&self) {
        let mut buffer = [0u8; 16384];
        while let Some(n) = self.read(self.hub, &mut buffer) {
            self.touch();
            if self.is_dead() {
                continue;
            }
            let mut bytes = buffer[..n].to_vec();
            match self.shape {
                Some(Shape::DropReply(after)) if self.up.load(Ordering::SeqCst) >= after => {
                    self.swallow();
                    return self.reset();
                }
                Some(Shape::Delay(time)) => self.over.or_after(time),
                Some(Shape::No100) if bytes.starts_with(b"HTTP/1.1 100") => {
                    self.line.treated.fetch_add(1, Ordering::SeqCst);
                    let end =
                        bytes.windows(4).position(|w| w == b"\r\n\r\n").map_or(n, |at| at + 4);
                    bytes.drain(..end);
                }
                Some(Shape::Reencode) if bytes.starts_with(b"HTTP/1.1 ") => {
                    self.line.treated.fetch_add(1, Ordering::SeqCst);
                    bytes = reencoded(&bytes);
                }
                _ => {}
            }
            let mut client = self.client;
            if client.write_all(&bytes).is_err() {
                self.over.set();
                break;
            }
        }
        if !self.is_dead() {
            let _ = self.client.shutdown(Shutdown::Write);
        }
    }
}

/// An answer whose head says gzip and whose body begins as gzip does.
fn reencoded(bytes: &[u8]) -> Vec<u8> {
    let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return bytes.to_vec() };
    let mut out = bytes[..at].to_vec();
    out.extend_from_slice(b"\r\ncontent-encoding: gzip\r\n\r\n");
    let mut body = bytes[at + 4..].to_vec();
    for (byte, magic) in body.iter_mut().zip([0x1f, 0x8b, 8, 0]) {
        *byte = magic;
    }
    out.extend(body);
    out
}
