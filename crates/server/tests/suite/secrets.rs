//! Secrets that tenants keep with the host, over REST.

use serde_json::{Value, json};
use wopr_server::config::NamedSecret;

use crate::{
    client::Call,
    server::{ALICE, BOB, READER, Server},
};

const PATH: &str = "/v1/host/wopr/secrets";

fn declared(name: &str, tenants: &[&str]) -> NamedSecret {
    serde_json::from_value(json!({ "name": name, "stored": true, "tenants": tenants })).unwrap()
}

async fn start() -> Server {
    Server::start_with(|config| {
        config.secrets.named = vec![declared("crm", &[]), declared("mail", &["rival"])];
        let of_env = json!({ "name": "fixed", "env": "NOT_THERE" });
        config.secrets.named.push(serde_json::from_value(of_env).unwrap());
    })
    .await
}

fn set(server: &Server, key: &str, body: Value) -> Call {
    server.call("POST", PATH).key(key).json(&body)
}

#[tokio::test]
async fn secrets_of_tenants_are_apart_and_never_shown() {
    let server = start().await;
    for (key, value) in [(ALICE, "of-acme"), (BOB, "of-rival")] {
        let shown = set(&server, key, json!({ "name": "crm", "value": value }))
            .send()
            .await;
        let shown = shown.ok(200);
        assert_eq!(shown["name"], "crm");
        assert!(!shown.to_string().contains(value), "{shown}");
    }
    let list = async |key: &str| server.call("GET", PATH).key(key).send().await.ok(200);
    let (acme, rival) = (list(ALICE).await, list(BOB).await);
    assert_ne!(
        acme["secrets"][0]["fingerprint"],
        rival["secrets"][0]["fingerprint"]
    );
    let remove = |key: &str| server.call("DELETE", &format!("{PATH}/crm")).key(key);
    assert_eq!(remove(BOB).send().await.status, 204);
    remove(BOB).send().await.error(404, "not_found");
    assert_eq!(
        (list(ALICE).await, list(BOB).await["secrets"].clone()),
        (acme, json!([]))
    );
    server.stop().await;
}

#[tokio::test]
async fn only_declared_secrets_with_sendable_values_are_set() {
    let server = start().await;
    for (body, field) in [
        (json!({ "name": "unknown", "value": "x" }), "name"),
        (json!({ "name": "fixed", "value": "x" }), "name"),
        // One of another tenant looks like none.
        (json!({ "name": "mail", "value": "x" }), "name"),
        (json!({ "name": "crm", "value": "" }), "value"),
        (json!({ "name": "crm", "value": "a\r\nb: c" }), "value"),
        (json!({ "name": "crm", "value": "x".repeat(16_385) }), "value"),
        (json!({ "name": "crm", "value": 7 }), "value"),
    ] {
        let refused = set(&server, ALICE, body.clone()).send().await;
        let problem = refused.error(400, "validation_error");
        assert_eq!(problem["field"], field, "{body}: {problem}");
    }
    let reader = set(&server, READER, json!({ "name": "crm", "value": "x" }))
        .send()
        .await;
    reader.error(403, "forbidden");
    let listed = server.call("GET", PATH).key(READER).send().await;
    listed.error(403, "forbidden");
    server.stop().await;
}
