//! A supervisor's worker on another host: that host is killed in the middle of the task, the run finishes, and what
//! caused what can be walked from either end.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    calling::{events_of, register, snapshot, until},
    host::{Host, KEY},
    kills::order,
    quarantine::{ask, create, reaches},
};

/// Hands one order to the agent, and is done once it has what the agent says.
fn lead() -> Value {
    let work = json!({
        "kind": "next-worker", "nextWorkerIds": ["agent:default/order"],
        "nextWorkerInputs": [{ "prompt": "{{ prompt }}" }],
    });
    json!({
        "id": "lead", "name": "Lead", "version": "1",
        "nodes": [
            {
                "id": "decide", "typeId": "core.orchestrator.supervisor", "name": "Decide",
                "config": {
                    "agentId": "lead-agent",
                    "rules": [{ "when": "said == null", "decision": work }],
                    "decision": { "kind": "terminate", "reason": "goal-reached" },
                },
            },
            {
                "id": "dispatch", "typeId": "core.dispatch", "name": "Dispatch",
                "config": { "outputMapping": { "said": "text" } },
            },
        ],
        "edges": [
            { "id": "go", "sourceNodeId": "decide", "targetNodeId": "dispatch" },
            { "id": "back", "sourceNodeId": "dispatch", "targetNodeId": "decide" },
        ],
        "triggers": [],
        "variables": [{ "name": "prompt", "type": "string" }, { "name": "said", "type": "string" }],
        "metadata": {}, "settings": {},
    })
}

async fn ancestry(address: SocketAddr, run: &str) -> Value {
    let (status, said) = ask(address, "GET", &format!("/v1/runs/{run}/ancestry"), None).await;
    assert_eq!(status, 200, "{said:#}");
    assert_eq!(said["runId"], run);
    said
}

/// Answers the question of a run's only child.
async fn answer(address: SocketAddr, child: &str, question: &str, said: &str) {
    let found = until(address, child, question, |found| {
        found["interrupt"]["data"]["message"] == question
    })
    .await;
    let node = found["interrupt"]["nodeId"].as_str().unwrap();
    let body = json!({ "resumeValue": { "answers": { "answer": said } } });
    let path = format!("/v1/runs/{child}/interrupts/{node}");
    let (status, answer) = ask(address, "POST", &path, Some(body)).await;
    assert_eq!(status, 200, "{answer:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn causes_are_walked_from_either_end_after_the_agent_was_killed() {
    let mut agent = Host::new().staying();
    let of_agent = agent.start().await;
    register(of_agent, order()).await;
    let mut host = Host::new()
        .staying()
        .variable("WOPR_A2A_PEER", format!("http://{of_agent}"))
        .variable("WOPR_A2A_PEER_TOKEN", KEY)
        .variable("WOPR_EGRESS_ALLOW", "127.0.0.0/8");
    let of_host = host.start().await;
    register(of_host, lead()).await;

    let run = create(of_host, "lead", json!({ "prompt": "paint" })).await;
    let found = until(of_host, &run, "a worker", |found| {
        found["childRuns"][0]["runId"].is_string()
    })
    .await;
    let child = found["childRuns"][0]["runId"].as_str().unwrap().to_owned();
    answer(of_host, &child, "Which colour?", "green").await;
    until(of_host, &child, "the second question", |found| {
        found["interrupt"]["data"]["message"] == "Which size?"
    })
    .await;
    agent.kill().await;
    agent.start().await;
    answer(of_host, &child, "Which size?", "large").await;
    reaches(of_host, &run, "completed").await;
    let said = snapshot(of_host, &run).await["variables"]["said"].clone();
    assert!(said.as_str().is_some_and(|said| said.contains("large")), "{said}");

    // Downwards: the decision, the handoff, the worker, its call, and the task on the other host.
    let decided = events_of(of_host, &run, "runOrchestrator.decided").await;
    let handoffs = events_of(of_host, &run, "core.workflowChain.event").await;
    let mut cause = &decided[0]["eventId"];
    for (handoff, phase) in handoffs.iter().zip([
        "dispatch.began",
        "dispatch.succeeded",
        "child.completed",
        "output.harvested",
    ]) {
        assert_eq!(handoff["payload"]["phase"], phase, "{handoff:#}");
        assert_eq!(&handoff["causationId"], cause, "{handoff:#}");
        cause = &handoff["eventId"];
    }
    assert_eq!(handoffs.len(), 4, "{handoffs:#?}");
    assert_eq!(handoffs[1]["payload"]["childRunId"], child.as_str());
    let accepted = events_of(of_host, &child, "vendor.wopr.effect.accepted").await;
    let task = accepted[0]["payload"]["taskId"].as_str().unwrap();
    // Every round of questions is accepted anew, into the same task.
    let is_of_task = |event: &Value| event["payload"]["taskId"] == task;
    assert!(accepted.iter().all(is_of_task), "{accepted:#?}");
    reaches(of_agent, task, "completed").await;

    // Upwards: from the task to the worker, to the run, and no further.
    let of_task = ancestry(of_agent, task).await;
    let of_worker = ancestry(of_host, &child).await;
    let of_run = ancestry(of_host, &run).await;
    assert_ne!(of_task["hostId"], of_run["hostId"]);
    assert_eq!(of_task["parent"]["runId"], child.as_str(), "{of_task:#}");
    assert_eq!(of_task["parent"]["hostId"], of_worker["hostId"], "{of_task:#}");
    assert_eq!(of_task["parent"]["cause"], "a2a-message", "{of_task:#}");
    let parent = json!({ "runId": run, "hostId": of_run["hostId"], "cause": "core.dispatch" });
    assert_eq!(of_worker["parent"], parent, "{of_worker:#}");
    assert_eq!(of_run["parent"], Value::Null);

    for host in [&mut host, &mut agent] {
        let status = host.terminate().await;
        assert!(status.success(), "stopped in order: {status}\n{}", host.said());
    }
}
