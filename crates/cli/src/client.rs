//! A client of a wopr server: JSON requests, event streams, and actionable errors.
//!
//! It goes through an egress gate of its own that allows every address, because the user names the server. Like
//! every gate it follows no redirects, so a key is never forwarded to another server, and uses no proxies.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use serde_json::Value;
use url::Url;
use wopr_connect::{
    a2a::PeerTls,
    egress::{
        self, ClientTls, EgressError, Gate, Identity, LimitedBody, Limits, Network, OtherAuthorities, Policy,
        Request, Seam, StreamLimits,
    },
    secret_header,
};
pub(crate) use wopr_wire::a2a::paths::escape;
use wopr_wire::{
    openwop::{error::ErrorEnvelope, event::RunEventDoc, run::RunSnapshot},
    sse,
};

use crate::{
    args::Remote,
    exit::{Exit, Failure},
    output, render,
};

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(5);
/// Response timeout. A blocking A2A send waits for a minute by default.
const ANSWER: Duration = Duration::from_secs(90);
/// Maximum size of a response body in bytes.
const MAX_ANSWER: usize = 64 << 20;
/// The most pages in a row of a list that have no item. Filters can leave a page without any.
const MAX_EMPTY_PAGES: usize = 1_000;
const JSON: &str = "application/json";
/// Maximum size of a stream event in bytes.
const MAX_EVENT: usize = 16 << 20;

/// Whom to trust over TLS, and the certificate to show. By default, the authorities of the machine, and none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust(ClientTls);

impl Trust {
    /// Reads authorities, or a certificate chain and its key, from PEM files.
    pub(crate) fn read(authorities: Option<&Path>, identity: Option<(&Path, &Path)>) -> Result<Self> {
        let authorities = authorities.map(|path| certificates("certificate authorities", path));
        let identity = identity.map(|(chain, key)| {
            anyhow::Ok(Identity {
                chain: certificates("the client certificate", chain)?,
                key: private_key(key)?,
            })
        });
        let trust = Self(ClientTls {
            authorities: authorities.transpose()?.unwrap_or_default(),
            identity: identity.transpose()?,
        });
        // Without files there is nothing to be wrong with them.
        if !trust.is_of_machine() {
            trust.config()?;
        }
        Ok(trust)
    }

    const fn is_of_machine(&self) -> bool {
        self.0.authorities.is_empty() && self.0.identity.is_none()
    }

    fn config(&self) -> Result<rustls::ClientConfig> {
        let config = self.0.config(OtherAuthorities::Refused);
        Ok(config.map_err(|error| Failure::new(Exit::Config, format!("cannot {error}")))?)
    }

    /// What an agent is called with, if it is to be shown a certificate. Places that only its card names are not.
    pub(crate) fn of_agent(&self) -> Result<Option<PeerTls>> {
        if self.0.identity.is_none() {
            return Ok(None);
        }
        let tls = PeerTls::new(&self.0);
        Ok(Some(tls.map_err(|error| {
            Failure::new(Exit::Config, format!("cannot {error}"))
        })?))
    }

    /// The same without a certificate to show.
    pub(crate) fn anonymous(&self) -> Self {
        Self(ClientTls {
            authorities: self.0.authorities.clone(),
            identity: None,
        })
    }
}

/// The failure to read a file.
fn unread(what: &str, path: &Path) -> impl Fn(Exit, &dyn std::fmt::Display) -> Failure {
    let place = format!("cannot read {what} from {}", path.display());
    move |exit, why| Failure::new(exit, format!("{place}: {why}"))
}

fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let failed = unread(what, path);
    let bytes = std::fs::read(path).map_err(|error| failed(Exit::of_reading(&error), &error))?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| failed(Exit::Config, &error))?;
    match found.is_empty() {
        true => Err(failed(Exit::Config, &"it holds no certificate").into()),
        false => Ok(found),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let failed = unread("the key of the client certificate", path);
    let bytes = std::fs::read(path).map_err(|error| failed(Exit::of_reading(&error), &error))?;
    Ok(PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| failed(Exit::Config, &error))?)
}

/// Maximum size of all response headers in bytes.
const MAX_HEADERS: usize = 64 << 10;

/// Makes a gate that allows every address.
pub(crate) fn gate(trust: &Trust) -> Result<Gate> {
    let tls = match trust.is_of_machine() {
        true => egress::client_config().map(Arc::new),
        false => Ok(Arc::new(trust.config()?)),
    };
    gate_with(tls)
}

