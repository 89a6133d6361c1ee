//! A database with several names, and full disks.

#![cfg(unix)]

use std::{fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration};

use wopr_core::Seq;
use wopr_store::{
    AppendError, Log as _, Queue, ReadError, SqliteStore, Work as _,
    sqlite::{self, BackupError, Form, Guest, OpenError, Options},
};

use crate::{database::Database, make::*};

fn refused(path: &Path) -> OpenError {
    SqliteStore::open(path, Options::default()).expect_err("not to be opened")
}

#[tokio::test]
async fn symlink_to_an_open_database_is_locked_like_its_target() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    let folder = db.path.with_file_name("elsewhere");
    fs::create_dir(&folder).expect("a folder");
    let (near, far) = (db.path.with_file_name("near.db"), folder.join("far.db"));
    symlink("wopr.db", &near).expect("a link");
    symlink("../near.db", &far).expect("a link to a link");
    for link in [&near, &far] {
        assert!(
            matches!(refused(link), OpenError::Locked(_)),
            "{}",
            link.display()
        );
        assert!(matches!(sqlite::migrate(link), Err(OpenError::Locked(_))));
        // Operations that may share the file find the host's write-ahead log, too.
        Guest::open(link).expect("a guest");
        let copy = folder.join("copy.db");
        sqlite::copy(link, &copy, Form::AsIs).expect("a copy");
        assert_eq!(sqlite::verify(&copy).expect("sound").events, 1);
        fs::remove_file(copy).expect("remove");
    }
    drop(store);
    let through = SqliteStore::open(&far, Options::default()).expect("free again");
    assert!(matches!(refused(&db.path), OpenError::Locked(_)));
    assert!(through.load(&run(1)).await.expect("load").is_some());
    let left: Vec<_> = folder.read_dir().expect("a folder").flatten().collect();
    assert_eq!(left.len(), 1, "nothing is made beside a link: {left:?}");
}

#[tokio::test]
async fn symlink_to_a_missing_database_is_locked_too() {
    let db = Database::new();
    let link = db.path.with_file_name("link.db");
    symlink("wopr.db", &link).expect("a link");
    let store = SqliteStore::open(&link, Options::default()).expect("a new database");
    assert!(matches!(refused(&db.path), OpenError::Locked(_)));
    drop(store);
}

