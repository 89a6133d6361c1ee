//! Masking: sensitive values under every name they appear by, and access to the contents of artifacts.

use serde_json::{Value, json};

use crate::{
    client::Call,
    server::{ALICE, READER, Server},
    workflows::{chain, node},
};

async fn register(server: &Server, workflow: &Value) {
    let registered = server.post("/v1/workflows", workflow).send().await;
    assert!(matches!(registered.status, 200 | 201), "{registered:?}");
}

/// Starts a run and answers its gate.
async fn answered(server: &Server, workflow: &Value, answer: &Value) -> String {
    register(server, workflow).await;
    let run = server.run(workflow["id"].as_str().unwrap(), json!({})).await;
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let body = json!({ "resumeValue": answer });
    let taken = server.post(&path, &body).send().await;
    assert_eq!(taken.status, 200, "{answer}: {taken:?}");
    run
}

/// Collects everything a caller can read of a run.
async fn shown(server: &Server, key: &str, run: &str) -> String {
    let read = async |path: String| {
        let call = server.call("GET", &path).key(key);
        call.header("accept", "application/json").send().await.ok(200)
    };
    let snapshot = read(format!("/v1/runs/{run}")).await;
    let events = read(format!("/v1/runs/{run}/events")).await;
    format!("{snapshot}\n{events}")
}

#[tokio::test]
async fn sensitive_feedback_is_masked_under_every_name() {
    let server = Server::start().await;
    let gate = |marks: &Value, required: u32| {
        let mut gate = node(
            "gate",
            "core.approvalGate",
            json!({ "title": "Go?", "actions": ["accept", "reject", "refine"], "requiredApprovals": required }),
        );
        gate["outputSensitivity"] = marks.clone();
        let last = node("last", "core.noop", json!({}));
        let mut workflow = chain("discreet", &[gate, last]);
        workflow["variables"] = json!([{ "name": "refineFeedback", "type": "object" }]);
        workflow
    };
    let refine = json!({ "scope": "whole", "text": "hushed" });
    let answers = [
        (1, json!({ "action": "reject", "feedback": "hushed" })),
        (1, json!({ "action": "reject", "comment": "hushed" })),
        (1, json!({ "action": "reject", "reason": "hushed" })),
        (1, json!({ "action": "accept", "comment": "hushed" })),
        (1, json!({ "action": "accept", "reason": "hushed" })),
        (1, json!({ "decision": "rejected", "feedback": "hushed" })),
        (1, json!({ "decision": "rejected", "comment": "hushed" })),
        (1, json!({ "action": "refine", "refineFeedback": refine })),
        (1, json!({ "action": "refine", "refineFeedback": "hushed" })),
        (2, json!({ "action": "refine", "refineFeedback": refine })),
        (2, json!({ "action": "accept", "comment": "hushed" })),
    ];
    for (required, answer) in &answers {
        for marks in ["feedback", "refineFeedback"] {
            let run = answered(&server, &gate(&json!({ marks: true }), *required), answer).await;
            let shown = shown(&server, ALICE, &run).await;
            assert!(!shown.contains("hushed"), "{marks} {answer}: {shown}");
        }
        let run = answered(&server, &gate(&json!({}), *required), answer).await;
        assert!(shown(&server, ALICE, &run).await.contains("hushed"), "{answer}");
    }
}

