//! Following a run: streams, batches, resuming, polling.

use std::time::Instant;

use serde_json::{Value, json};

use crate::server::{ALICE, Server};

fn names(events: &[wopr_wire::sse::Event]) -> Vec<&str> {
    events.iter().map(|event| event.event.as_str()).collect()
}

fn ids(events: &[wopr_wire::sse::Event]) -> Vec<u64> {
    events.iter().map(|event| event.id.parse().unwrap()).collect()
}

async fn follow(server: &Server, run: &str, query: &str) -> Vec<wopr_wire::sse::Event> {
    let path = format!("/v1/runs/{run}/events{query}");
    server.get(&path).events().await.all().await
}

#[tokio::test]
async fn a_stream_shows_every_mode_and_ends_with_the_run() {
    let server = Server::start().await;
    let run = server.run("three", json!({})).await;
    server.wait_for(&run, "completed").await;
    let updates = follow(&server, &run, "").await;
    assert_eq!(
        names(&updates),
        [
            "run.started",
            "node.completed",
            "node.completed",
            "node.completed",
            "run.completed"
        ]
    );
    let first: Value = serde_json::from_str(&updates[0].data).unwrap();
    assert_eq!(first["eventId"], format!("{run}.0"));
    assert_eq!(first["payload"]["transport"], "rest");
    assert_eq!(
        (&first["schemaVersion"], &first["engineVersion"]),
        (&json!(1), &json!("1"))
    );

    let debug = follow(&server, &run, "?streamMode=debug").await;
    assert_eq!(ids(&debug), (0..8).collect::<Vec<_>>());
    let mixed = follow(&server, &run, "?streamMode=updates,messages").await;
    assert_eq!(ids(&mixed), ids(&updates));
    assert!(names(&mixed).iter().all(|name| *name == "updates"));
    // A list may also come as several parameters.
    let repeated = follow(&server, &run, "?streamMode=messages&streamMode=debug").await;
    assert_eq!(ids(&repeated), ids(&debug));
    let values = follow(&server, &run, "?streamMode=values").await;
    assert!(names(&values).iter().all(|name| *name == "state.snapshot"));
    let last: Value = serde_json::from_str(&values.last().unwrap().data).unwrap();
    assert_eq!(
        (&last["status"], &last["atSeq"]),
        (&json!("completed"), &json!(7))
    );
    let first: Value = serde_json::from_str(&values[0].data).unwrap();
    assert_eq!(
        (&first["status"], &first["atSeq"]),
        (&json!("running"), &json!(0))
    );
    assert!(follow(&server, &run, "?streamMode=messages").await.is_empty());
}

