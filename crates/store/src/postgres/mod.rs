//! The store for several processes: one PostgreSQL database, 14 or later.
//!
//! Processes share nothing but the rows. An append is a transaction of two round trips (`checks` says why read
//! committed suffices), which those that wait at the same time share (`groups`); each other write is one statement.
//! Sequences, triggers, advisory locks and session state are not used, and what the server undoes in favor of another
//! transaction is tried again, COMMIT included.
//!
//! Connections are few and callers that wait for one are bounded: beyond that, and after a short wait, a call
//! answers that the store is unavailable. A connection lost before COMMIT was sent has written nothing; one lost
//! with COMMIT under way leaves the append unknown, for the caller to reread.
//!
//! All settings can stand in the URL: the parameters of the driver (`options=-csearch_path=…`, several hosts,
//! `target_session_attrs`), of ours `connections`, `hints=on|off`, `sslmode=disable|require` and `sslrootcert=FILE`,
//! and `connect_timeout`, which bounds more here than in the driver (`connect` says what). TLS is used if and only if `sslmode=require` says so, and then the server's certificate
//! is checked, against the platform's roots or that file.

mod append;
mod checks;
mod connect;
mod connection;
mod fault;
mod groups;
mod hints;
mod lists;
mod maker;
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
mod stats;
mod turns;
mod work;
mod writes;

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

pub use open::risks;
pub use open_error::OpenError;
pub use schema::{holds_keys, migrate, schema_version};
pub use stats::Stats;

use self::{groups::Groups, hints::Hints, pool::Pool, stats::Counters};

/// How to use a database. What the URL says goes first.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Connections of this process, besides one for hints. Default 16. Reads have at most three quarters of them at a
    /// time, and of these lists at most half of all; but at least one.
    pub connections: usize,
    /// Lists and other reads of one tenant, and other calls, that may wait for a connection, and appends that may wait for
    /// their turn, before further ones are refused. Default 1024 of each.
    pub waiting: usize,
    /// How long a call waits for a connection, or an append for its turn, before it is refused. Default one second.
    pub timeout: Duration,
    /// How long a call may take once it has a connection or waits for one, with all that is tried again, before
    /// the database is taken for silent. Default 45 seconds: longer than the server lets any statement run.
    pub deadline: Duration,
    /// Whether to bring an older schema up to date. Default yes.
    pub migrate: bool,
    /// Whether to tell other processes of changes, and to hear of theirs. Default yes; without, they poll.
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
            hints: true,
        }
    }
}

impl Options {
    /// How many connections those may have together that may have to wait long: enough for a few, and few enough that
    /// the others have theirs.
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
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop_when_dropped: DropGuard,
}

impl PostgresStore {
    /// Reaches a database and, if there is none yet, makes the schema.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(url: &str, options: Options) -> Result<Self, OpenError> {
        let mut options = options;
        let connector = open::parse(url, &mut options)?;
        let schema = schema::ensure(&connector, options.migrate).await?;
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
            tasks,
            _stop_when_dropped: stop.clone().drop_guard(),
            stop,
        })
    }

    /// What this store has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.snapshot(self.pool.usage())
    }

    /// Waits for appends under way, and for what the server still does for calls that are gone, and closes every connection. Later calls find the store unavailable.
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

/// Waits before the next attempt, longer each time and never the same for two.
async fn pause(attempt: u32) {
    let most = 2_u64 << attempt.min(7);
    let millis = rand::random_range(0..=most);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
