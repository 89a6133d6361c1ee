//! The part of a run's state that only this language has, and its fold.

mod orchestration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wopr_kernel::{
    ApplyError, ApprovalAction, AskedMore, BudgetKey, BudgetUnit, EventRef, KernelEvent, ModelUsage, NodeId,
    OverBudget, OverRunBudget, Planned as _, RecordedRef, Run, RunBound, RunSpending, RunStarted, RunStatus,
    Seq, StepId, WorkerFailure, illegal, micros, provider,
};

pub use orchestration::Supervision;
pub(crate) use orchestration::{
    Dispatching, Handoff, MAX_PAST, MAX_TOLD, Past, PendingHarvest, Stage, Summary,
};

use crate::{
    Act, Event, Failure, Object, Orchestration, Plan, Untrusted,
    acting::Acting,
    channel,
    context::project,
    conversing::{Conversation, Conversing},
    definition::RunBudget,
    event::EnvelopeEvent,
    node::NodeKind,
    offers::listed_tools,
    thinking::{More, Then, Thinking, Turn},
    trigger::{Readiness, Signal, Slot},
};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub variables: Object,
    pub channels: Object,
    #[serde(default, skip_serializing_if = "Untrusted::is_empty")]
    pub untrusted: Untrusted,
    /// What the agents of active nodes have begun.
    #[serde(default, skip_serializing_if = "Acting::is_empty")]
    pub(crate) acting: Acting,
    /// The conversations that are open.
    #[serde(default, skip_serializing_if = "Conversing::is_empty")]
    pub(crate) conversing: Conversing,
    /// Absent until a supervisor has decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervision: Option<Supervision>,
    /// The last worker that failed and has not completed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed_worker: Option<Box<WorkerFailure>>,
    pub(crate) nodes: Vec<NodeState>,
    /// What all answers of models took.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub usage: ModelUsage,
    /// The provider and the model that answered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<(String, String)>,
    /// How often somebody has granted the run its budget again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) n_grants: u32,
    /// What somebody has granted the run beyond the budgets that it shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) granted: Vec<Granted>,
}

/// More that somebody has granted a run beyond a budget that it shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) key: BudgetKey,
    /// Used up once the models of the run have taken this much, in the unit of the budget.
    pub(crate) up_to: u64,
}

/// For serde.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_nothing(usage: &ModelUsage) -> bool {
    *usage == ModelUsage::default()
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct NodeState {
    /// The signals of the incoming forward edges, in edge order.
    pub(crate) slots: Vec<Slot>,
    /// Whether a node without forward edges has used its single start.
    pub(crate) fired: bool,
    /// Back-edge triggers not yet consumed.
    pub(crate) back: u32,
    pub(crate) outputs: Option<Object>,
    /// The latest failure as shown to expressions: `code`, `message` and a reviewer's `feedback`. Connections
    /// do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Object>,
    /// The conversation of its active execution with a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) thinking: Option<Box<Thinking>>,
    /// What its active execution hands over, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) dispatching: Option<Box<Dispatching>>,
}

impl State {
    /// The `previous` value for an event that changes the variable. A `null` is left out: stored, it would
    /// deserialize as `None`.
    pub(crate) fn previous(&self, name: &str) -> Option<Value> {
        let value = self.variables.get(name);
        value.filter(|value| !value.is_null()).cloned()
    }

    /// The conversation that is open at a node.
    #[must_use]
    pub fn conversation(&self, node: &NodeId) -> Option<&Conversation> {
        self.conversing.at(node)
    }

    /// Folds one event in; `run` is as it was before the event.
    pub(crate) fn apply(
        &mut self,
        plan: &Plan,
        run: &Run,
        recorded: RecordedRef<'_, Event>,
    ) -> Result<(), ApplyError> {
        match recorded.event {
            EventRef::Kernel(event) => {
                self.apply_kernel(plan, run, event, recorded.seq)?;
                self.follow_handoffs(plan, recorded.seq, event, recorded.is_untrusted);
                if let (KernelEvent::NodeDispatched { step, child, .. }, Some(cause)) =
                    (event, recorded.cause)
                {
                    let position = self.position(plan, step, "child")?;
                    if let Some(thinking) = &mut self.nodes[position].thinking {
                        thinking.begun(child, cause);
                    }
                }
            }
            EventRef::Dialect(event) => self.apply_own(plan, recorded.seq, event)?,
        }
        self.acting.follow(plan, recorded);
        self.conversing.follow(recorded);
        self.untrusted.follow(plan, recorded);
        Ok(())
    }

