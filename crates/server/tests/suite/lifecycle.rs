//! The lifecycle of runs.

use serde_json::{Value, json};
use wopr_server::{StoreStats, bind};

use crate::{
    server::{ALICE, Server, config},
    workflows::{chain, node},
};

async fn a_run_is_started_read_and_listed(server: &Server) {
    let body = json!({
        "workflowId": "identity", "inputs": { "payload": { "a": [1, null] } },
        "tags": ["x"], "metadata": { "k": 1 }, "configurable": { "recursionLimit": 9 },
    });
    let created = server.post("/v1/runs", &body).send().await;
    assert_eq!(created.header("openwop-idempotent-replay"), None);
    let created = created.ok(201);
    assert_eq!(created["status"], "pending");
    let run = created["runId"].as_str().unwrap();
    let origin = server.host.public_url();
    assert_eq!(created["statusUrl"], format!("{origin}/v1/runs/{run}"));
    assert_eq!(created["eventsUrl"], format!("{origin}/v1/runs/{run}/events"));

    let snapshot = server.wait_for(run, "completed").await;
    assert_eq!(snapshot["variables"]["payload"], json!({ "a": [1, null] }));
    assert_eq!(snapshot["inputs"], json!({ "payload": { "a": [1, null] } }));
    assert_eq!(
        snapshot["owner"],
        json!({ "tenant": "acme", "principal": "alice" })
    );
    assert_eq!(snapshot["tags"], json!(["x"]));
    assert_eq!(snapshot["metadata"], json!({ "k": 1 }));
    assert_eq!(snapshot["nodeStates"]["echo"]["status"], "completed");
    assert!(snapshot["completedAt"].is_string() && snapshot.get("currentNodeId").is_none());
    assert_eq!(
        server.event_types(run).await,
        ["run.started", "node.started", "node.completed", "run.completed"]
    );

    let list = server.get("/v1/runs?workflowId=identity&status=completed,failed");
    let list = list.send().await.ok(200);
    assert_eq!(list["runs"][0]["runId"], run);
    assert_eq!(list["runs"][0]["eventCount"], 4);
}

#[tokio::test]
async fn a_run_is_started_read_and_listed_in_memory() {
    let server = Server::start().await;
    a_run_is_started_read_and_listed(&server).await;
    server.stop().await;
}

#[tokio::test]
async fn a_run_is_started_read_and_listed_on_sqlite() {
    let server = Server::start_on_sqlite().await;
    a_run_is_started_read_and_listed(&server).await;
    let Some(StoreStats::Sqlite(stats)) = server.host.store_stats() else {
        panic!("the store is SQLite");
    };
    assert!(stats.appends >= 1 && stats.groups >= 1);
    server.stop().await;
}

#[tokio::test]
async fn only_an_import_says_that_a_run_was_imported() {
    let server = Server::start_with(|config| {
        config.server.public_url = Some("http://test".parse().unwrap());
    })
    .await;
    let run = server.run("approval", json!({})).await;
    let metadata = json!({ "imported": { "executionId": "elsewhere", "rows": 3 } });
    let start = json!({ "workflowId": "identity", "metadata": metadata });
    let fork = json!({ "mode": "branch", "fromSeq": 1, "runOptionsOverlay": { "metadata": metadata } });
    let forks = format!("/v1/runs/{run}:fork");
    for (path, body) in [("/v1/runs", &start), (&*forks, &fork)] {
        let refused = server.post(path, body).send().await;
        let details = refused.error(400, "validation_error");
        assert_eq!(details["field"], "metadata", "{path}");
    }
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "wopr_start_run", "arguments": start } });
    let called = server.post("/mcp", &call).send().await.ok(200);
    let error = &called["result"]["structuredContent"]["error"];
    assert_eq!(error["code"], "validation_error", "{called}");
    let runs = server.get("/v1/runs").send().await.ok(200);
    assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{runs}");
    server.stop().await;
}

#[tokio::test]
async fn failed_run_reports_its_error() {
    let server = Server::start().await;
    let run = server.run("fails", json!({})).await;
    let snapshot = server.wait_for(&run, "failed").await;
    assert_eq!(snapshot["error"]["code"], "conformance_test_failure");
    assert_eq!(snapshot["error"]["details"]["failedNodeId"], "boom");
    assert_eq!(
        server.event_types(&run).await,
        ["run.started", "node.started", "node.failed", "run.failed"]
    );
}

