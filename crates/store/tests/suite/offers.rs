//! Offers: work that programs outside the host lease, with limits, fences and lists.

use std::sync::Arc;

use wopr_core::RunKey;
use wopr_store::{
    AppendError, Ended, Epoch, Fence, Hold, Leased, LeasedOffers, Moved, Offer, OfferRequest, OfferThen,
    OfferedQueue, Outage, Queue, Store, WorkKey, WorkRow, WorkState,
};

use crate::make::*;

crate::behaviours!(
    offers_are_leased_by_queue_and_tenant_the_longest_waiting_first,
    leased_offer_comes_back_when_its_lease_ends_with_a_larger_fence,
    outcome_under_an_older_fence_is_refused_and_under_the_newest_is_taken,
    lease_that_is_lost_cannot_be_renewed,
    lease_that_is_given_back_is_handed_out_at_once,
    pools_of_the_host_do_not_lease_offers,
    limits_bound_what_is_leased_at_once,
    bytes_bound_what_one_call_leases,
    offers_of_quarantined_runs_wait,
    moved_offer_is_offered_no_more,
    queues_are_listed_by_name_with_what_waits_in_them,
    leases_of_offers_survive_the_host,
    offer_whose_leases_end_too_often_is_leased_to_the_host,
    lease_that_is_given_back_does_not_count,
    lease_that_is_renewed_counts_once,
    lease_that_ended_in_an_outage_does_not_count,
    offer_that_is_set_again_has_lost_no_lease,
);

fn offered(name: &str, queue: &str, since: i64) -> WorkRow {
    WorkRow {
        state: WorkState::Offered(Offer {
            queue: queue.to_owned(),
            since: at(since),
        }),
        ..effect(name)
    }
}

async fn offer(store: &dyn Store, run: &RunKey, rows: Vec<WorkRow>) {
    let mut batch = create(run, 1);
    batch.work_set = rows;
    store.append(batch).await.expect("append");
}

fn request(queue: &str, now: i64, rows: usize) -> OfferRequest {
    OfferRequest {
        tenant: tenant("acme"),
        queue: queue.to_owned(),
        now: at(now),
        until: at(now + 50),
        rows,
        bytes: usize::MAX,
        most_of_queue: None,
        most_of_tenant: None,
        max_lost: 2,
        outage: None,
    }
}

async fn lease(store: &dyn Store, request: OfferRequest) -> LeasedOffers {
    store.lease_offers(&request).await.expect("lease")
}

fn names(leased: &LeasedOffers) -> Vec<(&str, u64)> {
    let rows = leased.rows.iter();
    rows.map(|row| (row.key.name.as_str(), row.fence.0)).collect()
}

async fn one(store: &dyn Store, now: i64) -> Leased {
    let mut leased = lease(store, request("q", now, 1)).await;
    assert_eq!(leased.rows.len(), 1, "one row can be leased at {now}");
    leased.rows.remove(0)
}

async fn set(store: &dyn Store, leased: &Leased, then: OfferThen) -> bool {
    let set = store.set_offer(&leased.run, &leased.key, leased.fence, then);
    set.await.expect("answers")
}

/// The lost leases of the row that no worker gets at this time, and the fence of the host's lease.
async fn lost(store: &dyn Store, now: i64) -> Vec<(u32, u64)> {
    let leased = lease(store, request("q", now, 1)).await;
    assert_eq!(leased.rows, [], "no worker gets it at {now}");
    let lost = leased.lost.iter();
    lost.map(|lost| (lost.n_lost, lost.leased.fence.0)).collect()
}

async fn end(store: &dyn Store, n: u64, leased: &Leased) -> Result<(), AppendError> {
    let mut batch = append(&leased.run, n, 1);
    batch.work_ended = vec![Ended {
        key: leased.key.clone(),
        fence: Some(leased.fence),
    }];
    store.append(batch).await
}

async fn offers_are_leased_by_queue_and_tenant_the_longest_waiting_first(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("b", "q", 3), offered("c", "q", 9)]).await;
    offer(
        store,
        &run(2),
        vec![offered("a", "q", 1), offered("x", "other", 0)],
    )
    .await;
    let foreign = RunKey::new(tenant("zeta"), run_id(1));
    offer(store, &foreign, vec![offered("z", "q", 0)]).await;
    let leased = lease(store, request("q", 5, 9)).await;
    assert_eq!(
        (names(&leased), leased.next),
        (vec![("a", 1), ("b", 1)], Some(at(9)))
    );
    assert_eq!(
        (leased.rows[0].since, leased.rows[0].body.as_slice()),
        (at(1), b"a".as_slice())
    );
    let none = lease(store, request("unknown", 5, 9)).await;
    assert_eq!(none, LeasedOffers::default());
}

