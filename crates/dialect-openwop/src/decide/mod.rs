//! Decisions of this language: it follows one trigger, then starts every node whose edges allow it.

mod act;
mod agent;
mod announce;
mod answer;
mod ask;
mod budget;
mod channels;
mod child;
mod converse;
mod dispatch;
mod join;
mod memory;
mod mock_agent;
mod model;
mod node;
mod schedule;
mod stream;
mod summarize;
mod supervise;
mod tool_call;
mod tools;
mod trust;
mod verify;

use std::ops::{Deref, DerefMut};

use wopr_kernel::{
    ApplyError, DecisionBuilder, Dialect, Event as AnyEvent, Limits, ModelMessage, Planned as _, RecordedRef,
    Refusal, Run, RunId, Seq, StartRun, StepId, Trigger, WorkerFailure,
};

use crate::{
    Act, ConversationEvent, EnvelopeEvent, Event, Failure, Object, Orchestration, Plan, State, Supervision,
    context::Context,
    cost::{self, Budget},
    measure::size_of,
    node::NodeKind,
    start,
};

use schedule::Dirty;

pub(crate) use act::MAX_CALLS;
pub use memory::MAX_CONTENT as MAX_MEMORY_CONTENT;

/// The OpenWOP workflow language.
#[derive(Debug)]
pub enum Openwop {}

/// A decision in progress, and the nodes whose readiness may have changed in it.
struct Walk<'b, 'a> {
    next: &'b mut DecisionBuilder<'a, Openwop>,
    dirty: Dirty,
}

impl<'a> Deref for Walk<'_, 'a> {
    type Target = DecisionBuilder<'a, Openwop>;

    fn deref(&self) -> &Self::Target {
        self.next
    }
}

impl DerefMut for Walk<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.next
    }
}

impl Dialect for Openwop {
    const NAME: &'static str = "openwop";
    const FOLD: u16 = 6;

    type Plan = Plan;
    type State = State;
    type Event = Event;

    fn check_start(plan: &Plan, start: &StartRun, budget: &Budget) -> Result<Limits, Refusal> {
        start::check_start(plan, start, budget)
    }

    fn apply(
        plan: &Plan,
        run: &Run,
        state: &mut State,
        recorded: RecordedRef<'_, Event>,
    ) -> Result<(), ApplyError> {
        state.apply(plan, run, recorded)
    }

    fn decide(trigger: Trigger, next: &mut DecisionBuilder<'_, Self>) -> Result<(), Refusal> {
        let dirty = Dirty::new(next.plan.nodes.len());
        let mut walk = Walk { next, dirty };
        walk.follow(trigger)?;
        walk.settle();
        Ok(())
    }

    fn variables(state: &State) -> &Object {
        &state.variables
    }

    fn weight(state: &State) -> u64 {
        let outputs = state.nodes.iter().filter_map(|node| node.outputs.as_ref());
        let dispatching = state.nodes.iter().filter_map(|node| node.dispatching.as_ref());
        cost::of_object(&state.variables)
            + cost::of_object(&state.channels)
            + state.acting.weight()
            + state.conversing.weight()
            + outputs.map(cost::of_object).sum::<u64>()
            + (state.nodes.iter().filter_map(|node| node.thinking.as_ref()))
                .map(|thinking| thinking.weight())
                .sum::<u64>()
            + state.supervision.as_ref().map_or(0, Supervision::weight)
            + dispatching.map(|dispatching| dispatching.weight()).sum::<u64>()
    }

    fn cause_of_end(plan: &Plan, state: &State, step: &StepId, child: &RunId) -> Option<Seq> {
        let node = state.nodes.get(plan.position(&step.node)?)?;
        if let Some((known, _)) = node.thinking.as_ref().and_then(|thinking| thinking.use_of(child)) {
            return Some(known.called);
        }
        let handoff = node.dispatching.as_ref()?.of_child(child)?;
        Some(handoff.latest)
    }

    fn worker_of(plan: &Plan, state: &State, step: &StepId, child: &RunId) -> Option<String> {
        let node = state.nodes.get(plan.position(&step.node)?)?;
        let handoff = node.dispatching.as_ref()?.of_child(child)?;
        Some(handoff.worker.clone())
    }

    fn asks_anew(event: &Event) -> Option<&StepId> {
        event.conversation().and_then(ConversationEvent::exchanged_at)
    }

    fn refused_child(event: &Event, step: &StepId) -> Option<Failure> {
        match event {
            Event::Orchestration(Orchestration::HandoffFailed { step: of, error, .. }) if of == step => {
                Some(error.clone())
            }
            Event::Agent(event) if event.step == *step => match &event.act {
                Act::ToolReturned {
                    error: Some(error), ..
                } => Some(Failure::new(error.code.clone(), error.message.clone())),
                _ => None,
            },
            _ => None,
        }
    }

    fn failed_worker(state: &State) -> Option<&WorkerFailure> {
        state.failed_worker.as_deref()
    }