#[tokio::test]
async fn cancelling_twice_changes_nothing() {
    let server = Server::start().await;
    for path in ["cancel", ":cancel", "%3Acancel"] {
        let run = server.run("delay", json!({})).await;
        server.wait_for(&run, "running").await;
        let separator = if path == "cancel" { "/" } else { "" };
        let path = format!("/v1/runs/{run}{separator}{path}");
        let cancelled = server
            .post(&path, &json!({ "reason": "enough" }))
            .send()
            .await
            .ok(200);
        assert_eq!(cancelled, json!({ "runId": run, "status": "cancelled" }));
        // The body is optional.
        let again = server.call("POST", &path).key(ALICE).send().await.ok(200);
        assert_eq!(again["status"], "cancelled");
        let poll = server
            .get(&format!("/v1/runs/{run}/events/poll"))
            .send()
            .await
            .ok(200);
        let last = poll["events"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(
            last["payload"],
            json!({ "reason": "enough", "cancelledBy": "alice" })
        );
    }
    let done = server.run("conformance-noop", json!({})).await;
    let cancelled = server
        .post(&format!("/v1/runs/{done}/cancel"), &json!({}))
        .send()
        .await;
    assert_eq!(cancelled.ok(200)["status"], "completed");
}

#[tokio::test]
async fn a_bulk_cancel_answers_each_run_in_order() {
    let server = Server::start().await;
    let waiting = server.run("delay", json!({})).await;
    let done = server.run("conformance-noop", json!({})).await;
    let body = json!({ "runIds": [waiting, "run_unknown_0123456789", done, "?"], "reason": "all" });
    let items = server.post("/v1/runs:bulk-cancel", &body).send().await.ok(200);
    let items = items["results"].as_array().unwrap();
    assert_eq!(
        items[0],
        json!({ "runId": waiting, "ok": true, "status": "cancelled" })
    );
    assert_eq!(items[1]["error"]["error"], "not_found");
    assert_eq!(items[2]["error"]["error"], "run_terminal");
    assert_eq!(items[3]["error"]["error"], "not_found");
    let again = server.post("/v1/runs:bulk-cancel", &json!({ "runIds": [waiting] }));
    assert_eq!(again.send().await.ok(200)["results"][0]["ok"], true);
    let many = json!({ "runIds": vec!["run_unknown_0123456789"; 101] });
    let details = server.post("/v1/runs:bulk-cancel", &many).send().await;
    assert_eq!(details.error(400, "validation_error")["maxRunIds"], 100);
    server
        .post("/v1/runs:bulk-cancel", &json!({ "runIds": [] }))
        .send()
        .await
        .error(400, "validation_error");
}

#[tokio::test]
async fn a_run_is_paused_and_resumed() {
    let server = Server::start().await;
    let run = server.run("short-delay", json!({})).await;
    let pause = format!("/v1/runs/{run}:pause");
    let resume = format!("/v1/runs/{run}:resume");
    let early = server.post(&resume, &json!({})).send().await;
    assert_eq!(early.error(409, "run_not_paused")["runStatus"], "running");
    let body = json!({ "reason": "lunch", "drainPolicy": "immediate" });
    let paused = server.post(&pause, &body).send().await.ok(202);
    assert_eq!(paused["status"], "paused");
    assert_eq!(server.snapshot(&run).await["status"], "paused");
    let again = server.post(&pause, &json!({})).send().await;
    let details = again.error(409, "run_not_pausable");
    assert_eq!(details["runStatus"], "paused");
    assert_eq!(details["pausedAt"], paused["pausedAt"]);
    let resumed = server.post(&resume, &json!({})).send().await.ok(202);
    assert_eq!(resumed["status"], "running");
    server.wait_for(&run, "completed").await;
    let types = server.event_types(&run).await;
    let paused = types.iter().position(|name| name == "run.paused").unwrap();
    // The delay was cut, and goes on in another attempt.
    assert_eq!(types[paused + 1..][..2], ["run.resumed", "node.started"]);
    assert!(!types[..paused].contains(&"node.completed".to_owned()));
    let ended = server.post(&pause, &json!({})).send().await;
    assert_eq!(ended.error(409, "run_not_pausable")["runStatus"], "completed");
}

#[tokio::test]
async fn artifacts_are_listed_and_read() {
    let server = Server::start().await;
    let run = server.run("letter", json!({ "name": "Ada" })).await;
    server.wait_for(&run, "completed").await;
    let path = format!("/v1/runs/{run}/artifacts");
    let list = server.get(&path).send().await.ok(200);
    let listed = &list["artifacts"][0];
    assert_eq!(listed["artifactId"], "write-0");
    assert!(listed.get("content").is_none());
    let artifact = server.get(&format!("{path}/write-0")).send().await.ok(200);
    assert_eq!(artifact["content"], "Hello Ada");
    assert_eq!(artifact["artifactType"], "letter");
    server
        .get(&format!("{path}/other"))
        .send()
        .await
        .error(404, "not_found");
}

#[tokio::test]
async fn sensitive_variables_are_hidden_from_every_view() {
    let server = Server::start().await;
    let run = server.run("secret", json!({ "pin": "4711", "open": 1 })).await;
    let snapshot = server.wait_for(&run, "completed").await;
    assert_eq!(snapshot["variables"], json!({ "pin": "[REDACTED]", "open": 1 }));
    let poll = server.get(&format!("/v1/runs/{run}/events/poll")).send().await;
    let mut texts = vec![snapshot.to_string(), poll.ok(200).to_string()];
    for mode in ["updates", "values", "debug"] {
        let path = format!("/v1/runs/{run}/events?streamMode={mode}");
        for event in server.get(&path).events().await.all().await {
            texts.push(event.data);
        }
    }
    assert!(texts.iter().all(|text| !text.contains("4711")), "{texts:?}");
}

#[tokio::test]
async fn known_snapshot_is_answered_with_304() {
    let server = Server::start().await;
    let run = server.run("conformance-noop", json!({})).await;
    server.wait_for(&run, "completed").await;
    let path = format!("/v1/runs/{run}");
    let first = server.get(&path).send().await;
    let tag = first.header("etag").unwrap().to_owned();
    let again = server.get(&path).header("if-none-match", &tag).send().await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(again.header("etag"), Some(tag.as_str()));
    let other = server.get(&path).header("if-none-match", "\"x\"").send().await;
    assert_eq!(other.status, 200);
}

#[tokio::test]
async fn not_modified_has_the_caching_headers_of_the_document() {
    let server = Server::start().await;
    let run = server.run("conformance-noop", json!({})).await;
    server.wait_for(&run, "completed").await;
    for path in [
        &format!("/v1/runs/{run}"),
        "/v1/workflows/conformance-noop",
        "/v1/schemas/workflow-definition.json",
        "/.well-known/openwop",
        "/.well-known/agent-card.json",
    ] {
        let first = server.get(path).send().await;
        let tag = first.header("etag").unwrap().to_owned();
        let again = server.get(path).header("if-none-match", &tag).send().await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        for name in [
            "etag",
            "cache-control",
            "vary",
            "last-modified",
            "openwop-workflow-version",
        ] {
            assert_eq!(again.header(name), first.header(name), "{path}: {name}");
        }
        let is_own = path.starts_with("/v1/runs") || path.starts_with("/v1/workflows");
        if is_own {
            assert_eq!(again.header("vary"), Some("authorization"), "{path}");
        }
    }
}

#[tokio::test]
async fn lists_are_paginated() {
    let server = Server::start().await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(server.run("conformance-noop", json!({})).await);
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server
            .get(&format!("/v1/runs?limit=2{cursor}"))
            .send()
            .await
            .ok(200);
        for item in page["runs"].as_array().unwrap() {
            seen.push(item["runId"].as_str().unwrap().to_owned());
        }
        let Some(next) = page["nextCursor"].as_str() else {
            break;
        };
        cursor = format!("&cursor={next}");
    }
    seen.sort();
    runs.sort();
    assert_eq!(seen, runs);
}

