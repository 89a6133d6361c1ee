//! The location of a measured store: a new file, or a new schema in a PostgreSQL database.
//!
//! A place is deleted when it is dropped, however the benchmark ends. Disk usage is measured per store: for
//! SQLite from the server process, for PostgreSQL from its statistics.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use tempfile::TempDir;
use tokio_postgres::{Client, Config, NoTls};

use super::process::Process;

/// PostgreSQL backends report statistics at most once a second, and only when they have work.
const STATISTICS_INTERVAL: Duration = Duration::from_millis(1_100);
/// Timeout for statistics. An idle backend reports them after ten seconds by itself.
const STATISTICS_LIMIT: Duration = Duration::from_secs(12);
/// Interval between two polls of the statistics.
const STATISTICS_PAUSE: Duration = Duration::from_millis(250);
/// Statistics count records, but the log position also includes the gaps between them. Wait until this share
/// of the log is reported.
const STATISTICS_SHARE: f64 = 0.95;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Store {
    /// A new SQLite file in the folder of the benchmark.
    Sqlite,
    /// A new schema in this database.
    Postgres(String),
}

impl Store {
    /// The name in reports. Does not contain the URL, which may hold a password.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres(_) => "postgres",
        }
    }
}

impl FromStr for Store {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "sqlite" {
            Ok(Self::Sqlite)
        } else if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self::Postgres(text.to_owned()))
        } else {
            Err("must be sqlite or postgres://…".to_owned())
        }
    }
}

#[derive(Debug)]
pub(crate) struct Place {
    kind: Kind,
    /// Contains the server's log, the probe file and, for SQLite, the store.
    folder: TempDir,
}

#[derive(Debug)]
enum Kind {
    Sqlite,
    Postgres(Box<Schema>),
}

/// Cumulative disk usage of a store, where known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Written {
    /// Bytes written to SQLite's files, or to PostgreSQL's write-ahead log.
    pub(crate) bytes: Option<f64>,
    /// Number of disk syncs. For SQLite, the server reports it.
    pub(crate) fsyncs: Option<f64>,
    /// CPU time of the database server, if it is on this machine.
    pub(crate) cpu: Option<Duration>,
}

impl Place {
    /// Creates a place. Files go below `folder`.
    pub(crate) async fn make(store: &Store, folder: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("wopr-bench-")
            .tempdir_in(folder)
            .with_context(|| format!("make a folder in {}", folder.display()))?;
        let kind = match store {
            Store::Sqlite => Kind::Sqlite,
            Store::Postgres(url) => Kind::Postgres(Box::new(Schema::make(url).await?)),
        };
        Ok(Self { kind, folder })
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The store URL for the server's configuration.
    pub(crate) fn url(&self) -> String {
        match &self.kind {
            Kind::Sqlite => format!("sqlite:{}", self.file().display()),
            Kind::Postgres(schema) => schema.url.clone(),
        }
    }

    fn file(&self) -> PathBuf {
        self.folder().join("bench.db")
    }

    /// Size of the store on disk in bytes. Exact for SQLite only after the server has stopped.
    pub(crate) async fn size(&self) -> Result<u64> {
        match &self.kind {
            Kind::Sqlite => {
                let mut sum = 0;
                for suffix in ["", "-wal"] {
                    let mut name = self.file().into_os_string();
                    name.push(suffix);
                    // The write-ahead log does not exist after a clean shutdown.
                    sum += fs::metadata(name).map_or(0, |file| file.len());
                }
                Ok(sum)
            }
            Kind::Postgres(schema) => schema.size().await,
        }
    }

    /// Reads the disk usage so far. `server` is the process that writes SQLite's files; `wake` makes it use
    /// all its database connections.
    pub(crate) async fn written(
        &self,
        server: Option<Process>,
        wake: impl Future<Output = Result<()>>,
    ) -> Result<Written> {
        match &self.kind {
            Kind::Sqlite => Ok(Written {
                bytes: server.and_then(Process::written).map(|bytes| bytes as f64),
                ..Written::default()
            }),
            Kind::Postgres(schema) => schema.written(wake).await,
        }
    }
}

/// A PostgreSQL schema for one store.
#[derive(Debug)]
struct Schema {
    name: String,
    /// The database URL as given.
    base: String,
    /// The URL with the schema as search path.
    url: String,
    client: Client,
    /// The postmaster process, if it is on this machine.
    server: Option<Process>,
    major: i32,
    /// Log position and reported bytes when the schema was created.
    log_before: f64,
    told_before: f64,
}

impl Schema {
    async fn make(base: &str) -> Result<Self> {
        ensure!(
            !base.contains("options=") && !base.contains("application_name="),
            "use this database: its url must not set options or application_name, the bench does"
        );
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .context("read the clock")?;
        let name = format!("wopr_bench_{}_{}", std::process::id(), since_epoch.as_nanos());
        let client = connect(base).await?;
        client
            .batch_execute(&format!("CREATE SCHEMA {name}"))
            .await
            .map_err(server_error)
            .context("make a schema")?;
        let joint = if base.contains('?') { '&' } else { '?' };
        let mut schema = Self {
            url: format!("{base}{joint}options=-csearch_path={name}&application_name={name}"),
            base: base.to_owned(),
            name,
            client,
            server: None,
            major: 0,
            log_before: 0.0,
            told_before: 0.0,
        };
        let row = schema
            .client
            .query_one(
                "SELECT pg_backend_pid(), current_setting('server_version_num')::int / 10000",
                &[],
            )
            .await
            .map_err(server_error)
            .context("ask the database who it is")?;
        schema.major = row.get(1);
        let backend = u32::try_from(row.get::<_, i32>(0)).ok().map(Process);
        // The process id may belong to another machine.
        schema.server = backend
            .filter(|backend| backend.name().is_some_and(|name| name.starts_with("postgres")))
            .and_then(Process::parent);
        (schema.log_before, schema.told_before, _) = schema.statistics().await?;
        Ok(schema)
    }

