//! A message resolves the interrupt its sender saw, or the one it names. Messages of agents resolve none.

use std::sync::Arc;

use serde_json::{Value, json};
use wopr_store::{MemoryStore, Store};

use crate::{
    client::{Client, shorts, state_of},
    speaker::Speaker,
    support::{Server, chain, config, node},
};

fn gates() -> Vec<Value> {
    let gate = |id: &str| node(id, "core.approvalGate", json!({ "title": format!("{id}?") }));
    vec![
        chain("gates", vec![gate("a"), gate("b")]),
        chain(
            "child-gates",
            vec![node("sub", "core.subWorkflow", json!({ "workflowId": "gates" }))],
        ),
        chain(
            "grandchild-gates",
            vec![node(
                "top",
                "core.subWorkflow",
                json!({ "workflowId": "child-gates" }),
            )],
        ),
    ]
}

async fn begin(client: &Client, skill: &str, id: &str) -> String {
    let asks = json!({"metadata": {"skillId": skill}});
    let task = client.send(client.text(id, "acme", asks)).await;
    assert_eq!(state_of(&task), "input-required");
    task["id"].as_str().unwrap().to_owned()
}

fn naming(id: &str, interrupt: &str) -> Value {
    json!({"taskId": id, "metadata": {"openwop": {"interrupt": {"interruptId": interrupt}}}})
}

async fn open_of(client: &Client, id: &str) -> Value {
    client.task(id).await["metadata"]["openwop"]["interrupt"]["interruptId"].clone()
}

#[tokio::test]
async fn an_approval_of_one_gate_does_not_approve_the_next() {
    let server = Server::with(config(), gates()).await;
    let bob = server.v1().by("bob");
    for alice in Speaker::all(&server) {
        let name = alice.name();
        for (skill, a, b) in [
            ("gates", "a:0", "b:0"),
            ("child-gates", "sub:0/a:0", "sub:0/b:0"),
            ("grandchild-gates", "top:0/sub:0/a:0", "top:0/sub:0/b:0"),
        ] {
            let m = |n: &str| format!("{n}-{skill}");
            let begun = alice.send(alice.text(&m("m1"), "acme", skill)).await.unwrap();
            let id = begun["id"].as_str().unwrap();
            bob.send(bob.text(&format!("m2-{skill}-{name}"), "approve", naming(id, a)))
                .await;

            let unbound = || alice.answer(&m("m3"), "approve", id);
            let refused = alice.send(unbound()).await.unwrap_err();
            assert_eq!(refused, "INVALID_PARAMS", "{name} {skill}");
            let mut late = alice.answer(&m("m4"), "approve", id);
            late["message"]["metadata"] = naming(id, a)["metadata"].clone();
            let refused = alice.send(late).await.unwrap_err();
            assert_eq!(refused, "INVALID_PARAMS", "{name} {skill}");
            // Nothing changed, and now that she has read the task, her answer applies to what she saw.
            let seen = alice.get(json!({ "id": id })).await.unwrap();
            assert_eq!(
                seen["metadata"]["openwop"]["interrupt"]["interruptId"], b,
                "{name}"
            );
            let done = alice.send(unbound()).await.unwrap();
            assert_eq!(state_of(&done), "completed", "{name} {skill}");
        }
    }
}

#[tokio::test]
async fn own_answers_do_not_invalidate_what_the_sender_saw_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wopr.db");
    for (skill, a) in [("gates", "a:0"), ("child-gates", "sub:0/a:0")] {
        let server = Server::sqlite(&path).await;
        for workflow in gates() {
            server.host.engine().register(None, workflow).await.unwrap();
        }
        let alice = server.v1();
        let m = |n: &str| format!("{n}-{skill}");
        let own = begin(&alice, skill, &m("m1")).await;
        let text = alice.text(&m("m2"), "approve", json!({ "taskId": own }));
        alice.send(text).await;
        let other = begin(&alice, skill, &m("m3")).await;
        let bob = server.v1().by("bob");
        bob.send(bob.text(&m("m4"), "approve", naming(&other, a))).await;
        server.stop().await;

        // The restart forgets what was read, but not what was sent.
        let server = Server::sqlite(&path).await;
        let alice = server.v1();
        let unbound = |n: &str, task: &str| alice.text(&m(n), "approve", json!({ "taskId": task }));
        let (code, _) = alice.send_err(unbound("m5", &other)).await;
        assert_eq!(code, -32602);
        assert_eq!(state_of(&alice.send(unbound("m6", &own)).await), "completed");
        server.stop().await;
    }
}

