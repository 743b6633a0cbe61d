//! The verifier: whatever the bytes are, it says whole or why not, and what it calls whole is what
//! its entries declare.
//!
//! The signature is not judged here, since no fuzzer finds one: everything behind it is.

#![no_main]

use std::io::{BufReader, Cursor, Read};

use barque_bundle::Sha256Digest;
use barque_bundle::entry::Lines;
use barque_bundle::open::{Archive, ENTRIES_MAX, OpenError, Reopen, decompressed};
use libfuzzer_sys::fuzz_target;

/// What comes out of a bomb is cut here, so that a run stays quick.
const READ_MAX: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let _ = verify(bytes);
});

fn verify(bytes: &[u8]) -> Result<(), OpenError> {
    let Ok((source, _)) = decompressed(Cursor::new(bytes.to_vec())) else { return Ok(()) };
    let mut archive = Archive::new(source.take(READ_MAX));
    let head = archive.head()?;
    let mut text = Vec::new();
    archive.entries(&head.header, &mut text)?;
    let all: Reopen = Box::new({
        let text = text.clone();
        move || Ok(Box::new(BufReader::new(Cursor::new(text.clone()))))
    });
    let mut lines = Lines::new(text.as_slice(), ENTRIES_MAX);
    let mut buffer = [0u8; 4096];
    while let Some(line) = lines.next_line()? {
        archive.file(&line, &all)?;
        let mut found = Vec::new();
        loop {
            match archive.read(&mut buffer)? {
                0 => break,
                n => found.extend_from_slice(&buffer[..n]),
            }
        }
        assert_eq!(found.len() as u64, line.entry.size_bytes);
        if Sha256Digest::of(&found) != line.entry.sha256 {
            return Ok(());
        }
    }
    archive.end(&all)
}
