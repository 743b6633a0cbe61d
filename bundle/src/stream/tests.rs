use super::*;
use crate::digest::Sha256Digest;
use crate::entry::tests::entry;
use crate::header::tests::signed;
use crate::key::SecretKey;
use proptest::prelude::*;

fn body(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i.to_le_bytes()[0])).collect()
}

fn entry_of(path: &str, seq: u64, bytes: &[u8]) -> Entry {
    Entry { sha256: Sha256Digest::of(bytes), size_bytes: bytes.len() as u64, ..entry(path, seq) }
}

/// A path and its bytes, none when it was withdrawn.
type Read = (String, Option<Vec<u8>>);

/// Reads a whole stream.
fn read_all(bytes: &[u8]) -> Result<Vec<Read>, StreamError> {
    let mut reader = Reader::new(bytes);
    let preamble = reader.preamble()?;
    reader.expect_entries(&preamble)?;
    let mut out = Vec::new();
    while let Some(member) = reader.next_member()? {
        match member {
            Member::Withdrawn(e) => out.push((e.path.to_string(), None)),
            Member::File(e) => {
                let mut bytes = Vec::new();
                let mut buffer = [0; 100];
                loop {
                    match reader.read(&mut buffer)? {
                        0 => break,
                        n => bytes.extend_from_slice(&buffer[..n]),
                    }
                }
                out.push((e.path.to_string(), Some(bytes)));
            }
        }
    }
    Ok(out)
}

fn sample() -> (Vec<Entry>, Vec<u8>) {
    let long = format!("caf\u{e9}/{}/x.parquet", "d".repeat(200));
    let entries = vec![
        entry_of("a.parquet", 1, &body(1, 700)),
        entry_of("b.parquet", 2, &body(2, 512)),
        entry_of(&long, 3, &body(3, 0)),
    ];
    let key = SecretKey::from_seed([9; 32]);
    let mut w = Writer::start(Vec::new(), &signed(&entries, &key), &entries).unwrap();
    w.file(&entries[2], io::empty()).unwrap();
    w.withdrawn(&entries[1]).unwrap();
    w.file(&entries[0], body(1, 700).as_slice()).unwrap();
    (entries, w.finish().unwrap())
}

#[test]
fn a_stream_comes_back_in_its_order_with_withdrawn_files_named() {
    let (entries, bytes) = sample();
    let read = read_all(&bytes).unwrap();
    assert_eq!(read[0], (entries[2].path.to_string(), Some(vec![])));
    assert_eq!(read[1], ("b.parquet".to_owned(), None));
    assert_eq!(read[2], ("a.parquet".to_owned(), Some(body(1, 700))));
}

#[test]
fn a_stream_is_a_tar_that_other_tools_list() {
    let (entries, bytes) = sample();
    let mut archive = tar::Archive::new(bytes.as_slice());
    let names: Vec<String> = archive
        .entries()
        .unwrap()
        .map(|e| e.unwrap().path().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names[..3], ["manifest.json", "manifest.sig", "entries.jsonl"]);
    assert_eq!(names[3], format!("data/{}", entries[2].path));
}