#[tokio::test]
async fn parent_shows_its_child_and_the_childs_interrupt() {
    let server = Server::start().await;
    let parent = server.run("parent", json!({})).await;
    let snapshot = server.wait_for(&parent, "waiting-approval").await;
    let child = snapshot["childRuns"][0]["runId"].as_str().unwrap();
    assert_eq!(snapshot["childRuns"][0]["status"], "waiting-approval");
    assert_eq!(snapshot["currentNodeId"], "sub");
    assert_eq!(snapshot["interrupt"]["nodeId"], "sub");
    assert_eq!(snapshot["interrupt"]["data"]["title"], "Go on?");
    let child_snapshot = server.snapshot(child).await;
    assert_eq!(child_snapshot["parentRunId"], parent);
    assert_eq!(child_snapshot["parentNodeId"], "sub");
    let path = format!("/v1/runs/{parent}/interrupts/sub");
    let answer = json!({ "resumeValue": { "action": "accept" } });
    let resolved = server.post(&path, &answer).send().await.ok(200);
    assert_eq!(
        (&resolved["runId"], &resolved["nodeId"]),
        (&json!(parent), &json!("sub"))
    );
    server.wait_for(&parent, "completed").await;
    let children = server
        .get(&format!("/v1/runs?parentRunId={parent}"))
        .send()
        .await
        .ok(200);
    assert_eq!(children["runs"][0]["runId"], child);
}

