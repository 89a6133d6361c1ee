//! Files that come with a message go on to other agents: with their bytes, names and types, and only from where they belong.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use crate::{
    agents::{Hosts, INTERFACES, rpc},
    forks::{events, fork, seq_of},
    orchestration::register,
    server::{BOB, Server},
    workflows::{chain, node},
};

/// Two hosts, of which one has a skill that sends files back.
async fn hosts() -> Hosts {
    let hosts = Hosts::start().await;
    let mut back = node("back", "core.identity", json!({}));
    back["inputs"] = json!({ "files": { "type": "variable", "variableName": "files" } });
    back["artifactType"] = json!("files");
    register(&hosts.callee, &with_files("send-back", &[back])).await;
    hosts
}

/// A node that sends the variable `files` to that skill.
fn passing(id: &str, type_id: &str, mut config: Value) -> Value {
    config["skill"] = json!("send-back");
    config["message"] = json!("file");
    let mut passing = node(id, type_id, config);
    passing["inputs"] = json!({ "files": { "type": "variable", "variableName": "files" } });
    passing
}

fn with_files(id: &str, nodes: &[Value]) -> Value {
    let mut document = chain(id, nodes);
    document["variables"] = json!([{ "name": "files", "type": "array" }]);
    document["metadata"] = json!({ "public": true, "a2a": { "inputModes": ["*/*"] } });
    document
}

fn parts() -> Value {
    json!([
        { "raw": "AAEC/w==", "filename": "b.bin", "mediaType": "application/x-thing" },
        { "url": "https://files.example/x.png", "filename": "x.png", "mediaType": "image/png" },
        { "raw": "aGk=", "filename": "nameless.type" },
    ])
}

/// The same parts as they come back: the other host names the type of bytes for which it was told none.
fn parts_back() -> Value {
    let mut parts = parts();
    parts[2]["mediaType"] = json!("application/octet-stream");
    parts
}

/// Sends a message with files to a workflow, and returns the id of its run.
async fn send(server: &Server, workflow: &str, id: &str, files: &Value) -> String {
    let message = json!({ "message": {
        "messageId": id, "role": "ROLE_USER", "parts": files, "metadata": { "openwop.workflowId": workflow },
    }, "configuration": { "returnImmediately": true } });
    let task = &rpc(server, "SendMessage", message).await["task"];
    task["id"].as_str().unwrap().to_owned()
}

/// The parts that the other host has sent back to a node.
async fn echoed(server: &Server, run: &str, node: &str) -> Value {
    let log = events(server, run).await;
    let mut completed = log.iter().filter(|event| event["type"] == "node.completed");
    let completed = completed.find(|event| event["nodeId"] == node);
    completed.unwrap_or_else(|| panic!("{log:#?}"))["payload"]["outputs"]["artifacts"][0]["parts"].clone()
}

