//! A middlebox that cuts: forwards bytes until a limit, then closes both sides.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub struct CuttingProxy {
    pub address: String,
    /// Bytes that may still go to the hub, over all connections.
    left: Arc<AtomicU64>,
}

impl CuttingProxy {
    /// Listens on a free port in front of the hub.
    pub fn start(hub: &str, bytes: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let left = Arc::new(AtomicU64::new(bytes));
        let (hub, budget) = (hub.to_owned(), Arc::clone(&left));
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (hub, budget) = (hub.clone(), Arc::clone(&budget));
                std::thread::spawn(move || forward(client, &hub, &budget));
            }
        });
        Self { address, left }
    }

    pub fn allow(&self, bytes: u64) {
        self.left.store(bytes, Ordering::SeqCst);
    }
}

fn forward(client: TcpStream, hub: &str, budget: &AtomicU64) {
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
        let written = to.write_all(&buffer[..usize::try_from(allowed).unwrap()]);
        if allowed < n || written.is_err() {
            // What went through before the cut arrives: the hub sees an end, not a reset.
            let _ = to.shutdown(Shutdown::Write);
            let _ = from.shutdown(Shutdown::Both);
            break;
        }
    }
    let _ = down.join();
}
