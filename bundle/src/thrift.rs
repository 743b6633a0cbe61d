//! A walk over Thrift compact structs in bounded memory; types are skipped, not interpreted.
//!
//! Source: Thrift compact protocol. Nothing is allocated from a length in the bytes, and nesting
//! ends at a depth of 64.

use std::io::{self, Read};

/// How deep structs and containers may nest.
const DEPTH_MAX: u32 = 64;

/// Wire types of values; a boolean field has its value in the type.
pub const TRUE: u8 = 1;
pub const FALSE: u8 = 2;
pub const I8: u8 = 3;
pub const I32: u8 = 5;
pub const I64: u8 = 6;
pub const BINARY: u8 = 8;
pub const LIST: u8 = 9;
pub const STRUCT: u8 = 12;

/// Why bytes are no Thrift struct.
#[derive(Debug, thiserror::Error)]
pub enum ThriftError {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("the bytes cannot be read")]
    Io(#[from] io::Error),
}

const SHORT: ThriftError = ThriftError::Malformed("it runs past the footer's end");

/// Bytes being walked: `left` of them are unread.
pub struct Walker<R> {
    inner: R,
    left: u64,
}

/// A field of a struct: its id and the wire type of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub id: i64,
    pub kind: u8,
}

impl<R: Read> Walker<R> {
    pub fn new(inner: R, left: u64) -> Self {
        Self { inner, left }
    }

    pub fn left(&self) -> u64 {
        self.left
    }

    fn byte(&mut self) -> Result<u8, ThriftError> {
        if self.left == 0 {
            return Err(SHORT);
        }
        let mut b = [0u8];
        self.inner.read_exact(&mut b)?;
        self.left -= 1;
        Ok(b[0])
    }

    fn skip(&mut self, n: u64) -> Result<(), ThriftError> {
        if n > self.left {
            return Err(SHORT);
        }
        let copied = io::copy(&mut (&mut self.inner).take(n), &mut io::sink())?;
        self.left -= copied;
        if copied == n { Ok(()) } else { Err(SHORT) }
    }

    fn varint(&mut self) -> Result<u64, ThriftError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.byte()?;
            value |= u64::from(b & 0x7f) << shift;
            if b & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ThriftError::Malformed("a number has more than ten bytes"))
    }

    /// A single byte.
    pub fn byte_value(&mut self) -> Result<u8, ThriftError> {
        self.byte()
    }

    /// A text of at most `max` bytes.
    pub fn text(&mut self, max: u64) -> Result<String, ThriftError> {
        let len = self.varint()?;
        if len > self.left {
            return Err(SHORT);
        }
        if len > max {
            return Err(ThriftError::Malformed("a name is too long"));
        }
        let mut bytes = Vec::new();
        (&mut self.inner).take(len).read_to_end(&mut bytes)?;
        self.left -= bytes.len() as u64;
        String::from_utf8(bytes).map_err(|_| ThriftError::Malformed("a name is no UTF-8"))
    }

    /// A signed number in zigzag form.
    pub fn number(&mut self) -> Result<i64, ThriftError> {
        let raw = self.varint()?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// The next field of a struct behind the one with the id `last`; none at its end.
    pub fn field(&mut self, last: i64) -> Result<Option<Field>, ThriftError> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        let id = match head >> 4 {
            0 => self.number()?,
            delta => last.saturating_add(i64::from(delta)),
        };
        Ok(Some(Field { id, kind: head & 15 }))
    }

    /// Wire type and number of the elements of a list.
    pub fn list(&mut self) -> Result<(u8, u64), ThriftError> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            n => u64::from(n),
        };
        Ok((head & 15, count))
    }

    /// Passes over a whole struct.
    pub fn skip_struct(&mut self) -> Result<(), ThriftError> {
        self.struct_at(0)
    }

    /// Passes over the value of a field.
    pub fn skip_field(&mut self, field: Field) -> Result<(), ThriftError> {
        self.field_value_at(field.kind, 1)
    }

    fn struct_at(&mut self, depth: u32) -> Result<(), ThriftError> {
        while let Some(field) = self.field(0)? {
            self.field_value_at(field.kind, depth)?;
        }
        Ok(())
    }

    /// A boolean field has its value in the wire type.
    fn field_value_at(&mut self, kind: u8, depth: u32) -> Result<(), ThriftError> {
        match kind {
            1 | 2 => Ok(()),
            kind => self.value_at(kind, depth),
        }
    }

    fn value_at(&mut self, kind: u8, depth: u32) -> Result<(), ThriftError> {
        if depth >= DEPTH_MAX {
            return Err(ThriftError::Malformed("it nests too deep"));
        }
        match kind {
            1..=3 => self.skip(1),
            4..=6 => self.varint().map(drop),
            7 => self.skip(8),
            8 => {
                let len = self.varint()?;
                self.skip(len)
            }
            LIST | 10 => self.list_at(depth + 1),
            11 => self.map_at(depth + 1),
            STRUCT => self.struct_at(depth + 1),
            13 => self.skip(16),
            _ => Err(ThriftError::Malformed("it holds an unknown type")),
        }
    }

    // Every element takes at least one byte, so a lying count ends at the end of the bytes.
    fn list_at(&mut self, depth: u32) -> Result<(), ThriftError> {
        let (kind, count) = self.list()?;
        for _ in 0..count {
            self.value_at(kind, depth)?;
        }
        Ok(())
    }

    fn map_at(&mut self, depth: u32) -> Result<(), ThriftError> {
        let count = self.varint()?;
        if count == 0 {
            return Ok(());
        }
        let kinds = self.byte()?;
        for _ in 0..count {
            self.value_at(kinds >> 4, depth)?;
            self.value_at(kinds & 15, depth)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_carry_their_ids_and_numbers_are_zigzag() {
        // `{1: i32 1, 3: true, 20: list<i32> [-1, 5]}`
        let bytes = [0x15, 2, 0x21, 0x09, 40, 0x25, 1, 10, 0];
        let mut walker = Walker::new(&bytes[..], bytes.len() as u64);
        assert_eq!(walker.field(0).unwrap(), Some(Field { id: 1, kind: I32 }));
        assert_eq!(walker.number().unwrap(), 1);
        let flag = walker.field(1).unwrap().unwrap();
        assert_eq!(flag, Field { id: 3, kind: 1 });
        walker.skip_field(flag).unwrap();
        assert_eq!(walker.field(3).unwrap(), Some(Field { id: 20, kind: LIST }));
        assert_eq!(walker.list().unwrap(), (I32, 2));
        assert_eq!((walker.number().unwrap(), walker.number().unwrap()), (-1, 5));
        assert_eq!(walker.field(20).unwrap(), None);
        assert_eq!(walker.left(), 0);
    }
}
