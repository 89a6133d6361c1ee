//! Runs over a store: their progress, and what survives a restart of the engine.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use serde_json::json;
use wopr_core::{Command, DrainPolicy, RunStatus, Timestamp};
use wopr_engine::{
    Attempt, CommandError, Done, Engine, Executor, Idempotency, Options, Outcome, Report, SideRows,
    SystemClock,
};
use wopr_store::{IdempotencyKey, MemoryStore, SqliteStore, Store};

use crate::harness::{
    answer, create, create_as, engine, fresh, log, node, options, principal, reaches, steered, tenant,
    workflow,
};

fn sqlite(dir: &tempfile::TempDir) -> Arc<dyn Store> {
    Arc::new(
        SqliteStore::open(dir.path().join("wopr.db"), wopr_store::sqlite::Options::default()).expect("opens"),
    )
}

fn once(key: &str, digest: &str) -> SideRows {
    SideRows {
        idempotency: Some(Idempotency {
            key: IdempotencyKey {
                tenant: tenant(),
                principal: principal(),
                scope: "test".into(),
                key: key.into(),
            },
            digest: digest.into(),
            expires_at: Timestamp::from_millis(i64::MAX / 2),
            respond: Arc::new(|view| view.key.run.as_str().as_bytes().to_vec()),
        }),
        ..SideRows::default()
    }
}

#[tokio::test]
async fn the_total_pattern_size_of_a_tenant_is_limited() {
    let (executor, _attempts) = steered();
    let options = Options {
        max_workflow_bytes: 8 << 20,
        ..options()
    };
    let engine = Engine::start(
        Arc::new(MemoryStore::new()),
        executor,
        Arc::new(SystemClock),
        options,
    )
    .await
    .expect("starts");
    let (one, other) = (tenant(), wopr_core::TenantId::parse("other").expect("an id"));
    let large = |n: usize| {
        let noop = |id: &str| node(id, "core.noop", json!({}));
        let mut document = workflow(&format!("w{n}"), &[noop("a"), noop("b")], &[("a", "b")]);
        let patterns: Vec<_> = (0..9)
            .map(|k| json!({ "pattern": format!("{k}[a-z]{{2000}}") }))
            .collect();
        document["configurableSchema"] = json!({ "anyOf": patterns });
        document
    };
    let mut refused = None;
    for n in 0..100 {
        if let Err(error) = engine.register(Some(&one), large(n)).await {
            refused = Some((n, error.to_string()));
            break;
        }
    }
    let (n, error) = refused.expect("an end");
    assert!(n > 2 && error.contains("max_workflow_bytes"), "{n}: {error}");
    // A new version replaces the old one, and another tenant has its own limit.
    assert!(engine.register(Some(&one), large(0)).await.is_ok());
    assert!(engine.register(Some(&other), large(n)).await.is_ok());
    engine.stop().await;
}

