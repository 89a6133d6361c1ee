//! Every run of a document can be read, answered and cancelled as an OpenWOP run and as an A2A task.
//!
//! The documents are those of this repository, and the examples of the Agent Workflow Protocol where they are at hand.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::server::Server;

const QUEUES: [&str; 4] = ["awp.step", "awp.llm_call", "awp.tool_call", "awp.agent_delegate"];

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: &PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A document with every type of node.
fn everything() -> Value {
    let tool = |id: &str| json!({ "id": id, "type": "tool_call", "config": { "server": "s", "tool": id } });
    let edges = [
        ("__start__", "start"),
        ("start", "plan"),
        ("plan", "classify"),
        ("classify", "fork"),
        ("fork", "pause"),
        ("a", "pause"),
        ("b", "pause"),
        ("c", "pause"),
        ("pause", "go"),
        ("go", "delegate"),
        ("delegate", "tests"),
        ("tests", "ask"),
        ("ask", "count"),
        ("count", "choose"),
    ];
    let edges: Vec<_> = edges
        .iter()
        .map(|(source, target)| json!({ "source": source, "target": target }))
        .collect();
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "everything", "version": "1" },
        "state_schema": { "type": "object", "properties": { "n": { "type": "integer" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "plan", "type": "step", "config": { "handler": "urn:plan" } },
            { "id": "classify", "type": "llm_call", "config": { "prompt": "Classify it." } },
            { "id": "fork", "type": "parallel", "config": { "join": "n_of_m", "n": 2, "branches": [
                { "name": "a", "entry": "a" }, { "name": "b", "entry": "b" }, { "name": "c", "entry": "c" },
            ] } },
            tool("a"), tool("b"), tool("c"),
            { "id": "pause", "type": "wait", "config": { "kind": "duration", "duration_ms": 1 } },
            { "id": "go", "type": "wait", "config": { "kind": "signal", "signal": "go" } },
            { "id": "delegate", "type": "agent_delegate", "config": {
                "agent_id": "coder", "protocol": "a2a", "input_mapping": { "task": "mend it" },
            } },
            { "id": "tests", "type": "subworkflow", "config": {
                "workflow_ref": "unit-tests", "input_mapping": { "repo": "acme/widget" },
            } },
            { "id": "ask", "type": "interrupt", "config": {
                "prompt": "Again?", "resume_schema": { "type": "object", "required": ["approve"] },
            } },
            { "id": "count", "type": "set_state", "config": { "assignments": { "n": { "jq": "(.n // 0) + 1" } } } },
            { "id": "choose", "type": "switch", "config": { "cases": [{ "when": ".n < 2", "target": "plan" }], "default": "end" } },
            { "id": "end", "type": "end", "config": { "output_mapping": "{n}" } },
        ],
        "edges": edges,
    })
}

fn unit_tests() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "unit-tests", "version": "1" },
        "state_schema": { "type": "object", "properties": { "repo": { "type": "string" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "run", "type": "tool_call", "config": { "server": "ci", "tool": "run" } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "run" },
            { "source": "run", "target": "end" },
        ],
    })
}

/// The documents, the children of others first.
fn documents() -> Vec<Value> {
    let ours = root().join("examples/coding-crew/crew");
    let mut documents = vec![
        unit_tests(),
        everything(),
        read(&ours.join("patch-tests.json")),
        read(&ours.join("coding-crew.json")),
    ];
    let folder = root().join("../shared/fixtures/agent-workflow/examples");
    let Ok(entries) = fs::read_dir(&folder) else {
        println!("note: the examples of the protocol are not here; only our own documents were run");
        return documents;
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".workflow.json"));
    paths.sort();
    assert!(!paths.is_empty(), "{} has examples", folder.display());
    documents.extend(paths.iter().map(read));
    documents
}

/// What a worker gives for a node, so that each document reaches its end.
fn result(node: &str) -> Value {
    match node {
        "classify" => json!({ "intent": "unclear", "confidence": 0.2 }),
        "list_issues" => json!({ "text": "{\"items\":[{\"id\":\"i1\"}]}" }),
        "list_projects" | "list_goals" => json!({ "text": "[]" }),
        "collect_a" => json!({ "findings": ["a"] }),
        "implement" => json!({ "patch": "// with a test" }),
        _ => json!({}),
    }
}

async fn call(server: &Server, method: &str, params: Value) -> Value {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let sent = server.post("/a2a", &body).header("a2a-version", "1.0");
    sent.send().await.ok(200)["result"].clone()
}

async fn state(server: &Server, run: &str) -> String {
    let task = call(server, "GetTask", json!({ "id": run })).await;
    assert_eq!(task["id"], run, "{task}");
    task["status"]["state"].as_str().unwrap().to_owned()
}

