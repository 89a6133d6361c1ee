//! The writer: one thread that commits all waiting jobs in one transaction with one fsync.
//!
//! ```text
//!   append ──┐
//!   append ──┼─> queue ─> drain ─> BEGIN IMMEDIATE; job; job; job; COMMIT ─> every reply
//!   renew  ──┘              ^                                                    │
//!                           └────────────── the next group gathers meanwhile ────┘
//! ```
//!
//! While one group commits, the next gathers; a single job never waits for others. Only under load does the
//! writer delay a commit slightly, because a commit costs the same for one job as for many. If a job fails
//! after it wrote, the transaction is rolled back and every job of the group runs again alone. Only an error
//! at COMMIT leaves the outcome in doubt. The connection is then given up, and writes are refused until a new
//! one can be opened, with backoff.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rusqlite::Connection;

use super::{
    checkpoint::{self, Mark},
    epoch::{Begin, Owed},
    fault::{Failure, FailureKind, Fault, is_full},
    job::Job,
    place::Files,
    queue::{Gathered, Queue},
    records::Records,
    session::Session,
    space::Space,
    stats::Counters,
};
use crate::Cause;

/// Maximum number of writes per commit. Beyond a few hundred the fsync is amortised, and the first write of a
/// group would wait for the last.
pub(super) const MAX_GROUP: usize = 512;

/// Approximate maximum bytes per commit, so that a group's dirty pages stay within the writer's cache.
const MAX_GROUP_BYTES: usize = 16 << 20;

/// Number of runs written by one commit from which the writer assumes that more will follow.
const CROWD: usize = 8;

/// Group size at which a group under load commits.
const CROWDS_GROUP: usize = 32;

/// Maximum time for a group under load to form. It adds this much to the worst latency.
const TIMEOUT: Duration = Duration::from_millis(3);

/// Shortest gap between arrivals after which the load is considered over. If commits take longer, so may the gap: waiting
/// for it at most doubles what a write waits, and large writes, as of runs with their children, arrive less often.
const LULL: Duration = Duration::from_micros(400);

/// Backoff for opening a new connection: doubles from the first to the longest pause.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Minimum time between attempts to empty the log while writes are refused for lack of space.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// Commits a transaction. Replaceable in tests, which cannot make a disk fail on demand.
pub(super) type Commit = fn(&Connection) -> rusqlite::Result<()>;

pub(super) fn commit(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("COMMIT")?.execute([]).map(drop)
}

pub(super) struct Writer {
    pub(super) conn: Held,
    pub(super) reopen: Box<dyn Fn() -> rusqlite::Result<Connection> + Send>,
    /// The files that every connection must have open.
    pub(super) files: Arc<Files>,
    pub(super) queue: Arc<Queue<Box<dyn Job>>>,
    /// Held during a transaction; a checkpoint that must exclude the writer takes it between two.
    pub(super) gate: Arc<Mutex<()>>,
    pub(super) counters: Arc<Counters>,
    pub(super) records: Arc<Records>,
    pub(super) commit: Commit,
    pub(super) space: Arc<Space>,
    pub(super) short: Short,
    pub(super) owed: Owed,
}

/// When the log was last emptied to free space.
pub(super) struct Short {
    mark: Arc<Mark>,
    last: Option<Instant>,
}

impl Short {
    pub(super) fn new(mark: Arc<Mark>) -> Self {
        Self { mark, last: None }
    }
}

/// The writer's connection, or its absence.
pub(super) enum Held {
    Open(Connection),
    /// The connection was given up, and no new one could be opened yet.
    Lost {
        /// When the next write tries to open one.
        again: Instant,
        /// The pause after the next failure.
        pause: Duration,
    },
}

/// Why a group did not commit.
enum Trouble {
    /// One job failed; the transaction was rolled back, so the other jobs can be retried without it.
    Job(Failure),
    /// The transaction itself failed.
    Group(Failure),
}

/// Refuses queued jobs when the thread ends, even by a panic.
struct Abandon(Arc<Queue<Box<dyn Job>>>);

