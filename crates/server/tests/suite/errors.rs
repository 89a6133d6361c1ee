//! Errors and their responses.

use serde_json::{Value, json};

use crate::server::{ALICE, READER, Server};

#[tokio::test]
async fn every_error_has_its_status_and_code() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    let create = |body: Value| ("POST", "/v1/runs".to_owned(), Some(body));
    let get = |path: &str| ("GET", path.to_owned(), None);
    let post = |path: String, body: Value| ("POST", path, Some(body));
    let noop = |more: Value| {
        let mut body = json!({ "workflowId": "conformance-noop" });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let rows = [
        (create(json!({})), 400, "validation_error"),
        (create(json!({ "workflowId": "nowhere" })), 404, "not_found"),
        (create(json!({ "workflowId": "No Id" })), 404, "not_found"),
        (create(noop(json!({ "inputs": [] }))), 400, "validation_error"),
        (create(noop(json!({ "input": {} }))), 400, "validation_error"),
        (create(noop(json!({ "tenantId": "rival" }))), 403, "forbidden"),
        (
            create(noop(json!({ "tenantId": "acme", "mode": "eval" }))),
            501,
            "capability_not_provided",
        ),
        (create(noop(json!({ "mode": "other" }))), 400, "validation_error"),
        (create(noop(json!({ "agentId": "a" }))), 400, "validation_error"),
        (
            create(noop(json!({ "evalSuiteRef": "e" }))),
            400,
            "validation_error",
        ),
        (
            create(noop(json!({ "callbackUrl": "https://x.example" }))),
            501,
            "capability_not_provided",
        ),
        (
            create(noop(json!({ "residency": { "region": "eu" } }))),
            400,
            "residency_unavailable",
        ),
        (
            create(noop(json!({ "configurable": { "recursionLimit": 5000 } }))),
            400,
            "validation_error",
        ),
        (
            create(noop(json!({ "configurable": { "mockProvider": { "id": "x" } } }))),
            400,
            "unsupported_mock_provider",
        ),
        (
            create(noop(
                json!({ "configurable": { "ai": { "credentialRef": "x" } } }),
            )),
            403,
            "credential_forbidden",
        ),
        (
            create(noop(json!({ "configurable": { "ai.provider": "x" } }))),
            400,
            "validation_error",
        ),
        (get("/v1/nothing"), 404, "not_found"),
        (get("/nothing"), 404, "not_found"),
        (get("/v1/workflows/nowhere"), 404, "not_found"),
        (get("/v1/runs?status=flying"), 400, "validation_error"),
        (get("/v1/runs?limit=0"), 400, "validation_error"),
        (get("/v1/runs?limit=x"), 400, "validation_error"),
        (get("/v1/runs?cursor=%21"), 400, "validation_error"),
        (get("/v1/runs?workflowId=A"), 400, "validation_error"),
        (get("/v1/runs?parentRunId=x"), 400, "validation_error"),
        (get("/v1/interrupts?cursor=x"), 400, "validation_error"),
        (
            post(format!("/v1/runs/{run}/annotations"), json!({})),
            501,
            "capability_not_provided",
        ),
        (
            post("/v1/webhooks".into(), json!({})),
            501,
            "capability_not_provided",
        ),
        (
            post(format!("/v1/runs/{run}:pause"), json!({})),
            409,
            "run_not_pausable",
        ),
        (
            post(format!("/v1/runs/{run}:pause"), json!({ "x": 1 })),
            400,
            "validation_error",
        ),
        (
            post(format!("/v1/runs/{run}:resume"), json!({})),
            409,
            "run_not_paused",
        ),
        (
            post(
                format!("/v1/runs/{run}/interrupts/gate"),
                json!({ "action": "accept" }),
            ),
            400,
            "validation_error",
        ),
        (
            post(
                format!("/v1/runs/{run}/interrupts/gate"),
                json!({ "resumeValue": { "action": "maybe" } }),
            ),
            400,
            "validation_error",
        ),
        (
            post(
                format!("/v1/runs/{run}/interrupts/other"),
                json!({ "resumeValue": {} }),
            ),
            404,
            "interrupt_not_found",
        ),
        (post("/v1/workflows".into(), json!({})), 400, "validation_error"),
        (
            ("PUT", format!("/v1/runs/{run}"), Some(json!({}))),
            405,
            "method_not_allowed",
        ),
        (("DELETE", "/v1/runs".into(), None), 405, "method_not_allowed"),
        (
            ("POST", "/.well-known/openwop".into(), Some(json!({}))),
            405,
            "method_not_allowed",
        ),
    ];
    for ((method, path, body), status, code) in rows {
        let mut call = server.call(method, &path).key(ALICE);
        if let Some(body) = &body {
            call = call.json(body);
        }
        println!("{method} {path} {body:?}");
        call.send().await.error(status, code);
    }
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    let allowed = server.call("PUT", "/v1/runs").key(ALICE).send().await;
    assert_eq!(allowed.header("allow"), Some("POST, GET, HEAD"));
}

#[tokio::test]
async fn unsupported_headers_are_refused() {
    let server = Server::start().await;
    let body = json!({ "workflowId": "conformance-noop" });
    let call = |name: &str, value: &str| server.post("/v1/runs", &body).header(name, value);
    call("x-dedup", "enforce")
        .send()
        .await
        .error(501, "capability_not_provided");
    let forced = call("x-force-engine-version", "0").send().await;
    forced.error(403, "force_engine_version_forbidden");
    let mut form = server.call("POST", "/v1/runs").key(ALICE).bytes("workflowId=x");
    form = form.header("x-ignored", "1");
    let plain = server
        .call("POST", "/v1/runs")
        .key(ALICE)
        .header("content-type", "text/plain");
    form.send().await.error(400, "validation_error");
    let typed = plain.send().await;
    // An empty body needs no media type.
    typed.error(400, "validation_error");
}

