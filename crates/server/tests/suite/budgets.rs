//! Budgets of tenants and workflows over REST: what is counted, what is asked, and who sees and answers it.

use serde_json::{Value, json};
use wopr_engine::Clock as _;
use wopr_server::config::Budget;

use crate::server::{ALICE, BOB, READER, Server};

const PATH: &str = "/v1/host/wopr/budgets";

async fn start(budgets: Value) -> Server {
    let budgets: Vec<Budget> = serde_json::from_value(budgets).unwrap();
    let server = Server::start_with(|config| config.budgets = budgets).await;
    let asking = json!({
        "id": "asking", "name": "asking", "version": "1", "edges": [], "variables": [], "metadata": {}, "settings": {},
        "triggers": [{ "id": "manual", "type": "manual" }],
        "nodes": [{ "id": "ask", "typeId": "core.ai.callPrompt", "name": "ask", "position": { "x": 0, "y": 0 },
            "config": { "provider": "mock", "model": "m", "prompt": "?", "stream": false }, "inputs": {} }],
    });
    server.post("/v1/workflows", &asking).send().await.ok(201);
    server
}

/// Starts a run whose model takes fourteen tokens.
async fn ask(server: &Server) -> String {
    let reply = json!({ "content": "so", "stopReason": "end_turn", "inputTokens": 10, "outputTokens": 4 });
    let program = json!({ "nodeId": "ask", "program": [reply] });
    server
        .post("/v1/host/sample/test/mock-ai/program", &program)
        .send()
        .await
        .ok(200);
    let made = server
        .post("/v1/runs", &json!({ "workflowId": "asking" }))
        .send()
        .await
        .ok(201);
    made["runId"].as_str().unwrap().to_owned()
}

/// What the budgets of a caller's tenant have taken, in their order.
async fn taken(server: &Server, key: &str) -> Vec<u64> {
    let shown = server.call("GET", PATH).key(key).send().await.ok(200);
    let budgets = shown["budgets"].as_array().unwrap().clone();
    budgets
        .iter()
        .map(|budget| budget["tokens"].as_u64().unwrap())
        .collect()
}

async fn answer(server: &Server, run: &str, action: &str) -> crate::client::Reply {
    let path = format!("/v1/runs/{run}/interrupts/ask");
    server
        .post(&path, &json!({ "resumeValue": { "action": action } }))
        .send()
        .await
}

#[tokio::test]
async fn used_up_budget_of_a_tenant_asks_for_more() {
    let server = start(json!([{ "per": "month", "max_tokens": 14, "grant_tokens": 20 }])).await;
    let first = ask(&server).await;
    server.wait_for(&first, "completed").await;
    let shown = server.get(PATH).send().await.ok(200);
    let budget = &shown["budgets"][0];
    assert_eq!(
        (&budget["tokens"], &budget["maxTokens"]),
        (&json!(14), &json!(14)),
        "{shown}"
    );
    assert_eq!(
        (&budget["per"], &budget["onBreach"]),
        (&json!("month"), &json!("ask"))
    );
    assert_eq!(taken(&server, BOB).await, [0], "another tenant has its own");
    server
        .call("GET", PATH)
        .key(READER)
        .send()
        .await
        .error(403, "forbidden");

    let second = ask(&server).await;
    let snapshot = server.wait_for(&second, "waiting-approval").await;
    let data = &snapshot["interrupt"]["data"];
    assert_eq!(
        data["title"], "Spend 20 tokens more than the tenant's budget for the month?",
        "{snapshot}"
    );
    assert_eq!(
        taken(&server, ALICE).await,
        [14],
        "a call that was not made takes nothing"
    );
    answer(&server, &second, "accept").await.ok(200);
    server.wait_for(&second, "completed").await;
    assert_eq!(taken(&server, ALICE).await, [28]);

    let third = ask(&server).await;
    server.wait_for(&third, "waiting-approval").await;
    answer(&server, &third, "reject").await.ok(200);
    let snapshot = server.wait_for(&third, "failed").await;
    assert_eq!(snapshot["error"]["code"], "budget_exhausted", "{snapshot}");
    let metrics = String::from_utf8(server.get("/metrics").send().await.body).unwrap();
    assert!(
        metrics.contains("wopr_over_budget_total{scope=\"tenant\"} 2\n"),
        "{metrics}"
    );
    assert!(metrics.contains("wopr_model_tokens_total 28\n"), "{metrics}");
}

