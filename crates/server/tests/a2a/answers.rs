//! Messages to a task with an open interrupt: which ones resolve it, and which ones leave it unchanged.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    client::{Client, shorts, state_of},
    support::Server,
};

async fn begin(client: &Client, skill: &str, id: &str) -> Value {
    client
        .send(client.text(id, "acme", json!({"metadata": {"skillId": skill}})))
        .await
}

/// Removes the token, which is minted each time it is shown.
fn without_token(mut task: Value) -> Value {
    let about = task["metadata"]["openwop"].as_object_mut().unwrap();
    about.remove("interruptToken").expect("a token");
    task
}

/// Sends answers to an approval and returns the task's state after each.
async fn approve(version: &'static str, parts: Value, metadata: Value) -> Result<String, String> {
    let server = Server::start().await;
    let client = server.client(version);
    let task = begin(&client, "approve", "m1").await;
    let id = task["id"].as_str().unwrap().to_owned();
    let id = id.as_str();
    let params = client.message("m2", parts, json!({"taskId": id, "metadata": metadata}));
    let method = if version.is_empty() {
        "message/send"
    } else {
        "SendMessage"
    };
    let envelope = client.call(method, params).await;
    let after = client.task(id).await;
    let result = match envelope.get("error") {
        None => Ok(after["metadata"]["openwop"]["status"]
            .as_str()
            .unwrap()
            .to_owned()),
        Some(error) => {
            assert_eq!(error["code"], -32602, "{error}");
            assert_eq!(without_token(after.clone()), without_token(task));
            assert_eq!(state_of(&after), "input-required");
            assert_eq!(after["history"].as_array().unwrap().len(), 1);
            Err(error["message"].as_str().unwrap().to_owned())
        }
    };
    server.stop().await;
    result
}

#[tokio::test]
async fn an_approval_is_answered_by_data_text_and_metadata() {
    for (parts, metadata, wanted) in [
        (json!([{"data": {"action": "accept"}}]), json!({}), "completed"),
        (json!([{"data": {"approve": true}}]), json!({}), "completed"),
        (json!([{"data": {"approve": false}}]), json!({}), "failed"),
        (json!([{"text": "Approve"}]), json!({}), "completed"),
        (json!([{"text": "no"}]), json!({}), "failed"),
        (
            json!([{"text": "go"}]),
            json!({"openwop": {"action": "accept"}}),
            "completed",
        ),
        (
            json!([{"text": "go"}]),
            json!({"openwop.action": "reject"}),
            "failed",
        ),
        (
            json!([{"text": "go"}]),
            json!({"openwop": {"interrupt": {"action": "accept", "interruptId": "gate:0", "nodeId": "gate"}}}),
            "completed",
        ),
        (
            json!([{"data": {"action": "refine", "refineFeedback": {"scope": "whole", "text": "shorter"}}}]),
            json!({}),
            "completed",
        ),
    ] {
        for version in ["1.0", ""] {
            let after = approve(version, parts.clone(), metadata.clone()).await;
            assert_eq!(after.as_deref(), Ok(wanted), "{parts} {metadata}");
        }
    }
}

#[tokio::test]
async fn a_wrong_answer_changes_nothing() {
    for (parts, metadata, wanted) in [
        (json!([{"text": "perhaps"}]), json!({}), "accept, reject, refine"),
        (
            json!([{"data": {"action": "edit-accept", "editedArtifactData": {}}}]),
            json!({}),
            "accept, reject, refine",
        ),
        (
            json!([{"data": {"action": "fly"}}]),
            json!({}),
            "accept, reject, refine",
        ),
        (
            json!([{"data": {"approve": false, "action": "accept"}}]),
            json!({}),
            "message.parts do not answer the task: 'approve' contradicts the action 'accept'",
        ),
        (
            json!([{"data": {"approve": true}}, {"data": {"action": "reject"}}]),
            json!({}),
            "'approve' contradicts the action 'reject'",
        ),
        (
            json!([{"data": {"approve": false}}]),
            json!({"openwop": {"action": "accept"}}),
            "'approve' contradicts the action 'accept'",
        ),
        (
            json!([{"data": {"action": "accept"}}]),
            json!({"openwop": {"action": "reject"}}),
            "message.parts has several values for 'action'",
        ),
        (
            json!([{"data": {"hello": 1}}]),
            json!({}),
            "accept, reject, refine",
        ),
        (
            json!([{"url": "https://x.example/"}]),
            json!({}),
            "accept, reject, refine",
        ),
        (
            json!([{"text": "yes"}]),
            json!({"openwop": {"interrupt": {"interruptId": "other:0"}}}),
            "gate:0",
        ),
        (
            json!([{"text": "yes"}]),
            json!({"openwop": {"interrupt": {"nodeId": "other"}}}),
            "gate:0",
        ),
        (
            json!([{"data": {"action": "refine"}}]),
            json!({}),
            "refineFeedback",
        ),
    ] {
        for version in ["1.0", ""] {
            let error = approve(version, parts.clone(), metadata.clone())
                .await
                .unwrap_err();
            assert!(error.contains(wanted), "{parts}: {error}");
        }
    }
}

