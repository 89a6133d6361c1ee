//! What a list does: step after step, until one waits or the list is done.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wopr_kernel::{
    Answered, ApplyError, Call, DecisionBuilder, Dialect, Event, EventRef, Failure, InterruptKind,
    KernelEvent, Limits, Object, Phase, RecordedRef, Refusal, Run, RunStatus, Seq, Spawn, StartRun, StepId,
    Trigger, WorkflowId,
    cost::{self, Budget},
    fields,
    measure::{object_too_deep, too_deep},
    says_untrusted,
};

use crate::plan::{Plan, Step};

/// The language of lists of templates.
#[derive(Debug)]
pub enum Toy {}

/// This language has no events of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NoEvent {}

/// The values that templates read: inputs, answers, and the last text.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    variables: Object,
    is_untrusted: bool,
}

impl Dialect for Toy {
    const NAME: &'static str = "toy";
    const FOLD: u16 = 1;

    type Plan = Plan;
    type State = State;
    type Event = NoEvent;

    fn check_start(_plan: &Plan, start: &StartRun, _budget: &Budget) -> Result<Limits, Refusal> {
        for (field, given) in [("inputs", &start.inputs), ("metadata", &start.metadata)] {
            if object_too_deep(given) {
                return Err(Refusal::InvalidInput {
                    field: field.to_owned(),
                    rule: "nests too deep".to_owned(),
                });
            }
        }
        let limits = start.bounds.limits(&start.configurable, None)?;
        let mut names = start.configurable.keys();
        match names.find(|name| !["recursionLimit", "runTimeoutMs"].contains(&name.as_str())) {
            None => Ok(limits),
            Some(name) => Err(Refusal::InvalidInput {
                field: format!("configurable.{name}"),
                rule: "is not known to this language".to_owned(),
            }),
        }
    }

    fn apply(
        _plan: &Plan,
        _run: &Run,
        state: &mut State,
        recorded: RecordedRef<'_, NoEvent>,
    ) -> Result<(), ApplyError> {
        state.is_untrusted |= recorded.is_untrusted;
        match recorded.event {
            EventRef::Kernel(KernelEvent::RunStarted(started)) => state.variables.clone_from(&started.inputs),
            EventRef::Kernel(KernelEvent::NodeCompleted { outputs, .. }) => {
                state.variables.extend(outputs.clone());
            }
            EventRef::Kernel(_) | EventRef::Dialect(_) => {}
        }
        Ok(())
    }

    fn decide(trigger: Trigger, next: &mut DecisionBuilder<'_, Self>) -> Result<(), Refusal> {
        match trigger {
            Trigger::Started | Trigger::Advance | Trigger::Resumed => {}
            Trigger::Answered {
                step, cause, answer, ..
            } => match answer {
                Answered::Clarification { answers } => complete(next, &step, cause, answers),
                Answered::TimedOut
                | Answered::Approval { .. }
                | Answered::Value { .. }
                | Answered::Verdict { .. } => {
                    fail(
                        next,
                        &step,
                        cause,
                        Failure::new("not_answered", "the question was not answered"),
                    );
                }
            },
            Trigger::ChildrenJoined {
                step, cause, ended, ..
            } => {
                let completed = ended
                    .iter()
                    .filter(|(_, end)| end.status == RunStatus::Completed)
                    .count();
                complete(next, &step, cause, fields(json!({ "completed": completed })));
            }
            Trigger::Failed { step, cause, failure } => fail(next, &step, cause, failure),
            Trigger::EffectEnded { step, cause, outcome } => match outcome {
                Ok(outputs) => complete(next, &step, cause, outputs),
                Err(failure) => fail(next, &step, cause, failure),
            },
            Trigger::AttemptDue {
                position,
                step,
                attempt,
                started,
            } => begin(next, position, step, attempt, started),
            // Its steps have neither timers nor single children, joins of their own or gates, and its variables are its own.
            Trigger::Set(_)
            | Trigger::TimerFired { .. }
            | Trigger::ChildEnded { .. }
            | Trigger::MemberEnded { .. }
            | Trigger::Asked { .. }
            | Trigger::TurnTaken { .. } => return Err(Refusal::WrongState),
        }
        go_on(next);
        Ok(())
    }

    fn variables(state: &State) -> &Object {
        &state.variables
    }

    fn weight(state: &State) -> u64 {
        cost::of_object(&state.variables)
    }

    fn size_of(event: &NoEvent) -> usize {
        match *event {}
    }

    fn is_untrusted(next: &DecisionBuilder<'_, Self>, event: &Event<NoEvent>) -> bool {
        let is_from_outside = match event {
            // The peer of a call says so of what it made, and of what it asks.
            Event::Kernel(KernelEvent::NodeCompleted { outputs, .. }) if says_untrusted(outputs) => true,
            Event::Kernel(event) => event.comes_from_outside(next.outside.is_some()),
            Event::Dialect(_) => next.outside.is_some(),
        };
        is_from_outside || next.state.is_untrusted
    }

