//! Which kind of failure a call was, and how long to wait before the next one. Pure.

use std::time::Duration;

use crate::hub_client::CallError;

/// What a failure is about, and so what it may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The way to the hub: backoff, no attempt of any file is spent.
    Link,
    /// The hub has no space: bodies end, reconcile goes on.
    Space,
    /// The hub does not take this spoke, or something is wrong that waiting does not mend.
    Fatal,
}

/// The kind of a failed call.
pub fn classify(error: &CallError) -> Fault {
    match error {
        CallError::Unreachable { .. }
        | CallError::NotTheHub(_)
        | CallError::Broken { .. }
        | CallError::TimeIsUp => Fault::Link,
        CallError::Refused(p) => classify_status(p.status),
        CallError::Receipt(_)
        | CallError::WrongRoot { .. }
        | CallError::NotPinned(_)
        | CallError::Client(_) => Fault::Fatal,
    }
}

/// The kind of a refusal that came from the hub itself.
pub fn classify_status(status: u16) -> Fault {
    match status {
        429 | 500 | 502..=504 => Fault::Link,
        507 => Fault::Space,
        _ => Fault::Fatal,
    }
}

/// The kind of a bundle that failed. The hub refusing a stream as malformed may be one file's
/// bytes damaged on the way: it is tried again in parts.
pub fn classify_bundle(error: &CallError) -> Fault {
    match error {
        CallError::Refused(p) if matches!(p.status, 400 | 413 | 422) => Fault::Link,
        other => classify(other),
    }
}

/// The kind of an upload that failed. Answers that say where to go on, or to open it again, are no
/// more than a break.
pub fn classify_upload(error: &CallError) -> Fault {
    match error {
        CallError::Refused(p)
            if matches!(
                p.code.as_str(),
                "offset_mismatch" | "no_such_upload" | "bundle_id_in_use" | "too_many_uploads"
            ) =>
        {
            Fault::Link
        }
        other => classify_bundle(other),
    }
}

/// Whether the hub or the way to it is busy or down, which no bundle can be at fault for.
pub fn is_busy(error: &CallError) -> bool {
    match error {
        CallError::Unreachable { .. } => true,
        // One upload less is open when another file goes first.
        CallError::Refused(p) if p.code == "too_many_uploads" => false,
        CallError::Refused(p) => matches!(p.status, 429 | 502..=504),
        _ => false,
    }
}

/// Whether it is of the one node that answered, and another of the hub's may do better.
pub fn is_of_one_node(error: &CallError) -> bool {
    const CODES: [&str; 5] = ["starting", "not_fresh", "no_leader", "node_removed", "other_epoch"];
    matches!(error, CallError::Refused(problem) if CODES.contains(&problem.code.as_str()))
}

/// Whether the hub asks to stay away for longer than a pass waits.
pub fn asks_for_too_long(error: &CallError) -> bool {
    error.retry_after().is_some_and(|asked| asked > ASKED_MAX)
}

/// Link faults in a row that end a pass.
pub const IN_A_ROW_MAX: u32 = 4;
const BASE: Duration = Duration::from_millis(250);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// The longest `Retry-After` that is waited for; a longer one ends the pass.
pub const ASKED_MAX: Duration = Duration::from_secs(120);

/// The wait after the n-th link fault in a row (from 1): doubled each time up to 10 s, then
/// jittered down to as little as half. What the hub asks for is waited for, and up to a half more:
/// jitter comes last, so that many who were asked the same do not come back at once.
pub fn backoff(nth: u32, asked: Option<Duration>, random: u8) -> Duration {
    let part = f64::from(random) / 512.0;
    let doubled = BASE.saturating_mul(1 << nth.saturating_sub(1).min(16)).min(WAIT_MAX);
    let asked = asked.unwrap_or_default().min(ASKED_MAX);
    if asked >= doubled {
        asked.mul_f64(1.0 + part)
    } else {
        doubled.mul_f64(0.5 + part).max(asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_are_jittered_and_bounded() {
        assert_eq!(backoff(1, None, 0), Duration::from_millis(125));
        assert!(backoff(3, None, 255) > backoff(3, None, 0));
        assert!(backoff(3, None, 255) < Duration::from_secs(1));
        assert_eq!(backoff(1, Some(Duration::from_secs(3)), 0), Duration::from_secs(3));
        assert!(backoff(40, None, 255) < WAIT_MAX);
        let minute = Some(Duration::from_secs(60));
        assert_eq!(backoff(1, minute, 0), Duration::from_secs(60));
        let spread = backoff(1, minute, 255) - backoff(1, minute, 0);
        assert!(spread > Duration::from_secs(29), "{spread:?}");
    }

    #[test]
    fn a_full_hub_is_not_a_broken_link() {
        assert_eq!(classify_status(507), Fault::Space);
        assert_eq!(classify_status(503), Fault::Link);
        assert_eq!(classify_status(401), Fault::Fatal);
    }
}
