//! Worker queues: leases by long poll, what ends them, their limits, and who sees them.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use wopr_server::config::WorkerQueue;

use crate::{
    client::Reply,
    server::{ADAM, BOB, READER, Server},
    workflows::{chain, node},
};

const LEASE: &str = "/v1/activities:lease";

/// A lease of one activity without waiting.
async fn lease(server: &Server, queue: &str) -> Option<Value> {
    let leased = leases(server, json!({ "queue": queue })).await;
    assert!(leased.len() <= 1, "{leased:?}");
    leased.into_iter().next()
}

async fn leases(server: &Server, body: Value) -> Vec<Value> {
    let leased = server.post(LEASE, &body).send().await.ok(200);
    leased["activities"].as_array().unwrap().clone()
}

/// A call that waits while the test goes on.
fn waiting(server: &Server, worker: &str, queue: &str) -> JoinHandle<Reply> {
    let body = json!({ "queue": queue, "worker": worker, "waitMs": 20_000 });
    let call = server.post(LEASE, &body);
    tokio::spawn(async move { call.send().await })
}

/// Returns once so many calls of a worker wait.
pub(crate) async fn are_waiting(server: &Server, worker: &str, n: u64) {
    loop {
        let listed = server.get("/v1/host/wopr/workers").send().await.ok(200);
        let workers = listed["workers"].as_array().unwrap();
        let is_there = |seen: &&Value| seen["worker"] == worker && seen["waiting"] == n;
        if workers.iter().any(|seen| is_there(&seen)) {
            return;
        }
    }
}

fn path(activity: &Value) -> String {
    format!("/v1/activities/{}", activity["token"].as_str().unwrap())
}

async fn submit(server: &Server, activity: &Value) -> Reply {
    let body = json!({ "outcome": { "ok": true, "result": { "sent": 1 } } });
    server.post(&path(activity), &body).send().await
}

async fn beat(server: &Server, activity: &Value) -> Reply {
    let path = format!("{}:heartbeat", path(activity));
    server.post(&path, &json!({})).send().await
}

#[tokio::test]
async fn a_worker_leases_and_ends_an_activity_across_restarts_of_the_host() {
    let server = Server::start_on_sqlite().await;
    let run = server.run("activity", json!({ "who": "Ann" })).await;
    let server = server.again_on_sqlite().await;
    let body = json!({ "queue": "letters", "worker": "w1", "max": 32, "waitMs": 20_000 });
    let leased = leases(&server, body).await;
    assert_eq!(leased.len(), 1);
    let activity = &leased[0];
    assert_eq!(activity["runId"], run);
    assert_eq!(
        (&activity["nodeId"], &activity["ordinal"]),
        (&json!("work"), &json!(0))
    );
    assert_eq!(
        (&activity["queue"], &activity["input"]),
        (&json!("letters"), &json!({ "to": "Ann" }))
    );
    assert_eq!(
        (&activity["attempt"], &activity["leaseMs"]),
        (&json!(0), &json!(60_000))
    );
    assert_ne!(activity["idempotencyKey"], "");
    assert_eq!(lease(&server, "letters").await, None, "it is leased");

    let server = server.again_on_sqlite().await;
    assert_eq!(
        lease(&server, "letters").await,
        None,
        "the lease survives the host"
    );
    assert_eq!(
        beat(&server, activity).await.ok(200),
        json!({ "cancelRequested": false })
    );
    let ended = submit(&server, activity).await.ok(200);
    assert_eq!(ended["runId"], run);
    server.wait_for(&run, "completed").await;
    let again = submit(&server, activity).await;
    assert_eq!(again.header("openwop-idempotent-replay"), Some("true"));
    assert_eq!(again.ok(200), ended);
    let types = server.event_types(&run).await;
    let progressed = types
        .iter()
        .filter(|kind| *kind == "vendor.wopr.effect.progressed");
    assert_eq!(
        progressed.count(),
        0,
        "leases and heartbeats without details are not in the log"
    );
    server.stop().await;
}

