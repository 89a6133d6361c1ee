//! What a document does: tokens go from node to node, until all of them wait or the run ends.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wopr_kernel::{
    self as kernel, Answered, ApplyError, DecisionBuilder, Dialect, Event, Failure, InterruptKind,
    KernelEvent, Limits, Object, Phase, RecordedRef, Refusal, Run, Seq, StartRun, StepId, Trigger,
    cost::{self, Budget},
    fields,
    measure::{object_too_deep, too_deep},
};

use crate::{
    activity,
    definition::{Kind, Wait},
    delegate, in_process,
    jq::{JqError, is_true},
    options::{self, ActivityMode},
    plan::Plan,
    state::State,
    subworkflow,
    walk::wanted,
};

/// The reason of a step's cancel whose branch nobody waits for any more.
const BRANCH_CANCELLED: &str = "branch-cancelled";
/// The type and the human-readable name of the artifact that a run's result is.
const RESULT: (&str, &str) = ("result", "Result");

/// The Agent Workflow language.
#[derive(Debug)]
pub enum Awp {}

/// This language has no events of its own: what its histories say follows from those of the kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum NoEvent {}

pub(crate) type Next<'a> = DecisionBuilder<'a, Awp>;

impl Dialect for Awp {
    const NAME: &'static str = "awp";
    const FOLD: u16 = 2;

    type Plan = Plan;
    type State = State;
    type Event = NoEvent;

    fn check_start(plan: &Plan, start: &StartRun, budget: &Budget) -> Result<Limits, Refusal> {
        let invalid = |field: &str, rule: String| Refusal::InvalidInput {
            field: field.to_owned(),
            rule,
        };
        plan.check_inputs(&start.inputs, budget)
            .map_err(|rule| invalid("inputs", rule))?;
        if object_too_deep(&start.metadata) {
            return Err(invalid("metadata", "nests too deep".to_owned()));
        }
        if object_too_deep(&start.configurable) {
            return Err(invalid("configurable", "nests too deep".to_owned()));
        }
        options::check(&start.configurable)?;
        start.bounds.limits(&start.configurable, None)
    }

    fn drop_own_options(configurable: &mut Object) {
        options::drop_name(configurable);
    }

    fn apply(
        plan: &Plan,
        _run: &Run,
        state: &mut State,
        recorded: RecordedRef<'_, NoEvent>,
    ) -> Result<(), ApplyError> {
        state.apply(plan, recorded).map(drop)
    }

    fn decide(trigger: Trigger, next: &mut Next<'_>) -> Result<(), Refusal> {
        if has_subject(&trigger, next) {
            follow(trigger, next)?;
        }
        go_on(next);
        Ok(())
    }

    fn variables(state: &State) -> &Object {
        state.fields()
    }

    fn weight(state: &State) -> u64 {
        state.weight()
    }

    fn size_of(event: &NoEvent) -> usize {
        match *event {}
    }

    fn is_untrusted(next: &Next<'_>, event: &Event<NoEvent>) -> bool {
        let is_from_outside = match event {
            // What another agent or a tool has answered.
            Event::Kernel(KernelEvent::NodeCompleted { step, .. }) if is_of_outsider(next, step) => true,
            Event::Kernel(event) => event.comes_from_outside(next.outside.is_some()),
            Event::Dialect(_) => next.outside.is_some(),
        };
        is_from_outside || next.state.is_untrusted
    }

    fn holds_untrusted(_run: &Run, state: &State) -> bool {
        state.is_untrusted
    }
}

/// Whether a step ends with the answer of an agent or a tool that this host has called.
fn is_of_outsider(next: &Next<'_>, step: &StepId) -> bool {
    let Some((_, active)) = next.active(step) else {
        return next.outside.is_some();
    };
    let outsiders = [kernel::provider::AGENT, kernel::provider::TOOL];
    let is_call =
        matches!(&active.wait, kernel::Wait::Effect(pending) if outsiders.contains(&&*pending.provider));
    is_call || next.outside.is_some()
}

