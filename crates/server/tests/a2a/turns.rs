//! Conversations in tasks: their gate's own, that of a dispatch, and that of a child.

use serde_json::{Value, json};

use wopr_server::{Config, config::StoreUrl};

use crate::{
    client::state_of,
    speaker::Speaker,
    support::{Server, chain, config, node, workflows},
};

/// The conversations, and the id of the question in each.
const CONVERSATIONS: [(&str, &str); 2] = [("talk", "gate:0"), ("led", "ask:0")];

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
    hosts_of(config()).await
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
    for server in hosts().await {
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
    for server in hosts().await {
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
