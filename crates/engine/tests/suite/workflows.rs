//! Limits on the number and the size of a tenant's workflows.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use wopr_core::{TenantId, WorkflowId};
use wopr_engine::{Engine, Options, RegisterError, SystemClock, WorkflowLimit, WorkflowRemoval};
use wopr_store::{MemoryStore, SqliteStore, Store};

use crate::harness::{node, steered, tenant, workflow};

fn other() -> TenantId {
    TenantId::parse("other").expect("valid")
}

/// A workflow with a description of this size.
fn described(id: &str, n_bytes: usize) -> Value {
    let mut document = workflow(id, &[node("n", "core.noop", json!({}))], &[]);
    document["description"] = "x".repeat(n_bytes).into();
    document
}

async fn engine(store: &Arc<dyn Store>, max_workflows: usize, max_workflow_bytes: usize) -> Engine {
    let options = Options {
        max_workflows,
        max_workflow_bytes,
        // The registry is read only when the test asks for it.
        poll: Duration::from_secs(600),
        ..Options::default()
    };
    let (executor, _attempts) = steered();
    Engine::start(Arc::clone(store), executor, Arc::new(SystemClock), options)
        .await
        .expect("starts, whatever is registered")
}

fn names(engine: &Engine, tenant: &TenantId) -> Vec<String> {
    let plans = engine.workflows(tenant);
    plans.iter().map(|plan| plan.id().as_str().to_owned()).collect()
}

/// Runs a test on each store that needs no server.
async fn on_each_store<F: Future<Output = ()>>(check: impl Fn(Arc<dyn Store>) -> F) {
    check(Arc::new(MemoryStore::new())).await;
    let dir = tempfile::tempdir().expect("temp dir");
    let options = wopr_store::sqlite::Options::default();
    let store = SqliteStore::open(dir.path().join("wopr.db"), options).expect("opens");
    check(Arc::new(store)).await;
}

