//! Retention: runs disappear at once and are deleted step by step.

use std::sync::Arc;

use tokio::task::JoinSet;
use wopr_core::{RunKey, RunStatus, Seq};
use wopr_store::{
    AppendError, Batch, BlobRow, Child, Log as _, MessageRow, PhaseCursor, PhaseFilter, Queue, Removal,
    Retention as _, RunFilter, Snapshot, Store, Swept,
};

use crate::{behaviours, database::Database, make::*, schema::Schema};

behaviours! {
    removed_run_disappears_at_once_and_leaves_nothing,
    marking_the_root_removes_the_tree,
    a_run_that_has_not_ended_cannot_be_marked,
    appends_to_a_removed_run_find_nothing,
    idempotency_record_outlives_its_run,
    sweeping_in_small_steps_touches_nothing_else,
    roots_that_ended_are_found_page_by_page,
    children_of_several_are_found_page_by_page,
    unfinished_removals_are_reported,
    tenants_are_found_in_order,
}

/// An ended run with rows in every table.
fn ended(run: &RunKey, at_millis: i64) -> Batch {
    let mut batch = create(run, 3);
    batch.summary = summary(RunStatus::Completed, at_millis);
    batch.summary.group = Some("ctx".to_owned());
    batch.snapshot = Some(Snapshot {
        head: Seq(3),
        body: vec![1],
    });
    batch.work_set = vec![timer("t", 5)];
    batch.work_set.extend([effect("e")]);
    batch.inbox_sent = vec![run_message(run, run, 2)];
    batch.messages = vec![MessageRow {
        id: "m".to_owned(),
        seq: Seq(3),
        body: vec![2],
    }];
    batch.blobs = vec![BlobRow {
        id: "b".to_owned(),
        media_type: "text/plain".to_owned(),
        bytes: vec![3],
    }];
    batch.push = along(&batch.run, "p");
    batch
}

/// Like [`ended`], for a child run.
fn ended_child(run: &RunKey, parent: &RunKey, at_millis: i64) -> Batch {
    let mut batch = ended(run, at_millis);
    batch.summary.parent = Some((parent.run.clone(), node("spawn")));
    batch
}

fn removal(run: u64, root: u64) -> Removal {
    Removal {
        run: run_id(run),
        root: run_id(root),
    }
}

async fn remove(store: &dyn Store, removals: &[Removal]) {
    store.remove(&tenant("acme"), removals).await.expect("mark");
}

/// Sweeps until nothing is left. Returns the number of removed runs.
async fn sweep(store: &dyn Store, limit: usize) -> usize {
    let mut runs = 0;
    loop {
        let swept = store.sweep(limit).await.expect("sweep");
        runs += swept.runs;
        if swept == Swept::default() {
            return runs;
        }
    }
}

/// Lists the reads that still find a run.
async fn seen(store: &dyn Store, run: &RunKey) -> Vec<&'static str> {
    let mut seen = Vec::new();
    let mut see = |what, is_there: bool| {
        if is_there {
            seen.push(what);
        }
    };
    see("load", store.load(run).await.expect("load").is_some());
    see("summary", store.summary(run).await.expect("summary").is_some());
    let heads = store.heads(std::slice::from_ref(run)).await.expect("heads");
    see("heads", heads != [None]);
    see(
        "events",
        store.events(run, Seq(0), 9).await.expect("events").is_some(),
    );
    see(
        "messages",
        !store.messages(run, 9).await.expect("messages").is_empty(),
    );
    see("blob", store.blob(run, "b").await.expect("blob").is_some());
    let runs = store
        .list_runs(&run.tenant, &RunFilter::default(), None, 99)
        .await
        .expect("runs");
    see("runs", runs.runs.iter().any(|(listed, ..)| *listed == run.run));
    let phases = store
        .list_by_phase(&run.tenant, &PhaseFilter::default(), None, 99)
        .await
        .expect("phases");
    assert_eq!(phases.total, phases.runs.len() as u64);
    see("phases", phases.runs.iter().any(|(listed, _)| *listed == run.run));
    seen
}

const EVERYTHING: [&str; 8] = [
    "load", "summary", "heads", "events", "messages", "blob", "runs", "phases",
];
const NOTHING: [&str; 0] = [];