#[tokio::test]
async fn answers_to_conversations_and_supervisors_are_masked_where_they_become_sensitive_outputs() {
    let server = Server::start().await;
    let led = |decision: Value, config: Value| {
        let lead = json!({ "agentId": "lead", "decision": decision, "maxLoopIterations": 1 });
        let lead = node("lead", "core.orchestrator.supervisor", lead);
        vec![lead, node("gate", "core.dispatch", config)]
    };
    let asks = || json!({ "kind": "ask-user", "prompt": "PIN?" });
    let unsure = json!({
        "kind": "next-worker", "nextWorkerIds": ["conformance-noop"], "confidence": 0.1,
    });
    let talk = vec![node(
        "gate",
        "core.conversationGate",
        json!({ "prompt": "Well?" }),
    )];
    let in_turns = json!({ "askUserRouting": "conversation" });
    let close = json!({ "operation": "close", "content": "hushed" });
    let ends = json!({ "operation": "close", "outcome": "hushed" });
    for (nodes, mark, answer) in [
        (talk.clone(), "turns", &close),
        (talk, "outcome", &ends),
        (
            led(asks(), json!({})),
            "answer",
            &json!({ "answers": { "answer": "hushed" } }),
        ),
        (led(asks(), in_turns.clone()), "answer", &close),
        (led(asks(), in_turns), "turns", &close),
        (
            led(unsure.clone(), json!({})),
            "feedback",
            &json!({ "action": "reject", "comment": "hushed" }),
        ),
        (
            led(unsure, json!({})),
            "comment",
            &json!({ "action": "reject", "reason": "hushed" }),
        ),
    ] {
        for is_marked in [true, false] {
            let mut nodes = nodes.clone();
            if let Some(gate) = nodes.last_mut() {
                gate["outputSensitivity"] = json!({ mark: is_marked });
            }
            let run = answered(&server, &chain("told", &nodes), answer).await;
            let shown = shown(&server, ALICE, &run).await;
            assert_eq!(shown.contains("hushed"), !is_marked, "{mark} {answer}: {shown}");
        }
    }
}

#[tokio::test]
async fn answers_stored_as_artifacts_require_artifact_access() {
    let server = Server::start().await;
    let asking = node(
        "gate",
        "core.clarificationGate",
        json!({ "questions": [{ "id": "q", "question": "What?" }] }),
    );
    let gate = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Go?", "actions": ["accept", "refine"] }),
    );
    let talk = node("gate", "core.conversationGate", json!({ "prompt": "Well?" }));
    let custom = json!({ "kind": "custom", "data": { "customKind": "any" } });
    let open = node("gate", "core.interrupt", custom);
    for (kind, answer) in [
        (&asking, json!({ "answers": { "q": "contents" } })),
        (&gate, json!({ "action": "accept", "feedback": "contents" })),
        (
            &gate,
            json!({ "action": "accept", "feedback": "contents", "text": "." }),
        ),
        (
            &gate,
            json!({ "action": "refine", "refineFeedback": { "scope": "whole", "text": "contents" } }),
        ),
        (&talk, json!({ "operation": "close", "content": "contents" })),
        (&open, json!("contents")),
    ] {
        let mut kind = kind.clone();
        kind["artifactType"] = json!("notes");
        let mut document = chain("kept", &[kind]);
        // Outputs become declared variables of their names, too.
        document["variables"] = json!([
            { "name": "answers", "type": "object" },
            { "name": "feedback", "type": "string" },
            { "name": "refineFeedback", "type": "object" },
        ]);
        let run = answered(&server, &document, &answer).await;
        let seen = shown(&server, READER, &run).await;
        assert!(!seen.contains("contents"), "{answer}: {seen}");
        assert!(seen.contains("[ARTIFACT gate]"), "{answer}: {seen}");
        assert!(shown(&server, ALICE, &run).await.contains("contents"), "{answer}");
    }
}