/// Like [`gate`], for requests to one place. Plain HTTP verifies no certificates, so none are loaded for it.
fn gate_to(url: &Url, trust: &Trust) -> Result<Gate> {
    if url.scheme() == "https" {
        return gate(trust);
    }
    gate_with(Ok(Arc::new(trusting_nobody()?)))
}

fn gate_with(tls: Result<Arc<rustls::ClientConfig>, egress::TlsError>) -> Result<Gate> {
    let anywhere = "0.0.0.0/0, ::/0".parse::<Policy>();
    let limits = Limits {
        connect: CONNECT,
        total: Duration::MAX,
        request_body: usize::MAX,
        message_body: usize::MAX,
        response_body: MAX_ANSWER,
        response_headers: MAX_HEADERS,
        // The only user of this memory is this command.
        held: 16 * MAX_ANSWER,
    };
    let network = Network {
        tls,
        ..Network::default()
    };
    Ok(Gate::over(
        anywhere.context("allow every address")?,
        limits,
        network,
    ))
}

/// Makes a TLS configuration that trusts no authority.
fn trusting_nobody() -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("set up TLS")?;
    Ok(builder
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth())
}

/// Reads a document from any place.
pub(crate) async fn fetch(url: &Url, trust: &Trust) -> Result<(StatusCode, Bytes)> {
    let mut request = Request::new(Method::GET, url.clone());
    request.timeout = Some(ANSWER);
    request.expects_json = true;
    let response = gate_to(url, trust)?.request(Seam::HttpNode, request).await;
    let response = response.map_err(|error| unreachable_failure(url.as_str(), &error))?;
    Ok((response.status, response.body))
}

pub(crate) fn parse_url(text: &str) -> Result<Url> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let failure = || {
        Failure::new(Exit::Usage, format!("'{text}' is not an http or https address"))
            .hint("write it as http://127.0.0.1:8080")
    };
    Ok(url.ok_or_else(failure)?)
}

/// A server, and the credential to call it with.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    gate: Gate,
    base: String,
    key: Option<HeaderValue>,
}

/// The beginning of a list.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) items: Vec<Value>,
    /// Set if the list has more items.
    pub(crate) has_more: bool,
}

impl Pages {
    /// Says below a table that it is not all of the list.
    pub(crate) fn note_rest(&self) -> Result<()> {
        match self.has_more {
            true => output::note(format!(
                "there are more than these {}: --limit sets how many are listed",
                self.items.len()
            )),
            false => Ok(()),
        }
    }
}

impl Client {
    pub(crate) fn new(remote: &Remote) -> Result<Self> {
        Self::at(&remote.server, remote.key.clone(), &remote.authorities.read()?)
    }

