//! The A2A API: runs as tasks, in versions 0.3 and 1.0, over JSON-RPC, HTTP+JSON and gRPC.
//!
//! ```text
//!   routes -> jsonrpc, rest, grpc -- decode, encode --.        ingress, transport: what the bindings share
//!                                                     v
//!                                                  perform
//!                                                     v
//!   card      tasks (get, list, cancel) . send . stream . push . extended
//!    |              |          |        |         |
//!    |           render     history   select    projection      runs to tasks, and messages to commands;
//!    |              '--- question ---'  inputs, answer          pure, except `question` and `history`
//!    v                         v
//!   Engine: workflows       Engine: views, events, commands
//! ```
//!
//! A task is a view of a run under the same id, so this module keeps no durable state of its own. Message ids
//! (for deduplication), client messages and their bytes commit with the run's own events.

mod answer;
mod artifacts;
mod card;
mod card_security;
mod card_sign;
pub(crate) mod conformance;
mod error;
#[cfg(test)]
mod error_table;
mod extended;
mod grpc;
mod handoff;
mod history;
mod ingress;
mod inputs;
mod jsonrpc;
mod lineage;
mod meaning;
mod metadata;
mod modes;
mod page;
mod perform;
mod projection;
pub(crate) mod push;
mod question;
mod render;
mod reply;
mod rest;
mod room;
mod routes;
mod select;
mod send;
mod service;
mod stream;
mod supported;
mod tasks;
mod transport;

use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use wopr_wire::a2a::paths::Verb;

use self::routes::Place;
use crate::{
    Host,
    auth::{self, AuthError},
    message::{Request, Response},
};

pub use card_sign::CardSigner;
pub(crate) use grpc::media::is_grpc;
pub(crate) use lineage::CALLER;
pub use supported::{
    Binding, CARD_PATH, EXTENDED_CARD, INTERFACES, KEYS_PATH, PUSH_NOTIFICATIONS, STREAMING,
};
pub(crate) use transport::unavailable;

/// How runs that messages start say by which way they were started, and the member of their metadata that says more.
pub(crate) const ORIGIN: &str = "a2a";

#[derive(Debug)]
pub(crate) struct Face {
    host: Arc<Host>,
    cards: card::Cards,
    services: grpc::Services,
}

/// Where in this API a request goes.
#[derive(Debug)]
pub(crate) struct Wanted(Way);

#[derive(Debug)]
enum Way {
    Grpc,
    Http(Place),
}

impl Face {
    pub(crate) fn new(host: &Arc<Host>) -> Self {
        Self {
            services: grpc::Services::new(host),
            host: Arc::clone(host),
            cards: card::Cards::default(),
        }
    }

    /// Returns the target of a request, or `None` if the request belongs to another API.
    pub(crate) fn wanted(&self, request: &mut Request) -> Option<Wanted> {
        let way = if is_grpc(request.headers()) {
            Way::Grpc
        } else {
            Way::Http(routes::find(request.method(), request.uri().path())?)
        };
        let config = self.host.config();
        // Open conformance mode admits anonymous callers to this API only.
        if config.conformance && config.conformance_open {
            auth::admit(request.extensions_mut(), conformance::caller);
        }
        Some(Wanted(way))
    }

    /// Answers a request for this API. The futures of the bindings are boxed separately: inline they would
    /// add many kilobytes to the future of every request.
    pub(crate) async fn answer(&self, wanted: Wanted, request: Request) -> Response {
        let host = Arc::clone(&self.host);
        let place = match wanted.0 {
            Way::Grpc => {
                // Extensions only concern events over HTTP.
                return Box::pin(grpc::respond(host, &self.services, request)).await;
            }
            Way::Http(place) => place,
        };
        let (head, body) = request.into_parts();
        let headers = &head.headers;
        let activated = ingress::activated(headers);
        let verb = Verb::from_name(head.method.as_str());
        let response = match place {
            Place::Card(interface) if head.method == http::Method::HEAD || verb == Some(Verb::Get) => {
                card::respond(&host, &self.cards, interface.as_ref(), &head.uri, headers)
            }
            Place::Card(_) => transport::only_read("read the card by GET"),
            Place::Keys if head.method == http::Method::HEAD || verb == Some(Verb::Get) => card::keys(&host),
            Place::Keys => transport::only_read("read the keys by GET"),
            Place::Rpc(interface) if verb == Some(Verb::Post) => {
                Box::pin(jsonrpc::respond(host, interface, head, body)).await
            }
            Place::Rpc(_) => transport::not_allowed(&[Verb::Post], "send JSON-RPC requests by POST"),
            Place::Rest(place) => Box::pin(rest::respond(host, place, &head, body)).await,
            Place::Nothing => rest::nothing(&head.extensions),
            Place::NoAgent => transport::nothing("there is no such agent"),
        };
        with_extensions(response, activated)
    }
}

/// 401, in the words of the binding.
pub(crate) fn unauthenticated(error: AuthError, is_grpc: bool) -> Response {
    match is_grpc {
        true => grpc::unauthenticated(&error),
        false => transport::unauthenticated(error),
    }
}

/// Adds the header that lists the activated extensions.
fn with_extensions(mut response: Response, activated: Option<(HeaderName, HeaderValue)>) -> Response {
    if let Some((name, value)) = activated {
        response.headers_mut().insert(name, value);
    }
    response
}
