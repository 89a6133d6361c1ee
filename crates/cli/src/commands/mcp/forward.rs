//! Forwards the messages of a client to a host, which serves them over HTTP.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use wopr_connect::egress::{EgressError, LimitedBody, StreamLimits};
use wopr_server::mcp::{
    PATH,
    lines::{Notification, Out, Peer, Request},
};
use wopr_wire::sse;

use crate::client::{Client, WRONG_KEY, unreachable_failure};

/// Longer than any host lets a call wait.
const WAIT: Duration = Duration::from_secs(330);
/// Maximum size of an answer in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Maximum size of an event in bytes.
const MAX_EVENT: usize = 16 << 20;
/// The code of errors that are not the host's.
const SERVER_ERROR: i64 = -32_000;
/// Tells a client that a request without an answer may have taken effect.
const GOES_ON: &str = "what was begun there goes on: wopr_list_runs shows the runs";
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// A host, as the client's messages reach it.
#[derive(Debug)]
pub(super) struct Remote {
    client: Client,
    handshake: Arc<Handshake>,
}

/// The protocol version that client and host agreed on, and the session. Requests to later hosts repeat both.
#[derive(Debug, Default)]
pub(super) struct Handshake(Mutex<Agreed>);

#[derive(Debug, Clone, Default)]
struct Agreed {
    version: Option<HeaderValue>,
    session: Option<HeaderValue>,
}

/// Why a host did not answer a request. The texts are for the client.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// There was no connection to the host.
    Undelivered(String),
    /// The host refused the request, or did not answer it to the end.
    Failed(String),
}

impl NoAnswer {
    fn of(base: &str, error: &EgressError) -> Self {
        let why = unreachable_failure(base, error).to_string();
        if let EgressError::Connect(_) | EgressError::ConnectTimeout = error {
            return Self::Undelivered(why);
        }
        match error.may_have_been_sent() {
            true => Self::Failed(format!("{why}; {GOES_ON}")),
            false => Self::Failed(why),
        }
    }

    pub(super) fn into_text(self) -> String {
        match self {
            Self::Undelivered(why) | Self::Failed(why) => why,
        }
    }
}

impl From<String> for NoAnswer {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl Remote {
    pub(super) const fn new(client: Client, handshake: Arc<Handshake>) -> Self {
        Self { client, handshake }
    }

    pub(super) fn base(&self) -> &str {
        self.client.base()
    }

    async fn post(&self, headers: HeaderMap, text: Bytes) -> Result<Response<LimitedBody>, EgressError> {
        let limits = StreamLimits {
            headers: WAIT,
            idle: WAIT,
            total: WAIT,
            body: MAX_ANSWER,
        };
        self.client.post_stream(PATH, headers, text, limits).await
    }

    /// The headers that repeat parts of a message, and those of the handshake.
    fn headers(&self, method: &str, params: &serde_json::Map<String, Value>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let accepts = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, accepts);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let Agreed { version, session } = self.handshake.0.lock().clone();
        let own = params.get("_meta").and_then(|meta| meta.get(VERSION)?.as_str());
        let own = own.and_then(|version| HeaderValue::from_str(version).ok());
        let name = params.get("name").or_else(|| params.get("uri"));
        let name = name.and_then(Value::as_str).map(encoded);
        for (header, value) in [
            ("mcp-protocol-version", own.or(version)),
            ("mcp-session-id", session),
            ("mcp-method", HeaderValue::from_str(method).ok()),
            ("mcp-name", name.flatten()),
        ] {
            if let Some(value) = value {
                headers.insert(HeaderName::from_static(header), value);
            }
        }
        headers
    }

    pub(super) async fn notify(&self, notification: &Notification, text: Bytes) -> Result<(), EgressError> {
        let headers = self.headers(&notification.method, &notification.params);
        self.post(headers, text).await.map(drop)
    }

    /// Answers a request. `None` if nothing is to be answered.
    pub(super) async fn answer(
        &self,
        request: &Request,
        text: Bytes,
        out: &Out,
    ) -> Result<Option<Value>, NoAnswer> {
        let mut answer = self.answer_of_host(request, text, out).await?;
        // Refusals of a whole request carry no id.
        if let Some(answer) = &mut answer
            && answer.get("id").is_none_or(Value::is_null)
        {
            answer["id"] = request.id.value().clone();
        }
        Ok(answer)
    }

