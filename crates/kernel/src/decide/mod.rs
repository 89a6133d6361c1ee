//! Decisions: from a run and a command to events and work.
//!
//! A decision continues until the run must wait. Nodes without work of their own chain inside it, so a run
//! without effects, timers and interrupts starts and completes in one decision. A decision is bounded: at its
//! limit it sets a `continue` timer and stops, so that a loop cannot starve other runs. Every event goes through
//! [`Run::apply`] as it is recorded.
//!
//! The kernel follows the command up to the point where the workflow language has to say what comes next, and
//! hands over a [`Trigger`]. [`DecisionBuilder`] is what dialects have in common: it records, limits and retries.
//! The file is long because it holds the builder's state and all that bounds a decision; the verbs are in the modules below.

mod answer;
mod child;
mod elide;
mod end;
mod fork;
mod interrupt;
mod pause;
mod start;
mod step;

pub use child::{ChildTerms, MAX_SET, Spawn};
pub use fork::{REFUSAL_DIVERGED, SOURCE_MISSING, Source};
pub use step::Attempted;

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    Active, ApplyError, Command, Decision, Dialect, Event, Failure, Given, Input, InterruptKind, KernelEvent,
    NodeId, Object, Phase, Planned, Recorded, Refusal, Run, RunMessage, Seq, StartRun, StepId, Timer,
    Timestamp, Trigger, Wait, Work,
    cost::{
        self, Budget, DECISION_PAUSE, EVENT, Exhausted, MAX_DECISION_WORK, MAX_STATE, MESSAGES_PAUSE,
        STATE_PER_INPUT,
    },
};

use fork::Following;

/// Maximum number of events in one decision; twice as many if they follow the ends of children that it created.
pub const MAX_EVENTS: usize = 512;
/// Approximate maximum payload of one decision, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Maximum number of events of children that are decided in the decision that creates them, besides its own events.
pub const MAX_CHILD_EVENTS: usize = 2_048;

/// Applies a command to a run, and returns the resulting events and work with the units of work spent. A refused
/// command has no effect. `source` is a part of the log of the run that this one is a fork of, if it is one that still takes
/// from it.
pub fn decide<D: Dialect>(
    run: Box<Run>,
    state: D::State,
    plan: &D::Plan,
    command: Command,
    input: &Input<'_>,
    source: Option<Source<'_, D::Event>>,
) -> Result<(Decision<D>, u64), Refusal> {
    let before = Before::of(&run, plan);
    // A fork that turns out to be impossible only later fails, instead of being refused.
    let begun = run.is_catching_up().then(|| (run.clone(), state.clone()));
    let since = if let Command::Fork(start) = &command {
        start.fork.since
    } else {
        Seq(0)
    };
    let mut builder = DecisionBuilder::<D>::new(run, state, plan, input, None);
    builder.follow(command, source)?;
    if let Some(seq) = builder.lost_at() {
        let Some((run, state)) = begun else {
            return Err(Refusal::OtherHistory { seq, since });
        };
        builder = DecisionBuilder::new(run, state, plan, input, None);
        builder.give_up(&format!(
            "deciding again what the source decided leads to something else than its event {seq}"
        ));
    }
    let work = builder.worked + builder.budget.spent();
    Ok((builder.finish(&before), work))
}

/// The result of a decision, and the units of work that it took.
pub type Counted<T> = Result<(T, u64), Refusal>;

/// A decision needs more work than it was given. Nothing was decided.
#[derive(Debug)]
pub struct TooMuchWork {
    /// The parameters of the start that it was about, for another attempt. They are large, and callers need no copy.
    pub start: Option<Box<StartRun>>,
}

