//! Readiness of the database, checked by writing to it.
//!
//! The probe is a job like any other: it shares the writer's queue, its connection and a commit with other
//! jobs. It inserts a row of events and deletes it again, at the end of the tree that every append extends.
//! Both change pages that the commit must write to the disk, and no reader ever sees the row.
//!
//! [`Readiness`](crate::readiness::Readiness) bounds how many there are.

use rusqlite::Connection;
use tokio::sync::{Mutex, oneshot};

use super::{
    fault::{Failure, Fault},
    job::Job,
    session::Session,
};
use crate::{Cause, WriteError};

/// No tenant and no run can have an empty id.
const WRITE: &str = "INSERT INTO events (tenant, run, last_seq, bodies) VALUES ('', '', 0, x'')";
const TAKE_BACK: &str = "DELETE FROM events WHERE tenant = '' AND run = ''";

/// Inserts and deletes a row, and reports the result.
pub(super) struct Probe(pub(super) oneshot::Sender<Result<(), WriteError>>);

impl Job for Probe {
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
        let conn: &Connection = conn;
        conn.prepare_cached(WRITE)?.execute([])?;
        conn.prepare_cached(TAKE_BACK)?.execute([])?;
        Ok(true)
    }

    fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
        // The caller may be gone.
        drop(self.0.send(outcome.map_err(WriteError::from)));
    }
}

/// The probe that is not answered. Who asks next waits for it instead of sending another one.
#[derive(Debug, Default)]
pub(super) struct Probes(Mutex<Option<oneshot::Receiver<Result<(), WriteError>>>>);

impl Probes {
    /// Sends a probe, unless one is on its way, and waits for its result.
    pub(super) async fn probe(
        &self,
        send: impl FnOnce(Box<dyn Job>) -> Result<(), Cause>,
    ) -> Result<(), WriteError> {
        let mut pending = self.0.lock().await;
        let answer = match &mut *pending {
            Some(answer) => answer,
            none => {
                let (reply, answer) = oneshot::channel();
                send(Box::new(Probe(reply))).map_err(WriteError::Unavailable)?;
                none.insert(answer)
            }
        };
        let answer = answer.await;
        *pending = None;
        answer.unwrap_or_else(|_| Err(WriteError::Unavailable("the writer stopped".into())))
    }
}
