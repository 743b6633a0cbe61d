//! Why a call has no answer that counts.

use std::time::Duration;

use barque_bundle::ErrorKind;
use barque_bundle::receipt::ReceiptError;
use barque_bundle::wire::Problem;

/// Why a call has no answer that counts.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the hub at {url} cannot be reached ({why})")]
    Unreachable { url: String, why: String },
    #[error("the connection to the hub at {url} broke off ({why})")]
    Broken { url: String, why: String },
    #[error(
        "what answers at {url} is not the hub that this spoke trusts (wrong root): another hub, or somebody in between"
    )]
    WrongRoot { url: String },
    #[error("{} ({})", .0.detail, .0.code)]
    Refused(Box<Problem>),
    #[error("{0}")]
    NotTheHub(Box<Stranger>),
    #[error("the hub's receipt does not count")]
    Receipt(#[from] ReceiptError),
    /// The caller's own deadline for the pass.
    #[error("the time for this pass is over")]
    TimeIsUp,
    #[error("identity.json trusts no root of hub {0}; enroll this spoke there again")]
    NotPinned(barque_bundle::HubId),
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
}

/// An answer that is not the hub's: something between it and this spoke spoke up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stranger {
    /// Where the call went, without its path.
    pub address: String,
    pub status: u16,
    /// As its header says, escaped.
    pub server: String,
    /// The first bytes of its body, escaped.
    pub start: String,
    /// What the call carried, about.
    pub body_bytes: u64,
}

impl Stranger {
    /// Whether a smaller body may get through: a refusal of this one, a redirect, or a page
    /// instead of an answer. A gateway that does not reach the hub says nothing about size.
    pub fn may_be_about_size(&self) -> bool {
        matches!(self.status, 200..=399 | 400 | 403 | 411 | 413)
    }
}

impl std::fmt::Display for Stranger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { address, status, server, start, body_bytes } = self;
        let server = if server.is_empty() { "none named" } else { server };
        write!(
            f,
            "something between this spoke and the hub at {address} answered {status} to a request \
             of {body_bytes} bytes (server: {server}; it starts \"{start}\")"
        )
    }
}

impl CallError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::NotTheHub(_)
            | Self::TimeIsUp => ErrorKind::Unavailable,
            Self::WrongRoot { .. } | Self::NotPinned(_) => ErrorKind::Unauthenticated,
            Self::Refused(p) => ErrorKind::from_http_status(p.status),
            Self::Receipt(e) => e.kind(),
            Self::Client(_) => ErrorKind::Internal,
        }
    }

    /// A stable word for the reason.
    pub fn code(&self) -> &str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Broken { .. } => "broken",
            Self::WrongRoot { .. } => "wrong_root",
            Self::Refused(p) => &p.code,
            Self::NotTheHub(_) => "not_the_hub",
            Self::Receipt(_) => "bad_receipt",
            Self::TimeIsUp => "max_duration",
            Self::NotPinned(_) => "not_pinned",
            Self::Client(_) => "client",
        }
    }

    /// How long the hub asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused(p) => p.retry_after_ms.map(Duration::from_millis),
            _ => None,
        }
    }
}

/// What answered is not the hub; the caller adds what its request carried.
pub(super) fn not_the_hub(address: &str, status: u16, server: &str, bytes: &[u8]) -> CallError {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).into_owned();
    CallError::NotTheHub(Box::new(Stranger {
        address: address.trim_end_matches('/').to_owned(),
        status,
        server: barque_bundle::path::printable(server),
        start: barque_bundle::path::printable(&start),
        body_bytes: 0,
    }))
}

/// The same failure, knowing what the call carried.
pub(super) fn carrying(e: CallError, body_bytes: u64) -> CallError {
    match e {
        CallError::NotTheHub(s) => CallError::NotTheHub(Box::new(Stranger { body_bytes, ..*s })),
        other => other,
    }
}
