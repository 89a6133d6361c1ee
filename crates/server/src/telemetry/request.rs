//! The middleware around every request: its span, trace context, metrics and panic handler.

use std::{
    any::Any,
    borrow::Cow,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt as _;
use http::{HeaderValue, StatusCode, header::HeaderName};
use tracing::{Instrument as _, Level};

use super::trace::TraceHeaders;
use crate::{
    Host, a2a,
    auth::Caller,
    message::{Request, Response},
    openwop::Problem,
};

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest path segment that is logged; every token is longer.
const MAX_SEGMENT: usize = 96;

/// Longest path and longest method that are logged.
const MAX_PATH: usize = 256;
const MAX_METHOD: usize = 16;

/// Longest request id accepted from a client.
const MAX_REQUEST_ID: usize = 128;

/// Facts about a request that a face attaches to its response as an extension.
#[derive(Debug, Clone)]
pub struct Handled {
    /// The route template.
    pub route: &'static str,
    /// The caller, if the request was authenticated.
    pub caller: Option<Arc<Caller>>,
}

/// Marks a response whose status is that of a server error, though the host did what it should. It is attached as an
/// extension.
#[derive(Debug, Clone, Copy)]
pub struct NoFault;

/// Answers a request. A handler's panic becomes a 500, and the connection stays open.
pub async fn observe<F: Future<Output = Response>>(
    host: &Host,
    mut request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    let begun = Instant::now();
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let traced = TraceHeaders::of(request.headers());
    let trace_id = traced.id().clone();
    let request_id = request_id(&request, &trace_id);
    let face = face(request.uri().path());
    // Faces read this host's span from the header and pass it on to outgoing calls.
    traced.clone().replace(request.headers_mut());
    // Little, as it is formatted for every request. Hexadecimal digits need no quotes.
    let trace = trace_id.to_str().unwrap_or_default();
    let span = tracing::info_span!(target: "wopr::access", "request", %trace);
    // Pinned before it is wrapped, as each wrapper would copy it.
    let answered = pin!(answer(request));
    let answered = AssertUnwindSafe(answered).catch_unwind();
    let mut response = match answered.instrument(span.clone()).await {
        Ok(response) => response,
        Err(panic) => {
            host.metrics().panicked();
            let (path, panic) = (shown(uri.path()), panic_text(&*panic));
            let method = beginning(method.as_str(), MAX_METHOD);
            span.in_scope(|| tracing::error!(method, path = &*path, panic, "request panicked"));
            Problem::internal().into()
        }
    };
    traced.replace(response.headers_mut());
    response.headers_mut().insert(X_REQUEST_ID.clone(), request_id);
    let handled = response.extensions_mut().remove::<Handled>();
    let took = begun.elapsed();
    let status = response.status();
    let (route, caller) = match &handled {
        Some(handled) => (handled.route, handled.caller.as_deref()),
        None => (face, None),
    };
    host.metrics().answered(&method, route, status, took);
    let is_fault = status.is_server_error() && response.extensions_mut().remove::<NoFault>().is_none();
    let answers = &host.metrics().answers;
    // A client can have as many of these as it wants, so few of them have a line. What the host does not offer is no
    // fault at all.
    let weight = match (is_fault, status) {
        (false, _) | (true, StatusCode::NOT_IMPLEMENTED) => Weight::Usual,
        (true, StatusCode::SERVICE_UNAVAILABLE) => {
            let left_out = answers.refused.admit(begun);
            left_out.map_or(Weight::Usual, |left_out| Weight::Refusal(left_out + 1))
        }
        (true, _) => answers.failed.admit(begun).map_or(Weight::Usual, Weight::Fault),
    };
    if tracing::enabled!(target: "wopr::access", Level::DEBUG) || !matches!(weight, Weight::Usual) {
        let request = Logged {
            method: beginning(method.as_str(), MAX_METHOD),
            path: &shown(uri.path()),
            route,
            caller,
        };
        span.in_scope(|| log(request, status.as_u16(), micros(took), weight));
    }
    response
}

/// Returns the path as logged: the template if a segment is an interrupt token, which is a credential. Tokens
/// are longer than anything else in a path, so long segments are masked wherever they occur.
fn shown(path: &str) -> Cow<'_, str> {
    if path
        .strip_prefix("/v1/interrupts/")
        .is_some_and(|token| !token.is_empty())
    {
        return "/v1/interrupts/{token}".into();
    }
    if path.split('/').all(|segment| segment.len() <= MAX_SEGMENT) {
        return beginning(path, MAX_PATH).into();
    }
    let segments: Vec<_> = path
        .split('/')
        .take(MAX_PATH)
        .map(|segment| {
            if segment.len() <= MAX_SEGMENT {
                segment
            } else {
                "{…}"
            }
        })
        .collect();
    let shown = segments.join("/");
    beginning(&shown, MAX_PATH).to_owned().into()
}

/// The beginning of a text that a client may make long.
fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The route label of a request whose face names no route.
fn face(path: &str) -> &'static str {
    match path {
        a2a::CARD_PATH => a2a::CARD_PATH,
        _ if path.starts_with("/a2a") || path.starts_with("/v1/a2a") => "/a2a",
        _ => "other",
    }
}

/// Converts to a type that the logger writes as a number.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How much an answer is to an operator.
#[derive(Debug, Clone, Copy)]
enum Weight {
    Usual,
    /// The host refused the request for load. With how many it refused since the last line.
    Refusal(u64),
    /// With how many lines were left out before this one.
    Fault(u64),
}

/// A request as logged.
#[derive(Clone, Copy)]
struct Logged<'r> {
    method: &'r str,
    path: &'r str,
    route: &'r str,
    caller: Option<&'r Caller>,
}

fn log(request: Logged<'_>, status: u16, micros: u64, weight: Weight) {
    let Logged {
        method,
        path,
        route,
        caller,
    } = request;
    let key = caller.map(|caller| &*caller.key_id);
    let tenant = caller.map(|caller| caller.tenant.as_str());
    match weight {
        Weight::Usual => {
            tracing::debug!(target: "wopr::access", method, path, route, status, micros, tenant, key, "request answered");
        }
        Weight::Refusal(refused) => {
            tracing::warn!(target: "wopr::access", method, path, route, status, micros, tenant, key, refused, "request refused");
        }
        Weight::Fault(left_out) => {
            tracing::warn!(target: "wopr::access", method, path, route, status, micros, tenant, key, left_out, "request failed");
        }
    }
}

/// Returns the client's request id if it is short printable ASCII, and the trace id otherwise.
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
    fn logged_paths_contain_no_token() {
        let token = "t".repeat(MAX_SEGMENT + 1);
        let long = format!("/v1{}/", "/a".repeat(126));
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
            (format!("/v1{}", "/a".repeat(9_000)), &long),
            (format!("/v1{}/{token}", "/a".repeat(9_000)), &long),
        ] {
            assert_eq!(shown(&path), wanted, "{path}");
        }
    }
}
