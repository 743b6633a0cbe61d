//! Who may do what: every refusal with its own code, and no namespace but one's own.

use std::fs;

use barque_bundle::header::{Draft, Signed};
use barque_bundle::jwt::{self, Claims};
use barque_bundle::wire::{BUNDLES, RECONCILE, ReconcileRequest, WireEntry};
use barque_bundle::{
    BundleId, Entry, Header, HubId, Ranges, SecretKey, SeriesId, Sha256Digest, SpokeId, Timestamp,
    stream,
};
use libtest_mimic::Trial;

use crate::http::{Answer, call};
use crate::site::{HubProcess, Site, Spoke, tiny};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial!(every_token_that_does_not_fit_is_refused_with_its_own_code),
        trial!(a_bundle_of_another_spoke_hub_or_key_is_refused),
        trial!(no_spoke_sees_or_writes_anothers_namespace),
        trial!(a_hub_with_another_root_gets_nothing),
        trial!(a_lying_body_is_a_mismatch_and_lands_nowhere),
        trial!(a_bundle_stream_that_is_none_is_refused_and_the_hub_lives_on),
    ]
}

/// A spoke's side of the wire, with everything free to be wrong.
pub struct Voice {
    pub hub_id: HubId,
    pub spoke_id: SpokeId,
    pub key: SecretKey,
}

fn now() -> Timestamp {
    Timestamp::from_system(std::time::SystemTime::now())
}

impl Voice {
    pub fn of(spoke: &Spoke) -> Self {
        let json = fs::read(std::path::Path::new(&spoke.state()).join("identity.json")).unwrap();
        let v: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let text = |v: &serde_json::Value| v.as_str().unwrap().to_owned();
        Self {
            hub_id: text(&v["hubs"][0]["hub_id"]).parse().unwrap(),
            spoke_id: text(&v["spoke_id"]).parse().unwrap(),
            key: text(&v["key"]).parse().unwrap(),
        }
    }

    pub fn claims(&self, path: &str, dig: Sha256Digest) -> Claims {
        let iat = now().unix_seconds();
        Claims {
            sub: self.spoke_id.clone(),
            aud: self.hub_id,
            iat,
            exp: iat + 300,
            jti: "1".into(),
            htm: "POST".into(),
            htu: path.into(),
            dig,
        }
    }

    fn reconcile_body(&self, entries: &[Entry]) -> Vec<u8> {
        serde_json::to_vec(&ReconcileRequest {
            series: SeriesId::new(now(), [1; 10]),
            seq_head: 100,
            as_of: None,
            voids: Ranges::default(),
            replaces: None,
            in_transit: vec![],
            status: Default::default(),
            seen_position: 0,
            entries: entries.iter().map(WireEntry::from).collect(),
        })
        .unwrap()
    }

    pub fn bundle(
        &self,
        hub_id: HubId,
        spoke_id: &SpokeId,
        key: &SecretKey,
        files: &[(Entry, Vec<u8>)],
    ) -> (Signed<Header>, Vec<u8>) {
        let entries: Vec<Entry> = files.iter().map(|(e, _)| e.clone()).collect();
        let draft = Draft {
            bundle_id: BundleId::new(now(), rand::random()),
            spoke_id: spoke_id.clone(),
            hub_id,
            created_at: now(),
            series: SeriesId::new(now(), [1; 10]),
            seq_head: 100,
            as_of: None,
            voids: Ranges::default(),
            replaces: None,
            in_transit: Vec::new(),
            label: None,
        };
        let header = Header::sign(draft, &entries, key);
        let mut writer = stream::Writer::start(Vec::new(), &header, &entries).unwrap();
        for (entry, bytes) in files {
            writer.file(entry, bytes.as_slice()).unwrap();
        }
        (header, writer.finish().unwrap())
    }

    fn send(&self, hub: &HubProcess, header: &Signed<Header>, body: &[u8]) -> Answer {
        let claims = self.claims(BUNDLES, header.value.entries_digest);
        call(&hub.address, "POST", BUNDLES, Some(&jwt::sign(&self.key, &claims)), body)
    }
}

pub fn entry(path: &str, bytes: &[u8], seq: u64) -> Entry {
    Entry {
        path: path.parse().unwrap(),
        sha256: Sha256Digest::of(bytes),
        size_bytes: bytes.len() as u64,
        seq,
        modified_at: now(),
    }
}

pub fn plain_site() -> (Site, HubProcess, Spoke) {
    let site = Site::new();
    let hub = site.hub_with("127.0.0.1:0", &["--plain"]);
    let spoke = site.spoke("rocket-01");
    (site, hub, spoke)
}

