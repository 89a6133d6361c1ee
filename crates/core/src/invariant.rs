//! What must hold of every run, whatever it was told: predicates that the kernel's property tests and the engine's
//! simulator share.
//!
//! | promise | held by |
//! | --- | --- |
//! | sequences are dense, exactly one event is terminal, and it is last | [`LogChecker`], [`check_log`] |
//! | no effect before its event | [`LogChecker::check_effect`] |
//! | no attempt of a lost lease is accepted | [`OutstandingWork::settle`] |
//! | what a caller was told is in the log | [`check_answer`] |
//! | every run that can progress does: nothing under way is without something that moves it | [`check_run`], [`check_children`] |
//!
//! A [`LogChecker`] follows one log, a [`OutstandingWork`] the work that one run has left to do. Both take in what is committed and
//! nothing else, so whoever keeps them holds a log against its own past. What a database, a client or a clock does is
//! left to their callers.

use std::collections::{HashMap, HashSet};

use crate::{
    Decision, Event, Plan, Recorded, Run, RunId, Seq, StepId, Timer, Timestamp,
    run::{Active, Phase, Wait},
};

/// A promise that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("keep a promise: {0}")]
pub struct Violation(String);

fn broken(what: impl Into<String>) -> Result<(), Violation> {
    Err(Violation(what.into()))
}

/// Follows a log from its first event on.
#[derive(Debug, Clone, Default)]
pub struct LogChecker {
    head: Seq,
    last_at: Timestamp,
    executions: u64,
    limit: u64,
    /// Executions under way, each with its newest attempt.
    active: HashMap<StepId, u32>,
    ended: HashSet<StepId>,
    has_begun: bool,
    is_over: bool,
}

