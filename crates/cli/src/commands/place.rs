//! Where a command manages something: through a server, or directly in the store.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use wopr_core::Timestamp;
use wopr_server::{Config, config::StoreUrl};
use wopr_store::{PostgresStore, Registry, Spending, SqliteStore, StoredSecrets, postgres, sqlite};

use crate::{
    args::{Authorities, Format},
    client::Client,
    exit::{Exit, Failure},
    host::{self, HostArgs},
};

/// The server or database that keeps what is managed.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// The server to call
    #[arg(long, value_name = "URL", env = "WOPR_SERVER")]
    server: Option<String>,
    /// The API key to call it with
    #[arg(long, value_name = "KEY", env = "WOPR_API_KEY", hide_env_values = true)]
    key: Option<String>,
    #[command(flatten)]
    authorities: Authorities,
    /// The database to open instead of calling a server: sqlite:PATH [env: WOPR_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A configuration file that names the database
    #[arg(long, value_name = "FILE", env = "WOPR_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub(super) format: Format,
}

/// A database, opened for a single command.
pub(super) enum Opened {
    Sqlite(Box<SqliteStore>),
    /// A host has the database open.
    Guest(sqlite::Guest),
    Postgres(PostgresStore),
}

impl Opened {
    pub(super) fn registry(&self) -> &dyn Registry {
        match self {
            Self::Sqlite(store) => &**store,
            Self::Guest(store) => store,
            Self::Postgres(store) => store,
        }
    }

    pub(super) fn secrets(&self) -> &dyn StoredSecrets {
        match self {
            Self::Sqlite(store) => &**store,
            Self::Guest(store) => store,
            Self::Postgres(store) => store,
        }
    }

    pub(super) fn spending(&self) -> &dyn Spending {
        match self {
            Self::Sqlite(store) => &**store,
            Self::Guest(store) => store,
            Self::Postgres(store) => store,
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Guest(_) => {}
            Self::Postgres(store) => store.close().await,
        }
    }
}

impl Place {
    /// Returns a client of the server, unless a database was given.
    pub(super) fn client(&self) -> Result<Option<Client>> {
        match &self.server {
            Some(server) if self.store.is_none() => {
                Client::at(server, self.key.clone(), &self.authorities.read()?).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// A client of the server, as [`Self::client`], for a command that may name a tenant: on a server the tenant is the
    /// caller's, and another name would be ignored.
    pub(super) fn client_without(&self, tenant: Option<&str>) -> Result<Option<Client>> {
        let client = self.client()?;
        if client.is_some() && tenant.is_some() {
            let failure = Failure::new(
                Exit::Usage,
                "--tenant is for a database; a server takes that of the key",
            );
            return Err(failure
                .hint("leave it out, or name the database with --store")
                .into());
        }
        Ok(client)
    }

    /// The server or the database, for people.
    pub(super) fn name(&self) -> Result<String> {
        if let Some(server) = self.server.as_ref().filter(|_| self.store.is_none()) {
            return Ok(server.clone());
        }
        Ok(match self.config()?.store {
            StoreUrl::Sqlite(path) => format!("sqlite:{}", path.display()),
            StoreUrl::Postgres(_) => "the PostgreSQL database".to_owned(),
            StoreUrl::Memory => "memory".to_owned(),
        })
    }

    /// Opens the database. It is created only if `may_create` is set, which is when something is stored.
    pub(super) async fn open(&self, may_create: bool) -> Result<Opened> {
        self.open_configured(self.config()?, may_create).await
    }

    /// The configuration that names the database.
    pub(super) fn config(&self) -> Result<Config> {
        let args = HostArgs {
            store: self.store.clone(),
            config: self.config.clone(),
            ..HostArgs::default()
        };
        args.load()
    }

    /// Opens the database of a configuration.
    pub(super) async fn open_configured(&self, config: Config, may_create: bool) -> Result<Opened> {
        match config.store {
            StoreUrl::Sqlite(path) if !may_create && !path.exists() => {
                // Reports an error if only parts of a database, such as its log, are left.
                sqlite::schema_version(&path).map_err(|error| host::open_failure(&error))?;
                Err(Failure::new(Exit::NotFound, format!("there is no database {}", path.display())).into())
            }
            StoreUrl::Sqlite(path) => {
                let options = sqlite::Options {
                    readers: 1,
                    ..sqlite::Options::default()
                };
                let opened = match SqliteStore::open(&path, options) {
                    Err(sqlite::OpenError::Locked(_)) => sqlite::Guest::open(&path).map(Opened::Guest),
                    opened => opened.map(|store| Opened::Sqlite(Box::new(store))),
                };
                Ok(opened.map_err(|error| host::open_failure(&error))?)
            }
            StoreUrl::Memory => Err(Failure::new(Exit::Usage, "a store in memory ends with its host").into()),
            StoreUrl::Postgres(url) => {
                let options = postgres::Options {
                    connections: 1,
                    hints: false,
                    ..postgres::Options::default()
                };
                let opened = PostgresStore::open(url.expose(), options).await;
                Ok(Opened::Postgres(
                    opened.map_err(|error| host::postgres_failure(&error))?,
                ))
            }
        }
    }
}

/// The clock of this machine.
pub(super) fn now() -> Result<Timestamp> {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .context("read the clock: it stands before 1970")?;
    Ok(Timestamp::from_millis(
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
    ))
}
