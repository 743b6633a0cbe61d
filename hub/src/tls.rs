//! The hub's TLS: root (Ed25519, the hub's own key) signs a CA (P-256), the CA a server certificate.
//!
//! `tls/ca.pem` holds CA and root for clients such as curl; a spoke pins the root's public key.
//! The server certificate lives 90 days and is renewed by `serve` while 30 are left.

use std::path::Path;
use std::sync::Arc;

use barque_bundle::{SecretKey, Sha256Digest, Timestamp, platform};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ED25519,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use crate::error::Error;

const DAY_MS: i64 = 86_400_000;
const CA_DAYS: i64 = 20 * 365;
const SERVER_DAYS: i64 = 90;
const RENEW_DAYS: i64 = 30;

fn tls(e: impl std::fmt::Display) -> Error {
    Error::Tls(e.to_string())
}

fn root_key(root: &SecretKey) -> Result<KeyPair, Error> {
    let der = PrivatePkcs8KeyDer::from(root.to_pkcs8());
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519).map_err(tls)
}

/// The same parameters give the same issuer name, so nothing but keys has to be kept.
fn authority(name: &str, path_len: u8, now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(path_len));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = now.plus_ms(-DAY_MS).to_datetime();
    params.not_after = now.plus_ms(CA_DAYS * DAY_MS).to_datetime();
    params
}

const ROOT_NAME: &str = "Barque hub root";
const CA_NAME: &str = "Barque hub CA";

/// Makes `root.pem`, `ca.pem` (CA, then root) and `ca.key` in a new folder.
pub fn create(folder: &Path, root: &SecretKey, now: Timestamp) -> Result<(), Error> {
    make_folder(folder)?;
    let root_key = root_key(root)?;
    let root_params = authority(ROOT_NAME, 1, now);
    let root_cert = root_params.self_signed(&root_key).map_err(tls)?;
    let ca_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(tls)?;
    let issuer = Issuer::new(root_params, root_key);
    let mut ca_params = authority(CA_NAME, 0, now);
    ca_params.use_authority_key_identifier_extension = true;
    let ca_cert = ca_params.signed_by(&ca_key, &issuer).map_err(tls)?;
    write(folder, "ca.key", &ca_key.serialize_pem(), 0o600)?;
    write(folder, "ca.pem", &format!("{}{}", ca_cert.pem(), root_cert.pem()), 0o644)
}

/// The authority's certificates and its key, for another node of the same hub.
pub fn authority_files(folder: &Path) -> Result<(String, String), Error> {
    Ok((read(folder, "ca.pem")?, read(folder, "ca.key")?))
}

/// Takes over the authority of a hub that this node joins.
pub fn adopt(folder: &Path, ca_pem: &str, ca_key: &str) -> Result<(), Error> {
    make_folder(folder)?;
    write(folder, "ca.key", ca_key, 0o600)?;
    write(folder, "ca.pem", ca_pem, 0o644)
}

fn make_folder(folder: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt as _;
    platform::create_folders_durably(folder, 0o711)
        .and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)))
        .map_err(Error::io("cannot make the folder", folder))
}

fn write(folder: &Path, name: &str, text: &str, mode: u32) -> Result<(), Error> {
    let path = folder.join(name);
    platform::write_durably(&path, text.as_bytes(), mode).map_err(Error::io("cannot write", &path))
}

fn read(folder: &Path, name: &str) -> Result<String, Error> {
    let path = folder.join(name);
    std::fs::read_to_string(&path).map_err(Error::io("cannot read", &path))
}

/// What the server certificate at hand is good for.
#[derive(Serialize, Deserialize)]
struct Issued {
    names: Vec<String>,
    not_after: Timestamp,
    /// Of `server.pem` as it was issued; another one there is somebody's own.
    #[serde(default)]
    sha256: Option<Sha256Digest>,
}

impl Issued {
    /// What was issued here, as long as it is what lies there.
    fn read(folder: &Path) -> Option<Self> {
        let issued: Self = serde_json::from_str(&read(folder, "server.json").ok()?).ok()?;
        let there = Sha256Digest::of(read(folder, "server.pem").ok()?.as_bytes());
        issued.sha256.is_none_or(|own| own == there).then_some(issued)
    }
}

