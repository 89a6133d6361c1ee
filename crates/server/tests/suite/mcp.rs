//! The host as an MCP server over HTTP. Everything that a tool gives is held against the schema that the list has.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wopr_server::Config;

use crate::{
    client::{Call, Reply},
    server::{ALICE, BOB, READER, Server},
    tasks_http::{Agent, know},
    workflows::{chain, node},
};

const PATH: &str = "/mcp";

/// A server that is reached by the name that the client of these tests uses.
async fn start(change: impl FnOnce(&mut Config)) -> Server {
    Server::start_with(|config| {
        config.server.public_url = Some("http://test".parse().unwrap());
        change(config);
    })
    .await
}

fn post(server: &Server, key: &str, body: &Value) -> Call {
    let call = server.call("POST", PATH).key(key).json(body);
    call.header("accept", "application/json, text/event-stream")
}

fn request(method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

/// The result of a request.
async fn ask(server: &Server, key: &str, method: &str, params: Value) -> Value {
    let answer = post(server, key, &request(method, params)).send().await.ok(200);
    assert!(answer["error"].is_null(), "{answer}");
    answer["result"].clone()
}

/// The code of a refused request.
async fn refused(server: &Server, method: &str, params: Value) -> Value {
    let answer = post(server, ALICE, &request(method, params)).send().await.ok(200);
    answer["error"]["code"].clone()
}

async fn call_by(server: &Server, key: &str, tool: &str, arguments: Value) -> Value {
    let params = json!({ "name": tool, "arguments": arguments });
    let result = ask(server, key, "tools/call", params).await;
    check(server, tool, &result).await;
    result
}

/// Calls a tool that succeeds.
async fn call(server: &Server, tool: &str, arguments: Value) -> Value {
    let result = call_by(server, ALICE, tool, arguments).await;
    assert!(result["isError"].is_null(), "{result:#}");
    result["structuredContent"].clone()
}

/// The code of a call that fails.
async fn fails(server: &Server, key: &str, tool: &str, arguments: Value) -> String {
    let result = call_by(server, key, tool, arguments).await;
    assert_eq!(result["isError"], true, "{result:#}");
    let error = &result["structuredContent"]["error"];
    let code = error["code"].as_str().unwrap();
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(code), "{text}");
    code.to_owned()
}

async fn schemas(server: &Server) -> BTreeMap<String, Value> {
    let listed = ask(server, ALICE, "tools/list", json!({})).await;
    let tools = listed["tools"].as_array().unwrap().iter();
    let named = tools.map(|tool| {
        (
            tool["name"].as_str().unwrap().to_owned(),
            tool["outputSchema"].clone(),
        )
    });
    named.collect()
}

/// Holds a result against its schema, and its text against its structured content.
async fn check(server: &Server, tool: &str, result: &Value) {
    let schema = &schemas(server).await[tool];
    let structured = &result["structuredContent"];
    let validator = jsonschema::validator_for(schema).unwrap();
    let broken: Vec<_> = validator
        .iter_errors(structured)
        .map(|error| error.to_string())
        .collect();
    assert!(broken.is_empty(), "{tool}: {broken:?}\n{structured:#}");
    if result["isError"].is_null() {
        let text = result["content"][0]["text"].as_str().unwrap();
        let (_, document) = text.split_once("Structured result (JSON):\n").unwrap();
        assert_eq!(&serde_json::from_str::<Value>(document).unwrap(), structured);
    }
}

fn notified(event: &str) -> Value {
    serde_json::from_str(event).unwrap()
}

