//! A stored push configuration. It is encrypted as a whole, because its URL may carry secrets like its token
//! does.
//!
//! Clients get back the URL without its query and the authentication scheme. They see a token only as a
//! fingerprint, and credentials not at all. Callers manage the configurations they registered; callers with
//! `webhooks:manage` manage all.

use serde::{Deserialize, Serialize};
use url::Url;
use wopr_app::{Error as AppError, SealSubscription};
use wopr_core::{PrincipalId, RunKey};
use wopr_wire::a2a::{
    method::Version,
    model::{AuthenticationInfo, Secret, TaskPushNotificationConfig},
};

use crate::{
    hex,
    secrets::{SealError, Secrets, Subkey},
};

/// Hex digits of a fingerprint; the record has room for 32.
const FINGERPRINT: usize = 16;
/// Stands for a part of a URL that is not shown.
const HIDDEN: &str = "REDACTED";

/// Where to push, and how to authenticate there.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subscription {
    /// The A2A version of the bodies.
    #[serde(with = "version")]
    pub(super) version: Version,
    pub(super) owner: PrincipalId,
    pub(super) url: String,
    /// Identifies this host to the receiving endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scheme: Option<String>,
    /// The credentials after the scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) credentials: Option<String>,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

mod version {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use wopr_wire::a2a::method::Version;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
    pub(super) fn serialize<S: Serializer>(version: &Version, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(version.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Version, D::Error> {
        let text = String::deserialize(deserializer)?;
        Version::ALL
            .iter()
            .copied()
            .find(|version| version.as_str() == text)
            .ok_or_else(|| D::Error::custom("an unknown version"))
    }
}

impl Subscription {
    /// Reads a client's configuration; `version` is the A2A version of the bodies.
    pub(super) fn of(config: &TaskPushNotificationConfig, version: Version, owner: &PrincipalId) -> Self {
        let authentication = config.authentication.as_ref();
        Self {
            version,
            owner: owner.clone(),
            url: config.url.clone(),
            token: config.token.as_ref().map(|token| token.expose().to_owned()),
            scheme: authentication.map(|info| info.scheme.clone()),
            credentials: authentication
                .and_then(|info| info.credentials.as_ref())
                // In protocol buffers, an empty text is an absent one.
                .filter(|credentials| !credentials.expose().trim().is_empty())
                .map(|credentials| credentials.expose().to_owned()),
        }
    }

    /// A subscription for 1.0 bodies, without secrets.
    pub(super) fn at(url: Url, owner: &PrincipalId) -> Self {
        Self {
            version: Version::V1_0,
            owner: owner.clone(),
            url: url.into(),
            token: None,
            scheme: None,
            credentials: None,
        }
    }

    /// The URL without parts that may be secret: query, fragment, user name and password.
    pub(crate) fn shown_url(&self) -> String {
        let Ok(mut url) = Url::parse(&self.url) else {
            return String::new();
        };
        if url.query().is_some() {
            url.set_query(Some(HIDDEN));
        }
        url.set_fragment(None);
        // A URL without a host has no user name or password.
        if url.password().is_some() || !url.username().is_empty() {
            let _ = url.set_password(None);
            let _ = url.set_username(HIDDEN);
        }
        url.into()
    }

    /// The value of the `Authorization` header.
    pub(super) fn authorization(&self) -> Option<String> {
        let (scheme, credentials) = (self.scheme.as_ref()?, self.credentials.as_ref()?);
        Some(format!("{scheme} {credentials}"))
    }

    /// The configuration as clients see it.
    pub(super) fn shown(&self, run: &RunKey, id: &str) -> TaskPushNotificationConfig {
        TaskPushNotificationConfig {
            tenant: None,
            id: Some(id.to_owned()),
            task_id: Some(run.run.to_string()),
            url: self.shown_url(),
            token: None::<Secret>,
            authentication: self.scheme.clone().map(|scheme| AuthenticationInfo {
                scheme,
                credentials: None,
            }),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct SubscriptionCipher {
    seals: Subkey,
    fingerprints: Subkey,
}

impl SubscriptionCipher {
    pub(crate) fn new(secrets: &Secrets) -> Self {
        Self {
            seals: secrets.subkey("push-receiver"),
            fingerprints: secrets.subkey("push-token-fingerprint"),
        }
    }

    pub(super) fn open(&self, run: &RunKey, id: &str, sealed: &[u8]) -> Result<Subscription, SealError> {
        let text = self.seals.open(&place(run, id), sealed)?;
        serde_json::from_slice(&text).map_err(|_| SealError::Forged)
    }

    /// A keyed hash of the token: it distinguishes tokens without revealing them.
    pub(crate) fn fingerprint(&self, subscription: &Subscription) -> Option<String> {
        let token = subscription.token.as_ref()?;
        let digest = hex(&self.fingerprints.sign(token.as_bytes()));
        Some(digest.chars().take(FINGERPRINT).collect())
    }
}

impl SealSubscription for SubscriptionCipher {
    type Subscription = Subscription;

    fn seal(&self, run: &RunKey, id: &str, subscription: &Subscription) -> Result<Vec<u8>, AppError> {
        let text = serde_json::to_vec(subscription);
        let text = text.map_err(|error| AppError::Internal(format!("push configuration: {error}").into()))?;
        let sealed = self.seals.seal(&place(run, id), &text);
        sealed.map_err(|error| AppError::Internal(format!("push configuration not sealed: {error}").into()))
    }

    fn open(&self, run: &RunKey, id: &str, sealed: &[u8]) -> Result<Subscription, AppError> {
        Self::open(self, run, id, sealed).map_err(|error| {
            AppError::Internal(format!("push configuration {id} of {run} not readable: {error}").into())
        })
    }

    fn owner(subscription: &Subscription) -> &PrincipalId {
        &subscription.owner
    }
}

/// A unique name for a subscription: ids contain no NUL.
fn place(run: &RunKey, id: &str) -> Vec<u8> {
    [run.tenant.as_str(), run.run.as_str(), id]
        .join("\0")
        .into_bytes()
}
