//! A message becomes a task, in both versions.

use serde_json::json;

use crate::{
    client::{shorts, state_of},
    support::{Server, workflows},
};

#[tokio::test]
async fn a_blocking_send_answers_the_finished_task() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let id = format!("m1-{}", client.version);
        let task = client
            .send(client.text(&id, "world", json!({"contextId": "ctx-1"})))
            .await;
        assert_eq!(state_of(&task), "completed");
        assert_eq!(task["contextId"], "ctx-1");
        assert_eq!(task["artifacts"][0]["artifactId"], "greet-0");
        assert_eq!(task["artifacts"][0]["name"], "greet");
        assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello world");
        assert_eq!(task["history"].as_array().unwrap().len(), 1);
        assert_eq!(task["history"][0]["messageId"], id);
        assert_eq!(task["history"][0]["taskId"], task["id"]);
        assert_eq!(task["history"][0]["contextId"], "ctx-1");
        let about = &task["metadata"]["openwop"];
        assert_eq!(about["runId"], task["id"]);
        assert_eq!(about["workflowId"], "hello");
        assert_eq!(about["status"], "completed");
        assert_eq!(client.task(task["id"].as_str().unwrap()).await, task);
        let time = task["status"]["timestamp"].as_str().unwrap();
        assert!(time.len() == 24 && time.ends_with('Z'), "{time}");
        let again = client.text(&format!("m2-{}", client.version), "again", json!({}));
        let task = client.send(again).await;
        assert!(task["contextId"].as_str().unwrap().starts_with("ctx_"));
    }
}

#[tokio::test]
async fn a_run_keeps_where_it_came_from() {
    let server = Server::start().await;
    let client = server.v1();
    let params = client.message(
        "m1",
        json!([
            {"text": "one"}, {"text": "two"}, {"data": {"topic": "x"}},
            {"raw": "aGk=", "filename": "a.txt", "mediaType": "text/plain"},
            {"url": "http://127.0.0.1:1/never", "filename": "b"},
        ]),
        json!({"contextId": "c", "metadata": {"skillId": "noop"}}),
    );
    let task = client.send(params).await;
    let run = task["id"].as_str().unwrap();
    let tenant = serde_json::from_value(json!("default")).unwrap();
    let key = wopr_core::RunKey::new(tenant, wopr_core::RunId::parse(run).unwrap());
    let view = server.host.engine().view(&key).await.unwrap().unwrap();
    let started = view.run.started.clone().unwrap();
    assert_eq!(started.tags, ["a2a:m1", "a2a:c"]);
    assert_eq!(started.origin.as_str(), "a2a");
    assert_eq!(started.context.as_deref(), Some("c"));
    assert_eq!(
        json!(started.metadata),
        json!({"a2a": {"messageId": "m1"}, "contentTrust": "untrusted"})
    );
    assert_eq!(started.inputs["prompt"], "one\ntwo");
    assert_eq!(started.inputs["topic"], "x");
    let blob = started.inputs["files"][0]["blob"].as_str().unwrap();
    let blob = server
        .host
        .engine()
        .store()
        .blob(&key, blob)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (blob.bytes.as_slice(), blob.media_type.as_str()),
        (&b"hi"[..], "text/plain")
    );
    assert_eq!(
        started.inputs["files"][1],
        json!({"name": "b", "url": "http://127.0.0.1:1/never"})
    );
    // Reading the task returns what was sent.
    let read = client.task(run).await;
    assert_eq!(read["history"][0]["parts"][3]["raw"], "aGk=");
    assert_eq!(read["history"][0]["parts"][3]["filename"], "a.txt");
}

#[tokio::test]
async fn an_approval_is_given_by_a_message() {
    for version in ["1.0", ""] {
        for server in Server::start_each().await {
            let client = server.client(version);
            let metadata = json!({"metadata": {"openwop": {"workflowId": "approve"}}});
            let task = client.send(client.text("m1", "acme", metadata)).await;
            assert_eq!(state_of(&task), "input-required");
            let about = &task["metadata"]["openwop"];
            assert_eq!(about["status"], "waiting-approval");
            assert_eq!(about["interrupt"]["kind"], "approval");
            assert_eq!(about["interrupt"]["interruptId"], "gate:0");
            assert_eq!(about["interrupt"]["nodeId"], "gate");
            assert_eq!(
                about["interrupt"]["data"]["actions"],
                json!(["accept", "reject", "refine"])
            );
            assert!(about["interruptToken"].as_str().unwrap().contains('.'));
            let says = &task["status"]["message"];
            assert_eq!(says["parts"][0]["text"], "Ship it?\nThe brief is ready.");
            assert_eq!(says["parts"][1]["data"]["title"], "Ship it?");
            let id = task["id"].as_str().unwrap();
            assert_eq!(state_of(&client.task(id).await), "input-required");

            let reply = json!([{"data": {"approve": true, "feedback": "looks good"}}]);
            let done = client
                .send(client.message("m2", reply, json!({"taskId": id})))
                .await;
            assert_eq!(done["id"], id);
            assert_eq!(state_of(&done), "completed");
            assert_eq!(done["artifacts"][0]["parts"][0]["text"], "approved acme");
            let about = done["metadata"]["openwop"].as_object().unwrap();
            assert!(!about.contains_key("interrupt") && !about.contains_key("interruptToken"));
            let said: Vec<_> = done["history"]
                .as_array()
                .unwrap()
                .iter()
                .map(|message| message["messageId"].as_str().unwrap().to_owned())
                .collect();
            assert_eq!(said, ["m1".to_owned(), format!("{id}.gate:0"), "m2".to_owned()]);
            server.stop().await;
        }
    }
}

