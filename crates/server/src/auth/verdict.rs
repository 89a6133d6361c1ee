//! The result of checking a credential: a caller and a validity, or an error.

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};
use wopr_app::Caller;

/// A request without a caller; the response is always 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// There is no `Authorization` header.
    #[error("find a credential in the request")]
    Missing,
    /// The header is not exactly one `Bearer` secret.
    #[error("read the credential")]
    Malformed,
    #[error("recognise the credential")]
    Unknown,
    #[error("accept a revoked credential")]
    Revoked,
    /// The token or certificate has expired.
    #[error("accept an expired credential")]
    Expired,
}

impl AuthError {
    /// The stable error code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing | Self::Malformed | Self::Unknown | Self::Expired => "unauthenticated",
            Self::Revoked => "key_revoked",
        }
    }

    /// The value of `WWW-Authenticate` (RFC 6750).
    #[must_use]
    pub const fn challenge(self) -> &'static str {
        match self {
            Self::Missing => "Bearer realm=\"wopr\"",
            Self::Malformed => "Bearer realm=\"wopr\", error=\"invalid_request\"",
            Self::Unknown | Self::Revoked => "Bearer realm=\"wopr\", error=\"invalid_token\"",
            Self::Expired => {
                "Bearer realm=\"wopr\", error=\"invalid_token\", error_description=\"the token has expired\""
            }
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    /// Shared: every request of a key clones it several times, on all cores.
    pub(crate) caller: Arc<Caller>,
    /// `None` if nothing invalidates the credential while the host runs.
    pub(crate) validity: Option<Validity>,
}

impl From<Arc<Caller>> for Admitted {
    fn from(caller: Arc<Caller>) -> Self {
        Self {
            caller,
            validity: None,
        }
    }
}

/// How long a credential stays valid.
#[derive(Debug, Clone)]
pub(crate) enum Validity {
    /// Until the key is revoked, or replaced under the same id.
    Key(watch::Receiver<bool>),
    /// Until the token expires.
    Until(Instant),
    /// Until the certificate expires, or its authority is no longer accepted.
    Certificate {
        expires: Instant,
        /// Becomes `true` when the certificate is no longer accepted.
        is_refused: watch::Receiver<bool>,
    },
}

impl Validity {
    /// Waits until the credential is no longer valid, and says why it is not.
    pub(crate) async fn ended(self) -> AuthError {
        match self {
            Self::Key(mut is_over) => {
                // A dropped sender means that the key was removed.
                let _ = is_over.wait_for(|is_over| *is_over).await;
                AuthError::Revoked
            }
            Self::Until(instant) => {
                tokio::time::sleep_until(instant).await;
                AuthError::Expired
            }
            Self::Certificate {
                expires,
                mut is_refused,
            } => {
                tokio::select! {
                    () = tokio::time::sleep_until(expires) => {}
                    _ = is_refused.wait_for(|is_refused| *is_refused) => {}
                }
                AuthError::Expired
            }
        }
    }
}