/// The server's TLS configuration; its certificate is made or renewed first when it is due.
pub fn server_config(
    folder: &Path,
    names: &[String],
    now: Timestamp,
) -> Result<Arc<rustls::ServerConfig>, Error> {
    let is_good = |i: Issued| i.names == names && i.not_after.since_ms(now) > RENEW_DAYS * DAY_MS;
    let is_due = match Issued::read(folder) {
        Some(issued) => !is_good(issued),
        // A pair of somebody's own is served as it is, and renewed by whoever put it there.
        None => !(folder.join("server.json").exists() && folder.join("server.pem").exists()),
    };
    if is_due {
        issue(folder, names, now)?;
    }
    let chain = read(folder, "server.pem")?;
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(chain.as_bytes()).collect::<Result<_, _>>().map_err(tls)?;
    let key = PrivateKeyDer::from_pem_slice(read(folder, "server.key")?.as_bytes()).map_err(tls)?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// What tells one pair of certificate and key on disk from another; nothing when one is missing.
pub fn fingerprint(folder: &Path) -> Vec<u8> {
    let hash = |name: &str| Sha256Digest::of(&std::fs::read(folder.join(name)).unwrap_or_default());
    ["server.pem", "server.key"].iter().flat_map(|n| *hash(n).as_bytes()).collect()
}

/// When the server certificate that was issued here ends; none when there is none, or another one.
pub fn not_after(folder: &Path) -> Option<Timestamp> {
    Issued::read(folder).map(|i| i.not_after)
}

fn issue(folder: &Path, names: &[String], now: Timestamp) -> Result<(), Error> {
    let ca_pem = read(folder, "ca.pem")?;
    let ca_key = KeyPair::from_pem(&read(folder, "ca.key")?).map_err(tls)?;
    let issuer = Issuer::new(authority(CA_NAME, 0, now), ca_key);
    let mut params = CertificateParams::new(names.to_vec()).map_err(tls)?;
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, "Barque hub");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let not_after = now.plus_ms(SERVER_DAYS * DAY_MS);
    params.not_before = now.plus_ms(-DAY_MS).to_datetime();
    params.not_after = not_after.to_datetime();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(tls)?;
    let cert = params.signed_by(&key, &issuer).map_err(tls)?;
    let chain = format!("{}{ca_pem}", cert.pem());
    // A crash from here on leaves no record, so that it is issued again.
    match std::fs::remove_file(folder.join("server.json")) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io("cannot remove", folder.join("server.json"))(e));
        }
        _ => {}
    }
    write(folder, "server.key", &key.serialize_pem(), 0o600)?;
    write(folder, "server.pem", &chain, 0o600)?;
    let sha256 = Some(Sha256Digest::of(chain.as_bytes()));
    let issued = Issued { names: names.to_vec(), not_after, sha256 };
    let json = serde_json::to_string(&issued).map_err(|e| Error::Malformed(e.to_string()))?;
    // Last, so that a crash in between issues again.
    write(folder, "server.json", &json, 0o600)
}

/// The names a certificate carries: localhost in three forms, the host, and the public one.
pub fn server_names(host_name: &str, url: Option<&str>) -> Vec<String> {
    let mut names: Vec<String> =
        ["localhost", "127.0.0.1", "::1", host_name].map(str::to_owned).to_vec();
    names.extend(url.and_then(host_of).map(str::to_owned));
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|n| !n.is_empty() && seen.insert(n.clone()));
    names
}

/// The host of a URL such as `https://hub.example:7171` or `https://[::1]:7171`.
fn host_of(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split('/').next()?;
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next(),
        None => authority.split(':').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_localhost_the_host_and_the_url_once() {
        assert_eq!(
            server_names("box", Some("https://hub.example:7171/x")),
            ["localhost", "127.0.0.1", "::1", "box", "hub.example"]
        );
        assert_eq!(server_names("box", Some("https://[fe80::2]:1")).last().unwrap(), "fe80::2");
        assert_eq!(server_names("localhost", None).len(), 3);
    }

    #[test]
    fn a_certificate_is_kept_until_its_names_or_its_time_change() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        create(dir.path(), &SecretKey::from_seed([1; 32]), now).unwrap();
        let cert = || std::fs::read(dir.path().join("server.pem")).unwrap();
        let names = server_names("box", None);
        server_config(dir.path(), &names, now).unwrap();
        let first = cert();
        server_config(dir.path(), &names, now.plus_ms(59 * DAY_MS)).unwrap();
        assert_eq!(cert(), first);
        server_config(dir.path(), &names, now.plus_ms(61 * DAY_MS)).unwrap();
        let renewed = cert();
        assert_ne!(renewed, first);
        server_config(dir.path(), &server_names("other", None), now.plus_ms(61 * DAY_MS)).unwrap();
        assert_ne!(cert(), renewed);
    }
}
