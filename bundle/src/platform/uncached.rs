//! Reads past the memory of the system, in pieces as such files need them.

use std::fs::File;
use std::io;

/// Bytes at which reads past the memory begin and end; more than any drive asks for.
const ALIGNED: usize = 4096;
const UNCACHED_BYTES: usize = 256 * 1024;

/// Reads a file that `Root::open_uncached` opened, in pieces as such files need them.
pub struct Uncached {
    file: File,
    buffer: Vec<u8>,
    /// Where in the buffer the aligned part begins, and what of it is unread.
    start: usize,
    unread: std::ops::Range<usize>,
    left: u64,
}

impl Uncached {
    pub fn new(file: File) -> io::Result<Self> {
        Self::with_buffer(file, Vec::new())
    }

    /// [`Uncached::new`] with the buffer of one before.
    pub fn with_buffer(file: File, mut buffer: Vec<u8>) -> io::Result<Self> {
        buffer.resize(UNCACHED_BYTES + ALIGNED, 0);
        let start = buffer.as_ptr().align_offset(ALIGNED);
        let left = file.metadata()?.len();
        Ok(Self { file, buffer, start, unread: 0..0, left })
    }

    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }
}

impl io::Read for Uncached {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.unread.is_empty() && self.left > 0 {
            let into = &mut self.buffer[self.start..self.start + UNCACHED_BYTES];
            let n = self.file.read(into)?;
            // What is behind the last whole block is not asked for again.
            self.left = if n == 0 { 0 } else { self.left.saturating_sub(n as u64) };
            self.unread = self.start..self.start + n;
        }
        let n = out.len().min(self.unread.len());
        out[..n].copy_from_slice(&self.buffer[self.unread.start..self.unread.start + n]);
        self.unread.start += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;

    use super::*;
    use crate::platform::Root;

    #[test]
    fn what_is_read_past_the_memory_is_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for len in [0usize, 1, 4095, 4096, 300_000, UNCACHED_BYTES, 2 * UNCACHED_BYTES + 1] {
            let bytes: Vec<u8> = (0..len).map(|i: usize| i.to_le_bytes()[0]).collect();
            fs::write(dir.path().join("f"), &bytes).unwrap();
            // A temporary folder in memory has no such reading.
            let Some(file) = root.open_uncached("f").unwrap() else { return };
            let mut read = Vec::new();
            Uncached::new(file).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == bytes, "{len}");
        }
    }
}
