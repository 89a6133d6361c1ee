//! Masking of a run's values: nobody sees values marked as sensitive, and only readers of artifacts see the
//! contents of artifacts and files; on every face, in every version, by every way to read a run.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use wopr_wire::a2a::method::{Operation, Version};

use crate::{
    client::Client,
    push::{Receivers, reaching},
    speaker::{Binding, Speaker},
    support::{Server, chain, config, key, node},
};

/// Values that must never be shown.
const SECRETS: [&str; 8] = [
    "secret-in-data",
    "secret-in-prompt",
    "secret-default",
    "secret-static",
    "secret-output",
    "secret-answer",
    "secret-feedback",
    "secret-in-channel",
];
/// The contents of artifacts and files.
const CONTENTS: [&str; 5] = [
    "content-of-text",
    "content-of-data",
    "content-of-pieces",
    "content-of-file",
    "content-edited",
];

/// A workflow with every kind of value: it outputs everything, and then asks twice.
fn workflow() -> Value {
    let artifact = |mut node: Value| {
        node["artifactType"] = json!("text");
        node
    };
    let mut given = node("given", "core.identity", json!({}));
    given["inputs"] = json!({ "pin": { "type": "static", "value": "secret-static" } });
    // Values computed from inputs are in no definition.
    let mut made = node("made", "core.identity", json!({}));
    made["inputs"] = json!({ "key": { "type": "expression", "expression": "'secret-' ~ open ~ 'put'" } });
    made["outputSensitivity"] = json!({ "key": true });
    let mut data = artifact(node("data", "core.identity", json!({})));
    data["inputs"] =
        json!({ "report": { "type": "expression", "expression": "'content-' ~ word ~ '-data'" } });
    let mut hidden = node(
        "hidden",
        "core.clarificationGate",
        json!({ "questions": [{ "id": "q", "question": "What?" }] }),
    );
    hidden["outputSensitivity"] = json!({ "answers": true });
    let mut gate = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Go?", "actions": ["accept", "reject", "edit", "ask"] }),
    );
    gate["outputSensitivity"] = json!({ "feedback": true });
    let mut workflow = chain(
        "everything",
        vec![
            given,
            made,
            node(
                "write",
                "core.channelWrite",
                json!({ "channelName": "notes", "value": "secret-in-channel" }),
            ),
            artifact(node(
                "text",
                "core.template",
                json!({ "template": "content-{{ word }}-text" }),
            )),
            data,
            artifact(node(
                "pieces",
                "core.stream",
                json!({ "chunks": ["content-{{ word }}-pieces ", "content-{{ word }}-pieces"] }),
            )),
            hidden,
            gate,
            artifact(node(
                "last",
                "core.template",
                json!({ "template": "content-{{ word }}-text, at last" }),
            )),
        ],
    );
    workflow["variables"] = json!([
        { "name": "pin", "type": "string", "sensitive": true, "defaultValue": "secret-default" },
        { "name": "prompt", "type": "string", "sensitive": true },
        { "name": "text", "type": "string" },
    ]);
    workflow["channels"] = json!({ "notes": { "reducer": "append", "sensitive": true } });
    workflow["metadata"] = json!({ "a2a": { "reply": "status", "inputModes": ["*/*"] } });
    workflow
}

async fn server() -> Server {
    let mut config = reaching();
    config.auth.keys.push(key("full", "default", &["*"]));
    config.auth.keys.push(key(
        "plain",
        "default",
        &[
            "runs:create",
            "runs:read",
            "runs:cancel",
            "approvals:respond",
            "manifest:read",
        ],
    ));
    Server::with(config, vec![workflow()]).await
}

/// Everything shown to a caller, with its source.
#[derive(Default)]
struct Seen(Vec<(String, String)>);

impl Seen {
    fn add(&mut self, place: impl Into<String>, shown: &Value) {
        self.0.push((place.into(), shown.to_string()));
    }

    /// Fails if a forbidden value is shown.
    fn holds_none(&self, values: &[&str]) {
        for (place, shown) in &self.0 {
            for value in values {
                let bytes = STANDARD.encode(value);
                let is_there = shown.contains(value) || shown.contains(bytes.trim_end_matches('='));
                assert!(!is_there, "{value} is shown by {place}: {shown}");
            }
        }
    }

    fn holds_all(&self, values: &[&str]) {
        for value in values {
            let bytes = STANDARD.encode(value);
            let mut shown = self.0.iter().map(|(_, shown)| shown);
            assert!(
                shown.any(|shown| shown.contains(value) || shown.contains(bytes.trim_end_matches('='))),
                "{value}"
            );
        }
    }
}

