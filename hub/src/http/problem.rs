//! Errors as RFC 9457 `application/problem+json`, mapped once from [`Refusal`].

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use barque_bundle::{ErrorKind, wire};

use super::{ascii, body};
use crate::error::{Error, Refusal};

/// An error on its way to a client; faults of our own are logged here, once, with their causes.
pub struct Problem(pub Error);

impl<E: Into<Error>> From<E> for Problem {
    fn from(e: E) -> Self {
        Self(e.into())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if !matches!(self.0, Error::Refused(_)) {
            tracing::error!(error = %self.0.told(), "a request met a fault");
        }
        respond(&self.0.to_refusal())
    }
}

pub fn respond(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.kind.http_status())
        .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = wire::Problem {
        title: status.canonical_reason().unwrap_or("Error").to_owned(),
        status: status.as_u16(),
        code: refusal.code.to_owned(),
        detail: refusal.detail.to_string(),
        hub_time: refusal.hub_time,
        max_entries: refusal.max_entries.and_then(|n| usize::try_from(n).ok()),
        limit_bytes: refusal.limit_bytes,
        retry_after_ms: refusal.retry_after_ms,
        upload_offset: refusal.upload_offset,
        import: refusal.import.clone(),
    };
    let json = serde_json::to_vec(&body).unwrap_or_default();
    let mut response = (status, json).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, ascii("application/problem+json"));
    if let Some(offset) = refusal.upload_offset {
        headers.insert(wire::UPLOAD_OFFSET, ascii(&offset.to_string()));
    }
    if let Some(ms) = refusal.retry_after_ms {
        headers.insert(header::RETRY_AFTER, ascii(&ms.div_ceil(1000).max(1).to_string()));
    }
    response
}

pub async fn not_found(request: Request) -> Response {
    let path = barque_bundle::path::printable(request.uri().path());
    let detail = format!("there is nothing at {path}");
    body::discard(request.into_body());
    respond(&Refusal::new(ErrorKind::NotFound, "no_such_route", detail))
}

pub async fn method_not_allowed(request: Request) -> Response {
    body::discard(request.into_body());
    let refusal =
        Refusal::new(ErrorKind::Invalid, "method_not_allowed", "this address takes other methods");
    let mut response = respond(&refusal);
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
