//! The gate itself: one request through one open seam, within its limits.
//!
//! Two clients stand behind it, one per transport, because the address arm depends on the scheme
//! and the resolver that applies it is part of a client. Connections are kept alive for a short
//! while: a reused one leads to an address that was checked when it was opened. An attempt is
//! sent once; whoever wants another asks again.

use std::{fmt, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, Method};
use reqwest::{Client, redirect, retry};
use tracing::{debug, warn};
use url::Url;

use super::{
    message::{Request, Response},
    policy::{Policy, Refusal, Target, TargetHost, Transport},
    resolve::{Guard, LookupError, Resolver, SystemResolver},
    seam::{Seam, Seams},
    tls::{self, TlsError},
};

/// Long enough for a burst to one peer, short enough that a moved name is soon looked up again.
const POOL_IDLE: Duration = Duration::from_secs(30);

/// Idle connections per peer: a burst wider than this pays for new ones.
const POOL_IDLE_PER_HOST: usize = 16;

/// How the host introduces itself unless a request says otherwise.
const USER_AGENT: &str = concat!("wopr/", env!("CARGO_PKG_VERSION"));

/// Bounds no request can lift. A request may ask for less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From resolving to a ready connection, TLS included.
    pub connect: Duration,
    /// From resolving to the last byte of the answer.
    pub total: Duration,
    /// Bytes of a request's body.
    pub request_body: usize,
    /// Bytes of an answer's body.
    pub response_body: usize,
    /// Bytes of an answer's fields. The parser below has a bound of its own, some 400 KiB and a
    /// hundred fields; this one is the smaller.
    pub response_headers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            total: Duration::from_secs(300),
            request_body: 4 << 20,
            response_body: 4 << 20,
            response_headers: 64 << 10,
        }
    }
}

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
    /// The client cannot put the request on the wire.
    #[error("form the request")]
    Form(#[source] reqwest::Error),
    /// There are no roots to trust, so no https.
    #[error("set up tls")]
    Tls(#[source] TlsError),
    /// The name's look-up failed.
    #[error("resolve the host name")]
    Unresolved(#[source] reqwest::Error),
    /// No connection, or no TLS on it.
    #[error("connect to the peer")]
    Connect(#[source] reqwest::Error),
    /// The connection broke or did not speak HTTP.
    #[error("exchange the request for an answer")]
    Exchange(#[source] reqwest::Error),
    /// The time was up first.
    #[error("get a complete answer in time")]
    Timeout,
    /// The answer's fields are over the limit.
    #[error("take response headers over {limit} bytes")]
    HeadersTooLarge {
        /// In bytes.
        limit: usize,
    },
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
            Self::Unresolved(_) | Self::Connect(_) | Self::Exchange(_) | Self::Timeout => true,
            Self::Closed(_)
            | Self::Refused(_)
            | Self::Method
            | Self::Header(_)
            | Self::RequestTooLarge { .. }
            | Self::Form(_)
            | Self::Tls(_)
            | Self::HeadersTooLarge { .. }
            | Self::ResponseTooLarge { .. } => false,
        }
    }
}

/// A gate cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The HTTP client refuses its configuration.
    #[error("build the http client")]
    Client(#[source] reqwest::Error),
    /// TLS itself is broken, roots aside.
    #[error("configure tls")]
    Tls(#[from] TlsError),
}

/// The one way out. Clones share their connections; each carries its own table of seams.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    seams: Seams,
}

struct Shared {
    policy: Arc<Policy>,
    limits: Limits,
    resolver: Arc<dyn Resolver>,
    plain: Client,
    /// Missing roots do not stop a host that never calls out.
    tls: Result<Client, TlsError>,
}

impl Gate {
    /// Opens a gate with the operating system's resolver and every seam open.
    ///
    /// # Errors
    /// The HTTP client cannot be built. Missing TLS roots are logged and fail https requests only.
    pub fn new(policy: Policy, limits: Limits) -> Result<Self, BuildError> {
        Self::with_resolver(policy, limits, Arc::new(SystemResolver))
    }

    /// Opens a gate with a resolver of the caller's.
    ///
    /// # Errors
    /// As [`Gate::new`].
    pub fn with_resolver(
        policy: Policy,
        limits: Limits,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Self, BuildError> {
        let policy = Arc::new(policy);
        let guard = |transport| Guard {
            policy: Arc::clone(&policy),
            resolver: Arc::clone(&resolver),
            transport,
        };
        let tls = match tls::client_config() {
            Ok(config) => Ok(client(guard(Transport::Tls), limits, config)?),
            Err(error) => {
                warn!(cause = ?error, "tls roots unavailable, https requests will fail");
                Err(error)
            }
        };
        // The plain client never starts TLS; without a configuration it would look for a default provider.
        let plain = client(guard(Transport::Plain), limits, tls::rootless_config()?)?;
        let shared = Shared {
            policy,
            limits,
            resolver,
            plain,
            tls,
        };
        Ok(Self {
            shared: Arc::new(shared),
            seams: Seams::open(),
        })
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
        &self.shared.policy
    }

    /// Judges a url at registration, without a look-up; see [`Policy::check_registration`].
    ///
    /// # Errors
    /// Names the first rule the url breaks.
    pub fn check_registration(&self, url: &Url) -> Result<(), Refusal> {
        self.shared.policy.check_registration(url)
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
        }) = self.shared.policy.check_use(url)
        else {
            return Err(refusal);
        };
        let guard = Guard {
            policy: Arc::clone(&self.shared.policy),
            resolver: Arc::clone(&self.shared.resolver),
            transport,
        };
        match tokio::time::timeout(self.shared.limits.connect, guard.lookup(name)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(LookupError::Refused(refusal))) => Err(refusal),
            Ok(Err(LookupError::Failed(_))) | Err(_) => Err(refusal),
        }
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
        let client = match self.shared.policy.check_use(&request.url)?.transport {
            Transport::Plain => &self.shared.plain,
            Transport::Tls => self
                .shared
                .tls
                .as_ref()
                .map_err(|error| EgressError::Tls(error.clone()))?,
        };
        let total = request
            .timeout
            .map_or(limits.total, |asked| asked.min(limits.total));
        match tokio::time::timeout(total, Box::pin(exchange(client, limits, request))).await {
            Ok(result) => result,
            Err(_) => Err(EgressError::Timeout),
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("policy", &self.shared.policy)
            .field("limits", &self.shared.limits)
            .field("seams", &self.seams)
            .finish_non_exhaustive()
    }
}

fn client(guard: Guard, limits: Limits, tls: rustls::ClientConfig) -> Result<Client, BuildError> {
    Client::builder()
        .tls_backend_preconfigured(tls)
        .dns_resolver(guard)
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .no_proxy()
        .referer(false)
        .user_agent(USER_AGENT)
        .connect_timeout(limits.connect)
        .pool_idle_timeout(POOL_IDLE)
        .pool_max_idle_per_host(POOL_IDLE_PER_HOST)
        .build()
        .map_err(BuildError::Client)
}

async fn exchange(client: &Client, limits: Limits, request: Request) -> Result<Response, EgressError> {
    let trace = request.trace_header();
    let mut headers = request.headers;
    if let Some(trace) = trace {
        headers.insert("traceparent", trace);
    }
    let mut outgoing = client.request(request.method, request.url).headers(headers);
    if !request.body.is_empty() {
        outgoing = outgoing.body(request.body);
    }
    let mut incoming = outgoing.send().await.map_err(failed)?;

    if headers_len(incoming.headers()) > limits.response_headers {
        return Err(EgressError::HeadersTooLarge {
            limit: limits.response_headers,
        });
    }
    let limit = request
        .max_response
        .map_or(limits.response_body, |asked| asked.min(limits.response_body));
    let body = read_body(&mut incoming, limit).await?;
    Ok(Response {
        status: incoming.status(),
        headers: std::mem::take(incoming.headers_mut()),
        body,
    })
}

/// Reads as long as the body stays within the limit; dropping the answer then cuts the connection.
async fn read_body(incoming: &mut reqwest::Response, limit: usize) -> Result<Bytes, EgressError> {
    let too_large = EgressError::ResponseTooLarge { limit };
    if incoming.content_length().is_some_and(|len| len > limit as u64) {
        return Err(too_large);
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = incoming.chunk().await.map_err(failed)? {
        if chunk.len() > limit - body.len() {
            return Err(too_large);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn headers_len(headers: &HeaderMap) -> usize {
    // Each field costs its colon, space and line end too.
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

fn failed(error: reqwest::Error) -> EgressError {
    // The url may hold secrets and would be printed with the error.
    let error = error.without_url();
    match LookupError::within(&error) {
        Some(LookupError::Refused(refusal)) => return EgressError::Refused(*refusal),
        Some(LookupError::Failed(_)) => return EgressError::Unresolved(error),
        None => {}
    }
    if error.is_timeout() {
        EgressError::Timeout
    } else if error.is_builder() {
        EgressError::Form(error)
    } else if error.is_connect() {
        EgressError::Connect(error)
    } else {
        EgressError::Exchange(error)
    }
}
