//! The example `examples/coding-crew` with its worker: the agent, the host and the worker are killed in the middle.

use std::{fs, net::SocketAddr, process::Stdio, time::Instant};

use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time,
};

use crate::{
    calling::register,
    host::{Host, KEY},
    interop::{LIMIT, OPENWOP, root},
    quarantine::{ask, create, reaches},
};

/// The pace of asking.
const PAUSE: time::Duration = time::Duration::from_millis(20);

fn example(path: &str) -> Value {
    let text = fs::read_to_string(root().join("examples/coding-crew").join(path)).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn worker(host: SocketAddr, coder: SocketAddr) -> Child {
    let mut command = Command::new(OPENWOP.python());
    command
        .arg(root().join("examples/coding-crew/worker.py"))
        .env("PYTHONPATH", root().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WOPR_SERVER", format!("http://{host}"))
        .env("WOPR_API_KEY", KEY)
        .env("CODER", format!("http://{coder}"))
        .env("CODER_KEY", KEY)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command.spawn().unwrap()
}

async fn runs(address: SocketAddr) -> Vec<Value> {
    let (status, listed) = ask(address, "GET", "/v1/runs", None).await;
    assert_eq!(status, 200, "{listed}");
    listed["runs"].as_array().unwrap().clone()
}

/// Waits until the agent has so many tasks.
async fn has_tasks(coder: SocketAddr, n: usize) {
    let since = Instant::now();
    while runs(coder).await.len() < n {
        assert!(since.elapsed() < LIMIT, "the agent has {:?}", runs(coder).await);
        // sleep: the pace of asking
        time::sleep(PAUSE).await;
    }
}

#[tokio::test]
async fn coding_crew_with_a_worker_ends_though_agent_host_and_worker_are_killed() {
    let mut coder = Host::new().staying();
    let agent = coder.start().await;
    register(agent, example("coder/coder.json")).await;
    let mut host = Host::new().staying().variable("WOPR_WORKER_LEASE", "1s");
    let address = host.start().await;
    register(address, example("crew/patch-tests.json")).await;
    register(address, example("crew/coding-crew.json")).await;
    let mut first = worker(address, agent);
    let run = create(address, "coding-crew", json!({ "task": "Refuse an empty cart" })).await;

    // The first patch is under way: the worker dies, then the host, and then the agent.
    has_tasks(agent, 1).await;
    first.kill().await.unwrap();
    host.kill().await;
    host.start().await;
    let _second = worker(address, agent);
    coder.kill().await;
    coder.start().await;

    reaches(address, &run, "waiting-input").await;
    let path = format!("/v1/runs/{run}/interrupts/review");
    let body = json!({ "resumeValue": { "approved": true } });
    let (status, said) = ask(address, "POST", &path, Some(body)).await;
    assert_eq!(status, 200, "{said}");
    reaches(address, &run, "completed").await;
    let (_, ended) = ask(address, "GET", &format!("/v1/runs/{run}"), None).await;
    assert_eq!(
        ended["variables"]["patch"],
        "// Refuse an empty cart (plain)\n// with a test, because it had no test"
    );
    let tasks = runs(agent).await;
    assert_eq!(tasks.len(), 2, "one task for each patch: {tasks:#?}");
}
