//! The security section of a card, derived from what the host accepts now.
//!
//! Any one of the requirements suffices. Each lists the scopes needed to send messages and to read tasks with
//! their artifacts. The descriptions of the schemes list the scopes of the other operations.

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

/// The scopes needed to send messages and to read tasks and artifacts.
const NEEDED: [Scope; 3] = [Scope::RunsCreate, Scope::RunsRead, Scope::ArtifactsRead];
const SCOPES: &str = "Sending a message needs runs:create; reading, listing and following tasks and having their \
                      updates pushed, runs:read; the content of artifacts and files, artifacts:read; cancelling, \
                      runs:cancel; answering what a task asks, approvals:respond.";

/// API keys of this host.
const API_KEY: &str = "bearer";
/// Client certificates.
const CERTIFICATE: &str = "mtls";
/// Tokens of an OpenID Connect issuer.
const OIDC: &str = "oidc";

pub(super) struct Security {
    pub(super) schemes: BTreeMap<String, SecurityScheme>,
    pub(super) requirements: Vec<SecurityRequirement>,
}

pub(super) fn of(host: &Host) -> Security {
    let mut accepted = Vec::new();
    if !host.auth().is_empty() {
        let scheme = HttpAuthSecurityScheme {
            description: Some(format!("An API key of this host. {SCOPES}")),
            scheme: "Bearer".to_owned(),
            bearer_format: None,
        };
        accepted.push((API_KEY, SecurityScheme::HttpAuth(scheme)));
    }
    if host.auth().has_certificates() {
        let scheme = MutualTlsSecurityScheme {
            description: Some(format!("A client certificate that this host knows. {SCOPES}")),
        };
        accepted.push((CERTIFICATE, SecurityScheme::MutualTls(scheme)));
    }
    let mut scopes = BTreeMap::new();
    if let Some(oidc) = &host.config().auth.oidc {
        let scheme = OpenIdConnectSecurityScheme {
            description: Some(format!("An access token of this host's issuer. {SCOPES}")),
            open_id_connect_url: oidc.discovery_url(),
        };
        accepted.push((OIDC, SecurityScheme::OpenIdConnect(scheme)));
        scopes.insert(OIDC, issuer_scopes(oidc));
    }
    let requirement = |name: &str| {
        let scopes = scopes.get(name).cloned();
        let scopes = scopes.unwrap_or_else(needed);
        SecurityRequirement {
            schemes: BTreeMap::from([(name.to_owned(), scopes)]),
        }
    };
    let mut requirements: Vec<_> = accepted.iter().map(|(name, _)| requirement(name)).collect();
    if host.config().conformance_open {
        // A requirement without schemes is met without a credential.
        requirements.push(SecurityRequirement {
            schemes: BTreeMap::new(),
        });
    }
    Security {
        requirements,
        schemes: accepted
            .into_iter()
            .map(|(name, scheme)| (name.to_owned(), scheme))
            .collect(),
    }
}

fn needed() -> Vec<String> {
    NEEDED.map(|scope| scope.as_str().to_owned()).to_vec()
}

/// The issuer's scopes that a client must request so that its token may send messages and read tasks.
fn issuer_scopes(oidc: &Oidc) -> Vec<String> {
    if oidc.scopes.is_empty() {
        return needed();
    }
    let mut asked: Vec<(&String, &Scopes)> = Vec::new();
    for scope in NEEDED {
        if asked.iter().any(|(_, held)| held.has(scope)) {
            continue;
        }
        asked.extend(oidc.scopes.iter().find(|(_, held)| held.has(scope)));
    }
    asked.into_iter().map(|(name, _)| name.clone()).collect()
}
