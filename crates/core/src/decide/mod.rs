//! Decisions: from a run and a command to events and work.
//!
//! A decision continues until the run must wait. Pure nodes chain inside it, so a run without effects, timers
//! and interrupts starts and completes in one decision. A decision is bounded: at its limit it sets a
//! `continue` timer and stops, so that a loop cannot starve other runs. Every event goes through
//! [`Run::apply`] as it is recorded.

mod answer;
mod ask;
mod child;
mod end;
mod node;
mod schedule;
mod start;
mod stream;
mod trust;

use std::collections::HashSet;

use crate::{
    Command, Decision, Effect, Event, Failure, Input, InterruptKind, NewChild, NodeId, Plan, Recorded,
    Refusal, Run, RunId, RunMessage, RunStatus, Seq, StepId, Timer, Timestamp,
    cost::{
        self, Budget, DECISION_PAUSE, EVENT, Exhausted, MAX_DECISION_WORK, MAX_STATE, MESSAGES_PAUSE,
        STATE_PER_INPUT,
    },
    measure::{size_of, size_of_object},
    run::{Active, Phase, Wait},
};

use schedule::Dirty;

/// Maximum number of events in one decision.
pub const MAX_EVENTS: usize = 512;
/// Approximate maximum payload of one decision, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;

/// Applies a command to a run and returns the resulting events and work. A refused command has no effect.
pub fn decide(run: Run, plan: &Plan, command: Command, input: &Input<'_>) -> Result<Decision, Refusal> {
    decide_counted(run, plan, command, input).map(|(decision, _)| decision)
}

/// Like [`decide`], and also returns the units of work spent.
pub fn decide_counted(
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<(Decision, u64), Refusal> {
    // Clocks of two replicas differ, but time must never go backwards within a log.
    let input = &Input {
        now: input.now.max(run.updated_at),
        ..*input
    };
    let before = Before::of(&run, plan);
    let mut builder = DecisionBuilder::new(run, plan, input, None);
    builder.follow(command)?;
    builder.settle_run();
    let work = builder.worked + builder.budget.spent();
    Ok((builder.finish(&before), work))
}

/// Like [`decide`], but returns `None` without any effect if the decision needs about `units` of work or
/// more. Events count as work, too. The effective maximum is a tenth of [`MAX_DECISION_WORK`].
///
/// If it returns a decision, it is the same one that [`decide`] returns: reaching the limit never changes the
/// result.
pub fn decide_within(
    units: u64,
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
) -> Option<Result<Decision, Refusal>> {
    let input = &Input {
        now: input.now.max(run.updated_at),
        ..*input
    };
    let before = Before::of(&run, plan);
    // Below the limits that the decision itself observes, so that this one is reached first.
    let units = units.min(cost::EVALUATION.min(MESSAGES_PAUSE) - 1);
    let mut builder = DecisionBuilder::new(run, plan, input, Some(units));
    let followed = builder.follow(command);
    if followed.is_ok() {
        builder.settle_run();
    }
    if builder.is_beyond() {
        return None;
    }
    Some(followed.map(|()| builder.finish(&before)))
}

/// The state before the decision that `finish` compares with.
struct Before {
    /// The open interrupt that the parent mirrors.
    interrupt: Option<(InterruptKind, String)>,
    deadline: Option<Timestamp>,
    was_terminal: bool,
}

impl Before {
    fn of(run: &Run, plan: &Plan) -> Self {
        let interrupt = run.parent().and_then(|_| run.interrupt(plan));
        Self {
            interrupt: interrupt.map(|open| (open.kind(), open.id())),
            deadline: run.duration_deadline(),
            was_terminal: run.status.is_terminal(),
        }
    }
}

/// Records a decision and applies each event to the run.
struct DecisionBuilder<'a> {
    plan: &'a Plan,
    input: &'a Input<'a>,
    run: Run,
    events: Vec<Recorded>,
    bytes: usize,
    effects: Vec<Effect>,
    settled: Vec<(StepId, u32)>,
    timers_set: Vec<(Timer, Timestamp)>,
    timers_cleared: Vec<Timer>,
    children: Vec<NewChild>,
    messages: Vec<(RunId, Seq, RunMessage)>,
    /// Nodes whose readiness may have changed.
    dirty: Dirty,
    /// The node that receives untrusted content from the command.
    outside: Option<NodeId>,
    /// Whether the decision stopped at its limit and set a `continue` timer.
    cut: bool,
    /// The remaining budget for evaluating and copying.
    budget: Budget,
    /// Work charged to earlier budgets of this decision.
    worked: u64,
    /// The caller's limit, if it is lower than the limit of a decision.
    allowed: Option<u64>,
    /// Run messages consumed.
    heard: usize,
    /// The current size of the run's state, in units.
    held: u64,
    /// The maximum size of the run's state, in units.
    most_held: u64,
}

