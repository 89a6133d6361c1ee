//! Activities: the work of a step, a model or a tool, which a worker does, or [this host](crate::in_process).

use serde_json::{Value, json};
use wopr_kernel::{Activity, Attempted, Call, Failure, Object, Seq, StepId, cost, fields};

use crate::{
    decide::{Next, complete, fail, failure},
    definition::{Kind, Node},
    delegate, in_process,
    options::ActivityMode,
};

/// The error code of an attempt that timed out.
pub(crate) const TIMEOUT: &str = "TIMEOUT";
/// The code of an output that does not match the node's schema.
pub(crate) const OUTPUT_SCHEMA_VIOLATION: &str = "OUTPUT_SCHEMA_VIOLATION";

/// The queue in which workers find the activities of a type.
fn queue(node: &Node) -> String {
    format!("awp.{}", node.kind.name())
}

/// Begins an attempt of an activity.
pub(crate) fn begin(
    next: &mut Next<'_>,
    position: usize,
    step: &StepId,
    attempt: u32,
    cause: Seq,
    more: Object,
) {
    match mode(next) {
        ActivityMode::InProcess => in_process::begin(next, position, (step, attempt), cause),
        ActivityMode::HostMediated => {
            let node = next.plan.at(position);
            let request = request(next, node, step, more);
            match request {
                Ok(input) => {
                    let call = Call::Activity(Box::new(Activity {
                        queue: queue(node),
                        input,
                        timeout_ms: node.timeout_ms,
                        heartbeat_ms: None,
                    }));
                    next.call(step.clone(), attempt, cause, call);
                }
                Err(failure) => fail(next, step, cause, failure.because("activity_failed")),
            }
        }
    }
}

/// An attempt that another host has made, to which an import gives its outcome before any worker can find it.
pub(crate) fn done_elsewhere(node: &Node, step: &StepId) -> Call {
    Call::Activity(Box::new(Activity {
        queue: queue(node),
        input: json!({ "nodeId": step.node, "nodeType": node.kind.name() }),
        timeout_ms: None,
        heartbeat_ms: None,
    }))
}

/// What a worker gets: the node, its configuration and the state.
fn request(next: &mut Next<'_>, node: &Node, step: &StepId, more: Object) -> Result<Value, Failure> {
    let weight =
        cost::of_value(next.state.document()) + cost::of_value(&node.config) + cost::of_object(&more);
    next.spend(2 * weight)?;
    next.hold(weight, 0)?;
    let mut input = fields(json!({
        "nodeId": step.node,
        "nodeType": node.kind.name(),
        "config": node.config,
        "state": next.state.document(),
    }));
    input.extend(more);
    Ok(Value::Object(input))
}

pub(crate) fn mode(next: &Next<'_>) -> ActivityMode {
    let started = next.run.started.as_ref();
    started.map_or(ActivityMode::HostMediated, |started| {
        ActivityMode::of(&started.configurable)
    })
}

/// Goes on after an attempt. An output that does not match its schema is a failed attempt.
pub(crate) fn ended(next: &mut Next<'_>, step: &StepId, cause: Seq, outcome: Result<Object, Failure>) {
    let Some((position, _)) = next.active(step) else {
        return;
    };
    let plan = next.plan;
    let outcome = match (outcome, &plan.at(position).kind) {
        (
            Ok(output),
            Kind::Llm {
                output_schema: Some(schema),
            },
        ) => {
            let output = Value::Object(output);
            let checked = schema.validate(&output, &next.budget.meter());
            match checked {
                Ok(()) => Ok(fields(output)),
                Err(invalid) => {
                    let message = format!("the output does not match the output_schema: {invalid}");
                    let failure = Failure::new(OUTPUT_SCHEMA_VIOLATION, message);
                    return attempt_failed(next, step, cause, failure);
                }
            }
        }
        (outcome, _) => outcome,
    };
    match outcome {
        Ok(output) => complete(next, step, cause, output),
        Err(error) => failed_for_good(next, step, cause, &error),
    }
}

/// Goes on after an attempt that failed by what this language says of it: with another one, if the node allows that.
pub(crate) fn attempt_failed(next: &mut Next<'_>, step: &StepId, cause: Seq, failure: Failure) {
    let Some((position, active)) = next.active(step) else {
        return;
    };
    let attempted = Attempted {
        attempt: active.attempt,
        retry_after_ms: None,
        failure,
    };
    // Otherwise the next attempt is due later.
    if let Some(failure) = next.retry(position, step, cause, attempted) {
        failed_for_good(next, step, cause, &failure);
    }
}

fn failed_for_good(next: &mut Next<'_>, step: &StepId, cause: Seq, error: &Failure) {
    let node = next.active(step).map(|(position, _)| next.plan.at(position));
    let reason = match node.map(|node| &node.kind) {
        Some(Kind::Delegate { .. }) => "delegate_failed",
        Some(_) | None => "activity_failed",
    };
    let code = node
        .map_or(error.code.as_str(), |node| code_of(node, mode(next), error))
        .to_owned();
    let message = message(&code, error).to_owned();
    fail(next, step, cause, failure(reason, &code, message));
}

/// The text of a failure with this code in the words of this language.
pub(crate) fn message<'f>(code: &str, failure: &'f Failure) -> &'f str {
    match code {
        TIMEOUT if failure.code != TIMEOUT => "Activity timed out",
        _ => &failure.message,
    }
}

/// The code of a failure of a node in the words of this language. Those of workers are their own.
pub(crate) fn code_of<'f>(node: &Node, mode: ActivityMode, failure: &'f Failure) -> &'f str {
    match (&node.kind, mode) {
        (Kind::Delegate { .. }, _) => delegate::code(failure),
        (Kind::Llm { .. }, ActivityMode::InProcess) => in_process::code_of_model(failure),
        (Kind::Tool, ActivityMode::InProcess) => in_process::code_of_tool(node, failure),
        (Kind::Llm { .. } | Kind::Tool, ActivityMode::HostMediated) => code(failure),
        (
            Kind::Start { .. }
            | Kind::End { .. }
            | Kind::Step
            | Kind::Switch { .. }
            | Kind::Interrupt { .. }
            | Kind::Parallel { .. }
            | Kind::Wait(_)
            | Kind::SetState(_)
            | Kind::Subworkflow { .. },
            _,
        ) => code(failure),
    }
}

/// The code of any failure in the words of this language.
pub(crate) fn code(failure: &Failure) -> &str {
    match failure.code.as_str() {
        "activity_timeout" | "activity_silent" | "remote_timeout" => TIMEOUT,
        code => code,
    }
}
