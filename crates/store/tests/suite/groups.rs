//! PostgreSQL group commit: concurrent appends share a transaction, and each gets its own result.
//!
//! These tests are single-threaded, so appends that are started together are all queued before the first one
//! is processed.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use wopr_core::Seq;
use wopr_store::{
    AppendError, Batch, Epoch, Log as _, PostgresStore, Pushes as _, Work as _, postgres::Options,
};

use crate::{
    make::*,
    outages::raise,
    proxy::{Cut, Proxy},
    schema::Schema,
};

async fn all(store: &PostgresStore, batches: Vec<Batch>) -> Vec<Result<(), AppendError>> {
    join_all(batches.into_iter().map(|batch| store.append(batch))).await
}

async fn head(store: &PostgresStore, n: u64) -> Option<Seq> {
    let summary = store.summary(&run(n)).await.expect("summary");
    summary.map(|(_, head)| head)
}

/// A batch with a row in every table that batches write to.
fn rich(n: u64, epoch: Epoch) -> Batch {
    let mut batch = create(&run(n), 2);
    batch.work_set = vec![timer("t", 5), timer("t", 6)];
    batch
        .work_set
        .extend([effect("a"), born_leased("b", epoch, 9), effect("a")]);
    batch.children = vec![child(1_000 + n, &run(n))];
    batch.inbox_sent = vec![
        run_message(&run(1_000 + n), &run(n), 1),
        run_message(&run(77), &run(n), 0),
    ];
    batch.idempotency = Some(record(&format!("key {n}"), 100));
    batch.push = n.is_multiple_of(2).then(|| along(&run(n), "p")).flatten();
    batch
}

#[tokio::test]
async fn many_appends_share_few_transactions() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    let answers = all(&store, (0..300).map(|n| create(&run(n), 2)).collect()).await;
    assert!(answers.iter().all(Result::is_ok));
    let stats = store.stats();
    assert_eq!(stats.appends, 300);
    assert!(stats.groups < 10 && stats.largest_group > 50, "{stats:?}");
    let more = all(&store, (0..300).map(|n| append(&run(n), 2, 1)).collect()).await;
    assert!(more.iter().all(Result::is_ok));
    assert!(store.stats().groups < 20, "{:?}", store.stats());
    for n in 0..300 {
        assert_eq!(head(&store, n).await, Some(Seq(3)));
    }
}

#[tokio::test]
async fn group_writes_the_same_rows_as_single_batches() {
    let (one, other) = (Schema::new().await, Schema::new().await);
    let (together, alone) = (one.open().await, other.open().await);
    let epoch = together.begin_epoch(at(0)).await.expect("epoch");
    let answers = all(&together, (0..9).map(|n| rich(n, epoch)).collect()).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(together.stats().groups, 1, "{:?}", together.stats());
    for n in 0..9 {
        alone.append(rich(n, epoch)).await.expect("append");
    }
    for (table, columns) in [
        ("runs", "t"),
        ("events", "t"),
        ("work", "t"),
        ("idempotency", "t"),
        ("pushes", "t"),
        ("outbox", "t"),
        // The place only determines the order, which the query keeps.
        ("inbox", "(tenant, target, source, source_seq, body)"),
    ] {
        let order = if table == "inbox" {
            "target, place, source"
        } else {
            "1"
        };
        let sql = format!("SELECT {columns}::text FROM {table} AS t ORDER BY {order}");
        let mut rows = Vec::new();
        for schema in [&one, &other] {
            let found = schema.raw().await.query(&sql, &[]).await.expect("our own");
            rows.push(
                found
                    .iter()
                    .map(|row| row.get::<_, String>(0))
                    .collect::<Vec<_>>(),
            );
        }
        assert!(!rows[0].is_empty(), "{table}");
        assert_eq!(rows[0], rows[1], "{table}");
    }
}

