//! Large files in pieces: cut, killed, changed, and spoken to by hand.

use std::fs;
use std::process::{Child, Stdio};

use barque_bundle::jwt;
use barque_bundle::wire::{UPLOADS, UploadRequest};
use barque_bundle::{Entry, Header, Sha256Digest, Signed};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use libtest_mimic::Trial;

use crate::http::{Answer, call_full};
use crate::identity::{Voice, entry, plain_site};
use crate::kills::random;
use crate::proxy::CuttingProxy;
use crate::site::{Site, pass_of, sized, tree};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(a_file_that_is_cut_again_and_again_goes_on_where_it_ended),
        trial!(a_hundred_kills_in_the_middle_of_uploads_change_nothing),
        trial!(an_upload_is_never_spliced_with_another_version),
        trial!(an_upload_by_hand_says_where_it_stands_and_refuses_what_does_not_fit),
    ]
}

const NAME: &str = "d/m/2024/03/31/02/large.parquet";

fn partials(site: &Site) -> Vec<u64> {
    let items = fs::read_dir(site.path().join("hub/staging")).into_iter().flatten().flatten();
    let partial = items.filter(|i| i.file_name().to_string_lossy().ends_with(".partial"));
    partial.filter_map(|i| i.metadata().ok()).map(|m| m.len()).collect()
}

fn a_file_that_is_cut_again_and_again_goes_on_where_it_ended() {
    const BYTES: usize = 12_000_000;
    for above in ["32MiB", "1MiB"] {
        let site = Site::new();
        let hub = site.hub();
        let spoke = site.spoke("s");
        spoke.edit_config("32MiB", above);
        spoke.put(NAME, &sized(1, BYTES));
        let proxy = CuttingProxy::start_each(&hub.address, 1_500_000);
        spoke.edit_config(&hub.address, &proxy.address);
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("sent")), (0, 1), "{above}: {pass:?}");
        site.assert_landed(&[&spoke]);
        let resumed = pass.report["resumed"].as_array().unwrap();
        let offsets: Vec<u64> = resumed.iter().map(|r| r["offset"].as_u64().unwrap()).collect();
        assert!(offsets.len() >= 7 && offsets.is_sorted(), "{above}: {offsets:?}");
        // At most a twentieth goes twice, with all that is around the file's bytes.
        let carried = proxy.carried();
        assert!(carried < BYTES as u64 * 105 / 100, "{above}: {carried} bytes for {BYTES}");
        assert!(partials(&site).is_empty(), "{above}");
    }
}