#[tokio::test]
async fn stream_reports_everything_in_order() {
    for version in ["1.0", ""] {
        for server in Server::start_each().await {
            let client = server.client(version);
            let metadata = json!({"metadata": {"skillId": "approve"}});
            let frames = client
                .stream(client.text("m1", "acme", metadata))
                .await
                .all()
                .await;
            assert_eq!(
                shorts(&frames),
                ["task:submitted", "status:working", "status:input-required"]
            );
            let ids: Vec<_> = frames.iter().map(|frame| frame.id).collect();
            assert_eq!(ids[..2], [None, Some(0)]);
            assert!(ids[2] > Some(0));
            let asked = &frames[2].value;
            assert_eq!(asked["metadata"]["openwop"]["interrupt"]["kind"], "approval");
            assert!(asked["metadata"]["openwop"]["interruptToken"].is_string());
            if version.is_empty() {
                assert_eq!(frames[1].value["final"], false);
                assert_eq!(asked["final"], true);
            } else {
                assert!(asked.get("final").is_none() && asked.get("kind").is_none());
            }
            let task = &frames[0].value;
            assert_eq!(task["history"][0]["messageId"], "m1");
            let id = task["id"].as_str().unwrap();

            let reply = client.text("m2", "yes", json!({"taskId": id}));
            let frames = client.stream(reply).await.all().await;
            assert_eq!(
                shorts(&frames),
                [
                    "task:working",
                    "status:working",
                    "artifact:brief-0",
                    "status:completed"
                ]
            );
            assert!(frames[0].value["metadata"]["openwop"].get("interrupt").is_none());
            assert_eq!(frames[0].value["history"].as_array().unwrap().len(), 3);
            if version.is_empty() {
                assert_eq!(frames[3].value["final"], true);
                assert_eq!(frames[2].value["lastChunk"], true);
            }
            server.stop().await;
        }
    }
}

#[tokio::test]
async fn a_failed_task_says_why() {
    let server = Server::start().await;
    let client = server.v1();
    let task = client
        .send(client.text("m", "x", json!({"metadata": {"skillId": "fail"}})))
        .await;
    assert_eq!(state_of(&task), "failed");
    assert_eq!(task["status"]["message"]["parts"][0]["text"], "it did not work");
    assert_eq!(task["metadata"]["openwop"]["error"]["code"], "no_luck");
    assert_eq!(task["metadata"]["openwop"]["errorCode"], "no_luck");
    let frames = client
        .stream(client.text("m3", "x", json!({"metadata": {"skillId": "fail"}})))
        .await
        .all()
        .await;
    let last = &frames.last().unwrap().value;
    assert_eq!(state_of(last), "failed");
    assert_eq!(last["metadata"]["openwop"]["errorCode"], "no_luck");
    assert_eq!(last["status"]["message"]["parts"][0]["text"], "it did not work");
}

#[tokio::test]
async fn nonblocking_send_returns_a_working_task() {
    let server = Server::start().await;
    for (client, configuration) in [
        (server.v1(), json!({"returnImmediately": true})),
        (server.v03(), json!({"blocking": false})),
    ] {
        let more = json!({"metadata": {"skillId": "slow"}, "configuration": configuration});
        let task = client
            .send(client.text(&format!("m-{}", client.version), "x", more))
            .await;
        assert_eq!(state_of(&task), "working");
        assert_eq!(task["metadata"]["openwop"]["status"], "running");
        let id = task["id"].as_str().unwrap();
        let (cancel, get) = if client.version.is_empty() {
            ("tasks/cancel", "tasks/get")
        } else {
            ("CancelTask", "GetTask")
        };
        let cancelled = client.ok(cancel, json!({ "id": id })).await;
        assert_eq!(state_of(&cancelled), "canceled");
        assert_eq!(client.err(cancel, json!({ "id": id })).await.0, -32002);
        assert_eq!(state_of(&client.ok(get, json!({ "id": id })).await), "canceled");
    }
}

