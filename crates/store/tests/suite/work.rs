//! Timers, effects and their leases, inboxes.

use std::{collections::BTreeSet, sync::Arc};

use wopr_core::{RunKey, Seq};
use wopr_store::{AppendError, Batch, Ended, Epoch, Fence, Leased, Queue, Store};

use crate::make::*;

crate::behaviours!(
    stored_time_never_decreases,
    timers_come_due_in_order,
    setting_a_timer_again_moves_it,
    a_timer_cleared_and_set_in_one_batch_is_set,
    timers_of_different_runs_may_share_a_key,
    the_next_due_time_is_that_of_the_earliest_timer,
    a_leased_timer_is_not_leased_twice_and_due_when_its_lease_ends,
    concurrent_leasing_hands_each_timer_out_once,
    expired_timer_lease_is_taken_over_once_and_fences_its_holder,
    due_times_and_leases_use_separate_clocks,
    longest_waiting_timer_is_first_if_due_or_expired,
    released_timer_is_due_at_the_requested_time,
    timer_set_again_has_no_lease,
    new_timer_does_not_inherit_a_fence,
    timer_cleared_while_leased_is_gone,
    effects_are_leased_in_the_order_they_were_enqueued,
    a_leased_effect_is_not_leased_twice,
    concurrent_leasing_hands_each_effect_out_once,
    an_expired_lease_is_taken_over_once_and_fences_its_old_holder,
    longest_waiting_effect_is_first_if_due_or_expired,
    effect_created_with_a_lease_has_fence_one_and_is_not_leased_again,
    a_settled_effect_is_gone,
    settling_with_a_stale_fence_refuses_the_whole_batch,
    settling_a_missing_effect_is_fenced,
    settling_without_a_fence_drops_the_effect_despite_a_lease,
    one_of_two_outcomes_of_one_attempt_wins,
    a_renewed_lease_lasts_longer,
    a_lost_lease_cannot_be_renewed,
    a_released_effect_can_be_leased_again_and_keeps_its_fences_growing,
    a_stale_release_changes_nothing,
    epochs_grow,
    an_enqueued_key_that_exists_is_replaced_under_a_larger_fence,
    inbox_rows_arrive_in_order_and_once,
    consumed_inbox_rows_are_gone_and_the_others_stay,
    consuming_a_missing_inbox_row_is_no_error,
    runs_with_an_inbox_are_listed_once_and_by_page;
    one process: a_new_epoch_ends_every_lease_of_earlier_ones, a_new_epoch_makes_leased_timers_due,
);

/// Creates a run with these effects, enqueued at the given time.
async fn enqueue(store: &dyn Store, n: u64, time: i64, keys: &[&str]) {
    let mut batch = create(&run(n), 1);
    batch.summary.updated_at = at(time);
    batch.work_set = keys.iter().map(|key| effect_at(key, time)).collect();
    store.append(batch).await.expect("enqueue");
}

async fn lease(store: &dyn Store, epoch: Epoch, now: i64, until: i64) -> Vec<(RunKey, String, u64)> {
    let leased = store
        .lease(Queue::Effects, epoch, times(now, until), &100.into())
        .await
        .expect("lease");
    leased
        .into_iter()
        .map(|effect| (effect.run, effect.key.name, effect.fence.0))
        .collect()
}

fn settling(n: u64, from: u64, effects: Vec<Ended>) -> Batch {
    let mut batch = append(&run(n), from, 1);
    batch.work_ended = effects;
    batch
}

async fn timers_come_due_in_order(store: Arc<dyn Store>) {
    let mut first = create(&run(2), 1);
    first.work_set = vec![timer("late", 30), timer("b", 10), timer("a", 10)];
    store.append(first).await.expect("append");
    let mut second = create(&run(1), 1);
    second.work_set = vec![timer("c", 10), timer("early", -5), timer("never", 1_000)];
    store.append(second).await.expect("append");

    let expected = [
        (run(1), "early"),
        (run(1), "c"),
        (run(2), "a"),
        (run(2), "b"),
        (run(2), "late"),
    ]
    .map(|(r, k)| (r, timer_key(k)));
    assert_eq!(due(&*store, 30, 10).await, expected);
    assert_eq!(due(&*store, 30, 2).await, expected[..2]);
    assert_eq!(due(&*store, 29, 10).await, expected[..4]);
    assert_eq!(due(&*store, -6, 10).await, []);
    // That clears none of them.
    assert_eq!(due(&*store, 30, 10).await, expected);
}