    pub(crate) fn at(server: &str, key: Option<String>, trust: &Trust) -> Result<Self> {
        let url = parse_url(server)?;
        let key = key.filter(|key| !key.is_empty());
        let key = key.map(|key| secret_header(&format!("Bearer {key}")));
        Ok(Self {
            gate: gate_to(&url, trust)?,
            base: url.as_str().trim_end_matches('/').to_owned(),
            key: key
                .transpose()
                .map_err(|_| Failure::new(Exit::Usage, "the key has characters that no key has"))?,
        })
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    fn request(&self, method: Method, path: &str, accept: &'static str) -> Result<Request> {
        let url = parse_url(&format!("{}{path}", self.base))?;
        let mut request = Request::new(method, url);
        let headers = &mut request.headers;
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        if let Some(key) = &self.key {
            headers.insert(header::AUTHORIZATION, key.clone());
        }
        Ok(request)
    }

    pub(crate) const fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Posts a document with these headers besides the credential, and returns whatever the answer is.
    pub(crate) async fn post_stream(
        &self,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        limits: StreamLimits,
    ) -> Result<http::Response<LimitedBody>, EgressError> {
        let url = format!("{}{path}", self.base);
        let url = Url::parse(&url).expect("the base is an address, and paths are ours");
        let mut request = Request::new(Method::POST, url);
        request.headers = headers;
        if let Some(key) = &self.key {
            request.headers.insert(header::AUTHORIZATION, key.clone());
        }
        request.body = body;
        self.gate.stream(Seam::HttpNode, request, limits).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.answer(self.request(Method::GET, path, JSON)?).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut request = self.request(Method::POST, path, JSON)?;
        let media = HeaderValue::from_static(JSON);
        request.headers.insert(header::CONTENT_TYPE, media);
        request.body = body.to_string().into();
        self.answer(request).await
    }

    /// Like [`Self::get`], for an answer that has this member.
    pub(crate) async fn get_with(&self, path: &str, member: &str) -> Result<Value> {
        let answer = self.get(path).await?;
        self.has(answer, member)
    }

    /// Like [`Self::post`], for an answer that has this member.
    pub(crate) async fn post_with(&self, path: &str, body: &Value, member: &str) -> Result<Value> {
        let answer = self.post(path, body).await?;
        self.has(answer, member)
    }

    /// Whatever answers at the address of a server may answer with success. What lacks the member that an answer is about is
    /// not the answer of a wopr.
    fn has(&self, answer: Value, member: &str) -> Result<Value> {
        if answer.get(member).is_some() {
            return Ok(answer);
        }
        let why = format!("its answer has no '{member}'");
        Err(self.is_no_wopr(&why).into())
    }

    fn is_no_wopr(&self, why: &str) -> Failure {
        Failure::new(
            Exit::Failed,
            format!("{} does not answer as a wopr does: {why}", self.base),
        )
    }

    /// Removes something. The server has nothing to say about it afterwards.
    pub(crate) async fn delete(&self, path: &str) -> Result<()> {
        let answer = self.answer(self.request(Method::DELETE, path, JSON)?).await?;
        match answer {
            Value::Null => Ok(()),
            _ => Err(self.is_no_wopr("it answers a removal with a document").into()),
        }
    }

    async fn answer(&self, mut request: Request) -> Result<Value> {
        let asked = asked_for(&request);
        request.timeout = Some(ANSWER);
        request.expects_json = true;
        let response = self.gate.request(Seam::HttpNode, request).await;
        let response = response.map_err(|error| self.unreachable(&error))?;
        if !response.status.is_success() {
            return Err(self.refused(response.status, &response.body, asked).into());
        }
        if response.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&response.body).with_context(|| format!("read the answer of {}", self.base))
    }

