//! Work that processes held when they crashed, and how it is handed out again.

use std::{sync::Arc, time::Duration};

use wopr_core::{RunKey, TenantId};
use wopr_store::{Epoch, HOPELESS, Hold, LAST_CHANCE, Mailbox, Queue, Quota, Store, WorkRow};

use crate::make::*;

crate::behaviours!(
    row_leased_at_three_crashes_is_quarantined,
    graceful_shutdown_counts_no_death,
    process_that_was_taken_for_dead_takes_its_deaths_back,
    process_whose_own_heartbeat_failed_counts_no_other_as_dead,
    rows_with_one_attempt_left_are_leased_one_by_one,
    inbox_claimed_at_three_crashes_is_quarantined,
    outbox_claimed_at_twenty_crashes_is_quarantined,
    quarantined_run_is_leased_again_once_released,
    tenant_gets_at_most_its_share_of_effects,
    tenant_gets_at_most_its_share_of_timers,
    effect_leases_are_limited_by_bytes,
    run_tree_grows_up_to_its_limit,
    children_created_with_their_root_count_as_its_descendants,
);

/// Simulates the crash of the current process and starts another one.
pub(crate) async fn die(store: &dyn Store) -> Epoch {
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    // In a shared store, the other processes detect the crash by missing heartbeats.
    while store.is_shared() && !store.beat(epoch, Some(Duration::ZERO)).await.expect("beats") {}
    epoch
}

fn quota(suspects: usize) -> Quota {
    Quota { suspects, ..9.into() }
}

/// Leases timers and effects. Returns the death count of each.
async fn lease(store: &dyn Store, epoch: Epoch, now: i64, suspects: usize) -> (Vec<u32>, Vec<u32>) {
    let lease = async |queue| {
        let leased = store
            .lease(queue, epoch, times(now, now + 5), &quota(suspects))
            .await;
        leased
            .expect("leases")
            .into_iter()
            .map(|row| row.deaths)
            .collect()
    };
    (lease(Queue::Timers).await, lease(Queue::Effects).await)
}

/// Creates a run with a due timer and effect.
async fn busy(store: &dyn Store, key: &RunKey) {
    let mut batch = create(key, 1);
    batch.work_set = vec![timer("t", 0)];
    batch.work_set.extend([effect("e")]);
    store.append(batch).await.expect("append");
}

async fn row_leased_at_three_crashes_is_quarantined(store: Arc<dyn Store>) {
    busy(&*store, &run(1)).await;
    let mut epoch = store.begin_epoch(at(0)).await.expect("epoch");
    for deaths in 0..3 {
        assert_eq!(store.quarantined(9).await.expect("quarantined"), []);
        let now = 10 * i64::from(deaths);
        assert_eq!(lease(&*store, epoch, now, 9).await, (vec![deaths], vec![deaths]));
        epoch = die(&*store).await;
    }
    assert_eq!(lease(&*store, epoch, 1_000, 9).await, (vec![], vec![]));
    assert_eq!(store.next_due(Queue::Timers).await.expect("next"), None);
    assert_eq!(store.quarantined(9).await.expect("quarantined"), [run(1)]);
    // A timer that is set again has caused no deaths.
    let mut batch = append(&run(1), 1, 1);
    batch.work_set = vec![timer("t", 0)];
    store.append(batch).await.expect("append");
    assert_eq!(lease(&*store, epoch, 1_000, 9).await.0, [0]);
}

async fn graceful_shutdown_counts_no_death(store: Arc<dyn Store>) {
    busy(&*store, &run(1)).await;
    for n in 0..4 {
        let epoch = store.begin_epoch(at(0)).await.expect("epoch");
        let leased = lease(&*store, epoch, 10 * n, 9).await;
        assert_eq!(leased, (vec![0], vec![0]));
        store.end_epoch(epoch).await.expect("ends");
        let next = store.begin_epoch(at(0)).await.expect("epoch");
        assert!(!store.beat(next, Some(Duration::ZERO)).await.expect("beats"));
        store.end_epoch(next).await.expect("ends");
    }
}

