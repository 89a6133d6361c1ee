//! An in-process host: its flags and configuration, and how it is opened and served.

use std::{
    env,
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use clap::Args;
use rand::{TryRngCore as _, rngs::OsRng};
use serde::Serialize;
use serde_json::Value;
use tokio::{sync::oneshot, task::JoinHandle};
use wopr_core::TenantId;
use wopr_server::{
    Config, ConfigError, Host, Listeners, Overrides, ServeError, StartError,
    auth::Scopes,
    config::{Key, MCP_CONFIG, SETTINGS, Secret},
    telemetry,
};
use wopr_store::{postgres, sqlite::OpenError};

use crate::{
    examples,
    exit::{Exit, Failure},
    noted::{Noted, Served},
    open_files, output,
    signals::Signals,
    variables,
};

/// Number of random bytes in a secret.
const SECRET_BYTES: usize = 24;

/// Flags that say how a host is set up. Each wins over its environment variable, and that over the file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct HostArgs {
    /// Where runs are kept: sqlite:PATH, memory:, or postgres://… [default: sqlite:./wopr.db] [env: WOPR_STORE]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// A folder of workflow definitions; may be given several times [env: WOPR_WORKFLOWS]
    #[arg(long, value_name = "DIR")]
    pub(crate) workflows: Vec<PathBuf>,

    /// A configuration file, such as wopr.toml
    #[arg(long, value_name = "FILE", env = "WOPR_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    /// The address to listen on; with port 0 the system chooses [default: 127.0.0.1:8080] [env: WOPR_LISTEN]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,

    /// The origin in every link this host hands out [default: from --listen] [env: WOPR_PUBLIC_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) public_url: Option<String>,

    /// The workflow of an A2A message that names none [env: WOPR_DEFAULT_WORKFLOW]
    #[arg(long, value_name = "ID")]
    pub(crate) default_workflow: Option<String>,

    /// The format of the logs on standard error: text or json [default: text] [env: WOPR_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) log_format: Option<String>,

    /// What is logged: a level, or directives such as info,wopr::access=debug [default: info] [env: WOPR_LOG]
    #[arg(long, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,

    /// Any other setting by its name in the file, such as a2a.private_tasks=true; may be given several times
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
}

impl HostArgs {
    /// Returns the settings that the flags override.
    pub(crate) fn overrides(&self) -> Result<Overrides> {
        let mut overrides = Overrides::default()
            .with("store", self.store.as_deref())
            .with("server.listen", self.listen.as_deref())
            .with("server.public_url", self.public_url.as_deref())
            .with("default_workflow", self.default_workflow.as_deref())
            .with("log.format", self.log_format.as_deref())
            .with("log.level", self.log_level.as_deref());
        overrides.workflows.clone_from(&self.workflows);
        for text in &self.set {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Failure::new(Exit::Usage, format!("--set {text} is not of the form name=value"))
            })?;
            let setting = SETTINGS
                .iter()
                .find(|setting| setting.key == name.trim())
                .ok_or_else(|| {
                    Failure::new(Exit::Config, format!("'{}' is not a setting", name.trim()))
                        .hint("`wopr config print` lists every setting")
                })?;
            overrides = overrides.with(setting.key, Some(value));
        }
        Ok(overrides)
    }

    /// Loads the configuration; flags take precedence over environment variables, and those over the file.
    pub(crate) fn load(&self) -> Result<Config> {
        self.load_with(self.overrides()?)
    }

    /// Loads the configuration with overrides already computed from these flags.
    pub(crate) fn load_with(&self, overrides: Overrides) -> Result<Config> {
        explained(self.read(overrides))
    }

    /// Like [`Self::load_with`]. A manifest that a flag names counts in the place of the variable's.
    pub(crate) fn load_with_manifest(&self, overrides: Overrides, manifest: Option<&Path>) -> Result<Config> {
        let read = |name: &str| match manifest {
            Some(path) if name == MCP_CONFIG => Some(path.display().to_string()),
            Some(_) | None => env::var(name).ok(),
        };
        explained(Config::load(self.config.as_deref(), &read, overrides))
    }

    /// Like [`Self::load`], without these variables: their reader has turned them into flags already.
    pub(crate) fn load_without(&self, variables: &[&str]) -> Result<Config> {
        let read = |name: &str| match variables.contains(&name) {
            true => None,
            false => env::var(name).ok(),
        };
        explained(Config::load(self.config.as_deref(), &read, self.overrides()?))
    }

    /// Loads the configuration for `wopr config check`, without the hint to run that command.
    pub(crate) fn check(&self) -> Result<Config> {
        let config = self.read(self.overrides()?);
        Ok(config.map_err(|error| config_failure(&error))?)
    }

    fn read(&self, overrides: Overrides) -> Result<Config, ConfigError> {
        Config::load(self.config.as_deref(), &|name| env::var(name).ok(), overrides)
    }
}

