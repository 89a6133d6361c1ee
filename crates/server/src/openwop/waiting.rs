//! Renders open interrupts, each with a token to answer it.
//!
//! A parent mirrors the interrupts of its children. The parent's document shows the parent's node, to which
//! an answer may be sent, with the data of the child's interrupt. The token belongs to the run that asks.

use serde_json::Value;
use wopr_app::{Error as AppError, MAX_SHOWN, Open, View, question_here};
use wopr_core::{Asked, NodeId, RunKey, Seq};
use wopr_wire::openwop::run::InterruptView;

use super::render::time;
use crate::{
    Host,
    auth::{Caller, Scope},
    tokens::Claims,
};

/// Lists the open interrupts of a run, oldest first. Callers who may answer get a token for each. Interrupts
/// of children appear at the node that mirrors them.
pub async fn open_interrupts(
    host: &Host,
    view: &View,
    caller: &Caller,
) -> Result<Vec<InterruptView>, AppError> {
    let mut shown = Vec::new();
    for open in view.run.interrupts(&view.plan) {
        if shown.len() >= MAX_SHOWN {
            break;
        }
        let asked = host.app().questions_at(view, &open).await?;
        // The child may have moved on before the parent received its message.
        if let (true, Asked::Child(_, kind, id)) = (asked.is_empty(), open.asked) {
            shown.push(bare(open.node, kind.as_str(), id));
        }
        for open in asked.into_iter().take(MAX_SHOWN - shown.len()) {
            note(host, caller, &open.way);
            shown.push(with_token(host, &open, caller));
        }
    }
    Ok(shown)
}

/// Records that a caller was shown runs up to a position in their logs.
fn note(host: &Host, caller: &Caller, way: &[(RunKey, Seq)]) {
    for (run, head) in way {
        host.app().last_reads().note(run, &caller.principal, *head);
    }
}

/// The first open interrupt shown at a node, or the one with the given id.
pub(super) async fn asked_at(
    host: &Host,
    view: &View,
    node: &str,
    id: Option<&str>,
) -> Result<Option<Open>, AppError> {
    for open in view.run.interrupts(&view.plan) {
        if open.node.as_str() != node {
            continue;
        }
        let asked = host.app().questions_at(view, &open).await?;
        let found = asked.into_iter().find(|asked| id.is_none_or(|id| asked.id == id));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// An open interrupt without a token.
fn shown(open: &Open) -> InterruptView {
    let mut shown = bare(&open.shown_at.node, open.kind.as_str(), &open.id);
    shown.data = open.asked.data.clone();
    // The artifact belongs to the child; the parent may have another one with the same id.
    if open.child.is_some()
        && let Some(data) = shown.data.as_object_mut()
        && data.contains_key("artifactId")
    {
        data.insert("artifactRunId".to_owned(), open.asked.key.run.as_str().into());
    }
    shown.requested_at = Some(time(open.asked.at));
    shown.expires_at = open.asked.deadline.map(time);
    shown
}

fn with_token(host: &Host, open: &Open, caller: &Caller) -> InterruptView {
    let mut shown = shown(open);
    if !caller.may(Scope::ApprovalsRespond) {
        return shown;
    }
    let asked = &open.asked;
    let claims = Claims::of(asked, caller);
    let token = host.tokens().mint(&claims, asked.deadline, host.app().now());
    shown.expires_at = Some(time(token.expires_at));
    shown.callback_url = Some(host.interrupt_url(&token));
    shown.interrupt_token = Some(token.text);
    shown
}

/// The interrupt of a node of this run, without a token.
#[must_use]
pub fn here(view: &View, node: &NodeId) -> Option<InterruptView> {
    let open = view.run.interrupts(&view.plan).find(|open| open.node == node)?;
    question_here(view, &open).map(|open| shown(&open))
}

fn bare(node: &NodeId, kind: &str, id: &str) -> InterruptView {
    InterruptView {
        interrupt_id: id.to_owned(),
        node_id: node.to_string(),
        kind: kind.to_owned(),
        key: id.to_owned(),
        data: Value::Object(serde_json::Map::new()),
        resume_schema: None,
        requested_at: None,
        expires_at: None,
        interrupt_token: None,
        callback_url: None,
    }
}
