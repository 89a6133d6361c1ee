//! Damaged rows are reported as damage: no panics, and no effect on other rows.

use std::{error::Error, fs};

use wopr_core::Seq;
use wopr_store::{AppendError, Log as _, PhaseFilter, Queue, ReadError, RunFilter, Work as _, sqlite};

use crate::{
    database::{Database, in_one_group},
    make::*,
};

#[tokio::test]
async fn unreadable_run_is_damage_and_does_not_affect_others() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 2)).await.expect("append");
    store.append(create(&run(2), 2)).await.expect("append");
    db.sql(&format!(
        "UPDATE runs SET status = 'asleep' WHERE run = '{}'",
        run_id(1)
    ));

    let damaged = store.load(&run(1)).await.expect_err("damaged");
    assert!(
        matches!(&damaged, ReadError::Corrupt(text) if text.to_string().contains("status")),
        "{damaged:?}"
    );
    assert!(matches!(store.summary(&run(1)).await, Err(ReadError::Corrupt(_))));
    assert!(matches!(
        store.events(&run(1), Seq(0), 9).await,
        Err(ReadError::Corrupt(_))
    ));
    let list = store
        .list_runs(&tenant("acme"), &RunFilter::default(), None, 9)
        .await;
    assert!(matches!(list, Err(ReadError::Corrupt(_))));
    assert!(store.load(&run(2)).await.expect("load").is_some());
}

#[tokio::test]
async fn an_error_keeps_the_error_it_came_from() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 2)).await.expect("append");
    db.sql("UPDATE runs SET workflow = ''");
    let damaged = store.load(&run(1)).await.expect_err("damaged");
    let cause = damaged.source().expect("a cause");
    let source = cause.source().expect("the error of the parser");
    assert!(source.is::<wopr_core::IdError>(), "{damaged:?}");
    assert!(cause.to_string().ends_with(&source.to_string()), "{cause}");

    db.sql("ALTER TABLE runs RENAME TO lost");
    let gone = store.load(&run(1)).await.expect_err("no table");
    let source = gone.source().and_then(Error::source);
    assert!(source.is_some_and(<dyn Error>::is::<rusqlite::Error>), "{gone:?}");
}

#[tokio::test]
async fn write_that_meets_damage_does_not_fail_its_group() {
    let db = Database::new();
    let store = db.open();
    store.remember(record("k", 100), at(0)).await.expect("remember");
    db.sql("UPDATE idempotency SET run = 'x'");
    let mut batches: Vec<_> = (0..9).map(|n| create(&run(n), 1)).collect();
    batches[4].idempotency = Some(record("k", 100));
    for (n, outcome) in (0..).zip(in_one_group(&db, &store, batches).await) {
        assert_eq!(
            matches!(&outcome, Err(AppendError::Corrupt(_))),
            n == 4,
            "{n}: {outcome:?}"
        );
        assert_eq!(outcome.is_ok(), n != 4, "{n}: {outcome:?}");
    }
    let stats = store.stats();
    assert_eq!(
        (stats.retried_groups, stats.appends, stats.largest_group),
        (0, 9, 8),
        "{stats:?}"
    );
}

#[tokio::test]
async fn damaged_or_missing_pages_are_found() {
    const PAGE: usize = 8192;
    let db = Database::new();
    let store = db.open();
    for n in 0..200 {
        store.append(create(&run(n), 20)).await.expect("append");
    }
    // Its body ends in the last page and leaves some of it free.
    let mut large = create(&run(200), 1);
    large.events[0].body = vec![7; 100_000];
    store.append(large).await.expect("append");
    store.close().await;
    let sound = fs::read(&db.path).expect("read");
    let n_pages = sound.len() / PAGE;
    assert!(n_pages > 40, "{n_pages}");
    let look = |bytes: &[u8]| {
        fs::write(&db.path, bytes).expect("write");
        sqlite::first_damage(&db.path)
    };
    assert_eq!(look(&sound).expect("sound"), None);
    for pages in [n_pages - 1, n_pages / 2, 1] {
        let found = look(&sound[..pages * PAGE]).expect("cut off");
        assert!(found.is_some(), "{pages} of {n_pages}");
    }
    let found = look(&sound[..sound.len() - 1]).expect("cut off");
    assert!(found.is_some(), "the last page is not whole");
    for page in 1..n_pages - 100_000 / PAGE {
        let mut damaged = sound.clone();
        damaged[page * PAGE..(page + 1) * PAGE].fill(0x5a);
        let found = look(&damaged).expect("damaged").expect("found");
        assert!(!found.is_empty() && !found.contains('\n'), "{page}: {found}");
    }
    assert_eq!(look(&sound).expect("sound"), None);
}

