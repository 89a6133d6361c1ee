//! Appends: guards, gapless logs, and refusals without side effects.

use std::{collections::BTreeSet, sync::Arc};

use wopr_core::{InterruptKind, RunKey, RunStatus, Seq, TenantId};
use wopr_store::{AppendError, Batch, BlobRow, Guard, MessageRow, Queue, Snapshot, Store};

use crate::make::*;

crate::behaviours!(
    created_run_reads_back_unchanged,
    creating_a_run_twice_is_a_conflict,
    appending_to_a_missing_run_is_a_conflict,
    append_at_the_wrong_position_is_a_conflict_with_the_head,
    append_without_events_changes_only_the_status,
    creation_attributes_never_change,
    refused_append_leaves_nothing,
    one_of_many_appends_at_the_same_position_wins,
    one_of_many_creations_wins,
    concurrent_appends_leave_a_dense_log,
    appends_to_different_runs_do_not_conflict,
    children_are_runs_with_an_empty_log,
    a_child_can_be_created_with_its_log,
    a_child_that_is_created_with_its_log_may_leave_work,
    existing_child_refuses_the_whole_batch,
    conflict_on_the_run_is_reported_before_an_existing_child,
    a_child_starts_at_sequence_zero,
    an_alias_belongs_to_one_run_of_a_tenant,
    one_of_many_runs_gets_an_alias,
);

async fn created_run_reads_back_unchanged(store: Arc<dyn Store>) {
    let run = run(1);
    let mut batch = create(&run, 3);
    batch.summary.parent = Some((run_id(9), node("spawn: \"ünïcode\"")));
    batch.summary.group = Some("ctx".to_owned());
    batch.summary.alias = Some("a:sub:ü".to_owned());
    batch.summary.status = RunStatus::WaitingApproval;
    batch.summary.waiting_on = Some(InterruptKind::Approval);
    batch.summary.error_code = Some("no_luck".to_owned());
    batch.summary.phase_since = at(7);
    batch.messages = vec![MessageRow {
        id: "m1".to_owned(),
        seq: Seq(0),
        body: b"hello".to_vec(),
    }];
    batch.blobs = vec![BlobRow {
        id: "b1".to_owned(),
        media_type: "text/plain".to_owned(),
        bytes: vec![0, 159, 146, 150],
    }];
    store.append(batch.clone()).await.expect("append");

    let loaded = store.load(&run).await.expect("load").expect("a run");
    assert_eq!(loaded.summary, batch.summary);
    assert_eq!(loaded.head, Seq(3));
    assert_eq!(loaded.snapshot, None);
    assert_eq!(loaded.tail, batch.events);
    assert_eq!(loaded.inbox, []);
    assert_eq!(
        store.summary(&run).await.expect("summary"),
        Some((batch.summary, Seq(3)))
    );
    assert_eq!(store.messages(&run, 10).await.expect("messages"), batch.messages);
    assert_eq!(
        store.blob(&run, "b1").await.expect("blob").as_ref(),
        batch.blobs.first()
    );
    assert_eq!(store.blob(&run, "b2").await.expect("blob"), None);
}

async fn creating_a_run_twice_is_a_conflict(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("append");
    let refused = store.append(create(&run(1), 1)).await.expect_err("exists");
    assert!(
        matches!(
            refused,
            AppendError::Conflict {
                expected: Seq(0),
                actual: Some(Seq(2))
            }
        ),
        "{refused:?}"
    );
}

async fn appending_to_a_missing_run_is_a_conflict(store: Arc<dyn Store>) {
    for from in [0, 5] {
        let refused = store.append(append(&run(1), from, 1)).await.expect_err("missing");
        assert!(matches!(refused, AppendError::Conflict { expected, actual: None } if expected == Seq(from)));
    }
    assert_eq!(store.load(&run(1)).await.expect("load"), None);
}

