//! Authority over a task's interrupts: who may resolve them, and who is shown their tokens.

use serde_json::{Value, json};
use wopr_wire::a2a::method::Operation;

use crate::{
    client::{Client, state_of},
    speaker::Speaker,
    support::{Server, chain, config, key, node},
};

/// Fetches every document of a task that A2A offers.
async fn documents(client: &Client, id: &str) -> Vec<String> {
    let is_new = client.version == "1.0";
    let list = if is_new { "ListTasks" } else { "tasks/list" };
    let mut found = vec![client.task(id).await.to_string()];
    if is_new {
        found.push(client.ok(list, json!({})).await.to_string());
    }
    let mut stream = client.subscribe(id).await;
    found.push(stream.next().await.unwrap().value.to_string());
    found
}

#[tokio::test]
async fn tasks_show_tokens_only_to_callers_who_may_answer() {
    let server = Server::start().await;
    for version in ["1.0", ""] {
        let asker = server.client(version).by("asker");
        for skill in ["approve", "child-asks", "parallel"] {
            let message = asker.text(
                &format!("m-{skill}-{version}"),
                "acme",
                json!({"metadata": {"skillId": skill}}),
            );
            let task = asker.send(message.clone()).await;
            assert_eq!(state_of(&task), "input-required");
            let id = task["id"].as_str().unwrap();
            let mut seen = documents(&asker, id).await;
            seen.push(task.to_string());
            // A repeated message returns the task again.
            seen.push(asker.send(message).await.to_string());
            for document in seen {
                assert!(document.contains("interruptId"), "{document}");
                assert!(!document.contains("interruptToken"), "{document}");
            }
            let bob = server.client(version).by("bob");
            for document in documents(&bob, id).await {
                assert!(document.contains("interruptToken"), "{document}");
            }
        }
    }
}

#[tokio::test]
async fn every_question_of_a_task_has_its_token() {
    let server = Server::start().await;
    let client = server.v1();
    let asks = json!({"metadata": {"skillId": "parallel"}});
    let task = client.send(client.text("m1", "acme", asks)).await;
    let interrupts = task["metadata"]["openwop"]["interrupts"].as_array().unwrap();
    let tokens: Vec<_> = interrupts
        .iter()
        .map(|interrupt| interrupt["interruptToken"].as_str().unwrap())
        .collect();
    assert_eq!(tokens.len(), 2);
    assert_ne!(tokens[0], tokens[1]);
    assert_eq!(task["metadata"]["openwop"]["interruptToken"], tokens[0]);
    let right = client.clone().at(&format!("/v1/interrupts/{}", tokens[1]));
    let shown = right.raw("GET", b"").await.json();
    assert_eq!(shown["nodeId"], "right");
}

#[tokio::test]
async fn a_creator_without_the_scope_cannot_answer_its_own_gate() {
    let mut config = config();
    config
        .auth
        .keys
        .push(key("agent", "default", &["runs:create", "runs:read"]));
    let server = Server::open(config).await;
    for version in ["1.0", ""] {
        let agent = server.client(version).by("agent");
        let asks = json!({"metadata": {"skillId": "approve"}});
        let task = agent
            .send(agent.text(&format!("m1{version}"), "acme", asks))
            .await;
        let id = task["id"].as_str().unwrap();
        let snapshot = agent.get(&format!("/v1/runs/{id}")).await.json();
        assert_eq!(snapshot["status"], "waiting-approval");
        assert!(!snapshot.to_string().contains("interruptToken"), "{snapshot}");
        let params = agent.text(&format!("m2{version}"), "approve", json!({ "taskId": id }));
        let method = if version.is_empty() {
            "message/send"
        } else {
            "SendMessage"
        };
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let refused = agent.raw("POST", request.to_string().as_bytes()).await;
        assert!(refused.json().get("error").is_some());
        assert_eq!(state_of(&agent.task(id).await), "input-required");
    }
}

#[tokio::test]
async fn task_reports_a_timed_out_approval() {
    let gate = node(
        "gate",
        "core.approvalGate",
        json!({"timeoutMs": 20, "onTimeout": "approve"}),
    );
    let server = Server::with(config(), vec![chain("brief", vec![gate])]).await;
    for version in ["1.0", ""] {
        let client = server.client(version);
        let asks = json!({"metadata": {"skillId": "brief"}});
        let task = client
            .send(client.text(&format!("m{version}"), "acme", asks))
            .await;
        let task = client.until(task["id"].as_str().unwrap(), "failed").await;
        let error = &task["metadata"]["openwop"]["error"];
        assert_eq!(error["code"], "approval_rejected");
        assert_eq!(error["details"]["reason"], "timeout");
        let said = task["status"]["message"]["parts"][0]["text"].as_str().unwrap();
        assert!(said.contains("timed out"), "{said}");
    }
}