/// Returns `true` if the trigger's step has not ended.
///
/// Where a fork goes on by itself in the middle of a decision, steps begin again of which the rest of that decision has
/// cancelled some.
fn has_subject(trigger: &Trigger, next: &Next<'_>) -> bool {
    match trigger {
        Trigger::AttemptDue { step, .. }
        | Trigger::TimerFired { step, .. }
        | Trigger::EffectEnded { step, .. }
        | Trigger::ChildEnded { step, .. }
        | Trigger::ChildrenJoined { step, .. }
        | Trigger::MemberEnded { step, .. }
        | Trigger::Failed { step, .. }
        | Trigger::Answered { step, .. }
        | Trigger::Asked { step, .. }
        | Trigger::TurnTaken { step, .. } => next.active(step).is_some(),
        Trigger::Started | Trigger::Advance | Trigger::Resumed | Trigger::Set(_) => true,
    }
}

/// Follows what a step waited for.
fn follow(trigger: Trigger, next: &mut Next<'_>) -> Result<(), Refusal> {
    match trigger {
        Trigger::Started | Trigger::Advance | Trigger::Resumed => {}
        Trigger::AttemptDue {
            position,
            step,
            attempt,
            started,
        } => begin(next, position, &step, attempt, started),
        Trigger::TimerFired { step, cause, .. } => complete(next, &step, cause, Object::new()),
        Trigger::Answered {
            step, cause, answer, ..
        } => match answer {
            Answered::Value { value, .. } => complete(next, &step, cause, fields(value)),
            Answered::TimedOut => {
                let failure = failure("interrupt_timed_out", "TIMEOUT", "nobody answered in time");
                fail(next, &step, cause, failure);
            }
            // No node of this language opens such an interrupt.
            Answered::Approval { .. } | Answered::Clarification { .. } | Answered::Verdict { .. } => {
                return Err(Refusal::WrongState);
            }
        },
        Trigger::Failed {
            step,
            cause,
            failure: error,
        } => {
            // Only children fail for a reason that the kernel knows.
            let error = match error.reason {
                Some(_) => error,
                None => error.because("subworkflow_failed"),
            };
            fail(next, &step, cause, error);
        }
        Trigger::EffectEnded { step, cause, outcome } => {
            let position = next.active(&step).map(|(position, _)| position);
            match position.map(|position| &next.plan.at(position).kind) {
                Some(Kind::Delegate { .. }) => delegate::ended(next, &step, cause, outcome),
                Some(_) if activity::mode(next) == ActivityMode::InProcess => {
                    in_process::ended(next, &step, cause, outcome);
                }
                Some(_) | None => activity::ended(next, &step, cause, outcome),
            }
        }
        Trigger::ChildEnded {
            step,
            cause,
            outputs,
            report,
            ..
        } => subworkflow::ended(next, &step, cause, outputs, report),
        // Its steps have one child each and no gates, and its state is its own.
        Trigger::Set(_)
        | Trigger::ChildrenJoined { .. }
        | Trigger::MemberEnded { .. }
        | Trigger::Asked { .. }
        | Trigger::TurnTaken { .. } => return Err(Refusal::WrongState),
    }
    Ok(())
}

/// Runs nodes until one waits, the run ends, or the decision is full.
fn go_on(next: &mut Next<'_>) {
    while next.may_start() && !next.is_paused() {
        let is_under_way = |node: usize| matches!(next.run.nodes[node].phase, Phase::Active(_));
        let Some(position) = next.state.walk.next(is_under_way) else {
            return;
        };
        if next.must_pause() {
            return next.pause();
        }
        let Some((step, started)) = next.start_step(position) else {
            return;
        };
        begin(next, position, &step, 0, started);
    }
}

