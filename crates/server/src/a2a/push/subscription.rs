//! A push configuration as it is kept: sealed whole, because its URL may carry secrets as well as its token does.
//!
//! What clients are shown of it again is where it leads, without the query, and by which scheme; a token only as a
//! fingerprint, and credentials not at all. A caller manages those it registered, and with `webhooks:manage` all.

use serde::{Deserialize, Serialize};
use url::Url;
use wopr_core::{PrincipalId, RunKey};
use wopr_wire::a2a::{
    method::Version,
    model::{AuthenticationInfo, Secret, TaskPushNotificationConfig},
};

use crate::{
    auth::{Caller, Scope},
    hex::hex,
    secrets::{SealError, Secrets, Subkey},
};

/// Digits of a fingerprint; the record has room for 32.
const FINGERPRINT: usize = 16;
/// What stands for a part of a URL that is not shown.
const HIDDEN: &str = "REDACTED";

/// Where to push, and how to be known there.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subscription {
    /// Bodies are written for this version.
    #[serde(with = "version")]
    pub(super) version: Version,
    /// Who registered it.
    pub(super) owner: PrincipalId,
    /// Where to.
    pub(super) url: String,
    /// What it knows this host by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<String>,
    /// The scheme of `Authorization`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scheme: Option<String>,
    /// What follows it.
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
    /// Reads what a client wants, to be told in a version.
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
                .map(|credentials| credentials.expose().to_owned()),
        }
    }

    /// One that is told in 1.0 and has no secrets.
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

    /// Where it leads, without what may be a secret: the query, the fragment, and a name and password.
    pub(crate) fn shown_url(&self) -> String {
        let Ok(mut url) = Url::parse(&self.url) else {
            return String::new();
        };
        if url.query().is_some() {
            url.set_query(Some(HIDDEN));
        }
        url.set_fragment(None);
        // An address without a host has neither.
        if url.password().is_some() || !url.username().is_empty() {
            let _ = url.set_password(None);
            let _ = url.set_username(HIDDEN);
        }
        url.into()
    }

    /// Whether a caller reads, replaces and removes it: its own, or anybody's with the scope for that.
    pub(crate) fn is_managed_by(&self, caller: &Caller) -> bool {
        self.owner == caller.principal || caller.may(Scope::WebhooksManage)
    }

    /// The whole field `Authorization`, if there is one.
    pub(super) fn authorization(&self) -> Option<String> {
        let (scheme, credentials) = (self.scheme.as_ref()?, self.credentials.as_ref()?);
        Some(format!("{scheme} {credentials}"))
    }

    /// What a client is shown.
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

/// Keeps receivers to itself.
#[derive(Debug, Clone)]
pub(crate) struct SubscriptionCipher {
    seals: Subkey,
    fingerprints: Subkey,
}

impl SubscriptionCipher {
    /// The cipher of a host.
    pub(crate) fn new(secrets: &Secrets) -> Self {
        Self {
            seals: secrets.subkey("push-receiver"),
            fingerprints: secrets.subkey("push-token-fingerprint"),
        }
    }

    /// Seals a receiver for its place.
    ///
    /// # Errors
    /// See [`SealError`].
    pub(super) fn seal(&self, run: &RunKey, id: &str, receiver: &Subscription) -> Result<Vec<u8>, SealError> {
        let text = serde_json::to_vec(receiver).map_err(|_| SealError::Forged)?;
        self.seals.seal(&place(run, id), &text)
    }

    /// Opens a receiver.
    ///
    /// # Errors
    /// See [`SealError`].
    pub(crate) fn open(&self, run: &RunKey, id: &str, sealed: &[u8]) -> Result<Subscription, SealError> {
        let text = self.seals.open(&place(run, id), sealed)?;
        serde_json::from_slice(&text).map_err(|_| SealError::Forged)
    }

    /// What tells two tokens apart and neither from itself.
    pub(crate) fn fingerprint(&self, receiver: &Subscription) -> Option<String> {
        let token = receiver.token.as_ref()?;
        let digest = hex(&self.fingerprints.sign(token.as_bytes()));
        Some(digest.chars().take(FINGERPRINT).collect())
    }
}

/// Names a place unlike every other: no id holds a NUL.
fn place(run: &RunKey, id: &str) -> Vec<u8> {
    [run.tenant.as_str(), run.run.as_str(), id]
        .join("\0")
        .into_bytes()
}