fn a_hundred_kills_in_the_middle_of_uploads_change_nothing() {
    const FILES: u64 = 6;
    const BYTES: usize = 40_000_000;
    const KILLS: u32 = 100;
    let site = Site::new();
    let mut hub = Some(site.hub());
    let address = hub.as_ref().unwrap().address.clone();
    let spoke = site.spoke("s");
    for n in 0..FILES {
        spoke.put(&format!("d/m/2024/03/31/{n:02}/large.parquet"), &sized(n, BYTES));
    }
    let (mut seed, mut kills, mut resumed) = (3, 0, 0);
    let mut running: Option<Child> = None;
    while kills < KILLS {
        let push = running.get_or_insert_with(|| {
            // Slow enough that there is something to kill to the last.
            let mut push = spoke.push_command();
            push.args(["--bandwidth", "12MB/s"]).stdout(Stdio::piped()).stderr(Stdio::piped());
            push.spawn().unwrap()
        });
        let before: u64 = partials(&site).into_iter().sum();
        let more = random(&mut seed, 3_000_000);
        while push.try_wait().unwrap().is_none()
            && partials(&site).into_iter().sum::<u64>().abs_diff(before) <= more
        {
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        if push.try_wait().unwrap().is_some() {
            // It gave up on a hub that was just being killed.
            let pass = pass_of(running.take().unwrap().wait_with_output().unwrap());
            assert_eq!((pass.code, pass.count("failed")), (75, 0), "after {kills} kills: {pass:?}");
            continue;
        }
        kills += 1;
        if kills % 2 == 0 {
            // The push goes on by itself with the hub that comes back.
            hub.take().unwrap().kill();
            hub = Some(site.hub_with(&address, &[]));
        } else {
            push.kill().unwrap();
            push.wait().unwrap();
            running = None;
        }
    }
    if let Some(mut push) = running {
        push.kill().unwrap();
        push.wait().unwrap();
    }
    while spoke.status()["pending"].as_u64().unwrap()
        + spoke.status()["in_flight"].as_u64().unwrap()
        > 0
    {
        let pass = spoke.push();
        assert_eq!((pass.code, pass.count("failed")), (0, 0), "{pass:?}");
        resumed += pass.report["resumed"].as_array().unwrap().len();
    }
    assert!(resumed > 0, "nothing went on where it had ended");
    site.assert_landed(&[&spoke]);
    assert!(partials(&site).is_empty());
    drop(hub);
}

fn an_upload_is_never_spliced_with_another_version() {
    const BYTES: usize = 6_000_000;
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    spoke.edit_config("32MiB", "1MiB");
    let proxy = CuttingProxy::start(&hub.address, 2_500_000);
    spoke.edit_config(&hub.address, &proxy.address);
    spoke.put(NAME, &sized(1, BYTES));
    assert_eq!(spoke.push().code, 75);
    assert_eq!(partials(&site).len(), 1);
    // Another version of the same size, before the rest could go.
    spoke.put(NAME, &sized(2, BYTES));
    proxy.allow(u64::MAX);
    let pass = spoke.push();
    assert_eq!((pass.code, pass.count("sent")), (0, 1), "{pass:?}");
    assert_eq!(pass.report["resumed"], serde_json::json!([]), "{pass:?}");
    assert_eq!(fs::read(site.landing().join("s").join(NAME)).unwrap(), sized(2, BYTES));
    assert_eq!(tree(&site.landing()).len(), 1);
}

struct Hand {
    address: String,
    voice: Voice,
    header: Signed<Header>,
    entry: Entry,
}

impl Hand {
    fn call(&self, method: &str, path: &str, more: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut claims = self.voice.claims(path, self.header.value.entries_digest);
        claims.htm = method.to_owned();
        let token = format!("Bearer {}", jwt::sign(&self.voice.key, &claims));
        let mut headers = vec![("Authorization", token.as_str())];
        headers.extend(more);
        call_full(&self.address, method, path, &headers, body)
    }

    fn open(&self) -> Answer {
        let request = UploadRequest {
            manifest: BASE64.encode(&self.header.bytes),
            sig: BASE64.encode(&self.header.sig),
            entry: self.entry.clone(),
        };
        self.call("POST", UPLOADS, &[], &serde_json::to_vec(&request).unwrap())
    }

    fn path(&self) -> String {
        format!("{UPLOADS}/{}", self.header.value.bundle_id)
    }

    fn append(&self, offset: u64, complete: &str, body: &[u8]) -> Answer {
        let offset = offset.to_string();
        let headers = [("Upload-Offset", offset.as_str()), ("Upload-Complete", complete)];
        self.call("PATCH", &self.path(), &headers, body)
    }
}

fn offset_of(answer: &Answer) -> Option<u64> {
    let line = answer.head.lines().find_map(|l| l.strip_prefix("upload-offset: "))?;
    line.trim().parse().ok()
}

fn an_upload_by_hand_says_where_it_stands_and_refuses_what_does_not_fit() {
    let (site, hub, spoke) = plain_site();
    let voice = Voice::of(&spoke);
    let bytes = sized(5, 100_000);
    let entry = entry("d/m/2024/03/31/02/h.parquet", &bytes, 1);
    let key = voice.key.clone();
    let (header, _) =
        voice.bundle(voice.hub_id, &voice.spoke_id, &key, &[(entry.clone(), bytes.clone())]);
    let hand = Hand { address: hub.address.clone(), voice, header, entry };
    let opened = hand.open();
    assert_eq!((opened.status, offset_of(&opened)), (201, Some(0)), "{}", opened.head);
    assert!(opened.head.contains(&format!("location: {}", hand.path())), "{}", opened.head);
    let first = hand.append(0, "?0", &bytes[..40_000]);
    assert_eq!((first.status, offset_of(&first)), (204, Some(40_000)), "{}", first.head);
    let wrong = hand.append(39_000, "?0", &bytes[39_000..]);
    assert_eq!((wrong.status, wrong.code().as_str()), (409, "offset_mismatch"));
    assert_eq!(offset_of(&wrong), Some(40_000));
    let looked = hand.call("HEAD", &hand.path(), &[], b"");
    assert_eq!((looked.status, offset_of(&looked)), (204, Some(40_000)), "{}", looked.head);
    assert!(looked.head.contains("upload-length: ") && looked.head.contains("no-store"));
    // Said to be the last, and is not: what came is kept.
    let short = hand.append(40_000, "?1", &bytes[40_000..50_000]);
    assert_eq!((short.status, offset_of(&short)), (409, Some(50_000)));
    // Beyond the declared size.
    let beyond = hand.append(50_000, "?1", &[&bytes[50_000..], b"more"].concat());
    assert_eq!(beyond.status, 503, "{}", beyond.head);
    let missing = hand.call("PATCH", &hand.path(), &[("Upload-Offset", "0")], b"");
    assert_eq!((missing.status, missing.code().as_str()), (400, "header_malformed"));
    // Opened again it goes on, also under another bundle's id.
    let at = offset_of(&hand.open()).unwrap();
    assert!((50_000..=bytes.len() as u64).contains(&at), "{at}");
    let done = hand.append(at, "?1", &bytes[usize::try_from(at).unwrap()..]);
    assert_eq!(done.status, 200, "{}", done.head);
    let outcomes = done.json()["receipt"]["outcomes"].as_str().unwrap().to_owned();
    assert!(outcomes.contains("\"registered\""), "{outcomes}");
    let landed = site.landing().join(&spoke.name).join("d/m/2024/03/31/02/h.parquet");
    assert_eq!(fs::read(landed).unwrap(), bytes);
    // It is there now, and the upload is gone.
    let again = hand.open();
    assert_eq!(again.status, 200, "{}", again.head);
    assert!(again.json()["receipt"]["outcomes"].as_str().unwrap().contains("registered"));
    assert_eq!(hand.call("HEAD", &hand.path(), &[], b"").status, 404);
    // Lying bytes are a mismatch, land nowhere and are forgotten.
    let entry = Entry {
        path: "d/m/2024/03/31/02/lie.parquet".parse().unwrap(),
        sha256: Sha256Digest::of(b"other"),
        ..hand.entry.clone()
    };
    let key = hand.voice.key.clone();
    let (hub_id, spoke_id) = (hand.voice.hub_id, hand.voice.spoke_id.clone());
    let files = [(entry.clone(), bytes.clone())];
    let (header, _) = hand.voice.bundle(hub_id, &spoke_id, &key, &files);
    let hand = Hand { header, entry, ..hand };
    assert_eq!(hand.open().status, 201);
    let lied = hand.append(0, "?1", &bytes);
    assert!(lied.json()["receipt"]["outcomes"].as_str().unwrap().contains("mismatch"));
    assert_eq!(hand.call("HEAD", &hand.path(), &[], b"").status, 404);
    // Given up by its owner.
    assert_eq!(hand.open().status, 201);
    assert_eq!(hand.append(0, "?0", &bytes[..70_000]).status, 204);
    assert_eq!(hand.call("DELETE", &hand.path(), &[], b"").status, 204);
    assert_eq!(hand.call("HEAD", &hand.path(), &[], b"").status, 404);
    assert!(partials(&site).is_empty());
    assert_eq!(tree(&site.landing()).len(), 1);
}
