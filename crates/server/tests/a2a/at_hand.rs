//! Recently decided runs are read from memory: over REST, over A2A, and by polls.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use serde_json::{Value, json};
use wopr_core::Timestamp;
use wopr_engine::{Clock, SystemClock};

use crate::{
    client::{Client, state_of},
    counting::Counting,
    support::{Server, config},
};

/// Longer than runs stay cached, in milliseconds.
const LATER_MS: i64 = 10_000;

/// A clock that only the test advances, so that no cached run expires on a slow machine.
#[derive(Debug)]
struct Still(AtomicI64);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Relaxed))
    }
}

/// Counts the store calls of every way to read a run, and asserts that each shows the status.
async fn costs(
    store: &Counting,
    client: &Client,
    id: &str,
    status: &str,
    state: &str,
) -> BTreeMap<&'static str, usize> {
    store.take();
    let run = client.get(&format!("/v1/runs/{id}")).await.json();
    assert_eq!(run["status"], status, "{run}");
    let task = client
        .ok("GetTask", json!({ "id": id, "historyLength": 0 }))
        .await;
    assert_eq!(state_of(&task), state, "{task}");
    let poll = client
        .get(&format!("/v1/runs/{id}/events/poll?timeout=1"))
        .await
        .json();
    assert_eq!(poll["runStatus"], status, "{poll}");
    store.take()
}

#[tokio::test]
async fn recently_decided_run_is_read_from_memory() {
    for private in [false, true] {
        let clock = Arc::new(Still(AtomicI64::new(SystemClock.now().millis())));
        let store = Arc::new(Counting::default());
        let mut config = config();
        config.a2a.private_tasks = private;
        let server = Server::over_by(config, store.clone(), clock.clone()).await;
        let alice = server.v1();
        let skill = json!({ "metadata": { "skillId": "clarify" } });
        let began = alice.send(alice.text("m", "x", skill)).await;
        let id = began["id"].as_str().unwrap();
        let nothing = BTreeMap::new();
        let waits = ("waiting-input", "input-required");
        assert_eq!(costs(&store, &alice, id, waits.0, waits.1).await, nothing);

        // The second interrupt is only known from a decision on a loaded run.
        let answer = |id: &str, text: &str| alice.text(&format!("a-{text}"), text, json!({ "taskId": id }));
        alice.send(answer(id, "red")).await;
        store.take();
        let run = alice.get(&format!("/v1/runs/{id}")).await.json();
        assert_eq!(run["interrupt"]["nodeId"], "two", "{run}");
        let last = run_head(&alice, id).await;
        store.take();
        let since = format!("/v1/runs/{id}/events/poll?timeout=1&lastSequence={}", last - 1);
        let poll = alice.get(&since).await.json();
        assert_eq!(poll["events"].as_array().unwrap().len(), 1, "{poll}");
        // The run's pinned version is still read, as an event alone does not tell which of its values are
        // sensitive.
        assert!(!store.take().contains_key("events"));
        let run = alice.get(&format!("/v1/runs/{id}")).await.json();
        assert_eq!(run["status"], waits.0);
        assert_eq!(store.take(), nothing);

        // Later the run is read from the store again.
        clock.0.fetch_add(LATER_MS, Relaxed);
        let later = costs(&store, &alice, id, waits.0, waits.1).await;
        assert_eq!(later["load_within"], 2, "{later:?}");

        let cancelled = alice.ok("CancelTask", json!({ "id": id })).await;
        assert_eq!(state_of(&cancelled), "canceled");
        store.take();
        let run = alice.get(&format!("/v1/runs/{id}")).await.json();
        assert_eq!(run["status"], "cancelled");
        assert_eq!(store.take(), nothing);
        server.stop().await;
    }
}