/// A first message with every kind of part.
fn beginning(speaker: &Speaker, who: &str) -> Value {
    json!({"message": {
        "messageId": format!("begin-{who}-{}", speaker.name()), "role": "ROLE_USER", "contextId": "everything",
        "metadata": {"skillId": "everything"},
        "parts": [
            {"text": "secret-in-prompt"},
            {"data": {"pin": "secret-in-data", "open": "out", "word": "of"}},
            {"raw": STANDARD.encode("content-of-file"), "mediaType": "text/plain", "filename": "a.txt"},
        ],
    }})
}

/// Reads a run in every way OpenWOP offers.
async fn read_over_rest(client: &Client, run: &str, seen: &mut Seen) {
    let paths = ["", "/events/poll?timeout=1"];
    for path in paths {
        let answer = client.get(&format!("/v1/runs/{run}{path}")).await;
        assert_eq!(answer.status, 200, "{path}");
        seen.add(format!("REST {path}"), &answer.json());
    }
    for path in [
        "/v1/runs",
        "/v1/interrupts",
        "/v1/workflows",
        "/v1/workflows/everything",
    ] {
        let answer = client.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        seen.add(path, &answer.json());
    }
    let json = client.clone().with("accept", "application/json");
    let answer = json.get(&format!("/v1/runs/{run}/events")).await;
    seen.add("REST events as JSON", &answer.json());
    for query in [
        "",
        "streamMode=values",
        "streamMode=debug",
        "streamMode=messages",
        "streamMode=debug&bufferMs=50",
    ] {
        let stream = client.clone().at(&format!("/v1/runs/{run}/events?{query}"));
        let text = stream.bare_stream("GET", &Value::Null).await.drain().await;
        assert!(text.ends_with(":end\n"), "{query}: {text}");
        seen.add(format!("REST stream {query}"), &json!(text));
    }
}

/// Reads a task in every way A2A offers.
async fn read_over_a2a(speaker: &Speaker, task: &str, seen: &mut Seen) {
    let name = speaker.name();
    seen.add(
        format!("{name} get"),
        &speaker.get(json!({ "id": task })).await.unwrap(),
    );
    // 0.3 has no list over JSON-RPC and gRPC.
    if speaker.version == Version::V1_0 || speaker.binding == Binding::Rest {
        let wanted = json!({ "historyLength": 50, "includeArtifacts": true });
        let listed = speaker.ask(Operation::ListTasks, wanted).await.unwrap();
        seen.add(format!("{name} list"), &listed);
    }
}

/// Starts a run whose reviewer asks and then rejects it, with sensitive text.
async fn reject(speaker: &Speaker, who: &str, seen: &mut Seen) -> String {
    let name = speaker.name();
    let mut begin = beginning(speaker, who);
    begin["message"]["messageId"] = json!(format!("reject-{who}-{name}"));
    let task = speaker.send(begin).await.unwrap();
    let id = task["id"].as_str().unwrap().to_owned();
    for (step, data) in [
        ("answers", json!({ "answers": { "q": "secret-answer" } })),
        ("asks", json!({ "action": "ask", "question": "secret-feedback" })),
        (
            "rejects",
            json!({ "action": "reject", "feedback": "secret-feedback" }),
        ),
    ] {
        let mut answer = speaker.answer(&format!("{step}-{who}"), "", &id);
        answer["message"]["parts"] = json!([{ "data": data }]);
        let shown = speaker.send(answer).await.unwrap();
        seen.add(format!("{name} {step}"), &shown);
    }
    id
}

