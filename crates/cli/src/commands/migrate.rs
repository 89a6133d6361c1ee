//! `wopr migrate`: migrates a database to the schema of this binary.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use wopr_server::config::StoreUrl;
use wopr_store::{
    PostgresStore, SqliteStore, postgres,
    sqlite::{self, OpenError},
};

use crate::{
    args::Format,
    exit::{Exit, Failure},
    host::{self, HostArgs},
    output,
};

/// Migrate a database to the schema of this binary.
///
/// `serve` migrates at start; this command makes the migration a separate step of an upgrade. No host may
/// have a SQLite database open meanwhile.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Only report whether a migration is needed; exits with 3 if so
    #[arg(long)]
    check: bool,
    /// The database: sqlite:PATH or postgres://… [default: sqlite:./wopr.db] [env: WOPR_STORE]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// A configuration file that names the database
    #[arg(long, value_name = "FILE", env = "WOPR_CONFIG")]
    config: Option<PathBuf>,
    #[command(flatten)]
    format: Format,
}

impl Migrate {
    pub(crate) async fn run(self) -> Result<Exit> {
        let args = HostArgs {
            store: self.store.clone(),
            config: self.config.clone(),
            ..HostArgs::default()
        };
        let path = match args.load()?.store {
            StoreUrl::Sqlite(path) => path,
            StoreUrl::Memory => {
                return Err(Failure::new(Exit::Usage, "a store in memory has no schema to migrate").into());
            }
            StoreUrl::Postgres(url) => return self.run_on_postgres(url.expose()).await,
        };
        let failed = |error: OpenError| host::open_failure(&error);
        let before = sqlite::schema_version(&path).map_err(failed)?;
        if self.check {
            if before == 0 {
                return self.say(before, None, "has no schema yet", Exit::Config);
            }
            let options = sqlite::Options {
                migrate: false,
                ..sqlite::Options::default()
            };
            return match SqliteStore::open(&path, options) {
                Ok(_) => self.say(before, Some(before), "is up to date", Exit::Ok),
                Err(OpenError::NeedsMigration { found, known }) => {
                    self.say(found, Some(known), "needs a migration", Exit::Config)
                }
                Err(error) => Err(failed(error).into()),
            };
        }
        let after = sqlite::migrate(&path).map_err(failed)?;
        let text = if before == after {
            "is up to date"
        } else {
            "was migrated"
        };
        self.say(before, Some(after), text, Exit::Ok)
    }

    /// Hosts may keep running: the migration takes a lock that only migrations take.
    async fn run_on_postgres(&self, url: &str) -> Result<Exit> {
        let failed = |error: postgres::OpenError| host::postgres_failure(&error);
        let before = postgres::schema_version(url).await.map_err(failed)?;
        if self.check {
            if before == 0 {
                return self.say(before, None, "has no schema yet", Exit::Config);
            }
            let options = postgres::Options {
                connections: 1,
                migrate: false,
                hints: false,
                ..postgres::Options::default()
            };
            return match PostgresStore::open(url, options).await {
                Ok(_) => self.say(before, Some(before), "is up to date", Exit::Ok),
                Err(postgres::OpenError::NeedsMigration { found, known }) => {
                    self.say(found, Some(known), "needs a migration", Exit::Config)
                }
                Err(error) => Err(failed(error).into()),
            };
        }
        let after = postgres::migrate(url).await.map_err(failed)?;
        let text = if before == after {
            "is up to date"
        } else {
            "was migrated"
        };
        self.say(before, Some(after), text, Exit::Ok)
    }

    fn say(&self, before: u32, after: Option<u32>, text: &str, exit: Exit) -> Result<Exit> {
        if self.format.json {
            output::json(&json!({ "found": before, "schema": after, "upToDate": Some(before) == after }))?;
        } else {
            let version = match after {
                Some(after) if after != before => format!(" (schema {before} to {after})"),
                Some(after) => format!(" (schema {after})"),
                None => String::new(),
            };
            output::line(format!("the database {text}{version}"))?;
        }
        Ok(exit)
    }
}