async fn setting_a_timer_again_moves_it(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![timer("t", 10)];
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.work_set = vec![timer("t", 20)];
    store.append(batch).await.expect("append");
    assert_eq!(due(&*store, 19, 10).await, []);
    assert_eq!(due(&*store, 20, 10).await.len(), 1);
}

async fn a_timer_cleared_and_set_in_one_batch_is_set(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![timer("t", 10), timer("u", 10)];
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.work_ended = vec![cleared("t"), cleared("u"), cleared("missing")];
    batch.work_set = vec![timer("t", 15)];
    store.append(batch).await.expect("append");
    assert_eq!(due(&*store, 99, 10).await, [(run(1), timer_key("t"))]);
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(15)));
}

async fn timers_of_different_runs_may_share_a_key(store: Arc<dyn Store>) {
    for n in [1, 2] {
        let mut batch = create(&run(n), 1);
        batch.work_set = vec![timer("t", 10)];
        store.append(batch).await.expect("append");
    }
    let mut batch = append(&run(1), 1, 1);
    batch.work_ended = vec![cleared("t")];
    store.append(batch).await.expect("append");
    assert_eq!(due(&*store, 99, 10).await, [(run(2), timer_key("t"))]);
}

async fn the_next_due_time_is_that_of_the_earliest_timer(store: Arc<dyn Store>) {
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), None);
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![timer("t", 10), timer("u", 7), timer("v", 12)];
    store.append(batch).await.expect("append");
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(7)));
}

/// Creates a run with these timers.
async fn set(store: &dyn Store, n: u64, timers: &[(&str, i64)]) {
    let mut batch = create(&run(n), 1);
    batch.work_set = timers.iter().map(|(key, due)| timer(key, *due)).collect();
    store.append(batch).await.expect("append");
}

/// Leases timers with separate clocks for due times and leases.
async fn turns(store: &dyn Store, day: i64, now: i64, until: i64) -> Vec<Leased> {
    store
        .lease(Queue::Timers, Epoch(1), clocks(day, now, until), &100.into())
        .await
        .expect("lease")
}

fn keys(leased: &[Leased]) -> Vec<&str> {
    leased.iter().map(|timer| timer.key.name.as_str()).collect()
}

async fn a_leased_timer_is_not_leased_twice_and_due_when_its_lease_ends(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 10), ("later", 99)]).await;
    assert_eq!(keys(&turns(&*store, 9, 9, 50).await), [""; 0]);
    let leased = turns(&*store, 10, 10, 50).await;
    assert_eq!(keys(&leased), ["t"]);
    assert_eq!((&leased[0].run, leased[0].since), (&run(1), at(10)));
    assert_eq!(keys(&turns(&*store, 49, 49, 90).await), [""; 0]);
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(50)));
}

async fn concurrent_leasing_hands_each_timer_out_once(store: Arc<dyn Store>) {
    for n in 0..40 {
        set(&*store, n, &[("a", 1), ("b", 2)]).await;
    }
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8 {
        let store = store.clone();
        workers.spawn(async move {
            let mut all = Vec::new();
            loop {
                let leased = store
                    .lease(Queue::Timers, Epoch(worker), times(5, 50), &7.into())
                    .await
                    .expect("lease");
                if leased.is_empty() {
                    return all;
                }
                all.extend(leased.into_iter().map(|timer| (timer.run, timer.key)));
            }
        });
    }
    let handed: Vec<_> = workers.join_all().await.into_iter().flatten().collect();
    assert_eq!(handed.len(), 80);
    assert_eq!(handed.into_iter().collect::<BTreeSet<_>>().len(), 80);
}

