//! Deciding: from a run and a command to events and work.
//!
//! A decision runs until the run must wait: pure nodes chain inside it, so a run without effects, timers
//! and interrupts starts and completes in one. It is bounded; past the bound it leaves a `continue` timer and stops, so
//! that a loop cannot stall its neighbours. Every event goes through [`Run::apply`] as it is recorded.

mod answer;
mod child;
mod end;
mod node;
mod schedule;
mod start;
mod stream;

use std::collections::{HashSet, VecDeque};

use crate::{
    Command, Decision, Effect, Event, Input, InterruptKind, NewChild, Notice, Plan, Recorded, Refusal, Run,
    RunId, RunStatus, Seq, Timer, Timestamp, Visit,
    measure::{size_of, size_of_object},
    run::{Active, Phase, Wait},
};

/// Most events of one decision.
pub const MAX_EVENTS: usize = 512;
/// Roughly the most bytes of payload of one decision.
pub const MAX_BYTES: usize = 1024 * 1024;

/// Decides.
///
/// # Errors
/// See [`Refusal`]: nothing happened.
pub fn decide(run: Run, plan: &Plan, command: Command, input: &Input<'_>) -> Result<Decision, Refusal> {
    // Clocks of two replicas differ; within a log time never goes back.
    let input = &Input {
        now: input.now.max(run.updated_at),
        ..*input
    };
    let before = Before::of(&run, plan);
    let mut scribe = Scribe::new(run, plan, input);
    scribe.follow(command)?;
    scribe.settle_run();
    Ok(scribe.finish(&before))
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
struct Scribe<'a> {
    plan: &'a Plan,
    input: &'a Input<'a>,
    run: Run,
    events: Vec<Recorded>,
    bytes: usize,
    effects: Vec<Effect>,
    settled: Vec<(Visit, u32)>,
    timers_set: Vec<(Timer, Timestamp)>,
    timers_cleared: Vec<Timer>,
    children: Vec<NewChild>,
    notices: Vec<(RunId, Seq, Notice)>,
    /// Nodes whose readiness may have changed.
    dirty: VecDeque<usize>,
    /// Whether the command is an answer of somebody outside, whose words are not to be trusted.
    is_untrusted: bool,
    /// Whether the decision was cut off and a `continue` timer is set.
    cut: bool,
}

impl<'a> Scribe<'a> {
    fn new(run: Run, plan: &'a Plan, input: &'a Input<'a>) -> Self {
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
            notices: Vec::new(),
            dirty: VecDeque::new(),
            is_untrusted: false,
            cut: false,
        }
    }

    /// Records an event; returns its place.
    fn record(&mut self, cause: Option<Seq>, event: Event) -> Seq {
        let recorded = Recorded {
            seq: self.run.head,
            at: self.input.now,
            cause,
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
                Command::Start(_) | Command::Notices(_) | Command::Cancel { .. }
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
                match self.run.status {
                    RunStatus::Paused => {}
                    status => return Err(Refusal::NotPaused(status)),
                }
                self.record(None, Event::RunResumed { reason });
                self.restart_retries();
                self.mark_all();
                Ok(())
            }
            Command::Resolve(resolve) => self.resolve(&resolve),
            Command::Timer(timer) => self.fire(timer),
            Command::Effect {
                visit,
                attempt,
                outcome,
                retry_after_ms,
            } => self.effect_ended(&visit, attempt, outcome, retry_after_ms),
            Command::Notices(notices) => {
                for notice in notices {
                    self.notice(notice)?;
                    // What one notice made possible happens before the next is read.
                    self.settle_run();
                }
                Ok(())
            }
        }
    }

    /// The active execution a visit names.
    fn active(&self, visit: &Visit) -> Option<(usize, &Active)> {
        let position = self.plan.position(&visit.node)?;
        match &self.run.nodes.get(position)?.phase {
            Phase::Active(active) if active.ordinal == visit.ordinal => Some((position, active)),
            Phase::Active(_)
            | Phase::Idle
            | Phase::Completed
            | Phase::Failed(_)
            | Phase::Skipped
            | Phase::Cancelled => None,
        }
    }

    fn visit(&self, position: usize, ordinal: u32) -> Visit {
        Visit {
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
            Timer::Delay(visit) => self.delay_over(&visit),
            Timer::Retry(visit, attempt) => self.retry_due(&visit, attempt),
            Timer::Interrupt(visit) => self.interrupt_timed_out(&visit),
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
            notices: self.notices,
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
                let visit = self.visit(position, ordinal);
                self.timers_set
                    .push((Timer::Retry(visit, next), due.max(self.input.now)));
            }
        }
    }
}

/// A cheap estimate: only what workflows can make large counts.
fn size_of_event(event: &Event) -> usize {
    const ENVELOPE: usize = 128;
    ENVELOPE
        + match event {
            Event::NodeCompleted { outputs, .. } | Event::RunCompleted { outputs } => size_of_object(outputs),
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
