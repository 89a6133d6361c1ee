//! Streamable HTTP through the egress gate.
//!
//! The client of `rmcp` decides what is sent and when; this is how it sends. Each message is one POST. The stream by
//! which a server could speak unasked is not opened: what it says while it answers a call is read, and the list of
//! tools is read again after some minutes in any case. A broken answer is not resumed; the call counts as unknown.

use std::{collections::HashMap, error::Error, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        common::client_side_sse::NeverRetry,
        streamable_http_client::{
            SseError, StreamableHttpClient, StreamableHttpClientTransport,
            StreamableHttpClientTransportConfig, StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use sse_stream::Sse;
use url::Url;
use wopr_core::HTTP_MAX_TIMEOUT_MS;

use super::{
    blocks,
    server::{MAX_CALLS, Unavailable},
    unreadable,
};
use crate::{
    egress::{EgressError, Gate, LimitedBody, Protocol, Request, Seam, StreamLimits},
    events,
    http::{is_transient, retry_after},
    model::ProviderKey,
    secret_header,
    weight::weigh,
};

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// Maximum size of an answer, and of one event of an answer, in bytes.
const MAX_ANSWER: usize = 4 << 20;
/// Maximum size of all events of an answer, in bytes.
const MAX_EVENTS: usize = 16 << 20;
/// The longest that an answer may take. A call has a shorter limit of its own.
const TOTAL: Duration = Duration::from_millis(HTTP_MAX_TIMEOUT_MS);

/// Why the client got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("failed to {0}")]
    Egress(#[from] EgressError),
    #[error("the server answered {status}{}", .said.as_ref().map(|said| format!(": {said}")).unwrap_or_default())]
    Status {
        status: StatusCode,
        /// When it may be asked again.
        after: Option<Duration>,
        /// The message of the JSON-RPC error in the body.
        said: Option<String>,
    },
    #[error("a malformed header")]
    Header,
}

/// A call that was not made for sure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    /// Another attempt may succeed.
    Later {
        why: String,
        after: Option<Duration>,
    },
    Never {
        why: String,
    },
}

impl Unsent {
    /// What an error of the client says of the call; `None` if the server may have it.
    pub(super) fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        Self::of_http(of_client(error)?)
    }

    fn of_http(error: &StreamableHttpError<HttpError>) -> Option<Self> {
        let later = |after| {
            Some(Self::Later {
                why: error.to_string(),
                after,
            })
        };
        let never = || {
            Some(Self::Never {
                why: error.to_string(),
            })
        };
        match error {
            StreamableHttpError::Client(HttpError::Egress(egress)) if egress.may_have_been_sent() => None,
            StreamableHttpError::Client(HttpError::Egress(egress)) if egress.is_transient() => later(None),
            StreamableHttpError::Client(HttpError::Status { status, after, .. }) => {
                // A proxy answers 503 also for a call that broke off; one with a time to come back was turned away.
                let is_turned_away = *status == StatusCode::TOO_MANY_REQUESTS
                    || (*status == StatusCode::SERVICE_UNAVAILABLE && after.is_some());
                match (is_turned_away, is_transient(*status)) {
                    (true, _) => later(*after),
                    // It may have failed halfway.
                    (false, true) => None,
                    (false, false) => never(),
                }
            }
            StreamableHttpError::Client(HttpError::Egress(_) | HttpError::Header) => never(),
            StreamableHttpError::SessionExpired | StreamableHttpError::ReinitializationFailed(_) => {
                later(None)
            }
            _ => None,
        }
    }
}

/// The error of this client that another one comes from.
fn of_client<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e StreamableHttpError<HttpError>> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref() {
            return Some(error);
        }
        next = error.source();
    }
    None
}

