//! Nodes of the pack `core.openwop.a2a`, against an agent that is no wopr.

use serde_json::{Value, json};
use wopr_server::config::AgentPeer;

use crate::{
    remote::Remote,
    server::Server,
    workflows::{chain, node},
};

const VERSIONS: [&str; 2] = ["1.0", "0.3"];

/// A host that knows an agent by its name and address.
pub(crate) async fn host_of(remote: &Remote) -> Server {
    let url = remote.url();
    Server::start_with(move |config| {
        config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
        config
            .a2a
            .peers
            .push(AgentPeer::new("default", url.parse().unwrap()));
    })
    .await
}

/// Runs one node and returns its run once that has this status.
async fn perform(server: &Server, name: &str, config: Value, status: &str) -> String {
    let type_id = format!("core.openwop.a2a.{name}");
    let workflow = chain(name, &[node("n", &type_id, config)]);
    server
        .post("/v1/workflows", &workflow)
        .send()
        .await
        .ok_either(&[200, 201]);
    let run = server.run(name, json!({ "prompt": "Hello" })).await;
    server.wait_for(&run, status).await;
    run
}

pub(crate) async fn outputs(server: &Server, run: &str) -> Value {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let poll = server.get(&path).send().await.ok(200);
    let events = poll["events"].as_array().unwrap();
    let completed = events.iter().find(|event| event["type"] == "node.completed");
    completed.unwrap_or_else(|| panic!("{poll:#}"))["payload"]["outputs"].clone()
}

