//! A message answers the question its sender saw, or the one it names; and an agent's message answers none.

use serde_json::{Value, json};

use crate::{
    client::{Client, state_of},
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
    for version in ["1.0", ""] {
        for (skill, a, b) in [("gates", "a:0", "b:0"), ("child-gates", "sub:0/a:0", "sub:0/b:0")] {
            let alice = server.client(version);
            let bob = server.client(version).by("bob");
            let m = |n: &str| format!("{n}-{skill}-{version}");
            let id = begin(&alice, skill, &m("m1")).await;
            bob.send(bob.text(&m("m2"), "approve", naming(&id, a))).await;

            let unbound = alice.text(&m("m3"), "approve", json!({ "taskId": id }));
            let (code, text) = alice.send_err(unbound.clone()).await;
            assert!(code == -32602 && text.contains(b), "{code} {text}");
            let late = alice.text(&m("m4"), "approve", naming(&id, a));
            let (code, text) = alice.send_err(late).await;
            assert!(code == -32602 && text.contains(b), "{code} {text}");
            // Nothing changed; and now that she has looked, she means what she saw.
            assert_eq!(open_of(&alice, &id).await, b);
            assert_eq!(state_of(&alice.send(unbound).await), "completed");
        }
    }
}

#[tokio::test]
async fn a_sender_s_own_answers_do_not_stand_in_its_way_after_a_restart() {
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

        // What was read before is forgotten. What was said is not.
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
async fn a_token_names_its_question() {
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
async fn a_message_of_an_agent_answers_nothing() {
    let server = Server::start().await;
    for version in ["1.0", ""] {
        let client = server.client(version);
        let id = begin(&client, "approve", &format!("m1{version}")).await;
        let mut answer = client.text(&format!("m2{version}"), "approve", naming(&id, "gate:0"));
        answer["message"]["role"] = json!(if version.is_empty() { "agent" } else { "ROLE_AGENT" });
        let (code, text) = client.send_err(answer).await;
        assert!(code == -32602 && text.contains("message.role"), "{text}");
        assert_eq!(state_of(&client.task(&id).await), "input-required");
    }
}
