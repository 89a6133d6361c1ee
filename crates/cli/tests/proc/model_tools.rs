//! A host that is killed at any stage of a model's use of its tools loses nothing, and does nothing twice that it may not.
//!
//! A model asks for two tools at once: a workflow, which asks a server outside, and a tool of an MCP server. The model is
//! `wopr mock-model` behind a server of the test, so all stages lie between requests that the test sees: the host is
//! killed when one arrives, or as soon as one was answered.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    sync::mpsc,
    time,
};

use crate::{
    calling::{events_of, outputs, register},
    host::{Host, place},
    http::{Connection, write_request},
    quarantine::{ask, create, reaches},
    server::{Request, Response, Server, header},
};

/// More than a call takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a host is killed after the answer of a tool that must not be called twice: what it does then depends on its
/// speed.
const TRIES: usize = 3;

/// Where the run is, by the request that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The model is asked for the first time, and asks for both tools.
    Asked,
    /// The child run of the workflow asks its server.
    Workflow,
    /// The child run of the tool calls it.
    Tool,
    /// The model is asked again, with the results.
    AskedAgain,
}

/// When the host is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// When the request arrives; it gets no answer.
    Arrived(Stage),
    /// As soon as it was answered.
    Answered(Stage),
}

/// A request that arrived, and the key by which it is known again.
type Arrived = (Stage, String);

/// `wopr mock-model`; killed on drop.
struct Model {
    _child: Child,
    /// It ends when nobody can read what it says.
    _said: Lines<BufReader<ChildStdout>>,
    _folder: TempDir,
    address: SocketAddr,
}

impl Model {
    async fn start() -> Self {
        let call = |name: &str| json!({ "name": name, "arguments": {} });
        let script = json!({ "replies": [
            { "when": { "turn": 1 }, "toolCalls": [call("work"), call("look")] },
            { "when": { "tool": "outcome_unknown" }, "text": "Nobody knows." },
            { "when": { "tool": "seen" }, "text": "Done." },
        ] });
        let folder = tempfile::tempdir_in(place()).unwrap();
        fs::write(folder.path().join("script.json"), script.to_string()).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_wopr"))
            .args(["mock-model", "script.json", "--listen", "127.0.0.1:0"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let origin = line.strip_prefix("listening on http://").unwrap();
        Self {
            address: origin.parse().unwrap(),
            _child: child,
            _said: lines,
            _folder: folder,
        }
    }
}

/// Passes a request on to the model.
async fn passed_on(model: SocketAddr, request: &Request) -> Option<Response> {
    let mut connection = Connection::open(model).await.ok()?;
    let mut bytes = Vec::new();
    let key = header(request, "idempotency-key").unwrap_or_default();
    let fields = format!("idempotency-key: {key}\r\n");
    write_request(
        &mut bytes,
        "POST",
        request.uri().path(),
        &fields,
        Some(request.body()),
    );
    let status = connection.send(&bytes).await.ok()?;
    let mut body = Vec::new();
    connection.body(&mut body).await.ok()?;
    Some(answer(status, body))
}

fn answer(status: u16, body: impl Into<Bytes>) -> Response {
    let answer = http::Response::builder().status(status);
    let answer = answer.header("content-type", "application/json");
    answer.body(body.into()).unwrap()
}

/// What the MCP server answers to a message.
fn spoken(message: &Value) -> Response {
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": { "name": "s", "version": "1" },
        }),
        Some("tools/list") => json!({ "tools": [
            { "name": "look", "description": "Looks.", "inputSchema": { "type": "object" } },
        ] }),
        Some("tools/call") => json!({ "content": [{ "type": "text", "text": "seen" }] }),
        _ => return answer(202, ""),
    };
    answer(
        200,
        json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }).to_string(),
    )
}