async fn expired_timer_lease_is_taken_over_once_and_fences_its_holder(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 10)]).await;
    let old = turns(&*store, 10, 10, 50).await.remove(0);
    let new = turns(&*store, 50, 50, 90).await.remove(0);
    assert_eq!(keys(&turns(&*store, 50, 50, 90).await), [""; 0]);
    assert!(new.fence > old.fence, "{new:?} {old:?}");
    assert_eq!(new.since, at(50));

    let give_back = |fence| store.release(&new.run, &new.key, fence, at(60));
    give_back(old.fence).await.expect("no error");
    assert_eq!(
        keys(&turns(&*store, 89, 89, 99).await),
        [""; 0],
        "it is not his any more"
    );
    give_back(new.fence).await.expect("release");
    assert_eq!(keys(&turns(&*store, 60, 60, 99).await), ["t"]);
}

async fn due_times_and_leases_use_separate_clocks(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 1_000)]).await;
    // The lease clock is behind, then ahead of, the wall clock.
    assert_eq!(keys(&turns(&*store, 999, 5_000, 5_050).await), [""; 0]);
    assert_eq!(keys(&turns(&*store, 1_000, 10, 50).await), ["t"]);
    assert_eq!(keys(&turns(&*store, 9_999, 49, 90).await), [""; 0]);
    assert_eq!(keys(&turns(&*store, 0, 50, 90).await), ["t"]);
}

async fn longest_waiting_timer_is_first_if_due_or_expired(store: Arc<dyn Store>) {
    set(&*store, 1, &[("late", 10)]).await;
    turns(&*store, 10, 10, 30).await;
    set(&*store, 2, &[("later", 40), ("early", 20)]).await;
    let leased = store
        .lease(Queue::Timers, Epoch(1), times(50, 90), &2.into())
        .await
        .expect("lease");
    assert_eq!(keys(&leased), ["early", "late"]);
    assert_eq!(keys(&turns(&*store, 50, 50, 90).await), ["later"]);
}

async fn released_timer_is_due_at_the_requested_time(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 10)]).await;
    let leased = turns(&*store, 10, 10, 5_000).await.remove(0);
    store
        .release(&leased.run, &leased.key, leased.fence, at(70))
        .await
        .expect("release");
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(70)));
    assert_eq!(keys(&turns(&*store, 69, 6_000, 9_000).await), [""; 0]);
    // Giving a lease back twice has no effect.
    let again = turns(&*store, 70, 0, 5_000).await.remove(0);
    assert!(again.fence > leased.fence);
    store
        .release(&leased.run, &leased.key, leased.fence, at(71))
        .await
        .expect("no error");
    assert_eq!(keys(&turns(&*store, 99, 99, 5_000).await), [""; 0]);
}

async fn timer_set_again_has_no_lease(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 10)]).await;
    let old = turns(&*store, 10, 10, 5_000).await.remove(0);
    let mut batch = append(&run(1), 1, 1);
    batch.work_set = vec![timer("t", 20)];
    store.append(batch).await.expect("append");
    store
        .release(&old.run, &old.key, old.fence, at(0))
        .await
        .expect("no error");
    assert_eq!(keys(&turns(&*store, 19, 19, 90).await), [""; 0]);
    let new = turns(&*store, 20, 0, 90).await.remove(0);
    assert!(new.fence > old.fence);
}

async fn new_timer_does_not_inherit_a_fence(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 10)]).await;
    let old = turns(&*store, 10, 10, 5_000).await.remove(0);
    let mut batch = append(&run(1), 1, 1);
    batch.work_ended = vec![cleared("t")];
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 2, 1);
    batch.summary.updated_at = at(20);
    batch.work_set = vec![timer("t", 20)];
    store.append(batch).await.expect("append");
    let new = turns(&*store, 20, 20, 5_000).await.remove(0);
    assert!(new.fence > old.fence, "{new:?} {old:?}");
}

async fn timer_cleared_while_leased_is_gone(store: Arc<dyn Store>) {
    set(&*store, 1, &[("t", 10)]).await;
    let leased = turns(&*store, 10, 10, 20).await.remove(0);
    let mut batch = append(&run(1), 1, 1);
    batch.work_ended = vec![cleared("t")];
    store.append(batch).await.expect("append");
    store
        .release(&leased.run, &leased.key, leased.fence, at(0))
        .await
        .expect("no error");
    assert_eq!(keys(&turns(&*store, 99, 99, 999).await), [""; 0]);
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), None);
}

