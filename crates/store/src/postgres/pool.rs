//! Connections: how many, how long to wait for one, and when not to wait at all.

use std::{sync::Arc, time::Duration};

use deadpool::managed::{self, PoolConfig, PoolError, QueueMode};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};
use tokio_postgres::Row;
use tokio_util::task::TaskTracker;
use wopr_core::TenantId;

use super::{
    Options,
    connect::Connector,
    connection::{Connection, Keeper},
    fault::Fault,
    maker::Maker,
    open_error::OpenError,
    round::Round,
    stats::Counters,
    turns::{Purpose, Turns},
};

/// How often a read or a write is tried that failed without a trace.
const TRIES: u32 = 4;

/// What is said of a server that says nothing.
const SILENT: &str = "the database does not answer";

/// A bounded number of connections with a bounded number of callers that wait for one.
pub(super) struct Pool {
    connections: managed::Pool<Maker>,
    /// One for each connection that may be in use: who has it need not wait for the connection.
    turns: Turns,
    keeper: Keeper,
    /// One permit per append that is tried alone: it may wait for others, who may need a connection themselves.
    alone: Semaphore,
    /// How long one call may take.
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
        // Without time-outs of its own: a turn comes before it, and the connector bounds each server.
        let connections = managed::Pool::builder(Maker::new(connector))
            .config(PoolConfig {
                max_size: options.connections.max(1),
                // The connection used last has its statements prepared and its server process warm.
                queue_mode: QueueMode::Lifo,
                ..PoolConfig::default()
            })
            .build()
            .map_err(|error| OpenError::Connect(error.to_string()))?;
        Ok(Self {
            turns: Turns::new(connections.status().max_size, options),
            connections,
            keeper,
            alone: Semaphore::new(options.share()),
            deadline: options.deadline,
            counters,
        })
    }

    /// Until when a call that begins now may go on, with all that is tried again.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Closes the connections nobody uses that are older than a call that lost its own: whatever became of the
    /// server then, it is not found out once for each of them.
    pub(super) fn lost(&self, since: Instant) {
        let since = since.into_std();
        self.connections.retain(|_, made| made.created > since);
    }

    /// Gives a connection, or says soon that there is none.
    pub(super) async fn get(&self, purpose: Purpose<'_>, until: Instant) -> Result<Connection, Fault> {
        let turn = self.turns.take(purpose).await.map_err(|why| {
            self.counters.refused();
            Fault::Refused(why.to_owned())
        })?;
        let Ok(given) = timeout_at(until, self.connections.get()).await else {
            return Err(Fault::Refused(SILENT.to_owned()));
        };
        let object = given.map_err(|error| {
            Fault::Refused(match error {
                PoolError::Backend(error) => format!("no connection to the database: {error}"),
                PoolError::Closed => "the store is closed".to_owned(),
                PoolError::Timeout(_) => SILENT.to_owned(),
                PoolError::PostCreateHook(error) => error.to_string(),
                PoolError::NoRuntimeSpecified => "there is no runtime".to_owned(),
            })
        })?;
        Ok(Connection::new(object, turn, self.keeper.clone()))
    }

    /// Gives one of the few places of appends that are tried alone, to be had before a connection.
    pub(super) async fn place_alone(&self, until: Instant) -> Result<SemaphorePermit<'_>, Fault> {
        match timeout_at(until, self.alone.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) | Err(_) => {
                self.counters.refused();
                Err(Fault::Refused(
                    "too many appends wait for rows that others hold".to_owned(),
                ))
            }
        }
    }

    /// Asks a round that reads, or that writes with one statement of its own transaction.
    ///
    /// What failed without a trace is tried again; `is_lost_too` says whether a lost connection is such a failure,
    /// which it is for reads alone.
    ///
    /// # Cancel safety
    /// Who goes away before the answer leaves a write done or undone; what runs on at the server is stopped.
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
                    // A server that is silent may answer yet, and whoever had the connection next would read that.
                    client.close();
                    self.lost(begun);
                    is_lost_too
                }
                Fault::Held(_) | Fault::Refused(_) => {
                    client.give_back();
                    false
                }
                // A round that could not be sent as a whole may have left its transaction open.
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

    /// Reads what is stored about a few runs of a tenant: the rows of each step.
    pub(super) async fn read_all<'v>(
        &self,
        tenant: &TenantId,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Vec<Row>>, Fault> {
        self.ask(Purpose::Read(tenant), true, round).await
    }

    /// The same with one statement.
    pub(super) async fn read<'v>(
        &self,
        tenant: &TenantId,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::Read(tenant), true, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Looks among many runs, tasks or deliveries of a tenant, with one statement.
    pub(super) async fn list<'v>(
        &self,
        tenant: &TenantId,
        round: impl Fn() -> Round<'v>,
    ) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::List(tenant), true, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Reads what this process has to know to do its work, with one statement.
    pub(super) async fn learn<'v>(&self, round: impl Fn() -> Round<'v>) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::Work, true, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// Writes with one statement, which is its own transaction.
    pub(super) async fn write<'v>(&self, round: impl Fn() -> Round<'v>) -> Result<Vec<Row>, Fault> {
        let answers = self.ask(Purpose::Work, false, round).await;
        Ok(answers?.pop().unwrap_or_default())
    }

    /// How many connections there are, and how many of them are in use.
    pub(super) fn usage(&self) -> (usize, usize) {
        let status = self.connections.status();
        (status.size, status.size.saturating_sub(status.available))
    }

    /// Refuses further callers and closes what is not in use.
    pub(super) fn close(&self) {
        self.connections.close();
    }
}
