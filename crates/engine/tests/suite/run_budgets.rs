//! Calls to models that wait for room in the budget of their run.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use wopr_core::RunStatus;
use wopr_engine::{Engine, Outcome, SideRows};
use wopr_store::{MemoryStore, Store};

use crate::harness::{create, engine, fresh, node, reaches, steered, workflow};

/// Sooner than a waiting call looks by itself.
const SOON: Duration = Duration::from_secs(4);

fn reply() -> Outcome {
    Outcome::Done(json!({
        "provider": "p", "model": "m", "text": "so", "stop": "end", "usage": { "inputTokens": 1, "outputTokens": 1 },
    }))
}

fn asking() -> Value {
    let ask = |id| {
        node(
            id,
            "core.ai.callPrompt",
            json!({ "prompt": "?", "maxTokens": 60 }),
        )
    };
    let mut workflow = workflow("w", &["a", "b", "c", "d"].map(ask), &[]);
    workflow["settings"] = json!({ "budget": { "maxTokens": 100 } });
    workflow
}

async fn started(store: &Arc<dyn Store>, executor: &Arc<crate::harness::Steered>) -> Engine {
    engine(Arc::clone(store), Arc::<crate::harness::Steered>::clone(executor)).await
}

#[tokio::test]
async fn waiting_calls_look_at_once_after_a_restart() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (executor, attempts) = steered();
    let mut attempts = attempts.lock().await;
    let first = started(&store, &executor).await;
    first.register(None, asking()).await.expect("registers");
    let run = fresh(create(&first, "w", json!({}), SideRows::default()).await).key;
    // Two calls may take the budget together, so the others wait.
    let held = [
        attempts.recv().await.expect("an attempt"),
        attempts.recv().await.expect("an attempt"),
    ];
    while (first.stats().effects_started, first.stats().effects_active) != (4, 2) {
        tokio::task::yield_now().await;
    }
    first.stop().await;
    drop((held, first));
    let second = started(&store, &executor).await;
    for _ in 0..4 {
        let next = tokio::time::timeout(SOON, attempts.recv()).await;
        let (_, answer) = next.expect("no call stands still").expect("an attempt");
        answer.send(reply()).expect("awaited");
    }
    reaches(&second, &run, RunStatus::Completed).await;
    second.stop().await;
}