    /// How much the models of the run have taken, in the unit of a budget.
    pub(crate) fn taken(&self, unit: BudgetUnit) -> u64 {
        match unit {
            BudgetUnit::Tokens => self.usage.total_tokens(),
            BudgetUnit::CostMicros => micros(self.usage.cost_usd.unwrap_or(0.0)),
            BudgetUnit::TimeMs => self.usage.duration_ms.unwrap_or(0),
        }
    }

    /// The bounds of the run's own budget on tokens and cost. Its bound on time is checked against the time that the run was
    /// active.
    pub(crate) fn bounds(&self, budget: &RunBudget) -> impl Iterator<Item = RunBound> {
        // Each approval gives as much again.
        let times = u64::from(self.n_grants) + 1;
        let bounds = [
            (BudgetUnit::Tokens, budget.max_tokens),
            (BudgetUnit::CostMicros, budget.max_cost_usd.map(micros)),
        ];
        let bounds = bounds.into_iter().filter_map(|(unit, most)| Some((unit, most?)));
        bounds.map(move |(unit, most)| RunBound {
            unit,
            taken: self.taken(unit),
            most: most.saturating_mul(times),
        })
    }

    /// The budgets that open approvals ask to raise.
    fn asked_for<'s>(&'s self, run: &'s Run) -> impl Iterator<Item = &'s More> {
        let nodes = self.nodes.iter().zip(&run.nodes);
        let asking = nodes.filter(|(_, of_run)| of_run.is_asking());
        asking.filter_map(|(node, _)| node.thinking.as_ref()?.asks_more.as_deref())
    }

    /// Whether somebody is asked to give the run its budget again.
    pub(crate) fn asks_for_budget(&self, run: &Run) -> bool {
        self.asked_for(run).any(|more| matches!(more, More::OfRun))
    }

    /// Returns `true` if an open approval asks to raise this shared budget.
    #[must_use]
    pub fn asks_for_more(&self, run: &Run, key: &BudgetKey) -> bool {
        let mut shared = self.asked_for(run);
        shared.any(|more| matches!(more, More::Shared(asked) if asked.key == *key))
    }

    /// The consumption of the run's models and its bounds, if there are any.
    #[must_use]
    pub fn spending(&self, plan: &Plan, run: &Run) -> Option<RunSpending> {
        let budget = plan.definition.settings.budget.as_ref();
        let bounds: Vec<_> = budget
            .into_iter()
            .flat_map(|budget| self.bounds(budget))
            .collect();
        let granted = self.granted.iter().map(|granted| {
            let unit = granted.key.unit;
            let bound = RunBound {
                unit,
                taken: self.taken(unit),
                most: granted.up_to,
            };
            (granted.key, bound)
        });
        let granted: Vec<_> = granted.collect();
        (!bounds.is_empty() || !granted.is_empty()).then(|| RunSpending {
            bounds,
            granted,
            is_asked_for: self.asks_for_budget(run),
        })
    }

    fn grant(&mut self, more: &AskedMore) {
        let up_to = self.taken(more.key.unit).saturating_add(more.grant);
        // Of one bound only the latest window counts.
        let bound = |key: &BudgetKey| (key.scope, key.per, key.unit);
        self.granted.retain(|known| bound(&known.key) != bound(&more.key));
        self.granted.push(Granted { key: more.key, up_to });
    }

