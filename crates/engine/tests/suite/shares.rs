//! Capacity shared by tenants: one that floods the host leaves some for another.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use wopr_core::{NodeTypes, RunKey, RunStatus, TenantId, WorkflowId};
use wopr_engine::{Create, Engine, Options, Outcome, RegisterError, SideRows, Start, SystemClock};
use wopr_store::{Log as _, MemoryStore, RunFilter, SqliteStore, Store};

use crate::harness::{fresh, node, plan, start, steered, workflow};

fn tenant(name: &str) -> TenantId {
    TenantId::parse(name).expect("valid")
}

async fn create(engine: &Engine, name: &str) -> RunKey {
    let start = Start {
        tenant: tenant(name),
        ..start(json!({}))
    };
    let create = Create {
        run: engine.new_run_id(),
        workflow: plan(engine, &start.tenant, "w").await,
        start,
        side_rows: SideRows::default(),
    };
    fresh(engine.create(create).await.expect("creates")).key
}

#[tokio::test]
async fn slow_calls_of_one_tenant_leave_slots_for_another() {
    let (executor, attempts) = steered();
    let options = Options {
        node_types: NodeTypes { conformance: true },
        max_effects: 8,
        poll: Duration::from_millis(20),
        ..Options::default()
    };
    let engine = Engine::start(
        Arc::new(MemoryStore::new()),
        executor,
        Arc::new(SystemClock),
        options,
    )
    .await
    .expect("starts");
    let call = node("call", "core.conformance.side-effect", json!({}));
    engine
        .register(None, workflow("w", &[call], &[]))
        .await
        .expect("registers");
    for _ in 0..40 {
        create(&engine, "greedy").await;
    }
    let mut attempts = attempts.lock().await;
    let mut held = Vec::new();
    for _ in 0..6 {
        let (attempt, reply) = attempts.recv().await.expect("an attempt");
        assert_eq!(attempt.run.tenant, tenant("greedy"));
        held.push(reply);
    }
    // None of those attempts ends, and more are waiting.
    let modest = create(&engine, "modest").await;
    let (attempt, reply) = attempts.recv().await.expect("an attempt");
    assert_eq!(attempt.run, modest);
    reply.send(Outcome::Done(json!({}))).expect("it waits");
    let next = create(&engine, "modest").await;
    let (attempt, _reply) = attempts.recv().await.expect("an attempt");
    assert_eq!(attempt.run, next);
    // Freed slots go to the waiting attempts.
    held.pop()
        .expect("one")
        .send(Outcome::Done(json!({})))
        .expect("it waits");
    let (attempt, _reply) = attempts.recv().await.expect("an attempt");
    assert_eq!(attempt.run.tenant, tenant("greedy"));
    // Calls that may not be repeated fail if another holder may have made them.
    assert!(
        !attempt.is_repeat && !attempt.is_interrupted,
        "it has only waited"
    );
    engine.stop().await;
}

async fn large_requests_share_their_memory(store: Arc<dyn Store>) {
    let (executor, attempts) = steered();
    let options = Options {
        max_effect_bytes: 1 << 20,
        poll: Duration::from_millis(20),
        ..Options::default()
    };
    let engine = Engine::start(store, executor, Arc::new(SystemClock), options)
        .await
        .expect("starts");
    let config =
        json!({"url": "https://example.com", "method": "POST", "body": vec!["x".repeat(50 << 10); 6]});
    let call = node("call", "core.http.request", config);
    engine
        .register(None, workflow("w", &[call], &[]))
        .await
        .expect("registers");
    for _ in 0..20 {
        create(&engine, "greedy").await;
    }
    let mut attempts = attempts.lock().await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let (attempt, reply) = attempts.recv().await.expect("an attempt");
        assert_eq!(attempt.run.tenant, tenant("greedy"));
        held.push((attempt, reply));
    }
    // There are slots for all of them, but not enough memory, of which some is left for another tenant.
    let modest = create(&engine, "modest").await;
    let (attempt, _reply) = attempts.recv().await.expect("an attempt");
    assert_eq!(attempt.run, modest);
    let (_, reply) = held.pop().expect("one");
    reply.send(Outcome::Done(json!({}))).expect("it waits");
    let (_, reply) = held.pop().expect("one");
    reply.send(Outcome::Done(json!({}))).expect("it waits");
    let (attempt, _reply) = attempts.recv().await.expect("an attempt");
    assert_eq!(attempt.run.tenant, tenant("greedy"));
    engine.stop().await;
}

#[tokio::test]
async fn large_requests_of_one_tenant_leave_memory_for_another() {
    large_requests_share_their_memory(Arc::new(MemoryStore::new())).await;
    let dir = tempfile::tempdir().expect("temp dir");
    let options = wopr_store::sqlite::Options::default();
    let store = SqliteStore::open(dir.path().join("wopr.db"), options).expect("opens");
    large_requests_share_their_memory(Arc::new(store)).await;
}

