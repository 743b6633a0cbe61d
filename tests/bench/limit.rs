//! What the machine itself can do, measured in the run that claims a share of it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

use barque_bundle::platform::{Assured, sync_file_system};

use crate::race::Cost;
use crate::tree::Tree;

/// Threads that make files in [`raw_files`].
const THREADS: u64 = 4;
/// Files between two syncs there, as many as a bundle has at the most.
const GROUP: usize = 1_000;

/// Every byte hashed once, by `openssl dgst -sha256`.
pub fn openssl(tree: &Tree) -> Cost {
    Cost::of(|| {
        let mut hashing = Command::new("xargs")
            .args(["-0", "openssl", "dgst", "-sha256"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut names = hashing.stdin.take().unwrap();
        for path in tree.paths() {
            names.write_all(path.to_str().unwrap().as_bytes()).unwrap();
            names.write_all(b"\0").unwrap();
        }
        drop(names);
        assert!(hashing.wait().unwrap().success());
    })
}

/// As many bytes in one file, by `dd conv=fsync`.
pub fn dd(tree: &Tree, to: &Path) -> Cost {
    let bytes = tree.files * tree.size as u64;
    let cost = Cost::of(|| {
        let copied = Command::new("dd")
            .args(["if=/dev/zero", "bs=1M", "iflag=count_bytes", "conv=fsync", "status=none"])
            .arg(format!("count={bytes}"))
            .arg(format!("of={}", to.display()))
            .status();
        assert!(copied.unwrap().success());
    });
    std::fs::remove_file(to).unwrap();
    cost
}

/// The files of a tree read, and made anew as a hub has to: staged, synced in groups with one call
/// for each, renamed into new folders, and the names synced.
pub fn raw_files(tree: &Tree, to: &Path) -> Cost {
    let staging = to.join("staging");
    std::fs::create_dir_all(&staging).unwrap();
    Cost::of(|| {
        let disk = File::open(&staging).unwrap();
        let sync = || assert_eq!(sync_file_system(&disk).unwrap(), Assured::Yes);
        for first in (0..tree.files).step_by(GROUP) {
            let group = first..(first + GROUP as u64).min(tree.files);
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (group, staging) = (group.clone(), &staging);
                    scope.spawn(move || {
                        for n in group.filter(|n| n % THREADS == thread) {
                            let bytes = std::fs::read(crate::tree::path_of(&tree.root, n)).unwrap();
                            std::fs::write(staging.join(n.to_string()), bytes).unwrap();
                        }
                    });
                }
            });
            sync();
            for n in group {
                let landed = crate::tree::path_of(&to.join("landing"), n);
                std::fs::create_dir_all(landed.parent().unwrap()).unwrap();
                std::fs::rename(staging.join(n.to_string()), landed).unwrap();
            }
            sync();
        }
    })
}

/// The bytes of the files one after the other through one connection on loopback, read at the other
/// end and dropped.
pub fn raw_tcp(tree: &Tree) -> Cost {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    Cost::of(|| {
        let hearing = std::thread::spawn(move || drain(&listener));
        let mut line = TcpStream::connect(address).unwrap();
        for path in tree.paths() {
            std::io::copy(&mut File::open(path).unwrap(), &mut line).unwrap();
        }
        drop(line);
        assert_eq!(hearing.join().unwrap(), tree.files * tree.size as u64);
    })
}

fn drain(listener: &TcpListener) -> u64 {
    let (mut line, _) = listener.accept().unwrap();
    let mut buffer = vec![0u8; 256 * 1024];
    let mut bytes = 0;
    loop {
        match line.read(&mut buffer).unwrap() {
            0 => return bytes,
            n => bytes += n as u64,
        }
    }
}