#[tokio::test]
async fn nobody_sees_secrets_and_only_readers_of_artifacts_see_contents() {
    let receivers = Receivers::start().await;
    let server = server().await;
    for who in ["full", "plain"] {
        let mut seen = Seen::default();
        let rest = server.v1().by(who);
        for speaker in Speaker::all(&server) {
            let speaker = speaker.by(who);
            let name = speaker.name();
            // As a stream up to the first interrupt, and as a direct response.
            let told = format!("{who}-{name}");
            let mut begin = beginning(&speaker, who);
            begin["configuration"] = json!({ "taskPushNotificationConfig": { "url": receivers.url(&told) } });
            let updates = speaker.stream(Operation::SendStreamingMessage, begin).await;
            let frames = updates.all().await;
            let task = frames[0].value["id"].as_str().unwrap().to_owned();
            for frame in &frames {
                seen.add(format!("{name} stream"), &frame.value);
            }
            read_over_a2a(&speaker, &task, &mut seen).await;
            let mut answer = speaker.answer(&format!("answer-{who}"), "secret-answer", &task);
            answer["message"]["parts"] = json!([{"data": {"answers": {"q": "secret-answer"}}}]);
            let asked = speaker.send(answer).await.unwrap();
            seen.add(format!("{name} answered"), &asked);
            // A subscription from here on.
            let mut following = speaker
                .stream(Operation::SubscribeToTask, json!({ "id": task }))
                .await;
            seen.add(
                format!("{name} subscribed"),
                &following.next().await.unwrap().value,
            );
            let mut edit = speaker.answer(&format!("edit-{who}"), "", &task);
            edit["message"]["parts"] =
                json!([{"data": {"action": "edit-accept", "editedArtifactData": "content-edited"}}]);
            let done = speaker.send(edit).await.unwrap();
            seen.add(format!("{name} done"), &done);
            for frame in following.all().await {
                seen.add(format!("{name} followed"), &frame.value);
            }
            read_over_a2a(&speaker, &task, &mut seen).await;
            read_over_rest(&rest, &task, &mut seen).await;
            for pushed in receivers.told(&told, "completed").await {
                seen.add(format!("{name} push"), &pushed.body);
            }
            let rejected = reject(&speaker, who, &mut seen).await;
            read_over_a2a(&speaker, &rejected, &mut seen).await;
            read_over_rest(&rest, &rejected, &mut seen).await;
        }
        let card = rest.get("/.well-known/agent-card.json").await.json();
        seen.add("card", &card);
        seen.add("openapi", &rest.get("/v1/openapi.json").await.json());
        seen.holds_none(&SECRETS);
        if who == "full" {
            seen.holds_all(&CONTENTS);
        } else {
            seen.holds_none(&CONTENTS);
            // References are shown instead.
            seen.holds_all(&[
                "[ARTIFACT text]",
                "/artifacts/text-0",
                "/artifacts/data-0",
                "wopr-blob:",
            ]);
        }
    }
}

/// Workflows in which a person's words become outputs of other names than those of gates. All but the last mark them.
fn conversations() -> Vec<Value> {
    let marked = |id: &str, typed: &str, config: Value, marks: Value| {
        let mut only = node("only", typed, config);
        only["outputSensitivity"] = marks;
        chain(id, vec![only])
    };
    let gate = |id: &str, marks: Value| {
        let config = json!({ "prompt": "Your turn?" });
        marked(id, "core.conversationGate", config, marks)
    };
    let led = |id: &str, config: Value, marks: Value| {
        let decision = json!({ "kind": "ask-user", "prompt": "PIN?" });
        let lead = json!({ "agentId": "lead", "decision": decision, "maxLoopIterations": 1 });
        let mut ask = node("ask", "core.dispatch", config);
        ask["outputSensitivity"] = marks;
        chain(id, vec![node("lead", "core.orchestrator.supervisor", lead), ask])
    };
    let turns = json!({ "askUserRouting": "conversation" });
    let mut kept = gate("channel", json!({}));
    kept["channels"] = json!({ "conversation": { "reducer": "message", "sensitive": true } });
    let mut named = gate("named", json!({}));
    named["variables"] = json!([{ "name": "turns", "type": "array", "sensitive": true }]);
    vec![
        gate("turns", json!({ "turns": true })),
        gate("outcome", json!({ "outcome": true })),
        kept,
        named,
        led("answer", json!({}), json!({ "answer": true })),
        led(
            "in-turns",
            turns.clone(),
            json!({ "answer": true, "turns": true }),
        ),
        led("last-turn", turns, json!({ "answer": true })),
        gate("open", json!({})),
    ]
}

