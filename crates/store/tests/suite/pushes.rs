//! Push subscriptions: the notes that appends write for them, their pending deliveries, and their leases.

use std::sync::Arc;

use tokio::task::JoinSet;
use wopr_core::{RunKey, RunStatus, Seq};
use wopr_store::{
    AppendError, Attempted, DeliveryCursor, DeliveryFilter, DeliveryRow, Epoch, Leased, NewPush, OutboxRow,
    PushRow, Put, Queue, Removal, Store, Then, Update,
};

use crate::{behaviours, make::*};

behaviours! {
    only_runs_with_subscriptions_write_notes,
    notes_of_several_appends_are_merged,
    run_created_with_a_subscription_notes_its_first_events,
    refused_append_writes_no_note,
    appended_subscription_receives_the_events_of_its_append,
    appended_subscription_may_belong_to_another_run,
    appended_subscription_replaces_the_one_with_its_id,
    refused_append_leaves_the_subscriptions_unchanged,
    one_of_many_racing_appends_adds_its_subscription,
    racing_appends_do_not_exceed_the_subscription_limit,
    subscriptions_are_limited_replaced_and_dropped,
    subscription_receives_later_events,
    expanding_a_changed_note_is_refused,
    note_is_expanded_in_parts,
    expanding_twice_makes_one_delivery,
    subscription_has_one_lease_at_a_time,
    expired_lease_is_taken_over_and_its_holder_refused,
    subscription_with_new_deliveries_does_not_go_idle,
    failed_delivery_backs_off_and_blocks_later_ones,
    given_up_deliveries_are_listed_and_retried,
    dropping_a_subscription_drops_its_deliveries,
    deliveries_are_listed_page_by_page,
    removed_run_has_no_deliveries;
    one process:
    new_epoch_ends_the_leases_of_subscriptions,
}

const MOST: usize = 3;

async fn put(store: &dyn Store, run: &RunKey, id: &str) -> Put {
    store.put_push(run, push(id), MOST, at(5)).await.expect("put")
}

/// Like [`along`], with another target.
fn elsewhere(run: &RunKey, id: &str) -> Option<Box<NewPush>> {
    let mut push = along(run, id)?;
    push.row.body = b"elsewhere".to_vec();
    Some(push)
}

/// Lists the targets of a run's subscriptions.
async fn bodies(store: &dyn Store, run: &RunKey) -> Vec<String> {
    let pushes = store.pushes(run).await.expect("pushes");
    let told = |row: &PushRow| format!("{} {}", row.id, String::from_utf8_lossy(&row.body));
    pushes.iter().map(told).collect()
}

async fn head(store: &dyn Store, run: &RunKey) -> u64 {
    let summary = store.summary(run).await.expect("summary");
    summary.expect("the run is there").1.0
}

fn note(run: &RunKey, from: u64, to: u64) -> OutboxRow {
    OutboxRow {
        run: run.clone(),
        from: Seq(from),
        to: Seq(to),
    }
}

fn updates(seqs: impl IntoIterator<Item = u64>) -> Vec<Update> {
    let update = |seq| Update {
        seq: Seq(seq),
        body: format!("update {seq}").into_bytes(),
    };
    seqs.into_iter().map(update).collect()
}

async fn outbox(store: &dyn Store) -> Vec<OutboxRow> {
    store.outbox(Epoch(1), None, 9).await.expect("outbox")
}

/// Expands a note; every event becomes an update.
async fn expand(store: &dyn Store, run: &RunKey, from: u64, to: u64, now: i64) -> bool {
    let expanded = store
        .expand(&note(run, from, to), &updates(from..to), at(now))
        .await;
    expanded.expect("expand")
}

async fn lease(store: &dyn Store, now: i64, until: i64) -> Vec<Leased> {
    let leased = store
        .lease(Queue::Deliveries, Epoch(7), times(now, until), &9.into())
        .await;
    leased.expect("lease")
}

