//! The embedded store: one SQLite file and one process. A [`Guest`] process may change registrations.
//!
//! One thread writes, a few read, one checkpoints. Callers reach them through bounded queues and never touch
//! a connection; a full queue fails at once with an unavailable store. Reads are divided into lanes, in which
//! tenants take turns. An acknowledged append is on disk: WAL with `synchronous=FULL`, one fsync for all
//! batches that waited at the same time.

mod agent_memory;
mod append;
mod backup;
mod bundle;
mod checkpoint;
mod epoch;
mod fault;
mod guest;
mod inspect;
mod job;
mod lanes;
mod lists;
mod loads;
mod offers;
mod open;
mod place;
mod port;
mod push;
mod queue;
mod quota;
mod read;
mod reader;
mod ready;
mod records;
mod registry;
mod retention;
mod rows;
mod schema;
mod secrets;
mod session;
mod space;
mod spending;
mod stats;
mod totals;
mod work;
mod writer;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::Ordering::Relaxed,
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
};

use parking_lot::Mutex;
use rusqlite::Connection;

pub use backup::{BackupError, Contents, Form, copy, verify};
pub use guest::Guest;
pub use inspect::first_damage;
pub use open::OpenError;
pub use place::file_of;
pub use schema::{holds_keys, migrate, schema_version};
pub use stats::Stats;

use self::{
    checkpoint::{Checkpointer, Mark, PENDING_WISHES},
    epoch::Owed,
    job::Job,
    lanes::Lanes,
    loads::Loads,
    open::{At as _, Lock},
    place::Files,
    queue::Queue,
    reader::Read,
    ready::Probes,
    records::Records,
    space::Space,
    stats::Counters,
    totals::Totals,
    writer::{Held, Short, Writer},
};
use crate::{readiness::Readiness, vitals::Vitals};

/// Maximum bytes of bodies that may wait for the writer, so that a burst of large events is refused before it
/// exhausts memory.
const QUEUED_BYTES: usize = 64 << 20;

/// How to open a database. The defaults suit a server with a handful of cores.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of reader threads, each with a connection and a page cache of 8 MiB. Default 4.
    pub readers: usize,
    /// Writes that may wait for the writer before more are refused. Default 4096.
    pub queue: usize,
    /// Reads of one tenant that may wait for a reader, per lane, before more are refused. Default 1024.
    pub waiting: usize,
    /// Reads by the process itself that may wait before more are refused. Default 4096.
    pub read_queue: usize,
    /// Migrates an older schema on opening. Default `true`.
    pub migrate: bool,
    /// Pages of 8 KiB by which the write-ahead log may grow before it is checkpointed. Default 4096.
    pub checkpoint_pages: u32,
    /// Maximum size of the database file in bytes. Beyond it writes are refused as on a full disk, and reads
    /// continue. Default: limited only by the disk.
    pub max_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            readers: 4,
            queue: 4096,
            waiting: 1_024,
            read_queue: 4096,
            migrate: true,
            checkpoint_pages: 4096,
            max_bytes: None,
        }
    }
}

/// A store in one SQLite file.
///
/// Dropping it completes pending calls and blocks until they are done; [`SqliteStore::close`] does the same
/// without blocking the runtime.
pub struct SqliteStore {
    path: PathBuf,
    writes: Arc<Queue<Box<dyn Job>>>,
    reads: Arc<Queue<Read>>,
    lanes: Lanes,
    loads: Arc<Loads>,
    totals: Totals,
    counters: Arc<Counters>,
    records: Arc<Records>,
    probes: Probes,
    readiness: Readiness,
    owed: Owed,
    vitals: Arc<Vitals>,
    threads: Mutex<Option<Threads>>,
}

/// Everything that must end, in this order, before another process may open the file.
struct Threads {
    writer: JoinHandle<()>,
    readers: Vec<JoinHandle<()>>,
    checkpointer: JoinHandle<()>,
    /// The last sender: dropping it stops the checkpointer.
    wishes: SyncSender<()>,
    lock: Lock,
}

impl SqliteStore {
    /// Opens a database, creating it if it does not exist.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let mut lock = open::lock(&path)?;
        let space = Arc::new(Space::of(&file_of(&path)));
        let free = space.look();
        lock.reserve(free);
        let found = schema::check(&path, options.migrate)?;
        open::make_private(&path);
        lock.take_file(&path)?;
        let mut conn = open::writing(&path).at(&path)?;
        schema::set_up(&mut conn, &path, options.max_bytes, found)?;

        let counters = Arc::new(Counters::default());
        let records = Arc::new(Records::load(&conn, records::MANY).at(&path)?);
        let mark = Arc::new(Mark::new(options.checkpoint_pages, Arc::clone(&space)));
        let owed = Owed::default();
        let gate = Arc::new(Mutex::new(()));
        let (wishes, wished) = sync_channel(PENDING_WISHES);
        checkpoint::watch(
            &mut conn,
            Arc::clone(&mark),
            Arc::clone(&counters),
            wishes.clone(),
        )
        .at(&path)?;

