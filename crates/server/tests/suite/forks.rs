//! Forks over REST: replays, branches, retries and comparisons.

use serde_json::{Value, json};
use wopr_server::config::StoreUrl;

use crate::{
    client::Call,
    orchestration::looped,
    server::{ADAM, BOB, READER, Server},
    workflows::{chain, node},
};

async fn register(server: &Server, document: &Value) {
    server
        .post("/v1/workflows", document)
        .send()
        .await
        .ok_either(&[200, 201]);
}

pub(crate) async fn events(server: &Server, run: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let poll = server.get(&path).send().await.ok(200);
    poll["events"].as_array().unwrap().clone()
}

fn fork_call(server: &Server, run: &str, body: &Value) -> Call {
    server.post(&format!("/v1/runs/{run}:fork"), body)
}

pub(crate) async fn fork(server: &Server, run: &str, body: Value) -> String {
    let forked = fork_call(server, run, &body).send().await.ok(201);
    assert_eq!(forked["sourceRunId"], run);
    assert_eq!(forked["status"], "pending");
    assert_eq!(forked["mode"], body["mode"]);
    forked["runId"].as_str().unwrap().to_owned()
}

/// What of the events is the same whenever a run is repeated.
fn deterministic(events: &[Value]) -> Vec<Value> {
    let part = |event: &Value| {
        json!([
            event["sequence"],
            event["type"],
            event["nodeId"],
            event["payload"]
        ])
    };
    events.iter().map(part).collect()
}

pub(crate) fn seq_of(events: &[Value], kind: &str, node: &str) -> u64 {
    let found = events
        .iter()
        .find(|event| event["type"] == kind && event["nodeId"] == node);
    found.unwrap()["sequence"].as_u64().unwrap()
}

