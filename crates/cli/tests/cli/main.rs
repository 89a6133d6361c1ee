//! The built binary, driven as people and scripts drive it.
//!
//! Every test has a folder and a store of its own, listens on ports the system chooses, and waits for what it
//! wants: a line, an end of a process. Nothing of the environment reaches the binary but what a test sets.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod agent;
mod backup;
mod binary;
mod config;
mod definitions;
mod demo;
mod following;
mod help;
mod journey;
mod keys;
mod pushes;
mod serving;
mod stores;
