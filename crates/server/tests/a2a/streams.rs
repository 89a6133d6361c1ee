//! Streams: their first and last frames, the frames between, and resuming.

use serde_json::json;

use crate::{
    client::{Client, shorts, state_of},
    support::{Server, chain, config, node, workflows},
};

async fn begin(client: &Client, skill: &str) -> String {
    let configuration = if client.version.is_empty() {
        json!({"blocking": false})
    } else {
        json!({"returnImmediately": true})
    };
    let more = json!({"metadata": {"skillId": skill}, "configuration": configuration});
    let task = client
        .send(client.text(&format!("begin-{skill}-{}", client.version), "x", more))
        .await;
    task["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn subscription_sees_the_task_resume() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let id = begin(&client, "approve").await;
        let mut streams = Vec::new();
        for _ in 0..3 {
            let mut stream = client.subscribe(&id).await;
            let first = stream.next().await.unwrap();
            assert_eq!(first.short(), "task:input-required");
            assert!(first.id.is_none());
            streams.push(stream);
        }
        // A stream that goes away does not affect the others.
        streams.pop();
        let reply = client.text(&format!("yes-{}", client.version), "yes", json!({"taskId": id}));
        client.send(reply).await;
        let mut seen = Vec::new();
        for stream in streams {
            let frames = stream.all().await;
            assert_eq!(
                shorts(&frames),
                ["status:working", "artifact:brief-0", "status:completed"]
            );
            let ids: Vec<_> = frames.iter().map(|frame| frame.id.unwrap()).collect();
            assert!(ids.is_sorted(), "{ids:?}");
            if client.version.is_empty() {
                let finals: Vec<_> = frames.iter().map(|frame| frame.value["final"].clone()).collect();
                assert_eq!(finals, [json!(false), json!(null), json!(true)]);
            }
            seen.push(
                frames
                    .into_iter()
                    .map(|frame| (frame.id, frame.value))
                    .collect::<Vec<_>>(),
            );
        }
        assert_eq!(seen[0], seen[1]);
    }
}

#[tokio::test]
async fn stream_of_an_answer_begins_when_the_answer_came() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let id = begin(&client, "approve").await;
        let reply = client.text(&format!("yes-{}", client.version), "yes", json!({"taskId": id}));
        let frames = client.stream(reply).await.all().await;
        let begins = ["task:working", "status:working"];
        assert_eq!(shorts(&frames)[..2], begins);
        let times: Vec<_> = frames[..2]
            .iter()
            .map(|frame| frame.value["status"]["timestamp"].clone())
            .collect();
        assert_eq!(times[0], times[1]);
    }
}

#[tokio::test]
async fn subscription_survives_an_interrupt() {
    let server = Server::start().await;
    let client = server.v03();
    let id = begin(&client, "clarify").await;
    let mut stream = client.subscribe(&id).await;
    stream.until("task:input-required").await;
    client.send(client.text("m2", "red", json!({"taskId": id}))).await;
    assert_eq!(stream.next().await.unwrap().short(), "status:working");
    let asked = stream.next().await.unwrap();
    assert_eq!(asked.short(), "status:input-required");
    assert_eq!(asked.value["final"], false);
    assert_eq!(asked.value["metadata"]["openwop"]["interrupt"]["nodeId"], "two");
    let cancelled = client.ok("tasks/cancel", json!({"id": id})).await;
    assert_eq!(state_of(&cancelled), "canceled");
    let frames = stream.all().await;
    assert_eq!(shorts(&frames), ["status:canceled"]);
    assert_eq!(frames[0].value["final"], true);
}

