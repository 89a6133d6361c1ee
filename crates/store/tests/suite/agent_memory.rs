//! What agents remember: versions, their order, what expires, and what nobody can read any more.

use std::sync::Arc;

use wopr_core::{RunKey, Seq};
use wopr_store::{AppendError, Batch, MemoryQuery, MemoryRoom, MemoryRow, MemoryUse, Removal, Store};

use crate::{behaviours, make::*};

behaviours! {
    an_entry_is_read_as_it_was_written_with_its_append,
    a_refused_append_remembers_nothing,
    the_latest_version_counts_whoever_wrote_it,
    a_scope_is_read_as_of_an_earlier_time,
    an_expired_entry_is_not_returned,
    entries_are_found_by_id_and_tag,
    a_removed_entry_is_gone_until_it_is_written_again,
    other_scopes_and_tenants_see_nothing,
    what_nobody_can_read_is_forgotten,
    forgetting_brings_nothing_back,
    entries_of_shared_scopes_outlive_their_run_and_those_of_its_own_do_not,
    the_scope_of_the_run_that_ended_first_is_forgotten_first,
    as_many_ended_scopes_are_forgotten_at_once_as_are_lacking,
    tenants_that_remember_something_are_found_in_turn,
    rows_and_bytes_are_counted,
}

const SCOPE: &str = "acme/facts";

fn row(id: &str, seq: u64, at_millis: i64, content: &str) -> MemoryRow {
    MemoryRow {
        scope: SCOPE.to_owned(),
        id: id.to_owned(),
        seq: Seq(seq),
        at: at(at_millis),
        content: Some(content.to_owned()),
        tags: vec!["fact".to_owned(), format!("tag-{id}")],
        created_at: at(at_millis),
        expires_at: None,
        is_untrusted: false,
    }
}

fn removed(id: &str, seq: u64, at_millis: i64) -> MemoryRow {
    MemoryRow {
        content: None,
        tags: Vec::new(),
        ..row(id, seq, at_millis, "")
    }
}

fn all() -> MemoryQuery {
    MemoryQuery {
        scope: SCOPE.to_owned(),
        id: None,
        tag: None,
        now: at(1_000),
        as_of: None,
        limit: 100,
    }
}

async fn write(store: &dyn Store, run: &RunKey, rows: Vec<MemoryRow>) {
    let mut batch = create(run, 1);
    batch.memory = rows;
    store.append(batch).await.expect("append");
}

/// The entries of the default tenant, each as its id and content.
async fn read(store: &dyn Store, query: &MemoryQuery) -> Vec<String> {
    let found = store.memory(&tenant("acme"), query).await.expect("read");
    found
        .iter()
        .map(|entry| format!("{}={}", entry.id, entry.content))
        .collect()
}

async fn an_entry_is_read_as_it_was_written_with_its_append(store: Arc<dyn Store>) {
    let odd = "a\0b\u{1}c \u{1F600} \"quoted\" \u{1}2";
    let rows = vec![
        MemoryRow {
            tags: vec![odd.to_owned(), String::new(), "plain".to_owned()],
            expires_at: Some(at(5_000)),
            is_untrusted: true,
            ..row("odd\0", 0, 7, odd)
        },
        MemoryRow {
            tags: Vec::new(),
            ..row("bare", 0, 6, "")
        },
    ];
    write(&*store, &run(1), rows.clone()).await;
    let found = store.memory(&tenant("acme"), &all()).await.expect("read");
    assert_eq!(found.len(), 2);
    for (entry, row) in found.iter().zip(&rows) {
        assert_eq!(entry.id, row.id);
        assert_eq!(Some(&entry.content), row.content.as_ref());
        assert_eq!(entry.tags, row.tags);
        assert_eq!(
            (entry.created_at, entry.expires_at),
            (row.created_at, row.expires_at)
        );
        assert_eq!(entry.is_untrusted, row.is_untrusted);
        assert_eq!(entry.run, run_id(1));
    }
    let by_tag = MemoryQuery {
        tag: Some(odd.to_owned()),
        ..all()
    };
    assert_eq!(
        store.memory(&tenant("acme"), &by_tag).await.expect("read").len(),
        1
    );
}

async fn a_refused_append_remembers_nothing(store: Arc<dyn Store>) {
    write(&*store, &run(1), vec![row("a", 0, 1, "one")]).await;
    let mut batch: Batch = append(&run(1), 5, 1);
    batch.memory = vec![row("a", 5, 2, "two")];
    let refused = store.append(batch).await.expect_err("the log is shorter");
    assert!(matches!(refused, AppendError::Conflict { .. }), "{refused}");
    assert_eq!(read(&*store, &all()).await, ["a=one"]);
}

