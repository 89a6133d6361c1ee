//! Activities: the work of a step, a model or a tool, which a worker does, or this host with a mock.

use serde_json::{Value, json};
use wopr_kernel::{Activity, Attempted, Call, Failure, Object, Seq, StepId, cost, fields};

use crate::{
    decide::{Next, complete, fail, failure},
    definition::{Kind, Node},
    delegate,
    options::{ActivityMode, MOCK_OUTPUTS},
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
        ActivityMode::InProcess => {
            let output = mock_output(next, step);
            ended(next, step, cause, Ok(output));
        }
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

/// What the mock gives for a node.
fn mock_output(next: &Next<'_>, step: &StepId) -> Object {
    let started = next.run.started.as_ref();
    let outputs = started.and_then(|started| started.configurable.get(MOCK_OUTPUTS));
    let output = outputs.and_then(|outputs| outputs.get(step.node.as_str()));
    output.and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Goes on after an attempt. An output that does not match its schema is a failed attempt.
pub(crate) fn ended(next: &mut Next<'_>, step: &StepId, cause: Seq, outcome: Result<Object, Failure>) {
    let Some((position, active)) = next.active(step) else {
        return;
    };
    let attempt = active.attempt;
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
                    let attempted = Attempted {
                        attempt,
                        retry_after_ms: None,
                        failure: Failure::new(OUTPUT_SCHEMA_VIOLATION, message),
                    };
                    match next.retry(position, step, cause, attempted) {
                        // The next attempt is due later.
                        None => return,
                        Some(failure) => Err(failure),
                    }
                }
            }
        }
        (outcome, _) => outcome,
    };
    match outcome {
        Ok(output) => complete(next, step, cause, output),
        Err(error) => {
            let (reason, code) = match plan.at(position).kind {
                Kind::Delegate { .. } => ("delegate_failed", delegate::code(&error)),
                _ => ("activity_failed", code(&error)),
            };
            fail(next, step, cause, failure(reason, code, error.message.clone()));
        }
    }
}

/// The code of a failure in the words of this language.
pub(crate) fn code(failure: &Failure) -> &str {
    match failure.code.as_str() {
        "activity_timeout" | "activity_silent" | "remote_timeout" => TIMEOUT,
        code => code,
    }
}
