//! What surrounds every request: its span, its trace context, its count, and a net under its handler.

use std::{
    any::Any,
    borrow::Cow,
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use axum::{extract::Request, response::Response};
use futures_util::FutureExt as _;
use http::{HeaderValue, header::HeaderName};
use tracing::{Instrument as _, Level};

use super::trace::{TRACEPARENT, TraceContext};
use crate::{Host, a2a, auth::Caller, openwop::Problem};

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest segment of a path that logs show; every token is longer.
const MAX_SEGMENT: usize = 96;

/// The longest request id taken from a caller.
const MAX_REQUEST_ID: usize = 128;

/// What a face tells about a request, as an extension of its answer.
#[derive(Debug, Clone)]
pub struct Handled {
    /// The route's template.
    pub route: &'static str,
    /// Who called, if that was asked.
    pub caller: Option<Caller>,
}

/// Has a request answered. A panic of a handler becomes a 500 and the connection lives on.
pub async fn observe(
    host: &Host,
    mut request: Request,
    answer: impl AsyncFnOnce(Request) -> Response,
) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let (traceparent, trace_id) = TraceContext::of(request.headers()).headers();
    let request_id = request_id(&request, &trace_id);
    let face = face(request.uri().path());
    // What a face reads, and hands on to calls this request leads to, is this host's span.
    request.headers_mut().insert(TRACEPARENT, traceparent.clone());
    let span = tracing::info_span!(
        target: "wopr::access",
        "request",
        %method,
        path = &*shown(request.uri().path()),
        trace = trace_id.to_str().unwrap_or_default(),
    );
    let answered = AssertUnwindSafe(answer(request)).catch_unwind();
    let mut response = match answered.instrument(span.clone()).await {
        Ok(response) => response,
        Err(panic) => {
            host.metrics().panicked();
            span.in_scope(|| tracing::error!(panic = panic_text(&*panic), "request panicked"));
            Problem::internal().into()
        }
    };
    response.headers_mut().insert(TRACEPARENT, traceparent);
    response.headers_mut().insert(X_REQUEST_ID.clone(), request_id);
    let handled = response.extensions_mut().remove::<Handled>();
    let took = begun.elapsed();
    let status = response.status();
    let (route, caller) = match &handled {
        Some(handled) => (handled.route, handled.caller.as_ref()),
        None => (face, None),
    };
    host.metrics().answered(&method, route, status, took);
    if tracing::enabled!(target: "wopr::access", Level::DEBUG) || status.is_server_error() {
        span.in_scope(|| log(route, caller, status.as_u16(), micros(took)));
    }
    response
}

/// A path as logs have it: the template where a segment is the token of an interrupt, which is a credential. Tokens are
/// longer than anything else in a path, so a long segment is left out wherever it stands.
fn shown(path: &str) -> Cow<'_, str> {
    if path
        .strip_prefix("/v1/interrupts/")
        .is_some_and(|token| !token.is_empty())
    {
        return "/v1/interrupts/{token}".into();
    }
    if path.split('/').all(|segment| segment.len() <= MAX_SEGMENT) {
        return path.into();
    }
    let segments: Vec<_> = path
        .split('/')
        .map(|segment| {
            if segment.len() <= MAX_SEGMENT {
                segment
            } else {
                "{…}"
            }
        })
        .collect();
    segments.join("/").into()
}

/// The label of a request whose face does not name a route.
fn face(path: &str) -> &'static str {
    match path {
        a2a::CARD_PATH => a2a::CARD_PATH,
        _ if path.starts_with("/a2a") || path.starts_with("/v1/a2a") => "/a2a",
        _ => "other",
    }
}

/// As a type that logs write as a number.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn log(route: &str, caller: Option<&Caller>, status: u16, micros: u64) {
    let key = caller.map(|caller| &*caller.key_id);
    let tenant = caller.map(|caller| caller.tenant.as_str());
    if status >= 500 {
        tracing::warn!(target: "wopr::access", route, status, micros, tenant, key, "request failed");
    } else {
        tracing::debug!(target: "wopr::access", route, status, micros, tenant, key, "request answered");
    }
}

/// The caller's own id for the request if it is a plain text, else the trace's.
fn request_id(request: &Request, trace_id: &HeaderValue) -> HeaderValue {
    let given = request.headers().get(&X_REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        !bytes.is_empty() && bytes.len() <= MAX_REQUEST_ID && bytes.iter().all(u8::is_ascii_graphic)
    });
    given.unwrap_or(trace_id).clone()
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of another type than text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_shows_a_token() {
        let token = "t".repeat(MAX_SEGMENT + 1);
        for (path, wanted) in [
            (
                "/v1/runs/run_1/interrupts/gate".to_owned(),
                "/v1/runs/run_1/interrupts/gate",
            ),
            ("/v1/interrupts".to_owned(), "/v1/interrupts"),
            ("/v1/interrupts/short".to_owned(), "/v1/interrupts/{token}"),
            (format!("/v1/interrupts/{token}"), "/v1/interrupts/{token}"),
            (format!("/v1/interrupts/{token}/more"), "/v1/interrupts/{token}"),
            (format!("//v1/interrupts/{token}"), "//v1/interrupts/{…}"),
            (format!("/v1/interrupt%73/{token}"), "/v1/interrupt%73/{…}"),
            (format!("/v1%2Finterrupts%2F{token}"), "/{…}"),
            (format!("/{token}"), "/{…}"),
        ] {
            assert_eq!(shown(&path), wanted, "{path}");
        }
    }
}
