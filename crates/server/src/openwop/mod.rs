//! The OpenWOP v1 face: REST and server-sent events.
//!
//! ```text
//!   request -> dispatch (routes, who, may they, body) -> call -> a handler -> engine command or read
//!                                                                  |
//!   answer <- problem (errors) or render (views) <-----------------'
//! ```
//!
//! One table of routes drives matching, credentials and the OpenAPI document; one table maps errors to codes;
//! one seam renders runs and events. The capability registry says what is advertised.

mod answer;
mod artifacts;
mod call;
mod capability;
mod control;
mod deliveries;
mod dispatch;
mod events;
mod idempotency;
mod interrupt_page;
mod interrupts;
mod keys;
mod openapi;
mod operations;
mod poll;
mod problem;
pub mod render;
mod route;
mod routes;
mod runs;
mod sample;
mod schemas;
mod table;
mod tasks;
mod waiting;
mod workflows;

pub use capability::{Capabilities, Discovery};
pub use interrupts::voter;
pub use problem::Problem;
pub use waiting::{here, open_interrupts};

pub(crate) use dispatch::Face;

/// There is no room for an answer.
pub(crate) fn unavailable() -> axum::response::Response {
    Problem::unavailable(1).response()
}

/// Method, path and whether a credential is needed, of every route: for tests that try each of them.
#[must_use]
pub fn routes() -> Vec<(http::Method, &'static str, bool)> {
    let is_public =
        |route: &route::Route| matches!(route.access, route::Access::Public | route::Access::Token);
    table::ROUTES
        .iter()
        .map(|route| (route.verb.method(), route.path, !is_public(route)))
        .collect()
}