#[tokio::test]
async fn token_identifies_its_interrupt() {
    let server = Server::start().await;
    for version in ["1.0", ""] {
        let client = server.client(version);
        let asks = json!({"metadata": {"skillId": "parallel"}});
        let task = client
            .send(client.text(&format!("m1{version}"), "acme", asks))
            .await;
        let id = task["id"].as_str().unwrap();
        let interrupts = task["metadata"]["openwop"]["interrupts"].as_array().unwrap();
        let right = interrupts.iter().find(|open| open["nodeId"] == "right").unwrap();
        let unbound = client.text(&format!("m2{version}"), "north", json!({ "taskId": id }));
        let (code, text) = client.send_err(unbound).await;
        assert!(code == -32602 && text.contains("left:0, right:0"), "{text}");
        let by = |token: &Value| json!({"taskId": id, "metadata": {"openwop": {"interruptToken": token}}});
        let wrong = client.text(&format!("m3{version}"), "north", by(&json!("no-token")));
        assert_eq!(client.send_err(wrong).await.0, -32602);
        let named = client.text(&format!("m4{version}"), "north", by(&right["interruptToken"]));
        client.send(named).await;
        assert_eq!(open_of(&client, id).await, "left:0");
    }
}

#[tokio::test]
async fn agent_messages_resolve_nothing() {
    let server = Server::start().await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let asked = speaker.send(speaker.text("m1", "x", "approve")).await.unwrap();
        let id = asked["id"].as_str().unwrap();
        let mut answer = speaker.answer("m2", "approve", id);
        answer["message"]["metadata"] = naming(id, "gate:0")["metadata"].clone();
        answer["message"]["role"] = json!("ROLE_AGENT");
        let refused = speaker.send(answer).await.unwrap_err();
        assert_eq!(refused, "INVALID_PARAMS", "{name}");
        let task = speaker.get(json!({ "id": id })).await.unwrap();
        assert_eq!(state_of(&task), "input-required", "{name}");
    }
}

/// Two parallel gates, in a child and in a child of a child.
fn gates_at_once() -> Vec<Value> {
    let gate = |id: &str| node(id, "core.approvalGate", json!({ "title": format!("{id}?") }));
    let mut gates = chain("at-once", vec![node("start", "core.noop", json!({})), gate("a")]);
    gates["nodes"].as_array_mut().unwrap().push(gate("b"));
    let edge = json!({"id": "b", "sourceNodeId": "start", "targetNodeId": "b"});
    gates["edges"].as_array_mut().unwrap().push(edge);
    let sub = |id: &str, of: &str| node(id, "core.subWorkflow", json!({ "workflowId": of }));
    vec![
        gates,
        chain("child", vec![sub("sub", "at-once")]),
        chain("grandchild", vec![sub("top", "child")]),
    ]
}

fn open_in(task: &Value) -> Vec<&str> {
    let about = &task["metadata"]["openwop"];
    let one = std::slice::from_ref(&about["interrupt"]);
    let open = about["interrupts"].as_array().map_or(one, Vec::as_slice).iter();
    open.filter_map(|open| open["interruptId"].as_str()).collect()
}

