//! TLS that trusts a hub's pinned root and nothing else, judged by hub time.
//!
//! `serve` sends leaf, CA and root; a chain counts when its root's Ed25519 public key is pinned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use barque_bundle::{PublicKey, Sha256Digest, Timestamp};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Which roots are trusted.
#[derive(Clone, Debug)]
pub enum Roots {
    Keys(Vec<PublicKey>),
    /// SHA-256 of the root's public key, as an enrollment token carries it.
    Fingerprint(Sha256Digest),
}

impl Roots {
    fn trusts(&self, key: &[u8]) -> bool {
        match self {
            Self::Keys(keys) => keys.iter().any(|k| k.as_bytes() == key),
            Self::Fingerprint(f) => Sha256Digest::of(key) == *f,
        }
    }
}

/// Certificates of a hub's chain: server, authority, root.
const CHAIN_MAX: usize = 3;

/// A verifier of server certificates by pinned root.
#[derive(Debug)]
pub struct PinnedRoot {
    roots: Roots,
    provider: Arc<CryptoProvider>,
    times: Arc<Times>,
    /// Set when a server's chain did not lead to a trusted root.
    saw_wrong_root: Arc<AtomicBool>,
}

/// DER of an Ed25519 SubjectPublicKeyInfo before its 32 bytes of key (RFC 8410).
const ED25519_SPKI_PREFIX: [u8; 10] = [0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

impl PinnedRoot {
    fn trusted_store(&self, chain: &[CertificateDer<'_>]) -> Option<RootCertStore> {
        chain.iter().find_map(|certificate| {
            let mut store = RootCertStore::empty();
            store.add(certificate.clone().into_owned()).ok()?;
            let spki = store.roots.first()?.subject_public_key_info.to_vec();
            let key = spki.strip_prefix(&ED25519_SPKI_PREFIX)?;
            self.roots.trusts(key).then_some(store)
        })
    }
}

/// What is known of the hub's time. A wrong local clock never decides: a chain to the pinned root
/// counts when it is valid by any of these, or becomes valid later than the last time that the hub
/// signed. That time is past for sure, so what ended before it has ended; but a spoke that was away
/// for long, with a clock that starts anew at each boot, knows of no upper bound.
#[derive(Debug)]
pub struct Times {
    /// Hub time minus local time, as last learned from a signed answer.
    offset_ms: AtomicI64,
    /// The latest time that the hub signed.
    signed_ms: AtomicI64,
}

impl Times {
    pub fn new(offset_ms: i64, signed: Option<Timestamp>) -> Self {
        let signed_ms = signed.map_or(0, Timestamp::unix_ms);
        Self { offset_ms: AtomicI64::new(offset_ms), signed_ms: AtomicI64::new(signed_ms) }
    }

    pub fn offset_ms(&self) -> i64 {
        self.offset_ms.load(Ordering::Relaxed)
    }

    pub fn learn(&self, hub_time: Timestamp, local: Timestamp) {
        self.offset_ms.store(hub_time.since_ms(local), Ordering::Relaxed);
        self.signed_ms.store(hub_time.unix_ms(), Ordering::Relaxed);
    }

    fn candidates(&self, local: UnixTime) -> [UnixTime; 3] {
        let at = |s: u64| UnixTime::since_unix_epoch(Duration::from_secs(s));
        let signed = self.signed_ms.load(Ordering::Relaxed) / 1000;
        [
            at(local.as_secs().saturating_add_signed(self.offset_ms() / 1000)),
            local,
            at(u64::try_from(signed).unwrap_or(0)),
        ]
    }
}

impl ServerCertVerifier for PinnedRoot {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(store) = self.trusted_store(intermediates) else {
            self.saw_wrong_root.store(true, Ordering::Relaxed);
            return Err(CertificateError::UnknownIssuer.into());
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(
            Arc::new(store),
            Arc::clone(&self.provider),
        )
        .build()
        .map_err(|e| rustls::Error::General(e.to_string()))?;
        let verify_at = |time| {
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, time)
        };
        let mut verdict = Err(CertificateError::Expired.into());
        for time in self.times.candidates(now) {
            verdict = verify_at(time);
            if verdict.is_ok() {
                return verdict;
            }
        }
        // The last candidate was the time that the hub signed. Each certificate of the chain may
        // begin later than that.
        for _ in 0..CHAIN_MAX {
            let Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext {
                not_before,
                ..
            })) = verdict
            else {
                break;
            };
            verdict = verify_at(not_before);
        }
        verdict
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The local time for TLS. A clock before 1970 reads as 1970: it decides nothing, and must not end
/// the process as rustls' own would.
#[derive(Debug)]
struct Local;

impl rustls::time_provider::TimeProvider for Local {
    fn current_time(&self) -> Option<UnixTime> {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Some(UnixTime::since_unix_epoch(now.unwrap_or_default()))
    }
}

/// A client's TLS configuration, with the handles to steer and question its verifier.
pub struct PinnedTls {
    pub config: rustls::ClientConfig,
    pub times: Arc<Times>,
    pub saw_wrong_root: Arc<AtomicBool>,
}

impl PinnedTls {
    pub fn new(roots: Roots, times: Arc<Times>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let saw_wrong_root = Arc::new(AtomicBool::new(false));
        let verifier = PinnedRoot {
            roots,
            provider: Arc::clone(&provider),
            times: Arc::clone(&times),
            saw_wrong_root: Arc::clone(&saw_wrong_root),
        };
        let mut config = rustls::ClientConfig::builder_with_details(provider, Arc::new(Local))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Self { config, times, saw_wrong_root }
    }
}
