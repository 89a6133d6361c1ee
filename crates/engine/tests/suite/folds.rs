//! Snapshots of other folds, as an earlier or later version of this program leaves them.

use std::sync::Arc;

use serde_json::json;
use wopr_core::{DialectId, RunStatus, format};
use wopr_engine::SideRows;
use wopr_store::{Batch, Guard, Log as _, MemoryStore, Snapshot, Store};
use wopr_testkit::Workflow;

use crate::harness::{answer, create, engine, fresh, reaches, steered};

#[tokio::test]
async fn log_is_folded_afresh_if_its_snapshot_is_of_another_fold() {
    let store = Arc::new(MemoryStore::new());
    // More events than lie between two snapshots, and than one page has.
    let workflow = Workflow::new("long")
        .variable("n", "number", json!({ "defaultValue": 0 }))
        .node(
            "count",
            "core.setVariable",
            json!({ "name": "n", "expression": "n + 1" }),
        )
        .gate("gate")
        .edge_if("count", "count", json!({ "expression": "n < 150" }))
        .edge_if("count", "gate", json!({ "expression": "n >= 150" }));
    let (executor, _attempts) = steered();
    let before = engine(Arc::clone(&store) as Arc<dyn Store>, executor).await;
    before
        .register(None, workflow.document())
        .await
        .expect("registers");
    let key = fresh(create(&before, "long", json!({}), SideRows::default()).await).key;
    let view = reaches(&before, &key, RunStatus::WaitingApproval).await;
    before.stop().await;

    let loaded = store.load(&key).await.expect("reads").expect("exists");
    assert!(loaded.snapshot.is_some(), "the log is long enough");
    let head = loaded.head;
    let mut batch = Batch::new(key.clone(), Guard::At(loaded.head), Vec::new(), loaded.summary);
    batch.snapshot = Some(Snapshot {
        head,
        // Of format 1, and of folds that do not exist; what follows is nothing that could be read.
        body: [&[1, 0xff, 0xff, 0xff, 0xff][..], b"a state of another form"].concat(),
    });
    store.append(batch).await.expect("appends");

    let (executor, _attempts) = steered();
    let after = engine(Arc::clone(&store) as Arc<dyn Store>, executor).await;
    let again = after.view(&key).await.expect("reads").expect("exists");
    assert_eq!(again.run, view.run);
    let accept = answer("gate", json!({ "action": "accept" }));
    after
        .command(&key, accept, SideRows::default())
        .await
        .expect("open");
    reaches(&after, &key, RunStatus::Completed).await;
    let snapshot = store.load(&key).await.expect("reads").expect("exists").snapshot;
    let snapshot = snapshot.expect("it has one");
    assert!(format::is_of_this_fold(DialectId::Openwop, &snapshot.body));
    assert!(
        snapshot.head > head,
        "the next append stores a snapshot that can be read"
    );
    after.stop().await;
}
