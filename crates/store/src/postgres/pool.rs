//! The connection pool: its size, how long to wait for a connection, and when to refuse.

use std::{sync::Arc, time::Duration};

use deadpool::managed::{self, PoolConfig, PoolError, QueueMode};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout_at},
};
use tokio_postgres::Row;
use tokio_util::task::TaskTracker;
use wopr_core::TenantId;

use super::{
    Options,
    connect::{Connector, Unreached},
    connection::{Connection, Keeper},
    fault::Fault,
    maker::Maker,
    open_error::OpenError,
    round::Round,
    stats::Counters,
    turns::{Purpose, Turns},
};
use crate::Cause;

/// Attempts per read or write that failed without effect.
const TRIES: u32 = 4;

/// How long a caller waits for one of the connections that there are, while the server allows no further one.
const NO_FURTHER: Duration = Duration::from_secs(1);
/// How often it looks meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// The error for a silent server.
const SILENT: &str = "the database does not answer";

/// A limited number of connections, with a limited number of callers waiting for one.
pub(super) struct Pool {
    connections: managed::Pool<Maker>,
    /// One turn per connection: a caller with a turn need not wait for the connection.
    turns: Turns,
    keeper: Keeper,
    /// One permit per append that is tried alone. Such an append may wait for other transactions, which may
    /// need a connection themselves.
    alone: Semaphore,
    /// Time limit of a call.
    deadline: Duration,
    counters: Arc<Counters>,
}

impl Pool {
    pub(super) fn new(
        connector: Connector,
        options: &Options,
        counters: Arc<Counters>,
        tasks: TaskTracker,
    ) -> Result<Self, OpenError> {
        let keeper = Keeper::new(connector.clone(), tasks);
        // Without timeouts: a turn is taken first, and the connector limits the time of each server.
        let connections = managed::Pool::builder(Maker::new(connector))
            .config(PoolConfig {
                max_size: options.connections.max(1),
                // The most recently used connection has its statements prepared and its server process warm.
                queue_mode: QueueMode::Lifo,
                ..PoolConfig::default()
            })
            .build()
            .map_err(|error| OpenError::Connect(Cause::of(error)))?;
        Ok(Self {
            turns: Turns::new(connections.status().max_size, options),
            connections,
            keeper,
            alone: Semaphore::new(options.share()),
            deadline: options.deadline,
            counters,
        })
    }

    /// The time until which a call that begins now may run, including retries.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Closes idle connections that are older than a call whose connection was lost, since the server has
    /// probably lost them as well.
    pub(super) fn lost(&self, since: Instant) {
        let since = since.into_std();
        self.connections.retain(|_, made| made.created > since);
    }

    /// Waits for a connection, and fails soon if there is none.
    pub(super) async fn get(&self, purpose: Purpose<'_>, until: Instant) -> Result<Connection, Fault> {
        let turn = self.turns.take(purpose).await.map_err(|why| {
            self.counters.refused();
            Fault::Refused(why.into())
        })?;
        let Ok(given) = timeout_at(until, self.given()).await else {
            return Err(Fault::Refused(SILENT.into()));
        };
        let object = given.map_err(|error| {
            Fault::Refused(match error {
                PoolError::Backend(error) => {
                    Cause::about(format!("no connection to the database: {error}"), error)
                }
                PoolError::Closed => "the store is closed".into(),
                PoolError::Timeout(_) => SILENT.into(),
                PoolError::PostCreateHook(error) => Cause::of(error),
                PoolError::NoRuntimeSpecified => "there is no runtime".into(),
            })
        })?;
        Ok(Connection::new(object, turn, self.keeper.clone()))
    }

    /// An idle connection, or a new one. If the server allows no further one, waits a while for one that is in use.
    async fn given(&self) -> Result<managed::Object<Maker>, PoolError<Unreached>> {
        let until = Instant::now() + NO_FURTHER;
        loop {
            let given = self.connections.get().await;
            let is_refused = matches!(&given, Err(PoolError::Backend(error)) if error.is_refusal());
            if !is_refused || self.connections.status().size == 0 || Instant::now() >= until {
                return given;
            }
            sleep(LOOK).await;
        }
    }

    /// Takes one of the few places for appends that are tried alone. Must be taken before a connection.
    pub(super) async fn place_alone(&self, until: Instant) -> Result<SemaphorePermit<'_>, Fault> {
        match timeout_at(until, self.alone.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => {
                self.counters.refused();
                Err(Fault::Refused(
                    "too many appends wait for rows that others hold".into(),
                ))
            }
        }
    }

    /// Runs a round that reads, or that writes with one statement of its own transaction.
    ///
    /// Failures without effect are retried. A lost connection counts as one only if `is_lost_too` is set, as
    /// for reads.
    ///
    /// # Cancel safety
    /// If the future is dropped, the write may or may not have happened, and a statement still running at the
    /// server is cancelled.
    async fn ask<'v>(
        &self,
        purpose: Purpose<'_>,
        is_lost_too: bool,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Vec<Row>>, Fault> {
        let until = self.deadline();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let begun = Instant::now();
            let client = self.get(purpose, until).await?;
            let fault = match round().ask(&client, until).await {
                Ok(rows) => {
                    client.give_back();
                    return Ok(rows);
                }
                Err(fault) => fault,
            };
            let may_repeat = match &fault {
                Fault::Again(_) | Fault::Taken(_) => {
                    client.give_back();
                    true
                }
                Fault::Lost(_) => {
                    // A silent server may still respond, and the next user of the connection would read that
                    // response.
                    client.close();
                    self.lost(begun);
                    is_lost_too
                }
                Fault::Held(_) | Fault::Refused(_) => {
                    client.give_back();
                    false
                }
                // A round that was sent only in part may have left its transaction open.
                Fault::InDoubt(_) | Fault::Damaged(_) => {
                    client.close();
                    false
                }
            };
            if !may_repeat || attempt == TRIES || Instant::now() >= until {
                return Err(fault);
            }
            self.counters.retried();
            super::pause(attempt).await;
        }
    }

    /// Reads a few runs of a tenant; returns the rows of each step.
    pub(super) async fn read_all<'v>(
        &self,
        tenant: &TenantId,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Vec<Row>>, Fault> {
        self.ask(Purpose::Read(tenant), true, round).await
    }

    /// Like [`Pool::read_all`], with one statement.
    pub(super) async fn read<'v>(
        &self,
        tenant: &TenantId,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::Read(tenant), true, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Lists runs, tasks or deliveries of a tenant, with one statement.
    pub(super) async fn list<'v>(
        &self,
        tenant: &TenantId,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::List(tenant), true, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Reads what the process needs for its own work, with one statement.
    pub(super) async fn learn<'v>(&self, round: impl Fn() -> Round<'v>) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::Work, true, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Writes with one statement, which is its own transaction.
    pub(super) async fn write<'v>(&self, round: impl Fn() -> Round<'v>) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::Work, false, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Returns the number of connections, and how many of them are in use.
    pub(super) fn usage(&self) -> (usize, usize) {
        let status = self.connections.status();
        (status.size, status.size.saturating_sub(status.available))
    }

    /// Refuses further callers and closes idle connections.
    pub(super) fn close(&self) {
        self.connections.close();
    }
}