    async fn answer_of_host(
        &self,
        request: &Request,
        text: Bytes,
        out: &Out,
    ) -> Result<Option<Value>, NoAnswer> {
        let base = self.client.base();
        let headers = self.headers(&request.method, &request.params);
        let response = self.post(headers, text).await;
        let response = response.map_err(|error| NoAnswer::of(base, &error))?;
        // The host has the request.
        let broken_off = |error: EgressError| format!("{}; {GOES_ON}", unreachable_failure(base, &error));
        let (head, body) = response.into_parts();
        let media = head.headers.get(header::CONTENT_TYPE);
        if media.is_some_and(|media| media.as_bytes().starts_with(sse::CONTENT_TYPE.as_bytes())) {
            let mut events = Box::pin(wopr_connect::events(body, MAX_EVENT));
            while let Some(event) = events.next().await {
                let event = event.map_err(broken_off)?;
                let message: Value = serde_json::from_str(&event.data)
                    .map_err(|_| format!("{base} sent an event that is not JSON"))?;
                if message.get("id").is_some() && message.get("method").is_none() {
                    return Ok(Some(message));
                }
                // The conversation ends if this fails.
                let _ = out.send(message).await;
            }
            return Err(format!("{base} ended its answer early; {GOES_ON}").into());
        }
        let (bytes, _) = body.collect(true).await.map_err(broken_off)?;
        if head.status == StatusCode::UNAUTHORIZED {
            let why = match self.client.has_key() {
                true => WRONG_KEY.to_owned(),
                false => format!("{base} wants a key: set WOPR_API_KEY"),
            };
            return Err(why.into());
        }
        if head.status == StatusCode::ACCEPTED && bytes.is_empty() {
            return Ok(None);
        }
        let mut answer: Value = serde_json::from_slice(&bytes)
            .ok()
            .filter(|answer: &Value| answer.get("jsonrpc").is_some())
            .ok_or_else(|| {
                format!(
                    "{base} answered {}, and no message: is it a host of wopr?",
                    head.status
                )
            })?;
        if request.method == "initialize"
            && let Some(agreed) = answer.pointer("/result/protocolVersion")
        {
            *self.handshake.0.lock() = Agreed {
                version: agreed
                    .as_str()
                    .and_then(|version| HeaderValue::from_str(version).ok()),
                session: head.headers.get("mcp-session-id").cloned(),
            };
            // Nothing here says that the list of tools has changed, either.
            let tools = answer.pointer_mut("/result/capabilities/tools");
            if let Some(tools) = tools.and_then(Value::as_object_mut) {
                tools.insert("listChanged".to_owned(), false.into());
            }
        }
        Ok(Some(answer))
    }
}

/// The answer to a request that no host answered.
pub(super) fn failed(request: &Request, why: &str) -> Value {
    json!({
        "jsonrpc": "2.0",
        "id": request.id.value(),
        "error": { "code": SERVER_ERROR, "message": why },
    })
}

impl Peer for Remote {
    fn request(
        self: Arc<Self>,
        request: Request,
        text: Vec<u8>,
        out: Out,
    ) -> BoxFuture<'static, Option<Value>> {
        async move {
            match self.answer(&request, text.into(), &out).await {
                Ok(answer) => answer,
                Err(why) => Some(failed(&request, &why.into_text())),
            }
        }
        .boxed()
    }

    fn notification(self: Arc<Self>, notification: Notification, text: Vec<u8>) -> BoxFuture<'static, ()> {
        async move {
            if let Err(error) = self.notify(&notification, text.into()).await {
                // Nothing answers a notification, and the next request fails by itself.
                tracing::warn!(%error, method = notification.method, "notification not forwarded");
            }
        }
        .boxed()
    }

    fn leave(&self) {
        // The host is another process, and what waits there ends with its connection.
    }
}

/// A text as a header: itself, or in base64 if it would not survive.
fn encoded(text: &str) -> Option<HeaderValue> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let is_plain = text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        && text.trim() == text
        && !text.starts_with("=?base64?");
    match is_plain {
        true => HeaderValue::from_str(text).ok(),
        false => HeaderValue::from_str(&format!("=?base64?{}?=", STANDARD.encode(text))).ok(),
    }
}