/// Like [`decide`], but gives up without any effect if the decision needs about `units` of work or
/// more. Events count as work, too. The effective maximum is a tenth of [`MAX_DECISION_WORK`]. It is for runs that
/// take nothing from a source.
///
/// If it returns a decision, it is the same one that [`decide`] returns, with the same work: reaching the limit never
/// changes the result.
///
/// # Errors
/// It gave up.
pub fn decide_within<D: Dialect>(
    units: u64,
    run: Box<Run>,
    state: D::State,
    plan: &D::Plan,
    command: Command,
    input: &Input<'_>,
) -> Result<Counted<Decision<D>>, TooMuchWork> {
    let bounds = if let Command::Start(start) = &command {
        Some(start.bounds)
    } else {
        None
    };
    let before = Before::of(&run, plan);
    // Below the limits that the decision itself observes, so that this one is reached first.
    let units = units.min(cost::EVALUATION.min(MESSAGES_PAUSE) - 1);
    let mut builder = DecisionBuilder::<D>::new(run, state, plan, input, Some(units));
    let followed = builder.follow(command, None);
    if builder.is_beyond() {
        let started = builder.run.started.as_ref().zip(bounds);
        let again = started.map(|(started, bounds)| Box::new(StartRun::again(started, bounds)));
        let start = builder.unstarted.take().or(again);
        return Err(TooMuchWork { start });
    }
    let work = builder.worked + builder.budget.spent();
    Ok(followed.map(|()| (builder.finish(&before), work)))
}

/// The state before the decision that `finish` compares with.
struct Before {
    /// The open interrupt that the parent mirrors.
    interrupt: Option<(InterruptKind, String)>,
    deadline: Option<Timestamp>,
    was_terminal: bool,
}

impl Before {
    fn of(run: &Run, plan: &dyn Planned) -> Self {
        let interrupt = run.parent().and_then(|_| run.interrupt(plan));
        Self {
            interrupt: interrupt.map(|open| (open.kind(), open.id())),
            deadline: run.duration_deadline(),
            was_terminal: run.status.is_terminal(),
        }
    }
}

/// Records a decision and applies each event to the run: the vocabulary that dialects share.
#[derive(Debug)]
pub struct DecisionBuilder<'a, D: Dialect> {
    pub plan: &'a D::Plan,
    pub input: Input<'a>,
    /// Boxed, as decisions and runs are moved often.
    pub run: Box<Run>,
    pub state: D::State,
    /// The remaining budget for evaluating and copying.
    pub budget: Budget,
    /// The node that receives untrusted content from the command.
    pub outside: Option<NodeId>,
    events: Vec<Recorded<D::Event>>,
    bytes: usize,
    work: Work,
    /// Whether the decision stopped at its limit and set a `continue` timer.
    cut: bool,
    /// Work charged to earlier budgets of this decision.
    worked: u64,
    /// The caller's limit, if it is lower than the limit of a decision.
    allowed: Option<u64>,
    /// Run messages consumed.
    heard: usize,
    /// New children that it was tried to decide here.
    tried: usize,
    /// Events of the children that were.
    child_events: usize,
    /// The current size of the run's state, in units.
    held: u64,
    /// The maximum size of the run's state, in units.
    most_held: u64,
    /// What the next event follows from, if it is the first that does.
    given: Option<Box<Given>>,
    /// The source of a fork that still takes from it.
    following: Option<Following<'a, D::Event>>,
    /// The time of the command; that of the events may be one of the source's.
    live_now: Timestamp,
    /// The fork goes on by itself since the last trigger.
    is_live_again: bool,
    /// The fork goes on by itself since this decision.
    went_live: bool,
    /// The steps that begin again then.
    begin_again: Vec<StepId>,
    /// The parameters of a start that was not made.
    unstarted: Option<Box<StartRun>>,
}

