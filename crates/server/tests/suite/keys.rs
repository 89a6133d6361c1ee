//! Keys made and revoked while the host runs.

use serde_json::json;

use crate::server::{BOB, Server};

#[tokio::test]
async fn a_key_works_from_its_making_to_its_revocation() {
    let server = Server::start_on_sqlite().await;
    let body = json!({ "id": "ci", "principal": "robot", "scopes": ["runs:create", "runs:read"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert_eq!(
        (&made["tenant"], &made["principal"]),
        (&json!("acme"), &json!("robot"))
    );
    let run = json!({ "workflowId": "conformance-noop" });
    let create = || server.call("POST", "/v1/runs").key(&secret).json(&run);
    create().send().await.ok(201);
    let list = server.get("/v1/host/wopr/keys").send().await;
    let text = String::from_utf8(list.body.clone()).unwrap();
    assert!(!text.contains(&secret) && list.ok(200)["keys"][0]["id"] == "ci");
    server
        .post("/v1/host/wopr/keys", &body)
        .send()
        .await
        .error(409, "conflict");

    let foreign = server
        .call("DELETE", "/v1/host/wopr/keys/ci")
        .key(BOB)
        .send()
        .await;
    foreign.error(404, "not_found");
    let revoke = server
        .call("DELETE", "/v1/host/wopr/keys/ci")
        .key(crate::server::ALICE);
    assert_eq!(revoke.send().await.status, 204);
    assert_eq!(revoke.send().await.status, 204);
    create().send().await.error(401, "key_revoked");
    let unknown = server
        .call("DELETE", "/v1/host/wopr/keys/nope")
        .key(BOB)
        .send()
        .await;
    unknown.error(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn nobody_makes_a_key_that_can_do_more_than_theirs() {
    let server = Server::start().await;
    let body = json!({ "id": "limited", "scopes": ["keys:manage", "runs:read"] });
    let made = server.post("/v1/host/wopr/keys", &body).send().await.ok(201);
    let secret = made["secret"].as_str().unwrap();
    let make = |body| server.call("POST", "/v1/host/wopr/keys").key(secret).json(&body);
    make(json!({ "scopes": ["runs:cancel"] }))
        .send()
        .await
        .error(403, "forbidden");
    make(json!({ "scopes": ["*"] }))
        .send()
        .await
        .error(403, "forbidden");
    make(json!({ "scopes": ["runs:read"] })).send().await.ok(201);
    for bad in [
        json!({}),
        json!({ "scopes": ["runs:fly"] }),
        json!({ "scopes": [], "id": "two words" }),
        json!({ "scopes": [], "principal": "two words" }),
        json!({ "scopes": [], "tenant": "rival" }),
    ] {
        make(bad).send().await.error(400, "validation_error");
    }
    let once = make(json!({ "scopes": [] }))
        .header("idempotency-key", "k")
        .send()
        .await;
    once.error(400, "validation_error");
}