#[tokio::test]
async fn each_append_of_a_group_gets_its_own_result() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    for n in 1..=6 {
        let mut batch = create(&run(n), 1);
        batch.work_set = vec![effect("a")];
        batch.idempotency = (n == 3).then(|| record("known", 100));
        store.append(batch).await.expect("append");
    }
    let groups = store.stats().groups;
    let mut known = create(&run(13), 1);
    known.idempotency = Some(record("known", 100));
    let mut fenced = append(&run(4), 1, 1);
    fenced.work_ended = vec![settled("a", 7)];
    let mut colliding = append(&run(5), 1, 1);
    colliding.children = vec![child(6, &run(5))];
    let mut full = create(&run(14), 1);
    full.push = along(&run(14), "p");
    full.push.as_mut().expect("just set").most = 0;
    let batches = vec![
        create(&run(10), 1),
        create(&run(1), 1),
        append(&run(2), 0, 1),
        known,
        fenced,
        colliding,
        full,
        append(&run(3), 1, 2),
        create(&run(11), 1),
    ];
    let answers = all(&store, batches).await;
    let told: Vec<_> = answers
        .iter()
        .map(|answer| match answer {
            Ok(()) => "written",
            Err(AppendError::Conflict { expected, actual }) => match (expected, actual) {
                (Seq(0), Some(Seq(1))) => "at 0, is at 1",
                _ => "elsewhere",
            },
            Err(AppendError::Duplicate(_)) => "duplicate",
            Err(AppendError::Fenced(_)) => "fenced",
            Err(AppendError::Full(0)) => "full",
            Err(
                AppendError::Full(_)
                | AppendError::Missing
                | AppendError::Unavailable(_)
                | AppendError::Unknown(_)
                | AppendError::Corrupt(_),
            ) => "trouble",
        })
        .collect();
    let expected = [
        "written",
        "at 0, is at 1",
        "at 0, is at 1",
        "duplicate",
        "fenced",
        "at 0, is at 1",
        "full",
        "written",
        "written",
    ];
    assert_eq!(told, expected, "{answers:?}");
    let heads = [
        head(&store, 10).await,
        head(&store, 3).await,
        head(&store, 11).await,
    ];
    assert_eq!(heads, [Some(Seq(1)), Some(Seq(3)), Some(Seq(1))]);
    assert_eq!(
        (head(&store, 13).await, head(&store, 5).await),
        (None, Some(Seq(1)))
    );
    assert_eq!(
        store.stats().groups,
        groups + 1,
        "those that hold are one transaction"
    );
}

#[tokio::test]
async fn batches_of_one_run_never_share_a_group() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    let same_run = all(&store, vec![create(&run(1), 1), create(&run(1), 1)]).await;
    let n_written = same_run.iter().filter(|answer| answer.is_ok()).count();
    let n_conflicts = same_run
        .iter()
        .filter(|answer| matches!(answer, Err(AppendError::Conflict { .. })))
        .count();
    assert_eq!((n_written, n_conflicts), (1, 1), "{same_run:?}");
    let asked = |n| {
        let mut batch = create(&run(n), 1);
        batch.idempotency = Some(record("k", 100));
        batch
    };
    let same_request = all(&store, vec![asked(2), asked(3)]).await;
    let n_written = same_request.iter().filter(|answer| answer.is_ok()).count();
    let n_duplicates = same_request
        .iter()
        .filter(|answer| matches!(answer, Err(AppendError::Duplicate(_))))
        .count();
    assert_eq!((n_written, n_duplicates), (1, 1), "{same_request:?}");
}

#[tokio::test]
async fn bad_batch_fails_no_other_of_its_group() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    let bad = run(3).run;
    schema
        .sql(&format!(
            "CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.run = '{bad}' THEN {}; END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER poison AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION poison()",
            raise("23514")
        ))
        .await;
    let answers = all(&store, (0..6).map(|n| create(&run(n), 1)).collect()).await;
    for (n, answer) in (0..).zip(answers) {
        match answer {
            Ok(()) => assert_ne!(n, 3),
            Err(AppendError::Corrupt(_)) => assert_eq!(n, 3),
            Err(other) => panic!("{n}: {other:?}"),
        }
        assert_eq!(head(&store, n).await.is_some(), n != 3);
    }
}

#[tokio::test]
async fn uncertain_commit_is_unknown_to_all_of_its_group() {
    let schema = Schema::new().await;
    for (from, cut, is_there) in [(10, Cut::Answer, true), (20, Cut::Commit, false)] {
        let proxy = Proxy::new(schema.server()).await;
        let store = PostgresStore::open(&proxy.url(&schema), Options::default()).await;
        let store = store.expect("open");
        // Opens the connection and prepares its statements before the cut.
        store.append(create(&run(1_000 + from), 1)).await.expect("append");
        proxy.arm(cut);
        let answers = all(&store, (from..from + 5).map(|n| create(&run(n), 1)).collect()).await;
        for (n, answer) in (from..).zip(answers) {
            assert!(
                matches!(answer, Err(AppendError::Unknown(_))),
                "{cut:?}: {answer:?}"
            );
            assert_eq!(head(&store, n).await.is_some(), is_there, "{cut:?}");
        }
        assert_eq!(store.stats().doubtful_commits, 5);
    }
}

