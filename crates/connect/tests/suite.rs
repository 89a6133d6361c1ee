//! Tests of the egress gate, its executors and the A2A client against real sockets on loopback.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail the test that called them"
)]

#[path = "suite/a2a_calls.rs"]
mod a2a_calls;
#[path = "suite/a2a_cards.rs"]
mod a2a_cards;
#[path = "suite/a2a_hostile.rs"]
mod a2a_hostile;
#[path = "suite/a2a_tls.rs"]
mod a2a_tls;
#[path = "suite/agent.rs"]
mod agent;
#[path = "suite/agent_calls.rs"]
mod agent_calls;
#[path = "suite/agent_failures.rs"]
mod agent_failures;
#[path = "suite/agent_questions.rs"]
mod agent_questions;
#[path = "suite/agent_salvage.rs"]
mod agent_salvage;
#[path = "suite/agent_streams.rs"]
mod agent_streams;
#[path = "suite/authority.rs"]
mod authority;
#[path = "suite/delegates.rs"]
mod delegates;
#[path = "suite/delivery.rs"]
mod delivery;
#[path = "suite/executors.rs"]
mod executors;
#[path = "suite/hostile.rs"]
mod hostile;
#[path = "suite/limits.rs"]
mod limits;
#[path = "suite/models.rs"]
mod models;
#[path = "suite/peer.rs"]
mod peer;
#[path = "suite/pinned.rs"]
mod pinned;
#[path = "suite/short_calls.rs"]
mod short_calls;
#[path = "suite/streams.rs"]
mod streams;
#[path = "suite/tasks_http.rs"]
mod tasks_http;
#[path = "suite/tools.rs"]
mod tools;
