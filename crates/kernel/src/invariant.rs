//! Invariants of every run, whatever commands it receives. The kernel's property tests and the engine's
//! simulator share these predicates.
//!
//! | invariant | checked by |
//! | --- | --- |
//! | sequence numbers are dense, one event is terminal, and it is last | [`LogChecker`], [`check_log`] |
//! | no effect before its event | [`LogChecker::check_effect`] |
//! | a handoff ends before the execution that made it, and so before its run | [`LogChecker::note_handoff`] |
//! | no attempt of a lost lease is accepted | [`OutstandingWork::settle`] |
//! //! | nothing active waits for something that cannot come | [`check_run`], [`check_children`] |
//!
//! A [`LogChecker`] follows one log; an [`OutstandingWork`] tracks the outstanding work of one run. Both take
//! only committed data, so they check a log against its own past. The behavior of databases, clients and
//! clocks is left to their callers.

use std::collections::{HashMap, HashSet};

use crate::{
    Active, CutAttempt, Event, KernelEvent, Member, Phase, Planned, Recorded, Run, RunId, Seq, StepId, Timer,
    Timestamp, Wait, Work,
};

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("keep a promise: {0}")]
pub struct Violation(String);

/// Reports a violated invariant.
pub fn broken(what: impl Into<String>) -> Result<(), Violation> {
    Err(Violation(what.into()))
}

/// Checks a log from its first event on.
#[derive(Debug, Clone, Default)]
pub struct LogChecker {
    head: Seq,
    last_at: Timestamp,
    executions: u64,
    limit: u64,
    /// Active executions, each with its latest attempt.
    active: HashMap<StepId, u32>,
    ended: HashSet<StepId>,
    /// Workers that have not ended, and the executions that handed them work.
    workers: HashMap<RunId, StepId>,
    has_begun: bool,
    is_over: bool,
}

impl LogChecker {
    /// Checks the next event.
    ///
    /// # Errors
    /// The first violated invariant; the checker must not be used afterwards.
    pub fn follow<X>(&mut self, recorded: &Recorded<X>) -> Result<(), Violation> {
        let wrong = |what: &str| broken(format!("event {}: {what}", recorded.seq));
        if recorded.seq != self.head {
            return wrong("its sequence number is not the next one");
        }
        if self.is_over {
            return wrong("it follows the terminal event");
        }
        if recorded.cause.is_some_and(|cause| cause >= recorded.seq) {
            return wrong("its cause does not precede it");
        }
        let is_first = self.head == Seq(0);
        if !is_first && recorded.at < self.last_at {
            return wrong("it is older than the one before");
        }
        let Event::Kernel(event) = &recorded.event else {
            if !self.has_begun {
                return wrong("it comes before run.started");
            }
            self.advance(recorded);
            return Ok(());
        };
        match event {
            KernelEvent::RunStarted(started) if !self.has_begun => {
                self.has_begun = true;
                self.limit = u64::from(started.limits.node_executions);
            }
            KernelEvent::RunStarted(_) => return wrong("the run starts again"),
            // A child can be cancelled or quarantined before it starts.
            KernelEvent::RunCancelled { .. } | KernelEvent::RunResumed { .. } => {}
            KernelEvent::RunPaused { cut, .. } => {
                for CutAttempt { step, attempt } in cut {
                    if self.active.get(step) != Some(attempt) {
                        return wrong("an attempt is cut that is not under way");
                    }
                    self.executions = self.executions.saturating_sub(1);
                }
            }
            _ if !self.has_begun => return wrong("it comes before run.started"),
            KernelEvent::NodeStarted { step, attempt, .. } => {
                self.executions += 1;
                if self.executions > self.limit {
                    return wrong("it is one node execution too many");
                }
                let follows = match (attempt, self.active.get(step)) {
                    (0, None) => !self.ended.contains(step),
                    (0, Some(_)) => false,
                    (_, Some(newest)) => newest + 1 == *attempt,
                    (_, None) => return wrong("an execution that has not begun is retried"),
                };
                if !follows {
                    return wrong("the execution starts out of turn");
                }
                self.active.insert(step.clone(), *attempt);
            }
            // A branch has none of the children of its source.
            KernelEvent::ForkResumed {
                calls_again: true, ..
            } => self.workers.clear(),
            event => {
                if let KernelEvent::ChildEnded { child, .. } = event {
                    self.workers.remove(child);
                }
                if let Some(step) = step_of(event) {
                    if ends(event) && self.workers.values().any(|of| of == step) {
                        return wrong("the execution has a handoff without an end");
                    }
                    if !self.active.contains_key(step) {
                        return wrong("the execution is not under way");
                    }
                    if ends(event) {
                        self.active.remove(step);
                        self.ended.insert(step.clone());
                    }
                }
            }
        }
        self.is_over = event.terminal().is_some();
        if let (true, Some(step)) = (self.is_over, self.active.keys().next()) {
            return broken(format!("the run ended with '{}' under way", step.key()));
        }
        self.advance(recorded);
        Ok(())
    }

