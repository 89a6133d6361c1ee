//! What must hold of every run, whatever it was told: predicates for tests, simulators and `wopr check`.
//!
//! [`check_log`] looks at a log alone. [`Standing`] follows the work that decisions leave behind, and
//! [`check_run`] holds a run against it: nothing under way is without something that moves it, and nothing
//! stands for what is over.

use std::collections::HashSet;

use crate::{
    Decision, Event, NodeId, Plan, Recorded, Run, Seq, Timer, Visit,
    run::{Active, Phase, Wait},
};

/// A promise that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("keep a promise: {0}")]
pub struct Violation(String);

/// The timers and effects that committed decisions have left standing.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    timers: HashSet<Timer>,
    effects: HashSet<(Visit, u32)>,
}

impl Standing {
    /// Takes in a committed decision.
    pub fn absorb(&mut self, decision: &Decision) {
        for timer in &decision.timers_cleared {
            self.timers.remove(timer);
        }
        self.timers
            .extend(decision.timers_set.iter().map(|(timer, _)| timer.clone()));
        let begun = decision.effects.iter();
        self.effects
            .extend(begun.map(|effect| (effect.visit.clone(), effect.attempt)));
        for settled in &decision.settled {
            self.effects.remove(settled);
        }
    }

    /// Forgets a timer whose firing was refused as stale.
    pub fn forget(&mut self, timer: &Timer) {
        self.timers.remove(timer);
    }
}

/// Checks a log from its first event on.
///
/// # Errors
/// The first promise that does not hold.
pub fn check_log(log: &[Recorded]) -> Result<(), Violation> {
    let mut active: HashSet<&Visit> = HashSet::new();
    let mut ended: HashSet<&Visit> = HashSet::new();
    let mut starts = 0_u64;
    let mut limit = u64::MAX;
    for (at, recorded) in log.iter().enumerate() {
        let wrong = |what: &str| Err(Violation(format!("event {}: {what}", recorded.seq)));
        if recorded.seq != Seq(0).plus(at) {
            return wrong("its sequence number is not the next one");
        }
        if recorded.cause.is_some_and(|cause| cause >= recorded.seq) {
            return wrong("its cause does not precede it");
        }
        if at > 0 && recorded.at < log[at - 1].at {
            return wrong("it is older than the one before");
        }
        if recorded.event.terminal().is_some() && at + 1 != log.len() {
            return wrong("it is terminal, and not the last");
        }
        match (&recorded.event, at) {
            (Event::RunStarted(started), 0) => limit = u64::from(started.limits.node_executions),
            (Event::RunStarted(_), _) => return wrong("the run starts again"),
            // A child can be cancelled before it begins.
            (Event::RunCancelled { .. }, 0) => {}
            (_, 0) => return wrong("the first event is not run.started"),
            (Event::NodeStarted { visit, attempt, .. }, _) => {
                starts += 1;
                if starts > limit {
                    return wrong("it is one node execution too many");
                }
                if *attempt == 0 && (ended.contains(visit) || !active.insert(visit)) {
                    return wrong("the execution starts twice");
                }
                if !active.contains(visit) {
                    return wrong("an execution that has not begun is retried");
                }
            }
            (event, _) => {
                if let Some(visit) = visit_of(event) {
                    if !active.contains(visit) {
                        return wrong("the execution is not under way");
                    }
                    if ends(event) {
                        active.remove(visit);
                        ended.insert(visit);
                    }
                }
            }
        }
    }
    if let (Some(last), Some(visit)) = (log.last(), active.iter().next())
        && last.event.terminal().is_some()
    {
        let what = format!("the run ended with '{}' under way", visit.key());
        return Err(Violation(what));
    }
    Ok(())
}

