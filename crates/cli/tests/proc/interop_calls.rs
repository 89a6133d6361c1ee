//! Workflows that call third-party agents: servers built with the official SDKs, on loopback. Each agent behaves in
//! every way that `behaviours.json` knows, in every version and over every binding that it has; what becomes of
//! its tasks is read over REST and as A2A tasks. The host is killed while agents ask.

use std::{collections::BTreeMap, net::SocketAddr, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{process::Command, task::JoinSet, time};

use crate::{
    calling::{answer, asked, cancel, events_of, outputs, register, say, snapshot, task, text_of, workflow},
    host::{Host, KEY},
    interop_agents::{Agent, Callee, JAVASCRIPT_1, JAVASCRIPT_03, PYTHON_1, PYTHON_03},
    interop_rust_agent::RustAgent,
    quarantine::{create, reaches},
};

/// The first words that tell an agent what to do; the first is nothing to it but a text.
const BEHAVIOURS: [&str; 10] = [
    "hello, world",
    "artifact",
    "reject",
    "fail",
    "cancelled",
    "message",
    "auth",
    "ask",
    "ask-twice",
    "wait",
];
const BINDINGS: [&str; 3] = ["jsonrpc", "rest", "grpc"];

/// A version and a binding, and the workflow that calls the agent so.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Way {
    version: &'static str,
    binding: &'static str,
    workflow: String,
}

