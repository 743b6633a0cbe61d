//! The kinds of failure, mapped once to HTTP and once to exit codes.

/// What sort of failure this is: decides the HTTP status, the exit code and whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The caller sent something malformed.
    Invalid,
    /// Nobody proved who is calling.
    Unauthenticated,
    /// The caller is known and may not do this.
    Forbidden,
    /// The thing named does not exist.
    NotFound,
    /// The thing exists with other content; a person has to act.
    Conflict,
    /// A token, cursor or deadline is past.
    Expired,
    /// Over a stated limit.
    TooLarge,
    /// Bytes or signatures do not match what was declared.
    Corrupt,
    /// Too much at once; come back later.
    Throttled,
    /// A fault of our own.
    Internal,
    /// Not now: starting, no leader, no network.
    Unavailable,
    /// A deadline passed after the request was made: it may have happened (invariant D4).
    Unknown,
    /// No space.
    Full,
}

impl ErrorKind {
    /// The HTTP status code (RFC 9110) that says this.
    pub fn http_status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::Expired => 410,
            Self::TooLarge => 413,
            Self::Corrupt => 422,
            Self::Throttled => 429,
            Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Unknown => 504,
            Self::Full => 507,
        }
    }

    /// The process exit code that says this; 75 means that trying again later is right.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Invalid | Self::NotFound | Self::TooLarge => 1,
            Self::Conflict => 4,
            Self::Corrupt => 5,
            Self::Unauthenticated | Self::Forbidden => 6,
            Self::Internal => 70,
            Self::Expired | Self::Throttled | Self::Unavailable | Self::Unknown | Self::Full => 75,
        }
    }

    /// The kind that an HTTP status stands for, for a client that reads an answer.
    pub fn from_http_status(status: u16) -> Self {
        match status {
            401 => Self::Unauthenticated,
            403 => Self::Forbidden,
            404 => Self::NotFound,
            409 => Self::Conflict,
            410 => Self::Expired,
            413 => Self::TooLarge,
            422 => Self::Corrupt,
            429 => Self::Throttled,
            502 | 503 => Self::Unavailable,
            504 => Self::Unknown,
            507 => Self::Full,
            400..=499 => Self::Invalid,
            _ => Self::Internal,
        }
    }
}

/// The whole chain of causes in one line, outermost first.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(e) = source {
        text.push_str(": ");
        text.push_str(&e.to_string());
        source = e.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [ErrorKind; 13] = [
        ErrorKind::Invalid,
        ErrorKind::Unauthenticated,
        ErrorKind::Forbidden,
        ErrorKind::NotFound,
        ErrorKind::Conflict,
        ErrorKind::Expired,
        ErrorKind::TooLarge,
        ErrorKind::Corrupt,
        ErrorKind::Throttled,
        ErrorKind::Internal,
        ErrorKind::Unavailable,
        ErrorKind::Unknown,
        ErrorKind::Full,
    ];

    #[test]
    fn every_kind_comes_back_from_its_status() {
        for kind in ALL {
            assert_eq!(ErrorKind::from_http_status(kind.http_status()), kind);
        }
    }
}
