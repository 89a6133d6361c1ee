//! Runs are removed after the retention period.

use std::time::Duration;

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use wopr_server::config::{Keep, Period, StoreUrl};

use crate::{
    client::Reply,
    server::{ALICE, Server},
};

async fn start(store: StoreUrl) -> Server {
    Server::start_with(|config| {
        config.store = store;
        config.retention.terminal_runs = Keep::For(Period::from_secs(1));
    })
    .await
}

/// Polls until the run is gone; every response before that shows the complete run.
async fn gone(server: &Server, run: &str) -> Reply {
    let path = format!("/v1/runs/{run}");
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let reply = server.get(&path).send().await;
        if reply.status != 200 {
            return reply;
        }
        assert!(tokio::time::Instant::now() < give_up, "{run} stays");
        tokio::time::sleep(Duration::from_millis(50)).await; // sleep: poll interval
    }
}

async fn an_ended_run_goes_and_its_key_answers_not_found(server: Server) {
    let waiting = server.run("approval", json!({})).await;
    let body = json!({ "workflowId": "conformance-noop", "inputs": {} });
    let create = server.post("/v1/runs", &body).header("idempotency-key", "k1");
    let run = create.send().await.ok(201)["runId"].as_str().unwrap().to_owned();
    server.wait_for(&run, "completed").await;

    gone(&server, &run).await.error(404, "not_found");
    for path in [
        format!("/v1/runs/{run}/events"),
        format!("/v1/runs/{run}/events/poll?timeout=1"),
        format!("/v1/runs/{run}/artifacts"),
        format!("/v1/a2a/tasks/{run}"),
    ] {
        assert_eq!(server.get(&path).send().await.status, 404, "{path}");
    }
    // Its log is gone, and what its agents read with it.
    let fork = |run: &str| {
        server.post(
            &format!("/v1/runs/{run}:fork"),
            &json!({ "mode": "replay", "fromSeq": 1 }),
        )
    };
    let refused = fork(&run)
        .send()
        .await
        .error(422, "replay_memory_snapshot_unavailable");
    assert_eq!(
        refused,
        json!({ "sourceRunId": run, "fromSeq": 1, "reason": "retention_expired" })
    );
    // The answer says nothing about which runs there were: only the age of the id counts.
    for (unknown, status) in [
        ("run_018bcfe5687b7000bfffffffffffffff", 422),
        ("run_ffffffffffff7000bfffffffffffffff", 404),
        ("run_unknown", 404),
    ] {
        assert_eq!(fork(unknown).send().await.status, status, "{unknown}");
    }
    let retry = |run: &str| server.post(&format!("/v1/host/wopr/runs/{run}:retry"), &json!({}));
    let refused = retry(&run)
        .send()
        .await
        .error(422, "replay_memory_snapshot_unavailable");
    assert_eq!(
        refused,
        json!({ "sourceRunId": run, "reason": "retention_expired" })
    );
    retry("run_unknown").send().await.error(404, "not_found");
    let cancel = server.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
    cancel.send().await.error(404, "not_found");

    let before = server.get("/v1/runs").send().await.ok(200);
    create.send().await.error(404, "not_found");
    let other = json!({ "workflowId": "conformance-noop", "inputs": { "a": 1 } });
    let reused = server.post("/v1/runs", &other).header("idempotency-key", "k1");
    reused.send().await.error(409, "idempotency_key_mismatch");
    let after = server.get("/v1/runs").send().await.ok(200);
    assert_eq!(before, after, "no second run");
    assert_eq!(after["runs"].as_array().unwrap().len(), 1);
    assert_eq!(after["runs"][0]["runId"], waiting.as_str(), "what waits stays");

    // A run is gone as soon as it is marked, and counted once its rows are deleted.
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = server.get("/metrics").send().await;
        let text = String::from_utf8(metrics.body).unwrap();
        if text.contains("\nwopr_runs_removed_total 1\n") {
            break;
        }
        assert!(tokio::time::Instant::now() < give_up, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await; // sleep: poll interval
    }
    server.stop().await;
}

#[tokio::test]
async fn ended_run_is_removed_and_its_key_returns_not_found_in_memory() {
    an_ended_run_goes_and_its_key_answers_not_found(start(StoreUrl::Memory).await).await;
}

#[tokio::test]
async fn ended_run_is_removed_and_its_key_returns_not_found_on_sqlite() {
    an_ended_run_goes_and_its_key_answers_not_found(start(StoreUrl::Sqlite("wopr.db".into())).await).await;
}

#[tokio::test]
async fn stream_ends_when_its_run_is_removed() {
    let server = start(StoreUrl::Memory).await;
    // The first event exceeds the socket buffers, so an idle reader holds the rest back.
    let run = server
        .run("conformance-noop", json!({ "text": "x".repeat(9 << 20) }))
        .await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "GET /v1/runs/{run}/events HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {ALICE}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = vec![0; 1 << 10];
    stream.read_exact(&mut text).await.unwrap();
    gone(&server, &run).await;
    stream.read_to_end(&mut text).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("event: run.started"));
    assert!(!text.contains("event: run.completed"), "the rest was gone");
    assert!(text.ends_with("\r\n0\r\n\r\n"), "a clean end");
    server.stop().await;
}
