//! Behavior specific to files: restarts, locks, schema versions, group commits, full disks.

use std::{fs, path::Path, sync::Arc, task::Poll};

use tokio::task::JoinSet;
use wopr_core::{RunStatus, Seq};
use wopr_store::{
    AppendError, Log as _, Queue, ReadError, Registry as _, RunFilter, SqliteStore, Work as _, WriteError,
    sqlite::{self, OpenError, Options},
};

use crate::{
    database::{Database, in_one_group, poll_once},
    make::*,
};

fn refused(path: &Path, options: Options) -> OpenError {
    SqliteStore::open(path, options).expect_err("not to be opened")
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let db = Database::new();
    let store = db.open();
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 5);
    batch.work_set = vec![timer("t", 10)];
    batch.work_set.extend([born_leased("e", epoch, 1_000)]);
    batch.idempotency = Some(record("k", 100));
    batch.inbox_sent = vec![run_message(&run(2), &run(1), 0)];
    store.append(batch).await.expect("append");
    let loaded = store.load(&run(1)).await.expect("load");
    drop(store);

    let store = db.open();
    assert_eq!(store.load(&run(1)).await.expect("load"), loaded);
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(10)));
    assert_eq!(
        store
            .idempotency(&idempotency_key("k"), at(0))
            .await
            .expect("record"),
        Some(record("k", 100))
    );
    assert_eq!(
        store
            .runs_with_inbox(wopr_store::Epoch(1), None, 9)
            .await
            .expect("inbox"),
        [run(2)]
    );
    let next = store.begin_epoch(at(0)).await.expect("epoch");
    assert!(next > epoch);
    assert_eq!(
        store
            .lease(Queue::Effects, next, times(0, 9), &9.into())
            .await
            .expect("lease")
            .len(),
        1
    );
}

#[tokio::test]
async fn second_open_is_refused_until_the_first_is_closed() {
    let db = Database::new();
    let store = db.open();
    let error = refused(&db.path, Options::default());
    assert!(matches!(error, OpenError::Locked(_)), "{error:?}");
    assert!(
        error
            .to_string()
            .ends_with("another wopr process has this database open"),
        "{error}"
    );
    assert!(matches!(sqlite::migrate(&db.path), Err(OpenError::Locked(_))));
    store
        .append(create(&run(1), 1))
        .await
        .expect("the first is not disturbed");
    drop(store);
    db.open();
}

#[tokio::test]
async fn closed_store_releases_the_file_and_returns_unavailable() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    store.close().await;
    store.close().await;
    let refused = store.append(create(&run(2), 1)).await.expect_err("closed");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    assert!(matches!(
        store.load(&run(1)).await,
        Err(ReadError::Unavailable(_))
    ));
    assert!(matches!(
        store.revoke_key(&tenant("acme"), "k", at(0)).await,
        Err(WriteError::Unavailable(_))
    ));

    let second = db.open();
    assert!(second.load(&run(1)).await.expect("load").is_some());
}

#[tokio::test]
async fn accepted_appends_are_written_even_if_dropped() {
    let db = Database::new();
    let store = db.open();
    for n in 0..100 {
        let mut append = store.append(create(&run(n), 1));
        // The first poll queues the append; then its caller is dropped.
        let polled = poll_once(&mut append).await;
        drop(polled);
    }
    drop(store);
    let store = db.open();
    let page = store
        .list_runs(&tenant("acme"), &RunFilter::default(), None, 200)
        .await
        .expect("list");
    assert_eq!(page.runs.len(), 100);
}

