//! Supervisors, their workers, and what clients see of both: the fixtures of the conformance suite, where they are at
//! hand, or else workflows of the same shape.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    server::Server,
    workflows::{chain, node},
};

/// A fixture as the suite has it, or where that is not at hand its essence.
fn fixture(id: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/fixtures/openwop/workflows")
        .join(format!("{id}.json"));
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).unwrap(),
        Err(_) => essence(id),
    }
}

/// A supervisor and its dispatch, each leading to the other.
pub(crate) fn looped(id: &str, supervisor: Value, dispatch: Value, variables: Value) -> Value {
    let mut document = chain(
        id,
        &[
            node("supervisor", "core.orchestrator.supervisor", supervisor),
            node("dispatch", "core.dispatch", dispatch),
        ],
    );
    let back = json!({ "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "supervisor" });
    document["edges"].as_array_mut().unwrap().push(back);
    document["variables"] = variables;
    document
}

fn next(workers: &[&str]) -> Value {
    json!({ "kind": "next-worker", "nextWorkerIds": workers })
}

fn done() -> Value {
    json!({ "kind": "terminate", "reason": "goal-reached" })
}

fn text(name: &str, default: Value) -> Value {
    let mut variable = json!({ "name": name, "type": "string" });
    if !default.is_null() {
        variable["defaultValue"] = default;
    }
    variable
}

/// A worker that passes its inputs on.
fn worker(id: &str, variables: Value) -> Value {
    let mut worker = chain(id, &[node("work", "core.noop", json!({}))]);
    worker["variables"] = variables;
    worker
}

fn essence(id: &str) -> Value {
    let a = "conformance-dispatch-cross-worker-handoff-child-a";
    let b = "conformance-dispatch-cross-worker-handoff-child-b";
    let one = |worker: &str| json!({ "mockDispatchPlan": [next(&[worker]), done()] });
    let both = json!({ "mockDispatchPlan": [next(&[a, b]), done()] });
    match id {
        "conformance-dispatch-loop" => looped(id, json!({}), json!({}), json!([])),
        "conformance-orchestrator-dispatch" => looped(
            id,
            json!({ "mockDecisions": [next(&["conformance-noop"]), done()] }),
            json!({}),
            json!([]),
        ),
        "conformance-orchestrator-terminate" => {
            looped(id, json!({ "mockDecisions": [done()] }), json!({}), json!([]))
        }
        "conformance-orchestrator-low-confidence" => looped(
            id,
            json!({ "mockConfidence": 0.5, "mockPendingDecision": next(&["conformance-noop"]) }),
            json!({}),
            json!([]),
        ),
        "conformance-multi-agent-handoff" => looped(
            id,
            one("conformance-multi-agent-handoff-child"),
            json!({ "outputMapping": { "parentResult": "childOutcome" } }),
            json!([text("parentResult", json!(""))]),
        ),
        "conformance-multi-agent-handoff-child" => {
            worker(id, json!([text("childOutcome", json!("handoff-complete"))]))
        }
        "conformance-multi-agent-confidence-escalation" => {
            let mut decision = next(&["conformance-multi-agent-handoff-child"]);
            decision["confidence"] = json!(0.3);
            looped(
                id,
                json!({ "mockDispatchPlan": [decision] }),
                json!({}),
                json!([]),
            )
        }
        "conformance-dispatch-input-mapping" | "conformance-dispatch-input-mapping-no-default" => {
            let name = if id.ends_with("no-default") {
                Value::Null
            } else {
                json!("Alice")
            };
            looped(
                id,
                one("conformance-dispatch-input-mapping-child"),
                json!({ "inputMapping": { "childGreeting": "parentName" } }),
                json!([text("parentName", name)]),
            )
        }
        "conformance-dispatch-input-mapping-child" => {
            worker(id, json!([text("childGreeting", json!("own"))]))
        }
        "conformance-dispatch-output-mapping" => looped(
            id,
            one("conformance-dispatch-output-mapping-child"),
            json!({ "outputMapping": { "parentResult": "childOutcome" } }),
            json!([text("parentResult", json!(""))]),
        ),
        "conformance-dispatch-output-mapping-child" => {
            worker(id, json!([text("childOutcome", json!("done"))]))
        }
        "conformance-dispatch-cross-worker-handoff" => looped(
            id,
            both,
            json!({
                "perWorkerOutputMappings": { a: { "sharedVar": "output" } },
                "perWorkerInputMappings": { b: { "input": "sharedVar" } },
            }),
            json!([text("sharedVar", json!(""))]),
        ),
        "conformance-dispatch-per-worker-override" => looped(
            id,
            both,
            json!({
                "inputMapping": { "input": "defaultX" },
                "perWorkerInputMappings": { b: { "input": "sharedVar" } },
            }),
            json!([
                text("defaultX", json!("default-x-value")),
                text("sharedVar", json!("shared-value"))
            ]),
        ),
        "conformance-dispatch-cross-worker-handoff-child-a" => {
            worker(id, json!([text("output", json!("hello"))]))
        }
        _ => worker(id, json!([text("input", Value::Null)])),
    }
}

/// A host with these fixtures.
async fn host(fixtures: &[&str]) -> Server {
    let server = Server::start().await;
    for id in fixtures {
        register(&server, &fixture(id)).await;
    }
    server
}

pub(crate) async fn register(server: &Server, document: &Value) {
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

fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let decided = of(events, "runOrchestrator.decided").into_iter();
    decided
        .map(|event| event["payload"]["decision"]["kind"].as_str().unwrap())
        .collect()
}

fn phases(events: &[Value]) -> Vec<&str> {
    let handoffs = of(events, "core.workflowChain.event").into_iter();
    handoffs
        .map(|event| event["payload"]["phase"].as_str().unwrap())
        .collect()
}

/// The children of a run, the first to be created first.
async fn children(server: &Server, run: &str) -> Vec<Value> {
    let events = events(server, run).await;
    let mut children = Vec::new();
    for event in of(&events, "node.dispatched") {
        let child = event["payload"]["childRunId"].as_str().unwrap();
        children.push(server.snapshot(child).await);
    }
    children
}

#[tokio::test]
async fn supervisor_without_a_plan_runs_one_worker_and_ends() {
    let server = host(&["conformance-dispatch-loop"]).await;
    let run = server.run("conformance-dispatch-loop", json!({})).await;
    let snapshot = server.wait_for(&run, "completed").await;
    let events = events(&server, &run).await;
    assert_eq!(kinds(&events), ["next-worker", "terminate"]);
    let decided = of(&events, "runOrchestrator.decided");
    let iterations: Vec<_> = decided
        .iter()
        .map(|event| &event["payload"]["iteration"])
        .collect();
    assert_eq!(iterations, [1, 2]);
    let agent = &snapshot["runOrchestrator"]["agentId"];
    assert!(decided.iter().all(|event| event["payload"]["agentId"] == *agent));
    // The loop is one of executions, each with an ordinal of its own.
    let executions = &snapshot["nodeStates"]["dispatch"]["executions"];
    assert_eq!(*executions, 2);
    server.stop().await;
}

#[tokio::test]
async fn agent_of_the_node_decides() {
    let server = host(&[
        "conformance-orchestrator-dispatch",
        "conformance-orchestrator-terminate",
    ])
    .await;
    let run = server.run("conformance-orchestrator-dispatch", json!({})).await;
    let snapshot = server.wait_for(&run, "completed").await;
    let log = events(&server, &run).await;
    let first = &of(&log, "runOrchestrator.decided")[0]["payload"];
    assert_eq!(first["decision"]["nextWorkerIds"], json!(["conformance-noop"]));
    assert_eq!(first["agentId"], snapshot["runOrchestrator"]["agentId"]);
    assert!(first["agentId"].as_str().unwrap().len() >= 3);

    let run = server.run("conformance-orchestrator-terminate", json!({})).await;
    server.wait_for(&run, "completed").await;
    assert_eq!(kinds(&events(&server, &run).await), ["terminate"]);
    server.stop().await;
}

#[tokio::test]
async fn every_transition_of_a_handoff_is_one_event_that_names_the_one_before() {
    let server = host(&[
        "conformance-multi-agent-handoff",
        "conformance-multi-agent-handoff-child",
    ])
    .await;
    let run = server.run("conformance-multi-agent-handoff", json!({})).await;
    let snapshot = server.wait_for(&run, "completed").await;
    assert_eq!(snapshot["variables"]["parentResult"], "handoff-complete");
    let events = events(&server, &run).await;
    assert_eq!(
        phases(&events),
        [
            "dispatch.began",
            "dispatch.succeeded",
            "child.completed",
            "output.harvested"
        ]
    );
    let handoff = of(&events, "core.workflowChain.event");
    let decided = of(&events, "runOrchestrator.decided")[0];
    assert_eq!(handoff[0]["causationId"], decided["eventId"]);
    for pair in handoff.windows(2) {
        assert_eq!(pair[1]["causationId"], pair[0]["eventId"]);
    }
    let dispatched = of(&events, "node.dispatched")[0];
    assert_eq!(dispatched["causationId"], decided["eventId"]);
    let child = &dispatched["payload"]["childRunId"];
    assert!(handoff[0]["payload"].get("childRunId").is_none());
    for (n, event) in handoff.iter().enumerate() {
        let payload = &event["payload"];
        assert_eq!(payload["workerId"], "conformance-multi-agent-handoff-child");
        assert_eq!(payload["parentRunId"], run.as_str());
        assert!(n == 0 || payload["childRunId"] == *child);
    }
    assert_eq!(handoff[3]["payload"]["harvestedKeys"], json!(["parentResult"]));
    assert_eq!(snapshot["childRuns"][0]["runId"], *child);
    server.stop().await;
}

#[tokio::test]
async fn inputs_of_a_worker_are_mapped_and_unset_ones_are_absent() {
    let server = host(&[
        "conformance-dispatch-input-mapping",
        "conformance-dispatch-input-mapping-no-default",
        "conformance-dispatch-input-mapping-child",
    ])
    .await;
    let run = server.run("conformance-dispatch-input-mapping", json!({})).await;
    server.wait_for(&run, "completed").await;
    let child = children(&server, &run).await.remove(0);
    assert_eq!(child["inputs"]["childGreeting"], "Alice");
    assert_eq!(child["parentRunId"], run.as_str());

    let run = server
        .run("conformance-dispatch-input-mapping-no-default", json!({}))
        .await;
    server.wait_for(&run, "completed").await;
    let child = children(&server, &run).await.remove(0);
    assert!(child["inputs"].get("childGreeting").is_none(), "{child:#}");
    assert!(child["variables"].get("childGreeting").is_none(), "{child:#}");
    server.stop().await;
}

#[tokio::test]
async fn outputs_of_a_worker_are_harvested_only_if_it_completes() {
    let server = host(&[
        "conformance-dispatch-output-mapping",
        "conformance-dispatch-output-mapping-child",
        "conformance-dispatch-deterministic-fail-child",
        "conformance-dispatch-cancellable-child",
    ])
    .await;
    let run = server.run("conformance-dispatch-output-mapping", json!({})).await;
    let snapshot = server.wait_for(&run, "completed").await;
    assert_eq!(snapshot["variables"]["parentResult"], "done");

    register(&server, &chain("broken", &[node("fail", "core.fail", json!({}))])).await;
    register(
        &server,
        &chain(
            "slow",
            &[node("wait", "core.delay", json!({ "delayMs": 3_600_000 }))],
        ),
    )
    .await;
    for (child, phase) in [("broken", "child.failed"), ("slow", "child.cancelled")] {
        let parent = looped(
            &format!("parent-of-{child}"),
            json!({ "mockDispatchPlan": [next(&[child]), done()] }),
            json!({ "outputMapping": { "parentResult": "childOutcome" } }),
            json!([text("parentResult", json!("untouched"))]),
        );
        register(&server, &parent).await;
        let run = server.run(&format!("parent-of-{child}"), json!({})).await;
        if child == "slow" {
            server.wait_for(&run, "running").await;
            let child = children(&server, &run).await.remove(0);
            let path = format!("/v1/runs/{}/cancel", child["runId"].as_str().unwrap());
            server.post(&path, &json!({})).send().await.ok(200);
        }
        // The supervisor goes on and sees what became of its worker.
        let snapshot = server.wait_for(&run, "completed").await;
        assert_eq!(snapshot["variables"]["parentResult"], "untouched");
        let events = events(&server, &run).await;
        assert_eq!(phases(&events), ["dispatch.began", "dispatch.succeeded", phase]);
        let ended = events.iter().find(|event| event["payload"]["phase"] == phase);
        let error = &ended.unwrap()["payload"]["error"];
        assert!(
            error["code"].is_string() && error["message"].is_string(),
            "{error}"
        );
        assert_eq!(kinds(&events), ["next-worker", "terminate"]);
    }
    server.stop().await;
}

#[tokio::test]
async fn workers_in_sequence_see_what_the_one_before_gave_back() {
    let a = "conformance-dispatch-cross-worker-handoff-child-a";
    let b = "conformance-dispatch-cross-worker-handoff-child-b";
    let server = host(&[
        a,
        b,
        "conformance-dispatch-cross-worker-handoff",
        "conformance-dispatch-per-worker-override",
    ])
    .await;
    let run = server
        .run("conformance-dispatch-cross-worker-handoff", json!({}))
        .await;
    let snapshot = server.wait_for(&run, "completed").await;
    assert_eq!(snapshot["variables"]["sharedVar"], "hello");
    assert_eq!(children(&server, &run).await[1]["inputs"]["input"], "hello");

    let run = server
        .run("conformance-dispatch-per-worker-override", json!({}))
        .await;
    server.wait_for(&run, "completed").await;
    let children = children(&server, &run).await;
    assert_eq!(children[0]["inputs"]["input"], "default-x-value");
    assert_eq!(children[1]["inputs"]["input"], "shared-value");
    server.stop().await;
}

#[tokio::test]
async fn decision_of_low_confidence_is_held_until_somebody_ratifies_it() {
    let id = "conformance-orchestrator-low-confidence";
    let server = host(&[id]).await;
    for (answer, status, worker) in [
        (json!({ "ratified": true }), "completed", "conformance-noop"),
        (
            json!({ "decision": next(&["identity"]) }),
            "completed",
            "identity",
        ),
        (json!({ "rejected": true }), "failed", ""),
    ] {
        let run = server.run(id, json!({})).await;
        let snapshot = server.wait_for(&run, "waiting-approval").await;
        let held = events(&server, &run).await;
        assert!(kinds(&held).is_empty());
        let suspended = &of(&held, "node.suspended")[0]["payload"];
        assert_eq!(suspended["reason"], "low-confidence");
        assert_eq!(suspended["kind"], "low-confidence");
        assert_eq!(suspended["agentId"], snapshot["runOrchestrator"]["agentId"]);
        assert_eq!(
            (&suspended["threshold"], &suspended["observed"]),
            (&json!(0.7), &json!(0.5))
        );
        assert_eq!(snapshot["interrupt"]["kind"], "low-confidence");
        let path = format!("/v1/runs/{run}/interrupts/supervisor");
        let wrong = json!({ "decision": { "kind": "next-worker" } });
        for wrong in [wrong, json!({}), json!({ "ratified": false })] {
            let body = json!({ "resumeValue": wrong });
            assert_eq!(server.post(&path, &body).send().await.status, 400);
        }
        let body = json!({ "resumeValue": answer });
        server.post(&path, &body).send().await.ok(200);
        server.wait_for(&run, status).await;
        let log = events(&server, &run).await;
        if worker.is_empty() {
            assert!(kinds(&log).is_empty());
        } else {
            assert_eq!(kinds(&log), ["next-worker", "terminate"]);
            let first = &of(&log, "runOrchestrator.decided")[0]["payload"]["decision"];
            assert_eq!(first["nextWorkerIds"], json!([worker]));
        }
    }
    // The caller may set another threshold; at the threshold itself nobody is asked.
    let body = json!({ "workflowId": id, "configurable": { "escalationThreshold": 0.5 } });
    let created = server.post("/v1/runs", &body).send().await.ok(201);
    server
        .wait_for(created["runId"].as_str().unwrap(), "completed")
        .await;
    server.stop().await;
}

#[tokio::test]
async fn decision_below_the_floor_needs_an_approval() {
    let id = "conformance-multi-agent-confidence-escalation";
    let server = host(&[id, "conformance-multi-agent-handoff-child"]).await;
    for (answer, workers) in [
        (
            json!({ "action": "accept" }),
            vec!["conformance-multi-agent-handoff-child"],
        ),
        (
            json!({ "action": "edit-accept", "editedArtifactData": next(&["identity"]) }),
            vec!["identity"],
        ),
        (json!({ "action": "reject" }), vec![]),
    ] {
        let run = server.run(id, json!({})).await;
        let snapshot = server.wait_for(&run, "waiting-approval").await;
        assert_eq!(snapshot["interrupt"]["kind"], "approval");
        let log = events(&server, &run).await;
        assert!(phases(&log).is_empty());
        let escalated = of(&log, "core.workflowChain.confidence-escalated");
        assert_eq!(escalated.len(), 1);
        let (payload, decided) = (&escalated[0]["payload"], of(&log, "runOrchestrator.decided")[0]);
        assert_eq!(escalated[0]["causationId"], decided["eventId"]);
        assert_eq!(
            (&payload["confidence"], &payload["floor"]),
            (&json!(0.3), &json!(0.5))
        );
        assert_eq!(payload["escalationKind"], "escalate");
        assert_eq!(payload["originalDecision"], decided["payload"]["decision"]);
        let path = format!("/v1/runs/{run}/interrupts/dispatch");
        let wrong = json!({ "action": "edit-accept", "editedArtifactData": { "kind": "unknown" } });
        let body = json!({ "resumeValue": wrong });
        assert_eq!(server.post(&path, &body).send().await.status, 400);
        let body = json!({ "resumeValue": answer });
        server.post(&path, &body).send().await.ok(200);
        server.wait_for(&run, "completed").await;
        // A rejected decision leads to the next turn.
        let log = events(&server, &run).await;
        assert_eq!(kinds(&log), ["next-worker", "terminate"]);
        let dispatched = of(&log, "node.dispatched").into_iter();
        let dispatched: Vec<_> = dispatched
            .map(|event| event["payload"]["childWorkflowId"].as_str().unwrap())
            .collect();
        assert_eq!(dispatched, workers);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_run_that_a_worker_stopped_says_so_in_every_protocol() {
    let server = Server::start().await;
    let fails = chain(
        "fails",
        &[node(
            "work",
            "core.fail",
            json!({ "code": "no_ink", "message": "the pen is dry" }),
        )],
    );
    let lead = json!({ "decision": next(&["fails"]), "maxLoopIterations": 1 });
    for document in [fails, looped("crew", lead, json!({}), json!([]))] {
        server.post("/v1/workflows", &document).send().await.ok(201);
    }
    let run = server.run("crew", json!({})).await;
    let snapshot = server.wait_for(&run, "failed").await;
    let child = &snapshot["childRuns"][0];
    assert_eq!(
        (&child["workflowId"], &child["status"]),
        (&json!("fails"), &json!("failed"))
    );
    let failure = json!({
        "workerId": "fails", "childRunId": child["runId"], "code": "no_ink", "message": "the pen is dry",
    });
    assert_eq!(snapshot["error"]["code"], "loop_limit_exceeded");
    assert_eq!(snapshot["error"]["details"]["workerFailure"], failure);
    let events = events(&server, &run).await;
    let failed = of(&events, "run.failed")[0];
    assert_eq!(failed["payload"]["error"]["details"]["workerFailure"], failure);
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": { "id": run } });
    let task = server
        .post("/a2a", &body)
        .header("a2a-version", "1.0")
        .send()
        .await
        .ok(200);
    let task = &task["result"];
    assert_eq!(
        task["metadata"]["openwop"]["error"]["details"]["workerFailure"],
        failure
    );
    assert_eq!(
        task["status"]["message"]["parts"][0]["text"],
        "the loop reached its limit of 1 turns; worker 'fails' failed last: no_ink: the pen is dry"
    );
    server.stop().await;
}

/// The hooks of conformance mode run the engine, and show what it recorded.
#[tokio::test]
async fn hooks_tell_of_iterations_and_joins() {
    let server = Server::start().await;
    let noop = chain("conformance-noop", &[node("work", "core.noop", json!({}))]);
    server
        .post("/v1/workflows", &noop)
        .send()
        .await
        .ok_either(&[200, 201]);
    let path = "/v1/host/sample/agentloop/run";
    let looped = |body: Value| {
        let server = &server;
        async move { server.post(path, &body).send().await.ok(200) }
    };
    let three = looped(json!({ "turns": 3 })).await;
    assert_eq!(three["iterations"], json!([1, 2, 3]), "{three:#}");
    assert_eq!(three["decisions"][2]["decision"]["kind"], "terminate");
    let halted = looped(json!({ "turns": 4, "suspendAtTurn": 2 })).await;
    assert_eq!(
        (&halted["status"], &halted["iterations"]),
        (&json!("waiting-input"), &json!([1, 2]))
    );
    let resumed = looped(json!({ "turns": 4, "suspendAtTurn": 2, "resume": true })).await;
    assert_eq!(resumed["resumedIteration"], 2, "{resumed:#}");
    assert_eq!(resumed["iterations"], json!([1, 2, 3, 4]));
    assert_eq!(resumed["status"], "completed");
    let capped = looped(json!({ "turns": 4, "maxLoopIterations": 2 })).await;
    assert_eq!(capped["error"]["code"], "loop_limit_exceeded", "{capped:#}");
    for wrong in [
        json!({ "turns": 0 }),
        json!({ "turns": 65 }),
        json!({ "turns": 2, "suspendAtTurn": 2 }),
        json!({ "turns": 2, "workspaceWriteAtTurn": 1 }),
    ] {
        server
            .post(path, &wrong)
            .send()
            .await
            .error(400, "validation_error");
    }
    let path = "/v1/host/sample/dispatch/fanout";
    let workers = json!({ "nextWorkerIds": ["conformance-noop", "conformance-noop", "conformance-noop"] });
    let joined = server.post(path, &workers).send().await.ok(200);
    assert_eq!(joined["joinOutcome"], "satisfied", "{joined:#}");
    assert_eq!(joined["children"].as_array().unwrap().len(), 3);
    assert_eq!(joined["mergeOrder"].as_array().unwrap().len(), 3);
    let path = "/v1/host/sample/subrun/attest";
    let attest = |attestation: Value, action: Value| {
        let server = &server;
        let mut body = json!({ "childOutputs": { "out": "pure", "n": 1 }, "outputAttestation": attestation });
        if !action.is_null() {
            body["approvalAction"] = action;
        }
        async move { server.post(path, &body).send().await.ok(200) }
    };
    let plain = attest(json!({ "checksum": true }), Value::Null).await;
    assert_eq!(plain["merged"], true, "{plain:#}");
    assert_eq!(plain["mergedValues"], json!({ "out": "pure", "n": 1 }));
    assert_eq!(plain["attestation"]["algorithm"], "sha256", "{plain:#}");
    assert_eq!(
        plain["attestation"],
        plain["harvestedEvent"]["payload"]["attestation"]
    );
    for (action, merged) in [
        (Value::Null, false),
        (json!("reject"), false),
        (json!("accept"), true),
        (json!("edit-accept"), true),
    ] {
        let held = attest(json!({ "requireApproval": true }), action.clone()).await;
        assert_eq!(held["merged"], merged, "{action}: {held:#}");
        assert_eq!(held.get("mergedValues").is_some(), merged, "{action}: {held:#}");
    }
    let path = "/v1/host/sample/dispatch/fanout";
    let wrong = json!({ "nextWorkerIds": ["conformance-noop"], "config": { "fanOutPolicy": "all" } });
    server
        .post(path, &wrong)
        .send()
        .await
        .error(400, "validation_error");
    server.stop().await;
}

/// A verdict names the decision that it is about, and a repetition of the run names its own.
#[tokio::test]
async fn verdict_is_a_closed_event_and_decides_whether_the_run_completes() {
    let server = Server::start().await;
    let verdict = |verdict: &str| {
        let mut judge = node("judge", "core.identity", json!({}));
        judge["inputs"] = json!({ "data": { "type": "static", "value": {
            "verdict": verdict, "criteria": ["sourced"], "confidence": 0.75, "feedback": "secret-of-the-work",
        } } });
        chain("reviewer", &[judge])
    };
    let supervisor = json!({
        "agentId": "planner",
        "decision": done(),
        "verifier": { "worker": "reviewer", "agentId": "critic", "criteria": ["sourced"], "maxRevisions": 1 },
    });
    register(
        &server,
        &looped(
            "judged",
            supervisor,
            json!({ "outputMapping": { "x": "y" } }),
            json!([]),
        ),
    )
    .await;
    for (says, status, n_verdicts) in [
        ("pass", "completed", 1),
        ("fail", "failed", 1),
        ("revise", "failed", 2),
    ] {
        register(&server, &verdict(says)).await;
        let run = server.run("judged", json!({})).await;
        let snapshot = server.wait_for(&run, status).await;
        let log = events(&server, &run).await;
        let verified = of(&log, "agent.verified");
        assert_eq!(verified.len(), n_verdicts, "{says}");
        let decided = of(&log, "runOrchestrator.decided");
        for (verified, decided) in verified.iter().zip(&decided) {
            assert_eq!(
                verified["payload"],
                json!({
                    "agentId": "critic", "target": decided["eventId"], "verdict": says, "criteria": ["sourced"],
                    "confidence": 0.75,
                })
            );
        }
        assert_eq!(
            phases(&log)[..3],
            ["dispatch.began", "dispatch.succeeded", "child.completed"]
        );
        assert_eq!(phases(&log).len(), 3 * n_verdicts, "a verdict is not merged");
        let iterations: Vec<_> = decided
            .iter()
            .map(|event| event["payload"]["iteration"].clone())
            .collect();
        assert_eq!(iterations, [json!(1), json!(2)][..n_verdicts]);
        if status == "failed" {
            assert_eq!(snapshot["error"]["code"], "verification_failed", "{snapshot:#}");
        }
        let fork = json!({ "mode": "replay", "fromSeq": 0 });
        let fork = server
            .post(&format!("/v1/runs/{run}:fork"), &fork)
            .send()
            .await
            .ok(201);
        let fork = fork["runId"].as_str().unwrap().to_owned();
        server.wait_for(&fork, status).await;
        let repeated = events(&server, &fork).await;
        // It names the decision as its source recorded it.
        let payloads = |log| -> Vec<Value> {
            let verified = of(log, "agent.verified");
            verified.iter().map(|event| event["payload"].clone()).collect()
        };
        assert_eq!(payloads(&repeated), payloads(&log));
    }
    server.stop().await;
}

#[tokio::test]
async fn run_bounds_the_turns_of_its_supervisor() {
    let server = Server::start().await;
    let supervisor = json!({ "decision": next(&["nobody"]), "maxLoopIterations": 9 });
    register(&server, &looped("endless", supervisor, json!({}), json!([]))).await;
    let start =
        |most: Value| json!({ "workflowId": "endless", "configurable": { "maxLoopIterations": most } });
    let run = server.post("/v1/runs", &start(json!(2))).send().await.ok(201);
    let run = run["runId"].as_str().unwrap();
    let snapshot = server.wait_for(run, "failed").await;
    assert_eq!(snapshot["error"]["code"], "loop_limit_exceeded");
    let log = events(&server, run).await;
    let breached = &of(&log, "cap.breached")[0]["payload"];
    assert_eq!(
        (&breached["kind"], &breached["limit"], &breached["observed"]),
        (&json!("loop-iterations"), &json!(2), &json!(3))
    );
    for wrong in [json!(0), json!("two"), json!(1.5)] {
        server
            .post("/v1/runs", &start(wrong))
            .send()
            .await
            .error(400, "validation_error");
    }
    server.stop().await;
}

#[tokio::test]
async fn discovery_says_what_of_supervisors_and_workers_is_offered() {
    let server = Server::start().await;
    let document = server.call("GET", "/.well-known/openwop").send().await.ok(200);
    let model = |of: &Value| of["multiAgent"]["executionModel"].clone();
    assert_eq!(model(&document)["supported"], true);
    assert_eq!(
        model(&document)["replayDeterminism"],
        json!({ "supported": true, "llmCacheKeyRecipe": "spec-rfc-0041", "refusalDivergenceEmission": true })
    );
    assert!(model(&document)["version"].as_u64().unwrap() >= 6);
    assert_eq!(model(&document)["statefulResume"], true);
    assert_eq!(model(&document)["crossChildMemoryConcurrency"], "advisory");
    assert_eq!(
        model(&document)["verifier"],
        json!({ "supported": true, "gating": true })
    );
    assert!(model(&document["capabilities"])["version"].as_u64().unwrap() <= 4);
    for family in ["agents", "orchestrator", "dispatch"] {
        assert_eq!(document[family]["supported"], true);
        assert_eq!(document["capabilities"][family], document[family]);
    }
    server.stop().await;
}
