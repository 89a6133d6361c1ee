//! Push deliveries of runs shared by several processes: one replica delivers at a time, and another takes over
//! if it dies.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::sync::mpsc;
use wopr_core::{Recorded, RunStatus, Timestamp};
use wopr_engine::{
    Delivery, Engine, Notifier, Options, PushOptions, SideRows, SystemClock, Undelivered, View,
};
use wopr_store::{PostgresStore, PushRow, Put, Update, postgres};

use crate::harness::*;

/// Reports each delivery, then accepts it or hangs.
#[derive(Debug)]
struct Teller {
    said: mpsc::UnboundedSender<(char, u64)>,
    name: char,
    hangs: bool,
}

#[async_trait]
impl Notifier for Teller {
    fn updates(&self, _before: &View, events: &[Recorded]) -> Vec<Update> {
        let update = |recorded: &Recorded| Update {
            seq: recorded.seq,
            body: Vec::new(),
        };
        events.iter().map(update).collect()
    }

    async fn deliver(&self, delivery: &Delivery) -> Result<(), Undelivered> {
        // The test may have ended.
        let _ = self.said.send((self.name, delivery.seq.0));
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

async fn telling(url: &str, teller: Teller) -> Engine {
    let store = PostgresStore::open(&News::Polling.url(url), postgres::Options::default()).await;
    let (executor, _attempts) = steered();
    let options = Options {
        poll: Duration::from_millis(50),
        lease: Duration::from_millis(500),
        notifier: Some(Arc::new(teller)),
        push: PushOptions {
            timeout: Duration::from_millis(500),
            ..PushOptions::default()
        },
        ..Options::default()
    };
    Engine::start(Arc::new(store.unwrap()), executor, Arc::new(SystemClock), options)
        .await
        .unwrap()
}

fn receiver() -> PushRow {
    PushRow {
        id: "receiver".to_owned(),
        body: Vec::new(),
        created_at: Timestamp::from_millis(1),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_delivers_at_a_time_and_in_order() {
    let url = schema().await;
    let (said, mut heard) = mpsc::unbounded_channel();
    let teller = |name| Teller {
        said: said.clone(),
        name,
        hangs: false,
    };
    let (a, b) = (telling(&url, teller('a')).await, telling(&url, teller('b')).await);
    register(&[&a, &b]).await;
    for _ in 0..5 {
        let run = create(&a, "approve").await;
        let put = b.put_push(&run.key, receiver(), 1).await.unwrap();
        assert_eq!(put, Put::Added);
        b.command(&run.key, accept(), SideRows::default()).await.unwrap();
        let log = follow(&a, &run.key, RunStatus::Completed).await;
        for seq in run.run.head.0..log.len() as u64 {
            assert_eq!(heard.recv().await.unwrap().1, seq);
        }
    }
    a.stop().await;
    b.stop().await;
    assert!(heard.try_recv().is_err(), "each is told once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_of_a_killed_replica_are_taken_over() {
    let url = schema().await;
    let (said, mut heard) = mpsc::unbounded_channel();
    // It runs on its own runtime, which is dropped as if the process were killed: no lease is released.
    let killed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let teller = Teller {
        said: said.clone(),
        name: 'a',
        hangs: true,
    };
    let run = killed
        .spawn({
            let url = url.clone();
            async move {
                let a = telling(&url, teller).await;
                register(&[&a]).await;
                let run = create(&a, "approve").await;
                a.put_push(&run.key, receiver(), 1).await.unwrap();
                a.command(&run.key, accept(), SideRows::default()).await.unwrap();
                // Dropping the engine's handle does not stop it; only the end of its runtime does.
                run
            }
        })
        .await
        .unwrap();
    let first = run.run.head.0;
    assert_eq!(heard.recv().await, Some(('a', first)));
    killed.shutdown_background();

    let teller = Teller {
        said,
        name: 'b',
        hangs: false,
    };
    let b = telling(&url, teller).await;
    let log = follow(&b, &run.key, RunStatus::Completed).await;
    let mut told = Vec::new();
    while told.last() != Some(&(log.len() as u64 - 1)) {
        match heard.recv().await.unwrap() {
            ('b', seq) => told.push(seq),
            other => assert_eq!(other, ('a', first), "it may have tried again before it died"),
        }
    }
    assert_eq!(told, (first..log.len() as u64).collect::<Vec<_>>());
    b.stop().await;
}