async fn one(store: &dyn Store, now: i64, until: i64) -> Leased {
    let mut leased = lease(store, now, until).await;
    assert_eq!(leased.len(), 1, "one receiver is due: {leased:?}");
    leased.remove(0)
}

async fn waiting(store: &dyn Store, run: &RunKey, id: &str) -> Vec<u64> {
    let waiting = store.waiting(run, id, 9).await.expect("waiting");
    let deliveries = waiting.deliveries.into_iter();
    deliveries.map(|delivery| delivery.seq.0).collect()
}

async fn settle(store: &dyn Store, lease: &Leased, attempted: Option<(u64, Attempted)>, then: Then) -> bool {
    let Leased { run, key, fence, .. } = lease;
    let settled = match attempted {
        Some((seq, attempted)) => {
            store
                .settle_push(run, &key.name, *fence, (Seq(seq), attempted), then)
                .await
        }
        None => store.set_lease(run, key, *fence, then).await,
    };
    settled.expect("settle")
}

fn failed() -> Attempted {
    Attempted::Failed {
        error: "answered 500".to_owned(),
    }
}

fn given_up(millis: i64) -> Attempted {
    Attempted::GivenUp {
        error: "answered 410".to_owned(),
        at: at(millis),
    }
}

fn filter(run: Option<u64>, given_up: bool) -> DeliveryFilter {
    DeliveryFilter {
        tenant: tenant("acme"),
        run: run.map(run_id),
        principal: None,
        given_up,
    }
}

async fn listed(store: &dyn Store, filter: DeliveryFilter) -> Vec<DeliveryRow> {
    store.deliveries(&filter, None, 99).await.expect("deliveries")
}

/// Creates a run of three events, adds subscriptions, and appends one more event, which they receive.
async fn subscribed(store: &dyn Store, run: &RunKey, ids: &[&str]) {
    store.append(create(run, 3)).await.expect("create");
    for id in ids {
        assert_eq!(put(store, run, id).await, Put::Added);
    }
    store.append(append(run, 3, 1)).await.expect("append");
    assert!(expand(store, run, 3, 4, 10).await);
}

async fn only_runs_with_subscriptions_write_notes(store: Arc<dyn Store>) {
    for n in [1, 2] {
        store.append(create(&run(n), 1)).await.expect("create");
    }
    assert_eq!(put(&*store, &run(2), "a").await, Put::Added);
    for n in [1, 2] {
        let batch = append(&run(n), 1, 2);
        store.append(batch).await.expect("append");
    }
    assert_eq!(outbox(&*store).await, [note(&run(2), 1, 3)]);
    // Child runs have no subscriptions of their own, and an append without events is not noted.
    let mut batch = append(&run(2), 3, 0);
    batch.children = vec![child(5, &run(2))];
    store.append(batch).await.expect("append");
    store.append(append(&run(5), 0, 1)).await.expect("append");
    assert_eq!(outbox(&*store).await, [note(&run(2), 1, 3)]);
}

async fn notes_of_several_appends_are_merged(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("create");
    assert_eq!(put(&*store, &run(1), "a").await, Put::Added);
    for seq in 1..4 {
        store.append(append(&run(1), seq, 1)).await.expect("append");
    }
    assert_eq!(outbox(&*store).await, [note(&run(1), 1, 4)]);
}

async fn run_created_with_a_subscription_notes_its_first_events(store: Arc<dyn Store>) {
    for n in [1, 2, 3] {
        let mut batch = create(&run(n), 2);
        batch.push = along(&run(n), "a");
        store.append(batch).await.expect("create");
    }
    let notes = [1, 2, 3].map(|n| note(&run(n), 0, 2));
    assert_eq!(outbox(&*store).await, notes);
    assert_eq!(store.outbox(Epoch(1), None, 2).await.expect("outbox"), notes[..2]);
    assert_eq!(
        store.outbox(Epoch(1), Some(&run(2)), 9).await.expect("outbox"),
        notes[2..]
    );
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), [push("a")]);
    assert!(expand(&*store, &run(1), 0, 2, 10).await);
    assert_eq!(waiting(&*store, &run(1), "a").await, [0, 1]);
    // It counts toward the limit, like those added later.
    assert_eq!(put(&*store, &run(1), "b").await, Put::Added);
    assert_eq!(put(&*store, &run(1), "c").await, Put::Added);
    assert_eq!(put(&*store, &run(1), "d").await, Put::Full);
}

