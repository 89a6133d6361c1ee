//! Checkpoints: copying the write-ahead log into the database without blocking the writer for long.
//!
//! When the log has grown by [`super::Options::checkpoint_pages`], a thread with its own connection first
//! copies what it can while writer and readers go on (PASSIVE). It then blocks the writer, copies the
//! remainder and restarts the log (RESTART). That takes two fsyncs and counts as a stall. Without the second
//! step a busy writer would grow the log forever, because the log restarts only when nothing is left to copy.
//!
//! If the disk has less space than the log may take, the log is copied sooner ([`Space`]). When there is no
//! space for a write, the writer checkpoints by itself and truncates the log file to zero, instead of keeping
//! it for reuse.

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

/// Maximum time that the writer is blocked by a reader that still uses the log.
const TIMEOUT: Duration = Duration::from_millis(20);

/// Maximum number of pages left to copy while the writer waits.
const REMAINDER: u64 = 256;

/// Maximum number of passes before the writer has to wait for the remainder. Each pass leaves a fraction of
/// the one before.
const PASSES: usize = 4;

/// Requests for a checkpoint carry no data, so a second one need not queue behind the first.
pub(super) const PENDING_WISHES: usize = 1;

/// Pages after which a failed checkpoint is retried on a nearly full disk.
const SHORT_STEP: u64 = 16;

/// The length of the log, in pages, from which a checkpoint is wanted.
pub(super) struct Mark {
    at: AtomicU64,
    every: u64,
    /// The length of the log after the last checkpoint that could not restart it.
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

    /// Sets the next mark relative to the current length of the log. After a failed checkpoint, too: retrying
    /// at every commit would only make matters worse.
    pub(super) fn set(&self, pages: u64) {
        self.at.store(pages + self.every, Relaxed);
        self.from.store(pages, Relaxed);
    }
}

/// Makes a connection report every commit, and request a checkpoint when the log is long.
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
            // A full channel already holds a request; a disconnected one means that the store is closing.
            let _ = wish.try_send(());
        }
        Ok(())
    }))
}

/// Copies the log and truncates its file, while nobody writes. Returns `true` on success.
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
    /// Runs checkpoints on request, and a last one when all senders are gone.
    pub(super) fn run(self, wishes: &Receiver<()>) {
        if let Err(error) = self.conn.busy_timeout(TIMEOUT) {
            tracing::warn!(%error, "checkpoints will not wait for readers");
        }
        while wishes.recv().is_ok() {
            if !self.mark.is_reached(self.counters.wal_pages.load(Relaxed)) {
                // The last checkpoint already served this request.
                continue;
            }
            if let Err(error) = self.checkpoint() {
                tracing::warn!(%error, "checkpoint failed, the log goes on growing");
            }
            self.mark.space.look();
            self.mark.set(self.counters.wal_pages.load(Relaxed));
        }
        if self.files.check().is_err() {
            // The log may hold the only copy of the last writes.
            tracing::warn!("no last checkpoint: the log stays as it is");
            return;
        }
        // Leave the database in a single file, with nothing to recover at the next start.
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