/// The configuration, or why there is none and how to find out more.
fn explained(config: Result<Config, ConfigError>) -> Result<Config> {
    Ok(config.map_err(|error| {
        let failure = config_failure(&error);
        match failure.exit() {
            Exit::NotFound => failure,
            _ => failure.hint("`wopr config check` checks a configuration without starting anything"),
        }
    })?)
}

/// Converts a configuration error for display.
fn config_failure(error: &ConfigError) -> Failure {
    match error {
        ConfigError::Read { source, .. } if Exit::of_reading(source) == Exit::NotFound => {
            Failure::cannot(Exit::NotFound, error).hint("--config or WOPR_CONFIG names it")
        }
        // The file was read; its content is invalid.
        ConfigError::File { path, reason } => Failure::new(
            Exit::Config,
            format!("the configuration file {} is invalid: {reason}", path.display()),
        ),
        ConfigError::Read { .. } | ConfigError::Setting { .. } | ConfigError::Invalid { .. } => {
            Failure::cannot(Exit::Config, error)
        }
    }
}

/// Generates a secret with the prefix of our keys.
pub(crate) fn new_secret() -> Result<String> {
    let mut bytes = [0; SECRET_BYTES];
    OsRng.try_fill_bytes(&mut bytes).map_err(|error| {
        Failure::new(
            Exit::Failed,
            format!("cannot draw a secret from the system: {error}"),
        )
    })?;
    Ok(format!("wopr_{}", URL_SAFE_NO_PAD.encode(bytes)))
}

/// Creates a key of the tenant `default` with all scopes.
pub(crate) fn full_key(id: &str, secret: &str) -> Result<Key> {
    Ok(Key {
        id: id.to_owned(),
        secret: Some(Secret::new(secret)),
        secret_sha256: None,
        tenant: TenantId::parse("default")?,
        principal: None,
        scopes: Scopes::ALL,
        roles: Vec::new(),
        groups: Vec::new(),
    })
}

/// A host that listens but does not serve yet.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) host: Arc<Host>,
    /// The URL at which clients on this machine reach the host.
    pub(crate) origin: String,
    listeners: Listeners,
    noted: Option<Noted>,
}

/// The line that announces the host's address.
#[derive(Debug, Serialize)]
struct Listening<'a> {
    listening: &'a str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
}

/// File descriptors that a host needs besides its connections: for the store, and for outgoing calls.
const OTHER_FILES: u64 = 256;

/// Binds the address, opens the store, starts the engine and listens.
pub(crate) async fn open(config: Config) -> Result<Opened> {
    open_by(config, Host::open).await
}

/// Binds the address first, so that nothing has been opened if the address is in use. Listens last: a host that waits
/// for its database takes no connections.
async fn open_by<F>(mut config: Config, open: impl FnOnce(Config) -> F) -> Result<Opened>
where
    F: Future<Output = Result<Arc<Host>, StartError>>,
{
    allow_connections(config.server.max_connections);
    let bound = wopr_server::bind(&mut config).map_err(|error| bind_failure(&error))?;
    let origin = config.server.origin();
    let host = Box::pin(open(config))
        .await
        .map_err(|error| start_failure(&error))?;
    match bound.listen() {
        Ok(listeners) => Ok(Opened::noted(host, listeners, origin, Served::Alone)),
        Err(error) => {
            host.close().await;
            Err(bind_failure(&error).into())
        }
    }
}

