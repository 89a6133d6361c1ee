//! The gate itself: one request through one open seam, within its limits.
//!
//! Connections are kept alive for a short while: a reused one leads to an address that was checked when it was
//! opened. A delivery has one of its own, so its address is looked up and checked each time; only a session of TLS may
//! go on. An attempt is sent once; whoever wants another asks again. The HTTP client below follows no redirect, knows
//! no proxy and keeps no cookie, because it has none of these to begin with.

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

/// Long enough for a burst to one peer, short enough that a moved name is soon looked up again.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// Idle connections per peer: a burst wider than this pays for new ones.
const POOL_IDLE_PER_HOST: usize = 16;

/// How many times what is left free the answers to one tenant may take: alone it has three quarters of the memory.
const TIMES_FREE: usize = 3;

/// Whose an answer is, by a hash of the tenant.
type Holder = u64;

/// What is read of an answer before it is handed on: room for the fields that are taken, and not for much more.
const READ_BUFFER: usize = 128 << 10;

/// How the host introduces itself unless a request says otherwise.
const USER_AGENT: &str = concat!("wopr/", env!("CARGO_PKG_VERSION"));

/// Bounds no request can lift. A request may ask for less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From resolving to a ready connection, TLS included.
    pub connect: Duration,
    /// From resolving to the last byte of the answer; as long as a node may ask for.
    pub total: Duration,
    /// Bytes of a request's body.
    pub request_body: usize,
    /// Bytes of an answer's body.
    pub response_body: usize,
    /// Bytes of an answer's fields. The parser below has a bound of its own, 128 KiB and a hundred fields; this one is
    /// the smaller.
    pub response_headers: usize,
    /// Bytes that all answers together may hold until they are dropped, with what they take once they are parsed.
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

/// What lies below an [`EgressError`], for the log alone.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Why a request has no answer.
///
/// No text holds an address, a header value or a byte of a body. The sources may; they are for
/// the log.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// Nothing may leave from there; in a replay fork that is every seam.
    #[error("use the closed seam {0}")]
    Closed(Seam),
    /// A rule about urls or addresses is broken.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// CONNECT and TRACE are never sent.
    #[error("send a request with a refused method")]
    Method,
    /// The field is the gate's to set.
    #[error("send a request with the reserved header {0}")]
    Header(HeaderName),
    /// The body is over the limit.
    #[error("send a request body over {limit} bytes")]
    RequestTooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The request cannot be put on the wire.
    #[error("form the request")]
    Form(#[source] http::Error),
    /// There are no roots to trust, so no https.
    #[error("set up tls")]
    Tls(#[source] TlsError),
    /// The name's look-up failed.
    #[error("resolve the host name")]
    Unresolved(#[source] Cause),
    /// No connection, or no TLS on it.
    #[error("connect to the peer")]
    Connect(#[source] Cause),
    /// The connection broke or did not speak HTTP.
    #[error("exchange the request for an answer")]
    Exchange(#[source] Cause),
    /// The time was up first.
    #[error("get a complete answer in time")]
    Timeout,
    /// The answer's fields are over the limit.
    #[error("take response headers over {limit} bytes")]
    HeadersTooLarge {
        /// In bytes.
        limit: usize,
    },
    /// The answer holds so many values that it would take more memory than allowed once it is parsed.
    #[error("take a response: {0}")]
    TooManyValues(#[from] TooManyValues),
    /// Other answers fill the memory there is for them.
    #[error("hold the response beside so many others")]
    Busy,
    /// The answer's body is over the limit; the connection was cut there.
    #[error("take a response body over {limit} bytes")]
    ResponseTooLarge {
        /// In bytes.
        limit: usize,
    },
}

impl EgressError {
    /// Whether the same request could succeed later.
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

/// What a gate stands on. The default is this machine's.
#[derive(Debug, Clone)]
pub struct Network {
    /// Names to addresses.
    pub resolver: Arc<dyn Resolver>,
    /// Addresses to connections.
    pub dial: Arc<dyn Dial>,
    /// Whom to trust; missing roots fail https requests only.
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

/// The one way out. Clones share their connections; each carries its own table of seams.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    seams: Seams,
}

struct Shared {
    limits: Limits,
    held: Arc<Shares<Holder>>,
    connector: Connector,
    /// Uses a connection again.
    client: Client<Connector, Full<Bytes>>,
    /// Makes one for each request.
    fresh: Client<Connector, Full<Bytes>>,
}

impl Gate {
    /// Opens a gate on this machine's network, with every seam open. Missing TLS roots are logged and fail https
    /// requests only.
    #[must_use]
    pub fn new(policy: Policy, limits: Limits) -> Self {
        Self::over(policy, limits, Network::default())
    }

    /// Opens a gate on another network.
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

    /// The same gate with another table of seams.
    #[must_use]
    pub fn with_seams(&self, seams: Seams) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            seams,
        }
    }

    /// The same gate with every seam closed: what a replay fork holds.
    #[must_use]
    pub fn sealed(&self) -> Self {
        self.with_seams(Seams::closed())
    }

    /// The table that guards the seams.
    #[must_use]
    pub fn seams(&self) -> Seams {
        self.seams
    }

    /// The operator's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.shared.connector.0.policy
    }

    /// Judges a url at registration, without a look-up; see [`Policy::check_registration`].
    ///
    /// # Errors
    /// Names the first rule the url breaks.
    pub fn check_registration(&self, url: &Url) -> Result<(), Refusal> {
        self.policy().check_registration(url)
    }

    /// Judges a url at registration, asking the resolver only where that can turn a refusal: a
    /// name that may lie in the allow-list, with plain http or a local name.
    ///
    /// # Errors
    /// Names the first rule the url breaks. A look-up that fails or takes too long leaves the
    /// refusal as it was.
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

    /// Reads the text of a url that a client registers, and judges it as
    /// [`Gate::check_registration_resolving`] does.
    ///
    /// # Errors
    /// Names the first rule the text breaks.
    pub async fn register(&self, text: &str) -> Result<Url, Refusal> {
        let url = read_url(text)?;
        self.check_registration_resolving(&url).await?;
        Ok(url)
    }

    /// Sends one request through a seam and reads the whole answer, whatever its status.
    ///
    /// # Errors
    /// See [`EgressError`]; nothing was sent for those that are not transient, except that an
    /// answer over a limit comes from a peer that has seen the request.
    ///
    /// # Cancel safety
    /// Dropping the future cuts the connection; whether the peer saw the request is unknown.
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
    // A body that has ended leaves the connection to others; any other is cut off by dropping it.
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

/// The request as it goes on the wire.
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

/// Whose share of the memory an answer takes.
fn holder(request: &Request) -> Holder {
    let mut hasher = DefaultHasher::new();
    request.tenant.hash(&mut hasher);
    hasher.finish()
}

/// What an answer takes of the memory for answers, until the last is dropped.
#[derive(Debug, Clone)]
pub struct AnswerShare {
    _share: Arc<Share<Holder>>,
}

/// Bytes with their share of the memory.
struct Held {
    bytes: Bytes,
    _share: AnswerShare,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads as long as the body stays within the limit and there is room for it; dropping it then cuts the connection. A
/// body that will be parsed takes the room for that too, so nothing is parsed for which there is none.
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
        // Trailers are nobody's here.
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
    // Each field costs its colon, space and line end too.
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
