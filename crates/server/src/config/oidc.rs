//! Callers known to an identity provider: OAuth 2.0 access tokens and OpenID Connect, as signed JWTs.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use url::Url;
use wopr_core::TenantId;
use wopr_wire::jws::Algorithm;

use super::types::Period;
use crate::auth::Scopes;

/// An issuer whose tokens are accepted, and what its claims mean here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Oidc {
    /// Exactly what tokens have as `iss`; discovery starts from it.
    pub issuer: String,
    /// A token is for this host if one of these is in its `aud`.
    pub audience: Vec<String>,
    /// Where the keys are; from the issuer's discovery document where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// The signatures that are accepted.
    #[serde(default = "algorithms")]
    pub algorithms: Vec<TokenAlgorithm>,
    /// The tenant of every token; this or `tenant_claim`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<TenantId>,
    /// The claim that names the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_claim: Option<String>,
    /// The claim that names the principal.
    #[serde(default = "principal_claim")]
    pub principal_claim: String,
    /// What goes before it, so that no principal of a key has the same name.
    #[serde(default)]
    pub principal_prefix: String,
    /// The claim with the scopes: a text with spaces between, or a list.
    #[serde(default = "scope_claim")]
    pub scope_claim: String,
    /// The claim with the roles, for gates that ask for one: a text, or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles_claim: Option<String>,
    /// The claim with the groups: a text, or a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups_claim: Option<String>,
    /// What the issuer's scopes mean here; where empty, they are this host's own names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scopes: BTreeMap<String, Scopes>,
    /// By how much clocks may differ.
    #[serde(default = "leeway")]
    pub leeway: Period,
    /// The least time between two fetches of the keys.
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

/// Where an issuer describes itself, below its name.
const DISCOVERY: &str = "/.well-known/openid-configuration";

impl Oidc {
    /// Where the issuer describes itself.
    #[must_use]
    pub fn discovery_url(&self) -> String {
        format!("{}{DISCOVERY}", self.issuer.trim_end_matches('/'))
    }

    /// The setting that does not hold, with its rule.
    pub(super) fn problem(&self) -> Option<(&'static str, &'static str)> {
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

/// An algorithm of a key pair, by its name in JOSE.
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