#[tokio::test]
async fn stream_opened_early_sees_later_events() {
    let server = Server::start_on_sqlite().await;
    let run = server.run("approval", json!({})).await;
    let mut events = server.get(&format!("/v1/runs/{run}/events")).events().await;
    let head = events.head.as_ref().unwrap();
    assert_eq!(
        (head.status, head.header("content-type")),
        (200, Some("text/event-stream"))
    );
    assert!(head.header("cache-control").unwrap().starts_with("no-cache"));
    loop {
        let event = events.next().await.unwrap();
        if event.event == "node.suspended" {
            break;
        }
    }
    let answer = json!({ "action": "accept" });
    let path = format!("/v1/runs/{run}/approvals/gate");
    server.post(&path, &answer).send().await.ok(200);
    let rest = events.all().await;
    assert_eq!(
        names(&rest),
        [
            "interrupt.resolved",
            "approval.received",
            "node.completed",
            "run.completed"
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn stream_resumes_after_the_last_event_id() {
    let server = Server::start().await;
    let run = server.run("three", json!({})).await;
    server.wait_for(&run, "completed").await;
    let path = format!("/v1/runs/{run}/events?streamMode=debug");
    let after = async |id: &str| {
        let call = server.get(&path).header("last-event-id", id);
        ids(&call.events().await.all().await)
    };
    assert_eq!(after("3").await, [4, 5, 6, 7]);
    assert_eq!(after(&format!("{run}.3")).await, [4, 5, 6, 7]);
    assert_eq!(after("7").await, [] as [u64; 0]);
    assert_eq!(after("99").await, [] as [u64; 0]);
    assert_eq!(after("18446744073709551615").await, [] as [u64; 0]);
    // An unknown id starts from the beginning.
    for unknown in ["evt_1", "-1", "run_other_0123456789.3"] {
        assert_eq!(after(unknown).await.len(), 8, "{unknown}");
    }
    let values = server.get(&format!("/v1/runs/{run}/events?streamMode=values"));
    let values = values.header("last-event-id", "3").events().await.all().await;
    assert_eq!(ids(&values), [3, 4, 5, 6, 7]);
    let snapshot: Value = serde_json::from_str(&values[0].data).unwrap();
    assert_eq!(snapshot["status"], "running");
}

#[tokio::test]
async fn cursor_past_the_end_does_not_hide_later_events() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/runs/{run}/events?streamMode=debug");
    let events = server.get(&path).header("last-event-id", "1000").events().await;
    let answer = json!({ "action": "accept" });
    server
        .post(&format!("/v1/runs/{run}/approvals/gate"), &answer)
        .send()
        .await
        .ok(200);
    let events = events.all().await;
    assert_eq!(names(&events)[0], "interrupt.resolved");
    assert_eq!(names(&events).last(), Some(&"run.completed"));
}

#[tokio::test]
async fn batches_are_arrays_and_never_outlive_the_run() {
    let server = Server::start().await;
    let run = server.run("short-delay", json!({})).await;
    let begun = Instant::now();
    let events = follow(&server, &run, "?bufferMs=5000").await;
    assert!(begun.elapsed().as_secs() < 4, "the end of the run ends the wait");
    assert!(names(&events).iter().all(|name| *name == "batch"));
    let mut types = Vec::new();
    for event in &events {
        let batch: Vec<Value> = serde_json::from_str(&event.data).unwrap();
        assert_eq!(batch.last().unwrap()["sequence"].to_string(), event.id);
        types.extend(
            batch
                .iter()
                .map(|event| event["type"].as_str().unwrap().to_owned()),
        );
    }
    assert_eq!(
        types,
        ["run.started", "node.completed", "node.completed", "run.completed"]
    );
    assert!(
        names(&follow(&server, &run, "?bufferMs=0").await)
            .iter()
            .all(|name| *name != "batch")
    );
    // A waiting run flushes its batch.
    let run = server.run("approval", json!({})).await;
    let path = format!("/v1/runs/{run}/events?bufferMs=5000");
    let mut events = server.get(&path).events().await;
    let batch = events.next().await.unwrap();
    assert!(batch.data.contains("node.suspended"));
}

#[tokio::test]
async fn parameters_are_checked_before_anything_is_sent() {
    let server = Server::start().await;
    let run = server.run("conformance-noop", json!({})).await;
    for (query, code) in [
        ("?streamMode=all", "unsupported_stream_mode"),
        ("?streamMode=values,updates", "unsupported_stream_mode"),
        ("?streamMode=updates,bogus", "unsupported_stream_mode"),
        ("?streamMode=updates&streamMode=values", "unsupported_stream_mode"),
        ("?bufferMs=-1", "validation_error"),
        ("?bufferMs=5001", "validation_error"),
        ("?bufferMs=1.5", "validation_error"),
    ] {
        for accept in ["text/event-stream", "application/json"] {
            let path = format!("/v1/runs/{run}/events{query}");
            let reply = server.get(&path).header("accept", accept).send().await;
            let details = reply.error(400, code);
            if code == "unsupported_stream_mode" {
                assert_eq!(
                    details["supported"],
                    json!(["updates", "values", "messages", "debug"])
                );
            }
        }
    }
    for query in [
        "?lastSequence=-1",
        "?lastSequence=x",
        "?since=y",
        "?timeout=0",
        "?timeout=61",
    ] {
        let path = format!("/v1/runs/{run}/events/poll{query}");
        server.get(&path).send().await.error(400, "validation_error");
    }
}

#[tokio::test]
async fn json_readers_get_the_whole_log_at_once() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/runs/{run}/events");
    let log = server
        .get(&path)
        .header("accept", "application/json")
        .send()
        .await
        .ok(200);
    let events = log["events"].as_array().unwrap();
    assert_eq!(events[1]["type"], "node.started");
    assert_eq!(
        (&log["isComplete"], &log["runStatus"]),
        (&json!(false), &json!("waiting-approval"))
    );
    let filtered = server.get(&format!("{path}?streamMode=updates"));
    let filtered = filtered.header("accept", "application/json").send().await.ok(200);
    // A list of events holds no snapshots.
    for path in [
        format!("{path}?streamMode=values"),
        format!("{path}/poll?streamMode=values"),
    ] {
        let snapshots = server.get(&path).header("accept", "application/json");
        let details = snapshots.send().await.error(400, "unsupported_stream_mode");
        assert_eq!(
            details["supported"],
            json!(["updates", "messages", "debug"]),
            "{path}"
        );
    }
    let events = filtered["events"].as_array().unwrap();
    assert!(events.iter().all(|event| event["type"] != "node.started"));
    // With both media types, the response is a stream, and with a refused one the other.
    for accept in [
        "application/json, text/event-stream",
        "application/json;q=0",
        "application/json; Q=0.0",
    ] {
        let call = server.call("GET", &path).key(ALICE).header("accept", accept);
        let mut events = call.events().await;
        assert_eq!(events.next().await.unwrap().event, "run.started", "{accept}");
    }
    let json = server
        .get(&path)
        .header("accept", "text/event-stream;q=0, application/json");
    assert_eq!(json.send().await.ok(200)["isComplete"], false);
}

#[tokio::test]
async fn a_poll_waits_for_the_next_event() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    let path = format!("/v1/runs/{run}/events/poll");
    let first = server.get(&path).send().await.ok(200);
    assert_eq!(first["events"][0]["sequence"], 0);
    let last = first["lastEventSeq"].as_u64().unwrap();
    let waiting = server.get(&format!("{path}?lastSequence={last}&timeout=30&streamMode=debug"));
    let accept = json!({ "action": "accept" });
    let resolve = server.post(&format!("/v1/runs/{run}/approvals/gate"), &accept);
    let (next, resolved) = tokio::join!(waiting.send(), resolve.send());
    resolved.ok(200);
    let next = next.ok(200);
    assert_eq!(next["events"][0]["sequence"], last + 1);

    let all = server.get(&path).send().await.ok(200);
    assert_eq!(all["runStatus"], "completed");
    assert_eq!(
        (&all["isComplete"], &all["isTerminal"]),
        (&json!(true), &json!(true))
    );
    let events = all["events"].as_array().unwrap();
    for (sequence, event) in events.iter().enumerate() {
        assert_eq!(event["sequence"], sequence);
    }
    assert_eq!(server.get(&path).send().await.ok(200), all);
    let past = server
        .get(&format!("{path}?lastSequence=1000"))
        .send()
        .await
        .ok(200);
    assert_eq!((&past["events"], &past["isComplete"]), (&json!([]), &json!(true)));
    let zero = server.get(&format!("{path}?since=0")).send().await.ok(200);
    assert_eq!(zero["events"][0]["sequence"], 1);
}

