//! A balancer of the simplest kind: each request goes to the next node, each on a connection of its
//! own; and pieces of uploads may be cut in the middle.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub struct Balancer {
    pub address: String,
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Vec<String>,
    next: AtomicUsize,
    /// Pieces that are still to be cut, and after how many bytes.
    cuts: AtomicU64,
    cut_after: u64,
    done: AtomicU64,
    carried: AtomicU64,
}

impl Balancer {
    /// In front of nodes that speak plain HTTP; so many of the first uploads' pieces are cut.
    pub fn start(nodes: Vec<String>, cuts: u64, cut_after: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            nodes,
            next: AtomicUsize::new(0),
            cuts: AtomicU64::new(cuts),
            cut_after,
            done: AtomicU64::new(0),
            carried: AtomicU64::new(0),
        });
        let serving = Arc::clone(&shared);
        // Ends with the test's process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || drop(serve(&shared, client)));
            }
        });
        Self { address, shared }
    }

    /// Pieces that were cut so far.
    pub fn cut(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Bytes that went to nodes.
    pub fn carried(&self) -> u64 {
        self.shared.carried.load(Ordering::Relaxed)
    }
}

fn serve(shared: &Shared, mut client: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0u8; 1];
    while !head.ends_with(b"\r\n\r\n") {
        if client.read(&mut byte)? == 0 {
            return Ok(());
        }
        head.push(byte[0]);
    }
    // A node that is down is passed over, as balancers do.
    let mut node = None;
    for _ in 0..shared.nodes.len() {
        let n = shared.next.fetch_add(1, Ordering::Relaxed) % shared.nodes.len();
        if let Ok(stream) = TcpStream::connect(&shared.nodes[n]) {
            node = Some(stream);
            break;
        }
    }
    let mut node = node.ok_or(std::io::ErrorKind::ConnectionRefused)?;
    let is_piece = head.starts_with(b"PATCH");
    head.truncate(head.len() - 2);
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    node.write_all(&head)?;
    let (mut from_node, mut to_client) = (node.try_clone()?, client.try_clone()?);
    let back = std::thread::spawn(move || {
        let _ = std::io::copy(&mut from_node, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let one_less = |cuts: u64| cuts.checked_sub(1);
    let is_cut = is_piece
        && shared.cuts.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
    let left = if is_cut { shared.cut_after } else { u64::MAX };
    let carried = carry(shared, &mut client, &mut node, left);
    if is_cut {
        let _ = node.shutdown(Shutdown::Both);
        let _ = client.shutdown(Shutdown::Both);
        // One that broke by itself is cut another time.
        let counter = if carried.is_ok_and(|c| c >= left) { &shared.done } else { &shared.cuts };
        counter.fetch_add(1, Ordering::Relaxed);
    }
    let _ = back.join();
    Ok(())
}

/// Carries so many bytes to a node, or all there are; how many that were.
fn carry(
    shared: &Shared,
    client: &mut TcpStream,
    node: &mut TcpStream,
    most: u64,
) -> std::io::Result<u64> {
    let (mut carried, mut buffer) = (0, vec![0u8; 64 * 1024]);
    while carried < most {
        let n = client.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        node.write_all(&buffer[..n])?;
        carried += n as u64;
        shared.carried.fetch_add(n as u64, Ordering::Relaxed);
    }
    Ok(carried)
}