    /// Folds an event of an execution into what it hands over.
    fn follow_handoffs(&mut self, plan: &Plan, seq: Seq, event: &KernelEvent, is_untrusted: bool) {
        let (step, ends) = match event {
            KernelEvent::ChildEnded { step, .. }
            | KernelEvent::InterruptRequested { step, .. }
            | KernelEvent::ApprovalReceived { step, .. } => (step, false),
            KernelEvent::NodeCompleted { step, .. }
            | KernelEvent::NodeFailed { step, .. }
            | KernelEvent::NodeCancelled { step, .. } => (step, true),
            _ => return,
        };
        let Some(position) = plan.position(&step.node) else {
            return;
        };
        let Some(state) = self.nodes.get_mut(position) else {
            return;
        };
        if ends {
            let ended = state.dispatching.take();
            // A revision too many is a verdict, too: whoever handles the failure decides about the work.
            let is_rejected = matches!(event, KernelEvent::NodeFailed { .. });
            if let (true, Some(ended), Some(known)) = (is_rejected, ended, &mut self.supervision)
                && ended.verdict.is_some()
                && ended.cause == known.decided
            {
                known.awaits_verdict = false;
            }
        } else if let Some(dispatching) = &mut state.dispatching {
            dispatching.apply_kernel(seq, event);
            // A person may have put another decision in its place.
            let gives_up = dispatching
                .decision
                .as_ref()
                .is_some_and(|decision| !decision.claims_success());
            if let (true, KernelEvent::ApprovalReceived { .. }, Some(known)) =
                (gives_up, event, &mut self.supervision)
                && dispatching.cause == known.decided
            {
                known.awaits_verdict = false;
            }
            if let KernelEvent::ChildEnded {
                child, status, error, ..
            } = event
                && let Some(handoff) = dispatching.of_child(child)
            {
                if let Some(error) = error {
                    let failure = WorkerFailure::new(&handoff.worker, Some(child), error, is_untrusted);
                    self.failed_worker = Some(Box::new(failure));
                } else if *status == RunStatus::Completed {
                    self.failed_worker
                        .take_if(|failed| failed.worker == handoff.worker);
                }
            }
            let kind = &plan.nodes[position].kind;
            if matches!(kind, NodeKind::SubWorkflow(sub) if sub.needs_approval()) {
                dispatching.await_approval(event, is_untrusted);
            }
        }
    }

    /// What an execution that begins has to hand over.
    fn begin_dispatching(&mut self, plan: &Plan, position: usize, started: Seq) {
        let decided = self.supervision.as_ref();
        let dispatching = match &plan.nodes[position].kind {
            NodeKind::Dispatch(_) => decided
                .map(|known| Dispatching::new(known.decided, Some(known.latest.clone()), known.by.clone())),
            NodeKind::SubWorkflow(sub) if plan.hands_over(sub) => {
                let cause = decided.map_or(started, |known| known.decided);
                Some(Dispatching::new(cause, None, None))
            }
            _ => return,
        };
        if let (NodeKind::Dispatch(_), Some(known)) = (&plan.nodes[position].kind, &mut self.supervision) {
            known.n_dispatches += 1;
        }
        self.nodes[position].dispatching = dispatching.map(Box::new);
    }

    fn orchestrate(&mut self, plan: &Plan, seq: Seq, event: &Orchestration) {
        if let Orchestration::Decided {
            step,
            agent,
            decision,
            iteration,
        } = event
        {
            let known = self.supervision.take();
            let known = known.map(|known| (known.n_dispatches, known.n_revisions, known.past, known.summary));
            let (n_dispatches, n_revisions, mut past, summary) = known.unwrap_or_default();
            let position = plan.position(&step.node);
            let verifier = position.and_then(|at| plan.nodes[at].kind.verifier());
            if position.is_some_and(|at| plan.nodes[at].kind.model().is_some()) {
                past.push(Past::of(decision, seq));
                let n_over = past.len().saturating_sub(MAX_PAST);
                past.drain(..n_over);
            }
            self.supervision = Some(Supervision {
                agent: agent.clone(),
                n_decisions: *iteration,
                latest: decision.clone(),
                decided: seq,
                by: Some(step.node.clone()),
                awaits_verdict: verifier.is_some_and(|known| known.gates) && decision.claims_success(),
                n_revisions,
                n_dispatches,
                past,
                summary,
            });
        }
        if let Orchestration::HandoffFailed { worker, error, .. } = event {
            self.failed_worker = Some(Box::new(WorkerFailure::new(worker, None, error, false)));
        }
        if let (Orchestration::ContextSummarized { .. }, Some(known)) = (event, &mut self.supervision)
            && let Some(summary) = &mut known.summary
        {
            summary.at = seq;
        }
        let position = plan.position(&event.step().node);
        let state = position.and_then(|position| self.nodes.get_mut(position));
        if let Some(dispatching) = state.and_then(|state| state.dispatching.as_mut()) {
            dispatching.apply(seq, event);
        }
    }