#[tokio::test]
async fn blocking_send_waits_for_the_end_or_its_timeout() {
    let mut config = crate::support::config();
    config.a2a.blocking_timeout = "50ms".parse().unwrap();
    let server = Server::open(config).await;
    let client = server.v1();
    let task = client
        .send(client.text("m", "x", json!({"metadata": {"skillId": "slow"}})))
        .await;
    assert_eq!(state_of(&task), "working");
    server.stop().await;

    let server = Server::start().await;
    let client = server.v03();
    let task = client
        .send(client.text("m", "x", json!({"metadata": {"skillId": "nap"}})))
        .await;
    assert_eq!(state_of(&task), "completed");
    let artifacts: Vec<_> = task["artifacts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|artifact| artifact["parts"][0]["text"].as_str().unwrap())
        .collect();
    assert_eq!(artifacts, ["one", "two"]);
}

#[tokio::test]
async fn url_selects_the_workflow() {
    let server = Server::start().await;
    let client = server.v1().at("/a2a/w/approve");
    let task = client.send(client.text("m", "x", json!({}))).await;
    assert_eq!(task["metadata"]["openwop"]["workflowId"], "approve");
    // The skill in the message takes precedence over the URL, and so does one in the request.
    let task = client
        .send(client.text("m2", "x", json!({"metadata": {"skillId": "noop"}})))
        .await;
    assert_eq!(task["metadata"]["openwop"]["workflowId"], "noop");
    let more = json!({"request-metadata": {"openwop.skillId": "noop"}});
    let task = client.send(client.text("m3", "x", more)).await;
    assert_eq!(task["metadata"]["openwop"]["workflowId"], "noop");
    let client = server.v1().at("/v1/a2a");
    let task = client.send(client.text("m4", "x", json!({}))).await;
    assert_eq!(task["metadata"]["openwop"]["workflowId"], "hello");
}

#[tokio::test]
async fn error_lists_the_skills_if_none_is_selected() {
    let mut config = crate::support::config();
    config.default_workflow = None;
    let server = Server::open(config).await;
    let client = server.v1();
    let (code, text) = client.send_err(client.text("m", "x", json!({}))).await;
    assert_eq!(code, -32602);
    for workflow in workflows() {
        let id = workflow["id"].as_str().unwrap();
        assert_eq!(text.contains(id), id != "hidden", "{text}");
    }
    for id in ["hidden", "nowhere"] {
        let (code, text) = client
            .send_err(client.text("m", "x", json!({"metadata": {"skillId": id}})))
            .await;
        assert!(
            code == -32602 && text.contains("must name one of the skills"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn message_without_a_skill_uses_the_only_one() {
    let mut config = crate::support::config();
    config.default_workflow = None;
    let only = |id: &str| {
        let all = workflows().into_iter();
        all.filter(|workflow| [id, "hidden"].contains(&workflow["id"].as_str().unwrap()))
            .collect()
    };
    let server = Server::with(config, only("hello")).await;
    let client = server.v1();
    let task = client.send(client.text("m", "x", json!({}))).await;
    assert_eq!(task["metadata"]["openwop"]["workflowId"], "hello");
    // A message that names another skill does not get the only one.
    let (code, text) = client
        .send_err(client.text("m2", "x", json!({"metadata": {"skillId": "nowhere"}})))
        .await;
    assert!(
        code == -32602 && text.contains("must name one of the skills: hello"),
        "{text}"
    );
}

#[tokio::test]
async fn any_data_part_starts_a_task() {
    let server = Server::start().await;
    let client = server.v1();
    let more = json!({"metadata": {"skillId": "approve"}});
    let parts = json!([{"data": [1, 2]}, {"data": {"x": 1}}, {"data": "three"}]);
    let task = client.send(client.message("m", parts, more)).await;
    let run = wopr_core::RunId::parse(task["id"].as_str().unwrap()).unwrap();
    let key = wopr_core::RunKey::new(serde_json::from_value(json!("default")).unwrap(), run);
    let view = server.host.engine().view(&key).await.unwrap().unwrap();
    let inputs = json!(view.run.started.as_ref().unwrap().inputs);
    assert_eq!(inputs, json!({"data": [[1, 2], "three"], "x": 1}));
}

#[tokio::test]
async fn paused_run_is_a_working_task() {
    let server = Server::start().await;
    let client = server.v1();
    let more = json!({"metadata": {"skillId": "slow"}, "configuration": {"returnImmediately": true}});
    let task = client.send(client.text("m", "x", more)).await;
    let id = task["id"].as_str().unwrap();
    let tenant = serde_json::from_value(json!("default")).unwrap();
    let key = wopr_core::RunKey::new(tenant, wopr_core::RunId::parse(id).unwrap());
    let mut stream = client.subscribe(id).await;
    stream.until("task:working").await;
    let pause = wopr_core::Command::Pause {
        reason: None,
        drain: wopr_core::DrainPolicy::DrainCurrentNode,
    };
    server
        .host
        .engine()
        .command(&key, pause, Default::default())
        .await
        .unwrap();
    let frame = stream.next().await.unwrap();
    assert_eq!(frame.short(), "status:working");
    assert_eq!(frame.value["metadata"]["openwop"]["status"], "paused");
    let task = client.task(id).await;
    assert_eq!(state_of(&task), "working");
    assert_eq!(task["metadata"]["openwop"]["status"], "paused");
    let (code, _) = client
        .send_err(client.text("m2", "go", json!({"taskId": id})))
        .await;
    assert_eq!(code, -32004);
}