#[tokio::test]
async fn any_suffix_of_a_stream_is_replayed() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let id = begin(&client, "approve").await;
        let reply = client.text(&format!("yes-{}", client.version), "yes", json!({"taskId": id}));
        client.send(reply).await;
        // No id precedes the first event, so a replay lacks only the first frame.
        let whole = client
            .clone()
            .with("last-event-id", "0")
            .subscribe(&id)
            .await
            .all()
            .await;
        assert_eq!(
            shorts(&whole),
            [
                "status:input-required",
                "status:working",
                "artifact:brief-0",
                "status:completed"
            ]
        );
        for (n, frame) in whole.iter().enumerate() {
            let last = frame.id.unwrap().to_string();
            let rest = client
                .clone()
                .with("last-event-id", &last)
                .subscribe(&id)
                .await
                .all()
                .await;
            let got: Vec<_> = rest.iter().map(|frame| (frame.id, frame.short())).collect();
            let wanted: Vec<_> = whole[n + 1..]
                .iter()
                .map(|frame| (frame.id, frame.short()))
                .collect();
            assert_eq!(got, wanted);
        }
        let beyond = client
            .clone()
            .with("last-event-id", "999999")
            .subscribe(&id)
            .await
            .all()
            .await;
        assert!(beyond.is_empty());
        let method = if client.version.is_empty() {
            "tasks/resubscribe"
        } else {
            "SubscribeToTask"
        };
        let odd = client.clone().with("last-event-id", "x1");
        assert_eq!(odd.err(method, json!({"id": id})).await.0, -32602);
    }
}

#[tokio::test]
async fn broken_stream_resumes_where_it_ended() {
    let server = Server::start().await;
    let client = server.v1();
    let params = client.text("m", "x", json!({"metadata": {"skillId": "nap"}}));
    let mut stream = client.stream(params.clone()).await;
    let first = stream.until("artifact:first-0").await;
    let last = first.last().unwrap().id.unwrap();
    drop(stream);
    // By repeating the message, or by subscribing to the task.
    let rest = client.clone().with("last-event-id", &last.to_string());
    let id = first[0].value["id"].as_str().unwrap();
    for stream in [rest.stream(params).await, rest.subscribe(id).await] {
        let frames = stream.all().await;
        let shorts = shorts(&frames);
        assert_eq!(shorts, ["artifact:end-0", "status:completed"]);
    }
}

#[tokio::test]
async fn repeated_message_stream_skips_seen_events() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let id = format!("m{}", client.version);
        let params = client.text(&id, "x", json!({"metadata": {"skillId": "approve"}}));
        let frames = client.stream(params.clone()).await.all().await;
        let question = frames.last().unwrap();
        assert_eq!(question.short(), "status:input-required");
        let task = frames[0].value["id"].as_str().unwrap();
        for last in [question.id.unwrap(), 999_999] {
            let again = client.clone().with("last-event-id", &last.to_string());
            let again = again.stream(params.clone()).await.all().await;
            assert!(again.is_empty(), "{last}: {:?}", shorts(&again));
        }
        let reply = client.text(&format!("yes-{id}"), "yes", json!({"taskId": task}));
        client.send(reply).await;
        let mut last = question.id.unwrap();
        for wanted in ["status:working", "artifact:brief-0", "status:completed"] {
            let again = client.clone().with("last-event-id", &last.to_string());
            let again = again.stream(params.clone()).await.all().await;
            assert_eq!(again[0].short(), wanted);
            last = again[0].id.unwrap();
        }
        let again = client.clone().with("last-event-id", &last.to_string());
        assert!(again.stream(params.clone()).await.all().await.is_empty());
        // Without an id, the stream shows the current task.
        let whole = shorts(&client.stream(params).await.all().await).join(" ");
        assert_eq!(whole, "task:completed status:completed");
    }
}

#[tokio::test]
async fn stream_of_a_working_task_begins_with_the_task() {
    let server = Server::start().await;
    let client = server.v1();
    let id = begin(&client, "nap").await;
    let frames = client.subscribe(&id).await.all().await;
    let shorts = shorts(&frames);
    assert_eq!(shorts, ["task:working", "artifact:end-0", "status:completed"]);
    assert_eq!(frames[0].value["artifacts"][0]["artifactId"], "first-0");
}

#[tokio::test]
async fn idle_stream_is_kept_alive() {
    let mut config = config();
    config.server.sse_keepalive = "20ms".parse().unwrap();
    let server = Server::open(config).await;
    let client = server.v1();
    let id = begin(&client, "slow").await;
    let mut stream = client.subscribe(&id).await;
    stream.until("task:working").await;
    stream.comment().await;
    server.stop().await;
    assert!(stream.next().await.is_none());
}

