//! Sets of sequence numbers as inclusive ranges.

use serde::{Deserialize, Serialize};

/// A set of numbers, kept as ascending, disjoint, non-adjacent inclusive ranges `[lo, hi]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// The set of the numbers, in any order, repeats allowed.
    pub fn from_numbers(mut numbers: Vec<u64>) -> Self {
        numbers.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for n in numbers {
            match ranges.last_mut() {
                Some((_, hi)) if n <= hi.saturating_add(1) => *hi = (*hi).max(n),
                _ => ranges.push((n, n)),
            }
        }
        Self(ranges)
    }

    /// The set that the ranges cover; a range whose ends are the wrong way round is dropped.
    pub fn from_ranges(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.retain(|(lo, hi)| lo <= hi);
        ranges.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (lo, hi) in ranges {
            match merged.last_mut() {
                Some((_, end)) if lo <= end.saturating_add(1) => *end = (*end).max(hi),
                _ => merged.push((lo, hi)),
            }
        }
        Self(merged)
    }

    pub fn as_slice(&self) -> &[(u64, u64)] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many numbers are in the set.
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0u64, |sum, (lo, hi)| sum.saturating_add((hi - lo).saturating_add(1)))
    }
}

impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<(u64, u64)>::deserialize(deserializer).map(Self::from_ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_and_overlaps_become_one_range() {
        assert_eq!(Ranges::from_numbers(vec![3, 1, 2, 7, 7]).as_slice(), [(1, 3), (7, 7)]);
        let r = Ranges::from_ranges(vec![(5, 9), (1, 4), (20, 10), (8, 12)]);
        assert_eq!(r.as_slice(), [(1, 12)]);
        assert_eq!(r.count(), 12);
    }

    #[test]
    fn the_whole_number_line_does_not_overflow() {
        assert_eq!(Ranges::from_ranges(vec![(0, u64::MAX), (3, 4)]).count(), u64::MAX);
    }
}
