//! The skill of conformance mode, row by row, over every binding and version; it exists only in that mode.

use serde_json::{Value, json};
use wopr_wire::a2a::method::{Operation, Version};

use crate::{
    client::{Frame, shorts, state_of},
    speaker::{Binding, Speaker},
    support::{Server, config},
};

/// A host as the test kits expect it: without a default workflow of its own.
async fn server() -> Server {
    let mut config = config();
    config.conformance = true;
    config.default_workflow = None;
    Server::open(config).await
}

/// A message as a kit sends it: an id and a text, without a skill.
fn message(speaker: &Speaker, id: &str) -> Value {
    json!({"message": {
        "messageId": format!("{id}-{}", speaker.name()), "role": "ROLE_USER", "parts": [{"text": "Hello"}],
    }})
}

/// Clients of the 1.0 kit, one per binding.
fn kit(server: &Server) -> Vec<Speaker> {
    let all = Speaker::all(server).into_iter();
    all.filter(|speaker| speaker.version == Version::V1_0).collect()
}

/// Clients of the 0.3 kit.
fn old_kit(server: &Server) -> Vec<Speaker> {
    let all = Speaker::all(server).into_iter();
    all.filter(|speaker| speaker.version == Version::V0_3).collect()
}

async fn stream(speaker: &Speaker, id: &str) -> Vec<Frame> {
    let updates = speaker.stream(Operation::SendStreamingMessage, message(speaker, id));
    updates.await.all().await
}

#[tokio::test]
async fn message_id_selects_the_behavior() {
    let server = server().await;
    for speaker in kit(&server) {
        let file = json!([{"raw": "dGNr", "mediaType": "text/plain", "filename": "output.txt"}]);
        let url = "https://example.com/output.txt";
        for (id, state, parts) in [
            (
                "tck-complete-task",
                "completed",
                json!([{"text": "Hello from TCK"}]),
            ),
            (
                "tck-artifact-text",
                "completed",
                json!([{"text": "Generated text content"}]),
            ),
            ("tck-artifact-file", "completed", file),
            (
                "tck-artifact-file-url",
                "completed",
                json!([{"url": url, "mediaType": "text/plain", "filename": "output.txt"}]),
            ),
            (
                "tck-artifact-data",
                "completed",
                json!([{"data": {"key": "value", "count": 42}}]),
            ),
            ("tck-input-required", "input-required", Value::Null),
            ("tck-reject-task", "rejected", Value::Null),
            ("anything-else", "completed", json!([{"text": "Hello from TCK"}])),
        ] {
            let about = format!("{id} {}", speaker.name());
            let task = speaker.send(message(&speaker, id)).await.unwrap();
            assert_eq!(state_of(&task), state, "{about}");
            let read = speaker.get(json!({"id": task["id"]})).await.unwrap();
            assert_eq!(read["artifacts"], task["artifacts"], "{about}");
            let mut shown = task["artifacts"][0]["parts"].clone();
            if let Some(data) = shown
                .pointer_mut("/0/data")
                .filter(|_| speaker.binding == Binding::Grpc)
            {
                // In this encoding all numbers are doubles.
                assert_eq!(data["count"].as_f64(), Some(42.0), "{about}");
                data["count"] = json!(42);
            }
            assert_eq!(shown, parts, "{about}");
        }
        let done = speaker
            .send(message(&speaker, "tck-complete-task-2"))
            .await
            .unwrap();
        assert_eq!(
            done["status"]["message"]["parts"],
            json!([{"text": "Hello from TCK"}])
        );
    }
}

#[tokio::test]
async fn a_message_may_be_answered_by_a_message() {
    let server = server().await;
    for speaker in kit(&server) {
        let request = message(&speaker, "tck-message-response");
        let first = speaker
            .ask(Operation::SendMessage, request.clone())
            .await
            .unwrap();
        assert!(first.get("task").is_none(), "{first}");
        let said = &first["message"];
        assert_eq!(said["role"], "ROLE_AGENT", "{}", speaker.name());
        assert_eq!(said["parts"][0]["text"], "Direct message response");
        assert!(
            said.get("taskId").is_none() && said["contextId"].is_string(),
            "{said}"
        );
        // Message ids are not remembered here, so a repeat starts another run.
        let again = speaker.ask(Operation::SendMessage, request).await.unwrap();
        assert_eq!(again["message"]["parts"], first["message"]["parts"]);
        assert_ne!(again["message"]["messageId"], first["message"]["messageId"]);
        let frames = stream(&speaker, "tck-message-response-2").await;
        assert_eq!(shorts(&frames), ["message"], "{}", speaker.name());
        assert_eq!(frames[0].value["parts"][0]["text"], "Direct message response");
    }
}