#[tokio::test]
async fn run_that_waits_goes_on_when_the_window_turns() {
    const HOUR_MS: i64 = 3_600_000;
    let server = start(json!([{ "per": "hour", "max_tokens": 14 }])).await;
    // The middle of an hour, so that none ends before it is meant to.
    let into = server.clock.now().millis().rem_euclid(HOUR_MS);
    server.clock.advance((HOUR_MS / 2 - into).rem_euclid(HOUR_MS));
    let first = ask(&server).await;
    server.wait_for(&first, "completed").await;
    let second = ask(&server).await;
    server.wait_for(&second, "waiting-approval").await;
    server.clock.advance(HOUR_MS);
    server.wait_for(&second, "completed").await;
    assert_eq!(taken(&server, ALICE).await, [14], "that of the new window");
}

#[tokio::test]
async fn budget_of_a_workflow_can_fail_its_runs() {
    let budgets = json!([
        { "tenant": "acme", "workflow": "asking", "per": "month", "max_tokens": 14, "on_breach": "fail" },
        { "tenant": "acme", "workflow": "other", "per": "month", "max_tokens": 1 },
        { "tenant": "acme", "per": "month", "max_tokens": 1_000 },
    ]);
    let server = start(budgets).await;
    let first = ask(&server).await;
    server.wait_for(&first, "completed").await;
    assert_eq!(
        taken(&server, ALICE).await,
        [14, 14, 0],
        "the tenant, then its workflows"
    );
    assert_eq!(taken(&server, BOB).await, [0; 0]);
    let second = ask(&server).await;
    let snapshot = server.wait_for(&second, "failed").await;
    assert_eq!(snapshot["error"]["code"], "budget_exhausted", "{snapshot}");
    let message = snapshot["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("the workflow's budget for the month is used up: 14 tokens of 14 tokens"));
    let types = server.event_types(&second).await;
    assert!(types.iter().any(|kind| kind == "cap.breached"), "{types:?}");
}

#[tokio::test]
async fn only_branches_that_ask_again_are_counted() {
    let server = start(json!([{ "per": "month", "max_tokens": 1_000 }])).await;
    let source = ask(&server).await;
    server.wait_for(&source, "completed").await;
    let fork = async |mode: &str| {
        let body = json!({ "mode": mode, "fromSeq": 1 });
        let made = server
            .post(&format!("/v1/runs/{source}:fork"), &body)
            .send()
            .await
            .ok(201);
        let run = made["runId"].as_str().unwrap().to_owned();
        server.wait_for(&run, "completed").await;
    };
    fork("replay").await;
    assert_eq!(taken(&server, ALICE).await, [14], "a replay spends nothing");
    let reply = json!({ "content": "so", "stopReason": "end_turn", "inputTokens": 1, "outputTokens": 1 });
    let program = json!({ "nodeId": "ask", "program": [reply] });
    server
        .post("/v1/host/sample/test/mock-ai/program", &program)
        .send()
        .await
        .ok(200);
    fork("branch").await;
    assert_eq!(taken(&server, ALICE).await, [16]);
}

#[tokio::test]
async fn only_approvers_of_the_budget_grant_more() {
    let server = start(json!([{ "per": "month", "max_tokens": 14, "approver_roles": ["finance"] }])).await;
    let first = ask(&server).await;
    server.wait_for(&first, "completed").await;
    let second = ask(&server).await;
    server.wait_for(&second, "waiting-approval").await;
    answer(&server, &second, "accept").await.error(403, "forbidden");
    let key = json!({ "id": "carol", "scopes": ["approvals:respond", "runs:read"], "roles": ["finance"] });
    let made = server.post("/v1/host/wopr/keys", &key).send().await.ok(201);
    let carol = made["secret"].as_str().unwrap();
    let path = format!("/v1/runs/{second}/interrupts/ask");
    let accept = json!({ "resumeValue": { "action": "accept" } });
    server
        .call("POST", &path)
        .key(carol)
        .json(&accept)
        .send()
        .await
        .ok(200);
    server.wait_for(&second, "completed").await;
}

/// Starts a run of eight nodes that ask a model at once, each for fourteen tokens, with this budget.
async fn ask_at_once(server: &Server, budget: Value) -> String {
    let nodes: Vec<_> = (0..8).map(|n| format!("ask{n}")).collect();
    for node in &nodes {
        let reply =
            json!({ "content": "so", "stopReason": "end_turn", "inputTokens": 10, "outputTokens": 4 });
        let program = json!({ "nodeId": node, "program": [reply] });
        let programmed = server.post("/v1/host/sample/test/mock-ai/program", &program);
        programmed.send().await.ok(200);
    }
    let node = |id: &String| {
        json!({ "id": id, "typeId": "core.ai.callPrompt", "name": id, "position": { "x": 0, "y": 0 }, "inputs": {},
            "config": { "provider": "mock", "model": "m", "prompt": "?", "stream": false } })
    };
    let workflow = json!({
        "id": "crowd", "name": "crowd", "version": "1", "edges": [], "variables": [], "metadata": {},
        "settings": { "budget": budget },
        "triggers": [{ "id": "manual", "type": "manual" }],
        "nodes": nodes.iter().map(node).collect::<Vec<_>>(),
    });
    server.post("/v1/workflows", &workflow).send().await.ok(201);
    let made = server.post("/v1/runs", &json!({ "workflowId": "crowd" }));
    let made = made.send().await.ok(201);
    made["runId"].as_str().unwrap().to_owned()
}

fn tokens(snapshot: &Value) -> u64 {
    let usage = &snapshot["metrics"]["openwopCost"]["tokens"];
    let count = |name: &str| usage[name].as_u64().unwrap_or(0);
    count("input") + count("output")
}

/// Gives a run as much more as it asks for.
async fn accept(server: &Server, run: &str, snapshot: &Value) {
    let node = snapshot["interrupt"]["nodeId"].as_str().unwrap();
    let path = format!("/v1/runs/{run}/interrupts/{node}");
    let accept = json!({ "resumeValue": { "action": "accept" } });
    server.post(&path, &accept).send().await.ok(200);
}

#[tokio::test]
async fn nodes_that_ask_at_once_keep_to_the_budget_of_their_run() {
    let server = Server::start().await;
    let run = ask_at_once(&server, json!({ "maxTokens": 40 })).await;
    let mut n_asked = 0;
    loop {
        let snapshot = server
            .wait_for_any(&run, &["waiting-approval", "completed"])
            .await;
        if snapshot["status"] == "completed" {
            break;
        }
        let most = 40 * (n_asked + 1);
        let taken = tokens(&snapshot);
        assert!(
            (most..most + 14).contains(&taken),
            "{taken} tokens of {most}: {snapshot}"
        );
        n_asked += 1;
        accept(&server, &run, &snapshot).await;
    }
    assert_eq!(n_asked, 2, "112 tokens are more than 80, and fewer than 120");
}

#[tokio::test]
async fn run_that_exceeds_its_budget_at_once_fails_if_it_says_so() {
    let server = Server::start().await;
    let run = ask_at_once(&server, json!({ "maxTokens": 40, "onBreach": "fail" })).await;
    let snapshot = server.wait_for(&run, "failed").await;
    assert_eq!(snapshot["error"]["code"], "budget_exhausted", "{snapshot}");
    assert_eq!(tokens(&snapshot), 42);
}

#[tokio::test]
async fn nodes_of_a_run_ask_once_for_more_of_a_shared_budget() {
    let server = start(json!([{ "per": "month", "max_tokens": 28, "grant_tokens": 42 }])).await;
    let run = ask_at_once(&server, json!({ "maxTokens": 1_000_000 })).await;
    let mut n_asked = 0;
    loop {
        let snapshot = server
            .wait_for_any(&run, &["waiting-approval", "completed"])
            .await;
        if snapshot["status"] == "completed" {
            break;
        }
        assert_eq!(snapshot["interrupts"].as_array().unwrap().len(), 1, "{snapshot}");
        n_asked += 1;
        accept(&server, &run, &snapshot).await;
    }
    assert_eq!(n_asked, 2, "28 tokens, and twice as many as three answers take");
}