    /// Reads the items of all pages of a list, up to `most`.
    pub(crate) async fn pages(&self, path: &str, items: &str, most: usize) -> Result<Pages> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        let mut n_empty = 0;
        loop {
            let left = most.saturating_sub(all.len()).clamp(1, 100);
            let joint = if path.contains('?') { '&' } else { '?' };
            let mut page = format!("{path}{joint}limit={left}");
            if let Some(cursor) = &cursor {
                page.push_str("&cursor=");
                page.push_str(&escape(cursor));
            }
            let mut answer = self.get_with(&page, items).await?;
            let n_before = all.len();
            if let Some(Value::Array(page)) = answer.get_mut(items).map(Value::take) {
                all.extend(page);
            }
            let next = answer
                .get("nextCursor")
                .and_then(Value::as_str)
                .map(str::to_owned);
            n_empty = if all.len() > n_before { 0 } else { n_empty + 1 };
            if next.is_some() && (next == cursor || n_empty >= MAX_EMPTY_PAGES) {
                return Err(self.is_no_wopr("its list does not end").into());
            }
            cursor = next;
            if cursor.is_none() || all.len() >= most {
                let has_more = cursor.is_some() || all.len() > most;
                all.truncate(most);
                return Ok(Pages { items: all, has_more });
            }
        }
    }

    pub(crate) async fn run(&self, run: &str) -> Result<RunSnapshot> {
        let snapshot = self.get(&format!("/v1/runs/{}", escape(run))).await?;
        serde_json::from_value(snapshot).context("read the run")
    }

    /// Reads all events of a run.
    pub(crate) async fn log(&self, run: &str) -> Result<Vec<Value>> {
        let path = format!("/v1/runs/{}/events?streamMode=debug", escape(run));
        let mut answer = self.get(&path).await?;
        match answer.get_mut("events").map(Value::take) {
            Some(Value::Array(events)) => Ok(events),
            _ => anyhow::bail!("read the events: the answer has none"),
        }
    }

    /// Streams the events of a run, starting after `last`. The stream ends with the run.
    pub(crate) async fn follow(
        &self,
        run: &str,
        mode: &str,
        last: Option<&str>,
    ) -> Result<impl Stream<Item = Result<RunEventDoc>> + Unpin + use<>> {
        let path = format!("/v1/runs/{}/events?streamMode={mode}", escape(run));
        let mut request = self.request(Method::GET, &path, sse::CONTENT_TYPE)?;
        let asked = asked_for(&request);
        if let Some(last) = last {
            let last = HeaderValue::from_str(last);
            let last = last.map_err(|_| Failure::new(Exit::Usage, "the event id is not one"))?;
            request.headers.insert("last-event-id", last);
        }
        // No timeout: a stream lasts as long as its run.
        let limits = StreamLimits {
            headers: Duration::MAX,
            idle: Duration::MAX,
            total: Duration::MAX,
            body: usize::MAX,
        };
        let response = self.gate.stream(Seam::HttpNode, request, limits).await;
        let response = response.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if !status.is_success() {
            let body = self.refusal(response.into_body()).await?;
            return Err(self.refused(status, &body, asked).into());
        }
        let events = wopr_connect::events(response.into_body(), MAX_EVENT);
        Ok(Box::pin(events.map(|event| {
            let event = event.map_err(|error| broken_off(&error))?;
            serde_json::from_str(&event.data).context("read an event of the run")
        })))
    }

    /// Reads the body of an error response.
    async fn refusal(&self, body: LimitedBody) -> Result<Bytes> {
        let (body, _) = body
            .collect(true)
            .await
            .map_err(|error| self.unreachable(&error))?;
        Ok(body)
    }

    fn unreachable(&self, error: &EgressError) -> Failure {
        unreachable_failure(&self.base, error)
    }

    /// Converts an error response for display.
    fn refused(&self, status: StatusCode, body: &[u8], asked: Option<Asked>) -> Failure {
        let envelope: Option<ErrorEnvelope> = serde_json::from_slice(body).ok();
        let listed = envelope.as_ref().map(problems).unwrap_or_default();
        let text = match &envelope {
            // The message names the first problem only.
            Some(_) if listed.len() > 1 => {
                format!("the workflow definition is invalid:\n  {}", listed.join("\n  "))
            }
            Some(envelope) => match &asked {
                Some(asked) if envelope.message == asked.what => {
                    format!("{} '{}' ({})", envelope.message, asked.id, envelope.error)
                }
                Some(_) | None => format!("{} ({})", envelope.message, envelope.error),
            },
            None => match coded(body) {
                Some(text) => text,
                None => format!("{} answered {status}", self.base),
            },
        };
        let exit = if listed.is_empty() {
            exit_of(status)
        } else {
            Exit::Config
        };
        let failure = Failure::new(exit, text);
        match status {
            StatusCode::UNAUTHORIZED if self.key.is_none() => {
                failure.hint("give a key with --key or WOPR_API_KEY; `wopr dev` prints one")
            }
            StatusCode::UNAUTHORIZED => failure.hint(WRONG_KEY),
            StatusCode::FORBIDDEN => {
                let scope = envelope.and_then(|envelope| envelope.details?.get("scopeRequired").cloned());
                match scope {
                    Some(Value::String(scope)) => failure.hint(format!("the key needs the scope {scope}")),
                    _ => failure,
                }
            }
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                failure.hint("try again in a moment")
            }
            StatusCode::NOT_FOUND => match asked {
                Some(asked) if envelope.is_some_and(|envelope| envelope.message == asked.what) => {
                    failure.hint(asked.hint)
                }
                Some(_) | None => failure,
            },
            _ => failure,
        }
    }
}

/// The run or workflow that a request is about.
struct Asked {
    /// What the server says if there is none.
    what: &'static str,
    id: String,
    hint: &'static str,
}

/// What a request asks for. Servers do not repeat it in their errors.
fn asked_for(request: &Request) -> Option<Asked> {
    let run = |id: String| Asked {
        what: "no such run",
        id,
        hint: "`wopr runs list` lists the runs that this key may see",
    };
    let workflow = |id: String| Asked {
        what: "no such workflow",
        id,
        hint: "`wopr workflows list` lists the workflows of the server",
    };
    let (_, path) = request.url.path().rsplit_once("/v1/")?;
    let path = path.strip_prefix("host/wopr/").unwrap_or(path);
    let (kind, rest) = path.split_once('/').unwrap_or((path, ""));
    let id = rest.split(['/', ':']).next().unwrap_or_default();
    let id = (!id.is_empty()).then(|| id.to_owned());
    match (kind, id) {
        ("runs", Some(id)) if !id.is_empty() => Some(run(id)),
        ("workflows", Some(id)) if !id.is_empty() => Some(workflow(id)),
        ("runs", _) => {
            let body: Value = serde_json::from_slice(&request.body).ok()?;
            Some(workflow(render::text(&body, "workflowId").to_owned()))
        }
        (_, _) => None,
    }
}

