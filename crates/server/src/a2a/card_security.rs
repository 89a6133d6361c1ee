//! How to authenticate, as a card tells it: from what the host accepts now, not from a list beside it.
//!
//! Any one of the requirements suffices. Each names the scope a caller needs to send a message; what else a caller
//! may do follows from the scopes it has.

use std::collections::BTreeMap;

use wopr_wire::a2a::model::{
    HttpAuthSecurityScheme, MutualTlsSecurityScheme, OpenIdConnectSecurityScheme, SecurityRequirement,
    SecurityScheme,
};

use crate::{
    Host,
    auth::{Scope, Scopes},
    config::Oidc,
};

/// The scheme of this host's own keys.
const API_KEY: &str = "bearer";
/// The scheme of client certificates.
const CERTIFICATE: &str = "mtls";
/// The scheme of an issuer's tokens.
const OIDC: &str = "oidc";

/// The two members of a card that say how to authenticate.
pub(super) struct Security {
    pub(super) schemes: BTreeMap<String, SecurityScheme>,
    pub(super) requirements: Vec<SecurityRequirement>,
}

/// What a host accepts.
pub(super) fn of(host: &Host) -> Security {
    let mut accepted = Vec::new();
    if !host.auth().is_empty() {
        let scheme = HttpAuthSecurityScheme {
            description: Some("An API key of this host.".to_owned()),
            scheme: "Bearer".to_owned(),
            bearer_format: None,
        };
        accepted.push((API_KEY, SecurityScheme::HttpAuth(scheme)));
    }
    if host.auth().has_certificates() {
        let scheme = MutualTlsSecurityScheme {
            description: Some("A client certificate that this host knows.".to_owned()),
        };
        accepted.push((CERTIFICATE, SecurityScheme::MutualTls(scheme)));
    }
    let mut scopes = BTreeMap::new();
    if let Some(oidc) = &host.config().auth.oidc {
        let scheme = OpenIdConnectSecurityScheme {
            description: Some("An access token of this host's issuer.".to_owned()),
            open_id_connect_url: oidc.discovery_url(),
        };
        accepted.push((OIDC, SecurityScheme::OpenIdConnect(scheme)));
        scopes.insert(OIDC, issuer_scopes(oidc));
    }
    let requirement = |name: &str| {
        let scopes = scopes.get(name).cloned();
        let scopes = scopes.unwrap_or_else(|| vec![Scope::RunsCreate.as_str().to_owned()]);
        SecurityRequirement {
            schemes: BTreeMap::from([(name.to_owned(), scopes)]),
        }
    };
    Security {
        requirements: accepted.iter().map(|(name, _)| requirement(name)).collect(),
        schemes: accepted
            .into_iter()
            .map(|(name, scheme)| (name.to_owned(), scheme))
            .collect(),
    }
}

/// What to ask an issuer for, so that a token may send: one of its scopes that means that here.
fn issuer_scopes(oidc: &Oidc) -> Vec<String> {
    if oidc.scopes.is_empty() {
        return vec![Scope::RunsCreate.as_str().to_owned()];
    }
    let sends = |(_, held): &(&String, &Scopes)| held.has(Scope::RunsCreate);
    oidc.scopes
        .iter()
        .find(sends)
        .map(|(name, _)| name.clone())
        .into_iter()
        .collect()
}
