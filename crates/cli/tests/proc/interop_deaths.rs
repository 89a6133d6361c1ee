//! Third-party agents that die while workflows wait for them, and come back with their tasks or without them.

use serde_json::json;

use crate::{
    calling::{answer, asked, cancel, outputs, register, snapshot, until, workflow},
    host::Host,
    interop_agents::{Agent, Callee, JAVASCRIPT_1, JAVASCRIPT_03, PYTHON_1, PYTHON_03},
    interop_calls::{caller_of, state_of},
    interop_rust_agent::RustAgent,
    quarantine::{create, reaches},
};

/// An agent that can die.
trait Mortal: Callee {
    async fn kill(&mut self);

    /// Starts a killed agent again, at the same addresses.
    async fn start_again(&mut self);

    /// Removes the tasks of a killed agent.
    fn forget(&mut self);
}

impl Mortal for Agent {
    async fn kill(&mut self) {
        Self::kill(self).await;
    }

    async fn start_again(&mut self) {
        Self::start_again(self).await;
    }

    fn forget(&mut self) {
        Self::forget(self);
    }
}

impl Mortal for RustAgent {
    async fn kill(&mut self) {
        Self::kill(self);
    }

    async fn start_again(&mut self) {
        Self::start_again(self).await;
    }

    fn forget(&mut self) {
        Self::forget(self);
    }
}

/// Lets an agent die while it asks and while it works. Answers and cancels that are given meanwhile reach it when
/// it is back; a task that it has forgotten fails the call.
async fn dies_and_comes_back(mut agent: impl Mortal, version: &str) {
    let mut host = Host::new()
        .variable("WOPR_A2A_PEER", agent.address())
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let address = host.start().await;
    let mut runs = Vec::new();
    for binding in ["jsonrpc", "rest", "grpc"] {
        let config = json!({ "binding": binding, "protocolVersion": version });
        register(address, workflow(binding, &config)).await;
        let begin = async |prompt: &str| create(address, binding, json!({ "prompt": prompt })).await;
        runs.push((begin("ask-twice").await, begin("wait").await, begin("ask").await));
    }
    for (answered, cancelled, forgotten) in &runs {
        asked(address, answered, "Which colour?").await;
        until(address, cancelled, "accepted", |run| run["status"] == "running").await;
        asked(address, forgotten, "What shall it be?").await;
    }
    while agent.tasks().await.len() < 3 * runs.len() {
        tokio::task::yield_now().await;
    }

    agent.kill().await;
    for (answered, cancelled, _) in &runs {
        answer(address, answered, "green").await;
        cancel(address, cancelled).await;
        reaches(address, cancelled, "cancelled").await;
        assert_eq!(
            snapshot(address, answered).await["status"],
            "running",
            "nobody ends the call"
        );
    }
    agent.start_again().await;
    for (answered, _, _) in &runs {
        asked(address, answered, "Which size?").await;
        answer(address, answered, "large").await;
        reaches(address, answered, "completed").await;
        let outputs = outputs(address, answered).await;
        assert_eq!(outputs["text"], "green large", "{outputs:#}");
    }
    for (_, cancelled, _) in &runs {
        loop {
            let tasks = agent.tasks().await;
            let mut of_run = tasks.iter().filter(|task| caller_of(task) == Some(cancelled));
            if state_of(of_run.next().unwrap()) == "canceled" {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(
        agent.tasks().await.len(),
        3 * runs.len(),
        "no task was made twice"
    );

    agent.kill().await;
    agent.forget();
    agent.start_again().await;
    for (_, _, forgotten) in &runs {
        reaches(address, forgotten, "failed").await;
        let failed = snapshot(address, forgotten).await;
        assert_eq!(failed["error"]["code"], "remote_failed", "{failed:#}");
    }
    host.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_python_sdk_1_comes_back() {
    dies_and_comes_back(Agent::start(PYTHON_1).await, "1.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_python_sdk_1_comes_back_in_0_3() {
    dies_and_comes_back(Agent::start(PYTHON_1).await, "0.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_python_sdk_0_3_comes_back() {
    dies_and_comes_back(Agent::start(PYTHON_03).await, "0.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_javascript_sdk_1_comes_back() {
    dies_and_comes_back(Agent::start(JAVASCRIPT_1).await, "1.0").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_javascript_sdk_1_comes_back_in_0_3() {
    dies_and_comes_back(Agent::start(JAVASCRIPT_1).await, "0.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_javascript_sdk_0_3_comes_back() {
    dies_and_comes_back(Agent::start(JAVASCRIPT_03).await, "0.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_rust_server_comes_back() {
    dies_and_comes_back(RustAgent::start().await, "1.0").await;
}
