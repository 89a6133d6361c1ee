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
async fn an_artifact_as_a_reviewer_edited_it_requires_artifact_access_under_every_name() {
    let server = Server::start().await;
    let mut maker = node("maker", "core.template", json!({ "template": "draft" }));
    maker["artifactType"] = json!("text");
    let gate = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Go?", "artifactId": "maker", "actions": ["accept", "edit"] }),
    );
    let answer = json!({ "action": "edit-accept", "editedArtifactData": "contents" });
    let last = chain("edits-last", &[maker.clone(), gate.clone()]);
    let mut before = chain(
        "edits-before",
        &[maker, gate, node("after", "core.noop", json!({}))],
    );
    before["variables"] = json!([{ "name": "editedArtifactData", "type": "string" }]);
    for document in [last, before] {
        let run = answered(&server, &document, &answer).await;
        server.wait_for(&run, "completed").await;
        let seen = shown(&server, READER, &run).await;
        assert!(!seen.contains("contents"), "{seen}");
        assert!(shown(&server, ALICE, &run).await.contains("contents"));
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

/// Everything that somebody with all scopes can read of a run, over every protocol.
async fn shown_anywhere(server: &Server, run: &str) -> String {
    let mut texts = vec![shown(server, ALICE, run).await];
    let snapshot = server.snapshot(run).await;
    if let Some(token) = snapshot["interrupt"]["interruptToken"].as_str() {
        for accept in ["application/json", "text/html"] {
            let path = format!("/v1/interrupts/{token}");
            let read = server.call("GET", &path).header("accept", accept).send().await;
            assert_eq!(read.status, 200, "{read:?}");
            texts.push(String::from_utf8(read.body).unwrap());
        }
        let list = server.get("/v1/interrupts?limit=100").send().await.ok(200);
        let listed = list["interrupts"].as_array().unwrap();
        let own = listed.iter().find(|item| item["runId"] == *run);
        texts.push(own.expect("a question of the run").to_string());
    }
    for version in ["1.0", "0.3"] {
        let method = if version == "1.0" { "GetTask" } else { "tasks/get" };
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "id": run } });
        let task = server.post("/a2a", &body).header("a2a-version", version);
        let task = task.send().await.ok(200);
        assert!(task["result"].is_object(), "{task}");
        texts.push(task.to_string());
    }
    texts.join("\n")
}

/// Workflows that ask about something sensitive if they are marked, each with the node that asks and an answer that has
/// the value again.
fn asking(is_marked: bool) -> Vec<(Value, &'static str, Value)> {
    let marks = |mut node: Value, port: &str| {
        node["outputSensitivity"] = json!({ port: is_marked });
        node
    };
    let decision = json!({
        "kind": "next-worker", "nextWorkerIds": ["giver"], "nextWorkerInputs": [{ "given": "hushed" }],
    });
    let led = |id: &str, port: &str, config: Value| {
        let lead = marks(node("lead", "core.orchestrator.supervisor", config), port);
        chain(id, &[lead, node("follow", "core.dispatch", json!({}))])
    };
    let mut unsure = decision.clone();
    unsure["confidence"] = json!(0.1);
    let unsure = json!({ "agentId": "lead", "decision": unsure, "maxLoopIterations": 1 });
    let edit = |value: &Value| json!({ "action": "edit-accept", "editedArtifactData": value });
    let pending = json!({ "mockConfidence": 0.2, "mockPendingDecision": decision });
    let agent = json!({ "agentId": "lead", "mockDecision": { "decision": "hushed", "confidence": 0.1 } });
    let agent = marks(node("gate", "core.conformance.mock-agent", agent), "decision");
    let attested =
        |child: &str| json!({ "workflowId": child, "outputAttestation": { "requireApproval": true } });
    let mut mapped = attested("giver");
    mapped["outputMapping"] = json!({ "back": "kin" });
    let mut maps = chain("maps", &[node("gate", "core.subWorkflow", mapped)]);
    maps["variables"] = json!([{ "name": "back", "type": "string", "sensitive": is_marked }]);
    let takes = marks(node("gate", "core.subWorkflow", attested("speaker")), "result");
    vec![
        (
            led("unsure", "decision", unsure.clone()),
            "follow",
            edit(&decision),
        ),
        // Any mark on the node hides what its agent says.
        (led("unsure-too", "kind", unsure), "follow", edit(&decision)),
        (
            led("pending", "decision", pending),
            "lead",
            json!({ "decision": decision }),
        ),
        (chain("held", &[agent]), "gate", json!({ "decision": "hushed" })),
        (maps, "gate", edit(&json!({ "kin": "hushed" }))),
        (
            chain("takes", &[takes]),
            "gate",
            edit(&json!({ "text": "hushed" })),
        ),
    ]
}