/// Over A2A, as over REST, only a caller who manages keys votes for others.
#[tokio::test]
async fn a_vote_for_another_principal_needs_the_scope_to_manage_keys() {
    let mut config = config();
    let scopes = ["runs:create", "runs:read", "approvals:respond"];
    config.auth.keys.push(key("approver", "default", &scopes));
    let server = Server::open(config).await;
    for speaker in Speaker::all(&server) {
        let name = speaker.name();
        let task = speaker.send(speaker.text("m1", "acme", "approve")).await.unwrap();
        let id = task["id"].as_str().unwrap();
        let mut vote = speaker.answer("m2", "", id);
        vote["message"]["parts"] = json!([{ "data": { "action": "accept", "voter": "dan" } }]);
        let approver = speaker.by("approver");
        let refused = approver.refused(Operation::SendMessage, vote.clone()).await;
        assert!(refused.contains("keys:manage"), "{name}: {refused}");
        let waiting = approver.get(json!({ "id": id })).await.unwrap();
        assert_eq!(state_of(&waiting), "input-required", "{name}");
        let manager = approver.by("alice");
        let done = manager.send(vote).await.unwrap();
        assert_eq!(state_of(&done), "completed", "{name}");
        let log = server
            .v1()
            .get(&format!("/v1/runs/{id}/events/poll?timeout=1"))
            .await;
        let log = log.json();
        let events = log["events"].as_array().unwrap();
        let resolved = events.iter().find(|event| event["type"] == "interrupt.resolved");
        let payload = &resolved.unwrap()["payload"];
        assert_eq!(
            (&payload["resolvedBy"], &payload["actingPrincipal"]),
            (&json!("dan"), &json!("alice")),
            "{name}: {payload}"
        );
    }
}

#[tokio::test]
async fn results_are_shown_to_readers_and_creators_only() {
    let mut config = config();
    let scopes = ["runs:create", "approvals:respond"];
    config.auth.keys.push(key("approver", "default", &scopes));
    let workflow = |id: &str, reply: &str| {
        let text = node(
            "say",
            "core.template",
            json!({ "template": "secret {{ inputs.prompt }}" }),
        );
        let gate = node("gate", "core.approvalGate", json!({}));
        let mut workflow = chain(id, vec![gate, text]);
        workflow["metadata"] = json!({ "a2a": { "reply": reply } });
        workflow
    };
    let server = Server::with(
        config,
        vec![workflow("message", "message"), workflow("status", "status")],
    )
    .await;
    let both = Speaker::all(&server).into_iter().zip(Speaker::all(&server));
    for (speaker, approver) in both {
        let approver = approver.by("approver");
        let name = speaker.name();
        for skill in ["message", "status"] {
            for is_stream in [false, true] {
                let m = |n: &str| format!("{n}-{skill}-{is_stream}");
                let task = speaker.send(speaker.text(&m("m1"), "acme", skill)).await.unwrap();
                let id = task["id"].as_str().unwrap();
                let yes = approver.answer(&m("m2"), "approve", id);
                let answer = told(&approver, yes.clone(), is_stream).await;
                assert!(answer.to_lowercase().contains("completed"), "{name}: {answer}");
                assert!(!answer.contains("secret"), "{name}: {answer}");
                // A repeated message returns the same redacted task.
                let again = told(&approver, yes, false).await;
                assert!(!again.contains("secret"), "{name}: {again}");
                let read = speaker.get(json!({ "id": id })).await.unwrap().to_string();
                assert_eq!(read.contains("secret"), skill == "status", "{name}: {read}");

                // The creator of a run sees its result, whatever its scopes.
                let task = approver
                    .send(approver.text(&m("m3"), "acme", skill))
                    .await
                    .unwrap();
                let yes = approver.answer(&m("m4"), "approve", task["id"].as_str().unwrap());
                let answer = told(&approver, yes, is_stream).await;
                assert!(answer.contains("secret"), "{name}: {answer}");
            }
        }
    }
}

async fn told(speaker: &Speaker, message: Value, is_stream: bool) -> String {
    if !is_stream {
        let answer = speaker.ask(Operation::SendMessage, message).await;
        return answer.unwrap().to_string();
    }
    let stream = speaker.stream(Operation::SendStreamingMessage, message).await;
    let frames = stream.all().await;
    let values: Vec<_> = frames.iter().map(|frame| frame.value.to_string()).collect();
    values.join(" ")
}