/// Says why a request that the server may have received has no answer.
pub(super) fn broken(error: &(dyn Error + 'static)) -> String {
    match of_client(error) {
        Some(StreamableHttpError::Client(error @ HttpError::Status { .. })) => error.to_string(),
        Some(StreamableHttpError::ResponseBodyTooLarge { max_size }) => {
            format!("its answer has more than {max_size} bytes")
        }
        _ => "the connection broke".to_owned(),
    }
}

/// The message of a JSON-RPC error.
fn said(body: &[u8]) -> Option<String> {
    match serde_json::from_slice(body).ok()? {
        ServerJsonRpcMessage::Error(error) => Some(error.error.message.into_owned()),
        ServerJsonRpcMessage::Request(_)
        | ServerJsonRpcMessage::Response(_)
        | ServerJsonRpcMessage::Notification(_) => None,
    }
}

/// Whether a refusal is for the session of the request. Servers of the TypeScript SDK answer 400 instead of 404 to one that
/// they have forgotten, with only a text to tell it from other refusals.
fn is_about_session(said: &str) -> bool {
    said.to_ascii_lowercase().contains("session")
}

/// The HTTP client of one server.
#[derive(Clone)]
pub(super) struct HttpServer {
    gate: Gate,
    url: Url,
    credential: Option<(HeaderName, HeaderValue)>,
}

impl HttpServer {
    pub(super) fn open(
        gate: &Gate,
        url: &Url,
        header: Option<&HeaderName>,
        credential: &ProviderKey,
    ) -> Result<StreamableHttpClientTransport<Self>, Unavailable> {
        let credential = match credential {
            ProviderKey::None => None,
            ProviderKey::Missing { source } => return Err(Unavailable::Credential(source.clone())),
            // The configuration refuses one: all tenants share the session.
            ProviderKey::Stored(name) => {
                return Err(Unavailable::Credential(format!(
                    "the secret {name} of each tenant"
                )));
            }
            ProviderKey::Secret(secret) => {
                let (name, value) = match header {
                    Some(name) => (name.clone(), secret.expose().to_owned()),
                    None => (header::AUTHORIZATION, format!("Bearer {}", secret.expose())),
                };
                let value = secret_header(&value)
                    .map_err(|_| Unavailable::Credential("a text that a header can carry".to_owned()))?;
                Some((name, value))
            }
        };
        let client = Self {
            gate: gate.clone(),
            url: url.clone(),
            credential,
        };
        let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
        config.retry_config = Arc::new(NeverRetry::default());
        // Calls wait here for their turns, not in the client, where one that was not sent looks like one that was. Lists
        // and pings have some more.
        config.max_concurrent_requests = MAX_CALLS + 8;
        Ok(StreamableHttpClientTransport::with_client(client, config))
    }

    async fn send(
        &self,
        method: Method,
        body: Vec<u8>,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<http::Response<LimitedBody>, HttpError> {
        let mut request = Request::new(method, self.url.clone());
        request
            .headers
            .extend(headers.into_iter().map(|(name, value)| (Some(name), value)));
        let accepted = HeaderValue::from_static("application/json, text/event-stream");
        request.headers.insert(header::ACCEPT, accepted);
        if !body.is_empty() {
            request
                .headers
                .insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON));
        }
        if let Some(session) = session {
            let session = HeaderValue::from_str(session).map_err(|_| HttpError::Header)?;
            request.headers.insert(SESSION, session);
        }
        if let Some((name, value)) = &self.credential {
            request.headers.insert(name, value.clone());
        }
        request.body = Bytes::from(body);
        request.protocol = Protocol::Negotiated;
        let limits = StreamLimits {
            headers: TOTAL,
            idle: TOTAL,
            total: TOTAL,
            body: MAX_EVENTS,
        };
        Ok(self.gate.stream(Seam::Mcp, request, limits).await?)
    }
}

/// Whether a response has a body of this media type.
fn is_of(headers: &HeaderMap, media_type: &str) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = value
        .and_then(|value| value.split(';').next())
        .unwrap_or_default();
    essence.trim().eq_ignore_ascii_case(media_type)
}

type Failed = StreamableHttpError<HttpError>;

impl StreamableHttpClient for HttpServer {
    type Error = HttpError;

