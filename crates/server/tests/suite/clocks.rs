//! System clock changes while a host runs, and while none does.

use serde_json::{Value, json};

use crate::server::Server;

/// Longer than idempotency records are kept.
const LONG_MS: i64 = 25 * 3_600_000;

/// Starts a run over REST and one over A2A, each with an idempotent request; returns both.
async fn both(server: &Server, key: &str) -> (Value, Value) {
    let body = json!({ "workflowId": "delay" });
    let create = server.post("/v1/runs", &body).header("idempotency-key", key);
    let created = create.send().await.ok(201);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {
        "message": {
            "messageId": key, "role": "ROLE_USER", "parts": [{"text": "hello"}],
            "metadata": {"skillId": "delay"},
        },
        "configuration": {"returnImmediately": true},
    }});
    let sent = server.post("/a2a", &call).header("a2a-version", "1.0");
    let sent = sent.send().await.ok(200);
    (created["runId"].clone(), sent["result"]["task"]["id"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotency_records_survive_a_clock_correction() {
    for restarts in [false, true] {
        let mut server = Server::start_on_sqlite().await;
        let before = both(&server, "before").await;
        server.clock.advance(-LONG_MS);
        if restarts {
            server = server.again_on_sqlite().await;
        }
        let meanwhile = both(&server, "meanwhile").await;
        assert!(
            before.0.is_string() && meanwhile.1.is_string(),
            "{before:?} {meanwhile:?}"
        );
        if restarts {
            server = server.again_on_sqlite().await;
        }
        server.clock.advance(LONG_MS);
        for (key, runs) in [("before", before), ("meanwhile", meanwhile)] {
            assert_eq!(both(&server, key).await, runs, "{key}, restarts: {restarts}");
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_last_equally_long_whatever_the_clock_is_set_to() {
    let server = Server::start_on_sqlite().await;
    let set_before = server.run("short-delay", json!({})).await;
    server.clock.advance(-LONG_MS);
    let set_after = server.run("short-delay", json!({})).await;
    for run in [set_before, set_after] {
        server.wait_for(&run, "completed").await;
    }
    // The host's own timestamps do not go back either.
    let run = server.run("short-delay", json!({})).await;
    let shown = server.wait_for(&run, "completed").await;
    assert!(
        shown["startedAt"].as_str() <= shown["completedAt"].as_str(),
        "{shown}"
    );
    let metrics = server.get("/metrics").send().await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(
        metrics.contains("wopr_clock_steps_total{direction=\"back\"} 1\n"),
        "{metrics}"
    );
    let ahead = metrics
        .lines()
        .find_map(|line| line.strip_prefix("wopr_clock_ahead_seconds "));
    let ahead: f64 = ahead.and_then(|seconds| seconds.parse().ok()).expect("a gauge");
    // Both clocks are read in whole milliseconds.
    let difference = std::time::Duration::from_secs_f64(ahead).abs_diff(std::time::Duration::from_hours(25));
    assert!(difference.as_millis() < 1_000, "{ahead}");
    server.stop().await;
}
