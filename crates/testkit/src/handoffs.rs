//! Tells the checker of a log about the handoffs in it.

use wopr_core::{
    DialectEvent, Event, Plan, Recorded,
    invariant::LogChecker,
    openwop::{self, Orchestration},
};

/// Notes a handoff whose worker is cancelled with the node that made it. One that goes on then has no end in the log.
pub fn note_handoff(checker: &mut LogChecker, plan: &Plan, recorded: &Recorded) {
    let Event::Dialect(DialectEvent::Openwop(openwop::Event::Orchestration(
        Orchestration::HandoffSucceeded { step, child, .. },
    ))) = &recorded.event
    else {
        return;
    };
    let position = plan.position(&step.node);
    let policy = position.and_then(|position| plan.children(position));
    if policy.is_some_and(|policy| policy.propagates_cancel) {
        checker.note_handoff(step, child);
    }
}