#[tokio::test]
async fn every_question_of_a_child_is_shown_counted_and_named() {
    let server = Server::with(config(), gates_at_once()).await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        for (skill, path) in [("child", "sub:0"), ("grandchild", "top:0/sub:0")] {
            let [a, b] = ["a:0", "b:0"].map(|gate| format!("{path}/{gate}"));
            for by_token in [false, true] {
                let m = |n: &str| format!("{n}-{skill}-{by_token}");
                let task = speaker.send(speaker.text(&m("m1"), "acme", skill)).await.unwrap();
                let id = task["id"].as_str().unwrap();
                assert_eq!(open_in(&task), [a.as_str(), b.as_str()], "{name}");
                let unbound = || speaker.answer(&m("m2"), "approve", id);
                assert_eq!(
                    speaker.send(unbound()).await.unwrap_err(),
                    "INVALID_PARAMS",
                    "{name}"
                );

                let second = &task["metadata"]["openwop"]["interrupts"][1];
                let mut named = speaker.answer(&m("m3"), "approve", id);
                named["message"]["metadata"] = if by_token {
                    json!({"openwop": {"interruptToken": second["interruptToken"]}})
                } else {
                    naming(id, &b)["metadata"].clone()
                };
                let left = speaker.send(named).await.unwrap();
                assert_eq!(state_of(&left), "input-required", "{name}");
                assert_eq!(open_in(&left), [a.as_str()], "{name}");
                let done = speaker.send(unbound()).await.unwrap();
                assert_eq!(state_of(&done), "completed", "{name}");
            }
        }
    }
}

#[tokio::test]
async fn stream_shows_every_interrupt_of_a_child_and_ends_with_the_remaining_ones() {
    let server = Server::with(config(), gates_at_once()).await;
    for version in ["1.0", ""] {
        let client = server.client(version);
        let asks = json!({"metadata": {"skillId": "child"}});
        let begun = client.text(&format!("m1{version}"), "acme", asks);
        let frames = client.stream(begun).await.all().await;
        let last = frames.last().unwrap();
        assert_eq!(open_in(&last.value), ["sub:0/a:0", "sub:0/b:0"], "{}", last.value);
        let id = last.value["taskId"].as_str().unwrap();
        let named = client.text(&format!("m2{version}"), "approve", naming(id, "sub:0/b:0"));
        let frames = client.stream(named).await.all().await;
        assert_eq!(shorts(&frames), ["task:input-required", "status:input-required"]);
        assert!(frames.iter().all(|frame| open_in(&frame.value) == ["sub:0/a:0"]));
        let unbound = client.text(&format!("m3{version}"), "approve", json!({ "taskId": id }));
        let frames = client.stream(unbound).await.all().await;
        assert_eq!(shorts(&frames).last().unwrap(), "status:completed");
    }
}

#[tokio::test]
async fn hosts_do_not_share_what_a_caller_saw() {
    let store = Arc::new(MemoryStore::new());
    let here = Server::over(config(), Arc::clone(&store) as Arc<dyn Store>).await;
    let there = Server::over(config(), store).await;
    for server in [&here, &there] {
        for workflow in gates() {
            server.host.engine().register(None, workflow).await.unwrap();
        }
    }
    for (skill, node, a) in [("gates", "b", "a:0"), ("child-gates", "sub", "sub:0/a:0")] {
        let m = |n: &str| format!("{n}-{skill}");
        let (alice, bob) = (here.v1(), here.v1().by("bob"));
        let id = begin(&alice, skill, &m("m1")).await;
        bob.send(bob.text(&m("m2"), "approve", naming(&id, a))).await;
        let there = there.v1();
        let unbound = there.text(&m("m3"), "approve", json!({ "taskId": id }));
        assert_eq!(there.send_err(unbound).await.0, -32602);
        let path = format!("/v1/runs/{id}/interrupts/{node}");
        let body = json!({"resumeValue": {"action": "accept"}}).to_string();
        let answer = || async { there.clone().at(&path).raw("POST", body.as_bytes()).await };
        // The run's own gate was never answered, but the child's other gate was.
        let status = if skill == "gates" { 200 } else { 409 };
        assert_eq!(answer().await.status, status);
        if status == 409 {
            assert_eq!(there.get(&format!("/v1/runs/{id}")).await.status, 200);
            assert_eq!(answer().await.status, 200);
        }
        there.until(&id, "completed").await;
    }
}
