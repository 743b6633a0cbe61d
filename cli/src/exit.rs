//! Exit codes: 0 nothing needs a person, 3 a file does, 7 another pass runs, 75 try again later.

use barque_bundle::ErrorKind;
use barque_bundle::open::OpenError;
use barque_hub::client::ClientError;

pub const OK: u8 = 0;
pub const FAILED: u8 = 1;
pub const USAGE: u8 = 2;
pub const NEEDS_A_PERSON: u8 = barque_spoke::push::NEEDS_A_PERSON;
pub const ALREADY_RUNNING: u8 = 7;
pub const INTERNAL: u8 = 70;
pub const TRY_LATER: u8 = 75;
pub const INTERRUPTED: u8 = 130;

/// The exit code that an error stands for, by the kind it carries.
pub fn code_of(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(barque_spoke::Error::AlreadyRunning { .. }) = cause.downcast_ref() {
            return ALREADY_RUNNING;
        }
        if let Some(e) = cause.downcast_ref::<barque_spoke::Error>() {
            return e.kind().exit_code();
        }
        if let Some(e) = cause.downcast_ref::<OpenError>() {
            return e.kind().exit_code();
        }
        if let Some(e) = cause.downcast_ref::<barque_hub::Error>() {
            return e.kind().exit_code();
        }
        if let Some(e) = cause.downcast_ref::<ClientError>() {
            return e.kind().exit_code();
        }
        if let Some(e) = cause.downcast_ref::<std::io::Error>()
            && barque_bundle::platform::is_full(e)
        {
            return ErrorKind::Full.exit_code();
        }
    }
    FAILED
}

/// The stable word of an error, where it has one.
pub fn word_of(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| {
        if let Some(e) = cause.downcast_ref::<OpenError>() {
            return Some(e.code());
        }
        match cause.downcast_ref::<ClientError>() {
            Some(ClientError::Refused(problem)) => Some(problem.code.as_str()),
            _ => None,
        }
    })
}
