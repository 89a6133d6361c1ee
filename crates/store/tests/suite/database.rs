//! A database file that tests open, close and tamper with.

use std::{future::poll_fn, path::PathBuf, pin::Pin, task::Poll};

use rusqlite::Connection;
use wopr_store::{AppendError, Batch, Log as _, SqliteStore, sqlite::Options};

use crate::make::*;

/// A database in its own directory.
pub(crate) struct Database {
    _files: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Database {
    pub(crate) fn new() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let path = files.path().join("wopr.db");
        Self { _files: files, path }
    }

    pub(crate) fn open(&self) -> SqliteStore {
        self.open_with(Options::default())
    }

    pub(crate) fn open_with(&self, options: Options) -> SqliteStore {
        SqliteStore::open(&self.path, options).expect("open")
    }

    /// A raw connection, for statements that no store executes.
    pub(crate) fn raw(&self) -> Connection {
        let raw = Connection::open(&self.path).expect("open");
        raw.busy_timeout(std::time::Duration::from_secs(5))
            .expect("a timeout");
        raw
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.raw().execute_batch(sql).expect("our own statement");
    }
}

pub(crate) async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Appends all batches in one group.
pub(crate) async fn in_one_group(
    db: &Database,
    store: &SqliteStore,
    batches: Vec<Batch>,
) -> Vec<Result<(), AppendError>> {
    // The blocker holds the write lock: the writer waits for it with a first batch, and the others queue up.
    let blocker = db.raw();
    blocker.execute_batch("BEGIN IMMEDIATE").expect("begin");
    let mut first = store.append(create(&run(9_999), 1));
    assert!(poll_once(&mut first).await.is_pending());
    while store.stats().queued_writes > 0 {
        tokio::task::yield_now().await;
    }
    let mut group: Vec<_> = batches.into_iter().map(|batch| store.append(batch)).collect();
    for append in &mut group {
        assert!(poll_once(append).await.is_pending());
    }
    blocker.execute_batch("COMMIT").expect("commit");
    first.await.expect("the batch that goes ahead");
    let mut outcomes = Vec::new();
    for append in group {
        outcomes.push(append.await);
    }
    outcomes
}