    fn size_of(event: &Event) -> usize {
        match event {
            Event::VariableChanged { previous, next, .. } => {
                previous.as_ref().map_or(0, size_of) + size_of(next)
            }
            Event::ChannelWritten { value, .. } => size_of(value),
            Event::PromptComposed {
                messages,
                summarizing,
                ..
            } => {
                let said: usize = messages.iter().map(ModelMessage::size).sum();
                said + summarizing.as_ref().map_or(0, |summarizing| summarizing.size())
            }
            Event::ProviderUsage { .. } => 0,
            Event::Envelope { event, .. } => match event {
                EnvelopeEvent::RetryAttempted { error, .. } | EnvelopeEvent::RetryExhausted { error, .. } => {
                    error.len()
                }
                EnvelopeEvent::Refusal { text, .. } => text.as_ref().map_or(0, String::len),
                EnvelopeEvent::Truncated { .. }
                | EnvelopeEvent::NlToFormat { .. }
                | EnvelopeEvent::FenceStripped
                | EnvelopeEvent::BracesFound { .. } => 0,
            },
            Event::Agent(event) => event.size(),
            Event::Conversation(event) => event.size(),
            Event::Orchestration(event) => match event {
                Orchestration::Decided { decision, .. }
                | Orchestration::ConfidenceEscalated { decision, .. } => size_of(&decision.to_value()),
                Orchestration::HandoffBegan { .. }
                | Orchestration::HandoffSucceeded { .. }
                | Orchestration::HandoffFailed { .. }
                | Orchestration::Harvested { .. }
                | Orchestration::FannedOut { .. }
                | Orchestration::Joined { .. }
                | Orchestration::ContextSummarized { .. } => 0,
            },
        }
    }

    fn is_untrusted(next: &DecisionBuilder<'_, Self>, event: &AnyEvent<Event>) -> bool {
        trust::is_untrusted(next, event.as_ref())
    }

    fn holds_untrusted(run: &Run, state: &State) -> bool {
        state.holds_untrusted(run)
    }
}

impl Walk<'_, '_> {
    fn follow(&mut self, trigger: Trigger) -> Result<(), Refusal> {
        match trigger {
            Trigger::Started => {
                let plan = self.plan;
                plan.entries
                    .iter()
                    .for_each(|&position| self.dirty.push(position));
            }
            Trigger::Advance => {}
            Trigger::Resumed => self.mark_all(),
            Trigger::Set(variables) => {
                start::check_names(&variables)?;
                for (name, next) in variables {
                    let previous = self.state.previous(&name);
                    let changed = Event::VariableChanged {
                        name,
                        previous,
                        next,
                        appends: false,
                        node: None,
                    };
                    self.emit(None, changed);
                }
            }
            Trigger::AttemptDue {
                position,
                step,
                attempt,
                started,
            } => self.perform(position, step, attempt, started),
            Trigger::TimerFired {
                position,
                step,
                cause,
            } => self.time_is_up(position, &step, cause),
            Trigger::EffectEnded { step, cause, outcome } => self.effect_ended(&step, cause, outcome),
            Trigger::ChildEnded {
                position,
                step,
                cause,
                child,
                status,
                outputs,
                report,
            } => self.child_ended(
                position,
                &step,
                cause,
                child::Ended {
                    child,
                    status,
                    outputs,
                    report,
                },
            ),
            Trigger::MemberEnded {
                position,
                step,
                cause,
                child,
            } => match &self.plan.nodes[position].kind {
                NodeKind::SubWorkflow(_) => self.handed_over(position, &step, cause, &child),
                NodeKind::Model(_) => self.tool_ended(position, &step, cause, &child),
                _ => self.worker_ended(position, &step, cause, &child),
            },
            // No node of this language leaves that to the kernel.
            Trigger::ChildrenJoined { .. } => return Err(Refusal::WrongState),
            Trigger::Failed { step, cause, failure } => self.fail_node(&step, cause, failure),
            Trigger::Answered {
                position,
                step,
                cause,
                answer,
            } => match &self.plan.nodes[position].kind {
                NodeKind::Supervisor(_) => self.ratified(position, &step, cause, &answer),
                NodeKind::Dispatch(_) => self.dispatch_answered(position, &step, cause, answer),
                NodeKind::SubWorkflow(_) => self.harvest_answered(position, &step, cause, answer),
                _ => self.answered(position, &step, cause, answer),
            },
            Trigger::Asked { step, by, question } => self.asked(&step, &by, question.as_deref())?,
            Trigger::TurnTaken {
                position,
                step,
                by,
                turn,
                closes,
            } => self.turn_taken(position, &step, &by, &turn, closes)?,
        }
        Ok(())
    }

    fn context(&self) -> Context<'_> {
        Context::of(&self.run, &self.state, self.plan)
    }

    /// The units of state that a variable occupies.
    fn held_of(&self, variable: &str) -> u64 {
        self.state.variables.get(variable).map_or(0, cost::of_value)
    }
}
