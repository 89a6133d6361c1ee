//! An execution of the Agent Workflow Protocol over a kill of its host: what was started waits, and can be continued.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{host::Host, quarantine::ask};

fn document() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "killed", "version": "1.0.0" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "work", "type": "tool_call", "config": { "server": "s", "tool": "t" } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "work" },
            { "source": "work", "target": "end" },
        ],
    })
}

async fn post(address: SocketAddr, path: &str, body: Value) -> (u16, Value) {
    ask(address, "POST", &format!("/awp/v1{path}"), Some(body)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_execution_that_was_started_before_a_kill_takes_its_outcome_after_it() {
    let mut host = Host::new();
    let address = host.start().await;
    let registered = post(address, "/workflows", json!({ "definition": document() })).await;
    assert_eq!(registered.0, 201, "{registered:?}");
    let begin =
        json!({ "execution_id": "k-1", "input": { "a": 1 }, "activity_execution_mode": "host_mediated" });
    let started = post(address, "/workflows/killed/executions", begin.clone()).await;
    assert_eq!(
        (started.0, &started.1["status"]),
        (200, &json!("awaiting_activity")),
        "{started:?}"
    );
    host.kill().await;

    let address = host.start().await;
    let again = post(address, "/workflows/killed/executions", begin).await;
    assert_eq!(
        (again.0, &again.1["error"]["code"]),
        (409, &json!("DUPLICATE_EXECUTION_ID")),
        "{again:?}"
    );
    let submit = json!({ "definition": document(), "input": { "a": 1 }, "node_id": "work",
        "outcome": { "ok": true, "result": { "b": 2 } } });
    let done = post(address, "/executions/k-1:submit_activity", submit).await;
    assert_eq!(
        (done.0, &done.1["final_state"]),
        (200, &json!({ "a": 1, "b": 2 })),
        "{done:?}"
    );
}
