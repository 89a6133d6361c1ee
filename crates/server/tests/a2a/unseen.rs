//! Hidden tasks are indistinguishable from missing ones: every request causes the same reads, over every
//! binding.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Value, json};
use wopr_wire::a2a::method::Operation;

use crate::{
    client::Client,
    counting::Counting,
    speaker::Speaker,
    support::{Server, config},
};

/// The id of no run.
const MISSING: &str = "run_01JD000000000000000000000A";

/// Every request that names a task.
fn requests(speaker: &Speaker, n: usize, task: &str) -> Vec<(Operation, Value)> {
    let message = speaker.answer(&format!("m{n}"), "yes", task);
    let config = json!({ "taskId": task, "id": "one" });
    let mut set = config.clone();
    set["url"] = json!("https://push.example.com/");
    vec![
        (Operation::GetTask, json!({ "id": task })),
        (Operation::CancelTask, json!({ "id": task })),
        (Operation::SendMessage, message),
        (Operation::CreatePushConfig, set),
        (Operation::GetPushConfig, config.clone()),
        (Operation::ListPushConfigs, json!({ "taskId": task })),
        (Operation::DeletePushConfig, config),
    ]
}

/// The reads caused by each request, all of which are refused as if the task were missing.
async fn costs(
    store: &Counting,
    speaker: &Speaker,
    n: usize,
    task: &str,
) -> Vec<BTreeMap<&'static str, usize>> {
    let mut costs = Vec::new();
    for (operation, request) in requests(speaker, n, task) {
        store.take();
        let refused = speaker.ask(operation, request).await;
        assert_eq!(refused.unwrap_err(), "TASK_NOT_FOUND", "{operation:?}");
        costs.push(store.take());
    }
    costs
}

/// The reads caused by a refused stream, a refused seam, and a context lookup by task id.
async fn further(
    store: &Counting,
    client: &Client,
    n: usize,
    task: &str,
) -> Vec<BTreeMap<&'static str, usize>> {
    let mut costs = Vec::new();
    let message = client.text(&format!("s{n}"), "yes", json!({ "taskId": task }));
    for (method, params) in [
        ("SubscribeToTask", json!({ "id": task })),
        ("SendStreamingMessage", message),
    ] {
        store.take();
        assert_eq!(client.err(method, params).await.0, -32001, "{method}");
        costs.push(store.take());
    }
    assert_eq!(client.get(&format!("/v1/a2a/tasks/{task}")).await.status, 404);
    costs.push(store.take());
    let listed = client.ok("ListTasks", json!({ "contextId": task })).await;
    assert_eq!(listed["totalSize"], 0);
    costs.push(store.take());
    costs
}

#[tokio::test]
async fn hidden_task_causes_the_same_reads_as_a_missing_one() {
    for private in [false, true] {
        let store = Arc::new(Counting::default());
        let mut config = config();
        config.a2a.private_tasks = private;
        let server = Server::over(config, store.clone()).await;
        let alice = server.v1();
        let began = alice
            .send(alice.text("m", "it", json!({"metadata": {"skillId": "approve"}})))
            .await;
        let others = began["id"].as_str().unwrap();
        // Without a context, so that its id could be taken for one.
        let rest = alice.clone().at("/v1/runs");
        let bare = rest
            .raw("POST", json!({"workflowId": "approve"}).to_string().as_bytes())
            .await;
        let bare = bare.json()["runId"].as_str().unwrap().to_owned();
        // Another tenant's caller never sees it; one of the same tenant only if tasks are not private.
        let strangers: &[&str] = if private { &["bob", "carol"] } else { &["carol"] };
        for (n, stranger) in strangers.iter().enumerate() {
            for speaker in Speaker::all(&server) {
                let speaker = speaker.by(stranger);
                let about = speaker.name();
                let missing = costs(&store, &speaker, n, MISSING).await;
                assert_eq!(
                    costs(&store, &speaker, n, others).await,
                    missing,
                    "{stranger} {about}"
                );
                // One read decides; with private tasks it only reads the owner.
                let look = if private { "summary" } else { "load_within" };
                let looks = BTreeMap::from([(look, 1)]);
                assert!(missing.iter().all(|cost| *cost == looks), "{about}: {missing:?}");
            }
            let client = alice.clone().by(stranger);
            let missing = further(&store, &client, n, MISSING).await;
            for task in [others, &bare] {
                let cost = further(&store, &client, n, task).await;
                assert_eq!(cost, missing, "{stranger}");
            }
        }
        // The task exists for callers who may see it, and their reads are counted.
        store.take();
        alice.task(others).await;
        assert!(store.take().contains_key("messages"));
        assert_eq!(
            alice.ok("ListTasks", json!({ "contextId": bare })).await["totalSize"],
            1
        );
        server.stop().await;
    }
}