/// The error of an answer that has its code and its message in one member.
fn coded(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let error = body.get("error")?;
    let (message, code) = (error.get("message")?.as_str()?, error.get("code")?.as_str()?);
    let context = error.pointer("/details/context");
    let context =
        context.map(|context| format!(": expected {}, actual {}", context["expected"], context["actual"]));
    Some(format!("{message}{} ({code})", context.unwrap_or_default()))
}

/// The problems of a workflow definition that an error lists, a line each.
fn problems(envelope: &ErrorEnvelope) -> Vec<String> {
    let details = envelope.details.as_ref();
    let listed = details.and_then(|details| details.get("problems")?.as_array());
    listed.into_iter().flatten().map(render::problem).collect()
}

/// Hint for an unknown key.
pub(crate) const WRONG_KEY: &str = "the server does not know this key, or it was revoked; that of `wopr dev` is a new one at every \
                                    start, unless WOPR_API_KEY was set there";

pub(crate) fn exit_of(status: StatusCode) -> Exit {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Unauthorised,
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Exit::Busy,
        _ => Exit::Failed,
    }
}

/// The server cannot be reached, or timed out, or its answer exceeds a limit.
pub(crate) fn unreachable_failure(base: &str, error: &EgressError) -> Failure {
    match error {
        EgressError::HeadersTooLarge { .. }
        | EgressError::ResponseTooLarge { .. }
        | EgressError::TooManyValues(_)
        | EgressError::Busy => Failure::new(
            Exit::Failed,
            format!("cannot read the answer of {base}: {}", cause_of(error)),
        ),
        EgressError::Closed(_)
        | EgressError::Refused(_)
        | EgressError::Method
        | EgressError::Header(_)
        | EgressError::RequestTooLarge { .. }
        | EgressError::Form(_) => {
            Failure::new(Exit::Failed, format!("cannot call {base}: {}", cause_of(error)))
        }
        EgressError::Tls(_)
        | EgressError::Unresolved(_)
        | EgressError::Connect(_)
        | EgressError::Certificate { .. }
        | EgressError::ConnectTimeout
        | EgressError::Exchange(_)
        | EgressError::Timeout
        | EgressError::Stalled => {
            let cause = cause_of(error);
            let hint = match cause.contains(NO_TLS) {
                true => "the server may not speak TLS: then its address begins with http://",
                false => {
                    "is a server running there? `wopr dev` starts one; --server or WOPR_SERVER names another"
                }
            };
            Failure::new(Exit::Unreachable, format!("cannot reach {base}: {cause}")).hint(hint)
        }
    }
}

/// What the TLS library says of a peer whose first bytes are none of TLS.
const NO_TLS: &str = "InvalidContentType";

/// The innermost cause says what happened; the outer ones only say that a request was sent.
fn cause_of(error: &EgressError) -> String {
    let (EgressError::Tls(_)
    | EgressError::Unresolved(_)
    | EgressError::Connect(_)
    | EgressError::Certificate { .. }
    | EgressError::Exchange(_)) = error
    else {
        return format!("failed to {error}");
    };
    let mut cause: &(dyn Error + 'static) = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}

/// A stream ended prematurely.
pub(crate) fn broken_off(error: &EgressError) -> Failure {
    let text = format!("the stream broke off: {}", cause_of(error));
    Failure::new(Exit::Unreachable, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_addresses_are_rejected_before_any_request() {
        assert!(parse_url("http://127.0.0.1:8080").is_ok());
        for text in ["", "localhost:8080", "ftp://x", "file:///etc/passwd", "http:"] {
            assert!(parse_url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn too_many_values_fail_the_response() {
        let error = EgressError::TooManyValues(wopr_connect::TooManyValues { limit: 7 });
        let failure = unreachable_failure("http://x", &error);
        assert_eq!(failure.exit(), Exit::Failed);
        assert!(failure.to_string().contains("many values"), "{failure}");
    }

    #[test]
    fn any_text_fits_one_path_segment() {
        assert_eq!(escape("a/b:c é?"), "a%2Fb%3Ac%20%C3%A9%3F");
    }
}
