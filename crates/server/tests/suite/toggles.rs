//! Capabilities that a conformance suite switches off and on again.

use serde_json::{Value, json};

use crate::{
    server::{READER, Server},
    workflows::{chain, node},
};

const PATH: &str = "/v1/host/sample/test/capability-toggle";

async fn toggle(server: &Server, body: Value) -> Value {
    server.post(PATH, &body).send().await.ok(200)["overlay"].clone()
}

/// What discovery says of a capability, at both places.
async fn offered(server: &Server, pointer: &str) -> [Value; 2] {
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    [
        document.pointer(pointer),
        document["capabilities"].pointer(pointer),
    ]
    .map(|value| value.unwrap().clone())
}

#[tokio::test]
async fn a_capability_that_is_switched_off_is_neither_offered_nor_accepted() {
    let server = Server::start().await;
    let mapping = json!({ "child": "parent" });
    let lead = || node("lead", "core.orchestrator.supervisor", json!({}));
    let led = |id: &str, config: Value| chain(id, &[lead(), node("d", "core.dispatch", config)]);
    let mut dispatch = led("mapped", json!({ "inputMapping": mapping }));
    let sub = json!({ "workflowId": "conformance-noop", "inputMapping": mapping });
    let mut sub = chain("mapped-too", &[node("s", "core.subWorkflow", sub)]);
    for document in [&mut dispatch, &mut sub] {
        document["variables"] = json!([{ "name": "parent", "type": "string" }]);
    }
    for (name, pointer, document) in [
        ("agents.dispatchMapping", "/agents/dispatchMapping", &dispatch),
        ("subWorkflow.inputMapping", "/subWorkflow/inputMapping", &sub),
    ] {
        assert_eq!(offered(&server, pointer).await, [true, true]);
        let overlay = toggle(&server, json!({ "name": name, "value": false })).await;
        assert_eq!(overlay, json!({ name: false }));
        assert_eq!(offered(&server, pointer).await, [false, false]);
        let register = server.post("/v1/workflows", document);
        let refused = register.send().await.error(400, "validation_error");
        assert_eq!(refused["requiredCapability"], name);
        // Without mappings, and with the other one, nothing is missing.
        let plain = led("plain", json!({}));
        server
            .post("/v1/workflows", &plain)
            .send()
            .await
            .ok_either(&[200, 201]);

        assert_eq!(
            toggle(&server, json!({ "name": name, "value": null })).await,
            json!({})
        );
        assert_eq!(offered(&server, pointer).await, [true, true]);
        register.send().await.ok_either(&[200, 201]);
    }
    server.stop().await;
}

#[tokio::test]
async fn switches_are_taken_back_together_and_only_known_ones_are_set() {
    let server = Server::start().await;
    assert_eq!(
        toggle(&server, json!({ "name": "__probe__", "value": true })).await,
        json!({})
    );
    for name in ["agents.dispatchMapping", "subWorkflow.inputMapping"] {
        toggle(&server, json!({ "name": name, "value": false })).await;
    }
    let both = json!({ "agents.dispatchMapping": false, "subWorkflow.inputMapping": false });
    assert_eq!(
        toggle(&server, json!({ "name": "__probe__", "value": null })).await,
        both
    );
    assert_eq!(toggle(&server, json!({ "reset": true })).await, json!({}));
    assert_eq!(offered(&server, "/agents/dispatchMapping").await, [true, true]);
    for wrong in [
        json!({}),
        json!({ "name": "replay.supported", "value": false }),
        json!({ "name": "agents.dispatchMapping", "value": "no" }),
        json!({ "name": "agents.dispatchMapping", "reset": true }),
        json!({ "reset": true, "more": 1 }),
        json!({ "reset": true, "value": false }),
    ] {
        server
            .post(PATH, &wrong)
            .send()
            .await
            .error(400, "validation_error");
    }
    let body = json!({ "reset": true });
    let reader = server.call("POST", PATH).key(READER).json(&body).send().await;
    assert_eq!(reader.status, 403);
    server.stop().await;
}

#[tokio::test]
async fn switches_exist_in_conformance_mode_alone() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let body = json!({ "reset": true });
    server.post(PATH, &body).send().await.error(404, "not_found");
    server.stop().await;
}

/// The suite registers workflows in a short form, whose nodes run in their order.
#[tokio::test]
async fn workflow_in_the_short_form_of_the_suite_runs_its_nodes_in_their_order() {
    const SHORT: &str = "/v1/host/sample/workflows";
    let server = Server::start().await;
    let set = |id: &str, expression: &str| json!({ "nodeId": id, "typeId": "core.setVariable", "config": { "name": "said", "expression": expression } });
    let body = json!({
        "workflowId": "short", "nodes": [set("a", "'a'"), set("b", "said ~ 'b'")],
        "variables": [{ "name": "said", "type": "string" }],
    });
    let made = server.post(SHORT, &body).send().await.ok(201);
    assert_eq!(made["workflowId"], "short");
    let run = server.run("short", json!({})).await;
    assert_eq!(
        server.wait_for(&run, "completed").await["variables"]["said"],
        "ab"
    );

    // What is refused elsewhere is refused here, and a dispatch alone needs the capability that is switched off.
    let mapped =
        json!({ "nodeId": "d", "typeId": "core.dispatch", "config": { "inputMapping": { "x": "said" } } });
    let dispatch =
        json!({ "workflowId": "short-dispatch", "nodes": [mapped], "variables": body["variables"] });
    toggle(
        &server,
        json!({ "name": "agents.dispatchMapping", "value": false }),
    )
    .await;
    let refused = server
        .post(SHORT, &dispatch)
        .send()
        .await
        .error(400, "validation_error");
    assert_eq!(refused["requiredCapability"], "agents.dispatchMapping");
    toggle(&server, json!({ "reset": true })).await;
    let mut led = dispatch;
    led["nodes"].as_array_mut().unwrap().insert(
        0,
        json!({ "nodeId": "lead", "typeId": "core.orchestrator.supervisor" }),
    );
    server.post(SHORT, &led).send().await.ok(201);
    for wrong in [
        json!({ "workflowId": "short", "nodes": [] }),
        json!({ "workflowId": "short", "nodes": [3] }),
        json!({ "workflowId": "short", "nodes": [{ "typeId": "core.noop" }] }),
        json!({ "workflowId": "short", "nodes": [{ "nodeId": "a", "typeId": "core.unknown" }] }),
        json!({ "nodes": [] }),
    ] {
        server
            .post(SHORT, &wrong)
            .send()
            .await
            .error(400, "validation_error");
    }
    let plain = Server::start_with(|config| config.conformance = false).await;
    plain.post(SHORT, &body).send().await.error(404, "not_found");
    plain.stop().await;
    server.stop().await;
}
