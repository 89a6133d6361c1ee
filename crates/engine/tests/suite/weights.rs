//! Loads and reads of a run are bounded in bytes.

use std::sync::Arc;

use serde_json::json;
use wopr_core::{NodeTypes, RunStatus, Seq};
use wopr_engine::{Engine, Options, Outcome, SideRows, SystemClock, View};
use wopr_store::{MemoryStore, PAGE_BYTES, Store};

use crate::harness::{create, fresh, node, reaches, steered, workflow};

const N_CALLS: usize = 7;
const OUTPUT: usize = 700 << 10;

/// Creates a run of several calls in a row whose results take almost a megabyte each.
async fn heavy(store: Arc<dyn Store>) -> (Engine, View) {
    let (executor, attempts) = steered();
    let options = Options {
        node_types: NodeTypes { conformance: true },
        ..Options::default()
    };
    let engine = Engine::start(store, executor, Arc::new(SystemClock), options)
        .await
        .expect("starts");
    let names: Vec<_> = (0..N_CALLS).map(|n| format!("n{n}")).collect();
    let nodes: Vec<_> = names
        .iter()
        .map(|name| node(name, "core.conformance.side-effect", json!({})))
        .collect();
    let edges: Vec<_> = names
        .windows(2)
        .map(|pair| (pair[0].as_str(), pair[1].as_str()))
        .collect();
    engine
        .register(None, workflow("heavy", &nodes, &edges))
        .await
        .expect("registers");
    let view = fresh(create(&engine, "heavy", json!({}), SideRows::default()).await);
    tokio::spawn(async move {
        while let Some((_, reply)) = attempts.lock().await.recv().await {
            drop(reply.send(Outcome::Done(json!({ "text": "x".repeat(OUTPUT) }))));
        }
    });
    let view = reaches(&engine, &view.key, RunStatus::Completed).await;
    (engine, view)
}

#[tokio::test]
async fn a_log_of_large_events_gets_snapshots_by_size() {
    let files = tempfile::tempdir().expect("a directory");
    let path = files.path().join("wopr.db");
    let sqlite = wopr_store::SqliteStore::open(path, wopr_store::sqlite::Options::default());
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(sqlite.expect("opens"))];
    for store in stores {
        let (engine, view) = heavy(store.clone()).await;
        let loaded = store.load(&view.key).await.expect("reads").expect("exists");
        let tail: usize = loaded.tail.iter().map(|event| event.body.len()).sum();
        assert!(tail <= PAGE_BYTES, "{tail} bytes after the last fold");
        assert!(loaded.head.0 < 256 && loaded.snapshot.is_some());
        engine.stop().await;
    }
}

#[tokio::test]
async fn a_log_of_large_events_is_paged_in_both_directions() {
    let (engine, view) = heavy(Arc::new(MemoryStore::new())).await;
    let head = view.run.head;
    let (mut forward, mut from) = (Vec::new(), Seq(0));
    while from < head {
        let page = engine.events(&view.key, from, 256).await;
        let page = page.expect("reads").expect("exists");
        assert!(page.events.len() < 256 && page.head == head);
        from = page.events.last().expect("one at least").seq.next();
        forward.push(page.events);
    }
    let (mut backward, mut end) = (Vec::new(), head.plus(9));
    loop {
        let page = engine.events_before(&view.key, end, 256).await;
        let page = page.expect("reads").expect("exists");
        let Some(first) = page.events.first() else { break };
        end = first.seq;
        backward.push(page.events);
    }
    assert!(forward.len() > 1 && backward.len() > 1);
    backward.reverse();
    assert_eq!(forward.concat(), backward.concat());
    engine.stop().await;
}