    fn apply_kernel(
        &mut self,
        plan: &Plan,
        run: &Run,
        event: &KernelEvent,
        seq: Seq,
    ) -> Result<(), ApplyError> {
        match event {
            KernelEvent::RunStarted(started) => self.start(plan, started),
            KernelEvent::NodeStarted { step, attempt: 0, .. } => {
                let position = self.position(plan, step, "start")?;
                let ready = self.readiness(run, plan, position);
                if ready == Readiness::Skip || !self.nodes[position].consume(ready) {
                    return Err(illegal("start of a node that is not ready", &step.node));
                }
                self.begin_dispatching(plan, position, seq);
            }
            KernelEvent::NodeSkipped { node, .. } => {
                let position = plan.position(node).ok_or_else(|| illegal("skip", node))?;
                let ready = self.readiness(run, plan, position);
                let state = self.nodes.get_mut(position);
                let state = state.ok_or_else(|| illegal("skip before the start", node))?;
                if !state.consume(ready) {
                    return Err(illegal("skip out of turn", node));
                }
                self.signal(plan, position, Signal::Skipped, &[]);
            }
            KernelEvent::NodeCompleted {
                step,
                outputs,
                routing,
            } => {
                let position = self.position(plan, step, "end")?;
                project(plan, position, outputs, &mut self.variables);
                self.nodes[position].outputs = Some(outputs.clone());
                self.nodes[position].error = None;
                self.nodes[position].thinking = None;
                if let (NodeKind::Dispatch(_), Some(known)) =
                    (&plan.nodes[position].kind, &mut self.supervision)
                {
                    known.follow(outputs, seq);
                }
                self.signal(plan, position, Signal::Success, routing);
            }
            KernelEvent::NodeFailed {
                step, error, routing, ..
            } => {
                let position = self.position(plan, step, "end")?;
                self.nodes[position].outputs = None;
                self.nodes[position].thinking = None;
                self.nodes[position].describe(error);
                self.signal(plan, position, Signal::Failure, routing);
            }
            KernelEvent::InterruptResolved { step, action, .. } => {
                let position = self.position(plan, step, "resolution")?;
                let thinking = self.nodes[position].thinking.as_mut();
                let more = thinking.and_then(|thinking| thinking.asks_more.take());
                // With this event, so that a branch that takes it over loses what it grants.
                match more.map(|more| *more) {
                    _ if *action != Some(ApprovalAction::Accept) => {}
                    Some(More::Shared(more)) => self.grant(&more),
                    Some(More::OfRun) => self.n_grants += 1,
                    None => {}
                }
            }
            KernelEvent::ApprovalReceived { step, feedback, .. } => {
                let position = self.position(plan, step, "decision")?;
                // A rejection fails the node next, and its comment belongs to that failure.
                self.nodes[position].error = feedback
                    .as_ref()
                    .map(|words| Object::from_iter([("feedback".to_owned(), Value::String(words.clone()))]));
            }
            KernelEvent::EffectEnded {
                step,
                provider,
                outcome,
                ..
            } if provider == provider::MODEL => {
                if OverBudget::read(outcome).is_some() || OverRunBudget::read(outcome).is_some() {
                    return Ok(());
                }
                let reply = serde_json::from_value(Value::Object(outcome.clone()));
                let reply = reply.map_err(|_| illegal("an unreadable reply", &step.node))?;
                let thinking = self.thinking(plan, step)?;
                // A summary is no answer to the prompt.
                if thinking.summarizing.is_none() {
                    thinking.turns.push(Turn::of(reply));
                }
            }
            KernelEvent::EffectEnded {
                step,
                provider,
                outcome,
                ..
            } if provider == provider::TOOL_LIST => {
                let listed =
                    listed_tools(outcome).ok_or_else(|| illegal("an unreadable list", &step.node))?;
                self.thinking(plan, step)?.listed = Some(listed);
            }
            KernelEvent::InterruptRequested { step, data, .. } => {
                let position = self.position(plan, step, "question")?;
                if let Some(thinking) = &mut self.nodes[position].thinking {
                    thinking.asks_more = More::read(data).map(Box::new);
                }
            }
            KernelEvent::ArtifactCreated { step, content, .. } => {
                let position = self.position(plan, step, "artifact")?;
                let thinking = self.nodes[position].thinking.as_mut();
                let thinking = thinking.filter(|thinking| thinking.summarizing.is_some());
                if let (Some(thinking), Some(known), Value::String(text)) =
                    (thinking, &mut self.supervision, content)
                {
                    let n_turns = thinking.summarized(text);
                    known.summarize(n_turns, text.clone(), seq);
                }
            }
            KernelEvent::NodeCancelled { step, .. } => {
                let position = self.position(plan, step, "cancel")?;
                self.nodes[position].thinking = None;
            }
            KernelEvent::ForkResumed {
                calls_again: true, ..
            } => {
                // One approval would otherwise count once for each branch.
                self.granted.clear();
                for node in &mut self.nodes {
                    if let Some(thinking) = &mut node.thinking {
                        thinking.begin_again();
                    }
                    if let Some(dispatching) = &mut node.dispatching {
                        dispatching.begin_again();
                    }
                }
            }
            KernelEvent::NodeStarted { .. }
            | KernelEvent::RunCompleted { .. }
            | KernelEvent::RunFailed { .. }
            | KernelEvent::RunCancelled { .. }
            | KernelEvent::CancelRequested { .. }
            | KernelEvent::RunPaused { .. }
            | KernelEvent::RunResumed { .. }
            | KernelEvent::NodeRetried { .. }
            | KernelEvent::NodeSuspended { .. }
            | KernelEvent::NodeResumed { .. }
            | KernelEvent::NodeDispatched { .. }
            | KernelEvent::ChildEnded { .. }
            | KernelEvent::EffectScheduled { .. }
            | KernelEvent::EffectAccepted { .. }
            | KernelEvent::EffectProgressed { .. }
            | KernelEvent::EffectEnded { .. }
            | KernelEvent::ApprovalRequested { .. }
            | KernelEvent::ApprovalVoted { .. }
            | KernelEvent::ClarificationRequested { .. }
            | KernelEvent::ClarificationResolved { .. }
            | KernelEvent::MemoryWritten(_)
            | KernelEvent::MemoryCompacted { .. }
            | KernelEvent::OutputChunk { .. }
            | KernelEvent::CapBreached { .. }
            | KernelEvent::ReplayDiverged { .. }
            | KernelEvent::RefusalDiverged { .. }
            | KernelEvent::ForkResumed { .. } => {}
        }
        Ok(())
    }

