//! Quarantine of runs at which processes die, and of runs that cannot be read.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use wopr_core::{Command, KernelEvent, RunKey, RunStatus};
use wopr_engine::{Engine, Outcome, QUARANTINED, SideRows};
use wopr_store::{Batch, Guard, MemoryStore, Queue, SqliteStore, Store, StoredEvent, WorkRow};

use crate::harness::{Attempts, Steered, create, engine, fresh, node, reaches, steered, tenant, workflow};

/// Runs a process for a while and then kills it without a clean shutdown.
fn live<T>(store: &Arc<dyn Store>, executor: &Arc<Steered>, work: impl AsyncFnOnce(&Engine) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let done = runtime.block_on(async {
        let engine = engine(Arc::clone(store), executor.clone()).await;
        work(&engine).await
    });
    runtime.shutdown_background();
    done
}

async fn reason(engine: &Engine, key: &RunKey) -> Option<String> {
    let page = engine
        .events(key, wopr_core::Seq(0), 99)
        .await
        .expect("reads")
        .expect("exists");
    page.events
        .iter()
        .rev()
        .find_map(|recorded| match recorded.event.kernel()? {
            KernelEvent::RunPaused { reason, .. } => reason.clone(),
            _ => None,
        })
}

async fn next(attempts: &Attempts) -> tokio::sync::oneshot::Sender<Outcome> {
    attempts.lock().await.recv().await.expect("an attempt").1
}

fn a_run_at_which_three_processes_died(store: &Arc<dyn Store>) {
    let (executor, attempts) = steered();
    let key = live(store, &executor, async |engine| {
        let call = node("call", "core.conformance.side-effect", json!({}));
        let gate = node("gate", "core.approvalGate", json!({}));
        engine
            .register(None, workflow("w", &[call], &[]))
            .await
            .expect("registers");
        engine
            .register(None, workflow("gate", &[gate], &[]))
            .await
            .expect("registers");
        let view = fresh(create(engine, "w", json!({}), SideRows::default()).await);
        next(&attempts).await;
        view.key
    });
    for _ in 1..3 {
        live(store, &executor, async |engine| {
            next(&attempts).await;
            let view = engine.view(&key).await.expect("reads").expect("exists");
            assert_eq!(view.run.status, RunStatus::Running);
        });
    }
    live(store, &executor, async |engine| {
        reaches(engine, &key, RunStatus::Paused).await;
        assert_eq!(reason(engine, &key).await.as_deref(), Some(QUARANTINED));
        // Other runs continue.
        fresh(create(engine, "gate", json!({}), SideRows::default()).await);
        assert!(attempts.lock().await.try_recv().is_err());
    });
    // The run stays paused over restarts, until somebody resumes it.
    live(store, &executor, async |engine| {
        reaches(engine, &key, RunStatus::Paused).await;
        assert_eq!(engine.stats().runs_quarantined, 0);
        let resume = Command::Resume { reason: None };
        engine
            .command(&key, resume, SideRows::default())
            .await
            .expect("resumes");
        next(&attempts)
            .await
            .send(Outcome::Done(json!({})))
            .expect("it waits");
        reaches(engine, &key, RunStatus::Completed).await;
    });
}

#[test]
fn a_run_at_which_three_processes_died_is_paused_until_resumed() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    a_run_at_which_three_processes_died(&memory);
    let dir = tempfile::tempdir().expect("temp dir");
    let options = wopr_store::sqlite::Options::default();
    let store = SqliteStore::open(dir.path().join("wopr.db"), options).expect("opens");
    let store: Arc<dyn Store> = Arc::new(store);
    a_run_at_which_three_processes_died(&store);
}

#[test]
fn a_clean_shutdown_counts_no_death() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (executor, attempts) = steered();
    let key = live(&store, &executor, async |engine| {
        let call = node("call", "core.conformance.side-effect", json!({}));
        engine
            .register(None, workflow("w", &[call], &[]))
            .await
            .expect("registers");
        let view = fresh(create(engine, "w", json!({}), SideRows::default()).await);
        next(&attempts).await;
        engine.stop().await;
        view.key
    });
    for _ in 0..4 {
        live(&store, &executor, async |engine| {
            next(&attempts).await;
            engine.stop().await;
        });
    }
    live(&store, &executor, async |engine| {
        next(&attempts)
            .await
            .send(Outcome::Done(json!({})))
            .expect("it waits");
        reaches(engine, &key, RunStatus::Completed).await;
    });
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_run_is_quarantined_and_others_continue() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (executor, _attempts) = steered();
    let engine = engine(Arc::clone(&store), executor).await;
    let gate = node("gate", "core.approvalGate", json!({}));
    engine
        .register(None, workflow("w", &[gate], &[]))
        .await
        .expect("registers");
    let mut broken = Vec::new();
    for _ in 0..3 {
        let view = fresh(create(&engine, "w", json!({}), SideRows::default()).await);
        let (summary, head) = store.summary(&view.key).await.expect("reads").expect("exists");
        let event = StoredEvent {
            seq: head,
            body: b"\xff no event".to_vec(),
        };
        let mut batch = Batch::new(view.key.clone(), Guard::At(head), vec![event], summary);
        batch.work_set = vec![WorkRow::timer("continue", engine.now())];
        store.append(batch).await.expect("appends");
        broken.push(view.key);
    }
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    for key in &broken {
        loop {
            let (summary, _) = store.summary(key).await.expect("reads").expect("exists");
            if summary.status == RunStatus::Paused {
                break;
            }
            assert!(tokio::time::Instant::now() < until, "{:?}", summary.status);
            tokio::time::sleep(Duration::from_millis(100)).await; // sleep: virtual time
        }
    }
    assert_eq!(engine.stats().runs_quarantined, 3);
    assert_eq!(
        store.next_due(Queue::Timers).await.expect("reads"),
        None,
        "nobody looks at them again"
    );
    let view = fresh(create(&engine, "w", json!({}), SideRows::default()).await);
    assert_eq!(
        (view.key.tenant, view.run.status),
        (tenant(), RunStatus::WaitingApproval)
    );
    engine.stop().await;
}
