//! Bad input on every route: a 4xx envelope with a stable code, and a server that keeps running.

use serde_json::{Value, json};

use crate::server::{ALICE, Server};

/// Every route with its parameters filled in; routes that read bodies first.
fn targets(server_run: &str) -> Vec<(String, String)> {
    wopr_server::openwop::routes()
        .into_iter()
        .map(|(method, path, _)| {
            let path = path
                .replace("{runId}", server_run)
                .replace("{taskId}", server_run)
                .replace("{nodeId}", "gate")
                .replace("{workflowId}", "approval")
                .replace("{artifactId}", "gate-0")
                .replace("{keyId}", "none")
                .replace("{token}", "not-a-token");
            (method.to_string(), path)
        })
        .collect()
}

/// Asserts a 4xx: no route answers bad input with a 5xx.
fn assert_refused(reply: &crate::client::Reply, what: &str) {
    assert!((400..500).contains(&reply.status), "{what}: {}", reply.status);
    let envelope = reply.json();
    assert!(
        envelope["error"].is_string() && envelope["message"].is_string(),
        "{what}: {envelope}"
    );
}

#[tokio::test]
async fn bad_bodies_are_refused_on_every_route_that_reads_one() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let before = server.event_types(&run).await;
    let deep = |open: &str, close: &str| [open.repeat(10_000), close.repeat(10_000)].concat();
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("cut off", b"{".to_vec()),
        ("not json", b"hello".to_vec()),
        ("trailing text", b"{} {}".to_vec()),
        ("invalid utf-8", b"{\"a\":\"\xff\xfe\"}".to_vec()),
        ("a lone surrogate", b"{\"a\":\"\\ud800\"}".to_vec()),
        ("a null byte", b"\0".to_vec()),
        ("deep arrays", deep("[", "]").into_bytes()),
        ("deep objects", deep("{\"a\":", "}").into_bytes()),
        ("an array", b"[]".to_vec()),
        ("a text", b"\"x\"".to_vec()),
        ("a number", b"1e999".to_vec()),
        ("null", b"null".to_vec()),
        ("a huge number", b"{\"workflowId\":1e400}".to_vec()),
    ];
    let mut tried = 0;
    for (method, path) in targets(&run) {
        if method != "POST" {
            continue;
        }
        for (what, body) in &bodies {
            tried += 1;
            let call = server.call(&method, &path).key(ALICE).bytes(body.clone());
            assert_refused(&call.send().await, &format!("{what} to {path}"));
            let once = server.call(&method, &path).key(ALICE).bytes(body.clone());
            let once = once.header("idempotency-key", "k").send().await;
            assert_refused(&once, &format!("{what} to {path}, once"));
        }
    }
    assert!(tried > 100);
    assert_eq!(server.event_types(&run).await, before, "nothing is half-written");
}

#[tokio::test]
async fn wrong_types_are_refused_field_by_field() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    let values = [
        json!(null),
        json!(7),
        json!([]),
        json!({}),
        json!("x"),
        json!(true),
    ];
    let fields: &[(&str, &[&str])] = &[
        (
            "/v1/runs",
            &[
                "workflowId",
                "inputs",
                "tenantId",
                "configurable",
                "tags",
                "metadata",
                "mode",
                "residency",
            ],
        ),
        ("/v1/runs:bulk-cancel", &["runIds", "reason"]),
        ("/v1/runs/RUN:pause", &["drainPolicy", "reason"]),
        (
            "/v1/workflows",
            &[
                "id",
                "nodes",
                "edges",
                "variables",
                "settings",
                "metadata",
                "triggers",
            ],
        ),
        ("/v1/host/wopr/keys", &["scopes", "id", "principal"]),
    ];
    for (path, names) in fields {
        for name in *names {
            for value in &values {
                let mut body = match *path {
                    "/v1/runs" => json!({ "workflowId": "conformance-noop" }),
                    "/v1/runs:bulk-cancel" => json!({ "runIds": ["x"] }),
                    "/v1/workflows" => crate::workflows::all().remove(1),
                    "/v1/host/wopr/keys" => json!({ "scopes": [] }),
                    _ => json!({}),
                };
                body[*name] = value.clone();
                let path = path.replace("RUN", &run);
                let reply = server.post(&path, &body).send().await;
                assert!(
                    reply.status < 500 || reply.status == 501,
                    "{path} {body}: {}",
                    reply.status
                );
                let _: Value = reply.json();
            }
        }
    }
}

