//! Tasks of which some parts cannot be read: their state counts, and so do the other parts.

use bytes::Bytes;
use serde_json::{Value, json};
use wopr_engine::{Cancellation, Executor as _, Outcome, Report};

use crate::{
    agent::{Agent, chunked, rpc_reply},
    agent_calls::{agent, call, executors, methods, sent, task},
};

fn handle() -> Value {
    json!({ "peer": "planner", "taskId": "t", "since": 0 })
}

/// A task with a part without content, one without a type, and an artifact without an id, beside two readable parts.
fn odd(version: &str, state: &str) -> Value {
    let mut odd = task(version, state, "c");
    let text = |text: &str| match version {
        "1.0" => json!({ "text": text }),
        _ => json!({ "kind": "text", "text": text }),
    };
    odd["artifacts"] = json!([
        { "artifactId": "a", "parts": [{}, text("one"), 7] },
        { "artifactId": "", "parts": [text("two")] },
    ]);
    odd
}

fn outcome(report: Report) -> Outcome {
    match report {
        Report::Ended(outcome) => outcome,
        Report::Produced { then, .. } => outcome(*then),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn task_that_has_ended_completes_its_call_with_what_can_be_read() {
    for version in ["1.0", "0.3"] {
        let agent = agent(version, move |_, method| {
            let odd = odd(version, "TASK_STATE_COMPLETED");
            match method {
                "SendMessage" | "message/send" => sent(version, &odd),
                _ => rpc_reply(&odd),
            }
        })
        .await;
        let executors = executors(&agent, |_| {});
        let mut look = call();
        look.handle = Some(handle());
        for attempt in [call(), look] {
            let Outcome::Done(outputs) = outcome(executors.run(attempt).await) else {
                panic!("{version}: the task is completed")
            };
            assert_eq!(outputs["text"], "one\ntwo", "{outputs:#}");
            let unreadable = outputs["unreadable"].as_array().unwrap();
            for (at, path) in [
                "artifacts[0].parts[0] ",
                "artifacts[0].parts[2] ",
                "artifacts[1].artifactId ",
            ]
            .into_iter()
            .enumerate()
            {
                assert!(
                    unreadable[at].as_str().unwrap().starts_with(path),
                    "{unreadable:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn unreadable_part_of_a_task_that_goes_on_is_noted_once() {
    let agent = agent("1.0", |_, method| {
        let odd = odd("1.0", "TASK_STATE_WORKING");
        match method {
            "SendMessage" => sent("1.0", &odd),
            _ => rpc_reply(&odd),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let Report::Produced { then, cursor, .. } = executors.run(call()).await else {
        panic!("the task has made something")
    };
    let Report::Accepted { handle, .. } = *then else {
        panic!("{then:?}")
    };
    assert_eq!(handle["isUnreadable"], true, "the warning is remembered");
    let mut look = call();
    (look.handle, look.cursor) = (Some(handle), Some(cursor));
    assert!(matches!(executors.run(look).await, Report::Unchanged { .. }));
}

#[tokio::test]
async fn question_without_role_or_id_is_asked() {
    for version in ["1.0", "0.3"] {
        let agent = agent(version, move |_, _| {
            let mut asking = task(version, "TASK_STATE_INPUT_REQUIRED", "c");
            asking["status"]["message"] = json!({ "parts": [{ "text": "Sure?" }, {}] });
            sent(version, &asking)
        })
        .await;
        let report = executors(&agent, |_| {}).run(call()).await;
        let Report::Interrupted { question, .. } = report else {
            panic!("{version}: {report:?}")
        };
        assert_eq!(question.data["message"], "Sure?", "{version}");
    }
}

#[tokio::test]
async fn answer_without_a_task_counts_as_far_as_it_can_be_read() {
    let agent = agent("1.0", |_, _| {
        rpc_reply(&json!({ "message": { "messageId": "m", "parts": [{ "text": "hello" }, {}] } }))
    })
    .await;
    let Outcome::Done(outputs) = outcome(executors(&agent, |_| {}).run(call()).await) else {
        panic!("the message is the answer")
    };
    assert_eq!(outputs["text"], "hello");
    assert_eq!(
        outputs["unreadable"].as_array().map(Vec::len),
        Some(2),
        "{outputs:#}"
    );
}

#[tokio::test]
async fn stream_with_an_unreadable_part_is_followed_to_its_end() {
    let mut agent = Agent::with_card(&[("/rpc", "JSONRPC", "1.0")], |seen| {
        if seen.json()["method"] == "GetTask" {
            return rpc_reply(&odd("1.0", "TASK_STATE_COMPLETED"));
        }
        let status = |state: &str| json!({ "taskId": "t", "contextId": "c", "status": { "state": state } });
        let items = [
            json!({ "statusUpdate": status("TASK_STATE_WORKING") }),
            json!({ "artifactUpdate": {
                "taskId": "t", "contextId": "c", "artifact": { "artifactId": "a", "parts": [{}, { "text": "one" }] },
            }}),
            json!({ "statusUpdate": status("TASK_STATE_COMPLETED") }),
        ];
        let items = items.map(|item| {
            let result = json!({ "jsonrpc": "2.0", "id": 1, "result": item });
            Bytes::from(format!("data: {result}\n\n"))
        });
        chunked("text/event-stream", items.to_vec())
    })
    .await;
    let Outcome::Done(outputs) = outcome(executors(&agent, |_| {}).run(call()).await) else {
        panic!("the task is completed")
    };
    assert_eq!(outputs["text"], "one\ntwo", "the whole task is asked for");
    assert_eq!(methods(&mut agent), ["SendStreamingMessage", "GetTask"]);
}

#[tokio::test]
async fn cancel_counts_though_the_task_or_the_answer_cannot_be_read() {
    for answer in [
        odd("1.0", "TASK_STATE_CANCELED"),
        odd("1.0", "TASK_STATE_COMPLETED"),
        json!({}),
        json!({ "id": "t" }),
    ] {
        let agent = agent("1.0", move |_, method| match method {
            "GetTask" => rpc_reply(&odd("1.0", "TASK_STATE_COMPLETED")),
            _ => rpc_reply(&answer),
        })
        .await;
        let call = call();
        let cancel = Cancellation {
            run: call.run,
            provider: "agent".to_owned(),
            idempotency_key: call.idempotency_key,
            trace: None,
            handle: handle(),
        };
        let cancelled = executors(&agent, |_| {}).cancel(cancel).await;
        assert!(cancelled.is_ok(), "{cancelled:?}");
    }
}
