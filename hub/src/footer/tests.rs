use std::io::Write as _;

use super::*;

fn facts_of(bytes: &[u8]) -> Result<Facts, String> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    read(&mut file).map_err(|e| match e {
        FooterError::Unread(why) => why,
        FooterError::Io(e) => panic!("{e}"),
    })
}

fn fixture(name: &str) -> Vec<u8> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let path = std::path::Path::new(&here).join("../fixtures/parquet").join(name);
    std::fs::read(path).unwrap()
}

#[test]
fn a_footer_says_rows_row_groups_and_columns_in_stable_words() {
    let facts = facts_of(&fixture("good.parquet")).unwrap();
    assert_eq!((facts.rows, facts.row_groups), (40, 2), "{facts:?}");
    let words: Vec<String> = facts
        .columns
        .iter()
        .map(|c| format!("{} {} {} {}", c.path, c.physical, c.logical, c.repetition))
        .collect();
    assert_eq!(
        words,
        [
            "time INT64 timestamp(us,utc) REQUIRED",
            "device BYTE_ARRAY string REQUIRED",
            "celsius DOUBLE  REQUIRED",
            "humidity DOUBLE  REQUIRED",
        ]
    );
    // Pages are not read, so a flipped bit there changes nothing of this.
    assert_eq!(facts_of(&fixture("page_flipped.parquet")).unwrap(), facts);
    // This must never change: manifests hold it.
    assert_eq!(
        facts.schema_id().to_string(),
        "6beb90dd1f264a65d47f7cff70f35a4e604b5b65e69d8dcf21d17ac456a3fa4f"
    );
}

#[test]
fn an_encrypted_or_malformed_footer_is_unread_with_its_reason() {
    let e = facts_of(&fixture("encrypted_footer.parquet")).unwrap_err();
    assert!(e.contains("encrypted"), "{e}");
    let not_metadata = [&b"PAR1"[..], &[0x15, 2, 0, 3, 0, 0, 0], b"PAR1"].concat();
    assert!(facts_of(&not_metadata).is_err());
    let long = [&b"PAR1"[..], &[0, 0, 0, 0x7f], b"PAR1"].concat();
    assert!(facts_of(&long).unwrap_err().contains("over"));
}

/// A footer whose schema is elements with these numbers of children.
fn schema(children: &[u32]) -> Vec<u8> {
    let mut footer = vec![0x15, 2, 0x19, 0xfc];
    let varint = |out: &mut Vec<u8>, mut n: u32| {
        while n > 0x7f {
            out.push(u8::try_from(n & 0x7f).unwrap() | 0x80);
            n >>= 7;
        }
        out.push(u8::try_from(n).unwrap());
    };
    varint(&mut footer, u32::try_from(children.len()).unwrap());
    for n in children {
        // repetition, name, children
        footer.extend([0x35, 2, 0x18, 1, b'a', 0x15]);
        varint(&mut footer, n << 1);
        footer.push(0);
    }
    footer.push(0);
    let len = u32::try_from(footer.len()).unwrap();
    [b"PAR1", &footer[..], &len.to_le_bytes(), b"PAR1"].concat()
}

#[test]
fn a_schema_that_would_exhaust_stack_or_memory_is_never_built() {
    let deep = schema(&vec![1; 100_000]);
    assert!(facts_of(&deep).unwrap_err().contains("columns"));
    let nested = schema(&vec![1; 5_000]);
    assert!(facts_of(&nested).unwrap_err().contains("nests"));
    let lying = schema(&[0x3fff_ffff, 0]);
    assert!(facts_of(&lying).unwrap_err().contains("more children"));
}

#[test]
fn names_types_and_numbers_that_a_general_reader_would_choke_on_are_unread() {
    let file = |footer: &[u8]| {
        let len = u32::try_from(footer.len()).unwrap();
        [b"PAR1", footer, &len.to_le_bytes(), b"PAR1"].concat()
    };
    // One long name above many leaves: every column's path would repeat it.
    let mut footer = vec![0x15, 2, 0x19, 0xfc, 202, 1];
    footer.extend([0x48, 1, b'r', 0x15, 2, 0]);
    footer.extend([0x35, 2, 0x18, 0xe8, 0x7]);
    footer.extend([b'g'; 1000]);
    footer.extend([0x15, 0xe0, 0x9c, 0x1, 0]);
    footer.truncate(footer.len() - 5);
    footer.extend([0x15, 0x90, 0x3, 0]);
    for _ in 0..200 {
        footer.extend([0x15, 2, 0x25, 2, 0x18, 1, b'l', 0]);
    }
    footer.extend([0x16, 0, 0x19, 0x0c, 0]);
    assert_eq!(facts_of(&file(&footer)).unwrap().columns.len(), 200);
    let longer = [&footer[..15], &[0xe8, 0x7 + 0x50], &[b'g'; 10_240][..], &footer[17..]].concat();
    assert!(facts_of(&file(&longer)).unwrap_err().contains("names"));
    // A schema under another wire type, children as another number, more rows than there can be.
    let small = |schema_kind: u8, children_kind: u8, rows: &[u8]| {
        let mut f = vec![0x15, 2, 0x10 | schema_kind, 0x2c];
        f.extend([0x48, 1, b'r', 0x10 | children_kind, 2, 0]);
        f.extend([0x15, 2, 0x25, 2, 0x18, 1, b'l', 0]);
        f.push(0x16);
        f.extend(rows);
        f.extend([0x19, 0x0c, 0]);
        file(&f)
    };
    assert_eq!(facts_of(&small(9, 5, &[10])).unwrap().rows, 5);
    assert!(facts_of(&small(10, 5, &[10])).unwrap_err().contains("another type"));
    assert!(facts_of(&small(9, 6, &[10])).unwrap_err().contains("another type"));
    let most = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert!(facts_of(&small(9, 5, &most)).unwrap_err().contains("rows"));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..600)) {
        let _ = parse(&bytes);
    }
}
