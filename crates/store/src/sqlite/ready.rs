//! Readiness of the database, checked by writing to it.
//!
//! The probe is a job like any other: it shares the writer's queue, its connection and a commit with other
//! jobs. It inserts a row of events and deletes it again, at the end of the tree that every append extends.
//! Both change pages that the commit must write to the disk, and no reader ever sees the row.
//!
//! To keep the cost bounded however many callers ask, only one probe runs at a time and at most one per
//! second; concurrent callers share its result.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{Mutex, oneshot};

use super::{
    fault::{Failure, Fault},
    job::Job,
    session::Session,
};
use crate::{Cause, WriteError, with_timeout};

/// How long a result is reused, from when its probe was requested.
const FRESH: Duration = Duration::from_secs(1);

/// How long to wait for a result. A statement that needs a lock gives up after two seconds.
const TIMEOUT: Duration = Duration::from_secs(5);

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

/// The result of the last probe.
#[derive(Debug, Default)]
pub(super) struct Readiness(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// An unanswered probe. The next caller waits for it instead of sending another one.
    pending: Option<oneshot::Receiver<Result<(), WriteError>>>,
    last: Option<Answer>,
}

#[derive(Debug)]
struct Answer {
    asked: Instant,
    came: Instant,
    /// The cause if the probe failed.
    said: Result<(), Cause>,
}

impl Readiness {
    /// Checks that the database accepts writes, with a probe sent by `send` or the result of a recent one.
    pub(super) async fn ask(
        &self,
        send: impl FnOnce(Box<dyn Job>) -> Result<(), Cause>,
    ) -> Result<(), WriteError> {
        let since = Instant::now();
        let mut state = self.0.lock().await;
        if let Some(Answer { asked, came, said }) = &state.last
            && (*came >= since || asked.elapsed() < FRESH)
        {
            return said.clone().map_err(WriteError::Unavailable);
        }
        let said = state.probe(send).await;
        state.last = Some(Answer {
            asked: since,
            came: Instant::now(),
            said: said.clone(),
        });
        said.map_err(WriteError::Unavailable)
    }
}

impl State {
    async fn probe(&mut self, send: impl FnOnce(Box<dyn Job>) -> Result<(), Cause>) -> Result<(), Cause> {
        if self.pending.is_none() {
            let (reply, answer) = oneshot::channel();
            send(Box::new(Probe(reply)))?;
            self.pending = Some(answer);
        }
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        // If this caller is cancelled, the next one waits for the same probe.
        let Some(answer) = with_timeout(TIMEOUT, pending).await else {
            return Err("the database does not answer".into());
        };
        self.pending = None;
        match answer {
            Ok(answer) => answer.map_err(|error| match error {
                WriteError::Unavailable(why) | WriteError::Corrupt(why) => why,
            }),
            Err(_) => Err("the writer stopped".into()),
        }
    }
}