async fn refused_append_writes_no_note(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("create");
    assert_eq!(put(&*store, &run(1), "a").await, Put::Added);
    assert!(store.append(append(&run(1), 1, 1)).await.is_err());
    let mut batch = create(&run(1), 2);
    batch.push = along(&run(1), "b");
    assert!(store.append(batch).await.is_err());
    assert_eq!(outbox(&*store).await, []);
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), [push("a")]);
}

async fn appended_subscription_receives_the_events_of_its_append(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("create");
    let mut batch = append(&run(1), 2, 1);
    batch.push = along(&run(1), "a");
    store.append(batch).await.expect("append");
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), [push("a")]);
    assert_eq!(outbox(&*store).await, [note(&run(1), 2, 3)]);
    assert!(expand(&*store, &run(1), 2, 3, 10).await);
    assert_eq!(waiting(&*store, &run(1), "a").await, [2]);
    // The next append finds a subscription and writes a note; a second subscription receives only that event.
    let mut batch = append(&run(1), 3, 1);
    batch.push = along(&run(1), "b");
    store.append(batch).await.expect("append");
    assert!(expand(&*store, &run(1), 3, 4, 10).await);
    assert_eq!(waiting(&*store, &run(1), "a").await, [2, 3]);
    assert_eq!(waiting(&*store, &run(1), "b").await, [3]);
    // Both count toward the limit.
    assert_eq!(put(&*store, &run(1), "c").await, Put::Added);
    assert_eq!(put(&*store, &run(1), "d").await, Put::Full);
}

async fn appended_subscription_may_belong_to_another_run(store: Arc<dyn Store>) {
    for n in [1, 2] {
        store.append(create(&run(n), 2)).await.expect("create");
    }
    let mut batch = append(&run(2), 2, 1);
    batch.push = along(&run(1), "a");
    store.append(batch).await.expect("append");
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), [push("a")]);
    assert_eq!(store.pushes(&run(2)).await.expect("pushes"), []);
    assert_eq!(outbox(&*store).await, []);
    // It receives the next event of that run.
    store.append(append(&run(1), 2, 1)).await.expect("append");
    assert_eq!(outbox(&*store).await, [note(&run(1), 2, 3)]);
    assert!(expand(&*store, &run(1), 2, 3, 10).await);
    assert_eq!(waiting(&*store, &run(1), "a").await, [2]);

    let mut batch = append(&run(2), 3, 1);
    batch.push = along(&run(9), "a");
    let refused = store.append(batch).await.expect_err("there is no such run");
    assert!(matches!(refused, AppendError::Missing), "{refused:?}");
    assert_eq!(head(&*store, &run(2)).await, 3);
}

async fn appended_subscription_replaces_the_one_with_its_id(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a", "b", "c"]).await;
    let leased = lease(&*store, 20, 60).await;
    let old = leased.iter().find(|lease| lease.key.name == "a").expect("leased");
    let mut batch = append(&run(1), 4, 1);
    batch.push = elsewhere(&run(1), "a");
    store.append(batch).await.expect("no more than before");
    let bodies = bodies(&*store, &run(1)).await;
    assert_eq!(bodies, ["a elsewhere", "b to b", "c to c"]);
    // Pending deliveries move to the replacement, and the holder of the old one has lost its lease.
    assert_eq!(waiting(&*store, &run(1), "a").await, [3]);
    assert!(!settle(&*store, old, Some((3, Attempted::Delivered)), Then::Renew(at(70))).await);
    assert_eq!(one(&*store, 21, 60).await.key, old.key);
    let pending = store.waiting(&run(1), "a", 9).await.expect("waiting");
    assert_eq!(pending.receiver, b"elsewhere");
}

