//! Mutual TLS between nodes: each shows a certificate that the hub's root signed for its key.
//!
//! A node's certificate names its id and is made anew at each start; it has no end, since whether a
//! node counts is what the manifest says, and nothing between nodes depends on a clock.

use std::sync::Arc;

use barque_bundle::{PublicKey, SecretKey};
use rcgen::{
    CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ED25519,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, Der, PrivateKeyDer, PrivatePkcs8KeyDer, TrustAnchor};
use rustls::server::WebPkiClientVerifier;

use crate::error::Error;

const ROOT_NAME: &str = "Barque cluster root";
const DOMAIN: &str = ".node.barque";
/// DER of an Ed25519 SubjectPublicKeyInfo without its outer header, before the 32 bytes of key
/// (RFC 8410).
const ED25519_SPKI_PREFIX: [u8; 10] = [0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

fn tls(e: impl std::fmt::Display) -> Error {
    Error::Tls(e.to_string())
}

/// The name that a node's certificate is for.
pub fn name_of(node_id: u64) -> String {
    format!("{node_id:016x}{DOMAIN}")
}

/// The node that a name is of.
pub fn node_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(DOMAIN)?, 16).ok()
}

/// A key pair for TLS of one of our own.
fn key_pair(key: &SecretKey) -> Result<KeyPair, Error> {
    let der = PrivatePkcs8KeyDer::from(key.to_pkcs8());
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519).map_err(tls)
}

/// A node's certificate and its key.
pub struct Credentials {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Credentials {
    pub fn issue(root: &SecretKey, node: &SecretKey, node_id: u64) -> Result<Self, Error> {
        let mut authority = CertificateParams::default();
        authority.distinguished_name.remove(DnType::CommonName);
        authority.distinguished_name.push(DnType::CommonName, ROOT_NAME);
        let issuer = Issuer::new(authority, key_pair(root)?);
        let mut params = CertificateParams::new(vec![name_of(node_id)]).map_err(tls)?;
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, "Barque node");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(1975, 1, 1);
        params.not_after = rcgen::date_time_ymd(4096, 1, 1);
        let certificate = params.signed_by(&key_pair(node)?, &issuer).map_err(tls)?;
        let key = PrivatePkcs8KeyDer::from(node.to_pkcs8()).into();
        Ok(Self { certificate: certificate.der().clone(), key })
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }
}

/// The one root that nodes of a hub trust.
fn roots(root: &PublicKey) -> Arc<RootCertStore> {
    let text = ROOT_NAME.as_bytes();
    let len = |n: usize| u8::try_from(n).unwrap_or(u8::MAX);
    let mut attribute = vec![6, 3, 0x55, 4, 3, 0x0c, len(text.len())];
    attribute.extend_from_slice(text);
    let mut subject = vec![0x31, len(attribute.len() + 2), 0x30, len(attribute.len())];
    subject.extend(attribute);
    let spki = [&ED25519_SPKI_PREFIX[..], root.as_bytes()].concat();
    let anchor = TrustAnchor {
        subject: Der::from(subject),
        subject_public_key_info: Der::from(spki),
        name_constraints: None,
    };
    Arc::new(RootCertStore { roots: vec![anchor] })
}

/// For the cluster listener. A caller without a certificate gets in too, and no further than to
/// where a node joins; one with a certificate of another root does not.
pub fn server(root: &PublicKey, own: &Credentials) -> Result<Arc<rustls::ServerConfig>, Error> {
    let verifier =
        WebPkiClientVerifier::builder(roots(root)).allow_unauthenticated().build().map_err(tls)?;
    let mut config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(own.chain(), own.key.clone_key())
        .map_err(tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// For calls to other nodes; without credentials for one that is about to join.
pub fn client(root: &PublicKey, own: Option<&Credentials>) -> Result<rustls::ClientConfig, Error> {
    let builder = rustls::ClientConfig::builder().with_root_certificates(roots(root));
    match own {
        Some(own) => builder.with_client_auth_cert(own.chain(), own.key.clone_key()).map_err(tls),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The node that a verified certificate is of, and its key.
pub fn peer(certificate: &CertificateDer<'_>) -> Option<(u64, PublicKey)> {
    let leaf = webpki::EndEntityCert::try_from(certificate).ok()?;
    let node_id = leaf.valid_dns_names().find_map(node_of)?;
    let spki = leaf.subject_public_key_info();
    // With its outer header here.
    let key = spki.get(2..)?.strip_prefix(&ED25519_SPKI_PREFIX)?;
    Some((node_id, PublicKey::from_bytes(key).ok()?))
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;

    use super::*;

    fn shake(
        client: rustls::ClientConfig,
        server: Arc<rustls::ServerConfig>,
        name: String,
    ) -> Result<Option<(u64, PublicKey)>, rustls::Error> {
        let name = ServerName::try_from(name).unwrap();
        let mut near = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let mut far = rustls::ServerConnection::new(server).unwrap();
        while near.is_handshaking() || far.is_handshaking() {
            let mut bytes = Vec::new();
            near.write_tls(&mut bytes).unwrap();
            far.read_tls(&mut bytes.as_slice()).unwrap();
            far.process_new_packets()?;
            let mut bytes = Vec::new();
            far.write_tls(&mut bytes).unwrap();
            near.read_tls(&mut bytes.as_slice()).unwrap();
            near.process_new_packets()?;
        }
        Ok(far.peer_certificates().and_then(|c| peer(&c[0])))
    }

    #[test]
    fn nodes_of_one_root_know_each_other_and_nobody_else() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let key = |n| SecretKey::from_seed([n; 32]);
        let (root, a, b) = (key(1), key(2), key(3));
        let own = Credentials::issue(&root, &a, 0xab).unwrap();
        let other = Credentials::issue(&root, &b, 0xcd).unwrap();
        let listening = server(&root.public(), &own).unwrap();
        let calling = || client(&root.public(), Some(&other)).unwrap();
        let met = shake(calling(), Arc::clone(&listening), name_of(0xab)).unwrap().unwrap();
        assert_eq!(met, (0xcd, b.public()));
        // Another node than the one that was meant.
        assert!(shake(calling(), Arc::clone(&listening), name_of(0xac)).is_err());
        // One that is about to join shows nothing.
        let joining = client(&root.public(), None).unwrap();
        assert_eq!(shake(joining, Arc::clone(&listening), name_of(0xab)).unwrap(), None);
        let stranger = Credentials::issue(&key(9), &b, 0xcd).unwrap();
        let posing = client(&root.public(), Some(&stranger)).unwrap();
        assert!(shake(posing, Arc::clone(&listening), name_of(0xab)).is_err());
        assert!(shake(client(&key(9).public(), None).unwrap(), listening, name_of(0xab)).is_err());
    }
}