#[tokio::test]
async fn a_pure_run_is_one_append() {
    let dir = tempfile::tempdir().expect("temp dir");
    let store = Arc::new(
        SqliteStore::open(dir.path().join("wopr.db"), wopr_store::sqlite::Options::default()).expect("opens"),
    );
    let (executor, _attempts) = steered();
    let engine = engine(store.clone(), executor).await;
    engine
        .register(None, workflow("one", &[node("n", "core.noop", json!({}))], &[]))
        .await
        .expect("registers");
    let before = store.stats().appends;
    let view = fresh(create(&engine, "one", json!({"a": 1}), SideRows::default()).await);
    assert_eq!(view.run.status, RunStatus::Completed);
    assert_eq!(store.stats().appends - before, 1);
    let read = engine.view(&view.key).await.expect("reads").expect("exists");
    assert_eq!(read.run, view.run);
    assert_eq!(
        log(&engine, &view.key).await,
        ["RunStarted", "NodeStarted", "NodeCompleted", "RunCompleted"]
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_delay_and_an_approval_survive_a_restart() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (executor, _attempts) = steered();
    let key = {
        let engine = engine(sqlite(&dir), executor.clone()).await;
        let nodes = [
            node("wait", "core.delay", json!({"delayMs": 60})),
            node("gate", "core.approvalGate", json!({})),
        ];
        engine
            .register(None, workflow("w", &nodes, &[("wait", "gate")]))
            .await
            .expect("registers");
        let view = fresh(create(&engine, "w", json!({}), SideRows::default()).await);
        assert_eq!(view.run.status, RunStatus::Running);
        engine.stop().await;
        view.key
    };
    let engine = engine(sqlite(&dir), executor).await;
    reaches(&engine, &key, RunStatus::WaitingApproval).await;
    let done = engine
        .command(
            &key,
            answer("gate", json!({"action": "accept"})),
            SideRows::default(),
        )
        .await
        .expect("answers");
    assert_eq!(fresh(done).run.status, RunStatus::Completed);
    let late = engine
        .command(
            &key,
            answer("gate", json!({"action": "accept"})),
            SideRows::default(),
        )
        .await;
    assert!(
        matches!(
            late,
            Err(CommandError::Refused(wopr_core::Refusal::AlreadyResolved))
        ),
        "{late:?}"
    );
    engine.stop().await;
}

#[tokio::test]
async fn an_effect_interrupted_by_shutdown_is_retried_with_the_same_key() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (executor, attempts) = steered();
    let first = engine(sqlite(&dir), executor.clone()).await;
    first
        .register(
            None,
            workflow(
                "fx",
                &[node("call", "core.conformance.side-effect", json!({}))],
                &[],
            ),
        )
        .await
        .expect("registers");
    let key = fresh(create(&first, "fx", json!({}), SideRows::default()).await).key;
    let (lost, reply) = attempts.lock().await.recv().await.expect("an attempt");
    drop(reply);
    first.stop().await;
    drop(first);
    let second = engine(sqlite(&dir), executor).await;
    let (again, reply) = attempts.lock().await.recv().await.expect("another attempt");
    assert_eq!(lost.idempotency_key, again.idempotency_key);
    reply.send(Outcome::Done(json!({"ok": true}))).expect("awaited");
    let view = reaches(&second, &key, RunStatus::Completed).await;
    assert_eq!(view.run.outputs, json!({"ok": true}).as_object().cloned());
    second.stop().await;
}

#[tokio::test]
async fn an_orderly_stop_waits_for_attempts_and_begins_no_more() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (executor, attempts) = steered();
    let first = engine(sqlite(&dir), executor.clone()).await;
    let call = |id| node(id, "core.conformance.side-effect", json!({}));
    first
        .register(
            None,
            workflow("fx", &[call("one"), call("two")], &[("one", "two")]),
        )
        .await
        .expect("registers");
    let key = fresh(create(&first, "fx", json!({}), SideRows::default()).await).key;
    let (_, reply) = attempts.lock().await.recv().await.expect("an attempt");
    let mut finishing = Box::pin(first.finish_work());
    let at_once = tokio::time::timeout(std::time::Duration::ZERO, &mut finishing).await;
    assert!(at_once.is_err(), "an attempt is under way");
    reply
        .send(Outcome::Done(json!({"n": 1})))
        .expect("not broken off");
    finishing.await;
    first.stop().await;
    drop(first);
    assert!(
        attempts.lock().await.try_recv().is_err(),
        "an attempt began during the stop"
    );
    let second = engine(sqlite(&dir), executor).await;
    let (begun, reply) = attempts.lock().await.recv().await.expect("the next attempt");
    assert_eq!(begun.step.node.as_str(), "two");
    assert!(
        !begun.is_repeat && !begun.is_interrupted,
        "nobody has begun it before"
    );
    reply.send(Outcome::Done(json!({"n": 2}))).expect("awaited");
    let view = reaches(&second, &key, RunStatus::Completed).await;
    assert_eq!(view.run.outputs, json!({"n": 2}).as_object().cloned());
    second.stop().await;
}