async fn refused_append_leaves_the_subscriptions_unchanged(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a", "b", "c"]).await;
    let leased = lease(&*store, 20, 60).await;
    let old = leased.iter().find(|lease| lease.key.name == "a").expect("leased");
    // One subscription too many. A lost race takes precedence over that, and over a subscription of a missing
    // run.
    for (at, push, is_race) in [
        (4, along(&run(1), "d"), false),
        (3, along(&run(1), "d"), true),
        (3, along(&run(9), "a"), true),
        (3, elsewhere(&run(1), "a"), true),
    ] {
        let mut batch = append(&run(1), at, 1);
        batch.push = push;
        batch.work_set = vec![timer("t", 1)];
        let refused = store.append(batch).await.expect_err("refused");
        let is_told = match &refused {
            AppendError::Conflict { .. } => is_race,
            AppendError::Full(most) => !is_race && *most == MOST,
            _ => false,
        };
        assert!(is_told, "{refused:?}");
    }
    // A stale lease, and a request that was already processed.
    let mut batch = append(&run(1), 4, 1);
    batch.push = elsewhere(&run(1), "a");
    batch.work_ended = vec![settled("gone", 1)];
    assert!(matches!(
        store.append(batch.clone()).await,
        Err(AppendError::Fenced(_))
    ));
    let remembered = store.remember(record("k", 99), at(1)).await.expect("remembered");
    assert_eq!(remembered, None);
    batch.work_ended = Vec::new();
    batch.idempotency = Some(record("k", 99));
    assert!(matches!(
        store.append(batch).await,
        Err(AppendError::Duplicate(_))
    ));

    assert_eq!(bodies(&*store, &run(1)).await, ["a to a", "b to b", "c to c"]);
    assert_eq!(head(&*store, &run(1)).await, 4);
    assert_eq!(due(&*store, 99, 9).await, []);
    assert!(settle(&*store, old, Some((3, Attempted::Delivered)), Then::Renew(at(70))).await);
}

async fn one_of_many_racing_appends_adds_its_subscription(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("create");
    for round in 0..20 {
        let mut racing = JoinSet::new();
        for n in 0..4 {
            let store = Arc::clone(&store);
            racing.spawn(async move {
                let mut batch = append(&run(1), 2 + round, 1);
                let mut push = along(&run(1), "a").expect("a receiver");
                push.row.body = vec![n];
                batch.push = Some(push);
                store.append(batch).await.map(|()| n)
            });
        }
        let mut winners = Vec::new();
        while let Some(done) = racing.join_next().await {
            match done.expect("no panic") {
                Ok(n) => winners.push(n),
                Err(refused) => assert!(matches!(refused, AppendError::Conflict { .. }), "{refused:?}"),
            }
        }
        let pushes = store.pushes(&run(1)).await.expect("pushes");
        let bodies: Vec<_> = pushes.into_iter().map(|row| row.body).collect();
        assert_eq!(bodies, [winners], "round {round}");
    }
}

async fn racing_appends_do_not_exceed_the_subscription_limit(store: Arc<dyn Store>) {
    // Answers to child runs of one run: their appends only conflict on the run's subscriptions.
    store.append(create(&run(1), 1)).await.expect("create");
    for n in 2..8 {
        store.append(create(&run(n), 1)).await.expect("create");
    }
    let mut racing = JoinSet::new();
    for n in 2..8 {
        let store = Arc::clone(&store);
        racing.spawn(async move {
            let mut batch = append(&run(n), 1, 1);
            // Two appends per id.
            batch.push = along(&run(1), &format!("r{}", n / 2));
            store.append(batch).await
        });
    }
    while let Some(done) = racing.join_next().await {
        done.expect("no panic").expect("three have room");
    }
    let ids = store.pushes(&run(1)).await.expect("pushes");
    let ids: Vec<_> = ids.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["r1", "r2", "r3"]);
    assert_eq!(put(&*store, &run(1), "r4").await, Put::Full);
    let mut batch = append(&run(2), 2, 1);
    batch.push = along(&run(1), "r4");
    assert!(matches!(store.append(batch).await, Err(AppendError::Full(MOST))));
    assert_eq!(head(&*store, &run(2)).await, 2);
}

