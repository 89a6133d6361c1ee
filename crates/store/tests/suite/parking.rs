//! Work rows whose lease ends while they stay: parked until they are due or woken.

use std::sync::Arc;

use wopr_core::{RunStatus, Timestamp};
use wopr_store::{
    AppendError, Batch, CallDeliveryCursor, CallDeliveryFilter, CallDeliveryRow, Ended, Epoch, Fence, Hold,
    Leased, Parked, Parking, Queue, Removal, Store, Swept, WorkKey, WorkRow, WorkState,
};

use crate::{deaths::die, make::*};

crate::behaviours!(
    parked_row_stays_and_is_leased_when_due,
    parking_in_an_append_replaces_the_body,
    parking_in_an_append_needs_the_lease,
    parking_outside_an_append_needs_the_lease,
    rows_of_several_runs_are_parked_together,
    row_without_due_time_waits_until_woken,
    row_woken_while_leased_is_due_once_parked,
    waking_does_not_delay_a_row,
    outcome_of_an_earlier_lease_is_refused_after_parking,
    unfenced_end_removes_a_parked_row,
    parked_row_counts_no_death,
    parking_forgets_deaths,
    parked_row_of_a_quarantined_run_is_leased_after_release,
    parked_row_is_removed_with_its_run,
    deliveries_to_peers_of_calls_are_listed_by_run_and_name;
    one process: leases_of_parked_rows_do_not_survive_a_restart,
);

/// Creates a run with one effect and leases it.
async fn leased(store: &dyn Store) -> Leased {
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![effect("e")];
    store.append(batch).await.expect("append");
    one(store, 0).await
}

async fn lease(store: &dyn Store, now: i64) -> Vec<Leased> {
    let leased = store
        .lease(Queue::Effects, Epoch(1), times(now, now + 50), &9.into())
        .await;
    leased.expect("lease")
}

async fn one(store: &dyn Store, now: i64) -> Leased {
    let mut leased = lease(store, now).await;
    assert_eq!(leased.len(), 1, "one row is due at {now}: {leased:?}");
    leased.remove(0)
}

fn parked(lease: &Leased, due: Option<i64>) -> Parked {
    Parked {
        key: lease.key.clone(),
        fence: lease.fence,
        due: due.map(at),
        body: None,
    }
}

async fn park(store: &dyn Store, lease: &Leased, due: Option<i64>) -> bool {
    let parked = store.park(&lease.run, &lease.key, lease.fence, due.map(at));
    parked.await.expect("park")
}

async fn wake(store: &dyn Store, now: i64) -> bool {
    let woken = store.wake(&run(1), &effect_key("e"), at(now)).await;
    woken.expect("wake")
}

async fn next_due(store: &dyn Store) -> Option<Timestamp> {
    store.next_due(Queue::Effects).await.expect("next")
}

/// A batch that parks a row, at a log of length `from`.
fn parking(from: u64, row: Parked) -> Batch {
    let mut batch = append(&run(1), from, 1);
    batch.work_parked = vec![row];
    batch
}

fn ending(from: u64, fence: Option<Fence>) -> Batch {
    let mut batch = append(&run(1), from, 1);
    let key = effect_key("e");
    batch.work_ended = vec![Ended { key, fence }];
    batch
}

async fn assert_fenced(store: &dyn Store, batch: Batch) {
    let before = store.load(&run(1)).await.expect("load");
    let refused = store.append(batch).await.expect_err("the lease is lost");
    assert!(
        matches!(&refused, AppendError::Fenced(key) if *key == effect_key("e")),
        "{refused:?}"
    );
    assert_eq!(store.load(&run(1)).await.expect("load"), before);
}

async fn parked_row_stays_and_is_leased_when_due(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    store
        .append(parking(1, parked(&first, Some(20))))
        .await
        .expect("append");
    assert_eq!(next_due(&*store).await, Some(at(20)));
    assert_eq!(lease(&*store, 19).await, []);
    let second = one(&*store, 20).await;
    assert!(second.fence > first.fence, "{second:?} {first:?}");
    assert_eq!((second.since, second.body), (at(20), first.body));
}

