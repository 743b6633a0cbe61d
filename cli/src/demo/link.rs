//! A bad link: carries bytes to the hub, counts them, and breaks once in the middle.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are carried at once.
const PIECE_BYTES: usize = 64 * 1024;

/// A listener in front of the hub; its threads end with the process.
pub struct Link {
    /// Host and port.
    pub address: String,
    carried: Arc<AtomicU64>,
}

impl Link {
    /// Breaks both sides once, when so many bytes have gone to the hub.
    pub fn start(hub: &str, breaks_at: u64) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let carried: Arc<AtomicU64> = Arc::default();
        let (hub, count) = (hub.to_owned(), Arc::clone(&carried));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (hub, count) = (hub.clone(), Arc::clone(&count));
                std::thread::spawn(move || carry(client, &hub, &count, breaks_at));
            }
        });
        Ok(Self { address, carried })
    }

    /// Bytes that have gone to the hub.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::SeqCst)
    }
}

fn carry(mut client: TcpStream, hub: &str, carried: &AtomicU64, breaks_at: u64) {
    let Ok(mut server) = TcpStream::connect(hub) else { return };
    let (Ok(mut down_from), Ok(mut down_to)) = (server.try_clone(), client.try_clone()) else {
        return;
    };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut down_from, &mut down_to);
        let _ = down_to.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0u8; PIECE_BYTES];
    while let Ok(n @ 1..) = client.read(&mut buffer) {
        if server.write_all(&buffer[..n]).is_err() {
            break;
        }
        let before = carried.fetch_add(n as u64, Ordering::SeqCst);
        if before < breaks_at && before + n as u64 >= breaks_at {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