#[tokio::test]
async fn locked_run_does_not_block_others() {
    let schema = Schema::new().await;
    let store = Arc::new(schema.open().await);
    store.append(create(&run(1), 1)).await.expect("append");
    let holder = schema.raw().await;
    // As a process does that is suspended during an append.
    let hold = format!(
        "BEGIN; SELECT 1 FROM runs WHERE run = '{}' FOR UPDATE",
        run(1).run
    );
    holder.batch_execute(&hold).await.expect("our own statement");
    let held = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.append(append(&run(1), 1, 1)).await }
    });
    let others = all(&store, (2..9).map(|n| create(&run(n), 1)).collect());
    let others = tokio::time::timeout(Duration::from_secs(10), others).await;
    assert!(others.expect("in time").iter().all(Result::is_ok));
    assert!(!held.is_finished());
    holder.batch_execute("ROLLBACK").await.expect("our own statement");
    held.await.expect("no panic").expect("its turn has come");
    assert_eq!(head(&store, 1).await, Some(Seq(2)));
}

#[tokio::test]
async fn many_locked_runs_leave_connections_to_others() {
    const HELD: u64 = 40;
    let schema = Schema::new().await;
    let store = Arc::new(schema.open().await);
    let made = all(&store, (0..HELD + 10).map(|n| create(&run(n), 1)).collect()).await;
    assert!(made.iter().all(Result::is_ok));
    let holder = schema.raw().await;
    let names: Vec<_> = (0..HELD).map(|n| format!("'{}'", run(n).run)).collect();
    let hold = format!(
        "BEGIN; SELECT 1 FROM runs WHERE run IN ({}) FOR UPDATE",
        names.join(", ")
    );
    holder.batch_execute(&hold).await.expect("our own statement");
    let held: Vec<_> = (0..HELD)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.append(append(&run(n), 1, 1)).await })
        })
        .collect();
    // Ten appends that would share a group with those, then some later ones.
    let along = (HELD..HELD + 10).map(|n| append(&run(n), 1, 1)).collect();
    let others = async {
        let along = all(&store, along).await;
        assert!(along.iter().all(Result::is_ok), "{along:?}");
        for n in 100..110 {
            let made = all(&store, vec![create(&run(n), 1), create(&run(n + 100), 1)]).await;
            assert!(made.iter().all(Result::is_ok), "{made:?}");
            let heads = join_all((0..8).map(|m| head(&store, m))).await;
            assert_eq!(heads, [Some(Seq(1)); 8]);
        }
    };
    let others = tokio::time::timeout(Duration::from_secs(20), others).await;
    others.expect("in time");
    assert!(held.iter().all(|append| !append.is_finished()));
    holder.batch_execute("ROLLBACK").await.expect("our own statement");
    for append in held {
        append.await.expect("no panic").expect("its turn has come");
    }
    assert_eq!(head(&store, 0).await, Some(Seq(2)));
}

#[tokio::test]
async fn queued_bytes_are_limited_regardless_of_waiting_time() {
    const BYTES: usize = 8 << 20;
    let schema = Schema::new().await;
    let store = Arc::new(schema.open().await);
    let holder = schema.raw().await;
    let hold = "BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE";
    holder.batch_execute(hold).await.expect("our own statement");
    let large = |n| {
        let mut batch = create(&run(n), 1);
        batch.events[0].body = vec![7; BYTES];
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.append(batch).await })
    };
    // As many as fit; none of them completes while the table is locked.
    let held: Vec<_> = (0..7).map(large).collect();
    for n in 7..10 {
        let refused = large(n).await.expect("no panic");
        assert!(matches!(refused, Err(AppendError::Unavailable(_))), "{refused:?}");
    }
    assert!(held.iter().all(|append| !append.is_finished()));
    holder.batch_execute("ROLLBACK").await.expect("our own statement");
    for append in held {
        append.await.expect("no panic").expect("its turn has come");
    }
    large(7).await.expect("no panic").expect("there is room again");
    assert_eq!(
        (head(&store, 7).await, head(&store, 8).await),
        (Some(Seq(1)), None)
    );
}

#[tokio::test]
async fn dropping_a_subscription_locks_its_run_first() {
    let schema = Schema::new().await;
    let store = Arc::new(schema.open().await);
    let mut batch = create(&run(1), 1);
    batch.push = along(&run(1), "p");
    store.append(batch).await.expect("append");
    let (holder, onlooker) = (schema.raw().await, schema.raw().await);
    let pid = holder
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a pid");
    let pid: i32 = pid.get(0);
    let hold = format!(
        "BEGIN; SELECT 1 FROM runs WHERE run = '{}' FOR UPDATE",
        run(1).run
    );
    holder.batch_execute(&hold).await.expect("our own statement");
    let dropped = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.drop_push(&run(1), "p").await }
    });
    let waits = "SELECT FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))";
    while onlooker.query(waits, &[&pid]).await.expect("rows").is_empty() {}
    holder
        .batch_execute("SELECT 1 FROM pushes FOR UPDATE NOWAIT")
        .await
        .expect("nobody has it yet");
    holder.batch_execute("ROLLBACK").await.expect("our own statement");
    assert!(dropped.await.expect("no panic").expect("dropped"));
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), []);
}