#[tokio::test]
async fn a_client_opens_and_finds_tools_resources_and_prompts() {
    let server = start(|_| {}).await;
    for (asked, agreed) in [
        ("2024-11-05", "2024-11-05"),
        ("2025-11-25", "2025-11-25"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let params = json!({
            "protocolVersion": asked, "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        });
        let opened = post(&server, ALICE, &request("initialize", params)).send().await;
        assert!(opened.header("mcp-session-id").is_some());
        let opened = opened.ok(200)["result"].clone();
        assert_eq!(opened["protocolVersion"], agreed);
        assert_eq!(opened["serverInfo"]["name"], "wopr");
        assert_eq!(opened["capabilities"]["tools"]["listChanged"], false);
    }
    let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let taken = post(&server, ALICE, &ready).send().await;
    assert_eq!((taken.status, taken.body.len()), (202, 0));
    assert_eq!(ask(&server, ALICE, "ping", json!({})).await, json!({}));
    let names: Vec<_> = schemas(&server).await.into_keys().collect();
    for tool in [
        "wopr_answer",
        "wopr_cancel_run",
        "wopr_complete_activity",
        "wopr_get_run",
        "wopr_heartbeat_activity",
        "wopr_lease_activities",
        "wopr_list_runs",
        "wopr_register_workflow",
        "wopr_remove_workflow",
        "wopr_start_run",
        "wopr_validate_workflow",
        "wopr_watch_run",
    ] {
        assert!(names.iter().any(|name| name == tool), "{tool} is in {names:?}");
    }
    let prompts = ask(&server, ALICE, "prompts/list", json!({})).await;
    assert_eq!(prompts["prompts"].as_array().unwrap().len(), 3);
    let templates = ask(&server, ALICE, "resources/templates/list", json!({})).await;
    assert_eq!(templates["resourceTemplates"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_client_of_the_newest_version_needs_no_opening() {
    let server = start(|_| {}).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let send = async |method: &str, params: Value, named: &[(&str, &str)]| {
        let mut params = params;
        params["_meta"] = meta.clone();
        let mut call =
            post(&server, ALICE, &request(method, params)).header("mcp-protocol-version", "2026-07-28");
        for (name, value) in named {
            call = call.header(name, value);
        }
        call.send().await
    };
    let discovered = send("server/discover", json!({}), &[("mcp-method", "server/discover")])
        .await
        .ok(200);
    let discovered = &discovered["result"];
    assert_eq!(discovered["supportedVersions"][0], "2026-07-28");
    assert_eq!(discovered["resultType"], "complete");
    let listed = send("tools/list", json!({}), &[("mcp-method", "tools/list")])
        .await
        .ok(200);
    assert_eq!(
        (&listed["result"]["ttlMs"], &listed["result"]["cacheScope"]),
        (&json!(0), &json!("private"))
    );
    let params = json!({ "name": "wopr_list_runs", "arguments": {} });
    let named = [("mcp-method", "tools/call"), ("mcp-name", "wopr_list_runs")];
    let called = send("tools/call", params.clone(), &named).await.ok(200);
    assert_eq!(called["result"]["resultType"], "complete");
    let encoded = [
        ("mcp-method", "tools/call"),
        ("mcp-name", "=?base64?d29wcl9saXN0X3J1bnM=?="),
    ];
    send("tools/call", params.clone(), &encoded).await.ok(200);
    for (named, code) in [
        (
            &[("mcp-method", "tools/call"), ("mcp-name", "wopr_get_run")][..],
            -32_020,
        ),
        (
            &[("mcp-method", "tools/list"), ("mcp-name", "wopr_list_runs")],
            -32_020,
        ),
        (&[("mcp-method", "tools/call")], -32_020),
        (&[("mcp-name", "wopr_list_runs")], -32_020),
    ] {
        let refused = send("tools/call", params.clone(), named).await.ok(400);
        assert_eq!(refused["error"]["code"], code, "{named:?}");
    }
    let unknown = send("ping", json!({}), &[("mcp-method", "ping")]).await.ok(404);
    assert_eq!(unknown["error"]["code"], -32_601);
    let later = json!({ "_meta": { "io.modelcontextprotocol/protocolVersion": "2099-01-01" } });
    let refused = post(&server, ALICE, &request("tools/list", later))
        .send()
        .await
        .ok(400);
    assert_eq!(refused["error"]["code"], -32_022);
    assert_eq!(refused["error"]["data"]["supported"][0], "2026-07-28");
    // Messages that are not answered name a version, too; a handshake agrees on one.
    let handshake = json!({ "protocolVersion": "2099-01-01", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    for (message, status) in [
        (
            json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
            400,
        ),
        (json!({ "jsonrpc": "2.0", "id": 1, "result": {} }), 400),
        (request("ping", json!({})), 400),
        (request("initialize", handshake), 200),
    ] {
        let call = post(&server, ALICE, &message).header("mcp-protocol-version", "2099-01-01");
        assert_eq!(call.send().await.status, status, "{message}");
    }
}

#[tokio::test]
async fn a_run_is_started_answered_and_ends() {
    let server = start(|_| {}).await;
    let workflows = call(&server, "wopr_list_workflows", json!({})).await;
    let listed = workflows["workflows"].as_array().unwrap();
    assert!(listed.iter().any(|workflow| workflow["workflowId"] == "approval"));
    let started = call(&server, "wopr_start_run", json!({ "workflowId": "approval" })).await;
    assert_eq!(started["status"], "waiting-approval", "{started:#}");
    let question = &started["run"]["interrupts"][0];
    assert!(question["interruptToken"].is_null() && question["callbackUrl"].is_null());
    let next = started["next"].as_str().unwrap();
    assert!(
        next.contains("wopr_answer") && next.contains(r#"{"action": "accept"}"#),
        "{next}"
    );
    let run = &started["runId"];
    let wrong = json!({ "runId": run, "nodeId": question["nodeId"], "value": { "answers": {} } });
    let refused = call_by(&server, ALICE, "wopr_answer", wrong).await;
    assert_eq!(
        refused["structuredContent"]["error"]["details"]["field"], "value",
        "{refused:#}"
    );
    let arguments = json!({
        "runId": run, "nodeId": question["nodeId"], "interruptId": question["interruptId"], "value": { "action": "accept" },
    });
    let answered = call(&server, "wopr_answer", arguments.clone()).await;
    assert_eq!(answered["status"], "completed", "{answered:#}");
    assert_eq!(
        fails(&server, ALICE, "wopr_answer", arguments).await,
        "interrupt_already_resolved"
    );
    let listed = call(
        &server,
        "wopr_list_runs",
        json!({ "status": ["completed"], "limit": 1 }),
    )
    .await;
    assert_eq!(&listed["runs"][0]["runId"], run);
    let got = call(&server, "wopr_get_run", json!({ "runId": run })).await;
    assert_eq!(got["eventCount"], answered["eventCount"]);
}

#[tokio::test]
async fn a_run_that_takes_long_is_answered_as_it_is_and_goes_on() {
    let server = start(|config| config.mcp.call_wait = "50ms".parse().unwrap()).await;
    let started = call(
        &server,
        "wopr_start_run",
        json!({ "workflowId": "activity", "inputs": { "who": "Ann" } }),
    )
    .await;
    let status = started["status"].as_str().unwrap();
    assert!(!["completed", "failed"].contains(&status), "{started:#}");
    let next = started["next"].as_str().unwrap();
    assert!(
        next.contains("wopr_watch_run") && next.contains("wopr_lease_activities"),
        "{next}"
    );
    let run = started["runId"].as_str().unwrap();
    let watched = call(
        &server,
        "wopr_watch_run",
        json!({ "runId": run, "after": started["eventCount"] }),
    )
    .await;
    assert_eq!(watched["eventCount"], started["eventCount"]);

    let leased = call(
        &server,
        "wopr_lease_activities",
        json!({ "queue": "letters", "worker": "w" }),
    )
    .await;
    let token = &leased["activities"][0]["token"];
    let alive = call(
        &server,
        "wopr_heartbeat_activity",
        json!({ "token": token, "details": { "at": 1 } }),
    )
    .await;
    assert_eq!(alive["cancelRequested"], false);
    let outcome = json!({ "token": token, "outcome": { "ok": true, "result": { "sent": 1 } } });
    let ended = call(&server, "wopr_complete_activity", outcome.clone()).await;
    assert_eq!(ended["runId"], run);
    server.wait_for(run, "completed").await;
    // A repeat takes effect once, over this face and over REST.
    call(&server, "wopr_complete_activity", outcome.clone()).await;
    let path = format!("/v1/activities/{}", token.as_str().unwrap());
    let body = json!({ "outcome": outcome["outcome"] });
    server.post(&path, &body).send().await.ok(200);
    let other = json!({ "token": token, "outcome": { "ok": true, "result": { "sent": 2 } } });
    assert_eq!(
        fails(&server, ALICE, "wopr_complete_activity", other).await,
        "activity_stale"
    );
    let watched = call(&server, "wopr_watch_run", json!({ "runId": run })).await;
    assert_eq!(watched["status"], "completed");
}

#[tokio::test]
async fn progress_is_notified_until_the_result() {
    let server = start(|_| {}).await;
    let run = server.run("activity", json!({ "who": "Ann" })).await;
    let params = json!({
        "name": "wopr_watch_run", "arguments": { "runId": run }, "_meta": { "progressToken": "p" },
    });
    let call = server
        .call("POST", PATH)
        .key(ALICE)
        .json(&request("tools/call", params));
    let mut events = call.header("accept", "application/json").events().await;
    let first = notified(&events.next().await.unwrap().data);
    assert_eq!(first["method"], "notifications/progress");
    assert_eq!(first["params"]["progressToken"], "p");
    let leased = server
        .post("/v1/activities:lease", &json!({ "queue": "letters" }))
        .send()
        .await
        .ok(200);
    let path = format!(
        "/v1/activities/{}",
        leased["activities"][0]["token"].as_str().unwrap()
    );
    let body = json!({ "outcome": { "ok": true, "result": { "sent": 1 } } });
    server.post(&path, &body).send().await.ok(200);
    let mut last = first;
    loop {
        let event = notified(&events.next().await.unwrap().data);
        if event.get("id").is_some() {
            assert_eq!(
                event["result"]["structuredContent"]["status"], "completed",
                "{event:#}"
            );
            break;
        }
        let progress = |event: &Value| event["params"]["progress"].as_u64().unwrap();
        assert!(progress(&event) > progress(&last), "{event}");
        last = event;
    }
    assert!(events.next().await.is_none(), "the stream ends with the result");
}

#[tokio::test]
async fn progress_of_an_execution_is_notified_while_a_call_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "id": "t-1", "status": "working" })).await;
    let server = start(|config| know(config, &agent, folder.path(), 600_000)).await;
    let arguments = json!({
        "execution_id": "followed", "input": {},
        "definition": {
            "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "followed", "version": "1" },
            "state_schema": { "type": "object" },
            "nodes": [
                { "id": "start", "type": "start" },
                { "id": "ask", "type": "agent_delegate", "config": { "agent_id": "coder", "protocol": "a2a", "input_mapping": {} } },
                { "id": "end", "type": "end" },
            ],
            "edges": [
                { "source": "__start__", "target": "start" }, { "source": "start", "target": "ask" },
                { "source": "ask", "target": "end" },
            ],
        },
    });
    let params = json!({
        "name": "workflow_start", "arguments": arguments, "_meta": { "progressToken": "p" },
    });
    let call = server
        .call("POST", PATH)
        .key(ALICE)
        .json(&request("tools/call", params));
    let mut events = call.header("accept", "application/json").events().await;
    let mut last = 0;
    loop {
        let event = notified(&events.next().await.unwrap().data);
        if event.get("id").is_some() {
            assert_eq!(
                event["result"]["structuredContent"]["status"], "completed",
                "{event:#}"
            );
            break;
        }
        assert_eq!(event["method"], "notifications/progress");
        assert_eq!(event["params"]["progressToken"], "p");
        let progress = event["params"]["progress"].as_u64().unwrap();
        assert!(progress > last, "{event}");
        last = progress;
        // The agent has its answer only once the client has heard of the run.
        *agent.task.lock().unwrap() =
            json!({ "id": "t-1", "status": "completed", "output": { "patch": "x" } });
    }
    assert!(last > 0, "the call waited, and said so");
}

#[tokio::test]
async fn cancelling_a_request_ends_the_wait_and_not_the_run() {
    let server = start(|_| {}).await;
    let run = server.run("activity", json!({ "who": "Ann" })).await;
    let params = json!({
        "name": "wopr_watch_run", "arguments": { "runId": run }, "_meta": { "progressToken": 7 },
    });
    let call = server
        .call("POST", PATH)
        .key(ALICE)
        .json(&request("tools/call", params.clone()));
    let call = call
        .header("accept", "application/json")
        .header("mcp-session-id", "mine");
    let mut events = call.events().await;
    // The request is in flight once it notifies.
    events.next().await.unwrap();
    let again = post(&server, ALICE, &request("tools/call", params)).header("mcp-session-id", "mine");
    assert_eq!(again.send().await.ok(400)["error"]["code"], -32_600);
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 1 } });
    for (key, session) in [(ALICE, "other"), (BOB, "mine")] {
        let sent = post(&server, key, &cancel)
            .header("mcp-session-id", session)
            .send()
            .await;
        assert_eq!(sent.status, 202, "it concerns nobody");
    }
    let sent = post(&server, ALICE, &cancel)
        .header("mcp-session-id", "mine")
        .send()
        .await;
    assert_eq!(sent.status, 202);
    while let Some(event) = events.next().await {
        assert_eq!(notified(&event.data)["method"], "notifications/progress");
    }
    let snapshot = server.snapshot(&run).await;
    assert!(snapshot["completedAt"].is_null(), "{snapshot}");
}

#[tokio::test]
async fn a_start_with_a_key_takes_effect_once() {
    let server = start(|_| {}).await;
    let arguments =
        |inputs: Value| json!({ "workflowId": "identity", "inputs": inputs, "idempotencyKey": "k1" });
    let first = call(&server, "wopr_start_run", arguments(json!({ "a": 1 }))).await;
    let second = call(&server, "wopr_start_run", arguments(json!({ "a": 1 }))).await;
    assert_eq!(first["runId"], second["runId"]);
    let other = arguments(json!({ "a": 2 }));
    assert_eq!(
        fails(&server, ALICE, "wopr_start_run", other).await,
        "idempotency_key_mismatch"
    );
    let listed = call(&server, "wopr_list_runs", json!({ "workflowId": "identity" })).await;
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn definitions_are_checked_and_registered_in_either_language() {
    let server = start(|_| {}).await;
    let broken = chain("broken", &[node("x", "core.flyToTheMoon", json!({}))]);
    let checked = call(&server, "wopr_validate_workflow", json!({ "definition": broken })).await;
    assert_eq!(checked["valid"], false);
    assert!(!checked["problems"].as_array().unwrap().is_empty());
    assert_eq!(
        fails(
            &server,
            ALICE,
            "wopr_register_workflow",
            json!({ "definition": broken })
        )
        .await,
        "validation_error"
    );
    let document = json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "sum", "version": "1.0.0" },
        "state_schema": { "type": "object", "properties": { "n": { "type": "number" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "end", "type": "end", "config": { "output_mapping": "{n: (.n + 1)}" } },
        ],
        "edges": [{ "source": "__start__", "target": "start" }, { "source": "start", "target": "end" }],
    });
    for (definition, id) in [
        (chain("mine", &[node("noop", "core.noop", json!({}))]), "mine"),
        (document, "sum"),
    ] {
        let checked = call(
            &server,
            "wopr_validate_workflow",
            json!({ "definition": definition }),
        )
        .await;
        assert_eq!(checked["valid"], true, "{checked:#}");
        let arguments = json!({ "definition": definition });
        let registered = call(&server, "wopr_register_workflow", arguments.clone()).await;
        assert_eq!(
            (&registered["workflowId"], &registered["isNew"]),
            (&json!(id), &json!(true))
        );
        let again = call(&server, "wopr_register_workflow", arguments).await;
        assert_eq!(again["isNew"], false);
        let started = call(
            &server,
            "wopr_start_run",
            json!({ "workflowId": id, "inputs": { "n": 1 } }),
        )
        .await;
        assert_eq!(started["status"], "completed", "{started:#}");
    }
}

#[tokio::test]
async fn runs_are_cancelled_and_ended_ones_stay_as_they_are() {
    let server = start(|_| {}).await;
    let run = server.run("approval", json!({})).await;
    let cancelled = call(
        &server,
        "wopr_cancel_run",
        json!({ "runId": run, "reason": "enough" }),
    )
    .await;
    assert!(["cancelling", "cancelled"].contains(&cancelled["status"].as_str().unwrap()));
    server.wait_for(&run, "cancelled").await;
    let long = json!({ "runId": run, "reason": "x".repeat(513) });
    assert_eq!(
        fails(&server, ALICE, "wopr_cancel_run", long).await,
        "validation_error"
    );
    let again = call(&server, "wopr_cancel_run", json!({ "runId": run })).await;
    assert_eq!(again["status"], "cancelled");
    let ended = server.run("identity", json!({})).await;
    server.wait_for(&ended, "completed").await;
    let kept = call(&server, "wopr_cancel_run", json!({ "runId": ended })).await;
    assert_eq!(kept["status"], "completed");
}

#[tokio::test]
async fn tags_have_the_limits_that_they_have_over_rest() {
    let server = start(|_| {}).await;
    for tags in [json!(vec!["tag"; 101]), json!(["x".repeat(257)]), json!([""])] {
        let arguments = json!({ "workflowId": "identity", "tags": tags });
        assert_eq!(
            fails(&server, ALICE, "wopr_start_run", arguments).await,
            "validation_error"
        );
    }
    let arguments = json!({ "workflowId": "identity", "tags": ["x".repeat(256)] });
    call(&server, "wopr_start_run", arguments).await;
}

/// Starts a run whose activity ends with a value deep inside of lists. Returns the run.
async fn nested(server: &Server, mut value: Value) -> String {
    let mut work = node("work", "core.activity", json!({ "queue": "q" }));
    work["artifactType"] = "x".into();
    let register = json!({ "definition": chain("nested", &[work]) });
    call(server, "wopr_register_workflow", register).await;
    let run = server.run("nested", json!({})).await;
    let waits = loop {
        let snapshot = server.snapshot(&run).await;
        if let Some(token) = snapshot["activities"][0]["token"].as_str() {
            break token.to_owned();
        }
    };
    for _ in 0..50 {
        value = json!([value]);
    }
    let outcome = json!({ "outcome": { "ok": true, "result": { "v": value } } });
    server
        .post(&format!("/v1/activities/{waits}"), &outcome)
        .send()
        .await
        .ok(200);
    server.wait_for(&run, "completed").await;
    run
}

#[tokio::test]
async fn nested_values_do_not_grow_when_they_are_shown() {
    let server = start(|_| {}).await;
    let run = nested(&server, json!(vec![1; 20_000])).await;
    let size =
        async |method: &str, params: Value| ask(&server, ALICE, method, params).await.to_string().len();
    // The outcome has 40 KB, and a run names it several times.
    let whole = json!({ "name": "wopr_get_run", "arguments": { "runId": run } });
    assert!(size("tools/call", whole).await < 600 << 10);
    for name in ["", "/events", "/artifacts/work-0"] {
        let uri = format!("wopr://runs/{run}{name}");
        let n_bytes = size("resources/read", json!({ "uri": uri })).await;
        assert!(n_bytes < 300 << 10, "{uri}: {n_bytes}");
    }
}

#[tokio::test]
async fn resources_too_large_for_a_message_say_where_they_are() {
    let server = start(|_| {}).await;
    let run = nested(&server, "x".repeat(2 << 20).into()).await;
    let read = async |uri: &str| {
        let reading = request("resources/read", json!({ "uri": uri }));
        post(&server, ALICE, &reading).send().await.ok(200)
    };
    let refused = read(&format!("wopr://runs/{run}/artifacts/work-0")).await;
    assert_eq!(refused["error"]["data"]["code"], "payload_too_large", "{refused}");
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains(&format!("/v1/runs/{run}/artifacts/work-0")), "{why}");
    let text = read(&format!("wopr://runs/{run}")).await.to_string();
    assert!(
        text.len() < 600 << 10 && text.contains("omitted"),
        "{}",
        text.len()
    );
    // Its events are there, without what is too large.
    let mut uri = format!("wopr://runs/{run}/events");
    let mut n_events = 0;
    loop {
        let answer = read(&uri).await;
        let text = answer["result"]["contents"][0]["text"].as_str().unwrap();
        assert!(text.len() < 1_100 << 10, "{}", text.len());
        let page: Value = serde_json::from_str(text).unwrap();
        n_events += page["events"].as_array().unwrap().len();
        match page["nextUri"].as_str() {
            Some(next) => uri = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(
        n_events as u64,
        server.snapshot(&run).await["eventCount"]
            .as_u64()
            .unwrap_or(n_events as u64)
    );
}

#[tokio::test]
async fn callers_have_the_rights_that_they_have_everywhere() {
    let server = start(|_| {}).await;
    let run = server.run("approval", json!({})).await;
    for (tool, arguments) in [
        ("wopr_get_run", json!({ "runId": run })),
        ("wopr_watch_run", json!({ "runId": run })),
        ("wopr_cancel_run", json!({ "runId": run })),
        (
            "wopr_answer",
            json!({ "runId": run, "nodeId": "gate", "value": {} }),
        ),
    ] {
        assert_eq!(fails(&server, BOB, tool, arguments).await, "not_found", "{tool}");
    }
    for (tool, arguments) in [
        ("wopr_start_run", json!({ "workflowId": "identity" })),
        ("wopr_cancel_run", json!({ "runId": run })),
        (
            "wopr_answer",
            json!({ "runId": run, "nodeId": "gate", "value": {} }),
        ),
        ("wopr_register_workflow", json!({ "definition": {} })),
        ("wopr_remove_workflow", json!({ "workflowId": "identity" })),
        ("wopr_validate_workflow", json!({ "definition": {} })),
        ("wopr_lease_activities", json!({ "queue": "letters" })),
        ("wopr_list_workflows", json!({})),
    ] {
        assert_eq!(
            fails(&server, READER, tool, arguments).await,
            "forbidden",
            "{tool}"
        );
    }
    let read = call_by(&server, READER, "wopr_get_run", json!({ "runId": run })).await;
    assert!(read["isError"].is_null());
    let listed = ask(&server, BOB, "resources/list", json!({})).await;
    assert_eq!(listed["resources"].as_array().unwrap().len(), 1, "{listed}");
    let uri = format!("wopr://runs/{run}/events");
    let reading = request("resources/read", json!({ "uri": uri }));
    let refused = post(&server, BOB, &reading).send().await.ok(200);
    assert_eq!(refused["error"]["code"], -32_002, "{refused}");
}

#[tokio::test]
async fn invalid_arguments_are_results_that_name_the_argument() {
    let server = start(|_| {}).await;
    for (tool, arguments, named) in [
        ("wopr_start_run", json!({}), "workflowId"),
        (
            "wopr_start_run",
            json!({ "workflowId": "identity", "inptus": {} }),
            "inptus",
        ),
        (
            "wopr_start_run",
            json!({ "workflowId": "identity", "waitMs": -1 }),
            "waitMs",
        ),
        (
            "wopr_start_run",
            json!({ "workflowId": "identity", "idempotencyKey": "" }),
            "idempotencyKey",
        ),
        ("wopr_get_run", json!({ "runId": 7 }), "runId"),
        ("wopr_list_runs", json!({ "status": ["asleep"] }), "status"),
        ("wopr_list_runs", json!({ "limit": 1000 }), "limit"),
        ("wopr_list_runs", json!({ "cursor": "?" }), "cursor"),
        ("wopr_lease_activities", json!({ "queue": "q", "max": 0 }), "max"),
        ("wopr_answer", json!({ "runId": "r", "nodeId": "n" }), "value"),
    ] {
        let result = call_by(&server, ALICE, tool, arguments).await;
        let error = &result["structuredContent"]["error"];
        assert_eq!(error["code"], "validation_error", "{tool}: {result}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(named), "{tool}: {message}");
    }
    assert_eq!(
        fails(
            &server,
            ALICE,
            "wopr_start_run",
            json!({ "workflowId": "nothing" })
        )
        .await,
        "not_found"
    );
    assert_eq!(
        fails(
            &server,
            ALICE,
            "wopr_watch_run",
            json!({ "runId": "run_nothing" })
        )
        .await,
        "not_found"
    );
    for (method, params, code) in [
        ("tools/call", json!({ "name": "rm_rf" }), -32_602),
        ("tools/call", json!({}), -32_602),
        (
            "tools/call",
            json!({ "name": "wopr_get_run", "arguments": [] }),
            -32_602,
        ),
        ("tools/list", json!({ "cursor": 7 }), -32_602),
        ("resources/read", json!({ "uri": "file:///etc/passwd" }), -32_002),
        ("resources/read", json!({}), -32_602),
        ("prompts/get", json!({ "name": "nothing" }), -32_602),
        ("sampling/createMessage", json!({}), -32_601),
        ("resources/subscribe", json!({ "uri": "wopr://runs" }), -32_601),
        ("", json!({}), -32_601),
    ] {
        assert_eq!(
            refused(&server, method, params.clone()).await,
            code,
            "{method} {params}"
        );
    }
}

#[tokio::test]
async fn logs_are_read_in_pages_and_artifacts_by_their_address() {
    let server = start(|_| {}).await;
    let nodes: Vec<_> = (0..120)
        .map(|n| node(&format!("n{n}"), "core.noop", json!({})))
        .collect();
    let register = json!({ "definition": chain("long", &nodes) });
    call(&server, "wopr_register_workflow", register).await;
    let run = server.run("long", json!({})).await;
    server.wait_for(&run, "completed").await;
    let mut uri = format!("wopr://runs/{run}/events");
    let (mut n_pages, mut seen) = (0, Vec::new());
    loop {
        let read = ask(&server, ALICE, "resources/read", json!({ "uri": uri })).await;
        assert_eq!(read["contents"][0]["uri"], uri);
        let page: Value = serde_json::from_str(read["contents"][0]["text"].as_str().unwrap()).unwrap();
        n_pages += 1;
        let events = page["events"].as_array().unwrap().iter();
        seen.extend(events.map(|event| event["sequence"].as_u64().unwrap()));
        match page["nextUri"].as_str() {
            Some(next) => uri = next.to_owned(),
            None => {
                assert_eq!(page["isComplete"], true);
                break;
            }
        }
    }
    assert!(n_pages > 1, "{n_pages}");
    let whole: Vec<_> = (0..seen.len() as u64).collect();
    assert_eq!(seen, whole);
    let run = server.run("letter", json!({})).await;
    let snapshot = server.wait_for(&run, "completed").await;
    let listed = server
        .get(&format!("/v1/runs/{run}/artifacts"))
        .send()
        .await
        .ok(200);
    let artifact = listed["artifacts"][0]["artifactId"]
        .as_str()
        .unwrap_or_else(|| panic!("{snapshot}"));
    let uri = format!("wopr://runs/{run}/artifacts/{artifact}");
    let read = ask(&server, ALICE, "resources/read", json!({ "uri": uri })).await;
    let text: Value = serde_json::from_str(read["contents"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text["artifactId"], artifact);
    let listed = ask(&server, ALICE, "resources/list", json!({})).await;
    let uris: Vec<_> = listed["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["uri"])
        .collect();
    assert!(uris.contains(&&json!(format!("wopr://runs/{run}"))), "{uris:?}");
    let read = ask(
        &server,
        ALICE,
        "resources/read",
        json!({ "uri": "wopr://workflows/letter" }),
    )
    .await;
    assert!(read["contents"][0]["text"].as_str().unwrap().contains("letter"));
}

#[tokio::test]
async fn public_workflows_are_tools_where_the_operator_wants_it() {
    let server = start(|config| config.mcp.workflow_tools = true).await;
    let names: Vec<_> = schemas(&server).await.into_keys().collect();
    assert!(names.iter().any(|name| name == "run_identity"), "{names:?}");
    let params = json!({ "name": "run_identity", "arguments": { "a": 1 } });
    let result = ask(&server, ALICE, "tools/call", params).await;
    check(&server, "run_identity", &result).await;
    assert_eq!(result["structuredContent"]["status"], "completed", "{result:#}");
    // A cursor is the name of such a tool, also of one that is gone.
    for cursor in ["x", "", "wopr_list_runs"] {
        let code = refused(&server, "tools/list", json!({ "cursor": cursor })).await;
        assert_eq!(code, -32_602, "{cursor}");
    }
    let end = ask(&server, ALICE, "tools/list", json!({ "cursor": "run_zzz" })).await;
    assert_eq!(end, json!({ "tools": [] }));
    // A caller who may neither read nor start workflows does not learn which there are.
    let list = ask(&server, READER, "tools/list", json!({})).await;
    let listed = list["tools"].as_array().unwrap().iter();
    let own: Vec<_> = listed
        .filter(|tool| tool["name"].as_str().unwrap().starts_with("run_"))
        .collect();
    assert!(own.is_empty(), "{own:?}");
    let calling = request("tools/call", json!({ "name": "run_identity" }));
    let unknown = post(&server, READER, &calling).send().await.ok(200);
    assert_eq!(unknown["error"]["code"], -32_602, "{unknown}");
    let server = start(|_| {}).await;
    let code = refused(&server, "tools/call", json!({ "name": "run_identity" })).await;
    assert_eq!(code, -32_602);
}

#[tokio::test]
async fn strangers_are_refused_before_anything_is_read() {
    let server = start(|_| {}).await;
    let ping = request("ping", json!({}));
    let unknown = server.call("POST", PATH).json(&ping).send().await;
    assert_eq!(unknown.status, 401);
    assert_eq!(unknown.header("www-authenticate"), Some("Bearer realm=\"wopr\""));
    let wrong = server.call("POST", PATH).key("wrong").json(&ping).send().await;
    assert_eq!(wrong.status, 401);
    for (name, value) in [("origin", "https://evil.test"), ("origin", "null")] {
        let foreign = post(&server, ALICE, &ping).header(name, value).send().await;
        assert_eq!(foreign.status, 403, "{value}");
    }
    assert_eq!(
        post(&server, ALICE, &ping)
            .header("origin", "http://test")
            .send()
            .await
            .status,
        200
    );
    // A name that an attacker points at this machine.
    let rebound = Server::start().await;
    assert_eq!(post(&rebound, ALICE, &ping).send().await.status, 403);
    let own = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost:{}\r\nauthorization: Bearer {ALICE}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{ping}",
        rebound.address.port(),
        ping.to_string().len(),
    );
    assert_eq!(rebound.raw(own.as_bytes()).await.status, 200);
    for method in ["GET", "DELETE"] {
        let other = server.call(method, PATH).key(ALICE).send().await;
        assert_eq!(
            (other.status, other.header("allow")),
            (405, Some("POST")),
            "{method}"
        );
    }
    let metadata = "/.well-known/oauth-protected-resource";
    assert_eq!(server.call("GET", metadata).send().await.status, 404);
}

#[tokio::test]
async fn clients_with_tokens_learn_where_to_get_them() {
    let server = start(|config| {
        let oidc = json!({ "issuer": "https://login.test", "audience": ["wopr"], "tenant": "acme",
                           "jwks_url": "https://login.test/keys" });
        config.auth.oidc = Some(serde_json::from_value(oidc).unwrap());
    })
    .await;
    let unknown = server
        .call("POST", PATH)
        .json(&request("ping", json!({})))
        .send()
        .await;
    let challenge = unknown.header("www-authenticate").unwrap();
    let at = "http://test/.well-known/oauth-protected-resource/mcp";
    assert!(
        challenge.contains(&format!("resource_metadata=\"{at}\"")),
        "{challenge}"
    );
    for path in [
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-protected-resource",
    ] {
        let metadata = server.call("GET", path).send().await.ok(200);
        assert_eq!(metadata["resource"], "http://test/mcp");
        assert_eq!(metadata["authorization_servers"], json!(["https://login.test"]));
    }
}

#[tokio::test]
async fn hostile_messages_are_refused_and_the_server_goes_on() {
    let server = start(|config| config.server.max_body_bytes = 100_000).await;
    let send = async |text: String| -> Reply {
        let call = server.call("POST", PATH).key(ALICE).bytes(text);
        call.header("accept", "application/json").send().await
    };
    for (text, code) in [
        ("{".to_owned(), -32_700),
        ("[".repeat(5_000), -32_700),
        ("[]".to_owned(), -32_600),
        ("{}".to_owned(), -32_600),
        ("\u{0}".to_owned(), -32_700),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#.to_owned(), -32_600),
        (
            format!(
                r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#,
                "x".repeat(5_000)
            ),
            -32_600,
        ),
    ] {
        let refused = send(text.clone()).await.ok(400);
        assert_eq!(refused["error"]["code"], code, "{}", &text[..text.len().min(80)]);
    }
    let large = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(200_000));
    assert_eq!(send(large).await.status, 413);
    let method = request(&"m".repeat(50_000), json!({})).to_string();
    let unknown = send(method).await;
    assert!(unknown.body.len() < 1_000, "errors repeat little");
    let deep = format!("{}{}", r#"{"a":"#.repeat(100), "1") + &"}".repeat(100);
    let deep: Value = serde_json::from_str(&deep).unwrap();
    let arguments = json!({ "workflowId": "identity", "inputs": { "deep": deep } });
    assert_eq!(
        fails(&server, ALICE, "wopr_start_run", arguments).await,
        "validation_error"
    );
    // 65 levels are one too many, wherever they are.
    let nested = |levels: usize| -> Value {
        serde_json::from_str(&format!("{}{}", "[".repeat(levels), "]".repeat(levels))).unwrap()
    };
    for (levels, code) in [(64, Value::Null), (65, json!(-32_602))] {
        let deep = json!({ "a": nested(levels) });
        assert_eq!(refused(&server, "ping", deep).await, code, "{levels}");
        let params = json!({ "name": "wopr_list_runs", "_meta": nested(levels) });
        assert_eq!(refused(&server, "tools/call", params).await, code, "{levels}");
    }
    let failed = call_by(&server, ALICE, "wopr_get_run", json!({ "runId": nested(65) })).await;
    let text = failed["content"][0]["text"].as_str().unwrap();
    assert_eq!(
        text,
        "validation_error: an argument nests more than 64 levels deep"
    );
    for (accept, status) in [("text/html", 406), ("text/event-stream", 200), ("*/*", 200)] {
        let call = server
            .call("POST", PATH)
            .key(ALICE)
            .json(&request("ping", json!({})));
        assert_eq!(
            call.header("accept", accept).send().await.status,
            status,
            "{accept}"
        );
    }
    let form = server.call("POST", PATH).key(ALICE).form("a=b").send().await;
    assert_eq!(form.status, 415);
}

#[tokio::test]
async fn what_is_masked_elsewhere_is_masked_here() {
    let server = start(|_| {}).await;
    let arguments = json!({ "workflowId": "secret", "inputs": { "pin": "hushed-1234" } });
    let started = call(&server, "wopr_start_run", arguments).await;
    let run = started["runId"].as_str().unwrap();
    let mut shown = started.to_string();
    for uri in [format!("wopr://runs/{run}"), format!("wopr://runs/{run}/events")] {
        shown += &ask(&server, ALICE, "resources/read", json!({ "uri": uri }))
            .await
            .to_string();
    }
    assert!(!shown.contains("hushed-1234"), "{shown}");
    assert!(shown.contains("pin"), "{shown}");
}

/// A document with one node that waits.
fn waiting(name: &str, signal: &str) -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": name, "version": "1" },
        "state_schema": { "type": "object" },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "wait", "type": "wait", "config": { "kind": "signal", "signal": signal } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "wait" },
            { "source": "wait", "target": "end" },
        ],
    })
}

