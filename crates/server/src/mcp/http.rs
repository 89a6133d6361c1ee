//! Streamable HTTP: one address, to which clients post their messages.
//!
//! Every request is answered by itself, so any replica serves it. A call that is to notify of its progress is answered with
//! a stream of events, which ends with its result; everything else with one document. There is no stream of the server's
//! own, and there are no sessions to keep, bound or resume: what a client waits for is a run, which it finds again by
//! its id. `GET` and `DELETE` are therefore not allowed, as the protocol provides for.

use std::{borrow::Cow, pin::Pin, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header, request::Parts};
use rand::{TryRngCore as _, rngs::OsRng};
use serde_json::Value;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use wopr_core::TraceContext;
use wopr_wire::{json::Object, sse};

use super::{
    ask::{self, Ask},
    in_flight::{Held, InFlight},
    message::{self, Error, Id, Message, Notification, Request, repeated, response},
    origin, progress,
    progress::Progress,
    protected_resource::challenge,
    service::{self, Channel},
    version::{self, Era},
};
use crate::{
    Host,
    auth::{self, AuthError, Caller},
    body::{self, BodyError, Weight},
    credential_id::CredentialId,
    hex,
    message::{Body, Response},
    telemetry::{self, Handled, OpenStream},
};

/// The address, as logs and metrics name it.
const ROUTE: &str = super::PATH;
static SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: &str = "mcp-protocol-version";
const METHOD: &str = "mcp-method";
const NAME: &str = "mcp-name";
/// The method that agrees on a version.
const HANDSHAKE: &str = "initialize";
/// Bytes of randomness in a session id.
const SESSION_BYTES: usize = 16;
/// Maximum size of a session id in bytes.
const MAX_SESSION: usize = 128;

/// Over HTTP the server cannot say anything by itself.
const CHANNEL: Channel = Channel { tells_changes: false };

pub(super) async fn respond(host: Arc<Host>, all: &Arc<InFlight>, head: Parts, body: Body) -> Response {
    if let Err(foreign) = origin::check(&head.headers, &head.uri, host.config(), host.public_url()) {
        return refused(
            StatusCode::FORBIDDEN,
            None,
            &Error::new(Error::SERVER, foreign.message()),
        );
    }
    let caller = match auth::caller(&head.extensions) {
        Ok(caller) => caller,
        Err(error) => return unauthenticated(&host, error),
    };
    let handled = Handled {
        route: ROUTE,
        caller: Some(caller.clone()),
    };
    let mut response = match head.method {
        Method::POST => post(host, all, caller, &head.headers, body).await,
        _ => {
            let why = "post messages to this address; it has no stream of its own, and no sessions to end";
            let error = Error::new(Error::SERVER, why);
            let mut response = refused(StatusCode::METHOD_NOT_ALLOWED, None, &error);
            let allowed = HeaderValue::from_static("POST");
            response.headers_mut().insert(header::ALLOW, allowed);
            response
        }
    };
    response.extensions_mut().insert(handled);
    response
}

async fn post(
    host: Arc<Host>,
    all: &Arc<InFlight>,
    caller: Arc<Caller>,
    headers: &HeaderMap,
    body: Body,
) -> Response {
    let wants = match Wants::of(headers) {
        Ok(wants) => wants,
        Err((status, why)) => {
            let mut response = refused(status, None, &Error::new(Error::SERVER, why));
            if body::is_encoded(headers) {
                let (name, codings) = body::ACCEPTED_CODINGS;
                response.headers_mut().insert(name, codings);
            }
            return response;
        }
    };
    let (bytes, weight) = match read_body(&host, &caller, body).await {
        Ok(read) => read,
        Err(error) => return unread(&host, error),
    };
    let message = match message::read(&bytes) {
        Ok(message) => message,
        Err((id, error)) => return refused(StatusCode::BAD_REQUEST, id.as_ref(), &error),
    };
    drop(bytes);
    let session = match session(headers) {
        Ok(session) => session,
        Err(error) => return refused(StatusCode::BAD_REQUEST, None, &error),
    };
    // A handshake agrees on the version, so its request is in none.
    let is_handshake = matches!(&message, Message::Request(request) if request.method == HANDSHAKE);
    let version = match version(headers) {
        Ok(version) => version.filter(|_| !is_handshake),
        Err(_) if is_handshake => None,
        Err(error) => {
            let id = match &message {
                Message::Request(request) => Some(&request.id),
                Message::Notification(_) | Message::Response => None,
            };
            return refused(StatusCode::BAD_REQUEST, id, &error);
        }
    };
    match message {
        Message::Request(request) => {
            if let Err(error) = check_headers(headers, version, &request.method, &request.params) {
                return refused(StatusCode::BAD_REQUEST, Some(&request.id), &error);
            }
            let held = match session {
                None => None,
                Some(session) => match all.begin(&caller, session, request.id.clone()) {
                    Some(held) => Some(held),
                    None => {
                        let error = Error::new(
                            Error::INVALID_REQUEST,
                            "another request with this id is in flight",
                        );
                        return refused(StatusCode::BAD_REQUEST, Some(&request.id), &error);
                    }
                },
            };
            Asked {
                host,
                caller,
                trace: ask::trace(&request.params).or_else(|| telemetry::trace_of(headers)),
                request,
                held,
                weight,
            }
            .answer(wants)
            .await
        }
        Message::Notification(notification) => {
            if let Some(session) = session {
                heard(all, &caller, session, notification);
            }
            accepted()
        }
        Message::Response => accepted(),
    }
}

