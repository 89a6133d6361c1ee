//! PostgreSQL failures: killed backends, rollbacks, lost replies, lost connections.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use wopr_core::{RunStatus, Seq};
use wopr_store::{
    AppendError, BlobRow, Log as _, PostgresStore, Queue, ReadError, Registry as _, Removal, Retention as _,
    RunFilter, Swept, Work as _, WriteError,
    postgres::{OpenError, Options},
};

use crate::{
    make::*,
    proxy::{Cut, Proxy},
    schema::Schema,
};

/// Executes a statement on the first `times` inserts into a table. The counter is a sequence, which rollbacks
/// do not reset.
pub(crate) async fn poison(schema: &Schema, table: &str, is_at_commit: bool, times: u32, poison: &str) {
    let (constraint, when) = if is_at_commit {
        ("CONSTRAINT", "AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED")
    } else {
        ("", "AFTER INSERT ON {}")
    };
    let when = when.replace("{}", table);
    let sql = format!(
        "CREATE SEQUENCE times;
         CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF nextval('times') <= {times} THEN {poison}; END IF;
             RETURN NULL;
         END $$;
         CREATE {constraint} TRIGGER poison {when} FOR EACH ROW EXECUTE FUNCTION poison()"
    );
    schema.sql(&sql).await;
}

pub(crate) fn raise(code: &str) -> String {
    format!("RAISE EXCEPTION 'poisoned' USING ERRCODE = '{code}'")
}

const KILL: &str = "PERFORM pg_terminate_backend(pg_backend_pid())";

async fn head(store: &PostgresStore, n: u64) -> Option<Seq> {
    store
        .summary(&run(n))
        .await
        .expect("summary")
        .map(|(_, head)| head)
}

#[tokio::test]
async fn rolled_back_transaction_is_retried() {
    for code in ["40001", "40P01"] {
        for (table, is_at_commit) in [("runs", false), ("events", false), ("events", true)] {
            let schema = Schema::new().await;
            let store = schema.open().await;
            poison(&schema, table, is_at_commit, 3, &raise(code)).await;
            let mut batch = create(&run(1), 1);
            batch.idempotency = Some(record("k", 100));
            store.append(batch).await.expect("the fourth time");
            assert_eq!(store.stats().retries, 3, "{code} {table} {is_at_commit}");
            assert_eq!(head(&store, 1).await, Some(Seq(1)));
        }
    }
}

#[tokio::test]
async fn transaction_that_keeps_being_rolled_back_is_given_up() {
    for is_at_commit in [false, true] {
        let schema = Schema::new().await;
        let store = schema.open().await;
        poison(&schema, "events", is_at_commit, 1_000, &raise("40001")).await;
        let refused = store.append(create(&run(1), 1)).await.expect_err("poisoned");
        assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
        assert_eq!(head(&store, 1).await, None);
        assert!(store.stats().retries < 20);
    }
}

#[tokio::test]
async fn rejected_row_is_reported_and_leaves_nothing() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    poison(&schema, "snapshots", false, 1_000, &raise("23514")).await;
    let mut batch = create(&run(1), 1);
    batch.snapshot = Some(wopr_store::Snapshot {
        head: Seq(1),
        body: vec![1],
    });
    let refused = store.append(batch).await.expect_err("poisoned");
    assert!(matches!(refused, AppendError::Corrupt(_)), "{refused:?}");
    assert_eq!(head(&store, 1).await, None);
    assert_eq!(store.stats().retries, 0);
    store
        .append(create(&run(1), 1))
        .await
        .expect("without a snapshot");
}

#[tokio::test]
async fn full_disk_refuses_writes_but_serves_reads() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    store.append(create(&run(1), 1)).await.expect("append");
    poison(&schema, "events", false, 1_000, &raise("53100")).await;
    let refused = store.append(create(&run(2), 1)).await.expect_err("full");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    assert_eq!(
        (head(&store, 1).await, head(&store, 2).await),
        (Some(Seq(1)), None)
    );
}