async fn a_new_epoch_makes_leased_timers_due(store: Arc<dyn Store>) {
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    set(&*store, 1, &[("t", 10), ("later", 90)]).await;
    let leased = store
        .lease(Queue::Timers, epoch, times(10, 5_000), &9.into())
        .await;
    assert_eq!(keys(&leased.expect("lease")), ["t"]);
    store.begin_epoch(at(15)).await.expect("epoch");
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(15)));
    assert_eq!(keys(&turns(&*store, 15, 0, 5_000).await), ["t"]);
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), Some(at(90)));
}

async fn stored_time_never_decreases(store: Arc<dyn Store>) {
    assert_eq!(store.high_water().await.expect("none yet"), None);
    for (kept, highest) in [(70, 70), (90, 90), (20, 90), (91, 91)] {
        store.keep_time(at(kept)).await.expect("keep");
        assert_eq!(store.high_water().await.expect("read"), Some(at(highest)));
    }
}

async fn effects_are_leased_in_the_order_they_were_enqueued(store: Arc<dyn Store>) {
    enqueue(&*store, 3, 10, &["c"]).await;
    enqueue(&*store, 1, 20, &["b", "a"]).await;
    enqueue(&*store, 2, 30, &["d"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let leased = store
        .lease(Queue::Effects, epoch, times(30, 50), &3.into())
        .await
        .expect("lease");
    let expected = [(3, "c", 10), (1, "a", 20), (1, "b", 20)].map(|(n, key, since)| Leased {
        run: run(n),
        key: effect_key(key),
        body: key.as_bytes().to_vec(),
        since: at(since),
        fence: Fence(1),
        deaths: 0,
    });
    assert_eq!(leased, expected);
    assert_eq!(lease(&*store, epoch, 30, 50).await, [(run(2), "d".to_owned(), 1)]);
}

async fn a_leased_effect_is_not_leased_twice(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    assert_eq!(lease(&*store, epoch, 0, 50).await.len(), 1);
    assert_eq!(lease(&*store, epoch, 49, 99).await, []);
}

async fn concurrent_leasing_hands_each_effect_out_once(store: Arc<dyn Store>) {
    for n in 0..40 {
        enqueue(&*store, n, 0, &["a", "b"]).await;
    }
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let store = store.clone();
        workers.spawn(async move {
            let mut all = Vec::new();
            loop {
                let leased = store
                    .lease(Queue::Effects, epoch, times(0, 50), &7.into())
                    .await
                    .expect("lease");
                if leased.is_empty() {
                    return all;
                }
                all.extend(leased.into_iter().map(|effect| (effect.run, effect.key)));
            }
        });
    }
    let handed: Vec<_> = workers.join_all().await.into_iter().flatten().collect();
    assert_eq!(handed.len(), 80);
    assert_eq!(handed.into_iter().collect::<BTreeSet<_>>().len(), 80);
}

async fn an_expired_lease_is_taken_over_once_and_fences_its_old_holder(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    assert_eq!(lease(&*store, epoch, 0, 50).await, [(run(1), "a".to_owned(), 1)]);
    assert_eq!(lease(&*store, epoch, 50, 90).await, [(run(1), "a".to_owned(), 2)]);
    assert_eq!(lease(&*store, epoch, 50, 90).await, []);

    let refused = store
        .append(settling(1, 1, vec![settled("a", 1)]))
        .await
        .expect_err("stale");
    assert!(
        matches!(&refused, AppendError::Fenced(key) if *key == effect_key("a")),
        "{refused:?}"
    );
    store
        .append(settling(1, 1, vec![settled("a", 2)]))
        .await
        .expect("current");
}

async fn longest_waiting_effect_is_first_if_due_or_expired(store: Arc<dyn Store>) {
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![
        born_leased("held-20", epoch, 20),
        born_leased("held-10", epoch, 10),
        effect_at("free", 15),
    ];
    store.append(batch).await.expect("append");
    let leased = store
        .lease(Queue::Effects, epoch, times(30, 90), &2.into())
        .await
        .expect("lease");
    assert_eq!(
        leased.iter().map(|l| l.key.name.as_str()).collect::<Vec<_>>(),
        ["held-10", "free"]
    );
    assert_eq!(
        lease(&*store, epoch, 30, 90).await,
        [(run(1), "held-20".to_owned(), 2)]
    );
}

async fn effect_created_with_a_lease_has_fence_one_and_is_not_leased_again(store: Arc<dyn Store>) {
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![born_leased("a", epoch, 50)];
    store.append(batch).await.expect("append");
    assert_eq!(lease(&*store, epoch, 49, 99).await, []);
    store
        .append(settling(1, 1, vec![settled("a", 1)]))
        .await
        .expect("settle");
    assert_eq!(lease(&*store, epoch, 99, 199).await, []);
}

async fn a_settled_effect_is_gone(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a", "b"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    assert_eq!(lease(&*store, epoch, 0, 50).await.len(), 2);
    store
        .append(settling(1, 1, vec![settled("a", 1)]))
        .await
        .expect("settle");
    store
        .append(settling(1, 2, vec![settled("a", 1)]))
        .await
        .expect_err("gone");
    assert_eq!(lease(&*store, epoch, 50, 90).await, [(run(1), "b".to_owned(), 2)]);
}

async fn settling_with_a_stale_fence_refuses_the_whole_batch(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a", "b"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, epoch, 0, 50).await;
    let before = store.load(&run(1)).await.expect("load");
    let mut batch = settling(1, 1, vec![settled("a", 1), settled("b", 7)]);
    batch.work_set = vec![timer("t", 1)];
    let refused = store.append(batch).await.expect_err("stale");
    assert!(
        matches!(&refused, AppendError::Fenced(key) if *key == effect_key("b")),
        "{refused:?}"
    );
    assert_eq!(store.load(&run(1)).await.expect("load"), before);
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), None);
    store
        .append(settling(1, 1, vec![settled("a", 1), settled("b", 1)]))
        .await
        .expect("nothing was settled");
}