#[tokio::test]
async fn a_replay_repeats_a_run_and_calls_nobody() {
    let server = Server::start().await;
    let nodes = [
        node("call", "core.conformance.side-effect", json!({ "payload": 1 })),
        node(
            "gate",
            "core.approvalGate",
            json!({ "actions": ["accept", "reject"] }),
        ),
        node(
            "sub",
            "core.subWorkflow",
            json!({ "workflowId": "conformance-noop" }),
        ),
        node("end", "core.template", json!({ "template": "Done" })),
    ];
    register(&server, &chain("careful", &nodes)).await;
    let run = server.run("careful", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let answer = json!({ "resumeValue": { "action": "accept" } });
    server
        .post(&format!("/v1/runs/{run}/interrupts/gate"), &answer)
        .send()
        .await
        .ok(200);
    let source = server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;

    for from in [0, 3, log.len() - 1] {
        let replay = fork(&server, &run, json!({ "mode": "replay", "fromSeq": from })).await;
        let snapshot = server.wait_for(&replay, "completed").await;
        assert_eq!(
            deterministic(&events(&server, &replay).await),
            deterministic(&log)
        );
        assert_eq!(snapshot["variables"], source["variables"]);
        assert_eq!(
            snapshot["forkedFrom"],
            json!({ "sourceRunId": run, "mode": "replay", "fromSeq": from })
        );
        assert_eq!(snapshot["owner"], source["owner"]);
    }
    let replay = fork(&server, &run, json!({ "mode": "replay" })).await;
    server.wait_for(&replay, "completed").await;
    // A fork of a fork.
    let again = fork(&server, &replay, json!({ "mode": "replay" })).await;
    server.wait_for(&again, "completed").await;
    assert_eq!(deterministic(&events(&server, &again).await), deterministic(&log));
    let path = format!("/v1/runs/{run}:diff?against={again}");
    let diff = server.get(&path).send().await.ok(200);
    assert_eq!(
        (&diff["divergedAtSeq"], &diff["eventDiffs"]),
        (&Value::Null, &json!([]))
    );
    assert_eq!(diff["stateDiff"], json!({}));
}

/// A supervisor that hands work to the workflow `worker`, and then ends the run.
fn led(id: &str, worker: &str) -> Value {
    let decision = json!({ "kind": "next-worker", "nextWorkerIds": [worker] });
    let rules =
        json!([{ "when": "variables.out == 'made'", "decision": { "kind": "terminate", "reason": "done" } }]);
    looped(
        id,
        json!({ "agentId": "boss", "rules": rules, "decision": decision }),
        json!({ "outputMapping": { "out": "out" } }),
        json!([{ "name": "out", "type": "string", "defaultValue": "" }]),
    )
}

#[tokio::test]
async fn payloads_of_replays_name_the_run_that_recorded_them() {
    let server = Server::start().await;
    let mut worker = chain(
        "made",
        &[node(
            "make",
            "core.setVariable",
            json!({ "name": "out", "value": "made" }),
        )],
    );
    worker["variables"] = json!([{ "name": "out", "type": "string" }]);
    register(&server, &worker).await;
    register(&server, &led("leads", "made")).await;
    let run = server.run("leads", json!({})).await;
    server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;
    let began = log
        .iter()
        .position(|event| event["type"] == "core.workflowChain.event");
    assert_eq!(log[began.unwrap()]["payload"]["parentRunId"], run.as_str());
    let replay = fork(&server, &run, json!({ "mode": "replay" })).await;
    let again = fork(&server, &replay, json!({ "mode": "replay", "fromSeq": 3 })).await;
    for replay in [&replay, &again] {
        server.wait_for(replay, "completed").await;
        assert_eq!(deterministic(&events(&server, replay).await), deterministic(&log));
        // A page from the middle knows it, too.
        let path = format!(
            "/v1/runs/{replay}/events/poll?lastSequence={}",
            began.unwrap() - 1
        );
        let page = server.get(&path).send().await.ok(200);
        let of_chain = page["events"].as_array().unwrap().iter();
        let mut of_chain = of_chain.filter(|event| event["type"] == "core.workflowChain.event");
        assert!(of_chain.all(|event| event["payload"]["parentRunId"] == run.as_str()));
    }
    // What a branch does itself has its own id, and so has it in a replay of the branch.
    let second = began.unwrap() + 1;
    let branch = fork(&server, &run, json!({ "mode": "branch", "fromSeq": second })).await;
    server.wait_for(&branch, "completed").await;
    let of_branch = fork(&server, &branch, json!({ "mode": "replay" })).await;
    server.wait_for(&of_branch, "completed").await;
    for shown in [&branch, &of_branch] {
        let shown = events(&server, shown).await;
        let parents = shown
            .iter()
            .filter(|event| event["type"] == "core.workflowChain.event");
        let parents: Vec<_> = parents.map(|event| &event["payload"]["parentRunId"]).collect();
        assert_eq!(parents[0], run.as_str());
        assert!(
            parents.len() > 1 && parents[1..].iter().all(|parent| **parent == branch.as_str()),
            "{parents:?}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_branch_remembers_what_its_source_remembered() {
    let server = Server::start().await;
    let nodes = [
        node("write", "core.memory.write", json!({ "content": "tea" })),
        node("read", "core.memory.read", json!({})),
        node("more", "core.memory.write", json!({ "content": "milk" })),
        node("again", "core.memory.read", json!({})),
    ];
    register(&server, &chain("notes", &nodes)).await;
    let run = server.run("notes", json!({})).await;
    server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;
    let contents = |snapshot: &Value, node: &str| -> Vec<String> {
        let entries = snapshot["variables"][node]["entries"].as_array().unwrap().clone();
        let mut contents: Vec<_> = entries
            .iter()
            .map(|entry| entry["content"].as_str().unwrap().to_owned())
            .collect();
        contents.sort();
        contents
    };
    for (from, read) in [
        ("read", vec!["tea"]),
        ("more", vec!["tea"]),
        ("again", vec!["milk", "tea"]),
    ] {
        let from = seq_of(&log, "node.started", from);
        let branch = fork(&server, &run, json!({ "mode": "branch", "fromSeq": from })).await;
        let snapshot = server.wait_for(&branch, "completed").await;
        assert_eq!(contents(&snapshot, "read"), ["tea"], "{snapshot}");
        assert_eq!(
            contents(&snapshot, "again"),
            ["milk", "tea"],
            "{snapshot} {read:?}"
        );
    }
    // What the branch writes is its own.
    let from = seq_of(&log, "node.started", "read");
    let branch = fork(&server, &run, json!({ "mode": "branch", "fromSeq": from })).await;
    server.wait_for(&branch, "completed").await;
    let replay = fork(&server, &branch, json!({ "mode": "replay" })).await;
    let snapshot = server.wait_for(&replay, "completed").await;
    assert_eq!(contents(&snapshot, "again"), ["milk", "tea"]);
    server.stop().await;
}

#[tokio::test]
async fn a_branch_reads_the_newest_entry_first_as_its_source_does() {
    let server = Server::start().await;
    let gate = |id: &str| node(id, "core.approvalGate", json!({ "actions": ["accept"] }));
    let write = |id: &str| node(id, "core.memory.write", json!({ "id": id, "content": id }));
    let nodes = [
        write("z"),
        gate("first"),
        write("m"),
        write("a"),
        gate("second"),
        write("q"),
        gate("third"),
        node("all", "core.memory.read", json!({})),
        node("newest", "core.memory.read", json!({ "limit": 1 })),
    ];
    register(&server, &chain("notes", &nodes)).await;
    let accept = async |run: &str, gate: &str| {
        server.wait_for(run, "waiting-approval").await;
        server.clock.advance(10);
        let answer = json!({ "resumeValue": { "action": "accept" } });
        let path = format!("/v1/runs/{run}/interrupts/{gate}");
        server.post(&path, &answer).send().await.ok(200);
    };
    let source = server.run("notes", json!({})).await;
    for gate in ["first", "second"] {
        accept(&source, gate).await;
    }
    server.wait_for(&source, "waiting-approval").await;
    // A branch that begins within the last millisecond of its source, and one of it.
    let from = events(&server, &source).await.len();
    let branch = fork(&server, &source, json!({ "mode": "branch", "fromSeq": from })).await;
    server.wait_for(&branch, "waiting-approval").await;
    let of_branch = fork(&server, &branch, json!({ "mode": "branch", "fromSeq": from })).await;
    for run in [&source, &branch, &of_branch] {
        accept(run, "third").await;
        let ended = server.wait_for(run, "completed").await;
        let ids = |node: &str| -> Vec<String> {
            let entries = ended["variables"][node]["entries"].as_array().unwrap().iter();
            entries
                .map(|entry| entry["id"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(ids("all"), ["q", "a", "m", "z"], "{run}");
        assert_eq!(ids("newest"), ["q"], "{run}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_branch_calls_again_and_takes_other_options() {
    let server = Server::start().await;
    let nodes = [
        node("call", "core.conformance.side-effect", json!({ "payload": 1 })),
        node(
            "gate",
            "core.approvalGate",
            json!({ "actions": ["accept", "reject"] }),
        ),
    ];
    register(&server, &chain("careful", &nodes)).await;
    let run = server.run("careful", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let log = events(&server, &run).await;
    let from = seq_of(&log, "node.started", "call");
    let body = json!({
        "mode": "branch", "fromSeq": from,
        "runOptionsOverlay": { "tags": ["again"], "metadata": { "why": "a test" } },
    });
    let branch = fork(&server, &run, body).await;
    let snapshot = server.wait_for(&branch, "waiting-approval").await;
    assert_eq!(snapshot["tags"], json!(["again"]));
    assert_eq!(snapshot["metadata"], json!({ "why": "a test" }));
    let own = events(&server, &branch).await;
    assert_eq!(own[usize::try_from(from).unwrap()]["type"], "run.resuming");

    // At the gate, another decision: nothing before it is done again.
    let gate = log.len();
    let other = fork(&server, &run, json!({ "mode": "branch", "fromSeq": gate })).await;
    server.wait_for(&other, "waiting-approval").await;
    let answer = json!({ "resumeValue": { "action": "reject", "feedback": "no" } });
    server
        .post(&format!("/v1/runs/{other}/interrupts/gate"), &answer)
        .send()
        .await
        .ok(200);
    server.wait_for(&other, "failed").await;
    // The source still waits.
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
}

#[tokio::test]
async fn an_effect_without_a_record_fails_the_replay() {
    let server = Server::start().await;
    let nodes = [
        node("hold", "core.delay", json!({ "delayMs": 200 })),
        node("effect", "core.conformance.side-effect", json!({})),
    ];
    register(&server, &chain("held", &nodes)).await;
    let run = server.run("held", json!({})).await;
    let cancelled = server
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await;
    cancelled.ok(200);
    server.wait_for(&run, "cancelled").await;
    let replay = fork(&server, &run, json!({ "mode": "replay" })).await;
    let snapshot = server.wait_for(&replay, "failed").await;
    assert_eq!(snapshot["error"]["code"], "replay_source_missing");
    let failed = events(&server, &replay).await;
    let failed = failed
        .iter()
        .find(|event| event["type"] == "node.failed")
        .unwrap();
    assert_eq!(failed["nodeId"], "effect");
    assert_eq!(failed["payload"]["error"]["code"], "replay_source_missing");
}

#[tokio::test]
async fn bad_forks_are_refused() {
    let server = Server::start().await;
    let run = server.run("conformance-noop", json!({})).await;
    server.wait_for(&run, "completed").await;
    let n = events(&server, &run).await.len();
    for (body, status) in [
        (json!({ "mode": "replay", "fromSeq": -1 }), 400),
        (json!({ "mode": "again" }), 400),
        (json!({ "mode": "branch" }), 400),
        (json!({ "mode": "replay", "x": 1 }), 400),
        (
            json!({ "mode": "replay", "runOptionsOverlay": { "tags": ["x"] } }),
            400,
        ),
        (
            json!({ "mode": "branch", "fromSeq": 1, "runOptionsOverlay": { "configurable": { "recursionLimit": 0 } } }),
            400,
        ),
        (json!({ "mode": "replay", "fromSeq": 99_999 }), 422),
        (json!({ "mode": "replay", "fromSeq": n }), 422),
        (json!({ "mode": "branch", "fromSeq": 0 }), 201),
        (
            json!({ "mode": "branch", "fromSeq": 1, "runOptionsOverlay": {} }),
            201,
        ),
        (json!({ "mode": "replay", "runOptionsOverlay": {} }), 201),
    ] {
        fork_call(&server, &run, &body).send().await.ok(status);
    }
    let body = json!({ "mode": "replay" });
    for (path, key, status) in [
        ("/v1/runs/run_00000000000000000000:fork", ADAM, 404),
        (&*format!("/v1/runs/{run}:fork"), BOB, 404),
        (&*format!("/v1/runs/{run}:fork"), READER, 403),
    ] {
        let call = server.call("POST", path).key(key).json(&body);
        call.send().await.ok(status);
    }
    // Another caller's fork belongs to whoever the source belongs to.
    let path = format!("/v1/runs/{run}:fork");
    let forked = server
        .call("POST", &path)
        .key(ADAM)
        .json(&body)
        .send()
        .await
        .ok(201);
    let snapshot = server
        .wait_for(forked["runId"].as_str().unwrap(), "completed")
        .await;
    assert_eq!(snapshot["owner"]["principal"], "alice");
}

#[tokio::test]
async fn a_repeated_fork_is_the_same_fork() {
    let server = Server::start().await;
    let run = server.run("conformance-noop", json!({})).await;
    server.wait_for(&run, "completed").await;
    let fork = |body: Value| {
        let call = fork_call(&server, &run, &body).header("idempotency-key", "once");
        async move { call.send().await }
    };
    let first = fork(json!({ "mode": "replay" })).await.ok(201);
    let second = fork(json!({ "mode": "replay" })).await.ok(201);
    assert_eq!(first, second);
    fork(json!({ "mode": "replay", "fromSeq": 1 })).await.ok(409);
}

#[tokio::test]
async fn a_failed_run_is_tried_again_with_a_better_definition() {
    let server = Server::start().await;
    let bad = node("work", "core.fail", json!({ "code": "bad" }));
    let first = node("first", "core.template", json!({ "template": "One" }));
    register(&server, &chain("mended", &[first.clone(), bad.clone()])).await;
    let run = server.run("mended", json!({})).await;
    server.wait_for(&run, "failed").await;
    let path = format!("/v1/host/wopr/runs/{run}:retry");
    let retry = |body: Value| {
        let call = server.post(&path, &body);
        async move { call.send().await.ok(201)["runId"].as_str().unwrap().to_owned() }
    };
    // As it was, it fails again.
    let same = retry(json!({ "asItWas": true })).await;
    server.wait_for(&same, "failed").await;

    register(
        &server,
        &chain("mended", &[first, node("work", "core.noop", json!({}))]),
    )
    .await;
    let mended = retry(json!({})).await;
    let snapshot = server.wait_for(&mended, "completed").await;
    assert_eq!(snapshot["nodeStates"]["first"]["executions"], 1);
    // A completed run cannot be retried.
    let path = format!("/v1/host/wopr/runs/{mended}:retry");
    server.post(&path, &json!({})).send().await.ok(409);

    let path = format!("/v1/runs/{run}:diff?against={mended}");
    let diff = server.get(&path).send().await.ok(200);
    assert_eq!(diff["a"], run);
    let at = diff["divergedAtSeq"].as_u64().unwrap();
    assert_eq!(diff["eventDiffs"][0]["seq"], at);
    assert_eq!(diff["eventDiffs"][0]["op"], "changed");
    assert_eq!(
        diff["stateDiff"]["status"],
        json!({ "a": "failed", "b": "completed" })
    );
    server.get(&format!("/v1/runs/{run}:diff")).send().await.ok(400);
    let foreign = server.call("GET", &path).key(BOB);
    foreign.send().await.ok(404);
}

#[tokio::test]
async fn what_is_untrusted_stays_so_in_a_branch() {
    let server = Server::start().await;
    register(&server, &chain("plain", &[node("work", "core.noop", json!({}))])).await;
    let body = json!({ "workflowId": "plain", "inputs": {}, "metadata": { "contentTrust": "untrusted" } });
    let started = server.post("/v1/runs", &body).send().await.ok(201);
    let run = started["runId"].as_str().unwrap();
    server.wait_for(run, "completed").await;
    let overlay = json!({ "metadata": { "contentTrust": "trusted", "note": "mine" } });
    let branch = json!({ "mode": "branch", "fromSeq": 1, "runOptionsOverlay": overlay });
    let branch = fork(&server, run, branch).await;
    let snapshot = server.wait_for(&branch, "completed").await;
    assert_eq!(snapshot["metadata"]["contentTrust"], "untrusted", "{snapshot}");
    assert_eq!(snapshot["metadata"]["note"], "mine");
}

#[tokio::test]
async fn only_who_may_answer_takes_answers_over() {
    let server = Server::start().await;
    let gate = node("gate", "core.approvalGate", json!({ "title": "Pay 10?" }));
    let pay = |code: Value| node("pay", "core.fail", code);
    let document = chain("paid", &[gate.clone(), pay(json!({ "code": "down" }))]);
    register(&server, &document).await;
    let parent = node("sub", "core.subWorkflow", json!({ "workflowId": "paid" }));
    register(&server, &chain("above", &[parent])).await;
    let scopes = json!({ "id": "author", "scopes": ["runs:create", "runs:read", "workflows:write"] });
    let author = server.post("/v1/host/wopr/keys", &scopes).send().await.ok(201);
    let author = author["secret"].as_str().unwrap().to_owned();
    for (workflow, node) in [("paid", "gate"), ("above", "sub")] {
        let run = server.run(workflow, json!({})).await;
        server.wait_for(&run, "waiting-approval").await;
        let before = events(&server, &run).await.len();
        let accept = json!({ "resumeValue": { "action": "accept" } });
        let path = format!("/v1/runs/{run}/interrupts/{node}");
        server.post(&path, &accept).send().await.ok(200);
        server.wait_for(&run, "failed").await;
        let changed = chain("paid", &[gate.clone(), pay(json!({ "code": "other" }))]);
        register(&server, &changed).await;

        let all = events(&server, &run).await.len();
        let retry = format!("/v1/host/wopr/runs/{run}:retry");
        let fork = format!("/v1/runs/{run}:fork");
        let by_author = |path: &str, body: &Value| server.call("POST", path).key(&author).json(body);
        for path in [&retry, &fork] {
            let body = match path == &retry {
                true => json!({}),
                false => json!({ "mode": "branch", "fromSeq": all - 1 }),
            };
            // The failed node of the parent began before the question.
            if path == &fork || workflow == "paid" {
                let refused = by_author(path, &body).send().await;
                assert_eq!(refused.status, 403, "{workflow} {path}: {}", refused.json());
                assert_eq!(refused.json()["details"]["scopeRequired"], "approvals:respond");
                server.post(path, &body).send().await.ok(201);
            }
        }
        // What asks again, or sends nothing, takes no answer.
        let early = json!({ "mode": "branch", "fromSeq": before.min(3) });
        by_author(&fork, &early).send().await.ok(201);
        let replay = json!({ "mode": "replay" });
        by_author(&fork, &replay).send().await.ok(201);
    }
}

#[tokio::test]
async fn an_answer_to_a_branch_goes_to_its_own_child() {
    let server = Server::start().await;
    register(
        &server,
        &chain("kid", &[node("g", "core.approvalGate", json!({}))]),
    )
    .await;
    let sub = node("s", "core.subWorkflow", json!({ "workflowId": "kid" }));
    register(&server, &chain("par", &[sub])).await;
    let accept = |with_id: bool| match with_id {
        true => json!({ "resumeValue": { "action": "accept" }, "interruptId": "s:0/g:0" }),
        false => json!({ "resumeValue": { "action": "accept" } }),
    };
    for with_id in [true, false] {
        let run = server.run("par", json!({})).await;
        server.wait_for(&run, "waiting-approval").await;
        let from = events(&server, &run).await.len();
        let branch = fork(&server, &run, json!({ "mode": "branch", "fromSeq": from })).await;
        server.wait_for(&branch, "waiting-approval").await;
        // The child that the source waits for is not the branch's.
        let shown = server.get(&format!("/v1/runs/{branch}")).send().await.ok(200);
        let listed = format!("/v1/runs?parentRunId={branch}");
        let listed = server.get(&listed).send().await.ok(200);
        let children = shown["childRuns"].as_array().unwrap();
        assert_eq!(children.len(), 1, "{shown}");
        assert_eq!(
            children[0]["runId"], listed["runs"][0]["runId"],
            "{shown} {listed}"
        );
        let answer = async |run: &str| {
            let path = format!("/v1/runs/{run}/interrupts/s");
            server.post(&path, &accept(with_id)).send().await.ok(200)
        };
        answer(&branch).await;
        server.wait_for(&branch, "completed").await;
        if with_id {
            let path = format!("/v1/runs/{branch}/interrupts/s");
            let again = server.post(&path, &accept(true)).send().await;
            again.error(409, "interrupt_already_resolved");
        }
        let source = server.get(&format!("/v1/runs/{run}")).send().await.ok(200);
        assert_eq!(source["status"], "waiting-approval", "{source}");
        // So it does if the source has ended.
        answer(&run).await;
        server.wait_for(&run, "completed").await;
        let late = fork(&server, &run, json!({ "mode": "branch", "fromSeq": from })).await;
        server.wait_for(&late, "waiting-approval").await;
        answer(&late).await;
        server.wait_for(&late, "completed").await;
    }
}

#[tokio::test]
async fn a_definition_that_shows_what_was_sensitive_refuses_a_retry() {
    let server = Server::start().await;
    let version = |sensitive: bool, marks: bool, work: Value| {
        let mut given = node("given", "core.identity", json!({}));
        given["inputs"] = json!({ "t": { "type": "variable", "variableName": "s" } });
        given["outputSensitivity"] = json!({ "t": marks });
        let mut document = chain("secret", &[given, work]);
        document["variables"] = json!([{ "name": "s", "type": "string", "sensitive": sensitive }]);
        document
    };
    let fail = node("work", "core.fail", json!({}));
    let mended = node("work", "core.noop", json!({}));
    register(&server, &version(true, true, fail.clone())).await;
    let run = server.run("secret", json!({ "s": "hidden" })).await;
    server.wait_for(&run, "failed").await;
    let path = format!("/v1/host/wopr/runs/{run}:retry");
    for (sensitive, marks) in [(false, true), (true, false)] {
        register(&server, &version(sensitive, marks, mended.clone())).await;
        // A sensitive variable hides outputs of its own name only.
        let refused = server.post(&path, &json!({})).send().await.ok(422);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("no longer marks"), "{message}");
    }
    register(&server, &version(true, true, mended)).await;
    // Another node might write it where it is not marked, and this run is not Adam's.
    let refused = server
        .call("POST", &path)
        .key(ADAM)
        .json(&json!({}))
        .send()
        .await
        .ok(422);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("another principal"), "{message}");
    let as_it_was = json!({ "asItWas": true });
    server
        .call("POST", &path)
        .key(ADAM)
        .json(&as_it_was)
        .send()
        .await
        .ok(201);
    let retried = server.post(&path, &json!({})).send().await.ok(201);
    let retried = retried["runId"].as_str().unwrap();
    let done = server.wait_for(retried, "completed").await;
    assert!(!done.to_string().contains("hidden"), "{done}");
}

#[tokio::test]
async fn a_branch_with_children_is_refused_to_another_principal_from_whom_values_are_hidden() {
    let server = Server::start().await;
    let child = |marks: bool| {
        let mut document = chain("kid", &[node("work", "core.fail", json!({}))]);
        document["variables"] = json!([{ "name": "s", "type": "string", "sensitive": marks }]);
        document
    };
    register(&server, &child(true)).await;
    let config = json!({ "workflowId": "kid", "inputMapping": { "s": "s" } });
    let mut parent = chain("parent", &[node("sub", "core.subWorkflow", config)]);
    parent["variables"] = json!([{ "name": "s", "type": "string", "sensitive": true }]);
    register(&server, &parent).await;
    let run = server.run("parent", json!({ "s": "hidden" })).await;
    server.wait_for(&run, "failed").await;
    // The children of a branch have the definition of now, which Adam may write.
    register(&server, &child(false)).await;
    let retry = format!("/v1/host/wopr/runs/{run}:retry");
    let fork = format!("/v1/runs/{run}:fork");
    for (path, body) in [
        (&retry, json!({})),
        (&retry, json!({ "asItWas": true })),
        (&fork, json!({ "mode": "branch", "fromSeq": 1 })),
    ] {
        let refused = server
            .call("POST", path)
            .key(ADAM)
            .json(&body)
            .send()
            .await
            .ok(422);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains("another principal"), "{message}");
    }
    let replay = json!({ "mode": "replay", "fromSeq": 0 });
    server
        .call("POST", &fork)
        .key(ADAM)
        .json(&replay)
        .send()
        .await
        .ok(201);
    // It is shown to nobody who could not read it before.
    server.post(&retry, &json!({})).send().await.ok(201);
}

#[tokio::test]
async fn other_edges_refuse_a_retry() {
    let server = Server::start().await;
    let bad = node("work", "core.fail", json!({}));
    let first = node("first", "core.noop", json!({}));
    register(&server, &chain("moved", &[first.clone(), bad.clone()])).await;
    let run = server.run("moved", json!({})).await;
    server.wait_for(&run, "failed").await;
    let more = node("more", "core.noop", json!({}));
    register(&server, &chain("moved", &[first, more, bad])).await;
    let path = format!("/v1/host/wopr/runs/{run}:retry");
    let refused = server.post(&path, &json!({})).send().await.ok(422);
    assert_eq!(refused["error"], "validation_error", "{refused}");
    server
        .post(&path, &json!({ "asItWas": true }))
        .send()
        .await
        .ok(201);
}

#[tokio::test]
async fn a_long_log_is_copied_in_parts_and_survives_a_restart() {
    let server = Server::start_with(|config| {
        config.store = StoreUrl::Sqlite("wopr.db".into());
        config.limits.max_node_executions = 10_000;
    })
    .await;
    let mut workflow = chain(
        "long",
        &[
            node(
                "count",
                "core.setVariable",
                json!({ "name": "n", "expression": "n + 1" }),
            ),
            node("end", "core.noop", json!({})),
        ],
    );
    workflow["variables"] = json!([{ "name": "n", "type": "number", "defaultValue": 0 }]);
    workflow["edges"] = json!([
        { "id": "again", "sourceNodeId": "count", "targetNodeId": "count",
            "condition": { "expression": "n < 1200" } },
        { "id": "on", "sourceNodeId": "count", "targetNodeId": "end",
            "condition": { "expression": "n >= 1200" } },
    ]);
    register(&server, &workflow).await;
    let run = server.run("long", json!({})).await;
    let source = server.wait_for(&run, "completed").await;
    let replay = fork(&server, &run, json!({ "mode": "replay" })).await;
    let late = fork(&server, &run, json!({ "mode": "branch", "fromSeq": 3_000 })).await;
    let server = server.again_on_sqlite().await;
    let snapshot = server.wait_for(&replay, "completed").await;
    assert_eq!(snapshot["variables"], source["variables"]);
    let snapshot = server.wait_for(&late, "completed").await;
    assert_eq!(snapshot["variables"], source["variables"]);
    let path = format!("/v1/runs/{run}:diff?against={replay}");
    let diff = server.get(&path).send().await.ok(200);
    assert_eq!(diff["divergedAtSeq"], Value::Null, "{diff}");
}

#[tokio::test]
async fn a_run_whose_log_is_full_fails_and_its_retry_says_why_too() {
    let server = Server::start_with(|config| {
        config.store = StoreUrl::Sqlite("wopr.db".into());
        config.limits.max_log_bytes = 1 << 20;
    })
    .await;
    let turn = json!({ "name": "t", "expression": "t[1:] ~ t[:1]" });
    let mut workflow = chain("much", &[node("turn", "core.setVariable", turn)]);
    let text = "x".repeat(50_000);
    workflow["variables"] = json!([{ "name": "t", "type": "string", "defaultValue": text }]);
    workflow["edges"] = json!([{ "id": "again", "sourceNodeId": "turn", "targetNodeId": "turn" }]);
    register(&server, &workflow).await;
    let run = server.run("much", json!({})).await;
    let failed = server.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "log_limit_exceeded", "{failed}");
    let n_started = |events: &[String]| events.iter().filter(|event| *event == "node.started").count();
    assert!((5..20).contains(&n_started(&server.event_types(&run).await)));
    let path = format!("/v1/host/wopr/runs/{run}:retry");
    let retried = server.post(&path, &json!({})).send().await.ok(201);
    let again = retried["runId"].as_str().unwrap().to_owned();
    let failed = server.wait_for(&again, "failed").await;
    assert_eq!(failed["error"]["code"], "log_limit_exceeded", "{failed}");
    // A replay ends as its source did.
    let replay = fork(&server, &run, json!({ "mode": "replay" })).await;
    server.wait_for(&replay, "failed").await;
    let path = format!("/v1/runs/{run}:diff?against={replay}");
    let diff = server.get(&path).send().await.ok(200);
    assert_eq!(diff["divergedAtSeq"], Value::Null, "{diff}");
    server.stop().await;
}

#[tokio::test]
async fn large_differences_are_left_out() {
    let server = Server::start().await;
    let workflow = json!({
        "id": "large", "name": "Large", "version": "1.0.0", "edges": [],
        "nodes": [{"id": "n", "typeId": "core.noop", "name": "n", "position": {"x": 0, "y": 0}, "config": {}, "inputs": {}}],
        "triggers": [{"id": "t", "type": "manual"}], "metadata": {}, "settings": {},
        "variables": [{"name": "text", "type": "string"}, {"name": "short", "type": "string"}],
    });
    server.post("/v1/workflows", &workflow).send().await.ok(201);
    let mut runs = Vec::new();
    // Control characters take six bytes each once they are written.
    for letter in ["\u{1}", "\u{2}"] {
        let inputs = json!({ "text": letter.repeat(300 << 10), "short": letter });
        let run = server.run("large", inputs).await;
        server.wait_for(&run, "completed").await;
        runs.push(run);
    }
    let path = format!("/v1/runs/{}:diff?against={}", runs[0], runs[1]);
    let diff = server.get(&path).send().await.ok(200);
    assert_eq!(diff["truncated"], true);
    assert_eq!(diff["eventDiffs"].as_array().unwrap().len(), 1);
    let variables = &diff["stateDiff"]["variables"];
    assert_eq!(variables["short"], json!({"a": "\u{1}", "b": "\u{2}"}));
    assert!(variables.get("text").is_none(), "it has no room");
}

/// Otherwise whoever may start runs could guess the values of other people's.
#[tokio::test]
async fn comparison_does_not_tell_whether_hidden_values_are_equal() {
    let server = Server::start().await;
    let mut write = node("write", "core.channelWrite", json!({ "channel": "seen" }));
    write["inputs"] = json!({ "value": { "type": "variable", "variableName": "pin" } });
    let mut gate = node(
        "gate",
        "core.clarificationGate",
        json!({ "questions": [{ "id": "q", "question": "?" }] }),
    );
    gate["outputSensitivity"] = json!({ "answers": true });
    let mut workflow = chain("secretive", &[write, gate]);
    workflow["variables"] = json!([{ "name": "pin", "type": "string", "sensitive": true },
        { "name": "open", "type": "string" }]);
    workflow["channels"] = json!({ "seen": { "reducer": "append", "sensitive": true } });
    register(&server, &workflow).await;
    let mut runs = Vec::new();
    for (pin, answer, open) in [
        ("7351", "x", "1"),
        ("7351", "x", "1"),
        ("7350", "y", "1"),
        ("7351", "x", "2"),
    ] {
        let run = server.run("secretive", json!({ "pin": pin, "open": open })).await;
        server.wait_for(&run, "waiting-input").await;
        let path = format!("/v1/runs/{run}/interrupts/gate");
        let body = json!({ "resumeValue": { "answers": { "q": answer } } });
        server.post(&path, &body).send().await.ok(200);
        server.wait_for(&run, "completed").await;
        runs.push(run);
    }
    let compared = async |other: &str| {
        let path = format!("/v1/runs/{}:diff?against={other}", runs[0]);
        let diff = server.get(&path).send().await.ok(200);
        (
            diff["divergedAtSeq"].clone(),
            diff["eventDiffs"].clone(),
            diff["stateDiff"].clone(),
        )
    };
    let none = (Value::Null, json!([]), json!({}));
    assert_eq!(compared(&runs[1]).await, none, "the same values");
    assert_eq!(compared(&runs[2]).await, none, "other values, which are hidden");
    let (at, _, state) = compared(&runs[3]).await;
    assert_eq!(
        (at, state),
        (
            json!(0),
            json!({ "variables": { "open": { "a": "1", "b": "2" } } })
        )
    );
}

/// Two sides that look the same would not say why one run went another way.
#[tokio::test]
async fn comparison_ignores_times_and_what_it_does_not_show() {
    let server = Server::start().await;
    let write = json!({ "channel": "notes", "value": "noted" });
    let gate = json!({ "title": "Go?", "actions": ["accept"] });
    let nodes = [
        node("write", "core.channelWrite", write),
        node("gate", "core.approvalGate", gate),
    ];
    let mut workflow = chain("timed", &nodes);
    workflow["channels"] = json!({ "notes": { "reducer": "append", "ttlMs": 3_600_000 } });
    register(&server, &workflow).await;
    let mut runs = Vec::new();
    for configurable in [json!({}), json!({ "recursionLimit": 500 })] {
        let body = json!({ "workflowId": "timed", "configurable": configurable });
        let made = server.post("/v1/runs", &body).send().await.ok(201);
        let run = made["runId"].as_str().unwrap().to_owned();
        server.wait_for(&run, "waiting-approval").await;
        let path = format!("/v1/runs/{run}/interrupts/gate");
        let body = json!({ "resumeValue": { "action": "accept" } });
        server.post(&path, &body).send().await.ok(200);
        server.wait_for(&run, "completed").await;
        runs.push(run);
    }
    let path = format!("/v1/runs/{}:diff?against={}", runs[0], runs[1]);
    let diff = server.get(&path).send().await.ok(200);
    assert_eq!(
        (&diff["eventDiffs"], &diff["stateDiff"]),
        (&json!([]), &json!({})),
        "{diff}"
    );
}