impl<'a, D: Dialect> DecisionBuilder<'a, D> {
    fn new(
        run: Box<Run>,
        state: D::State,
        plan: &'a D::Plan,
        input: &Input<'a>,
        allowed: Option<u64>,
    ) -> Self {
        // Clocks of two replicas differ, but time must never go backwards within a log.
        let now = input.now.max(run.updated_at);
        let input = Input { now, ..*input };
        let inputs = weight_of_inputs(&run);
        let held = inputs + D::weight(&state) + weight_of_pending(&run);
        Self {
            plan,
            input,
            run,
            state,
            budget: Budget::new(allowed.unwrap_or(MAX_DECISION_WORK)),
            outside: None,
            events: Vec::new(),
            bytes: 0,
            work: Work::default(),
            cut: false,
            worked: 0,
            allowed,
            heard: 0,
            tried: 0,
            child_events: 0,
            held,
            most_held: most_held(inputs),
            given: None,
            following: None,
            live_now: now,
            is_live_again: false,
            went_live: false,
            begin_again: Vec::new(),
            unstarted: None,
        }
    }

    /// Measures the run's state afresh.
    fn weigh(&mut self) {
        let inputs = weight_of_inputs(&self.run);
        self.held = inputs + D::weight(&self.state) + weight_of_pending(&self.run);
        self.most_held = most_held(inputs);
    }

    fn lost_at(&self) -> Option<Seq> {
        self.following.as_ref().and_then(Following::lost_at)
    }

    /// Records an event and returns its sequence number.
    pub fn record(&mut self, cause: Option<Seq>, event: KernelEvent) -> Seq {
        if let KernelEvent::NodeCompleted { step, .. }
        | KernelEvent::NodeFailed { step, .. }
        | KernelEvent::NodeCancelled { step, .. } = &event
        {
            self.end_handoffs(step);
        }
        self.record_any(cause, Event::Kernel(event))
    }

    /// Records an event of the dialect and returns its sequence number.
    pub fn emit(&mut self, cause: Option<Seq>, event: D::Event) -> Seq {
        self.record_any(cause, Event::Dialect(event))
    }

    fn record_any(&mut self, cause: Option<Seq>, event: Event<D::Event>) -> Seq {
        let event = match self.following {
            Some(_) => self.compared(event),
            None => event,
        };
        let recorded = Recorded {
            seq: self.run.head,
            at: self.input.now,
            cause,
            is_untrusted: D::is_untrusted(self, &event),
            given: self.given.take(),
            event,
        };
        let seq = recorded.seq;
        self.try_push(recorded)
            .expect("a decision only records what can follow");
        seq
    }

    fn try_push(&mut self, recorded: Recorded<D::Event>) -> Result<(), ApplyError> {
        let before = self.run.log_bytes;
        self.run
            .apply::<D>(&mut self.state, self.plan, recorded.as_ref())?;
        let more = self.run.log_bytes.saturating_sub(before);
        self.bytes = self
            .bytes
            .saturating_add(usize::try_from(more).unwrap_or(usize::MAX));
        self.events.push(recorded);
        Ok(())
    }

    fn follow(&mut self, command: Command, source: Option<Source<'a, D::Event>>) -> Result<(), Refusal> {
        if let Command::Fork(start) = command {
            return self.start_fork(*start, source);
        }
        if self.run.is_catching_up() {
            self.follow_source(source.unwrap_or_default());
            return self.command_fork(command);
        }
        if let Command::RunMessages(messages) = command {
            self.hear(messages)?;
        } else {
            let trigger = self.trigger(command)?;
            self.advance(trigger)?;
        }
        self.fail_unrecorded()
    }

    /// Consumes as many messages as fit into one decision.
    fn hear(&mut self, messages: Vec<RunMessage>) -> Result<(), Refusal> {
        if messages.is_empty() {
            return self.advance(Trigger::Advance);
        }
        for message in messages {
            if self.heard > 0 && (self.worked >= MESSAGES_PAUSE || self.is_full()) {
                break;
            }
            // Everything that a message makes possible happens before the next message is read.
            self.given = Given::of_message(&message).map(Box::new);
            let trigger = self.message(message)?;
            self.advance(trigger)?;
            self.heard += 1;
            self.renew_budget(0);
        }
        Ok(())
    }