#[tokio::test]
async fn task_continues_with_the_answer() {
    let server = server().await;
    for speaker in kit(&server) {
        let task = speaker
            .send(message(&speaker, "tck-input-required"))
            .await
            .unwrap();
        let id = task["id"].as_str().unwrap();
        let mut answer = speaker.answer("tck-complete-task-more", "more", id);
        answer["message"]["contextId"] = task["contextId"].clone();
        let done = speaker.send(answer).await.unwrap();
        assert_eq!(
            (state_of(&done).as_str(), done["id"].as_str()),
            ("completed", Some(id))
        );
        assert_eq!(done["contextId"], task["contextId"]);
        // An ended task accepts no more messages.
        let late = speaker.answer("tck-input-required-late", "more", id);
        assert_eq!(speaker.send(late).await, Err("UNSUPPORTED_OPERATION"));
    }
}

#[tokio::test]
async fn message_ids_may_be_used_again() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        // The same id with other contents, for new tasks and for answers.
        let mut tasks = Vec::new();
        for text in ["input one", "input two"] {
            let mut request = message(&speaker, "again");
            request["message"]["parts"] = json!([{ "text": text }]);
            let task = speaker.send(request).await.unwrap();
            assert_eq!(state_of(&task), "input-required", "{name} {text}");
            tasks.push(task["id"].as_str().unwrap().to_owned());
        }
        assert_ne!(tasks[0], tasks[1], "{name}");
        for text in ["input once more", "input, again"] {
            let task = speaker
                .send(speaker.answer("again", text, &tasks[0]))
                .await
                .unwrap();
            assert_eq!(state_of(&task), "input-required", "{name} {text}");
        }
        let done = speaker
            .send(speaker.answer("again", "enough", &tasks[0]))
            .await
            .unwrap();
        let last = match speaker.version {
            Version::V1_0 => "completed",
            Version::V0_3 => "input-required",
        };
        assert_eq!(state_of(&done), last, "{name}");
        assert!(done["history"].as_array().unwrap().len() >= 4, "{name} {done}");
    }
}

#[tokio::test]
async fn first_word_selects_the_behavior_in_1_0_alone() {
    let server = server().await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let send = async |text: &str| {
            let mut request = message(&speaker, &format!("id-{}", text.len()));
            request["message"]["parts"] = json!([{ "text": text }]);
            speaker.send(request).await.unwrap()
        };
        for (text, state) in [
            ("fail now", "failed"),
            ("auth please", "auth-required"),
            ("input", "input-required"),
            ("reject this", "rejected"),
            ("multi turn", "input-required"),
            ("tck-artifact-text and so on", "completed"),
            ("tck-task-failure", "failed"),
        ] {
            // The kit of 0.3 wants a question in answer to every message.
            let state = match speaker.version {
                Version::V1_0 => state,
                Version::V0_3 => "input-required",
            };
            assert_eq!(state_of(&send(text).await), state, "{name} {text}");
        }
        if speaker.version == Version::V0_3 {
            let mut files = message(&speaker, "files");
            files["message"]["parts"] = json!([
                {"raw": "aGk=", "mediaType": "application/octet-stream"},
                {"url": "https://a.example/b.png", "mediaType": "image/png"},
            ]);
            assert_eq!(
                state_of(&speaker.send(files).await.unwrap()),
                "input-required",
                "{name}"
            );
            continue;
        }
        // Two interrupts, then it completes.
        let task = send("multi turns").await;
        let id = task["id"].as_str().unwrap();
        let next = speaker.send(speaker.answer("one", "first", id)).await.unwrap();
        assert_eq!(state_of(&next), "input-required", "{name}");
        let done = speaker.send(speaker.answer("two", "second", id)).await.unwrap();
        assert_eq!(state_of(&done), "completed", "{name}");
        // The task waits for a credential in every view.
        let task = send("auth it").await;
        let id = task["id"].as_str().unwrap();
        assert!(
            task["status"]["message"]["parts"][0]["text"].is_string(),
            "{name} {task}"
        );
        let read = speaker.get(json!({ "id": id })).await.unwrap();
        assert_eq!(state_of(&read), "auth-required", "{name}");
        let wanted = json!({ "status": "TASK_STATE_AUTH_REQUIRED", "pageSize": 100 });
        let listed = speaker.ask(Operation::ListTasks, wanted).await.unwrap();
        let mut listed = listed["tasks"].as_array().unwrap().iter();
        assert!(listed.any(|task| task["id"] == id), "{name}");
        let done = speaker
            .send(speaker.answer("token", "here it is", id))
            .await
            .unwrap();
        assert_eq!(state_of(&done), "completed", "{name}");
    }
}