impl Drop for Abandon {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

impl Writer {
    pub(super) fn run(mut self) {
        let _abandon = Abandon(Arc::clone(&self.queue));
        let mut group = Vec::with_capacity(MAX_GROUP);
        let mut is_crowded = false;
        while self.queue.drain(&mut group, MAX_GROUP, MAX_GROUP_BYTES) {
            // A single write is no crowd, however large.
            is_crowded |= group.len() > 1 && group.iter().map(|job| job.runs()).sum::<usize>() >= CROWD;
            group.extend(self.records.due(group.len()));
            let since = Instant::now();
            self.write(&mut group);
            if is_crowded {
                let lull = since.elapsed().clamp(LULL, TIMEOUT);
                is_crowded = self.queue.gather(CROWDS_GROUP, lull, TIMEOUT) == Gathered::Enough;
            }
        }
    }

    /// Writes a group and settles each job. Jobs that do not fit on the disk are refused before the
    /// transaction begins.
    fn write(&mut self, group: &mut Vec<Box<dyn Job>>) {
        if let Some(begin) = Begin::owed(&self.owed) {
            self.write_what_fits(&mut vec![Box::new(begin)]);
            if self.owed.lock().is_some() {
                return settle_all(group.drain(..), &Failure::full());
            }
        }
        self.write_what_fits(group);
    }

    fn write_what_fits(&mut self, group: &mut Vec<Box<dyn Job>>) {
        if self.has_room(group) || (self.make_room() && self.has_room(group)) {
            return self.write_together(group);
        }
        if group.len() > 1 {
            for job in group.drain(..) {
                self.write_what_fits(&mut vec![job]);
            }
            return;
        }
        settle_all(group.drain(..), &Failure::full());
    }

    /// Empties the log, unless it was just emptied. Returns `true` if there may be more space now.
    fn make_room(&mut self) -> bool {
        if self.short.last.is_some_and(|last| last.elapsed() < SHORT_PAUSE) {
            return false;
        }
        self.short.last = Some(Instant::now());
        let Held::Open(conn) = &self.conn else {
            return false;
        };
        let _open = self.gate.lock();
        let is_empty = checkpoint::empty_log(conn, &self.counters);
        self.short.mark.set(self.counters.wal_pages.load(Relaxed));
        is_empty
    }

    fn has_room(&self, group: &[Box<dyn Job>]) -> bool {
        let logged = self.counters.wal_pages.load(Relaxed);
        let bytes = group.iter().map(|job| job.bytes()).sum();
        self.space.has_room(logged, group.len(), bytes)
    }

    fn write_together(&mut self, group: &mut Vec<Box<dyn Job>>) {
        match self.attempt(group) {
            Ok(spoiled) => settle_each(group.drain(..), spoiled),
            Err(Trouble::Group(failure)) => {
                if failure.kind == FailureKind::Full {
                    self.make_room();
                }
                settle_all(group.drain(..), &failure);
            }
            Err(Trouble::Job(failure)) if group.len() == 1 => settle_all(group.drain(..), &failure),
            Err(Trouble::Job(failure)) => {
                tracing::warn!(
                    failure = %failure.cause,
                    jobs = group.len(),
                    "group of writes taken apart"
                );
                self.counters.retried_group();
                for job in group.drain(..) {
                    let mut alone = [job];
                    match self.attempt(&mut alone) {
                        Ok(spoiled) => settle_each(alone, spoiled),
                        Err(Trouble::Job(failure) | Trouble::Group(failure)) => settle_all(alone, &failure),
                    }
                }
            }
        }
    }