/// If the store fails, a stream must not appear to have ended: HTTP cuts the body off, gRPC returns
/// UNAVAILABLE.
#[tokio::test]
async fn streams_of_both_faces_abort_when_the_store_fails() {
    let store = std::sync::Arc::new(crate::counting::Counting::default());
    let server = Server::over(config(), store.clone()).await;
    let alice = server.v1();
    let more = json!({"metadata": {"skillId": "clarify"}});
    let task = alice.send(alice.text("m", "x", more)).await;
    let id = task["id"].as_str().unwrap().to_owned();
    let mut streams = Vec::new();
    for query in [
        "",
        "streamMode=values",
        "streamMode=debug",
        "streamMode=debug&bufferMs=50",
    ] {
        let stream = alice.clone().at(&format!("/v1/runs/{id}/events?{query}"));
        let mut stream = stream.bare_stream("GET", &serde_json::Value::Null).await;
        stream.some().await;
        streams.push((query, stream));
    }
    let mut a2a = alice.subscribe(&id).await;
    a2a.next().await.unwrap();
    let mut a2a_old = server.v03().subscribe(&id).await;
    a2a_old.next().await.unwrap();
    store.lose("events");
    let answered = alice.text("a", "red", json!({"taskId": id}));
    // The answer is accepted, but the log cannot be read for the response.
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": answered});
    let answer = alice.raw("POST", request.to_string().as_bytes()).await;
    assert_eq!(answer.status, 503);
    let new = alice.clone().at(&format!("/v1/runs/{id}/events"));
    let refused = new.raw("GET", b"").await;
    assert_eq!(refused.status, 503, "a stream that cannot be read does not begin");
    for (query, mut stream) in streams {
        let text = stream.drained().await;
        assert!(!stream.is_whole() && !text.contains(":end"), "{query}: {text}");
    }
    for mut stream in [a2a, a2a_old] {
        // What is at hand is sent first.
        while stream.next().await.is_some() {}
        assert!(!stream.is_whole());
    }
}

/// A stream of an ended run announces the end in every mode, also to a client that has seen everything.
#[tokio::test]
async fn event_stream_announces_its_end() {
    let server = Server::start().await;
    let alice = server.v1();
    let task = alice.send(alice.text("m", "x", json!({}))).await;
    let id = task["id"].as_str().unwrap();
    for query in [
        "",
        "streamMode=messages",
        "streamMode=values",
        "streamMode=debug&bufferMs=50",
    ] {
        for last in [None, Some("99")] {
            let mut client = alice.clone().at(&format!("/v1/runs/{id}/events?{query}"));
            if let Some(last) = last {
                client = client.with("last-event-id", last);
            }
            let mut stream = client.bare_stream("GET", &serde_json::Value::Null).await;
            let text = stream.drained().await;
            assert!(stream.is_whole() && text.ends_with(":end\n"), "{query}: {text}");
        }
    }
}