/// A workflow that starts `n` children.
fn children(id: &str, of: &str, n: usize) -> serde_json::Value {
    let nodes: Vec<_> = (0..n)
        .map(|n| {
            node(
                &format!("n{n}"),
                "core.subWorkflow",
                json!({"workflowId": of, "onChildFailure": "absorb"}),
            )
        })
        .collect();
    workflow(id, &nodes, &[])
}

#[tokio::test]
async fn a_run_tree_stops_growing_at_its_limit() {
    let (executor, _attempts) = steered();
    let options = Options {
        max_descendants: 300,
        poll: Duration::from_millis(20),
        ..Options::default()
    };
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(store.clone(), executor, Arc::new(SystemClock), options)
        .await
        .expect("starts");
    let leaf = workflow("leaf", &[node("n", "core.noop", json!({}))], &[]);
    engine.register(None, leaf).await.expect("registers");
    for (id, of) in [("c", "leaf"), ("b", "c"), ("w", "b")] {
        engine
            .register(None, children(id, of, 12))
            .await
            .expect("registers");
    }
    let root = create(&engine, "bomb").await;
    let mut tail = engine.tail(&root);
    loop {
        let view = engine.view(&root).await.expect("reads").expect("exists");
        if view.run.status.is_terminal() {
            break;
        }
        tail.changed().await;
    }
    let page = store
        .list_runs(&tenant("bomb"), &RunFilter::default(), None, 10_000)
        .await
        .expect("reads");
    // All that are allowed, and not one more.
    assert_eq!(page.runs.len() - 1, 300);
    let mut refused = 0;
    for (run, summary, _) in &page.runs {
        if summary.status == RunStatus::Failed {
            let view = engine
                .view(&root.sibling(run.clone()))
                .await
                .expect("reads")
                .expect("exists");
            let (error, _) = view.run.error.as_ref().expect("a failed run says why");
            refused += usize::from(error.code == "descendant_limit_exceeded");
        }
    }
    assert!(refused > 0);
    // Another tree is not affected.
    let view = engine
        .view(&create(&engine, "modest").await)
        .await
        .expect("reads")
        .expect("exists");
    assert_eq!(view.run.status, RunStatus::Running);
    engine.stop().await;
}

/// Returns `true` if work is done in place: it completes at once although the only blocking thread is busy.
async fn is_done_in_place<T>(work: impl Future<Output = T>) -> (bool, T) {
    let (free, held) = std::sync::mpsc::channel::<()>();
    let (began, begins) = tokio::sync::oneshot::channel();
    let busy = tokio::task::spawn_blocking(move || {
        began.send(()).expect("the test waits");
        // Blocks until the sender is dropped.
        let _ = held.recv();
    });
    begins.await.expect("it begins");
    let mut work = std::pin::pin!(work);
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(work.as_mut().poll(cx))).await;
    drop(free);
    busy.await.expect("it ends");
    match first {
        std::task::Poll::Ready(done) => (true, done),
        std::task::Poll::Pending => (false, work.await),
    }
}

#[test]
fn definitions_of_tenants_are_compiled_on_blocking_threads() {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build();
    runtime
        .expect("a runtime")
        .block_on(definitions_are_compiled_aside());
}

async fn definitions_are_compiled_aside() {
    // Workflows are registered and caught up with only when the test asks for it.
    let options = Options {
        poll: Duration::from_secs(3_600),
        ..Options::default()
    };
    let (executor, _attempts) = steered();
    let store = Arc::new(MemoryStore::new());
    let engine = Engine::start(
        store.clone(),
        executor.clone(),
        Arc::new(SystemClock),
        options.clone(),
    )
    .await
    .expect("starts");
    let document = |name: &str| workflow("w", &[node(name, "core.noop", json!({}))], &[]);
    engine.register(None, document("n")).await.expect("registers");
    // Its decisions are short, so by now they are made in place.
    for _ in 0..64 {
        create(&engine, "trusted").await;
    }
    let trusted = tenant("trusted");
    let (is_in_place, six) = is_done_in_place(engine.compute(&trusted, 1, || 2 * 3)).await;
    assert!(is_in_place && six.is_ok_and(|six| six == 6));
    for name in ["one", "two"] {
        let registering = engine.register(Some(&trusted), document(name));
        let (is_in_place, registered) = is_done_in_place(registering).await;
        assert!(!is_in_place && registered.expect("registers").is_new);
    }
    let refused = engine.register(Some(&trusted), json!({ "id": "w" }));
    let (is_in_place, refused) = is_done_in_place(refused).await;
    assert!(!is_in_place && matches!(refused, Err(RegisterError::Invalid(_))));

    // Another process finds them in the registry.
    let other = Engine::start(store, executor, Arc::new(SystemClock), options)
        .await
        .expect("starts");
    engine
        .register(Some(&trusted), document("three"))
        .await
        .expect("registers");
    let (is_in_place, caught_up) = is_done_in_place(other.catch_up()).await;
    assert!(!is_in_place && caught_up.expect("reads"));
    let current = |engine: &Engine| {
        let plan = engine.workflow(&trusted, &WorkflowId::parse("w").expect("valid"));
        plan.expect("registered").version().clone()
    };
    assert_eq!(current(&other), current(&engine));
    engine.stop().await;
    other.stop().await;
}