impl LogChecker {
    /// Takes in the next event.
    ///
    /// # Errors
    /// The first promise that does not hold; the checker is then not to be used.
    pub fn follow(&mut self, recorded: &Recorded) -> Result<(), Violation> {
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
        match &recorded.event {
            Event::RunStarted(started) if !self.has_begun => {
                self.has_begun = true;
                self.limit = u64::from(started.limits.node_executions);
            }
            Event::RunStarted(_) => return wrong("the run starts again"),
            // A child may be cancelled, or quarantined, before it begins.
            Event::RunCancelled { .. } | Event::RunPaused { .. } | Event::RunResumed { .. } => {}
            _ if !self.has_begun => return wrong("it comes before run.started"),
            Event::NodeStarted { step, attempt, .. } => {
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
            event => {
                if let Some(step) = visit_of(event) {
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
        self.is_over = recorded.event.terminal().is_some();
        if let (true, Some(step)) = (self.is_over, self.active.keys().next()) {
            return broken(format!("the run ended with '{}' under way", step.key()));
        }
        self.head = self.head.next();
        self.last_at = recorded.at;
        Ok(())
    }

    /// How many events it took in.
    #[must_use]
    pub const fn head(&self) -> Seq {
        self.head
    }

    /// Whether the log has its terminal event.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Checks that an effect may begin: the log says so, and nothing in it has ended the execution.
    ///
    /// # Errors
    /// No event asks for it.
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

/// Checks a log from its first event on.
///
/// # Errors
/// The first promise that does not hold.
pub fn check_log(log: &[Recorded]) -> Result<(), Violation> {
    let mut checker = LogChecker::default();
    log.iter().try_for_each(|recorded| checker.follow(recorded))
}

/// Checks that a caller was told what the log says: the run it was shown is the fold of so many events.
///
/// # Errors
/// The log is shorter than what was told, or says something else.
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

/// The timers and effects of one run that commits have left to do.
///
/// A lease is told by a number that grows each time an effect is handed out. Where nobody hands effects out, as in
/// the kernel's tests, it stays [`OutstandingWork::FIRST_LEASE`].
#[derive(Debug, Clone, Default)]
pub struct OutstandingWork {
    timers: HashSet<Timer>,
    /// Each with its newest lease.
    effects: HashMap<(StepId, u32), u64>,
}

impl OutstandingWork {
    /// The lease an effect is born with.
    pub const FIRST_LEASE: u64 = 1;

    /// Takes in a committed decision.
    pub fn absorb(&mut self, decision: &Decision) {
        for timer in &decision.timers_cleared {
            self.clear(timer);
        }
        for (timer, _) in &decision.timers_set {
            self.set(timer.clone());
        }
        // Those that are over come first, as in a store: a decision that stops an effect of its own asks for none.
        for (step, attempt) in &decision.settled {
            self.end(step, *attempt);
        }
        for effect in &decision.effects {
            self.begin(effect.step.clone(), effect.attempt, Self::FIRST_LEASE);
        }
    }

    /// A timer was set.
    pub fn set(&mut self, timer: Timer) {
        self.timers.insert(timer);
    }

    /// A timer was cleared, or its firing was refused as stale; a missing one is no error.
    pub fn clear(&mut self, timer: &Timer) {
        self.timers.remove(timer);
    }

    /// An effect was enqueued; `lease` is 0 if nobody holds it yet.
    pub fn begin(&mut self, step: StepId, attempt: u32, lease: u64) {
        self.effects.insert((step, attempt), lease);
    }

    /// An effect was handed out.
    ///
    /// # Errors
    /// It is not under way, or the lease is not newer than every earlier one.
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

    /// An effect is over, whoever holds it; a missing one is no error.
    pub fn end(&mut self, step: &StepId, attempt: u32) {
        self.effects.remove(&(step.clone(), attempt));
    }

    /// An effect is over by an outcome that was won under a lease.
    ///
    /// # Errors
    /// It is not under way, or the lease was lost.
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

    /// Whether an attempt is under way.
    #[must_use]
    pub fn has_effect(&self, step: &StepId, attempt: u32) -> bool {
        self.effects.contains_key(&(step.clone(), attempt))
    }

    /// Whether there is nothing left to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.effects.is_empty()
    }
}

/// Checks that a run can move and that only what is under way has work left to do.
///
/// # Errors
/// The first promise that does not hold.
pub fn check_run(run: &Run, plan: &Plan, outstanding: &OutstandingWork) -> Result<(), Violation> {
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
        let node = &plan.nodes[position];
        let step = StepId {
            node: node.id.clone(),
            ordinal: *ordinal,
        };
        match wait {
            Wait::Work if node.kind.is_delay() => {
                timers.insert(Timer::Delay(step));
            }
            Wait::Work if node.kind.is_effect() => {
                effects.insert((step, *attempt));
            }
            Wait::Work => return broken(format!("'{}' works without work to do", step.key())),
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
            Wait::Child { run: child, .. } => {
                if run
                    .children
                    .iter()
                    .all(|known| known.run != *child || known.ended)
                {
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
        // A pause by quarantine touches no timer; those that need not stand are dropped when they fire.
        Timer::Retry(..) | Timer::RunDuration => !run.paused,
        Timer::Delay(_) | Timer::Interrupt(_) => true,
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

/// What is known of a child besides its parent's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildStatus {
    /// Whether it has begun.
    pub has_begun: bool,
    /// Whether it has ended.
    pub is_over: bool,
    /// Whether something its parent told it waits to be heard.
    pub is_told: bool,
    /// Whether something it told its parent waits to be heard.
    pub has_told: bool,
}

/// Checks that whatever a run waits for in its children can come.
///
/// # Errors
/// A child is missing, was never told to begin, or has ended and the run will not hear of it.
pub fn check_children(
    run: &Run,
    child_status: impl Fn(&RunId) -> Option<ChildStatus>,
) -> Result<(), Violation> {
    for state in &run.nodes {
        let Phase::Active(Active {
            wait: Wait::Child { run: child, .. },
            ..
        }) = &state.phase
        else {
            continue;
        };
        match child_status(child) {
            None => return broken(format!("child {child} does not exist")),
            // Whether it begins or was cancelled before: once it hears that it should, its parent will hear.
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
    Ok(())
}

fn ends(event: &Event) -> bool {
    matches!(
        event,
        Event::NodeCompleted { .. } | Event::NodeFailed { .. } | Event::NodeCancelled { .. }
    )
}

/// The execution an event is about, if it needs one that is under way.
fn visit_of(event: &Event) -> Option<&StepId> {
    match event {
        Event::NodeCompleted { step, .. }
        | Event::NodeStarted { step, .. }
        | Event::NodeFailed { step, .. }
        | Event::NodeRetried { step, .. }
        | Event::NodeCancelled { step, .. }
        | Event::NodeSuspended { step, .. }
        | Event::NodeResumed { step, .. }
        | Event::NodeDispatched { step, .. }
        | Event::InterruptRequested { step, .. }
        | Event::InterruptResolved { step, .. }
        | Event::ApprovalRequested { step, .. }
        | Event::ApprovalVoted { step, .. }
        | Event::ApprovalReceived { step, .. }
        | Event::ClarificationRequested { step, .. }
        | Event::ClarificationResolved { step, .. }
        | Event::ArtifactCreated { step, .. }
        | Event::OutputChunk { step, .. } => Some(step),
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
