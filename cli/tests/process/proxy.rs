//! A middlebox that cuts, or damages: forwards bytes until a limit, then closes both sides.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

pub struct CuttingProxy {
    pub address: String,
    /// Bytes that may still go to the hub, over all connections.
    left: Arc<AtomicU64>,
    /// Bytes that have gone to the hub, over all connections.
    carried: Arc<AtomicU64>,
}

/// What a connection may carry to the hub.
#[derive(Clone, Copy)]
enum Budget {
    Shared,
    Each(u64),
}

/// Bytes that a damaging proxy changes on their way.
pub const DAMAGED: &[u8; 16] = b"DAMAGE-ME-PLEASE";

impl CuttingProxy {
    /// Listens on a free port in front of the hub.
    pub fn start(hub: &str, bytes: u64) -> Self {
        Self::listen(hub, bytes, Budget::Shared)
    }

    /// Cuts every connection after so many bytes, as a box does that takes no larger body.
    pub fn start_each(hub: &str, bytes: u64) -> Self {
        Self::listen(hub, bytes, Budget::Each(bytes))
    }

    /// Passes everything and changes one byte wherever [`DAMAGED`] goes by in one piece.
    pub fn start_damaging(hub: &str) -> Self {
        Self::listen(hub, u64::MAX, Budget::Each(u64::MAX))
    }

    fn listen(hub: &str, bytes: u64, of: Budget) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let left = Arc::new(AtomicU64::new(bytes));
        let (hub, budget) = (hub.to_owned(), Arc::clone(&left));
        let carried: Arc<AtomicU64> = Arc::default();
        let count = Arc::clone(&carried);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let budget = match of {
                    Budget::Shared => Arc::clone(&budget),
                    Budget::Each(bytes) => Arc::new(AtomicU64::new(bytes)),
                };
                let (hub, count) = (hub.clone(), Arc::clone(&count));
                std::thread::spawn(move || forward(client, &hub, &budget, &count));
            }
        });
        Self { address, left, carried }
    }

    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::SeqCst)
    }

    pub fn allow(&self, bytes: u64) {
        self.left.store(bytes, Ordering::SeqCst);
    }
}

/// A middlebox that holds back all that the hub says from so many bytes to the hub on, until there
/// were more of them.
pub struct HoldingProxy {
    pub address: String,
    carried: Arc<Carried>,
    connections: Arc<AtomicU64>,
}

/// Bytes that went to the hub; each change is told.
#[derive(Default)]
struct Carried {
    bytes: Mutex<u64>,
    more: Condvar,
}

impl Carried {
    fn add(&self, n: u64) {
        *self.bytes.lock().unwrap() += n;
        self.more.notify_all();
    }

    /// Waits as long as the bytes are within a range.
    fn outlast(&self, range: &Range<u64>) {
        let bytes = self.bytes.lock().unwrap();
        drop(self.more.wait_while(bytes, |bytes| range.contains(bytes)).unwrap());
    }
}

impl HoldingProxy {
    pub fn start(hub: &str, from: u64, until: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (carried, connections): (Arc<Carried>, Arc<AtomicU64>) = Default::default();
        let (hub, count, met) = (hub.to_owned(), Arc::clone(&carried), Arc::clone(&connections));
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                met.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(&hub) else { continue };
                let (from_hub, to_client) =
                    (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (up, held) = (Arc::clone(&count), Arc::clone(&count));
                std::thread::spawn(move || {
                    pass(client, server, |n| up.add(n));
                });
                std::thread::spawn(move || {
                    pass(from_hub, to_client, |_| held.outlast(&(from..until)));
                });
            }
        });
        Self { address, carried, connections }
    }

    /// Bytes that went to the hub, and connections that they went over.
    pub fn carried(&self) -> (u64, u64) {
        (*self.carried.bytes.lock().unwrap(), self.connections.load(Ordering::SeqCst))
    }
}

/// Passes bytes on until their end; each piece is told before it goes.
fn pass(mut from: TcpStream, mut to: TcpStream, told: impl Fn(u64)) {
    let mut buffer = [0u8; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        told(n as u64);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn forward(client: TcpStream, hub: &str, budget: &AtomicU64, carried: &AtomicU64) {
    let Ok(server) = TcpStream::connect(hub) else {
        return;
    };
    let (mut down_from, mut down_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let down = std::thread::spawn(move || {
        let _ = std::io::copy(&mut down_from, &mut down_to);
        let _ = down_to.shutdown(Shutdown::Write);
    });
    let (mut from, mut to) = (client, server);
    let mut buffer = [0u8; 4096];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) | Err(_) => {
                let _ = to.shutdown(Shutdown::Write);
                break;
            }
            Ok(n) => n as u64,
        };
        let before = budget
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(n)));
        let allowed = before.unwrap().min(n);
        let end = usize::try_from(allowed).unwrap();
        if let Some(at) = buffer[..end].windows(DAMAGED.len()).position(|w| w == DAMAGED) {
            buffer[at] ^= 1;
        }
        let written = to.write_all(&buffer[..end]);
        carried.fetch_add(allowed, Ordering::SeqCst);
        if allowed < n || written.is_err() {
            // What went through before the cut arrives: the hub sees an end, not a reset.
            let _ = to.shutdown(Shutdown::Write);
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = down.join();
}