    fn apply_own(&mut self, plan: &Plan, seq: Seq, event: &Event) -> Result<(), ApplyError> {
        match event {
            Event::Orchestration(event) => self.orchestrate(plan, seq, event),
            Event::VariableChanged {
                name, next, appends, ..
            } => match self.variables.get_mut(name) {
                Some(Value::Array(items)) if *appends => items.push(next.clone()),
                _ if *appends => drop(self.variables.insert(name.clone(), vec![next.clone()].into())),
                _ => drop(self.variables.insert(name.clone(), next.clone())),
            },
            Event::ChannelWritten {
                channel,
                value,
                reducer,
                ttl_ms,
                max_size,
                written_at,
                ..
            } => {
                let write = channel::Write {
                    value,
                    reducer,
                    ttl_ms: *ttl_ms,
                    max_size: *max_size,
                    at: *written_at,
                };
                let next = channel::fold(self.channels.get(channel), &write);
                self.variables.insert(channel.clone(), next.clone());
                self.channels.insert(channel.clone(), next);
            }
            Event::PromptComposed {
                step,
                messages,
                summarizing,
                ..
            } => {
                let position = self.position(plan, step, "prompt")?;
                self.nodes[position].thinking = Some(Box::new(Thinking {
                    messages: messages.clone(),
                    summarizing: summarizing.clone(),
                    ..Thinking::default()
                }));
            }
            Event::ProviderUsage {
                provider,
                model,
                usage,
                ..
            } => {
                self.usage.add(usage);
                self.model = Some((provider.clone(), model.clone()));
            }
            Event::Envelope { step, event } => {
                let then = match event {
                    EnvelopeEvent::RetryAttempted { error, .. } => Then::Repair(error.clone()),
                    EnvelopeEvent::NlToFormat { .. } => Then::Reformat,
                    EnvelopeEvent::Truncated { is_retried: true, .. } => Then::MoreRoom,
                    EnvelopeEvent::Truncated {
                        is_retried: false, ..
                    }
                    | EnvelopeEvent::RetryExhausted { .. }
                    | EnvelopeEvent::Refusal { .. }
                    | EnvelopeEvent::FenceStripped
                    | EnvelopeEvent::BracesFound { .. } => return Ok(()),
                };
                let last = self.thinking(plan, step)?.turns.last_mut();
                last.ok_or_else(|| illegal("a judgement of no reply", &step.node))?
                    .then = Some(then);
            }
            // `acting` follows it as well.
            Event::Agent(event) => {
                let position = self.position(plan, &event.step, "act")?;
                let state = &mut self.nodes[position];
                if let Some(thinking) = &mut state.thinking {
                    thinking.follow(seq, &event.act);
                }
                if let (Act::Verified { verdict, .. }, Some(dispatching), Some(known)) =
                    (&event.act, &mut state.dispatching, &mut self.supervision)
                {
                    dispatching.verdict = Some(*verdict);
                    known.judge(*verdict, dispatching.cause);
                }
            }
            // `conversing` follows these.
            Event::Conversation(_) => {}
        }
        Ok(())
    }

