//! The built binary from outside: killed in the middle, under load, and driven by clients nobody here wrote.
//!
//! One test binary, because linking one is slow enough. The names of its modules are the kinds of tests that
//! `.config/nextest.toml` knows.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "whatever goes wrong in here fails a test, and what it prints is shown then"
)]

#[path = "../../src/bench/http.rs"]
mod http;

#[path = "../../../../xtask/src/cluster.rs"]
mod cluster;
#[path = "../../../../xtask/src/faketime.rs"]
mod faketime;

mod bench;
mod chaos;
mod host;
mod interop;
mod interop_agents;
mod interop_pushes;
mod interop_rust;
mod interop_snippets;
mod postgres;
mod pressure;
mod quarantine;
mod server;
mod siege;