    /// Notes that an execution has handed work to a child, which is cancelled with it: the child's end has to come first.
    pub fn note_handoff(&mut self, step: &StepId, child: &RunId) {
        self.workers.insert(child.clone(), step.clone());
    }

    fn advance<X>(&mut self, recorded: &Recorded<X>) {
        self.head = self.head.next();
        self.last_at = recorded.at;
    }

    /// The number of events checked.
    #[must_use]
    pub const fn head(&self) -> Seq {
        self.head
    }

    /// Whether the log has its terminal event.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Checks that an effect may start: an event requested it, and no later event ended the execution.
    pub fn check_effect(&self, step: &StepId, attempt: u32) -> Result<(), Violation> {
        match self.active.get(step) {
            Some(newest) if *newest == attempt => Ok(()),
            Some(_) | None => broken(format!(
                "attempt {attempt} of '{}' has no event that asks for it",
                step.key()
            )),
        }
    }
}

/// Checks a whole log.
pub fn check_log<X>(log: &[Recorded<X>]) -> Result<(), Violation> {
    let mut checker = LogChecker::default();
    log.iter().try_for_each(|recorded| checker.follow(recorded))
}

/// The timers and effects of one run that its commits have scheduled and not yet finished.
///
/// A lease is a number that grows each time an effect is handed out. Where effects are never handed out, as
/// in the kernel's tests, it stays [`OutstandingWork::FIRST_LEASE`].
#[derive(Debug, Clone, Default)]
pub struct OutstandingWork {
    timers: HashSet<Timer>,
    /// Each with its latest lease.
    effects: HashMap<(StepId, u32), u64>,
}

impl OutstandingWork {
    /// The lease of a new effect.
    pub const FIRST_LEASE: u64 = 1;

    /// Applies a committed decision: the timers it clears and sets, and the effects it ends and begins.
    pub fn absorb(&mut self, work: &Work) {
        for timer in &work.timers_cleared {
            self.clear(timer);
        }
        for (timer, _) in &work.timers_set {
            self.set(timer.clone());
        }
        // Settled effects come first, as in a store. A decision never requests an effect that it stops
        // itself.
        for (step, attempt) in &work.settled {
            self.end(step, *attempt);
        }
        for effect in &work.effects {
            self.begin(effect.step.clone(), effect.attempt, Self::FIRST_LEASE);
        }
    }

    pub fn set(&mut self, timer: Timer) {
        self.timers.insert(timer);
    }

    /// Removes a timer that was cleared, or whose firing was refused as stale. A missing timer is not an
    /// error.
    pub fn clear(&mut self, timer: &Timer) {
        self.timers.remove(timer);
    }

    /// Adds an effect; `lease` is 0 if no process holds it yet.
    pub fn begin(&mut self, step: StepId, attempt: u32, lease: u64) {
        self.effects.insert((step, attempt), lease);
    }

    /// Records that an effect was handed out.
    ///
    /// # Errors
    /// The effect is not active, or the lease is not newer than every earlier one.
    pub fn lease(&mut self, step: &StepId, attempt: u32, lease: u64) -> Result<(), Violation> {
        match self.effects.get_mut(&(step.clone(), attempt)) {
            Some(newest) if *newest < lease => {
                *newest = lease;
                Ok(())
            }
            Some(newest) => broken(format!(
                "attempt {attempt} of '{}' was leased as {lease} after {newest}",
                step.key()
            )),
            None => broken(format!(
                "attempt {attempt} of '{}' was leased and is over",
                step.key()
            )),
        }
    }