async fn removed_run_disappears_at_once_and_leaves_nothing(store: Arc<dyn Store>) {
    store.append(ended(&run(1), 7)).await.expect("append");
    assert_eq!(seen(&*store, &run(1)).await, EVERYTHING);

    remove(&*store, &[removal(1, 1)]).await;
    assert_eq!(seen(&*store, &run(1)).await, NOTHING);
    assert_eq!(sweep(&*store, 100).await, 1);
    assert_eq!(sweep(&*store, 100).await, 0);

    // A new run with the same id finds nothing of the first one.
    store.append(create(&run(1), 1)).await.expect("append");
    let loaded = store.load(&run(1)).await.expect("load").expect("there");
    assert_eq!(
        (loaded.head, loaded.snapshot, loaded.summary.group),
        (Seq(1), None, None)
    );
    assert!(loaded.inbox.is_empty());
    assert!(store.messages(&run(1), 9).await.expect("messages").is_empty());
    assert_eq!(store.blob(&run(1), "b").await.expect("blob"), None);
    assert_eq!(store.next_due(Queue::Timers).await.expect("due"), None);
    let leased = store
        .lease(Queue::Effects, wopr_store::Epoch(1), times(9, 99), &9.into())
        .await;
    assert_eq!(leased.expect("lease"), []);
    assert!(
        store
            .runs_with_inbox(wopr_store::Epoch(1), None, 9)
            .await
            .expect("inboxes")
            .is_empty()
    );
    assert!(store.pushes(&run(1)).await.expect("pushes").is_empty());
    assert!(
        store
            .outbox(wopr_store::Epoch(1), None, 9)
            .await
            .expect("outbox")
            .is_empty()
    );
}

async fn marking_the_root_removes_the_tree(store: Arc<dyn Store>) {
    store.append(ended(&run(1), 7)).await.expect("append");
    for n in 2..6 {
        store
            .append(ended_child(&run(n), &run(1), 7))
            .await
            .expect("append");
    }
    remove(&*store, &[removal(2, 1), removal(3, 1)]).await;
    remove(&*store, &[removal(4, 1), removal(5, 1)]).await;
    assert_eq!(sweep(&*store, 100).await, 0, "it is still there");
    for n in 1..6 {
        assert_eq!(seen(&*store, &run(n)).await, EVERYTHING, "{n}");
    }

    remove(&*store, &[removal(1, 1)]).await;
    for n in 1..6 {
        assert_eq!(seen(&*store, &run(n)).await, NOTHING, "{n}");
    }
    // At no step of the sweep does a run reappear.
    let mut runs = 0;
    loop {
        let swept = store.sweep(2).await.expect("sweep");
        runs += swept.runs;
        for n in 1..6 {
            assert_eq!(seen(&*store, &run(n)).await, NOTHING, "{n}");
        }
        if swept == Swept::default() {
            break;
        }
    }
    assert_eq!(runs, 5);
}

async fn a_run_that_has_not_ended_cannot_be_marked(store: Arc<dyn Store>) {
    for (n, status) in (1..).zip(RunStatus::ALL) {
        let mut batch = ended(&run(n), 7);
        batch.summary.status = status;
        store.append(batch).await.expect("append");
        remove(&*store, &[removal(n, n), removal(n + 100, n + 100)]).await;
        let expected: &[&str] = if status.is_terminal() {
            &NOTHING
        } else {
            &EVERYTHING
        };
        assert_eq!(seen(&*store, &run(n)).await, expected, "{status:?}");
    }
    assert_eq!(sweep(&*store, 100).await, 3);
    assert!(store.begun_removals(9).await.expect("begun").is_empty());
}

async fn appends_to_a_removed_run_find_nothing(store: Arc<dyn Store>) {
    store.append(ended(&run(1), 7)).await.expect("append");
    remove(&*store, &[removal(1, 1)]).await;
    let swept_later = |batch: Batch| {
        let store = Arc::clone(&store);
        async move { store.append(batch).await.expect_err("gone") }
    };
    let late = swept_later(append(&run(1), 3, 1)).await;
    assert!(
        matches!(
            late,
            AppendError::Conflict {
                expected: Seq(3),
                actual: None
            }
        ),
        "{late:?}"
    );
    let again = swept_later(create(&run(1), 1)).await;
    assert!(
        matches!(
            again,
            AppendError::Conflict {
                expected: Seq(0),
                actual: None
            }
        ),
        "{again:?}"
    );
    assert_eq!(sweep(&*store, 1).await, 1);
    let late = swept_later(append(&run(1), 3, 1)).await;
    assert!(
        matches!(
            late,
            AppendError::Conflict {
                expected: Seq(3),
                actual: None
            }
        ),
        "{late:?}"
    );
}

