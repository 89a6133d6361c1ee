//! The store for several processes: one PostgreSQL database, version 14 or later.
//!
//! Processes share nothing but the rows. An append is a transaction of two round trips (`checks` explains
//! why read committed suffices), shared by all appends that wait at the same time (`groups`). Every other
//! write is one statement. Sequences, triggers, advisory locks and session state are not used. Transactions
//! that the server rolls back in favor of others are retried, including at COMMIT.
//!
//! There are few connections, and a limited number of callers may wait for one. Beyond that, or after a short
//! wait, a call fails with an unavailable store. A connection lost before COMMIT was sent has written
//! nothing; if it is lost during COMMIT, the result is [`crate::AppendError::Unknown`] and the caller rereads
//! the log.
//!
//! All settings can be given in the URL: the parameters of the driver (`options=-csearch_path=…`, several
//! hosts, `target_session_attrs`), and `connections`, `hints=on|off`, `sslmode=disable|require`,
//! `sslrootcert=FILE` and `connect_timeout`, which covers more here than in the driver (see `connect`). TLS
//! is used if and only if `sslmode=require` is given; the server's certificate is then checked against that
//! file or the platform's roots.

mod agent_memory;
mod append;
mod checks;
mod connect;
mod connection;
mod fault;
mod groups;
mod hints;
mod lists;
mod maker;
mod offers;
mod open;
mod open_error;
mod pool;
mod port;
mod push;
mod read;
mod registry;
mod retention;
mod round;
mod rows;
mod schema;
mod secrets;
mod spending;
mod stats;
mod turns;
mod work;
mod writes;

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use open::{check_url, risks};
pub use open_error::OpenError;
pub use schema::{holds_keys, migrate, schema_version};
pub use stats::Stats;

use self::{groups::Groups, hints::Hints, pool::Pool, stats::Counters};
use crate::readiness::Readiness;

/// How to use a database. Settings in the URL take precedence.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Connections of this process, besides one for hints. Default 16. Reads use at most three quarters of
    /// them at a time, and lists at most half of all, but each at least one.
    pub connections: usize,
    /// Maximum number of waiting calls before more are refused: lists and other reads of one tenant, other
    /// calls, and appends, each counted separately. Default 1024.
    pub waiting: usize,
    /// How long a call waits for a connection, or an append for its turn, before it is refused. Default one
    /// second.
    pub timeout: Duration,
    /// How long a call may take in total, including retries, before the database counts as silent. Default 45
    /// seconds: longer than the server's statement timeout.
    pub deadline: Duration,
    /// Migrates an older schema on opening. Default `true`.
    pub migrate: bool,
    /// Opening a server that takes no writes fails with [`OpenError::ReadOnly`]. Default `false`.
    pub needs_writes: bool,
    /// Exchanges hints about changes with other processes. Default `true`; without hints, processes poll.
    pub hints: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connections: 16,
            waiting: 1_024,
            timeout: Duration::from_secs(1),
            deadline: Duration::from_secs(45),
            migrate: true,
            needs_writes: false,
            hints: true,
        }
    }
}

impl Options {
    /// Number of connections available to calls that may have to wait long. Leaves most connections to other
    /// calls.
    fn share(&self) -> usize {
        (self.connections / 4).max(1)
    }
}

/// A store in a PostgreSQL database.
pub struct PostgresStore {
    schema: String,
    pool: Arc<Pool>,
    counters: Arc<Counters>,
    hints: Option<Hints>,
    groups: Arc<Groups>,
    readiness: Readiness,
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop_when_dropped: DropGuard,
}

impl PostgresStore {
    /// Connects to a database, and creates the schema if it does not exist.
    pub async fn open(url: &str, options: Options) -> Result<Self, OpenError> {
        let mut options = options;
        let connector = open::parse(url, &mut options)?;
        let schema = schema::ensure(&connector, options.migrate, options.needs_writes).await?;
        open::warn_if_exposed(&connector);
        let counters = Arc::new(Counters::default());
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let pool = Pool::new(connector.clone(), &options, Arc::clone(&counters), tasks.clone())?;
        let hints = options.hints.then(|| {
            let (hints, announcer) =
                Hints::new(connector, schema.clone(), Arc::clone(&counters), stop.clone());
            tasks.spawn(announcer.run());
            hints
        });
        let pool = Arc::new(pool);
        let groups = Groups::new(
            Arc::clone(&pool),
            Arc::clone(&counters),
            hints.clone(),
            tasks.clone(),
            &options,
        );
        Ok(Self {
            schema,
            pool,
            counters,
            hints,
            groups,
            readiness: Readiness::default(),
            tasks,
            _stop_when_dropped: stop.clone().drop_guard(),
            stop,
        })
    }

    /// Counters since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.snapshot(self.pool.usage())
    }

    /// Waits for appends in progress and for statements of abandoned calls, then closes every connection.
    /// Later calls find the store unavailable.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.pool.close();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

/// Waits before the next attempt, with exponential backoff and jitter.
async fn pause(attempt: u32) {
    let most = 2_u64 << attempt.min(7);
    let millis = rand::random_range(0..=most);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