#[tokio::test]
async fn words_in_conversations_are_masked_where_they_become_sensitive_outputs() {
    let mut config = config();
    config.auth.keys.push(key("full", "default", &["*"]));
    let workflows = conversations();
    let ids: Vec<_> = workflows.iter().map(|workflow| workflow["id"].clone()).collect();
    let server = Server::with(config, workflows.into_iter().chain([workflow()]).collect()).await;
    let rest = server.v1().by("full");
    for id in ids.iter().filter_map(Value::as_str) {
        for speaker in Speaker::all(&server) {
            let (speaker, mut seen) = (speaker.by("full"), Seen::default());
            let name = format!("{id} {}", speaker.name());
            let begin = speaker.text(&format!("begin-{id}"), "x", id);
            let task = speaker.send(begin).await.unwrap()["id"]
                .as_str()
                .unwrap()
                .to_owned();
            let mut said = speaker.answer(&format!("said-{id}"), "secret-turn", &task);
            // A clarification has no actions.
            if id != "answer" {
                said["message"]["metadata"] = json!({ "openwop": { "action": "secret-action" } });
            }
            let told = speaker.send(said).await.unwrap();
            seen.add(format!("{name} told"), &told);
            if id != "answer" {
                let mut close = speaker.answer(&format!("close-{id}"), "", &task);
                let data =
                    json!({ "operation": "close", "content": "secret-end", "outcome": "secret-outcome" });
                close["message"]["parts"] = json!([{ "data": data }]);
                seen.add(format!("{name} closed"), &speaker.send(close).await.unwrap());
            }
            read_over_a2a(&speaker, &task, &mut seen).await;
            read_over_rest(&rest, &task, &mut seen).await;
            if id == "open" {
                seen.holds_all(&["secret-turn", "secret-end", "secret-outcome"]);
            } else {
                seen.holds_none(&["secret-turn", "secret-action", "secret-end"]);
            }
        }
    }
}

/// The decision that a person makes in place of an agent becomes an output of the node.
#[tokio::test]
async fn sensitive_decisions_are_masked_in_the_messages_that_make_them() {
    let held = json!({ "decision": { "kind": "stub" }, "confidence": 0.5 });
    let mut lead = node(
        "lead",
        "core.conformance.mock-agent",
        json!({ "mockDecision": held }),
    );
    lead["agent"] = json!({ "agentId": "lead" });
    lead["outputSensitivity"] = json!({ "decision": true });
    let mut config = config();
    config.conformance = true;
    config.auth.keys.push(key("full", "default", &["*"]));
    let server = Server::with(config, vec![chain("decided", vec![lead])]).await;
    for speaker in Speaker::all(&server) {
        let (speaker, mut seen) = (speaker.by("full"), Seen::default());
        let task = speaker.send(speaker.text("begin", "x", "decided")).await.unwrap();
        let task = task["id"].as_str().unwrap();
        let mut answer = speaker.answer("decides", "", task);
        let decision = json!({ "kind": "secret-decision" });
        answer["message"]["parts"] = json!([{ "data": { "decision": decision } }]);
        let told = speaker.send(answer).await.unwrap();
        assert_eq!(crate::client::state_of(&told), "completed", "{told}");
        seen.add("told", &told);
        read_over_a2a(&speaker, task, &mut seen).await;
        seen.holds_none(&["secret-decision"]);
    }
}

#[tokio::test]
async fn edited_artifacts_are_masked_wherever_the_answer_carries_them() {
    let gate = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Go?", "actions": ["accept", "edit"] }),
    );
    let mut config = config();
    config.auth.keys.push(key("full", "default", &["*"]));
    let scopes = ["runs:create", "runs:read", "approvals:respond"];
    config.auth.keys.push(key("plain", "default", &scopes));
    let server = Server::with(config, vec![chain("edited", vec![gate])]).await;
    let edit = json!({ "action": "edit-accept", "editedArtifactData": { "text": "content-edited" } });
    let dotted = json!({
        "openwop.interrupt.action": "edit-accept",
        "openwop.interrupt.editedArtifactData": "content-edited",
    });
    let half = json!({ "interrupt.action": "edit-accept", "interrupt.editedArtifactData": "content-edited" });
    for (n, metadata) in [
        json!({ "openwop": { "interrupt": edit } }),
        json!({ "openwop.interrupt": edit }),
        json!({ "openwop": half }),
        dotted,
    ]
    .iter()
    .enumerate()
    {
        for (full, plain) in Speaker::all(&server).into_iter().zip(Speaker::all(&server)) {
            let (full, plain) = (full.by("full"), plain.by("plain"));
            let name = plain.name();
            let begun = plain
                .send(plain.text(&format!("begin-{n}"), "x", "edited"))
                .await
                .unwrap();
            let task = begun["id"].as_str().unwrap();
            let mut answer = plain.answer(&format!("edit-{n}"), "see there", task);
            answer["message"]["metadata"] = metadata.clone();
            let told = plain.send(answer).await.unwrap();
            assert_eq!(crate::client::state_of(&told), "completed", "{name}: {told}");
            let read = plain.get(json!({ "id": task })).await.unwrap();
            for shown in [&told, &read] {
                assert!(
                    !shown.to_string().contains("content-edited"),
                    "{name} {metadata}: {shown}"
                );
            }
            let read = full.get(json!({ "id": task })).await.unwrap();
            assert!(
                read["history"].to_string().contains("content-edited"),
                "{name}: {read}"
            );
        }
    }
}