#[tokio::test]
async fn unsupported_media_types_are_refused() {
    let server = Server::start().await;
    let body = r#"{"workflowId":"conformance-noop"}"#;
    for media in ["text/plain", "application/x-www-form-urlencoded", "", "json"] {
        let raw = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {ALICE}\r\ncontent-type: {media}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        server
            .raw(raw.as_bytes())
            .await
            .error(415, "unsupported_media_type");
    }
    for media in [
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/vnd.x+json",
    ] {
        let raw = format!(
            "POST /v1/runs HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {ALICE}\r\ncontent-type: {media}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        assert_eq!(server.raw(raw.as_bytes()).await.status, 201, "{media}");
    }
}

#[tokio::test]
async fn compressed_bodies_are_refused_by_every_face() {
    let named = "http://test".parse().unwrap();
    let server = Server::start_with(|config| config.server.public_url = Some(named)).await;
    for path in ["/v1/runs", "/awp/v1/workflows/w/executions", "/mcp", "/a2a"] {
        let packed = server.call("POST", path).key(ALICE).json(&json!({}));
        let refused = packed.header("content-encoding", "gzip").send().await;
        assert_eq!(refused.status, 415, "{path}");
        assert_eq!(refused.header("accept-encoding"), Some("identity"), "{path}");
        assert!(refused.json().to_string().contains("compressed"), "{path}");
    }
    let body = json!({ "workflowId": "conformance-noop" });
    let plain = server
        .post("/v1/runs", &body)
        .header("content-encoding", "identity");
    plain.send().await.ok(201);
}

#[tokio::test]
async fn unauthenticated_requests_learn_nothing() {
    let server = Server::start().await;
    for (method, path, is_protected) in wopr_server::openwop::routes() {
        let path = path
            .replace("{runId}", "run_unknown_0123456789")
            .replace(['{', '}'], "");
        if !is_protected {
            continue;
        }
        let nobody = server.call(method.as_str(), &path).bytes("not json").send().await;
        nobody.error(401, "unauthenticated");
        assert_eq!(nobody.header("www-authenticate"), Some("Bearer realm=\"wopr\""));
        let stranger = server.call(method.as_str(), &path).key("bogus").send().await;
        stranger.error(401, "unauthenticated");
    }
    for path in ["/v1/nothing", "/v1", "/v1/runs/x:fork", "/%76%31/nothing"] {
        server
            .call("GET", path)
            .send()
            .await
            .error(401, "unauthenticated");
    }
    server
        .call("PATCH", "/v1/runs")
        .send()
        .await
        .error(401, "unauthenticated");
}

#[tokio::test]
async fn error_names_the_missing_scope() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    for (method, path, scope) in [
        ("POST", "/v1/runs".to_owned(), "runs:create"),
        ("POST", format!("/v1/runs/{run}/cancel"), "runs:cancel"),
        ("POST", format!("/v1/runs/{run}:pause"), "runs:cancel"),
        ("POST", format!("/v1/runs/{run}:resume"), "runs:cancel"),
        ("POST", "/v1/runs:bulk-cancel".to_owned(), "runs:cancel"),
        (
            "POST",
            format!("/v1/runs/{run}/interrupts/gate"),
            "approvals:respond",
        ),
        ("GET", "/v1/interrupts".to_owned(), "approvals:respond"),
        ("GET", format!("/v1/runs/{run}/artifacts"), "artifacts:read"),
        ("GET", "/v1/workflows".to_owned(), "manifest:read"),
        ("POST", "/v1/workflows".to_owned(), "workflows:write"),
        ("GET", "/v1/host/wopr/keys".to_owned(), "keys:manage"),
    ] {
        let reply = server
            .call(method, &path)
            .key(READER)
            .json(&json!({}))
            .send()
            .await;
        assert_eq!(reply.error(403, "forbidden")["scopeRequired"], scope, "{path}");
    }
    let snapshot = server
        .call("GET", &format!("/v1/runs/{run}"))
        .key(READER)
        .send()
        .await;
    let interrupt = snapshot.ok(200)["interrupt"].clone();
    // A caller who may not answer and did not start the run sees the interrupt without its token.
    assert_eq!(interrupt["nodeId"], "gate");
    assert!(interrupt.get("interruptToken").is_none() && interrupt.get("callbackUrl").is_none());
}

#[tokio::test]
async fn every_response_has_a_trace_and_a_request_id() {
    let server = Server::start().await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let reply = server
        .call("GET", "/v1/nothing")
        .header("traceparent", parent)
        .header("tracestate", "a=1, b=2")
        .header("tracestate", "c=3")
        .send()
        .await;
    assert_eq!(reply.header("tracestate"), Some("a=1,b=2,c=3"));
    let trace = reply.header("traceparent").unwrap();
    assert!(trace.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && trace != parent);
    assert_eq!(
        reply.header("x-request-id"),
        Some("4bf92f3577b34da6a3ce929d0e0e4736")
    );
    let reply = server.get("/v1/runs").header("x-request-id", "mine").send().await;
    assert_eq!(reply.header("x-request-id"), Some("mine"));
    assert_eq!(reply.header("traceparent").unwrap().len(), 55);
    let reply = server.get("/v1/runs").header("tracestate", "a=1").send().await;
    assert_eq!(reply.header("tracestate"), None, "without a traceparent");
}
