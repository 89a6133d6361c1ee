//! The runtime around the kernel: it loads, decides, commits, and only then acts.

mod effect;

pub use effect::{Attempt, Executor, HttpCall, Outcome, Request};
