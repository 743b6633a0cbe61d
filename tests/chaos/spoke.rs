//! A spoke that speaks the wire itself: bundles by hand, so that each answer is seen.

use std::sync::atomic::{AtomicU64, Ordering};

use barque_bundle::header::Draft;
use barque_bundle::jwt::{self, Claims};
use barque_bundle::receipt::{Answers, Expected};
use barque_bundle::wire::{
    BUNDLES, BundleLine, ENROLL, EnrollRequest, EnrollResponse, EnrollToken, Problem, SPOKES,
};
use barque_bundle::{
    BundleId, Entry, Header, OutcomeLine, PublicKey, Ranges, Receipt, SecretKey, SeriesId,
    Sha256Digest, Signed, Timestamp, stream,
};
use barque_hub::{Front, Said};
use serde_json::json;

use crate::node::{Node, wait_for};

pub struct Spoke {
    token: EnrollToken,
    key: SecretKey,
    root: PublicKey,
    series: SeriesId,
    next: AtomicU64,
}

/// A bundle that is sent until each of its files is answered.
#[derive(Clone)]
pub struct Load {
    header: Signed<Header>,
    body: Vec<u8>,
    pub entries: Vec<Entry>,
}

fn now() -> Timestamp {
    Timestamp::from_system(std::time::SystemTime::now())
}

/// A whole Parquet file by structure, different for each number.
pub fn file(n: u64) -> Vec<u8> {
    let mut bytes = b"PAR1".to_vec();
    bytes.extend_from_slice(&n.to_le_bytes());
    bytes.extend_from_slice(&[0x15, 2, 0, 3, 0, 0, 0]);
    bytes.extend_from_slice(b"PAR1");
    bytes
}

impl Spoke {
    /// Enrolls at a hub, whichever node takes it.
    pub fn enroll(name: &str, node: &Node) -> Self {
        let mut token = None;
        wait_for("a spoke is announced", || {
            let body = json!({ "spoke_id": name, "expires_in_ms": 3_600_000 });
            let (status, answer) = node.operate("POST", SPOKES, &body);
            token = answer["token"].as_str().map(|t| EnrollToken::decode(t).unwrap());
            status == 200
        });
        let token = token.unwrap();
        let key = SecretKey::from_seed(rand::random());
        let request = serde_json::to_vec(&EnrollRequest::new(&token, &key)).unwrap();
        let mut root = None;
        wait_for("a spoke is enrolled", || {
            let (fronts, runtime) = node.fronts().unwrap();
            let said = runtime.block_on(fronts.public.call("POST", ENROLL, &[], request.clone()));
            let said = said.filter(|s| s.status == 200);
            let answer = said.map(|s| serde_json::from_slice::<EnrollResponse>(&s.body).unwrap());
            root = answer.map(|a| a.root);
            root.is_some()
        });
        let series = SeriesId::new(now(), rand::random());
        Self { token, key, root: root.unwrap(), series, next: AtomicU64::new(1) }
    }

    pub fn name(&self) -> String {
        self.token.spoke.to_string()
    }

    /// A bundle of files by their paths, each with a number of its own.
    pub fn load(&self, files: &[(String, Vec<u8>)]) -> Load {
        let mut entries: Vec<(Entry, &Vec<u8>)> = files
            .iter()
            .map(|(path, bytes)| {
                let entry = Entry {
                    path: path.parse().unwrap(),
                    sha256: Sha256Digest::of(bytes),
                    size_bytes: bytes.len() as u64,
                    seq: self.next.fetch_add(1, Ordering::Relaxed),
                    modified_at: now(),
                };
                (entry, bytes)
            })
            .collect();
        entries.sort_by(|a, b| a.0.path.cmp(&b.0.path));
        let list: Vec<Entry> = entries.iter().map(|(e, _)| e.clone()).collect();
        let draft = Draft {
            bundle_id: BundleId::new(now(), rand::random()),
            spoke_id: self.token.spoke.clone(),
            hub_id: self.token.hub,
            created_at: now(),
            series: self.series,
            seq_head: self.next.load(Ordering::Relaxed),
            as_of: None,
            voids: Ranges::default(),
            replaces: None,
            in_transit: Vec::new(),
            label: None,
        };
        let header = Header::sign(draft, &list, &self.key);
        let mut writer = stream::Writer::start(Vec::new(), &header, &list).unwrap();
        for (entry, bytes) in &entries {
            writer.file(entry, bytes.as_slice()).unwrap();
        }
        Load { header, body: writer.finish().unwrap(), entries: list }
    }

    /// What a node's receipt says of a bundle; none when there is no receipt that counts. A node
    /// whose clock is far off says so, and is spoken to in its own time.
    pub async fn send(&self, front: &Front, load: &Load) -> Option<Vec<OutcomeLine>> {
        let said = self.post(front, load, now()).await?;
        let said = match said.status {
            401 => {
                let problem: Problem = serde_json::from_slice(&said.body).ok()?;
                self.post(front, load, problem.hub_time?).await?
            }
            _ => said,
        };
        if said.status != 200 {
            return None;
        }
        self.read(load, &said.body)
    }

    async fn post(&self, front: &Front, load: &Load, at: Timestamp) -> Option<Said> {
        let iat = at.unix_seconds();
        let claims = Claims {
            sub: self.token.spoke.clone(),
            aud: self.token.hub,
            iat,
            exp: iat + 300,
            jti: format!("{:x}", rand::random::<u64>()),
            htm: "POST".into(),
            htu: BUNDLES.into(),
            dig: load.header.value.entries_digest,
        };
        let bearer = format!("Bearer {}", jwt::sign(&self.key, &claims));
        let headers = [("authorization", bearer.as_str())];
        front.call("POST", BUNDLES, &headers, load.body.clone()).await
    }

    fn read(&self, load: &Load, body: &[u8]) -> Option<Vec<OutcomeLine>> {
        let last = body.split(|b| *b == b'\n').rfind(|l| !l.is_empty())?;
        let Ok(BundleLine::Done { receipt, .. }) = serde_json::from_slice(last) else {
            return None;
        };
        let expected = Expected {
            roots: std::slice::from_ref(&self.root),
            hub_id: self.token.hub,
            spoke_id: &self.token.spoke,
            answers: Answers::Bundle(load.header.value.bundle_id),
        };
        let receipt = Receipt::open_wire(receipt, &expected).expect("a receipt that does not hold");
        Some(receipt.lines)
    }
}
