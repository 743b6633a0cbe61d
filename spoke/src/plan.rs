//! Decisions of a pass as pure functions: what a look at a file means, and what goes together.

use barque_bundle::{FilePath, Outcome, Sha256Digest};

use crate::ledger::FileRow;

/// Where a file stands with one hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    Pending,
    Exported,
    Synced,
    Conflict,
    Failed,
    Skipped,
    Removed,
    Modified,
    Dismissed,
}

impl State {
    pub const ALL: [Self; 9] = [
        Self::Pending,
        Self::Exported,
        Self::Synced,
        Self::Conflict,
        Self::Failed,
        Self::Skipped,
        Self::Removed,
        Self::Modified,
        Self::Dismissed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Exported => "exported",
            Self::Synced => "synced",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Removed => "removed",
            Self::Modified => "modified",
            Self::Dismissed => "dismissed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == text)
    }

    /// Whether a person has to act before the file moves on.
    pub fn needs_a_person(self) -> bool {
        matches!(self, Self::Conflict | Self::Failed | Self::Modified)
    }
}

/// What the ledger holds of a file, as far as a decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub state: State,
    pub sha256: Option<Sha256Digest>,
}

/// What a look at a settled file found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// A whole Parquet file with this digest.
    Whole(Sha256Digest),
    /// Not a whole Parquet file.
    Held,
}

/// What follows for the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Pending under the series' next number; an old number is void.
    Number,
    /// The same content: only its stat is new.
    Refresh,
    /// Changed after sync or export: for a person.
    Modify,
    /// Held back until it changes; an old number is void.
    Skip,
}

/// What a look at a new or changed file means for its row.
pub fn after_look(known: Option<Known>, look: Look) -> Step {
    let Some(known) = known else {
        return match look {
            Look::Whole(_) => Step::Number,
            Look::Held => Step::Skip,
        };
    };
    let is_same = matches!(look, Look::Whole(d) if known.sha256 == Some(d));
    match (known.state, look) {
        // Only a person moves these on.
        (State::Conflict | State::Failed | State::Modified | State::Dismissed, _) => Step::Refresh,
        (State::Synced | State::Exported | State::Pending, _) if is_same => Step::Refresh,
        (State::Removed, Look::Whole(_)) if is_same => Step::Refresh,
        (State::Synced | State::Exported, _) => Step::Modify,
        (_, Look::Whole(_)) => Step::Number,
        (_, Look::Held) => Step::Skip,
    }
}

/// The state that an outcome in a receipt leads to; none when the file stays pending.
pub fn after_outcome(outcome: Outcome) -> Option<State> {
    match outcome {
        Outcome::Registered | Outcome::AlreadyPresent => Some(State::Synced),
        Outcome::Conflict => Some(State::Conflict),
        Outcome::Removed => Some(State::Removed),
        Outcome::Refused => Some(State::Failed),
        Outcome::Mismatch | Outcome::Withdrawn => None,
    }
}

/// Most files and bytes of one bundle stream; one larger file goes alone.
pub const BUNDLE_FILES_MAX: usize = 1_000;
pub const BUNDLE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// What goes out in one piece of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load<T> {
    Bundle(Vec<T>),
    /// Alone and in pieces: it is large, or the hub has kept a part of it.
    Upload(T),
}

impl<T> Load<T> {
    pub fn into_items(self) -> Vec<T> {
        match self {
            Self::Bundle(items) => items,
            Self::Upload(item) => vec![item],
        }
    }
}

/// Cuts files, in the order given, into bundles of at most so many bytes (or one larger file) and
/// uploads.
pub fn pack<T>(
    items: Vec<T>,
    bytes_max: u64,
    weigh: impl Fn(&T) -> u64,
    is_upload: impl Fn(&T) -> bool,
) -> Vec<Load<T>> {
    let mut loads: Vec<Load<T>> = Vec::new();
    let mut bytes = 0u64;
    for item in items {
        if is_upload(&item) {
            loads.push(Load::Upload(item));
            continue;
        }
        let weight = weigh(&item);
        let fits =
            |b: &Vec<T>| b.len() < BUNDLE_FILES_MAX && bytes.saturating_add(weight) <= bytes_max;
        match loads.last_mut() {
            Some(Load::Bundle(bundle)) if fits(bundle) => {
                bytes += weight;
                bundle.push(item);
            }
            _ => {
                bytes = weight;
                loads.push(Load::Bundle(vec![item]));
            }
        }
    }
    loads
}

