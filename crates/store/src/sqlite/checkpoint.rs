//! Checkpoints: moving the write-ahead log into the database, off the writer's path.
//!
//! When the log has grown by [`super::Options::checkpoint_pages`], a thread with a connection of its own first
//! copies what it can while writer and readers go on (PASSIVE), then holds the writer back for the little that
//! came in meanwhile and lets the log start over (RESTART). That wait is two fsyncs and is counted as a stall.
//! Without the second step a busy writer would keep the log growing for ever, because it starts over only when
//! nothing is left to copy.
//!
//! On a disk with less room than the log may take, it is copied sooner ([`Space`]). Where there is no room for a write, the
//! writer checkpoints by itself and cuts the log file back to nothing, instead of keeping it for reuse.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rusqlite::{Connection, ErrorCode, hooks::Wal, wal::CheckpointMode};

use super::{place::Files, space::Space, stats::Counters};

/// How long the writer may be held back for a reader that still uses the log.
const TIMEOUT: Duration = Duration::from_millis(20);

/// How many pages may be left to copy while the writer waits.
const REMAINDER: u64 = 256;

/// How often to copy what came in during the last copy, before the writer has to wait for what is left: each pass
/// leaves a fraction of the one before.
const PASSES: usize = 4;

/// A wish for a checkpoint says nothing but that there is one, so a second need not wait behind the first.
pub(super) const PENDING_WISHES: usize = 1;

/// On a disk that is nearly full, a checkpoint that failed is tried again after so many more pages.
const SHORT_STEP: u64 = 16;

/// From which length of the log, in pages, a checkpoint is wanted.
pub(super) struct Mark {
    at: AtomicU64,
    every: u64,
    /// Where the log ended after the last checkpoint that could not start it over.
    from: AtomicU64,
    space: Arc<Space>,
}

impl Mark {
    pub(super) fn new(every: u32, space: Arc<Space>) -> Self {
        let every = u64::from(every.max(1));
        Self {
            at: AtomicU64::new(every),
            every,
            from: AtomicU64::new(0),
            space,
        }
    }

    fn is_reached(&self, pages: u64) -> bool {
        pages >= self.at.load(Relaxed) || {
            let from = self.from.load(Relaxed);
            self.space.wants_checkpoint(pages) && (from == 0 || pages >= from + SHORT_STEP)
        }
    }

    /// Counts on from where the log stands after a checkpoint, also after one that failed or could not start it over:
    /// trying again at every commit would only add to what is wrong.
    pub(super) fn set(&self, pages: u64) {
        self.at.store(pages + self.every, Relaxed);
        self.from.store(pages, Relaxed);
    }
}

/// Has a connection report every commit, and wish for a checkpoint when the log is long.
pub(super) fn watch(
    conn: &mut Connection,
    mark: Arc<Mark>,
    counters: Arc<Counters>,
    wish: SyncSender<()>,
) -> rusqlite::Result<()> {
    conn.wal_hook(Some(move |_: &mut Wal, pages: c_int| {
        let pages = u64::try_from(pages).unwrap_or(0);
        counters.wal_pages.store(pages, Relaxed);
        if mark.is_reached(pages) {
            // Full means that the wish is known already, disconnected that the store is closing.
            let _ = wish.try_send(());
        }
        Ok(())
    }))
}

/// Copies the log and gives its space back, while nobody writes; says whether there is no log left.
pub(super) fn empty_log(conn: &Connection, counters: &Counters) -> bool {
    match conn.wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE) {
        Ok(_) => {
            counters.wal_pages.store(0, Relaxed);
            counters.checkpointed(0, true);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "the log could not be emptied to make room");
            false
        }
    }
}

pub(super) struct Checkpointer {
    pub(super) conn: Connection,
    pub(super) gate: Arc<Mutex<()>>,
    pub(super) mark: Arc<Mark>,
    pub(super) counters: Arc<Counters>,
    pub(super) files: Arc<Files>,
}

impl Checkpointer {
    /// Checkpoints when wished, and once more when nobody can wish any longer.
    pub(super) fn run(self, wishes: &Receiver<()>) {
        if let Err(error) = self.conn.busy_timeout(TIMEOUT) {
            tracing::warn!(%error, "checkpoints will not wait for readers");
        }
        while wishes.recv().is_ok() {
            if !self.mark.is_reached(self.counters.wal_pages.load(Relaxed)) {
                // The wish was made while the last checkpoint already served it.
                continue;
            }
            if let Err(error) = self.checkpoint() {
                tracing::warn!(%error, "checkpoint failed, the log goes on growing");
            }
            self.mark.space.look();
            self.mark.set(self.counters.wal_pages.load(Relaxed));
        }
        if self.files.check().is_err() {
            // The log may be all that is left of the last writes.
            tracing::warn!("no last checkpoint: the log stays as it is");
            return;
        }
        // So that the file alone is the database and the next start has nothing to recover.
        if let Err(error) = self
            .conn
            .wal_checkpoint_v2(Some("main"), CheckpointMode::TRUNCATE)
        {
            tracing::warn!(%error, "last checkpoint failed, the next start will recover the log");
        }
    }

    fn checkpoint(&self) -> rusqlite::Result<()> {
        if self.files.check().is_err() {
            return Ok(());
        }
        let mut copied = 0;
        for _ in 0..PASSES {
            let (_, now_copied) = self
                .conn
                .wal_checkpoint_v2(Some("main"), CheckpointMode::PASSIVE)?;
            copied = u64::try_from(now_copied).unwrap_or(0);
            if self.counters.wal_pages.load(Relaxed).saturating_sub(copied) <= REMAINDER {
                break;
            }
        }
        let started_over = {
            let _writer_waits = self.gate.lock();
            match self.conn.wal_checkpoint_v2(Some("main"), CheckpointMode::RESTART) {
                Ok(_) => {
                    self.counters.wal_pages.store(0, Relaxed);
                    true
                }
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => false,
                Err(error) => return Err(error),
            }
        };
        self.counters.checkpointed(copied, started_over);
        Ok(())
    }
}
