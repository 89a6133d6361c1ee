//! Answers to agents that ask several questions at once, or name none.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use wopr_engine::{Answered, Executor as _};

use crate::{
    agent::{Seen, rpc_reply},
    agent_calls::{agent, answering, asked, asking, executors, methods, sent, task},
    executors::{STATE, TRACE},
};

/// A task that shows the first of these interrupts, as an OpenWOP host does.
fn asking_for(open: &[&str]) -> Value {
    let mut asking = asking(open[0], &format!("{}?", open[0]));
    let interrupts: Vec<_> = open.iter().map(|id| json!({ "interruptId": id })).collect();
    asking["metadata"] = json!({ "openwop": { "interrupt": interrupts[0], "interrupts": interrupts } });
    asking
}

/// The metadata of each message to the task.
fn answers(seen: &[Seen]) -> Vec<Value> {
    let messages = seen.iter().map(|seen| seen.json()["params"]["message"].clone());
    messages
        .filter(|message| message["taskId"] == "t")
        .map(|message| message["metadata"]["openwop"].clone())
        .collect()
}

#[tokio::test]
async fn answer_names_the_question_that_was_shown_also_when_the_agent_shows_another_one_first() {
    const SHOWN: [&[&str]; 3] = [&["colour", "size"], &["size", "colour"], &["size"]];
    let at = Arc::new(AtomicUsize::new(0));
    let current = Arc::clone(&at);
    let mut agent = agent("1.0", move |seen, method| {
        let asking = asking_for(SHOWN[current.load(Ordering::Relaxed)]);
        match method {
            "SendMessage" if seen.json()["params"]["message"]["taskId"] == "t" => {
                sent("1.0", &task("1.0", "TASK_STATE_WORKING", "c"))
            }
            "SendMessage" => sent("1.0", &asking),
            _ => rpc_reply(&asking),
        }
    })
    .await;
    let executors = executors(&agent, |_| {});
    let (handle, question) = asked(&executors, None).await;
    assert_eq!(question.data["message"], "colour?");
    for n in [0, 1] {
        at.store(n, Ordering::Relaxed);
        assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
        let answers = answers(&agent.calls());
        assert_eq!(answers.len(), 1, "{n}");
        assert_eq!(answers[0]["interrupt"], json!({ "interruptId": "colour" }), "{n}");
        assert_eq!(
            (&answers[0]["traceparent"], &answers[0]["tracestate"]),
            (&json!(TRACE), &json!(STATE))
        );
    }
    // It is not open any more.
    at.store(2, Ordering::Relaxed);
    assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
    assert_eq!(methods(&mut agent), ["GetTask"]);
    let (_, next) = asked(&executors, Some(&handle)).await;
    assert_eq!(next.data["message"], "size?");
    assert_ne!(next.key, question.key);
}

#[tokio::test]
async fn answer_to_an_agent_that_names_no_interrupt_names_none() {
    for metadata in [
        json!({}),
        json!({ "openwop": "other" }),
        json!({ "openwop": { "interrupt": { "interruptId": 7 }, "interrupts": "none" } }),
    ] {
        let mut asking = asking("m", "Sure?");
        asking["metadata"] = metadata.clone();
        let mut agent = agent("1.0", move |_, method| match method {
            "SendMessage" => sent("1.0", &asking),
            _ => rpc_reply(&asking),
        })
        .await;
        let executors = executors(&agent, |_| {});
        let (handle, _) = asked(&executors, None).await;
        assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
        let answers = answers(&agent.calls());
        assert_eq!(answers.len(), 1, "{metadata}");
        assert_eq!(answers[0].get("interrupt"), None, "{metadata}");
    }
}

#[tokio::test]
async fn question_that_stays_open_after_an_answer_is_asked_anew_at_once() {
    for is_host in [true, false] {
        let mut asking = asking("m", "Sure?");
        if is_host {
            asking["metadata"] =
                json!({ "openwop": { "interrupt": { "interruptId": "gate:0", "data": {} } } });
        }
        let agent = agent("1.0", move |_, method| match method {
            "SendMessage" => sent("1.0", &asking),
            _ => rpc_reply(&asking),
        })
        .await;
        let executors = executors(&agent, |_| {});
        let (handle, first) = asked(&executors, None).await;
        assert_eq!(executors.answer(answering(&handle)).await, Ok(Answered::Taken));
        let (_, second) = asked(&executors, Some(&handle)).await;
        // Another agent may not have got to the answer yet.
        assert_eq!(first.key != second.key, is_host);
        assert_eq!(first.data, second.data, "nothing was refused");
    }
}
