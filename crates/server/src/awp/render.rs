//! Executions as the protocol shows them.
//!
//! A caller who may not read runs learns of those of others what they wait for, and not what is in them.

use serde_json::{Map, Value, json};
use wopr_app::{Caller, Mask, Scope, Summary, View, reads_result, reads_result_of};
use wopr_core::{
    Object,
    awp::{self, AgentQuestion, AwaitedActivity, ExecutionPhase, ExecutionStatus, ParallelSpan},
};

use wopr_wire::time::Timestamp;

use super::{
    error::{Code, Error},
    execution::{child_id, execution_id},
    stable::Standing,
};

/// What a caller does whose call has waited as long as it may.
const LOOK_AGAIN: &str = "The execution goes on without this call. Look at it again with workflow_status, over REST with GET /executions/{execution_id}.";

/// What a call that let an execution go on answers: the execution as it is now. One that waits for a child shows what the
/// child waits for.
///
/// # Errors
/// The execution has failed.
pub(super) fn outcome(standing: &Standing, caller: &Caller) -> Result<Value, Error> {
    if standing.status.phase == ExecutionPhase::Failed {
        return Err(failure(standing));
    }
    let shown = standing.child().unwrap_or(standing);
    let (view, status) = (&shown.view, &shown.status);
    let mut answer = Object::new();
    let mut set = |name: &str, value: Value| answer.insert(name.to_owned(), value);
    set("execution_id", execution_id(&standing.view).into());
    set("status", status.phase.as_str().into());
    let child = standing.status.child.as_ref();
    if let Some(child) = standing.child() {
        set("child_execution_id", execution_id(&child.view).into());
    } else if let Some((child, step)) = child
        && !view.run.status.is_terminal()
    {
        set("child_execution_id", child_id(view, child, step).into());
    }
    let has_ended = view.run.status.is_terminal();
    if let (false, Some(node)) = (has_ended, &status.current_node) {
        set("node_id", node.clone().into());
    }
    if let Some(id) = interrupt_id(shown) {
        set("interrupt_id", id.into());
    }
    if reads_result(caller, view) {
        let mask = Mask::for_caller(view, caller);
        let state = mask.object(view.run.variables());
        let name = if has_ended { "final_state" } else { "state" };
        set(name, Value::Object(state));
        if let Some(outputs) = &view.run.outputs {
            let result = outputs.get("result").map(|result| mask.value("result", result));
            set("result", result.unwrap_or_default());
        }
    }
    if let (true, Some(reason)) = (has_ended, &view.run.cancel_reason) {
        set("reason", reason.clone().into());
    }
    if let Some(signal) = &status.signal_name {
        set("signal_name", signal.clone().into());
    }
    if status.phase == ExecutionPhase::Running {
        set("next", LOOK_AGAIN.into());
    }
    awaited(&mut answer, shown, caller);
    all_awaited(&mut answer, standing, caller);
    Ok(Value::Object(answer))
}

/// The id of the question that an interrupted execution waits for the answer of.
fn interrupt_id(standing: &Standing) -> Option<String> {
    let question = standing.question.as_ref();
    let question = question.filter(|_| standing.status.phase == ExecutionPhase::Interrupted);
    question.map(|question| question.waiting.id())
}

/// What a status says of an execution, and of the child that it waits for.
pub(super) fn status(standing: &Standing, caller: &Caller) -> Value {
    let (view, status) = (&standing.view, &standing.status);
    let mut answer = Object::new();
    let mut set = |name: &str, value: Value| answer.insert(name.to_owned(), value);
    set("execution_id", execution_id(view).into());
    set("phase", status.phase.as_str().into());
    let texts = [
        ("current_node_id", &status.current_node),
        ("last_error", &status.last_error),
        ("signal_name", &status.signal_name),
        ("delegate_correlation_id", &status.delegate_correlation_id),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            set(name, text.clone().into());
        }
    }
    if let Some(id) = interrupt_id(standing) {
        set("interrupt_id", id.into());
    }
    match (&status.child, &view.summary.parent) {
        (Some((child, step)), _) => {
            let child = match standing.child() {
                Some(child) => execution_id(&child.view),
                None => child_id(view, child, step),
            };
            set("child_execution_id", child.into());
            set("parent_execution_id", execution_id(view).into());
        }
        (None, Some((parent, _))) => {
            let alias = view.summary.alias.as_deref();
            let parent = alias
                .and_then(|alias| alias.rsplit_once(awp::CHILD_MARK))
                .map_or_else(|| parent.to_string(), |(parent, _)| parent.to_owned());
            set("child_execution_id", execution_id(view).into());
            set("parent_execution_id", parent.into());
        }
        (None, None) => {}
    }
    if let Some(child) = standing.child() {
        set("child", self::status(child, caller));
    }
    awaited(&mut answer, standing, caller);
    all_awaited(&mut answer, standing, caller);
    Value::Object(answer)
}

