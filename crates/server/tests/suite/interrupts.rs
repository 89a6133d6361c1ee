//! Interrupts and their resolution.

use serde_json::{Value, json};

use crate::{
    server::{ADAM, ALICE, READER, Server},
    workflows::{chain, node},
};

async fn waiting(server: &Server, workflow: &str, status: &str) -> (String, Value) {
    let run = server.run(workflow, json!({})).await;
    let snapshot = server.wait_for(&run, status).await;
    (run, snapshot["interrupt"].clone())
}

async fn answer(server: &Server, run: &str, node: &str, value: Value) -> crate::client::Reply {
    let path = format!("/v1/runs/{run}/interrupts/{node}");
    server.post(&path, &json!({ "resumeValue": value })).send().await
}

/// Parent and child each have an artifact of the same id; the child's interrupt refers to the child's.
#[tokio::test]
async fn childs_interrupt_names_the_run_of_its_artifact() {
    let server = Server::start().await;
    let draft = |text: &str| {
        let mut draft = node("draft", "core.template", json!({ "template": text }));
        draft["artifactType"] = json!("text");
        draft
    };
    let asks = node(
        "gate",
        "core.approvalGate",
        json!({ "title": "Send?", "artifactId": "draft", "actions": ["accept"] }),
    );
    let child = chain("drafts-child", &[draft("the child's"), asks]);
    let sub = node("sub", "core.subWorkflow", json!({ "workflowId": "drafts-child" }));
    let parent = chain("drafts-parent", &[draft("the parent's"), sub]);
    for document in [child, parent] {
        server.post("/v1/workflows", &document).send().await.ok(201);
    }
    let (run, _) = waiting(&server, "drafts-parent", "waiting-approval").await;
    let shown = server.snapshot(&run).await;
    let data = &shown["interrupts"][0]["data"];
    let asking = data["artifactRunId"].as_str().expect("the child's id");
    let id = data["artifactId"].as_str().unwrap();
    assert_ne!(asking, run);
    let path = format!("/v1/runs/{asking}/artifacts/{id}");
    assert_eq!(server.get(&path).send().await.ok(200)["content"], "the child's");
    // The child's own interrupt need not name the run.
    let own = server.snapshot(asking).await;
    assert_eq!(own["interrupts"][0]["data"].get("artifactRunId"), None);
}

#[tokio::test]
async fn an_approval_is_answered_by_node() {
    let server = Server::start().await;
    let (run, interrupt) = waiting(&server, "approval", "waiting-approval").await;
    assert_eq!(interrupt["kind"], "approval");
    assert_eq!(interrupt["key"], "gate:0");
    assert_eq!(interrupt["interruptId"], "gate:0");
    assert_eq!(interrupt["data"]["actions"][0], "accept");
    let url = interrupt["callbackUrl"].as_str().unwrap();
    let token = interrupt["interruptToken"].as_str().unwrap();
    assert_eq!(url, format!("{}/v1/interrupts/{token}", server.host.public_url()));

    answer(&server, &run, "nowhere", json!({}))
        .await
        .error(404, "interrupt_not_found");
    for bad in [
        json!({ "action": "maybe" }),
        json!({ "action": "timeout" }),
        json!({ "action": "refine" }),
        json!({ "action": "edit-accept" }),
        json!({}),
        json!(7),
    ] {
        answer(&server, &run, "gate", bad)
            .await
            .error(400, "validation_error");
    }
    let asked = answer(
        &server,
        &run,
        "gate",
        json!({ "action": "ask", "question": "Why?" }),
    )
    .await;
    assert_eq!(asked.ok(200)["status"], "waiting-approval");
    let accepted = answer(&server, &run, "gate", json!({ "action": "accept" }))
        .await
        .ok(200);
    assert_eq!(
        accepted,
        json!({ "runId": run, "nodeId": "gate", "status": "completed" })
    );
    let again = answer(&server, &run, "gate", json!({ "action": "accept" })).await;
    again.error(409, "interrupt_already_resolved");
    let snapshot = server.snapshot(&run).await;
    assert!(snapshot.get("interrupt").is_none());
}

