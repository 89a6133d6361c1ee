//! Streams of agents that do not have the task afterwards.

use bytes::Bytes;
use serde_json::{Value, json};
use wopr_engine::{Executor as _, Outcome, Report};

use crate::{
    agent::{Agent, chunked},
    agent_calls::{call, error, executors},
};

/// An agent that answers a message with these items, and knows no task: it answers with this error.
async fn forgetful(items: Vec<Value>, code: i64) -> Agent {
    Agent::with_card(
        &[("/rpc", "JSONRPC", "1.0")],
        move |seen| match seen.json()["method"].as_str().unwrap() {
            "SendStreamingMessage" => {
                let items = items.iter().map(|item| {
                    let result = json!({ "jsonrpc": "2.0", "id": 1, "result": item });
                    Bytes::from(format!("data: {result}\n\n"))
                });
                chunked("text/event-stream", items.collect())
            }
            _ => error(code),
        },
    )
    .await
}

fn begun() -> Value {
    json!({ "task": { "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } } })
}

fn status(state: &str, text: &str) -> Value {
    let message = json!({ "messageId": "m", "role": "ROLE_AGENT", "parts": [{ "text": text }] });
    json!({ "statusUpdate": {
        "taskId": "t", "contextId": "c", "status": { "state": state, "message": message },
    }})
}

fn piece(text: &str, append: bool) -> Value {
    json!({ "artifactUpdate": {
        "taskId": "t", "contextId": "c", "append": append,
        "artifact": { "artifactId": "a", "parts": [{ "text": text }] },
    }})
}

fn outcome(report: Report) -> Outcome {
    match report {
        Report::Ended(outcome) => outcome,
        Report::Produced { then, .. } => outcome(*then),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn streamed_end_of_a_task_counts_if_the_agent_no_longer_has_the_task() {
    let completed = "TASK_STATE_COMPLETED";
    // Unknown task, unknown method, unsupported operation.
    for code in [-32001, -32601, -32004] {
        for (items, text) in [
            (vec![begun(), status(completed, "final words")], "final words"),
            (vec![status(completed, "final words")], "final words"),
            (
                vec![
                    begun(),
                    piece("he", false),
                    piece("llo", true),
                    status(completed, "done"),
                ],
                "hello",
            ),
        ] {
            let agent = forgetful(items, code).await;
            match outcome(executors(&agent, |_| {}).run(call()).await) {
                Outcome::Done(outputs) => assert_eq!(outputs["text"], text, "{code}"),
                other => panic!("{code} {text}: {other:?}"),
            }
        }
        for (state, expected) in [
            ("TASK_STATE_FAILED", "remote_failed"),
            ("TASK_STATE_REJECTED", "rejected_by_remote"),
        ] {
            let agent = forgetful(vec![begun(), status(state, "out of paper")], code).await;
            match outcome(executors(&agent, |_| {}).run(call()).await) {
                Outcome::Failed {
                    code: found, message, ..
                } => {
                    assert_eq!(found, expected, "{code}");
                    assert!(message.contains("out of paper"), "{code}: {message}");
                }
                other => panic!("{code} {state}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn task_is_looked_at_again_if_its_stream_is_incomplete_or_the_agent_fails() {
    let done = || status("TASK_STATE_COMPLETED", "done");
    let large = "x".repeat(1 << 20);
    let cut = vec![begun(), piece("x", false), piece(&large, true), done()];
    for (items, code) in [
        (cut, -32001),
        (vec![begun(), done()], -32603),
        (vec![begun(), piece("x", false)], -32001),
    ] {
        let agent = forgetful(items, code).await;
        let report = executors(&agent, |_| {}).run(call()).await;
        assert!(matches!(report, Report::Accepted { .. }), "{code}: {report:?}");
    }
}
