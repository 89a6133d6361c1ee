//! Conversations in tasks: their gate's own, that of a dispatch, and that of a child.

use serde_json::{Value, json};

use wopr_server::{Config, config::StoreUrl};
use wopr_wire::a2a::method::Operation;

use crate::{
    client::{shorts, state_of},
    push::{Receivers, reaching},
    speaker::Speaker,
    support::{Server, chain, config, node, workflows},
};

/// The conversations, and the id of the question in each.
const CONVERSATIONS: [(&str, &str); 3] = [
    ("talk", "gate:0"),
    ("led", "ask:0"),
    ("child-talks", "sub:0/gate:0"),
];

fn conversations() -> Vec<Value> {
    let gate = node("gate", "core.conversationGate", json!({ "prompt": "Your turn?" }));
    let decision = json!({ "kind": "ask-user", "prompt": "Your turn?" });
    let lead = json!({ "agentId": "lead", "decision": decision, "maxLoopIterations": 1 });
    let turns = json!({ "askUserRouting": "conversation" });
    let child = |workflow: &str| node("sub", "core.subWorkflow", json!({ "workflowId": workflow }));
    let mut all = workflows();
    all.extend([
        chain("talk", vec![gate]),
        chain(
            "led",
            vec![
                node("lead", "core.orchestrator.supervisor", lead),
                node("ask", "core.dispatch", turns),
            ],
        ),
        chain("child-talks", vec![child("talk")]),
        chain("child-is-asked", vec![child("ask")]),
    ]);
    all
}

/// A host on each kind of store.
async fn hosts() -> [Server; 2] {
    Box::pin(hosts_of(config())).await
}

async fn hosts_of(config: Config) -> [Server; 2] {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = Config {
        store: StoreUrl::Sqlite(folder.path().join("wopr.db")),
        ..config.clone()
    };
    let [in_memory, on_disk] = [config, on_disk].map(|config| Server::with(config, conversations()));
    [in_memory.await, on_disk.await.keeping(folder)]
}

/// The ids of a task's messages, as the client named its own.
fn said(task: &Value, speaker: &Speaker) -> Vec<String> {
    let history = task["history"].as_array().unwrap();
    let ids = history
        .iter()
        .map(|message| message["messageId"].as_str().unwrap());
    ids.map(|id| id.replace(&format!("-{}", speaker.name()), ""))
        .collect()
}

