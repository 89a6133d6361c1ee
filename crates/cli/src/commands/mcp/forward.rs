//! Forwards the messages of a client to a host, which serves them over HTTP.

use std::{sync::Arc, time::Duration};

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
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

/// A host, as the client's messages reach it.
#[derive(Debug)]
pub(super) struct Remote {
    client: Client,
    opened: Mutex<Opened>,
}

/// What the handshake agreed on.
#[derive(Debug, Clone, Default)]
struct Opened {
    version: Option<HeaderValue>,
    session: Option<HeaderValue>,
}

impl Remote {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            opened: Mutex::default(),
        }
    }

    async fn post(&self, headers: HeaderMap, text: Vec<u8>) -> Result<Response<LimitedBody>, EgressError> {
        let limits = StreamLimits {
            headers: WAIT,
            idle: WAIT,
            total: WAIT,
            body: MAX_ANSWER,
        };
        self.client.post_stream(PATH, headers, text.into(), limits).await
    }

    /// The headers that repeat parts of a message, and those of the handshake.
    fn headers(&self, method: &str, params: &serde_json::Map<String, Value>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let accepts = HeaderValue::from_static("application/json, text/event-stream");
        headers.insert(header::ACCEPT, accepts);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let Opened { version, session } = self.opened.lock().clone();
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

    /// Answers a request; the text is the reason if that failed.
    async fn answer(&self, request: &Request, text: Vec<u8>, out: &Out) -> Result<Option<Value>, String> {
        let base = self.client.base();
        let unreachable = |error: EgressError| unreachable_failure(base, &error).to_string();
        let headers = self.headers(&request.method, &request.params);
        let response = self.post(headers, text).await.map_err(unreachable)?;
        let (head, body) = response.into_parts();
        let media = head.headers.get(header::CONTENT_TYPE);
        if media.is_some_and(|media| media.as_bytes().starts_with(sse::CONTENT_TYPE.as_bytes())) {
            let mut events = Box::pin(wopr_connect::events(body, MAX_EVENT));
            while let Some(event) = events.next().await {
                let event = event.map_err(unreachable)?;
                let message: Value = serde_json::from_str(&event.data)
                    .map_err(|_| format!("{base} sent an event that is not JSON"))?;
                if message.get("id").is_some() && message.get("method").is_none() {
                    return Ok(Some(message));
                }
                // The conversation ends if this fails.
                let _ = out.send(message).await;
            }
            return Err(format!(
                "{base} ended its answer early; what was begun there goes on"
            ));
        }
        let (bytes, _) = body.collect(true).await.map_err(unreachable)?;
        if head.status == StatusCode::UNAUTHORIZED {
            return Err(match self.client.has_key() {
                true => WRONG_KEY.to_owned(),
                false => format!("{base} wants a key: set WOPR_API_KEY"),
            });
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
            *self.opened.lock() = Opened {
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

impl Peer for Remote {
    fn request(
        self: Arc<Self>,
        request: Request,
        text: Vec<u8>,
        out: Out,
    ) -> BoxFuture<'static, Option<Value>> {
        async move {
            match self.answer(&request, text, &out).await {
                Ok(Some(mut answer)) => {
                    // Refusals of a whole request carry no id.
                    if answer.get("id").is_none_or(Value::is_null) {
                        answer["id"] = request.id.value().clone();
                    }
                    Some(answer)
                }
                Ok(None) => None,
                Err(why) => Some(json!({
                    "jsonrpc": "2.0",
                    "id": request.id.value(),
                    "error": { "code": SERVER_ERROR, "message": why },
                })),
            }
        }
        .boxed()
    }

    fn notification(self: Arc<Self>, notification: Notification, text: Vec<u8>) -> BoxFuture<'static, ()> {
        async move {
            let headers = self.headers(&notification.method, &notification.params);
            if let Err(error) = self.post(headers, text).await {
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