    async fn size(&self) -> Result<u64> {
        let row = self
            .client
            .query_one(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
                 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $1 AND c.relkind = 'r'",
                &[&self.name],
            )
            .await
            .map_err(server_error)
            .context("ask the database for its size")?;
        Ok(u64::try_from(row.get::<_, i64>(0)).unwrap_or(0))
    }

    /// Waits until the statistics cover most of the log; the log position itself is always exact.
    async fn written(&self, wake: impl Future<Output = Result<()>>) -> Result<Written> {
        let cpu = self.server.and_then(Process::family_cpu);
        let (log, mut told_bytes, mut fsyncs) = self.statistics().await?;
        tokio::time::sleep(STATISTICS_INTERVAL).await;
        wake.await?;
        let deadline = tokio::time::Instant::now() + STATISTICS_LIMIT;
        while tokio::time::Instant::now() < deadline {
            tokio::time::sleep(STATISTICS_PAUSE).await;
            let (_, bytes_now, fsyncs_now) = self.statistics().await?;
            let is_still = (bytes_now - told_bytes).abs() < 1.0;
            (told_bytes, fsyncs) = (bytes_now, fsyncs_now);
            let (told, written) = (told_bytes - self.told_before, log - self.log_before);
            if is_still && told >= written * STATISTICS_SHARE {
                break;
            }
        }
        Ok(Written {
            bytes: Some(log),
            fsyncs: Some(fsyncs),
            cpu,
        })
    }

    /// Returns the bytes of the write-ahead log by position and by statistics, and the number of syncs.
    async fn statistics(&self) -> Result<(f64, f64, f64)> {
        let fsyncs = if self.major >= 18 {
            "(SELECT coalesce(sum(fsyncs), 0) FROM pg_stat_io WHERE object = 'wal')"
        } else {
            "wal_sync"
        };
        let select = format!(
            "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, wal_bytes::float8, {fsyncs}::float8
             FROM pg_stat_wal"
        );
        let row = self.client.query_one(&select, &[]).await;
        let row = row
            .map_err(server_error)
            .context("ask the database for its statistics")?;
        Ok((row.get(0), row.get(1), row.get(2)))
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (base, name) = (self.base.clone(), self.name.clone());
        // Uses a separate thread and runtime, because those of the benchmark may be shutting down.
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(drop_schema(&base, &name))
        });
        let dropped = dropping.join().unwrap_or_else(|_| Err(anyhow!("it panicked")));
        if let Err(error) = dropped {
            // Drop cannot return an error.
            crate::talk::note(&format!("the schema {} is left behind: {error:#}", self.name));
        }
    }
}

async fn drop_schema(base: &str, name: &str) -> Result<()> {
    let client = connect(base).await?;
    // Terminates other connections, whose open transactions would block the drop.
    client
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
            &[&name],
        )
        .await
        .map_err(server_error)?;
    client
        .batch_execute(&format!(
            "SET client_min_messages = error; DROP SCHEMA {name} CASCADE"
        ))
        .await
        .map_err(server_error)
}

/// Connects the benchmark itself, without TLS.
async fn connect(url: &str) -> Result<Client> {
    let mut config: Config = without_ours(url)
        .parse()
        .context("read the url of the database")?;
    config.connect_timeout(Duration::from_secs(10));
    config.application_name("wopr bench");
    let (client, connection) = config
        .connect(NoTls)
        .await
        .map_err(server_error)
        .context("connect to the database")?;
    tokio::spawn(async move {
        // The next query reports a lost connection.
        let _ = connection.await;
    });
    Ok(client)
}

/// Removes the parameters that only wopr understands.
fn without_ours(url: &str) -> String {
    let Some((base, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let is_ours = |parameter: &&str| {
        let name = parameter.split('=').next().unwrap_or_default();
        !matches!(name, "connections" | "hints" | "sslrootcert")
    };
    let others: Vec<_> = query.split('&').filter(is_ours).collect();
    if others.is_empty() {
        base.to_owned()
    } else {
        format!("{base}?{}", others.join("&"))
    }
}

/// Keeps only the server's message, which the driver's error omits.
fn server_error(error: tokio_postgres::Error) -> anyhow::Error {
    match error.as_db_error() {
        Some(db) => anyhow!("{}", db.message()),
        None => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_is_named_or_given_by_its_url() {
        assert_eq!("sqlite".parse(), Ok(Store::Sqlite));
        let url = "postgres://u:p@h/d";
        assert_eq!(url.parse(), Ok(Store::Postgres(url.to_owned())));
        assert!("sqlite:x.db".parse::<Store>().is_err());
        assert_eq!(Store::Postgres(url.to_owned()).name(), "postgres");
    }

    #[test]
    fn only_our_parameters_are_removed_from_a_url() {
        for (url, expected) in [
            ("postgres://h/d", "postgres://h/d"),
            ("postgres://h/d?hints=off", "postgres://h/d"),
            (
                "postgres://h/d?connections=4&host=/tmp&sslrootcert=x",
                "postgres://h/d?host=/tmp",
            ),
        ] {
            assert_eq!(without_ours(url), expected);
        }
    }
}