#[tokio::test]
async fn a_start_replaces_no_workflow_but_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let shared = waiting("Operator's", "a");
    std::fs::write(folder.path().join("shared.json"), shared.to_string()).unwrap();
    let server = start(|config| config.workflows = vec![folder.path().to_owned()]).await;
    // These tools have no schema of what they give.
    let begin = async |definition: &Value| {
        let arguments = json!({ "definition": definition, "input": {} });
        let params = json!({ "name": "workflow_start", "arguments": arguments });
        ask(&server, ALICE, "tools/call", params).await["structuredContent"].clone()
    };
    for signal in ["a", "b"] {
        let started = begin(&waiting("Mine", signal)).await;
        assert_eq!(started["signal_name"], signal, "{started}");
    }
    // Another one, whose id is the same.
    let refused = begin(&waiting("mine!", "c")).await;
    assert_eq!(refused["error"]["code"], "DUPLICATE_WORKFLOW_ID", "{refused}");
    let started = begin(&shared).await;
    assert_eq!(started["signal_name"], "a", "{started}");
    let refused = begin(&waiting("Operator's", "b")).await;
    assert_eq!(refused["error"]["code"], "DUPLICATE_WORKFLOW_ID", "{refused}");
}

#[tokio::test]
async fn a_definition_is_checked_with_the_signatures_that_the_host_wants() {
    let server = start(|config| {
        config.awp.signing = wopr_server::config::SigningMode::Require;
        config.workflows.clear();
    })
    .await;
    let definition = json!({ "definition": waiting("unsigned", "a") });
    let checked = call(&server, "wopr_validate_workflow", definition).await;
    assert_eq!(checked["valid"], false, "{checked}");
}