/// A stream that starts at the end of the log masks the same values as one that has seen every event.
#[tokio::test]
async fn stream_from_the_end_of_the_log_masks_later_events() {
    let server = server().await;
    let speaker = &Speaker::all(&server)[0];
    let task = speaker.send(beginning(speaker, "late")).await.unwrap();
    let run = task["id"].as_str().unwrap();
    let client = server.v1();
    let poll = client.get(&format!("/v1/runs/{run}/events/poll")).await.json();
    let last = poll["lastEventSeq"].as_u64().unwrap();
    let stream = client
        .clone()
        .at(&format!("/v1/runs/{run}/events?streamMode=debug"));
    let stream = stream.with("last-event-id", &last.to_string());
    let stream = stream.bare_stream("GET", &Value::Null).await;
    let mut answer = speaker.answer("late-answer", "", run);
    answer["message"]["parts"] = json!([{"data": {"answers": {"q": "secret-answer"}}}]);
    speaker.send(answer).await.unwrap();
    speaker.cancel(run).await.unwrap();
    let text = stream.drain().await;
    assert!(text.contains("clarification.resolved"), "{text}");
    assert!(!text.contains("secret-answer"), "{text}");
}

#[tokio::test]
async fn masked_definition_cannot_be_registered_as_read() {
    let server = server().await;
    let client = server.v1();
    let read = client.get("/v1/workflows/everything").await.json();
    assert_eq!(read["variables"][0]["defaultValue"], "[REDACTED]");
    assert_eq!(read["nodes"][0]["inputs"]["pin"]["value"], "[REDACTED]");
    let refused = client
        .clone()
        .at("/v1/workflows")
        .raw("POST", read.to_string().as_bytes())
        .await;
    assert_eq!(refused.status, 400, "{:?}", refused.json());
}

#[tokio::test]
async fn error_names_the_missing_scope_on_every_face() {
    let server = Server::start().await;
    let task = {
        let speaker = &Speaker::all(&server)[0];
        let task = speaker.send(speaker.text("m", "x", "approve")).await.unwrap();
        task["id"].as_str().unwrap().to_owned()
    };
    // For existing and missing tasks alike, the error only names the scope.
    for task in [task.as_str(), "run_01JD000000000000000000000A"] {
        for speaker in Speaker::all(&server) {
            let name = speaker.name();
            let starter = speaker.by("starter");
            for (operation, request) in [
                (Operation::GetTask, json!({ "id": task })),
                (Operation::CancelTask, json!({ "id": task })),
                (Operation::ListPushConfigs, json!({ "taskId": task })),
                (Operation::SendMessage, starter.answer("n", "yes", task)),
            ] {
                let refused = starter.refused(operation, request).await;
                let scope = match operation {
                    Operation::CancelTask => "runs:cancel",
                    Operation::SendMessage => "approvals:respond",
                    _ => "runs:read",
                };
                assert!(refused.contains(scope), "{name} {operation:?}: {refused}");
            }
        }
    }
    // A caller that may only cancel does so, and is shown the result.
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let asked = speaker.send(speaker.text("c", "x", "approve")).await.unwrap();
        let id = asked["id"].as_str().unwrap();
        let cancelled = speaker.by("canceller").cancel(id).await.unwrap();
        assert_eq!(crate::client::state_of(&cancelled), "canceled", "{name}");
        assert!(cancelled.get("history").is_none(), "{name}: {cancelled}");
    }
}