async fn event(server: &Server, run: &str, name: &str) -> Value {
    let path = format!("/v1/runs/{run}/events");
    let log = server
        .get(&path)
        .header("accept", "application/json")
        .send()
        .await
        .ok(200);
    let events = log["events"].as_array().unwrap();
    let found = events.iter().find(|event| event["type"] == name);
    found.unwrap_or_else(|| panic!("{name} in {log}"))["payload"].clone()
}

#[tokio::test]
async fn every_action_is_recorded_in_the_log() {
    let server = Server::start().await;
    let feedback = json!({ "scope": "whole", "text": "shorter" });
    for (value, action, decision, status) in [
        (
            json!({ "action": "accept" }),
            "accept",
            json!("granted"),
            "completed",
        ),
        (
            json!({ "approve": true }),
            "accept",
            json!("granted"),
            "completed",
        ),
        (
            json!({ "action": "reject" }),
            "reject",
            json!("rejected"),
            "failed",
        ),
        (
            json!({ "approve": false, "feedback": "no" }),
            "reject",
            json!("rejected"),
            "failed",
        ),
        (
            json!({ "action": "refine", "refineFeedback": feedback }),
            "refine",
            Value::Null,
            "completed",
        ),
        (
            json!({ "decision": "rejected", "feedback": "shorter" }),
            "refine",
            Value::Null,
            "completed",
        ),
        (
            json!({ "action": "edit-accept", "editedArtifactData": { "a": 1 } }),
            "edit-accept",
            json!("granted"),
            "completed",
        ),
    ] {
        let (run, _) = waiting(&server, "approval", "waiting-approval").await;
        answer(&server, &run, "gate", value.clone()).await.ok(200);
        let snapshot = server.wait_for(&run, status).await;
        let resolved = event(&server, &run, "interrupt.resolved").await;
        assert_eq!(resolved["action"], action, "{value}");
        assert_eq!(resolved["decision"], decision, "{value}");
        assert_eq!(resolved["resumeValue"], value);
        assert_eq!(resolved["resolvedBy"], "alice");
        let received = event(&server, &run, "approval.received").await;
        assert_eq!(received["action"], action);
        assert_eq!(received["decidedBy"], "alice");
        match action {
            "refine" => {
                assert_eq!(resolved["refineFeedback"], feedback);
                assert_eq!(received["refineFeedback"], feedback);
            }
            "edit-accept" => assert_eq!(resolved["editedArtifactData"], json!({ "a": 1 })),
            "reject" => assert_eq!(snapshot["error"]["code"], "approval_rejected"),
            _ => {}
        }
        let asked = event(&server, &run, "approval.requested").await;
        assert_eq!(
            asked["actions"],
            json!(["accept", "reject", "refine", "edit", "ask"])
        );
    }
}

#[tokio::test]
async fn approval_route_takes_an_unwrapped_answer() {
    let server = Server::start().await;
    let (run, _) = waiting(&server, "approval", "waiting-approval").await;
    let path = format!("/v1/runs/{run}/approvals/gate");
    let resolved = server
        .post(&path, &json!({ "action": "accept" }))
        .send()
        .await
        .ok(200);
    assert_eq!(resolved["status"], "completed");
    let array = server.post(&path, &json!([])).send().await;
    array.error(400, "validation_error");
}

#[tokio::test]
async fn clarification_accepts_both_answer_formats() {
    let server = Server::start().await;
    for answers in [json!({ "q1": "blue" }), json!([{ "id": "q1", "answer": "blue" }])] {
        let (run, interrupt) = waiting(&server, "ask", "waiting-input").await;
        assert_eq!(interrupt["data"]["questions"][0]["id"], "q1");
        let resolved = answer(&server, &run, "ask", json!({ "answers": answers })).await;
        assert_eq!(resolved.ok(200)["status"], "completed");
        let resolved = event(&server, &run, "clarification.resolved").await;
        assert_eq!(resolved["answers"], json!({ "q1": "blue" }));
    }
}

#[tokio::test]
async fn an_external_event_must_match_its_correlation() {
    let server = Server::start().await;
    let (run, interrupt) = waiting(&server, "order", "waiting-external").await;
    let path = format!("/v1/interrupts/{}", interrupt["interruptToken"].as_str().unwrap());
    let post = |value: Value| server.call("POST", &path).json(&json!({ "resumeValue": value }));
    let wrong = post(json!({ "orderId": "o-2" })).send().await;
    wrong.error(422, "validation_error");
    assert_eq!(server.snapshot(&run).await["status"], "waiting-external");
    let right = post(json!({ "orderId": "o-1", "more": true })).send().await;
    assert_eq!(right.ok(200)["status"], "completed");
}