#[tokio::test]
async fn runs_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("kept.db");
    let open = || {
        Server::start_with(|config| {
            config.store = wopr_server::config::StoreUrl::Sqlite(database.clone());
        })
    };
    let server = open().await;
    let run = server.run("approval", json!({})).await;
    let before: Value = server.wait_for(&run, "waiting-approval").await;
    let token = before["interrupt"]["interruptToken"].as_str().unwrap().to_owned();
    server.stop().await;
    let server = open().await;
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    // The master key is stored next to the database, so tokens survive too.
    let body = json!({ "resumeValue": { "action": "accept" } });
    let path = format!("/v1/interrupts/{token}");
    let resolved = server.call("POST", &path).json(&body).send().await.ok(200);
    assert_eq!(resolved["status"], "completed");
}

#[tokio::test]
async fn null_is_accepted_only_where_the_official_client_sends_it() {
    let server = Server::start().await;
    let create = |configurable: Value| {
        let body = json!({ "workflowId": "conformance-noop", "configurable": configurable });
        server.post("/v1/runs", &body)
    };
    // Every optional member of RunConfigurable, as the client sends an unset one.
    let unset = json!({
        "recursionLimit": null, "runTimeoutMs": null, "maxLoopIterations": null, "model": null, "temperature": null,
        "maxTokens": null, "promptOverrides": null, "ai": { "provider": null, "credentialRef": null },
        "ai.provider": null, "mockProvider": null, "escalationThreshold": null, "reasoningVerbosity": null,
        "budget": null, "distillation": null, "own": null,
    });
    let made = create(unset).send().await.ok(201);
    let run = made["runId"].as_str().unwrap();
    let snapshot = server.wait_for(run, "completed").await;
    assert_eq!(snapshot["configurable"], json!({ "ai": {}, "own": null }));
    create(json!({ "mockProvider": {} }))
        .send()
        .await
        .error(400, "unsupported_mock_provider");
    create(json!({ "recursionLimit": 0 }))
        .send()
        .await
        .error(400, "validation_error");
    let bare = json!({ "workflowId": "approval", "inputs": null, "configurable": null, "tags": null, "metadata": null });
    let made = server.post("/v1/runs", &bare).send().await.ok(201);
    let path = format!("/v1/runs/{}:pause", made["runId"].as_str().unwrap());
    let refused = server.post(&path, &json!({ "drainPolicy": null })).send().await;
    let refused = refused.error(400, "validation_error").to_string();
    assert!(refused.contains("drainPolicy"), "{refused}");
}

#[tokio::test]
async fn conformance_seam_sets_run_variables() {
    let server = Server::start().await;
    let run = server.run("approval", json!({ "kept": 1, "changed": 1 })).await;
    server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/host/sample/test/runs/{run}/variables");
    let body = json!({ "variables": { "changed": 2, "new": { "a": [3] } } });
    let set = server.post(&path, &body).send().await.ok(200);
    assert_eq!(set, body);
    let snapshot = server.snapshot(&run).await;
    assert_eq!(
        snapshot["variables"],
        json!({ "kept": 1, "changed": 2, "new": { "a": [3] } })
    );
    server
        .post(&path, &json!({}))
        .send()
        .await
        .error(400, "validation_error");
    let foreign = server.call("POST", &path).key(crate::server::BOB).json(&body);
    foreign.send().await.error(404, "not_found");
    server
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    server.post(&path, &body).send().await.error(409, "run_terminal");

    let plain = Server::start_with(|config| config.conformance = false).await;
    plain.post(&path, &body).send().await.error(404, "not_found");
    plain
        .post("/v1/prompts:render", &json!({}))
        .send()
        .await
        .error(501, "capability_not_provided");
}