async fn append_at_the_wrong_position_is_a_conflict_with_the_head(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("append");
    for from in [0, 1, 3] {
        let refused = store
            .append(append(&run(1), from, 1))
            .await
            .expect_err("wrong place");
        assert!(
            matches!(refused, AppendError::Conflict { expected, actual: Some(Seq(2)) } if expected == Seq(from))
        );
    }
    store.append(append(&run(1), 2, 1)).await.expect("right place");
}

async fn append_without_events_changes_only_the_status(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("append");
    let mut batch = append(&run(1), 2, 0);
    batch.summary = summary(RunStatus::Cancelling, 9);
    store.append(batch.clone()).await.expect("append");
    assert_eq!(
        store.summary(&run(1)).await.expect("summary"),
        Some((batch.summary, Seq(2)))
    );
}

async fn creation_attributes_never_change(store: Arc<dyn Store>) {
    let created = create(&run(1), 1);
    store.append(created.clone()).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.summary.workflow = workflow("other");
    batch.summary.principal = principal("eve");
    batch.summary.parent = Some((run_id(5), node("x")));
    batch.summary.created_at = at(99);
    batch.summary.status = RunStatus::Failed;
    (batch.summary.phase_since, batch.summary.updated_at) = (at(50), at(50));
    store.append(batch).await.expect("append");

    let (found, _) = store.summary(&run(1)).await.expect("summary").expect("a run");
    let expected = wopr_store::Summary {
        status: RunStatus::Failed,
        phase_since: at(50),
        updated_at: at(50),
        ..created.summary
    };
    assert_eq!(found, expected);
}

async fn refused_append_leaves_nothing(store: Arc<dyn Store>) {
    let (target, other) = (run(1), run(2));
    let mut first = create(&target, 1);
    first.work_set = vec![effect("a:0:1")];
    store.append(first).await.expect("append");
    let before = store.load(&target).await.expect("load");

    // Everything that a batch can contain, at the wrong position.
    let mut batch = append(&target, 7, 2);
    batch.summary.status = RunStatus::Failed;
    batch.snapshot = Some(Snapshot {
        head: Seq(9),
        body: b"fold".to_vec(),
    });
    batch.work_set = vec![timer("t", 1), effect("b:0:1")];
    batch.work_ended = vec![wopr_store::Ended {
        key: effect_key("a:0:1"),
        fence: None,
    }];
    batch.children = vec![child(3, &target)];
    batch.inbox_sent = vec![run_message(&other, &target, 1)];
    batch.idempotency = Some(record("k", 100));
    batch.messages = vec![MessageRow {
        id: "m".to_owned(),
        seq: Seq(7),
        body: Vec::new(),
    }];
    batch.blobs = vec![BlobRow {
        id: "b".to_owned(),
        media_type: "x/y".to_owned(),
        bytes: Vec::new(),
    }];
    store.append(batch).await.expect_err("conflict");

    assert_eq!(store.load(&target).await.expect("load"), before);
    assert_eq!(store.next_due(Queue::Timers).await.expect("timers"), None);
    assert_eq!(store.summary(&run(3)).await.expect("child"), None);
    assert_eq!(
        store
            .runs_with_inbox(wopr_store::Epoch(1), None, 10)
            .await
            .expect("inbox"),
        []
    );
    assert_eq!(
        store
            .idempotency(&idempotency_key("k"), at(0))
            .await
            .expect("record"),
        None
    );
    assert_eq!(store.messages(&target, 10).await.expect("messages"), []);
    assert_eq!(store.blob(&target, "b").await.expect("blob"), None);
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let leased = store
        .lease(Queue::Effects, epoch, times(0, 9), &10.into())
        .await
        .expect("lease");
    assert_eq!(
        leased
            .iter()
            .map(|effect| effect.key.name.as_str())
            .collect::<Vec<_>>(),
        ["a:0:1"]
    );
}

