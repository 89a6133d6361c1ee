//! Renders open interrupts, each with a token to answer it.
//!
//! A parent mirrors the interrupts of its children. The parent's document shows the parent's node, to which
//! an answer may be sent, with the data of the child's interrupt. The token belongs to the run that asks.

use serde_json::{Value, json};
use wopr_app::{Error as AppError, Question, View, reads_artifacts};
use wopr_core::NodeId;
use wopr_wire::openwop::run::InterruptView;

use super::render::{self, time};
use crate::{
    Host,
    auth::{Caller, Scope},
    tokens::Claims,
};

/// Whether open interrupts are shown with tokens that answer them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterruptTokens {
    /// For callers who may answer.
    Minted,
    /// For readers that should not hold one, as the context of a language model.
    LeftOut,
}

/// Lists the open interrupts of a run, oldest first. Interrupts of children appear at the node that mirrors them.
pub(super) async fn open_interrupts(
    host: &Host,
    view: &View,
    caller: &Caller,
    tokens: InterruptTokens,
) -> Result<Vec<InterruptView>, AppError> {
    let questions = host.app().open_questions(view).await?;
    host.app().note_questions(caller, &questions);
    let shown = questions.iter().map(|question| match tokens {
        InterruptTokens::Minted => with_token(host, question, caller),
        InterruptTokens::LeftOut => shown(question, reads_artifacts(caller)),
    });
    Ok(shown.collect())
}

/// An open interrupt without a token. It has no data if the child that asked has its answer already.
pub(super) fn shown(Question { waiting, asked, .. }: &Question, reads_artifacts: bool) -> InterruptView {
    let id = waiting.id();
    let mut shown = InterruptView {
        interrupt_id: id.clone(),
        node_id: waiting.step.node.to_string(),
        kind: waiting.kind.as_str().to_owned(),
        key: id,
        data: Value::Object(serde_json::Map::new()),
        metadata: None,
        resume_schema: None,
        requested_at: None,
        expires_at: None,
        interrupt_token: None,
        callback_url: None,
    };
    let Some(asked) = asked else { return shown };
    shown.data = asked.current_data(reads_artifacts);
    if let Some(schema) = render::resume_schema(&asked.data) {
        shown.resume_schema = Some(schema.clone());
        shown
            .data
            .as_object_mut()
            .and_then(|data| data.remove("resumeSchema"));
    }
    shown.metadata = asked.subkind().map(|subkind| json!({ "subkind": subkind }));
    // The artifact belongs to the child; the parent may have another one with the same id.
    if waiting.child.is_some()
        && let Some(data) = shown.data.as_object_mut()
        && data.contains_key("artifactId")
    {
        data.insert("artifactRunId".to_owned(), asked.key.run.as_str().into());
    }
    shown.requested_at = Some(time(asked.at));
    shown.expires_at = asked.deadline.map(time);
    shown
}

fn with_token(host: &Host, question: &Question, caller: &Caller) -> InterruptView {
    let mut shown = shown(question, reads_artifacts(caller));
    let Some(asked) = question
        .asked
        .as_ref()
        .filter(|_| caller.may(Scope::ApprovalsRespond))
    else {
        return shown;
    };
    let claims = Claims::of(asked, caller);
    let token = host.tokens().mint(&claims, asked.deadline, host.app().now());
    shown.expires_at = Some(time(token.expires_at));
    shown.callback_url = Some(host.interrupt_url(&token));
    shown.interrupt_token = Some(token.text);
    shown
}

/// The interrupt of a node of this run, without a token.
#[must_use]
pub(super) fn here(view: &View, node: &NodeId, reads_artifacts: bool) -> Option<InterruptView> {
    let open = view.run.interrupts(&view.plan).find(|open| open.node == node)?;
    Question::here(view, &open).map(|question| shown(&question, reads_artifacts))
}
