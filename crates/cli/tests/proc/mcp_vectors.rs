//! The parity vectors of the Agent Workflow Protocol through `wopr mcp`, where they are at hand, and vectors of our own.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{
    host::place,
    mcp::{Talk, command},
};

fn talk(folder: &Path) -> Talk {
    let mut command = command(folder);
    // Nothing outside is called: activities without an executor give what the vectors say.
    command.args(["--store", "memory", "--set", "conformance=true"]);
    Talk::start(command)
}

/// What a call gives: its structured content, or its error.
async fn call(talk: &mut Talk, tool: &str, arguments: Value) -> Result<Value, Value> {
    let params = json!({ "name": tool, "arguments": arguments });
    let answer = talk.ask("tools/call", params).await;
    let result = &answer["result"];
    let content = result["structuredContent"].clone();
    let text = result["content"][0]["text"].as_str().unwrap();
    if result["isError"] == true {
        let error = content["error"].clone();
        let said = format!(
            "{}: {}",
            error["code"].as_str().unwrap(),
            error["message"].as_str().unwrap()
        );
        assert_eq!(text, said);
        return Err(error);
    }
    let (_, document) = text.split_once("\n\nStructured result (JSON):\n").unwrap();
    assert_eq!(serde_json::from_str::<Value>(document).unwrap(), content);
    Ok(content)
}

/// The operation of a vector's step as a tool and its arguments.
fn asked(vector: &Value, definition: &Value, input: &Value, step: &Value) -> (String, Value) {
    let id = step.get("executionId").unwrap_or(&vector["executionId"]);
    let mut arguments = Map::new();
    let mut put = |name: &str, value: Option<&Value>| {
        if let Some(value) = value {
            arguments.insert(name.to_owned(), value.clone());
        }
    };
    let op = step["op"].as_str().unwrap();
    if op != "list" {
        put("execution_id", Some(id));
    }
    if !matches!(op, "list" | "status" | "cancel") {
        put("definition", Some(definition));
        put("activity_execution_mode", step.get("activityExecutionMode"));
    }
    match op {
        "start" => {
            put("input", step.get("input"));
            if let Some(outputs) = vector.get("stubActivityOutputs") {
                put("configurable", Some(&json!({ "mockOutputs": outputs })));
            }
        }
        "resume" => put("resume_payload", step.get("resumePayload")),
        "submit_activity" => {
            put("input", Some(input));
            put("node_id", step.get("nodeId"));
            put("outcome", step.get("outcome"));
            let span = step.get("expectedParallelSpan").map(|span| {
                json!({
                    "parallel_node_id": span["parallelNodeId"], "join_target_id": span["joinTargetId"],
                    "branch_name": span["branchName"], "branch_entry_node_id": span["branchEntryNodeId"],
                })
            });
            put("parallel_span", span.as_ref());
        }
        "signal" => {
            put("input", Some(input));
            put("signal_name", step.get("signalName"));
            put("payload", step.get("payload"));
        }
        "cancel" => put("reason", step.get("reason")),
        "status" => {}
        "list" => put("phase", step.get("listPhase")),
        other => panic!("unknown operation {other}"),
    }
    (format!("workflow_{op}"), Value::Object(arguments))
}

fn holds(expected: &Value, answer: &Value) -> bool {
    let listed = || answer["executions"].as_array().unwrap();
    expected
        .as_object()
        .unwrap()
        .iter()
        .all(|(name, wanted)| match name.as_str() {
            "execution_count" => *wanted == json!(listed().len()),
            "execution_ids" => {
                let mut ids: Vec<_> = listed()
                    .iter()
                    .map(|item| item["execution_id"].as_str().unwrap())
                    .collect();
                ids.sort_unstable();
                *wanted == json!(ids)
            }
            name => answer.get(name) == Some(wanted),
        })
}

async fn drive(vector: &Value, definition: &Value, child: Option<&Value>) {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let mut talk = talk(folder.path());
    if let Some(child) = child {
        let registered = talk
            .call("wopr_register_workflow", json!({ "definition": child }))
            .await;
        assert!(registered["workflowId"].is_string(), "{registered}");
    }
    let mut input = json!({});
    for step in vector["steps"].as_array().unwrap() {
        if step["op"] == "start" {
            input = step["input"].clone();
        }
        let (tool, arguments) = asked(vector, definition, &input, step);
        let answer = call(&mut talk, &tool, arguments).await;
        let context = format!("{}: {}: {answer:#?}", vector["id"], step["op"]);
        match (step.get("expectErrorCode"), answer) {
            (Some(code), Err(error)) => assert_eq!(error["code"], *code, "{context}"),
            (None, Ok(answer)) => assert!(holds(&step["expect"], &answer), "{context}"),
            (_, _) => panic!("{context}"),
        }
    }
    let (_, code, said) = talk.end().await;
    assert_eq!((code, said.as_str()), (Some(0), ""));
}

/// The data of the protocol, if it is at hand.
fn data() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/agent-workflow"
    ));
    if !folder.is_dir() {
        println!("note: the vectors of the Agent Workflow Protocol are not here; nothing was checked");
        return None;
    }
    Some(folder)
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn vectors(folder: &Path, kind: &str) -> Vec<Value> {
    let files = fs::read_dir(folder.join("vectors").join(kind)).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| read(file)).collect()
}

