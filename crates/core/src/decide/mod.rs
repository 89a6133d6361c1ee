//! Deciding: from a run and a command to events and work.
//!
//! A decision runs until the run must wait: pure nodes chain inside it, so a run without effects, timers
//! and interrupts starts and completes in one. It is bounded; past the bound it leaves a `continue` timer and stops, so
//! that a loop cannot stall its neighbours. Every event goes through [`Run::apply`] as it is recorded.

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

/// Most events of one decision.
pub const MAX_EVENTS: usize = 512;
/// Roughly the most bytes of payload of one decision.
pub const MAX_BYTES: usize = 1024 * 1024;

/// Decides.
///
/// # Errors
/// See [`Refusal`]: nothing happened.
pub fn decide(run: Run, plan: &Plan, command: Command, input: &Input<'_>) -> Result<Decision, Refusal> {
    decide_counted(run, plan, command, input).map(|(decision, _)| decision)
}

/// Decides, and says what that cost.
///
/// # Errors
/// See [`Refusal`]: nothing happened.
pub fn decide_counted(
    run: Run,
    plan: &Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<(Decision, u64), Refusal> {
    // Clocks of two replicas differ; within a log time never goes back.
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

/// Decides as [`decide`] does, unless that takes about so many units of work; then the answer is `None`, and nothing has
/// happened. Events count as work, too. The most that can be allowed is a tenth of [`MAX_DECISION_WORK`].
///
/// A decision that is made is the one that [`decide`] makes: where the bound is reached, nothing is concluded from that.
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
    // Less than the bounds that a decision heeds, so that this one is reached before any of them.
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

/// What the end of a decision is compared with.
struct Before {
    /// The open interrupt that a parent mirrors.
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

/// Writes a decision down while the run follows.
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
    /// The node that the command brings content from outside.
    outside: Option<NodeId>,
    /// Whether the decision was cut off and a `continue` timer is set.
    cut: bool,
    /// What evaluating and copying may still cost.
    budget: Budget,
    /// What was spent of earlier budgets.
    worked: u64,
    /// What the caller allows, if it is less than a decision may cost.
    allowed: Option<u64>,
    /// RunMessages taken in.
    heard: usize,
    /// What the run holds.
    held: u64,
    /// The most the run may hold, in units.
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

    /// Records an event; returns its place.
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
                // One that was quarantined while it was being cancelled goes on with that.
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
                    // What one run message made possible happens before the next is read.
                    self.settle_run();
                    self.heard += 1;
                    // Each has a whole budget, so that nothing depends on which are heard together.
                    self.worked += self.budget.spent();
                    let whole = self.allowed.map(|units| units.saturating_sub(self.worked));
                    self.budget = Budget::new(whole.unwrap_or(MAX_DECISION_WORK));
                }
                Ok(())
            }
        }
    }

    /// Pays for work.
    ///
    /// # Errors
    /// `work_limit_exceeded`.
    fn spend(&self, units: u64) -> Result<(), Failure> {
        self.budget.spend(units).map_err(|Exhausted| too_much_work())
    }

    /// Makes room for what the run will hold, in place of what it will no longer hold.
    ///
    /// # Errors
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

    /// What the run holds of a variable.
    fn held_of(&self, variable: &str) -> u64 {
        self.run.variables.get(variable).map_or(0, cost::of_value)
    }

    /// Whether so much was done or written down that another decision goes on.
    fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS
            || self.bytes >= MAX_BYTES
            || self.budget.spent() >= DECISION_PAUSE
            || self.is_beyond()
    }

    /// Whether this was more than the caller allows. Nothing of it is shown, so it ends as soon as it can.
    fn is_beyond(&self) -> bool {
        let Some(allowed) = self.allowed else { return false };
        let events = self.events.len() as u64 * EVENT;
        self.budget.is_spent() || self.worked + self.budget.spent() + events >= allowed
    }

    /// The active execution a step id names.
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
                // The deadline moves while a run waits; a timer that comes early is only dropped.
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
        // A timer set in the same batch as it is cleared must stand; one set twice stands as set last.
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

    /// Waits of retries are timers; those that fired during a pause are set again.
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

/// What a run holds of variables, channels and outputs.
fn weight_of_state(run: &Run) -> u64 {
    let outputs = run.nodes.iter().filter_map(|node| node.outputs.as_ref());
    cost::of_object(&run.variables)
        + cost::of_object(&run.channels)
        + outputs.map(cost::of_object).sum::<u64>()
}

fn most_held(inputs: u64) -> u64 {
    MAX_STATE.max(STATE_PER_INPUT * inputs)
}

/// The failure of a node whose work exceeds the budget of a decision, or that of one evaluation.
pub(crate) fn too_much_work() -> Failure {
    Failure::new(
        "work_limit_exceeded",
        "the node is more work than one decision may do: it evaluates, compares or copies too much",
    )
}

/// A cheap estimate: only what workflows can make large counts.
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