    async fn post_message(
        &self,
        _uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let body = serde_json::to_vec(&message)?;
        let response = self.send(Method::POST, body, session.as_deref(), headers).await;
        let (head, body) = response.map_err(StreamableHttpError::Client)?.into_parts();
        if head.status == StatusCode::NOT_FOUND && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !head.status.is_success() {
            let after = retry_after(&head.headers, std::time::SystemTime::now());
            let said = match is_of(&head.headers, JSON) {
                true => document(body).await.ok().and_then(|text| said(&text)),
                false => None,
            };
            let status = head.status;
            if session.is_some()
                && status == StatusCode::BAD_REQUEST
                && said.as_deref().is_some_and(is_about_session)
            {
                return Err(StreamableHttpError::SessionExpired);
            }
            return Err(StreamableHttpError::Client(HttpError::Status {
                status,
                after,
                said,
            }));
        }
        let asked = match message {
            ClientJsonRpcMessage::Request(request) => Some(request.id),
            ClientJsonRpcMessage::Response(_)
            | ClientJsonRpcMessage::Notification(_)
            | ClientJsonRpcMessage::Error(_) => None,
        };
        let Some(asked) = asked.filter(|_| head.status != StatusCode::ACCEPTED) else {
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        let session = head.headers.get(SESSION).and_then(|value| value.to_str().ok());
        let session = session.map(str::to_owned);
        if is_of(&head.headers, EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(sse(body), session));
        }
        if !is_of(&head.headers, JSON) {
            let error = unreadable::no_answer(asked, "what it sent is no JSON".to_owned());
            return Ok(StreamableHttpPostResponse::Json(error, session));
        }
        let text = document(body).await?;
        let message: Result<ServerJsonRpcMessage, _> = serde_json::from_slice(&text);
        let mut message =
            message.unwrap_or_else(|error| match unreadable::answered(&text).contains(&asked) {
                true => unreadable::answer(asked, &error),
                false => unreadable::no_answer(asked, format!("what it sent is no answer: {error}")),
            });
        blocks::wrap(&mut message);
        Ok(StreamableHttpPostResponse::Json(message, session))
    }

    async fn delete_session(
        &self,
        _uri: Arc<str>,
        session: Arc<str>,
        _auth_header: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        let response = self
            .send(Method::DELETE, Vec::new(), Some(&session), headers)
            .await;
        response.map_err(StreamableHttpError::Client).map(drop)
    }

    async fn get_stream(
        &self,
        _uri: Arc<str>,
        _session: Option<Arc<str>>,
        _last_event: Option<String>,
        _auth_header: Option<String>,
        _headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        Err(StreamableHttpError::ServerDoesNotSupportSse)
    }
}

/// The text of an answer that is one document, of bounded size also once it is parsed.
async fn document(mut body: LimitedBody) -> Result<Vec<u8>, Failed> {
    let failed = |error: EgressError| StreamableHttpError::Client(error.into());
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame.map_err(failed)?.into_data() else {
            continue;
        };
        if text.len() + chunk.len() > MAX_ANSWER {
            return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: MAX_ANSWER });
        }
        text.extend_from_slice(&chunk);
        body.hold(text.len()).map_err(failed)?;
    }
    let n_parsed = weigh(&text, MAX_ANSWER).map_err(|error| failed(error.into()))?;
    body.hold(text.len() + n_parsed).map_err(failed)?;
    Ok(text)
}

/// The data of an event, or the error that stands for an answer that cannot be read.
fn readable(data: String) -> String {
    let error = match serde_json::from_str::<ServerJsonRpcMessage>(&data) {
        Ok(mut message) => {
            let wrapped = blocks::wrap(&mut message).then(|| serde_json::to_string(&message));
            return wrapped.and_then(Result::ok).unwrap_or(data);
        }
        Err(error) => error,
    };
    let answered = unreadable::answered(data.as_bytes()).into_iter().next();
    let stands_for = answered.map(|id| serde_json::to_string(&unreadable::answer(id, &error)));
    match stands_for {
        Some(Ok(error)) => error,
        Some(Err(_)) | None => data,
    }
}

/// The events of an answer, each of bounded size.
fn sse(body: LimitedBody) -> BoxStream<'static, Result<Sse, SseError>> {
    let read = events(body, MAX_ANSWER).map(|event| match event {
        Ok(event) => Ok(Sse {
            event: (event.event != "message").then_some(event.event),
            data: Some(readable(event.data)),
            // Without ids nothing is resumed.
            id: None,
            retry: None,
        }),
        Err(error) => Err(SseError::Body(Box::new(error))),
    });
    read.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_turns_a_call_away_has_not_got_it() {
        let unsent = |status: u16, after: Option<Duration>| {
            let status = HttpError::Status {
                status: StatusCode::from_u16(status).unwrap(),
                after,
                said: None,
            };
            Unsent::of_http(&StreamableHttpError::Client(status))
        };
        let soon = Some(Duration::from_secs(1));
        assert!(matches!(unsent(429, None), Some(Unsent::Later { .. })));
        assert!(matches!(unsent(503, soon), Some(Unsent::Later { .. })));
        // What a proxy says of a call that broke off.
        for status in [500, 502, 503, 504] {
            assert_eq!(unsent(status, None), None, "{status}");
        }
        assert!(matches!(unsent(403, None), Some(Unsent::Never { .. })));
    }
}