async fn subscriptions_are_limited_replaced_and_dropped(store: Arc<dyn Store>) {
    assert_eq!(put(&*store, &run(1), "a").await, Put::Missing);
    store.append(create(&run(1), 1)).await.expect("create");
    for id in ["b", "a", "c"] {
        assert_eq!(put(&*store, &run(1), id).await, Put::Added);
    }
    assert_eq!(put(&*store, &run(1), "d").await, Put::Full);
    let renewed = PushRow {
        body: b"elsewhere".to_vec(),
        created_at: at(9),
        ..push("a")
    };
    let put_again = store.put_push(&run(1), renewed.clone(), MOST, at(9)).await;
    assert_eq!(put_again.expect("put"), Put::Replaced);
    let there = store.pushes(&run(1)).await.expect("pushes");
    assert_eq!(there, [push("b"), push("c"), renewed]);
    let other = RunKey::new(tenant("zeta"), run_id(1));
    assert_eq!(store.pushes(&other).await.expect("pushes"), []);
    assert!(!store.drop_push(&other, "a").await.expect("drop"));

    for id in ["a", "b", "c"] {
        assert!(store.drop_push(&run(1), id).await.expect("drop"));
        assert!(!store.drop_push(&run(1), id).await.expect("drop"));
    }
    store.append(append(&run(1), 1, 1)).await.expect("append");
    assert_eq!(outbox(&*store).await, []);
    assert_eq!(put(&*store, &run(1), "d").await, Put::Added);
}

async fn subscription_receives_later_events(store: Arc<dyn Store>) {
    store.append(create(&run(1), 2)).await.expect("create");
    assert_eq!(put(&*store, &run(1), "early").await, Put::Added);
    store.append(append(&run(1), 2, 1)).await.expect("append");
    assert_eq!(put(&*store, &run(1), "late").await, Put::Added);
    store.append(append(&run(1), 3, 1)).await.expect("append");
    assert!(expand(&*store, &run(1), 2, 4, 10).await);
    assert_eq!(waiting(&*store, &run(1), "early").await, [2, 3]);
    assert_eq!(waiting(&*store, &run(1), "late").await, [3]);
    let found = store.waiting(&run(1), "late", 9).await.expect("waiting");
    let expected = DeliveryRow {
        run: run(1),
        push: "late".to_owned(),
        seq: Seq(3),
        body: b"update 3".to_vec(),
        enqueued_at: at(10),
        attempts: 0,
        error: None,
        dead_at: None,
    };
    assert_eq!(found.deliveries, [expected]);
    assert_eq!(found.receiver, b"to late");
    assert_eq!(
        store
            .waiting(&run(1), "early", 1)
            .await
            .expect("waiting")
            .deliveries
            .len(),
        1
    );
}

async fn expanding_a_changed_note_is_refused(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    assert!(!expand(&*store, &run(1), 3, 4, 10).await, "it is gone");
    store.append(append(&run(1), 4, 2)).await.expect("append");
    assert!(!expand(&*store, &run(1), 5, 6, 10).await, "it begins elsewhere");
    assert!(
        !expand(&*store, &run(1), 4, 7, 10).await,
        "there is no such event"
    );
    assert_eq!(waiting(&*store, &run(1), "a").await, [3]);
    assert_eq!(outbox(&*store).await, [note(&run(1), 4, 6)]);
}

async fn note_is_expanded_in_parts(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    store.append(append(&run(1), 4, 5)).await.expect("append");
    let nothing = store.expand(&note(&run(1), 4, 6), &[], at(10)).await;
    assert!(nothing.expect("expand"));
    assert_eq!(outbox(&*store).await, [note(&run(1), 6, 9)]);
    assert!(expand(&*store, &run(1), 6, 9, 10).await);
    assert_eq!(outbox(&*store).await, []);
    assert_eq!(waiting(&*store, &run(1), "a").await, [3, 6, 7, 8]);
}