#[tokio::test]
async fn silent_connections_leave_capacity_to_other_appends() {
    const COMMITTERS: usize = 3;
    let schema = Schema::new().await;
    let proxy = Proxy::new(schema.server()).await;
    let store = PostgresStore::open(&proxy.url(&schema), Options::default()).await;
    let store = Arc::new(store.expect("open"));
    while store.stats().connections < COMMITTERS as u64 {
        join_all((0..8).map(|n| head(&store, n))).await;
    }
    proxy.arm(Cut::Silence);
    // Appends to the same run form separate groups, so each committer takes one of them.
    let silent: Vec<_> = (0..COMMITTERS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.append(create(&run(1), 1)).await })
        })
        .collect();
    while proxy.n_silenced() < COMMITTERS {
        tokio::task::yield_now().await;
    }
    proxy.disarm();
    let others = all(&store, (10..20).map(|n| create(&run(n), 1)).collect()).await;
    assert!(others.iter().all(Result::is_ok), "{others:?}");
    assert!(silent.iter().all(|append| !append.is_finished()));
}

/// Blocks the creation of a run until its gate is deleted.
const GATES: &str = "CREATE TABLE gates (run text);
    CREATE SEQUENCE arrivals;
    CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM gates WHERE gates.run = NEW.run) THEN PERFORM nextval('arrivals'); END IF;
        WHILE EXISTS (SELECT FROM gates WHERE gates.run = NEW.run) LOOP PERFORM pg_sleep(0.01); END LOOP;
        RETURN NULL;
    END $$;
    CREATE TRIGGER pass AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION pass()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_group_releases_its_slot_as_soon_as_allowed() {
    let schema = Schema::new().await;
    // Two groups at a time, plus one that takes long.
    let options = Options {
        connections: 5,
        ..Options::default()
    };
    let store = Arc::new(schema.open_with(options).await);
    schema.sql(GATES).await;
    let raw = schema.raw().await;
    let mut slow = Vec::new();
    for n in 1..=3 {
        let shut = format!("INSERT INTO gates VALUES ('{}')", run_id(n));
        raw.batch_execute(&shut).await.expect("our own statement");
        let store = Arc::clone(&store);
        slow.push(tokio::spawn(
            async move { store.append(create(&run(n), 1)).await },
        ));
        loop {
            let arrivals = "SELECT last_value FROM arrivals WHERE is_called";
            let row = raw.query_opt(arrivals, &[]).await.expect("our own statement");
            if row.is_some_and(|row| row.get::<_, i64>(0) == n.cast_signed()) {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // Waits longer than the slow groups do before they would release their slots; none is free.
    let refused = store.append(create(&run(10), 1)).await.expect_err("no place");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");

    let open = format!("DELETE FROM gates WHERE run = '{}'", run_id(1));
    raw.batch_execute(&open).await.expect("our own statement");
    let first = slow.remove(0).await.expect("no panic");
    first.expect("the one that had left its place");
    let other = store.append(create(&run(11), 1)).await;
    other.expect("another has left its place now");
    assert!(slow.iter().all(|append| !append.is_finished()));
    raw.batch_execute("DELETE FROM gates")
        .await
        .expect("our own statement");
    for append in slow {
        append.await.expect("no panic").expect("append");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_two_processes_with_shared_runs_write_each_place_once() {
    const RUNS: u64 = 60;
    const ROUNDS: u64 = 10;
    let schema = Schema::new().await;
    let stores = [schema.open().await, schema.open().await];
    let made = all(&stores[0], (0..RUNS).map(|n| create(&run(n), 1)).collect()).await;
    assert!(made.iter().all(Result::is_ok));
    let mut n_written = 0;
    for round in 1..=ROUNDS {
        let appends = |reverse: bool| {
            let mut batches: Vec<_> = (0..RUNS).map(|n| append(&run(n), round, 1)).collect();
            if reverse {
                batches.reverse();
            }
            batches
        };
        let (one, other) = tokio::join!(all(&stores[0], appends(false)), all(&stores[1], appends(true)));
        for answer in one.into_iter().chain(other) {
            match answer {
                Ok(()) => n_written += 1,
                Err(AppendError::Conflict { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(n_written, RUNS * ROUNDS, "each place was written once");
}