/// Takes in a notification. Only one means something to this server.
fn heard(all: &InFlight, caller: &Caller, session: &str, notification: Notification) {
    let Notification { method, mut params } = notification;
    if method == "notifications/cancelled"
        && let Some(id) = params.remove("requestId").and_then(Id::read)
    {
        all.cancel(caller, session, id);
    }
}

/// A request, and what it holds while it is answered.
struct Asked {
    host: Arc<Host>,
    caller: Arc<Caller>,
    trace: Option<TraceContext>,
    request: Request,
    held: Option<Held>,
    weight: Weight,
}

impl Asked {
    async fn answer(self, wants: Wants) -> Response {
        let Self {
            host,
            caller,
            trace,
            request,
            held,
            weight,
        } = self;
        let (out, notifications) = mpsc::channel(progress::MAX_WAITING);
        let streams = match wants {
            Wants::Json => false,
            Wants::Events => true,
            // A document is the cheaper answer if there is nothing to notify of.
            Wants::Either => request.method == "tools/call" && progress::token(&request.params).is_some(),
        };
        let credential = CredentialId::caller(&caller);
        let session = match request.method == HANDSHAKE {
            true => new_session(),
            false => None,
        };
        let is_old = version::era(&request.method, &request.params) == Ok(Era::WithOpening);
        let ask = Ask {
            leaving: host.closing(),
            progress: Progress::of(&request.params, out),
            host: Arc::clone(&host),
            caller,
            trace,
        };
        let id = request.id.clone();
        let answering = async move {
            let answering = service::answer(ask, request, CHANNEL);
            let answer = match &held {
                None => Some(answering.await),
                Some(held) => tokio::select! {
                    answer = answering => Some(answer),
                    () = held.cancelled() => None,
                },
            };
            drop((held, weight));
            answer
        };
        if streams {
            let events = Events {
                keepalive: host.config().server.sse_keepalive.as_duration(),
                _open: host.metrics().open_stream(),
                credential,
                host,
                id,
                notifications,
                answering: Some(answering.boxed()),
            };
            return in_session(events.response(), session);
        }
        // A client that cancelled its request expects no answer to it, but HTTP does.
        let Some(answer) = Box::pin(answering).await else {
            return accepted();
        };
        let status = match &answer {
            Err(error) if !is_old => status_of(error),
            Ok(_) | Err(_) => StatusCode::OK,
        };
        in_session(document(status, &response(&id, answer)), session)
    }
}

/// Tells a client its session, if it has a new one.
fn in_session(mut response: Response, session: Option<HeaderValue>) -> Response {
    if let Some(session) = session {
        response.headers_mut().insert(SESSION.clone(), session);
    }
    response
}

