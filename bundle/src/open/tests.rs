use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::entry::{Entry, Line, Summing};
use crate::header::Draft;
use crate::portable;
use crate::stream::{DATA, HEADER, SIGNATURE};
use crate::{
    BundleId, Header, HubId, Ranges, SecretKey, SeriesId, Sha256Digest, Signed, Timestamp,
};

/// Asked at run time: a shared build folder may hold a binary that another clone made.
fn fixtures() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR");
    let here = here.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.join("../fixtures/bundles")
}

fn key() -> SecretKey {
    SecretKey::from_seed([7; 32])
}

fn hub() -> HubId {
    HubId::new(Timestamp::from_unix_ms(1), [1; 10])
}

/// A bundle's parts: text of the entries, header, files by member.
struct Parts {
    entries: String,
    header: Signed<Header>,
    files: Vec<(String, Vec<u8>)>,
}

fn parts(files: &[(&str, &[u8])]) -> Parts {
    let now = Timestamp::from_unix_ms(1_700_000_000_000);
    let (mut text, mut summing, mut out) = (String::new(), Summing::new(), Vec::new());
    let mut files: Vec<_> = files.iter().map(|(p, b)| (p.parse().unwrap(), b.to_vec())).collect();
    files.sort();
    let mut names = portable::Names::new();
    for (seq, (path, bytes)) in (1..).zip(files) {
        let path: crate::FilePath = path;
        let stored_as = names.place(&path);
        let (sha256, size_bytes) = (Sha256Digest::of(&bytes), bytes.len() as u64);
        let entry = Entry { path, sha256, size_bytes, seq, modified_at: now };
        let line = Line { entry, stored_as };
        let json = serde_json::to_string(&line).unwrap() + "\n";
        summing.add(&line.entry, json.as_bytes());
        text.push_str(&json);
        out.push((line.member(), bytes));
    }
    let draft = Draft {
        bundle_id: BundleId::new(now, [3; 10]),
        spoke_id: "rocket-01".parse().unwrap(),
        hub_id: hub(),
        created_at: now,
        series: SeriesId::new(now, [2; 10]),
        seq_head: 100,
        as_of: Some(now),
        voids: Ranges::default(),
        replaces: None,
        in_transit: Vec::new(),
        label: Some("drive 7".into()),
    };
    Parts { entries: text, header: Header::seal(draft, &summing, &key()), files: out }
}

fn sample() -> Parts {
    parts(&[
        ("factory/line1/2024/03/31/02/a.parquet", &[1; 700]),
        ("factory/line1/2024/03/31/02/b.parquet", &[2; 512]),
        ("factory/line1/2024/03/31/02/02:15.parquet", b"colon"),
        ("factory/m\u{e9}t\u{e9}o/2024/03/31/02/c.parquet", b"accents"),
        ("factory/empty.parquet", b""),
    ])
}

impl Parts {
    fn tar(&self) -> Vec<u8> {
        let head = (self.header.bytes.as_slice(), self.header.sig.as_slice());
        let entries = (self.entries.len() as u64, self.entries.as_bytes());
        let mut writer = Writer::start_archive(Vec::new(), head, entries).unwrap();
        for (name, bytes) in &self.files {
            writer.member(name, bytes.len() as u64, bytes.as_slice()).unwrap();
        }
        writer.finish().unwrap()
    }

    fn folder(&self, at: &Path) {
        let small = [(HEADER, &self.header.bytes), (SIGNATURE, &self.header.sig)]
            .map(|(n, b)| (n.to_owned(), b.clone()));
        let entries = (ENTRIES.to_owned(), self.entries.clone().into_bytes());
        for (name, bytes) in self.files.iter().chain(&small).chain([&entries]) {
            let path = at.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Vec<u8> {
        change(&mut self);
        self.tar()
    }
}

/// The word for what a verifier with the golden key finds.
fn verdict(path: &Path) -> &'static str {
    let verify = || -> Result<(), OpenError> {
        let mut bundle = Bundle::open(path)?;
        let head = bundle.head.clone();
        head.header.verify(&head.bytes, &head.sig, &key().public(), hub())?;
        bundle.check_entries()?;
        bundle.check_members(&|_| ())
    };
    verify().map_or_else(|e| e.code(), |()| "whole")
}

/// Name of a file below `fixtures/bundles`, and what a verifier says of it.
fn golden() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let first = |p: &Parts| p.files[0].0.clone();
    let whole = sample().tar();
    vec![
        ("whole.tar", "whole", whole.clone()),
        ("whole.tar.zst", "whole", zstd::encode_all(whole.as_slice(), 3).unwrap()),
        ("damaged.tar", "member_damaged", sample().with(|p| p.files[2].1[100] ^= 1)),
        ("missing.tar", "member_missing", sample().with(|p| drop(p.files.remove(0)))),
        ("out-of-order.tar", "member_out_of_order", sample().with(|p| p.files.reverse())),
        (
            "undeclared.tar",
            "undeclared_member",
            sample().with(|p| p.files.push(("data/x.parquet".into(), vec![0]))),
        ),
        (
            "escapes.tar",
            "path_escapes",
            sample().with(|p| p.files.push(("../x.parquet".into(), vec![0]))),
        ),
        ("twice.tar", "duplicate_member", sample().with(|p| p.files.push((first(p), vec![0])))),
        ("longer.tar", "member_size", sample().with(|p| p.files[2].1.push(0))),
        ("bad-signature.tar", "bad_signature", sample().with(|p| p.header.sig[5] ^= 1)),
        (
            "other-entries.tar",
            "entries_mismatch",
            sample().with(|p| p.entries = p.entries.replace("\"seq\":1,", "\"seq\":9,")),
        ),
        (
            "unknown-version.tar",
            "unknown_version",
            sample().with(|p| {
                let text = String::from_utf8(p.header.bytes.clone()).unwrap();
                p.header.bytes = text.replacen("\"version\":2", "\"version\":3", 1).into_bytes();
            }),
        ),
        ("truncated.tar", "ends_early", whole[..whole.len() - 1024 - 700].to_vec()),
    ]
}