    /// Removes an effect, whoever holds it. A missing effect is not an error.
    pub fn end(&mut self, step: &StepId, attempt: u32) {
        self.effects.remove(&(step.clone(), attempt));
    }

    /// Removes an effect whose outcome was accepted under a lease.
    ///
    /// # Errors
    /// The effect is not active, or the lease was lost.
    pub fn settle(&mut self, step: &StepId, attempt: u32, lease: u64) -> Result<(), Violation> {
        match self.effects.remove(&(step.clone(), attempt)) {
            Some(newest) if newest == lease => Ok(()),
            Some(newest) => broken(format!(
                "the outcome of attempt {attempt} of '{}' counted under lease {lease}, {newest} was newer",
                step.key()
            )),
            None => broken(format!(
                "the outcome of attempt {attempt} of '{}' counted, and it was not under way",
                step.key()
            )),
        }
    }

    /// Whether the attempt's effect is active.
    #[must_use]
    pub fn has_effect(&self, step: &StepId, attempt: u32) -> bool {
        self.effects.contains_key(&(step.clone(), attempt))
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.effects.is_empty()
    }
}

/// Checks that a run can progress, and that only active executions have outstanding work.
pub fn check_run(run: &Run, plan: &dyn Planned, outstanding: &OutstandingWork) -> Result<(), Violation> {
    if run.is_catching_up() {
        // Until then, timers and effects belong to its source.
        return match outstanding.timers.contains(&Timer::Continue) {
            true => Ok(()),
            false => broken("the fork does not go on to catch up"),
        };
    }
    let mut timers: HashSet<Timer> = HashSet::new();
    let mut effects: HashSet<(StepId, u32)> = HashSet::new();
    let mut is_idle = true;
    for (position, state) in run.nodes.iter().enumerate() {
        let Phase::Active(Active {
            ordinal,
            attempt,
            wait,
            ..
        }) = &state.phase
        else {
            continue;
        };
        is_idle = false;
        let step = StepId {
            node: plan.node(position).clone(),
            ordinal: *ordinal,
        };
        match wait {
            Wait::Work if plan.has_timer(position) => drop(timers.insert(Timer::Delay(step))),
            // It goes on once the run is resumed.
            Wait::Work if run.is_stopped => {}
            Wait::Work => return broken(format!("'{}' works without work to do", step.key())),
            Wait::Effect(pending) => {
                if pending.deadline().is_some() {
                    timers.insert(Timer::Overdue(step.clone(), *attempt));
                }
                effects.insert((step, *attempt));
            }
            // A timer that fires during a pause is set again when the run is resumed.
            Wait::Retry { .. } if run.paused => {}
            Wait::Retry { .. } => {
                timers.insert(Timer::Retry(step, attempt + 1));
            }
            Wait::Interrupt(open) => {
                if open.deadline.is_some() {
                    timers.insert(Timer::Interrupt(step));
                }
            }
            Wait::Children(members)
                if run.is_stopped && members.iter().all(|member| member.end.is_some()) => {}
            Wait::Children(members) => {
                let is_open = |child: &RunId| {
                    let mut known = run.children.iter();
                    known.any(|known| known.run == *child && !known.ended)
                };
                if !members.iter().any(|member| is_open(&member.run)) {
                    return broken(format!("'{}' waits for a child that is over", step.key()));
                }
            }
        }
    }
    if run.duration_deadline().is_some() {
        timers.insert(Timer::RunDuration);
    }
    if run.status.is_terminal() && !is_idle {
        return broken("the run has ended with nodes under way");
    }
    if let Some(missing) = timers.difference(&outstanding.timers).next() {
        return broken(format!("no timer '{}' stands", missing.key()));
    }
    if let Some(odd) = outstanding
        .effects
        .keys()
        .find(|effect| !effects.contains(*effect))
    {
        return broken(format!("effect {odd:?} stands for nothing"));
    }
    if let Some(odd) = effects
        .iter()
        .find(|effect| !outstanding.effects.contains_key(*effect))
    {
        return broken(format!("no effect {odd:?} stands"));
    }
    let stale = outstanding.timers.difference(&timers).find(|timer| match timer {
        Timer::Continue => false,
        // A quarantine pause leaves timers alone; those that are no longer needed are dropped when they fire.
        Timer::Retry(..) | Timer::RunDuration => !run.paused,
        Timer::Delay(_) | Timer::Interrupt(_) | Timer::Overdue(..) => true,
    });
    if let Some(stale) = stale {
        return broken(format!("timer '{}' stands for nothing", stale.key()));
    }
    let goes_on = run.paused || outstanding.timers.contains(&Timer::Continue);
    if run.started.is_some() && !run.status.is_terminal() && is_idle && !goes_on {
        return broken("nothing can move the run");
    }
    Ok(())
}

