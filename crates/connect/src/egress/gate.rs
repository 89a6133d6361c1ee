//! The gate: sends one request through one open seam, within its limits.
//!
//! Connections are kept alive for a short time; a reused connection leads to an address that was checked when
//! it was opened. A delivery always opens a new connection, so its address is resolved and checked each time;
//! only the TLS session may be resumed. The gate sends a request once and never retries. The underlying HTTP
//! client has no redirects, proxies or cookies that could be enabled by mistake.

use std::{
    error::Error,
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::{
    client::legacy::{self, Client},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;
use tracing::{debug, warn};
use url::Url;
use wopr_core::HTTP_MAX_TIMEOUT_MS;

use super::{
    connector::{ConnectError, Connector, Inner},
    dial::{Dial, SystemDial},
    message::{Request, Response, is_json},
    policy::{Policy, Refusal, Target, TargetHost, Transport, read_url},
    resolve::{LookupError, Resolver, SystemResolver, lookup},
    seam::{Seam, Seams},
    tls::{self, TlsError},
};
use crate::{
    shares::{Share, Shares},
    weight::{self, TooManyValues},
};

/// Long enough for a burst to one peer, short enough to notice soon that a name has moved.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// Maximum idle connections per peer; a larger burst opens new ones.
const POOL_IDLE_PER_HOST: usize = 16;

/// See [`Shares::new`]: a single tenant may take up to three quarters of the response memory.
const TIMES_FREE: usize = 3;

/// The hash of a tenant.
type Holder = u64;

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
            response_body: 4 << 20,
            response_headers: 64 << 10,
            held: 64 << 20,
        }
    }
}

/// The underlying cause of an [`EgressError`], for the log only.
pub type Cause = Box<dyn Error + Send + Sync>;

