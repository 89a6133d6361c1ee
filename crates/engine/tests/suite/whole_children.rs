//! Children that need not wait are decided and stored together with their parent.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use wopr_core::{RunStatus, Seq};
use wopr_engine::{Engine, Options, SideRows, SystemClock, View};
use wopr_store::SqliteStore;

use crate::harness::{answer, create, fresh, log, node, options, reaches, steered, workflow};

/// An engine over SQLite with these workflows, and the store, which counts appends.
async fn hosted(dir: &tempfile::TempDir, workflows: &[Value]) -> (Engine, Arc<SqliteStore>) {
    let store = SqliteStore::open(dir.path().join("wopr.db"), wopr_store::sqlite::Options::default());
    let store = Arc::new(store.expect("opens"));
    let (executor, _attempts) = steered();
    // These tests count. No lease may expire on a slow machine, or another timer fires.
    let options = Options {
        lease: Duration::from_secs(60),
        ..options()
    };
    let engine = Engine::start(store.clone(), executor, Arc::new(SystemClock), options);
    let engine = engine.await.expect("starts");
    for workflow in workflows {
        engine.register(None, workflow.clone()).await.expect("registers");
    }
    (engine, store)
}

/// A node that runs a child of the workflow with the same name as the node.
fn sub(id: &str, config: Value) -> Value {
    let mut node = node(id, "core.subWorkflow", config);
    node["config"]["workflowId"] = id.into();
    node
}

async fn child(engine: &Engine, parent: &View, index: usize) -> View {
    let key = parent.key.sibling(parent.run.children[index].run.clone());
    engine.view(&key).await.expect("reads").expect("exists")
}

#[tokio::test]
async fn a_fan_of_children_that_never_wait_is_one_append() {
    let dir = tempfile::tempdir().expect("temp dir");
    let hello = workflow(
        "hello",
        &[node("n", "core.template", json!({"template": "hello"}))],
        &[],
    );
    let calls: Vec<_> = (0..10)
        .map(|n| {
            let mut call = sub("hello", json!({}));
            call["id"] = format!("call{n}").into();
            call
        })
        .collect();
    let (engine, store) = hosted(&dir, &[hello, workflow("fan", &calls, &[])]).await;
    let before = store.stats().appends;
    let view = fresh(create(&engine, "fan", json!({}), SideRows::default()).await);
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(store.stats().appends - before, 1);
    let read = engine.view(&view.key).await.expect("reads").expect("exists");
    assert_eq!((&read.run, &read.summary), (&view.run, &view.summary));
    assert_eq!(view.run.children.len(), 10);
    for (index, named) in view.run.children.iter().enumerate() {
        let child = child(&engine, &view, index).await;
        assert_eq!(child.run.status, RunStatus::Completed);
        assert_eq!(child.summary.status, RunStatus::Completed);
        assert_eq!(
            child.summary.parent,
            Some((view.key.run.clone(), named.step.node.clone()))
        );
        assert_eq!(
            log(&engine, &child.key).await,
            ["RunStarted", "NodeStarted", "NodeCompleted", "RunCompleted"]
        );
    }
    engine.stop().await;
}

#[tokio::test]
async fn decisions_that_stop_at_their_limit_follow_each_other_without_a_load() {
    let dir = tempfile::tempdir().expect("temp dir");
    let hello = workflow("hello", &[node("n", "core.noop", json!({}))], &[]);
    // A decision starts about 256 children.
    let calls: Vec<_> = (0..900)
        .map(|n| {
            let mut call = sub("hello", json!({}));
            call["id"] = format!("call{n}").into();
            call
        })
        .collect();
    let (engine, store) = hosted(&dir, &[hello, workflow("crowd", &calls, &[])]).await;
    let before = store.stats().appends;
    let view = fresh(create(&engine, "crowd", json!({}), SideRows::default()).await);
    let view = reaches(&engine, &view.key, RunStatus::Completed).await;
    assert_eq!(view.run.children.len(), 900);
    let appends = store.stats().appends - before;
    assert!((3..=6).contains(&appends), "{appends} appends");
    engine.stop().await;
    assert_eq!(engine.stats().timers_fired, 1, "one timer leads to all of them");
}

