//! Workflows that are removed while their runs go on.

use serde_json::{Value, json};

use crate::{
    client::Reply,
    server::{ALICE, BOB, READER, Server},
    workflows::{chain, node},
};

fn waiting(id: &str) -> Value {
    let gate = json!({ "title": "Go on?", "actions": ["accept"] });
    let mut document = chain(id, &[node("gate", "core.approvalGate", gate)]);
    document["metadata"] = json!({ "public": true });
    document
}

/// A document of the Agent Workflow Protocol that waits for a signal.
fn awp_waiting(name: &str) -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1" },
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

async fn remove_as(server: &Server, key: &str, id: &str) -> Reply {
    let path = format!("/v1/host/wopr/workflows/{id}");
    server.call("DELETE", &path).key(key).send().await
}

async fn register(server: &Server, document: &Value) -> Value {
    server.post("/v1/workflows", document).send().await.ok(201)
}

async fn rpc(server: &Server, path: &str, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let call = server.post(path, &body).header("a2a-version", "1.0");
    let call = call.header("accept", "application/json, text/event-stream");
    call.send().await.ok(200)
}

/// Calls a tool of the host.
async fn tool(server: &Server, name: &str, arguments: Value) -> Value {
    let params = json!({ "name": name, "arguments": arguments });
    let answer = rpc(server, "/mcp", "tools/call", params).await;
    answer["result"]["structuredContent"].clone()
}

/// Starts the workflow `gone` over OpenWOP, A2A and MCP. Returns the code of each refusal.
async fn starts(server: &Server, message: &str) -> [Value; 3] {
    let start = json!({ "workflowId": "gone" });
    let rest = server.post("/v1/runs", &start).send().await.json();
    let message = json!({ "messageId": message, "role": "ROLE_USER", "parts": [{ "text": "go" }], "metadata": { "skillId": "gone" } });
    let a2a = rpc(server, "/a2a", "SendMessage", json!({ "message": message })).await;
    let mcp = tool(server, "wopr_start_run", start).await;
    [
        rest["error"].clone(),
        a2a["error"]["code"].clone(),
        mcp["error"]["code"].clone(),
    ]
}

async fn listed(server: &Server) -> [bool; 4] {
    let list = server.get("/v1/workflows").send().await.ok(200);
    let tools = tool(server, "wopr_list_workflows", json!({})).await;
    let card = rpc(server, "/a2a", "GetExtendedAgentCard", json!({})).await;
    let own = rpc(server, "/mcp", "tools/list", json!({})).await;
    let has = |document: &Value, word: &str| document.to_string().contains(word);
    [
        has(&list, "\"gone\""),
        has(&tools, "\"gone\""),
        has(&card, "\"gone\""),
        has(&own, "\"run_gone\""),
    ]
}

async fn serve() -> Server {
    Server::start_with(|config| {
        config.server.public_url = Some("http://test".parse().unwrap());
        config.mcp.workflow_tools = true;
        config.limits.max_workflows = 40;
    })
    .await
}

