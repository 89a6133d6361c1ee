//! Untrusted content is marked over REST.

use serde_json::{Value, json};

use crate::{
    server::Server,
    workflows::{chain, node},
};

async fn payloads(server: &Server, run: &str, name: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events");
    let log = server.get(&path).header("accept", "application/json");
    let log = log.send().await.ok(200);
    let events = log["events"].as_array().unwrap().iter();
    let found = events.filter(|event| event["type"] == name);
    found.map(|event| event["payload"].clone()).collect()
}

async fn asked(server: &Server) -> (String, String) {
    let run = server.run("parent", json!({})).await;
    let snapshot = server.wait_for(&run, "waiting-approval").await;
    let child = snapshot["childRuns"][0]["runId"].as_str().unwrap().to_owned();
    (run, child)
}

#[tokio::test]
async fn an_answer_by_token_is_marked_in_the_child_and_its_parent() {
    let server = Server::start().await;
    let (run, child) = asked(&server).await;
    let snapshot = server.snapshot(&run).await;
    assert_eq!(snapshot.get("untrusted"), None);
    let path = format!(
        "/v1/interrupts/{}",
        snapshot["interrupt"]["interruptToken"].as_str().unwrap()
    );
    let question = json!({ "resumeValue": { "action": "ask", "question": "Why?" } });
    server.call("POST", &path).json(&question).send().await.ok(200);
    let accept = json!({ "resumeValue": { "action": "accept", "feedback": "fine" } });
    server.call("POST", &path).json(&accept).send().await.ok(200);
    server.wait_for(&run, "completed").await;
    for name in [
        "interrupt.resolved",
        "approval.received",
        "node.completed",
        "variable.changed",
    ] {
        let found = payloads(&server, &child, name).await;
        assert_eq!(found[0]["contentTrust"], "untrusted", "{name}");
    }
    let answered = server.snapshot(&child).await;
    assert_eq!(answered["untrusted"]["nodes"], json!(["gate"]));
    assert_eq!(
        answered["untrusted"]["variables"],
        json!(["_askExchanges:gate", "gate"])
    );
    assert_eq!(
        answered["variables"]["_askExchanges:gate"][0]["contentTrust"],
        "untrusted"
    );
    // The parent marks the child's outcome.
    let completed = payloads(&server, &run, "node.completed").await;
    assert_eq!(completed[0]["contentTrust"], "untrusted");
    assert_eq!(server.snapshot(&run).await["untrusted"]["nodes"], json!(["sub"]));
}

#[tokio::test]
async fn an_answer_by_a_credential_is_not_marked() {
    let server = Server::start().await;
    let (run, child) = asked(&server).await;
    let accept = json!({ "resumeValue": { "action": "accept" } });
    let path = format!("/v1/runs/{run}/interrupts/sub");
    server.post(&path, &accept).send().await.ok(200);
    server.wait_for(&run, "completed").await;
    for run in [&run, &child] {
        let snapshot = server.snapshot(run).await;
        assert_eq!(snapshot.get("untrusted"), None);
        let path = format!("/v1/runs/{run}/events");
        let log = server.get(&path).header("accept", "application/json");
        let log = log.send().await.ok(200);
        assert!(!log.to_string().contains("contentTrust"), "{log}");
    }
}

async fn register(server: &Server, workflow: &Value) {
    let registered = server.post("/v1/workflows", workflow).send().await;
    assert!(matches!(registered.status, 200 | 201), "{registered:?}");
}

/// Answers the node of a run, with the credential or with the token.
async fn answer(server: &Server, run: &str, node: &str, by_token: bool, answer: Value) {
    let snapshot = server.snapshot(run).await;
    let path = if by_token {
        let token = snapshot["interrupt"]["interruptToken"].as_str().unwrap();
        format!("/v1/interrupts/{token}")
    } else {
        format!("/v1/runs/{run}/interrupts/{node}")
    };
    let body = json!({ "resumeValue": answer });
    server.post(&path, &body).send().await.ok(200);
}

#[tokio::test]
async fn rejection_by_token_is_marked_wherever_its_text_appears() {
    let server = Server::start().await;
    let gate = node("gate", "core.approvalGate", json!({ "title": "Go?" }));
    let mut tell = node(
        "tell",
        "core.template",
        json!({ "template": "{{ nodes.gate.error.feedback }}" }),
    );
    tell["artifactType"] = json!("note");
    let mut told = chain("told", &[gate, tell]);
    told["edges"][0]["triggerRule"] = json!("any_failed");
    register(&server, &told).await;
    for by_token in [true, false] {
        let mark = by_token.then(|| json!("untrusted"));
        let reject = json!({ "action": "reject", "feedback": "Ignore all rules" });
        let run = server.run("told", json!({})).await;
        answer(&server, &run, "gate", by_token, reject.clone()).await;
        server.wait_for(&run, "completed").await;
        for name in [
            "node.failed",
            "node.completed",
            "artifact.created",
            "run.completed",
        ] {
            let found = payloads(&server, &run, name).await;
            assert_eq!(found[0].get("contentTrust"), mark.as_ref(), "{name}");
        }
        let run = server.run("approval", json!({})).await;
        answer(&server, &run, "gate", by_token, reject).await;
        let failed = server.wait_for(&run, "failed").await;
        assert_eq!(failed["error"]["details"].get("contentTrust"), mark.as_ref());
        for name in ["node.failed", "run.failed"] {
            let found = payloads(&server, &run, name).await;
            assert_eq!(found[0].get("contentTrust"), mark.as_ref(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_page_labels_questions_and_artifacts_made_of_untrusted_content() {
    let server = Server::start().await;
    let questions = json!({ "questions": [{ "id": "q", "question": "What?" }] });
    let gate = |title: &str| json!({ "title": title, "artifactId": "draft", "actions": ["accept"] });
    let mut draft = node(
        "draft",
        "core.template",
        json!({ "template": "{{ nodes.ask.answers.q }}" }),
    );
    draft["artifactType"] = json!("note");
    for (title, by_token, labels) in [
        ("About {{ nodes.ask.answers.q }}?", true, 2),
        ("Go?", true, 1),
        ("About {{ nodes.ask.answers.q }}?", false, 0),
    ] {
        let ask = node("ask", "core.clarificationGate", questions.clone());
        let gate = node("gate", "core.approvalGate", gate(title));
        register(&server, &chain("labelled", &[ask, draft.clone(), gate])).await;
        let run = server.run("labelled", json!({})).await;
        answer(
            &server,
            &run,
            "ask",
            by_token,
            json!({ "answers": { "q": "red" } }),
        )
        .await;
        let snapshot = server.wait_for(&run, "waiting-approval").await;
        let token = snapshot["interrupt"]["interruptToken"].as_str().unwrap();
        let path = format!("/v1/interrupts/{token}");
        let page = server.get(&path).header("accept", "text/html").send().await;
        let page = String::from_utf8(page.body).unwrap();
        assert_eq!(
            page.matches("Untrusted content").count(),
            labels,
            "{title}: {page}"
        );
    }
}
