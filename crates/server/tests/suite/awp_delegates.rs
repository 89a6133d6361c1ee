//! Delegates of Agent Workflow documents in process: over the task API, over A2A, and as tools.

use std::path::Path;

use serde_json::{Value, json};
use wopr_server::{
    Config,
    config::{AgentPeer, OnInputRequired, ToolAgent, ToolServer},
};

use crate::{
    awp_control,
    server::{ALICE, Server},
    tasks_http::{Agent, know},
    workflows::{chain, node},
};

fn document(protocol: &str) -> Value {
    json!({
        "document": { "schema": "https://agent-workflow.dev/schemas/workflow-definition.json", "name": "delegated", "version": "1" },
        "state_schema": { "type": "object", "properties": { "task": { "type": "string" } } },
        "nodes": [
            { "id": "start", "type": "start" },
            { "id": "implement", "type": "agent_delegate", "config": {
                "agent_id": "coder", "protocol": protocol, "input_mapping": { "task": "${ .task }" },
            } },
            { "id": "end", "type": "end" },
        ],
        "edges": [
            { "source": "__start__", "target": "start" }, { "source": "start", "target": "implement" },
            { "source": "implement", "target": "end" },
        ],
    })
}

/// Starts a run in process, under a name of the caller's.
async fn start(server: &Server, protocol: &str, task: &str) -> String {
    let document = document(protocol);
    server.post("/v1/workflows", &document).send().await.ok(201);
    let body = json!({
        "workflowId": "delegated", "inputs": { "task": task },
        "configurable": { "activityExecutionMode": "in_process", "executionId": "nightly-7" },
    });
    let created = server.post("/v1/runs", &body).send().await.ok(201);
    created["runId"].as_str().unwrap().to_owned()
}

fn parking(config: &mut Config, agent: &Agent, folder: &Path) {
    know(config, agent, folder, 600_000);
    config.a2a.peers[0].on_input_required = OnInputRequired::Ask;
}

#[tokio::test]
async fn parked_question_is_asked_in_the_run_and_goes_on_with_the_agent_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let asks = json!({ "id": "t-1", "status": "input-required", "output": { "prompt": "Which style?" } });
    let agent = Agent::start(asks).await;
    let server = Server::start_with(|config| parking(config, &agent, folder.path())).await;
    let run = start(&server, "a2a", "mend it").await;
    let waiting = server.wait_for(&run, "waiting-input").await;
    assert_eq!(waiting["interrupt"]["nodeId"], "implement", "{waiting}");
    assert!(
        waiting["interrupt"].to_string().contains("Which style?"),
        "{waiting}"
    );
    let server = server
        .again_with(|config| parking(config, &agent, folder.path()))
        .await;
    agent.looked_at().await;
    server.wait_for(&run, "waiting-input").await;
    // Somebody has answered the agent itself.
    *agent.task.lock().unwrap() = json!({ "id": "t-1", "status": "completed", "output": { "patch": "x" } });
    let ended = server.wait_for(&run, "completed").await;
    assert_eq!(ended["variables"], json!({ "task": "mend it", "patch": "x" }));
    let submitted = agent.submitted.lock().unwrap().clone();
    assert_eq!(submitted.len(), 1, "{submitted:?}");
    // The agent is asked for by its name. It knows the run by its id, because other tenants may use the name, too.
    assert_eq!(submitted[0]["agent_id"], "coder");
    assert_eq!(
        submitted[0]["correlation_id"],
        format!("{run}:delegate:implement")
    );
    server.stop().await;
}

#[tokio::test]
async fn answer_to_a_parked_question_is_the_result_of_the_delegate() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "id": "t-1", "status": "input-required" })).await;
    let server = Server::start_with(|config| parking(config, &agent, folder.path())).await;
    let run = start(&server, "a2a", "mend it").await;
    server.wait_for(&run, "waiting-input").await;
    let path = format!("/v1/runs/{run}/interrupts/implement");
    let body = json!({ "resumeValue": { "patch": "by hand" } });
    server.post(&path, &body).send().await.ok(200);
    let ended = server.wait_for(&run, "completed").await;
    assert_eq!(ended["variables"]["patch"], "by hand", "{ended}");
}

