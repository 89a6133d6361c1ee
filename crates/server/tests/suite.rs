//! Black-box tests of the server: real sockets, both embedded stores, no mocks.
#![expect(
    clippy::needless_pass_by_value,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "helpers of tests fail the test that called them, take literals and say when they had nothing to check"
)]

#[path = "suite/activities.rs"]
mod activities;
#[path = "suite/agent_events.rs"]
mod agent_events;
#[path = "suite/agent_files.rs"]
mod agent_files;
#[path = "suite/agent_memory.rs"]
mod agent_memory;
#[path = "suite/agent_questions.rs"]
mod agent_questions;
#[path = "suite/agents.rs"]
mod agents;
#[path = "suite/ancestry.rs"]
mod ancestry;
#[path = "suite/approvers.rs"]
mod approvers;
#[path = "suite/authoring.rs"]
mod authoring;
#[path = "suite/authority.rs"]
mod authority;
#[path = "suite/awp.rs"]
mod awp;
#[path = "suite/awp_answers.rs"]
mod awp_answers;
#[path = "suite/awp_control.rs"]
mod awp_control;
#[path = "suite/awp_delegates.rs"]
mod awp_delegates;
#[path = "suite/awp_examples.rs"]
mod awp_examples;
#[path = "suite/awp_import.rs"]
mod awp_import;
#[path = "suite/awp_openapi.rs"]
mod awp_openapi;
#[path = "suite/awp_vectors.rs"]
mod awp_vectors;
#[path = "suite/binding.rs"]
mod binding;
#[path = "suite/budgets.rs"]
mod budgets;
#[path = "suite/claims.rs"]
mod claims;
#[path = "suite/client.rs"]
mod client;
#[path = "suite/clocks.rs"]
mod clocks;
#[path = "suite/context_budgets.rs"]
mod context_budgets;
#[path = "suite/conversations.rs"]
mod conversations;
#[path = "suite/cors.rs"]
mod cors;
#[path = "suite/dialects.rs"]
mod dialects;
#[path = "suite/discovery.rs"]
mod discovery;
#[path = "suite/errors.rs"]
mod errors;
#[path = "suite/files.rs"]
mod files;
#[path = "suite/fixtures.rs"]
mod fixtures;
#[path = "suite/fork_memory.rs"]
mod fork_memory;
#[path = "suite/forks.rs"]
mod forks;
#[path = "suite/hostile.rs"]
mod hostile;
#[path = "suite/idempotency.rs"]
mod idempotency;
#[path = "suite/interop_browser.rs"]
mod interop_browser;
#[path = "suite/interrupts.rs"]
mod interrupts;
#[path = "suite/invoke_seam.rs"]
mod invoke_seam;
#[path = "suite/keys.rs"]
mod keys;
#[path = "suite/late_answers.rs"]
mod late_answers;
#[path = "suite/lifecycle.rs"]
mod lifecycle;
#[path = "suite/masks.rs"]
mod masks;
#[path = "suite/mcp.rs"]
mod mcp;
#[path = "suite/models.rs"]
mod models;
#[path = "suite/oidc.rs"]
mod oidc;
#[path = "suite/orchestration.rs"]
mod orchestration;
#[path = "suite/pack.rs"]
mod pack;
#[path = "suite/pages.rs"]
mod pages;
#[path = "suite/recalls.rs"]
mod recalls;
#[path = "suite/refusals.rs"]
mod refusals;
#[path = "suite/remote.rs"]
mod remote;
#[path = "suite/removals.rs"]
mod removals;
#[path = "suite/retention.rs"]
mod retention;
#[path = "suite/scopes.rs"]
mod scopes;
#[path = "suite/secrets.rs"]
mod secrets;
#[path = "suite/server.rs"]
mod server;
#[path = "suite/streams.rs"]
mod streams;
#[path = "suite/tasks_http.rs"]
mod tasks_http;
#[path = "suite/tenancy.rs"]
mod tenancy;
#[path = "suite/tls.rs"]
mod tls;
#[path = "suite/toggles.rs"]
mod toggles;
#[path = "suite/traces.rs"]
mod traces;
#[path = "suite/trust.rs"]
mod trust;
#[path = "suite/voters.rs"]
mod voters;
#[path = "suite/workers.rs"]
mod workers;
#[path = "suite/workflows.rs"]
mod workflows;
