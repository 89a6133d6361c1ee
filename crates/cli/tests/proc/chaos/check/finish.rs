//! Finishes all runs: answers interrupts, resumes paused runs, and waits until every run has ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{list, runs::Ended, share};
use crate::chaos::caller::{Caller, Request};

/// Gives up if no run ends for this long: delays are short and retries are few.
const LIMIT: Duration = Duration::from_secs(60);

/// Finishes every run, including runs started meanwhile.
pub(super) async fn all(caller: &mut Caller) -> Vec<Ended> {
    let mut answered = BTreeSet::new();
    let mut ended: BTreeMap<String, Ended> = BTreeMap::new();
    let mut deadline = Instant::now() + LIMIT;
    let left = loop {
        let mut left = list(caller).await;
        left.retain(|run| !ended.contains_key(run));
        if left.is_empty() || Instant::now() > deadline {
            break left;
        }
        // All answers come first: runs waiting for a child could occupy all workers while the child waits for
        // one.
        let answers = share(caller, left.clone(), |mut caller, run| async move {
            answer_if_asked(&mut caller, &run).await.then_some(run)
        });
        answered.extend(answers.await);
        let done = share(caller, left.clone(), |mut caller, run| async move {
            finished(&mut caller, &run).await
        });
        for run in done.await {
            let was_answered = answered.contains(&run.id);
            ended.insert(run.id.clone(), Ended { was_answered, ..run });
            deadline = Instant::now() + LIMIT;
        }
    };
    for run in left {
        let answer = caller.ask(&Request::get(format!("/v1/runs/{run}"))).await;
        let events = log(caller, &run).await;
        let last = &events[events.len().saturating_sub(4)..];
        caller.ledger().violated(format!(
            "run {run} cannot be finished: {}\nits last events: {last:?}",
            answer.body
        ));
    }
    ended.into_values().collect()
}

/// Reads what is there of a run's log, without waiting for more.
async fn log(caller: &mut Caller, run: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let page = caller.ask(&Request::get(path)).await.body;
    page["events"].as_array().cloned().unwrap_or_default()
}

/// A run that was quarantined while it was being cancelled keeps that status; only its log says that it is
/// paused.
async fn is_quarantined(caller: &mut Caller, run: &str) -> bool {
    let events = log(caller, run).await;
    let turn = events
        .iter()
        .rev()
        .find(|event| matches!(event["type"].as_str(), Some("run.paused" | "run.resumed")));
    turn.is_some_and(|event| event.pointer("/payload/reason") == Some(&json!("quarantined")))
}

/// Answers a waiting run and resumes a paused one.
async fn answer_if_asked(caller: &mut Caller, run: &str) -> bool {
    let snapshot = caller.ask(&Request::get(format!("/v1/runs/{run}"))).await;
    let status = snapshot.text("/status").unwrap_or_default().to_owned();
    let is_held = match status.as_str() {
        "paused" => true,
        "cancelling" => is_quarantined(caller, run).await,
        _ => false,
    };
    let request = if is_held {
        Request::post(format!("/v1/runs/{run}:resume"), json!({}))
    } else if !status.starts_with("waiting-") || is_asked_elsewhere(run, &snapshot.body) {
        return false;
    } else if let Some(node) = snapshot.text("/interrupt/nodeId") {
        let value = match status.as_str() {
            "waiting-input" => json!({"answers": [{"id": "colour", "answer": "red"}]}),
            _ => json!({"action": "accept"}),
        };
        let body = json!({"resumeValue": value});
        Request::post(format!("/v1/runs/{run}/interrupts/{node}"), body)
    } else {
        caller.ledger().violated(format!(
            "run {run} is {status} and shows no interrupt: {}",
            snapshot.body
        ));
        return false;
    };
    let answer = caller.ask(&request).await;
    caller.ledger().hold((200..300).contains(&answer.status), || {
        format!(
            "run {run} is {status}; its answer was answered by {} {}",
            answer.status, answer.body
        )
    });
    true
}

/// A parent mirrors its child's interrupt and can be answered instead of it. To avoid late answers, each
/// interrupt is answered in one place only: for half of the parents at the parent, otherwise at the child.
fn is_asked_elsewhere(run: &str, snapshot: &Value) -> bool {
    let asks_parent = |parent: &str| parent.ends_with(['0', '2', '4', '6', '8', 'a', 'c', 'e']);
    match (snapshot["workflowId"].as_str(), snapshot["parentRunId"].as_str()) {
        (Some("parent-gate"), _) => !asks_parent(run),
        (_, Some(parent)) => asks_parent(parent),
        (_, None) => false,
    }
}

/// Returns the run with its complete log if it has ended.
async fn finished(caller: &mut Caller, run: &str) -> Option<Ended> {
    let mut events = Vec::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/v1/runs/{run}/events/poll?timeout=2{cursor}");
        let page = caller.ask(&Request::get(path)).await.body;
        let new = page["events"].as_array().cloned().unwrap_or_default();
        let is_new = !new.is_empty();
        events.extend(new);
        if page["isComplete"] == true {
            break;
        }
        if !is_new {
            return None;
        }
        cursor = format!("&lastSequence={}", page["lastEventSeq"]);
    }
    let snapshot = caller.ask(&Request::get(format!("/v1/runs/{run}"))).await.body;
    Some(Ended {
        id: run.to_owned(),
        snapshot,
        events,
        was_answered: false,
    })
}