#[tokio::test]
async fn a_chain_of_children_maps_values_within_one_append() {
    let dir = tempfile::tempdir().expect("temp dir");
    let add = |id: &str| {
        let set = node(
            "n",
            "core.setVariable",
            json!({"name": "sum", "expression": "sum + 1"}),
        );
        let mut workflow = workflow(id, &[set], &[]);
        workflow["variables"] = json!([{"name": "sum", "type": "number", "defaultValue": 100}]);
        workflow
    };
    let mapped = || json!({"inputMapping": {"sum": "total"}, "outputMapping": {"total": "sum"}});
    let ids = ["a", "b", "c"];
    let mut parent = workflow(
        "parent",
        &ids.map(|id| sub(id, mapped())),
        &[("a", "b"), ("b", "c")],
    );
    parent["variables"] = json!([{"name": "total", "type": "number", "defaultValue": 1}]);
    let (engine, store) = hosted(&dir, &[add("a"), add("b"), add("c"), parent]).await;
    let before = store.stats().appends;
    let view = fresh(create(&engine, "parent", json!({}), SideRows::default()).await);
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(view.run.variables()["total"], 4);
    assert_eq!(store.stats().appends - before, 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_child_that_waits_starts_by_a_message_beside_children_that_do_not() {
    let dir = tempfile::tempdir().expect("temp dir");
    let gate = workflow("gate", &[node("ask", "core.approvalGate", json!({}))], &[]);
    let quick = workflow("quick", &[node("n", "core.noop", json!({}))], &[]);
    let parent = workflow("parent", &[sub("quick", json!({})), sub("gate", json!({}))], &[]);
    let (engine, _store) = hosted(&dir, &[gate, quick, parent]).await;
    let view = fresh(create(&engine, "parent", json!({}), SideRows::default()).await);
    assert_eq!(view.run.status, RunStatus::Running);
    assert_eq!(child(&engine, &view, 0).await.run.status, RunStatus::Completed);
    let view = reaches(&engine, &view.key, RunStatus::WaitingApproval).await;
    let accept = answer("gate", json!({"action": "accept"}));
    engine
        .command(&view.key, accept, SideRows::default())
        .await
        .expect("forwards");
    let view = reaches(&engine, &view.key, RunStatus::Completed).await;
    for index in 0..2 {
        assert_eq!(
            child(&engine, &view, index).await.run.status,
            RunStatus::Completed
        );
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_child_that_fails_its_parent_leaves_no_child_unended() {
    let dir = tempfile::tempdir().expect("temp dir");
    let quick = workflow("quick", &[node("n", "core.noop", json!({}))], &[]);
    let fails = workflow(
        "fails",
        &[node("n", "core.fail", json!({"code": "no_luck"}))],
        &[],
    );
    let last = workflow("last", &[node("n", "core.noop", json!({}))], &[]);
    let nodes = ["quick", "fails", "last"].map(|id| sub(id, json!({})));
    let (engine, _store) = hosted(&dir, &[quick, fails, last, workflow("parent", &nodes, &[])]).await;
    let view = fresh(create(&engine, "parent", json!({}), SideRows::default()).await);
    assert_eq!(view.run.status, RunStatus::Failed);
    assert_eq!(child(&engine, &view, 0).await.run.status, RunStatus::Completed);
    let failed = child(&engine, &view, 1).await;
    assert_eq!(failed.run.status, RunStatus::Failed);
    assert_eq!(failed.summary.error_code.as_deref(), Some("no_luck"));
    // Its start was on the way when its sibling failed.
    let last = view.key.sibling(view.run.children[2].run.clone());
    reaches(&engine, &last, RunStatus::Completed).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_child_with_much_work_starts_by_a_message() {
    let dir = tempfile::tempdir().expect("temp dir");
    let count = node(
        "count",
        "core.setVariable",
        json!({"name": "n", "expression": "n + 1"}),
    );
    let mut busy = workflow("busy", &[count], &[]);
    busy["variables"] = json!([{"name": "n", "type": "number", "defaultValue": 0}]);
    busy["edges"] = json!([{"id": "again", "sourceNodeId": "count", "targetNodeId": "count",
        "condition": {"type": "expression", "expression": "n < 900"}}]);
    let parent = workflow("parent", &[sub("busy", json!({}))], &[]);
    let (engine, store) = hosted(&dir, &[busy, parent]).await;
    let before = store.stats().appends;
    let view = fresh(create(&engine, "parent", json!({}), SideRows::default()).await);
    let view = reaches(&engine, &view.key, RunStatus::Completed).await;
    assert!(store.stats().appends - before > 2);
    let child = child(&engine, &view, 0).await;
    assert_eq!(child.run.status, RunStatus::Completed);
    assert_ne!(child.run.head, Seq(0));
    engine.stop().await;
}
