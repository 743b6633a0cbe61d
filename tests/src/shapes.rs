//! Makes the damaged and odd Parquet files of `fixtures/parquet` from one whole file.
//!
//! `BARQUE_WRITE_FIXTURES=1 cargo test -p barque-tests` writes them anew; without it the test
//! compares, so that a fixture never drifts from what makes it.

/// A name below `fixtures/parquet` and its bytes.
pub type Shape = (&'static str, Vec<u8>);

fn footer_len(file: &[u8]) -> usize {
    let at = file.len() - 8;
    let bytes: [u8; 4] = file[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(bytes) as usize
}

fn with_footer_len(good: &[u8], len: u32) -> Vec<u8> {
    let mut file = good.to_vec();
    let at = file.len() - 8;
    file[at..at + 4].copy_from_slice(&len.to_le_bytes());
    file
}

/// A gzip member (RFC 1952) that stores the bytes uncompressed; its checksum is left zero, since
/// only its first bytes are ever looked at.
fn gzip_stored(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1];
    let len = u16::try_from(bytes.len()).expect("a small file");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&(!len).to_le_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(&[0; 8]);
    out
}

fn crlf(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for b in bytes {
        if *b == b'\n' {
            out.push(b'\r');
        }
        out.push(*b);
    }
    out
}

fn held_back(good: &[u8]) -> Vec<Shape> {
    let (n, footer) = (good.len(), footer_len(good));
    let mut zero_tail = good.to_vec();
    zero_tail[n / 2..].fill(0);
    let just_over = u32::try_from(n - 8 + 1).expect("a small file");
    vec![
        ("zero_bytes", vec![]),
        ("magic_only_4", b"PAR1".to_vec()),
        ("two_magics_8", b"PAR1PAR1".to_vec()),
        ("empty_footer_12", b"PAR1\0\0\0\0PAR1".to_vec()),
        ("text", b"time,host,value\n1,edge-0,1.0\n".to_vec()),
        ("captive_portal", b"<!doctype html><html><body>Please log in</body></html>\n".to_vec()),
        ("gzipped", gzip_stored(good)),
        ("crlf_mangled", crlf(good)),
        ("trailing_newline", [good, b"\n"].concat()),
        ("truncated_half", good[..n / 2].to_vec()),
        ("truncated_last_byte", good[..n - 1].to_vec()),
        ("no_footer_still_open", good[..n - 8 - footer].to_vec()),
        ("zero_tail_right_size", zero_tail),
        ("footer_len_max", with_footer_len(good, 0x7fff_ffff)),
        ("footer_len_negative", with_footer_len(good, u32::MAX)),
        ("footer_len_just_over", with_footer_len(good, just_over)),
        ("footer_len_zero", with_footer_len(good, 0)),
    ]
}

fn landing(good: &[u8]) -> Vec<Shape> {
    let n = good.len();
    let mut page_flipped = good.to_vec();
    page_flipped[n / 4] ^= 0xff;
    // An encrypted footer: nothing of it is readable but its length and the magic.
    let secret: Vec<u8> = (0..200u8).map(|i| i.wrapping_mul(91)).collect();
    let encrypted = [b"PARE", &secret[..], &200u32.to_le_bytes(), b"PARE"].concat();
    // A signed plain footer: 28 bytes of nonce and tag behind the struct.
    let signed_len = u32::try_from(footer_len(good) + 28).expect("a small file");
    let signed = [&good[..n - 8], &secret[..28], &signed_len.to_le_bytes(), b"PAR1"].concat();
    vec![
        ("page_flipped", page_flipped),
        ("encrypted_footer", encrypted),
        ("signed_plain_footer", signed),
    ]
}

/// Every fixture but `good.parquet` itself.
pub fn shapes(good: &[u8]) -> Vec<Shape> {
    [held_back(good), landing(good)].concat()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_fixtures_are_what_the_generator_makes() {
        // Asked at run time: a shared build folder may hold a binary that another clone made.
        let here = std::env::var_os("CARGO_MANIFEST_DIR");
        let here = here.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let folder = here.join("../fixtures/parquet");
        let good = std::fs::read(folder.join("good.parquet")).unwrap();
        let shapes = shapes(&good);
        for (name, bytes) in &shapes {
            let path = folder.join(format!("{name}.parquet"));
            if std::env::var_os("BARQUE_WRITE_FIXTURES").is_some() {
                std::fs::write(&path, bytes).unwrap();
            }
            assert_eq!(&std::fs::read(&path).unwrap(), bytes, "{name}");
        }
        let there = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(there, shapes.len() + 1, "a fixture that nothing makes");
    }
}