async fn process_that_was_taken_for_dead_takes_its_deaths_back(store: Arc<dyn Store>) {
    if !store.is_shared() {
        return;
    }
    busy(&*store, &run(1)).await;
    let living = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, living, 0, 9).await;
    for _ in 0..4 {
        // Another process cannot hear of it for a while.
        die(&*store).await;
        assert!(!store.beat(living, None).await.expect("beats"));
    }
    assert_eq!(store.quarantined(9).await.expect("quarantined"), []);
    let next = die(&*store).await;
    assert_eq!(lease(&*store, next, 100, 9).await, (vec![1], vec![1]));
}

async fn process_whose_own_heartbeat_failed_counts_no_other_as_dead(store: Arc<dyn Store>) {
    if !store.is_shared() {
        return;
    }
    busy(&*store, &run(1)).await;
    let dead = store.begin_epoch(at(0)).await.expect("epoch");
    lease(&*store, dead, 0, 9).await;
    let living = store.begin_epoch(at(0)).await.expect("epoch");
    // sleep: longer than two beats may be apart.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!store.beat(living, Some(Duration::ZERO)).await.expect("beats"));
    while !store.beat(living, Some(Duration::ZERO)).await.expect("beats") {}
    assert_eq!(lease(&*store, living, 10, 9).await, (vec![1], vec![1]));
}

async fn rows_with_one_attempt_left_are_leased_one_by_one(store: Arc<dyn Store>) {
    for n in 1..=3 {
        busy(&*store, &run(n)).await;
    }
    let mut epoch = store.begin_epoch(at(0)).await.expect("epoch");
    for now in [0, 10] {
        lease(&*store, epoch, now, 9).await;
        epoch = die(&*store).await;
    }
    busy(&*store, &run(4)).await;
    assert_eq!(lease(&*store, epoch, 20, 0).await, (vec![0], vec![0]));
    assert_eq!(lease(&*store, epoch, 20, 1).await, (vec![2], vec![2]));
    die(&*store).await;
    assert_eq!(store.quarantined(9).await.expect("quarantined").len(), 1);
}

async fn send_message(store: &dyn Store) {
    store.append(create(&run(1), 1)).await.expect("append");
    let mut batch = create(&run(2), 1);
    batch.inbox_sent = vec![run_message(&run(1), &run(2), 0)];
    store.append(batch).await.expect("append");
}

async fn inbox_claimed_at_three_crashes_is_quarantined(store: Arc<dyn Store>) {
    let mut epoch = store.begin_epoch(at(0)).await.expect("epoch");
    send_message(&*store).await;
    for suspects in [0, 0, 1] {
        assert_eq!(
            store.runs_with_inbox(epoch, None, 9).await.expect("inboxes"),
            [run(1)]
        );
        let claimed = store
            .claim(Mailbox::Inbox, epoch, &[run(1), run(2)], suspects)
            .await;
        assert_eq!(claimed.expect("claims"), [run(1)]);
        epoch = die(&*store).await;
    }
    let claimed = store.claim(Mailbox::Inbox, epoch, &[run(1)], 9).await;
    assert_eq!(claimed.expect("claims"), []);
    assert_eq!(store.runs_with_inbox(epoch, None, 9).await.expect("inboxes"), []);
    assert_eq!(store.quarantined(9).await.expect("quarantined"), [run(1)]);
    let loaded = store.load(&run(1)).await.expect("loads").expect("is there");
    assert_eq!(loaded.inbox, []);
}