#[tokio::test]
async fn newer_schema_is_refused_and_left_untouched() {
    let db = Database::new();
    drop(db.open());
    let known = sqlite::schema_version(&db.path).expect("version");
    db.sql(
        "INSERT INTO refinery_schema_history (version, name, applied_on, checksum)
         VALUES (4711, 'from_the_future', '2040-01-01T00:00:00Z', '1')",
    );
    let before = fs::read(&db.path).expect("read");
    for options in [
        Options::default(),
        Options {
            migrate: false,
            ..Options::default()
        },
    ] {
        let error = refused(&db.path, options);
        assert!(
            matches!(error, OpenError::NewerSchema { found: 4711, known: k } if k == known),
            "{error:?}"
        );
    }
    assert!(matches!(
        sqlite::migrate(&db.path),
        Err(OpenError::NewerSchema { found: 4711, .. })
    ));
    assert_eq!(fs::read(&db.path).expect("read"), before);
    assert_eq!(sqlite::schema_version(&db.path).expect("version"), 4711);
}

#[tokio::test]
async fn newer_schema_in_an_unfinished_log_is_refused_and_left_untouched() {
    let (crashed, copied) = (Database::new(), Database::new());
    let store = crashed.open();
    store.append(create(&run(1), 1)).await.expect("append");
    crashed.sql(
        "INSERT INTO refinery_schema_history (version, name, applied_on, checksum)
         VALUES (4711, 'from_the_future', '2040-01-01T00:00:00Z', '1')",
    );
    // As left by a killed process: a database and its write-ahead log.
    let wal = |db: &Database| db.path.with_extension("db-wal");
    fs::copy(&crashed.path, &copied.path).expect("copy");
    fs::copy(wal(&crashed), wal(&copied)).expect("copy");
    let before = (
        fs::read(&copied.path).expect("read"),
        fs::read(wal(&copied)).expect("read"),
    );
    assert!(!before.1.is_empty());

    let error = refused(&copied.path, Options::default());
    assert!(
        matches!(error, OpenError::NewerSchema { found: 4711, .. }),
        "{error:?}"
    );
    assert_eq!(
        (
            fs::read(&copied.path).expect("read"),
            fs::read(wal(&copied)).expect("read")
        ),
        before
    );
}

#[tokio::test]
async fn missing_migration_is_reported_if_migrating_is_not_allowed() {
    let db = Database::new();
    assert_eq!(sqlite::schema_version(&db.path).expect("version"), 0);
    let by_hand = Options {
        migrate: false,
        ..Options::default()
    };
    let error = refused(&db.path, by_hand);
    assert!(
        matches!(error, OpenError::NeedsMigration { found: 0, .. }),
        "{error:?}"
    );

    let version = sqlite::migrate(&db.path).expect("migrate");
    assert_eq!(sqlite::schema_version(&db.path).expect("version"), version);
    assert_eq!(sqlite::migrate(&db.path).expect("again"), version);
    let store = db.open_with(by_hand);
    store.append(create(&run(1), 1)).await.expect("append");
}

#[test]
fn foreign_database_is_refused_and_left_untouched() {
    let db = Database::new();
    db.sql("CREATE TABLE runs (something TEXT)");
    let before = fs::read(&db.path).expect("read");
    let error = refused(&db.path, Options::default());
    assert!(matches!(error, OpenError::Foreign(_)), "{error:?}");
    assert_eq!(fs::read(&db.path).expect("read"), before);

    fs::write(&db.path, vec![b'x'; 9_000]).expect("write");
    let error = refused(&db.path, Options::default());
    assert!(matches!(error, OpenError::Database { .. }), "{error:?}");
    let text = format!("open the database {}: file is not a database", db.path.display());
    assert_eq!(error.to_string(), text);
}