impl<'a> DecisionBuilder<'a> {
    fn new(run: Run, plan: &'a Plan, input: &'a Input<'a>, allowed: Option<u64>) -> Self {
        let inputs = weight_of_inputs(&run);
        let held = inputs + weight_of_state(&run);
        Self {
            plan,
            input,
            run,
            events: Vec::new(),
            bytes: 0,
            effects: Vec::new(),
            settled: Vec::new(),
            timers_set: Vec::new(),
            timers_cleared: Vec::new(),
            children: Vec::new(),
            messages: Vec::new(),
            dirty: Dirty::new(plan.nodes.len()),
            outside: None,
            cut: false,
            budget: Budget::new(allowed.unwrap_or(MAX_DECISION_WORK)),
            worked: 0,
            allowed,
            heard: 0,
            held,
            most_held: most_held(inputs),
        }
    }

    /// Records an event and returns its sequence number.
    fn record(&mut self, cause: Option<Seq>, event: Event) -> Seq {
        let recorded = Recorded {
            seq: self.run.head,
            at: self.input.now,
            cause,
            is_untrusted: self.is_untrusted(&event),
            event,
        };
        self.run
            .apply(self.plan, &recorded)
            .expect("a decision only records what can follow");
        self.bytes += size_of_event(&recorded.event);
        let seq = recorded.seq;
        self.events.push(recorded);
        seq
    }

    fn follow(&mut self, command: Command) -> Result<(), Refusal> {
        if self.run.started.is_none()
            && !matches!(
                command,
                Command::Start(_) | Command::RunMessages(_) | Command::Cancel { .. } | Command::Resume { .. }
            )
        {
            return Err(Refusal::WrongState);
        }
        match command {
            Command::Start(start) => self.start(*start),
            Command::Cancel { reason, by } => self.cancel(reason, by, None),
            Command::Pause { reason, drain } => {
                match self.run.status {
                    RunStatus::Running => {}
                    status => return Err(Refusal::NotPausable(status)),
                }
                self.record(None, Event::RunPaused { reason, drain });
                Ok(())
            }
            Command::Resume { reason } => {
                // A run that was quarantined while it was being cancelled resumes the cancel.
                if !self.run.paused || self.run.status.is_terminal() {
                    return Err(Refusal::NotPaused(self.run.status));
                }
                self.record(None, Event::RunResumed { reason });
                if self.run.started.is_some() {
                    self.restart_retries();
                    self.mark_all();
                }
                Ok(())
            }
            Command::Resolve(resolve) => self.resolve(&resolve),
            Command::SetVariables(variables) => {
                if self.run.status.is_terminal() {
                    return Err(Refusal::Terminal(self.run.status));
                }
                for (name, next) in variables {
                    let previous = self.run.previous(&name);
                    let changed = Event::VariableChanged {
                        name,
                        previous,
                        next,
                        appends: false,
                        node: None,
                    };
                    self.record(None, changed);
                }
                Ok(())
            }
            Command::Timer(timer) => self.fire(timer),
            Command::Effect {
                step,
                attempt,
                outcome,
                retry_after_ms,
            } => self.effect_ended(&step, attempt, outcome, retry_after_ms),
            Command::RunMessages(messages) => {
                for message in messages {
                    if self.heard > 0 && (self.worked >= MESSAGES_PAUSE || self.is_full()) {
                        break;
                    }
                    self.message(message)?;
                    // Everything that a message makes possible happens before the next message is read.
                    self.settle_run();
                    self.heard += 1;
                    // Each message gets a whole budget, so that the result does not depend on how messages
                    // are batched.
                    self.worked += self.budget.spent();
                    let whole = self.allowed.map(|units| units.saturating_sub(self.worked));
                    self.budget = Budget::new(whole.unwrap_or(MAX_DECISION_WORK));
                }
                Ok(())
            }
        }
    }

    /// Charges work to the budget; fails with `work_limit_exceeded`.
    fn spend(&self, units: u64) -> Result<(), Failure> {
        self.budget.spend(units).map_err(|Exhausted| too_much_work())
    }

    /// Accounts for `more` units of new state that replace `less` units of old state; fails with
    /// `state_limit_exceeded`.
    fn hold(&mut self, more: u64, less: u64) -> Result<(), Failure> {
        let held = (self.held + more).saturating_sub(less);
        let most = self.most_held;
        if held > most && more > less {
            return Err(Failure::new(
                "state_limit_exceeded",
                format!(
                    "the run would hold {held} units of variables, channels and outputs, and {most} is the most"
                ),
            ));
        }
        self.held = held;
        Ok(())
    }

    /// The units of state that a variable occupies.
    fn held_of(&self, variable: &str) -> u64 {
        self.run.variables.get(variable).map_or(0, cost::of_value)
    }

