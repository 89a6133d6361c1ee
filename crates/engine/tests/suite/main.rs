//! The engine over real stores: runs, waits, effects, children, and what a restart finds.

mod harness;
mod runs;