        let files = Arc::new(Files::of(&path));
        let log = fs::metadata(place::log_of(&path)).map_or(0, |log| log.len());
        let logged = log / u64::from(open::PAGE_SIZE);
        counters.wal_pages.store(logged, Relaxed);
        if space.wants_checkpoint(logged) {
            // Checkpoint the log of an earlier process before writing anything else, in case the disk is
            // nearly full.
            checkpoint::empty_log(&conn, &counters);
            space.look();
        }
        let checkpointer = Checkpointer {
            conn: writing_prepared(&path, None).at(&path)?,
            gate: Arc::clone(&gate),
            mark: Arc::clone(&mark),
            counters: Arc::clone(&counters),
            files: Arc::clone(&files),
        };
        let reader_conns = (0..options.readers.max(1))
            .map(|_| open::reading(&path))
            .collect::<Result<Vec<_>, _>>()
            .at(&path)?;

        let writes = Arc::new(Queue::new(options.queue, QUEUED_BYTES));
        // A queued read holds only a few ids, so limiting the number is enough.
        let reads = Arc::new(Queue::new(options.read_queue, usize::MAX));

        let reopen = {
            let (path, mark, counters, wishes) = (
                path.clone(),
                Arc::clone(&mark),
                Arc::clone(&counters),
                wishes.clone(),
            );
            move || {
                let mut conn = writing_prepared(&path, options.max_bytes)?;
                checkpoint::watch(
                    &mut conn,
                    Arc::clone(&mark),
                    Arc::clone(&counters),
                    wishes.clone(),
                )?;
                Ok(conn)
            }
        };
        let writer = Writer {
            conn: Held::Open(conn),
            reopen: Box::new(reopen),
            files,
            queue: Arc::clone(&writes),
            gate,
            counters: Arc::clone(&counters),
            records: Arc::clone(&records),
            commit: writer::commit,
            space: Arc::clone(&space),
            short: Short::new(Arc::clone(&mark)),
            owed: Arc::clone(&owed),
        };

        let writer = spawn(&path, "store-writer", move || writer.run())?;
        let checkpointer = spawn(&path, "store-checkpoint", move || checkpointer.run(&wished))?;
        let mut readers = Vec::with_capacity(reader_conns.len());
        for conn in reader_conns {
            let reads = Arc::clone(&reads);
            readers.push(spawn(&path, "store-reader", move || reader::run(&conn, &reads))?);
        }
        let threads = Threads {
            writer,
            readers,
            checkpointer,
            wishes,
            lock,
        };
        Ok(Self {
            path,
            writes,
            reads,
            lanes: Lanes::new(options.readers.max(1), options.waiting),
            loads: Arc::default(),
            totals: Totals::default(),
            counters,
            records,
            probes: Probes::default(),
            readiness: Readiness::default(),
            owed,
            vitals: Arc::default(),
            threads: Mutex::new(Some(threads)),
        })
    }

    /// Counters since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.snapshot(self.writes.len(), self.reads.len())
    }

    /// Completes pending calls, checkpoints the write-ahead log and releases the file.
    ///
    /// Later calls find the store unavailable. Closing again does nothing; of two concurrent calls only one
    /// waits.
    pub async fn close(&self) {
        let Some(threads) = self.stop_accepting() else {
            return;
        };
        if tokio::task::spawn_blocking(move || threads.join()).await.is_err() {
            tracing::error!("store did not close cleanly");
        }
    }

    /// Closes the queues; calls already queued still run.
    fn stop_accepting(&self) -> Option<Threads> {
        self.writes.close();
        self.reads.close();
        self.threads.lock().take()
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        if let Some(threads) = self.stop_accepting() {
            threads.join();
        }
    }
}

impl Threads {
    fn join(self) {
        let Self {
            writer,
            readers,
            checkpointer,
            wishes,
            lock,
        } = self;
        // None of them has panicked: that would have been the end of the process.
        let _ = writer.join();
        for reader in readers {
            let _ = reader.join();
        }
        drop(wishes);
        let _ = checkpointer.join();
        drop(lock);
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

fn writing_prepared(path: &Path, max_bytes: Option<u64>) -> rusqlite::Result<Connection> {
    let conn = open::writing_again(path)?;
    open::prepare(&conn, max_bytes)?;
    Ok(conn)
}

/// Ends the process if its thread panics outside of a job. Without that thread nothing could be written until a restart;
/// what was acknowledged is durable, so the restart comes at once.
struct NeededThread;

impl Drop for NeededThread {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}

fn spawn(path: &Path, name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _needed = NeededThread;
            work();
        })
        .map_err(|source| OpenError::Io {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings of a connection that make an acknowledged write durable.
    fn durability(conn: &Connection) -> rusqlite::Result<(String, i64, i64, i64)> {
        let number = |name| conn.pragma_query_value(None, name, |row| row.get(0));
        Ok((
            conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?,
            number("synchronous")?,
            number("fullfsync")?,
            number("checkpoint_fullfsync")?,
        ))
    }

    #[tokio::test]
    async fn every_commit_is_synced_to_disk() {
        const FULL: i64 = 2;
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("db");
        // Once with a new file, once with an existing one.
        for _ in 0..2 {
            let store = SqliteStore::open(&path, Options::default()).expect("open");
            let found = store.write(queue::SMALL, |conn| Ok(durability(conn)?)).await;
            assert_eq!(found.expect("pragmas"), ("wal".to_owned(), FULL, 1, 1));
            store.close().await;
        }
        // The connection of the checkpointer, and the one that replaces a broken writer connection.
        let again = writing_prepared(&path, None).expect("open");
        assert_eq!(
            durability(&again).expect("pragmas"),
            ("wal".to_owned(), FULL, 1, 1)
        );
    }
}
