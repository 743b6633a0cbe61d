//! Which bytes of a file a request asks for (RFC 9110, sections 13 and 14).

use std::ops::Range;

use axum::http::{HeaderMap, header};

/// What a conditional or range request comes down to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    Whole,
    Part(Range<u64>),
    /// The client has it already.
    NotModified,
    /// No byte of the range is in the file.
    Unsatisfiable,
}

/// Judges `If-None-Match`, `If-Range` and a single `Range` against a file's strong ETag and size.
///
/// Several ranges at once, other units and malformed ones are passed over, as the RFC allows.
pub fn wanted(headers: &HeaderMap, etag: &str, size: u64) -> Wanted {
    let text = |name| headers.get(name).and_then(|v| v.to_str().ok());
    if let Some(tags) = text(header::IF_NONE_MATCH) {
        let matches = |t: &str| t.trim() == "*" || t.trim().trim_start_matches("W/") == etag;
        if tags.split(',').any(matches) {
            return Wanted::NotModified;
        }
    }
    if text(header::IF_RANGE).is_some_and(|tag| tag.trim() != etag) {
        return Wanted::Whole;
    }
    let spec = text(header::RANGE).and_then(|r| r.trim().strip_prefix("bytes="));
    match spec.and_then(|s| s.trim().split_once('-')) {
        Some((_, last)) if last.contains(',') => Wanted::Whole,
        Some(("", last)) => last.parse().map_or(Wanted::Whole, |n| suffix(n, size)),
        Some((first, "")) => first.parse().map_or(Wanted::Whole, |f| part(f, u64::MAX, size)),
        Some((first, last)) => match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => part(first, last, size),
            _ => Wanted::Whole,
        },
        None => Wanted::Whole,
    }
}

fn part(first: u64, last: u64, size: u64) -> Wanted {
    if first >= size {
        return Wanted::Unsatisfiable;
    }
    Wanted::Part(first..last.saturating_add(1).min(size))
}

fn suffix(n: u64, size: u64) -> Wanted {
    if n == 0 || size == 0 {
        return Wanted::Unsatisfiable;
    }
    Wanted::Part(size.saturating_sub(n)..size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(pairs: &[(header::HeaderName, &str)]) -> Wanted {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(name, value.parse().unwrap());
        }
        wanted(&headers, "\"e\"", 10)
    }

    #[test]
    fn ranges_are_cut_to_the_file_and_odd_ones_passed_over() {
        let range = |r: &str| asked(&[(header::RANGE, r)]);
        assert_eq!(range("bytes=0-3"), Wanted::Part(0..4));
        assert_eq!(range("bytes=4-"), Wanted::Part(4..10));
        assert_eq!(range("bytes=-3"), Wanted::Part(7..10));
        assert_eq!(range("bytes=-30"), Wanted::Part(0..10));
        assert_eq!(range("bytes=8-99"), Wanted::Part(8..10));
        assert_eq!(range("bytes=10-"), Wanted::Unsatisfiable);
        assert_eq!(range("bytes=-0"), Wanted::Unsatisfiable);
        for odd in ["bytes=3-1", "bytes=a-b", "bytes=0-1,3-4", "rows=0-1", "bytes=", "bytes"] {
            assert_eq!(range(odd), Wanted::Whole, "{odd}");
        }
    }

    #[test]
    fn a_client_that_has_the_file_gets_nothing_and_one_with_another_gets_all() {
        assert_eq!(asked(&[(header::IF_NONE_MATCH, "\"x\", \"e\"")]), Wanted::NotModified);
        assert_eq!(asked(&[(header::IF_NONE_MATCH, "\"x\"")]), Wanted::Whole);
        let both = |tag| asked(&[(header::RANGE, "bytes=1-1"), (header::IF_RANGE, tag)]);
        assert_eq!(both("\"e\""), Wanted::Part(1..2));
        assert_eq!(both("\"x\""), Wanted::Whole);
    }
}
