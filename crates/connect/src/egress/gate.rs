//! The gate: sends one request through one open seam, within its limits.
//!
//! Connections are kept alive for a short time; a reused connection leads to an address that was checked when
//! it was opened. A delivery always opens a new connection, so its address is resolved and checked each time;
//! only the TLS session may be resumed. The gate sends a request once and never retries. The underlying HTTP
//! client has no redirects, proxies or cookies that could be enabled by mistake.

use std::{
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, header};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{self, Client},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use tokio::time::{Instant, timeout};
use tracing::{debug, warn};
use url::{Host, Url};
use wopr_core::HTTP_MAX_TIMEOUT_MS;
use wopr_engine::Throttle;

use super::{
    cidr::Cidr,
    connector::{Alpn, ConnectError, Connector, Inner, Tls},
    dial::{Dial, SystemDial},
    error::EgressError,
    message::{Request, Response, is_json},
    policy::{Policy, Refusal, Target, TargetHost, Transport, read_url},
    resolve::{LookupError, Resolver, SystemResolver, lookup},
    seam::{Seam, Seams},
    stream::{LimitedBody, Protocol, StreamLimits, headers_len},
    tls::{self, CertificateProblem, TlsError},
};
use crate::shares::{Share, Shares};

/// Nodes may be refused as often as they call, and only so many a minute have a line.
static REFUSED: Throttle = Throttle::new(60);

/// Long enough for a burst to one peer, short enough to notice soon that a name has moved.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// Maximum idle connections per peer: as many as the calls that a host makes at once for one tenant by default. A call
/// that finds no idle connection opens a new one, which costs both sides more than the call itself.
const POOL_IDLE_PER_HOST: usize = 192;

/// See [`Shares::new`]: a single tenant may take up to three quarters of the response memory.
const TIMES_FREE: usize = 3;

/// The hash of a tenant.
pub(super) type Holder = u64;

/// An HTTP/2 connection whose peer has gone silent is noticed after a ping and its timeout.
const PING_AFTER: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Read buffer per connection: enough for the response headers we accept, but not much more.
const READ_BUFFER: usize = 128 << 10;

/// The default `User-Agent`.
const USER_AGENT: &str = concat!("wopr/", env!("CARGO_PKG_VERSION"));

/// Upper limits for all requests. A request may lower its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From the start of name resolution to an established connection, TLS included.
    pub connect: Duration,
    /// From the start of name resolution to the last byte of the response; also the maximum timeout of a node.
    pub total: Duration,
    /// Bytes of a request body.
    pub request_body: usize,
    /// The same of a request to an agent, which may have files in it.
    pub message_body: usize,
    /// Bytes of a response body.
    pub response_body: usize,
    /// Bytes of all response headers. The HTTP parser has higher limits of its own: 128 KiB and 100 headers.
    pub response_headers: usize,
    /// Bytes of all responses until they are dropped, including their parsed form.
    pub held: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            total: Duration::from_millis(HTTP_MAX_TIMEOUT_MS),
            request_body: 4 << 20,
            message_body: 12 << 20,
            response_body: 4 << 20,
            response_headers: 64 << 10,
            held: 64 << 20,
        }
    }
}

/// The network dependencies of a gate. The default is the network of this machine.
#[derive(Debug, Clone)]
pub struct Network {
    pub resolver: Arc<dyn Resolver>,
    pub dial: Arc<dyn Dial>,
    /// The trusted roots. An error fails https requests only.
    pub tls: Result<Arc<ClientConfig>, TlsError>,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            resolver: Arc::new(SystemResolver),
            dial: Arc::new(SystemDial),
            tls: tls::client_config().map(Arc::new),
        }
    }
}

/// The only way to send outbound requests. Clones share their connections; each has its own table of seams.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    seams: Seams,
}

struct Shared {
    limits: Limits,
    held: Arc<Shares<Holder>>,
    inner: Arc<Inner>,
    /// Reuses connections.
    client: Client<Connector, Full<Bytes>>,
    /// Opens a new connection for each request.
    fresh: Client<Connector, Full<Bytes>>,
    /// Reuses connections, and speaks HTTP/2 where the peer agrees to it.
    negotiated: Client<Connector, Full<Bytes>>,
    /// Reuses connections, and speaks HTTP/2 only.
    http2: Client<Connector, Full<Bytes>>,
}

