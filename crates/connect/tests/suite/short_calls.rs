//! Calls to agents whose tasks end at once: how many requests and connections they take.

use std::net::SocketAddr;

use bytes::Bytes;
use serde_json::{Value, json};
use wopr_connect::{Executors, Options};
use wopr_core::{
    AgentCall, AgentReach, AgentVerb, NodeId, Produced, RunId, RunKey, StepId, TenantId, Timestamp,
};
use wopr_engine::{Attempt, Blobs, Executor as _, Keep, Outcome, Progress, Report, Request, Wake};

use crate::agent::{Agent, Seen, chunked, open_gate, rpc_reply};

const RPC: &[(&str, &str, &str)] = &[("/rpc", "JSONRPC", "1.0")];

fn attempt() -> Attempt {
    let run = RunId::from_parts(Timestamp::from_millis(1), [0; 10]);
    Attempt {
        run: RunKey::new(TenantId::parse("acme").unwrap(), run),
        step: StepId {
            node: NodeId::parse("ask").unwrap(),
            ordinal: 0,
        },
        attempt: 0,
        number: 0,
        is_repeat: false,
        is_interrupted: false,
        idempotency_key: "key-1".to_owned(),
        trace: None,
        request: Request::Agent(Box::new(AgentCall {
            verb: AgentVerb::INVOKE,
            peer: "planner".to_owned(),
            reach: AgentReach::Peer,
            correlation: None,
            skill: None,
            text: Some("hi".to_owned()),
            data: None,
            files: Vec::new(),
            context: None,
            version: None,
            binding: None,
            output_modes: Vec::new(),
            caller: "w".to_owned(),
            timeout_ms: None,
        })),
        handle: None,
        cursor: None,
        wake: Wake::none(),
        progress: Progress::none(),
        blobs: Blobs::none(),
        keep: Keep::default(),
    }
}

fn status(state: &str) -> Value {
    json!({"statusUpdate": {"taskId": "t", "contextId": "c", "status": {"state": state}}})
}

fn artifact(id: &str, text: &str, append: bool) -> Value {
    json!({"artifactUpdate": {
        "taskId": "t", "contextId": "c", "append": append, "lastChunk": true,
        "artifact": {"artifactId": id, "parts": [{"text": text}]},
    }})
}

fn begun() -> Value {
    json!({"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_SUBMITTED"}}})
}

/// A stream of these items.
fn events(items: &[Value]) -> Vec<Bytes> {
    let event = |item: &Value| {
        let response = json!({"jsonrpc": "2.0", "id": 1, "result": item});
        format!("data: {response}\n\n").into()
    };
    items.iter().map(event).collect()
}

/// An agent that streams these items, and has a task with an artifact.
async fn agent(items: Vec<Value>) -> Agent {
    Agent::with_card(RPC, move |seen| match seen.json()["method"].as_str() {
        Some("SendStreamingMessage") => chunked("text/event-stream", events(&items)),
        Some("GetTask") => rpc_reply(&json!({
            "id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"},
            "artifacts": [{"artifactId": "a", "parts": [{"text": "the whole"}]}],
        })),
        method => panic!("no call of {method:?} is expected"),
    })
    .await
}

/// The output `text` of a call, and the requests that it took.
async fn call(executors: &Executors, agent: &mut Agent) -> (String, Vec<Seen>) {
    let report = executors.run(attempt()).await;
    let Report::Produced { produced, then, .. } = report else {
        panic!("it has made something: {report:?}");
    };
    assert!(
        matches!(produced.as_slice(), [Produced::Artifact { .. }]),
        "{produced:?}"
    );
    let Report::Ended(Outcome::Done(outputs)) = *then else {
        panic!("it is done: {then:?}");
    };
    (outputs["text"].as_str().unwrap().to_owned(), agent.calls())
}

fn executors(agent: &Agent) -> Executors {
    let options = Options {
        peers: vec![agent.peer()],
        ..Options::default()
    };
    Executors::new(open_gate(), options)
}