async fn idempotency_record_outlives_its_run(store: Arc<dyn Store>) {
    let mut batch = ended(&run(1), 7);
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect("append");
    remove(&*store, &[removal(1, 1)]).await;
    sweep(&*store, 100).await;
    let mut again = create(&run(2), 1);
    again.idempotency = Some(record("k", 100));
    let refused = store.append(again).await.expect_err("it took effect");
    assert!(matches!(refused, AppendError::Duplicate(_)), "{refused:?}");
    assert_eq!(store.forget_expired(at(100), 9).await.expect("forget"), 1);
}

async fn sweeping_in_small_steps_touches_nothing_else(store: Arc<dyn Store>) {
    for n in 1..9 {
        let mut batch = ended(&run(n), 7);
        batch.events = events(0, 40);
        batch.snapshot = None;
        store.append(batch).await.expect("append");
    }
    let other = RunKey::new(tenant("zeta"), run_id(1));
    store.append(ended(&other, 7)).await.expect("append");
    remove(&*store, &[removal(1, 1), removal(3, 3), removal(5, 5)]).await;
    let (mut runs, mut steps) = (0, 0);
    loop {
        let swept = store.sweep(8).await.expect("sweep");
        runs += swept.runs;
        steps += 1;
        if swept == Swept::default() {
            break;
        }
        assert!(steps < 200, "it ends");
    }
    assert_eq!(runs, 3);
    for n in [2, 4, 6, 7, 8] {
        let page = store.events(&run(n), Seq(0), 99).await.expect("events");
        assert_eq!(page.expect("a run").events, events(0, 40));
        assert_eq!(seen(&*store, &run(n)).await, EVERYTHING, "{n}");
    }
    assert_eq!(seen(&*store, &other).await, EVERYTHING);
}

async fn roots_that_ended_are_found_page_by_page(store: Arc<dyn Store>) {
    // The later the id, the earlier the run ended; every third one is a child, every fifth one is still
    // running.
    for n in 1..21_u64 {
        let at_millis = 100 - i64::try_from(n).expect("small");
        let mut batch = ended(&run(n), at_millis);
        if n.is_multiple_of(3) {
            batch = ended_child(&run(n), &run(1), at_millis);
        }
        if n.is_multiple_of(5) {
            batch.summary.status = RunStatus::Running;
        }
        store.append(batch).await.expect("append");
    }
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = store
            .ended_roots(&tenant("acme"), at(98), after.as_ref(), 4)
            .await
            .expect("a page");
        found.extend(page.roots);
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let expected: Vec<_> = (3..21_u64)
        .rev()
        .filter(|n| !n.is_multiple_of(3) && !n.is_multiple_of(5))
        .map(run_id)
        .collect();
    assert_eq!(found, expected);
    assert_eq!(pages, 5, "18 runs are looked at, four at a time");

    remove(&*store, &[removal(4, 4)]).await;
    let last = PhaseCursor {
        since: at(93),
        run: run_id(7),
    };
    let page = store.ended_roots(&tenant("acme"), at(98), Some(&last), 9).await;
    assert_eq!(page.expect("a page").roots, NOTHING.map(|_| run_id(0)));
}

