//! Tests of the built binary, used as users and scripts use it.
//!
//! Every test has its own folder and store, listens on ports chosen by the system, and waits for conditions:
//! a line of output, the exit of a process. The binary sees only the environment variables that the test
//! sets.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod agent;
mod agents_guide;
mod backup;
mod binary;
mod budgets;
mod coding_crew;
mod config;
mod crew;
mod definitions;
mod demo;
mod following;
mod help;
mod histories;
mod journey;
mod keys;
mod models;
mod no_wopr;
mod pushes;
mod replay_guide;
mod secrets;
mod serving;
mod snippets;
mod stores;
mod tool_servers;
mod tools_guide;
mod workers_guide;