#[tokio::test]
async fn answer_id_selects_the_behavior() {
    let server = server().await;
    for speaker in kit(&server) {
        let name = speaker.name();
        for (id, state) in [
            ("tck-input-required-2", "input-required"),
            ("tck-complete-task-2", "completed"),
            ("tck-reject-task-2", "rejected"),
            ("tck-task-failure-2", "failed"),
        ] {
            let task = speaker
                .send(message(&speaker, "tck-input-required"))
                .await
                .unwrap();
            let task = task["id"].as_str().unwrap();
            let next = speaker.send(speaker.answer(id, "go on", task)).await.unwrap();
            assert_eq!(state_of(&next), state, "{name} {id}");
        }
    }
}

#[tokio::test]
async fn streams_are_ordered() {
    let server = server().await;
    let artifact = |id: &str| ["task:submitted", "status:working", id, "status:completed"].map(str::to_owned);
    for speaker in kit(&server) {
        for (id, wanted) in [
            ("tck-stream-001", artifact("artifact:text-0").to_vec()),
            ("tck-stream-002", artifact("artifact:say-0").to_vec()),
            ("tck-stream-003", artifact("artifact:text-0").to_vec()),
            ("tck-stream-artifact-text", artifact("artifact:text-0").to_vec()),
            ("tck-stream-artifact-file", artifact("artifact:file-0").to_vec()),
            (
                "tck-stream-ordering-001",
                [
                    "task:submitted",
                    "status:working",
                    "artifact:one-0",
                    "artifact:two-0",
                    "artifact:three-0",
                    "status:completed",
                ]
                .map(str::to_owned)
                .to_vec(),
            ),
        ] {
            let frames = stream(&speaker, id).await;
            assert_eq!(shorts(&frames), wanted, "{id} {}", speaker.name());
        }
    }
}

#[tokio::test]
async fn chunks_are_appended_up_to_the_last() {
    let server = server().await;
    for speaker in kit(&server) {
        let name = speaker.name();
        let frames = stream(&speaker, "tck-stream-artifact-chunked").await;
        let chunk = "artifact:chunks-0";
        assert_eq!(
            shorts(&frames),
            [
                "task:submitted",
                "status:working",
                chunk,
                chunk,
                chunk,
                "status:completed"
            ],
            "{name}"
        );
        let flag = |frame: &Frame, name: &str| frame.value[name] == true;
        let flags: Vec<_> = frames[2..5]
            .iter()
            .map(|frame| (flag(frame, "append"), flag(frame, "lastChunk")))
            .collect();
        assert_eq!(flags, [(false, false), (true, false), (true, true)], "{name}");
        let text: String = frames[2..5]
            .iter()
            .map(|frame| frame.value["artifact"]["parts"][0]["text"].as_str().unwrap())
            .collect();
        assert_eq!(text, "First chunk, second chunk, last chunk.");
        // Reading the task returns the chunks as one artifact.
        let id = frames[0].value["id"].clone();
        let task = speaker.get(json!({ "id": id })).await.unwrap();
        assert_eq!(task["artifacts"].as_array().unwrap().len(), 1, "{name}");
        assert_eq!(task["artifacts"][0]["parts"], json!([{ "text": text }]), "{name}");
    }
}

