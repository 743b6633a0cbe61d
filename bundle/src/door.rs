//! The door rule: what a spoke takes for a whole Parquet file, judged by structure alone.
//!
//! `PAR1` or `PARE` at both ends; a footer length above zero and inside the file; and a `PAR1`
//! footer that is one well-formed Thrift compact struct, ending at the footer's end or 28 bytes
//! before it (the nonce and tag of a signed plain footer).
//! Types are not interpreted and pages are not read: bytes are shipped, not judged.
//! Sources: Apache Parquet format, "File format" and "Encryption"; Thrift compact protocol.
//! Memory is bounded and nothing is allocated from a length in the file.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use crate::thrift::{ThriftError, Walker};

/// Nonce and tag behind a signed plain footer.
const FOOTER_SIGNATURE_BYTES: u64 = 28;
/// Magic, one footer byte, footer length, magic.
const SMALLEST_FILE_BYTES: u64 = 13;

/// What kind of Parquet file passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A readable footer (columns may be encrypted all the same).
    Plain,
    /// An encrypted footer (`PARE`).
    EncryptedFooter,
}

/// Why a file does not pass.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    #[error("the file is empty; it may still be written")]
    Empty,
    #[error("the file has {0} bytes, too few for a Parquet file")]
    TooShort(u64),
    #[error("the file does not start with a Parquet magic")]
    HeadMagic,
    #[error("the file does not end with a Parquet magic; it may still be written or be cut off")]
    TailMagic,
    #[error("the file starts with one Parquet magic and ends with the other")]
    MixedMagic,
    #[error("the footer length is 0")]
    EmptyFooter,
    #[error("the footer length {len} does not fit a file of {size} bytes")]
    FooterLength { len: u32, size: u64 },
    #[error("the footer is not a Thrift struct: {0}")]
    Footer(&'static str),
    #[error("the file cannot be read")]
    Io(#[from] io::Error),
}

impl From<ThriftError> for DoorError {
    fn from(e: ThriftError) -> Self {
        match e {
            ThriftError::Malformed(why) => Self::Footer(why),
            ThriftError::Io(e) => Self::Io(e),
        }
    }
}

impl DoorError {
    /// A stable word for the rule that was broken.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "parquet_empty",
            Self::TooShort(_) => "parquet_too_short",
            Self::HeadMagic => "parquet_head_magic",
            Self::TailMagic => "parquet_tail_magic",
            Self::MixedMagic => "parquet_mixed_magic",
            Self::EmptyFooter => "parquet_footer_empty",
            Self::FooterLength { .. } => "parquet_footer_length",
            Self::Footer(_) => "parquet_footer_malformed",
            Self::Io(_) => "unreadable",
        }
    }
}

/// The kind of Parquet file that the reader holds, or the rule that it breaks.
pub fn check(file: &mut (impl Read + Seek)) -> Result<Kind, DoorError> {
    let size = file.seek(SeekFrom::End(0))?;
    if size == 0 {
        return Err(DoorError::Empty);
    }
    if size < 4 {
        return Err(DoorError::TooShort(size));
    }
    let head = magic_at(file, 0)?.ok_or(DoorError::HeadMagic)?;
    let tail = magic_at(file, size - 4)?.ok_or(DoorError::TailMagic)?;
    if head != tail {
        return Err(DoorError::MixedMagic);
    }
    if size < 12 {
        return Err(DoorError::TooShort(size));
    }
    let mut len = [0u8; 4];
    file.seek(SeekFrom::Start(size - 8))?;
    file.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len == 0 {
        return Err(DoorError::EmptyFooter);
    }
    if size < SMALLEST_FILE_BYTES || u64::from(len) > size - 12 {
        return Err(DoorError::FooterLength { len, size });
    }
    if head == Kind::Plain {
        file.seek(SeekFrom::Start(size - 8 - u64::from(len)))?;
        let mut footer = Walker::new(BufReader::new(file), u64::from(len));
        footer.skip_struct()?;
        if footer.left() != 0 && footer.left() != FOOTER_SIGNATURE_BYTES {
            return Err(DoorError::Footer("it ends before the footer does"));
        }
    }
    Ok(head)
}