#[tokio::test]
async fn parity_vectors_of_the_protocol_hold() {
    let Some(folder) = data() else { return };
    // The reference knows this child by itself, as urn:awp:wf:unit-tests.
    let child = read(&folder.join("examples/r3-unit-tests-child.workflow.json"));
    for vector in vectors(&folder, "parity") {
        let definition = read(&folder.join(vector["definition"].as_str().unwrap()));
        drive(&vector, &definition, Some(&child)).await;
    }
}

#[tokio::test]
async fn schema_vectors_of_the_protocol_hold() {
    let Some(folder) = data() else { return };
    let own = tempfile::tempdir_in(place()).unwrap();
    let mut talk = talk(own.path());
    for kind in ["schema/invalid", "schema/valid"] {
        for vector in vectors(&folder, kind) {
            let definition = read(&folder.join(vector["definition"].as_str().unwrap()));
            let params =
                json!({ "name": "wopr_validate_workflow", "arguments": { "definition": definition } });
            let answer = talk.ask("tools/call", params).await;
            let found = &answer["result"]["structuredContent"];
            assert_eq!(
                found["valid"], vector["expect"]["ok"],
                "{}: {answer}",
                vector["id"]
            );
            if found["valid"] == true {
                continue;
            }
            let arguments = json!({ "execution_id": "one", "definition": definition, "input": {} });
            let refused = call(&mut talk, "workflow_start", arguments).await.unwrap_err();
            assert_eq!(refused["code"], "VALIDATION_ERROR", "{}: {refused}", vector["id"]);
        }
    }
}

/// A document that waits for its host, for a signal and for a person, in this order.
fn document() -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "all-waits", "version": "1.0.0" },
        "state_schema": { "type": "object", "properties": { "patch": { "type": "string" }, "by": { "type": "string" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "work", "type": "tool_call", "config": { "server": "coder", "tool": "patch" } },
            { "id": "built", "type": "wait", "config": { "kind": "signal", "signal": "built" } },
            { "id": "review", "type": "interrupt", "config": {
                "prompt": "Merge?",
                "resume_schema": { "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"] },
            } },
            { "id": "end", "type": "end", "config": { "output_mapping": "{patch, by}" } },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "work" },
            { "source": "work", "target": "built" }, { "source": "built", "target": "review" },
            { "source": "review", "target": "end" },
        ],
    })
}

#[tokio::test]
async fn vectors_of_our_own_hold() {
    let start = json!({ "op": "start", "input": {}, "activityExecutionMode": "host_mediated",
        "expect": { "status": "awaiting_activity", "node_id": "work" } });
    let mut again = start.clone();
    again["expectErrorCode"] = json!("DUPLICATE_EXECUTION_ID");
    let outcome = json!({ "ok": true, "result": { "patch": "diff" } });
    let steps = json!([
        { "op": "status", "expectErrorCode": "EXECUTION_NOT_FOUND" },
        start,
        again,
        { "op": "submit_activity", "nodeId": "other", "outcome": outcome, "expectErrorCode": "ACTIVITY_SUBMIT_NODE_MISMATCH" },
        { "op": "submit_activity", "nodeId": "work", "outcome": outcome,
          "expect": { "status": "awaiting_signal", "signal_name": "built" } },
        { "op": "submit_activity", "nodeId": "work", "outcome": outcome, "expectErrorCode": "ACTIVITY_SUBMIT_NOT_AWAITING" },
        { "op": "signal", "signalName": "broken", "payload": {}, "expectErrorCode": "SIGNAL_NAME_MISMATCH" },
        { "op": "signal", "signalName": "built", "payload": { "by": "ci" }, "expect": { "status": "interrupted", "node_id": "review" } },
        { "op": "resume", "resumePayload": { "ok": 1 }, "expectErrorCode": "INVALID_RESUME_PAYLOAD" },
        { "op": "resume", "resumePayload": { "ok": true },
          "expect": { "status": "completed", "result": { "patch": "diff", "by": "ci" } } },
        { "op": "status", "expect": { "phase": "completed" } },
        { "op": "list", "listPhase": "completed", "expect": { "execution_ids": ["own-1"] } },
    ]);
    let vector = json!({ "id": "own.all_waits", "executionId": "own-1", "steps": steps });
    drive(&vector, &document(), None).await;
}

#[tokio::test]
async fn an_execution_is_a_run_of_the_other_tools() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let mut talk = talk(folder.path());
    let arguments = json!({
        "execution_id": "seen-1", "definition": document(), "input": {}, "activity_execution_mode": "host_mediated",
    });
    call(&mut talk, "workflow_start", arguments).await.unwrap();
    let listed = talk.call("wopr_list_runs", json!({})).await;
    let run = &listed["runs"][0];
    assert_eq!(run["workflowId"], "all-waits", "{listed}");
    let cancelled = talk
        .call("wopr_cancel_run", json!({ "runId": run["runId"] }))
        .await;
    assert!(cancelled["status"].is_string(), "{cancelled}");
    let status = call(&mut talk, "workflow_status", json!({ "execution_id": "seen-1" }))
        .await
        .unwrap();
    assert_eq!(status["phase"], "cancelled", "{status}");
    talk.end().await;
}