    /// Whether the decision has reached its limits and another one must continue.
    fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS
            || self.bytes >= MAX_BYTES
            || self.budget.spent() >= DECISION_PAUSE
            || self.is_beyond()
    }

    /// Whether the decision exceeds the caller's limit. It is then discarded, so it ends as soon as possible.
    fn is_beyond(&self) -> bool {
        let Some(allowed) = self.allowed else { return false };
        let events = self.events.len() as u64 * EVENT;
        self.budget.is_spent() || self.worked + self.budget.spent() + events >= allowed
    }

    /// The active execution that a step id names.
    fn active(&self, step: &StepId) -> Option<(usize, &Active)> {
        let position = self.plan.position(&step.node)?;
        match &self.run.nodes.get(position)?.phase {
            Phase::Active(active) if active.ordinal == step.ordinal => Some((position, active)),
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        }
    }

    fn step(&self, position: usize, ordinal: u32) -> StepId {
        StepId {
            node: self.plan.nodes[position].id.clone(),
            ordinal,
        }
    }

    fn fire(&mut self, timer: Timer) -> Result<(), Refusal> {
        self.timers_cleared.push(timer.clone());
        if self.run.status.is_terminal() {
            return Ok(());
        }
        match timer {
            Timer::Continue => {
                self.mark_all();
                Ok(())
            }
            Timer::RunDuration => {
                // The deadline moves while a run waits; a timer that fires early is only dropped.
                match self.run.duration_deadline() {
                    Some(deadline) if deadline <= self.input.now => {
                        self.breach_duration();
                        Ok(())
                    }
                    Some(deadline) => {
                        self.timers_cleared.pop();
                        self.timers_set.push((Timer::RunDuration, deadline));
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
            Timer::Delay(step) => self.delay_over(&step),
            Timer::Retry(step, attempt) => self.retry_due(&step, attempt),
            Timer::Interrupt(step) => self.interrupt_timed_out(&step),
        }
    }

    fn finish(mut self, before: &Before) -> Decision {
        self.tell_parent(before);
        let after = self.run.duration_deadline();
        if after != before.deadline && !self.run.status.is_terminal() {
            match after {
                Some(due) => self.timers_set.push((Timer::RunDuration, due)),
                None => self.timers_cleared.push(Timer::RunDuration),
            }
        }
        if self.run.status.is_terminal() && before.deadline.is_some() {
            self.timers_cleared.push(Timer::RunDuration);
        }
        // A timer that is both cleared and set in one batch must be set; of several settings the last one
        // counts.
        if !self.timers_cleared.is_empty() {
            let mut seen: HashSet<_> = self.timers_set.iter().map(|(timer, _)| timer.clone()).collect();
            self.timers_cleared.retain(|timer| seen.insert(timer.clone()));
        }
        Decision {
            run: self.run,
            events: self.events,
            effects: self.effects,
            settled: self.settled,
            timers_set: self.timers_set,
            timers_cleared: self.timers_cleared,
            children: self.children,
            messages: self.messages,
            heard: self.heard,
        }
    }

    /// Retry delays are timers; those that fired during a pause are set again.
    fn restart_retries(&mut self) {
        for position in 0..self.run.nodes.len() {
            if let Phase::Active(Active {
                ordinal,
                attempt,
                wait: Wait::Retry { due },
                ..
            }) = &self.run.nodes[position].phase
            {
                let (ordinal, next, due) = (*ordinal, attempt + 1, *due);
                let step = self.step(position, ordinal);
                self.timers_set
                    .push((Timer::Retry(step, next), due.max(self.input.now)));
            }
        }
    }
}

fn weight_of_inputs(run: &Run) -> u64 {
    let started = run.started.as_ref();
    started.map_or(0, |started| cost::of_object(&started.inputs))
}

/// The units that a run's variables, channels and outputs occupy.
fn weight_of_state(run: &Run) -> u64 {
    let outputs = run.nodes.iter().filter_map(|node| node.outputs.as_ref());
    cost::of_object(&run.variables)
        + cost::of_object(&run.channels)
        + outputs.map(cost::of_object).sum::<u64>()
}

fn most_held(inputs: u64) -> u64 {
    MAX_STATE.max(STATE_PER_INPUT * inputs)
}

/// The failure of a node whose work exceeds the budget of a decision or of one evaluation.
pub(crate) fn too_much_work() -> Failure {
    Failure::new(
        "work_limit_exceeded",
        "the node is more work than one decision may do: it evaluates, compares or copies too much",
    )
}

/// A cheap estimate: it counts only what workflows can make large.
fn size_of_event(event: &Event) -> usize {
    const ENVELOPE: usize = 128;
    const EDGE: usize = 6;
    ENVELOPE
        + match event {
            Event::NodeCompleted { outputs, untaken, .. } => size_of_object(outputs) + EDGE * untaken.len(),
            Event::NodeFailed { untaken, .. } => EDGE * untaken.len(),
            Event::RunCompleted { outputs } => size_of_object(outputs),
            Event::VariableChanged { previous, next, .. } => {
                previous.as_ref().map_or(0, size_of) + size_of(next)
            }
            Event::ChannelWritten { value, .. } => size_of(value),
            Event::ArtifactCreated { content, .. } => size_of(content),
            Event::OutputChunk { chunk, .. } => chunk.len(),
            Event::InterruptRequested { data, .. } | Event::ApprovalRequested { data, .. } => size_of(data),
            Event::RunStarted(started) => size_of_object(&started.inputs) + size_of_object(&started.metadata),
            _ => 0,
        }
}