/// Checks that a run can move and that only what is under way has work standing.
///
/// # Errors
/// The first promise that does not hold.
pub fn check_run(run: &Run, plan: &Plan, standing: &Standing) -> Result<(), Violation> {
    let wrong = |what: String| Err(Violation(what));
    let mut timers: HashSet<Timer> = HashSet::new();
    let mut effects: HashSet<(Visit, u32)> = HashSet::new();
    let mut is_idle = true;
    for (position, state) in run.nodes.iter().enumerate() {
        let Phase::Active(Active {
            ordinal,
            attempt,
            wait,
        }) = &state.phase
        else {
            continue;
        };
        is_idle = false;
        let node = &plan.nodes[position];
        let visit = Visit {
            node: node.id.clone(),
            ordinal: *ordinal,
        };
        match wait {
            Wait::Work if node.kind.is_delay() => {
                timers.insert(Timer::Delay(visit));
            }
            Wait::Work if node.kind.is_effect() => {
                effects.insert((visit, *attempt));
            }
            Wait::Work => return wrong(format!("'{}' works without work to do", visit.key())),
            // A timer that fires during a pause is set again when the run is resumed.
            Wait::Retry { .. } if run.paused => {}
            Wait::Retry { .. } => {
                timers.insert(Timer::Retry(visit, attempt + 1));
            }
            Wait::Interrupt(open) => {
                if open.deadline.is_some() {
                    timers.insert(Timer::Interrupt(visit));
                }
            }
            Wait::Child { run: child, .. } => {
                if run
                    .children
                    .iter()
                    .all(|known| known.run != *child || known.ended)
                {
                    return wrong(format!("'{}' waits for a child that is over", visit.key()));
                }
            }
        }
    }
    if run.duration_deadline().is_some() {
        timers.insert(Timer::RunDuration);
    }
    if run.status.is_terminal() && !is_idle {
        return wrong("the run has ended with nodes under way".to_owned());
    }
    if let Some(missing) = timers.difference(&standing.timers).next() {
        return wrong(format!("no timer '{}' stands", missing.key()));
    }
    if effects != standing.effects {
        let odd = effects.symmetric_difference(&standing.effects).next();
        return wrong(format!("effects under way and standing differ: {odd:?}"));
    }
    let stale = standing.timers.difference(&timers).find(|timer| match timer {
        Timer::Continue => false,
        Timer::Retry(..) => !run.paused,
        Timer::Delay(_) | Timer::Interrupt(_) | Timer::RunDuration => true,
    });
    if let Some(stale) = stale {
        return wrong(format!("timer '{}' stands for nothing", stale.key()));
    }
    let goes_on = run.paused || standing.timers.contains(&Timer::Continue);
    if run.started.is_some() && !run.status.is_terminal() && is_idle && !goes_on {
        return wrong("nothing can move the run".to_owned());
    }
    Ok(())
}

fn ends(event: &Event) -> bool {
    matches!(
        event,
        Event::NodeCompleted { .. } | Event::NodeFailed { .. } | Event::NodeCancelled { .. }
    )
}

/// The execution an event is about, if it needs one that is under way.
fn visit_of(event: &Event) -> Option<&Visit> {
    match event {
        Event::NodeCompleted { visit, .. }
        | Event::NodeStarted { visit, .. }
        | Event::NodeFailed { visit, .. }
        | Event::NodeRetried { visit, .. }
        | Event::NodeCancelled { visit, .. }
        | Event::NodeSuspended { visit, .. }
        | Event::NodeResumed { visit, .. }
        | Event::NodeDispatched { visit, .. }
        | Event::InterruptRequested { visit, .. }
        | Event::InterruptResolved { visit, .. }
        | Event::ApprovalRequested { visit, .. }
        | Event::ApprovalVoted { visit, .. }
        | Event::ApprovalReceived { visit, .. }
        | Event::ClarificationRequested { visit, .. }
        | Event::ClarificationResolved { visit, .. }
        | Event::ArtifactCreated { visit, .. } => Some(visit),
        Event::RunStarted(_)
        | Event::RunCompleted { .. }
        | Event::RunFailed { .. }
        | Event::RunCancelled { .. }
        | Event::CancelRequested { .. }
        | Event::RunPaused { .. }
        | Event::RunResumed { .. }
        | Event::NodeSkipped { .. }
        | Event::VariableChanged { .. }
        | Event::ChannelWritten { .. }
        | Event::CapBreached { .. } => None,
    }
}

/// The node an event is about.
#[must_use]
pub fn node_of(event: &Event) -> Option<&NodeId> {
    visit_of(event).map(|visit| &visit.node).or(match event {
        Event::NodeSkipped { node, .. } | Event::ChannelWritten { node, .. } => Some(node),
        Event::VariableChanged { node, .. }
        | Event::CapBreached { node, .. }
        | Event::RunFailed { node, .. } => node.as_ref(),
        _ => None,
    })
}