/// The status of an error in versions without a handshake; in others it is always 200.
fn status_of(error: &Error) -> StatusCode {
    match error.code {
        Error::UNSUPPORTED_VERSION | Error::HEADER_MISMATCH => StatusCode::BAD_REQUEST,
        Error::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

type Answering = Pin<Box<dyn Future<Output = Option<Result<Value, Error>>> + Send>>;

/// The answer to a request as a stream: notifications, then the result.
struct Events {
    host: Arc<Host>,
    credential: CredentialId,
    id: Id,
    notifications: mpsc::Receiver<Value>,
    /// `None` once the result was sent.
    answering: Option<Answering>,
    keepalive: std::time::Duration,
    _open: OpenStream,
}

impl Events {
    fn response(self) -> Response {
        let events = stream::unfold(self, |mut events| async move {
            let chunk = events.next().await?;
            Some((Ok::<_, std::convert::Infallible>(chunk), events))
        });
        let mut response = Response::new(Body::from_stream(events));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(sse::CONTENT_TYPE));
        headers.insert(
            header::CACHE_CONTROL,
            HeaderValue::from_static("no-cache, no-transform"),
        );
        // Keep proxies from buffering events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    async fn next(&mut self) -> Option<Bytes> {
        let answering = self.answering.as_mut()?;
        tokio::select! {
            biased;
            Some(notification) = self.notifications.recv() => Some(event(&notification)),
            answer = answering => {
                self.answering = None;
                let result = event(&response(&self.id, answer?));
                // As documents are, until the client has read it.
                let answers = &self.host.admission().answers;
                Some(answers.held(self.credential, result).await.unwrap_or_else(|_| {
                    let busy = Error::new(Error::SERVER, "the host cannot send this answer now");
                    event(&response(&self.id, Err(busy)))
                }))
            }
            () = sleep_until(Instant::now() + self.keepalive) => Some(Bytes::from_static(b":\n\n")),
        }
    }
}

/// An event. A document as JSON has no line breaks.
fn event(document: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {document}\n\n"))
}

/// Which forms of an answer a client takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Json,
    Events,
    Either,
}

impl Wants {
    fn of(headers: &HeaderMap) -> Result<Self, (StatusCode, &'static str)> {
        let media = headers.get(header::CONTENT_TYPE);
        let is_json = media.is_some_and(|media| {
            let media = media.to_str().unwrap_or_default();
            let essence = media.split(';').next().unwrap_or_default().trim();
            essence.eq_ignore_ascii_case("application/json")
        });
        if !is_json {
            return Err((
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "messages have the content type application/json",
            ));
        }
        if body::is_encoded(headers) {
            return Err((
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the message is compressed; send it as it is",
            ));
        }
        let (mut json, mut events, mut has_any) = (false, false, false);
        for value in headers.get_all(header::ACCEPT) {
            has_any = true;
            for range in value.to_str().unwrap_or_default().split(',') {
                match range.split(';').next().unwrap_or_default().trim() {
                    "*/*" => (json, events) = (true, true),
                    "application/json" | "application/*" => json = true,
                    "text/event-stream" | "text/*" => events = true,
                    _ => {}
                }
            }
        }
        match (json, events) {
            (true, true) => Ok(Self::Either),
            (true, false) => Ok(Self::Json),
            (false, true) => Ok(Self::Events),
            (false, false) if !has_any => Ok(Self::Either),
            (false, false) => Err((
                StatusCode::NOT_ACCEPTABLE,
                "accept application/json and text/event-stream",
            )),
        }
    }
}

/// The text of a header, if there is one.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>, Error> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(HeaderValue::to_str).transpose();
    match (value, values.next()) {
        (Ok(value), None) => Ok(value),
        (Err(_), _) | (_, Some(_)) => Err(mismatch(format!("{name} must be one text"))),
    }
}

/// The version that the headers name, which this server must speak.
fn version(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    match text(headers, VERSION)? {
        Some(version) if !version::is_known(version) => Err(version::unsupported(version)),
        said => Ok(said),
    }
}