fn magic_at(file: &mut (impl Read + Seek), at: u64) -> Result<Option<Kind>, DoorError> {
    let mut magic = [0u8; 4];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut magic)?;
    Ok(match &magic {
        b"PAR1" => Some(Kind::Plain),
        b"PARE" => Some(Kind::EncryptedFooter),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A file whose footer is one struct: `{1: i32 1, 2: list<struct{}>, 3: "abc"}`.
    fn good() -> Vec<u8> {
        let footer = [0x15, 2, 0x19, 0x2c, 0, 0, 0x18, 3, b'a', b'b', b'c', 0];
        file(b"PAR1", &footer, u32::try_from(footer.len()).unwrap())
    }

    fn file(magic: &[u8; 4], footer: &[u8], len: u32) -> Vec<u8> {
        [magic.as_slice(), b"pages", footer, &len.to_le_bytes(), magic].concat()
    }

    fn verdict(bytes: &[u8]) -> Result<Kind, &'static str> {
        check(&mut Cursor::new(bytes)).map_err(|e| e.code())
    }

    #[test]
    fn a_whole_file_passes_and_each_damage_has_its_own_word() {
        let good = good();
        let n = good.len();
        assert_eq!(verdict(&good), Ok(Kind::Plain));
        assert_eq!(verdict(b""), Err("parquet_empty"));
        assert_eq!(verdict(b"PAR1"), Err("parquet_too_short"));
        assert_eq!(verdict(b"PAR1PAR1"), Err("parquet_too_short"));
        assert_eq!(verdict(b"PAR1\0\0\0\0PAR1"), Err("parquet_footer_empty"));
        assert_eq!(verdict(&good[..n - 1]), Err("parquet_tail_magic"));
        assert_eq!(verdict(&good[..n / 2]), Err("parquet_tail_magic"));
        assert_eq!(verdict(&[&good[..], b"\n"].concat()), Err("parquet_tail_magic"));
        assert_eq!(verdict(b"time,host,value\n"), Err("parquet_head_magic"));
        let mut zero_tail = good.clone();
        zero_tail[n / 2..].fill(0);
        assert_eq!(verdict(&zero_tail), Err("parquet_tail_magic"));
        for len in [u32::MAX, 0x7fff_ffff, u32::try_from(n).unwrap() - 11] {
            let mut bad = good.clone();
            bad[n - 8..n - 4].copy_from_slice(&len.to_le_bytes());
            assert_eq!(verdict(&bad), Err("parquet_footer_length"));
        }
    }

    #[test]
    fn encrypted_footers_pass_unread_and_signed_ones_leave_28_bytes() {
        assert_eq!(verdict(&file(b"PARE", &[255; 9], 9)), Ok(Kind::EncryptedFooter));
        let signed = [&[0x15, 2, 0][..], &[7; 28]].concat();
        assert_eq!(verdict(&file(b"PAR1", &signed, 31)), Ok(Kind::Plain));
        assert_eq!(verdict(&file(b"PAR1", &signed[..30], 30)), Err("parquet_footer_malformed"));
    }

    #[test]
    fn a_footer_that_nests_or_counts_without_end_is_refused() {
        let deep = [0x1c; 400];
        assert_eq!(verdict(&file(b"PAR1", &deep, 400)), Err("parquet_footer_malformed"));
        let many = [0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0];
        assert_eq!(verdict(&file(b"PAR1", &many, 10)), Err("parquet_footer_malformed"));
        let long = [0x18, 0xff, 0xff, 0xff, 0xff, 0x0f, 0];
        assert_eq!(verdict(&file(b"PAR1", &long, 7)), Err("parquet_footer_malformed"));
    }
}