async fn outbox_claimed_at_twenty_crashes_is_quarantined(store: Arc<dyn Store>) {
    let mut epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 1);
    batch.push = along(&run(1), "p");
    store.append(batch).await.expect("append");
    for n_deaths in 0..HOPELESS {
        assert_eq!(store.outbox(epoch, None, 9).await.expect("outbox").len(), 1);
        assert_eq!(store.quarantined(9).await.expect("quarantined"), []);
        let claim = async |suspects| {
            let claimed = store.claim(Mailbox::Outbox, epoch, &[run(1)], suspects).await;
            claimed.expect("claims")
        };
        if n_deaths >= LAST_CHANCE {
            assert_eq!(claim(0).await, []);
        }
        assert_eq!(claim(usize::from(n_deaths >= LAST_CHANCE)).await, [run(1)]);
        epoch = die(&*store).await;
    }
    assert_eq!(store.outbox(epoch, None, 9).await.expect("outbox"), []);
    assert_eq!(store.quarantined(9).await.expect("quarantined"), [run(1)]);
    for (hold, n_shown) in [(Hold::Quarantine, 0), (Hold::Release, 1)] {
        let mut batch = append(&run(1), if n_shown == 0 { 1 } else { 2 }, 1);
        batch.hold = Some(hold);
        store.append(batch).await.expect("append");
        assert_eq!(store.quarantined(9).await.expect("quarantined"), []);
        assert_eq!(store.outbox(epoch, None, 9).await.expect("outbox").len(), n_shown);
    }
}

async fn quarantined_run_is_leased_again_once_released(store: Arc<dyn Store>) {
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    send_message(&*store).await;
    let mut batch = append(&run(1), 1, 1);
    batch.work_set = vec![timer("t", 0)];
    batch.work_set.extend([effect("e")]);
    store.append(batch).await.expect("append");
    let mut batch = append(&run(1), 2, 1);
    batch.hold = Some(Hold::Quarantine);
    store.append(batch).await.expect("append");
    assert_eq!(lease(&*store, epoch, 0, 9).await, (vec![], vec![]));
    assert_eq!(store.runs_with_inbox(epoch, None, 9).await.expect("inboxes"), []);
    // The run itself is quarantined now, so the store does not list it.
    assert_eq!(store.quarantined(9).await.expect("quarantined"), []);
    let mut batch = append(&run(1), 3, 1);
    batch.hold = Some(Hold::Release);
    store.append(batch).await.expect("append");
    assert_eq!(lease(&*store, epoch, 0, 9).await, (vec![0], vec![0]));
    assert_eq!(
        store.runs_with_inbox(epoch, None, 9).await.expect("inboxes"),
        [run(1)]
    );
    let loaded = store.load(&run(1)).await.expect("loads").expect("is there");
    assert_eq!(loaded.inbox.len(), 1);
}

fn of(tenant: &str, n: u64) -> RunKey {
    RunKey::new(TenantId::parse(tenant).expect("valid"), run(n).run)
}

/// Two tenants with many runs that have waited long, and one with a recent run.
async fn crowd(store: &dyn Store) -> Epoch {
    for n in 1..=4 {
        busy(store, &of("a", n)).await;
        busy(store, &of("b", n)).await;
    }
    let mut batch = create(&of("c", 1), 1);
    batch.work_set = vec![timer("t", 5)];
    batch.work_set.extend([effect("e")]);
    batch.summary.updated_at = at(1_000);
    store.append(batch).await.expect("append");
    store.begin_epoch(at(0)).await.expect("epoch")
}

fn shared(without: &[&str]) -> Quota {
    Quota {
        rows: 3,
        per_tenant: 1,
        without: without
            .iter()
            .map(|text| TenantId::parse(text).expect("valid"))
            .collect(),
        suspects: 0,
        ..3.into()
    }
}

async fn tenant_gets_at_most_its_share_of_effects(store: Arc<dyn Store>) {
    let epoch = crowd(&*store).await;
    let leased = store
        .lease(Queue::Effects, epoch, times(2_000, 9_000), &shared(&[]))
        .await;
    let mut tenants: Vec<_> = leased
        .expect("leases")
        .into_iter()
        .map(|effect| effect.run.tenant)
        .collect();
    tenants.sort();
    assert_eq!(tenants, ["a", "b", "c"].map(|text| of(text, 1).tenant));
    let leased = store
        .lease(Queue::Effects, epoch, times(2_000, 9_000), &shared(&["a"]))
        .await;
    let leased = leased.expect("leases");
    assert_eq!(
        leased.into_iter().map(|effect| effect.run).collect::<Vec<_>>(),
        [of("b", 2)]
    );
}

