//! Passes a public call on to the node that it is for, and its answer back: bodies are streamed both
//! ways, and nothing of where the other node is reaches the caller.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};
use axum::response::Response;
use barque_bundle::ErrorKind;
use barque_bundle::wire::Role;

use super::{Door, ascii};
use crate::cluster::door::FORWARD;
use crate::cluster::wire::{Call, Lane};
use crate::error::Refusal;
use crate::hub::Parts;

/// As what the caller was let in by the node that passes its call on.
pub(crate) const ROLE_HEADER: HeaderName = HeaderName::from_static("barque-role");

/// Headers of one connection only (RFC 9110, 7.6.1), and what is between nodes.
const OWN_TO_A_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HOST,
    HeaderName::from_static("keep-alive"),
];

/// Nothing of the call reached the other node.
pub(super) const UNREACHABLE: &str = "node_unreachable";

fn clean(headers: &mut HeaderMap) {
    for name in &OWN_TO_A_HOP {
        headers.remove(name);
    }
}

/// The answer of another node to a call; `role` is what its caller was found to be here, none for a
/// spoke, whose signature the other node judges itself.
pub(super) async fn to(
    parts: &Parts,
    node_id: u64,
    role: Option<Role>,
    request: Request,
) -> Result<Response, Refusal> {
    let (head, body) = request.into_parts();
    let mut headers = head.headers;
    clean(&mut headers);
    headers.remove(ROLE_HEADER);
    if let Some(role) = role {
        // Without a majority a holder cannot know whether this node still is one, and judges the
        // caller's token itself; it goes over no plain line, and for a read alone.
        let is_read = matches!(head.method, Method::GET | Method::HEAD);
        if !is_read || parts.config.cluster_plain || parts.cluster.require_fresh().is_ok() {
            headers.remove(header::AUTHORIZATION);
        }
        headers.insert(ROLE_HEADER, ascii(role.as_str()));
    }
    let path = head.uri.path_and_query().map_or("/", |p| p.as_str());
    // A URL's reader would make another path of these.
    let is_odd = |segment: &str| matches!(segment, "." | "..") || segment.contains('\\');
    if head.uri.path().split('/').any(is_odd) {
        let detail = "the path has segments that lead elsewhere";
        return Err(Refusal::new(ErrorKind::Invalid, "path_malformed", detail));
    }
    let is_read = matches!(head.method, Method::GET | Method::HEAD);
    let call = Call { method: head.method, path: format!("{FORWARD}{path}"), headers, body };
    let answer = parts.cluster.call(node_id, Lane::Work, call).await;
    let mut answer = answer.map_err(|e| {
        let node = parts.cluster.title(node_id);
        tracing::warn!(node, error = %e, "a call could not be passed on");
        if e.may_have_arrived && !is_read {
            let detail = format!("node {node} did not answer; a repeat changes nothing, try again");
            return Refusal::new(ErrorKind::Unknown, "node_silent", detail);
        }
        let detail = format!("node {node} cannot be reached at the moment; try again");
        Refusal::new(ErrorKind::Unavailable, UNREACHABLE, detail)
    })?;
    clean(answer.headers_mut());
    Ok(answer)
}

/// A call as it was sent, for when it turns out to be for another node.
pub(super) struct AsSent {
    pub door: Door,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

pub(super) fn head_of(request: &Request) -> AsSent {
    AsSent {
        door: request.extensions().get::<Door>().copied().unwrap_or(Door::Public),
        method: request.method().clone(),
        uri: request.uri().clone(),
        headers: request.headers().clone(),
    }
}

impl AsSent {
    pub(super) fn with_body(&self, body: Body) -> Request {
        let mut request = without_body(self.method.clone(), &self.uri, self.headers.clone());
        *request.body_mut() = body;
        request
    }
}

/// A call without a body to pass on, as another one asks for it.
pub(super) fn without_body(method: Method, uri: &Uri, headers: HeaderMap) -> Request {
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = headers;
    request
}

/// The answer of the first other node that knows what is asked for: one without a body, of which
/// only the node that it is of knows anything.
pub(super) async fn to_whoever_knows(
    parts: &Parts,
    role: Role,
    request: Request,
) -> Option<Response> {
    for node_id in parts.cluster.others().into_iter().filter(|id| parts.cluster.is_alive(*id)) {
        let (method, headers) = (request.method().clone(), request.headers().clone());
        let same = without_body(method, request.uri(), headers);
        if let Ok(answer) = to(parts, node_id, Some(role), same).await
            && answer.status() != StatusCode::NOT_FOUND
        {
            return Some(answer);
        }
    }
    None
}
