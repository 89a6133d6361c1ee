//! Backups of a SQLite database in use.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use wopr_core::{RunStatus, Seq};
use wopr_store::{
    BlobRow, Log as _, Removal, Retention as _, SqliteStore,
    sqlite::{BackupError, Form, Options, copy, verify},
};

use crate::{database::Database, make::*};

/// A destination for a copy.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("copy.db");
    (folder, path)
}

fn sound(path: &Path) -> Vec<(RunStatus, u64)> {
    verify(path).expect("sound").runs
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_has_all_acknowledged_runs_and_no_partial_ones() {
    for form in [Form::AsIs, Form::Compact] {
        let db = Database::new();
        let store = Arc::new(db.open());
        // Large enough that a copy takes several steps.
        for n in 0..600 {
            let mut batch = create(&run(n), 3);
            batch.blobs = vec![BlobRow {
                id: "b".to_owned(),
                media_type: "text/plain".to_owned(),
                bytes: vec![7; 40_000],
            }];
            store.append(batch).await.expect("append");
        }
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(600)), Arc::new(AtomicBool::new(false)));
        let writing = tokio::spawn({
            let (store, acknowledged, stop) = (store.clone(), acknowledged.clone(), stop.clone());
            async move {
                while !stop.load(Ordering::SeqCst) {
                    let n = acknowledged.load(Ordering::SeqCst);
                    store.append(create(&run(n), 2)).await.expect("append");
                    store.append(append(&run(n), 2, 2)).await.expect("append");
                    acknowledged.store(n + 1, Ordering::SeqCst);
                }
            }
        });
        while acknowledged.load(Ordering::SeqCst) < 620 {
            tokio::task::yield_now().await;
        }
        let (_folder, path) = place();
        let before = acknowledged.load(Ordering::SeqCst);
        let copying = tokio::task::spawn_blocking({
            let (from, to) = (db.path.clone(), path.clone());
            move || copy(from, to, form)
        });
        copying.await.expect("no panic").expect("copied");
        let after = acknowledged.load(Ordering::SeqCst);
        // The owner keeps writing during and after the copy.
        while acknowledged.load(Ordering::SeqCst) < after + 5 {
            tokio::task::yield_now().await;
        }
        stop.store(true, Ordering::SeqCst);
        writing.await.expect("no panic");

        let contents = verify(&path).expect("sound");
        let runs: u64 = contents.runs.iter().map(|(_, n)| n).sum();
        assert!((before..=after + 1).contains(&runs), "{before} {runs} {after}");
        let restored = SqliteStore::open(&path, Options::default()).expect("open");
        for n in 600..before {
            let page = restored.events(&run(n), Seq(0), 9).await.expect("events");
            assert_eq!(page.expect("acknowledged").events, events(0, 4), "{n}");
        }
        restored.append(create(&run(99_999), 1)).await.expect("append");
    }
}

#[tokio::test]
async fn compact_copy_omits_removed_data() {
    let db = Database::new();
    let store = db.open();
    for n in 0..40 {
        let mut batch = create(&run(n), 1);
        batch.summary = summary(RunStatus::Completed, 1);
        batch.blobs = vec![BlobRow {
            id: "b".to_owned(),
            media_type: "text/plain".to_owned(),
            bytes: vec![7; 100_000],
        }];
        store.append(batch).await.expect("append");
    }
    let removals: Vec<_> = (1..40)
        .map(|n| Removal {
            run: run_id(n),
            root: run_id(n),
        })
        .collect();
    store.remove(&tenant("acme"), &removals).await.expect("mark");
    // A copy in the middle of an append shows what a reader sees.
    let (_folder, path) = place();
    store.sweep(20).await.expect("sweep");
    copy(&db.path, &path, Form::AsIs).expect("copied");
    assert_eq!(sound(&path), [(RunStatus::Completed, 1)]);
    while store.sweep(500).await.expect("sweep").rows > 0 {}

    let (_folder, whole) = place();
    copy(&db.path, &whole, Form::AsIs).expect("copied");
    let (_folder, compact) = place();
    copy(&db.path, &compact, Form::Compact).expect("copied");
    let bytes = |path: &Path| verify(path).expect("sound").bytes;
    assert!(bytes(&whole) > 4_000_000, "{}", bytes(&whole));
    // The rest of the remaining run, and a page or two per table and index.
    assert!(bytes(&compact) < 800_000, "{}", bytes(&compact));
    assert_eq!(sound(&whole), sound(&compact));
    // A copy is a single file, even after it was read.
    for path in [&whole, &compact] {
        let folder = path.parent().expect("a folder");
        assert_eq!(folder.read_dir().expect("a folder").count(), 1);
    }
}

#[tokio::test]
async fn non_wopr_databases_are_not_copied() {
    let (_folder, path) = place();
    let missing = Path::new("no/such/wopr.db");
    assert!(matches!(
        copy(missing, &path, Form::AsIs),
        Err(BackupError::Empty)
    ));
    assert!(!path.exists());
    let db = Database::new();
    db.sql("CREATE TABLE notes (text)");
    let refused = copy(&db.path, &path, Form::AsIs).expect_err("somebody else's");
    assert!(matches!(refused, BackupError::Open(_)), "{refused:?}");
    assert!(!path.exists());
}

#[tokio::test]
async fn damaged_copy_is_detected() {
    let db = Database::new();
    let store = db.open();
    for n in 0..20 {
        store.append(create(&run(n), 3)).await.expect("append");
        store.append(append(&run(n), 3, 2)).await.expect("append");
    }
    drop(store);
    let (_folder, path) = place();
    for damage in [
        "DELETE FROM events WHERE run LIKE '%7' AND last_seq = 2",
        "DELETE FROM events WHERE run LIKE '%7' AND last_seq = 4",
        "UPDATE runs SET next_seq = 9 WHERE run LIKE '%19'",
        "DELETE FROM events WHERE run LIKE '%00'",
    ] {
        std::fs::write(&path, "").expect("an empty file");
        copy(&db.path, &path, Form::AsIs).expect("copied");
        sound(&path);
        rusqlite::Connection::open(&path)
            .and_then(|conn| conn.execute_batch(damage))
            .expect("our own statement");
        let found = verify(&path).expect_err(damage);
        assert!(
            matches!(&found, BackupError::Damaged(text) if text.to_string().contains("log of")),
            "{found:?}"
        );
    }
    // Damage that SQLite itself detects.
    std::fs::write(&path, "").expect("an empty file");
    copy(&db.path, &path, Form::AsIs).expect("copied");
    let mut bytes = std::fs::read(&path).expect("readable");
    let middle = bytes.len() / 2 / 8192 * 8192;
    bytes[middle..middle + 64].fill(0xa5);
    std::fs::write(&path, bytes).expect("writable");
    verify(&path).expect_err("a page that is none");
}