#[tokio::test]
async fn append_is_repeated_if_its_backend_is_killed_before_commit() {
    for table in ["runs", "events"] {
        let schema = Schema::new().await;
        let store = schema.open().await;
        poison(&schema, table, false, 2, KILL).await;
        store.append(create(&run(1), 2)).await.expect("the third time");
        assert_eq!(head(&store, 1).await, Some(Seq(2)));
        assert_eq!(store.stats().retries, 2, "{table}");
    }
}

#[tokio::test]
async fn append_is_unknown_if_its_backend_is_killed_during_commit() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    poison(&schema, "events", true, 1, KILL).await;
    let unknown = store.append(create(&run(1), 1)).await.expect_err("killed");
    assert!(matches!(unknown, AppendError::Unknown(_)), "{unknown:?}");
    assert_eq!(store.stats().doubtful_commits, 1);
    // The reread shows that nothing was committed, so the command can be decided again.
    assert_eq!(store.events(&run(1), Seq(0), 1).await.expect("events"), None);
    store.append(create(&run(1), 1)).await.expect("again");
}

#[tokio::test]
async fn lost_reply_is_unknown_and_resolved_by_rereading() {
    let schema = Schema::new().await;
    for (n, cut, is_there) in [(1, Cut::Answer, true), (2, Cut::Commit, false)] {
        let proxy = Proxy::new(schema.server()).await;
        let store = PostgresStore::open(&proxy.url(&schema), Options::default())
            .await
            .expect("open");
        // Opens the connection and prepares its statements before the cut.
        store.append(create(&run(10 * n), 1)).await.expect("append");
        proxy.arm(cut);
        let unknown = store.append(create(&run(n), 1)).await.expect_err("cut");
        assert!(matches!(unknown, AppendError::Unknown(_)), "{cut:?}: {unknown:?}");
        assert_eq!(head(&store, n).await.is_some(), is_there, "{cut:?}");
        let again = store.append(create(&run(n), 1)).await;
        assert_eq!(
            matches!(
                again,
                Err(AppendError::Conflict {
                    actual: Some(Seq(1)),
                    ..
                })
            ),
            is_there,
            "{cut:?}: {again:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_server_costs_a_call_one_deadline_regardless_of_open_connections() {
    const DEADLINE: Duration = Duration::from_secs(1);
    let schema = Schema::new().await;
    let proxy = Proxy::new(schema.server()).await;
    let options = Options {
        deadline: DEADLINE,
        hints: false,
        ..Options::default()
    };
    let store = PostgresStore::open(&proxy.url(&schema), options)
        .await
        .expect("open");
    for (n, is_append) in [(0, false), (1_000, true)] {
        store.append(create(&run(n), 1)).await.expect("append");
        // Concurrent reads until several connections are idle.
        while store.stats().connections < 4 {
            let reads = (0..8).map(|_| async { store.summary(&run(n)).await.expect("summary") });
            futures_util::future::join_all(reads).await;
        }
        proxy.arm(Cut::Silence);
        let begun = Instant::now();
        if is_append {
            let refused = store.append(create(&run(n + 999), 1)).await.expect_err("silent");
            assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
        } else {
            let refused = store.summary(&run(n)).await.expect_err("silent");
            assert!(matches!(refused, ReadError::Unavailable(_)), "{refused:?}");
        }
        assert!(begun.elapsed() < DEADLINE * 2, "{:?}", begun.elapsed());
        // The other connections were closed, so later calls do not wait for them.
        assert_eq!(store.stats().connections, 0);
        proxy.disarm();
        assert_eq!(head(&store, n).await, Some(Seq(1)));
        assert_eq!(head(&store, n + 999).await, None);
    }
}

#[tokio::test]
async fn row_that_always_conflicts_is_reported_as_a_busy_store() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    poison(&schema, "events", false, 1_000, &raise("23505")).await;
    let refused = store.append(create(&run(1), 1)).await.expect_err("poisoned");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    assert!(store.stats().retries > 1);
    assert_eq!(head(&store, 1).await, None);
}

#[tokio::test]
async fn append_waits_for_the_disk_regardless_of_the_servers_default() {
    for (default, used) in [
        ("off", "on"),
        ("local", "local"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ] {
        let schema = Schema::new().await;
        schema.open().await.close().await;
        // Records the setting under which each append was committed.
        schema
            .sql(
                "CREATE TABLE seen (synchronous_commit text);
                 CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     INSERT INTO seen VALUES (current_setting('synchronous_commit'));
                     RETURN NULL;
                 END $$;
                 CREATE CONSTRAINT TRIGGER see AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION see()",
            )
            .await;
        // PostgreSQL uses only one `options` parameter, so the setting is added to the one with the schema.
        let url = schema.url().replace(
            "-csearch_path",
            &format!("-csynchronous_commit%3D{default}%20-csearch_path"),
        );
        let store = PostgresStore::open(&url, Options::default()).await.expect("open");
        store.append(create(&run(1), 1)).await.expect("append");
        let seen = schema
            .raw()
            .await
            .query("SELECT DISTINCT synchronous_commit FROM seen", &[])
            .await;
        let seen: Vec<String> = seen.expect("seen").iter().map(|row| row.get(0)).collect();
        assert_eq!(seen, [used], "{default}");
    }
}

#[tokio::test]
async fn read_only_server_is_not_ready_and_refuses_writes() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    store.append(create(&run(1), 1)).await.expect("append");
    store.ready().await.expect("ready");
    let url = schema.url().replace(
        "-csearch_path",
        "-cdefault_transaction_read_only%3Don%20-csearch_path",
    );
    let store = PostgresStore::open(&url, Options::default()).await.expect("open");
    let not_ready = store.ready().await.expect_err("read only");
    assert!(matches!(not_ready, WriteError::Unavailable(_)), "{not_ready:?}");
    let refused = store.append(create(&run(2), 1)).await.expect_err("read only");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    let refused = store.begin_epoch(at(0)).await.expect_err("read only");
    assert!(matches!(refused, WriteError::Unavailable(_)), "{refused:?}");
    assert_eq!(head(&store, 1).await, Some(Seq(1)), "reads go on");
    let options = Options {
        needs_writes: true,
        ..Options::default()
    };
    let refused = PostgresStore::open(&url, options).await.expect_err("read only");
    assert!(
        matches!(refused, OpenError::ReadOnly) && refused.is_passing(),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_store_goes_on_with_the_connections_that_the_server_allows() {
    let schema = Schema::new().await;
    let role = format!("few_{:016x}", rand::random::<u64>());
    schema
        .sql(&format!(
            "CREATE ROLE {role} LOGIN CONNECTION LIMIT 2;
             DO $$ BEGIN EXECUTE format('GRANT ALL ON SCHEMA %I TO {role}', current_schema()); END $$"
        ))
        .await;
    let options = Options {
        hints: false,
        ..Options::default()
    };
    let url = format!("{}&user={role}", schema.url());
    let store = PostgresStore::open(&url, options).await.expect("open");
    let created = futures_util::future::join_all((0..40).map(|n| store.append(create(&run(n), 1)))).await;
    let refused: Vec<_> = created
        .iter()
        .filter_map(|created| created.as_ref().err())
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
    let read = futures_util::future::join_all((0..40).map(|n| head(&store, n))).await;
    assert!(read.iter().all(|head| *head == Some(Seq(1))), "{read:?}");
}

#[tokio::test]
async fn store_is_not_ready_from_a_failed_append_until_the_next_success() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    let raw = schema.raw().await;
    let full = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN RAISE 'no space left on device' USING ERRCODE = 'disk_full'; END $$;
         CREATE TRIGGER no_room BEFORE INSERT ON events EXECUTE FUNCTION no_room()";
    raw.batch_execute(full).await.expect("a full disk");
    let refused = store.append(create(&run(1), 1)).await.expect_err("full");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    let not_ready = store.ready().await.expect_err("appends fail");
    assert!(matches!(not_ready, WriteError::Unavailable(_)), "{not_ready:?}");
    raw.batch_execute("DROP TRIGGER no_room ON events")
        .await
        .expect("room");
    store.append(create(&run(1), 1)).await.expect("append");
    store.ready().await.expect("ready");
}

#[tokio::test]
async fn sweep_is_limited_by_bytes_too() {
    const LARGE: usize = 1 << 20;
    let schema = Schema::new().await;
    let store = schema.open().await;
    let mut batch = create(&run(1), 1);
    batch.summary.status = RunStatus::Completed;
    batch.blobs = (0..8)
        .map(|n| BlobRow {
            id: format!("b{n}"),
            media_type: "text/plain".to_owned(),
            // Random, so that the data is not compressible.
            bytes: (0..LARGE).map(|_| rand::random::<u8>()).collect(),
        })
        .collect();
    store.append(batch).await.expect("append");
    let removal = Removal {
        run: run_id(1),
        root: run_id(1),
    };
    store.remove(&tenant("acme"), &[removal]).await.expect("remove");
    let raw = schema.raw().await;
    let left = async || -> i64 {
        let row = raw.query_one("SELECT count(*) FROM blobs", &[]).await;
        row.expect("our own statement").get(0)
    };
    // Up to 32 rows or 2 MiB per sweep: two blobs at a time.
    for expected in [6, 4, 2, 0] {
        store.sweep(32).await.expect("sweep");
        assert_eq!(left().await, expected);
    }
    let last = store.sweep(32).await.expect("sweep");
    assert_eq!(last, Swept::default());
}

#[tokio::test]
async fn server_without_tls_is_refused_if_tls_is_required() {
    let schema = Schema::new().await;
    let proxy = Proxy::new(schema.server()).await;
    let url = proxy.url(&schema) + "&sslmode=require";
    let refused = PostgresStore::open(&url, Options::default())
        .await
        .expect_err("no tls");
    assert!(refused.to_string().to_lowercase().contains("tls"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_continues_after_every_connection_was_killed() {
    let schema = Schema::new().await;
    // An application name that only this test's connections have.
    let name = format!(
        "&application_name={}",
        schema.parameter().replace(['=', '%'], "-")
    );
    let store = PostgresStore::open(&(schema.url() + &name), Options::default()).await;
    let store = Arc::new(store.expect("open"));
    let mut appends = tokio::task::JoinSet::new();
    for n in 0..40 {
        let store = Arc::clone(&store);
        appends.spawn(async move { store.append(create(&run(n), 1)).await.expect("append") });
    }
    appends.join_all().await;
    assert!(store.stats().connections > 1, "{:?}", store.stats());
    let raw = schema.raw_as(&name).await;
    for n in 100..110 {
        raw.batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()",
        )
        .await
        .expect("our own statement");
        // The append succeeds whether or not it meets a dead connection.
        store.append(create(&run(n), 1)).await.expect("append");
        assert!(store.load(&run(n)).await.expect("load").is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_a_free_connection_are_refused_soon() {
    let schema = Schema::new().await;
    let store = Arc::new(
        schema
            .open_with(Options {
                connections: 1,
                waiting: 1,
                timeout: Duration::from_millis(200),
                ..Options::default()
            })
            .await,
    );
    store.append(create(&run(1), 1)).await.expect("append");
    let blocker = schema.raw().await;
    blocker
        .batch_execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        .await
        .expect("our own statement");
    // The only connection waits for the table lock.
    let blocked = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.summary(&run(1)).await }
    });
    while store.stats().busy_connections == 0 {
        tokio::task::yield_now().await;
    }

    let begun = Instant::now();
    let calls = (0..20).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.append(create(&run(10 + n), 1)).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let refused = call.await.expect("no panic").expect_err("no connection");
        assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    }
    let read = store.summary(&run(1)).await.expect_err("no connection");
    assert!(matches!(read, ReadError::Unavailable(_)), "{read:?}");
    let write = store.begin_epoch(at(0)).await.expect_err("no connection");
    assert!(matches!(write, WriteError::Unavailable(_)), "{write:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(store.stats().refused >= 22);

    blocker
        .batch_execute("ROLLBACK")
        .await
        .expect("our own statement");
    blocked.await.expect("no panic").expect("summary");
    store
        .append(create(&run(2), 1))
        .await
        .expect("there is a connection again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_appends_complete_even_if_dropped() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    for n in 0..50 {
        // The first poll starts the append; then its caller is dropped.
        let mut append = store.append(create(&run(n), 1));
        let polled = futures_util::poll!(&mut append);
        assert!(polled.is_pending());
        drop(append);
    }
    // Closing waits for pending appends.
    store.close().await;
    let refused = store.append(create(&run(99), 1)).await.expect_err("closed");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    assert!(matches!(
        store.load(&run(1)).await,
        Err(ReadError::Unavailable(_))
    ));
    assert!(matches!(
        store.revoke_key(&tenant("acme"), "k", at(0)).await,
        Err(WriteError::Unavailable(_))
    ));

    let store = schema.open().await;
    let page = store
        .list_runs(&tenant("acme"), &RunFilter::default(), None, 99)
        .await
        .expect("list");
    let accepted = page.runs.len();
    assert_eq!(accepted, 50);
}

#[tokio::test]
async fn damaged_rows_are_reported_and_do_not_affect_others() {
    let schema = Schema::new().await;
    let store = schema.open().await;
    for n in 1..=3 {
        let mut batch = create(&run(n), 5);
        batch.work_set = vec![effect("e")];
        batch.idempotency = Some(record(&format!("k{n}"), 100));
        store.append(batch).await.expect("append");
    }
    schema
        .sql(&format!(
            "UPDATE runs SET status = 'asleep' WHERE run = '{}';
             DELETE FROM events WHERE seq = 2;
             UPDATE work SET run = 'x' WHERE run = '{}';
             UPDATE idempotency SET run = 'x'",
            run_id(1),
            run_id(1)
        ))
        .await;
    let damaged = store.load(&run(1)).await.expect_err("damaged");
    assert!(
        matches!(&damaged, ReadError::Corrupt(text) if text.to_string().contains("status")),
        "{damaged:?}"
    );
    assert!(matches!(
        store
            .list_runs(&tenant("acme"), &RunFilter::default(), None, 9)
            .await,
        Err(ReadError::Corrupt(_))
    ));
    let gap = store.load(&run(2)).await.expect_err("a gap");
    assert!(
        matches!(&gap, ReadError::Corrupt(text) if text.to_string().contains("event 2")),
        "{gap:?}"
    );
    assert!(matches!(
        store.events(&run(2), Seq(1), 2).await,
        Err(ReadError::Corrupt(_))
    ));
    let whole = store
        .events(&run(2), Seq(3), 9)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(whole.events, events(3, 2));

    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let leased = store
        .lease(Queue::Effects, epoch, times(0, 9), &9.into())
        .await
        .expect("lease");
    assert_eq!(leased.len(), 2, "the sound ones");
    let mut batch = create(&run(4), 1);
    batch.idempotency = Some(record("k1", 100));
    let refused = store
        .append(batch)
        .await
        .expect_err("an unreadable record may be this request's");
    assert!(matches!(refused, AppendError::Corrupt(_)), "{refused:?}");
    assert_eq!(head(&store, 4).await, None);
}
