//! Streams of agents that do not have the task afterwards.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use wopr_engine::{Executor as _, Outcome, Report, Wake};

use crate::{
    agent::{Agent, chunked, rpc_reply, stalled, streamed},
    agent_calls::{call, error, executors, methods, task},
};

/// An agent that answers a message with these items, and knows no task: it answers with this error.
async fn forgetful(items: Vec<Value>, code: i64) -> Agent {
    Agent::with_card(
        &[("/rpc", "JSONRPC", "1.0")],
        move |seen| match seen.json()["method"].as_str().unwrap() {
            "SendStreamingMessage" => chunked("text/event-stream", items.iter().map(event).collect()),
            _ => error(code),
        },
    )
    .await
}

fn event(item: &Value) -> Bytes {
    let result = json!({ "jsonrpc": "2.0", "id": 1, "result": item });
    Bytes::from(format!("data: {result}\n\n"))
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

/// Wakes that come out of the receiver.
fn waking() -> (Wake, mpsc::UnboundedReceiver<()>) {
    let (tell, woken) = mpsc::unbounded_channel();
    let wake = Wake::new(move || {
        let is_waiting = tell.send(()).is_ok();
        Box::pin(async move { is_waiting })
    });
    (wake, woken)
}

#[tokio::test]
async fn end_that_is_streamed_late_counts_if_the_agent_no_longer_has_the_task() {
    // Unknown task, unknown method.
    for (code, is_begun) in [(-32001, true), (-32601, true), (-32601, false)] {
        let items = move |method: &str| {
            let first = match (is_begun, method) {
                // It is followed from the middle on.
                (false, "SubscribeToTask") => Some(json!({ "task": {
                    "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" },
                    "artifacts": [{ "artifactId": "a", "parts": [{ "text": "he" }] }],
                }})),
                (_, "SendStreamingMessage") => Some(begun()),
                (true | false, _) => None,
            };
            let items = match first.as_ref().map(|first| &first["task"]["artifacts"]) {
                Some(Value::Null) => vec![piece("he", false), piece("llo", true)],
                Some(_) => vec![piece("llo", true)],
                None => Vec::new(),
            };
            let last = status("TASK_STATE_COMPLETED", "done");
            let late = stream::iter(items.into_iter().chain([last])).then(async |item| {
                // sleep: the agent works for longer than the call looks at its stream at first.
                tokio::time::sleep(Duration::from_millis(200)).await;
                item
            });
            let items = stream::iter(first).chain(late);
            streamed(
                "text/event-stream",
                items.map(|item| Ok(Frame::data(event(&item)))),
            )
        };
        let agent = Agent::with_card(
            &[("/rpc", "JSONRPC", "1.0")],
            move |seen| match seen.json()["method"].as_str().unwrap() {
                method @ "SendStreamingMessage" if is_begun => items(method),
                "SendStreamingMessage" => chunked("text/event-stream", vec![event(&begun())]),
                method @ "SubscribeToTask" if !is_begun => items(method),
                _ => error(code),
            },
        )
        .await;
        let executors = executors(&agent, |_| {});
        let (wake, mut woken) = waking();
        let mut handle = None;
        let mut is_followed = is_begun;
        let outcome = loop {
            let mut look = call();
            look.wake = wake.clone();
            look.handle.clone_from(&handle);
            match executors.run(look).await {
                Report::Accepted { handle: now, .. } => handle = Some(now),
                Report::Unchanged { .. } => {}
                report => break outcome(report),
            }
            // The first look after the message finds another stream.
            if std::mem::replace(&mut is_followed, true) {
                woken.recv().await.unwrap();
            }
        };
        match outcome {
            Outcome::Done(outputs) => assert_eq!(outputs["text"], "hello", "{code}"),
            other => panic!("{code}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn task_that_its_agent_has_no_way_to_be_asked_for_is_given_up_after_a_while() {
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], |_| error(-32601)).await;
    let executors = executors(&agent, |_| {});
    let mut look = call();
    look.handle = Some(json!({ "peer": "planner", "taskId": "t", "since": 0 }));
    let Report::Accepted { handle, .. } = executors.run(look.clone()).await else {
        panic!("another process may follow its stream")
    };
    look.handle = Some(handle.clone());
    let report = executors.run(look.clone()).await;
    assert!(matches!(report, Report::Unchanged { .. }), "{report:?}");
    let mut old = handle.clone();
    assert!(handle["unaskable"].is_u64(), "{handle}");
    old["unaskable"] = 0.into();
    look.handle = Some(old);
    let report = executors.run(look).await;
    assert!(
        matches!(report, Report::Ended(Outcome::GivenUp { .. })),
        "{report:?}"
    );
    let n_streams = methods(&mut agent)
        .iter()
        .filter(|method| *method == "SubscribeToTask")
        .count();
    assert_eq!(
        n_streams, 1,
        "an agent that has none is not asked for one each time"
    );
}

#[tokio::test]
async fn task_whose_stream_is_gone_is_followed_again_once_it_is_older() {
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], |seen| {
        let working = task("1.0", "TASK_STATE_WORKING", "c");
        match seen.json()["method"].as_str().unwrap() {
            "SendStreamingMessage" => chunked("text/event-stream", vec![event(&begun())]),
            "GetTask" => rpc_reply(&working),
            "SubscribeToTask" => {
                let done = status("TASK_STATE_COMPLETED", "done");
                stalled("text/event-stream", vec![event(&begun()), event(&done)])
            }
            method => panic!("{method}"),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let Report::Accepted { handle, .. } = executors.run(call()).await else {
        panic!("it goes on")
    };
    let mut look = call();
    let (wake, mut woken) = waking();
    look.wake = wake;
    look.handle = Some(handle.clone());
    executors.run(look.clone()).await;
    assert_eq!(
        methods(&mut agent),
        ["SendStreamingMessage", "GetTask", "GetTask"],
        "it is young"
    );
    let mut old = handle;
    old["since"] = 0.into();
    look.handle = Some(old);
    executors.run(look).await;
    assert_eq!(methods(&mut agent), ["GetTask", "SubscribeToTask"]);
    woken.recv().await.expect("the stream wakes the call");
}