async fn settling_a_missing_effect_is_fenced(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let refused = store
        .append(settling(1, 1, vec![settled("a", 1)]))
        .await
        .expect_err("missing");
    assert!(matches!(refused, AppendError::Fenced(_)), "{refused:?}");
    // A lost lease is reported even if the log has advanced, because there is nothing to decide again.
    let refused = store
        .append(settling(1, 9, vec![settled("a", 1)]))
        .await
        .expect_err("missing");
    assert!(matches!(refused, AppendError::Fenced(_)), "{refused:?}");
}

async fn settling_without_a_fence_drops_the_effect_despite_a_lease(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a", "b"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    assert_eq!(
        store
            .lease(Queue::Effects, epoch, times(0, 50), &1.into())
            .await
            .expect("lease")
            .len(),
        1
    );
    let drop_all = ["a", "b", "missing"].map(|key| Ended {
        key: effect_key(key),
        fence: None,
    });
    store
        .append(settling(1, 1, drop_all.to_vec()))
        .await
        .expect("settle");
    assert_eq!(lease(&*store, epoch, 99, 199).await, []);
}

async fn one_of_two_outcomes_of_one_attempt_wins(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, epoch, 0, 50).await;
    let one = store.append(settling(1, 1, vec![settled("a", 1)]));
    let two = store.append(settling(1, 1, vec![settled("a", 1)]));
    let outcomes = tokio::join!(one, two);
    assert!(
        matches!(
            outcomes,
            (Ok(()), Err(AppendError::Fenced(_))) | (Err(AppendError::Fenced(_)), Ok(()))
        ),
        "{outcomes:?}"
    );
}

async fn a_renewed_lease_lasts_longer(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, epoch, 0, 50).await;
    assert!(
        store
            .renew(&run(1), &effect_key("a"), Fence(1), at(80))
            .await
            .expect("renew")
    );
    assert_eq!(lease(&*store, epoch, 79, 99).await, []);
    // Expired, but not taken over yet.
    assert!(
        store
            .renew(&run(1), &effect_key("a"), Fence(1), at(120))
            .await
            .expect("renew")
    );
    assert_eq!(lease(&*store, epoch, 119, 199).await, []);
    assert_eq!(lease(&*store, epoch, 120, 199).await.len(), 1);
}

