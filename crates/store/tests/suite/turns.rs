//! PostgreSQL's connections under slow or abandoned reads.
//!
//! A read is made slow by locking a table that it needs and that other operations do not need.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::{BoxFuture, join_all};
use tokio_postgres::Client;
use wopr_store::{
    DeliveryFilter, Log as _, PostgresStore, Pushes as _, Queue, Registry as _, Work as _, postgres::Options,
};

use crate::{make::*, schema::Schema};

/// Longer than anything here takes, and far shorter than the lock timeout.
const SOON: Duration = Duration::from_secs(10);

/// Locks a table until the connection is closed.
async fn lock(schema: &Schema, table: &str) -> Client {
    let blocker = schema.raw().await;
    blocker
        .batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        .await
        .expect("our own statement");
    blocker
}

/// Waits until this many statements wait for a table lock.
async fn until_stuck(schema: &Schema, table: &str, expected: i64) {
    let raw = schema.raw().await;
    let stuck = format!("SELECT count(*) FROM pg_locks WHERE relation = '{table}'::regclass AND NOT granted");
    let begun = Instant::now();
    loop {
        let row = raw.query_one(&stuck, &[]).await.expect("our own statement");
        let n: i64 = row.get(0);
        if n == expected {
            return;
        }
        assert!(begun.elapsed() < SOON, "{n} wait for {table}, not {expected}");
        tokio::task::yield_now().await;
    }
}

/// Waits until this many calls were refused.
async fn until_refused(store: &PostgresStore, expected: u64) {
    let begun = Instant::now();
    while store.stats().refused < expected {
        assert!(begun.elapsed() < SOON, "{:?}", store.stats());
        tokio::task::yield_now().await;
    }
}

/// A call; returns `true` if it succeeded.
type Call = fn(Arc<PostgresStore>) -> BoxFuture<'static, bool>;

const READ: Call = |store| Box::pin(async move { store.blob(&run(1), "b").await.is_ok() });
const LIST: Call = |store| {
    Box::pin(async move {
        let filter = DeliveryFilter {
            tenant: tenant("acme"),
            run: None,
            principal: None,
            given_up: false,
        };
        store.deliveries(&filter, None, 9).await.is_ok()
    })
};
const LOAD: Call = |store| Box::pin(async move { store.load(&run(1)).await.is_ok() });
const REVOKE: Call = |store| {
    Box::pin(async move {
        let tenant = tenant("acme");
        store.revoke_key(&tenant, "k", at(0)).await.is_ok()
    })
};

async fn open(schema: &Schema, connections: usize, timeout: Duration) -> Arc<PostgresStore> {
    let options = Options {
        connections,
        timeout,
        ..Options::default()
    };
    let store = schema.open_with(options).await;
    store.append(create(&run(1), 1)).await.expect("append");
    Arc::new(store)
}

#[tokio::test]
async fn abandoned_call_is_cancelled_and_blocks_nothing() {
    let schema = Schema::new().await;
    let store = open(&schema, 1, SOON).await;
    for (n, (table, call)) in [
        ("blobs", READ),
        ("deliveries", LIST),
        ("inbox", LOAD),
        ("api_keys", REVOKE),
    ]
    .into_iter()
    .enumerate()
    {
        // Prepares its statements, so that the call itself waits for the lock.
        assert!(call(Arc::clone(&store)).await);
        let _blocker = lock(&schema, table).await;
        let stuck = tokio::spawn(call(Arc::clone(&store)));
        until_stuck(&schema, table, 1).await;
        stuck.abort();
        assert!(stuck.await.expect_err("nobody waits").is_cancelled());
        assert_eq!(
            store.stats().busy_connections,
            1,
            "{table}: it has its turn still"
        );
        let begun = Instant::now();
        store
            .append(create(&run(10 + n as u64), 1))
            .await
            .expect("append");
        assert!(begun.elapsed() < SOON, "{table}: {:?}", begun.elapsed());
        until_stuck(&schema, table, 0).await;
    }
}

#[tokio::test]
async fn abandoned_call_that_ends_soon_keeps_its_connection_open() {
    let schema = Schema::new().await;
    let store = open(&schema, 1, SOON).await;
    for n in 10..20 {
        let mut call = READ(Arc::clone(&store));
        assert!(futures_util::poll!(&mut call).is_pending());
        drop(call);
        store.append(create(&run(n), 1)).await.expect("append");
    }
    assert_eq!(store.stats().connections, 1);
}

#[tokio::test]
async fn closing_waits_for_running_statements() {
    let schema = Schema::new().await;
    let store = open(&schema, 1, SOON).await;
    let _blocker = lock(&schema, "blobs").await;
    let stuck = tokio::spawn(READ(Arc::clone(&store)));
    until_stuck(&schema, "blobs", 1).await;
    stuck.abort();
    store.close().await;
    assert_eq!(store.stats().connections, 0);
    until_stuck(&schema, "blobs", 0).await;
}

#[tokio::test]
async fn stuck_lists_leave_connections_to_reads_and_stuck_reads_to_writes() {
    let schema = Schema::new().await;
    let store = open(&schema, 4, Duration::from_millis(500)).await;
    let _lists_wait = lock(&schema, "deliveries").await;
    let _reads_wait = lock(&schema, "blobs").await;

    let lists: Vec<_> = (0..8).map(|_| tokio::spawn(LIST(Arc::clone(&store)))).collect();
    until_stuck(&schema, "deliveries", 2).await;
    until_refused(&store, 6).await;
    assert!(store.summary(&run(1)).await.is_ok(), "a read finds a connection");

    let reads: Vec<_> = (0..8).map(|_| tokio::spawn(READ(Arc::clone(&store)))).collect();
    until_stuck(&schema, "blobs", 1).await;
    until_refused(&store, 6 + 7).await;
    store
        .append(create(&run(2), 1))
        .await
        .expect("an append finds one");
    let epoch = store.begin_epoch(at(0)).await.expect("and so does an epoch");
    let leased = store.lease(Queue::Timers, epoch, times(9, 99), &9.into()).await;
    assert!(leased.is_ok(), "and so do leases: {leased:?}");

    for stuck in lists.into_iter().chain(reads) {
        stuck.abort();
    }
}

#[tokio::test]
async fn calls_that_share_the_only_connection_take_turns() {
    let schema = Schema::new().await;
    let store = open(&schema, 1, SOON).await;
    let calls = (10..30).map(|n| {
        let store = Arc::clone(&store);
        async move {
            store.append(create(&run(n), 1)).await.expect("append");
            assert!(READ(Arc::clone(&store)).await && LIST(Arc::clone(&store)).await && LOAD(store).await);
        }
    });
    join_all(calls).await;
}
