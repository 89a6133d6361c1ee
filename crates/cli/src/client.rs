//! A client of a wopr server: JSON requests, event streams, and actionable errors.
//!
//! This is the HTTP client for servers that the user names on the command line. It follows no redirects, so a
//! key is never forwarded to another server. Calls made by the *host* go through the egress gate instead.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use futures_util::{Stream, StreamExt as _};
use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
    redirect,
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde_json::Value;
use url::Url;
use wopr_connect::egress;
use wopr_wire::{
    openwop::{error::ErrorEnvelope, event::RunEventDoc, run::RunSnapshot},
    sse,
};

use crate::{
    args::Remote,
    exit::{Exit, Failure},
    render,
};

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(5);
/// Response timeout. A blocking A2A send waits for a minute by default.
pub(crate) const ANSWER: Duration = Duration::from_secs(90);
/// Maximum size of a response body in bytes.
pub(crate) const MAX_ANSWER: usize = 64 << 20;
/// Maximum size of a stream event in bytes.
pub(crate) const MAX_EVENT: usize = 16 << 20;

#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// The authorities trusted by the operating system.
    Machine,
    /// Only these authorities.
    These(Arc<RootCertStore>),
}

impl Trust {
    /// Reads authorities from a PEM file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let failed = |exit, why: &dyn std::fmt::Display| {
            let path = path.display();
            Failure::new(
                exit,
                format!("cannot read certificate authorities from {path}: {why}"),
            )
        };
        let bytes = std::fs::read(path).map_err(|error| failed(Exit::of_reading(&error), &error))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            let certificate = certificate.map_err(|error| failed(Exit::Config, &error))?;
            roots
                .add(certificate)
                .map_err(|error| failed(Exit::Config, &error))?;
        }
        if roots.is_empty() {
            return Err(failed(Exit::Config, &"it holds no certificate").into());
        }
        Ok(Self::These(Arc::new(roots)))
    }
}

pub(crate) fn http(url: &Url, trust: &Trust) -> Result<reqwest::Client> {
    built(builder(tls(url, trust)?), is_here(url))
}

/// Makes an HTTP client that speaks only HTTP/2, with or without TLS.
pub(crate) fn http2(url: &Url, trust: &Trust) -> Result<reqwest::Client> {
    let mut tls = tls(url, trust)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    // Proxies do not forward HTTP/2 without TLS, because there is no tunnel.
    built(
        builder(tls).http2_prior_knowledge(),
        is_here(url) || url.scheme() == "http",
    )
}

fn tls(url: &Url, trust: &Trust) -> Result<rustls::ClientConfig> {
    match trust {
        // Plain HTTP verifies no certificates, so the machine does not need any.
        _ if url.scheme() != "https" => trusting(Arc::new(RootCertStore::empty())),
        Trust::Machine => Ok(egress::client_config().map_err(|error| Failure::cannot(Exit::Failed, &error))?),
        Trust::These(roots) => trusting(Arc::clone(roots)),
    }
}

fn builder(tls: rustls::ClientConfig) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT)
        .user_agent(concat!("wopr/", env!("CARGO_PKG_VERSION")))
}

fn built(mut builder: reqwest::ClientBuilder, is_direct: bool) -> Result<reqwest::Client> {
    if is_direct {
        builder = builder.no_proxy();
    }
    builder.build().context("set up the HTTP client")
}

