//! Resources: runs, their logs and their artifacts, and workflows, by address.
//!
//! A log is read in pages; the address of the next page is in the page. What a reader may not see is masked as over every
//! other face.

use http::StatusCode;
use serde_json::{Value, json};
use url::form_urlencoded;
use wopr_app::{RunFilter, Scope};
use wopr_core::{RunStatus, Seq, WorkflowId};
use wopr_wire::json::Object;

use super::{
    ask::Ask,
    message::{Error, repeated},
    tools::{Failure, quoted_size, run_document, runs_listed, shortened},
    version::Era,
};
use crate::{
    openwop::{Problem, artifacts, events::Masking, problem::no_run, render},
    path,
};

/// The runs that the list of resources names.
const RECENT: usize = 20;
/// Events per page of a log.
const MAX_EVENTS: usize = 200;
/// Maximum size of a page in bytes, as it is sent. It has at least one event.
const MAX_BYTES: usize = 256 << 10;
/// Maximum size of an artifact, a workflow or an event in bytes, as it is sent.
const MAX_DOCUMENT: usize = 1 << 20;
const JSON: &str = "application/json";

/// What an address names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    Runs,
    Run(String),
    /// The events after a sequence number, or all.
    Events(String, Option<u64>),
    Artifact(String, String),
    Workflow(String),
}

impl Named {
    fn read(uri: &str) -> Option<Self> {
        let rest = uri.strip_prefix("wopr://")?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = format!("/{path}");
        let segments = path::decode(&path)?;
        let segments: Vec<&str> = segments.iter().map(AsRef::as_ref).collect();
        let mut after = None;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &segments[..]) {
                ("after", ["runs", _, "events"]) => after = Some(value.parse().ok()?),
                _ => return None,
            }
        }
        let text = |text: &str| text.to_owned();
        match segments[..] {
            ["runs"] => Some(Self::Runs),
            ["runs", run] => Some(Self::Run(text(run))),
            ["runs", run, "events"] => Some(Self::Events(text(run), after)),
            ["runs", run, "artifacts", artifact] => Some(Self::Artifact(text(run), text(artifact))),
            ["workflows", workflow] => Some(Self::Workflow(text(workflow))),
            _ => None,
        }
    }
}

/// The answer to `resources/list`: the list of runs, and the newest ones by themselves.
pub(super) async fn list(ask: &Ask) -> Result<Value, Error> {
    let mut resources = vec![json!({
        "uri": "wopr://runs",
        "name": "runs",
        "title": "Recent runs",
        "description": "The newest runs, with their statuses",
        "mimeType": JSON,
    })];
    if ask.caller.may(Scope::RunsRead) {
        let listed = runs_listed(ask, RunFilter::default(), None, RECENT).await;
        let listed = listed.map_err(|error| failed(error.into(), Era::WithOpening))?;
        for run in listed["runs"].as_array().into_iter().flatten() {
            let text = |name: &str| run[name].as_str().unwrap_or_default();
            resources.push(json!({
                "uri": format!("wopr://runs/{}", text("runId")),
                "name": text("runId"),
                "title": format!("Run of {}, {}", text("workflowId"), text("status")),
                "mimeType": JSON,
            }));
        }
    }
    Ok(json!({ "resources": resources }))
}

/// The answer to `resources/templates/list`.
pub(super) fn templates() -> Value {
    let template = |uri: &str, name: &str, title: &str, description: &str| json!({ "uriTemplate": uri, "name": name, "title": title, "description": description, "mimeType": JSON });
    json!({ "resourceTemplates": [
        template("wopr://runs/{runId}", "run", "A run", "A run as it is now"),
        template(
            "wopr://runs/{runId}/events{?after}",
            "events",
            "The log of a run",
            "Events of a run, oldest first, after a sequence number; nextUri names the next page",
        ),
        template("wopr://runs/{runId}/artifacts/{artifactId}", "artifact", "An artifact", "An artifact of a run"),
        template("wopr://workflows/{workflowId}", "workflow", "A workflow", "The definition of a workflow"),
    ] })
}

/// The answer to `resources/read`.
pub(super) async fn read(ask: &Ask, era: Era, params: &Object) -> Result<Value, Error> {
    let Some(uri) = params.get("uri").and_then(Value::as_str) else {
        return Err(Error::invalid("uri must be the address of a resource"));
    };
    let missing = || {
        let why = format!("there is no resource {}", repeated(uri));
        Failure::from(Problem::new(StatusCode::NOT_FOUND, NOT_FOUND, why))
    };
    let found = match Named::read(uri) {
        Some(named) => document(ask, named).await,
        None => Err(missing()),
    };
    let document = found.map_err(|failure| failed(failure, era))?;
    let contents = json!({ "uri": uri, "mimeType": JSON, "text": document.to_string() });
    Ok(json!({ "contents": [contents] }))
}

const NOT_FOUND: &str = "not_found";

fn failed(failure: Failure, era: Era) -> Error {
    let Failure {
        code,
        message,
        details,
    } = failure;
    let kind = match (code.as_str(), era) {
        (NOT_FOUND, Era::WithOpening) => Error::RESOURCE_NOT_FOUND,
        (NOT_FOUND, Era::WithoutOpening) => Error::INVALID_PARAMS,
        ("internal_error", _) => Error::INTERNAL,
        _ => Error::SERVER,
    };
    let mut data = json!({ "code": code });
    if let Some(details) = details {
        data["details"] = details;
    }
    Error {
        data: Some(data),
        ..Error::new(kind, message)
    }
}