#[tokio::test]
async fn log_without_its_file_is_refused_and_left_untouched() {
    for is_there in [false, true] {
        let db = Database::new();
        let store = db.open();
        store.append(create(&run(1), 1)).await.expect("append");
        let folder = db.path.parent().expect("a folder");
        let log = folder.join("wopr.db-wal");
        // As left by a killed process whose database file was then removed.
        let (saved, writes) = (fs::read(&db.path).expect("read"), fs::read(&log).expect("a log"));
        drop(store);
        fs::write(&log, &writes).expect("write");
        if is_there {
            fs::write(&db.path, "").expect("empty");
        } else {
            fs::remove_file(&db.path).expect("remove");
        }
        let errors = [
            refused(&db.path, Options::default()),
            sqlite::migrate(&db.path).expect_err("refused"),
            sqlite::schema_version(&db.path).expect_err("refused"),
            sqlite::Guest::open(&db.path).expect_err("refused"),
            match sqlite::copy(&db.path, folder.join("copy"), sqlite::Form::AsIs) {
                Err(sqlite::BackupError::Open(error)) => error,
                other => panic!("{other:?}"),
            },
        ];
        for error in errors {
            assert!(
                matches!(&error, OpenError::Orphaned { is_there: said, .. } if *said == is_there),
                "{error:?}"
            );
            assert!(error.to_string().contains("wopr.db-wal"), "{error}");
        }
        assert_eq!(db.path.exists(), is_there, "no file is made");
        assert_eq!(fs::read(&log).expect("a log"), writes, "every write is there");
        // With the original file, all writes are there.
        fs::write(&db.path, saved).expect("put back");
        let store = db.open();
        assert!(store.load(&run(1)).await.expect("load").is_some());
    }
}

#[cfg(unix)]
#[tokio::test]
async fn no_append_is_acknowledged_after_the_file_was_removed() {
    let db = Database::new();
    let store = db.open();
    let mut n = 0;
    let mut append = async || {
        n += 1;
        (n, store.append(create(&run(n), 1)).await)
    };
    append().await.1.expect("append");
    let aside = db.path.with_extension("aside");
    for file in ["wopr.db", "wopr.db-wal"] {
        let path = db.path.with_file_name(file);
        fs::rename(&path, &aside).expect("take it");
        let (gone, refused) = append().await;
        let refused = refused.expect_err("gone");
        assert!(
            matches!(&refused, AppendError::Unavailable(why) if why.to_string().contains("removed or replaced")),
            "{refused:?}"
        );
        store.ready().await.expect_err("no writes are taken");
        fs::copy(&aside, &path).expect("replace it");
        append().await.1.expect_err("that is another file");
        fs::rename(&aside, &path).expect("give it back");
        append().await.1.expect("append");
        assert!(store.load(&run(gone)).await.expect("load").is_none());
    }

    // Acknowledged writes that were not checkpointed yet stay in the write-ahead log.
    fs::remove_file(&db.path).expect("remove");
    append().await.1.expect_err("gone");
    drop(store);
    let error = refused(&db.path, Options::default());
    assert!(matches!(error, OpenError::Orphaned { .. }), "{error:?}");
}

