//! Feedback for authors of workflow definitions.

use serde_json::json;

use crate::{
    server::Server,
    workflows::{chain, node},
};

#[tokio::test]
async fn a_refused_definition_lists_every_problem_with_a_pointer_and_a_hint() {
    let server = Server::start().await;
    let broken = chain(
        "own",
        &[
            node("a", "core.nop", json!({})),
            node("b", "core.delay", json!({ "delayMs": "5", "seconds": 1 })),
        ],
    );
    let reply = server.post("/v1/workflows", &broken).send().await;
    let details = reply.error(400, "validation_error");
    assert_eq!(details["problemCount"], 3);
    assert_eq!(
        details["problems"][0],
        json!({
            "place": "node 'a'", "rule": "typeId 'core.nop' is not offered by this host",
            "pointer": "/nodes/0/typeId", "hint": "did you mean 'core.noop'?",
        })
    );
    let pointers: Vec<_> = details["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| &problem["pointer"])
        .collect();
    assert_eq!(
        pointers,
        [
            "/nodes/0/typeId",
            "/nodes/1/config/seconds",
            "/nodes/1/config/delayMs"
        ]
    );
}

#[tokio::test]
async fn registration_answers_with_warnings_and_refuses_nothing_for_them() {
    let server = Server::start().await;
    let call = chain("own", &[node("a", "core.http.request", json!({ "url": "/pay" }))]);
    let register = || async {
        server
            .post("/v1/workflows", &call)
            .header("idempotency-key", "k")
            .send()
            .await
    };
    let first = register().await;
    let warnings = first.ok(201)["warnings"].clone();
    assert_eq!(warnings.as_array().unwrap().len(), 1);
    assert_eq!(warnings[0]["code"], "relative-url");
    assert_eq!(warnings[0]["pointer"], "/nodes/0/config/url");
    assert_eq!(
        register().await.ok(201)["warnings"],
        warnings,
        "a replay tells them, too"
    );
    let fine = chain("fine", &[node("a", "core.noop", json!({}))]);
    let registered = server.post("/v1/workflows", &fine).send().await.ok(201);
    assert!(registered.get("warnings").is_none());
}

#[tokio::test]
async fn a_bound_on_cost_that_no_price_supports_is_a_warning() {
    let server = Server::start().await;
    let mut bounded = chain("bounded", &[node("a", "core.noop", json!({}))]);
    bounded["settings"]["budget"] = json!({ "maxCostUsd": 2.0 });
    let registered = server.post("/v1/workflows", &bounded).send().await.ok(201);
    assert_eq!(registered["warnings"][0]["code"], "unpriced-budget");
    assert_eq!(
        registered["warnings"][0]["pointer"],
        "/settings/budget/maxCostUsd"
    );
}

#[tokio::test]
async fn deep_json_is_told_from_bad_json() {
    let server = Server::start().await;
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({ "deeper": deep });
    }
    let refused = server.post("/v1/workflows", &deep).send().await;
    let said = refused.ok(400);
    assert_eq!(
        said["message"],
        "the body is nested too deeply: 127 levels are the most"
    );
}

#[tokio::test]
async fn the_schema_of_definitions_is_public_and_cacheable() {
    let server = Server::start().await;
    let path = "/v1/schemas/workflow-definition.json";
    let reply = server.call("GET", path).send().await;
    assert_eq!(reply.header("content-type"), Some("application/schema+json"));
    assert_eq!(reply.header("cache-control"), Some("public, max-age=300"));
    let tag = reply.header("etag").unwrap().to_owned();
    let schema = reply.ok(200);
    jsonschema::meta::validate(&schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    assert!(validator.is_valid(&chain("fine", &[node("a", "core.noop", json!({}))])));
    assert!(!validator.is_valid(&chain("bad", &[node("a", "core.nop", json!({}))])));
    let known = server
        .call("GET", path)
        .header("if-none-match", &tag)
        .send()
        .await;
    assert_eq!(known.status, 304);
    let document = server.get("/v1/openapi.json").send().await.ok(200);
    assert!(document["paths"][path]["get"].is_object());
}