impl Shared {
    /// Makes the HTTP clients, which have no connections in common.
    fn new(limits: Limits, held: Arc<Shares<Holder>>, inner: Inner) -> Self {
        let inner = Arc::new(inner);
        let connector = |alpn| Connector {
            inner: Arc::clone(&inner),
            alpn,
        };
        Self {
            client: builder(limits).build(connector(Alpn::Http1)),
            fresh: builder(limits)
                .pool_max_idle_per_host(0)
                .build(connector(Alpn::Http1)),
            negotiated: builder(limits).build(connector(Alpn::Either)),
            http2: builder(limits).http2_only(true).build(connector(Alpn::Http2)),
            limits,
            held,
            inner,
        }
    }
}

impl Gate {
    /// Creates a gate on the network of this machine, with all seams open. Missing root certificates are
    /// logged and fail https requests only.
    #[must_use]
    pub fn new(policy: Policy, limits: Limits) -> Self {
        Self::over(policy, limits, Network::default())
    }

    /// Creates a gate on another network.
    #[must_use]
    pub fn over(policy: Policy, limits: Limits, network: Network) -> Self {
        let Network { resolver, dial, tls } = network;
        if let Err(error) = &tls {
            warn!(cause = ?error, "tls roots unavailable, https requests will fail");
        }
        let inner = Inner {
            policy: Arc::new(policy),
            resolver,
            dial,
            tls: tls.map(|config| Tls::new(&config)),
            timeout: limits.connect,
        };
        let held = Arc::new(Shares::new(limits.held, TIMES_FREE));
        let shared = Shared::new(limits, held, inner);
        Self {
            shared: Arc::new(shared),
            seams: Seams::open(),
        }
    }

    /// A gate with another TLS configuration and connections of its own. Policy, limits and the memory of
    /// responses are shared.
    #[must_use]
    pub fn with_tls(&self, config: &ClientConfig) -> Self {
        let Shared {
            limits, held, inner, ..
        } = &*self.shared;
        let inner = Inner {
            policy: Arc::clone(&inner.policy),
            resolver: Arc::clone(&inner.resolver),
            dial: Arc::clone(&inner.dial),
            tls: Ok(Tls::new(config)),
            timeout: inner.timeout,
        };
        Self {
            shared: Arc::new(Shared::new(*limits, Arc::clone(held), inner)),
            seams: self.seams,
        }
    }

    /// A gate for requests to one place that the operator has configured, with connections of its own. It also lets
    /// through to the address in its URL, `localhost` among them; limits and the memory of responses are shared.
    /// Requests to other places must not use it: a name among them could resolve to that address.
    #[must_use]
    pub fn to_configured(&self, place: &Url) -> Self {
        let Shared {
            limits, held, inner, ..
        } = &*self.shared;
        let addresses = literal_addresses(place).into_iter().map(Cidr::of);
        let mut policy = (*inner.policy).clone();
        policy.allow.extend(addresses);
        if policy == *inner.policy {
            return self.clone();
        }
        let inner = Inner {
            policy: Arc::new(policy),
            resolver: Arc::clone(&inner.resolver),
            dial: Arc::clone(&inner.dial),
            tls: inner.tls.clone(),
            timeout: inner.timeout,
        };
        Self {
            shared: Arc::new(Shared::new(*limits, Arc::clone(held), inner)),
            seams: self.seams,
        }
    }