/// The activities of all queues that wait, of this run and its children.
async fn leased(server: &Server) -> Vec<Value> {
    let mut leased = Vec::new();
    for queue in QUEUES {
        let body = json!({ "queue": queue, "worker": "w", "max": 16 });
        let answer = server.post("/v1/activities:lease", &body).send().await.ok(200);
        leased.extend(answer["activities"].as_array().unwrap().iter().cloned());
    }
    leased
}

/// Waits for something new in the log of a run.
async fn change(server: &Server, run: &str, seen: &mut u64) {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1&lastSequence={seen}");
    let poll = server.get(&path).send().await.ok(200);
    *seen = poll["lastEventSeq"].as_u64().unwrap_or(*seen);
}

fn is_terminal(status: &str) -> bool {
    ["completed", "failed", "cancelled"].contains(&status)
}

/// Gives a run what it waits for, over both faces in turn, until it ends; `false` if it stops at the first wait.
async fn drive(server: &Server, run: &str, to_end: bool) -> Value {
    let (mut seen, mut n_answers) = (0, 0);
    for _ in 0..400 {
        let snapshot = server.snapshot(run).await;
        let status = snapshot["status"].as_str().unwrap();
        if is_terminal(status) {
            return snapshot;
        }
        if let Some(node) = snapshot["interrupt"]["nodeId"].as_str() {
            // A question is one in the words of both.
            assert_eq!(
                state(server, run).await,
                "TASK_STATE_INPUT_REQUIRED",
                "{snapshot}"
            );
            if !to_end {
                return snapshot;
            }
            let answer = json!({ "approve": true, "approved": true, "intent": "billing" });
            let answer = match node {
                "review" if run_is_of(&snapshot, "coding-crew") => json!({ "approved": true }),
                _ => answer,
            };
            n_answers += 1;
            if n_answers % 2 == 0 {
                let path = format!("/v1/runs/{run}/interrupts/{node}");
                let body = json!({ "resumeValue": answer });
                server.post(&path, &body).send().await.ok(200);
            } else {
                let message = json!({ "message": {
                    "messageId": format!("{run}-{n_answers}"), "taskId": run, "role": "ROLE_USER", "parts": [{ "data": answer }],
                }, "configuration": { "returnImmediately": true } });
                call(server, "SendMessage", message).await;
            }
            continue;
        }
        let activities = leased(server).await;
        if !to_end && !activities.is_empty() {
            assert_eq!(state(server, run).await, "TASK_STATE_WORKING", "{snapshot}");
            return snapshot;
        }
        if activities.is_empty() {
            change(server, run, &mut seen).await;
        }
        for activity in activities {
            let path = format!("/v1/activities/{}", activity["token"].as_str().unwrap());
            let result = result(activity["nodeId"].as_str().unwrap());
            let body = json!({ "outcome": { "ok": true, "result": result } });
            server.post(&path, &body).send().await.ok(200);
        }
    }
    panic!("{run} does not end: {}", server.snapshot(run).await)
}

fn run_is_of(snapshot: &Value, workflow: &str) -> bool {
    snapshot["workflowId"] == workflow
}

#[tokio::test]
async fn runs_of_all_documents_are_read_answered_and_cancelled_as_runs_and_as_tasks() {
    let server = Server::start().await;
    let inputs = json!({
        "user_request": "write it", "execution_mode": "workflow", "repo": "acme/widget", "task": "mend it",
        "patch": "// with a test",
    });
    let mut n_questions = 0;
    for (n, document) in documents().iter().enumerate() {
        let name = document["document"]["name"].clone();
        let registered = server.post("/v1/workflows", document).send().await.ok(201);
        let workflow = registered["workflowId"].as_str().unwrap();

        let run = server.run(workflow, inputs.clone()).await;
        let ended = drive(&server, &run, true).await;
        assert_eq!(ended["status"], "completed", "{name}: {ended}");
        assert_eq!(state(&server, &run).await, "TASK_STATE_COMPLETED", "{name}");

        let run = server.run(workflow, inputs.clone()).await;
        let waiting = drive(&server, &run, false).await;
        if is_terminal(waiting["status"].as_str().unwrap()) {
            // Nothing in it waits.
            continue;
        }
        n_questions += usize::from(waiting["interrupt"].is_object());
        match n % 2 {
            0 => {
                let task = call(&server, "CancelTask", json!({ "id": run })).await;
                assert_eq!(task["status"]["state"], "TASK_STATE_CANCELED", "{name}: {task}");
            }
            _ => {
                server
                    .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
                    .send()
                    .await;
            }
        }
        let cancelled = server.wait_for(&run, "cancelled").await;
        assert_eq!(cancelled["interrupt"], Value::Null, "{name}: {cancelled}");
        assert_eq!(state(&server, &run).await, "TASK_STATE_CANCELED", "{name}");
        // Neither it nor a child of it waits for a worker any more.
        assert_eq!(leased(&server).await, Vec::<Value>::new(), "{name}");
    }
    println!("{n_questions} runs were cancelled while they asked");
}
