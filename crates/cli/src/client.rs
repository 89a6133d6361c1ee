//! A client of a wopr server: JSON requests, event streams, and errors a person can act on.
//!
//! There is one HTTP client here, for servers the user names on the command line. It follows no redirects, so a
//! key never travels further than where it was sent. What the *host* calls goes through the egress gate instead.

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
};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take. A blocking send of A2A waits for a minute by default.
pub(crate) const ANSWER: Duration = Duration::from_secs(90);
/// The largest answer that is read.
pub(crate) const MAX_ANSWER: usize = 64 << 20;
/// The largest event of a stream.
pub(crate) const MAX_EVENT: usize = 16 << 20;

/// Which certificate authorities are trusted.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// Those of this machine.
    Machine,
    /// These and no others.
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

/// Makes the HTTP client for an address.
pub(crate) fn http(url: &Url, trust: &Trust) -> Result<reqwest::Client> {
    built(builder(tls(url, trust)?), is_here(url))
}

/// Makes the HTTP client for an address that speaks HTTP/2 and nothing else, with TLS or without.
pub(crate) fn http2(url: &Url, trust: &Trust) -> Result<reqwest::Client> {
    let mut tls = tls(url, trust)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    // Without TLS there is no tunnel, and proxies do not pass HTTP/2 on.
    built(
        builder(tls).http2_prior_knowledge(),
        is_here(url) || url.scheme() == "http",
    )
}

fn tls(url: &Url, trust: &Trust) -> Result<rustls::ClientConfig> {
    match trust {
        // Plain http never asks, and needs no certificates on the machine.
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

/// A TLS configuration that trusts these authorities and no others.
fn trusting(roots: Arc<RootCertStore>) -> Result<rustls::ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("set up TLS")?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Whether an address is this machine, where no proxy can help.
fn is_here(url: &Url) -> bool {
    match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Whether two addresses are one place: the same origin, or the same port of this machine by another name.
pub(crate) fn is_same_place(a: &Url, b: &Url) -> bool {
    let is_loopback = is_here(a) && is_here(b) && a.scheme() == b.scheme();
    a.origin() == b.origin() || (is_loopback && a.port_or_known_default() == b.port_or_known_default())
}

/// Reads an address of the command line.
pub(crate) fn parse_url(text: &str) -> Result<Url> {
    let url = Url::parse(text).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let failure = || {
        Failure::new(Exit::Usage, format!("'{text}' is not an http or https address"))
            .hint("write it as http://127.0.0.1:8080")
    };
    Ok(url.ok_or_else(failure)?)
}

/// A server, and who calls it.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    key: Option<String>,
}

impl Client {
    /// A client of the server that flags and environment name.
    pub(crate) fn new(remote: &Remote) -> Result<Self> {
        Self::at(&remote.server, remote.key.clone(), &remote.authorities.read()?)
    }

    /// A client of a server.
    pub(crate) fn at(server: &str, key: Option<String>, trust: &Trust) -> Result<Self> {
        let url = parse_url(server)?;
        Ok(Self {
            http: http(&url, trust)?,
            base: url.as_str().trim_end_matches('/').to_owned(),
            key: key.filter(|key| !key.is_empty()),
        })
    }

    /// The server's origin.
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

    /// Reads a document.
    pub(crate) async fn get(&self, path: &str) -> Result<Value> {
        self.answer(self.request(Method::GET, path)).await
    }

    /// Sends a document.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.request(Method::POST, path);
        self.answer(
            request
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string()),
        )
        .await
    }

    /// Removes something.
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

    /// Follows every item of a paged list.
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

    /// A run as it is now.
    pub(crate) async fn run(&self, run: &str) -> Result<RunSnapshot> {
        let snapshot = self.get(&format!("/v1/runs/{}", escape(run))).await?;
        serde_json::from_value(snapshot).context("read the run")
    }

    /// Every event of a run.
    pub(crate) async fn log(&self, run: &str) -> Result<Vec<Value>> {
        let path = format!("/v1/runs/{}/events?streamMode=debug", escape(run));
        let mut answer = self.get(&path).await?;
        match answer.get_mut("events").map(Value::take) {
            Some(Value::Array(events)) => Ok(events),
            _ => anyhow::bail!("read the events: the answer has none"),
        }
    }

    /// Follows the events of a run, from after `last` on. The stream ends with the run.
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

    /// What a refusal means for a person.
    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let envelope: Option<ErrorEnvelope> = serde_json::from_slice(body).ok();
        let text = match &envelope {
            Some(envelope) => format!("{} ({})", envelope.message, envelope.error),
            None => format!("{} answered {status}", self.base),
        };
        let failure = Failure::new(exit_of(status), text);
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

/// What may help whose key a server does not know.
pub(crate) const WRONG_KEY: &str = "the server does not know this key, or it was revoked; that of `wopr dev` is a new one at every \
                                    start, unless WOPR_API_KEY was set there";

/// How the process ends when a server refuses.
pub(crate) fn exit_of(status: StatusCode) -> Exit {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Exit::Unauthorised,
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Exit::Busy,
        _ => Exit::Failed,
    }
}

/// Nothing answers, or not in time.
pub(crate) fn unreachable_failure(base: &str, error: &(dyn Error + 'static)) -> Failure {
    // The innermost cause says what happened; those around it say that a request was sent.
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

/// An answer is larger than allowed, as it is or once it is parsed.
#[derive(Debug)]
struct NotTaken(String);

impl std::fmt::Display for NotTaken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for NotTaken {}

/// Refuses JSON that takes too much memory once it is parsed, before it is.
fn weigh(text: &[u8], limit: usize) -> Result<(), NotTaken> {
    match wopr_connect::weigh(text, limit) {
        Ok(_) => Ok(()),
        Err(error) => Err(NotTaken(format!("too many values: failed to {error}"))),
    }
}

/// Reads a whole answer of bounded size, also once it is parsed.
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

/// A stream ends before it should.
pub(crate) fn broken_off(error: &(dyn Error + 'static)) -> Failure {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    Failure::new(Exit::Unreachable, format!("the stream broke off: {cause}"))
}

/// Whether an answer is a stream of events.
pub(crate) fn is_event_stream(response: &Response) -> bool {
    let media = response.headers().get(CONTENT_TYPE);
    let media = media.and_then(|value| value.to_str().ok());
    media.is_some_and(|media| media.starts_with(sse::CONTENT_TYPE))
}

/// An answer that should be a stream is none.
pub(crate) fn no_stream(endpoint: &str) -> Failure {
    Failure::new(Exit::Failed, format!("{endpoint} answered without a stream"))
}

/// The events of a stream, as they arrive.
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

/// A text as one segment of a path, or one value of a query.
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
    fn addresses_are_checked_before_anything_is_sent() {
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
    fn an_answer_of_too_many_values_is_a_failure_of_its_server() {
        let text = format!("[{}0]", "{\"\":0},".repeat(1 << 20));
        let error = weigh(text.as_bytes(), MAX_EVENT).unwrap_err();
        let failure = unreachable_failure("http://x", &error);
        assert!(failure.to_string().contains("too many values"), "{failure}");
        assert!(weigh(b"[1,2]", MAX_EVENT).is_ok());
    }

    #[test]
    fn a_segment_holds_any_text() {
        assert_eq!(escape("a/b:c é?"), "a%2Fb%3Ac%20%C3%A9%3F");
    }
}