#[tokio::test]
async fn a_long_attempt_renews_its_lease() {
    let (executor, attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    engine
        .register(
            None,
            workflow(
                "fx",
                &[node("call", "core.conformance.side-effect", json!({}))],
                &[],
            ),
        )
        .await
        .expect("registers");
    let key = fresh(create(&engine, "fx", json!({}), SideRows::default()).await).key;
    let (_, reply) = attempts.lock().await.recv().await.expect("an attempt");
    // Longer than two leases: only renewal keeps another attempt away.
    let second = tokio::time::timeout(std::time::Duration::from_millis(700), async {
        attempts.lock().await.recv().await
    })
    .await;
    assert!(
        second.is_err(),
        "a second attempt began while the first was under way"
    );
    reply.send(Outcome::Done(json!({}))).expect("awaited");
    reaches(&engine, &key, RunStatus::Completed).await;
    engine.stop().await;
}

#[tokio::test]
async fn immediate_pause_breaks_an_attempt_off_and_the_resume_makes_another() {
    let (executor, attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    let call = node("call", "core.conformance.side-effect", json!({}));
    engine
        .register(None, workflow("fx", &[call], &[]))
        .await
        .expect("registers");
    let key = fresh(create(&engine, "fx", json!({}), SideRows::default()).await).key;
    let (cut, mut reply) = attempts.lock().await.recv().await.expect("an attempt");
    let pause = Command::Pause {
        reason: None,
        drain: DrainPolicy::Immediate,
    };
    engine
        .command(&key, pause, SideRows::default())
        .await
        .expect("running");
    reply.closed().await;
    assert!(attempts.lock().await.try_recv().is_err());
    let resume = Command::Resume { reason: None };
    engine
        .command(&key, resume, SideRows::default())
        .await
        .expect("paused");
    let (again, reply) = attempts.lock().await.recv().await.expect("another attempt");
    assert_eq!((cut.attempt, again.attempt), (0, 1));
    assert_eq!(cut.idempotency_key, again.idempotency_key);
    assert!(again.is_repeat && !again.is_interrupted);
    reply.send(Outcome::Done(json!({"ok": true}))).expect("awaited");
    let view = reaches(&engine, &key, RunStatus::Completed).await;
    assert_eq!(view.run.outputs, json!({"ok": true}).as_object().cloned());
    engine.stop().await;
}

/// Panics in its first attempt.
#[derive(Debug, Default)]
struct Faulty(AtomicUsize);

#[async_trait]
impl Executor for Faulty {
    async fn run(&self, _attempt: Attempt) -> Report {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            // Without the hook of panics: writing a backtrace may take longer than a lease.
            0 => std::panic::resume_unwind(Box::new("as the test wants")),
            _ => Outcome::Done(json!({})).into(),
        }
    }
}

/// Nobody knows whether the tool was called before the fault.
#[tokio::test]
async fn a_tool_whose_attempt_panics_is_called_again_only_if_it_may_be() {
    for (retry_safe, ends, n_attempts) in [
        (json!(null), RunStatus::Failed, 1),
        (json!(false), RunStatus::Failed, 1),
        (json!(true), RunStatus::Completed, 2),
    ] {
        let executor = Arc::new(Faulty::default());
        let engine = engine(Arc::new(MemoryStore::new()), executor.clone()).await;
        let config = json!({ "tool": "t", "retrySafe": retry_safe });
        let calls = [node("call", "core.mcp.toolCall", config)];
        let registered = engine.register(None, workflow("fx", &calls, &[])).await;
        registered.expect("registers");
        let key = fresh(create(&engine, "fx", json!({}), SideRows::default()).await).key;
        let view = reaches(&engine, &key, ends).await;
        let code = view.run.error.as_ref().map(|(failure, _)| failure.code.as_str());
        assert_eq!(
            code,
            (n_attempts == 1).then_some("outcome_unknown"),
            "{retry_safe}"
        );
        assert_eq!(executor.0.load(Ordering::SeqCst), n_attempts, "{retry_safe}");
        engine.stop().await;
    }
}

#[tokio::test]
async fn concurrent_repeats_of_a_request_take_effect_once() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (executor, _attempts) = steered();
    let engine = engine(sqlite(&dir), executor).await;
    engine
        .register(None, workflow("one", &[node("n", "core.noop", json!({}))], &[]))
        .await
        .expect("registers");
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let engine = engine.clone();
        all.spawn(async move { create(&engine, "one", json!({}), once("k", "d")).await });
    }
    let done = all.join_all().await;
    let fresh: Vec<_> = done
        .iter()
        .filter_map(|done| {
            if let Done::Fresh(view) = done {
                Some(&view.key.run)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(fresh.len(), 1);
    for done in &done {
        if let Done::Replayed(record) = done {
            assert_eq!(record.run.as_ref(), Some(fresh[0]));
            assert_eq!(record.response, fresh[0].as_str().as_bytes());
        }
    }
    engine.stop().await;
}

#[tokio::test]
async fn an_answer_to_a_parent_reaches_the_child_that_asks() {
    let (executor, _attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    engine
        .register(
            None,
            workflow("child", &[node("gate", "core.approvalGate", json!({}))], &[]),
        )
        .await
        .expect("registers");
    let sub = node("sub", "core.subWorkflow", json!({"workflowId": "child"}));
    engine
        .register(None, workflow("parent", &[sub], &[]))
        .await
        .expect("registers");
    let key = fresh(create(&engine, "parent", json!({}), SideRows::default()).await).key;
    let view = reaches(&engine, &key, RunStatus::WaitingApproval).await;
    let child = key.sibling(view.run.children[0].run.clone());
    engine
        .command(
            &key,
            answer("sub", json!({"action": "accept"})),
            SideRows::default(),
        )
        .await
        .expect("forwards");
    let view = reaches(&engine, &key, RunStatus::Completed).await;
    assert_eq!(
        view.run.outputs.as_ref().expect("has outputs")["childStatus"],
        "completed"
    );
    assert_eq!(
        engine
            .view(&child)
            .await
            .expect("reads")
            .expect("exists")
            .run
            .status,
        RunStatus::Completed
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_cancel_reaches_grandchildren() {
    let (executor, _attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    engine
        .register(
            None,
            workflow("c", &[node("gate", "core.approvalGate", json!({}))], &[]),
        )
        .await
        .expect("registers");
    for (id, child) in [("b", "c"), ("a", "b")] {
        let sub = node("sub", "core.subWorkflow", json!({"workflowId": child}));
        engine
            .register(None, workflow(id, &[sub], &[]))
            .await
            .expect("registers");
    }
    let a = fresh(create(&engine, "a", json!({}), SideRows::default()).await).key;
    let view = reaches(&engine, &a, RunStatus::WaitingApproval).await;
    let b = a.sibling(view.run.children[0].run.clone());
    let c = b.sibling(
        engine
            .view(&b)
            .await
            .expect("reads")
            .expect("exists")
            .run
            .children[0]
            .run
            .clone(),
    );
    let cancel = Command::Cancel {
        reason: Some("enough".into()),
        by: Some(principal()),
    };
    let view = fresh(
        engine
            .command(&a, cancel, SideRows::default())
            .await
            .expect("cancels"),
    );
    assert_eq!(view.run.status, RunStatus::Cancelling);
    for key in [&a, &b, &c] {
        reaches(&engine, key, RunStatus::Cancelled).await;
    }
    assert_eq!(
        engine
            .view(&c)
            .await
            .expect("reads")
            .expect("exists")
            .run
            .cancelled_by_parent,
        Some(b.run.clone())
    );
    engine.stop().await;
}

#[tokio::test]
async fn only_one_of_several_concurrent_final_commands_succeeds() {
    let (executor, _attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    let gate = node("gate", "core.approvalGate", json!({}));
    engine
        .register(None, workflow("g", &[gate], &[]))
        .await
        .expect("registers");
    let run = engine.new_run_id();
    let key = fresh(create_as(&engine, run, "g", json!({}), SideRows::default()).await).key;
    let mut all = tokio::task::JoinSet::new();
    for index in 0..20 {
        let (engine, key) = (engine.clone(), key.clone());
        let command = if index % 2 == 0 {
            answer("gate", json!({"action": "accept"}))
        } else {
            Command::Cancel {
                reason: None,
                by: None,
            }
        };
        all.spawn(async move { engine.command(&key, command, SideRows::default()).await.is_ok() });
    }
    let winners = all.join_all().await.into_iter().filter(|won| *won).count();
    assert_eq!(winners, 1, "one command ends the run, the others are refused");
    let log = log(&engine, &key).await;
    assert!(
        log.last()
            .is_some_and(|last| last == "RunCompleted" || last == "RunCancelled"),
        "{log:?}"
    );
    engine.stop().await;
}

#[tokio::test]
async fn an_effect_carries_the_trace_of_the_request_that_started_its_run() {
    let (executor, attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    let call = node("call", "core.conformance.side-effect", json!({}));
    let nodes = [node("wait", "core.delay", json!({"delayMs": 1})), call];
    engine
        .register(None, workflow("fx", &nodes, &[("wait", "call")]))
        .await
        .expect("registers");
    let parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = wopr_core::TraceContext::parse(parent, [b"a=1".as_slice()]);
    assert!(trace.is_some());
    let start = wopr_engine::Start {
        trace: trace.clone(),
        ..crate::harness::start(json!({}))
    };
    let create = wopr_engine::Create {
        run: engine.new_run_id(),
        workflow: crate::harness::plan(&engine, &start.tenant, "fx").await,
        start,
        side_rows: SideRows::default(),
    };
    let key = fresh(engine.create(create).await.expect("creates")).key;
    let (attempt, reply) = attempts.lock().await.recv().await.expect("an attempt");
    assert_eq!(attempt.trace, trace);
    reply.send(Outcome::Done(json!({}))).expect("awaited");
    reaches(&engine, &key, RunStatus::Completed).await;
    engine.stop().await;
}

#[tokio::test]
async fn concurrent_repeats_of_an_answer_take_effect_once() {
    let (executor, _attempts) = steered();
    let engine = engine(Arc::new(MemoryStore::new()), executor).await;
    engine
        .register(
            None,
            workflow("g", &[node("gate", "core.approvalGate", json!({}))], &[]),
        )
        .await
        .expect("registers");
    let key = fresh(create(&engine, "g", json!({}), SideRows::default()).await).key;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let (engine, key) = (engine.clone(), key.clone());
        all.spawn(async move {
            engine
                .command(&key, answer("gate", json!({"action": "accept"})), once("a", "d"))
                .await
        });
    }
    let done: Vec<_> = all
        .join_all()
        .await
        .into_iter()
        .map(|done| done.expect("every repeat is answered"))
        .collect();
    assert_eq!(
        done.iter().filter(|done| matches!(done, Done::Fresh(_))).count(),
        1
    );
    engine.stop().await;
}

#[tokio::test]
async fn a_recently_ended_run_is_read_from_memory() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (executor, _attempts) = steered();
    let engine = engine(Arc::clone(&store), executor.clone()).await;
    let nodes = [
        node("n", "core.noop", json!({})),
        node("gate", "core.approvalGate", json!({})),
    ];
    engine
        .register(None, workflow("one", &nodes[..1], &[]))
        .await
        .expect("registers");
    engine
        .register(None, workflow("two", &nodes, &[]))
        .await
        .expect("registers");
    let ended = fresh(create(&engine, "one", json!({"a": 1}), SideRows::default()).await);
    let waits = fresh(create(&engine, "two", json!({}), SideRows::default()).await);
    // Remove the run from the store behind the engine's back.
    let removal = wopr_store::Removal {
        run: ended.key.run.clone(),
        root: ended.key.run.clone(),
    };
    store.remove(&tenant(), &[removal]).await.expect("removes");
    assert!(store.load(&ended.key).await.expect("reads").is_none());
    let read = engine
        .view(&ended.key)
        .await
        .expect("reads")
        .expect("is remembered");
    assert_eq!((read.run, read.summary), (ended.run, ended.summary));
    // A run that may still change is always read from the store, and so is one of another tenant.
    assert!(engine.ended(&waits.key).is_none());
    let of_others = wopr_core::RunKey::new(wopr_core::TenantId::parse("other").expect("valid"), read.key.run);
    assert!(engine.view(&of_others).await.expect("reads").is_none());
    engine.stop().await;
}