    /// Follows a trigger, and then the ends of the children that it created and that need not wait.
    fn advance(&mut self, trigger: Trigger) -> Result<(), Refusal> {
        D::decide(trigger, self)?;
        self.elide();
        self.follow_children()
    }

    /// Follows the ends of children that were created and that need not wait.
    fn follow_children(&mut self) -> Result<(), Refusal> {
        while let Some(message) = self.decide_next_child() {
            self.given = Given::of_message(&message).map(Box::new);
            let trigger = self.message(message)?;
            D::decide(trigger, self)?;
            self.elide();
        }
        Ok(())
    }

    /// Each message gets a whole budget, so that the result does not depend on how messages are batched. `more` is work
    /// that no budget was charged for.
    fn renew_budget(&mut self, more: u64) {
        self.worked += self.budget.spent() + more;
        let whole = self.allowed.map(|units| units.saturating_sub(self.worked));
        self.budget = Budget::new(whole.unwrap_or(MAX_DECISION_WORK));
    }

    /// Follows a command up to where the dialect takes over.
    fn trigger(&mut self, command: Command) -> Result<Trigger, Refusal> {
        if self.run.started.is_none()
            && !matches!(
                command,
                Command::Start(_) | Command::Cancel { .. } | Command::Resume { .. }
            )
        {
            return Err(Refusal::WrongState);
        }
        self.given = Given::of(&command).map(Box::new);
        match command {
            Command::Start(start) => self.start(start),
            Command::Fork(_) => Err(Refusal::WrongState),
            Command::Cancel { reason, by } => {
                self.cancel(reason, by, None)?;
                Ok(Trigger::Advance)
            }
            Command::Pause { reason, drain } => self.pause_run(reason, drain),
            Command::Resume { reason } => self.resume_run(reason),
            Command::Resolve(resolve) => self.resolve(&resolve),
            Command::SetVariables(variables) => {
                if self.run.status.is_terminal() {
                    return Err(Refusal::Terminal(self.run.status));
                }
                Ok(Trigger::Set(variables))
            }
            Command::Timer(timer) => Ok(self.fire(timer)),
            Command::Effect {
                step,
                attempt,
                outcome,
                retry_after_ms,
            } => self.effect_ended(step, attempt, outcome, retry_after_ms),
            Command::Interrupted {
                step,
                attempt,
                handle,
                question,
                check_at,
            } => self.effect_interrupted(step, attempt, handle, question, check_at),
            Command::EffectCancelled {
                step,
                attempt,
                reason,
            } => self.effect_cancelled(&step, attempt, reason),
            Command::EffectGivenUp {
                step,
                attempt,
                handle,
                failure,
            } => self.effect_given_up(step, attempt, handle, failure),
            Command::Accepted {
                step,
                attempt,
                handle,
                check_at,
            } => self.effect_accepted(step, attempt, handle, check_at),
            Command::Progressed {
                step,
                attempt,
                details,
                then: None,
            } => self.effect_progressed(&step, attempt, details),
            Command::Progressed {
                step,
                attempt,
                details,
                then: Some(then),
            } => match self.note_progress(&step, attempt, details) {
                Ok(_) | Err(Refusal::InvalidAnswer(_)) => self.trigger(*then),
                Err(refusal) => Err(refusal),
            },
            Command::Produced {
                step,
                attempt,
                produced,
                then,
            } => match self.produce(&step, attempt, produced, then.handle())? {
                Some(ended) => Ok(ended),
                None => self.trigger(*then),
            },
            Command::RunMessages(_) => Ok(Trigger::Advance),
        }
    }

    /// Charges work to the budget; fails with `work_limit_exceeded`.
    pub fn spend(&self, units: u64) -> Result<(), Failure> {
        self.budget.spend(units).map_err(|Exhausted| too_much_work())
    }