#[tokio::test]
async fn question_to_the_requester_keeps_the_task_waiting() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let m = |n: &str| format!("{n}-{}", client.version);
        let task = begin(&client, "ask", &m("m1")).await;
        let id = task["id"].as_str().unwrap();
        let after = client
            .send(client.text(&m("m2"), "why?", json!({"taskId": id})))
            .await;
        assert_eq!(state_of(&after), "input-required");
        // The open interrupt is the status message, not part of the history.
        assert_eq!(after["history"].as_array().unwrap().len(), 2);
        let frames = client
            .stream(client.text(&m("m3"), "why not?", json!({"taskId": id})))
            .await
            .all()
            .await;
        assert_eq!(shorts(&frames), ["task:input-required", "status:input-required"]);
        if client.version.is_empty() {
            assert_eq!(frames[1].value["final"], true);
        }
        let done = client
            .send(client.text(&m("m4"), "yes", json!({"taskId": id})))
            .await;
        assert_eq!(state_of(&done), "completed");
        let said: Vec<_> = done["history"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["messageId"].as_str().unwrap())
            .collect();
        assert_eq!(
            said,
            [&m("m1"), &format!("{id}.gate:0"), &m("m2"), &m("m3"), &m("m4")]
        );
    }
}

#[tokio::test]
async fn questions_are_answered_in_turn() {
    let server = Server::start().await;
    let client = server.v1();
    let task = begin(&client, "clarify", "m1").await;
    let id = task["id"].as_str().unwrap();
    assert_eq!(task["metadata"]["openwop"]["status"], "waiting-input");
    assert_eq!(task["metadata"]["openwop"]["interrupt"]["kind"], "clarification");
    assert_eq!(task["status"]["message"]["parts"][0]["text"], "Which color?");
    let task = client.send(client.text("m2", "red", json!({"taskId": id}))).await;
    assert_eq!(state_of(&task), "input-required");
    assert_eq!(
        task["status"]["message"]["parts"][0]["text"],
        "Which size?\nWhich shape?"
    );
    let (code, text) = client
        .send_err(client.text("m3", "round", json!({"taskId": id})))
        .await;
    assert!(
        code == -32602 && text.contains("the questions are size, shape"),
        "{text}"
    );
    let reply = json!([{"data": {"answers": {"size": "s"}}}]);
    let (code, text) = client
        .send_err(client.message("m4", reply, json!({"taskId": id})))
        .await;
    assert!(code == -32602 && text.contains("shape"), "{text}");
    let reply = json!([{"data": {"size": "s", "shape": "round"}}]);
    let done = client
        .send(client.message("m5", reply, json!({"taskId": id})))
        .await;
    assert_eq!(state_of(&done), "completed");
    let said: Vec<_> = done["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["messageId"].as_str().unwrap())
        .collect();
    let (one, two) = (format!("{id}.one:0"), format!("{id}.two:0"));
    assert_eq!(said, ["m1", &one, "m2", &two, "m5"]);
}

#[tokio::test]
async fn an_event_is_delivered_if_it_matches() {
    let server = Server::start().await;
    let client = server.v03();
    let task = begin(&client, "event", "m1").await;
    let id = task["id"].as_str().unwrap();
    assert_eq!(task["metadata"]["openwop"]["status"], "waiting-external");
    let reply = client.message("m2", json!([{"data": {"order": 8}}]), json!({"taskId": id}));
    let (code, text) = client.send_err(reply).await;
    assert!(code == -32602 && text.contains("correlation"), "{text}");
    let reply = client.message(
        "m3",
        json!([{"data": {"order": 7, "paid": 3}}]),
        json!({"taskId": id}),
    );
    assert_eq!(state_of(&client.send(reply).await), "completed");
}

#[tokio::test]
async fn answer_selects_one_of_several_interrupts() {
    let server = Server::start().await;
    let client = server.v1();
    let task = begin(&client, "parallel", "m1").await;
    let id = task["id"].as_str().unwrap();
    let about = &task["metadata"]["openwop"];
    assert_eq!(about["interrupts"].as_array().unwrap().len(), 2, "{about}");
    let first = about["interrupt"]["interruptId"].as_str().unwrap();
    assert_eq!(about["interrupts"][0]["interruptId"], first);
    let metadata = json!({"openwop": {"interrupt": {"nodeId": "right"}}});
    let more = json!({"taskId": id, "metadata": metadata});
    let frames = client.stream(client.text("m2", "north", more)).await.all().await;
    assert_eq!(shorts(&frames), ["task:input-required", "status:input-required"]);
    let task = client.task(id).await;
    assert_eq!(task["metadata"]["openwop"]["interrupt"]["interruptId"], "left:0");
    assert!(task["metadata"]["openwop"].get("interrupts").is_none());
    let done = client.send(client.text("m3", "yes", json!({"taskId": id}))).await;
    assert_eq!(state_of(&done), "completed");
}

#[tokio::test]
async fn stream_of_an_answer_begins_with_what_is_still_asked() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        for (node, text, left) in [("right", "north", "left:0"), ("left", "yes", "right:0")] {
            let named = |name: &str| format!("{name}-{node}-{}", client.version);
            let task = begin(&client, "parallel", &named("begins")).await;
            let id = task["id"].as_str().unwrap();
            let metadata = json!({"openwop": {"interrupt": {"nodeId": node}}});
            let more = json!({"taskId": id, "metadata": metadata});
            let stream = client.stream(client.text(&named("answers"), text, more)).await;
            let frames = stream.all().await;
            assert_eq!(frames[0].short(), "task:input-required");
            let first = &frames[0].value;
            let about = &first["metadata"]["openwop"];
            assert_eq!(about["interrupt"]["interruptId"], left, "{about:#}");
            assert_eq!(about.get("interrupts"), None, "{about:#}");
            let message = first["status"]["message"]["messageId"].as_str().unwrap();
            assert!(message.ends_with(left), "{message}");
        }
    }
}

