//! Workflows that call other agents, here workflows of a second host.

use std::{fs, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use wopr_server::{
    Config,
    config::{AgentPeer, OnInputRequired},
};

use crate::{
    orchestration::{events, looped, register},
    server::{ALICE, Server},
    workflows::{chain, node},
};

/// Every binding of every version, as calls name them.
pub(crate) const INTERFACES: [(&str, &str); 6] = [
    ("jsonrpc", "1.0"),
    ("rest", "1.0"),
    ("grpc", "1.0"),
    ("jsonrpc", "0.3"),
    ("rest", "0.3"),
    ("grpc", "0.3"),
];

/// Two hosts: workflows of the first call those of the second.
pub(crate) struct Hosts {
    pub(crate) caller: Server,
    pub(crate) callee: Server,
    pub(crate) folder: Arc<TempDir>,
}

/// Lets workflows of a host call an agent.
pub(crate) fn know(config: &mut Config, peer: &str, address: &str, folder: &TempDir) {
    let token = folder.path().join("token");
    fs::write(&token, ALICE).unwrap();
    config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
    config.a2a.peers.push(AgentPeer {
        token_file: Some(token),
        ..AgentPeer::new(peer, format!("http://{address}").parse().unwrap())
    });
}

pub(crate) fn invoke(config: Value) -> Value {
    chain("ask", &[node("ask", "core.a2a.invoke", config)])
}

impl Hosts {
    pub(crate) async fn start() -> Self {
        let (callee, folder) = (
            Server::start_on_sqlite().await,
            Arc::new(tempfile::tempdir().unwrap()),
        );
        let address = callee.address.to_string();
        let known = Arc::clone(&folder);
        let caller = Server::start_with(move |config| {
            config.store = wopr_server::config::StoreUrl::Sqlite("wopr.db".into());
            know(config, "default", &address, &known);
        })
        .await;
        Self {
            caller,
            callee,
            folder,
        }
    }

    /// Starts a run that calls a workflow of the other host.
    pub(crate) async fn ask(&self, config: Value, inputs: Value) -> String {
        let document = invoke(config);
        self.caller.post("/v1/workflows", &document).send().await.ok(201);
        self.caller.run("ask", inputs).await
    }

    /// Waits until the other host has a run, and returns its id.
    async fn called(&self, status: &str) -> String {
        loop {
            let runs = self.callee.get("/v1/runs").send().await.ok(200);
            if let Some(run) = runs["runs"].as_array().unwrap().first() {
                let run = run["runId"].as_str().unwrap().to_owned();
                self.callee.wait_for(&run, status).await;
                return run;
            }
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) async fn outputs(server: &Server, run: &str) -> Value {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let poll = server.get(&path).send().await.ok(200);
    let events = poll["events"].as_array().unwrap();
    let completed = events.iter().find(|event| event["type"] == "node.completed");
    completed.unwrap_or_else(|| panic!("{poll:#}"))["payload"]["outputs"].clone()
}

#[tokio::test]
async fn agent_is_a_worker_and_causation_can_be_walked_from_either_host() {
    let hosts = Hosts::start().await;
    let next = json!({
        "kind": "next-worker", "nextWorkerIds": ["agent:default/letter"], "nextWorkerInputs": [{ "name": "Ann" }],
    });
    let lead = looped(
        "lead",
        json!({ "rules": [{ "when": "said == ''", "decision": next }], "decision": { "kind": "terminate" } }),
        json!({ "outputMapping": { "said": "text" } }),
        json!([{ "name": "said", "type": "string", "defaultValue": "" }]),
    );
    register(&hosts.caller, &lead).await;
    let run = hosts.caller.run("lead", json!({})).await;
    let snapshot = hosts.caller.wait_for(&run, "completed").await;
    assert_eq!(snapshot["variables"]["said"], "Hello Ann");
    let log = events(&hosts.caller, &run).await;
    let handoffs = log
        .iter()
        .filter(|event| event["type"] == "core.workflowChain.event");
    let phases: Vec<_> = handoffs.map(|event| event["payload"]["phase"].clone()).collect();
    assert_eq!(
        phases,
        [
            "dispatch.began",
            "dispatch.succeeded",
            "child.completed",
            "output.harvested"
        ]
    );
    // What an agent says is untrusted, wherever it goes.
    assert_eq!(
        snapshot["untrusted"]["variables"],
        json!(["dispatch", "said", "supervisor"])
    );

    let child = snapshot["childRuns"][0]["runId"].as_str().unwrap();
    let called = outputs(&hosts.caller, child).await["taskId"]
        .as_str()
        .unwrap()
        .to_owned();
    let task = hosts.callee.snapshot(&called).await;
    assert_eq!(
        (&task["workflowId"], &task["variables"]["name"]),
        (&json!("letter"), &json!("Ann"))
    );
    assert!(task["inputs"].get("_skill").is_none(), "{task:#}");
    let parent = async |server: &Server, run: &str| {
        let path = format!("/v1/runs/{run}/ancestry");
        server.get(&path).send().await.ok(200)["parent"].clone()
    };
    let from = parent(&hosts.callee, &called).await;
    assert_eq!(
        (&from["runId"], &from["cause"]),
        (&json!(child), &json!("a2a-message"))
    );
    let discovery = hosts
        .caller
        .call("GET", "/.well-known/openwop")
        .send()
        .await
        .ok(200);
    let causation = &discovery["multiAgent"]["executionModel"]["crossHostCausation"];
    assert_eq!(from["hostId"], causation["hostId"]);
    let from = parent(&hosts.caller, child).await;
    assert_eq!(
        (&from["runId"], &from["cause"]),
        (&json!(run), &json!("core.dispatch"))
    );
}

#[tokio::test]
async fn agent_answers_over_every_binding_and_version() {
    let hosts = Hosts::start().await;
    for (binding, version) in INTERFACES {
        let config = json!({
            "skill": "letter", "data": { "name": "{{ who }}" }, "binding": binding, "protocolVersion": version,
        });
        let run = hosts.ask(config, json!({ "who": "Ann" })).await;
        hosts.caller.wait_for(&run, "completed").await;
        let outputs = outputs(&hosts.caller, &run).await;
        assert_eq!(outputs["text"], "Hello Ann", "{binding} {version}: {outputs:#}");
        assert_eq!(outputs["state"], "completed");
        assert_eq!(outputs["peer"], "default");
        assert_eq!(outputs["contentTrust"], "untrusted");
        assert_eq!(outputs["artifacts"][0]["parts"][0]["text"], "Hello Ann");
        let task = outputs["taskId"].as_str().unwrap();
        let called = hosts.callee.snapshot(task).await;
        assert_eq!(called["workflowId"], "letter");
    }
}

#[tokio::test]
async fn message_is_the_prompt_or_the_inputs_unless_the_node_says_more() {
    let hosts = Hosts::start().await;
    for (config, inputs, sent) in [
        (
            json!({ "skill": "conformance-noop" }),
            json!({ "prompt": "Hi" }),
            json!("Hi"),
        ),
        (
            json!({ "skill": "conformance-noop", "message": "Dear {{ who }}" }),
            json!({ "who": "Ann" }),
            json!("Dear Ann"),
        ),
    ] {
        let run = hosts.ask(config, inputs).await;
        hosts.caller.wait_for(&run, "completed").await;
        let outputs = outputs(&hosts.caller, &run).await;
        let called = hosts.callee.snapshot(outputs["taskId"].as_str().unwrap()).await;
        assert_eq!(called["inputs"]["prompt"], sent, "{called:#}");
    }
}

#[tokio::test]
async fn call_is_parked_and_survives_a_restart_of_its_caller() {
    let Hosts {
        caller,
        callee,
        folder,
    } = Hosts::start().await;
    let hosts = Hosts {
        caller,
        callee,
        folder,
    };
    let run = hosts
        .ask(json!({ "skill": "activity" }), json!({ "who": "Ann" }))
        .await;
    let called = hosts.called("running").await;
    hosts.caller.wait_for(&run, "running").await;
    let Hosts {
        caller,
        callee,
        folder,
    } = hosts;
    let (address, known) = (callee.address.to_string(), Arc::clone(&folder));
    let caller = caller
        .again_with(move |config| know(config, "default", &address, &known))
        .await;

    let activity = callee.snapshot(&called).await["activities"][0].clone();
    let path = format!("/v1/activities/{}", activity["token"].as_str().unwrap());
    let outcome = json!({ "outcome": { "ok": true, "result": { "sent": 3 } } });
    callee.post(&path, &outcome).send().await.ok(200);
    caller.wait_for(&run, "completed").await;
    let runs = callee.get("/v1/runs").send().await.ok(200);
    assert_eq!(
        runs["runs"].as_array().unwrap().len(),
        1,
        "the message made one task: {runs:#}"
    );
    drop(folder);
}

#[tokio::test]
async fn cancel_of_the_caller_reaches_the_agent() {
    let hosts = Hosts::start().await;
    let run = hosts.ask(json!({ "skill": "delay" }), json!({})).await;
    let called = hosts.called("running").await;
    hosts
        .caller
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    hosts.caller.wait_for(&run, "cancelled").await;
    hosts.callee.wait_for(&called, "cancelled").await;
}

#[tokio::test]
async fn task_that_its_agent_cancels_cancels_the_run() {
    let hosts = Hosts::start().await;
    let run = hosts.ask(json!({ "skill": "delay" }), json!({})).await;
    let called = hosts.called("running").await;
    hosts
        .callee
        .post(&format!("/v1/runs/{called}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    hosts.caller.wait_for(&run, "cancelled").await;
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let poll = hosts.caller.get(&path).send().await.ok(200);
    let last = poll["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["payload"]["reason"], "cross_protocol_cancel", "{last}");
}

#[tokio::test]
async fn call_that_takes_too_long_fails_and_is_cancelled() {
    let hosts = Hosts::start().await;
    let run = hosts
        .ask(json!({ "skill": "delay", "timeoutMs": 1_000 }), json!({}))
        .await;
    let failed = hosts.caller.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "remote_timeout", "{failed:#}");
    hosts.called("cancelled").await;
}

#[tokio::test]
async fn failures_say_what_the_agent_did() {
    let hosts = Hosts::start().await;
    for (config, code) in [
        (json!({ "skill": "fails" }), "remote_failed"),
        (json!({ "skill": "nowhere" }), "remote_failed"),
        (json!({ "peer": "nobody" }), "peer_unknown"),
    ] {
        let run = hosts.ask(config, json!({})).await;
        let failed = hosts.caller.wait_for(&run, "failed").await;
        assert_eq!(failed["error"]["code"], code, "{failed:#}");
    }
}

#[tokio::test]
async fn agent_that_cannot_be_reached_is_tried_four_times() {
    let folder = tempfile::tempdir().unwrap();
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap().to_string();
    drop(closed);
    let caller = Server::start_with(|config| {
        know(config, "default", &address, &folder);
        know(config, "secret", &address, &folder);
        config.a2a.peers[1].token_file = Some("/nowhere/token".into());
    })
    .await;
    let mut document = invoke(json!({}));
    document["settings"] = json!({ "retryDelayMs": 1 });
    caller.post("/v1/workflows", &document).send().await.ok(201);
    let run = caller.run("ask", json!({})).await;
    let failed = caller.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "external_call_failed", "{failed:#}");
    let types = caller.event_types(&run).await;
    let tried = types
        .iter()
        .filter(|kind| *kind == "vendor.wopr.effect.scheduled");
    assert_eq!(tried.count(), 4, "{types:?}");

    caller
        .post("/v1/workflows", &invoke(json!({ "peer": "secret" })))
        .send()
        .await
        .ok(201);
    let run = caller.run("ask", json!({})).await;
    let failed = caller.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "credential_missing", "{failed:#}");
}

/// Asks for a colour, then for a size.
fn questions() -> Value {
    let ask = |id: &str, question: &str| {
        let questions = json!([{ "id": id, "question": question }]);
        node(id, "core.clarificationGate", json!({ "questions": questions }))
    };
    let mut said = node(
        "said",
        "core.template",
        json!({ "template": "{{ nodes.colour.answers }} {{ nodes.size.answers }}" }),
    );
    said["artifactType"] = json!("text");
    chain(
        "order",
        &[ask("colour", "Which colour?"), ask("size", "Which size?"), said],
    )
}

pub(crate) async fn rpc(server: &Server, method: &str, params: Value) -> Value {
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
    let sent = server.post("/a2a", &body).header("a2a-version", "1.0");
    let answer = sent.send().await.ok(200);
    assert_eq!(answer.get("error"), None, "{answer:#}");
    answer["result"].clone()
}

/// Waits until a run asks its next question, and returns the interrupt.
pub(crate) async fn asked(server: &Server, run: &str, id: &str) -> Value {
    let mut after = String::new();
    loop {
        let snapshot = server.snapshot(run).await;
        let interrupt = &snapshot["interrupt"];
        if interrupt["interruptId"] == id || interrupt["key"] == id {
            return interrupt.clone();
        }
        let path = format!("/v1/runs/{run}/events/poll?timeout=10{after}");
        let poll = server.get(&path).send().await.ok(200);
        assert_eq!(poll["isTerminal"], false, "{snapshot:#}");
        after = format!("&lastSequence={}", poll["lastEventSeq"]);
    }
}

#[tokio::test]
async fn questions_of_an_agent_are_asked_in_the_run_and_answered_into_its_task() {
    let hosts = Hosts::start().await;
    hosts
        .callee
        .post("/v1/workflows", &questions())
        .send()
        .await
        .ok(201);
    let run = hosts.ask(json!({ "skill": "order" }), json!({})).await;

    let first = asked(&hosts.caller, &run, "ask:0").await;
    assert_eq!(first["kind"], "clarification", "{first:#}");
    assert_eq!(first["data"]["source"], "remote");
    assert_eq!(first["data"]["message"], "Which colour?", "{first:#}");
    assert_eq!(hosts.caller.snapshot(&run).await["status"], "waiting-input");
    let answer = json!({ "resumeValue": { "answers": { "answer": "green" } } });
    let path = format!("/v1/runs/{run}/interrupts/ask");
    hosts.caller.post(&path, &answer).send().await.ok(200);

    // The second question has another id, so an answer to the first cannot reach it.
    let second = asked(&hosts.caller, &run, "ask:0:1").await;
    assert_eq!(second["data"]["message"], "Which size?", "{second:#}");
    let stale = json!({ "interruptId": "ask:0", "resumeValue": { "answers": { "answer": "red" } } });
    assert_eq!(hosts.caller.post(&path, &stale).send().await.status, 409);

    // Answered as a task, in words.
    let message = json!({ "message": {
        "messageId": "size", "taskId": run, "role": "ROLE_USER", "parts": [{ "text": "large" }],
    }});
    rpc(&hosts.caller, "SendMessage", message).await;
    hosts.caller.wait_for(&run, "completed").await;
    let outputs = outputs(&hosts.caller, &run).await;
    let text = outputs["text"].as_str().unwrap();
    assert!(
        text.contains("green") && text.contains("large") && !text.contains("red"),
        "{outputs:#}"
    );
    let runs = hosts.callee.get("/v1/runs").send().await.ok(200);
    assert_eq!(
        runs["runs"].as_array().unwrap().len(),
        1,
        "every answer went into the one task"
    );
}

#[tokio::test]
async fn question_of_a_third_host_reaches_the_first_and_the_answer_goes_all_the_way() {
    let Hosts {
        caller: middle,
        callee: last,
        folder,
    } = Hosts::start().await;
    last.post("/v1/workflows", &questions()).send().await.ok(201);
    let mut relay = chain(
        "relay",
        &[node("relay", "core.a2a.invoke", json!({ "skill": "order" }))],
    );
    relay["metadata"] = json!({ "public": true });
    relay["nodes"][0]["artifactType"] = json!("text");
    middle.post("/v1/workflows", &relay).send().await.ok(201);
    let address = middle.address.to_string();
    let first = Server::start_with(|config| know(config, "default", &address, &folder)).await;
    first
        .post("/v1/workflows", &invoke(json!({ "skill": "relay" })))
        .send()
        .await
        .ok(201);
    let run = first.run("ask", json!({})).await;
    let path = format!("/v1/runs/{run}/interrupts/ask");
    for (id, question, answer) in [
        ("ask:0", "Which colour?", "green"),
        ("ask:0:1", "Which size?", "large"),
    ] {
        let interrupt = asked(&first, &run, id).await;
        assert_eq!(interrupt["data"]["message"], question, "{interrupt:#}");
        let answer = json!({ "resumeValue": { "answers": { "answer": answer } } });
        first.post(&path, &answer).send().await.ok(200);
    }
    first.wait_for(&run, "completed").await;
    let text = outputs(&first, &run).await.to_string();
    assert!(text.contains("green") && text.contains("large"), "{text}");
}

#[tokio::test]
async fn question_that_the_agent_no_longer_asks_is_closed() {
    let hosts = Hosts::start().await;
    hosts
        .callee
        .post("/v1/workflows", &questions())
        .send()
        .await
        .ok(201);
    let run = hosts.ask(json!({ "skill": "order" }), json!({})).await;
    asked(&hosts.caller, &run, "ask:0").await;
    let called = hosts.called("waiting-input").await;
    hosts
        .callee
        .post(&format!("/v1/runs/{called}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    // The caller learns it with its next look, which may be before the answer, or when somebody answers.
    let path = format!("/v1/runs/{run}/interrupts/ask");
    let answer = json!({ "resumeValue": { "answers": { "answer": "green" } } });
    let answered = hosts.caller.post(&path, &answer).send().await;
    assert!(matches!(answered.status, 200 | 409), "{answered:?}");
    hosts.caller.wait_for(&run, "cancelled").await;
}

#[tokio::test]
async fn answer_is_told_after_a_restart() {
    let hosts = Hosts::start().await;
    hosts
        .callee
        .post("/v1/workflows", &questions())
        .send()
        .await
        .ok(201);
    let run = hosts.ask(json!({ "skill": "order" }), json!({})).await;
    asked(&hosts.caller, &run, "ask:0").await;
    let Hosts {
        caller,
        callee,
        folder,
    } = hosts;
    let (address, known) = (callee.address.to_string(), Arc::clone(&folder));
    let caller = caller
        .again_with(move |config| know(config, "default", &address, &known))
        .await;
    let path = format!("/v1/runs/{run}/interrupts/ask");
    let answer = json!({ "resumeValue": { "answers": { "answer": "green" } } });
    caller.post(&path, &answer).send().await.ok(200);
    asked(&caller, &run, "ask:0:1").await;
    // Cancelled while the agent asks, with its task.
    caller
        .post(&format!("/v1/runs/{run}/cancel"), &json!({}))
        .send()
        .await
        .ok(200);
    let runs = callee.get("/v1/runs").send().await.ok(200);
    let called = runs["runs"][0]["runId"].as_str().unwrap();
    callee.wait_for(called, "cancelled").await;
}

#[tokio::test]
async fn question_fails_the_call_if_the_operator_says_so() {
    let (callee, folder) = (Server::start().await, tempfile::tempdir().unwrap());
    let address = callee.address.to_string();
    let caller = Server::start_with(|config| {
        know(config, "default", &address, &folder);
        config.a2a.peers[0].on_input_required = OnInputRequired::Fail;
    })
    .await;
    caller
        .post("/v1/workflows", &invoke(json!({ "skill": "approval" })))
        .send()
        .await
        .ok(201);
    let run = caller.run("ask", json!({})).await;
    let failed = caller.wait_for(&run, "failed").await;
    assert_eq!(failed["error"]["code"], "input_required_by_remote", "{failed:#}");
    // A task whose question nobody answers is cancelled.
    while callee.get("/v1/runs?status=cancelled").send().await.ok(200)["runs"] == json!([]) {
        tokio::task::yield_now().await;
    }
}

/// An address of this machine that nothing listens at, nor takes before its host does: other tests use 127.0.0.1.
async fn reserved() -> String {
    let ours = if cfg!(target_os = "linux") {
        "127.0.0.2:0"
    } else {
        "127.0.0.1:0"
    };
    let listener = tokio::net::TcpListener::bind(ours).await.unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Starts a host at this address, which other hosts reach it by.
fn public(config: &mut Config, address: &str) {
    config.store = wopr_server::config::StoreUrl::Sqlite("wopr.db".into());
    config.server.listen = address.parse().unwrap();
    config.server.public_url = Some(format!("http://{address}").parse().unwrap());
    config.egress.allow = vec!["127.0.0.0/8".parse().unwrap()];
}

/// Waits until the caller has recorded the task of its agent.
async fn accepted(server: &Server, run: &str) {
    let is_accepted = |kind: &String| kind == "vendor.wopr.effect.accepted";
    while !server.event_types(run).await.iter().any(is_accepted) {
        tokio::task::yield_now().await;
    }
}

/// Waits until the agent pushes the updates of a task, and returns where to.
async fn pushed_to(server: &Server, task: &str) -> String {
    loop {
        let listed = rpc(
            server,
            "ListTaskPushNotificationConfigs",
            json!({ "taskId": task }),
        )
        .await;
        if let Some(config) = listed["configs"].as_array().and_then(|configs| configs.first()) {
            return config["url"].as_str().unwrap().to_owned();
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn agent_pushes_what_no_stream_brings_after_restarts_of_both_hosts() {
    for version in ["1.0", "0.3"] {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (reserved().await, reserved().await);
        let calls = |config: &mut Config| {
            public(config, &first);
            know(config, "default", &second, &folder);
        };
        let callee = Server::start_with(|config| public(config, &second)).await;
        let caller = Server::start_with(calls).await;
        let document = invoke(json!({ "skill": "activity", "protocolVersion": version }));
        caller.post("/v1/workflows", &document).send().await.ok(201);
        let hosts = Hosts {
            caller,
            callee,
            folder: Arc::new(tempfile::tempdir().unwrap()),
        };
        let run = hosts.caller.run("ask", json!({ "who": "Ann" })).await;
        let called = hosts.called("running").await;
        accepted(&hosts.caller, &run).await;
        // The first stream ends with its caller.
        let caller = hosts.caller.again_with(calls).await;
        let url = pushed_to(&hosts.callee, &called).await;
        let path = url.strip_prefix(&format!("http://{first}")).unwrap();
        let callee = hosts.callee.again_with(|config| public(config, &second)).await;
        let caller = caller.again_with(calls).await;

        let before = caller.event_types(&run).await;
        for (path, token) in [
            (path, None),
            (path, Some("Zm9yZ2Vk")),
            ("/v1/host/wopr/calls/Zm9yZ2Vk", Some("Zm9yZ2Vk")),
        ] {
            let mut forged = caller
                .call("POST", path)
                .json(&json!({ "task": { "id": called } }));
            if let Some(token) = token {
                forged = forged.header("x-a2a-notification-token", token);
            }
            forged.send().await.error(404, "not_found");
        }
        assert_eq!(caller.event_types(&run).await, before);

        let activity = callee.snapshot(&called).await["activities"][0].clone();
        let path = format!("/v1/activities/{}", activity["token"].as_str().unwrap());
        let outcome = json!({ "outcome": { "ok": true, "result": { "sent": 3 } } });
        callee.post(&path, &outcome).send().await.ok(200);
        // A look that is due comes after half a minute.
        let ended = caller.wait_for(&run, "completed");
        tokio::time::timeout(Duration::from_secs(25), ended)
            .await
            .unwrap();
        let runs = callee.get("/v1/runs").send().await.ok(200);
        assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "one task: {runs:#}");
        // The call is over, and every push arrives all the same. One that was not yet handed out is not listed.
        loop {
            let waiting = callee.get("/v1/host/wopr/deliveries").send().await.ok(200);
            let has_arrived = callee.host.app().stats().pushes_delivered > 0;
            if waiting["deliveries"] == json!([]) && has_arrived {
                break;
            }
            assert!(waiting["deliveries"][0].get("error").is_none(), "{waiting:#}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn cancel_that_the_agent_does_not_hear_is_listed_and_retried() {
    let (folder, address) = (tempfile::tempdir().unwrap(), reserved().await);
    let caller = Server::start_with(|config| {
        know(config, "default", &address, &folder);
    })
    .await;
    let callee = Server::start_with(|config| public(config, &address)).await;
    let document = invoke(json!({ "skill": "activity" }));
    caller.post("/v1/workflows", &document).send().await.ok(201);
    let hosts = Hosts {
        caller,
        callee,
        folder: Arc::new(tempfile::tempdir().unwrap()),
    };
    let run = hosts.caller.run("ask", json!({ "who": "Ann" })).await;
    let called = hosts.called("running").await;
    accepted(&hosts.caller, &run).await;
    let Hosts { caller, callee, .. } = hosts;
    callee.stop().await;
    let cancel = format!("/v1/runs/{run}/cancel");
    caller.post(&cancel, &json!({})).send().await.ok(200);
    let list = format!("/v1/host/wopr/deliveries?runId={run}");
    let delivery = loop {
        let listed = caller.get(&list).send().await.ok(200);
        let delivery = listed["deliveries"][0].clone();
        if delivery["attempts"].as_u64() > Some(0) {
            break delivery;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(delivery["kind"], "cancel", "{delivery:#}");
    assert_eq!(
        (&delivery["peer"], &delivery["taskId"]),
        (&json!("default"), &json!(called))
    );
    assert_eq!(
        (&delivery["nodeId"], &delivery["state"]),
        (&json!("ask"), &json!("waiting"))
    );
    assert!(
        delivery["error"].is_string() && delivery["nextTryAt"].is_string(),
        "{delivery:#}"
    );

    // Another agent at its address does not know the task.
    let _other = Server::start_with(|config| public(config, &address)).await;
    let retry = json!({ "runId": run });
    let retried = caller
        .post("/v1/host/wopr/deliveries:retry", &retry)
        .send()
        .await
        .ok(200);
    // It may be tried at this moment anyway.
    assert!(retried["retried"].as_u64().is_some_and(|n| n <= 1), "{retried}");
    while caller.get(&list).send().await.ok(200)["deliveries"] != json!([]) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn request_for_credentials_says_so_in_the_run_and_in_its_task() {
    let hosts = Hosts::start().await;
    let run = hosts
        .ask(
            json!({ "skill": "a2a-conformance", "message": "auth" }),
            json!({}),
        )
        .await;
    let interrupt = asked(&hosts.caller, &run, "ask:0").await;
    assert_eq!(
        interrupt["metadata"],
        json!({ "subkind": "auth" }),
        "{interrupt:#}"
    );
    let task = rpc(&hosts.caller, "GetTask", json!({ "id": run })).await;
    let shown = &task["metadata"]["openwop"]["interrupt"];
    assert_eq!(
        (&shown["subkind"], &shown["kind"]),
        (&json!("auth"), &json!("clarification")),
        "{task:#}"
    );
}
