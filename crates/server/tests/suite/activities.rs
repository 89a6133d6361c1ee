//! Steps that wait for workers: who sees them, how they end, and what restarts, timeouts and cancels do to them.

use serde_json::{Value, json};

use crate::server::{ADAM, BOB, READER, Server};

/// Waits until a step of the run waits for a worker in an attempt, and returns what the worker gets.
async fn activity(server: &Server, run: &str, attempt: usize) -> Value {
    let mut after = String::new();
    loop {
        let types = server.event_types(run).await;
        let is_scheduled = |kind: &&String| *kind == "vendor.wopr.effect.scheduled";
        if types.iter().filter(is_scheduled).count() > attempt {
            let snapshot = server.snapshot(run).await;
            assert_eq!(snapshot["status"], "running");
            return snapshot["activities"][0].clone();
        }
        let path = format!("/v1/runs/{run}/events/poll?timeout=10{after}");
        let poll = server.get(&path).send().await.ok(200);
        assert_eq!(poll["isTerminal"], false, "{poll}");
        after = format!("&lastSequence={}", poll["lastEventSeq"]);
    }
}

fn path(activity: &Value) -> String {
    format!("/v1/activities/{}", activity["token"].as_str().unwrap())
}

async fn submit(server: &Server, activity: &Value, outcome: Value) -> Value {
    let body = json!({ "outcome": outcome });
    let answer = server.post(&path(activity), &body).send().await;
    answer.ok(200)
}

async fn is_cancelled(server: &Server, activity: &Value) -> bool {
    let beat = server.call("POST", &format!("{}:heartbeat", path(activity)));
    let beat = beat.key(ADAM).json(&json!({ "details": { "done": 1 } }));
    beat.send().await.ok(200)["cancelRequested"].as_bool().unwrap()
}

#[tokio::test]
async fn worker_ends_a_step_across_a_restart() {
    let server = Server::start_on_sqlite().await;
    let run = server.run("activity", json!({ "who": "Ann" })).await;
    let first = activity(&server, &run, 0).await;
    assert_eq!(
        (
            &first["nodeId"],
            &first["ordinal"],
            &first["queue"],
            &first["input"]
        ),
        (
            &json!("work"),
            &json!(0),
            &json!("letters"),
            &json!({ "to": "Ann" })
        )
    );
    let seen = server
        .call("GET", &format!("/v1/runs/{run}"))
        .key(READER)
        .send()
        .await;
    assert_eq!(seen.ok(200).get("activities"), None, "readers are no workers");

    let server = server.again_on_sqlite().await;
    assert_eq!(server.snapshot(&run).await["activities"][0], first);
    assert!(!is_cancelled(&server, &first).await);

    let done = json!({ "ok": true, "result": { "sent": 3 } });
    let ended = submit(&server, &first, done.clone()).await;
    assert_eq!(ended["runId"], run);
    let snapshot = server.wait_for(&run, "completed").await;
    assert_eq!(snapshot.get("activities"), None);
    assert_eq!(
        server.event_types(&run).await,
        [
            "run.started",
            "node.started",
            "vendor.wopr.effect.scheduled",
            "vendor.wopr.effect.progressed",
            "node.completed",
            "run.completed"
        ]
    );
    let events = server
        .get(&format!("/v1/runs/{run}/events/poll"))
        .send()
        .await
        .ok(200);
    assert_eq!(events["events"][3]["payload"]["details"], json!({ "done": 1 }));
    assert_eq!(events["events"][4]["payload"]["outputs"], json!({ "sent": 3 }));

    // Once more, as after a lost answer; and with another outcome.
    let body = json!({ "outcome": done });
    let again = server.post(&path(&first), &body).send().await;
    assert_eq!(again.header("openwop-idempotent-replay"), Some("true"));
    assert_eq!(again.ok(200), ended);
    let other = json!({ "outcome": { "ok": true } });
    let other = server.post(&path(&first), &other).send().await;
    other.error(409, "activity_stale");
    assert!(
        is_cancelled(&server, &first).await,
        "nobody waits for it any more"
    );
    server.stop().await;
}