/// The state of a child that its parent's log does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildStatus {
    pub has_begun: bool,
    pub is_over: bool,
    /// Whether a message from its parent is still undelivered.
    pub is_told: bool,
    /// Whether a message to its parent is still undelivered.
    pub has_told: bool,
}

/// Checks that a run can still hear from every child it waits for.
///
/// # Errors
/// A child is missing, never received its start message, or has ended without a message to its parent.
pub fn check_children(
    run: &Run,
    child_status: impl Fn(&RunId) -> Option<ChildStatus>,
) -> Result<(), Violation> {
    for state in &run.nodes {
        let Phase::Active(Active {
            wait: Wait::Children(members),
            ..
        }) = &state.phase
        else {
            continue;
        };
        for Member { run: child, .. } in members.iter().filter(|member| member.end.is_none()) {
            match child_status(child) {
                None => return broken(format!("child {child} does not exist")),
                // The pending message makes the child report to its parent, even if it was cancelled before it
                // started.
                Some(child_status)
                    if child_status.has_told || (child_status.is_told && !child_status.has_begun) => {}
                Some(child_status) if !child_status.has_begun => {
                    return broken(format!("child {child} was never told to begin"));
                }
                Some(child_status) if child_status.is_over => {
                    return broken(format!(
                        "child {child} has ended and its parent will not hear of it"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

fn ends(event: &KernelEvent) -> bool {
    matches!(
        event,
        KernelEvent::NodeCompleted { .. }
            | KernelEvent::NodeFailed { .. }
            | KernelEvent::NodeCancelled { .. }
    )
}

/// The execution that must be active when this event occurs, if the event needs one.
pub(crate) fn step_of(event: &KernelEvent) -> Option<&StepId> {
    match event {
        KernelEvent::NodeCompleted { step, .. }
        | KernelEvent::NodeStarted { step, .. }
        | KernelEvent::NodeFailed { step, .. }
        | KernelEvent::NodeRetried { step, .. }
        | KernelEvent::NodeCancelled { step, .. }
        | KernelEvent::NodeSuspended { step, .. }
        | KernelEvent::NodeResumed { step, .. }
        | KernelEvent::NodeDispatched { step, .. }
        | KernelEvent::ChildEnded { step, .. }
        | KernelEvent::EffectScheduled { step, .. }
        | KernelEvent::EffectAccepted { step, .. }
        | KernelEvent::EffectProgressed { step, .. }
        | KernelEvent::EffectEnded { step, .. }
        | KernelEvent::InterruptRequested { step, .. }
        | KernelEvent::InterruptResolved { step, .. }
        | KernelEvent::ApprovalRequested { step, .. }
        | KernelEvent::ApprovalVoted { step, .. }
        | KernelEvent::ApprovalReceived { step, .. }
        | KernelEvent::ClarificationRequested { step, .. }
        | KernelEvent::ClarificationResolved { step, .. }
        | KernelEvent::ArtifactCreated { step, .. }
        | KernelEvent::MemoryCompacted { step, .. }
        | KernelEvent::OutputChunk { step, .. } => Some(step),
        KernelEvent::MemoryWritten(written) => Some(&written.step),
        KernelEvent::RunStarted(_)
        | KernelEvent::RunCompleted { .. }
        | KernelEvent::RunFailed { .. }
        | KernelEvent::RunCancelled { .. }
        | KernelEvent::CancelRequested { .. }
        | KernelEvent::RunPaused { .. }
        | KernelEvent::RunResumed { .. }
        | KernelEvent::NodeSkipped { .. }
        | KernelEvent::CapBreached { .. }
        | KernelEvent::ReplayDiverged { .. }
        | KernelEvent::RefusalDiverged { .. }
        | KernelEvent::ForkResumed { .. } => None,
    }
}