fn methods(seen: &[Seen]) -> Vec<String> {
    let method = |seen: &Seen| seen.json()["method"].as_str().unwrap().to_owned();
    seen.iter().map(method).collect()
}

#[tokio::test]
async fn a_task_that_was_streamed_as_a_whole_is_not_asked_for() {
    let whole = json!({"task": {
        "id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": "said"}]}],
    }});
    let completed = status("TASK_STATE_COMPLETED");
    for items in [
        vec![begun(), artifact("a", "said", false), completed.clone()],
        // An artifact that comes again replaces the one before.
        vec![
            begun(),
            artifact("a", "nothing", false),
            artifact("a", "said", false),
            completed,
        ],
        // A task as a whole is more than its parts were.
        vec![artifact("a", "nothing", true), whole],
    ] {
        let mut agent = agent(items.clone()).await;
        let (text, seen) = call(&executors(&agent), &mut agent).await;
        assert_eq!(text, "said", "{items:?}");
        assert_eq!(methods(&seen), ["SendStreamingMessage"], "{items:?}");
    }
}

#[tokio::test]
async fn a_task_that_was_streamed_in_part_is_asked_for() {
    let completed = || status("TASK_STATE_COMPLETED");
    let large = "x".repeat(2 << 20);
    for items in [
        vec![begun(), completed()],
        vec![
            begun(),
            artifact("a", "the ", false),
            artifact("a", "whole", true),
            completed(),
        ],
        // It does not begin with the task.
        vec![artifact("a", "said", false), completed()],
        vec![completed(), begun()],
        vec![begun(), artifact("a", &large, false), completed()],
        // The stream breaks off.
        vec![begun(), artifact("a", "said", false)],
    ] {
        let mut agent = agent(items).await;
        let (text, seen) = call(&executors(&agent), &mut agent).await;
        assert_eq!(text, "the whole");
        assert_eq!(methods(&seen), ["SendStreamingMessage", "GetTask"]);
    }
}

#[tokio::test]
async fn what_a_stream_says_of_another_task_counts_for_nothing() {
    let other = |mut item: Value| {
        for of in ["statusUpdate", "artifactUpdate"] {
            if item.get(of).is_some() {
                item[of]["taskId"] = "other".into();
            }
        }
        item
    };
    let other_task = json!({"task": {
        "id": "other", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"},
        "artifacts": [{"artifactId": "a", "parts": [{"text": "of another"}]}],
    }});
    let items = vec![
        begun(),
        other(artifact("b", "of another", false)),
        other(status("TASK_STATE_FAILED")),
        other_task,
        artifact("a", "said", false),
        status("TASK_STATE_COMPLETED"),
    ];
    let mut agent = agent(items).await;
    let (text, seen) = call(&executors(&agent), &mut agent).await;
    assert_eq!(text, "said");
    assert_eq!(methods(&seen), ["SendStreamingMessage"]);
}

#[tokio::test]
async fn message_after_the_task_does_not_end_it() {
    let message = json!({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "done"}]}});
    let items = vec![begun(), artifact("a", "said", false), message];
    let mut agent = agent(items).await;
    let (text, seen) = call(&executors(&agent), &mut agent).await;
    assert_eq!(text, "the whole");
    assert_eq!(methods(&seen), ["SendStreamingMessage", "GetTask"]);
}

#[tokio::test]
async fn calls_one_after_another_share_a_connection() {
    let mut agent = agent(vec![
        begun(),
        artifact("a", "said", false),
        status("TASK_STATE_COMPLETED"),
    ])
    .await;
    let executors = executors(&agent);
    let mut connections: Vec<SocketAddr> = Vec::new();
    for _ in 0..4 {
        let (_, seen) = call(&executors, &mut agent).await;
        connections.extend(seen.iter().map(|seen| seen.from));
    }
    assert_eq!(connections.len(), 4);
    assert!(
        connections.iter().all(|from| *from == connections[0]),
        "{connections:?}"
    );
}