#[tokio::test]
async fn an_answer_loads_its_run_once() {
    let clock = Arc::new(Still(AtomicI64::new(SystemClock.now().millis())));
    let store = Arc::new(Counting::default());
    let server = Server::over_by(config(), store.clone(), clock.clone()).await;
    let alice = server.v1();
    for over_rest in [false, true] {
        for names_it in [false, true] {
            let skill = json!({ "metadata": { "skillId": "clarify" } });
            let message = alice.text(&format!("m-{over_rest}-{names_it}"), "x", skill);
            let began = alice.send(message).await;
            let id = began["id"].as_str().unwrap();
            let run = alice.get(&format!("/v1/runs/{id}")).await.json();
            let interrupt = &run["interrupt"];
            // What was just decided is read from memory; this is about what has waited for a while.
            clock.0.fetch_add(LATER_MS, Relaxed);
            store.take();
            if over_rest {
                let node = interrupt["nodeId"].as_str().unwrap();
                let question = interrupt["data"]["questions"][0]["id"].as_str().unwrap();
                let mut body = json!({ "resumeValue": { "answers": { question: "red" } } });
                if names_it {
                    body["interruptId"] = interrupt["interruptId"].clone();
                }
                let path = format!("/v1/runs/{id}/interrupts/{node}");
                let answered = alice.clone().at(&path);
                let answered = answered.raw("POST", body.to_string().as_bytes()).await;
                assert_eq!(answered.status, 200, "{}", answered.json());
            } else {
                let about = json!({ "nodeId": interrupt["nodeId"], "interruptId": interrupt["interruptId"] });
                let mut with = json!({ "taskId": id });
                if names_it {
                    with["metadata"] = json!({ "openwop": { "interrupt": about } });
                }
                alice
                    .send(alice.text(&format!("a-{names_it}"), "red", with))
                    .await;
            }
            let cost = store.take();
            assert_eq!(
                cost.get("load_within"),
                Some(&1),
                "over REST: {over_rest}: {cost:?}"
            );
            // The append looks for an earlier request as well, so the store is asked at most once before it.
            let lookups = (!over_rest).then_some(&1);
            assert_eq!(
                cost.get("idempotency"),
                lookups,
                "over REST: {over_rest}: {cost:?}"
            );
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_task_that_ends_in_its_first_append_causes_no_reads() {
    let store = Arc::new(Counting::default());
    let server = Server::over(config(), store.clone()).await;
    let alice = server.v1();
    store.take();
    for (id, skill) in [("m-1", "hello"), ("m-2", "fail"), ("m-3", "clarify")] {
        let message = alice.text(id, "x", json!({ "metadata": { "skillId": skill } }));
        let task = alice.send(message).await;
        // Its artifacts come from the events that were just appended.
        assert_eq!(task["artifacts"].is_array(), skill == "hello", "{task}");
        assert_eq!(store.take(), BTreeMap::new(), "{skill}");
    }
    // A repeated message is found by the append; its task is read as any other.
    let message = alice.text("m-1", "x", json!({ "metadata": { "skillId": "hello" } }));
    alice.send(message).await;
    let cost = store.take();
    assert_eq!(cost.get("idempotency"), None, "{cost:?}");
    assert_eq!(cost.get("summary"), Some(&1), "{cost:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_repeated_answer_is_looked_up_once() {
    let store = Arc::new(Counting::default());
    let server = Server::over(config(), store.clone()).await;
    let alice = server.v1();
    let began = alice
        .send(alice.text("m", "x", json!({ "metadata": { "skillId": "approve" } })))
        .await;
    let id = began["id"].as_str().unwrap();
    for n in 0..2 {
        let path = format!("/v1/runs/{id}/approvals/gate");
        let client = alice.clone().at(&path).with("idempotency-key", "k");
        store.take();
        let answered = client.raw("POST", br#"{"action":"accept"}"#).await;
        assert_eq!(answered.status, 200, "{}", answered.json());
        assert_eq!(store.take().get("idempotency"), Some(&1), "request {n}");
    }
    server.stop().await;
}

/// The sequence number of a run's last event.
async fn run_head(client: &Client, id: &str) -> u64 {
    let poll = client
        .get(&format!("/v1/runs/{id}/events/poll?timeout=1"))
        .await
        .json();
    poll["events"]
        .as_array()
        .and_then(|events| events.last())
        .and_then(|event| event["sequence"].as_u64())
        .unwrap_or_else(|| panic!("{}", Value::to_string(&poll)))
}
