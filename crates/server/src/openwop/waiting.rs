//! What a run waits for, as a document: the question, wherever it is asked, and a token to answer it.
//!
//! A parent mirrors what its child asks. Its document shows the parent's node, because that is where an answer may
//! be sent, and the child's question; the token is for the run that asks.

use serde_json::Value;
use wopr_core::{Asked, NodeId};
use wopr_engine::{Engine, View};
use wopr_store::ReadError;
use wopr_wire::openwop::run::InterruptView;

use super::render::time;
use crate::{
    Host,
    auth::{Caller, Scope},
    tokens::{Claims, Intent},
};

/// Deepest chain of children that is followed; the kernel refuses deeper ones.
const MAX_DEPTH: usize = 40;

/// Whether a caller is shown tokens: who may answer, and who started the run.
#[must_use]
pub fn may_answer(caller: &Caller, view: &View) -> bool {
    caller.may(Scope::ApprovalsRespond) || caller.principal == view.summary.principal
}

/// The first interrupt a run waits for.
///
/// # Errors
/// The store does not answer.
pub async fn open_interrupt(
    host: &Host,
    view: &View,
    with_token: bool,
) -> Result<Option<InterruptView>, ReadError> {
    let Some(open) = view.run.interrupt(&view.plan) else {
        return Ok(None);
    };
    let node = open.node.clone();
    let mut shown = match open.asked {
        Asked::Here(_) => here(host, view, &node, with_token),
        Asked::Child(child, kind, id) => {
            let asking = leaf(host.engine(), view.clone(), child.clone()).await?;
            let asked = asking.as_ref().and_then(|asking| {
                let open = asking.run.interrupt(&asking.plan)?;
                here(host, asking, open.node, with_token)
            });
            // The child may have moved on since the parent heard of it.
            Some(asked.unwrap_or_else(|| bare(&node, kind.as_str(), id)))
        }
    };
    if let Some(shown) = &mut shown {
        shown.node_id = node.to_string();
    }
    Ok(shown)
}

/// The interrupt of a node of this run.
#[must_use]
pub fn here(host: &Host, view: &View, node: &NodeId, with_token: bool) -> Option<InterruptView> {
    let open = view.run.interrupts(&view.plan).find(|open| open.node == node)?;
    let Asked::Here(asked) = open.asked else {
        return None;
    };
    let mut shown = bare(node, asked.kind.as_str(), &open.id());
    shown.data = asked.data.clone();
    shown.requested_at = Some(time(asked.requested_at));
    shown.expires_at = asked.deadline.map(time);
    if with_token {
        let claims = Claims {
            key: view.key.clone(),
            node: node.clone(),
            ordinal: open.ordinal,
            intent: Intent::Resolve,
        };
        let token = host.tokens().mint(&claims, asked.deadline, host.engine().now());
        shown.expires_at = Some(time(token.expires_at));
        shown.callback_url = Some(format!("{}/v1/interrupts/{}", host.public_url(), token.text));
        shown.interrupt_token = Some(token.text);
    }
    Some(shown)
}

/// Follows a chain of mirrored interrupts to the run that asks.
async fn leaf(engine: &Engine, parent: View, child: wopr_core::RunId) -> Result<Option<View>, ReadError> {
    let mut key = parent.key.sibling(child);
    for _ in 0..MAX_DEPTH {
        let Some(view) = engine.view(&key).await? else {
            return Ok(None);
        };
        let next = match view.run.interrupt(&view.plan).map(|open| open.asked) {
            Some(Asked::Child(next, _, _)) => key.sibling(next.clone()),
            Some(Asked::Here(_)) | None => return Ok(Some(view)),
        };
        key = next;
    }
    Ok(None)
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