#[tokio::test]
async fn gap_in_a_log_is_damage() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 2)).await.expect("append");
    for n in 2..5 {
        store.append(append(&run(1), n, 1)).await.expect("append");
    }
    db.sql("DELETE FROM events WHERE last_seq = 2");
    let damaged = store.load(&run(1)).await.expect_err("a gap");
    assert!(
        matches!(&damaged, ReadError::Corrupt(text) if text.to_string().contains("event 2")),
        "{damaged:?}"
    );
    assert!(matches!(
        store.events(&run(1), Seq(1), 2).await,
        Err(ReadError::Corrupt(_))
    ));
    let page = store
        .events(&run(1), Seq(3), 9)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(page.events, events(3, 2), "what is whole can be read");

    db.sql("DELETE FROM events WHERE last_seq > 2");
    assert!(
        matches!(store.events(&run(1), Seq(3), 9).await, Err(ReadError::Corrupt(_))),
        "a lost end"
    );
}

#[tokio::test]
async fn row_without_events_is_damage() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 3)).await.expect("append");
    for bodies in ["x''", "x'0000000901'", "x'00000001'", "x'000000010100'"] {
        db.sql(&format!("UPDATE events SET bodies = {bodies}"));
        let damaged = store.load(&run(1)).await.expect_err("no events");
        assert!(
            matches!(&damaged, ReadError::Corrupt(text) if text.to_string().contains("bodies")),
            "{bodies}: {damaged:?}"
        );
    }
    db.sql("UPDATE events SET bodies = x'0000000101'");
    let damaged = store.load(&run(1)).await.expect_err("one event of three");
    assert!(
        matches!(&damaged, ReadError::Corrupt(text) if text.to_string().contains("event 0")),
        "{damaged:?}"
    );
}

#[tokio::test]
async fn event_beyond_the_log_is_damage_and_nothing_is_written() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    db.sql(&format!(
        "INSERT INTO events VALUES ('acme', '{}', 2, x'0000000100')",
        run_id(1)
    ));
    let damaged = store
        .append(append(&run(1), 1, 2))
        .await
        .expect_err("an event is there already");
    assert!(matches!(damaged, AppendError::Corrupt(_)), "{damaged:?}");
    assert_eq!(
        store
            .summary(&run(1))
            .await
            .expect("summary")
            .map(|(_, head)| head),
        Some(Seq(1))
    );
    store.append(create(&run(2), 1)).await.expect("the others go on");
}

#[tokio::test]
async fn snapshot_beyond_the_log_is_damage() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    db.sql(&format!(
        "INSERT INTO snapshots VALUES ('acme', '{}', 9, x'00')",
        run_id(1)
    ));
    assert!(matches!(store.load(&run(1)).await, Err(ReadError::Corrupt(_))));
}

#[tokio::test]
async fn damaged_side_rows_are_reported_and_not_returned() {
    let db = Database::new();
    let store = db.open();
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![effect("a"), effect("b")];
    batch.idempotency = Some(record("k", 100));
    store.append(batch).await.expect("append");
    db.sql(
        "UPDATE runs SET waiting_on = 'nap'; UPDATE work SET fence = -1 WHERE key = 'b';
         UPDATE idempotency SET run = 'x'",
    );
    assert!(matches!(store.summary(&run(1)).await, Err(ReadError::Corrupt(_))));
    let list = store
        .list_by_phase(&tenant("acme"), &PhaseFilter::default(), None, 9)
        .await;
    assert!(matches!(list, Err(ReadError::Corrupt(_))));
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    // An unreadable row does not prevent the others from being leased.
    let leased = store.lease(Queue::Effects, epoch, times(0, 9), &9.into()).await;
    assert_eq!(leased.expect("lease").len(), 1, "the sound one");

    let mut batch = create(&run(2), 1);
    batch.idempotency = Some(record("k", 100));
    let damaged = store
        .append(batch)
        .await
        .expect_err("an unreadable record may be this request's");
    assert!(matches!(damaged, AppendError::Corrupt(_)), "{damaged:?}");
    assert_eq!(store.summary(&run(2)).await.expect("summary"), None);
}