#[tokio::test]
async fn database_with_hard_links_is_refused_under_every_name() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    let link = db.path.with_file_name("link.db");
    fs::hard_link(&db.path, &link).expect("a link");
    let check = |path: &Path| {
        let copied = sqlite::copy(path, db.path.with_file_name("copy.db"), Form::AsIs);
        let errors = [
            sqlite::schema_version(path).expect_err("refused"),
            Guest::open(path).expect_err("refused"),
            sqlite::first_damage(path).expect_err("refused"),
        ];
        assert!(
            matches!(&copied, Err(BackupError::Open(OpenError::Linked { .. }))),
            "{copied:?}"
        );
        for error in errors {
            assert!(matches!(error, OpenError::Linked { names: 2, .. }), "{error:?}");
        }
    };
    check(&link);
    check(&db.path);
    assert!(matches!(refused(&link), OpenError::Linked { .. }));
    assert!(matches!(sqlite::migrate(&link), Err(OpenError::Linked { .. })));
    store
        .append(append(&run(1), 1, 1))
        .await
        .expect("the host goes on");
    drop(store);
    // The write-ahead log may contain writes that the other name does not lead to.
    assert!(matches!(refused(&db.path), OpenError::Linked { .. }));
    fs::remove_file(&link).expect("remove");
    let store = db.open();
    assert_eq!(
        store.load(&run(1)).await.expect("load").expect("a run").head,
        Seq(2)
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn file_renamed_while_open_stays_locked() {
    let db = Database::new();
    let store = db.open();
    store.append(create(&run(1), 1)).await.expect("append");
    let moved = db.path.with_file_name("moved.db");
    fs::rename(&db.path, &moved).expect("rename");
    let error = refused(&moved);
    assert!(matches!(error, OpenError::OpenElsewhere(_)), "{error:?}");
    fs::rename(&moved, &db.path).expect("rename");
    store
        .append(append(&run(1), 1, 1))
        .await
        .expect("the host goes on");
}

/// A temporary file system of the given size in KiB; `None` if mounting is not permitted.
struct Disk(tempfile::TempDir);

impl Disk {
    fn of(kib: u32) -> Option<Self> {
        Self::mounted(&["-t", "tmpfs", "-o", &format!("size={kib}k"), "none"])
    }

    fn mounted(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount").args(arguments).arg(folder.path()).output();
        match mounted {
            Ok(done) if done.status.success() => Some(Self(folder)),
            // Only root may mount; the rules in `space` are tested without it.
            Ok(_) | Err(_) => None,
        }
    }

    fn fill(&self) {
        let mut options = fs::OpenOptions::new();
        let filler = options
            .create(true)
            .append(true)
            .open(self.0.path().join("filler"));
        let mut filler = filler.expect("a file");
        let zeros = [0; 4096];
        while std::io::Write::write_all(&mut filler, &zeros).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.path().join("filler")).expect("remove");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy, because files may still be open.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn large(n: u64) -> wopr_store::Batch {
    let mut batch = create(&run(n), 1);
    batch.events[0].body = vec![7; 60_000];
    batch
}

/// Appends runs until the disk is full. Returns the number of the first one that failed.
async fn fill(store: &SqliteStore, from: u64) -> u64 {
    let (mut n, mut n_refused) = (from, 0);
    let refused = loop {
        match store.append(large(n)).await {
            Ok(()) => (n, n_refused) = (n + 1, 0),
            Err(_) if n_refused < 20 => {
                n_refused += 1;
                // sleep: the log is copied by a thread of its own, which makes room
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(refused) => break refused,
        }
        assert!(n < 1_000, "a small disk holds fewer");
    };
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    n
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_smaller_than_the_log_limit_fills_up_and_can_be_reopened() {
    // The write-ahead log alone may grow to 32 MiB before it is checkpointed.
    let Some(disk) = Disk::of(12 << 10) else { return };
    let path = disk.0.path().join("wopr.db");
    let store = SqliteStore::open(&path, Options::default()).expect("open");
    let mut written = fill(&store, 0).await;
    assert!(written > 60, "most of the disk is used for runs: {written}");
    assert!(store.stats().checkpoints > 0, "{:?}", store.stats());
    assert!(store.load(&run(0)).await.expect("reads go on").is_some());
    drop(store);
    for _ in 0..3 {
        let store = SqliteStore::open(&path, Options::default()).expect("open again");
        store.begin_epoch(at(0)).await.expect("epoch");
        assert!(store.load(&run(written - 1)).await.expect("load").is_some());
        written = fill(&store, written).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_on_a_full_disk_serves_reads_and_takes_writes_once_there_is_space() {
    let Some(disk) = Disk::of(12 << 10) else { return };
    let path = disk.0.path().join("wopr.db");
    let store = SqliteStore::open(&path, Options::default()).expect("open");
    let first = store.begin_epoch(at(0)).await.expect("epoch");
    let mut batch = create(&run(1), 1);
    batch.work_set = vec![born_leased("e", first, 1_000)];
    store.append(batch).await.expect("append");
    drop(store);
    disk.fill();
    let store = SqliteStore::open(&path, Options::default()).expect("open on a full disk");
    // Other writers also take the space that the start released.
    disk.fill();
    let epoch = store.begin_epoch(at(5)).await.expect("an epoch all the same");
    assert!(epoch > first && store.is_full());
    assert!(store.load(&run(1)).await.expect("load").is_some());
    let refused = store.append(append(&run(1), 1, 1)).await.expect_err("no room");
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
    store.ready().await.expect_err("not ready");

    disk.empty();
    let leased = store
        .lease(Queue::Effects, epoch, times(5, 9), &9.into())
        .await
        .expect("lease");
    assert_eq!(
        leased.len(),
        1,
        "the epoch of this start has ended the earlier lease"
    );
    assert!(!store.is_full());
    let next = store.begin_epoch(at(6)).await.expect("epoch");
    assert!(next > epoch, "{next:?} comes after {epoch:?}");
}

#[tokio::test]
async fn file_system_without_a_known_size_takes_writes() {
    let Some(disk) = Disk::mounted(&["-t", "ramfs", "none"]) else {
        return;
    };
    let path = disk.0.path().join("wopr.db");
    let store = SqliteStore::open(&path, Options::default()).expect("open");
    store.append(create(&run(1), 1)).await.expect("append");
    assert!(!store.is_full());
}

#[tokio::test]
async fn reads_of_a_closed_store_say_so() {
    let db = Database::new();
    let store = db.open();
    store.close().await;
    assert!(matches!(store.high_water().await, Err(ReadError::Unavailable(_))));
}