#[test]
fn a_stream_cut_anywhere_is_refused() {
    let (_, bytes) = sample();
    // The two closing zero blocks may be missing; every cut before them loses a member.
    for cut in (0..bytes.len() - 1024).step_by(97) {
        assert!(read_all(&bytes[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn a_short_source_keeps_the_stream_whole_and_shows_in_the_digest() {
    let e = entry_of("a.parquet", 1, &body(1, 700));
    let key = SecretKey::from_seed([9; 32]);
    let entries = [e.clone()];
    let mut w = Writer::start(Vec::new(), &signed(&entries, &key), &entries).unwrap();
    w.file(&e, body(1, 300).as_slice()).unwrap();
    let read = read_all(&w.finish().unwrap()).unwrap();
    let sent = read[0].1.as_ref().unwrap();
    assert_eq!(sent.len(), 700);
    assert_ne!(Sha256Digest::of(sent), e.sha256);
}

/// A bundle whose files are given as raw tar members behind a genuine preamble.
fn with_members(entries: &[Entry], add: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let key = SecretKey::from_seed([9; 32]);
    let mut w = Writer::start(Vec::new(), &signed(entries, &key), entries).unwrap();
    add(&mut w.tar);
    w.finish().unwrap()
}

fn raw(kind: tar::EntryType, name: &str, size: u64) -> tar::Header {
    let mut h = tar::Header::new_ustar();
    h.set_entry_type(kind);
    set_name(&mut h, name);
    h.set_size(size);
    h.set_cksum();
    h
}

#[test]
fn undeclared_repeated_linked_and_missized_members_are_refused() {
    let e = entry_of("a.parquet", 1, b"xy");
    let entries = [e];
    let code = |add: &dyn Fn(&mut tar::Builder<Vec<u8>>)| {
        read_all(&with_members(&entries, |t| add(t))).map_err(|e| e.code())
    };
    let file = |t: &mut tar::Builder<Vec<u8>>, name: &str, data: &[u8]| {
        t.append(&raw(tar::EntryType::Regular, name, data.len() as u64), data).unwrap();
    };
    assert!(code(&|t| file(t, "data/a.parquet", b"xy")).is_ok());
    assert_eq!(code(&|t| file(t, "data/b.parquet", b"xy")), Err("undeclared_member"));
    assert_eq!(code(&|t| file(t, "a.parquet", b"xy")), Err("undeclared_member"));
    assert_eq!(code(&|t| file(t, "data/../a.parquet", b"xy")), Err("undeclared_member"));
    assert_eq!(code(&|t| file(t, "data/a.parquet", b"xyz")), Err("member_size"));
    assert_eq!(code(&|_| ()), Err("stream_ends_early"));
    let twice = |t: &mut tar::Builder<Vec<u8>>| {
        file(t, "data/a.parquet", b"xy");
        file(t, "data/a.parquet", b"xy");
    };
    assert_eq!(code(&twice), Err("undeclared_member"));
    for kind in [
        tar::EntryType::Symlink,
        tar::EntryType::Link,
        tar::EntryType::Fifo,
        tar::EntryType::Directory,
        tar::EntryType::GNUSparse,
    ] {
        let add = |t: &mut tar::Builder<Vec<u8>>| {
            t.append(&raw(kind, "data/a.parquet", 0), io::empty()).unwrap();
        };
        assert_eq!(code(&add), Err("member_not_a_file"), "{kind:?}");
    }
}

#[test]
fn a_huge_extension_header_is_refused_before_it_is_read() {
    let e = entry_of("a.parquet", 1, b"xy");
    let bytes = with_members(&[e], |t| {
        t.get_mut().extend_from_slice(raw(tar::EntryType::XHeader, "x", 1 << 32).as_bytes());
    });
    assert_eq!(read_all(&bytes).unwrap_err().code(), "member_too_large");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_files_round_trip(sizes in proptest::collection::vec(0usize..2000, 0..8), names in "[a-z\u{e0}-\u{ff} %#]{1,120}") {
        let entries: Vec<Entry> = sizes
            .iter()
            .enumerate()
            .map(|(i, n)| entry_of(&format!("{i:03}{names}.parquet"), i as u64 + 1, &body(7, *n)))
            .collect();
        let key = SecretKey::from_seed([9; 32]);
        let mut w = Writer::start(Vec::new(), &signed(&entries, &key), &entries).unwrap();
        for (e, n) in entries.iter().zip(&sizes) {
            w.file(e, body(7, *n).as_slice()).unwrap();
        }
        let read = read_all(&w.finish().unwrap()).unwrap();
        for ((e, n), (path, bytes)) in entries.iter().zip(&sizes).zip(read) {
            prop_assert_eq!(e.path.as_str(), path);
            prop_assert_eq!(bytes, Some(body(7, *n)));
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let _ = read_all(&bytes);
    }

    #[test]
    fn no_damage_to_a_stream_makes_the_reader_panic(at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let (_, mut bytes) = sample();
        let i = at.index(bytes.len());
        bytes[i] = with;
        let _ = read_all(&bytes);
    }

    #[test]
    fn no_bytes_make_the_door_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let len = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let whole = [b"PAR1".as_slice(), &bytes, &len, b"PAR1"].concat();
        let _ = crate::door::check(&mut io::Cursor::new(whole));
    }

    #[test]
    fn no_bytes_make_the_header_or_entries_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Header::parse(&bytes);
        let _ = entry::from_jsonl(bytes.as_slice(), 10);
    }

    #[test]
    fn one_changed_bit_anywhere_in_a_header_fails(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let key = SecretKey::from_seed([9; 32]);
        let s = signed(&[entry("a.parquet", 1)], &key);
        let mut bytes = s.bytes.clone();
        let i = at.index(bytes.len());
        bytes[i] ^= 1 << bit;
        let good = Header::parse(&bytes)
            .is_ok_and(|h| h.verify(&bytes, &s.sig, &key.public(), h.hub_id).is_ok());
        prop_assert!(!good);
        let mut sig = s.sig.clone();
        let i = at.index(sig.len());
        sig[i] ^= 1 << bit;
        prop_assert!(s.value.verify(&s.bytes, &sig, &key.public(), s.value.hub_id).is_err());
    }
}