#[tokio::test]
async fn a_task_to_subscribe_to_works_for_four_seconds_in_both_versions() {
    let server = server().await;
    let began = tokio::time::Instant::now();
    let watch = Speaker::all(&server).into_iter().map(|speaker| async move {
        let name = speaker.name();
        let mut request = message(&speaker, "test-resubscribe-message-id");
        request["configuration"] = json!({"returnImmediately": true});
        let task = speaker.send(request).await.unwrap();
        assert_eq!(state_of(&task), "working", "{name}");
        let id = task["id"].as_str().unwrap().to_owned();
        // Its stream is dropped after the first frame and resumed.
        let dropped = speaker.stream(Operation::SubscribeToTask, json!({ "id": id }));
        assert_eq!(
            dropped.await.next().await.unwrap().short(),
            "task:working",
            "{name}"
        );
        let again = speaker.stream(Operation::SubscribeToTask, json!({ "id": id }));
        let frames = again.await.all().await;
        assert_eq!(
            shorts(&frames),
            ["task:working", "artifact:say-0", "status:completed"],
            "{name}"
        );
    });
    futures_util::future::join_all(watch).await;
    assert!(began.elapsed() >= std::time::Duration::from_secs(4));
}

#[tokio::test]
async fn other_messages_of_the_old_kit_stay_input_required() {
    let server = server().await;
    for speaker in old_kit(&server) {
        let name = speaker.name();
        for id in ["test-message-id", "tck-complete-task", "7d1"] {
            let task = speaker.send(message(&speaker, id)).await.unwrap();
            assert_eq!(state_of(&task), "input-required", "{name} {id}");
            let id = task["id"].as_str().unwrap();
            let more = speaker
                .send(speaker.answer(&format!("more-{id}"), "more", id))
                .await;
            let more = more.unwrap();
            assert_eq!(
                (state_of(&more).as_str(), more["id"].as_str()),
                ("input-required", Some(id))
            );
            assert!(more["history"].as_array().unwrap().len() >= 3, "{name} {more}");
            let cancelled = speaker.cancel(id).await.unwrap();
            assert_eq!(state_of(&cancelled), "canceled", "{name}");
            assert_eq!(speaker.cancel(id).await, Err("TASK_NOT_CANCELABLE"), "{name}");
        }
        let frames = stream(&speaker, "a-stream").await;
        assert_eq!(
            shorts(&frames),
            ["task:submitted", "status:working", "status:input-required"],
            "{name}"
        );
    }
}

#[tokio::test]
async fn http_serves_what_the_kit_checks() {
    let server = server().await;
    // The card for clients without a version lists 1.0 first for every binding, with caching headers.
    let answer = server.v1().get("/.well-known/agent-card.json").await;
    for header in ["cache-control", "etag", "last-modified"] {
        assert!(
            answer.header(header).is_some_and(|value| !value.is_empty()),
            "{header}"
        );
    }
    let card = answer.json();
    for binding in ["JSONRPC", "HTTP+JSON", "GRPC"] {
        let interfaces = card["supportedInterfaces"].as_array().unwrap();
        let first = interfaces.iter().find(|one| one["protocolBinding"] == binding);
        assert_eq!(first.unwrap()["protocolVersion"], "1.0", "{binding}");
        assert!(
            interfaces
                .iter()
                .any(|one| one["protocolBinding"] == binding && one["protocolVersion"] == "0.3")
        );
    }
    let skills = card["skills"].as_array().unwrap();
    assert!(skills.iter().any(|skill| skill["id"] == "a2a-conformance"));
    assert!(!skills.iter().any(|skill| skill["id"] == "a2a-conformance-reject"));

    let mut wrong = server.v1();
    wrong
        .headers
        .retain(|(name, _)| !name.eq_ignore_ascii_case("content-type"));
    let wrong = wrong.with("content-type", "text/plain");
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}});
    let envelope = wrong.raw("POST", body.to_string().as_bytes()).await.json();
    assert_eq!(envelope["error"]["code"], -32005, "{envelope}");

    let rest = server.v1().at("/a2a/message:send");
    let answer = rest
        .raw(
            "POST",
            message(&kit(&server)[0], "tck-complete-task-rest")
                .to_string()
                .as_bytes(),
        )
        .await;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/json"))
    );
}