async fn document(ask: &Ask, named: Named) -> Result<Value, Failure> {
    let (app, caller) = (ask.app(), &ask.caller);
    match named {
        Named::Runs => Ok(runs_listed(ask, RunFilter::default(), None, RECENT).await?),
        Named::Run(run) => {
            let view = app.read_run(caller, &run, Scope::RunsRead).await?;
            let mut run = run_document(ask, &view).await?;
            let omitted = shortened(&mut run);
            if !omitted.is_empty() {
                run.insert("omitted".to_owned(), json!(omitted));
            }
            Ok(Value::Object(run))
        }
        Named::Events(run, after) => events(ask, &run, after).await,
        Named::Artifact(run, artifact_id) => {
            let artifact = artifacts::artifact(&ask.host, caller, &run, &artifact_id).await?;
            let path = format!("/v1/runs/{run}/artifacts/{}", repeated(&artifact_id));
            within(
                serde_json::to_value(&artifact).map_err(|_| Problem::internal())?,
                &path,
            )
        }
        Named::Workflow(workflow) => {
            let missing = || Problem::not_found("no such workflow");
            let id = WorkflowId::parse(&workflow).map_err(|_| missing())?;
            let plan = app.read_workflow(caller, &id).await?.ok_or_else(missing)?;
            let definition = wopr_app::definition(&plan);
            within(
                serde_json::to_value(&definition).map_err(|_| Problem::internal())?,
                &format!("/v1/workflows/{id}"),
            )
        }
    }
}

/// The document, unless it is too large for a message.
fn within(document: Value, path: &str) -> Result<Value, Failure> {
    let n_bytes = quoted_size(&document.to_string());
    if n_bytes <= MAX_DOCUMENT {
        return Ok(document);
    }
    let why = format!(
        "it takes {n_bytes} bytes, and a resource at most {MAX_DOCUMENT}: read it over REST, GET {path}"
    );
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", why).into())
}

/// A page of a run's log.
async fn events(ask: &Ask, run: &str, after: Option<u64>) -> Result<Value, Failure> {
    let app = ask.app();
    let key = app.find_run(&ask.caller, run, Scope::RunsRead).await?;
    let from = Seq(after.map_or(0, |after| after.saturating_add(1)));
    let reading = ask.host.paging().read(app, &key, from, MAX_EVENTS, MAX_BYTES);
    let page = reading.await?.ok_or_else(no_run)?;
    let mut masking = Masking::new(&ask.caller);
    let log = masking.of(app, &key, &page.events).await?;
    let log = log.ok_or_else(no_run)?;
    let (mut events, mut n_bytes, mut last) = (Vec::new(), 0, None);
    for recorded in &page.events {
        let event = serde_json::to_value(log.event(recorded)).map_err(|_| Problem::internal())?;
        let event = cut(event, key.run.as_str());
        n_bytes += quoted_size(&event.to_string());
        if n_bytes > MAX_BYTES && last.is_some() {
            break;
        }
        events.push(event);
        last = Some(recorded.seq.0);
    }
    if let Some(last) = last {
        app.note_read(&ask.caller, &key, Seq(last + 1));
    }
    let is_whole = last.is_none_or(|last| last + 1 >= page.head.0);
    let mut document = json!({
        "runId": key.run.as_str(),
        "events": events,
        "runStatus": render::status_word(page.status),
        "isComplete": is_whole && RunStatus::is_terminal(page.status),
    });
    if let Some(last) = last.filter(|_| !is_whole) {
        document["nextUri"] = next_page(key.run.as_str(), last).into();
    }
    Ok(document)
}

/// Leaves out the payload of an event that is too large for a message.
fn cut(mut event: Value, run: &str) -> Value {
    if quoted_size(&event.to_string()) > MAX_DOCUMENT
        && let Some(members) = event.as_object_mut()
    {
        members.remove("payload");
        let whole = format!("GET /v1/runs/{run}/events/poll");
        members.insert(
            "omitted".to_owned(),
            json!({ "members": ["payload"], "whole": whole }),
        );
    }
    event
}

fn next_page(run: &str, after: u64) -> String {
    format!("wopr://runs/{run}/events?after={after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_one_thing_or_nothing() {
        let text = str::to_owned;
        for (uri, named) in [
            ("wopr://runs", Some(Named::Runs)),
            ("wopr://runs/run_1", Some(Named::Run(text("run_1")))),
            (
                "wopr://runs/run_1/events",
                Some(Named::Events(text("run_1"), None)),
            ),
            (
                "wopr://runs/run_1/events?after=7",
                Some(Named::Events(text("run_1"), Some(7))),
            ),
            (
                "wopr://runs/run_1/artifacts/a%2Fb",
                Some(Named::Artifact(text("run_1"), text("a/b"))),
            ),
            ("wopr://workflows/hello", Some(Named::Workflow(text("hello")))),
            ("wopr://runs/run_1/events?after=x", None),
            ("wopr://runs/run_1/events?before=1", None),
            ("wopr://runs?after=1", None),
            ("wopr://nothing", None),
            ("wopr://runs/%ff", None),
            ("file:///etc/passwd", None),
            ("wopr:runs", None),
        ] {
            assert_eq!(Named::read(uri), named, "{uri}");
        }
        assert_eq!(
            Named::read(&next_page("run_1", 3)),
            Some(Named::Events(text("run_1"), Some(3)))
        );
    }
}