async fn the_latest_version_counts_whoever_wrote_it(store: Arc<dyn Store>) {
    // The order of appends is another one than that of times, runs and events.
    write(
        &*store,
        &run(3),
        vec![row("a", 0, 20, "late"), row("b", 0, 20, "b of 3")],
    )
    .await;
    write(&*store, &run(1), vec![row("a", 0, 10, "early")]).await;
    write(&*store, &run(2), vec![row("b", 0, 20, "b of 2")]).await;
    write(
        &*store,
        &run(4),
        vec![row("c", 1, 5, "second"), row("c", 0, 5, "first")],
    )
    .await;
    assert_eq!(read(&*store, &all()).await, ["a=late", "b=b of 3", "c=second"]);
    let two = MemoryQuery { limit: 2, ..all() };
    assert_eq!(read(&*store, &two).await, ["a=late", "b=b of 3"]);
}

async fn a_scope_is_read_as_of_an_earlier_time(store: Arc<dyn Store>) {
    write(&*store, &run(1), vec![row("a", 0, 10, "one")]).await;
    write(
        &*store,
        &run(2),
        vec![row("a", 0, 20, "two"), row("b", 0, 21, "new")],
    )
    .await;
    write(&*store, &run(3), vec![removed("a", 0, 30)]).await;
    for (as_of, expected) in [
        (9, vec![]),
        (10, vec!["a=one"]),
        (19, vec!["a=one"]),
        (20, vec!["a=two"]),
        (29, vec!["b=new", "a=two"]),
        (30, vec!["b=new"]),
    ] {
        let query = MemoryQuery {
            as_of: Some(at(as_of)),
            ..all()
        };
        assert_eq!(read(&*store, &query).await, expected, "{as_of}");
    }
}

async fn an_expired_entry_is_not_returned(store: Arc<dyn Store>) {
    let short = MemoryRow {
        expires_at: Some(at(500)),
        ..row("a", 0, 20, "short")
    };
    write(&*store, &run(1), vec![row("a", 0, 10, "long")]).await;
    write(&*store, &run(2), vec![short, row("b", 0, 20, "kept")]).await;
    let now = |now| MemoryQuery {
        now: at(now),
        ..all()
    };
    assert_eq!(read(&*store, &now(499)).await, ["a=short", "b=kept"]);
    // It does not uncover the version that it replaced.
    assert_eq!(read(&*store, &now(500)).await, ["b=kept"]);
}

async fn entries_are_found_by_id_and_tag(store: Arc<dyn Store>) {
    write(
        &*store,
        &run(1),
        vec![row("a", 0, 1, "one"), row("b", 0, 2, "two")],
    )
    .await;
    let by_id = |id: &str| MemoryQuery {
        id: Some(id.to_owned()),
        ..all()
    };
    assert_eq!(read(&*store, &by_id("a")).await, ["a=one"]);
    assert_eq!(read(&*store, &by_id("c")).await, [""; 0]);
    for (tag, expected) in [
        ("fact", vec!["b=two", "a=one"]),
        ("tag-a", vec!["a=one"]),
        ("tag", vec![]),
        ("%", vec![]),
    ] {
        let by_tag = MemoryQuery {
            tag: Some(tag.to_owned()),
            ..all()
        };
        assert_eq!(read(&*store, &by_tag).await, expected, "{tag}");
    }
}

async fn a_removed_entry_is_gone_until_it_is_written_again(store: Arc<dyn Store>) {
    write(&*store, &run(1), vec![row("a", 0, 1, "one")]).await;
    write(&*store, &run(2), vec![removed("a", 0, 2)]).await;
    assert_eq!(read(&*store, &all()).await, [""; 0]);
    write(&*store, &run(3), vec![row("a", 0, 3, "again")]).await;
    assert_eq!(read(&*store, &all()).await, ["a=again"]);
}

async fn other_scopes_and_tenants_see_nothing(store: Arc<dyn Store>) {
    write(&*store, &run(1), vec![row("a", 0, 1, "one")]).await;
    let elsewhere = MemoryQuery {
        scope: "acme/fact".to_owned(),
        ..all()
    };
    assert_eq!(read(&*store, &elsewhere).await, [""; 0]);
    assert_eq!(store.memory(&tenant("rival"), &all()).await.expect("read"), []);
    let used = store.memory_use(&tenant("rival"), SCOPE).await.expect("count");
    assert_eq!(used, MemoryUse::default());
    // Nor do they lose anything.
    let forgotten = store
        .forget_memory(&tenant("rival"), at(9_000), at(9_000), 100)
        .await;
    assert_eq!(forgotten.expect("forget"), 0);
    assert_eq!(read(&*store, &all()).await, ["a=one"]);
}

