//! What a run waits for, as a document: the question, wherever it is asked, and a token to answer it.
//!
//! A parent mirrors what its child asks. Its document shows the parent's node, because that is where an answer may
//! be sent, and the child's question; the token is for the run that asks.

use serde_json::Value;
use wopr_core::{Asked, NodeId, OpenInterrupt, RunKey, Timestamp};
use wopr_engine::View;
use wopr_store::ReadError;
use wopr_wire::openwop::run::InterruptView;

use super::render::time;
use crate::{
    Host,
    auth::{Caller, Scope},
    tokens::{Claims, Holder, Intent},
};

/// Deepest chain of children that is followed; the kernel refuses deeper ones.
const MAX_DEPTH: usize = 40;

/// Most open interrupts that a document shows.
const MAX_SHOWN: usize = 100;

/// An open interrupt of a run, at the node of that run where it shows, and where it is asked.
#[derive(Debug)]
pub(super) struct AskedAt {
    /// Its id as the run shows it: that of a child's begins with the path to the child.
    pub(super) id: String,
    /// The run that asks.
    pub(super) key: RunKey,
    /// The node that asks.
    pub(super) node: NodeId,
    /// Which execution of it.
    pub(super) ordinal: u32,
    /// Until when, if it times out.
    pub(super) deadline: Option<Timestamp>,
    /// As callers see it, without a token.
    pub(super) shown: InterruptView,
}

/// Every interrupt a run waits for, the first asked first, with a token each for a caller who may answer. What
/// children ask stands at the node that mirrors it.
///
/// # Errors
/// The store does not answer.
pub async fn open_interrupts(
    host: &Host,
    view: &View,
    caller: &Caller,
) -> Result<Vec<InterruptView>, ReadError> {
    let mut shown = Vec::new();
    for open in view.run.interrupts(&view.plan) {
        if shown.len() >= MAX_SHOWN {
            break;
        }
        let asked = asked_in(host, view, &open).await?;
        // The child may have moved on since the parent heard of it.
        if let (true, Asked::Child(_, kind, id)) = (asked.is_empty(), open.asked) {
            shown.push(bare(open.node, kind.as_str(), id));
        }
        shown.extend(asked.into_iter().map(|asked| with_token(host, asked, caller)));
    }
    shown.truncate(MAX_SHOWN);
    Ok(shown)
}

/// The first open interrupt that shows at a node of a run, or the one of that id.
pub(super) async fn asked_at(
    host: &Host,
    view: &View,
    node: &str,
    id: Option<&str>,
) -> Result<Option<AskedAt>, ReadError> {
    for open in view.run.interrupts(&view.plan) {
        if open.node.as_str() != node {
            continue;
        }
        let asked = asked_in(host, view, &open).await?;
        let found = asked.into_iter().find(|asked| id.is_none_or(|id| asked.id == id));
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// What is asked where a run waits: by the run, or by its child and the children of that.
async fn asked_in(host: &Host, view: &View, open: &OpenInterrupt<'_>) -> Result<Vec<AskedAt>, ReadError> {
    let child = match open.asked {
        Asked::Here(_) => return Ok(asked_here(view, open, open.node, "").into_iter().collect()),
        Asked::Child(child, _, _) => view.key.sibling(child.clone()),
    };
    let mut found = Vec::new();
    let mut left = vec![(child, format!("{}:{}/", open.node, open.ordinal), 1)];
    while let Some((key, path, depth)) = left.pop() {
        if depth > MAX_DEPTH || found.len() >= MAX_SHOWN {
            continue;
        }
        let Some(view) = host.engine().view(&key).await? else {
            continue;
        };
        let n_before = left.len();
        for inner in view.run.interrupts(&view.plan) {
            match inner.asked {
                Asked::Here(_) => found.extend(asked_here(&view, &inner, open.node, &path)),
                Asked::Child(next, _, _) => {
                    let path = format!("{path}{}:{}/", inner.node, inner.ordinal);
                    left.push((view.key.sibling(next.clone()), path, depth + 1));
                }
            }
        }
        // The first asked is looked at first.
        left[n_before..].reverse();
    }
    Ok(found)
}

fn asked_here(view: &View, open: &OpenInterrupt<'_>, shown_at: &NodeId, path: &str) -> Option<AskedAt> {
    let Asked::Here(asked) = open.asked else {
        return None;
    };
    let id = format!("{path}{}", open.id());
    let mut shown = bare(shown_at, asked.kind.as_str(), &id);
    shown.data = asked.data.clone();
    // The artifact is the child's: its parent may have another one of the same id.
    if !path.is_empty()
        && let Some(data) = shown.data.as_object_mut()
        && data.contains_key("artifactId")
    {
        data.insert("artifactRunId".to_owned(), view.key.run.as_str().into());
    }
    shown.requested_at = Some(time(asked.requested_at));
    shown.expires_at = asked.deadline.map(time);
    Some(AskedAt {
        id,
        key: view.key.clone(),
        node: open.node.clone(),
        ordinal: open.ordinal,
        deadline: asked.deadline,
        shown,
    })
}

fn with_token(host: &Host, asked: AskedAt, caller: &Caller) -> InterruptView {
    let AskedAt {
        key,
        node,
        ordinal,
        deadline,
        mut shown,
        ..
    } = asked;
    if !caller.may(Scope::ApprovalsRespond) {
        return shown;
    }
    let claims = Claims {
        key,
        node,
        ordinal,
        intent: Intent::Resolve,
        holder: Holder::reader(caller, &shown.data),
    };
    let token = host.tokens().mint(&claims, deadline, host.engine().now());
    shown.expires_at = Some(time(token.expires_at));
    shown.callback_url = Some(host.interrupt_url(&token));
    shown.interrupt_token = Some(token.text);
    shown
}

/// The interrupt of a node of this run, without a token.
#[must_use]
pub fn here(view: &View, node: &NodeId) -> Option<InterruptView> {
    let open = view.run.interrupts(&view.plan).find(|open| open.node == node)?;
    asked_here(view, &open, node, "").map(|asked| asked.shown)
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