/// Checks the headers that repeat parts of a message, for clients whose version has them. `said` is the version that the
/// headers name.
fn check_headers(
    headers: &HeaderMap,
    said: Option<&str>,
    method: &str,
    params: &Object,
) -> Result<(), Error> {
    if version::era(method, params)? == Era::WithOpening {
        return match said {
            Some(version::WITHOUT_OPENING) => Err(Error::invalid(
                "requests of this version name it in _meta, with the client's capabilities",
            )),
            Some(_) | None => Ok(()),
        };
    }
    if said.is_some_and(|said| said != version::WITHOUT_OPENING) && method != "server/discover" {
        return Err(mismatch(format!("{VERSION} does not match the version in _meta")));
    }
    match text(headers, METHOD)? {
        Some(said) if said == method => {}
        Some(_) => {
            return Err(mismatch(format!(
                "{METHOD} does not match the method of the message"
            )));
        }
        None => return Err(mismatch(format!("{METHOD} is required"))),
    }
    let member = match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        _ => return Ok(()),
    };
    let named = params.get(member).and_then(Value::as_str);
    match (text(headers, NAME)?.map(decoded), named) {
        (Some(Some(said)), Some(named)) if said == named => Ok(()),
        (None, _) => Err(mismatch(format!("{NAME} is required for {}", repeated(method)))),
        (Some(_), _) => Err(mismatch(format!("{NAME} does not match the message"))),
    }
}

fn mismatch(why: String) -> Error {
    Error::new(Error::HEADER_MISMATCH, why)
}

/// Decodes a header that may hold any text: `=?base64?…?=`, or the text itself.
fn decoded(value: &str) -> Option<Cow<'_, str>> {
    let encoded = value.strip_prefix("=?base64?");
    let Some(encoded) = encoded.and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(value.into());
    };
    let bytes = STANDARD.decode(encoded).ok()?;
    String::from_utf8(bytes).ok().map(Into::into)
}

/// The session that a client names.
fn session(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let Some(session) = headers.get(&SESSION) else {
        return Ok(None);
    };
    let session = session.to_str().ok();
    let session = session.filter(|session| (1..=MAX_SESSION).contains(&session.len()));
    match session {
        Some(session) => Ok(Some(session)),
        None => Err(Error::new(
            Error::INVALID_REQUEST,
            "Mcp-Session-Id must be 1 to 128 visible characters",
        )),
    }
}

/// A name for the requests of one client. Without randomness a client goes on without.
fn new_session() -> Option<HeaderValue> {
    let mut bytes = [0; SESSION_BYTES];
    OsRng.try_fill_bytes(&mut bytes).ok()?;
    HeaderValue::from_str(&hex(&bytes)).ok()
}

async fn read_body(host: &Host, caller: &Caller, body: Body) -> Result<(Bytes, Weight), BodyError> {
    let config = &host.config().server;
    let (limit, timeout) = (config.max_body_bytes, config.request_timeout.as_duration());
    let credential = CredentialId::caller(caller);
    let bytes = body::read(host.admission(), body, credential, limit, timeout).await?;
    let weight = body::weigh(host.admission(), &bytes, credential, limit)?;
    Ok((bytes, weight))
}

fn unread(host: &Host, error: BodyError) -> Response {
    let limit = host.config().server.max_body_bytes;
    let (status, why) = match error {
        BodyError::TooLarge => (
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the message has more than {limit} bytes"),
        ),
        BodyError::TooManyValues => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "the message holds more values than this host takes".to_owned(),
        ),
        BodyError::CutOff => (StatusCode::BAD_REQUEST, "the message was cut off".to_owned()),
        BodyError::Slow => (
            StatusCode::REQUEST_TIMEOUT,
            "the message did not arrive in time".to_owned(),
        ),
        BodyError::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the host cannot take this message now".to_owned(),
        ),
    };
    let mut response = refused(status, None, &Error::new(Error::SERVER, why));
    match error {
        BodyError::CutOff | BodyError::TooManyValues => {}
        BodyError::Busy => {
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        BodyError::TooLarge | BodyError::Slow => {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
    response
}

/// 503: there is no memory for the answer.
pub(super) fn unavailable() -> Response {
    let error = Error::new(Error::SERVER, "the host cannot answer this request now");
    let mut response = refused(StatusCode::SERVICE_UNAVAILABLE, None, &error);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// 401, with the way to a credential.
pub(super) fn unauthenticated(host: &Host, error: AuthError) -> Response {
    let why = Error::new(Error::SERVER, format!("failed to {error}"));
    let mut response = refused(StatusCode::UNAUTHORIZED, None, &why);
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, challenge(host, error));
    response
}

fn refused(status: StatusCode, id: Option<&Id>, error: &Error) -> Response {
    document(status, &message::refusal(id, error))
}

fn document(status: StatusCode, document: &Value) -> Response {
    let mut response = Response::new(Body::from(document.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// 202, for messages that are not answered.
fn accepted() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::ACCEPTED;
    response
}