/// A failed request.
///
/// No message contains an address, a header value or part of a body. The sources may, so they belong in the
/// log only.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The seam is closed; in a replay fork all seams are.
    #[error("use the closed seam {0}")]
    Closed(Seam),
    /// The URL or one of its addresses violates the policy.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// CONNECT and TRACE are never sent.
    #[error("send a request with a refused method")]
    Method,
    /// Only the gate may set this header.
    #[error("send a request with the reserved header {0}")]
    Header(HeaderName),
    #[error("send a request body over {limit} bytes")]
    RequestTooLarge {
        /// In bytes.
        limit: usize,
    },
    #[error("form the request")]
    Form(#[source] http::Error),
    /// No root certificates are available, so https does not work.
    #[error("set up tls")]
    Tls(#[source] TlsError),
    #[error("resolve the host name")]
    Unresolved(#[source] Cause),
    /// The connection or the TLS handshake failed.
    #[error("connect to the peer")]
    Connect(#[source] Cause),
    /// The connection broke, or the peer did not speak HTTP.
    #[error("exchange the request for an answer")]
    Exchange(#[source] Cause),
    #[error("get a complete answer in time")]
    Timeout,
    #[error("take response headers over {limit} bytes")]
    HeadersTooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The response has so many values that its parsed form would exceed the memory limit.
    #[error("take a response: {0}")]
    TooManyValues(#[from] TooManyValues),
    /// Other responses use up the memory for responses.
    #[error("hold the response beside so many others")]
    Busy,
    /// The response body exceeds the limit; the connection was closed.
    #[error("take a response body over {limit} bytes")]
    ResponseTooLarge {
        /// In bytes.
        limit: usize,
    },
}

impl EgressError {
    /// Returns `true` if the same request could succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unresolved(_) | Self::Connect(_) | Self::Exchange(_) | Self::Busy | Self::Timeout => true,
            Self::Closed(_)
            | Self::Refused(_)
            | Self::Method
            | Self::Header(_)
            | Self::RequestTooLarge { .. }
            | Self::Form(_)
            | Self::Tls(_)
            | Self::HeadersTooLarge { .. }
            | Self::TooManyValues(_)
            | Self::ResponseTooLarge { .. } => false,
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
    connector: Connector,
    /// Reuses connections.
    client: Client<Connector, Full<Bytes>>,
    /// Opens a new connection for each request.
    fresh: Client<Connector, Full<Bytes>>,
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
        let connector = Connector(Arc::new(Inner {
            policy: Arc::new(policy),
            resolver,
            dial,
            tls: tls.map(TlsConnector::from),
            timeout: limits.connect,
        }));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_IDLE_PER_HOST)
            .http1_max_buf_size(READ_BUFFER)
            .build(connector.clone());
        let fresh = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .http1_max_buf_size(READ_BUFFER)
            .build(connector.clone());
        let shared = Shared {
            held: Arc::new(Shares::new(limits.held, TIMES_FREE)),
            limits,
            connector,
            client,
            fresh,
        };
        Self {
            shared: Arc::new(shared),
            seams: Seams::open(),
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
        &self.shared.connector.0.policy
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
        let resolver = &*self.shared.connector.0.resolver;
        let found = lookup(self.policy(), resolver, transport, name);
        match tokio::time::timeout(self.shared.limits.connect, found).await {
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
            Err(error) => warn!(%seam, %origin, %error, "egress request refused"),
        }
        result
    }

    async fn checked_request(&self, seam: Seam, request: Request) -> Result<Response, EgressError> {
        let limits = self.shared.limits;
        if !self.seams.is_open(seam) {
            return Err(EgressError::Closed(seam));
        }
        if request.method == Method::CONNECT || request.method == Method::TRACE {
            return Err(EgressError::Method);
        }
        if let Some(name) = request.reserved_header() {
            return Err(EgressError::Header(name.clone()));
        }
        if request.body.len() > limits.request_body {
            return Err(EgressError::RequestTooLarge {
                limit: limits.request_body,
            });
        }
        let transport = self.policy().check_use(&request.url)?.transport;
        if let (Transport::Tls, Err(error)) = (transport, &self.shared.connector.0.tls) {
            return Err(EgressError::Tls(error.clone()));
        }
        let total = request
            .timeout
            .map_or(limits.total, |asked| asked.min(limits.total));
        let client = match seam.is_delivery() {
            true => &self.shared.fresh,
            false => &self.shared.client,
        };
        let share = self.shared.held.share(holder(&request));
        let exchange = Box::pin(exchange(client, limits, request, share));
        match tokio::time::timeout(total, exchange).await {
            Ok(result) => result,
            Err(_) => Err(EgressError::Timeout),
        }
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

async fn exchange(
    client: &Client<Connector, Full<Bytes>>,
    limits: Limits,
    request: Request,
    share: Share<Holder>,
) -> Result<Response, EgressError> {
    let (max_response, head_only, expects_json) =
        (request.max_response, request.head_only, request.expects_json);
    let outgoing = outgoing(request)?;
    let incoming = client.request(outgoing).await.map_err(failed)?;

    if headers_len(incoming.headers()) > limits.response_headers {
        return Err(EgressError::HeadersTooLarge {
            limit: limits.response_headers,
        });
    }
    let limit = max_response.map_or(limits.response_body, |asked| asked.min(limits.response_body));
    let (head, body) = incoming.into_parts();
    // With `head_only`, dropping an unfinished body closes the connection; one that has ended leaves it reusable.
    let (body, share) = match head_only {
        true => (Bytes::new(), None),
        false => {
            let is_json = expects_json || is_json(&head.headers);
            let (body, share) = read_body(body, limit, is_json, share).await?;
            (body, Some(share))
        }
    };
    Ok(Response {
        body,
        share,
        status: head.status,
        headers: head.headers,
    })
}

/// Converts a request for the HTTP client.
fn outgoing(request: Request) -> Result<http::Request<Full<Bytes>>, EgressError> {
    let trace = request.trace_header();
    let mut headers = request.headers;
    if let Some(trace) = trace {
        headers.insert("traceparent", trace);
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
    _share: Arc<Share<Holder>>,
}

/// Bytes that keep their memory share alive.
struct Held {
    bytes: Bytes,
    _share: AnswerShare,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body within the size limit and the available memory; on an error the connection is closed. A body
/// to be parsed also takes the memory of its parsed form, so that parsing never exceeds the available memory.
async fn read_body(
    mut incoming: Incoming,
    limit: usize,
    is_json: bool,
    mut share: Share<Holder>,
) -> Result<(Bytes, AnswerShare), EgressError> {
    let too_large = EgressError::ResponseTooLarge { limit };
    if incoming.size_hint().lower() > limit as u64 {
        return Err(too_large);
    }
    let mut body = BytesMut::new();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| EgressError::Exchange(error.into()))?;
        // Trailers are ignored.
        let Ok(chunk) = frame.into_data() else { continue };
        if chunk.len() > limit - body.len() {
            return Err(too_large);
        }
        if !share.grow(chunk.len()) {
            return Err(EgressError::Busy);
        }
        body.extend_from_slice(&chunk);
    }
    let n_parsed = if is_json { weight::weigh(&body, limit)? } else { 0 };
    if !share.grow(n_parsed) {
        return Err(EgressError::Busy);
    }
    let share = AnswerShare {
        _share: Arc::new(share),
    };
    let held = Held {
        bytes: body.freeze(),
        _share: share.clone(),
    };
    Ok((Bytes::from_owner(held), share))
}

fn headers_len(headers: &HeaderMap) -> usize {
    // Each header also has a colon, a space and a line end.
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

fn failed(error: legacy::Error) -> EgressError {
    match ConnectError::within(&error) {
        None => EgressError::Exchange(error.into()),
        Some(ConnectError::Refused(refusal)) => EgressError::Refused(*refusal),
        Some(ConnectError::Unresolved(_)) => EgressError::Unresolved(error.into()),
        Some(ConnectError::Tls(tls)) => EgressError::Tls(tls.clone()),
        Some(ConnectError::Name) => EgressError::Refused(Refusal::Host),
        Some(ConnectError::Timeout) => EgressError::Timeout,
        Some(ConnectError::Unreachable(_) | ConnectError::Handshake(_)) => EgressError::Connect(error.into()),
    }
}
