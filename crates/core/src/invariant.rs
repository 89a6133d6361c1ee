//! Invariants of every run, whatever commands it receives. Property tests and the engine's simulator share these
//! predicates; most are the kernel's.

use wopr_kernel::invariant::broken;
pub use wopr_kernel::invariant::{
    ChildStatus, LogChecker, OutstandingWork, Violation, check_children, check_log,
};

use crate::{Decision, Plan, Recorded, Run};

/// Checks that a run can progress, and that only active executions have outstanding work.
pub fn check_run(run: &Run, plan: &Plan, outstanding: &OutstandingWork) -> Result<(), Violation> {
    wopr_kernel::invariant::check_run(run, &**plan, outstanding)
}

/// Applies a committed decision to the outstanding work of its run.
pub fn absorb(outstanding: &mut OutstandingWork, decision: &Decision) {
    outstanding.absorb(&decision.work);
}

/// Checks that the run shown to a caller is the fold of the log's first `told.head` events. Fails if the log
/// is shorter, or folds to a different run.
pub fn check_answer(log: &[Recorded], plan: &Plan, told: &Run) -> Result<(), Violation> {
    let known = usize::try_from(told.head.0).ok().and_then(|head| log.get(..head));
    let Some(known) = known else {
        return broken(format!(
            "a caller was told of {} events, there are {}",
            told.head,
            log.len()
        ));
    };
    match Run::default().fold(plan, known) {
        Ok(run) if run == *told => Ok(()),
        Ok(_) => broken(format!("a caller was told what {} events do not say", told.head)),
        Err(error) => broken(error.to_string()),
    }
}