/// Bytes that a file takes in a stream, about: a tar header, for a long name two more with the
/// name, its entry in the list, padding.
pub fn member_bytes(path: &FilePath, size_bytes: u64) -> u64 {
    let name = path.as_str().len() as u64;
    let long = if name > 100 { 1_024 + name } else { 0 };
    size_bytes.saturating_add(1_300 + name + long)
}

/// Bytes that a file takes in an offer, about.
fn offer_bytes(row: &FileRow) -> u64 {
    240 + row.path.as_str().len() as u64
}

/// Cuts rows, in their order, into pages whose offers take at most so many bytes each.
pub fn pages(rows: &[FileRow], bytes_max: u64) -> Vec<&[FileRow]> {
    let (mut pages, mut start, mut bytes) = (Vec::new(), 0, 0u64);
    for (i, row) in rows.iter().enumerate() {
        let more = offer_bytes(row);
        if i > start && bytes.saturating_add(more) > bytes_max {
            pages.push(&rows[start..i]);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(more);
    }
    pages.push(&rows[start..]);
    pages
}

#[cfg(test)]
mod tests {
    use barque_bundle::{Entry, Timestamp};
    use proptest::prelude::*;

    use super::*;

    fn entry(i: usize, size_bytes: u64) -> Entry {
        Entry {
            path: format!("{i:05}.parquet").parse().unwrap(),
            sha256: Sha256Digest::of(b""),
            size_bytes,
            seq: i as u64 + 1,
            modified_at: Timestamp::from_unix_ms(0),
        }
    }

    #[test]
    fn every_state_answers_every_look_as_the_table_says() {
        let (a, b) = (Sha256Digest::of(b"a"), Sha256Digest::of(b"b"));
        let step = |state, look| after_look(Some(Known { state, sha256: Some(a) }), look);
        for state in State::ALL {
            let (same, other, held) = match state {
                State::Pending => (Step::Refresh, Step::Number, Step::Skip),
                State::Synced | State::Exported => (Step::Refresh, Step::Modify, Step::Modify),
                State::Skipped => (Step::Number, Step::Number, Step::Skip),
                State::Removed => (Step::Refresh, Step::Number, Step::Skip),
                _ => (Step::Refresh, Step::Refresh, Step::Refresh),
            };
            assert_eq!(step(state, Look::Whole(a)), same, "{state:?} same");
            assert_eq!(step(state, Look::Whole(b)), other, "{state:?} other");
            assert_eq!(step(state, Look::Held), held, "{state:?} held");
        }
        assert_eq!(after_look(None, Look::Whole(a)), Step::Number);
        assert_eq!(after_look(None, Look::Held), Step::Skip);
    }

    #[test]
    fn only_a_held_file_becomes_synced() {
        for outcome in Outcome::ALL {
            assert_eq!(after_outcome(outcome) == Some(State::Synced), outcome.is_held());
        }
    }

    proptest! {
        #[test]
        fn bundles_keep_order_and_limits(sizes in proptest::collection::vec(0u64..40_000_000, 0..3000)) {
            let entries: Vec<Entry> = sizes.iter().enumerate().map(|(i, s)| entry(i, *s)).collect();
            let weigh = |e: &Entry| member_bytes(&e.path, e.size_bytes);
            let loads = pack(entries.clone(), BUNDLE_BYTES_MAX, weigh, |e| e.size_bytes > 30_000_000);
            let mut all = Vec::new();
            for load in loads {
                match load {
                    Load::Upload(e) => {
                        prop_assert!(e.size_bytes > 30_000_000);
                        all.push(e);
                    }
                    Load::Bundle(b) => {
                        prop_assert!(b.len() <= BUNDLE_FILES_MAX);
                        prop_assert!(b.iter().map(|e| e.size_bytes).sum::<u64>() <= BUNDLE_BYTES_MAX);
                        all.extend(b);
                    }
                }
            }
            prop_assert_eq!(all, entries);
        }
    }
}