#[tokio::test]
async fn details_of_a_heartbeat_are_hidden_where_an_output_of_the_activity_is_sensitive() {
    let server = Server::start().await;
    let mut work = node("work", "core.activity", json!({ "queue": "hidden" }));
    work["outputSensitivity"] = json!({ "text": true });
    server
        .post("/v1/workflows", &chain("hidden", &[work]))
        .send()
        .await
        .ok(201);
    let run = server.run("hidden", json!({})).await;
    let activity = lease(&server, "hidden").await.unwrap();
    let path = format!("{}:heartbeat", path(&activity));
    let body = json!({ "details": { "text": "s3cret" } });
    server.post(&path, &body).send().await.ok(200);
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let told = server.get(&path).send().await.ok(200).to_string();
    assert!(told.contains("vendor.wopr.effect.progressed"), "{told}");
    assert!(!told.contains("s3cret"), "{told}");
}

#[tokio::test]
async fn a_waiting_call_is_answered_as_soon_as_there_is_work() {
    let server = Server::start().await;
    let (first, second) = (
        waiting(&server, "w1", "letters"),
        waiting(&server, "w1", "letters"),
    );
    are_waiting(&server, "w1", 2).await;
    let one = server.run("activity", json!({})).await;
    let two = server.run("activity", json!({})).await;
    let mut got = BTreeSet::new();
    for call in [first, second] {
        let leased = call.await.unwrap().ok(200);
        for activity in leased["activities"].as_array().unwrap() {
            submit(&server, activity).await.ok(200);
            got.insert(activity["runId"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(got, BTreeSet::from([one, two]));
    server.stop().await;
}

#[tokio::test]
async fn one_call_leases_many_activities_the_oldest_first() {
    let server = Server::start().await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(server.run("activity", json!({})).await);
    }
    let leased = leases(&server, json!({ "queue": "letters", "max": 3 })).await;
    let of = |leased: &[Value]| -> BTreeSet<String> {
        let runs = leased
            .iter()
            .map(|activity| activity["runId"].as_str().unwrap().to_owned());
        runs.collect()
    };
    let rest = leases(&server, json!({ "queue": "letters", "max": 32 })).await;
    assert_eq!((leased.len(), rest.len()), (3, 2));
    let all: BTreeSet<_> = of(&leased).union(&of(&rest)).cloned().collect();
    assert_eq!(all, runs.into_iter().collect());
    server.stop().await;
}

#[tokio::test]
async fn many_outcomes_of_one_request_take_effect_each_by_itself() {
    let server = Server::start().await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(server.run("activity", json!({})).await);
    }
    let leased = leases(&server, json!({ "queue": "letters", "max": 32 })).await;
    let done = json!({ "ok": true, "result": { "pages": 2 } });
    let outcome =
        |activity: &Value, outcome: &Value| json!({ "token": activity["token"], "outcome": outcome });
    let failed = json!({ "ok": false, "error": { "code": "no_paper" } });
    let body = json!({ "outcomes": [
        outcome(&leased[0], &done),
        { "token": "nonsense", "outcome": done },
        outcome(&leased[1], &failed),
        outcome(&leased[2], &json!({ "ok": "perhaps" })),
    ] });
    let submit_all = async || server.post("/v1/activities:submit", &body).send().await;
    let answer = submit_all().await.ok(200);
    let results = answer["results"].as_array().unwrap();
    let of = |n: usize| (&results[n]["token"], &results[n]["ok"], &results[n]["runId"]);
    let yes = json!(true);
    assert_eq!(of(0), (&leased[0]["token"], &yes, &leased[0]["runId"]));
    assert_eq!(of(2), (&leased[1]["token"], &yes, &leased[1]["runId"]));
    for (n, code) in [(1, "not_found"), (3, "validation_error")] {
        assert_eq!(results[n]["ok"], false);
        assert_eq!(results[n]["error"]["error"], code, "{answer}");
    }
    for (leased, status) in [(&leased[0], "completed"), (&leased[1], "failed")] {
        server.wait_for(leased["runId"].as_str().unwrap(), status).await;
    }
    // Again, alone and together with others, it is answered as before.
    let again = submit_all().await.ok(200);
    assert_eq!(again, answer);
    let alone = format!("/v1/activities/{}", leased[0]["token"].as_str().unwrap());
    let alone = server.post(&alone, &json!({ "outcome": done })).send().await;
    assert_eq!(alone.header("openwop-idempotent-replay"), Some("true"));
    let still = server
        .post(
            "/v1/activities:submit",
            &json!({ "outcomes": [outcome(&leased[2], &done)] }),
        )
        .send()
        .await
        .ok(200);
    assert_eq!(still["results"][0]["ok"], true, "{still}");
    for outcomes in [json!([]), json!(vec![outcome(&leased[0], &done); 257]), json!(7)] {
        let refused = server
            .post("/v1/activities:submit", &json!({ "outcomes": outcomes }))
            .send()
            .await;
        refused.error(400, "validation_error");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_lease_without_heartbeat_ends_and_its_token_is_stale() {
    let server = Server::start_with(|config| config.workers.lease = "1s".parse().unwrap()).await;
    let run = server.run("activity", json!({})).await;
    let first = lease(&server, "letters").await.unwrap();
    // Woken by the end of the lease.
    let again = waiting(&server, "w2", "letters").await.unwrap().ok(200);
    let second = &again["activities"][0];
    assert_ne!(first["token"], second["token"]);
    assert_eq!(first["idempotencyKey"], second["idempotencyKey"]);
    assert_eq!(second["attempt"], 0, "it is the same attempt");
    submit(&server, &first).await.error(409, "activity_stale");
    beat(&server, &first).await.error(409, "activity_stale");
    assert_eq!(
        beat(&server, second).await.ok(200),
        json!({ "cancelRequested": false })
    );
    submit(&server, second).await.ok(200);
    server.wait_for(&run, "completed").await;
    submit(&server, &first).await.error(409, "activity_stale");
    server.stop().await;
}

#[tokio::test]
async fn heartbeats_keep_a_lease() {
    let server = Server::start_with(|config| config.workers.lease = "1s".parse().unwrap()).await;
    let run = server.run("activity", json!({})).await;
    let activity = lease(&server, "letters").await.unwrap();
    let end = tokio::time::Instant::now() + std::time::Duration::from_millis(2_500);
    while tokio::time::Instant::now() < end {
        assert_eq!(
            beat(&server, &activity).await.ok(200),
            json!({ "cancelRequested": false })
        );
        assert_eq!(lease(&server, "letters").await, None);
    }
    submit(&server, &activity).await.ok(200);
    server.wait_for(&run, "completed").await;
    server.stop().await;
}

#[tokio::test]
async fn an_activity_that_loses_its_workers_fails_or_is_retried() {
    let server = Server::start_with(|config| {
        config.workers.lease = "1s".parse().unwrap();
        config.workers.max_lost_leases = 1;
    })
    .await;
    let run = server.run("activity", json!({})).await;
    let retried = server.run("activity-patient", json!({})).await;
    let lost = lease(&server, "letters").await.unwrap();
    let first = lease(&server, "patient").await.unwrap();
    // Its call outlasts the lease, and finds the second attempt.
    let again = waiting(&server, "w2", "patient").await.unwrap().ok(200);
    let second = &again["activities"][0];
    assert_eq!((&first["attempt"], &second["attempt"]), (&json!(0), &json!(1)));
    assert_eq!(first["idempotencyKey"], second["idempotencyKey"]);
    submit(&server, &first).await.error(409, "activity_stale");
    submit(&server, second).await.ok(200);
    server.wait_for(&retried, "completed").await;

    // A call that waits makes the host look at the queue.
    let call = waiting(&server, "w2", "letters");
    let failed = server.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "worker_lost");
    submit(&server, &lost).await.error(409, "activity_stale");
    let metrics = String::from_utf8(server.get("/metrics").send().await.body).unwrap();
    assert!(metrics.contains("wopr_activities_lost_total 2"), "{metrics}");
    server.stop().await;
    assert_eq!(call.await.unwrap().ok(200)["activities"], json!([]));
}

#[tokio::test]
async fn the_worker_of_a_cancelled_run_learns_it_from_its_heartbeat() {
    let server = Server::start().await;
    let run = server.run("activity", json!({})).await;
    let activity = lease(&server, "letters").await.unwrap();
    let cancel = server.post(&format!("/v1/runs/{run}:cancel"), &json!({}));
    cancel.send().await.ok(200);
    assert_eq!(
        beat(&server, &activity).await.ok(200),
        json!({ "cancelRequested": true })
    );
    submit(&server, &activity).await.error(409, "activity_stale");
    assert_eq!(lease(&server, "letters").await, None);
    server.stop().await;
}

#[tokio::test]
async fn a_retryable_failure_is_another_attempt_under_the_same_idempotency_key() {
    let server = Server::start().await;
    let run = server.run("activity-brief", json!({})).await;
    let first = lease(&server, "q").await.unwrap();
    let error = json!({ "code": "busy", "retryable": true });
    let failed = json!({ "outcome": { "ok": false, "error": error } });
    server.post(&path(&first), &failed).send().await.ok(200);
    let leased = waiting(&server, "w1", "q").await.unwrap().ok(200);
    let second = &leased["activities"][0];
    assert_eq!(
        (&second["attempt"], &second["timeoutMs"]),
        (&json!(1), &json!(1_000))
    );
    assert_eq!(first["idempotencyKey"], second["idempotencyKey"]);
    assert_eq!(
        beat(&server, &first).await.ok(200),
        json!({ "cancelRequested": true })
    );
    submit(&server, second).await.ok(200);
    server.wait_for(&run, "completed").await;
    server.stop().await;
}

#[tokio::test]
async fn a_token_of_the_run_ends_an_activity_that_a_worker_has() {
    let server = Server::start().await;
    let run = server.run("activity", json!({})).await;
    let leased = lease(&server, "letters").await.unwrap();
    let found = server.snapshot(&run).await["activities"][0].clone();
    submit(&server, &found).await.ok(200);
    server.wait_for(&run, "completed").await;
    submit(&server, &leased).await.error(409, "activity_stale");
    assert_eq!(
        beat(&server, &leased).await.ok(200),
        json!({ "cancelRequested": true })
    );
    server.stop().await;
}

#[tokio::test]
async fn a_queue_has_a_limited_number_of_leases() {
    let server = Server::start_with(|config| {
        config.workers.queues = vec![WorkerQueue {
            name: "letters".to_owned(),
            max_leased: Some(1),
            max_per_second: None,
        }];
    })
    .await;
    for _ in 0..2 {
        server.run("activity", json!({})).await;
    }
    let leased = leases(&server, json!({ "queue": "letters", "max": 9 })).await;
    assert_eq!(leased.len(), 1);
    let next = waiting(&server, "w2", "letters");
    are_waiting(&server, "w2", 1).await;
    assert_eq!(lease(&server, "letters").await, None);
    submit(&server, &leased[0]).await.ok(200);
    let next = next.await.unwrap().ok(200);
    assert_eq!(next["activities"].as_array().unwrap().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_has_a_limited_rate_of_leases() {
    let server = Server::start_with(|config| config.workers.max_per_second = Some(2)).await;
    for _ in 0..5 {
        server.run("activity", json!({})).await;
    }
    let leased = leases(&server, json!({ "queue": "letters", "max": 9 })).await;
    assert_eq!(leased.len(), 2);
    // The next ones come when the rate allows it, without another append.
    let next = waiting(&server, "w1", "letters").await.unwrap().ok(200);
    assert_eq!(next["activities"].as_array().unwrap().len(), 1, "{next}");
    server.stop().await;
}

#[tokio::test]
async fn a_tenant_has_a_limited_number_of_waiting_calls() {
    let server = Server::start_with(|config| config.workers.max_waiting = 1).await;
    let first = waiting(&server, "w1", "letters");
    are_waiting(&server, "w1", 1).await;
    let refused = server.post(LEASE, &json!({ "queue": "other" })).send().await;
    assert!(refused.header("retry-after").is_some());
    let details = refused.error(503, "service_unavailable");
    assert_eq!(details["limit"], "workers.max_waiting");
    let of_rival = server
        .call("POST", LEASE)
        .key(BOB)
        .json(&json!({ "queue": "letters" }));
    assert_eq!(of_rival.send().await.ok(200), json!({ "activities": [] }));
    server.run("activity", json!({})).await;
    first.await.unwrap().ok(200);
    assert_eq!(lease(&server, "other").await, None);
    server.stop().await;
}

#[tokio::test]
async fn waiting_calls_end_with_the_host() {
    let server = Server::start().await;
    let call = waiting(&server, "w1", "letters");
    are_waiting(&server, "w1", 1).await;
    server.stop().await;
    assert_eq!(call.await.unwrap().ok(200), json!({ "activities": [] }));
}

#[tokio::test]
async fn queues_and_workers_of_a_tenant_are_listed() {
    let server = Server::start().await;
    server.run("activity", json!({})).await;
    server.run("activity", json!({})).await;
    let body = json!({ "queue": "letters", "worker": "w1" });
    let leased = leases(&server, body).await;
    let listed = server.get("/v1/host/wopr/workers").send().await.ok(200);
    let queue = &listed["queues"][0];
    assert_eq!(
        (&queue["queue"], &queue["waiting"], &queue["leased"]),
        (&json!("letters"), &json!(1), &json!(1))
    );
    assert!(queue["oldestAt"].is_string());
    let worker = &listed["workers"][0];
    assert_eq!(
        (&worker["worker"], &worker["working"], &worker["waiting"]),
        (&json!("w1"), &json!(1), &json!(0))
    );
    submit(&server, &leased[0]).await.ok(200);
    let listed = server.get("/v1/host/wopr/workers").send().await.ok(200);
    assert_eq!(
        (&listed["queues"][0]["leased"], &listed["workers"][0]["working"]),
        (&json!(0), &json!(0))
    );
    let theirs = server.call("GET", "/v1/host/wopr/workers").key(BOB);
    assert_eq!(
        theirs.send().await.ok(200),
        json!({ "queues": [], "workers": [] })
    );
    server.stop().await;
}

#[tokio::test]
async fn leases_are_for_workers_of_the_tenant_and_checked() {
    let server = Server::start().await;
    server.run("activity", json!({})).await;
    let body = json!({ "queue": "letters" });
    let call = |key: &str| server.call("POST", LEASE).key(key).json(&body);
    assert_eq!(call(BOB).send().await.ok(200), json!({ "activities": [] }));
    let refused = call(READER).send().await.ok(403);
    assert_eq!(refused["details"]["scopeRequired"], "activities:work");
    for body in [
        json!({}),
        json!({ "queue": "" }),
        json!({ "queue": "q".repeat(129) }),
        json!({ "queue": "a\nb" }),
        json!({ "queue": 1 }),
        json!({ "queue": "q", "worker": "" }),
        json!({ "queue": "q", "worker": "w".repeat(129) }),
        json!({ "queue": "q", "max": 0 }),
        json!({ "queue": "q", "max": 257 }),
        json!({ "queue": "q", "max": -1 }),
        json!({ "queue": "q", "waitMs": 60_001 }),
        json!({ "queue": "q", "more": 1 }),
    ] {
        let refused = server.post(LEASE, &body).send().await;
        refused.error(400, "validation_error");
    }
    // None of them leased it. A worker that gives no name has that of its principal.
    let leased = call(ADAM).send().await.ok(200);
    assert_eq!(leased["activities"].as_array().unwrap().len(), 1);
    let listed = server.get("/v1/host/wopr/workers").send().await.ok(200);
    assert_eq!(listed["workers"][0]["worker"], "adam");
    server.stop().await;
}
