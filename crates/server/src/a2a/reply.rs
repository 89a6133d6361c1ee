//! The form in which a workflow's result is returned, in addition to artifacts.
//!
//! The workflow selects it in `metadata.a2a.reply`. The default is `task`. With `status`, the message of the
//! final status contains the text result, too. With `message`, the client gets a message instead of a task,
//! provided the run completes while the client waits. A run that asks for input, fails or takes longer is
//! shown as a task.

use serde_json::Value;
use wopr_app::View;
use wopr_core::{Object, Plan, RunStatus};
use wopr_wire::a2a::model::{Artifact, Message, Part, Role};

use super::{metadata::wrap, projection::context_of};
use wopr_app::Mask;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// Only artifacts.
    Task,
    /// Artifacts and the message of the final status.
    Status,
    /// A message instead of a task.
    Message,
}

impl Reply {
    /// Reads the workflow's choice. An unknown word means the default.
    pub(super) fn of(plan: &Plan) -> Self {
        let about = plan.metadata("a2a");
        match about.and_then(|about| about.get("reply")).and_then(Value::as_str) {
            Some("status") => Self::Status,
            Some("message") => Self::Message,
            Some(_) | None => Self::Task,
        }
    }
}

/// The text for the final status of a completed run, if the workflow wants one and the text may be shown.
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

/// Returns `true` if the client gets a message instead of a task.
pub(super) fn is_message(view: &View) -> bool {
    view.run.status == RunStatus::Completed && Reply::of(&view.plan) == Reply::Message
}

/// Builds the message from the artifacts, or if there are none, from the outputs that may be shown. The same
/// run always gives the same message.
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
