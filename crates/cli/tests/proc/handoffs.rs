//! A host that is killed at any step of a handoff loses no child and repeats none.
//!
//! A supervisor sends out two workers together and then a third. Each asks a server outside, so the steps of the
//! handoffs lie between the requests: the host is killed when a request arrives, or as soon as one was answered.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{sync::mpsc, time};

use crate::{
    host::Host,
    quarantine::{ask, create, reaches},
    server::{Response, Server, header, respond},
};

/// More than a call takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);
/// How many workers one run has, each with one request.
const WORKERS: usize = 3;
/// How often a host is killed after each answer: what it does then depends on its speed.
const TRIES: usize = 3;
/// What happens to a worker. One that maps nothing back is not harvested.
const STEPS: [&str; 4] = [
    "dispatch.began",
    "dispatch.succeeded",
    "child.completed",
    "output.harvested",
];

/// When the host is killed.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// When the request of this number arrives; it gets no answer.
    Asked(usize),
    /// As soon as the request of this number was answered.
    Answered(usize),
}

fn lead() -> Value {
    let decide = |workers: &[&str]| json!({ "kind": "next-worker", "nextWorkerIds": workers });
    json!({
        "id": "lead", "name": "Lead", "version": "1",
        "nodes": [
            {
                "id": "decide", "typeId": "core.orchestrator.supervisor", "name": "Decide",
                "config": {
                    "agentId": "lead-agent",
                    "rules": [
                        { "when": "first == null", "decision": decide(&["left", "right"]) },
                        { "when": "last == null", "decision": decide(&["finish"]) },
                    ],
                    "decision": { "kind": "terminate", "reason": "goal-reached" },
                    "maxLoopIterations": 5,
                },
            },
            {
                "id": "dispatch", "typeId": "core.dispatch", "name": "Dispatch",
                "config": {
                    "fanOutPolicy": "parallel",
                    "perWorkerOutputMappings": { "left": { "first": "said" }, "finish": { "last": "said" } },
                    "inputMapping": { "url": "url" },
                },
            },
        ],
        "edges": [
            { "id": "go", "sourceNodeId": "decide", "targetNodeId": "dispatch" },
            { "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "decide" },
        ],
        "triggers": [],
        "variables": [
            { "name": "url", "type": "string", "required": true },
            { "name": "first", "type": "string" },
            { "name": "last", "type": "string" },
        ],
        "metadata": {}, "settings": {},
    })
}

fn worker(id: &str) -> Value {
    json!({
        "id": id, "name": id, "version": "1",
        "nodes": [
            {
                "id": "ask", "typeId": "core.http.request", "name": "Ask",
                "config": { "method": "POST", "url": format!("{{{{ url }}}}/{id}"), "body": {}, "timeoutMs": 60_000 },
            },
            {
                "id": "keep", "typeId": "core.setVariable", "name": "Keep",
                "config": { "name": "said", "expression": "nodes.ask.body.said" },
            },
        ],
        "edges": [{ "id": "then", "sourceNodeId": "ask", "targetNodeId": "keep" }],
        "triggers": [],
        "variables": [{ "name": "url", "type": "string", "required": true }, { "name": "said", "type": "string" }],
        "metadata": {}, "settings": { "maxRetries": 20, "retryDelayMs": 20 },
    })
}

/// A request that arrived: its number, and its key.
type Arrived = (usize, String);

/// A server that answers all requests but the one that the host is killed at.
async fn server(moment: Moment, arrived: mpsc::Sender<Arrived>) -> Server {
    let count = Arc::new(AtomicUsize::new(0));
    Server::start(move |request| {
        let (count, arrived) = (Arc::clone(&count), arrived.clone());
        async move {
            let key = header(&request, "idempotency-key").unwrap_or_default().to_owned();
            let number = count.fetch_add(1, Ordering::SeqCst);
            arrived.send((number, key)).await.ok()?;
            match moment {
                Moment::Asked(at) if at == number => None,
                Moment::Asked(_) | Moment::Answered(_) => Some(answer()),
            }
        }
    })
    .await
}

fn answer() -> Response {
    respond(200, r#"{"said":"done"}"#)
}

/// The events of a run.
async fn events(address: SocketAddr, run: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let (status, log) = ask(address, "GET", &path, None).await;
    assert_eq!(status, 200, "{log}");
    log["events"].as_array().unwrap().clone()
}

fn of_type<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

/// Kills a host at a moment of a run, and checks what the run has come to.
async fn kill_at(moment: Moment) {
    let (arrived, mut requests) = mpsc::channel(64);
    let server = server(moment, arrived).await;
    let mut host = Host::new().variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let address = host.start().await;
    for workflow in [lead(), worker("left"), worker("right"), worker("finish")] {
        let (status, said) = ask(address, "POST", "/v1/workflows", Some(workflow)).await;
        assert_eq!(status, 201, "{said}");
    }
    let run = create(address, "lead", json!({ "url": server.url() })).await;
    let (Moment::Asked(at) | Moment::Answered(at)) = moment;
    let mut keys = BTreeSet::new();
    loop {
        let request = time::timeout(LIMIT, requests.recv()).await;
        let (number, key) = request
            .unwrap_or_else(|_| panic!("no request {at}\n{}", host.said()))
            .unwrap();
        keys.insert(key);
        if number == at {
            break;
        }
    }
    host.kill().await;
    let address = host.start().await;
    reaches(address, &run, "completed").await;
    while let Ok((_, key)) = requests.try_recv() {
        keys.insert(key);
    }

    let events = events(address, &run).await;
    let log = serde_json::to_string_pretty(&events).unwrap();
    assert_eq!(
        keys.len(),
        WORKERS,
        "{moment:?}: one key for each worker: {keys:?}"
    );
    assert_eq!(
        of_type(&events, "runOrchestrator.decided").len(),
        3,
        "{moment:?}: {log}"
    );
    assert_eq!(
        of_type(&events, "node.dispatched").len(),
        WORKERS,
        "{moment:?}: {log}"
    );
    assert_eq!(of_type(&events, "run.completed").len(), 1, "{moment:?}: {log}");
    // What happened to each worker, in its order.
    let mut handoffs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut children = BTreeSet::new();
    for event in of_type(&events, "core.workflowChain.event") {
        let payload = &event["payload"];
        if let Some(child) = payload["childRunId"].as_str() {
            children.insert(child.to_owned());
        }
        if let Some(worker) = payload["workerId"].as_str() {
            let step = payload["phase"].as_str().unwrap_or_default().to_owned();
            handoffs.entry(worker.to_owned()).or_default().push(step);
        }
    }
    assert_eq!(children.len(), WORKERS, "{moment:?}: {log}");
    for (worker, steps) in handoffs {
        let n_steps = if worker == "right" {
            STEPS.len() - 1
        } else {
            STEPS.len()
        };
        assert_eq!(steps, STEPS[..n_steps], "{moment:?}, {worker}: {log}");
    }
    for child in children {
        let (status, found) = ask(address, "GET", &format!("/v1/runs/{child}"), None).await;
        assert_eq!((status, &found["status"]), (200, &json!("completed")), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_step_of_a_handoff_loses_and_repeats_no_child() {
    for number in 0..WORKERS {
        kill_at(Moment::Asked(number)).await;
        for _ in 0..TRIES {
            kill_at(Moment::Answered(number)).await;
        }
    }
}
