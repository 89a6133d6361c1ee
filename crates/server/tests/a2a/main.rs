//! The A2A face over real sockets: journeys in both versions, streams, errors and access control.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test that called them"
)]
#![expect(
    clippy::needless_pass_by_value,
    reason = "documents are written where they are used"
)]

mod answers;
mod at_hand;
mod authority;
mod binding;
mod bindings;
mod card;
mod client;
mod conformance;
mod counting;
mod crowded;
mod echo;
mod errors;
mod grpc;
mod http2;
mod journey;
mod lists;
mod once;
mod operational;
mod push;
mod push_along;
mod records;
mod rest;
mod retention;
mod schema;
mod seams;
mod signing;
mod speaker;
mod strangers;
mod streams;
mod support;
mod tenants;
mod trust;
mod turns;
mod unseen;
mod views;