#[tokio::test]
async fn childs_interrupt_is_shown_on_the_task() {
    let server = Server::start().await;
    for client in [server.v1(), server.v03()] {
        let m = |n: &str| format!("{n}-{}", client.version);
        let frames = client
            .stream(client.text(&m("m1"), "acme", json!({"metadata": {"skillId": "child-asks"}})))
            .await
            .all()
            .await;
        assert_eq!(shorts(&frames).last().unwrap(), "status:input-required");
        let asked = &frames.last().unwrap().value["metadata"]["openwop"]["interrupt"];
        assert_eq!(asked["nodeId"], "sub");
        assert_eq!(asked["data"]["title"], "Ship it?");
        let id = frames[0].value["id"].as_str().unwrap();
        let task = client.task(id).await;
        assert_eq!(task["metadata"]["openwop"]["interrupt"], *asked);
        assert_eq!(
            task["status"]["message"]["parts"][0]["text"],
            "Ship it?\nThe brief is ready."
        );
        let wrong = client
            .send_err(client.text(&m("m2"), "hm", json!({"taskId": id})))
            .await;
        assert_eq!(wrong.0, -32602);
        let done = client
            .send(client.text(&m("m3"), "yes", json!({"taskId": id})))
            .await;
        assert_eq!(state_of(&done), "completed", "{done}");
        let said: Vec<_> = done["history"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["messageId"].as_str().unwrap())
            .collect();
        assert_eq!(said, [&m("m1"), &format!("{id}.sub:0/gate:0"), &m("m3")]);
        // A repeated message finds the task unchanged.
        let again = client
            .send(client.text(&m("m3"), "yes", json!({"taskId": id})))
            .await;
        assert_eq!(state_of(&again), "completed");
    }
}