async fn expanding_twice_makes_one_delivery(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    store.append(append(&run(1), 4, 1)).await.expect("append");
    let again = store.expand(&note(&run(1), 4, 5), &updates([3, 4]), at(20)).await;
    assert!(again.expect("expand"));
    assert_eq!(waiting(&*store, &run(1), "a").await, [3, 4]);
    let found = store.waiting(&run(1), "a", 1).await.expect("waiting");
    assert_eq!(found.deliveries[0].enqueued_at, at(10), "the first stays");
}

async fn subscription_has_one_lease_at_a_time(store: Arc<dyn Store>) {
    subscribed(&*store, &run(2), &["a"]).await;
    subscribed(&*store, &run(1), &["b", "a"]).await;
    assert_eq!(lease(&*store, 9, 50).await, [], "none is due yet");
    let first = store
        .lease(Queue::Deliveries, Epoch(7), times(10, 50), &2.into())
        .await
        .expect("lease");
    let names = |leased: &[Leased]| -> Vec<_> {
        leased
            .iter()
            .map(|push| (push.run.clone(), push.key.name.clone()))
            .collect()
    };
    assert_eq!(
        names(&first),
        [(run(1), "a".to_owned()), (run(1), "b".to_owned())]
    );
    let second = lease(&*store, 10, 50).await;
    assert_eq!(names(&second), [(run(2), "a".to_owned())]);
    assert_eq!(lease(&*store, 49, 99).await, []);

    // Delivered, and nothing else is pending.
    let done = Some((3, Attempted::Delivered));
    assert!(settle(&*store, &second[0], done, Then::Park(None)).await);
    assert_eq!(waiting(&*store, &run(2), "a").await, [0_u64; 0]);
    assert!(
        !settle(&*store, &second[0], None, Then::Renew(at(99))).await,
        "the lease is over"
    );
    // An extended lease does not expire at its original time.
    assert!(settle(&*store, &first[0], None, Then::Renew(at(90))).await);
    assert!(settle(&*store, &first[1], None, Then::Release(at(60))).await);
    assert_eq!(names(&lease(&*store, 60, 99).await), [(run(1), "b".to_owned())]);
}

async fn expired_lease_is_taken_over_and_its_holder_refused(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    let lost = one(&*store, 10, 50).await;
    let taken = one(&*store, 50, 90).await;
    assert!(taken.fence > lost.fence);
    for then in [Then::Renew(at(99)), Then::Park(None), Then::Release(at(51))] {
        assert!(!settle(&*store, &lost, Some((3, Attempted::Delivered)), then).await);
    }
    assert_eq!(
        waiting(&*store, &run(1), "a").await,
        [3],
        "what the lost one said does not count"
    );
    assert!(settle(&*store, &taken, Some((3, Attempted::Delivered)), Then::Park(None)).await);
    assert_eq!(lease(&*store, 999, 1_000).await, []);
}

async fn subscription_with_new_deliveries_does_not_go_idle(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    let first = one(&*store, 10, 50).await;
    store.append(append(&run(1), 4, 1)).await.expect("append");
    assert!(expand(&*store, &run(1), 4, 5, 12).await);
    assert_eq!(lease(&*store, 12, 99).await, [], "it is still held");
    assert!(settle(&*store, &first, Some((3, Attempted::Delivered)), Then::Park(None)).await);
    let second = one(&*store, 13, 50).await;
    assert_eq!(waiting(&*store, &run(1), "a").await, [4]);
    assert!(
        settle(
            &*store,
            &second,
            Some((4, Attempted::Delivered)),
            Then::Park(None)
        )
        .await
    );
    assert_eq!(lease(&*store, 999, 1_000).await, []);
}

