//! Errors of requests through the gate.

use std::error::Error;

use http::HeaderName;

use super::{
    policy::Refusal,
    seam::Seam,
    tls::{CertificateProblem, TlsError},
};
use crate::weight::TooManyValues;

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
    /// One side does not accept the other's certificate; nothing was processed.
    #[error("agree on tls: {problem}")]
    Certificate {
        problem: CertificateProblem,
        #[source]
        source: Cause,
    },
    /// The connection broke, or the peer did not speak HTTP.
    #[error("exchange the request for an answer")]
    Exchange(#[source] Cause),
    /// Nothing was sent.
    #[error("connect to the peer in time")]
    ConnectTimeout,
    #[error("get a complete answer in time")]
    Timeout,
    /// The peer sent the start of a response, and then nothing for too long.
    #[error("get the next part of an answer in time")]
    Stalled,
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
            Self::Unresolved(_)
            | Self::Connect(_)
            | Self::Certificate { .. }
            | Self::ConnectTimeout
            | Self::Exchange(_)
            | Self::Busy
            | Self::Timeout
            | Self::Stalled => true,
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

    /// Returns `true` if the peer may have received the request, or a part of it.
    #[must_use]
    pub fn may_have_been_sent(&self) -> bool {
        match self {
            Self::Exchange(_)
            | Self::Timeout
            | Self::Stalled
            | Self::HeadersTooLarge { .. }
            | Self::TooManyValues(_)
            | Self::Busy
            | Self::ResponseTooLarge { .. } => true,
            Self::Closed(_)
            | Self::Refused(_)
            | Self::Method
            | Self::Header(_)
            | Self::RequestTooLarge { .. }
            | Self::Form(_)
            | Self::Tls(_)
            | Self::Certificate { .. }
            | Self::Unresolved(_)
            | Self::Connect(_)
            | Self::ConnectTimeout => false,
        }
    }
}
