//! Calls a hub from its own process, without a network: for whoever embeds it, and for tests with
//! many nodes in one process.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use barque_bundle::platform;
use bytes::Bytes;
use tower::ServiceExt as _;

use super::{Door, PeerUid, router};
use crate::cluster::door;
use crate::cluster::wire::Call;
use crate::hub::Parts;

/// Largest answer that is read whole.
const ANSWER_MAX_BYTES: usize = 1 << 30;

/// A way into a hub; clones lead to the same one.
#[derive(Clone)]
pub struct Front {
    router: Router,
    /// Who calls by `hub.sock`.
    is_operator: bool,
}

/// What a hub answered.
#[derive(Clone, Debug)]
pub struct Said {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Front {
    /// As spokes and readers come in.
    pub(crate) fn public(parts: &Arc<Parts>) -> Self {
        Self { router: router(Arc::clone(parts), Door::Public), is_operator: false }
    }

    /// As the user that runs the hub comes in: an admin.
    pub(crate) fn operator(parts: &Arc<Parts>) -> Self {
        Self { router: router(Arc::clone(parts), Door::Socket), is_operator: true }
    }

    /// As other nodes come in.
    pub(crate) fn nodes(parts: &Arc<Parts>) -> Self {
        let public = router(Arc::clone(parts), Door::Node);
        Self { router: door::router(Arc::clone(parts), public), is_operator: false }
    }

    pub(crate) fn into_router(self) -> Router {
        self.router
    }

    /// The answer to a call of another node, as it comes.
    pub async fn answer(&self, call: Call) -> Response<Body> {
        let mut request = Request::new(call.body);
        *request.method_mut() = call.method;
        *request.headers_mut() = call.headers;
        let Ok(uri) = call.path.parse() else {
            let mut malformed = Response::new(Body::empty());
            *malformed.status_mut() = StatusCode::BAD_REQUEST;
            return malformed;
        };
        *request.uri_mut() = uri;
        if self.is_operator {
            request.extensions_mut().insert(ConnectInfo(PeerUid(Some(platform::effective_uid()))));
        }
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// The whole answer to a call with this body; none when it broke off.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Option<Said> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            map.insert(name, HeaderValue::from_str(value).ok()?);
        }
        let method = Method::from_bytes(method.as_bytes()).ok()?;
        let body = Body::from(body.into());
        let answer = self.answer(Call { method, path: path.to_owned(), headers: map, body }).await;
        let (head, body) = answer.into_parts();
        let body = axum::body::to_bytes(body, ANSWER_MAX_BYTES).await.ok()?;
        Some(Said { status: head.status.as_u16(), headers: head.headers, body })
    }
}
