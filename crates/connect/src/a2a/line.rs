//! One way to call a peer: an interface, the credential for it, and the headers and limits of its requests.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use url::Url;
use wopr_core::{TenantId, TraceContext};
use wopr_wire::{
    a2a::{
        method::{EXTENSIONS_HEADERS, Operation, VERSION_HEADER, Version},
        model::StreamResponse,
    },
    sse,
};

use super::{card::Found, error::Error, peer::Binding};
use crate::egress::{AnswerShare, Gate, LimitedBody, Protocol, Request, Seam, StreamLimits};
use crate::redact::Secrets;

/// Maximum size of an answer in bytes.
pub(super) const MAX_ANSWER: usize = 16 << 20;
/// Maximum size of an item of a stream in bytes. Artifacts arrive in one item.
pub(super) const MAX_EVENT: usize = 8 << 20;
/// Maximum size of a stream in bytes; a caller resumes a longer one.
const MAX_STREAM: usize = 1 << 30;

/// An item of a stream, with its event id if it has one.
pub type Item = (Option<String>, StreamResponse);

/// The items of a stream. After an error there are no more.
pub type Items = Pin<Box<dyn Stream<Item = Result<Item, Error>> + Send>>;

/// What a caller adds to its requests. [`Duration::MAX`] means no limit.
#[derive(Debug, Clone)]
pub struct Call {
    /// W3C trace context.
    pub trace: Option<TraceContext>,
    /// The tenant charged for the memory of answers; `None` charges the host.
    pub tenant: Option<TenantId>,
    /// URIs of the protocol extensions to activate.
    pub extensions: Vec<String>,
    /// Until the complete answer to a message, which an agent may hold back until its task has ended.
    pub send_timeout: Duration,
    /// Until the first item of the stream that answers a message, whatever comments come before.
    pub first_timeout: Duration,
    /// Until the complete answer to any other request.
    pub timeout: Duration,
    /// Until the next bytes of a stream, comments included.
    pub idle_timeout: Duration,
    /// Until the end of a stream.
    pub stream_timeout: Duration,
}

impl Default for Call {
    fn default() -> Self {
        Self {
            trace: None,
            tenant: None,
            extensions: Vec::new(),
            send_timeout: Duration::from_secs(10 * 60),
            first_timeout: Duration::from_secs(2 * 60),
            timeout: Duration::from_secs(90),
            idle_timeout: Duration::from_secs(5 * 60),
            stream_timeout: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// An interface, and everything a request to it needs.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) gate: Gate,
    pub(super) found: Arc<Found>,
    /// Only set if the interface is at the place that the credential was given for.
    pub(super) credential: Option<(HeaderName, HeaderValue)>,
    pub(super) secrets: Secrets,
    pub(super) call: Call,
}

/// One HTTP request of a binding.
pub(super) struct Sending<'a> {
    pub(super) operation: Operation,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) content_type: Option<&'static str>,
    pub(super) body: Bytes,
    pub(super) accept: &'static str,
    /// Resume a stream after this event.
    pub(super) last: Option<&'a str>,
}

impl Line {
    pub(super) fn version(&self) -> Version {
        self.found.version
    }

    /// Returns the interface's URL with a modified path.
    pub(super) fn at(&self, path: impl FnOnce(&str) -> String) -> Url {
        let mut url = self.found.address.clone();
        let path = path(self.found.address.path());
        url.set_path(&path);
        url
    }

    pub(super) async fn send(&self, sending: Sending<'_>) -> Result<http::Response<LimitedBody>, Error> {
        let limits = self.limits(sending.operation);
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(sending.accept));
        if let Some(media) = sending.content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        }
        // Agents of 0.3 ignore the header; agents of both versions need it.
        let version = HeaderValue::from_static(self.version().as_str());
        insert(&mut headers, VERSION_HEADER, version);
        if !self.call.extensions.is_empty() {
            let name = match self.version() {
                Version::V1_0 => EXTENSIONS_HEADERS[0],
                Version::V0_3 => EXTENSIONS_HEADERS[1],
            };
            insert(&mut headers, name, text(&self.call.extensions.join(", "))?);
        }
        if let Some(last) = sending.last {
            insert(&mut headers, "last-event-id", text(last)?);
        }
        if let Some((name, value)) = &self.credential {
            headers.insert(name.clone(), value.clone());
        }
        let mut request = Request::new(sending.method, sending.url);
        request.headers = headers;
        request.body = sending.body;
        request.tenant.clone_from(&self.call.tenant);
        request.trace.clone_from(&self.call.trace);
        request.protocol = match self.found.binding {
            Binding::JsonRpc | Binding::HttpJson => Protocol::Negotiated,
            Binding::Grpc => Protocol::Http2,
        };
        let response = self.gate.stream(Seam::A2a, request, limits).await;
        response.map_err(|error| Error::of_request(error, &self.found.address))
    }

    fn limits(&self, operation: Operation) -> StreamLimits {
        let call = &self.call;
        if operation.is_streaming() {
            return StreamLimits {
                headers: call.idle_timeout,
                idle: call.idle_timeout,
                total: call.stream_timeout,
                body: MAX_STREAM,
            };
        }
        let total = match operation == Operation::SendMessage {
            true => call.send_timeout,
            false => call.timeout,
        };
        StreamLimits {
            headers: total,
            idle: total,
            total,
            body: MAX_ANSWER,
        }
    }

    /// The answer could not be read.
    pub(super) fn undecodable(&self, error: &dyn std::fmt::Display) -> Error {
        Error::undecodable(error, &self.secrets)
    }
}

/// A response that was read as a whole.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Charges the memory until the answer has been decoded.
    _share: AnswerShare,
}

/// Reads the whole JSON body of a response.
pub(super) async fn read(response: http::Response<LimitedBody>) -> Result<Answer, Error> {
    let (head, body) = response.into_parts();
    let (body, share) = body.collect(true).await?;
    Ok(Answer {
        status: head.status,
        headers: head.headers,
        body,
        _share: share,
    })
}

pub(super) fn is_event_stream(response: &http::Response<LimitedBody>) -> bool {
    media_type(response.headers()).starts_with(sse::CONTENT_TYPE) && response.status().is_success()
}

pub(super) fn media_type(headers: &HeaderMap) -> &str {
    let media = headers.get(header::CONTENT_TYPE);
    media.and_then(|media| media.to_str().ok()).unwrap_or_default()
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: HeaderValue) {
    if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
        headers.insert(name, value);
    }
}

fn text(text: &str) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(text).map_err(|_| Error::Unwritable("a header has a control character".to_owned()))
}