/// Makes a TLS configuration that trusts only these authorities.
fn trusting(roots: Arc<RootCertStore>) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("set up TLS")?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns `true` for loopback addresses, which no proxy can reach for us.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Returns `true` if both addresses have the same origin, or are the same loopback port under different
/// names.
pub(crate) fn is_same_place(a: &Url, b: &Url) -> bool {
    let is_loopback = is_here(a) && is_here(b) && a.scheme() == b.scheme();
    a.origin() == b.origin() || (is_loopback && a.port_or_known_default() == b.port_or_known_default())
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
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

impl Client {
    pub(crate) fn new(remote: &Remote) -> Result<Self> {
        Self::at(&remote.server, remote.key.clone(), &remote.authorities.read()?)
    }

    pub(crate) fn at(server: &str, key: Option<String>, trust: &Trust) -> Result<Self> {
        let url = parse_url(server)?;
        Ok(Self {
            http: http(&url, trust)?,
            base: url.as_str().trim_end_matches('/').to_owned(),
            key: key.filter(|key| !key.is_empty()),
        })
    }

    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            None => request,
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.request(Method::POST, path);
        self.answer(
            request
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string()),
        )
        .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Value> {
        self.answer(self.request(Method::DELETE, path)).await
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Value> {
        let request = request.header(ACCEPT, "application/json").timeout(ANSWER);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = read(response).await.map_err(|error| self.unreachable(&*error))?;
        if !status.is_success() {
            return Err(self.refused(status, &body).into());
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).with_context(|| format!("read the answer of {}", self.base))
    }

    /// Reads the items of all pages of a list, up to `most`.
    pub(crate) async fn pages(&self, path: &str, items: &str, most: usize) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let left = most.saturating_sub(all.len()).clamp(1, 100);
            let joint = if path.contains('?') { '&' } else { '?' };
            let mut page = format!("{path}{joint}limit={left}");
            if let Some(cursor) = &cursor {
                page.push_str("&cursor=");
                page.push_str(&escape(cursor));
            }
            let mut answer = self.get(&page).await?;
            if let Some(Value::Array(page)) = answer.get_mut(items).map(Value::take) {
                all.extend(page);
            }
            cursor = answer
                .get("nextCursor")
                .and_then(Value::as_str)
                .map(str::to_owned);
            if cursor.is_none() || all.len() >= most {
                all.truncate(most);
                return Ok(all);
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
        let mut request = self.request(Method::GET, &path).header(ACCEPT, sse::CONTENT_TYPE);
        if let Some(last) = last {
            request = request.header("Last-Event-ID", last);
        }
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if !status.is_success() {
            let body = read(response).await.map_err(|error| self.unreachable(&*error))?;
            return Err(self.refused(status, &body).into());
        }
        Ok(events(response).map(|event| {
            let event = event?;
            serde_json::from_str(&event.data).context("read an event of the run")
        }))
    }

    fn unreachable(&self, error: &(dyn Error + 'static)) -> Failure {
        unreachable_failure(&self.base, error)
    }

    /// Converts an error response for display.
    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let envelope: Option<ErrorEnvelope> = serde_json::from_slice(body).ok();
        let listed = envelope.as_ref().map(problems).unwrap_or_default();
        let text = match &envelope {
            // The message names the first problem only.
            Some(_) if listed.len() > 1 => {
                format!("the workflow definition is invalid:\n  {}", listed.join("\n  "))
            }
            Some(envelope) => format!("{} ({})", envelope.message, envelope.error),
            None => format!("{} answered {status}", self.base),
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
            _ => failure,
        }
    }
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

/// The server cannot be reached, or timed out.
pub(crate) fn unreachable_failure(base: &str, error: &(dyn Error + 'static)) -> Failure {
    // The innermost cause says what happened; the outer ones only say that a request was sent.
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    if cause.is::<NotTaken>() {
        return Failure::new(Exit::Failed, format!("cannot read the answer of {base}: {cause}"));
    }
    Failure::new(Exit::Unreachable, format!("cannot reach {base}: {cause}"))
        .hint("is a server running there? `wopr dev` starts one; --server or WOPR_SERVER names another")
}

/// A response exceeds a size limit, either in bytes or once parsed.
#[derive(Debug)]
struct NotTaken(String);

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotTaken {}

/// Rejects JSON that would take too much memory, before parsing it.
fn weigh(text: &[u8], limit: usize) -> Result<(), NotTaken> {
    match wopr_connect::weigh(text, limit) {
        Ok(_) => Ok(()),
        Err(error) => Err(NotTaken(format!("too many values: failed to {error}"))),
    }
}

/// Reads a response body within the size limits.
pub(crate) async fn read(response: Response) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        if body.len() + chunk.len() > MAX_ANSWER {
            return Err(NotTaken(format!("it has more than {MAX_ANSWER} bytes")).into());
        }
        body.extend_from_slice(&chunk);
    }
    weigh(&body, MAX_ANSWER)?;
    Ok(body)
}

/// A stream ended prematurely.
pub(crate) fn broken_off(error: &(dyn Error + 'static)) -> Failure {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    Failure::new(Exit::Unreachable, format!("the stream broke off: {cause}"))
}

pub(crate) fn is_event_stream(response: &Response) -> bool {
    let media = response.headers().get(CONTENT_TYPE);
    let media = media.and_then(|value| value.to_str().ok());
    media.is_some_and(|media| media.starts_with(sse::CONTENT_TYPE))
}

/// The response should have been a stream.
pub(crate) fn no_stream(endpoint: &str) -> Failure {
    Failure::new(Exit::Failed, format!("{endpoint} answered without a stream"))
}

/// Decodes the events of a stream as they arrive.
pub(crate) fn events(response: Response) -> impl Stream<Item = Result<sse::Event>> + Unpin + use<> {
    struct Reading<S> {
        chunks: S,
        decoder: sse::Decoder,
        ready: std::collections::VecDeque<sse::Event>,
    }
    let reading = Reading {
        chunks: response.bytes_stream(),
        decoder: sse::Decoder::new(MAX_EVENT),
        ready: std::collections::VecDeque::new(),
    };
    Box::pin(futures_util::stream::try_unfold(
        reading,
        |mut reading| async move {
            loop {
                if let Some(event) = reading.ready.pop_front() {
                    return Ok(Some((event, reading)));
                }
                let Some(chunk) = reading.chunks.next().await else {
                    return Ok(None);
                };
                let chunk = chunk.map_err(|error| broken_off(&error))?;
                let mut events = Vec::new();
                reading.decoder.feed(&chunk, &mut events)?;
                for event in &events {
                    weigh(event.data.as_bytes(), MAX_EVENT)?;
                }
                reading.ready.extend(events);
            }
        },
    ))
}

/// Percent-encodes text for use as a path segment or a query value.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
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
        let here = |text: &str| is_here(&Url::parse(text).unwrap());
        assert!(here("http://localhost:1") && here("http://127.0.0.1") && here("http://[::1]:1"));
        assert!(!here("http://example.com") && !here("http://localhost.example.com"));
        let same = |a: &str, b: &str| is_same_place(&Url::parse(a).unwrap(), &Url::parse(b).unwrap());
        assert!(
            same("http://localhost:1/x", "http://127.0.0.1:1/a2a")
                && same("https://a.example", "https://a.example/x")
        );
        assert!(
            !same("http://localhost:1", "http://127.0.0.1:2")
                && !same("https://a.example", "https://b.example")
        );
    }

    #[test]
    fn too_many_values_fail_the_response() {
        let text = format!("[{}0]", "{\"\":0},".repeat(1 << 20));
        let error = weigh(text.as_bytes(), MAX_EVENT).unwrap_err();
        let failure = unreachable_failure("http://x", &error);
        assert!(failure.to_string().contains("too many values"), "{failure}");
        assert!(weigh(b"[1,2]", MAX_EVENT).is_ok());
    }

    #[test]
    fn any_text_fits_one_path_segment() {
        assert_eq!(escape("a/b:c é?"), "a%2Fb%3Ac%20%C3%A9%3F");
    }
}