fn every_token_that_does_not_fit_is_refused_with_its_own_code() {
    let (site, hub, spoke) = plain_site();
    let other = Voice::of(&site.spoke("rocket-02"));
    let voice = Voice::of(&spoke);
    let body = voice.reconcile_body(&[]);
    let good = voice.claims(RECONCILE, Sha256Digest::of(&body));
    let code = |claims: &Claims, key: &SecretKey| {
        let token = jwt::sign(key, claims);
        let answer = call(&hub.address, "POST", RECONCILE, Some(&token), &body);
        if answer.status == 200 {
            "ok".to_owned()
        } else {
            assert_eq!(answer.status, 401);
            answer.code()
        }
    };
    assert_eq!(code(&good, &voice.key), "ok");
    let key = &voice.key;
    let iat = good.iat;
    let c = || good.clone();
    assert_eq!(code(&Claims { aud: HubId::new(now(), [9; 10]), ..c() }, key), "wrong_hub");
    assert_eq!(code(&Claims { htu: BUNDLES.into(), ..c() }, key), "wrong_request");
    assert_eq!(code(&Claims { htm: "GET".into(), ..c() }, key), "wrong_request");
    assert_eq!(code(&Claims { dig: Sha256Digest::of(b"x"), ..c() }, key), "wrong_body");
    assert_eq!(code(&Claims { iat: iat - 900, exp: iat - 600, ..c() }, key), "token_expired");
    assert_eq!(code(&Claims { iat: iat + 600, exp: iat + 900, ..c() }, key), "clock_skew");
    assert_eq!(code(&Claims { exp: iat + 3600, ..c() }, key), "token_too_long");
    assert_eq!(code(&c(), &other.key), "wrong_spoke");
    assert_eq!(code(&c(), &SecretKey::from_seed([3; 32])), "unknown_key");
    let forged = jwt::sign(key, &good);
    let forged = format!("{}x", &forged[..forged.len() - 1]);
    let answer = call(&hub.address, "POST", RECONCILE, Some(&forged), &body);
    assert!(answer.status == 401, "{}", answer.status);
    assert_eq!(call(&hub.address, "POST", RECONCILE, None, &body).code(), "token_missing");
}

fn a_bundle_of_another_spoke_hub_or_key_is_refused() {
    let (site, hub, spoke) = plain_site();
    let other = Voice::of(&site.spoke("rocket-02"));
    let voice = Voice::of(&spoke);
    let files = [(entry("d/m/a.parquet", &tiny(1), 1), tiny(1))];
    let send = |hub_id, spoke_id: &SpokeId, key: &SecretKey| {
        let (header, body) = voice.bundle(hub_id, spoke_id, key, &files);
        let answer = voice.send(&hub, &header, &body);
        if answer.status == 200 { "ok".to_owned() } else { answer.code() }
    };
    let elsewhere = HubId::new(now(), [9; 10]);
    assert_eq!(send(elsewhere, &voice.spoke_id, &voice.key), "wrong_hub");
    assert_eq!(send(voice.hub_id, &other.spoke_id, &voice.key), "wrong_spoke");
    assert_eq!(send(voice.hub_id, &voice.spoke_id, &other.key), "bad_signature");
    // A token for one bundle does not carry another.
    let (header, _) = voice.bundle(voice.hub_id, &voice.spoke_id, &voice.key, &[]);
    let (_, body) = voice.bundle(voice.hub_id, &voice.spoke_id, &voice.key, &files);
    assert_eq!(voice.send(&hub, &header, &body).code(), "wrong_body");
    assert!(site.manifest().is_empty());
    assert_eq!(send(voice.hub_id, &voice.spoke_id, &voice.key), "ok");
    assert_eq!(site.manifest().len(), 1);
}

fn no_spoke_sees_or_writes_anothers_namespace() {
    let (site, hub, a) = plain_site();
    let b = site.spoke("rocket-02");
    let path = "d/m/2024/03/31/02/x.parquet";
    a.put(path, &tiny(1));
    assert_eq!(a.push().count("sent"), 1);
    // To b the path is free, and what it puts there is its own.
    let voice = Voice::of(&b);
    let body = voice.reconcile_body(&[entry(path, &tiny(1), 1)]);
    let token = jwt::sign(&voice.key, &voice.claims(RECONCILE, Sha256Digest::of(&body)));
    let answer = call(&hub.address, "POST", RECONCILE, Some(&token), &body).json();
    assert_eq!(answer["missing"][0], path);
    assert_eq!(answer["present"].as_array().unwrap().len(), 0);
    b.put(path, &tiny(2));
    assert_eq!(b.push().count("sent"), 1);
    site.assert_landed(&[&a, &b]);
    // A spoke's token is no reader's token, and a path cannot climb out of its namespace.
    let claims =
        Claims { htm: "GET".into(), ..voice.claims("/api/v1/files", Sha256Digest::of(b"")) };
    let token = jwt::sign(&voice.key, &claims);
    assert_eq!(call(&hub.address, "GET", "/api/v1/files", Some(&token), b"").status, 401);
    let mut request: serde_json::Value =
        serde_json::from_slice(&voice.reconcile_body(&[entry(path, &tiny(2), 1)])).unwrap();
    let mut climbing = request["entries"][0].clone();
    climbing["path"] = "../rocket-01/d/m/2024/03/31/02/x.parquet".into();
    request["entries"].as_array_mut().unwrap().push(climbing);
    let body = serde_json::to_vec(&request).unwrap();
    let token = jwt::sign(&voice.key, &voice.claims(RECONCILE, Sha256Digest::of(&body)));
    let answer = call(&hub.address, "POST", RECONCILE, Some(&token), &body).json();
    assert_eq!(answer["refused"][0]["code"], "path_hidden");
    assert_eq!(answer["present"][0], path);
}