#[tokio::test]
async fn idle_stream_is_kept_alive_until_shutdown() {
    let server = Server::start_with(|config| {
        config.server.sse_keepalive = "20ms".parse().unwrap();
    })
    .await;
    let run = server.run("approval", json!({})).await;
    let mut events = server.get(&format!("/v1/runs/{run}/events")).events().await;
    events.until(":keepalive").await;
    let metrics = server.call("GET", "/metrics").send().await;
    assert!(
        String::from_utf8(metrics.body)
            .unwrap()
            .contains("wopr_open_streams 1\n")
    );
    server.stop().await;
    while events.next().await.is_some() {}
    assert!(events.is_closed);
}

#[tokio::test]
async fn shutdown_waits_for_requests_in_flight() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = Server::start_on_sqlite().await;
    let body = json!({ "workflowId": "approval" }).to_string();
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {ALICE}\r\nexpect: 100-continue\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server asks for the body once it works on the request.
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    let host = std::sync::Arc::clone(&server.host);
    let stopping = tokio::spawn(server.stop());
    host.closing().wait_for(|is_closing| *is_closing).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 201 Created"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    stopping.await.unwrap();
}

#[tokio::test]
async fn stalled_readers_do_not_block_others() {
    let server = Server::start().await;
    let text = "x".repeat(1 << 20);
    let run = server.run("conformance-noop", json!({ "text": text })).await;
    server.wait_for(&run, "completed").await;
    let path = format!("/v1/runs/{run}/events");
    let mut idle = Vec::new();
    for n in 0..60 {
        let mode = ["updates", "debug", "values"][n % 3];
        let call = server.get(&format!("{path}?streamMode={mode}"));
        idle.push(call.events().await);
    }
    let other = server.run("conformance-noop", json!({})).await;
    server.wait_for(&other, "completed").await;
    drop(idle);
}

