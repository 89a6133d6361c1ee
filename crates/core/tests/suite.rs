//! The kernel's behavior, by feature.
#![expect(
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "tests fail by panicking and hand over JSON literals"
)]

#[path = "suite/children.rs"]
mod children;
#[path = "suite/ending.rs"]
mod ending;
#[path = "suite/flow.rs"]
mod flow;
#[path = "suite/interrupts.rs"]
mod interrupts;
#[path = "suite/loops.rs"]
mod loops;
#[path = "suite/nodes.rs"]
mod nodes;
#[path = "suite/pausing.rs"]
mod pausing;