#[tokio::test]
async fn a_quorum_counts_each_voter_once() {
    let server = Server::start().await;
    let (run, _) = waiting(&server, "quorum", "waiting-approval").await;
    let accept = json!({ "resumeValue": { "action": "accept" } });
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let alice = || server.post(&path, &accept);
    assert_eq!(alice().send().await.ok(200)["status"], "waiting-approval");
    assert_eq!(alice().send().await.ok(200)["status"], "waiting-approval");
    let adam = server.call("POST", &path).key(ADAM).json(&accept).send().await;
    assert_eq!(adam.ok(200)["status"], "completed");
    let voted = event(&server, &run, "vendor.wopr.approval.voted").await;
    assert_eq!(voted["voter"], "alice");
    let received = event(&server, &run, "approval.received").await;
    assert_eq!(received["decidedBy"], "quorum:2-of-2");
}

#[tokio::test]
async fn voting_for_others_requires_a_scope() {
    let server = Server::start_with(|config| config.conformance = false).await;
    let made = json!({ "scopes": ["approvals:respond"], "id": "approver" });
    let made = server.post("/v1/host/wopr/keys", &made).send().await.ok(201);
    let run = server.run("quorum", json!({})).await;
    let path = format!("/v1/runs/{run}/interrupts/gate");
    let vote = |voter: &str| json!({ "resumeValue": { "action": "accept", "voter": voter } });
    let call = |voter: &str| {
        server
            .call("POST", &path)
            .key(made["secret"].as_str().unwrap())
            .json(&vote(voter))
    };
    call("somebody").send().await.error(403, "forbidden");
    call("approver").send().await.ok(200);
    // A key that manages keys could create one for the voter anyway.
    assert_eq!(
        server.post(&path, &vote("somebody")).send().await.ok(200)["status"],
        "completed"
    );
}

#[tokio::test]
async fn token_inspects_and_resolves_once() {
    let server = Server::start().await;
    let (run, interrupt) = waiting(&server, "approval", "waiting-approval").await;
    let path = format!("/v1/interrupts/{}", interrupt["interruptToken"].as_str().unwrap());
    let accept = json!({ "resumeValue": { "action": "accept" } });
    let get = || server.call("GET", &path);
    let post = || server.call("POST", &path).json(&accept);
    let seen = get().send().await.ok(200);
    assert_eq!(seen["nodeId"], "gate");
    assert_eq!(seen["data"], interrupt["data"]);
    assert!(seen.get("interruptToken").is_none());
    let maybe = json!({ "resumeValue": { "action": "maybe" } });
    server
        .call("POST", &path)
        .json(&maybe)
        .send()
        .await
        .error(400, "validation_error");
    assert_eq!(post().send().await.ok(200)["status"], "completed");
    post().send().await.error(409, "interrupt_already_resolved");
    get().send().await.error(409, "interrupt_already_resolved");
    let received = event(&server, &run, "approval.received").await;
    assert_eq!(received["decidedBy"], "interrupt-token");
}

#[tokio::test]
async fn invalid_tokens_are_refused() {
    let server = Server::start().await;
    let (_, interrupt) = waiting(&server, "approval", "waiting-approval").await;
    let token = interrupt["interruptToken"].as_str().unwrap();
    let (payload, mac) = token.split_once('.').unwrap();
    let accept = json!({ "resumeValue": { "action": "accept" } });
    for text in [
        "tok_abcdef0123456789",
        "!!!not-a-valid-token!!!",
        "not-a-token",
        "%00",
        &format!("{payload}.{}", "A".repeat(mac.len())),
        &format!("{payload}."),
        &format!("e30.{mac}"),
        &"x".repeat(5_000),
    ] {
        let path = format!("/v1/interrupts/{text}");
        server
            .call("GET", &path)
            .send()
            .await
            .error(404, "interrupt_not_found");
        let post = server.call("POST", &path).json(&accept).send().await;
        post.error(404, "interrupt_not_found");
    }
    let other = Server::start().await;
    let foreign = other.call("GET", &format!("/v1/interrupts/{token}")).send().await;
    foreign.error(404, "interrupt_not_found");
}

