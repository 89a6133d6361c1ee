//! MCP: the host as a server of tools, for agents and editors.
//!
//! ```text
//!   http (POST /mcp)      lines (stdio)
//!          \                 /
//!           message . version            JSON-RPC, and what differs between versions
//!                  |
//!               service                  one request, one answer; nothing is kept between two
//!                  |
//!      tools . resources . prompts       on the use cases of `app`
//! ```
//!
//! A call that takes long never blocks its client: after a while it answers the run as it is, with how to look again.
//! The run is the only state, so a client that lost its connection finds everything by the run's id.

mod ask;
mod http;
mod in_flight;
pub mod lines;
mod message;
mod origin;
mod progress;
mod prompts;
mod protected_resource;
mod resources;
mod service;
mod tools;
mod version;

use std::sync::Arc;

use self::in_flight::InFlight;
use crate::{
    Host,
    auth::AuthError,
    config::{Config, Oidc},
    message::{Request, Response},
};

/// The address of the server, below the origin.
pub const PATH: &str = "/mcp";

/// The server over HTTP.
#[derive(Debug)]
pub(crate) struct Face {
    host: Arc<Host>,
    in_flight: Arc<InFlight>,
}

/// Where in this API a request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Messages,
    Metadata,
}

impl Face {
    pub(crate) fn new(host: &Arc<Host>) -> Self {
        Self {
            host: Arc::clone(host),
            in_flight: Arc::default(),
        }
    }

    /// Finds the target of a path. `None` if the path does not belong to this API.
    pub(crate) fn wanted(path: &str) -> Option<Place> {
        match path.strip_prefix(protected_resource::METADATA) {
            Some("" | PATH) => Some(Place::Metadata),
            Some(_) => None,
            None => (path == PATH).then_some(Place::Messages),
        }
    }

    pub(crate) async fn answer(&self, place: Place, request: Request) -> Response {
        let (head, body) = request.into_parts();
        match place {
            Place::Messages => http::respond(Arc::clone(&self.host), &self.in_flight, head, body).await,
            Place::Metadata => protected_resource::respond(&self.host, &head.method),
        }
    }
}

/// The name of this server as a resource that tokens are for.
pub(crate) fn resource(public_url: &str) -> String {
    format!("{public_url}{PATH}")
}

/// Which tokens are accepted. Clients of MCP ask their issuer for a token for the resource that the host's metadata
/// names (RFC 8707). That name is an audience if it is the operator's, and not derived from the address.
pub(crate) fn token_rules(config: &Config) -> Option<Oidc> {
    let mut rules = config.auth.oidc.clone()?;
    if config.server.public_url.is_some() {
        rules.audience.push(resource(&config.public_url()));
    }
    Some(rules)
}

/// 503: there is no memory for the answer.
pub(crate) fn unavailable() -> Response {
    http::unavailable()
}

/// 401: the credential is not accepted.
pub(crate) fn unauthenticated(host: &Host, error: AuthError) -> Response {
    http::unauthenticated(host, error)
}
