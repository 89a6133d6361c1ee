//! The kernel's behavior, by feature.

#[path = "suite/flow.rs"]
mod flow;