async fn failed_delivery_backs_off_and_blocks_later_ones(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    let held = one(&*store, 10, 50).await;
    assert!(settle(&*store, &held, Some((3, failed())), Then::Release(at(100))).await);
    store.append(append(&run(1), 4, 1)).await.expect("append");
    assert!(expand(&*store, &run(1), 4, 5, 12).await);
    assert_eq!(lease(&*store, 99, 150).await, [], "the pause is kept");
    let held = one(&*store, 100, 150).await;
    let found = store.waiting(&run(1), "a", 9).await.expect("waiting");
    let tried: Vec<_> = found
        .deliveries
        .iter()
        .map(|delivery| (delivery.seq.0, delivery.attempts, delivery.error.as_deref()))
        .collect();
    assert_eq!(tried, [(3, 1, Some("answered 500")), (4, 0, None)]);
    assert!(settle(&*store, &held, Some((3, failed())), Then::Release(at(400))).await);
    // The user may have fixed the problem by setting the subscription again.
    assert_eq!(put(&*store, &run(1), "a").await, Put::Replaced);
    let old = one(&*store, 101, 150).await;
    assert_eq!(old.key.name, "a");
    assert_eq!(waiting(&*store, &run(1), "a").await, [3, 4]);
    // The holder of the replaced subscription has lost its lease, so its delivery does not count for the new
    // one.
    assert_eq!(put(&*store, &run(1), "a").await, Put::Replaced);
    assert!(
        !settle(
            &*store,
            &old,
            Some((3, Attempted::Delivered)),
            Then::Renew(at(160))
        )
        .await
    );
    assert_eq!(waiting(&*store, &run(1), "a").await, [3, 4]);
    assert_eq!(one(&*store, 102, 150).await.key.name, "a");
}

async fn given_up_deliveries_are_listed_and_retried(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    store.append(append(&run(1), 4, 2)).await.expect("append");
    assert!(expand(&*store, &run(1), 4, 6, 10).await);
    let held = one(&*store, 10, 50).await;
    for seq in [3, 4] {
        assert!(settle(&*store, &held, Some((seq, given_up(20))), Then::Renew(at(60))).await);
    }
    assert_eq!(waiting(&*store, &run(1), "a").await, [5]);
    assert_eq!(listed(&*store, filter(None, false)).await.len(), 3);
    let dead = listed(&*store, filter(None, true)).await;
    let shown: Vec<_> = dead
        .iter()
        .map(|delivery| (delivery.seq.0, delivery.attempts, delivery.dead_at))
        .collect();
    assert_eq!(shown, [(3, 1, Some(at(20))), (4, 1, Some(at(20)))]);
    assert!(settle(&*store, &held, Some((5, Attempted::Delivered)), Then::Park(None)).await);
    assert_eq!(lease(&*store, 999, 1_000).await, []);

    let retry = |push: &'static str, seq: Option<u64>| {
        let store = Arc::clone(&store);
        async move {
            let retried = store.retry_push(&run(1), push, seq.map(Seq), at(30)).await;
            retried.expect("retry")
        }
    };
    assert_eq!(retry("b", None).await, 0);
    assert_eq!(retry("a", Some(5)).await, 0);
    assert_eq!(retry("a", Some(4)).await, 1);
    assert_eq!(waiting(&*store, &run(1), "a").await, [4]);
    let held = one(&*store, 30, 50).await;
    // Retried while it is leased: the subscription must not go idle afterwards.
    assert_eq!(retry("a", None).await, 1);
    let waits = store.waiting(&run(1), "a", 9).await.expect("waiting");
    let shown: Vec<_> = waits
        .deliveries
        .iter()
        .map(|delivery| (delivery.seq.0, delivery.attempts, delivery.enqueued_at))
        .collect();
    assert_eq!(shown, [(3, 0, at(30)), (4, 0, at(30))]);
    assert!(settle(&*store, &held, Some((4, Attempted::Delivered)), Then::Park(None)).await);
    assert_eq!(one(&*store, 31, 50).await.key.name, "a");
}