#[tokio::test]
async fn a_removed_workflow_is_not_started_and_its_runs_go_on() {
    let server = serve().await;
    let document = waiting("gone");
    register(&server, &document).await;
    assert_eq!(listed(&server).await, [true; 4]);
    let run = server.run("gone", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    assert_eq!(starts(&server, "before").await, [const { Value::Null }; 3]);

    remove_as(&server, READER, "gone").await.error(403, "forbidden");
    remove_as(&server, BOB, "gone").await.error(404, "not_found");
    remove_as(&server, ALICE, "No!").await.error(404, "not_found");
    let removed = remove_as(&server, ALICE, "gone").await;
    assert_eq!((removed.status, removed.body.len()), (204, 0));
    remove_as(&server, ALICE, "gone").await.error(404, "not_found");

    assert_eq!(listed(&server).await, [false; 4]);
    let none = server.get("/v1/workflows/gone").send().await;
    none.error(404, "not_found");
    let refused = starts(&server, "after").await;
    assert_eq!(refused, [json!("not_found"), json!(-32602), json!("not_found")]);

    // The run is read, forked, and ends.
    server.snapshot(&run).await;
    let fork = json!({ "mode": "branch", "fromSeq": 0 });
    let forked = server
        .post(&format!("/v1/runs/{run}:fork"), &fork)
        .send()
        .await
        .ok(201);
    server
        .wait_for(forked["runId"].as_str().unwrap(), "waiting-approval")
        .await;
    let answer = server.post(
        &format!("/v1/runs/{run}/interrupts/gate"),
        &json!({ "resumeValue": { "action": "accept" } }),
    );
    answer.send().await.ok(200);
    server.wait_for(&run, "completed").await;

    // As new.
    register(&server, &document).await;
    server.run("gone", json!({})).await;
    server.stop().await;
}

#[tokio::test]
async fn removing_makes_room_and_the_refusal_says_so() {
    let server = serve().await;
    let noop = |id: &str| chain(id, &[node("n", "core.noop", json!({}))]);
    // The workflows of all tenants count as those of another one.
    for n in 0..40 {
        register(&server, &noop(&format!("w{n}"))).await;
    }
    let full = server.post("/v1/workflows", &noop("one-more")).send().await;
    full.error(409, "conflict");
    let full = full.json();
    let message = full["message"].as_str().unwrap();
    assert!(message.contains("DELETE /v1/host/wopr/workflows/"), "{message}");
    assert_eq!(remove_as(&server, ALICE, "w7").await.status, 204);
    register(&server, &noop("one-more")).await;
    server.stop().await;
}

#[tokio::test]
async fn a_workflow_of_all_tenants_is_not_removed() {
    let server = serve().await;
    let hiding = chain("three", &[node("mine", "core.noop", json!({}))]);
    register(&server, &hiding).await;
    assert_eq!(remove_as(&server, ALICE, "three").await.status, 204);
    let shared = server.get("/v1/workflows/three").send().await.ok(200);
    assert_eq!(shared["nodes"].as_array().unwrap().len(), 3, "{shared}");
    remove_as(&server, ALICE, "three").await.error(403, "forbidden");
    let refused = tool(&server, "wopr_remove_workflow", json!({ "workflowId": "three" })).await;
    assert_eq!(refused["error"]["code"], "forbidden", "{refused}");
    server.run("three", json!({})).await;
    server.stop().await;
}

#[tokio::test]
async fn removal_over_mcp_and_starts_of_documents_that_come_with_a_call() {
    let server = serve().await;
    let definition = awp_waiting("gone");
    let begin = || {
        tool(
            &server,
            "workflow_start",
            json!({ "definition": definition, "input": {} }),
        )
    };
    let execution = begin().await["execution_id"].as_str().unwrap().to_owned();
    let removed = tool(&server, "wopr_remove_workflow", json!({ "workflowId": "gone" })).await;
    assert_eq!(removed["workflowId"], "gone", "{removed}");
    let again = tool(&server, "wopr_remove_workflow", json!({ "workflowId": "gone" })).await;
    assert_eq!(again["error"]["code"], "not_found", "{again}");

    let path = "/awp/v1/workflows/gone/executions";
    let refused = server.post(path, &json!({ "input": {} })).send().await;
    assert_eq!(refused.status, 404, "{}", refused.json());
    let signal = json!({ "execution_id": execution, "definition": definition, "input": {}, "signal_name": "go", "payload": {} });
    let ended = tool(&server, "workflow_signal", signal).await;
    assert_eq!(ended["status"], "completed", "{ended}");

    // Each of these registers it as the first one did: a call, and a registration that replaces nothing.
    begin().await;
    assert_eq!(remove_as(&server, ALICE, "gone").await.status, 204);
    let another = json!({ "definition": awp_waiting("Gone") });
    server.post("/awp/v1/workflows", &another).send().await.ok(201);
    server.stop().await;
}