/// Like [`open`], but waits until the database is reachable. Returns `None` if a signal or `stop` comes
/// first; an unfinished migration is then rolled back, or resumed at the next start.
pub(crate) async fn open_unless(
    config: Config,
    signals: &mut Signals,
    stop: impl Future<Output = ()>,
) -> Result<Option<Opened>> {
    tokio::select! {
        opened = open_by(config, Host::open_when_reached) => opened.map(Some),
        () = signals.next() => Ok(None),
        () = stop => Ok(None),
    }
}

/// Raises the limit on open files, and warns if it is too low for the maximum number of connections.
pub(crate) fn allow_connections(max_connections: usize) {
    let Some(allowed) = open_files::raise() else {
        return;
    };
    let wanted = u64::try_from(max_connections).unwrap_or(u64::MAX);
    if allowed < wanted.saturating_add(OTHER_FILES) {
        tracing::warn!(
            allowed,
            max_connections,
            "fewer open files are allowed than connections: raise the hard limit (ulimit -Hn, LimitNOFILE=) \
             or lower server.max_connections"
        );
    }
}

impl Opened {
    /// A host that has its store. Notes where it listens.
    pub(crate) fn noted(host: Arc<Host>, listeners: Listeners, origin: String, served: Served) -> Self {
        let noted = Noted::write(host.config(), &origin, served);
        Self {
            host,
            origin,
            listeners,
            noted,
        }
    }

    /// Registers the embedded examples for every tenant.
    pub(crate) async fn add_examples(&self) -> Result<()> {
        for example in examples::ALL {
            self.add(example.document()?).await?;
        }
        Ok(())
    }

    /// Registers a workflow for every tenant.
    pub(crate) async fn add(&self, document: Value) -> Result<()> {
        let registered = self.host.engine().register(None, document).await;
        registered.map_err(|error| Failure::cannot(Exit::Config, &error))?;
        Ok(())
    }

    /// Writes the host's address to standard output as one line of JSON.
    pub(crate) fn announce(&self, key: Option<&str>) -> Result<()> {
        output::json_line(&Listening {
            listening: &self.origin,
            pid: process::id(),
            key,
        })
    }

    /// Serves until a signal or `stop`, then shuts down gracefully. A second signal exits at once.
    pub(crate) async fn serve(self, mut signals: Signals, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = oneshot::channel();
        let noted = self.noted;
        let host = Arc::clone(&self.host);
        let server = wopr_server::serve(self.host, self.listeners, async {
            // A dropped sender requests a stop as well.
            let _ = stopped.await;
        });
        let asked = async {
            // The first signal requests a graceful shutdown, even if `stop` already started one.
            let impatient = tokio::select! {
                () = signals.next() => 1,
                () = stop => 2,
            };
            // While the database is still this process's.
            if let Some(noted) = noted {
                noted.forget();
            }
            signals.end_at(impatient);
            host.drain().await;
            // The server ends only when it is asked to.
            let _ = stopping.send(());
        };
        tokio::join!(server, asked);
    }

    /// Serves in the background until the returned handle is stopped or dropped.
    pub(crate) fn in_background(self) -> Background {
        let (stopping, stopped) = oneshot::channel();
        let origin = self.origin.clone();
        let host = self.host;
        let listeners = self.listeners;
        let task = tokio::spawn(async move {
            wopr_server::serve(host, listeners, async {
                // Dropping the handle stops the host too.
                let _ = stopped.await;
            })
            .await;
        });
        Background {
            origin,
            noted: self.noted,
            stopping,
            task,
        }
    }
}

/// A host that serves in a background task of this process.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) origin: String,
    noted: Option<Noted>,
    stopping: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Shutdown timeout of an in-process host, whose only client is this process.
const STOP: Duration = Duration::from_secs(10);

impl Background {
    /// Shuts down gracefully.
    pub(crate) async fn stop(self) {
        // While the database is still this process's.
        if let Some(noted) = self.noted {
            noted.forget();
        }
        // The receiver is gone if the server has already ended.
        let _ = self.stopping.send(());
        // Acknowledged work is durable, so a shutdown that times out loses nothing.
        let _ = tokio::time::timeout(STOP, self.task).await;
    }
}

/// Sets up logging for a host, and warns about unknown `WOPR_` variables.
pub(crate) fn init_logs(config: &Config) -> Result<()> {
    telemetry::init(&config.log).map_err(|error| Failure::cannot(Exit::Config, &error))?;
    for variable in variables::unknown() {
        tracing::warn!(
            variable,
            "the environment variable is not known and changes nothing"
        );
    }
    Ok(())
}

