//! Several processes on one PostgreSQL database: two engines, two hosts, and one that dies.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail the test that called them"
)]

mod budgets;
mod clocks;
mod engines;
mod executions;
mod harness;
mod hosts;
mod news;
mod pushes;
mod registry;
mod workers;