#[tokio::test]
async fn stream_tells_who_has_the_baton() {
    let next = json!({ "kind": "next-worker", "nextWorkerIds": ["worker", "nobody"] });
    let lead = json!({
        "agentId": "planner",
        "rules": [{ "when": "lead is not defined", "decision": next }],
        "decision": { "kind": "terminate" },
    });
    let nodes = vec![
        node("lead", "core.orchestrator.supervisor", lead),
        node("dispatch", "core.dispatch", json!({})),
    ];
    let mut crew = chain("crew", nodes);
    crew["edges"].as_array_mut().unwrap().push(json!({
        "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "lead",
    }));
    let worker = chain("worker", vec![node("work", "core.noop", json!({}))]);
    let mut all = workflows();
    all.extend([worker, crew]);
    let server = Server::with(config(), all).await;
    for client in [server.v1(), server.v03()] {
        let message = client.text(
            &format!("crew-{}", client.version),
            "go",
            json!({"metadata": {"skillId": "crew"}}),
        );
        let frames = client.stream(message).await.all().await;
        let told: Vec<_> = frames
            .iter()
            .filter(|frame| !frame.value["metadata"]["openwop"]["handoff"].is_null())
            .map(|frame| {
                assert_eq!(frame.short(), "status:working");
                let parts = &frame.value["status"]["message"]["parts"];
                parts[0]["text"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(
            told,
            [
                "planner hands over to worker, nobody",
                "worker is at work",
                "worker has completed",
                "nobody cannot work: workflow 'nobody' does not exist",
                "planner is done",
            ]
        );
        assert_eq!(frames.last().unwrap().short(), "status:completed");
        // Which workflows work is for readers of runs.
        let starter = client.clone().by("starter");
        let message = starter.text(
            &format!("starter-{}", client.version),
            "go",
            json!({"metadata": {"skillId": "crew"}}),
        );
        let frames = starter.stream(message).await.all().await;
        assert!(
            frames
                .iter()
                .all(|frame| frame.value["metadata"]["openwop"]["handoff"].is_null())
        );
        assert_eq!(frames.last().unwrap().short(), "status:completed");
    }
    server.stop().await;
}

#[tokio::test]
async fn open_streams_of_every_binding_are_counted() {
    let server = Server::start().await;
    let n_open = || {
        let host = &server.host;
        let text = host.metrics().render(&host.engine().stats(), None);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("wopr_open_streams "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let mut open = Vec::new();
    for client in [server.v1(), server.v03()] {
        let id = begin(&client, "approve").await;
        open.push(client.subscribe(&id).await);
        assert_eq!(n_open(), open.len() as u64, "{}", client.version);
    }
    drop(open);
    while n_open() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn result_of_a_document_is_an_artifact_of_its_task() {
    let document = |name: &str, filter: &str| {
        json!({
            "document": {
                "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1",
            },
            "state_schema": { "type": "object" },
            "nodes": [
                { "id": "start", "type": "start" },
                { "id": "end", "type": "end", "config": { "output_mapping": filter } },
            ],
            "edges": [{ "source": "__start__", "target": "start" }, { "source": "start", "target": "end" }],
        })
    };
    let documents = [
        (
            "says",
            r#""I heard: \(.prompt)""#,
            json!({ "text": "I heard: hi" }),
        ),
        ("gives", "{prompt}", json!({ "data": { "prompt": "hi" } })),
        ("counts", "[1, 2]", json!({ "data": [1, 2] })),
        (
            "hides",
            "{prompt, inner: {token: .prompt}}",
            json!({ "data": { "prompt": "hi", "inner": { "token": "[REDACTED]" } } }),
        ),
    ];
    let known = documents.iter().map(|(name, filter, _)| document(name, filter));
    let known = known.chain([document("nothing", "null")]).collect();
    let server = Server::with(config(), known).await;
    for client in [server.v1(), server.v03()] {
        let send = |skill: &str| {
            let id = format!("{skill}-{}", client.version);
            client.text(&id, "hi", json!({ "metadata": { "skillId": skill } }))
        };
        for (skill, _, part) in &documents {
            let frames = client.stream(send(skill)).await.all().await;
            let ends = ["status:working", "artifact:end-0", "status:completed"];
            assert!(
                shorts(&frames).ends_with(&ends.map(str::to_owned)),
                "{:?}",
                shorts(&frames)
            );
            let task = client.task(frames[0].value["id"].as_str().unwrap()).await;
            assert_eq!(task["artifacts"].as_array().map(Vec::len), Some(1), "{task}");
            let sent = &frames[frames.len() - 2].value["artifact"];
            for artifact in [sent, &task["artifacts"][0]] {
                assert_eq!(artifact["parts"].as_array().map(Vec::len), Some(1), "{artifact}");
                let told = &artifact["parts"][0];
                let told = match part.get("text") {
                    Some(_) => json!({ "text": told["text"] }),
                    // In 0.3, data that is no object is the member `value` of one.
                    None if client.version.is_empty() && !part["data"].is_object() => {
                        json!({ "data": told["data"]["value"] })
                    }
                    None => json!({ "data": told["data"] }),
                };
                assert_eq!(told, *part, "{artifact}");
            }
        }
        let task = client.send(send("nothing")).await;
        assert_eq!(state_of(&task), "completed", "{task}");
        assert!(task["artifacts"].as_array().is_none_or(Vec::is_empty), "{task}");
    }
}