async fn children_of_several_are_found_page_by_page(store: Arc<dyn Store>) {
    let mut expected = Vec::new();
    for parent in 1..4_u64 {
        for n in 0..3_u64 {
            let key = run(parent * 10 + n);
            let mut batch = ended_child(&key, &run(parent), 7);
            let is_ended = n > 0;
            if !is_ended {
                batch.summary.status = RunStatus::Running;
            }
            store.append(batch).await.expect("append");
            expected.push(Child {
                parent: run_id(parent),
                run: key.run,
                ended: is_ended.then(|| at(7)),
            });
        }
    }
    expected.retain(|child| child.parent != run_id(2));
    let parents = [run_id(3), run_id(1), run_id(9)];
    for limit in 1..8 {
        let mut found: Vec<Child> = Vec::new();
        loop {
            let page = store
                .children(&tenant("acme"), &parents, found.last(), limit)
                .await
                .expect("a page");
            assert!(page.len() <= limit);
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, expected, "by {limit}");
    }
    assert_eq!(
        store
            .children(&tenant("zeta"), &parents, None, 9)
            .await
            .expect("a page"),
        []
    );
}

async fn unfinished_removals_are_reported(store: Arc<dyn Store>) {
    store.append(ended(&run(1), 7)).await.expect("append");
    for n in 2..4 {
        store
            .append(ended_child(&run(n), &run(1), 7))
            .await
            .expect("append");
    }
    let begun = async || store.begun_removals(9).await.expect("begun");
    assert_eq!(begun().await, []);
    remove(&*store, &[removal(2, 1), removal(3, 1)]).await;
    assert_eq!(begun().await, [run(1)]);
    // An existing mark is not changed.
    remove(&*store, &[removal(2, 2)]).await;
    assert_eq!(begun().await, [run(1)]);
    remove(&*store, &[removal(1, 1)]).await;
    assert_eq!(begun().await, []);
    assert_eq!(sweep(&*store, 9).await, 3);
}

async fn tenants_are_found_in_order(store: Arc<dyn Store>) {
    assert_eq!(store.next_tenant(None).await.expect("none"), None);
    for owner in ["zeta", "acme", "Acme", "acme-2"] {
        let key = RunKey::new(tenant(owner), run_id(1));
        store.append(create(&key, 1)).await.expect("append");
    }
    let mut found = Vec::new();
    while let Some(next) = store.next_tenant(found.last()).await.expect("a tenant") {
        found.push(next);
    }
    assert_eq!(found, ["Acme", "acme", "acme-2", "zeta"].map(tenant));
}

#[tokio::test]
async fn interrupted_removal_continues_after_a_restart() {
    let db = Database::new();
    let store = db.open();
    store.append(ended(&run(1), 7)).await.expect("append");
    for n in 2..6 {
        store
            .append(ended_child(&run(n), &run(1), 7))
            .await
            .expect("append");
    }
    let all: Vec<_> = (1..6).rev().map(|n| removal(n, 1)).collect();
    store.remove(&tenant("acme"), &all).await.expect("mark");
    drop(store);
    let mut runs = 0;
    loop {
        let store = db.open();
        for n in 1..6 {
            assert_eq!(seen(&store, &run(n)).await, NOTHING, "{n}");
        }
        let swept = store.sweep(2).await.expect("sweep");
        runs += swept.runs;
        if swept == Swept::default() {
            break;
        }
    }
    assert_eq!(runs, 5);
    let raw = db.raw();
    for table in [
        "runs",
        "events",
        "snapshots",
        "work",
        "pushes",
        "outbox",
        "deliveries",
        "inbox",
        "messages",
        "blobs",
        "removals",
    ] {
        let left: i64 = raw
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .expect("a count");
        assert_eq!(left, 0, "{table}");
    }
}