#[tokio::test]
async fn configured_default_workflow_precedes_the_skill() {
    let mut config = config();
    config.conformance = true;
    let server = Server::open(config).await;
    for speaker in kit(&server) {
        let task = speaker.send(message(&speaker, "tck-reject-task")).await.unwrap();
        assert_eq!(task["metadata"]["openwop"]["workflowId"], "hello");
        let named = speaker.text("tck-reject-task-named", "x", "a2a-conformance");
        assert_eq!(state_of(&speaker.send(named).await.unwrap()), "rejected");
    }
}

#[tokio::test]
async fn conformance_skill_exists_only_in_conformance_mode() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let mut on = config();
    on.conformance = true;
    on.store = wopr_server::config::StoreUrl::Sqlite(path.clone());
    let server = Server::open(on).await;
    let old = server.v03();
    let params = old.text("a", "x", json!({"metadata": {"skillId": "a2a-conformance"}}));
    let id = old.send(params).await["id"].as_str().unwrap().to_owned();
    server.stop().await;

    // Not even if the store still has it; its earlier runs remain.
    let server = Server::sqlite(&path).await;
    let client = server.v1();
    let card = client.get("/.well-known/agent-card.json").await.json();
    assert!(!card.to_string().contains("conformance"), "{card}");
    let named = client.text("b", "x", json!({"metadata": {"skillId": "a2a-conformance"}}));
    assert_eq!(client.send_err(named).await.0, -32602);
    let plain = client.send(client.text("tck-reject-task", "x", json!({}))).await;
    assert_eq!(state_of(&plain), "completed");
    assert_eq!(state_of(&client.task(&id).await), "input-required");
    for path in [
        "/a2a/w/a2a-conformance",
        "/a2a/w/a2a-conformance/.well-known/agent-card.json",
    ] {
        assert_eq!(
            client.get(path).await.status,
            if path.ends_with("json") { 404 } else { 405 }
        );
    }
    let discovery = client.get("/.well-known/openwop").await.json();
    assert!(!discovery.to_string().contains("a2a-conformance"), "{discovery}");
}

#[tokio::test]
async fn conformance_open_admits_requests_without_a_credential() {
    for is_open in [true, false] {
        let mut config = config();
        config.conformance = true;
        config.conformance_open = is_open;
        let server = Server::open(config).await;
        for version in ["1.0", ""] {
            let mut client = server.client(version);
            client.key = None;
            let params = client.text(&format!("m{version}"), "x", json!({}));
            let method = if version == "1.0" {
                "SendMessage"
            } else {
                "message/send"
            };
            let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
            let answer = client.raw("POST", body.to_string().as_bytes()).await;
            assert_eq!(answer.status, if is_open { 200 } else { 401 }, "{version}");
            // An invalid credential is still refused, and routes outside A2A stay closed.
            let wrong = client
                .clone()
                .by("nobody")
                .raw("POST", body.to_string().as_bytes())
                .await;
            assert_eq!(wrong.status, 401);
            assert_eq!(client.get("/v1/runs").await.status, 401);
        }
        if is_open {
            // The extended card is disabled while everybody is admitted.
            let card = server.v1().get("/.well-known/agent-card.json").await.json();
            assert_eq!(card["capabilities"]["extendedAgentCard"], false, "{card}");
            // One of the requirements suffices, and the last is met without a credential.
            let requirements = card["securityRequirements"].as_array().unwrap();
            let last = &requirements.last().unwrap()["schemes"];
            assert!(requirements.len() > 1, "{card}");
            assert!(last.as_object().is_none_or(serde_json::Map::is_empty), "{card}");
            for speaker in Speaker::all(&server) {
                // With or without a key.
                let name = speaker.name();
                let get = Operation::GetExtendedAgentCard;
                assert!(speaker.ask(get, json!({})).await.is_err(), "{name}");
                let stranger = speaker.without_key();
                assert!(stranger.ask(get, json!({})).await.is_err(), "{name}");
            }
            for speaker in kit(&server) {
                let speaker = speaker.without_key();
                let task = speaker.send(message(&speaker, "open")).await.unwrap();
                assert_eq!(state_of(&task), "completed", "{}", speaker.name());
            }
        }
    }
}