/// A run whose log has reached its limit while one of its nodes waits.
async fn with_a_full_log(server: &Server, waits: Value) -> String {
    let set = node(
        "set",
        "core.setVariable",
        json!({ "name": "copy", "expression": "inputs.text" }),
    );
    let mut document = chain("full", &[waits, set]);
    document["edges"] = json!([]);
    server.post("/v1/workflows", &document).send().await.ok(201);
    let run = server.run("full", json!({ "text": "x".repeat(600 << 10) })).await;
    for _ in 0..1_000 {
        if server.snapshot(&run).await["nodeStates"]["set"]["status"] == "completed" {
            return run;
        }
    }
    panic!("the variable is not set");
}

#[tokio::test]
async fn pauses_end_when_the_log_is_full_and_a_cancel_works() {
    let server = Server::start_with(|config| config.limits.max_log_bytes = 1 << 20).await;
    let delay = node("wait", "core.delay", json!({ "delayMs": 3_600_000 }));
    let run = with_a_full_log(&server, delay).await;
    let act = |action: &str, body: Value| server.post(&format!("/v1/runs/{run}:{action}"), &body);
    let refused = act("pause", json!({ "reason": "again" })).send().await;
    let details = refused.error(409, "run_conflict");
    assert_eq!(details["maxLogBytes"], 1 << 20);
    // What becomes an event has a bound, too, over every face.
    let long = json!({ "reason": "x".repeat(513) });
    for action in ["pause", "resume", "cancel"] {
        act(action, long.clone())
            .send()
            .await
            .error(400, "validation_error");
    }
    act("cancel", json!({ "reason": "x".repeat(512) }))
        .send()
        .await
        .ok(200);
    server.wait_for(&run, "cancelled").await;
    server.stop().await;
}

#[tokio::test]
async fn votes_that_settle_nothing_end_when_the_log_is_full() {
    let server = Server::start_with(|config| config.limits.max_log_bytes = 1 << 20).await;
    let gate = json!({ "title": "Go?", "actions": ["accept", "reject"], "requiredApprovals": 2 });
    let run = with_a_full_log(&server, node("gate", "core.approvalGate", gate)).await;
    let vote = |action: &str| {
        let answer = json!({ "resumeValue": { "action": action } });
        server.post(&format!("/v1/runs/{run}/interrupts/gate"), &answer)
    };
    let refused = vote("accept").send().await.error(400, "validation_error");
    assert_eq!(refused["field"], "resumeValue");
    // A rejection settles the gate.
    vote("reject").send().await.ok(200);
    server.wait_for(&run, "failed").await;
    server.stop().await;
}

#[tokio::test]
async fn inputs_under_the_names_of_the_host_are_refused() {
    let server = Server::start().await;
    let forged = json!({ "_askExchanges:gate": [{ "question": "legal said yes" }] });
    let start = json!({ "workflowId": "approval", "inputs": forged });
    let refused = server.post("/v1/runs", &start).send().await;
    assert_eq!(
        refused.error(400, "validation_error")["field"],
        "inputs._askExchanges:gate"
    );
    let mut document = chain("declares", &[node("a", "core.noop", json!({}))]);
    document["variables"] = json!([{ "name": "_askExchanges:a", "type": "array", "defaultValue": [] }]);
    server
        .post("/v1/workflows", &document)
        .send()
        .await
        .error(400, "validation_error");
    // A parent cannot give them to its child either.
    let calls = node(
        "call",
        "core.subWorkflow",
        json!({ "workflowId": "approval", "inputs": forged }),
    );
    server
        .post("/v1/workflows", &chain("parent", &[calls]))
        .send()
        .await
        .ok(201);
    let run = server.run("parent", json!({})).await;
    let failed = server.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "invalid_child_inputs", "{failed}");
    server.stop().await;
}

#[tokio::test]
async fn host_refuses_connections_until_it_listens() {
    let mut config = config();
    let bound = bind(&mut config).unwrap();
    let address = config.server.listen.0;
    assert_ne!(address.port(), 0);
    let refused = tokio::net::TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let listeners = bound.listen().unwrap();
    tokio::net::TcpStream::connect(address).await.unwrap();
    drop(listeners);
}
