//! An engine over a store, with an executor that tests control.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};
use wopr_core::{
    Command, NodeTypes, Origin, Plan, PrincipalId, Resolve, RunId, RunKey, RunStatus, Seq, TenantId,
    WorkflowId,
};
use wopr_engine::{
    Attempt, Create, Done, Engine, Executor, Options, Outcome, Report, SideRows, Start, SystemClock, View,
};
use wopr_store::Store;

pub(crate) fn tenant() -> TenantId {
    TenantId::parse("default").expect("valid")
}

pub(crate) fn principal() -> PrincipalId {
    PrincipalId::parse("tester").expect("valid")
}

/// Hands each attempt to the test and waits for its outcome.
#[derive(Debug)]
pub(crate) struct Steered(mpsc::Sender<(Attempt, oneshot::Sender<Outcome>)>);

pub(crate) type Attempts = Mutex<mpsc::Receiver<(Attempt, oneshot::Sender<Outcome>)>>;

pub(crate) fn steered() -> (Arc<Steered>, Arc<Attempts>) {
    let (sender, receiver) = mpsc::channel(64);
    (Arc::new(Steered(sender)), Arc::new(Mutex::new(receiver)))
}

#[async_trait]
impl Executor for Steered {
    async fn run(&self, attempt: Attempt) -> Report {
        let (reply, outcome) = oneshot::channel();
        self.0.send((attempt, reply)).await.expect("the test listens");
        match outcome.await {
            Ok(outcome) => outcome.into(),
            // The test dropped the reply: the attempt hangs, as with a lost peer.
            Err(_) => std::future::pending().await,
        }
    }
}

pub(crate) fn options() -> Options {
    Options {
        node_types: NodeTypes { conformance: true },
        poll: Duration::from_millis(20),
        lease: Duration::from_millis(300),
        ..Options::default()
    }
}

pub(crate) async fn engine(store: Arc<dyn Store>, executor: Arc<dyn Executor>) -> Engine {
    Engine::start(store, executor, Arc::new(SystemClock), options())
        .await
        .expect("starts")
}

pub(crate) fn node(id: &str, type_id: &str, config: impl Into<Value>) -> Value {
    let config = config.into();
    json!({"id": id, "typeId": type_id, "name": id, "position": {"x": 0, "y": 0}, "config": config, "inputs": {}})
}

pub(crate) fn workflow(id: &str, nodes: &[Value], edges: &[(&str, &str)]) -> Value {
    let edges: Vec<_> = edges
        .iter()
        .map(|(from, to)| json!({"id": format!("{from}-{to}"), "sourceNodeId": from, "targetNodeId": to}))
        .collect();
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes, "edges": edges, "triggers": [],
        "variables": [], "metadata": {}, "settings": {}
    })
}

pub(crate) fn start(inputs: Value) -> Start {
    let Value::Object(inputs) = inputs else {
        panic!("inputs are an object")
    };
    Start {
        tenant: tenant(),
        principal: principal(),
        origin: Origin::new("rest"),
        inputs,
        configurable: serde_json::Map::new(),
        tags: Vec::new(),
        metadata: serde_json::Map::new(),
        context: None,
        trace: None,
    }
}

pub(crate) async fn create(engine: &Engine, workflow: &str, inputs: Value, side_rows: SideRows) -> Done {
    let run = engine.new_run_id();
    create_as(engine, run, workflow, inputs, side_rows).await
}

pub(crate) async fn create_as(
    engine: &Engine,
    run: RunId,
    workflow: &str,
    inputs: Value,
    side_rows: SideRows,
) -> Done {
    let start = start(inputs);
    let workflow = plan(engine, &start.tenant, workflow).await;
    engine
        .create(Create {
            run,
            workflow,
            start,
            side_rows,
        })
        .await
        .expect("creates")
}

/// The current version of a workflow, which must be registered.
pub(crate) async fn plan(engine: &Engine, tenant: &TenantId, workflow: &str) -> Arc<Plan> {
    let id = WorkflowId::parse(workflow).expect("valid");
    let found = engine.find_workflow(tenant, &id).await.expect("reads");
    found.expect("the workflow is registered")
}

pub(crate) fn fresh(done: Done) -> View {
    match done {
        Done::Fresh(view) => view,
        Done::Replayed(record) => panic!("replayed {record:?}"),
    }
}

pub(crate) async fn reaches(engine: &Engine, key: &RunKey, wanted: RunStatus) -> View {
    let mut tail = engine.tail(key);
    for _ in 0..2_000 {
        let view = engine.view(key).await.expect("reads").expect("exists");
        if view.run.status == wanted {
            return view;
        }
        assert!(
            !view.run.status.is_terminal(),
            "ended as {:?}: {:?}",
            view.run.status,
            view.run.error
        );
        tail.changed().await;
    }
    panic!("never {wanted:?}");
}

pub(crate) fn answer(node: &str, value: Value) -> Command {
    Command::Resolve(Resolve {
        node: wopr_core::NodeId::parse(node).expect("valid"),
        ordinal: None,
        interrupt: None,
        value,
        by: principal(),
        voter: None,
        authority: wopr_core::Authority::default(),
        is_untrusted: false,
    })
}

pub(crate) async fn log(engine: &Engine, key: &RunKey) -> Vec<String> {
    let page = engine
        .events(key, Seq(0), 10_000)
        .await
        .expect("reads")
        .expect("exists");
    assert_eq!(page.head.0, page.events.len() as u64);
    page.events
        .iter()
        .map(|recorded| {
            format!("{:?}", recorded.event)
                .split([' ', '('])
                .next()
                .unwrap_or("")
                .to_owned()
        })
        .collect()
}
