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

/// The examples of this repository, the children of others first.
fn ours() -> Vec<Value> {
    let crew = root().join("examples/coding-crew/crew");
    vec![
        unit_tests(),
        everything(),
        read(&crew.join("patch-tests.json")),
        read(&crew.join("coding-crew.json")),
    ]
}

/// The documents of pages.
fn of_pages() -> Vec<Value> {
    let pages = fs::read_dir(root().join("docs")).unwrap();
    let mut pages: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
    pages.retain(|page| page.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    let mut documents = Vec::new();
    for page in pages {
        let text = fs::read_to_string(page).unwrap();
        let blocks = text.split("```json\n").skip(1);
        let blocks = blocks.filter_map(|rest| rest.split("```").next());
        let values = blocks.filter_map(|block| serde_json::from_str::<Value>(block).ok());
        documents.extend(values.filter(|value| value["document"].is_object() && value["nodes"].is_array()));
    }
    assert!(!documents.is_empty(), "a page shows a document");
    documents
}

/// A document and those of its sub-workflows, and theirs.
fn with_children<'d>(document: &'d Value, documents: &'d [Value]) -> Vec<&'d Value> {
    let mut all = vec![document];
    let mut next = 0;
    while let Some(document) = all.get(next) {
        next += 1;
        let nodes = document["nodes"].as_array().unwrap().iter();
        let refs = nodes.filter_map(|node| node["config"]["workflow_ref"].as_str());
        for wanted in refs {
            let name = wanted.trim_start_matches("urn:awp:wf:");
            let found = documents.iter().find(|known| known["document"]["name"] == name);
            let found = found.filter(|found| !all.contains(found));
            all.extend(found);
        }
    }
    all
}

/// The documents, the children of others first.
fn documents() -> Vec<Value> {
    let mut documents = ours();
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
            let ended = server.post(&path, &body).send().await;
            // A branch that was under way with others may not be needed any more.
            let is_late = ended.status == 409 && ended.json()["error"] == "activity_stale";
            assert!(ended.status == 200 || is_late, "{}", ended.json());
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

/// The rows of an execution, and those of its sub-workflows, the parents first.
async fn exported(server: &Server, execution: &str) -> Vec<Vec<Value>> {
    let (mut all, mut wanted) = (Vec::new(), vec![execution.to_owned()]);
    while let Some(execution) = wanted.pop() {
        let path = format!(
            "/awp/v1/executions/{}/events?limit=1000",
            execution.replace('#', "%23")
        );
        let page = server.get(&path).send().await.ok(200);
        assert!(page.get("next_cursor").is_none(), "one page is enough");
        let rows = page["events"].as_array().unwrap().clone();
        let started = rows.iter().filter(|row| row["name"] == "StartSubworkflow");
        wanted.extend(started.map(|row| row["payload"]["childExecutionId"].as_str().unwrap().to_owned()));
        all.push(rows);
    }
    all
}

/// Imports what was exported on a host that has nothing, and compares what that exports.
async fn moves(exported_rows: &[Vec<Value>], document: &Value, documents: &[Value], name: &str) -> Server {
    let other = Server::start().await;
    let is_of = |document: &&Value, rows: &Vec<Value>| {
        rows[0]["payload"]["workflowName"] == document["document"]["name"]
    };
    let children = &exported_rows[1..];
    let definitions = documents
        .iter()
        .filter(|document| children.iter().any(|rows| is_of(document, rows)));
    let mode = match exported_rows
        .iter()
        .flatten()
        .any(|row| row["name"] == "ActivityCompleted" || row["name"] == "ActivityFailed")
    {
        true => Value::Null,
        false => "host_mediated".into(),
    };
    let mut body = json!({
        "definition": document, "rows": exported_rows[0], "child_rows": children,
        "child_definitions": definitions.collect::<Vec<_>>(), "activity_execution_mode": mode,
    });
    body.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    let imported = other.post("/awp/v1/executions:import", &body).send().await;
    let imported = imported.ok(201);
    assert_eq!(imported["execution_id"], name, "{imported}");
    assert_eq!(&exported(&other, name).await, exported_rows, "{name}");
    other
}

/// The run of an execution.
async fn run_of(server: &Server, workflow: &str) -> String {
    let runs = server
        .get(&format!("/v1/runs?workflowId={workflow}"))
        .send()
        .await
        .ok(200);
    let runs = runs["runs"].as_array().unwrap();
    runs[0]["runId"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn executions_of_all_documents_are_exported_and_imported_on_an_empty_host() {
    let inputs = json!({
        "user_request": "write it", "execution_mode": "workflow", "repo": "acme/widget", "task": "mend it",
        "patch": "// with a test", "name": "Ada",
    });
    let mut documents = documents();
    documents.extend(of_pages());
    let (mut n_children, mut n_open) = (0, 0);
    for (n, document) in documents.iter().enumerate() {
        for (mode, is_parallel) in [
            ("host_mediated", false),
            ("host_mediated", true),
            ("in_process", false),
        ] {
            let server = Server::start().await;
            let name = format!("e-{n}-{mode}-{is_parallel}");
            let family = with_children(document, &documents);
            let mut workflow = String::new();
            for known in &family {
                let registered = server.post("/v1/workflows", known).send().await.ok(201);
                if *known == document {
                    registered["workflowId"]
                        .as_str()
                        .unwrap()
                        .clone_into(&mut workflow);
                }
            }
            let body = json!({
                "execution_id": name, "input": inputs, "activity_execution_mode": mode, "parallel_activities": is_parallel,
            });
            let path = format!("/awp/v1/workflows/{workflow}/executions");
            let started = server.post(&path, &body).send().await;
            // In process, the mock's empty outputs may not be what the document needs.
            assert!([200, 500].contains(&started.status), "{name}: {}", started.json());
            let run = run_of(&server, &workflow).await;
            // The call has answered because the execution waits, or has ended.
            let waiting = server.snapshot(&run).await;
            if mode == "host_mediated" && !is_terminal(waiting["status"].as_str().unwrap()) {
                // It goes on at the other host as it does here.
                n_open += 1;
                let given = exported(&server, &name).await;
                let other = moves(&given, document, &documents, &name).await;
                // What the execution has not started yet is not in its history.
                for known in &family {
                    let registered = other.post("/v1/workflows", known).send().await;
                    assert!([200, 201].contains(&registered.status), "{}", registered.json());
                }
                let copy = run_of(&other, &workflow).await;
                let ended = drive(&other, &copy, true).await;
                assert_eq!(ended["status"], "completed", "{name}: {ended}");
            }
            let ended = drive(&server, &run, true).await;
            let given = exported(&server, &name).await;
            let other = moves(&given, document, &documents, &name).await;
            n_children += given.len() - 1;
            // Its children are runs and tasks of their own.
            let runs = other.get("/v1/runs?limit=100").send().await.ok(200);
            let runs = runs["runs"].as_array().unwrap();
            assert_eq!(runs.len(), given.len(), "{name}: {runs:?}");
            for run in runs {
                let id = run["runId"].as_str().unwrap();
                let snapshot = other.snapshot(id).await;
                let rows = snapshot["metadata"]["imported"]["rows"].as_u64();
                assert!(rows.is_some(), "{snapshot}");
                let task = state(&other, id).await;
                let expected = match snapshot["status"].as_str().unwrap() {
                    "completed" => "TASK_STATE_COMPLETED",
                    "failed" => "TASK_STATE_FAILED",
                    other => panic!("{name}: {other}"),
                };
                assert_eq!(task, expected, "{name}");
            }
            let copy = run_of(&other, &workflow).await;
            let copy = other.snapshot(&copy).await;
            assert_eq!(copy["status"], ended["status"], "{name}");
            assert_eq!(copy["outputs"], ended["outputs"], "{name}");
        }
    }
    assert!(
        n_children >= 8 && n_open >= 6,
        "{n_children} children, {n_open} open"
    );
}
