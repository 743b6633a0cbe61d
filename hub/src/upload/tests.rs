use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use barque_bundle::Timestamp;
use bytes::Bytes;

use super::*;

struct Bench {
    dir: tempfile::TempDir,
    ledger: Ledger,
    now: Arc<AtomicU64>,
}

fn entry(bytes: &[u8]) -> Entry {
    Entry {
        path: "d/m/2024/03/31/02/a.parquet".parse().unwrap(),
        sha256: Sha256Digest::of(bytes),
        size_bytes: bytes.len() as u64,
        seq: 1,
        modified_at: Timestamp::from_unix_ms(0),
    }
}

fn row(bytes: &[u8]) -> UploadRow {
    let entry = entry(bytes);
    UploadRow {
        key: UploadKey { spoke_id: "s".parse().unwrap(), path: entry.path, sha256: entry.sha256 },
        size_bytes: entry.size_bytes,
        synced: 0,
        bundle: None,
        touched_at: Timestamp::from_unix_ms(0),
    }
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(&dir.path().join("node.db")).unwrap();
        Self { dir, ledger, now: Arc::default() }
    }

    /// As after a start: nothing is remembered but what is on disk.
    fn open(&self) -> Uploads {
        let now = Arc::clone(&self.now);
        let clock: Clock =
            Arc::new(move || Timestamp::from_unix_ms(now.load(Ordering::SeqCst).cast_signed()));
        let uploads = Uploads::new(self.dir.path(), self.ledger.clone(), clock, 1 << 30);
        uploads.clean_up().unwrap();
        uploads
    }
}

/// Gives its bytes in small pieces.
impl Pieces for &[u8] {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let (piece, rest) = self.split_at(self.len().min(1000));
        *self = rest;
        Ok((!piece.is_empty()).then(|| Bytes::copy_from_slice(piece)))
    }
}

/// Gives some bytes, then breaks.
struct Cut<'a>(&'a [u8]);

impl Pieces for Cut<'_> {
    fn next(&mut self) -> io::Result<Option<Bytes>> {
        let piece = self.0.next()?;
        piece.map(Some).ok_or_else(|| io::ErrorKind::ConnectionReset.into())
    }
}

#[tokio::test]
async fn bytes_are_kept_as_they_come_and_go_on_after_a_start() {
    let b = Bench::new();
    let bytes: Vec<u8> = (0..200_000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let mut row = row(&bytes);
    let uploads = b.open();
    let mut held = uploads.hold(&row.key).await.unwrap();
    let cut = uploads.append(&mut held, &mut row, 0, &mut Cut(&bytes[..70_000]), |_| ()).unwrap();
    assert_eq!((cut.offset, cut.broken.is_some()), (70_000, true));
    // Bytes that were written and never synced are cut off at the next start.
    let path = uploads.path(&row.key);
    std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"lost").unwrap();
    drop((held, uploads));
    let uploads = b.open();
    let mut row = b.ledger.upload(&row.key).unwrap().unwrap();
    assert_eq!(row.synced, 70_000);
    let mut held = uploads.hold(&row.key).await.unwrap();
    let wrong = uploads.append(&mut held, &mut row, 70_004, &mut &bytes[70_004..], |_| ());
    assert!(matches!(wrong, Err(Error::Refused(r)) if r.upload_offset == Some(70_000)));
    let rest = uploads.append(&mut held, &mut row, 70_000, &mut &bytes[70_000..], |_| ()).unwrap();
    assert_eq!((rest.offset, rest.broken.is_none()), (200_000, true));
    let whole = (Sha256Digest::of(&bytes), 200_000);
    assert_eq!(uploads.digest(&mut held, &mut row).unwrap(), whole);
    // Read again after a start, not believed.
    drop((held, uploads));
    let uploads = b.open();
    let mut held = uploads.hold(&row.key).await.unwrap();
    assert_eq!(uploads.digest(&mut held, &mut row).unwrap(), whole);
    let beyond = uploads.append(&mut held, &mut row, 200_000, &mut &b"x"[..], |_| ()).unwrap();
    assert!(beyond.broken.is_some());
    assert_eq!(std::fs::read(path).unwrap(), bytes);
}