#[tokio::test]
async fn a_card_is_read_and_marked() {
    for version in VERSIONS {
        let remote = Remote::start(&[version]).await;
        let server = host_of(&remote).await;
        // The address of the card is that of the peer as well.
        for base in [
            remote.url(),
            format!("{}/.well-known/agent-card.json", remote.url()),
        ] {
            let run = perform(&server, "discover-agent", json!({ "baseUrl": base }), "completed").await;
            let outputs = outputs(&server, &run).await;
            assert_eq!(outputs["card"]["name"], "Remote", "{outputs:#}");
            assert_eq!(outputs["card"]["skills"][0]["id"], "echo");
            assert_eq!(
                outputs["card"]["supportedInterfaces"][0]["protocolVersion"]
                    .as_str()
                    .unwrap()[..3],
                *version
            );
            assert_eq!(outputs["peer"], "default");
            assert_eq!(outputs["contentTrust"], "untrusted");
        }
        assert_eq!(remote.tasks(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_message_is_sent_once_and_its_task_is_not_waited_for() {
    for version in VERSIONS {
        let remote = Remote::start(&[version]).await;
        let server = host_of(&remote).await;
        remote.next("working");
        let run = perform(&server, "send-message", json!({ "skill": "echo" }), "completed").await;
        let sent = outputs(&server, &run).await;
        assert_eq!(
            (&sent["state"], &sent["taskId"]),
            (&json!("working"), &json!("task-1")),
            "{sent:#}"
        );
        assert_eq!(sent["message"]["parts"][0]["text"], "So it is.");
        assert_eq!(sent["contentTrust"], "untrusted");

        // A look at the task, and another message into it.
        remote.moves_on("input-required");
        let look = json!({ "taskId": "task-1" });
        let run = perform(&server, "get-task", look.clone(), "completed").await;
        assert_eq!(outputs(&server, &run).await["state"], "input-required");
        remote.next("completed");
        let workflow = {
            let mut send = node("n", "core.openwop.a2a.send-message", json!({ "message": "More" }));
            send["inputs"] = json!({ "taskId": { "type": "static", "value": "task-1" } });
            chain("more", &[send])
        };
        server
            .post("/v1/workflows", &workflow)
            .send()
            .await
            .ok_either(&[200, 201]);
        let run = server.run("more", json!({})).await;
        server.wait_for(&run, "completed").await;
        let more = outputs(&server, &run).await;
        assert_eq!(
            (&more["state"], &more["text"]),
            (&json!("completed"), &json!("So it is.")),
            "{more:#}"
        );
        assert_eq!(remote.tasks().len(), 1);

        // It has ended, so it is cancelled no more.
        let run = perform(&server, "cancel-task", look, "completed").await;
        assert_eq!(outputs(&server, &run).await["state"], "completed");
        let sends = remote
            .seen()
            .into_iter()
            .filter(|seen| seen.method.to_lowercase().contains("send"));
        assert_eq!(sends.count(), 2);
    }
}

#[tokio::test]
async fn an_answer_without_a_task_is_passed_on() {
    let remote = Remote::start(&VERSIONS).await;
    let server = host_of(&remote).await;
    remote.is_brief();
    let run = perform(&server, "send-message", json!({}), "completed").await;
    let outputs = outputs(&server, &run).await;
    assert_eq!(outputs["text"], "So it is.", "{outputs:#}");
    assert_eq!(
        (&outputs["state"], &outputs["taskId"]),
        (&Value::Null, &Value::Null)
    );
}

#[tokio::test]
async fn a_task_is_cancelled_and_an_unknown_one_fails_the_node() {
    for version in VERSIONS {
        let remote = Remote::start(&[version]).await;
        let server = host_of(&remote).await;
        remote.next("working");
        perform(&server, "send-message", json!({}), "completed").await;
        for _ in 0..2 {
            let run = perform(&server, "cancel-task", json!({ "taskId": "task-1" }), "completed").await;
            assert_eq!(outputs(&server, &run).await["state"], "canceled");
        }
        assert_eq!(remote.state("task-1"), "canceled");
        let run = perform(&server, "get-task", json!({ "taskId": "none" }), "failed").await;
        let failed = server.snapshot(&run).await;
        assert_eq!(failed["error"]["code"], "remote_failed", "{failed:#}");
    }
}

#[tokio::test]
async fn an_address_that_the_operator_did_not_configure_is_refused() {
    let (remote, other) = (Remote::start(&VERSIONS).await, Remote::start(&VERSIONS).await);
    let server = host_of(&remote).await;
    for base in [
        other.url(),
        format!("{}/elsewhere", remote.url()),
        "https://planner.example.com".to_owned(),
    ] {
        for name in ["discover-agent", "send-message", "multi-turn-coordinator"] {
            let run = perform(&server, name, json!({ "baseUrl": base }), "failed").await;
            let failed = server.snapshot(&run).await;
            assert_eq!(failed["error"]["code"], "peer_unknown", "{failed:#}");
            let message = failed["error"]["message"].as_str().unwrap();
            assert!(message.contains(&base), "{message}");
        }
    }
    assert!(other.seen().is_empty() && remote.seen().is_empty());
}

#[tokio::test]
async fn a_conversation_ends_with_its_last_turn_and_cancels_the_task() {
    for version in VERSIONS {
        let remote = Remote::start(&[version]).await;
        let server = host_of(&remote).await;
        remote.next("input-required");
        remote.says("Which one?");
        let config = json!({ "baseUrl": remote.url(), "maxTurns": 2 });
        let run = perform(&server, "multi-turn-coordinator", config, "waiting-input").await;
        for (turn, text) in [(0, "What else?"), (1, "And then?")] {
            let asked = loop {
                let snapshot = server.snapshot(&run).await;
                let id = match turn {
                    0 => "n:0".to_owned(),
                    n => format!("n:0:{n}"),
                };
                if [
                    &snapshot["interrupt"]["interruptId"],
                    &snapshot["interrupt"]["key"],
                ]
                .contains(&&json!(id))
                {
                    break snapshot;
                }
                tokio::task::yield_now().await;
            };
            assert_eq!(asked["status"], "waiting-input", "{asked:#}");
            remote.says(text);
            let answer = json!({ "resumeValue": { "answers": { "answer": "this" } } });
            let path = format!("/v1/runs/{run}/interrupts/n");
            server.post(&path, &answer).send().await.ok(200);
        }
        let failed = server.wait_for(&run, "failed").await;
        assert_eq!(failed["error"]["code"], "too_many_questions", "{failed:#}");
        while remote.state("task-1") != "canceled" {
            tokio::task::yield_now().await;
        }
        assert_eq!(remote.tasks().len(), 1);
    }
}
