//! Executions of Agent Workflow documents that two hosts start at the same time.

use std::{collections::BTreeSet, sync::Arc};

use http::StatusCode;
use serde_json::{Value, json};
use wopr_server::Host;

use crate::harness::*;

/// How often the hosts race. Each may be first.
const ROUNDS: usize = 8;

fn document(name: &str, version: &str) -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": version },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "wait", "type": "wait", "config": { "kind": "signal", "signal": "go" } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "wait" },
            { "source": "wait", "target": "end" },
        ],
    })
}

async fn post(host: &Arc<Host>, path: &str, body: Value) -> (StatusCode, Value) {
    let (status, _, body) = ask(host, "POST", path, ALICE, Some(body)).await;
    (status, body)
}

async fn hosts() -> (Arc<Host>, Arc<Host>) {
    let url = schema().await;
    let (one, two) = tokio::join!(Host::open(config(&url)), Host::open(config(&url)));
    (one.unwrap(), two.unwrap())
}

/// The ids of all executions.
async fn listed(host: &Arc<Host>) -> Vec<String> {
    let (status, _, list) = ask(host, "GET", "/awp/v1/executions?limit=100", ALICE, None).await;
    assert_eq!(status, StatusCode::OK, "{list}");
    let executions = list["executions"].as_array().unwrap();
    executions
        .iter()
        .map(|execution| execution["execution_id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_hosts_starts_an_execution_id() {
    let (one, two) = hosts().await;
    let body = json!({ "definition": document("raced", "1") });
    let (status, registered) = post(&one, "/awp/v1/workflows", body).await;
    assert_eq!(status, StatusCode::CREATED, "{registered}");
    let path = "/awp/v1/workflows/raced/executions";
    for round in 0..ROUNDS {
        let body = json!({ "execution_id": format!("strict-{round}") });
        let replies = tokio::join!(post(&one, path, body.clone()), post(&two, path, body));
        let ((started, begun), (refused, error)) = match replies {
            (first, second) if first.0 == StatusCode::OK => (first, second),
            (first, second) => (second, first),
        };
        assert_eq!(
            (started, refused),
            (StatusCode::OK, StatusCode::CONFLICT),
            "{error}"
        );
        assert_eq!(begun["status"], "awaiting_signal", "{begun}");
        assert_eq!(error["error"]["code"], "DUPLICATE_EXECUTION_ID", "{error}");
        assert_eq!(error["error"]["details"]["execution_id"], begun["execution_id"]);

        let body = json!({ "execution_id": format!("lenient-{round}"), "allow_existing_execution_id": true });
        let (first, second) = tokio::join!(post(&one, path, body.clone()), post(&two, path, body));
        assert_eq!(
            (first.0, second.0),
            (StatusCode::OK, StatusCode::OK),
            "{first:?} {second:?}"
        );
        assert_eq!(first.1, second.1, "both have the one execution");
    }
    let ids = listed(&two).await;
    assert_eq!(ids.len(), 2 * ROUNDS, "{ids:?}");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    one.close().await;
    two.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_hosts_registers_a_workflow() {
    let (one, two) = hosts().await;
    for round in 0..ROUNDS {
        let name = format!("raced-{round}");
        let body = |version: &str| json!({ "definition": document(&name, version) });
        let path = "/awp/v1/workflows";
        let (first, second) = tokio::join!(post(&one, path, body("1")), post(&two, path, body("2")));
        let (winner, loser) = match first.0 {
            StatusCode::CREATED => (first, second),
            _ => (second, first),
        };
        assert_eq!(
            (winner.0, loser.0),
            (StatusCode::CREATED, StatusCode::CONFLICT),
            "{winner:?} {loser:?}"
        );
        assert_eq!(loser.1["error"]["code"], "DUPLICATE_WORKFLOW_ID");
        let path = format!("/awp/v1/workflows/{name}");
        let (_, _, kept) = ask(&one, "GET", &path, ALICE, None).await;
        assert_eq!(kept, winner.1);
    }
    one.close().await;
    two.close().await;
}

/// The rows of an execution.
async fn rows(host: &Arc<Host>, execution: &str) -> Value {
    let path = format!("/awp/v1/executions/{execution}/events?limit=1000");
    let (status, _, page) = ask(host, "GET", &path, ALICE, None).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    page["events"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_hosts_imports_an_execution_and_its_sub_workflow_goes_on_at_either() {
    let (one, two) = hosts().await;
    let child = document("imported-child", "1");
    let mut parent = document("imported-parent", "1");
    parent["nodes"][1] = json!({ "id": "wait", "type": "subworkflow", "config": {
        "workflow_ref": "imported-child", "input_mapping": {},
    } });
    for document in [&child, &parent] {
        let (status, registered) = post(&one, "/awp/v1/workflows", json!({ "definition": document })).await;
        assert_eq!(status, StatusCode::CREATED, "{registered}");
    }
    let path = "/awp/v1/workflows/imported-parent/executions";
    let body = json!({ "execution_id": "source", "activity_execution_mode": "host_mediated" });
    let (status, begun) = post(&one, path, body).await;
    assert_eq!(status, StatusCode::OK, "{begun}");
    let (parent_rows, child_rows) = (rows(&two, "source").await, rows(&two, "source:sub:wait").await);
    for round in 0..ROUNDS {
        let name = format!("copy-{round}");
        let body = json!({
            "definition": parent, "rows": parent_rows, "child_definitions": [child], "child_rows": [child_rows],
            "execution_id": name, "activity_execution_mode": "host_mediated",
        });
        let import = "/awp/v1/executions:import";
        let replies = tokio::join!(post(&one, import, body.clone()), post(&two, import, body));
        let ((created, imported), (refused, error)) = match replies {
            (first, second) if first.0 == StatusCode::CREATED => (first, second),
            (first, second) => (second, first),
        };
        assert_eq!(
            (created, refused),
            (StatusCode::CREATED, StatusCode::CONFLICT),
            "{imported} {error}"
        );
        assert_eq!(error["error"]["code"], "DUPLICATE_EXECUTION_ID", "{error}");
        // Whichever host has imported it, the other one goes on with it.
        let signal = json!({ "definition": child, "input": {}, "signal_name": "go" });
        let path = format!("/awp/v1/executions/{name}:sub:wait:signal");
        let (status, ended) = post(&two, &path, signal).await;
        assert_eq!(
            (status, &ended["status"]),
            (StatusCode::OK, &json!("completed")),
            "{ended}"
        );
        let ended = wait_for_phase(&one, &name, "completed").await;
        assert_eq!(ended["execution_id"], name.as_str());
    }
    let all = listed(&one).await;
    assert_eq!(
        all.iter().filter(|name| name.ends_with(":sub:wait")).count(),
        ROUNDS + 1,
        "{all:?}"
    );
}

/// Waits until an execution is in a phase.
async fn wait_for_phase(host: &Arc<Host>, execution: &str, phase: &str) -> Value {
    let (_, _, runs) = ask(host, "GET", "/v1/runs?workflowId=imported-parent", ALICE, None).await;
    let run = runs["runs"][0]["runId"].as_str().unwrap().to_owned();
    let mut seen = 0;
    loop {
        let path = format!("/awp/v1/executions/{execution}");
        let (status, _, found) = ask(host, "GET", &path, ALICE, None).await;
        assert_eq!(status, StatusCode::OK, "{found}");
        if found["phase"] == phase {
            return found;
        }
        // Its parent hears of the end by a message, and that is an event.
        let path = format!("/v1/runs/{run}/events/poll?timeout=30&lastSequence={seen}");
        let (_, _, poll) = ask(host, "GET", &path, ALICE, None).await;
        let last = poll["lastEventSeq"].as_u64().unwrap_or(seen);
        assert!(
            last > seen || poll["isComplete"] == true,
            "{execution} is {found}"
        );
        seen = last;
    }
}

/// A document that asks three things, one after the other.
fn asking() -> Value {
    let mut asking = document("asking", "1");
    let ask = |id: &str| {
        let schema = json!({ "type": "object", "required": ["ok"] });
        json!({ "id": id, "type": "interrupt", "config": { "prompt": id, "resume_schema": schema } })
    };
    asking["nodes"] = json!([
        { "id": "start", "type": "start" }, ask("a"), ask("b"), ask("c"), { "id": "end", "type": "end" },
    ]);
    let ids = ["__start__", "start", "a", "b", "c", "end"];
    let edge = |pair: &[&str]| json!({ "source": pair[0], "target": pair[1] });
    asking["edges"] = ids.windows(2).map(edge).collect();
    asking
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_answers_through_either_host() {
    let (one, two) = hosts().await;
    let document = asking();
    let body = json!({ "definition": document });
    let (status, registered) = post(&one, "/awp/v1/workflows", body).await;
    assert_eq!(status, StatusCode::CREATED, "{registered}");
    let body = json!({ "execution_id": "x-1" });
    let (status, started) = post(&one, "/awp/v1/workflows/asking/executions", body).await;
    assert_eq!(status, StatusCode::OK, "{started}");
    for (host, next) in [(&two, json!("b")), (&one, json!("c")), (&two, Value::Null)] {
        let body = json!({ "definition": document, "resume_payload": { "ok": true } });
        let (status, answer) = post(host, "/awp/v1/executions/x-1:resume", body).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(answer["node_id"], next, "{answer}");
    }
}