#[test]
fn golden_bundles_open_for_ever_or_are_refused_by_the_same_word() {
    let at = fixtures();
    if std::env::var_os("BARQUE_WRITE_FIXTURES").is_some() {
        let _ = fs::remove_dir_all(&at);
        sample().folder(&at.join("whole"));
        let mut words: BTreeMap<&str, &str> = BTreeMap::from([("whole", "whole")]);
        for (name, word, bytes) in golden() {
            fs::write(at.join(name), bytes).unwrap();
            words.insert(name, word);
        }
        fs::write(at.join("spoke.pub"), key().public().to_string() + "\n").unwrap();
        fs::write(at.join("expected.json"), serde_json::to_string_pretty(&words).unwrap() + "\n")
            .unwrap();
    }
    let expected = fs::read(at.join("expected.json")).unwrap();
    let expected: BTreeMap<String, String> = serde_json::from_slice(&expected).unwrap();
    assert!(expected.len() >= 14);
    for (name, word) in expected {
        assert_eq!(verdict(&at.join(&name)), word, "{name}");
    }
}

#[test]
fn a_folder_becomes_the_archive_that_it_would_have_been() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("b");
    sample().folder(&folder);
    let mut out = Vec::new();
    Bundle::open(&folder).unwrap().write_archive(&mut out).unwrap();
    assert_eq!(out, sample().tar());
    fs::remove_file(folder.join(format!("{DATA}factory/empty.parquet"))).unwrap();
    let e = Bundle::open(&folder).unwrap().write_archive(io::sink()).unwrap_err();
    assert!(e.to_string().contains("factory/empty.parquet"), "{e}");
}

#[test]
fn a_window_that_would_take_much_memory_is_refused() {
    // A frame's header that asks for a window of 2 GiB, and a raw block.
    let mut bytes = ZSTD_MAGIC.to_vec();
    bytes.extend_from_slice(&[0x00, 21 << 3, 0x29, 0, 0, b'h', b'e', b'l', b'l', b'o']);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b.tar.zst");
    fs::write(&path, bytes).unwrap();
    assert_eq!(verdict(&path), "archive_malformed");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_bytes_make_the_verifier_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b");
        fs::write(&path, bytes).unwrap();
        let _ = verdict(&path);
    }

    #[test]
    fn no_damage_to_a_bundle_goes_unseen(at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = sample().tar();
        // The zeros that close it may be anything that closes it.
        let i = at.index(bytes.len() - 1024);
        bytes[i] ^= 1 << bit;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.tar");
        fs::write(&path, &bytes).unwrap();
        // Nothing depends on a member's mode, owner or time, and its padding is no content.
        let whole = verdict(&path) == "whole";
        prop_assert!(!whole || is_covered_by_nothing(&sample().tar(), i), "byte {i}");
    }
}

/// Whether a byte of the archive is one that a reader passes over: padding, or a field of a header
/// that says nothing here. A header's checksum covers all of its fields.
fn is_covered_by_nothing(tar: &[u8], at: usize) -> bool {
    let mut archive = tar::Archive::new(tar);
    for item in archive.entries().unwrap() {
        let item = item.unwrap();
        let start = usize::try_from(item.raw_file_position()).unwrap();
        let end = start + usize::try_from(item.size()).unwrap();
        if (end..end.next_multiple_of(512)).contains(&at) {
            return true;
        }
    }
    // The padding of pax headers, which the iterator above does not show.
    tar[at] == 0
}