    /// Clones a value and charges for it.
    pub fn copy(&self, value: &Value) -> Result<Value, Failure> {
        self.spend(cost::of_value(value))?;
        Ok(value.clone())
    }

    /// Accounts for `more` units of new state that replace `less` units of old state; fails with
    /// `state_limit_exceeded`.
    pub fn hold(&mut self, more: u64, less: u64) -> Result<(), Failure> {
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

    /// Returns `true` if the decision is full. A decision without events is never full, however long the walk of
    /// the graph took, because each decision must make progress.
    pub fn must_pause(&self) -> bool {
        match self.source_paused() {
            Some(has_paused) => has_paused,
            None => !self.events.is_empty() && self.is_full(),
        }
    }

    /// Leaves the rest to the next decision.
    pub fn pause(&mut self) {
        self.cut = true;
        self.work.timers_set.push((Timer::Continue, self.live_now));
    }

    /// Whether the rest was left to the next decision.
    pub const fn is_paused(&self) -> bool {
        self.cut
    }

    /// Whether the decision has reached its limits and another one must continue.
    fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS
            || self.bytes >= MAX_BYTES
            || self.budget.spent() >= DECISION_PAUSE
            || self.is_beyond()
    }

    /// Whether another child may be decided here. A full decision still follows the children that it has created,
    /// because each of them would need several appends otherwise.
    fn has_room_for_children(&self) -> bool {
        self.events.len() < 2 * MAX_EVENTS
            && self.child_events < MAX_CHILD_EVENTS
            && self.bytes < MAX_BYTES
            && self.budget.spent() < DECISION_PAUSE
            && self.worked < MESSAGES_PAUSE
            && !self.is_beyond()
    }

    /// Whether the decision exceeds the caller's limit. It is then discarded, so it ends as soon as possible.
    fn is_beyond(&self) -> bool {
        let Some(left) = self.left() else { return false };
        self.budget.is_spent() || left == 0
    }

    /// What the caller's limit leaves.
    fn left(&self) -> Option<u64> {
        let events = (self.events.len() + self.child_events) as u64 * EVENT;
        let spent = self.worked + self.budget.spent() + events;
        self.allowed.map(|allowed| allowed.saturating_sub(spent))
    }

