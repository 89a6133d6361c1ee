//! Tests of the built binary from outside: killed, under load, and used by third-party clients.
//!
//! This is a single test binary to save link time. `.config/nextest.toml` groups the tests by module name.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "whatever goes wrong in here fails a test, and what it prints is shown then"
)]

#[path = "../../../bench/src/http.rs"]
mod http;

#[path = "../../../../xtask/src/cluster.rs"]
mod cluster;
#[path = "../../../../xtask/src/faketime.rs"]
mod faketime;

mod bench;
mod calling;
mod causation;
mod chaos;
mod executions;
mod handoffs;
mod hops;
mod host;
mod hostile_agents;
mod hostile_grpc;
mod in_process;
mod interop;
mod interop_agents;
mod interop_calls;
mod interop_coding_crew;
mod interop_crew;
mod interop_deaths;
mod interop_mcp;
mod interop_mcp_clients;
mod interop_pushes;
mod interop_rust;
mod interop_rust_agent;
mod interop_snippets;
mod interop_workers;
mod kills;
mod mcp;
mod mcp_shared;
mod mcp_vectors;
mod model_tools;
mod postgres;
mod pressure;
mod quarantine;
mod server;
mod siege;