async fn parking_in_an_append_replaces_the_body(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    let row = Parked {
        body: Some(b"with a handle".to_vec()),
        ..parked(&first, Some(5))
    };
    store.append(parking(1, row)).await.expect("append");
    assert_eq!(one(&*store, 5).await.body, b"with a handle");
}

async fn parking_in_an_append_needs_the_lease(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    let second = one(&*store, 50).await;
    assert_fenced(&*store, parking(1, parked(&first, None))).await;
    store
        .append(parking(1, parked(&second, Some(60))))
        .await
        .expect("append");
    // It is parked already, then released, then gone.
    assert_fenced(&*store, parking(2, parked(&second, None))).await;
    let third = one(&*store, 60).await;
    let released = store.release(&third.run, &third.key, third.fence, at(61)).await;
    assert!(released.expect("release"));
    assert_fenced(&*store, parking(2, parked(&third, None))).await;
    store.append(ending(2, None)).await.expect("append");
    assert_fenced(&*store, parking(3, parked(&third, None))).await;
}

async fn parking_outside_an_append_needs_the_lease(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    let second = one(&*store, 50).await;
    assert!(!park(&*store, &first, None).await, "it was taken over");
    assert!(park(&*store, &second, Some(60)).await);
    assert!(!park(&*store, &second, None).await, "it is parked");
    let third = one(&*store, 60).await;
    store.append(ending(1, None)).await.expect("append");
    assert!(!park(&*store, &third, None).await, "it is gone");
    let summary = store.summary(&run(1)).await.expect("summary");
    assert_eq!(summary.expect("a run").1.0, 2, "parking appends nothing");
}

async fn rows_of_several_runs_are_parked_together(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    for n in 2..5 {
        let mut batch = create(&run(n), 1);
        batch.work_set = vec![effect("e")];
        store.append(batch).await.expect("append");
    }
    let mut leases = lease(&*store, 1).await;
    leases.push(first);
    leases.sort_unstable_by(|one, other| one.run.cmp(&other.run));
    assert_eq!(leases.len(), 4);
    assert!(wake(&*store, 7).await, "while it is leased");
    let parking = |lease: &Leased, due: Option<i64>| Parking {
        run: lease.run.clone(),
        key: lease.key.clone(),
        fence: lease.fence,
        due: due.map(at),
    };
    let mut rows = vec![
        parking(&leases[0], Some(60)),
        parking(&leases[1], Some(80)),
        parking(&leases[2], None),
    ];
    rows.push(Parking {
        fence: Fence(leases[3].fence.0 - 1),
        ..parking(&leases[3], Some(9))
    });
    rows.push(Parking {
        run: run(9),
        ..parking(&leases[3], Some(9))
    });
    let parked = store.park_all(&rows).await.expect("park");
    assert_eq!(parked, [true, true, true, false, false]);
    let due = |rows: Vec<Leased>| rows.into_iter().map(|row| row.run).collect::<Vec<_>>();
    assert_eq!(due(lease(&*store, 7).await), [run(1)], "it was woken");
    assert_eq!(due(lease(&*store, 49).await), []);
    assert!(
        store
            .park_all(&rows)
            .await
            .expect("park")
            .iter()
            .all(|parked| !parked)
    );
    assert!(store.park_all(&[]).await.expect("park").is_empty());
    assert_eq!(
        due(lease(&*store, 80).await).len(),
        3,
        "two leases have run out by now"
    );
}

async fn row_without_due_time_waits_until_woken(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(park(&*store, &first, None).await);
    assert_eq!(next_due(&*store).await, None);
    assert_eq!(lease(&*store, 9_999).await, []);
    assert!(wake(&*store, 70).await);
    assert_eq!(next_due(&*store).await, Some(at(70)));
    assert_eq!(lease(&*store, 69).await, []);
    one(&*store, 70).await;
    let missing = store.wake(&run(1), &timer_key("e"), at(1)).await;
    assert!(!missing.expect("wake"), "no timer has this name");
}