#[tokio::test]
async fn large_events_arrive_whole_and_in_order() {
    let server = Server::start().await;
    let text = "x".repeat(300 << 10);
    let run = server.run("conformance-noop", json!({ "text": text })).await;
    server.wait_for(&run, "completed").await;
    let poll = server.get(&format!("/v1/runs/{run}/events/poll?timeout=1"));
    let poll = poll.send().await.ok(200);
    let wanted: Vec<_> = poll["events"].as_array().unwrap().clone();
    assert_eq!(wanted[0]["payload"]["inputs"]["text"], text);
    let path = format!("/v1/runs/{run}/events?streamMode=debug");
    for path in [path.clone(), format!("{path}&bufferMs=5000")] {
        let mut got: Vec<Value> = Vec::new();
        for event in server.get(&path).events().await.all().await {
            match serde_json::from_str(&event.data).unwrap() {
                Value::Array(batch) => got.extend(batch),
                one => got.push(one),
            }
        }
        assert_eq!(got, wanted, "{path}");
    }
}

#[tokio::test]
async fn poll_of_large_events_is_paged() {
    let server = Server::start_with(|config| config.server.max_body_bytes = 8 << 20).await;
    let text = "x".repeat(5 << 20);
    let run = server.run("conformance-noop", json!({ "text": text })).await;
    server.wait_for(&run, "completed").await;
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let first = server.get(&path).send().await.ok(200);
    assert_eq!(
        (&first["lastEventSeq"], &first["isComplete"]),
        (&json!(0), &json!(false))
    );
    let rest = server.get(&format!("{path}&lastSequence=0")).send().await.ok(200);
    assert_eq!(rest["isComplete"], true);
}

#[tokio::test]
async fn snapshots_that_are_followed_are_bounded_for_each_tenant() {
    let server = Server::start().await;
    let run = server
        .run("approval", json!({ "text": "x".repeat(900_000) }))
        .await;
    server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/runs/{run}/events?streamMode=values");
    let follow = async || {
        let events = server.get(&path).events().await;
        let status = events.head.as_ref().unwrap().status;
        (events, status)
    };
    let mut followed = Vec::new();
    let refused = loop {
        assert!(
            followed.len() < 200,
            "so many streams of a large run were accepted"
        );
        match follow().await {
            (events, 200) => followed.push(events),
            (_, refused) => break refused,
        }
    };
    assert_eq!(refused, 503);
    assert!(followed.len() > 10, "{} streams were accepted", followed.len());
    // A stream of events keeps no run.
    let debug = format!("/v1/runs/{run}/events?streamMode=debug");
    assert!(server.get(&debug).events().await.next().await.is_some());
    // What is not followed any more makes room.
    drop(followed);
    while follow().await.1 != 200 {}
}