#[tokio::test]
async fn a_newer_request_ends_an_older_one() {
    let b = Bench::new();
    let bytes = vec![7u8; 100_000];
    let row = row(&bytes);
    let uploads = Arc::new(b.open());
    let held = uploads.hold(&row.key).await.unwrap();
    let (feed, mut fed) = std::sync::mpsc::channel::<Vec<u8>>();
    struct Slow<'a>(&'a mut std::sync::mpsc::Receiver<Vec<u8>>);
    impl Pieces for Slow<'_> {
        fn next(&mut self) -> io::Result<Option<Bytes>> {
            Ok(self.0.recv().ok().map(Bytes::from))
        }
    }
    let (mut older, mut older_row) = (held, row.clone());
    let appending = Arc::clone(&uploads);
    let older = tokio::task::spawn_blocking(move || {
        appending.append(&mut older, &mut older_row, 0, &mut Slow(&mut fed), |_| ())
    });
    feed.send(bytes[..1_000].to_vec()).unwrap();
    let path = uploads.path(&row.key);
    while std::fs::metadata(&path).map_or(0, |m| m.len()) < 1_000 {
        tokio::task::yield_now().await;
    }
    let newer = tokio::spawn({
        let (uploads, key) = (Arc::clone(&uploads), row.key.clone());
        async move { uploads.hold(&key).await.map(drop).is_ok() }
    });
    while !newer.is_finished() {
        // Its body goes on without end.
        let _ = feed.send(bytes[..1].to_vec());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(newer.await.unwrap());
    let ended = older.await.unwrap().unwrap();
    assert!(ended.broken.unwrap().to_string().contains("newer"));
    // What the older one brought is kept.
    assert_eq!(b.ledger.upload(&row.key).unwrap().unwrap().synced, ended.offset);
}

#[test]
fn the_larger_part_of_a_cut_stream_is_kept_and_old_parts_are_swept() {
    let b = Bench::new();
    let uploads = b.open();
    let bytes = vec![9u8; 300_000];
    let (spoke, entry) = ("s".parse().unwrap(), entry(&bytes));
    for (name, len, kept) in
        [("1", 100_000, 100_000), ("2", 80_000, 100_000), ("3", 150_000, 150_000)]
    {
        let staged = b.dir.path().join(name);
        std::fs::write(&staged, &bytes[..len]).unwrap();
        uploads.keep(&spoke, &entry, &staged, len as u64).unwrap();
        let row = b.ledger.upload(&row(&bytes).key).unwrap().unwrap();
        assert_eq!(row.synced, kept, "{name}");
        assert_eq!(std::fs::metadata(uploads.path(&row.key)).unwrap().len(), kept);
    }
    b.now.store(KEPT_FOR_MS.cast_unsigned(), Ordering::SeqCst);
    uploads.sweep(|_| Ok(false)).unwrap();
    assert_eq!(b.ledger.uploads(None).unwrap().len(), 1);
    b.now.store(KEPT_FOR_MS.cast_unsigned() + 1, Ordering::SeqCst);
    uploads.sweep(|_| Ok(false)).unwrap();
    assert!(b.ledger.uploads(None).unwrap().is_empty());
    assert!(!uploads.path(&row(&bytes).key).exists());
}

#[test]
fn another_content_of_a_path_is_another_upload() {
    let (a, b) = (row(b"one"), row(b"two"));
    let bench = Bench::new();
    let uploads = bench.open();
    assert_ne!(uploads.path(&a.key), uploads.path(&b.key));
}

#[tokio::test]
async fn a_partial_file_that_got_shorter_begins_anew_and_is_never_filled_with_zeros() {
    let b = Bench::new();
    let bytes = vec![7u8; 100_000];
    let mut row = row(&bytes);
    let uploads = b.open();
    let mut held = uploads.hold(&row.key).await.unwrap();
    uploads.append(&mut held, &mut row, 0, &mut &bytes[..60_000], |_| ()).unwrap();
    // Another file under its name: shorter, and not the one that was hashed.
    let path = uploads.path(&row.key);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, &bytes[..1_000]).unwrap();
    let refused = uploads.append(&mut held, &mut row, 60_000, &mut &bytes[60_000..], |_| ());
    assert!(matches!(refused, Err(Error::Refused(r)) if r.upload_offset == Some(0)));
    uploads.append(&mut held, &mut row, 0, &mut &bytes[..], |_| ()).unwrap();
    assert_eq!(uploads.digest(&mut held, &mut row).unwrap().0, Sha256Digest::of(&bytes));
}

#[tokio::test]
async fn a_newer_version_of_a_path_takes_the_place_of_the_older_one() {
    let b = Bench::new();
    let uploads = b.open();
    for n in 0..3u8 {
        let mut row = row(&[n; 10_000]);
        uploads.make_room(&row.key, row.size_bytes, Step::Begins).unwrap();
        let mut held = uploads.hold(&row.key).await.unwrap();
        uploads.append(&mut held, &mut row, 0, &mut &[n; 5_000][..], |_| ()).unwrap();
    }
    let rows = b.ledger.uploads(None).unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].key.sha256, Sha256Digest::of(&[2u8; 10_000]));
}