async fn tenant_gets_at_most_its_share_of_timers(store: Arc<dyn Store>) {
    let epoch = crowd(&*store).await;
    let lease = async |without| {
        let leased = store
            .lease(Queue::Timers, epoch, times(10, 9_000), &shared(without))
            .await;
        leased
            .expect("leases")
            .into_iter()
            .map(|timer| timer.run)
            .collect::<Vec<_>>()
    };
    assert_eq!(lease(&[]).await, [of("a", 1), of("b", 1), of("c", 1)]);
    assert_eq!(lease(&["a"]).await, [of("b", 2)]);
}

async fn effect_leases_are_limited_by_bytes(store: Arc<dyn Store>) {
    for tenant in ["a", "b"] {
        for n in 1..=4 {
            let mut batch = create(&of(tenant, n), 1);
            batch.work_set = vec![WorkRow {
                body: vec![b'x'; 1_000],
                ..effect("e")
            }];
            store.append(batch).await.expect("append");
        }
    }
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let lease = async |now: i64, bytes: usize, bytes_per_tenant: usize| {
        let quota = Quota {
            bytes,
            bytes_per_tenant,
            ..9.into()
        };
        let leased = store
            .lease(Queue::Effects, epoch, times(now, now + 10), &quota)
            .await;
        let mut runs: Vec<_> = leased
            .expect("leases")
            .into_iter()
            .map(|effect| {
                assert_eq!(effect.body.len(), 1_000);
                effect.run
            })
            .collect();
        runs.sort();
        runs
    };
    // The last lease may exceed the quota, so that at least one always fits.
    assert_eq!(lease(0, 1, 1).await, [of("a", 1)]);
    assert_eq!(
        lease(0, 9_000, 1_001).await,
        [of("a", 2), of("a", 3), of("b", 1), of("b", 2)]
    );
    assert_eq!(lease(0, 1_500, 1_000).await, [of("a", 4), of("b", 3)]);
    assert_eq!(lease(0, usize::MAX, usize::MAX).await, [of("b", 4)]);
    // Expired leases count like the others.
    assert_eq!(lease(20, 2_001, 2_001).await.len(), 3);
    assert_eq!(lease(20, 0, 0).await, []);
    assert_eq!(lease(20, 9_000, 1).await, [of("a", 4), of("b", 1)]);
}

async fn run_tree_grows_up_to_its_limit(store: Arc<dyn Store>) {
    store.append(create(&run(1), 1)).await.expect("append");
    let mut granted = 0;
    for (wanted, expected) in [(5, 5), (3, 3), (5, 2), (5, 0)] {
        let more = store.grant(&run(1), wanted, 10).await.expect("grants");
        assert_eq!(more, expected);
        granted += more;
    }
    assert_eq!(granted, 10);
    // Lowering the limit revokes nothing.
    assert_eq!(store.grant(&run(1), 5, 4).await.expect("grants"), 0);
    assert_eq!(store.grant(&run(1), 5, 11).await.expect("grants"), 1);
    assert_eq!(store.grant(&run(2), 5, 10).await.expect("grants"), 0);
}

async fn children_created_with_their_root_count_as_its_descendants(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.children = [2, 3, 4].map(|n| child(n, &run(1))).into();
    store.append(batch).await.expect("append");
    assert_eq!(store.grant(&run(1), 9, 10).await.expect("grants"), 7);
    // A child is not the root of the tree, and counts nothing.
    assert_eq!(store.grant(&run(2), 9, 10).await.expect("grants"), 9);
}