async fn one_of_many_appends_at_the_same_position_wins(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..32_u8 {
        let store = store.clone();
        attempts.spawn(async move {
            let mut batch = append(&run(1), 1, 1);
            batch.events[0].body = vec![n];
            (n, store.append(batch).await)
        });
    }
    let mut winners = Vec::new();
    for (n, outcome) in attempts.join_all().await {
        match outcome {
            Ok(()) => winners.push(n),
            Err(refused) => assert!(
                matches!(
                    refused,
                    AppendError::Conflict {
                        expected: Seq(1),
                        actual: Some(Seq(2))
                    }
                ),
                "{refused:?}"
            ),
        }
    }
    assert_eq!(winners.len(), 1);
    let page = store
        .events(&run(1), Seq(1), 10)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(page.events.len(), 1);
    assert_eq!(page.events[0].body, winners);
}

async fn one_of_many_creations_wins(store: Arc<dyn Store>) {
    let mut attempts = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let store = store.clone();
        attempts.spawn(async move { store.append(create(&run(1), 2)).await });
    }
    let outcomes = attempts.join_all().await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert_eq!(
        store
            .summary(&run(1))
            .await
            .expect("summary")
            .map(|(_, head)| head),
        Some(Seq(2))
    );
}

async fn concurrent_appends_leave_a_dense_log(store: Arc<dyn Store>) {
    const WRITERS: u8 = 8;
    const EACH: usize = 12;
    store.append(create(&run(1), 1)).await.expect("append");
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            let mut written = 0;
            while written < EACH {
                let (_, head) = store.summary(&run(1)).await.expect("summary").expect("a run");
                let mut batch = append(&run(1), head.0, 1 + usize::from(n % 3));
                for event in &mut batch.events {
                    event.body = vec![n];
                }
                match store.append(batch).await {
                    Ok(()) => written += 1,
                    Err(refused) => assert!(matches!(refused, AppendError::Conflict { .. }), "{refused:?}"),
                }
            }
        });
    }
    writers.join_all().await;

    let expected: usize = (0..WRITERS)
        .map(|n| (1 + usize::from(n % 3)) * EACH)
        .sum::<usize>()
        + 1;
    let page = store
        .events(&run(1), Seq(0), usize::MAX)
        .await
        .expect("events")
        .expect("a run");
    assert_eq!(page.head, Seq(0).plus(expected));
    let found: Vec<u64> = page.events.iter().map(|event| event.seq.0).collect();
    assert_eq!(found, (0..expected as u64).collect::<Vec<_>>());
}

async fn appends_to_different_runs_do_not_conflict(store: Arc<dyn Store>) {
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..64 {
        let store = store.clone();
        writers.spawn(async move {
            store.append(create(&run(n), 2)).await.expect("create");
            store.append(append(&run(n), 2, 2)).await.expect("append");
        });
    }
    writers.join_all().await;
    let page = store
        .list_runs(&tenant("acme"), &wopr_store::RunFilter::default(), None, 100)
        .await
        .expect("list");
    let found: BTreeSet<_> = page
        .runs
        .iter()
        .map(|(run, _, head)| (run.clone(), *head))
        .collect();
    assert_eq!(found, (0..64).map(|n| (run_id(n), Seq(4))).collect());
}

async fn children_are_runs_with_an_empty_log(store: Arc<dyn Store>) {
    let parent = run(1);
    let mut batch = create(&parent, 2);
    batch.children = vec![child(2, &parent), child(3, &parent)];
    batch.inbox_sent = vec![run_message(&run(2), &parent, 0), run_message(&run(3), &parent, 1)];
    store.append(batch.clone()).await.expect("append");

    for (n, expected) in [(2, &batch.children[0]), (3, &batch.children[1])] {
        let loaded = store.load(&run(n)).await.expect("load").expect("a child");
        assert_eq!(loaded.summary, expected.summary);
        assert_eq!((loaded.head, loaded.tail.len()), (Seq(0), 0));
        assert_eq!(
            loaded.inbox,
            [batch.inbox_sent[usize::try_from(n).expect("small") - 2].clone()]
        );
    }
    assert_eq!(
        store
            .runs_with_inbox(wopr_store::Epoch(1), None, 10)
            .await
            .expect("inbox"),
        [run(2), run(3)]
    );
}

