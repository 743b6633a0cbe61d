//! Source trees that every contender of a race sends: files of random bytes that look like Parquet
//! from outside, in folders of 1,000.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rand::{RngCore as _, SeedableRng as _};

/// The end of the smallest footer: one struct with a number in it.
const TAIL: &[u8] = &[0x15, 2, 0, 3, 0, 0, 0, b'P', b'A', b'R', b'1'];
const PIECE: usize = 1 << 20;

/// A tree of files of one size.
pub struct Tree {
    pub root: PathBuf,
    pub files: u64,
    pub size: usize,
}

impl Tree {
    /// Makes the tree, and has it written out, so that no contender waits for that.
    pub fn make(root: &Path, files: u64, size: usize) -> Self {
        fill(root, 0..files, size);
        crate::process::write_out();
        Self { root: root.to_owned(), files, size }
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    pub fn bytes(&self) -> f64 {
        (self.files * self.size as u64) as f64
    }

    /// The paths of all files.
    pub fn paths(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.files).map(|n| path_of(&self.root, n))
    }
}

/// Makes files of these numbers below a folder.
pub fn fill(root: &Path, numbers: Range<u64>, size: usize) {
    for n in numbers {
        let path = path_of(root, n);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write(&path, n, size);
    }
}

/// Where the file of a number lies below a root.
pub fn path_of(root: &Path, n: u64) -> PathBuf {
    root.join(relative(n))
}

/// The same path as a spoke names it.
pub fn relative(n: u64) -> String {
    let (month, day, hour) = (n / 672_000 % 12 + 1, n / 24_000 % 28 + 1, n / 1_000 % 24);
    format!("d/m/2024/{month:02}/{day:02}/{hour:02}/f{n}.parquet")
}

/// Bytes of a length that begin and end as a Parquet file does, others for each number.
pub fn parquet(n: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; size];
    rand::rngs::SmallRng::seed_from_u64(n).fill_bytes(&mut bytes);
    bytes[..4].copy_from_slice(b"PAR1");
    bytes[size - TAIL.len()..].copy_from_slice(TAIL);
    bytes
}

/// [`parquet`] in a file; of a large one only a piece is in memory.
fn write(path: &Path, n: u64, size: usize) {
    if size <= PIECE {
        return std::fs::write(path, parquet(n, size)).unwrap();
    }
    let mut out = BufWriter::with_capacity(PIECE, File::create(path).unwrap());
    let mut random = rand::rngs::SmallRng::seed_from_u64(n);
    let mut piece = vec![0u8; PIECE];
    out.write_all(b"PAR1").unwrap();
    let mut left = size - 4 - TAIL.len();
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE)];
        random.fill_bytes(piece);
        out.write_all(piece).unwrap();
        left -= piece.len();
    }
    out.write_all(TAIL).unwrap();
    out.into_inner().unwrap();
}