async fn what_nobody_can_read_is_forgotten(store: Arc<dyn Store>) {
    let expiring = |id: &str, expires: i64| MemoryRow {
        expires_at: Some(at(expires)),
        ..row(id, 0, 10, "e")
    };
    write(
        &*store,
        &run(1),
        vec![row("a", 0, 1, "one"), expiring("gone", 50), expiring("kept", 500)],
    )
    .await;
    write(&*store, &run(2), vec![row("a", 0, 2, "two")]).await;
    write(
        &*store,
        &run(3),
        vec![row("a", 0, 3, "three"), row("b", 0, 3, "b")],
    )
    .await;
    write(&*store, &run(4), vec![removed("b", 0, 4)]).await;
    write(&*store, &run(5), vec![row("a", 0, 90, "four")]).await;
    let count = async || {
        store
            .memory_use(&tenant("acme"), SCOPE)
            .await
            .expect("count")
            .rows
    };
    assert_eq!(count().await, 8);
    // `three` was replaced after 50, and so it is kept. The others are forgotten a few at a time.
    let mut n_forgotten = 0;
    loop {
        let step = store
            .forget_memory(&tenant("acme"), at(100), at(50), 2)
            .await
            .expect("forget");
        assert!(step <= 2, "{step}");
        n_forgotten += step;
        if step == 0 {
            break;
        }
    }
    assert_eq!((n_forgotten, count().await), (5, 3));
    let query = MemoryQuery {
        now: at(100),
        ..all()
    };
    assert_eq!(read(&*store, &query).await, ["a=four", "kept=e"]);
    let before = MemoryQuery {
        as_of: Some(at(60)),
        ..query
    };
    assert_eq!(read(&*store, &before).await, ["kept=e", "a=three"]);
}

async fn forgetting_brings_nothing_back(store: Arc<dyn Store>) {
    write(
        &*store,
        &run(1),
        vec![row("a", 0, 1, "old"), row("b", 0, 1, "old")],
    )
    .await;
    let short = MemoryRow {
        expires_at: Some(at(20)),
        ..row("a", 0, 60, "short")
    };
    write(&*store, &run(2), vec![short, removed("b", 0, 60)]).await;
    // The versions that replaced the old ones are over, but younger than what may be forgotten.
    for _ in 0..3 {
        store
            .forget_memory(&tenant("acme"), at(100), at(50), 1)
            .await
            .expect("forget");
        assert_eq!(
            read(
                &*store,
                &MemoryQuery {
                    now: at(100),
                    ..all()
                }
            )
            .await,
            [""; 0]
        );
    }
    while store
        .forget_memory(&tenant("acme"), at(100), at(90), 1)
        .await
        .expect("forget")
        > 0
    {
        assert_eq!(
            read(
                &*store,
                &MemoryQuery {
                    now: at(100),
                    ..all()
                }
            )
            .await,
            [""; 0]
        );
    }
    let used = store.memory_use(&tenant("acme"), SCOPE).await.expect("count");
    assert_eq!(used, MemoryUse::default());
}

/// An entry of the scope that belongs to a run.
fn own_row(n: u64, id: &str) -> MemoryRow {
    MemoryRow {
        scope: run_id(n).memory_scope(),
        ..row(id, 0, 1, "own")
    }
}

/// The ids of what is in the scope that belongs to a run.
async fn own(store: &dyn Store, n: u64) -> Vec<String> {
    let query = MemoryQuery {
        scope: run_id(n).memory_scope(),
        ..all()
    };
    read(store, &query).await
}

/// How many entries a tenant has in the scope of its first run.
async fn n_own(store: &dyn Store, of: &str) -> u64 {
    let used = store.memory_use(&tenant(of), &run_id(1).memory_scope()).await;
    used.expect("count").in_scope
}

async fn entries_of_shared_scopes_outlive_their_run_and_those_of_its_own_do_not(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.summary = summary(wopr_core::RunStatus::Completed, 1);
    batch.memory = vec![
        row("a", 0, 1, "one"),
        own_row(1, "b"),
        own_row(1, "c"),
        own_row(2, "d"),
    ];
    store.append(batch).await.expect("append");
    let other = RunKey::new(tenant("rival"), run_id(1));
    write(&*store, &other, vec![own_row(1, "e")]).await;
    assert_eq!(own(&*store, 1).await, ["b=own", "c=own"]);
    let removal = Removal {
        run: run_id(1),
        root: run_id(1),
    };
    store.remove(&tenant("acme"), &[removal]).await.expect("mark");
    // In small steps, each of which finds what the others have left.
    while store.sweep(1).await.expect("sweep").rows > 0 {}
    assert_eq!(read(&*store, &all()).await, ["a=one"]);
    assert_eq!(n_own(&*store, "acme").await, 0);
    assert_eq!(own(&*store, 2).await, ["d=own"]);
    assert_eq!(n_own(&*store, "rival").await, 1);
}