    /// Runs jobs in one transaction. After an error nothing is written, unless the commit is in doubt.
    fn attempt(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<Spoiled, Trouble> {
        let gate = Arc::clone(&self.gate);
        let _open = gate.try_lock().unwrap_or_else(|| {
            let since = Instant::now();
            let open = gate.lock();
            self.counters.stalled(since.elapsed());
            open
        });
        self.reopen_if_due();
        let Held::Open(conn) = &self.conn else {
            let failure = Failure::not_written("the database could not be opened again");
            return Err(Trouble::Group(failure));
        };
        match transact(conn, jobs, &self.files, self.commit) {
            Ok(Done { wrote, spoiled }) => {
                if wrote > 0 {
                    self.counters.committed(wrote);
                }
                Ok(spoiled)
            }
            Err(Aborted::Clean(trouble)) => Err(trouble),
            Err(Aborted::Broken(failure)) => {
                if failure.kind == FailureKind::InDoubt {
                    self.counters.doubtful_commit();
                }
                tracing::error!(failure = %failure.cause, "connection given up");
                self.replace_connection();
                Err(Trouble::Group(failure))
            }
        }
    }

    fn replace_connection(&mut self) {
        // Drop the old connection first: its cached state of the file can no longer be trusted.
        self.conn = Held::Lost {
            again: Instant::now(),
            pause: FIRST_PAUSE,
        };
        self.reopen_if_due();
    }

    fn reopen_if_due(&mut self) {
        let Held::Lost { again, pause } = self.conn else {
            return;
        };
        // Never write to a replaced file: it may belong to someone else, and the readers still have the old
        // one open.
        if Instant::now() < again || self.files.check().is_err() {
            return;
        }
        self.conn = match (self.reopen)() {
            Ok(conn) => {
                tracing::info!("database opened again");
                Held::Open(conn)
            }
            Err(error) => {
                tracing::error!(%error, "database could not be opened again, writes are refused");
                Held::Lost {
                    again: Instant::now() + pause,
                    pause: (pause * 2).min(LONGEST_PAUSE),
                }
            }
        };
    }
}

/// The result of a committed transaction.
struct Done {
    /// Number of jobs that wrote.
    wrote: usize,
    spoiled: Spoiled,
}

/// The jobs that failed before they wrote anything, by index in the group, in order.
type Spoiled = Vec<(usize, Failure)>;

enum Aborted {
    /// The transaction was rolled back; nothing was written.
    Clean(Trouble),
    /// The connection must not be used again.
    Broken(Failure),
}

fn transact(
    conn: &Connection,
    jobs: &mut [Box<dyn Job>],
    files: &Files,
    commit: Commit,
) -> Result<Done, Aborted> {
    conn.prepare_cached("BEGIN IMMEDIATE")
        .and_then(|mut begin| begin.execute([]))
        .map_err(|error| Aborted::Clean(Trouble::Group(Fault::from(error).failure())))?;
    let session = Session::new(conn);
    let mut done = Done {
        wrote: 0,
        spoiled: Vec::new(),
    };
    for (place, job) in jobs.iter_mut().enumerate() {
        let changes = conn.total_changes();
        match run_one(job, &session) {
            Ok(wrote) => done.wrote += usize::from(wrote),
            Err(fault) if conn.is_autocommit() => {
                // SQLite has already rolled back, as it does on a full disk: the group is lost, and retrying
                // its jobs one by one would fail the same way.
                return Err(Aborted::Clean(Trouble::Group(fault.failure())));
            }
            // A failed statement undoes itself. If no earlier statement of the job changed anything, as when
            // it reads a damaged row, there is nothing to roll back and the other jobs are not affected.
            Err(fault) if conn.total_changes() == changes => done.spoiled.push((place, fault.failure())),
            Err(fault) => {
                roll_back(conn)?;
                return Err(Aborted::Clean(Trouble::Job(fault.failure())));
            }
        }
    }
    drop(session);
    // Check as late as possible: a commit to a file that was unlinked is not durable.
    if let Err(failure) = files.check() {
        roll_back(conn)?;
        return Err(Aborted::Clean(Trouble::Group(failure)));
    }
    let Err(error) = commit(conn) else {
        return Ok(done);
    };
    if !conn.is_autocommit() {
        // The transaction is still open, so it has not committed.
        roll_back(conn)?;
        return Err(Aborted::Clean(Trouble::Group(Fault::from(error).failure())));
    }
    if is_full(&error) {
        // The frame that marks the commit is written last, so if the disk was full before it, nothing was
        // committed.
        return Err(Aborted::Clean(Trouble::Group(Fault::from(error).failure())));
    }
    Err(Aborted::Broken(Failure::in_doubt(Cause::of(error))))
}

/// Runs a job. A panic, which is a bug, counts as a failure of this job alone.
fn run_one(job: &mut Box<dyn Job>, conn: &Session<'_>) -> Result<bool, Fault> {
    catch_unwind(AssertUnwindSafe(|| job.run(conn))).unwrap_or_else(|_| {
        tracing::error!("write panicked");
        Err(Fault::Damaged("the write panicked".into()))
    })
}

fn roll_back(conn: &Connection) -> Result<(), Aborted> {
    conn.prepare_cached("ROLLBACK")
        .and_then(|mut rollback| rollback.execute([]))
        .map(drop)
        .map_err(|error| {
            Aborted::Broken(Failure::not_written(Cause::about(
                format!("rollback failed: {error}"),
                error,
            )))
        })
}

/// Settles the jobs of a group that committed.
fn settle_each(jobs: impl IntoIterator<Item = Box<dyn Job>>, spoiled: Spoiled) {
    let mut spoiled = spoiled.into_iter().peekable();
    for (place, job) in jobs.into_iter().enumerate() {
        let outcome = match spoiled.next_if(|(spoiled, _)| *spoiled == place) {
            Some((_, failure)) => Err(failure),
            None => Ok(()),
        };
        job.settle(outcome);
    }
}

/// Settles the jobs of a group that did not commit.
fn settle_all(jobs: impl IntoIterator<Item = Box<dyn Job>>, failure: &Failure) {
    for job in jobs {
        job.settle(Err(failure.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use rusqlite::{Error, ffi};
    use tokio::sync::oneshot;

    use super::*;
    use crate::{
        WriteError,
        sqlite::{job::Task, open, ready::Probe, records::MANY, schema::tests::database},
    };

    fn writer() -> (tempfile::TempDir, Writer) {
        let (files, conn) = database();
        let again = files.path().join("db");
        let records = Arc::new(Records::load(&conn, MANY).expect("records"));
        // The log is deleted with its only connection here, so only the database file is checked.
        let files_of_it = Arc::new(Files::called([again.clone()]));
        let space = Arc::new(Space::told_by(Box::new(|| None)));
        let writer = Writer {
            conn: Held::Open(conn),
            reopen: Box::new(move || open::writing(&again)),
            files: files_of_it,
            queue: Arc::new(Queue::new(1, 1)),
            gate: Arc::default(),
            counters: Arc::default(),
            records,
            commit,
            short: Short::new(Arc::new(Mark::new(1, Arc::clone(&space)))),
            space,
            owed: Owed::default(),
        };
        (files, writer)
    }

    /// Begins an epoch in a group of its own and returns the result.
    fn begin_epoch(writer: &mut Writer) -> Result<u64, Failure> {
        struct Begin(oneshot::Sender<Result<u64, Failure>>, u64);

        impl Job for Begin {
            fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
                self.1 = crate::sqlite::work::begin_epoch(conn, wopr_core::Timestamp::from_millis(0))?.0;
                Ok(true)
            }

            fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
                self.0.send(outcome.map(|()| self.1)).expect("the test listens");
            }
        }

        let (reply, mut answer) = oneshot::channel();
        writer.write(&mut vec![Box::new(Begin(reply, 0))]);
        answer.try_recv().expect("every job is settled")
    }

    fn failing(code: std::ffi::c_int) -> rusqlite::Result<()> {
        Err(Error::SqliteFailure(ffi::Error::new(code), None))
    }

    #[test]
    fn io_error_at_commit_is_in_doubt_and_replaces_the_connection() {
        let (_files, mut writer) = writer();
        writer.commit = |conn| commit(conn).and_then(|()| failing(ffi::SQLITE_IOERR_FSYNC));
        let failure = begin_epoch(&mut writer).expect_err("in doubt");
        assert_eq!(failure.kind, FailureKind::InDoubt);
        assert_eq!(writer.counters.snapshot(0, 0).doubtful_commits, 1);

        // This commit had happened, as a reread shows.
        writer.commit = commit;
        assert_eq!(begin_epoch(&mut writer).expect("a fresh connection"), 2);
    }

    /// The readiness probe's verdict on the writer.
    fn probe(writer: &mut Writer) -> Result<(), WriteError> {
        let (reply, mut answer) = oneshot::channel();
        writer.write(&mut vec![Box::new(Probe(reply))]);
        answer.try_recv().expect("every job is settled")
    }

    #[test]
    fn writes_are_refused_until_a_new_connection_opens() {
        let (files, mut writer) = writer();
        let calls = Arc::new(AtomicU32::new(0));
        let (counted, again) = (Arc::clone(&calls), files.path().join("db"));
        writer.reopen = Box::new(move || {
            if counted.fetch_add(1, Relaxed) < 2 {
                return Err(Error::InvalidQuery);
            }
            open::writing_again(&again)
        });
        assert!(probe(&mut writer).is_ok());
        writer.commit = |conn| commit(conn).and_then(|()| failing(ffi::SQLITE_IOERR_FSYNC));
        assert_eq!(
            begin_epoch(&mut writer).expect_err("in doubt").kind,
            FailureKind::InDoubt
        );
        writer.commit = commit;
        let lost = Instant::now();
        while lost.elapsed() < FIRST_PAUSE / 2 {
            let refused = begin_epoch(&mut writer).expect_err("refused");
            assert_eq!(refused.kind, FailureKind::NotWritten);
            assert!(matches!(probe(&mut writer), Err(WriteError::Unavailable(_))));
            assert_eq!(calls.load(Relaxed), 1, "not for every write");
        }
        while probe(&mut writer).is_err() {
            assert!(lost.elapsed() < LONGEST_PAUSE, "it is tried again");
            std::thread::yield_now();
        }
        assert_eq!(calls.load(Relaxed), 3);
        // The first epoch had been committed.
        assert_eq!(begin_epoch(&mut writer).expect("a fresh connection"), 2);
    }

    #[test]
    fn a_missing_file_is_not_recreated() {
        let (files, writer) = writer();
        drop(writer);
        let path = files.path().join("db");
        std::fs::remove_file(&path).expect("remove");
        assert!(open::writing_again(&path).is_err());
        assert!(!path.exists());
    }

    #[test]
    fn failed_commit_with_open_transaction_writes_nothing() {
        let (_files, mut writer) = writer();
        writer.commit = |_| failing(ffi::SQLITE_BUSY);
        assert_eq!(
            begin_epoch(&mut writer).expect_err("refused").kind,
            FailureKind::NotWritten
        );
        writer.commit = commit;
        assert_eq!(begin_epoch(&mut writer).expect("the same connection"), 1);
    }

    #[test]
    fn full_disk_at_commit_writes_nothing() {
        let (_files, mut writer) = writer();
        writer.commit = |conn| {
            conn.execute_batch("ROLLBACK")
                .and_then(|()| failing(ffi::SQLITE_FULL))
        };
        assert_eq!(
            begin_epoch(&mut writer).expect_err("refused").kind,
            FailureKind::Full
        );
        writer.commit = commit;
        assert_eq!(begin_epoch(&mut writer).expect("the same connection"), 1);
    }

    #[test]
    fn a_panicking_write_fails_alone() {
        /// Writes an epoch, then panics if told to.
        struct Begin(oneshot::Sender<Result<(), Failure>>, bool);

        impl Job for Begin {
            fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
                crate::sqlite::work::begin_epoch(conn, wopr_core::Timestamp::from_millis(0))?;
                if self.1 {
                    // Bypasses the panic hook, which would print it.
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
                Ok(true)
            }

            fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
                self.0.send(outcome).expect("the test listens");
            }
        }

        let (_files, mut writer) = writer();
        let mut answers = Vec::new();
        let mut group: Vec<Box<dyn Job>> = Vec::new();
        for n in 0..5 {
            let (reply, answer) = oneshot::channel();
            answers.push(answer);
            group.push(Box::new(Begin(reply, n == 2)));
        }
        writer.write(&mut group);
        for (n, mut answer) in answers.into_iter().enumerate() {
            let outcome = answer.try_recv().expect("every job is settled");
            assert_eq!(outcome.is_err(), n == 2, "{n}: {outcome:?}");
        }
        assert_eq!(begin_epoch(&mut writer).expect("the same connection"), 5);
    }

    #[test]
    fn a_stopped_writer_refuses_later_writes() {
        let (_files, writer) = writer();
        let queue = Arc::clone(&writer.queue);
        queue.close();
        writer.run();
        let (reply, _answer) = oneshot::channel();
        let work = |_: &Connection| Ok(());
        assert!(
            queue
                .push(
                    Box::new(Task {
                        work,
                        bytes: 0,
                        value: None,
                        reply
                    }),
                    0
                )
                .is_err()
        );
    }
}