async fn leased_offer_comes_back_when_its_lease_ends_with_a_larger_fence(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let first = one(store, 10).await;
    let early = lease(store, request("q", 59, 1)).await;
    assert_eq!((early.rows, early.next), (vec![], Some(at(60))));
    assert!(set(store, &first, OfferThen::Renew(at(70))).await);
    assert_eq!(lease(store, request("q", 60, 1)).await.next, Some(at(70)));
    assert_eq!((first.fence, one(store, 70).await.fence), (Fence(1), Fence(2)));
}

async fn outcome_under_an_older_fence_is_refused_and_under_the_newest_is_taken(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let (first, second) = (one(store, 0).await, one(store, 50).await);
    let stale = end(store, 1, &first).await.expect_err("it is stale");
    assert!(matches!(stale, AppendError::Fenced(_)), "{stale:?}");
    // Its lease has ended, but nobody else has the row.
    assert_eq!(lease(store, request("q", 99, 1)).await.rows, []);
    end(store, 1, &second).await.expect("the newest lease counts");
    assert_eq!(lease(store, request("q", 999, 1)).await, LeasedOffers::default());
}

async fn lease_that_is_lost_cannot_be_renewed(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let (first, second) = (one(store, 0).await, one(store, 50).await);
    let renew = async |leased: &Leased| set(store, leased, OfferThen::Renew(at(200))).await;
    assert!(!renew(&first).await);
    assert!(renew(&second).await);
    end(store, 1, &second).await.expect("ends");
    assert!(!renew(&second).await, "it is gone");
}

async fn lease_that_is_given_back_is_handed_out_at_once(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 3)]).await;
    let first = one(store, 10).await;
    assert!(set(store, &first, OfferThen::GiveBack(first.since)).await);
    let again = one(store, 10).await;
    assert_eq!((again.since, again.fence), (at(3), Fence(2)));
}

async fn pools_of_the_host_do_not_lease_offers(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0), effect("e")]).await;
    let _leased = one(store, 0).await;
    let leased = store
        .lease(Queue::Effects, Epoch(1), times(1_000, 1_050), &9.into())
        .await
        .expect("lease");
    let names: Vec<_> = leased.iter().map(|row| row.key.name.as_str()).collect();
    assert_eq!(names, ["e"]);
    assert_eq!(
        store.next_due(Queue::Effects).await.expect("due"),
        Some(at(1_050))
    );
}

async fn limits_bound_what_is_leased_at_once(store: Arc<dyn Store>) {
    let store = &*store;
    let rows = |queue: &str| {
        let row = |n: i64| offered(&format!("{queue}{n}"), queue, n);
        (0..5).map(row).collect::<Vec<_>>()
    };
    offer(store, &run(1), rows("q")).await;
    offer(store, &run(2), rows("r")).await;
    let limited = |queue: &str, now: i64| OfferRequest {
        most_of_queue: Some(2),
        most_of_tenant: Some(3),
        ..request(queue, now, 9)
    };
    let leased = lease(store, limited("q", 10)).await;
    assert_eq!(
        (names(&leased), leased.next),
        (vec![("q0", 1), ("q1", 1)], Some(at(2)))
    );
    assert_eq!(
        lease(store, limited("q", 10)).await.rows,
        [],
        "the queue has its share"
    );
    let of_tenant = lease(store, limited("r", 10)).await;
    assert_eq!(names(&of_tenant), [("r0", 1)], "the tenant has its share then");
    end(store, 1, &leased.rows[0]).await.expect("ends");
    assert_eq!(names(&lease(store, limited("q", 10)).await), [("q2", 1)]);
}

async fn bytes_bound_what_one_call_leases(store: Arc<dyn Store>) {
    let store = &*store;
    let rows = (0..4).map(|n| offered(&format!("name{n}"), "q", n)).collect();
    offer(store, &run(1), rows).await;
    let small = OfferRequest {
        bytes: 6,
        ..request("q", 10, 9)
    };
    let leased = lease(store, small).await;
    assert_eq!((leased.rows.len(), leased.next), (2, Some(at(2))));
}

async fn offers_of_quarantined_runs_wait(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let mut batch = append(&run(1), 1, 1);
    batch.hold = Some(Hold::Quarantine);
    store.append(batch).await.expect("append");
    assert_eq!(lease(store, request("q", 0, 1)).await, LeasedOffers::default());
    let mut batch = append(&run(1), 2, 1);
    batch.hold = Some(Hold::Release);
    store.append(batch).await.expect("append");
    assert_eq!(lease(store, request("q", 0, 1)).await.rows.len(), 1);
}

async fn moved_offer_is_offered_no_more(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let mut batch = append(&run(1), 1, 1);
    batch.work_moved = vec![Moved {
        key: effect_key("a"),
        to: WorkKey::effect("KEPT"),
        fence: None,
        due: None,
    }];
    store.append(batch).await.expect("append");
    assert_eq!(lease(store, request("q", 0, 1)).await, LeasedOffers::default());
}

