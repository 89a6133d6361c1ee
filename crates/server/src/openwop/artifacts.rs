//! Artifacts of a run. Their content is in the event that created them, so nothing is stored twice.

use futures_util::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use wopr_core::{Event, KernelEvent, Recorded, RunKey};
use wopr_wire::time::Timestamp;

use super::{
    answer::{Answer, json_response},
    call::Call,
    problem::{Problem, no_run},
    render::{self, Mask},
};
use crate::{
    Host,
    auth::{Caller, Scope},
};

/// Maximum number of artifacts in a list. The newest are kept.
const MAX_LISTED: usize = 200;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Artifact {
    artifact_id: String,
    artifact_type: String,
    name: String,
    run_id: String,
    node_id: String,
    created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Value>,
}

#[derive(Debug, Serialize)]
struct List {
    artifacts: Vec<Artifact>,
}

/// `GET /v1/runs/{runId}/artifacts`
pub(super) fn list(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let key = call.visible_run(Scope::ArtifactsRead).await?;
        let app = call.host.app();
        let view = app.view(&key).await?.ok_or_else(no_run)?;
        let known = &view.run.artifacts;
        let mut artifacts = Vec::new();
        for artifact in &known[known.len().saturating_sub(MAX_LISTED)..] {
            let page = app.events(&key, artifact.seq, 1).await?.ok_or_else(no_run)?;
            artifacts.extend(page.events.into_iter().find_map(|event| read(&key, event, None)));
        }
        json_response(StatusCode::OK, &List { artifacts })
    }
    .boxed()
}

/// `GET /v1/runs/{runId}/artifacts/{artifactId}`
pub(super) fn show(call: Call) -> BoxFuture<'static, Answer> {
    async move {
        let artifact = artifact(&call.host, call.caller(), call.param(0), call.param(1)).await?;
        json_response(StatusCode::OK, &artifact)
    }
    .boxed()
}

/// An artifact with its content, as a caller sees it.
pub(crate) async fn artifact(
    host: &Host,
    caller: &Caller,
    run: &str,
    artifact: &str,
) -> Result<Artifact, Problem> {
    let app = host.app();
    let key = app.find_run(caller, run, Scope::ArtifactsRead).await?;
    let view = app.view(&key).await?.ok_or_else(no_run)?;
    let mask = Mask::for_caller(&view, caller);
    let seq = view.run.artifact(artifact).ok_or_else(no_artifact)?.seq;
    let page = app.events(&key, seq, 1).await?.ok_or_else(no_run)?;
    let found = page.events.into_iter();
    found
        .filter_map(|event| read(&key, event, Some(&mask)))
        .next()
        .ok_or_else(no_artifact)
}

fn no_artifact() -> Problem {
    Problem::not_found("no such artifact")
}

/// Reads an artifact from its event. Without a mask, the content is left out.
fn read(key: &RunKey, recorded: Recorded, mask: Option<&Mask>) -> Option<Artifact> {
    let Event::Kernel(KernelEvent::ArtifactCreated {
        step,
        artifact,
        artifact_type,
        name,
        content,
    }) = recorded.event
    else {
        return None;
    };
    Some(Artifact {
        artifact_id: artifact,
        artifact_type,
        name,
        run_id: key.run.to_string(),
        node_id: step.node.to_string(),
        created_at: render::time(recorded.at),
        content: mask.map(|mask| mask.content(&step.node, &content)),
    })
}