fn wanted(rows: u64, bytes: u64) -> MemoryRoom {
    MemoryRoom { rows, bytes }
}

async fn the_scope_of_the_run_that_ended_first_is_forgotten_first(store: Arc<dyn Store>) {
    use wopr_core::RunStatus::{Cancelled, Completed, Running};
    for (n, status, at) in [(1, Running, 1), (2, Completed, 9), (3, Cancelled, 5)] {
        let mut batch = create(&run(n), 1);
        batch.summary = summary(status, at);
        batch.memory = vec![own_row(n, "a"), own_row(n, "b"), row("shared", n, 1, "one")];
        store.append(batch).await.expect("append");
    }
    let other = RunKey::new(tenant("rival"), run_id(2));
    write(&*store, &other, vec![own_row(2, "e")]).await;
    let acme = tenant("acme");
    for (forgotten, n_rows, left) in [(3, 2, [2, 2, 0]), (2, 2, [2, 0, 0]), (1, 0, [2, 0, 0])] {
        assert_eq!(
            store
                .forget_ended_scopes(&acme, wanted(1, 0), 100)
                .await
                .expect("forget"),
            n_rows
        );
        for (n, left) in [1, 2, 3].into_iter().zip(left) {
            assert_eq!(own(&*store, n).await.len(), left, "{n}");
        }
        let has_forgotten = store.has_forgotten(&run(forgotten)).await.expect("read");
        assert_eq!(has_forgotten, n_rows > 0);
    }
    assert_eq!(read(&*store, &all()).await, ["shared=one"]);
    assert!(!store.has_forgotten(&other).await.expect("read"));
}

async fn as_many_ended_scopes_are_forgotten_at_once_as_are_lacking(store: Arc<dyn Store>) {
    for n in 1..=9 {
        let mut batch = create(&run(n), 1);
        batch.summary = summary(wopr_core::RunStatus::Completed, i64::try_from(n).expect("small"));
        batch.memory = vec![own_row(n, "a"), own_row(n, "b")];
        store.append(batch).await.expect("append");
    }
    // A scope whose run is not there any more goes first.
    write(&*store, &run(11), vec![own_row(10, "a")]).await;
    let acme = tenant("acme");
    let bytes = own_row(1, "a").size() as u64;
    for (room, limit, n_rows) in [
        (wanted(0, 0), 100, 0),
        (wanted(2, 0), 100, 3),
        (wanted(1, 2 * bytes + 1), 100, 4),
        (wanted(100, 0), 3, 4),
        (wanted(100, u64::MAX), 100, 8),
        (wanted(1, 1), 100, 0),
    ] {
        let forgotten = store.forget_ended_scopes(&acme, room, limit).await;
        assert_eq!(forgotten.expect("forget"), n_rows, "{room:?}");
    }
    let used = store.memory_use(&acme, SCOPE).await.expect("count");
    assert_eq!(used, MemoryUse::default());
}

async fn tenants_that_remember_something_are_found_in_turn(store: Arc<dyn Store>) {
    for (of, n) in [("rival", 1), ("acme", 2), ("zenith", 3)] {
        let run = RunKey::new(tenant(of), run_id(n));
        write(&*store, &run, vec![row("a", 0, 1, "one"), row("b", 0, 1, "two")]).await;
    }
    // It has runs, and remembers nothing.
    write(&*store, &RunKey::new(tenant("empty"), run_id(4)), Vec::new()).await;
    let mut found = Vec::new();
    while let Some(next) = store.next_remembering(found.last()).await.expect("read") {
        found.push(next);
    }
    assert_eq!(found, ["acme", "rival", "zenith"].map(tenant));
}

async fn rows_and_bytes_are_counted(store: Arc<dyn Store>) {
    let rows = vec![row("a", 0, 1, "one"), row("b", 0, 1, "twelve bytes")];
    let elsewhere = MemoryRow {
        scope: "other".to_owned(),
        ..row("c", 0, 1, "three")
    };
    let again = row("a", 0, 2, "once more");
    let n_bytes: usize = rows.iter().chain([&elsewhere, &again]).map(MemoryRow::size).sum();
    write(&*store, &run(1), [rows, vec![elsewhere]].concat()).await;
    write(&*store, &run(2), vec![again]).await;
    assert_eq!(
        store.memory_use(&tenant("acme"), SCOPE).await.expect("count"),
        MemoryUse {
            rows: 4,
            bytes: n_bytes as u64,
            in_scope: 2,
        }
    );
}
