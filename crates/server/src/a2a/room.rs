//! The room that a task has in memory while it is read and written.
//!
//! A few bytes of a log can stand for a large file, and an artifact can name the same file many times. So what
//! a task shows is counted as it is produced. What has no room is shown by its address, as to readers who may
//! not see contents.

use std::sync::Arc;

use serde::Serialize;
use wopr_app::{BlobRow, Error as AppError, VisibleRun};
use wopr_core::json_size;

use crate::{
    Host,
    auth::Caller,
    paging::{Turn, cost},
};

/// Bytes of JSON that the artifacts and files of one task have, or those of one update: as many as the unread answers of
/// one tenant.
pub(super) const TASK_BYTES: usize = 32 << 20;

/// What is left for a task.
#[derive(Debug)]
pub(super) struct Room {
    host: Arc<Host>,
    left: usize,
    /// Held from the first file on, so that few tasks with files are in memory at once.
    turn: Option<Turn>,
    waits: bool,
}

/// A file that a task refers to.
pub(super) enum File {
    Read(BlobRow),
    Unknown,
    /// There is no room for it.
    TooLarge,
}

impl Room {
    /// Room for a task. Waits for a turn before it reads the first file.
    pub(super) fn of_task(host: &Arc<Host>) -> Self {
        Self {
            host: Arc::clone(host),
            left: TASK_BYTES,
            turn: None,
            waits: true,
        }
    }

    /// Room for an update of a stream, which has its turn already.
    pub(super) fn of_update(host: &Arc<Host>) -> Self {
        Self {
            waits: false,
            ..Self::of_task(host)
        }
    }

    pub(super) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(super) const fn used(&self) -> usize {
        TASK_BYTES - self.left
    }

    /// Takes room for a document. Returns `false` and takes none if it does not fit.
    pub(super) fn take(&mut self, document: &impl Serialize) -> bool {
        self.take_bytes(json_size(document))
    }

    fn take_bytes(&mut self, n_bytes: usize) -> bool {
        match self.left.checked_sub(n_bytes) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// Reads a file if there is room for it.
    pub(super) async fn file(
        &mut self,
        caller: &Caller,
        run: &VisibleRun,
        id: &str,
    ) -> Result<File, AppError> {
        if self.left == 0 {
            return Ok(File::TooLarge);
        }
        if self.waits && self.turn.is_none() {
            self.turn = Some(self.host.paging().turn_to_read(&run.tenant).await?);
        }
        let Some(blob) = self.host.app().blob(caller, run, id).await? else {
            return Ok(File::Unknown);
        };
        if let Some(turn) = &mut self.turn {
            turn.charge(cost(blob.bytes.len()));
        }
        // Bytes are shown in base64.
        if self.take_bytes(blob.bytes.len().div_ceil(3) * 4) {
            return Ok(File::Read(blob));
        }
        // A smaller file might have room, but finding it would mean to read them all.
        self.left = 0;
        Ok(File::TooLarge)
    }
}