#[test]
fn missing_directory_is_reported() {
    let error = refused(Path::new("/nowhere/at/all/wopr.db"), Options::default());
    assert!(matches!(error, OpenError::Io { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_appends_share_commits() {
    let db = Database::new();
    let store = Arc::new(db.open());
    let mut appends = JoinSet::new();
    for n in 0..500 {
        let store = store.clone();
        appends.spawn(async move { store.append(create(&run(n), 2)).await });
    }
    for outcome in appends.join_all().await {
        outcome.expect("append");
    }
    let stats = store.stats();
    assert_eq!(stats.appends, 500);
    assert!(stats.groups * 5 < stats.appends, "{stats:?}");
    assert!(stats.largest_group > 5, "{stats:?}");
}

#[tokio::test]
async fn failing_batch_does_not_fail_its_group() {
    let db = Database::new();
    let store = db.open();
    db.sql(
        "CREATE TRIGGER poison BEFORE INSERT ON events WHEN instr(new.bodies, x'70')
         BEGIN SELECT RAISE(ABORT, 'poisoned'); END",
    );
    let mut batches: Vec<_> = (0..20).map(|n| create(&run(n), 2)).collect();
    batches[7].events[1].body = b"p".to_vec();
    let outcomes = in_one_group(&db, &store, batches).await;
    for (n, outcome) in (0..).zip(outcomes) {
        assert_eq!(outcome.is_ok(), n != 7, "{n}: {outcome:?}");
        let found = store.load(&run(n)).await.expect("load");
        assert_eq!(found.map(|run| run.head), (n != 7).then_some(Seq(2)));
    }
    let stats = store.stats();
    assert_eq!((stats.retried_groups, stats.appends), (1, 20), "{stats:?}");
    store
        .append(create(&run(7), 2))
        .await
        .expect("the run can still be created");
}

#[tokio::test]
async fn lost_transaction_fails_only_its_group() {
    let db = Database::new();
    let store = db.open();
    db.sql(
        "CREATE TRIGGER poison BEFORE INSERT ON events WHEN instr(new.bodies, x'70')
         BEGIN SELECT RAISE(ROLLBACK, 'poisoned'); END",
    );
    let mut batches: Vec<_> = (0..5).map(|n| create(&run(n), 1)).collect();
    batches[3].events[0].body = b"p".to_vec();
    for outcome in in_one_group(&db, &store, batches).await {
        assert!(matches!(outcome, Err(AppendError::Corrupt(_))), "{outcome:?}");
    }
    for n in 0..5 {
        assert_eq!(store.load(&run(n)).await.expect("load"), None);
    }
    store.append(create(&run(0), 1)).await.expect("the next group");
}

#[tokio::test]
async fn refused_and_conflicting_batches_share_a_group() {
    let db = Database::new();
    let store = db.open();
    let mut keyed = create(&run(2), 1);
    keyed.idempotency = Some(record("k", 100));
    let mut again = create(&run(3), 1);
    again.idempotency = Some(record("k", 100));
    let batches = vec![
        create(&run(1), 1),
        create(&run(1), 1),
        append(&run(1), 1, 1),
        keyed,
        again,
    ];
    let outcomes = in_one_group(&db, &store, batches).await;
    assert!(
        matches!(
            outcomes.as_slice(),
            [
                Ok(()),
                Err(AppendError::Conflict { .. }),
                Ok(()),
                Ok(()),
                Err(AppendError::Duplicate(_))
            ]
        ),
        "{outcomes:?}"
    );
    let stats = store.stats();
    assert_eq!(
        (
            stats.groups,
            stats.largest_group,
            stats.conflicts,
            stats.duplicates
        ),
        (2, 3, 1, 1),
        "{stats:?}"
    );
}

#[tokio::test]
async fn full_queue_refuses_immediately() {
    let db = Database::new();
    let store = db.open_with(Options {
        queue: 2,
        ..Options::default()
    });
    let blocker = db.raw();
    blocker.execute_batch("BEGIN IMMEDIATE").expect("begin");
    // The writer takes what is queued and waits for the lock; then the queue fills up.
    let mut waiting = Vec::new();
    let mut refused = None;
    for n in 0..1_000 {
        let mut append = store.append(create(&run(n), 1));
        let polled = poll_once(&mut append).await;
        match polled {
            Poll::Pending => waiting.push(append),
            Poll::Ready(answer) => {
                refused = Some(answer.expect_err("nothing commits while the lock is held"));
                break;
            }
        }
    }
    assert!(
        matches!(refused, Some(AppendError::Unavailable(_))),
        "{refused:?}"
    );
    assert!(store.stats().refused > 0);
    blocker.execute_batch("COMMIT").expect("commit");
    for append in waiting {
        append.await.expect("what was accepted is written");
    }
}

#[tokio::test]
async fn full_disk_refuses_writes_but_serves_reads() {
    let db = Database::new();
    let store = db.open_with(Options {
        max_bytes: Some(1 << 20),
        ..Options::default()
    });
    let large = |n| {
        let mut batch = create(&run(n), 1);
        batch.events[0].body = vec![7; 100_000];
        batch
    };
    let mut written = 0;
    let refused = loop {
        match store.append(large(written)).await {
            Ok(()) => written += 1,
            Err(refused) => break refused,
        }
        assert!(written < 20, "a megabyte holds fewer");
    };
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    assert!(written > 3);
    assert_eq!(store.load(&run(written)).await.expect("load"), None);
    let page = store
        .list_runs(&tenant("acme"), &RunFilter::default(), None, 99)
        .await
        .expect("list");
    assert_eq!(page.runs.len() as u64, written);
    drop(store);

    let store = db.open();
    store.append(large(written)).await.expect("there is room again");
}

#[tokio::test]
async fn readiness_checks_share_one_probe_write() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    let before = store.stats();
    let asked = std::time::Instant::now();
    for _ in 0..3 {
        let all = futures_util::future::join_all((0..200).map(|_| store.ready())).await;
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    }
    let after = store.stats();
    let n_probes = after.groups - before.groups;
    assert!(
        n_probes >= 1 && n_probes <= 1 + asked.elapsed().as_secs(),
        "{n_probes}"
    );
    assert!(after.wal_pages > before.wal_pages, "it is on the disk");
    let left: i64 = db
        .raw()
        .query_row("SELECT count(*) FROM events WHERE tenant = ''", [], |row| {
            row.get(0)
        })
        .expect("count");
    assert_eq!(left, 0, "and leaves nothing behind");
}

#[tokio::test]
async fn store_without_events_table_is_not_ready() {
    let db = Database::new();
    let store = db.open();
    db.sql("DROP TABLE events");
    let not_ready = store.ready().await.expect_err("nothing can be appended");
    assert!(matches!(not_ready, WriteError::Unavailable(_)), "{not_ready:?}");
}

#[tokio::test]
async fn store_is_not_ready_from_a_failed_append_until_the_next_success() {
    let db = Database::new();
    let store = db.open();
    store.ready().await.expect("ready");
    // The probe's write succeeds, appends fail.
    db.sql("ALTER TABLE runs RENAME TO mislaid");
    for n in 1..4 {
        store.append(create(&run(n), 1)).await.expect_err("no table");
        let not_ready = store.ready().await.expect_err("appends fail");
        assert!(matches!(not_ready, WriteError::Unavailable(_)), "{not_ready:?}");
    }
    db.sql("ALTER TABLE mislaid RENAME TO runs");
    store.append(create(&run(1), 1)).await.expect("append");
    store.ready().await.expect("ready");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoints_keep_the_write_ahead_log_short() {
    let db = Database::new();
    let store = Arc::new(db.open_with(Options {
        checkpoint_pages: 50,
        ..Options::default()
    }));
    for round in 0..10 {
        let mut appends = JoinSet::new();
        for n in 0..50 {
            let store = store.clone();
            appends.spawn(async move {
                let mut batch = create(&run(round * 50 + n), 1);
                batch.events[0].body = vec![7; 5_000];
                store.append(batch).await.expect("append");
                store
                    .load(&run(round * 50 + n))
                    .await
                    .expect("load")
                    .expect("a run");
            });
        }
        appends.join_all().await;
    }
    store.close().await;
    let stats = store.stats();
    assert!(stats.checkpoints > 1, "{stats:?}");
    assert!(stats.checkpointed_pages > 50, "{stats:?}");
    let wal = fs::metadata(db.path.with_extension("db-wal")).map_or(0, |wal| wal.len());
    assert_eq!(wal, 0, "after closing, the file alone is the database");
    let store = db.open();
    let page = store
        .list_runs(&tenant("acme"), &RunFilter::default(), None, 999)
        .await
        .expect("list");
    assert_eq!(page.runs.len(), 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_continue_while_writes_wait() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 3)).await.expect("append");
    let blocker = db.raw();
    blocker.execute_batch("BEGIN IMMEDIATE").expect("begin");
    let mut waiting = store.append(append(&run(1), 3, 1));
    let polled = poll_once(&mut waiting).await;
    assert!(polled.is_pending());
    for _ in 0..20 {
        let loaded = store.load(&run(1)).await.expect("load").expect("a run");
        assert_eq!((loaded.head, loaded.summary.status), (Seq(3), RunStatus::Running));
    }
    blocker.execute_batch("COMMIT").expect("commit");
    waiting.await.expect("append");
    assert_eq!(
        store.load(&run(1)).await.expect("load").expect("a run").head,
        Seq(4)
    );
}
