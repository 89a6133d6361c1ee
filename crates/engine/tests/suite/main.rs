//! Tests of the engine over real stores: runs, waits, effects, children and restarts.

#![expect(clippy::panic, reason = "a test that goes wrong says where")]

mod call_deliveries;
mod folds;
mod harness;
mod lost_activities;
mod parking;
mod pushes;
mod quarantine;
mod recalls;
mod retention;
mod run_budgets;
mod runs;
mod shares;
mod simulation;
mod weights;
mod whole_children;
mod workflows;