/// Does what a node does, or begins it.
fn begin(next: &mut Next<'_>, position: usize, step: &StepId, attempt: u32, started: Seq) {
    let plan = next.plan;
    match &plan.at(position).kind {
        Kind::Start { .. } | Kind::Parallel { .. } => complete(next, step, started, Object::new()),
        Kind::End { .. } => end(next, position, step, started),
        Kind::SetState(mapping) => {
            let values = mapping.evaluate(next.state.document(), next.input.now, &next.budget);
            match values {
                Ok(values) => complete(next, step, started, values),
                Err((name, error)) => {
                    let about = format!("set_state \"{name}\" (jq) failed: {error}");
                    fail(next, step, started, jq_failure("set_state_failed", &error, about));
                }
            }
        }
        Kind::Switch { cases, default } => match route(next, cases, default.is_some()) {
            Ok(way) => complete_by(next, step, started, Object::new(), vec![way]),
            Err(failure) => fail(next, step, started, failure),
        },
        Kind::Interrupt {
            prompt, timeout_ms, ..
        } => {
            let schema = plan.at(position).config.get("resume_schema").cloned();
            let data = json!({ "prompt": prompt, "resumeSchema": schema });
            next.interrupt(step, started, (InterruptKind::Custom, data), *timeout_ms);
        }
        Kind::Wait(Wait::Duration(ms)) => next.sleep_for(step.clone(), *ms),
        Kind::Wait(Wait::Until(at)) => {
            let until = (*at).max(next.input.now);
            next.sleep(step.clone(), until);
        }
        Kind::Wait(Wait::Signal(name)) => {
            let data = json!({ "signal": name, "description": format!("Waits for the signal '{name}'.") });
            next.interrupt(step, started, (InterruptKind::ExternalEvent, data), None);
        }
        Kind::Step | Kind::Llm { .. } | Kind::Tool => {
            activity::begin(next, position, step, attempt, started, Object::new());
        }
        Kind::Subworkflow {
            workflow_ref,
            mapping,
            version_pin,
        } => subworkflow::begin(next, (workflow_ref, mapping, version_pin.as_ref()), step, started),
        Kind::Delegate {
            agent_id,
            protocol,
            mapping,
        } => delegate::begin(
            next,
            (agent_id, *protocol, mapping),
            position,
            (step, attempt),
            started,
        ),
    }
}

/// The first case whose filter is true, else the way after the last one.
fn route(next: &Next<'_>, cases: &[(crate::jq::Filter, String)], has_default: bool) -> Result<u32, Failure> {
    for (n, (when, _)) in cases.iter().enumerate() {
        let found = when.evaluate(next.state.document(), next.input.now, &next.budget.meter());
        match found {
            Ok(found) if is_true(&found) => return Ok(u32::try_from(n).unwrap_or(u32::MAX)),
            Ok(_) => {}
            Err(error) => {
                let about = format!("switch case {n} (jq) failed: {error}");
                return Err(jq_failure("switch_routing_failed", &error, about));
            }
        }
    }
    match has_default {
        true => Ok(u32::try_from(cases.len()).unwrap_or(u32::MAX)),
        false => Err(failure(
            "switch_routing_failed",
            "switch_routing_failed",
            "no case of the switch holds, and it has no default",
        )),
    }
}

/// Completes the run with what the end node makes of the state.
fn end(next: &mut Next<'_>, position: usize, step: &StepId, started: Seq) {
    let plan = next.plan;
    let Kind::End {
        mapping,
        output_schema,
    } = &plan.at(position).kind
    else {
        return;
    };
    let result = match mapping {
        None => next
            .copy(next.state.document())
            .map_err(|failure| failure.because("output_mapping_jq_failed")),
        Some(mapping) => mapping
            .evaluate(next.state.document(), next.input.now, &next.budget.meter())
            .map_err(|error| {
                let about = format!("end output_mapping (jq) failed: {error}");
                jq_failure("output_mapping_jq_failed", &error, about)
            }),
    };
    let result = result.and_then(|result| {
        if too_deep(&result) {
            return Err(failure(
                "orchestration_error",
                "nested_too_deep",
                "the result nests too deep",
            ));
        }
        if let Some(schema) = output_schema {
            let checked = schema.validate(&result, &next.budget.meter());
            checked.map_err(|invalid| {
                let about = format!("the result does not match the output_schema: {invalid}");
                failure("orchestration_error", "OUTPUT_SCHEMA_VIOLATION", about)
            })?;
        }
        Ok(result)
    });
    match result {
        Ok(result) => {
            let started = match hand_over(next, step, started, &result) {
                Ok(cause) => cause,
                Err(failure) => return fail(next, step, started, failure),
            };
            complete(next, step, started, Object::new());
            if next.run.status.is_terminal() {
                return;
            }
            let mut outputs = fields(json!({ "result": result }));
            // A parent goes on with the whole state. The fork of a child has no parent, and ends as its source did.
            let started = next.run.started.as_ref();
            if started.is_some_and(|started| started.parent.is_some()) {
                match next.copy(next.state.document()) {
                    Ok(state) => drop(outputs.insert(subworkflow::FINAL_STATE.to_owned(), state)),
                    Err(failure) => {
                        let failure = failure.because("orchestration_error");
                        return next.fail_run(None, failure, Some(step.node.clone()));
                    }
                }
            }
            next.complete_run(outputs);
        }
        Err(failure) => fail(next, step, started, failure),
    }
}

