//! Roles, groups and time limits of gates, over REST.

use serde_json::{Value, json};

use crate::server::Server;

async fn begin(server: &Server, workflow: &str) -> String {
    let run = server.run(workflow, json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    run
}

async fn key(server: &Server, id: &str, more: Value) -> String {
    let mut body = json!({ "id": id, "scopes": ["runs:read", "approvals:respond"] });
    body.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    made["secret"].as_str().unwrap().to_owned()
}

/// Accepts with a key, with the token shown to that key, and with a token minted for the key's principal.
async fn accepted(server: &Server, principal: &str, secret: &str) -> [u16; 3] {
    let accept = json!({ "resumeValue": { "action": "accept" } });
    let run = begin(server, "legal").await;
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let by_key = server.call("POST", &path).key(secret).json(&accept).send().await;

    let run = begin(server, "legal").await;
    let seen = server
        .call("GET", &format!("/v1/runs/{run}"))
        .key(secret)
        .send()
        .await
        .ok(200);
    let token = seen["interrupt"]["interruptToken"].as_str().unwrap();
    let path = format!("/v1/interrupts/{token}");
    let by_token = server.call("POST", &path).json(&accept).send().await;

    let run = begin(server, "legal").await;
    let body = json!({ "runId": run, "nodeId": "gate", "principal": principal });
    let minted = server.post("/v1/host/wopr/interrupt-tokens", &body);
    let minted = minted.send().await.ok(201);
    let path = format!("/v1/interrupts/{}", minted["interruptToken"].as_str().unwrap());
    let by_minted = server.call("POST", &path).json(&accept).send().await;
    [by_key.status, by_token.status, by_minted.status]
}

#[tokio::test]
async fn gate_accepts_answers_only_from_its_roles_and_groups() {
    let server = Server::start_with(|config| config.conformance = false).await;
    for (id, more, may) in [
        ("carol", json!({ "roles": ["legal"] }), true),
        ("dan", json!({ "groups": ["board", "staff"] }), true),
        ("erin", json!({ "roles": ["board"], "groups": ["legal"] }), false),
        ("frank", json!({}), false),
    ] {
        let secret = key(&server, id, more).await;
        let wanted = if may { 200 } else { 403 };
        assert_eq!(accepted(&server, id, &secret).await, [wanted; 3], "{id}");
    }
    let keys = server.get("/v1/host/wopr/keys").send().await.ok(200);
    let keys = keys["keys"].as_array().unwrap();
    let carol = keys.iter().find(|key| key["id"] == "carol").unwrap();
    assert_eq!(carol["roles"], json!(["legal"]));
    // Configured keys can have roles too. Those of the tests have none, whatever their scopes.
    let run = begin(&server, "legal").await;
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let accept = json!({ "resumeValue": { "action": "accept" } });
    server.post(&path, &accept).send().await.error(403, "forbidden");
}

#[tokio::test]
async fn only_key_managers_mint_tokens_with_foreign_roles() {
    let server = Server::start_with(|config| {
        config.conformance = false;
        config.auth.keys[1].roles = vec!["legal".to_owned()];
        config.auth.keys[1].scopes =
            wopr_server::auth::Scopes::parse(&["runs:read", "approvals:respond"]).unwrap();
    })
    .await;
    let run = begin(&server, "legal").await;
    let body = json!({ "runId": run, "nodeId": "gate", "roles": ["board"] });
    let mint = server.call("POST", "/v1/host/wopr/interrupt-tokens");
    let refused = mint.clone().key(crate::server::ADAM).json(&body).send().await;
    refused.error(403, "forbidden");
    let own = json!({ "runId": run, "nodeId": "gate", "roles": ["legal"] });
    mint.clone()
        .key(crate::server::ADAM)
        .json(&own)
        .send()
        .await
        .ok(201);
    let body = json!({ "runId": run, "nodeId": "gate", "principal": "oidc|zoe", "groups": ["board"] });
    let minted = server
        .post("/v1/host/wopr/interrupt-tokens", &body)
        .send()
        .await
        .ok(201);
    let path = format!("/v1/interrupts/{}", minted["interruptToken"].as_str().unwrap());
    let accept = json!({ "resumeValue": { "action": "accept" } });
    server.call("POST", &path).json(&accept).send().await.ok(200);
}

#[tokio::test]
async fn timed_out_approval_is_reported_everywhere() {
    let server = Server::start().await;
    let run = server.run("approval-brief", json!({})).await;
    let snapshot = server.wait_for(&run, "failed").await;
    assert_eq!(snapshot["error"]["code"], "approval_rejected");
    assert_eq!(snapshot["error"]["details"]["reason"], "timeout");
    let path = format!("/v1/runs/{run}/events");
    let log = server.get(&path).header("accept", "application/json");
    let log = log.send().await.ok(200);
    let payload = |name: &str| {
        let mut events = log["events"].as_array().unwrap().iter();
        events.find(|event| event["type"] == name).unwrap()["payload"].clone()
    };
    let resolved = payload("interrupt.resolved");
    assert_eq!(
        [&resolved["action"], &resolved["decision"], &resolved["reason"]],
        ["timeout", "rejected", "timeout"]
    );
    for name in ["node.failed", "run.failed"] {
        let error = &payload(name)["error"];
        assert_eq!(error["code"], "approval_rejected");
        assert_eq!(error["details"]["reason"], "timeout");
    }
}