#[tokio::test]
async fn a_parked_question_is_shown_and_answered_by_a_submission_too() {
    let folder = tempfile::tempdir().unwrap();
    let asks = json!({ "id": "t-1", "status": "input-required", "output": { "prompt": "Which style?" } });
    let agent = Agent::start(asks).await;
    let server = Server::start_with(|config| parking(config, &agent, folder.path())).await;
    let run = start(&server, "a2a", "mend it").await;
    server.wait_for(&run, "waiting-input").await;
    let status = server.get("/awp/v1/executions/nightly-7").send().await.ok(200);
    assert_eq!(status["phase"], "awaiting_activity", "{status}");
    assert_eq!(
        (&status["agent_id"], &status["external_task_id"]),
        (&json!("coder"), &json!("t-1")),
        "{status}"
    );
    assert!(
        status["prompt"].as_str().unwrap().contains("Which style?"),
        "{status}"
    );
    let submit = |node: &str, outcome: Value| {
        json!({
            "definition": document("a2a"), "input": { "task": "mend it" }, "node_id": node, "outcome": outcome,
        })
    };
    let path = "/awp/v1/executions/nightly-7:submit_activity";
    let failed = submit("implement", json!({ "ok": false, "error": "no" }));
    let refused = server.post(path, &failed).send().await;
    assert_eq!(refused.status, 400, "{}", refused.json());
    let other = submit("start", json!({ "ok": true, "result": {} }));
    assert_eq!(server.post(path, &other).send().await.status, 409);
    let answer = submit(
        "implement",
        json!({ "ok": true, "result": { "patch": "by hand" } }),
    );
    let done = server.post(path, &answer).send().await.ok(200);
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(done["final_state"]["patch"], "by hand", "{done}");
}

#[tokio::test]
async fn question_fails_the_run_with_the_documented_text_unless_it_is_parked() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(json!({ "id": "t-1", "status": "input-required" })).await;
    let server = Server::start_with(|config| know(config, &agent, folder.path(), 600_000)).await;
    let run = start(&server, "a2a", "mend it").await;
    let failed = server.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "A2A_PROVIDER_ERROR", "{failed}");
    let text = "A2A task \"t-1\" requires host input (input-required); use host_mediated activity mode for interactive \
                delegates";
    assert_eq!(failed["error"]["message"], text);
}

#[tokio::test]
async fn cancelled_run_cancels_the_task_of_its_delegate() {
    let agent = Server::start_on_sqlite().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, ALICE).unwrap();
    let work = json!({
        "id": "coder", "name": "Coder", "version": "1", "edges": [], "variables": [], "metadata": {}, "settings": {},
        "nodes": [{
            "id": "work", "typeId": "core.delay", "name": "Work", "position": { "x": 0, "y": 0 }, "inputs": {},
            "config": { "delayMs": 86_400_000 },
        }],
        "triggers": [{ "id": "manual", "type": "manual" }],
    });
    agent.post("/v1/workflows", &work).send().await.ok(201);
    let url: url::Url = format!("http://{}", agent.address).parse().unwrap();
    let server = Server::start_with(|config| {
        config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
        config.a2a.peers.push(AgentPeer {
            token_file: Some(token),
            ..AgentPeer::new("default", url)
        });
    })
    .await;
    let run = start(&server, "a2a", "work").await;
    let task = loop {
        let listed = agent.get("/v1/runs").send().await.ok(200);
        if let Some(run) = listed["runs"][0]["runId"].as_str() {
            break run.to_owned();
        }
        server.snapshot(&run).await;
    };
    agent.wait_for(&task, "running").await;
    server
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await;
    server.wait_for(&run, "cancelled").await;
    agent.wait_for(&task, "cancelled").await;
    agent.stop().await;
}

/// A tool server by `sh` with the tool `review`.
const REVIEWS: &str = r#"
hear() {
    read -r line || exit 0
    id=$(printf '%s' "$line" | sed 's/^.*"id":\([0-9]*\).*$/\1/')
}
answer() {
    hear
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"
}
answer '{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}'
read -r line
answer '{"tools":[{"name":"review","inputSchema":{"type":"object","required":["task"]}}]}'
answer '{"content":[],"structuredContent":{"patch":"by a tool"}}'
"#;