#[tokio::test]
async fn private_runs_are_visible_only_to_their_creators_over_rest() {
    let mut config = config();
    config.a2a.private_tasks = true;
    let server = Server::open(config).await;
    let (alice, bob) = (server.v1(), server.v1().by("bob"));
    let begin = json!({ "workflowId": "approve" }).to_string();
    let made = alice
        .clone()
        .at("/v1/runs")
        .raw("POST", begin.as_bytes())
        .await
        .json();
    let run = made["runId"].as_str().unwrap().to_owned();
    let reads = [
        "",
        "/events",
        "/events/poll?timeout=1",
        "/artifacts",
        "/artifacts/brief-0",
    ];
    for path in reads {
        let path = format!("/v1/runs/{run}{path}");
        let json = bob.clone().with("accept", "application/json");
        let (theirs, missing) = (
            json.get(&path).await,
            json.get(&path.replace(&run, "run_missing0000000000")).await,
        );
        assert_eq!((theirs.status, theirs.json()), (404, missing.json()), "{path}");
    }
    let answer = json!({ "action": "accept" });
    for (path, body) in [
        (format!("/v1/runs/{run}/cancel"), json!({})),
        (format!("/v1/runs/{run}:pause"), json!({})),
        (format!("/v1/runs/{run}:resume"), json!({})),
        (format!("/v1/runs/{run}/approvals/gate"), answer.clone()),
        (
            format!("/v1/runs/{run}/interrupts/gate"),
            json!({ "resumeValue": answer }),
        ),
    ] {
        let answer = bob
            .clone()
            .at(&path)
            .raw("POST", body.to_string().as_bytes())
            .await;
        assert_eq!(answer.status, 404, "{path}");
    }
    let bulk = json!({ "runIds": [run] }).to_string();
    let bulk = bob
        .clone()
        .at("/v1/runs:bulk-cancel")
        .raw("POST", bulk.as_bytes())
        .await
        .json();
    assert_eq!(bulk["results"][0]["error"]["error"], "not_found", "{bulk}");
    // Streams are refused before they begin, and no token is minted.
    let stream = bob.clone().with("accept", "text/event-stream");
    let path = format!("/v1/runs/{run}/events?streamMode=values");
    assert_eq!(stream.get(&path).await.status, 404);
    let body = json!({ "runId": run, "nodeId": "gate" }).to_string();
    for (client, status) in [(&bob, 404), (&alice, 201)] {
        let mint = client.clone().at("/v1/host/wopr/interrupt-tokens");
        assert_eq!(mint.raw("POST", body.as_bytes()).await.status, status);
    }
    for (path, member) in [("/v1/runs", "runs"), ("/v1/interrupts", "interrupts")] {
        let count = async |client: &Client| client.get(path).await.json()[member].as_array().unwrap().len();
        assert_eq!((count(&bob).await, count(&alice).await), (0, 1), "{path}");
    }
    assert_eq!(alice.get(&format!("/v1/runs/{run}")).await.status, 200);
}

/// Members that an execution of a document hides by their names are hidden in all parts of its messages.
#[tokio::test]
async fn metadata_of_parts_is_masked_in_messages_of_a_document() {
    let mut document = json!({
        "document": {
            "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "asks", "version": "1",
        },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "ask", "type": "interrupt", "config": { "prompt": "Go?" } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" },
            { "source": "start", "target": "ask" },
            { "source": "ask", "target": "end" },
        ],
    });
    document["nodes"][1]["config"]["resume_schema"] = json!({ "type": "object" });
    let mut config = config();
    config.auth.keys.push(key("full", "default", &["*"]));
    let server = Server::with(config, vec![document]).await;
    let parts = json!([
        { "text": "x", "metadata": { "password": "secret-of-text", "kept": "kept-of-text" } },
        { "data": { "token": "secret-of-data" },
            "metadata": { "token": "secret-beside-data", "deep": [{ "Secret": "secret-deep" }] } },
        { "raw": "SE9TVElMRQ==", "metadata": { "apiKey": "secret-of-file" } },
        { "url": "https://example.com/x", "metadata": { "apikey": "secret-of-url" } },
    ]);
    for speaker in Speaker::all(&server) {
        let (speaker, mut seen) = (speaker.by("full"), Seen::default());
        let mut begin = speaker.text("begin", "x", "asks");
        begin["message"]["parts"] = parts.clone();
        begin["message"]["metadata"]["secret"] = json!("secret-of-message");
        let task = speaker.send(begin).await.unwrap();
        seen.add("begun", &task);
        let id = task["id"].as_str().unwrap();
        let mut answer = speaker.answer("answer", "", id);
        answer["message"]["parts"] = parts.clone();
        answer["message"]["metadata"] = json!({ "secret": "secret-of-message" });
        seen.add("answered", &speaker.send(answer).await.unwrap());
        read_over_a2a(&speaker, id, &mut seen).await;
        seen.holds_all(&["kept-of-text"]);
        seen.holds_none(&[
            "secret-of-text",
            "secret-of-data",
            "secret-beside-data",
            "secret-deep",
            "secret-of-file",
            "secret-of-url",
            "secret-of-message",
        ]);
    }
}