async fn row_woken_while_leased_is_due_once_parked(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(wake(&*store, 7).await && wake(&*store, 9).await);
    assert_eq!(lease(&*store, 49).await, [], "it keeps its lease");
    assert!(park(&*store, &first, None).await);
    assert_eq!(next_due(&*store).await, Some(at(7)));
    let second = one(&*store, 7).await;
    // What was before the lease has been seen by its holder.
    assert!(park(&*store, &second, None).await);
    assert_eq!(next_due(&*store).await, None);

    assert!(wake(&*store, 70).await);
    let third = one(&*store, 70).await;
    assert!(wake(&*store, 71).await);
    let row = parked(&third, Some(500));
    store.append(parking(1, row)).await.expect("append");
    assert_eq!(next_due(&*store).await, Some(at(71)));
}

async fn waking_does_not_delay_a_row(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(park(&*store, &first, Some(20)).await);
    assert!(wake(&*store, 90).await);
    assert_eq!(next_due(&*store).await, Some(at(20)));
    assert!(wake(&*store, 10).await);
    assert_eq!(next_due(&*store).await, Some(at(10)));
}

async fn outcome_of_an_earlier_lease_is_refused_after_parking(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(park(&*store, &first, Some(20)).await);
    assert_fenced(&*store, ending(1, Some(first.fence))).await;
    assert!(
        !store
            .renew(&first.run, &first.key, first.fence, at(99))
            .await
            .expect("renew")
    );
    let second = one(&*store, 20).await;
    assert_fenced(&*store, ending(1, Some(first.fence))).await;
    store
        .append(ending(1, Some(second.fence)))
        .await
        .expect("the holder settles");
    assert_eq!(lease(&*store, 999).await, []);
}

async fn unfenced_end_removes_a_parked_row(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(park(&*store, &first, Some(20)).await);
    store.append(ending(1, None)).await.expect("append");
    assert_eq!(next_due(&*store).await, None);
    assert!(!wake(&*store, 1).await);
}

async fn parked_row_counts_no_death(store: Arc<dyn Store>) {
    let epoch = store.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![born_leased("e", epoch, 50)];
    store.append(batch).await.expect("append");
    let parked = store.park(&run(1), &effect_key("e"), Fence(1), None).await;
    assert!(parked.expect("park"));
    for _ in 0..4 {
        die(&*store).await;
    }
    assert_eq!(next_due(&*store).await, None, "a start does not wake it");
    assert_eq!(store.quarantined(9).await.expect("quarantined"), []);
    assert!(wake(&*store, 60).await);
    assert_eq!(one(&*store, 60).await.deaths, 0);
}

async fn parking_forgets_deaths(store: Arc<dyn Store>) {
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![effect("e")];
    store.append(batch).await.expect("append");
    let mut epoch = store.begin_epoch(at(0)).await.expect("epoch");
    for (now, is_parked) in [(0, false), (100, false), (200, true), (300, false)] {
        let leased = store
            .lease(Queue::Effects, epoch, times(now, now + 50), &9.into())
            .await;
        let leased = leased.expect("lease").remove(0);
        let expected = if is_parked { 2 } else { u32::from(now == 100) };
        assert_eq!(leased.deaths, expected, "at {now}");
        if is_parked {
            assert!(park(&*store, &leased, Some(201)).await);
        }
        epoch = die(&*store).await;
    }
}

async fn parked_row_of_a_quarantined_run_is_leased_after_release(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(park(&*store, &first, Some(20)).await);
    let mut batch = append(&run(1), 1, 1);
    batch.hold = Some(Hold::Quarantine);
    store.append(batch).await.expect("append");
    assert!(wake(&*store, 10).await);
    assert_eq!(lease(&*store, 999).await, []);
    assert_eq!(next_due(&*store).await, None);
    let mut batch = append(&run(1), 2, 1);
    batch.hold = Some(Hold::Release);
    store.append(batch).await.expect("append");
    let second = one(&*store, 10).await;
    // Parking by whoever held it when the run was quarantined does not release it.
    let mut batch = append(&run(1), 3, 1);
    batch.hold = Some(Hold::Quarantine);
    store.append(batch).await.expect("append");
    assert!(park(&*store, &second, Some(30)).await);
    assert_eq!(lease(&*store, 999).await, []);
}