/// The stage that a request belongs to, and its key; `None` for those by which a server is found.
fn stage_of(request: &Request) -> Option<Arrived> {
    let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
    let key = || header(request, "idempotency-key").unwrap_or_default().to_owned();
    match request.uri().path() {
        "/mcp" if body["method"] == "tools/call" => {
            let key = body["params"]["_meta"]["idempotencyKey"].as_str();
            Some((Stage::Tool, key.unwrap_or_default().to_owned()))
        }
        "/mcp" => None,
        "/work" => Some((Stage::Workflow, key())),
        _ => {
            let messages = body["messages"].as_array().map_or(0, Vec::len);
            Some((
                if messages > 1 {
                    Stage::AskedAgain
                } else {
                    Stage::Asked
                },
                key(),
            ))
        }
    }
}

/// The model, the server of the workflow and the MCP server, none of which answers the request that the host is killed
/// at. All of them live longer than the host.
async fn world(moment: Moment, model: SocketAddr, arrived: mpsc::Sender<Arrived>) -> Server {
    let silent = Arc::new(Mutex::new(match moment {
        Moment::Arrived(stage) => Some(stage),
        Moment::Answered(_) => None,
    }));
    Server::start(move |request| {
        let (silent, arrived) = (Arc::clone(&silent), arrived.clone());
        async move {
            let known = stage_of(&request);
            let is_silent = known.as_ref().is_some_and(|(stage, _)| {
                let mut silent = silent.lock().unwrap();
                silent.take_if(|silent| silent == stage).is_some()
            });
            let answered = match request.uri().path() {
                _ if is_silent => None,
                "/mcp" => Some(spoken(&serde_json::from_slice(request.body()).ok()?)),
                "/work" => Some(answer(200, r#"{"did":"work"}"#)),
                _ => passed_on(model, &request).await,
            };
            if let Some(known) = known {
                arrived.send(known).await.ok()?;
            }
            answered
        }
    })
    .await
}

fn asking(retry_safe: bool) -> Value {
    json!({
        "id": "asking", "name": "Asking", "version": "1",
        "nodes": [{
            "id": "ask", "typeId": "core.ai.callPrompt", "name": "Ask",
            "config": {
                "prompt": "Do it.", "stream": false,
                "tools": [{ "workflow": "work" }, { "tool": "look", "retrySafe": retry_safe }],
            },
        }],
        "edges": [], "triggers": [], "variables": [], "metadata": {}, "settings": { "retryDelayMs": 20 },
    })
}

fn work(url: &str) -> Value {
    json!({
        "id": "work", "name": "Work", "version": "1",
        "nodes": [{
            "id": "do", "typeId": "core.http.request", "name": "Do",
            "config": { "method": "POST", "url": format!("{url}/work"), "body": {} },
        }],
        "edges": [], "triggers": [], "variables": [], "metadata": {}, "settings": { "maxRetries": 9, "retryDelayMs": 20 },
    })
}

/// Kills a host at a moment of a run, and checks what the run has come to.
async fn kill_at(moment: Moment, retry_safe: bool) {
    let case = format!("{moment:?}, retrySafe: {retry_safe}");
    let model = Model::start().await;
    let (arrived, mut requests) = mpsc::channel(64);
    let world = world(moment, model.address, arrived).await;
    let url = world.url();
    let mut host = Host::new()
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8")
        .variable("WOPR_MODEL_URL", format!("{url}/v1"))
        .variable("WOPR_MODEL_NAME", "scripted")
        .variable("WOPR_MCP_SERVER_URL", format!("{url}/mcp"));
    let address = host.start().await;
    for workflow in [work(&url), asking(retry_safe)] {
        register(address, workflow).await;
    }
    let run = create(address, "asking", json!({})).await;
    let (Moment::Arrived(at) | Moment::Answered(at)) = moment;
    let mut seen = Vec::new();
    loop {
        let request = time::timeout(LIMIT, requests.recv()).await;
        let request = request.unwrap_or_else(|_| panic!("{case}: no request\n{}", host.said()));
        let (stage, key) = request.unwrap();
        seen.push((stage, key));
        if stage == at {
            break;
        }
    }
    host.kill().await;
    let address = host.start().await;
    reaches(address, &run, "completed").await;
    while let Ok(request) = requests.try_recv() {
        seen.push(request);
    }

    // Each logical request has one key, however often it was made.
    let made = |stage: Stage| seen.iter().filter(move |(known, _)| *known == stage);
    for stage in [Stage::Asked, Stage::Workflow, Stage::Tool, Stage::AskedAgain] {
        let keys: BTreeSet<_> = made(stage).map(|(_, key)| key).collect();
        assert_eq!(keys.len(), 1, "{case}: {stage:?}: {seen:?}");
        assert!(!keys.contains(&String::new()), "{case}: {stage:?}: {seen:?}");
        let most = if stage == at { 2 } else { 1 };
        // Both tools are under way at once: a kill at one may be a kill at the other.
        let is_tool = |stage| matches!(stage, Stage::Workflow | Stage::Tool);
        let most = if is_tool(stage) && is_tool(at) || at == Stage::Asked {
            2
        } else {
            most
        };
        assert!(made(stage).count() <= most, "{case}: {stage:?}: {seen:?}");
    }
    if !retry_safe {
        assert_eq!(
            made(Stage::Tool).count(),
            1,
            "{case}: the tool is called once: {seen:?}"
        );
    }

    let called = events_of(address, &run, "agent.toolCalled").await;
    let returned = events_of(address, &run, "agent.toolReturned").await;
    let names = |events: &[Value]| {
        let names = events
            .iter()
            .map(|event| event["payload"]["toolName"].as_str().unwrap().to_owned());
        names.collect::<BTreeSet<_>>()
    };
    let both = BTreeSet::from(["look".to_owned(), "work".to_owned()]);
    assert_eq!((called.len(), names(&called)), (2, both.clone()), "{case}");
    assert_eq!((returned.len(), names(&returned)), (2, both), "{case}");
    for kind in ["node.dispatched", "provider.usage"] {
        assert_eq!(events_of(address, &run, kind).await.len(), 2, "{case}: {kind}");
    }
    for event in events_of(address, &run, "node.dispatched").await {
        let child = event["payload"]["childRunId"].as_str().unwrap();
        let (_, ancestry) = ask(address, "GET", &format!("/v1/runs/{child}/ancestry"), None).await;
        let parent = &ancestry["parent"];
        assert_eq!(
            (&parent["runId"], &parent["cause"]),
            (&json!(run), &json!("mcp-tool-call")),
            "{case}"
        );
    }
    assert_eq!(events_of(address, &run, "run.completed").await.len(), 1, "{case}");
    let result = |tool: &str| {
        returned
            .iter()
            .find(|event| event["payload"]["toolName"] == tool)
            .unwrap()["payload"]
            .clone()
    };
    assert_eq!(result("work")["status"], "ok", "{case}");
    let look = result("look");
    let text = outputs(address, &run).await["text"].clone();
    // The only loss that is promised: nobody knows whether a tool was called that may not be called again.
    match look["status"].as_str() {
        Some("ok") => {
            assert_eq!(look["outcome"]["text"], "seen", "{case}: {look}");
            assert_eq!(text, "Done.", "{case}");
        }
        _ => {
            assert!(!retry_safe, "{case}: {look}");
            assert_eq!(look["error"]["code"], "outcome_unknown", "{case}: {look}");
            assert_eq!(text, "Nobody knows.", "{case}");
        }
    }
    let is_certain = !matches!(moment, Moment::Arrived(Stage::Tool)) || retry_safe;
    if !is_certain {
        assert_eq!(text, "Nobody knows.", "{case}: the call had no answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_stage_of_a_models_tools_loses_and_repeats_nothing() {
    for stage in [Stage::Asked, Stage::Workflow, Stage::Tool, Stage::AskedAgain] {
        kill_at(Moment::Arrived(stage), true).await;
        kill_at(Moment::Answered(stage), true).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_may_not_be_called_again_is_called_once_whenever_the_host_is_killed() {
    kill_at(Moment::Arrived(Stage::Tool), false).await;
    for _ in 0..TRIES {
        kill_at(Moment::Answered(Stage::Tool), false).await;
    }
    kill_at(Moment::Answered(Stage::AskedAgain), false).await;
}