/// Runs by the way they call, and by what they ask for.
type Runs = BTreeMap<(Way, &'static str), String>;

/// Calls an agent in versions over every binding.
async fn calls(agent: &impl Callee, versions: &[&'static str]) {
    let mut host = Host::new()
        .variable("WOPR_A2A_PEER", agent.address())
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let address = host.start().await;
    let mut ways = Vec::new();
    for version in versions {
        for binding in BINDINGS {
            let workflow = format!("{binding}-{version}").replace('.', "-");
            ways.push(Way {
                version,
                binding,
                workflow,
            });
        }
    }
    let mut runs = Runs::new();
    let mut streams = JoinSet::new();
    for way in &ways {
        let config = json!({ "binding": way.binding, "protocolVersion": way.version });
        register(address, workflow(&way.workflow, &config)).await;
        for behaviour in BEHAVIOURS {
            let run = create(address, &way.workflow, json!({ "prompt": behaviour })).await;
            runs.insert((way.clone(), behaviour), run);
        }
        streams.spawn(streamed(address, way.clone()));
    }
    while let Some(run) = streams.join_next().await {
        let (way, run) = run.unwrap();
        runs.insert((way, "stream"), run);
    }

    // Questions survive a kill of this host.
    for ((way, behaviour), run) in &runs {
        println!("{way:?} {behaviour}: {run}");
        if let Some((question, _)) = question(behaviour) {
            asked(address, run, question).await;
        }
        if *behaviour == "wait" {
            accepted(address, run).await;
        }
    }
    host.kill().await;
    let address = host.start().await;
    for ((_, behaviour), run) in &runs {
        if let Some((question, subkind)) = question(behaviour) {
            answer_first(address, run, question, subkind).await;
        }
        if *behaviour == "wait" {
            cancel(address, run).await;
        }
    }
    for ((way, behaviour), run) in &runs {
        println!("{way:?} {behaviour}");
        if *behaviour == "ask-twice" {
            let second = asked(address, run, "Which size?").await;
            assert_eq!(second["interruptId"], "ask:0:1", "{second:#}");
            say(address, run, "large").await;
        }
        ends(address, run, behaviour).await;
    }
    one_task_each(agent, &runs).await;
    host.terminate().await;
}

/// The first question of a behaviour, and its subkind.
fn question(behaviour: &str) -> Option<(&'static str, Value)> {
    match behaviour {
        "ask" => Some(("What shall it be?", Value::Null)),
        "ask-twice" => Some(("Which colour?", Value::Null)),
        "auth" => Some(("Show your papers.", "auth".into())),
        _ => None,
    }
}

/// Answers over REST, after a look at the question as an A2A client sees it.
async fn answer_first(address: SocketAddr, run: &str, question: &str, subkind: Value) {
    let interrupt = asked(address, run, question).await;
    let data = &interrupt["data"];
    assert_eq!(
        (&data["source"], &data["peer"]),
        (&"remote".into(), &"default".into()),
        "{interrupt:#}"
    );
    assert_eq!(data["subkind"], subkind, "{interrupt:#}");
    let asking = task(address, run).await;
    let status = &asking["status"];
    let state = match subkind {
        Value::Null => "TASK_STATE_INPUT_REQUIRED",
        _ => "TASK_STATE_AUTH_REQUIRED",
    };
    assert!(
        [state, "TASK_STATE_INPUT_REQUIRED"].contains(&status["state"].as_str().unwrap()),
        "{asking:#}"
    );
    assert!(text_of(&status["message"]).contains(question), "{asking:#}");
    answer(address, run, "green").await;
}

/// Starts a run as an A2A client that streams, and returns it once its stream has ended. The agent's chunks come
/// through as they are made.
async fn streamed(address: SocketAddr, way: Way) -> (Way, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_wopr"))
        .args(["a2a", "stream", "stream", "--json", "--skill", &way.workflow])
        .args(["--server", &format!("http://{address}")])
        .env("WOPR_API_KEY", KEY)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = output.await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{way:?}: {said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let items: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let updates: Vec<_> = items
        .iter()
        .filter_map(|item| item.get("artifactUpdate"))
        .collect();
    // The agent makes three chunks with pauses between them. Each is told when it is seen, and none twice.
    assert!(updates.len() >= 2, "{way:?}: {said}");
    let whole = updates.iter().fold(String::new(), |whole, update| {
        let text = text_of(&update["artifact"]);
        match update["append"] == true {
            true => whole + &text,
            false => text,
        }
    });
    assert_eq!(whole, "one two three", "{way:?}: {said}");
    let ids: Vec<_> = updates
        .iter()
        .map(|update| &update["artifact"]["artifactId"])
        .collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "one artifact: {said}");
    assert_eq!(updates[updates.len() - 1]["lastChunk"], true, "{way:?}: {said}");
    let run = items.iter().find_map(|item| item["task"]["id"].as_str());
    (way, run.unwrap().to_owned())
}

/// Waits until the agent has accepted the message of a run.
async fn accepted(address: SocketAddr, run: &str) {
    while events_of(address, run, "vendor.wopr.effect.accepted")
        .await
        .is_empty()
    {
        // sleep: the pace of asking
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// What becomes of a run, over REST and as an A2A task.
async fn ends(address: SocketAddr, run: &str, behaviour: &str) {
    let (status, state) = match behaviour {
        "reject" => ("failed", "TASK_STATE_REJECTED"),
        "fail" => ("failed", "TASK_STATE_FAILED"),
        "cancelled" | "wait" => ("cancelled", "TASK_STATE_CANCELED"),
        _ => ("completed", "TASK_STATE_COMPLETED"),
    };
    reaches(address, run, status).await;
    let ended = snapshot(address, run).await;
    let shown = task(address, run).await;
    let is_state = shown["status"]["state"] == state || behaviour == "reject";
    assert!(is_state, "{behaviour}: {shown:#}");
    let artifacts: Vec<_> = shown["artifacts"].as_array().into_iter().flatten().collect();
    let artifact = |name: &str| {
        let found = artifacts.iter().find(|artifact| artifact["name"] == name);
        *found.unwrap_or_else(|| panic!("{behaviour}: no {name}: {shown:#}"))
    };
    match behaviour {
        "reject" => {
            assert_eq!(ended["error"]["code"], "rejected_by_remote", "{ended:#}");
            assert!(
                ended["error"]["message"].as_str().unwrap().contains("Not today."),
                "{ended:#}"
            );
        }
        "fail" => {
            assert_eq!(ended["error"]["code"], "remote_failed", "{ended:#}");
            assert!(
                ended["error"]["message"]
                    .as_str()
                    .unwrap()
                    .contains("Out of paper."),
                "{ended:#}"
            );
            assert_eq!(text_of(artifact("half")), "as far as it went");
        }
        "cancelled" => {
            let last = events_of(address, run, "run.cancelled").await;
            assert_eq!(last[0]["payload"]["reason"], "cross_protocol_cancel", "{last:#?}");
        }
        "wait" => {}
        "message" => {
            let outputs = outputs(address, run).await;
            assert_eq!(
                (&outputs["text"], &outputs["taskId"]),
                (&"Just so.".into(), &Value::Null),
                "{outputs:#}"
            );
        }
        "artifact" => {
            let outputs = outputs(address, run).await;
            assert_eq!(outputs["text"], "Dear Ann", "{outputs:#}");
            assert_eq!(outputs["data"]["of"], json!(["letters"]), "{outputs:#}");
            assert_eq!(text_of(artifact("letter")), "Dear Ann");
            let facts = artifact("facts")["parts"].as_array().unwrap();
            assert_eq!(facts[0]["data"]["of"], json!(["letters"]), "{shown:#}");
        }
        _ => {
            let (text, name) = match behaviour {
                "ask" => ("green", "echo"),
                "ask-twice" => ("green large", "order"),
                "auth" => ("stamped", "stamp"),
                "stream" => ("one two three", "story"),
                echoed => (echoed, "echo"),
            };
            let outputs = outputs(address, run).await;
            assert_eq!(outputs["text"], text, "{behaviour}: {outputs:#}");
            assert_eq!(outputs["contentTrust"], "untrusted");
            assert_eq!(text_of(artifact(name)), text, "{shown:#}");
        }
    }
}

/// Every run made one task, and the task of every cancelled run is cancelled, which may come a little later.
async fn one_task_each(agent: &impl Callee, runs: &Runs) {
    loop {
        let tasks = agent.tasks().await;
        let mut is_cancelled = true;
        for ((way, behaviour), run) in runs {
            let mut of_run = tasks.iter().filter(|task| caller_of(task) == Some(run));
            match *behaviour {
                // No task of its own, though an SDK may keep one.
                "message" => assert!(of_run.count() <= 1, "{way:?}"),
                _ => {
                    let task = of_run.next();
                    let task = task.unwrap_or_else(|| panic!("{way:?} {behaviour}: no task: {tasks:#?}"));
                    assert_eq!(of_run.next(), None, "{way:?} {behaviour}: two tasks");
                    is_cancelled &= *behaviour != "wait" || state_of(task) == "canceled";
                }
            }
        }
        if is_cancelled {
            return;
        }
        // sleep: the pace of asking
        time::sleep(Duration::from_millis(50)).await;
    }
}

/// The run whose message began a task.
pub(crate) fn caller_of(task: &Value) -> Option<&str> {
    task["history"][0]["metadata"]["openwop"]["runId"].as_str()
}

/// The state of a task by its short name, in either version's spelling.
pub(crate) fn state_of(task: &Value) -> String {
    let state = task["status"]["state"].as_str().unwrap();
    state
        .trim_start_matches("TASK_STATE_")
        .to_lowercase()
        .replace('_', "-")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_python_sdk_1_is_called_in_both_versions() {
    calls(&Agent::start(PYTHON_1).await, &["1.0", "0.3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_python_sdk_0_3_is_called() {
    calls(&Agent::start(PYTHON_03).await, &["0.3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_javascript_sdk_1_is_called_in_both_versions() {
    calls(&Agent::start(JAVASCRIPT_1).await, &["1.0", "0.3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_javascript_sdk_0_3_is_called() {
    calls(&Agent::start(JAVASCRIPT_03).await, &["0.3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_rust_server_is_called() {
    calls(&RustAgent::start().await, &["1.0"]).await;
}