async fn a_child_can_be_created_with_its_log(store: Arc<dyn Store>) {
    let parent = run(1);
    let mut batch = create(&parent, 2);
    batch.children = vec![child(2, &parent), child(3, &parent)];
    batch.children[0].summary = summary(RunStatus::Completed, 1);
    batch.children[0].events = events(0, 5);
    batch.inbox_sent = vec![run_message(&run(3), &parent, 1)];
    store.append(batch.clone()).await.expect("append");

    let loaded = store.load(&run(2)).await.expect("load").expect("a child");
    assert_eq!(loaded.summary, batch.children[0].summary);
    assert_eq!((loaded.head, loaded.tail), (Seq(5), events(0, 5)));
    assert!(loaded.inbox.is_empty());
    let mut late = batch.clone();
    late.run = run(4);
    late.children.truncate(1);
    let refused = store.append(late).await.expect_err("exists");
    assert!(
        matches!(
            refused,
            AppendError::Conflict {
                actual: Some(Seq(5)),
                ..
            }
        ),
        "{refused:?}"
    );
    let next = append(&run(2), 5, 1);
    store.append(next).await.expect("the log goes on where it ended");
}

async fn a_child_that_is_created_with_its_log_may_leave_work(store: Arc<dyn Store>) {
    let parent = run(1);
    let mut batch = create(&parent, 2);
    batch.work_set = vec![timer("own", 10)];
    batch.children = vec![child(2, &parent), child(3, &parent), child(4, &parent)];
    for (n, row) in batch.children.iter_mut().enumerate().skip(1) {
        row.events = events(0, 3);
        row.snapshot = Some(Snapshot {
            head: Seq(3),
            body: format!("snapshot {n}").into_bytes(),
        });
        row.work = vec![
            timer("own", 10 + i64::try_from(n).expect("small")),
            effect("call"),
        ];
    }
    // What a run tells another one is there with both.
    batch.inbox_sent = vec![run_message(&parent, &run(3), 2)];
    store.append(batch.clone()).await.expect("append");

    let loaded = store.load(&run(4)).await.expect("load").expect("a child");
    assert_eq!((loaded.head, loaded.tail), (Seq(3), Vec::new()));
    assert_eq!(loaded.snapshot, batch.children[2].snapshot);
    let own = timer_key("own");
    let expected = [run(1), run(3), run(4)].map(|run| (run, own.clone()));
    assert_eq!(due(&*store, 99, 10).await, expected);
    let leased = store
        .lease(Queue::Effects, wopr_store::Epoch(1), times(5, 50), &10.into())
        .await
        .expect("lease");
    let mut leased: Vec<_> = leased
        .into_iter()
        .map(|effect| (effect.run, effect.key))
        .collect();
    leased.sort_by(|one, other| one.0.run.cmp(&other.0.run));
    assert_eq!(leased, [run(3), run(4)].map(|run| (run, effect_key("call"))));
    let loaded = store.load(&parent).await.expect("load").expect("the parent");
    assert_eq!(loaded.inbox.len(), 1);

    // Refused, it leaves nothing of it.
    let mut late = batch;
    late.run = run(5);
    late.children[1].run = run_id(6);
    late.children.remove(0);
    let refused = store.append(late).await.expect_err("exists");
    assert!(matches!(refused, AppendError::Conflict { .. }), "{refused}");
    assert_eq!(due(&*store, 99, 10).await, expected);
    assert!(store.load(&run(6)).await.expect("load").is_none());
}

async fn existing_child_refuses_the_whole_batch(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    store.append(create(&run(2), 4)).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.children = vec![child(3, &run(1)), child(2, &run(1))];
    let refused = store.append(batch).await.expect_err("exists");
    assert!(
        matches!(
            refused,
            AppendError::Conflict {
                expected: Seq(0),
                actual: Some(Seq(4))
            }
        ),
        "{refused:?}"
    );
    assert_eq!(
        store
            .summary(&run(1))
            .await
            .expect("summary")
            .map(|(_, head)| head),
        Some(Seq(1))
    );
    assert_eq!(store.summary(&run(3)).await.expect("summary"), None);
}

