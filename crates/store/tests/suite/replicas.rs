//! Several stores over one PostgreSQL database, as used by several processes.

use std::sync::Arc;

use tokio::{sync::broadcast, task::JoinSet};
use wopr_core::Seq;
use wopr_store::{
    AppendError, Fence, Hint, IdempotencyRecord, Log as _, PostgresStore, Queue, Registry as _,
    Retention as _, Revision, Work as _, WorkflowChange, WorkflowRow, postgres::Options,
};

use crate::{make::*, schema::Schema};

/// Two stores, as of two processes.
async fn two() -> (Schema, Arc<PostgresStore>, Arc<PostgresStore>) {
    let schema = Schema::new().await;
    let (one, two) = (schema.open().await, schema.open().await);
    (schema, Arc::new(one), Arc::new(two))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_appends_at_one_position_wins() {
    let (_schema, one, two) = two().await;
    for n in 0..20 {
        one.append(create(&run(n), 1)).await.expect("create");
        let outcomes = tokio::join!(
            one.append(append(&run(n), 1, 1)),
            two.append(append(&run(n), 1, 1))
        );
        assert!(
            matches!(
                outcomes,
                (
                    Ok(()),
                    Err(AppendError::Conflict {
                        actual: Some(Seq(2)),
                        ..
                    })
                ) | (
                    Err(AppendError::Conflict {
                        actual: Some(Seq(2)),
                        ..
                    }),
                    Ok(())
                )
            ),
            "{outcomes:?}"
        );
    }
    assert_eq!(one.stats().conflicts + two.stats().conflicts, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_takes_effect_once_across_processes() {
    let (_schema, one, two) = two().await;
    for round in 0..10 {
        let mut attempts = JoinSet::new();
        for n in 0..8 {
            let store = if n % 2 == 0 {
                Arc::clone(&one)
            } else {
                Arc::clone(&two)
            };
            attempts.spawn(async move {
                let n = round * 100 + n;
                let mut batch = create(&run(n), 1);
                batch.idempotency = Some(IdempotencyRecord {
                    run: Some(run_id(n)),
                    ..record(&format!("k{round}"), 100)
                });
                (n, store.append(batch).await)
            });
        }
        let (mut winners, mut told) = (Vec::new(), Vec::new());
        for (n, outcome) in attempts.join_all().await {
            match outcome {
                Ok(()) => winners.push(run_id(n)),
                Err(AppendError::Duplicate(record)) => told.extend(record.run),
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(told, vec![winners[0].clone(); 7]);
    }
}

#[tokio::test]
async fn live_lease_is_not_stolen_and_expired_one_is_taken_over() {
    let (_schema, one, two) = two().await;
    let first = one.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![born_leased("a", first, 50), effect("b")];
    one.append(batch).await.expect("append");
    assert_eq!(
        one.lease(Queue::Effects, first, times(0, 50), &9.into())
            .await
            .expect("lease")
            .len(),
        1
    );

    // Another process starts, which ends no lease.
    let second = two.begin_epoch(at(1)).await.expect("epoch");
    assert!(second > first);
    assert_eq!(
        two.lease(Queue::Effects, second, times(49, 99), &9.into())
            .await
            .expect("lease"),
        []
    );
    assert!(
        one.renew(&run(1), &effect_key("a"), Fence(1), at(80))
            .await
            .expect("renew")
    );

    // The first process stops renewing, so its leases expire.
    let taken = two
        .lease(Queue::Effects, second, times(50, 99), &9.into())
        .await
        .expect("lease");
    assert_eq!(
        taken
            .iter()
            .map(|l| (l.key.name.as_str(), l.fence.0))
            .collect::<Vec<_>>(),
        [("b", 2)]
    );
    let taken = two
        .lease(Queue::Effects, second, times(80, 99), &9.into())
        .await
        .expect("lease");
    assert_eq!(
        taken
            .iter()
            .map(|l| (l.key.name.as_str(), l.fence.0))
            .collect::<Vec<_>>(),
        [("a", 2)]
    );

    let mut late = append(&run(1), 1, 1);
    late.work_ended = vec![settled("a", 1)];
    let refused = one
        .append(late.clone())
        .await
        .expect_err("its lease was taken over");
    assert!(matches!(refused, AppendError::Fenced(_)), "{refused:?}");
    late.work_ended = vec![settled("a", 2)];
    two.append(late).await.expect("the holder settles");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_effect_is_leased_by_one_process() {
    let (_schema, one, two) = two().await;
    for n in 0..30 {
        let mut batch = create(&run(n), 1);
        batch.work_set = vec![effect("a"), effect("b"), effect("c")];
        one.append(batch).await.expect("append");
    }
    let mut workers = JoinSet::new();
    for n in 0..6 {
        let store = if n % 2 == 0 {
            Arc::clone(&one)
        } else {
            Arc::clone(&two)
        };
        workers.spawn(async move {
            let epoch = store.begin_epoch(at(0)).await.expect("epoch");
            let mut handed = Vec::new();
            loop {
                let leased = store
                    .lease(Queue::Effects, epoch, times(0, 50), &4.into())
                    .await
                    .expect("lease");
                if leased.is_empty() {
                    return (epoch, handed);
                }
                handed.extend(
                    leased
                        .into_iter()
                        .map(|effect| (effect.run, effect.key, effect.fence)),
                );
            }
        });
    }
    let (mut epochs, mut handed) = (Vec::new(), Vec::new());
    for (epoch, effects) in workers.join_all().await {
        epochs.push(epoch);
        handed.extend(effects);
    }
    epochs.sort();
    epochs.dedup();
    assert_eq!(epochs.len(), 6, "no two lives share an epoch");
    assert!(handed.iter().all(|(_, _, fence)| *fence == Fence(1)));
    handed.sort();
    handed.dedup();
    assert_eq!(handed.len(), 90);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_process_sends_messages_to_one_run() {
    const EACH: u64 = 25;
    let (_schema, one, two) = two().await;
    let target = run(1);
    one.append(create(&target, 1)).await.expect("append");
    let mut tellers = JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 {
            Arc::clone(&one)
        } else {
            Arc::clone(&two)
        };
        tellers.spawn(async move {
            let source = run(10 + n);
            store.append(create(&source, 1)).await.expect("create");
            for seq in 1..=EACH {
                let mut batch = append(&source, seq, 1);
                batch.inbox_sent = vec![run_message(&run(1), &source, seq)];
                store.append(batch).await.expect("tell");
            }
        });
    }
    // Meanwhile both processes consume the target's inbox.
    let mut heard = Vec::new();
    let mut head = 1;
    while heard.len() < usize::try_from(8 * EACH).expect("small") {
        let store = if head % 2 == 0 { &one } else { &two };
        let inbox = store.load(&target).await.expect("load").expect("a run").inbox;
        if inbox.is_empty() {
            tokio::task::yield_now().await;
            continue;
        }
        let mut batch = append(&target, head, 1);
        batch.inbox_consumed = inbox
            .iter()
            .map(|row| (row.source.clone(), row.source_seq))
            .collect();
        store.append(batch).await.expect("hear");
        head += 1;
        heard.extend(inbox.into_iter().map(|row| (row.source, row.source_seq)));
    }
    tellers.join_all().await;
    // Messages of one source arrive in order and once.
    for n in 0..8 {
        let of_source: Vec<_> = heard
            .iter()
            .filter(|(source, _)| *source == run_id(10 + n))
            .collect();
        assert_eq!(of_source.len() as u64, EACH);
        assert!(
            of_source.windows(2).all(|pair| pair[0].1 < pair[1].1),
            "{of_source:?}"
        );
    }
    assert_eq!(
        one.runs_with_inbox(wopr_store::Epoch(1), None, 9)
            .await
            .expect("inbox"),
        []
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_register_the_same_workflows_concurrently() {
    let (_schema, one, two) = two().await;
    let put_all = |store: Arc<PostgresStore>| async move {
        let mut new = 0;
        for n in 0..20 {
            let row = WorkflowRow {
                tenant: None,
                id: workflow(&format!("w{n}")),
                version: wopr_core::ContentHash::of(&[n]),
                dialect: "any".to_owned(),
                body: vec![n],
                registered_at: at(0),
            };
            new += usize::from(store.put_workflow(row).await.expect("put"));
        }
        new
    };
    let (new, other) = tokio::join!(put_all(Arc::clone(&one)), put_all(Arc::clone(&two)));
    assert_eq!(new + other, 20, "each version is new to one of them");
    let current = one
        .workflows_since(Revision::default(), usize::MAX)
        .await
        .expect("current");
    assert_eq!(current.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_new_revisions_misses_none() {
    const EACH: u8 = 40;
    let (_schema, one, two) = two().await;
    let mut hints = two.hints().expect("on");
    let register = |store: Arc<PostgresStore>, from: u8| async move {
        for n in from..from + EACH {
            let row = WorkflowRow {
                tenant: None,
                id: workflow(&format!("w{n}")),
                version: wopr_core::ContentHash::of(&[n]),
                dialect: "any".to_owned(),
                body: vec![n],
                registered_at: at(0),
            };
            store.put_workflow(row).await.expect("put");
        }
    };
    let writers = tokio::spawn(async move {
        tokio::join!(register(Arc::clone(&one), 0), register(one, EACH));
    });
    let (mut seen, mut found) = (Revision::default(), Vec::new());
    while found.len() < usize::from(2 * EACH) {
        for (revision, change) in two.workflows_since(seen, usize::MAX).await.expect("read") {
            let WorkflowChange::Current(row) = change else {
                panic!("nothing is removed")
            };
            assert!(revision > seen, "in the order of the changes");
            seen = revision;
            found.push(row.body[0]);
        }
    }
    writers.await.expect("writers end");
    found.sort_unstable();
    assert_eq!(found, (0..2 * EACH).collect::<Vec<_>>());
    while hints.recv().await.expect("the store lives") != Hint::Registry {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_remove_and_register_agree_on_the_last_change() {
    let (_schema, one, two) = two().await;
    let row = WorkflowRow {
        tenant: Some(tenant("acme")),
        id: workflow("w"),
        version: wopr_core::ContentHash::of(b"w"),
        dialect: "any".to_owned(),
        body: vec![1],
        registered_at: at(0),
    };
    let put = |store: Arc<PostgresStore>, row: WorkflowRow| async move {
        for _ in 0..40 {
            store.put_workflow(row.clone()).await.expect("put");
        }
    };
    // Versions are deleted meanwhile, too: each check is due at once.
    let remove = |store: Arc<PostgresStore>, row: WorkflowRow| async move {
        for n in 0..40 {
            let removed = store.remove_workflow(&tenant("acme"), &row.id, at(n)).await;
            removed.expect("remove");
            for _ in 0..3 {
                store.forget_workflows(at(n), at(n), 9).await.expect("forget");
            }
        }
    };
    tokio::join!(
        put(Arc::clone(&one), row.clone()),
        remove(Arc::clone(&two), row.clone())
    );
    let last = one
        .workflows_since(Revision::default(), usize::MAX)
        .await
        .expect("read");
    assert_eq!(
        two.workflows_since(Revision::default(), usize::MAX)
            .await
            .expect("read"),
        last
    );
    let stored = one
        .workflow(&tenant("acme"), &row.id, &row.version)
        .await
        .expect("read");
    match last.as_slice() {
        [(_, WorkflowChange::Current(current))] => assert_eq!(Some(current), stored.as_ref()),
        [(_, WorkflowChange::Removed { .. })] => {}
        _ => panic!("{last:?}"),
    }
}

/// Waits for a hint about a run.
async fn hear(hints: &mut broadcast::Receiver<Hint>, run: &wopr_core::RunKey) {
    while hints.recv().await.expect("the store lives") != Hint::Run(run.clone()) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_sends_a_hint_to_the_other_process() {
    let (schema, one, two) = two().await;
    let (mut at_one, mut at_two) = (one.hints().expect("on"), two.hints().expect("on"));
    // The listener may not be connected yet, so append until it receives a hint.
    let (done, mut is_done) = broadcast::channel::<()>(1);
    let teller = Arc::clone(&one);
    let telling = tokio::spawn(async move {
        for n in 0.. {
            teller.append(create(&run(n), 1)).await.expect("append");
            if !matches!(is_done.try_recv(), Err(broadcast::error::TryRecvError::Empty)) {
                return n;
            }
        }
        unreachable!("runs do not end")
    });
    let hinted = loop {
        match at_two.recv().await {
            Ok(Hint::Run(run)) => break run,
            Ok(Hint::Any | Hint::Registry) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(closed @ broadcast::error::RecvError::Closed) => panic!("{closed}"),
        }
    };
    assert!(
        two.summary(&hinted).await.expect("summary").is_some(),
        "told after the fact"
    );
    drop(done);
    telling.await.expect("the teller ends");

    // A process receives hints about appends of others, not about its own.
    two.append(create(&run(1_000_000), 1)).await.expect("append");
    hear(&mut at_one, &run(1_000_000)).await;
    assert!(two.stats().hints > 0);

    let silent = schema
        .open_with(Options {
            hints: false,
            ..Options::default()
        })
        .await;
    assert!(silent.hints().is_none());
    silent.append(create(&run(2_000_000), 1)).await.expect("append");
}
