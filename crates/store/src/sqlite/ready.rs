//! Whether the database takes writes: learnt by writing.
//!
//! The probe is a job like any other, so it shares the writer's queue, its connection and a commit with whatever waits.
//! It makes a row of events and takes it away again, at the end of the tree that every append grows: both change pages,
//! which the commit has to put on the disk, and nobody ever sees the row.
//!
//! Whoever may ask must not be able to make that costly. There is one probe at a time and at most one a second; all who
//! ask meanwhile share its answer.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{Mutex, oneshot};

use super::{
    fault::{Failure, Fault},
    job::Job,
    session::Session,
};
use crate::{WriteError, with_timeout};

/// How long an answer serves, from when it was asked for.
const FRESH: Duration = Duration::from_secs(1);

/// How long to wait for an answer. A statement that needs a lock takes two seconds to give up.
const TIMEOUT: Duration = Duration::from_secs(5);

/// No tenant and no run can be called so.
const WRITE: &str = "INSERT INTO events (tenant, run, last_seq, bodies) VALUES ('', '', 0, x'')";
const TAKE_BACK: &str = "DELETE FROM events WHERE tenant = '' AND run = ''";

/// Writes nothing that stays, and says whether it was written.
pub(super) struct Probe(pub(super) oneshot::Sender<Result<(), WriteError>>);

impl Job for Probe {
    fn run(&mut self, conn: &Session<'_>) -> Result<bool, Fault> {
        let conn: &Connection = conn;
        conn.prepare_cached(WRITE)?.execute([])?;
        conn.prepare_cached(TAKE_BACK)?.execute([])?;
        Ok(true)
    }

    fn settle(self: Box<Self>, outcome: Result<(), Failure>) {
        // Whoever asked may have gone away.
        drop(self.0.send(outcome.map_err(WriteError::from)));
    }
}

/// What the last probe said.
#[derive(Debug, Default)]
pub(super) struct Readiness(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// A probe without an answer yet. It is waited for before another one is sent.
    pending: Option<oneshot::Receiver<Result<(), WriteError>>>,
    last: Option<Answer>,
}

#[derive(Debug)]
struct Answer {
    asked: Instant,
    came: Instant,
    /// Why not, if not.
    said: Result<(), String>,
}

impl Readiness {
    /// Learns whether the database takes writes, by a probe that `send` puts in the queue, or by that of others.
    pub(super) async fn ask(
        &self,
        send: impl FnOnce(Box<dyn Job>) -> Result<(), String>,
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
    async fn probe(&mut self, send: impl FnOnce(Box<dyn Job>) -> Result<(), String>) -> Result<(), String> {
        if self.pending.is_none() {
            let (reply, answer) = oneshot::channel();
            send(Box::new(Probe(reply)))?;
            self.pending = Some(answer);
        }
        let Some(pending) = &mut self.pending else {
            return Ok(());
        };
        // Who goes away while he waits leaves the probe to the next.
        let Some(answer) = with_timeout(TIMEOUT, pending).await else {
            return Err("the database does not answer".to_owned());
        };
        self.pending = None;
        match answer {
            Ok(answer) => answer.map_err(|error| match error {
                WriteError::Unavailable(why) | WriteError::Corrupt(why) => why,
            }),
            Err(_) => Err("the writer stopped".to_owned()),
        }
    }
}
