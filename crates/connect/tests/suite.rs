//! Tests of the egress gate and its executors against real sockets on loopback.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests fail the test that called them"
)]

#[path = "suite/delivery.rs"]
mod delivery;
#[path = "suite/executors.rs"]
mod executors;
#[path = "suite/hostile.rs"]
mod hostile;
#[path = "suite/limits.rs"]
mod limits;
#[path = "suite/peer.rs"]
mod peer;
#[path = "suite/pinned.rs"]
mod pinned;