    fn thinking(&mut self, plan: &Plan, step: &StepId) -> Result<&mut Thinking, ApplyError> {
        let position = self.position(plan, step, "reply")?;
        let thinking = self.nodes[position].thinking.as_deref_mut();
        thinking.ok_or_else(|| illegal("a reply without a prompt", &step.node))
    }

    fn start(&mut self, plan: &Plan, started: &RunStarted) {
        for variable in plan.variables() {
            if let Some(value) = &variable.default_value {
                self.variables.insert(variable.name.clone(), value.clone());
            }
        }
        // A variable stays unset despite its default if the parent mapped it from an unset variable
        // (RFC 0022).
        for name in started.parent.iter().flat_map(|parent| &parent.unset) {
            self.variables.remove(name);
        }
        for (name, value) in &started.inputs {
            self.variables.insert(name.clone(), value.clone());
        }
        for (name, declaration) in &plan.definition.channels {
            if let Some(value) = declaration.get("default") {
                self.channels.insert(name.clone(), value.clone());
            }
        }
        self.nodes = plan
            .nodes
            .iter()
            .map(|node| NodeState {
                slots: vec![Slot::default(); node.forward.len()],
                ..NodeState::default()
            })
            .collect();
    }

    /// The position of a step's node, which must exist once the run has started.
    fn position(&self, plan: &Plan, step: &StepId, what: &str) -> Result<usize, ApplyError> {
        let position = plan.position(&step.node);
        position
            .filter(|position| *position < self.nodes.len())
            .ok_or_else(|| illegal(what, &step.node))
    }
}

impl NodeState {
    /// Stores the failure's fields, and keeps the feedback of the decision that caused it.
    fn describe(&mut self, failure: &Failure) {
        let decision = self.error.take().filter(|error| !error.contains_key("code"));
        let mut error = decision.unwrap_or_default();
        error.insert("code".to_owned(), Value::String(failure.code.clone()));
        error.insert("message".to_owned(), Value::String(failure.message.clone()));
        if let Some(reason) = &failure.reason {
            error.insert("reason".to_owned(), Value::String(reason.clone()));
        }
        self.error = Some(error);
    }
}
