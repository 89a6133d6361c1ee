//! A budget of a tenant, shared by the hosts of a database.

use std::sync::Arc;

use serde_json::json;
use wopr_core::{BudgetPeriod, RunStatus};
use wopr_engine::{Bound, Budget, Engine, OnBreach, Options, Outcome, SystemClock};
use wopr_store::{PostgresStore, postgres};

use crate::harness::*;

async fn host(url: &str, executor: Arc<Steered>) -> Engine {
    let store = PostgresStore::open(&News::Polling.url(url), postgres::Options::default())
        .await
        .unwrap();
    let budget = Budget {
        tenant: None,
        workflow: None,
        per: BudgetPeriod::Month,
        tokens: Some(Bound { most: 25, grant: 5 }),
        cost_micros: None,
        time_ms: None,
        on_breach: OnBreach::Ask {
            roles: Vec::new(),
            groups: Vec::new(),
        },
    };
    let options = Options {
        budgets: vec![budget],
        ..News::Polling.options()
    };
    Engine::start(Arc::new(store), executor, Arc::new(SystemClock), options)
        .await
        .unwrap()
}

/// Runs a workflow that asks a model once, which takes ten tokens.
async fn ask_model(engine: &Engine, attempts: &Attempts) {
    let run = create(engine, "ask").await.key;
    let (_, reply) = attempts.lock().await.recv().await.unwrap();
    let said = json!({
        "provider": "p", "model": "m", "text": "so", "stop": "end",
        "usage": { "inputTokens": 6, "outputTokens": 4 },
    });
    reply.send(Outcome::Done(said)).unwrap();
    follow(engine, &run, RunStatus::Completed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_of_a_database_share_the_count_of_a_budget() {
    let url = schema().await;
    let (executor, attempts) = steered();
    let one = host(&url, Arc::clone(&executor)).await;
    let two = host(&url, executor).await;
    let asking = workflow(
        "ask",
        &[node("ask", "core.ai.callPrompt", json!({ "prompt": "?" }))],
    );
    for engine in [&one, &two] {
        engine.register(None, asking.clone()).await.unwrap();
    }
    for engine in [&one, &two, &one] {
        ask_model(engine, &attempts).await;
    }
    for engine in [&one, &two] {
        let spent = engine.spent(&tenant()).await.unwrap();
        assert_eq!(
            spent.iter().map(|spent| spent.row.tokens).collect::<Vec<_>>(),
            [30]
        );
    }
    // Thirty tokens are taken, and nobody else has room: neither host asks the model.
    for engine in [&two, &one] {
        let run = create(engine, "ask").await.key;
        follow(engine, &run, RunStatus::WaitingApproval).await;
    }
    assert!(attempts.lock().await.try_recv().is_err());
    one.stop().await;
    two.stop().await;
}
