//! Resources used by a server and its store between two moments.

use std::time::Duration;

use anyhow::Result;
use futures_util::future;

use super::{
    metrics::Metrics,
    place::{Place, Written},
    process::Process,
    server::Server,
};

/// Number of reads that make a server use all its database connections: twice the number of connections.
const READS: usize = 32;

/// Cumulative resource usage at one moment.
#[derive(Debug)]
pub(crate) struct Reading {
    metrics: Metrics,
    written: Written,
    server: Option<Duration>,
}

/// Resources used between two moments; unknown values are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Used {
    /// Committed batches.
    pub(crate) appends: Option<f64>,
    /// Number of disk syncs.
    pub(crate) fsyncs: Option<f64>,
    /// Bytes written to SQLite's files, or to PostgreSQL's write-ahead log.
    pub(crate) bytes: Option<f64>,
    pub(crate) server: Option<Duration>,
    /// CPU time of the database server, if there is one.
    pub(crate) database: Option<Duration>,
}

impl Reading {
    /// Takes a reading. `place` is absent if the store is not ours.
    pub(crate) async fn take(server: &Server, place: Option<&Place>) -> Result<Self> {
        let cpu = server.process().and_then(Process::cpu);
        let metrics = server.counters().await?;
        let written = match place {
            Some(place) => place.written(server.process(), wake(server)).await?,
            None => Written::default(),
        };
        Ok(Self {
            metrics,
            written,
            server: cpu,
        })
    }

    /// Computes the difference to an earlier reading.
    pub(crate) fn since(&self, before: &Self) -> Used {
        let grown = |of: fn(&Written) -> Option<f64>| Some(of(&self.written)? - of(&before.written)?);
        let spent = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        let count = |name| self.metrics.since(&before.metrics, name);
        Used {
            appends: count("wopr_store_appends_total"),
            // SQLite's writer syncs once per transaction; PostgreSQL shares syncs between processes and
            // counts them itself.
            fsyncs: grown(|written| written.fsyncs).or_else(|| count("wopr_store_groups_total")),
            bytes: grown(|written| written.bytes),
            server: spent(self.server, before.server),
            database: spent(self.written.cpu, before.written.cpu),
        }
    }
}

/// Makes the server read from its store on all its connections.
async fn wake(server: &Server) -> Result<()> {
    let reading = (0..READS).map(|_| async {
        let mut caller = server.caller();
        caller.get("/v1/runs?limit=1").await
    });
    future::try_join_all(reading).await?;
    Ok(())
}

impl Used {
    pub(crate) fn plus(&self, other: &Self) -> Self {
        fn sum<T: std::ops::Add<Output = T>>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one + other),
                (one, other) => one.or(other),
            }
        }
        Self {
            appends: sum(self.appends, other.appends),
            fsyncs: sum(self.fsyncs, other.fsyncs),
            bytes: sum(self.bytes, other.bytes),
            server: sum(self.server, other.server),
            database: sum(self.database, other.database),
        }
    }

    /// CPU time of the server and the database server.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        Some(self.server? + self.database.unwrap_or_default())
    }
}