fn bind_failure(error: &ServeError) -> Failure {
    let ServeError::Bind { source, .. } = error;
    let is_taken = source.kind() == std::io::ErrorKind::AddrInUse;
    let failure = Failure::cannot(if is_taken { Exit::Busy } else { Exit::Config }, error);
    if is_taken {
        failure.hint("choose another address with --listen; port 0 takes a free one")
    } else {
        failure
    }
}

/// Converts a startup error for display.
pub(crate) fn start_failure(error: &StartError) -> Failure {
    match error {
        StartError::NoKeys => Failure::cannot(Exit::Config, error)
            .hint("`wopr keys create` makes one in the store, `wopr dev` starts with one"),
        StartError::Store(open) => open_failure(open),
        StartError::Postgres(open) => postgres_failure(open),
        StartError::Tls(_)
        | StartError::Secrets(_)
        | StartError::Peers(_)
        | StartError::Models(_)
        | StartError::Folder { .. } => Failure::cannot(Exit::Config, error),
        StartError::Read(_)
        | StartError::Write(_)
        | StartError::CardKeys(_)
        | StartError::Engine(_)
        | StartError::Workflows(_) => Failure::cannot(Exit::Failed, error),
    }
}

/// Converts an error of opening a database for display.
pub(crate) fn open_failure(error: &OpenError) -> Failure {
    match error {
        OpenError::Locked(_) => Failure::cannot(Exit::Busy, error)
            .hint("one process serves a SQLite database; stop the other one, or talk to it with --server"),
        OpenError::NewerSchema { .. } => Failure::cannot(Exit::Config, error),
        OpenError::NeedsMigration { .. } => {
            Failure::cannot(Exit::Config, error).hint("`wopr migrate` brings it up to date")
        }
        OpenError::Foreign(_) => Failure::cannot(Exit::Config, error),
        OpenError::OpenElsewhere(_) => Failure::cannot(Exit::Busy, error)
            .hint("use the name that the other process uses, or stop it"),
        OpenError::Linked { .. } => Failure::cannot(Exit::Config, error)
            .hint("`find -samefile` lists the names; remove all but the one that the host used last"),
        OpenError::Orphaned { .. } => Failure::cannot(Exit::Config, error).hint(
            "a log belongs to its own file: a backup takes the place of that only once the log was moved away",
        ),
        OpenError::Unwritable { .. } => Failure::cannot(Exit::Config, error).hint(
            "let the user of this process write the database and the files -wal and -shm beside it, with chown or chmod",
        ),
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            Failure::cannot(Exit::NotFound, error).hint("the folder of the database must exist")
        }
        OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::IsADirectory => {
            Failure::cannot(Exit::Config, error).hint("name a file in it, such as wopr.db")
        }
        OpenError::Migration { .. } | OpenError::Database { .. } | OpenError::Io { .. } => {
            Failure::cannot(Exit::Failed, error)
        }
    }
}

/// Converts an error of opening a PostgreSQL database for display.
pub(crate) fn postgres_failure(error: &postgres::OpenError) -> Failure {
    match error {
        postgres::OpenError::Connect(_) | postgres::OpenError::Refused(_) | postgres::OpenError::ReadOnly => {
            Failure::cannot(Exit::Unreachable, error)
        }
        postgres::OpenError::Silent { .. } => Failure::cannot(Exit::Unreachable, error).hint(
            "see that a PostgreSQL server runs there and is not stopped; connect_timeout=SECONDS in the URL waits longer",
        ),
        postgres::OpenError::NeedsMigration { .. } => {
            Failure::cannot(Exit::Config, error).hint("`wopr migrate` brings it up to date")
        }
        postgres::OpenError::Url(_)
        | postgres::OpenError::Tls(_)
        | postgres::OpenError::Encoding(_)
        | postgres::OpenError::NoSchema
        | postgres::OpenError::NewerSchema { .. }
        | postgres::OpenError::Foreign(_) => Failure::cannot(Exit::Config, error),
        postgres::OpenError::Migration(_) => Failure::cannot(Exit::Failed, error),
    }
}