fn a_hub_with_another_root_gets_nothing() {
    let site = Site::new();
    let hub = site.hub();
    let spoke = site.spoke("s");
    spoke.put("d/m/a.parquet", &tiny(1));
    let impostor_site = Site::new();
    let impostor = impostor_site.hub();
    spoke.edit_config(&hub.address, &impostor.address);
    let pass = spoke.push();
    assert_eq!(pass.code, 6, "{pass:?}");
    assert_eq!(pass.report["stopped_by"], "wrong_root");
    assert!(pass.stderr.contains("wrong root"), "{}", pass.stderr);
    assert_eq!((pass.count("left"), pass.count("failed")), (1, 0));
    // Nor does a token enroll at a hub whose root it does not name.
    let added = crate::site::json(&["hub", "spoke", "add", "t", "--data", &site.data(), "--json"]);
    let mut token =
        barque_bundle::wire::EnrollToken::decode(added["token"].as_str().unwrap()).unwrap();
    token.urls = vec![format!("https://{}", impostor.address)];
    let state = site.path().join("t").display().to_string();
    let source = site.path().display().to_string();
    let (code, _, err) =
        crate::site::run(&["enroll", &token.encode(), "--state", &state, "--source", &source]);
    assert_eq!(code, 6, "{err}");
    assert!(err.contains("wrong root"), "{err}");
    spoke.edit_config(&impostor.address, &hub.address);
    assert_eq!(spoke.push().count("sent"), 1);
}

fn a_lying_body_is_a_mismatch_and_lands_nowhere() {
    let (site, hub, spoke) = plain_site();
    let voice = Voice::of(&spoke);
    let mut lie = tiny(1);
    lie[10] ^= 1;
    let files = [
        (entry("d/m/lie.parquet", &tiny(1), 1), lie),
        (entry("d/m/no-parquet.parquet", b"hello", 2), b"hello".to_vec()),
        (entry("d/m/true.parquet", &tiny(2), 3), tiny(2)),
    ];
    let (header, body) = voice.bundle(voice.hub_id, &voice.spoke_id, &voice.key, &files);
    let answer = voice.send(&hub, &header, &body);
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body).unwrap();
    let outcomes: Vec<serde_json::Value> =
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let done = &outcomes.last().unwrap()["done"];
    let lines: Vec<serde_json::Value> = done["receipt"]["outcomes"]
        .as_str()
        .unwrap()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let seen: Vec<&str> = lines.iter().map(|l| l["outcome"].as_str().unwrap()).collect();
    assert_eq!(seen, ["mismatch", "refused", "registered"]);
    assert_eq!(lines[1]["code"], "parquet_head_magic");
    assert!(done["stopped"].is_null());
    assert_eq!(site.manifest().keys().collect::<Vec<_>>(), ["rocket-01/d/m/true.parquet"]);
    assert_eq!(crate::site::tree(&site.landing()).len(), 1);
    assert_eq!(crate::site::tree(&site.path().join("hub/staging")).len(), 0);
}

fn a_bundle_stream_that_is_none_is_refused_and_the_hub_lives_on() {
    let (site, hub, spoke) = plain_site();
    let voice = Voice::of(&spoke);
    let files = [(entry("d/m/a.parquet", &tiny(1), 1), tiny(1))];
    let (header, body) = voice.bundle(voice.hub_id, &voice.spoke_id, &voice.key, &files);
    for garbage in [b"".to_vec(), b"<html>".to_vec(), vec![0; 4096], body[..600].to_vec()] {
        let answer = voice.send(&hub, &header, &garbage);
        assert!((400..600).contains(&answer.status) && answer.status != 500, "{}", answer.status);
    }
    assert!(site.manifest().is_empty());
    spoke.put("d/m/b.parquet", &tiny(2));
    assert_eq!(spoke.push().count("sent"), 1);
}