#[tokio::test]
async fn token_expires_by_lifetime_or_with_its_interrupt() {
    let server = Server::start().await;
    let (_, interrupt) = waiting(&server, "approval", "waiting-approval").await;
    let (_, sooner) = waiting(&server, "approval-soon", "waiting-approval").await;
    let path =
        |interrupt: &Value| format!("/v1/interrupts/{}", interrupt["interruptToken"].as_str().unwrap());
    assert!(sooner["expiresAt"].as_str() < interrupt["expiresAt"].as_str());
    server.clock.advance(31 * 60_000);
    for path in [path(&interrupt), path(&sooner)] {
        server
            .call("GET", &path)
            .send()
            .await
            .error(410, "interrupt_expired");
        let accept = json!({ "resumeValue": { "action": "accept" } });
        let post = server.call("POST", &path).json(&accept).send().await;
        post.error(410, "interrupt_expired");
    }
}

#[tokio::test]
async fn a_cancel_invalidates_tokens() {
    let server = Server::start().await;
    let (run, interrupt) = waiting(&server, "approval", "waiting-approval").await;
    let path = format!("/v1/interrupts/{}", interrupt["interruptToken"].as_str().unwrap());
    server
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    let accept = json!({ "resumeValue": { "action": "accept" } });
    server
        .call("GET", &path)
        .send()
        .await
        .error(409, "interrupt_already_resolved");
    let post = server.call("POST", &path).json(&accept).send().await;
    post.error(409, "interrupt_already_resolved");
    let by_node = answer(&server, &run, "gate", json!({ "action": "accept" })).await;
    by_node.error(422, "interrupt_cancelled");

    let parent = server.run("parent", json!({})).await;
    let snapshot = server.wait_for(&parent, "waiting-approval").await;
    let path = format!(
        "/v1/interrupts/{}",
        snapshot["interrupt"]["interruptToken"].as_str().unwrap()
    );
    let child = snapshot["childRuns"][0]["runId"].as_str().unwrap();
    server.call("GET", &path).send().await.ok(200);
    server
        .post(&format!("/v1/runs/{parent}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    server.wait_for(&parent, "cancelled").await;
    server.wait_for(child, "cancelled").await;
    server
        .call("GET", &path)
        .send()
        .await
        .error(410, "interrupt_gone");
    let post = server.call("POST", &path).json(&accept).send().await;
    post.error(410, "interrupt_gone");
    let by_node = answer(&server, child, "gate", json!({ "action": "accept" })).await;
    by_node.error(410, "interrupt_gone");
    let cancelled = event(&server, child, "run.cancelled").await;
    assert_eq!(cancelled["reason"], "parent-cancelled");
    assert_eq!(cancelled["parentRunId"], parent);
}

#[tokio::test]
async fn gate_can_require_a_credential() {
    let server = Server::start().await;
    let (run, interrupt) = waiting(&server, "signed", "waiting-approval").await;
    let path = format!("/v1/interrupts/{}", interrupt["interruptToken"].as_str().unwrap());
    let accept = json!({ "resumeValue": { "action": "accept" } });
    let by_token = server.call("POST", &path).json(&accept).send().await;
    by_token.error(401, "unauthenticated");
    assert!(by_token.header("www-authenticate").is_some());
    assert_eq!(server.snapshot(&run).await["status"], "waiting-approval");
    answer(&server, &run, "gate", json!({ "action": "accept" }))
        .await
        .ok(200);
}

#[tokio::test]
async fn tokens_are_shown_only_to_callers_who_may_answer() {
    let server = Server::start().await;
    let scopes = json!({ "scopes": ["runs:create", "runs:read"], "id": "starter" });
    let made = server.post("/v1/host/wopr/keys", &scopes).send().await.ok(201);
    let key = made["secret"].as_str().unwrap();
    let body = json!({ "workflowId": "approval" });
    let created = server
        .call("POST", "/v1/runs")
        .key(key)
        .json(&body)
        .send()
        .await
        .ok(201);
    let own = format!("/v1/runs/{}", created["runId"].as_str().unwrap());
    let (theirs, _) = waiting(&server, "approval", "waiting-approval").await;
    let own = server.call("GET", &own).key(key).send().await.ok(200);
    assert_eq!(own["status"], "waiting-approval");
    assert!(!own.to_string().contains("interruptToken"), "{own}");
    let theirs = server
        .call("GET", &format!("/v1/runs/{theirs}"))
        .key(key)
        .send()
        .await
        .ok(200);
    assert!(theirs["interrupt"].get("interruptToken").is_none());
}

#[tokio::test]
async fn pending_interrupts_are_listed_under_their_own_run() {
    let server = Server::start().await;
    let (run, _) = waiting(&server, "approval", "waiting-approval").await;
    let parent = server.run("parent", json!({})).await;
    let snapshot = server.wait_for(&parent, "waiting-approval").await;
    let child = &snapshot["childRuns"][0]["runId"];
    let list = server.get("/v1/interrupts").send().await.ok(200);
    let items = list["interrupts"].as_array().unwrap();
    let mut runs: Vec<_> = items.iter().map(|item| item["runId"].as_str().unwrap()).collect();
    runs.sort_unstable();
    let mut wanted = vec![run.as_str(), child.as_str().unwrap()];
    wanted.sort_unstable();
    assert_eq!(runs, wanted);
    assert!(items.iter().all(|item| item.get("interruptToken").is_none()));
    let bob = server
        .call("GET", "/v1/interrupts")
        .key(crate::server::BOB)
        .send()
        .await;
    assert_eq!(bob.ok(200)["interrupts"], json!([]));
}

#[tokio::test]
async fn pages_of_interrupts_end_once_they_are_large() {
    let server = Server::start().await;
    let gates = |n: usize, text: &str| {
        let gate = |index: usize| {
            json!({
                "id": format!("g{index}"), "typeId": "core.approvalGate", "name": "g", "position": {"x": 0, "y": 0},
                "config": {"description": text}, "inputs": {},
            })
        };
        json!({
            "id": format!("gates-{n}"), "name": "Gates", "version": "1.0.0", "nodes": (0..n).map(gate).collect::<Vec<_>>(),
            "edges": [], "triggers": [{"id": "t", "type": "manual"}], "variables": [], "metadata": {}, "settings": {},
        })
    };
    for workflow in [gates(150, "short"), gates(40, &"x".repeat(20_000))] {
        server.post("/v1/workflows", &workflow).send().await.ok(201);
    }
    let many = server.run("gates-150", json!({})).await;
    server.wait_for(&many, "waiting-approval").await;
    let list = server.get("/v1/interrupts").send().await.ok(200);
    assert_eq!(list["interrupts"].as_array().unwrap().len(), 100);
    assert!(list.get("nextCursor").is_none());

    // Less than a megabyte each.
    for _ in 0..4 {
        let run = server.run("gates-40", json!({})).await;
        // The decision that opens them is more than one append, and the first question makes the run wait.
        while server.snapshot(&run).await["interrupts"]
            .as_array()
            .is_none_or(|open| open.len() < 40)
        {
            tokio::task::yield_now().await;
        }
    }
    let (mut path, mut n_pages, mut n_seen) = ("/v1/interrupts".to_owned(), 0, 0);
    loop {
        let reply = server.get(&path).send().await;
        let list = reply.ok(200);
        assert!(list.to_string().len() < 3 << 20);
        n_pages += 1;
        n_seen += list["interrupts"].as_array().unwrap().len();
        match list["nextCursor"].as_str() {
            Some(cursor) => path = format!("/v1/interrupts?cursor={cursor}"),
            None => break,
        }
    }
    assert!(n_pages > 1 && n_seen == 100 + 4 * 40, "{n_pages} pages, {n_seen}");
}

#[tokio::test]
async fn racing_cancel_and_answer_have_one_winner() {
    let server = Server::start_on_sqlite().await;
    for _ in 0..10 {
        let (run, _) = waiting(&server, "approval", "waiting-approval").await;
        let accept = json!({ "action": "accept" });
        let resolve = server.post(&format!("/v1/runs/{run}/approvals/gate"), &accept);
        let cancel = server.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
        let (resolved, cancelled) = tokio::join!(resolve.send(), cancel.send());
        assert!([200, 409].contains(&resolved.status), "{}", resolved.json());
        assert_eq!(cancelled.status, 200);
        let types = server.event_types(&run).await;
        let ends = ["run.completed", "run.failed", "run.cancelled"];
        let ended: Vec<_> = types
            .iter()
            .filter(|name| ends.contains(&name.as_str()))
            .collect();
        assert_eq!(ended, [types.last().unwrap()]);
    }
    server.call("GET", "/v1/runs").key(ALICE).send().await.ok(200);
    server.stop().await;
}

/// Clients race the two over `/approvals`, where 422 is none of the statuses that they know.
#[tokio::test]
async fn answer_after_a_cancel_is_refused_as_its_route_says() {
    let server = Server::start().await;
    let accept = json!({ "action": "accept" });
    for (workflow, gate) in [("approval", "gate"), ("parent", "sub")] {
        let (run, _) = waiting(&server, workflow, "waiting-approval").await;
        let cancel = server.post(&format!("/v1/runs/{run}/cancel"), &json!({}));
        cancel.send().await.ok(200);
        server.wait_for(&run, "cancelled").await;
        let path = format!("/v1/runs/{run}/approvals/{gate}");
        let late = server.post(&path, &accept).send().await;
        late.error(409, "interrupt_already_resolved");
        let late = answer(&server, &run, gate, accept.clone()).await;
        late.error(422, "interrupt_cancelled");
    }
}

#[tokio::test]
async fn answer_in_a_run_that_ended_by_itself_is_late() {
    let server = Server::start().await;
    let gate = |id: &str| node(id, "core.approvalGate", json!({ "title": id }));
    let mut two = chain("two", &[node("start", "core.noop", json!({})), gate("a")]);
    two["nodes"].as_array_mut().unwrap().push(gate("b"));
    let edge = json!({ "id": "b", "sourceNodeId": "start", "targetNodeId": "b" });
    two["edges"].as_array_mut().unwrap().push(edge);
    server.post("/v1/workflows", &two).send().await.ok(201);
    let (run, _) = waiting(&server, "two", "waiting-approval").await;
    let rejected = answer(&server, &run, "b", json!({ "action": "reject" })).await;
    assert_eq!(rejected.ok(200)["status"], "failed");
    let late = answer(&server, &run, "a", json!({ "action": "accept" })).await;
    late.error(409, "interrupt_already_resolved");
}

#[tokio::test]
async fn answered_question_of_a_child_is_late_at_the_parents_node() {
    let server = Server::start().await;
    let accept = json!({ "action": "accept" });
    let (run, _) = waiting(&server, "parent", "waiting-approval").await;
    answer(&server, &run, "sub", accept.clone()).await.ok(200);
    server.wait_for(&run, "completed").await;
    let late = answer(&server, &run, "sub", accept.clone()).await;
    late.error(409, "interrupt_already_resolved");
    let named = json!({ "resumeValue": accept, "interruptId": "sub:0/gate:0" });
    let path = format!("/v1/runs/{run}/interrupts/sub");
    let late = server.post(&path, &named).send().await;
    late.error(409, "interrupt_already_resolved");
    let never = json!({ "resumeValue": accept, "interruptId": "sub:0/gate:1" });
    let never = server.post(&path, &never).send().await;
    never.error(404, "interrupt_not_found");
}

#[tokio::test]
async fn redelivered_event_gets_the_first_response() {
    let server = Server::start().await;
    let (run, interrupt) = waiting(&server, "order", "waiting-external").await;
    let event = json!({ "resumeValue": { "orderId": "o-1", "eventId": "evt_1" } });
    let other = json!({ "resumeValue": { "orderId": "o-1", "eventId": "evt_2" } });
    let by_token = format!("/v1/interrupts/{}", interrupt["interruptToken"].as_str().unwrap());
    let by_node = format!("/v1/runs/{run}/interrupts/order");
    let first = server.call("POST", &by_token).json(&event).send().await;
    assert_eq!(first.ok(200)["status"], "completed");
    let n_events = server.event_types(&run).await.len();
    for path in [&by_token, &by_node] {
        let again = server.post(path, &event).send().await;
        assert_eq!((again.status, &again.body), (200, &first.body), "{path}");
        let late = server.post(path, &other).send().await;
        late.error(409, "interrupt_already_resolved");
    }
    assert_eq!(server.event_types(&run).await.len(), n_events);
}

/// The schema of the event is closed. What people are shown besides is in the documents.
#[tokio::test]
async fn requested_interrupt_has_only_what_its_schema_knows() {
    let server = Server::start().await;
    let schema = json!({ "type": "object", "required": ["amount"] });
    let ask =
        json!({ "questions": [{ "id": "q", "question": "?" }], "title": "About it", "description": "More" });
    let paid = json!({
        "kind": "external-event", "title": "Payment", "resumeSchema": schema,
        "data": { "eventType": "paid", "correlation": {} },
    });
    let custom = json!({
        "kind": "custom", "description": "Fill it in.", "resumeSchema": schema,
        "data": { "customKind": "form", "payload": { "fields": 2 } },
    });
    for (n, (type_id, config, data)) in [
        (
            "core.clarificationGate",
            ask,
            json!({ "questions": [{ "id": "q", "question": "?" }] }),
        ),
        (
            "core.interrupt",
            paid,
            json!({ "eventType": "paid", "correlation": {} }),
        ),
        (
            "core.interrupt",
            custom,
            json!({ "customKind": "form", "payload": { "fields": 2 } }),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("asks-{n}");
        let document = chain(&id, &[node("ask", type_id, config.clone())]);
        server.post("/v1/workflows", &document).send().await.ok(201);
        let run = server.run(&id, json!({})).await;
        server
            .wait_for_any(&run, &["waiting-input", "waiting-external"])
            .await;
        let requested = event(&server, &run, "interrupt.requested").await;
        assert_eq!(requested["data"], data);
        assert_eq!(requested.get("resumeSchema"), config.get("resumeSchema"));
        let shown = server.snapshot(&run).await["interrupt"].clone();
        for text in ["title", "description"] {
            assert_eq!(shown["data"].get(text), config.get(text), "{shown}");
        }
        assert_eq!(shown.get("resumeSchema"), config.get("resumeSchema"));
        assert!(shown["data"].get("resumeSchema").is_none());
    }
}

#[tokio::test]
async fn token_shows_its_interrupt_and_expiry() {
    let server = Server::start().await;
    let run = server.run("approval", json!({})).await;
    let asked = server.wait_for(&run, "waiting-approval").await["interrupt"].clone();
    let token = asked["interruptToken"].as_str().unwrap();
    let shown = server.call("GET", &format!("/v1/interrupts/{token}"));
    let shown = shown.send().await.ok(200);
    for field in ["data", "requestedAt", "expiresAt"] {
        assert!(!shown[field].is_null(), "{field}: {shown}");
        assert_eq!(shown[field], asked[field], "{field}");
    }
}

#[tokio::test]
async fn etag_of_a_waiting_run_changes_with_its_token() {
    let server = Server::start().await;
    let period = 30 * 60_000 / 16;
    let into = server.host.engine().now().millis() % period;
    server.clock.advance(period - into);
    let run = server.run("approval", json!({})).await;
    server.wait_for(&run, "waiting-approval").await;
    let path = format!("/v1/runs/{run}");
    let first = server.get(&path).send().await;
    let tag = first.header("etag").unwrap().to_owned();
    let token = |document: &Value| {
        document["interrupt"]["interruptToken"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let shown = token(&first.ok(200));
    let again = server.get(&path).header("if-none-match", &tag).send().await;
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(again.header("etag"), Some(tag.as_str()));

    // A caller who sees no token sees a different document.
    let reader = server
        .call("GET", &path)
        .key(READER)
        .header("if-none-match", &tag);
    let reader = reader.send().await;
    assert_eq!(reader.ok(200)["interrupt"].get("interruptToken"), None);
    assert_ne!(reader.header("etag"), Some(tag.as_str()));

    server.clock.advance(period);
    let later = server.get(&path).header("if-none-match", &tag).send().await;
    assert_ne!(token(&later.ok(200)), shown);
    assert_ne!(later.header("etag"), Some(tag.as_str()));
    // The first token lasts much longer than the ETag stays valid.
    let inspected = server
        .call("GET", &format!("/v1/interrupts/{shown}"))
        .send()
        .await;
    inspected.ok(200);
}