async fn queues_are_listed_by_name_with_what_waits_in_them(store: Arc<dyn Store>) {
    let store = &*store;
    offer(
        store,
        &run(1),
        vec![offered("a", "q", 7), offered("b", "q", 3), offered("c", "q", 5)],
    )
    .await;
    offer(store, &run(2), vec![offered("a", "other", 1)]).await;
    let foreign = RunKey::new(tenant("zeta"), run_id(1));
    offer(store, &foreign, vec![offered("z", "theirs", 0)]).await;
    let _leased = one(store, 10).await;
    let list = async |after: Option<&str>, limit| {
        let queues = store.offered_queues(&tenant("acme"), at(10), after, limit).await;
        queues.expect("list")
    };
    let other = OfferedQueue {
        queue: "other".to_owned(),
        waiting: 1,
        leased: 0,
        oldest: Some(at(1)),
    };
    let q = OfferedQueue {
        queue: "q".to_owned(),
        waiting: 2,
        leased: 1,
        oldest: Some(at(5)),
    };
    assert_eq!(list(None, 9).await, [other.clone(), q.clone()]);
    assert_eq!(list(None, 1).await, [other]);
    assert_eq!(list(Some("other"), 9).await, [q]);
}

async fn leases_of_offers_survive_the_host(store: Arc<dyn Store>) {
    let store = &*store;
    store.begin_epoch(at(0)).await.expect("epoch");
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let leased = one(store, 0).await;
    for _ in 0..4 {
        store.begin_epoch(at(5)).await.expect("epoch");
    }
    assert_eq!(
        lease(store, request("q", 49, 1)).await.rows,
        [],
        "the worker still has it"
    );
    end(store, 1, &leased).await.expect("its outcome counts");
}

async fn offer_whose_leases_end_too_often_is_leased_to_the_host(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0), offered("b", "q", 900)]).await;
    let (_first, second) = (one(store, 0).await, one(store, 50).await);
    assert_eq!(
        lease(store, request("q", 99, 1)).await.lost,
        [],
        "the second lease lasts"
    );
    let of_host = lease(store, request("q", 100, 1)).await;
    assert_eq!((of_host.rows.len(), of_host.next), (0, Some(at(150))));
    assert_eq!(
        lost(store, 149).await,
        [],
        "no other host gets it while the lease lasts"
    );
    assert_eq!(
        lost(store, 150).await,
        [(2, 4)],
        "the lease of a host that died does not count"
    );
    let late = end(store, 1, &second).await.expect_err("the host has it");
    assert!(matches!(late, AppendError::Fenced(_)), "{late:?}");
    assert!(!set(store, &second, OfferThen::Renew(at(300))).await);
    let more = OfferRequest {
        max_lost: 3,
        ..request("q", 200, 1)
    };
    assert_eq!(
        names(&lease(store, more).await),
        [("a", 5)],
        "it is allowed another one"
    );
}

async fn lease_that_is_given_back_does_not_count(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let _first = one(store, 0).await;
    for _ in 0..4 {
        let second = one(store, 60).await;
        assert!(set(store, &second, OfferThen::GiveBack(second.since)).await);
        assert!(
            set(store, &second, OfferThen::GiveBack(second.since)).await,
            "as if once"
        );
    }
    let _second = one(store, 60).await;
    assert_eq!(lost(store, 110).await, [(2, 7)]);
}

async fn lease_that_is_renewed_counts_once(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let first = one(store, 0).await;
    for until in [60, 70, 80, 90] {
        assert!(set(store, &first, OfferThen::Renew(at(until))).await);
    }
    let _second = one(store, 90).await;
    assert_eq!(lost(store, 140).await, [(2, 3)]);
}

async fn lease_that_ended_in_an_outage_does_not_count(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 30)]).await;
    let after = async |now: i64, (after, until): (i64, i64)| {
        let outage = Outage {
            after: at(after),
            until: at(until),
        };
        let request = OfferRequest {
            outage: Some(outage),
            ..request("q", now, 1)
        };
        let leased = lease(store, request).await;
        (leased.rows.len(), leased.lost.len())
    };
    assert_eq!(
        after(40, (20, 40)).await,
        (1, 0),
        "it had no lease that could have ended"
    );
    assert_eq!(
        after(90, (90, 90)).await,
        (1, 0),
        "the first lease ended when a host was up"
    );
    assert_eq!(
        after(150, (139, 140)).await,
        (1, 0),
        "the second one ended in the outage"
    );
    assert_eq!(
        after(200, (200, 210)).await,
        (0, 1),
        "the third one ended before the outage"
    );
}

async fn offer_that_is_set_again_has_lost_no_lease(store: Arc<dyn Store>) {
    let store = &*store;
    offer(store, &run(1), vec![offered("a", "q", 0)]).await;
    let (_first, _second) = (one(store, 0).await, one(store, 50).await);
    let mut batch = append(&run(1), 1, 1);
    batch.work_set = vec![offered("a", "q", 60)];
    store.append(batch).await.expect("append");
    let (_third, _fourth) = (one(store, 100).await, one(store, 150).await);
    assert_eq!(lost(store, 200).await.len(), 1);
}
