//! The run that a run comes from: its parent here, or the run of another host that sent the message. A fork has none:
//! the document of the run names its source.
//!
//! What another host says of itself is a claim. It is shown, and decides nothing.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde_json::{Value, json};
use wopr_app::View;
use wopr_core::Parent;

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::{Problem, no_run},
};
use crate::{a2a, auth::Scope};

/// `GET /v1/runs/{runId}/ancestry`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::RunsRead).await?;
        let view = call.host.app().view(&key).await?.ok_or_else(no_run)?;
        // A fork repeats how its source began, but neither the parent nor a message started it.
        let parent = match (view.run.fork(), view.run.parent()) {
            (Some(_), _) => None,
            (None, Some(parent)) => Some(of_parent(&call, parent).await?),
            (None, None) => of_message(&view),
        };
        let ancestry = json!({
            "runId": key.run.as_str(),
            "hostId": call.host.host_id(),
            "parent": parent,
        });
        json_response(StatusCode::OK, &ancestry)
    }
    .boxed()
}

/// A parent on this host, and by which of its nodes it created the run.
async fn of_parent(call: &Call, parent: &Parent) -> Result<Value, Problem> {
    let app = call.host.app();
    let found = app
        .find_run(call.caller(), parent.run.as_str(), Scope::RunsRead)
        .await?;
    let view = app.view(&found).await?.ok_or_else(no_run)?;
    let position = view.plan.position(&parent.node);
    let type_id = position.map(|position| view.plan.type_id(position));
    let cause = match type_id {
        Some("core.dispatch") => "core.dispatch",
        // A model's only children are the calls of its tools, and this is the only published name of such a call.
        Some("core.ai.callPrompt" | "core.ai.structuredOutput") => "mcp-tool-call",
        Some(_) | None => "core.subWorkflow",
    };
    Ok(json!({
        "runId": parent.run.as_str(),
        "hostId": call.host.host_id(),
        "cause": cause,
    }))
}

/// The run of another host whose message started the run, as that host says.
fn of_message(view: &View) -> Option<Value> {
    let started = view.run.started.as_ref()?;
    if started.origin.as_str() != a2a::ORIGIN {
        return None;
    }
    let caller = started.metadata.get(a2a::ORIGIN)?.get(a2a::CALLER)?;
    let mut parent = caller.as_object()?.clone();
    parent.insert("cause".to_owned(), "a2a-message".into());
    Some(Value::Object(parent))
}