#[tokio::test]
async fn oversized_body_is_refused_before_it_is_buffered() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    for (method, path) in targets(&run)
        .into_iter()
        .filter(|(method, _)| method == "POST")
        .take(4)
    {
        let huge = server.call(&method, &path).key(ALICE).send_huge(100 << 20).await;
        let details = huge.error(413, "payload_too_large");
        assert_eq!(details["maxRequestBodyBytes"], 10 << 20);
    }
    let nobody = server.call("POST", "/v1/runs").send_huge(1 << 20).await;
    nobody.error(401, "unauthenticated");

    let small = Server::start_with(|config| config.server.max_body_bytes = 2_000).await;
    let body = |bytes: usize| {
        let mut body = json!({ "workflowId": "conformance-noop", "inputs": { "a": "" } });
        let rest = bytes - body.to_string().len();
        body["inputs"]["a"] = json!("x".repeat(rest));
        body
    };
    small.post("/v1/runs", &body(2_000)).send().await.ok(201);
    small
        .post("/v1/runs", &body(2_001))
        .send()
        .await
        .error(413, "payload_too_large");
    // Without a declared length, too.
    let chunk = "x".repeat(1_000);
    let chunked = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {ALICE}\r\nconnection: close\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         3e8\r\n{chunk}\r\n3e8\r\n{chunk}\r\n3e8\r\n{chunk}\r\n0\r\n\r\n"
    );
    small
        .raw(chunked.as_bytes())
        .await
        .error(413, "payload_too_large");
}

#[tokio::test]
async fn body_with_huge_parsed_size_is_refused_before_parsing() {
    let server = Server::start().await;
    let small = |n: usize| vec![json!({ "": 0 }); n];
    let body = json!({ "workflowId": "conformance-noop", "inputs": { "a": small(200_000) } });
    assert!(body.to_string().len() < 2 << 20);
    let refused = server.post("/v1/runs", &body).send().await;
    let details = refused.error(413, "payload_too_large");
    assert_eq!(details["maxParsedBodyBytes"], 24 << 20);
    server
        .post("/v1/workflows", &body)
        .send()
        .await
        .error(413, "payload_too_large");
    // The parsed size of numbers and strings is close to that of their text.
    for taken in [
        json!(small(20_000)),
        json!(vec![1; 500_000]),
        json!("x".repeat(9 << 20)),
    ] {
        let body = json!({ "workflowId": "conformance-noop", "inputs": { "a": taken } });
        server.post("/v1/runs", &body).send().await.ok(201);
    }
}

#[tokio::test]
async fn invalid_ids_are_answered_as_unknown() {
    let server = Server::start().await;
    let long = "x".repeat(4_000);
    for id in [
        "x",
        "..",
        "%2e%2e",
        "%00",
        "run_%ff",
        "a b",
        "🦀",
        "run_é",
        &long,
        "%2F",
        "'; drop table runs",
    ] {
        let id = id
            .replace(' ', "%20")
            .replace('🦀', "%F0%9F%A6%80")
            .replace('é', "%C3%A9");
        for path in [
            format!("/v1/runs/{id}"),
            format!("/v1/runs/{id}/events"),
            format!("/v1/runs/{id}/events/poll"),
            format!("/v1/runs/{id}/artifacts"),
            format!("/v1/workflows/{id}"),
            format!("/v1/interrupts/{id}"),
            format!("/v1/a2a/tasks/{id}"),
        ] {
            let reply = server.get(&path).send().await;
            assert_refused(&reply, &path);
            assert_eq!(reply.status, 404, "{path}");
        }
    }
}

#[tokio::test]
async fn non_http_input_does_not_harm_the_server() {
    let server = Server::start().await;
    for bytes in [
        &b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: -1\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/runs HTTP/1.1\r\nauthorization: Bearer \xff\xfe\r\n\r\n",
    ] {
        use tokio::io::AsyncWriteExt as _;
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        drop(stream);
    }
    let twice = format!(
        "GET /v1/runs HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {ALICE}\r\nauthorization: Bearer x\r\n\
         connection: close\r\n\r\n"
    );
    server.raw(twice.as_bytes()).await.error(401, "unauthenticated");
    server.get("/v1/runs").send().await.ok(200);
}