#[tokio::test]
async fn questions_about_sensitive_values_and_their_answers_are_masked_on_every_face() {
    let server = Server::start().await;
    let speaker = chain(
        "speaker",
        &[node("last", "core.template", json!({ "template": "hushed" }))],
    );
    register(&server, &speaker).await;
    let mut giver = chain("giver", &[node("last", "core.noop", json!({}))]);
    giver["variables"] = json!([{ "name": "kin", "type": "string", "defaultValue": "hushed" }]);
    register(&server, &giver).await;
    for is_marked in [true, false] {
        for (mut workflow, at, answer) in asking(is_marked) {
            let id = format!("{}-{is_marked}", workflow["id"].as_str().unwrap());
            workflow["id"] = json!(id);
            register(&server, &workflow).await;
            for over_a2a in [false, true] {
                let run = server.run(&id, json!({})).await;
                server.wait_for(&run, "waiting-approval").await;
                let seen = shown_anywhere(&server, &run).await;
                assert_eq!(seen.contains("hushed"), !is_marked, "{id}: {seen}");
                if over_a2a {
                    let message = json!({ "messageId": format!("says-{run}"), "taskId": run, "role": "ROLE_USER",
                        "parts": [{ "data": answer }] });
                    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage",
                        "params": { "message": message } });
                    let sent = server.post("/a2a", &body).header("a2a-version", "1.0");
                    let sent = sent.send().await.ok(200);
                    assert!(sent["result"].is_object(), "{id}: {sent}");
                } else {
                    let path = format!("/v1/runs/{run}/interrupts/{at}");
                    let body = json!({ "resumeValue": answer });
                    server.post(&path, &body).send().await.ok(200);
                }
                let seen = shown_anywhere(&server, &run).await;
                assert!(seen.contains("interrupt.resolved"), "{id}: {seen}");
                // With a hash of what is hidden, a guess could be checked.
                let attests = id.starts_with("maps") || id.starts_with("takes");
                assert_eq!(seen.contains("sha256"), attests && !is_marked, "{id}: {seen}");
                assert_eq!(
                    seen.contains("hushed"),
                    !is_marked,
                    "{id}, A2A: {over_a2a}: {seen}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_mark_on_either_name_of_a_whole_answer_masks_both() {
    let server = Server::start().await;
    for (mark, is_masked) in [("event", true), ("resumeValue", true), ("other", false)] {
        let custom = json!({ "kind": "custom", "data": { "customKind": "any" } });
        let mut gate = node("gate", "core.interrupt", custom);
        gate["outputSensitivity"] = json!({ mark: true });
        let run = answered(&server, &chain("whole", &[gate]), &json!("hushed")).await;
        let seen = shown_anywhere(&server, &run).await;
        assert_eq!(seen.contains("hushed"), !is_masked, "{mark}: {seen}");
    }
}

#[tokio::test]
async fn channel_of_a_conversation_with_a_marked_output_is_masked() {
    let server = Server::start().await;
    for is_marked in [true, false] {
        let talk = |id: &str, marks: Value| {
            let mut talk = node(
                id,
                "core.conversationGate",
                json!({ "prompt": "Well?", "channel": "talk" }),
            );
            talk["outputSensitivity"] = marks;
            talk
        };
        let nodes = [
            talk("gate", json!({ "outcome": is_marked })),
            talk("next", json!({})),
        ];
        let mut workflow = chain(&format!("talks-{is_marked}"), &nodes);
        workflow["channels"] = json!({ "talk": { "reducer": "message" } });
        let answer = json!({ "operation": "close", "content": "hushed" });
        let run = answered(&server, &workflow, &answer).await;
        server.wait_for(&run, "waiting-approval").await;
        let seen = shown_anywhere(&server, &run).await;
        assert!(seen.contains("channel.written"), "{seen}");
        assert_eq!(seen.contains("hushed"), !is_marked, "{seen}");
    }
}

#[tokio::test]
async fn a_hidden_decision_that_ends_a_run_is_hidden_where_it_becomes_the_result() {
    let server = Server::start().await;
    let ending = |id: &str, marks: Value| {
        let decision = json!({
            "kind": "terminate", "reason": "hushed {{ pin }}",
            "successCriteria": [{ "key": "hushed", "met": true }],
        });
        let mut lead = node(
            "lead",
            "core.orchestrator.supervisor",
            json!({ "decision": decision }),
        );
        lead["outputSensitivity"] = marks;
        let follow = node("follow", "core.dispatch", json!({}));
        // A node behind it does not begin: the dispatch ends the run.
        let mut ends = chain(id, &[lead, follow, node("never", "core.noop", json!({}))]);
        ends["variables"] = json!([{ "name": "pin", "type": "string" }]);
        ends
    };
    for (id, marks, is_hidden) in [
        ("ends-hidden", json!({ "decision": true }), true),
        ("ends-hidden-too", json!({ "kind": true }), true),
        ("ends-shown", json!({}), false),
    ] {
        register(&server, &ending(id, marks)).await;
        let run = server.run(id, json!({ "pin": "1" })).await;
        server.wait_for(&run, "completed").await;
        let shown = shown_anywhere(&server, &run).await;
        assert_eq!(shown.contains("hushed"), !is_hidden, "{id}: {shown}");
    }
}
