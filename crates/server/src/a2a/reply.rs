//! How a workflow wants its result told, besides as artifacts.
//!
//! `metadata.a2a.reply` says so: `task` is the rule. With `status` the task also says its text in the message of its
//! last status. With `message` a message is answered by a message and no task is shown, if the run completes while
//! its sender waits; a run that asks, fails or takes longer is a task like any other.

use serde_json::Value;
use wopr_app::View;
use wopr_core::{Object, Plan, RunStatus};
use wopr_wire::a2a::model::{Artifact, Message, Part, Role};

use super::{metadata::wrap, projection::context_of};
use wopr_app::Mask;

/// How a result is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// By the artifacts of the task.
    Task,
    /// By the last status too.
    Status,
    /// By a message in the place of the task.
    Message,
}

impl Reply {
    /// What a workflow wants; a word that is none of these is the rule.
    pub(super) fn of(plan: &Plan) -> Self {
        let about = plan.definition.metadata.get("a2a");
        match about.and_then(|about| about.get("reply")).and_then(Value::as_str) {
            Some("status") => Self::Status,
            Some("message") => Self::Message,
            Some(_) | None => Self::Task,
        }
    }
}

/// What a run that completed says with its last status, if it wants to and its workflow does not keep it to itself.
pub(super) fn last_words(plan: &Plan, mask: &Mask, outputs: Option<&Object>) -> Option<String> {
    if Reply::of(plan) != Reply::Status {
        return None;
    }
    let outputs = outputs?;
    let is_content = mask.keeps_contents() && plan.content_of_result("text", outputs).is_some();
    let text = outputs
        .get("text")
        .filter(|_| !plan.is_sensitive_result("text") && !is_content);
    text?.as_str().map(str::to_owned)
}

/// Claims that a run is answered by a message.
pub(super) fn is_message(view: &View) -> bool {
    view.run.status == RunStatus::Completed && Reply::of(&view.plan) == Reply::Message
}

/// The message a run is answered by: its artifacts, or else the outputs it does not keep to itself. The same run always says the same.
pub(super) fn message(view: &View, artifacts: Vec<Artifact>) -> Message {
    let mut parts: Vec<_> = artifacts
        .into_iter()
        .flat_map(|artifact| artifact.parts)
        .collect();
    if parts.is_empty() {
        let outputs = view.run.outputs.as_ref();
        let outputs = outputs
            .map(|outputs| view.plan.shown_result(outputs))
            .unwrap_or_default();
        parts.push(match outputs.get("text").and_then(Value::as_str) {
            Some(text) => Part::text(text),
            None => Part::data(Value::Object(outputs)),
        });
    }
    let mut message = Message::new(format!("{}.reply", view.key.run), Role::Agent, parts);
    message.context_id = Some(context_of(view));
    let mut about = Object::new();
    about.insert("runId".to_owned(), view.key.run.as_str().into());
    about.insert("workflowId".to_owned(), view.plan.id().as_str().into());
    message.metadata = wrap(about);
    message
}