async fn a_lost_lease_cannot_be_renewed(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let key = effect_key("a");
    assert!(
        !store
            .renew(&run(1), &key, Fence(0), at(500))
            .await
            .expect("renew"),
        "nobody holds it"
    );
    lease(&*store, epoch, 0, 50).await;
    lease(&*store, epoch, 50, 90).await;
    assert!(
        !store
            .renew(&run(1), &key, Fence(1), at(500))
            .await
            .expect("renew"),
        "taken over"
    );
    assert!(
        !store
            .renew(&run(1), &key, Fence(3), at(500))
            .await
            .expect("renew"),
        "never handed out"
    );
    assert!(
        !store
            .renew(&run(2), &key, Fence(2), at(500))
            .await
            .expect("renew"),
        "another run"
    );
    assert!(
        store
            .release(&run(1), &key, Fence(2), at(50))
            .await
            .expect("release")
    );
    assert!(
        !store
            .renew(&run(1), &key, Fence(2), at(500))
            .await
            .expect("renew"),
        "given back"
    );
    store
        .append(settling(1, 1, vec![settled("a", 2)]))
        .await
        .expect("settle");
    assert!(
        !store
            .renew(&run(1), &key, Fence(2), at(500))
            .await
            .expect("renew"),
        "settled"
    );
}

async fn a_released_effect_can_be_leased_again_and_keeps_its_fences_growing(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    assert_eq!(lease(&*store, epoch, 0, 50).await, [(run(1), "a".to_owned(), 1)]);
    store
        .release(&run(1), &effect_key("a"), Fence(1), at(1))
        .await
        .expect("release");
    assert_eq!(lease(&*store, epoch, 1, 50).await, [(run(1), "a".to_owned(), 2)]);
}

async fn a_stale_release_changes_nothing(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, epoch, 0, 50).await;
    lease(&*store, epoch, 50, 90).await;
    store
        .release(&run(1), &effect_key("a"), Fence(1), at(1))
        .await
        .expect("release");
    store
        .release(&run(1), &effect_key("missing"), Fence(1), at(1))
        .await
        .expect("release");
    assert_eq!(lease(&*store, epoch, 51, 99).await, []);
}

async fn a_new_epoch_ends_every_lease_of_earlier_ones(store: Arc<dyn Store>) {
    let first = store.begin_epoch(at(0)).await.expect("epoch");
    enqueue(&*store, 1, 0, &["a"]).await;
    lease(&*store, first, 0, 1_000).await;
    let mut batch = create(&run(2), 1);
    batch.work_set = vec![born_leased("b", first, 1_000)];
    store.append(batch).await.expect("append");

    let second = store.begin_epoch(at(1)).await.expect("epoch");
    assert!(
        !store
            .renew(&run(1), &effect_key("a"), Fence(1), at(9_000))
            .await
            .expect("renew")
    );
    let leased = lease(&*store, second, 1, 1_000).await;
    assert_eq!(leased, [(run(1), "a".to_owned(), 2), (run(2), "b".to_owned(), 2)]);
    store
        .append(settling(1, 1, vec![settled("a", 1)]))
        .await
        .expect_err("the old process is fenced");
}

async fn epochs_grow(store: Arc<dyn Store>) {
    let mut last = store.begin_epoch(at(5)).await.expect("epoch");
    for _ in 0..3 {
        let next = store.begin_epoch(at(0)).await.expect("epoch");
        assert!(next > last);
        last = next;
    }
}

async fn an_enqueued_key_that_exists_is_replaced_under_a_larger_fence(store: Arc<dyn Store>) {
    enqueue(&*store, 1, 0, &["a"]).await;
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, epoch, 0, 50).await;
    let mut batch = append(&run(1), 1, 1);
    batch.work_set = vec![wopr_store::WorkRow {
        body: b"new".to_vec(),
        ..effect("a")
    }];
    store.append(batch).await.expect("append");
    store
        .append(settling(1, 2, vec![settled("a", 1)]))
        .await
        .expect_err("the replaced attempt is fenced");
    let leased = store
        .lease(Queue::Effects, epoch, times(1, 50), &9.into())
        .await
        .expect("lease");
    assert_eq!(leased.len(), 1);
    assert_eq!(
        (leased[0].body.as_slice(), leased[0].fence),
        (b"new".as_slice(), Fence(3))
    );
}