#[tokio::test]
async fn page_shows_content_only_if_its_token_grants_artifact_access() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let mut draft = node("draft", "core.template", json!({ "template": "the contents" }));
    draft["artifactType"] = json!("note");
    let gate = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Go?", "artifactId": "draft", "actions": ["accept", "edit-accept"] }),
    );
    register(&server, &chain("review", &[draft, gate])).await;
    let run = server.run("review", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let body = json!({ "id": "approver", "scopes": ["runs:read", "approvals:respond"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let approver = made["secret"].as_str().unwrap();
    for (key, reads) in [(ALICE, true), (approver, false)] {
        let path = format!("/v1/runs/{run}");
        let seen = server.call("GET", &path).key(key).send().await.ok(200);
        let body = json!({ "runId": run, "nodeId": "gate" });
        let mint: Call = server.call("POST", "/v1/host/wopr/interrupt-tokens").key(key);
        let minted = mint.json(&body).send().await.ok(201);
        for token in [&seen["interrupt"]["interruptToken"], &minted["interruptToken"]] {
            let path = format!("/v1/interrupts/{}", token.as_str().unwrap());
            let page = server.call("GET", &path).header("accept", "text/html");
            let page = page.send().await;
            assert_eq!(page.status, 200);
            let page = String::from_utf8(page.body).unwrap();
            assert_eq!(page.contains("the contents"), reads, "{page}");
            assert_eq!(page.contains("[ARTIFACT draft]"), !reads, "{page}");
            assert_eq!(page.contains("name=\"edited\""), reads, "{page}");
        }
    }
}

#[tokio::test]
async fn definitions_mask_sensitive_values() {
    let server = Server::start().await;
    let with = |mut node: Value, field: &str, value: Value| {
        node[field] = value;
        node
    };
    let port = |port: Value| json!({ "value": port });
    let set = |id: &str, config: Value| node(id, "core.setVariable", config);
    let marked = |node: Value| with(node, "outputSensitivity", json!({ "text": true }));
    let nodes = [
        set("a", json!({ "name": "pin", "value": "hushed-a" })),
        set("b", json!({ "variableName": "pin", "value": "hushed-b" })),
        set("c", json!({ "variable": "pin", "value": { "deep": "hushed-c" } })),
        set("d", json!({ "name": "pin", "expression": "'hushed-d'" })),
        with(
            set("e", json!({ "variableName": "pin" })),
            "inputs",
            port(json!({ "type": "static", "value": "hushed-e" })),
        ),
        with(
            set("f", json!({ "name": "pin" })),
            "inputs",
            port(json!({ "type": "expression", "expression": "'hushed-f'" })),
        ),
        node(
            "g",
            "core.channelWrite",
            json!({ "channel": "notes", "value": "hushed-g" }),
        ),
        with(
            node("h", "core.channelWrite", json!({ "channelName": "notes" })),
            "inputs",
            port(json!({ "type": "static", "value": "hushed-h" })),
        ),
        marked(node("i", "core.template", json!({ "template": "hushed-i" }))),
        marked(node("j", "core.stream", json!({ "chunks": ["hushed-j"] }))),
        marked(node("k", "core.stream", json!({ "expression": "['hushed-k']" }))),
        node(
            "l",
            "core.subWorkflow",
            json!({ "workflowId": "secret", "inputs": { "pin": "hushed-l", "open": "shown" } }),
        ),
        // The first name counts.
        set(
            "z",
            json!({ "name": "other", "variable": "pin", "value": "shown" }),
        ),
    ];
    for node in &nodes {
        let mut workflow = chain("written", std::slice::from_ref(node));
        workflow["variables"] = json!([
            { "name": "pin", "type": "string", "sensitive": true, "defaultValue": "hushed" },
        ]);
        workflow["channels"] =
            json!({ "notes": { "reducer": "append", "sensitive": true, "default": ["hushed"] } });
        register(&server, &workflow).await;
        let read = server.get("/v1/workflows/written").send().await.ok(200);
        let text = read.to_string();
        assert!(!text.contains("hushed"), "{text}");
        let is_open = ["l", "z"].contains(&node["id"].as_str().unwrap());
        assert_eq!(text.contains("shown"), is_open, "{text}");
        // Registered as read, it would replace the values with their masks.
        let mut read = read;
        read["variables"][0]["defaultValue"] = json!("new");
        read["channels"]["notes"]["default"] = json!([]);
        let again = server.post("/v1/workflows", &read).send().await;
        let wanted: &[u16] = if node["id"] == "z" { &[200, 201] } else { &[400] };
        assert!(wanted.contains(&again.status), "{again:?}");
    }
}