#[tokio::test]
async fn answer_to_a_child_is_acknowledged_once_it_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    let server = Server::sqlite(&path).await;
    let client = server.v1();
    let asks = json!({"metadata": {"skillId": "child-asks"}});
    let task = client.send(client.text("m1", "acme", asks)).await;
    let id = task["id"].as_str().unwrap();
    let parts = json!([{"text": "fine"}, {"data": {"approve": true}}, {"raw": "aGk="}]);
    let reply = client.message("m2", parts, json!({ "taskId": id }));

    // The store accepts the child's append and rejects the task's.
    let store = rusqlite::Connection::open(&path).unwrap();
    store.busy_timeout(Duration::from_secs(10)).unwrap();
    store
        .execute_batch(
            "CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN NEW.id GLOB 'f:*'
             BEGIN SELECT RAISE(ABORT, 'not now'); END",
        )
        .unwrap();
    client.send_err(reply.clone()).await;
    assert_eq!(state_of(&client.until(id, "completed").await), "completed");
    // A repeated message is not acknowledged either while the append fails.
    client.send_err(reply.clone()).await;
    store.execute_batch("DROP TRIGGER refuse").unwrap();

    for _ in 0..2 {
        let done = client.send(reply.clone()).await;
        assert_eq!(state_of(&done), "completed");
        let said: Vec<_> = done["history"].as_array().unwrap().iter().collect();
        let ids: Vec<_> = said
            .iter()
            .map(|message| message["messageId"].as_str().unwrap())
            .collect();
        assert_eq!(ids, ["m1", &format!("{id}.sub:0/gate:0"), "m2"]);
        assert_eq!(said[2]["parts"][2]["raw"], "aGk=");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_token_from_a_task_answers_it_over_rest() {
    let server = Server::start().await;
    let client = server.v1();
    let task = begin(&client, "approve", "m1").await;
    let id = task["id"].as_str().unwrap();
    let token = task["metadata"]["openwop"]["interruptToken"].as_str().unwrap();
    let rest = client.clone().at(&format!("/v1/interrupts/{token}"));
    let answer = rest.raw("POST", br#"{"resumeValue":{"action":"accept"}}"#).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(state_of(&client.until(id, "completed").await), "completed");
    let (code, _) = client
        .send_err(client.text("m2", "yes", json!({"taskId": id})))
        .await;
    assert_eq!(code, -32004);
}

#[tokio::test]
async fn awaited_event_has_its_own_interrupt_kind() {
    let server = Server::start().await;
    let task = begin(&server.v1(), "event", "m1").await;
    assert_eq!(state_of(&task), "input-required");
    assert_eq!(task["metadata"]["openwop"]["interrupt"]["kind"], "external-event");
}

/// The message ids of a task's history.
fn said(task: &Value) -> Vec<&str> {
    let history = task["history"].as_array().unwrap();
    history
        .iter()
        .map(|message| message["messageId"].as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn tokens_in_messages_are_not_kept() {
    for server in Server::start_each().await {
        for version in ["1.0", ""] {
            let client = server.client(version);
            let task = begin(&client, "ask", &format!("m1{version}")).await;
            let id = task["id"].as_str().unwrap();
            let token = task["metadata"]["openwop"]["interruptToken"].as_str().unwrap();
            // As a client that sends back what it was shown, and one with the key dotted.
            let mut nested = task["metadata"]["openwop"].clone();
            nested["interrupts"] = json!([{ "interruptToken": token }]);
            nested["action"] = json!("ask");
            nested["question"] = json!("why?");
            let dotted = json!({
                "openwop.interruptToken": token, "openwop.action": "ask", "openwop.question": "why?",
            });
            for (n, metadata) in [json!({ "openwop": nested }), dotted].into_iter().enumerate() {
                let parts = json!([{ "text": "why?" }]);
                let more = json!({ "taskId": id, "metadata": metadata });
                let asked = client
                    .send(client.message(&format!("a{n}{version}"), parts, more))
                    .await;
                assert_eq!(state_of(&asked), "input-required");
            }
            let seen = client.clone().by("reader").task(id).await;
            assert_eq!(said(&seen).len(), 3, "{seen}");
            let text = seen.to_string();
            assert!(
                !text.contains(token) && !text.contains("interruptToken"),
                "{text}"
            );
            assert!(text.contains("why?"), "the rest is kept: {text}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn answer_with_the_id_of_the_first_message_is_kept() {
    for server in Server::start_each().await {
        for version in ["1.0", ""] {
            let client = server.client(version);
            let id = format!("m{version}");
            let task = begin(&client, "clarify", &id).await;
            let run = task["id"].as_str().unwrap();
            let parts = json!([{ "text": "red" }, { "raw": "aGk=" }]);
            let task = client
                .send(client.message(&id, parts, json!({ "taskId": run })))
                .await;
            assert_eq!(said(&task), [&id, &format!("{run}.one:0"), &id]);
            let shown = task["history"][2]["parts"].to_string();
            assert!(shown.contains("red") && shown.contains("aGk="), "{shown}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn the_next_question_of_the_same_kind_changes_the_task() {
    for server in Server::start_each().await {
        let client = server.v1();
        let task = begin(&client, "clarify", "m1").await;
        let id = task["id"].as_str().unwrap();
        let other = begin(&client, "clarify", "m2").await;
        let now = server.host.engine().now();
        while server.host.engine().now() == now {
            tokio::task::yield_now().await;
        }
        let next = client
            .send(client.text("m3", "red", json!({ "taskId": id })))
            .await;
        assert_eq!(state_of(&next), "input-required");
        let changed = next["status"]["timestamp"].as_str().unwrap();
        assert!(changed > other["status"]["timestamp"].as_str().unwrap());
        let ids = |list: Value| -> Vec<Value> {
            let tasks = list["tasks"].as_array().unwrap();
            tasks.iter().map(|task| task["id"].clone()).collect()
        };
        let all = ids(client.ok("ListTasks", json!({})).await);
        assert_eq!(all, [json!(id), other["id"].clone()]);
        let later = json!({ "statusTimestampAfter": changed });
        assert_eq!(ids(client.ok("ListTasks", later).await), [json!(id)]);
        server.stop().await;
    }
}
