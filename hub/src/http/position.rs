//! How far an answer's state is: the header `Barque-Position` on each, and reads that want to see
//! what was agreed before them, or what their caller has seen already.
//!
//! A read is of this node's own state unless it says `?consistency=linearizable` (everything agreed
//! before the call is in it) or `?seen_position=N` (so is everything up to there).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use barque_bundle::ErrorKind;

use super::{Problem, ascii, body};
use crate::cluster::FRESH;
use crate::error::Refusal;
use crate::hub::Parts;

/// The manifest's position on the node that answered.
pub const POSITION: HeaderName = HeaderName::from_static("barque-position");
/// How long ago that node was up to date for sure, when that is long.
pub const STALE: HeaderName = HeaderName::from_static("barque-stale-ms");

/// How long a read waits for the state that it wants.
const WAIT: Duration = Duration::from_secs(5);

/// What a read wants to be in its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Wanted {
    linearizable: bool,
    seen: u64,
}

/// What a query says of it, and the query without that.
fn wanted(query: &str) -> Result<(Wanted, String), Refusal> {
    let mut wanted = Wanted::default();
    let mut rest = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("consistency", "linearizable")) => wanted.linearizable = true,
            Some(("consistency", "local")) => {}
            Some(("consistency", _)) => {
                let detail = "consistency is local (the default) or linearizable";
                return Err(Refusal::new(ErrorKind::Invalid, "query_malformed", detail));
            }
            Some(("seen_position", n)) => {
                let malformed = |_| {
                    let detail = "seen_position is a number, as Barque-Position told it";
                    Refusal::new(ErrorKind::Invalid, "query_malformed", detail)
                };
                wanted.seen = n.parse().map_err(malformed)?;
            }
            _ => rest.push(pair),
        }
    }
    Ok((wanted, rest.join("&")))
}

fn with_query(uri: &Uri, query: &str) -> Option<Uri> {
    let path = uri.path();
    if query.is_empty() { path.parse().ok() } else { format!("{path}?{query}").parse().ok() }
}

/// Lets a read wait for the state that it wants, and says of each answer how far its state is.
pub(super) async fn stamp(
    State(parts): State<Arc<Parts>>,
    mut request: Request,
    next: Next,
) -> Response {
    if let Err(refusal) = settle(&parts, &mut request).await {
        body::discard(request.into_body());
        return Problem::from(refusal).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if !headers.contains_key(POSITION) {
        headers.insert(POSITION, ascii(&parts.position.borrow().to_string()));
        let age = parts.cluster.age();
        if let Some(age) = age.filter(|age| *age > FRESH) {
            headers.insert(STALE, ascii(&age.as_millis().to_string()));
        }
    }
    response
}

async fn settle(parts: &Parts, request: &mut Request) -> Result<(), Refusal> {
    // Whoever watches the hub asks it to wait for nothing.
    if !request.uri().path().starts_with("/api/") {
        return Ok(());
    }
    let asks = |q: &&str| q.contains("consistency=") || q.contains("seen_position=");
    let Some(query) = request.uri().query().filter(asks) else { return Ok(()) };
    let (wanted, rest) = wanted(query)?;
    if let Some(uri) = with_query(request.uri(), &rest) {
        *request.uri_mut() = uri;
    }
    if wanted.linearizable {
        return parts.cluster.barrier(&parts.node, WAIT).await;
    }
    reach(parts, wanted.seen).await;
    Ok(())
}

/// Waits until this node has reached a position that a caller has seen. Without a leader, or where
/// that position never was, the caller gets this node's own state and judges by its position.
pub async fn reach(parts: &Parts, seen: u64) {
    if *parts.position.borrow() < seen {
        let _ = parts.cluster.barrier(&parts.node, WAIT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_read_wants_is_taken_out_of_its_query_and_nothing_else() {
        let of = |q: &str| wanted(q).map_err(|e| e.code);
        let lin = Wanted { linearizable: true, seen: 0 };
        assert_eq!(of("consistency=linearizable"), Ok((lin, String::new())));
        let seen = Wanted { linearizable: false, seen: 7 };
        assert_eq!(of("prefix=a&seen_position=7&limit=2"), Ok((seen, "prefix=a&limit=2".into())));
        assert_eq!(
            of("consistency=local&x=consistency"),
            Ok((Wanted::default(), "x=consistency".into()))
        );
        assert_eq!(of("consistency=strong"), Err("query_malformed"));
        assert_eq!(of("seen_position=x"), Err("query_malformed"));
        let uri: Uri = "/api/v1/files?a=1".parse().unwrap();
        assert_eq!(with_query(&uri, "").unwrap().to_string(), "/api/v1/files");
    }
}