#[tokio::test]
async fn turns_follow_the_question_in_the_history() {
    for server in Box::pin(hosts()).await {
        for (workflow, asked) in CONVERSATIONS {
            for speaker in Speaker::all(&server) {
                let name = format!("{workflow} {}", speaker.name());
                let begin = format!("begin-{workflow}");
                let task = speaker.send(speaker.text(&begin, "x", workflow)).await.unwrap();
                let id = task["id"].as_str().unwrap();
                assert_eq!(said(&task, &speaker), [begin.as_str()], "{name}");
                let mut expected = vec![begin, format!("{id}.{asked}")];
                for turn in 0..5 {
                    let turn = format!("turn-{turn}");
                    speaker.send(speaker.answer(&turn, "words", id)).await.unwrap();
                    expected.push(turn);
                }
                for n in 1..=expected.len() {
                    let latest = json!({ "id": id, "historyLength": n });
                    let task = speaker.get(latest).await.unwrap();
                    let latest = &expected[expected.len() - n..];
                    assert_eq!(said(&task, &speaker), latest, "{name} {n}");
                }
                let mut close = speaker.answer("close", "", id);
                close["message"]["parts"] = json!([{ "data": { "operation": "close" } }]);
                let task = speaker.send(close).await.unwrap();
                assert_eq!(state_of(&task), "completed", "{name}");
                expected.push("close".to_owned());
                assert_eq!(said(&task, &speaker), expected, "{name}");
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn messages_to_a_child_stay_in_order() {
    for server in Box::pin(hosts()).await {
        for speaker in Speaker::all(&server) {
            let task = speaker
                .send(speaker.text("begin", "x", "child-is-asked"))
                .await
                .unwrap();
            let id = task["id"].as_str().unwrap();
            let mut expected = vec!["begin".to_owned()];
            for n in 0..6 {
                let question = format!("question-{n}");
                let task = speaker.send(speaker.answer(&question, "why?", id)).await.unwrap();
                expected.push(question);
                assert_eq!(said(&task, &speaker), expected, "{}", speaker.name());
            }
            let task = speaker.send(speaker.answer("yes", "yes", id)).await.unwrap();
            assert_eq!(state_of(&task), "completed");
            expected.insert(1, format!("{id}.sub:0/gate:0"));
            expected.push("yes".to_owned());
            assert_eq!(said(&task, &speaker), expected, "{}", speaker.name());
        }
        server.stop().await;
    }
}

fn close(speaker: &Speaker, id: &str) -> Value {
    let mut close = speaker.answer("close", "", id);
    close["message"]["parts"] = json!([{ "data": { "operation": "close" } }]);
    close
}

/// The time of a status. Messages over gRPC have no zeros at its end.
fn time_of(holder: &Value) -> wopr_wire::time::Timestamp {
    holder["status"]["timestamp"].as_str().unwrap().parse().unwrap()
}

/// A status without what is minted or masked for each reader.
fn shown(status: &Value) -> (Value, Value) {
    (
        status["status"].clone(),
        status["metadata"]["openwop"]["interrupt"].clone(),
    )
}

#[tokio::test]
async fn everybody_who_follows_a_task_learns_of_each_turn() {
    let receivers = Receivers::start().await;
    for (n_host, server) in Box::pin(hosts_of(reaching())).await.into_iter().enumerate() {
        let lists = server.v1();
        for (workflow, asked) in CONVERSATIONS {
            for speaker in Speaker::all(&server) {
                let name = format!("{workflow}-{}-{n_host}", speaker.name());
                let begin = |id: &str| speaker.text(&format!("{id}-{workflow}"), "x", workflow);
                let task = speaker.send(begin("followed")).await.unwrap();
                let id = task["id"].as_str().unwrap();
                let url = receivers.url(&name);
                let push = json!({ "taskId": id, "id": "p", "url": url });
                speaker.ask(Operation::CreatePushConfig, push).await.unwrap();
                let subscribe = json!({ "id": id });
                let mut seen = speaker.stream(Operation::SubscribeToTask, subscribe).await;
                assert_eq!(
                    seen.next().await.unwrap().short(),
                    "task:input-required",
                    "{name}"
                );
                let mut turns = Vec::new();
                for turn in 1..=3 {
                    speaker.send(begin(&format!("newer-{turn}"))).await.unwrap();
                    let words = format!("words-{turn}");
                    let said = speaker.answer(&format!("turn-{turn}"), &words, id);
                    if turn == 2 {
                        // Whoever takes a turn over a stream gets one update.
                        let frames = speaker
                            .stream(Operation::SendStreamingMessage, said)
                            .await
                            .all()
                            .await;
                        let both = ["task:input-required", "status:input-required"];
                        assert_eq!(shorts(&frames), both, "{name}");
                    } else {
                        let told = speaker.send(said).await.unwrap();
                        assert_eq!(state_of(&told), "input-required", "{name}");
                    }
                    let frame = seen.next().await.unwrap();
                    assert_eq!(frame.short(), "status:input-required", "{name}");
                    let message = &frame.value["status"]["message"];
                    assert_eq!(
                        message["messageId"],
                        format!("{id}.{asked}.{}", turn + 1),
                        "{name}"
                    );
                    assert!(message.to_string().contains(&words), "{name} {message}");
                    let task = speaker.get(json!({ "id": id })).await.unwrap();
                    let told_at = time_of(&task);
                    assert_eq!(told_at, time_of(&frame.value), "{name}");
                    let data = &task["metadata"]["openwop"]["interrupt"]["data"];
                    assert_eq!(data["turnIndex"], turn + 1, "{name}");
                    let page = lists.ok("ListTasks", json!({ "pageSize": 1 })).await;
                    // The other task may have changed in the same millisecond.
                    assert_eq!(time_of(&page["tasks"][0]), told_at, "{name}");
                    turns.push(frame);
                }
                let done = speaker.send(close(&speaker, id)).await.unwrap();
                assert_eq!(state_of(&done), "completed", "{name}");
                let rest = shorts(&seen.all().await);
                assert!(
                    !rest.contains(&"status:input-required".to_owned()),
                    "{name} {rest:?}"
                );
                let pushed = receivers.told(&name, "completed").await;
                let states: Vec<_> = pushed.iter().map(|pushed| pushed.state().unwrap()).collect();
                assert_eq!(states[..3], ["input-required"; 3], "{name}");
                assert_eq!(
                    states.iter().filter(|state| *state == "input-required").count(),
                    3
                );
                // A stream that is resumed after the end tells each turn as it was.
                if workflow != "child-talks" && turns[0].id.is_some() {
                    let first = turns[0].id.unwrap() - 1;
                    let replayed = speaker.resumed(first, id).await;
                    for (turn, again) in turns.iter().zip(replayed) {
                        assert_eq!(again.id, turn.id, "{name}");
                        assert_eq!(shown(&again.value), shown(&turn.value), "{name}");
                    }
                }
            }
        }
        server.stop().await;
    }
}