async fn dropping_a_subscription_drops_its_deliveries(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a", "b"]).await;
    let held = lease(&*store, 10, 50).await;
    assert!(store.drop_push(&run(1), "a").await.expect("drop"));
    assert!(!settle(&*store, &held[0], Some((3, failed())), Then::Release(at(60))).await);
    assert_eq!(waiting(&*store, &run(1), "a").await, [0_u64; 0]);
    assert_eq!(waiting(&*store, &run(1), "b").await, [3]);
    // A new subscription with the same id is a different one.
    assert_eq!(put(&*store, &run(1), "a").await, Put::Added);
    assert!(!settle(&*store, &held[0], Some((3, failed())), Then::Release(at(60))).await);
    assert_eq!(waiting(&*store, &run(1), "a").await, [0_u64; 0]);
}

async fn deliveries_are_listed_page_by_page(store: Arc<dyn Store>) {
    for n in [1, 2] {
        subscribed(&*store, &run(n), &["a", "b"]).await;
    }
    let zeta = RunKey::new(tenant("zeta"), run_id(3));
    subscribed(&*store, &zeta, &["a"]).await;
    let mut places = Vec::new();
    let mut after: Option<DeliveryCursor> = None;
    loop {
        let page = store
            .deliveries(&filter(None, false), after.as_ref(), 3)
            .await
            .expect("page");
        let Some(last) = page.last() else { break };
        after = Some(DeliveryCursor {
            run: last.run.run.clone(),
            push: last.push.clone(),
            seq: last.seq,
        });
        places.extend(page.into_iter().map(|delivery| (delivery.run.run, delivery.push)));
    }
    let expected = [(1, "a"), (1, "b"), (2, "a"), (2, "b")].map(|(n, id)| (run_id(n), id.to_owned()));
    assert_eq!(places, expected);
    let of_second = listed(&*store, filter(Some(2), false)).await;
    assert!(of_second.iter().all(|delivery| delivery.run == run(2)) && of_second.len() == 2);
    assert_eq!(
        listed(&*store, filter(Some(3), false)).await,
        [],
        "another tenant's"
    );
    assert_eq!(listed(&*store, filter(None, true)).await, []);
    // All of these runs belong to Ada.
    for (name, n) in [("ada", 4), ("bob", 0)] {
        let mut filter = filter(None, false);
        filter.principal = Some(principal(name));
        assert_eq!(listed(&*store, filter).await.len(), n, "{name}");
    }
}

async fn removed_run_has_no_deliveries(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a"]).await;
    let mut batch = append(&run(1), 4, 1);
    batch.summary.status = RunStatus::Completed;
    store.append(batch).await.expect("append");
    let gone = Removal {
        run: run_id(1),
        root: run_id(1),
    };
    store.remove(&tenant("acme"), &[gone]).await.expect("mark");
    assert_eq!(outbox(&*store).await, []);
    assert_eq!(lease(&*store, 99, 200).await, []);
    assert_eq!(listed(&*store, filter(None, false)).await, []);
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), []);
    assert_eq!(put(&*store, &run(1), "b").await, Put::Missing);
    assert_eq!(put(&*store, &run(1), "a").await, Put::Missing);
    while store.sweep(1).await.expect("sweep") != wopr_store::Swept::default() {}
    // A new run with the same id finds nothing of the first one.
    store.append(create(&run(1), 1)).await.expect("create");
    assert_eq!(store.pushes(&run(1)).await.expect("pushes"), []);
    assert_eq!(outbox(&*store).await, []);
    assert_eq!(listed(&*store, filter(None, false)).await, []);
}

async fn new_epoch_ends_the_leases_of_subscriptions(store: Arc<dyn Store>) {
    subscribed(&*store, &run(1), &["a", "b"]).await;
    let held = lease(&*store, 10, 5_000).await;
    assert!(settle(&*store, &held[1], Some((3, failed())), Then::Release(at(4_000))).await);
    store.begin_epoch(at(20)).await.expect("epoch");
    assert!(!settle(&*store, &held[0], Some((3, failed())), Then::Park(None)).await);
    // A backoff is not a lease.
    assert_eq!(one(&*store, 20, 50).await.key.name, "a");
}