#[tokio::test]
async fn the_number_of_workflows_of_a_tenant_is_limited() {
    on_each_store(async |store| {
        let engine = engine(&store, 5, 64 << 20).await;
        let registering = (0..20).map(|n| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let document = described(&format!("w{n}"), n);
                engine.register(Some(&tenant()), document).await
            })
        });
        let registering: Vec<_> = registering.collect();
        let mut n_registered = 0;
        for registered in registering {
            match registered.await.expect("no panic") {
                Ok(_) => n_registered += 1,
                Err(RegisterError::Full(limit)) => {
                    assert_eq!(limit, WorkflowLimit::Workflows { most: 5 });
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((n_registered, engine.workflows(&tenant()).len()), (5, 5));
        // A new version replaces the old one, and another tenant has its own limit.
        let known = names(&engine, &tenant());
        engine
            .register(Some(&tenant()), described(&known[0], 100))
            .await
            .expect("replaces");
        engine
            .register(Some(&other()), described("w0", 0))
            .await
            .expect("registers");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn the_total_definition_size_of_a_tenant_is_limited() {
    on_each_store(async |store| {
        let engine = engine(&store, 100, 1 << 20).await;
        for id in ["w1", "w2", "w3"] {
            let registered = engine.register(Some(&tenant()), described(id, 150 << 10)).await;
            registered.expect("room");
        }
        let refused = engine.register(Some(&tenant()), described("w4", 150 << 10)).await;
        let Err(RegisterError::Full(WorkflowLimit::Bytes { most, taken })) = refused else {
            panic!("{refused:?}")
        };
        // Each counts as its document, and as what it is parsed to.
        assert!(most == 1 << 20 && taken > 900 << 10, "{taken}");
        let larger = engine.register(Some(&tenant()), described("w1", 300 << 10)).await;
        assert!(matches!(larger, Err(RegisterError::Full(_))), "{larger:?}");
        // The refused version was not stored, and smaller versions make room.
        let workflow = WorkflowId::parse("w4").expect("valid");
        let found = engine.find_workflow(&tenant(), &workflow).await;
        assert!(found.expect("reads").is_none());
        engine
            .register(Some(&tenant()), described("w1", 10))
            .await
            .expect("makes room");
        engine
            .register(Some(&tenant()), described("w4", 150 << 10))
            .await
            .expect("there is room");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn compiled_templates_count_among_the_bytes_of_a_tenant() {
    on_each_store(async |store| {
        let engine = engine(&store, 100, 4 << 20).await;
        let templates = |id: &str| {
            let config = json!({ "template": "{{a.b.c.d.e.f}}".repeat(1_100) });
            let nodes: Vec<_> = (0..4)
                .map(|n| node(&format!("n{n}"), "core.template", config.clone()))
                .collect();
            workflow(id, &nodes, &[])
        };
        let mut n_registered = 0;
        while engine
            .register(Some(&tenant()), templates(&format!("w{n_registered}")))
            .await
            .is_ok()
        {
            n_registered += 1;
        }
        // Their texts have 66 KB each.
        assert!((1..5).contains(&n_registered), "{n_registered}");
        engine.stop().await;
    })
    .await;
}

#[tokio::test]
async fn an_engine_starts_with_workflows_beyond_its_limits() {
    on_each_store(async |store| {
        let generous = engine(&store, 100, 64 << 20).await;
        for id in ["w1", "w2", "w3", "w4"] {
            let registered = generous.register(Some(&tenant()), described(id, 150 << 10)).await;
            registered.expect("room");
        }
        let strict = engine(&store, 100, 700 << 10).await;
        assert_eq!(names(&strict, &tenant()), ["w1", "w2"]);
        // A version that was left out becomes current as soon as there is room, whoever made it.
        let small = described("w1", 10);
        generous.register(Some(&tenant()), small).await.expect("stored");
        strict.catch_up().await.expect("reads");
        assert_eq!(names(&strict, &tenant()), ["w1", "w2", "w3"]);
        let refused = strict.register(Some(&tenant()), described("w4", 150 << 10)).await;
        assert!(matches!(refused, Err(RegisterError::Full(_))), "{refused:?}");
        strict
            .register(Some(&tenant()), described("w2", 10))
            .await
            .expect("makes room");
        assert_eq!(names(&strict, &tenant()), ["w1", "w2", "w3", "w4"]);
        strict.stop().await;
        generous.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_removed_workflow_makes_room_and_every_process_forgets_it() {
    on_each_store(async |store| {
        let (one, two) = (engine(&store, 2, 1 << 20).await, engine(&store, 2, 1 << 20).await);
        for id in ["w1", "w2"] {
            let registered = one.register(Some(&tenant()), described(id, 200 << 10)).await;
            registered.expect("room");
        }
        two.catch_up().await.expect("reads");
        let full = one.register(Some(&tenant()), described("w3", 0)).await;
        let text = full.expect_err("full").to_string();
        assert!(text.ends_with("remove one to make room"), "{text}");
        let id = WorkflowId::parse("w1").expect("valid");
        let remove = async |engine: &Engine| engine.remove_workflow(&tenant(), &id).await.expect("removes");
        assert_eq!(remove(&one).await, WorkflowRemoval::Removed);
        assert_eq!(remove(&one).await, WorkflowRemoval::Missing);
        assert_eq!(names(&one, &tenant()), ["w2"]);
        // Its place and its bytes are free.
        one.register(Some(&tenant()), described("w3", 200 << 10))
            .await
            .expect("room");
        assert_eq!(names(&two, &tenant()), ["w1", "w2"]);
        let generation = two.workflows_generation();
        assert!(two.catch_up().await.expect("reads"));
        assert_eq!(names(&two, &tenant()), ["w2", "w3"]);
        assert!(two.workflows_generation() > generation);
        // So does a process that starts later.
        let three = engine(&store, 2, 1 << 20).await;
        assert_eq!(names(&three, &tenant()), ["w2", "w3"]);
        let found = three.find_workflow(&tenant(), &id).await;
        assert!(found.expect("reads").is_none());
        for engine in [one, two, three] {
            engine.stop().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_workflow_that_was_left_out_and_is_removed_is_not_offered_when_there_is_room() {
    on_each_store(async |store| {
        let generous = engine(&store, 100, 64 << 20).await;
        for id in ["w1", "w2", "w3"] {
            let registered = generous.register(Some(&tenant()), described(id, 0)).await;
            registered.expect("room");
        }
        let strict = engine(&store, 1, 64 << 20).await;
        assert_eq!(names(&strict, &tenant()), ["w1"]);
        for id in ["w2", "w1"] {
            let id = WorkflowId::parse(id).expect("valid");
            let removed = strict.remove_workflow(&tenant(), &id).await;
            assert_eq!(removed.expect("removes"), WorkflowRemoval::Removed);
        }
        assert_eq!(names(&strict, &tenant()), ["w3"]);
        generous.stop().await;
        strict.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_shared_workflow_is_current_again_and_is_not_removed() {
    on_each_store(async |store| {
        let engine = engine(&store, 100, 64 << 20).await;
        engine.register(None, described("w", 1)).await.expect("room");
        let own = engine
            .register(Some(&tenant()), described("w", 2))
            .await
            .expect("room");
        let id = WorkflowId::parse("w").expect("valid");
        for wanted in [WorkflowRemoval::Removed, WorkflowRemoval::Shared] {
            let removed = engine.remove_workflow(&tenant(), &id).await;
            assert_eq!(removed.expect("removes"), wanted);
            let plan = engine.workflow(&tenant(), &id).expect("the shared one");
            assert_ne!(plan.version(), own.plan.version());
        }
        engine.stop().await;
    })
    .await;
}