#[tokio::test]
async fn large_bodies_do_not_lengthen_a_step() {
    let db = Database::new();
    let store = db.open();
    let mut batch = ended(&run(1), 7);
    batch.blobs = (0..20)
        .map(|n| BlobRow {
            id: n.to_string(),
            media_type: "text/plain".to_owned(),
            bytes: vec![0; 80_000],
        })
        .collect();
    store.append(batch).await.expect("append");
    store
        .remove(&tenant("acme"), &[removal(1, 1)])
        .await
        .expect("mark");
    let mut steps = Vec::new();
    loop {
        let swept = store.sweep(20).await.expect("sweep");
        if swept == Swept::default() {
            break;
        }
        steps.push(swept.rows);
    }
    // Each blob takes ten pages, so a step of twenty pages takes two blobs.
    assert!(steps.len() > 9, "{steps:?}");
    assert!(steps.iter().skip(1).all(|rows| *rows <= 10), "{steps:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_sweep_at_once_share_the_work() {
    let schema = Schema::new().await;
    let stores: Vec<Arc<dyn Store>> = vec![Arc::new(schema.open().await), Arc::new(schema.open().await)];
    let n_runs = 60;
    for n in 0..n_runs {
        let parent = n - n % 6;
        let batch = if n == parent {
            ended(&run(n), 7)
        } else {
            ended_child(&run(n), &run(parent), 7)
        };
        stores[0].append(batch).await.expect("append");
    }
    let mut working = JoinSet::new();
    for store in &stores {
        let store = Arc::clone(store);
        working.spawn(async move {
            // Both mark all runs, as if they had searched at the same time.
            for root in (0..n_runs).step_by(6) {
                let tree: Vec<_> = (root..root + 6).rev().map(|n| removal(n, root)).collect();
                store.remove(&tenant("acme"), &tree).await.expect("mark");
            }
            let mut runs = 0;
            for _ in 0..200 {
                runs += store.sweep(16).await.expect("sweep").runs;
            }
            runs
        });
    }
    let swept: usize = working.join_all().await.into_iter().sum();
    assert_eq!(swept, usize::try_from(n_runs).expect("small"), "each once");
    for n in 0..n_runs {
        assert_eq!(seen(&*stores[1], &run(n)).await, NOTHING, "{n}");
    }
    let raw = schema.raw().await;
    for table in [
        "runs",
        "events",
        "snapshots",
        "work",
        "pushes",
        "outbox",
        "deliveries",
        "inbox",
        "messages",
        "blobs",
        "removals",
    ] {
        let left: i64 = raw
            .query_one(&format!("SELECT count(*) FROM {table}"), &[])
            .await
            .expect("a count")
            .get(0);
        assert_eq!(left, 0, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_with_rows_of_runs_is_swept_in_postgres() {
    let schema = Schema::new().await;
    let _store = schema.open().await;
    let rows = schema
        .raw()
        .await
        .query(
            "SELECT DISTINCT table_name::text FROM information_schema.columns
             WHERE table_schema = current_schema() AND column_name IN ('run', 'target') ORDER BY 1",
            &[],
        )
        .await
        .expect("our own statement");
    let owners: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    // The tables that `processes_that_sweep_at_once_share_the_work` finds empty, the idempotency records, and
    // what agents remember, which outlives the run where it is shared.
    assert_eq!(
        owners,
        [
            "agent_memory",
            "blobs",
            "deliveries",
            "events",
            "idempotency",
            "inbox",
            "messages",
            "outbox",
            "pushes",
            "removals",
            "runs",
            "snapshots",
            "work"
        ]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_append_does_not_restore_a_removed_run() {
    let schema = Schema::new().await;
    let store: Arc<dyn Store> = Arc::new(schema.open().await);
    store.append(ended(&run(1), 7)).await.expect("append");
    // Another process slowly appends to the ended run, as when a late run message arrives.
    let slow = schema.raw().await;
    slow.batch_execute(
        "BEGIN; UPDATE runs SET next_seq = next_seq + 1;
         INSERT INTO events (tenant, run, seq, body) SELECT tenant, run, 3, 'x' FROM runs;
         INSERT INTO messages (tenant, run, seq, id, body) SELECT tenant, run, 3, 'late', 'x' FROM runs",
    )
    .await
    .expect("our own statements");
    let removing = tokio::spawn({
        let store = Arc::clone(&store);
        async move {
            remove(&*store, &[removal(1, 1)]).await;
            sweep(&*store, 100).await
        }
    });
    // The sweep waits for the row lock.
    let watching = schema.raw().await;
    loop {
        let waiting: i64 = watching
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%the_runs%'
                     AND datname = current_database()",
                &[],
            )
            .await
            .expect("our own statement")
            .get(0);
        if waiting > 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    slow.batch_execute("COMMIT").await.expect("commit");
    assert_eq!(removing.await.expect("no panic"), 1);
    for table in ["runs", "events", "messages", "removals"] {
        let left: i64 = watching
            .query_one(&format!("SELECT count(*) FROM {table}"), &[])
            .await
            .expect("a count")
            .get(0);
        assert_eq!(left, 0, "{table}");
    }
}
