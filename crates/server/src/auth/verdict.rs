//! What a credential is found to be: who calls and for how long, or why nobody does.

use tokio::{sync::watch, time::Instant};
use wopr_app::Caller;

/// Why a request has no caller: always 401.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// No `Authorization` header.
    #[error("find a credential in the request")]
    Missing,
    /// A header that is not one `Bearer` secret.
    #[error("read the credential")]
    Malformed,
    /// A secret of no key.
    #[error("recognise the credential")]
    Unknown,
    /// A secret of a revoked key.
    #[error("accept a revoked credential")]
    Revoked,
    /// A token or certificate whose time is over.
    #[error("accept an expired credential")]
    Expired,
}

impl AuthError {
    /// The stable code.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Missing | Self::Malformed | Self::Unknown | Self::Expired => "unauthenticated",
            Self::Revoked => "key_revoked",
        }
    }

    /// What a client is told in `WWW-Authenticate` (RFC 6750).
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

/// A caller, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    /// `None` if nothing ends it while the host runs.
    pub(crate) validity: Option<Validity>,
}

impl From<Caller> for Admitted {
    fn from(caller: Caller) -> Self {
        Self {
            caller,
            validity: None,
        }
    }
}

/// Tells when a credential opens nothing any more.
#[derive(Debug, Clone)]
pub(crate) enum Validity {
    /// When a key is revoked, or replaced by another of its id.
    Key(watch::Receiver<bool>),
    /// When a token has expired.
    Until(Instant),
    /// When a certificate has expired, or its authority is not one of those accepted any more.
    Certificate {
        /// When it expires.
        expires: Instant,
        /// Becomes `true` when it is not accepted any more.
        is_refused: watch::Receiver<bool>,
    },
}

impl Validity {
    /// Returns then.
    pub(super) async fn ended(self) {
        match self {
            Self::Key(mut is_over) => {
                // A sender that is gone took its key along.
                let _ = is_over.wait_for(|is_over| *is_over).await;
            }
            Self::Until(instant) => tokio::time::sleep_until(instant).await,
            Self::Certificate {
                expires,
                mut is_refused,
            } => {
                tokio::select! {
                    () = tokio::time::sleep_until(expires) => {}
                    _ = is_refused.wait_for(|is_refused| *is_refused) => {}
                }
            }
        }
    }
}
