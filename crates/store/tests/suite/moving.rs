//! Work rows that get another key.

use std::sync::Arc;

use wopr_store::{Epoch, Leased, Moved, Queue, Store, WorkKey};

use crate::make::*;

crate::behaviours!(
    moved_row_keeps_its_lease_and_its_body,
    row_that_is_moved_by_its_holder_loses_its_lease,
    free_row_is_moved_to_the_given_time,
    moving_by_a_holder_needs_its_fence,
    moved_row_replaces_another_and_a_missing_one_none;
    one process: leases_of_moved_rows_end_with_their_process,
);

fn to() -> WorkKey {
    WorkKey::call_delivery("recall:e")
}

fn moved(key: WorkKey, lease: Option<&Leased>, due: Option<i64>) -> Moved {
    Moved {
        key,
        to: to(),
        fence: lease.map(|lease| lease.fence),
        due: due.map(at),
    }
}

/// Creates a run with an effect that is free.
async fn created(store: &dyn Store) {
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![effect("e")];
    store.append(batch).await.expect("append");
}

async fn lease(store: &dyn Store, now: i64) -> Vec<Leased> {
    let leased = store
        .lease(Queue::Effects, Epoch(1), times(now, now + 50), &9.into())
        .await;
    leased.expect("lease")
}

async fn move_row(store: &dyn Store, from: u64, row: Moved) -> bool {
    let mut batch = append(&run(1), from, 1);
    batch.work_moved = vec![row];
    store.append(batch).await.is_ok()
}

async fn moved_row_keeps_its_lease_and_its_body(store: Arc<dyn Store>) {
    created(&*store).await;
    let first = lease(&*store, 0).await.remove(0);
    assert!(move_row(&*store, 1, moved(first.key.clone(), None, Some(3))).await);
    assert_eq!(lease(&*store, 49).await, [], "its lease lasts");
    let renew = |key| store.renew(&first.run, key, first.fence, at(90));
    let (old, new) = (&first.key, &to());
    assert!(!renew(old).await.expect("renew"), "it has another key");
    assert!(renew(new).await.expect("renew"), "it is leased as before");
    let second = lease(&*store, 90).await.remove(0);
    assert_eq!((second.key, second.body), (to(), first.body));
    assert!(second.fence > first.fence);
}

async fn row_that_is_moved_by_its_holder_loses_its_lease(store: Arc<dyn Store>) {
    created(&*store).await;
    let first = lease(&*store, 0).await.remove(0);
    assert!(move_row(&*store, 1, moved(first.key.clone(), Some(&first), None)).await);
    let renewed = store.renew(&first.run, &to(), first.fence, at(90)).await;
    assert!(!renewed.expect("renew"));
    assert_eq!(lease(&*store, 9_999).await, [], "it waits to be woken");
    assert!(store.wake(&run(1), &to(), at(70)).await.expect("wake"));
    assert_eq!(lease(&*store, 70).await.len(), 1);
}

async fn free_row_is_moved_to_the_given_time(store: Arc<dyn Store>) {
    created(&*store).await;
    assert!(move_row(&*store, 1, moved(effect_key("e"), None, Some(30))).await);
    assert_eq!(lease(&*store, 29).await, []);
    assert_eq!(lease(&*store, 30).await.remove(0).key, to());
}

async fn moving_by_a_holder_needs_its_fence(store: Arc<dyn Store>) {
    created(&*store).await;
    let first = lease(&*store, 0).await.remove(0);
    let second = lease(&*store, 50).await.remove(0);
    assert!(!move_row(&*store, 1, moved(first.key.clone(), Some(&first), None)).await);
    assert!(move_row(&*store, 1, moved(first.key, Some(&second), Some(60))).await);
    assert_eq!(lease(&*store, 60).await.remove(0).key, to());
}

async fn moved_row_replaces_another_and_a_missing_one_none(store: Arc<dyn Store>) {
    created(&*store).await;
    assert!(move_row(&*store, 1, moved(effect_key("e"), None, Some(5))).await);
    assert!(
        move_row(&*store, 2, moved(effect_key("e"), None, Some(7))).await,
        "none is there"
    );
    let mut batch = append(&run(1), 3, 1);
    let mut other = effect("e");
    other.body = b"other".to_vec();
    batch.work_set = vec![other];
    store.append(batch).await.expect("append");
    assert!(move_row(&*store, 4, moved(effect_key("e"), None, Some(9))).await);
    let leased = lease(&*store, 100).await;
    assert_eq!(leased.len(), 1, "{leased:?}");
    assert_eq!(
        (&leased[0].key, leased[0].body.as_slice()),
        (&to(), &b"other"[..])
    );
}

async fn leases_of_moved_rows_end_with_their_process(store: Arc<dyn Store>) {
    created(&*store).await;
    store.begin_epoch(at(0)).await.expect("epoch");
    let first = lease(&*store, 0).await.remove(0);
    assert!(move_row(&*store, 1, moved(first.key, None, Some(3))).await);
    store.begin_epoch(at(4)).await.expect("epoch");
    assert_eq!(lease(&*store, 4).await.remove(0).key, to());
}
