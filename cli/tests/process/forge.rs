//! Makes bundles that lie: a genuine archive taken apart, changed, and signed by the spoke's key.

use std::fs;
use std::path::Path;

use barque_bundle::digest::Hasher;
use barque_bundle::{SecretKey, Sha256Digest};
use serde_json::Value;

use crate::site::Spoke;

/// A bundle taken apart, to be put together wrongly.
#[derive(Clone)]
pub struct Forge {
    pub header: Value,
    pub entries: Vec<Value>,
    pub files: Vec<Member>,
    pub key: SecretKey,
    /// Whether header and signature are made to fit what is changed.
    pub is_signed: bool,
    pub tail: Vec<u8>,
}

#[derive(Clone)]
pub struct Member {
    pub header: tar::Header,
    pub name: String,
    pub bytes: Vec<u8>,
    /// Before it, as pax records.
    pub pax: Vec<(String, String)>,
}

pub fn member(name: &str, bytes: &[u8]) -> Member {
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o644);
    header.set_size(bytes.len() as u64);
    header.set_entry_type(tar::EntryType::Regular);
    Member { header, name: name.to_owned(), bytes: bytes.to_vec(), pax: Vec::new() }
}

impl Forge {
    pub fn new(spoke: &Spoke, archive: &Path) -> Self {
        let mut forge = Self {
            header: Value::Null,
            entries: Vec::new(),
            files: Vec::new(),
            key: key_of(spoke),
            is_signed: true,
            tail: Vec::new(),
        };
        let mut archive = tar::Archive::new(fs::File::open(archive).unwrap());
        for item in archive.entries().unwrap() {
            let mut item = item.unwrap();
            let name = item.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut item, &mut bytes).unwrap();
            let lines = |b: &[u8]| -> Vec<Value> {
                let text = String::from_utf8(b.to_vec()).unwrap();
                text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
            };
            match name.as_str() {
                "manifest.json" => forge.header = serde_json::from_slice(&bytes).unwrap(),
                "manifest.sig" => {}
                "entries.jsonl" => forge.entries = lines(&bytes),
                _ => forge.files.push(member(&name, &bytes)),
            }
        }
        forge
    }

    pub fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut forge = self.clone();
        change(&mut forge);
        forge
    }

    pub fn text(&self) -> String {
        self.entries.iter().map(|e| format!("{e}\n")).collect()
    }

    /// The header says what the entries are, but for what a lie has set.
    pub fn true_header(&mut self) {
        let text = self.text();
        let mut digest = Hasher::new();
        for e in &self.entries {
            for part in ["path", "sha256", "size_bytes", "seq"] {
                let text = e[part].as_str().map_or(e[part].to_string(), str::to_owned);
                digest.update_lp(text.as_bytes());
            }
        }
        self.header["entries_sha256"] = Sha256Digest::of(text.as_bytes()).to_string().into();
        self.header["entries_digest"] = digest.finish().to_string().into();
        self.header["entry_count"] = self.entries.len().into();
        let sizes = self.entries.iter().map(|e| e["size_bytes"].as_u64().unwrap_or(0));
        self.header["total_bytes"] = sizes.fold(0, u64::wrapping_add).into();
    }

    pub fn signed_with(&self, key: &SecretKey) -> (Vec<u8>, Vec<u8>) {
        let header = serde_json::to_vec(&self.header).unwrap();
        let digest = Sha256Digest::of(&header).to_string();
        let sig = key.sign("barque-bundle-v2", &[digest.as_bytes()]).to_vec();
        (header, sig)
    }

    pub fn preamble(&self) -> Vec<Member> {
        let (header, mut sig) = self.signed_with(&self.key);
        if !self.is_signed {
            sig[0] ^= 1;
        }
        vec![
            member("manifest.json", &header),
            member("manifest.sig", &sig),
            member("entries.jsonl", self.text().as_bytes()),
        ]
    }

    pub fn build(&self) -> Vec<u8> {
        self.build_from(&self.preamble())
    }

    pub fn build_from(&self, preamble: &[Member]) -> Vec<u8> {
        let mut out = tar::Builder::new(Vec::new());
        for m in preamble.iter().chain(&self.files) {
            let pax = m.pax.iter().map(|(k, v)| (k.as_str(), v.as_bytes()));
            out.append_pax_extensions(pax).unwrap();
            let mut header = m.header.clone();
            let field = &mut header.as_old_mut().name;
            field.fill(0);
            field[..m.name.len()].copy_from_slice(m.name.as_bytes());
            header.set_cksum();
            out.append(&header, m.bytes.as_slice()).unwrap();
        }
        let mut bytes = out.into_inner().unwrap();
        bytes.extend_from_slice(&self.tail);
        bytes
    }
}

pub fn key_of(spoke: &Spoke) -> SecretKey {
    let text = fs::read(Path::new(&spoke.state()).join("identity.json")).unwrap();
    let identity: Value = serde_json::from_slice(&text).unwrap();
    identity["key"].as_str().unwrap().parse().unwrap()
}