    /// The active execution that a step id names.
    pub fn active(&self, step: &StepId) -> Option<(usize, &Active)> {
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

    pub fn has_active(&self) -> bool {
        let mut states = self.run.nodes.iter();
        states.any(|state| matches!(state.phase, Phase::Active(_)))
    }

    /// Returns `true` if the run may start steps.
    pub fn may_start(&self) -> bool {
        !self.run.status.is_terminal()
            && !self.run.paused
            && self.run.cancelling.is_none()
            && self.run.started.is_some()
    }

    pub fn step(&self, position: usize, ordinal: u32) -> StepId {
        StepId {
            node: self.plan.node(position).clone(),
            ordinal,
        }
    }

    /// The position of the latest event.
    pub fn last(&self) -> Option<Seq> {
        self.events.last().map_or_else(
            || self.run.head.0.checked_sub(1).map(Seq),
            |recorded| Some(recorded.seq),
        )
    }

    /// Lets a step wait for so long from its start. An attempt after one that was cut goes on with the wait.
    pub fn sleep_for(&mut self, step: StepId, ms: u64) {
        let active = self.active(&step);
        let started_at = active.map_or(self.input.now, |(_, active)| active.started_at);
        self.sleep(step, started_at.plus_millis(ms));
    }

    /// Lets a step wait for a time.
    pub fn sleep(&mut self, step: StepId, until: Timestamp) {
        self.work.timers_set.push((Timer::Delay(step), until));
    }

    fn fire(&mut self, timer: Timer) -> Trigger {
        self.work.timers_cleared.push(timer.clone());
        if self.run.status.is_terminal() {
            return Trigger::Advance;
        }
        match timer {
            Timer::Continue => Trigger::Resumed,
            Timer::RunDuration => {
                // The deadline moves while a run waits; a timer that fires early is only dropped.
                match self.run.duration_deadline() {
                    Some(deadline) if deadline <= self.input.now => self.breach_duration(),
                    Some(deadline) => {
                        self.work.timers_cleared.pop();
                        self.work.timers_set.push((Timer::RunDuration, deadline));
                    }
                    None => {}
                }
                Trigger::Advance
            }
            Timer::Delay(step) => match self.active(&step) {
                Some((position, active)) if active.wait == Wait::Work => Trigger::TimerFired {
                    position,
                    step,
                    cause: self.last().unwrap_or_default(),
                },
                Some(_) | None => Trigger::Advance,
            },
            Timer::Retry(step, attempt) => self.retry_due(step, attempt),
            Timer::Overdue(step, attempt) => self.effect_overdue(step, attempt),
            Timer::Interrupt(step) => self.interrupt_timed_out(step),
        }
    }

    fn finish(mut self, before: &Before) -> Decision<D> {
        self.tell_parent(before);
        self.keep_to_itself();
        let before_deadline = before.deadline.filter(|_| !self.went_live);
        let after = self.run.duration_deadline();
        if after != before_deadline && !self.run.status.is_terminal() && !self.run.is_catching_up() {
            match after {
                Some(due) => self.work.timers_set.push((Timer::RunDuration, due)),
                None => self.work.timers_cleared.push(Timer::RunDuration),
            }
        }
        if self.run.status.is_terminal() && before.deadline.is_some() {
            self.work.timers_cleared.push(Timer::RunDuration);
        }
        // A timer that is both cleared and set in one batch must be set; of several settings the last one
        // counts.
        if !self.work.timers_cleared.is_empty() {
            let mut seen: HashSet<_> = self
                .work
                .timers_set
                .iter()
                .map(|(timer, _)| timer.clone())
                .collect();
            self.work
                .timers_cleared
                .retain(|timer| seen.insert(timer.clone()));
        }
        Decision {
            run: self.run,
            state: self.state,
            events: self.events,
            work: self.work,
            heard: self.heard,
        }
    }
}

fn weight_of_inputs(run: &Run) -> u64 {
    let started = run.started.as_ref();
    started.map_or(0, |started| cost::of_object(&started.inputs))
}

/// What workers get is part of the state for as long as they work.
fn weight_of_pending(run: &Run) -> u64 {
    let weight = |node: &crate::NodeState| match &node.phase {
        Phase::Active(Active {
            wait: Wait::Effect(pending),
            ..
        }) => {
            pending.weight()
                + pending
                    .question
                    .as_ref()
                    .map_or(0, |open| cost::of_value(&open.data))
        }
        Phase::Active(Active {
            wait: Wait::Children(members),
            ..
        }) => {
            let ends = members.iter().filter_map(|member| member.end.as_ref());
            ends.map(|end| cost::of_object(&end.outputs) + cost::of_object(&end.report))
                .sum()
        }
        Phase::Active(_)
        | Phase::Idle
        | Phase::Completed
        | Phase::Failed(_)
        | Phase::Skipped
        | Phase::Cancelled => 0,
    };
    run.nodes.iter().map(weight).sum()
}

fn most_held(inputs: u64) -> u64 {
    MAX_STATE.max(STATE_PER_INPUT * inputs)
}

/// The failure of a node whose work exceeds the budget of a decision or of one evaluation.
#[must_use]
pub fn too_much_work() -> Failure {
    Failure::new(
        "work_limit_exceeded",
        "the node is more work than one decision may do: it evaluates, compares or copies too much",
    )
}

/// The fields of a literal object.
#[must_use]
pub fn fields(value: Value) -> Object {
    match value {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Object::new(),
    }
}
