//! Callers known to an identity provider, by OAuth 2.0 or OpenID Connect access tokens (signed JWTs).

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use url::Url;
use wopr_core::TenantId;
use wopr_wire::jws::Algorithm;

use super::types::Period;
use wopr_app::Scopes;

/// An issuer whose tokens are accepted, and how its claims are mapped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Oidc {
    /// The exact `iss` of tokens; also the base of the discovery URL.
    pub issuer: String,
    /// Accepted audiences: a token's `aud` must contain one of them.
    pub audience: Vec<String>,
    /// The URL of the keys; taken from the issuer's discovery document if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    #[serde(default = "algorithms")]
    pub algorithms: Vec<TokenAlgorithm>,
    /// The tenant of every token; exclusive with `tenant_claim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_claim: Option<String>,
    #[serde(default = "principal_claim")]
    pub principal_claim: String,
    /// Prepended to the principal, so that it cannot collide with the principal of a key.
    #[serde(default)]
    pub principal_prefix: String,
    /// The claim that holds the scopes: a space-separated string, or a list.
    #[serde(default = "scope_claim")]
    pub scope_claim: String,
    /// The claim that holds the roles, for gates that require one: a string, or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles_claim: Option<String>,
    /// The claim that holds the groups: a string, or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<String>,
    /// Maps the issuer's scopes to ours. If empty, the issuer uses our names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scopes: BTreeMap<String, Scopes>,
    /// Tolerated clock skew.
    #[serde(default = "leeway")]
    pub leeway: Period,
    /// Minimum interval between fetches of the keys.
    #[serde(default = "refresh")]
    pub refresh: Period,
}

fn algorithms() -> Vec<TokenAlgorithm> {
    vec![TokenAlgorithm(Algorithm::Rs256), TokenAlgorithm(Algorithm::Es256)]
}

fn principal_claim() -> String {
    "sub".to_owned()
}

fn scope_claim() -> String {
    "scope".to_owned()
}

const fn leeway() -> Period {
    Period::from_secs(60)
}

const fn refresh() -> Period {
    Period::from_secs(10)
}

/// The path of the discovery document below the issuer's URL.
const DISCOVERY: &str = "/.well-known/openid-configuration";

impl Oidc {
    #[must_use]
    pub fn discovery_url(&self) -> String {
        format!("{}{DISCOVERY}", self.issuer.trim_end_matches('/'))
    }

    /// Returns the first invalid setting with its rule.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_address = |text: &str| {
            Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "https" | "http") && url.has_host())
        };
        let is_listed = |list: &[String]| !list.is_empty() && list.iter().all(|text| !text.is_empty());
        if !is_address(&self.issuer) {
            return Some(("auth.oidc.issuer", "must be an http or https url"));
        }
        if !self.jwks_url.as_deref().is_none_or(is_address) {
            return Some(("auth.oidc.jwks_url", "must be an http or https url"));
        }
        if !is_listed(&self.audience) {
            return Some(("auth.oidc.audience", "must name at least one audience"));
        }
        if self.algorithms.is_empty() {
            return Some(("auth.oidc.algorithms", "must name at least one algorithm"));
        }
        if self.tenant.is_some() == self.tenant_claim.is_some() {
            return Some(("auth.oidc", "must have either tenant or tenant_claim"));
        }
        if self.leeway.as_duration().as_secs() > 600 {
            return Some(("auth.oidc.leeway", "must be at most 10m"));
        }
        if self.refresh.as_duration().as_secs() < 1 {
            return Some(("auth.oidc.refresh", "must be at least 1s"));
        }
        None
    }
}

/// An asymmetric signature algorithm, by its JOSE name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenAlgorithm(pub Algorithm);

impl FromStr for TokenAlgorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = text.parse().map(Self);
        found.map_err(|_| "must be an algorithm of a key pair, such as RS256, ES256 or EdDSA".to_owned())
    }
}

impl fmt::Display for TokenAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<String> for TokenAlgorithm {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<TokenAlgorithm> for String {
    fn from(algorithm: TokenAlgorithm) -> Self {
        algorithm.to_string()
    }
}