    /// A copy of the gate with another table of seams.
    #[must_use]
    pub fn with_seams(&self, seams: Seams) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            seams,
        }
    }

    /// A copy of the gate with all seams closed, for replay forks.
    #[must_use]
    pub fn sealed(&self) -> Self {
        self.with_seams(Seams::closed())
    }

    #[must_use]
    pub fn seams(&self) -> Seams {
        self.seams
    }

    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.shared.inner.policy
    }

    /// Checks a URL at registration, without name resolution; see [`Policy::check_registration`].
    ///
    /// # Errors
    /// Returns the first rule that the URL violates.
    pub fn check_registration(&self, url: &Url) -> Result<(), Refusal> {
        self.policy().check_registration(url)
    }

    /// Checks a URL at registration. Resolves the name only if that can reverse a refusal: for plain http or
    /// a local name that the allow-list might contain.
    ///
    /// # Errors
    /// Returns the first rule that the URL violates. If the lookup fails or times out, the original refusal stands.
    pub async fn check_registration_resolving(&self, url: &Url) -> Result<(), Refusal> {
        let Err(refusal) = self.check_registration(url) else {
            return Ok(());
        };
        let Ok(Target {
            transport,
            host: TargetHost::Name(name),
        }) = self.policy().check_use(url)
        else {
            return Err(refusal);
        };
        let resolver = &*self.shared.inner.resolver;
        let found = lookup(self.policy(), resolver, transport, name);
        match timeout(self.shared.limits.connect, found).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(LookupError::Refused(refusal))) => Err(refusal),
            Ok(Err(LookupError::Failed(_))) | Err(_) => Err(refusal),
        }
    }

    /// Parses the URL that a client registers, and checks it like [`Gate::check_registration_resolving`].
    ///
    /// # Errors
    /// Returns the first rule that the text violates.
    pub async fn register(&self, text: &str) -> Result<Url, Refusal> {
        let url = read_url(text)?;
        self.check_registration_resolving(&url).await?;
        Ok(url)
    }

    /// Sends one request through a seam and reads the complete response, whatever its status.
    ///
    /// # Errors
    /// If the error is not transient, nothing was sent, unless the response exceeded a limit: then the peer
    /// has received the request.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection; the peer may or may not have received the request.
    pub async fn request(&self, seam: Seam, request: Request) -> Result<Response, EgressError> {
        let origin = request.url.origin().ascii_serialization();
        let result = self.checked_request(seam, request).await;
        match &result {
            Ok(response) => {
                debug!(%seam, %origin, status = response.status.as_u16(), "egress request answered");
            }
            Err(error) if error.is_transient() => {
                debug!(%seam, %origin, %error, cause = ?error, "egress request failed");
            }
            Err(error) => log_refusal(seam, &origin, error),
        }
        result
    }

    /// Sends one request through a seam and returns the response as soon as its headers have arrived.
    ///
    /// The limits of the gate for time and for response bodies do not apply; [`StreamLimits`] do. `timeout`,
    /// `max_response`, `expects_json` and `head_only` of the request have no effect.
    ///
    /// # Errors
    /// See [`EgressError::may_have_been_sent`].
    ///
    /// # Cancel safety
    /// Dropping the future or the body cuts the peer off; it may or may not have received the request.
    pub async fn stream(
        &self,
        seam: Seam,
        request: Request,
        limits: StreamLimits,
    ) -> Result<http::Response<LimitedBody>, EgressError> {
        let origin = request.url.origin().ascii_serialization();
        let result = self.exchange(seam, request, limits).await;
        match &result {
            Ok(response) => {
                debug!(%seam, %origin, status = response.status().as_u16(), "egress response started");
            }
            Err(error) if error.is_transient() => {
                debug!(%seam, %origin, %error, cause = ?error, "egress request failed");
            }
            Err(error) => log_refusal(seam, &origin, error),
        }
        result
    }

    async fn checked_request(&self, seam: Seam, request: Request) -> Result<Response, EgressError> {
        let limits = self.shared.limits;
        let total = request
            .timeout
            .map_or(limits.total, |asked| asked.min(limits.total));
        let stream = StreamLimits {
            headers: total,
            idle: total,
            total,
            body: request
                .max_response
                .map_or(limits.response_body, |asked| asked.min(limits.response_body)),
        };
        let (head_only, expects_json) = (request.head_only, request.expects_json);
        if head_only {
            // A body that will not be read may be of any length.
            let stream = StreamLimits {
                body: usize::MAX,
                ..stream
            };
            let (head, _) = self.exchange(seam, request, stream).await?.into_parts();
            return Ok(Response {
                status: head.status,
                headers: head.headers,
                body: Bytes::new(),
                share: None,
            });
        }
        let (head, body) = self.exchange(seam, request, stream).await?.into_parts();
        let (body, share) = body.collect(expects_json || is_json(&head.headers)).await?;
        Ok(Response {
            status: head.status,
            headers: head.headers,
            body,
            share: Some(share),
        })
    }

    /// Checks a request, sends it, and waits for the headers of the response.
    async fn exchange(
        &self,
        seam: Seam,
        request: Request,
        limits: StreamLimits,
    ) -> Result<http::Response<LimitedBody>, EgressError> {
        let started = Instant::now();
        self.check(seam, &request)?;
        let client = match (seam.is_delivery(), request.protocol) {
            (true, _) => &self.shared.fresh,
            (false, Protocol::Http1) => &self.shared.client,
            (false, Protocol::Negotiated) => &self.shared.negotiated,
            (false, Protocol::Http2) => &self.shared.http2,
        };
        let share = self.shared.held.share(holder(&request));
        let sent = Box::pin(client.request(outgoing(request)?));
        let incoming = match timeout(limits.headers.min(limits.total), sent).await {
            Ok(answered) => answered.map_err(failed)?,
            Err(_) => return Err(EgressError::Timeout),
        };
        let max_headers = self.shared.limits.response_headers;
        if headers_len(incoming.headers()) > max_headers {
            return Err(EgressError::HeadersTooLarge { limit: max_headers });
        }
        let (head, body) = incoming.into_parts();
        let body = LimitedBody::new(body, limits, max_headers, started, share)?;
        Ok(http::Response::from_parts(head, body))
    }

    /// Applies the rules that need no network.
    fn check(&self, seam: Seam, request: &Request) -> Result<(), EgressError> {
        let limit = match seam == Seam::A2a {
            true => self.shared.limits.message_body,
            false => self.shared.limits.request_body,
        };
        if !self.seams.is_open(seam) {
            return Err(EgressError::Closed(seam));
        }
        if request.method == Method::CONNECT || request.method == Method::TRACE {
            return Err(EgressError::Method);
        }
        if let Some(name) = request.reserved_header() {
            return Err(EgressError::Header(name.clone()));
        }
        if request.body.len() > limit {
            return Err(EgressError::RequestTooLarge { limit });
        }
        let transport = self.policy().check_use(&request.url)?.transport;
        if let (Transport::Tls, Err(error)) = (transport, &self.shared.inner.tls) {
            return Err(EgressError::Tls(error.clone()));
        }
        Ok(())
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("policy", self.policy())
            .field("limits", &self.shared.limits)
            .field("seams", &self.seams)
            .finish_non_exhaustive()
    }
}

