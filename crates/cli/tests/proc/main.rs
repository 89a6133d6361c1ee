//! The built binary from outside: killed in the middle, under load, and driven by clients nobody here wrote.
//!
//! One test binary, because linking one is slow enough. The names of its modules are the kinds of tests that
//! `.config/nextest.toml` knows.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "whatever goes wrong in here fails a test"
)]

#[path = "../../src/bench/http.rs"]
mod http;

mod bench;
mod crash;
mod host;
mod interop;