async fn inbox_rows_arrive_in_order_and_once(store: Arc<dyn Store>) {
    let target = run(1);
    store.append(create(&target, 1)).await.expect("append");
    // Sources in an order that matches no sort key.
    let mut told = Vec::new();
    for (n, seqs) in [(7, [4, 2]), (3, [9, 0]), (5, [1, 1])] {
        let mut batch = create(&run(n), 1);
        batch.inbox_sent = seqs.map(|seq| run_message(&target, &run(n), seq)).to_vec();
        told.extend(batch.inbox_sent.clone());
        store.append(batch).await.expect("append");
    }
    told.dedup();
    // Sent again with another body: the first one is kept.
    let mut again = append(&run(7), 1, 1);
    again.inbox_sent = vec![wopr_store::InboxRow {
        body: b"other".to_vec(),
        ..run_message(&target, &run(7), 4)
    }];
    store.append(again).await.expect("append");

    let loaded = store.load(&target).await.expect("load").expect("a run");
    assert_eq!(loaded.inbox, told);
}

async fn consumed_inbox_rows_are_gone_and_the_others_stay(store: Arc<dyn Store>) {
    let target = run(1);
    let mut batch = create(&run(2), 1);
    batch.inbox_sent = (0..4).map(|seq| run_message(&target, &run(2), seq)).collect();
    store.append(batch).await.expect("append");
    let mut batch = create(&target, 1);
    batch.inbox_consumed = vec![(run_id(2), Seq(3)), (run_id(2), Seq(0))];
    store.append(batch).await.expect("append");
    let inbox = store.load(&target).await.expect("load").expect("a run").inbox;
    assert_eq!(
        inbox,
        [run_message(&target, &run(2), 1), run_message(&target, &run(2), 2)]
    );

    // The last row of the table was deleted; a new row still comes last.
    let mut batch = create(&run(3), 1);
    batch.inbox_sent = vec![run_message(&target, &run(3), 0)];
    store.append(batch).await.expect("append");
    let inbox = store.load(&target).await.expect("load").expect("a run").inbox;
    assert_eq!(inbox.last(), Some(&run_message(&target, &run(3), 0)));

    let mut batch = append(&target, 1, 1);
    batch.inbox_consumed = inbox
        .into_iter()
        .map(|row| (row.source, row.source_seq))
        .collect();
    store.append(batch).await.expect("append");
    assert_eq!(
        store.runs_with_inbox(Epoch(1), None, 10).await.expect("inbox"),
        []
    );
}

async fn consuming_a_missing_inbox_row_is_no_error(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let mut batch = append(&run(1), 1, 1);
    batch.inbox_consumed = vec![(run_id(9), Seq(0))];
    store.append(batch).await.expect("append");
}

async fn runs_with_an_inbox_are_listed_once_and_by_page(store: Arc<dyn Store>) {
    let source = run(99);
    let mut batch = create(&source, 1);
    for n in [4, 1, 3, 2] {
        batch
            .inbox_sent
            .extend((0..20).map(|seq| run_message(&run(n), &source, seq)));
    }
    store.append(batch).await.expect("append");
    let other = RunKey::new(tenant("zeta"), run_id(1));
    let mut batch = create(&other, 1);
    batch.inbox_sent = vec![run_message(&other, &other, 0)];
    store.append(batch).await.expect("append");

    let first = store.runs_with_inbox(Epoch(1), None, 3).await.expect("inbox");
    assert_eq!(first, [run(1), run(2), run(3)]);
    let rest = store
        .runs_with_inbox(Epoch(1), first.last(), 3)
        .await
        .expect("inbox");
    assert_eq!(rest, [run(4), other]);
    assert_eq!(
        store
            .runs_with_inbox(Epoch(1), rest.last(), 3)
            .await
            .expect("inbox"),
        []
    );
}