#[tokio::test]
async fn worker_fails_a_step_for_good() {
    let server = Server::start().await;
    let run = server.run("activity", json!({})).await;
    let first = activity(&server, &run, 0).await;
    let error = json!({ "code": "no_paper", "message": "the tray is empty" });
    submit(&server, &first, json!({ "ok": false, "error": error })).await;
    let snapshot = server.wait_for(&run, "failed").await;
    assert_eq!(snapshot["error"]["code"], "no_paper");
    server.stop().await;
}

#[tokio::test]
async fn attempt_that_fails_or_takes_too_long_is_repeated_under_another_token() {
    let server = Server::start().await;
    let run = server.run("activity-brief", json!({})).await;
    let first = activity(&server, &run, 0).await;
    let error = json!({ "code": "busy", "retryable": true });
    submit(&server, &first, json!({ "ok": false, "error": error })).await;
    let second = activity(&server, &run, 1).await;
    assert_ne!(first["token"], second["token"]);
    assert!(is_cancelled(&server, &first).await);
    let late = json!({ "outcome": { "ok": true } });
    let late = server.post(&path(&first), &late).send().await;
    late.error(409, "activity_stale");

    // Nobody works at the second: its second passes.
    let snapshot = server.wait_for(&run, "failed").await;
    assert_eq!(snapshot["error"]["code"], "activity_timeout");
    let late = json!({ "outcome": { "ok": true } });
    let late = server.post(&path(&second), &late).send().await;
    late.error(409, "activity_stale");
    server.stop().await;
}

#[tokio::test]
async fn worker_of_a_cancelled_run_learns_it() {
    let server = Server::start().await;
    let run = server.run("activity", json!({})).await;
    let first = activity(&server, &run, 0).await;
    let cancelled = server.post(&format!("/v1/runs/{run}:cancel"), &json!({}));
    cancelled.send().await.ok(200);
    assert!(is_cancelled(&server, &first).await);
    let late = json!({ "outcome": { "ok": true } });
    let late = server.post(&path(&first), &late).send().await;
    late.error(409, "activity_stale");
    server.stop().await;
}

#[tokio::test]
async fn activities_are_for_workers_of_their_tenant_with_true_tokens() {
    let server = Server::start().await;
    let run = server.run("activity", json!({})).await;
    let first = activity(&server, &run, 0).await;
    let done = json!({ "outcome": { "ok": true } });
    let to = |path: &str| server.call("POST", path).json(&done);

    let stranger = to(&path(&first)).key(BOB).send().await;
    stranger.error(404, "not_found");
    let reader = to(&path(&first)).key(READER).send().await.ok(403);
    assert_eq!(reader["details"]["scopeRequired"], "activities:work");
    let token = first["token"].as_str().unwrap();
    let (payload, mac) = token.split_once('.').unwrap();
    let long = "a".repeat(5_000);
    for forged in [
        "x",
        "x.y",
        payload,
        &format!("{payload}."),
        &format!("{payload}x.{mac}"),
        &long,
    ] {
        let refused = to(&format!("/v1/activities/{forged}")).key(ADAM).send().await;
        refused.error(404, "not_found");
    }
    for body in [
        json!({}),
        json!({ "outcome": 1 }),
        json!({ "outcome": { "ok": true, "error": {} } }),
        json!({ "outcome": { "ok": false } }),
        json!({ "outcome": { "ok": false, "error": { "code": "" } } }),
        json!({ "outcome": { "ok": false, "error": { "code": "c".repeat(129) } } }),
        json!({ "outcome": { "ok": false, "error": { "code": "c", "message": "m".repeat(8_193) } } }),
        json!({ "outcome": { "ok": true }, "more": 1 }),
    ] {
        let refused = server.post(&path(&first), &body).send().await;
        refused.error(400, "validation_error");
    }
    let much = json!({ "details": "d".repeat(65_537) });
    let beat = server
        .post(&format!("{}:heartbeat", path(&first)), &much)
        .send()
        .await;
    beat.error(400, "validation_error");
    // None of them ended it.
    submit(&server, &first, json!({ "ok": true, "result": 7 })).await;
    let events = server.wait_for(&run, "completed").await;
    assert_eq!(events["nodeStates"]["work"]["status"], "completed");
    server.stop().await;
}