/// Makes the result an artifact, as which clients of every protocol get what a run was started for. `null` is none.
fn hand_over(next: &mut Next<'_>, step: &StepId, cause: Seq, result: &Value) -> Result<Seq, Failure> {
    if result.is_null() {
        return Ok(cause);
    }
    let content = next
        .copy(result)
        .map_err(|failure| failure.because("orchestration_error"))?;
    let (artifact_type, name) = RESULT;
    Ok(next.artifact(step, cause, artifact_type.to_owned(), name.to_owned(), content))
}

pub(crate) fn complete(next: &mut Next<'_>, step: &StepId, cause: Seq, output: Object) {
    complete_by(next, step, cause, output, Vec::new());
}

/// Completes a step, and holds the state that its output makes against its schema.
fn complete_by(next: &mut Next<'_>, step: &StepId, cause: Seq, output: Object, routing: Vec<u32>) {
    let kept = cost::of_object(&output);
    let replaced = next.state.replaced(next.plan, &step.node, &output);
    let room = next.spend(2 * kept).and_then(|()| next.hold(kept, replaced));
    let room = room.map_err(|failure| failure.because("orchestration_error"));
    if let Err(failure) = room {
        return fail(next, step, cause, failure);
    }
    if output.values().any(too_deep) {
        let failure = failure(
            "orchestration_error",
            "nested_too_deep",
            "the output nests too deep",
        );
        return fail(next, step, cause, failure);
    }
    let changes_state = !output.is_empty();
    let completed = KernelEvent::NodeCompleted {
        step: step.clone(),
        outputs: output,
        routing,
    };
    let cause = next.record(Some(cause), completed);
    if !changes_state {
        return cancel_left(next, cause);
    }
    let checked = next
        .plan
        .definition
        .state_schema
        .validate(next.state.document(), &next.budget.meter());
    if let Err(invalid) = checked {
        let message = format!("State invalid after node \"{}\": {invalid}", step.node);
        let failure = failure("orchestration_error", "state_invalid", message);
        return next.fail_run(Some(cause), failure, Some(step.node.clone()));
    }
    cancel_left(next, cause);
}

/// Cancels the steps of branches that nobody waits for any more: their join holds without them, or cannot hold.
fn cancel_left(next: &mut Next<'_>, cause: Seq) {
    for position in 0..next.run.nodes.len() {
        if let Phase::Active(active) = &next.run.nodes[position].phase
            && !next.state.walk.is_at(position)
        {
            let step = next.step(position, active.ordinal);
            next.cancel_step(&step, Some(cause), BRANCH_CANCELLED);
        }
    }
}

/// Fails a step. In a branch that may fail, another one goes on; else the run fails.
pub(crate) fn fail(next: &mut Next<'_>, step: &StepId, cause: Seq, error: Failure) {
    let Some((_, active)) = next.active(step) else {
        return;
    };
    let attempts = active.n_attempts();
    let failed = KernelEvent::NodeFailed {
        step: step.clone(),
        error: error.clone(),
        attempts,
        routing: Vec::new(),
    };
    let cause = next.record(Some(cause), failed);
    if !next.state.walk.has_failed() {
        return cancel_left(next, cause);
    }
    match next.state.broken_join {
        Some(fork) => fail_broken_join(next, fork, cause),
        None => next.fail_run(Some(cause), error, Some(step.node.clone())),
    }
}

/// Fails the run, because too few branches of a parallel node have completed.
fn fail_broken_join(next: &mut Next<'_>, fork: usize, cause: Seq) {
    let node = &next.plan.at(fork).id;
    let wanted = wanted(next.plan, fork);
    let message = format!("parallel \"{node}\": fewer than {wanted} of its branches completed");
    let failure = failure("parallel_join_failed", "parallel_join_failed", message);
    next.fail_run(Some(cause), failure, Some(node.clone()));
}

/// A failure whose reason is one of a history's.
pub(crate) fn failure(reason: &str, code: &str, message: impl Into<String>) -> Failure {
    Failure::new(code, message).because(reason)
}

pub(crate) fn jq_failure(reason: &str, error: &JqError, message: String) -> Failure {
    let code = match error {
        JqError::TooMuchWork | JqError::TooDeep => "work_limit_exceeded",
        JqError::Raised(_) | JqError::Syntax(_) | JqError::TooLarge { .. } | JqError::Unknown(_) => {
            "jq_failed"
        }
    };
    failure(reason, code, message)
}
