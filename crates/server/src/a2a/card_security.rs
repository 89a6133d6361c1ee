//! How to authenticate, as a card tells it: from what the host accepts now, not from a list beside it.
//!
//! Any one of the requirements suffices. Each names the scope a caller needs to send a message; what else a caller
//! may do follows from the scopes it has.

use std::collections::BTreeMap;

use wopr_wire::a2a::model::{HttpAuthSecurityScheme, SecurityRequirement, SecurityScheme};

use crate::{Host, auth::Scope};

/// The scheme of this host's own keys.
const API_KEY: &str = "bearer";

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
    let requirement = |name: &str| SecurityRequirement {
        schemes: BTreeMap::from([(name.to_owned(), vec![Scope::RunsCreate.as_str().to_owned()])]),
    };
    Security {
        requirements: accepted.iter().map(|(name, _)| requirement(name)).collect(),
        schemes: accepted
            .into_iter()
            .map(|(name, scheme)| (name.to_owned(), scheme))
            .collect(),
    }
}