/// The addresses that a URL names without a lookup.
fn literal_addresses(url: &Url) -> Vec<IpAddr> {
    match url.host() {
        Some(Host::Ipv4(address)) => vec![address.into()],
        Some(Host::Ipv6(address)) => vec![address.into()],
        Some(Host::Domain("localhost")) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        Some(Host::Domain(_)) | None => Vec::new(),
    }
}

/// The settings that all HTTP clients share.
fn builder(limits: Limits) -> legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_IDLE_PER_HOST)
        .http1_max_buf_size(READ_BUFFER)
        .timer(TokioTimer::new())
        .http2_max_header_list_size(u32::try_from(limits.response_headers).unwrap_or(u32::MAX))
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Converts a request for the HTTP client.
fn outgoing(request: Request) -> Result<http::Request<Full<Bytes>>, EgressError> {
    let mut headers = request.headers;
    if request.protocol == Protocol::Http2 {
        // gRPC requires it, and HTTP/2 allows no other value.
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(trace) = &request.trace {
        // A state of another trace says nothing about this one.
        headers.remove("tracestate");
        for (name, value) in [
            ("traceparent", Some(trace.parent())),
            ("tracestate", trace.state()),
        ] {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(name, value);
            }
        }
    }
    for (name, value) in [(header::USER_AGENT, USER_AGENT), (header::ACCEPT, "*/*")] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    let mut url = request.url;
    url.set_fragment(None);
    let mut outgoing = http::Request::builder()
        .method(request.method)
        .uri(url.as_str())
        .body(Full::new(request.body))
        .map_err(EgressError::Form)?;
    *outgoing.headers_mut() = headers;
    Ok(outgoing)
}

/// Selects the holder charged for the response memory.
fn holder(request: &Request) -> Holder {
    let mut hasher = DefaultHasher::new();
    request.tenant.hash(&mut hasher);
    hasher.finish()
}

/// The memory share of a response, held until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct AnswerShare {
    pub(super) _share: Arc<Share<Holder>>,
}

fn failed(error: legacy::Error) -> EgressError {
    // With TLS 1.3 the peer judges our certificate after the handshake, as we see it: its alert ends the exchange.
    if let Some(problem) = CertificateProblem::within(&error) {
        return EgressError::Certificate {
            problem,
            source: error.into(),
        };
    }
    match ConnectError::within(&error) {
        None => EgressError::Exchange(error.into()),
        Some(ConnectError::Refused(refusal)) => EgressError::Refused(*refusal),
        Some(ConnectError::Unresolved(_)) => EgressError::Unresolved(error.into()),
        Some(ConnectError::Tls(tls)) => EgressError::Tls(tls.clone()),
        Some(ConnectError::Name) => EgressError::Refused(Refusal::Host),
        Some(ConnectError::Timeout) => EgressError::ConnectTimeout,
        Some(ConnectError::Unreachable(_) | ConnectError::Handshake(_)) => EgressError::Connect(error.into()),
    }
}

fn log_refusal(seam: Seam, origin: &str, error: &EgressError) {
    if let Some(left_out) = REFUSED.admit(Instant::now().into_std()) {
        warn!(%seam, %origin, %error, left_out, "egress request refused");
    }
}