async fn parked_row_is_removed_with_its_run(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    let mut batch = parking(1, parked(&first, Some(20)));
    batch.summary.status = RunStatus::Completed;
    store.append(batch).await.expect("append");
    let gone = Removal {
        run: run_id(1),
        root: run_id(1),
    };
    store.remove(&tenant("acme"), &[gone]).await.expect("mark");
    assert_eq!(next_due(&*store).await, None);
    assert_eq!(lease(&*store, 999).await, []);
    while store.sweep(1).await.expect("sweep") != Swept::default() {}
    assert!(!wake(&*store, 1).await);
    // A new run with the same id finds nothing of the first one.
    store.append(create(&run(1), 1)).await.expect("create");
    assert_eq!(lease(&*store, 999).await, []);
}

async fn leases_of_parked_rows_do_not_survive_a_restart(store: Arc<dyn Store>) {
    let first = leased(&*store).await;
    assert!(park(&*store, &first, Some(80)).await);
    store.begin_epoch(at(30)).await.expect("epoch");
    assert_eq!(next_due(&*store).await, Some(at(80)), "it was not leased");
    assert_eq!(lease(&*store, 79).await, []);
}

async fn deliveries_to_peers_of_calls_are_listed_by_run_and_name(store: Arc<dyn Store>) {
    let delivery = |name: &str, state: WorkState| WorkRow {
        key: WorkKey::call_delivery(name),
        state,
        body: name.as_bytes().to_vec(),
    };
    for n in [1, 2] {
        let mut batch = create(&run(n), 1);
        // Neither a timer nor an attempt is a delivery.
        batch.work_set = vec![
            timer("cancel:0:0:a", 5),
            effect("0:0:cancel"),
            delivery("cancel:0:0:a", WorkState::Parked),
            delivery("answer:0:0:1:a", WorkState::Due(at(7))),
            delivery("answer:0:0:0:a", WorkState::Leased(Epoch(1), at(9))),
        ];
        batch.summary.principal = principal(if n == 1 { "ada" } else { "bob" });
        store.append(batch).await.expect("append");
    }
    let list = async |change: fn(&mut CallDeliveryFilter), after: Option<(u64, &str)>, limit: usize| {
        let mut filter = CallDeliveryFilter {
            tenant: tenant("acme"),
            run: None,
            principal: None,
            parked: false,
        };
        change(&mut filter);
        let after = after.map(|(n, name)| CallDeliveryCursor {
            run: run_id(n),
            name: name.to_owned(),
        });
        let listed = store.call_deliveries(&filter, after.as_ref(), limit);
        listed.await.expect("list")
    };
    let names = |rows: &[CallDeliveryRow]| {
        let rows = rows.iter();
        rows.map(|row| {
            let n = if row.run == run(1) { 1 } else { 2 };
            (n, row.key.name.clone())
        })
        .collect::<Vec<_>>()
    };
    let of = |n: u64| ["answer:0:0:0:a", "answer:0:0:1:a", "cancel:0:0:a"].map(|name| (n, name.to_owned()));
    let all = list(|_| {}, None, 9).await;
    assert_eq!(names(&all), [of(1), of(2)].concat());
    let state = |n: usize| (all[n].due, all[n].is_leased);
    assert_eq!(
        (state(0), state(1), state(2)),
        ((Some(at(9)), true), (Some(at(7)), false), (None, false))
    );
    assert_eq!(all[1].body, b"answer:0:0:1:a");

    let page = list(|_| {}, Some((1, "answer:0:0:1:a")), 2).await;
    assert_eq!(names(&page), [of(1)[2].clone(), of(2)[0].clone()]);
    let of_run = list(
        |filter| filter.run = Some(run_id(2)),
        Some((1, "cancel:0:0:a")),
        9,
    )
    .await;
    assert_eq!(names(&of_run), of(2));
    let of_ada = list(|filter| filter.principal = Some(principal("ada")), None, 9).await;
    assert_eq!(names(&of_ada), of(1));
    let parked = list(|filter| filter.parked = true, None, 9).await;
    assert_eq!(names(&parked), [of(1)[2].clone(), of(2)[2].clone()]);
    assert_eq!(list(|filter| filter.tenant = tenant("rival"), None, 9).await, []);
}
