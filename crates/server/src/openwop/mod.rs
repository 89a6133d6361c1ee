//! The OpenWOP v1 API: REST and server-sent events.
//!
//! ```text
//!   request -> dispatch (route, credential, scopes, body) -> call -> a handler -> engine command or read
//!                                                                        |
//!   answer <- problem (errors) or render (views) <-----------------------'
//! ```
//!
//! A single table of routes drives matching, authorization and the OpenAPI document. A single table maps
//! errors to codes, and a single module renders runs and events. The capability registry decides what is
//! advertised.

pub(crate) mod activities;
mod ancestry;
mod answer;
pub(crate) mod artifacts;
pub(crate) mod budgets;
mod call;
mod calls;
mod capability;
mod control;
mod deliveries;
mod dispatch;
pub(crate) mod events;
mod forks;
pub(crate) mod idempotency;
mod interrupt_page;
pub(crate) mod interrupts;
mod keys;
mod openapi;
mod operations;
mod poll;
pub(crate) mod problem;
pub mod render;
mod route;
mod routes;
pub(crate) mod runs;
mod sample;
mod schemas;
mod secrets;
mod table;
mod tasks;
pub(crate) mod waiting;
pub(crate) mod workers;
pub(crate) mod workflows;

pub use capability::{Capabilities, Discovery};
pub use problem::Problem;

pub(crate) use dispatch::Face;
pub(crate) use render::{failure_details, why_not};

/// 503: there is no memory for the answer.
pub(crate) fn unavailable() -> crate::message::Response {
    Problem::unavailable(1).response()
}

/// Method, path and whether a credential is required, for every route. Tests use it to try each route.
#[must_use]
pub fn routes() -> Vec<(http::Method, &'static str, bool)> {
    let is_public =
        |route: &route::Route| matches!(route.access, route::Access::Public | route::Access::Token);
    table::ROUTES
        .iter()
        .map(|route| (route.verb.method(), route.path, !is_public(route)))
        .collect()
}