#[tokio::test]
async fn delegate_of_the_protocol_mcp_is_a_call_of_the_tool_that_the_operator_names() {
    let with_agents = |names: &'static [&'static str]| {
        move |config: &mut Config| {
            config.mcp.servers.push(ToolServer {
                command: Some("sh".to_owned()),
                args: vec!["-c".to_owned(), REVIEWS.to_owned()],
                url: None,
                ..ToolServer::at("tools", "http://127.0.0.1:1".parse().unwrap())
            });
            config.mcp.agents = names
                .iter()
                .map(|name| ToolAgent {
                    name: (*name).to_owned(),
                    server: "tools".to_owned(),
                    tool: "review".to_owned(),
                })
                .collect();
        }
    };
    let server = Server::start_with(with_agents(&["coder"])).await;
    let run = start(&server, "mcp", "mend it").await;
    let ended = server.wait_for(&run, "completed").await;
    assert_eq!(ended["variables"]["patch"], "by a tool", "{ended}");

    let server = Server::start_with(with_agents(&["painter"])).await;
    let run = start(&server, "mcp", "mend it").await;
    let failed = server.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "DELEGATE_AGENT_NOT_FOUND", "{failed}");

    // Without such agents, and for code that no embedder has brought along, the mock answers offline.
    for protocol in ["mcp", "sdk"] {
        let server = Server::start_with(with_agents(&[])).await;
        let run = start(&server, protocol, "mend it").await;
        let ended = server.wait_for(&run, "completed").await;
        assert_eq!(ended["variables"]["protocol"], protocol, "{ended}");
    }
}

#[tokio::test]
async fn document_of_another_host_gives_its_result_to_who_calls_it_as_an_agent() {
    let callee = Server::start().await;
    for (name, filter) in [("text", ".task"), ("data", "{patch: .task}"), ("list", "[.task]")] {
        let mut greets = document("a2a");
        greets["document"]["name"] = json!(name);
        greets["nodes"] = json!([
            { "id": "start", "type": "start" },
            { "id": "end", "type": "end", "config": { "output_mapping": filter } },
        ]);
        greets["edges"] =
            json!([{ "source": "__start__", "target": "start" }, { "source": "start", "target": "end" }]);
        callee.post("/v1/workflows", &greets).send().await.ok(201);
    }
    let folder = tempfile::tempdir().unwrap();
    let address = callee.address.to_string();
    let caller = Server::start_with(|config| {
        let token = folder.path().join("token");
        std::fs::write(&token, ALICE).unwrap();
        config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
        config.a2a.peers.push(AgentPeer {
            token_file: Some(token),
            ..AgentPeer::new("default", format!("http://{address}").parse().unwrap())
        });
    })
    .await;
    for (skill, added, told) in [
        ("text", json!({ "text": "mend it" }), json!(["mend it", null])),
        (
            "data",
            json!({ "patch": "mend it" }),
            json!(["", { "patch": "mend it" }]),
        ),
        ("list", json!({ "value": ["mend it"] }), json!(["", ["mend it"]])),
    ] {
        let mut asks = document("a2a");
        asks["nodes"][1]["config"]["agent_id"] = json!(skill);
        asks["document"]["name"] = json!(format!("delegates-{skill}"));
        let body = json!({ "input": { "task": "mend it" }, "activity_execution_mode": "in_process" });
        let started = awp_control::start(&caller, &asks, body).await.ok(200);
        let mut state = json!({ "task": "mend it" });
        state
            .as_object_mut()
            .unwrap()
            .extend(added.as_object().unwrap().clone());
        assert_eq!(started["final_state"], state, "{started}");

        let config = json!({ "peer": "default", "skill": skill, "data": { "task": "mend it" } });
        let asks = chain(
            &format!("asks-{skill}"),
            &[node("ask", "core.a2a.invoke", config)],
        );
        caller.post("/v1/workflows", &asks).send().await.ok(201);
        let run = caller.run(asks["id"].as_str().unwrap(), json!({})).await;
        caller.wait_for(&run, "completed").await;
        let path = format!("/v1/runs/{run}/events/poll?timeout=1");
        let log = caller.get(&path).send().await.ok(200);
        let events = log["events"].as_array().unwrap();
        let completed = events
            .iter()
            .find(|event| event["type"] == "node.completed")
            .unwrap();
        let outputs = &completed["payload"]["outputs"];
        assert_eq!(json!([outputs["text"], outputs["data"]]), told, "{outputs}");
    }
}