/// Adds what the execution waits for, if that is an activity: the first one of the document.
fn awaited(answer: &mut Object, standing: &Standing, caller: &Caller) {
    let reads = reads_result(caller, &standing.view);
    if let Some(first) = standing.status.activities.first() {
        answer.extend(activity(first, Input::for_caller(caller, reads), standing));
    }
    if let Some(question) = &standing.status.question {
        answer.extend(asked(question, &standing.status, reads));
    }
}

/// What an answer says of a question of an agent that this host has called.
fn asked(question: &AgentQuestion, status: &ExecutionStatus, reads_prompt: bool) -> Object {
    let mut said = Object::new();
    let mut set = |name: &str, value: Value| said.insert(name.to_owned(), value);
    set("agent_id", question.agent_id.clone().into());
    set("protocol", question.protocol.into());
    let texts = [
        ("delegate_correlation_id", &status.delegate_correlation_id),
        ("external_task_id", &status.external_task_id),
        ("prompt", if reads_prompt { &question.prompt } else { &None }),
    ];
    for (name, text) in texts {
        if let Some(text) = text {
            set(name, text.clone().into());
        }
    }
    said
}

/// Adds all activities that an execution and its children wait for, if branches are under way at once.
fn all_awaited(answer: &mut Object, standing: &Standing, caller: &Caller) {
    if !standing.status.is_parallel || standing.view.run.status.is_terminal() {
        return;
    }
    let mut all = Vec::new();
    for waiting in standing.waiting() {
        let reads = reads_result_of(caller, &waiting.principal);
        for awaited in &waiting.activities {
            let mut item = Object::new();
            item.insert("execution_id".to_owned(), waiting.execution.clone().into());
            item.insert("node_id".to_owned(), awaited.node.clone().into());
            item.extend(activity(awaited, Input::for_caller(caller, reads), standing));
            all.push(Value::Object(item));
        }
    }
    answer.insert("awaiting_activities".to_owned(), all.into());
}

/// How the input of an activity is shown.
#[derive(Clone, Copy)]
enum Input {
    /// As it is, to whoever may do the work.
    Whole,
    /// Without what views of the execution hide.
    Masked,
    Nothing,
}

impl Input {
    const fn for_caller(caller: &Caller, reads: bool) -> Self {
        match (reads, caller.may(Scope::ActivitiesWork)) {
            (true, true) => Self::Whole,
            (true, false) => Self::Masked,
            (false, _) => Self::Nothing,
        }
    }
}

/// Renders an activity that an execution or one of its children waits for.
fn activity(activity: &AwaitedActivity, input: Input, standing: &Standing) -> Object {
    let mut said = Object::new();
    let mut set = |name: &str, value: Value| said.insert(name.to_owned(), value);
    if let Some(span) = &activity.span {
        set("parallel_span", span_object(span));
    }
    set("attempt", activity.attempt.into());
    if let Some(timeout_ms) = activity.timeout_ms {
        set("timeout_ms", timeout_ms.into());
    }
    if let Some(delegate) = &activity.delegate {
        set("agent_id", delegate.agent_id.clone().into());
        set("protocol", delegate.protocol.into());
        match input {
            Input::Whole => set("delegate_input", delegate.input.clone()),
            Input::Masked => set(
                "delegate_input",
                Mask::of(&standing.view.plan).shown(&delegate.input),
            ),
            Input::Nothing => None,
        };
        set("delegate_correlation_id", delegate.correlation_id.clone().into());
    }
    said
}

pub(super) fn span_object(span: &ParallelSpan) -> Value {
    json!({
        "parallel_node_id": span.parallel_node_id,
        "join_target_id": span.join_target_id,
        "branch_name": span.branch_name,
        "branch_entry_node_id": span.branch_entry_node_id,
    })
}

/// The error that says that an execution has failed.
fn failure(standing: &Standing) -> Error {
    let mut details = Map::new();
    let view = &standing.view;
    if let Some((failure, node)) = &view.run.error {
        details.insert("cause".to_owned(), failure.message.clone().into());
        let reason = failure.reason.as_deref();
        if matches!(reason, Some("activity_failed" | "delegate_failed")) && !failure.code.is_empty() {
            details.insert("activityCode".to_owned(), failure.code.clone().into());
        }
        if let Some(node) = node {
            details.insert("node_id".to_owned(), node.to_string().into());
        }
    }
    details.insert("execution_id".to_owned(), execution_id(view).into());
    Error::new(Code::EngineFailure, "Engine reported a workflow failure.").with(Value::Object(details))
}

/// An execution in a list.
pub(super) fn item(view: &View, phase: ExecutionPhase, summary: &Summary) -> Value {
    json!({
        "execution_id": execution_id(view),
        "phase": phase.as_str(),
        "definition_name": view.plan.name(),
        "updated_at": time(summary.phase_since),
    })
}

/// A time as the protocol writes it.
pub(super) fn time(at: wopr_core::Timestamp) -> String {
    Timestamp::from_millis(at.millis()).to_string()
}