async fn conflict_on_the_run_is_reported_before_an_existing_child(store: Arc<dyn Store>) {
    store.append(create(&run(1), 3)).await.expect("append");
    store.append(create(&run(2), 4)).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.children = vec![child(2, &run(1))];
    let refused = store.append(batch).await.expect_err("conflict");
    assert!(
        matches!(
            refused,
            AppendError::Conflict {
                expected: Seq(1),
                actual: Some(Seq(3))
            }
        ),
        "{refused:?}"
    );
}

async fn a_child_starts_at_sequence_zero(store: Arc<dyn Store>) {
    let parent = run(1);
    let mut batch = create(&parent, 1);
    batch.children = vec![child(2, &parent)];
    batch.inbox_sent = vec![run_message(&run(2), &parent, 0)];
    store.append(batch).await.expect("append");

    assert_eq!(Guard::At(Seq(0)), append(&run(2), 0, 1).guard);
    let mut start = append(&run(2), 0, 2);
    start.inbox_consumed = vec![(parent.run.clone(), Seq(0))];
    store.append(start).await.expect("start");
    let loaded = store.load(&run(2)).await.expect("load").expect("a child");
    assert_eq!((loaded.head, loaded.inbox.len()), (Seq(2), 0));
    assert_eq!(loaded.summary.parent, Some((parent.run.clone(), node("spawn"))));
}

fn named(run: &RunKey, alias: &str) -> Batch {
    let mut batch = create(run, 1);
    batch.summary.alias = Some(alias.to_owned());
    batch
}

async fn an_alias_belongs_to_one_run_of_a_tenant(store: Arc<dyn Store>) {
    let (first, second) = (run(1), run(2));
    let tenant = &first.tenant;
    assert_eq!(store.run_of_alias(tenant, "a").await.expect("read"), None);
    store.append(named(&first, "a")).await.expect("append");
    let refused = store.append(named(&second, "a")).await.expect_err("taken");
    assert!(
        matches!(
            refused,
            AppendError::Conflict {
                expected: Seq(0),
                actual: None
            }
        ),
        "{refused:?}"
    );
    assert_eq!(store.summary(&second).await.expect("read"), None);
    assert_eq!(
        store.run_of_alias(tenant, "a").await.expect("read"),
        Some(first.run.clone())
    );
    store.append(named(&second, "b")).await.expect("another alias");

    // Names of children follow from their parents', and are not found by themselves.
    let mut child = named(&run(3), "a");
    child.summary.parent = Some((first.run.clone(), node("n")));
    store.append(child).await.expect("append");
    assert_eq!(
        store.run_of_alias(tenant, "a").await.expect("read"),
        Some(first.run.clone())
    );
    let other = RunKey::new(TenantId::parse("another").expect("valid"), run_id(4));
    assert_eq!(store.run_of_alias(&other.tenant, "a").await.expect("read"), None);
    store.append(named(&other, "a")).await.expect("another tenant");
}

async fn one_of_many_runs_gets_an_alias(store: Arc<dyn Store>) {
    let mut attempts = tokio::task::JoinSet::new();
    for n in 0..24 {
        let store = store.clone();
        attempts.spawn(async move { (n, store.append(named(&run(n), "a")).await) });
    }
    let mut winners = Vec::new();
    for (n, outcome) in attempts.join_all().await {
        if outcome.is_ok() {
            winners.push(n);
            continue;
        }
        let is_conflict = matches!(
            outcome,
            Err(AppendError::Conflict {
                expected: Seq(0),
                actual: None
            })
        );
        assert!(is_conflict, "{outcome:?}");
    }
    assert_eq!(winners.len(), 1);
    let tenant = run(1).tenant;
    assert_eq!(
        store.run_of_alias(&tenant, "a").await.expect("read"),
        Some(run_id(winners[0]))
    );
}