    fn holds_untrusted(_run: &Run, state: &State) -> bool {
        state.is_untrusted
    }
}

/// Runs steps until one waits, the list is done, or the decision is full.
fn go_on(next: &mut DecisionBuilder<'_, Toy>) {
    while next.may_start() && !next.has_active() && !next.is_paused() {
        let is_open = |phase: &Phase| matches!(phase, Phase::Idle);
        let Some(position) = next.run.nodes.iter().position(|node| is_open(&node.phase)) else {
            let text = next.state.variables.get("text").cloned();
            return next.complete_run(fields(json!({ "text": text })));
        };
        if next.must_pause() {
            return next.pause();
        }
        let Some((step, started)) = next.start_step(position) else {
            return;
        };
        begin(next, position, step, 0, started);
    }
}

/// Begins an attempt of a step.
fn begin(next: &mut DecisionBuilder<'_, Toy>, position: usize, step: StepId, attempt: u32, started: Seq) {
    let plan = next.plan;
    match &plan.steps[position] {
        Step::Say(template) => match fill(next, template) {
            Ok(text) => complete(next, &step, started, fields(json!({ "text": text }))),
            Err(failure) => fail(next, &step, started, failure),
        },
        Step::Ask { question, name, .. } => match fill(next, question) {
            Ok(question) => {
                let data = json!({ "questions": [{ "id": name, "question": question }] });
                next.interrupt(&step, started, (InterruptKind::Clarification, data), None);
            }
            Err(failure) => fail(next, &step, started, failure),
        },
        Step::Call(payload) => {
            let payload = payload.clone();
            next.call(step, attempt, started, Call::SideEffect { payload });
        }
        Step::Run { workflows, .. } => {
            let spawned = spawns(next, workflows).and_then(|spawns| next.spawn_set(&step, started, spawns));
            if let Err(failure) = spawned {
                fail(next, &step, started, failure);
            }
        }
    }
}

fn spawns(next: &DecisionBuilder<'_, Toy>, workflows: &[WorkflowId]) -> Result<Vec<Spawn>, Failure> {
    let inputs = &next.state.variables;
    let spawns = workflows.iter().map(|workflow| {
        next.spend(cost::of_object(inputs))?;
        Ok(Spawn {
            workflow: workflow.clone(),
            is_chosen_by_host: false,
            inputs: inputs.clone(),
            unset: Vec::new(),
            is_untrusted: next.state.is_untrusted,
            report: Vec::new(),
        })
    });
    spawns.collect()
}

fn complete(next: &mut DecisionBuilder<'_, Toy>, step: &StepId, cause: Seq, outputs: Object) {
    let kept = cost::of_object(&outputs);
    let room = next.spend(2 * kept).and_then(|()| next.hold(kept, 0));
    if outputs.values().any(too_deep) {
        return fail(
            next,
            step,
            cause,
            Failure::new("nested_too_deep", "the answer nests too deep"),
        );
    }
    match room {
        Ok(()) => {
            let completed = KernelEvent::NodeCompleted {
                step: step.clone(),
                outputs,
                routing: Vec::new(),
            };
            next.record(Some(cause), completed);
        }
        Err(failure) => fail(next, step, cause, failure),
    }
}

fn fail(next: &mut DecisionBuilder<'_, Toy>, step: &StepId, cause: Seq, error: Failure) {
    if next.active(step).is_none() {
        return;
    }
    let failed = KernelEvent::NodeFailed {
        step: step.clone(),
        error: error.clone(),
        attempts: 1,
        routing: Vec::new(),
    };
    let cause = next.record(Some(cause), failed);
    next.fail_run(Some(cause), error, Some(step.node.clone()));
}

/// Replaces each `{name}` by a variable; one that is not set stays as it is written.
fn fill(next: &DecisionBuilder<'_, Toy>, template: &str) -> Result<String, Failure> {
    let (mut text, mut rest) = (String::new(), template);
    while let Some((before, (name, after))) = rest
        .split_once('{')
        .and_then(|(before, behind)| Some((before, behind.split_once('}')?)))
    {
        text.push_str(before);
        let value = match next.state.variables.get(name) {
            None => format!("{{{name}}}"),
            Some(Value::String(value)) => value.clone(),
            Some(value) => {
                next.spend(cost::of_value(value))?;
                value.to_string()
            }
        };
        next.spend(cost::bytes(value.len()))?;
        text.push_str(&value);
        rest = after;
    }
    text.push_str(rest);
    next.spend(cost::bytes(text.len()))?;
    Ok(text)
}