#[tokio::test]
async fn files_of_a_message_and_of_an_answer_reach_agents_over_every_binding_and_version() {
    let hosts = hosts().await;
    for (n, (binding, version)) in INTERFACES.into_iter().enumerate() {
        let config = json!({ "binding": binding, "protocolVersion": version });
        let mut again = passing("again", "core.openwop.a2a.multi-turn-coordinator", config.clone());
        again["config"]["peer"] = json!("default");
        // What the first answer brought, with another file.
        let expression =
            "nodes.pass.artifacts[0].parts + [{'bytes': 'AAEC', 'name': 'n.bin', 'mediaType': 'a/b'}]";
        again["inputs"]["files"] = json!({ "type": "expression", "expression": expression });
        let mut left = passing("left", "core.openwop.a2a.send-message", config.clone());
        left["config"]["peer"] = json!("default");
        let nodes = [passing("pass", "core.a2a.invoke", config), again, left];
        let workflow = format!("pass-{n}");
        register(&hosts.caller, &with_files(&workflow, &nodes)).await;
        let run = send(&hosts.caller, &workflow, &workflow, &parts()).await;
        hosts.caller.wait_for(&run, "completed").await;
        // The log refers to the bytes, until an answer has them.
        let log = events(&hosts.caller, &run).await;
        let mut before = log.iter().take_while(|event| event["type"] != "node.completed");
        assert!(
            before.all(|event| !event.to_string().contains("AAEC/w")),
            "{log:#?}"
        );
        let (mut wanted, of) = (parts_back(), format!("{binding} {version}"));
        assert_eq!(echoed(&hosts.caller, &run, "pass").await, wanted, "{of}");
        let more = json!({ "raw": "AAEC", "filename": "n.bin", "mediaType": "a/b" });
        wanted.as_array_mut().unwrap().push(more);
        assert_eq!(echoed(&hosts.caller, &run, "again").await, wanted, "{of}");
    }
    let runs = hosts.callee.get("/v1/runs").send().await.ok(200);
    let runs = runs["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 18);
    for run in runs {
        let snapshot = hosts.callee.snapshot(run["runId"].as_str().unwrap()).await;
        assert_eq!(snapshot["inputs"]["files"][0]["name"], "b.bin", "{snapshot:#}");
        assert_eq!(snapshot["inputs"]["files"][0]["size"], 4, "{snapshot:#}");
    }
}

#[tokio::test]
async fn child_runs_and_forks_send_the_files_of_the_runs_they_come_from() {
    let hosts = hosts().await;
    let server = &hosts.caller;
    let pass = || passing("pass", "core.a2a.invoke", json!({}));
    register(server, &with_files("pass", &[pass()])).await;
    let child = json!({ "workflowId": "pass", "inputMapping": { "files": "files" } });
    let child = node("child", "core.subWorkflow", child);
    register(server, &with_files("parent", &[child])).await;

    let run = send(server, "parent", "m-parent", &parts()).await;
    let parent = server.wait_for(&run, "completed").await;
    let of_child = parent["childRuns"][0]["runId"].as_str().unwrap();
    assert_eq!(echoed(server, of_child, "pass").await, parts_back());

    // A branch of the child run, which has no parent of its own, and one of that branch.
    let mut source = of_child.to_owned();
    for _ in 0..2 {
        let from = seq_of(&events(server, &source).await, "node.started", "pass");
        source = fork(server, &source, json!({ "mode": "branch", "fromSeq": from })).await;
        server.wait_for(&source, "completed").await;
        assert_eq!(echoed(server, &source, "pass").await, parts_back());
    }
}

#[tokio::test]
async fn files_of_other_runs_and_too_many_bytes_fail_the_step() {
    let hosts = hosts().await;
    let server = &hosts.caller;
    register(
        server,
        &with_files("pass", &[passing("pass", "core.a2a.invoke", json!({}))]),
    )
    .await;
    let run = send(server, "pass", "m", &parts()).await;
    let snapshot = server.wait_for(&run, "completed").await;
    let foreign = snapshot["inputs"]["files"][0].clone();
    let id = foreign["blob"].as_str().unwrap();

    let failed = async |run: String| {
        let snapshot = server.wait_for(&run, "failed").await;
        assert_eq!(snapshot["error"]["code"], "invalid_input", "{snapshot:#}");
        snapshot["error"]["message"].as_str().unwrap().to_owned()
    };
    // Another run of the same caller, and one that has a file itself.
    let said = failed(server.run("pass", json!({ "files": [foreign.clone()] })).await).await;
    assert!(
        said.contains(&format!("files[0] names the blob '{id}'")),
        "{said}"
    );
    let data = json!([{ "raw": "aGk=" }, { "data": { "files": [foreign.clone()] } }]);
    let own = send(server, "pass", "m2", &data).await;
    server.wait_for(&own, "completed").await;
    assert_eq!(
        echoed(server, &own, "pass").await,
        json!([{ "raw": "aGk=", "mediaType": "application/octet-stream" }])
    );

    // Another tenant.
    let document = with_files("pass", &[passing("pass", "core.a2a.invoke", json!({}))]);
    let bob = |path: &str, body: &Value| server.call("POST", path).key(BOB).json(body);
    bob("/v1/workflows", &document).send().await.ok(201);
    let body = json!({ "workflowId": "pass", "inputs": { "files": [foreign.clone()] } });
    let run = bob("/v1/runs", &body).send().await.ok(201)["runId"]
        .as_str()
        .unwrap()
        .to_owned();
    loop {
        let snapshot = server
            .call("GET", &format!("/v1/runs/{run}"))
            .key(BOB)
            .send()
            .await
            .ok(200);
        if snapshot["status"] == "failed" {
            assert_eq!(snapshot["error"]["code"], "invalid_input", "{snapshot:#}");
            break;
        }
        tokio::task::yield_now().await;
    }

    let said = failed(
        server
            .run("pass", json!({ "files": [{ "url": "u", "mimeType": "a/b" }] }))
            .await,
    )
    .await;
    assert!(said.contains("files[0] has the member 'mimeType'"), "{said}");

    // Twice 5 MiB, from one file.
    let mut twice = passing("pass", "core.a2a.invoke", json!({}));
    twice["inputs"]["files"] = json!({ "type": "expression", "expression": "files + files" });
    register(server, &with_files("twice", &[twice])).await;
    let large = json!([{ "raw": STANDARD.encode(vec![7; 5 << 20]) }]);
    let said = failed(send(server, "twice", "m3", &large).await).await;
    assert!(said.contains("more than 8 MiB of files of messages"), "{said}");
    let run = send(server, "pass", "m4", &large).await;
    server.wait_for(&run, "completed").await;
}
