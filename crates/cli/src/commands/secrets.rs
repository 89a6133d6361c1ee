//! `wopr secrets`: manages the secrets that tenants keep with a host, through a server or directly in the store.

use std::{
    env, fs,
    io::{self, IsTerminal as _, Read as _},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_core::TenantId;
use wopr_server::{Config, SecretCipher, SecretError, config::StoreUrl};
use wopr_store::SecretRow;
use wopr_wire::time;

use super::place::{Place, now};
use crate::{
    client::escape,
    exit::{Exit, Failure},
    output, render,
};

/// More than any value has, in bytes.
const MAX_INPUT: u64 = 64 << 10;

/// Set, list and remove the secrets that tenants keep with a host.
///
/// The configuration of the host declares a secret, with stored = true; each tenant sets its own value. Values are stored
/// encrypted and shown only as fingerprints. With --server (or WOPR_SERVER) the server does the work; the caller's key
/// needs the scope secrets:manage. Otherwise the database is opened directly.
#[derive(Debug, Args)]
pub(crate) struct Secrets {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set a secret; its value is read from standard input
    Set {
        /// The name of the secret in the configuration
        name: String,
        /// Read the value from this environment variable
        #[arg(long, value_name = "VARIABLE", conflicts_with = "from_file")]
        from_env: Option<String>,
        /// Read the value from this file
        #[arg(long, value_name = "FILE")]
        from_file: Option<PathBuf>,
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        place: Place,
    },
    /// List secrets, without their values
    List {
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a secret
    Remove {
        /// The name of the secret
        name: String,
        #[command(flatten)]
        owner: Owner,
        #[command(flatten)]
        place: Place,
    },
}

#[derive(Debug, Args)]
struct Owner {
    /// The tenant whose secret it is, in a database [default: default]
    #[arg(long)]
    tenant: Option<String>,
}

impl Owner {
    fn id(&self) -> Result<TenantId> {
        let id = TenantId::parse(self.tenant.as_deref().unwrap_or("default"));
        Ok(id.map_err(|error| Failure::new(Exit::Usage, format!("--tenant: {error}")))?)
    }
}

impl Secrets {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Set {
                name,
                from_env,
                from_file,
                owner,
                place,
            } => {
                let value = read_value(from_env, from_file)?;
                set(&name, &value, &owner, &place).await
            }
            Verb::List { owner, place } => list(&owner, &place).await,
            Verb::Remove { name, owner, place } => remove(&name, &owner, &place).await,
        }
    }
}

/// The value, which is never an argument: those of a process can be seen by others.
fn read_value(from_env: Option<String>, from_file: Option<PathBuf>) -> Result<String> {
    if let Some(name) = from_env {
        let missing = || Failure::new(Exit::Usage, format!("the environment has no text {name}"));
        return Ok(env::var(&name).map_err(|_| missing())?);
    }
    if let Some(path) = from_file {
        let read = fs::read_to_string(&path);
        return read.map_err(|error| {
            let exit = match error.kind() {
                io::ErrorKind::NotFound => Exit::NotFound,
                _ => Exit::Failed,
            };
            Failure::new(exit, format!("cannot read {}: {error}", path.display())).into()
        });
    }
    let stdin = io::stdin();
    if stdin.is_terminal() {
        let failure = Failure::new(
            Exit::Usage,
            "the value is read from standard input, and this is a terminal",
        );
        return Err(failure
            .hint("pipe it in, or name its place: --from-env VARIABLE or --from-file FILE")
            .into());
    }
    let mut value = String::new();
    let read = stdin.lock().take(MAX_INPUT).read_to_string(&mut value);
    read.context("read the value from standard input")?;
    Ok(value)
}

async fn set(name: &str, value: &str, owner: &Owner, place: &Place) -> Result<Exit> {
    let document = match place.client_without(owner.tenant.as_deref())? {
        Some(client) => {
            let body = json!({ "name": name, "value": value });
            client
                .post_with("/v1/host/wopr/secrets", &body, "fingerprint")
                .await?
        }
        None => set_here(name, value, owner, place).await?,
    };
    if place.format.json {
        output::json(&document)?;
    } else {
        output::line(format!(
            "{name} is set, fingerprint {}",
            render::text(&document, "fingerprint")
        ))?;
    }
    Ok(Exit::Ok)
}

async fn set_here(name: &str, value: &str, owner: &Owner, place: &Place) -> Result<Value> {
    let tenant = owner.id()?;
    let config = place.config()?;
    check_key(&config)?;
    // Before a database is created for a secret that the host would not know.
    wopr_server::check_secret(&config.secrets.named, &tenant, name).map_err(|error| refused(&error))?;
    let store = place.open_configured(config.clone(), true).await?;
    let done = async {
        // The store is open: no other process makes a master key meanwhile.
        let known = store.secrets().key_check().await.context("read the database")?;
        let keys = wopr_server::Secrets::open_for(&config.secrets, &config.store, known.as_deref())
            .map_err(|error| Failure::cannot(Exit::Config, &error))?;
        let check = keys.check_value();
        let stored = store.secrets().put_key_check(&check, known.is_some());
        stored.await.context("write to the database")?;
        let sealed = SecretCipher::new(&keys).seal(&config.secrets.named, &tenant, name, value);
        let (sealed, fingerprint) = sealed.map_err(|error| refused(&error))?;
        let row = SecretRow {
            tenant,
            name: name.to_owned(),
            sealed,
            fingerprint,
            set_at: now()?,
        };
        let document = describe(&row);
        let is_set = store.secrets().put_secret(row, wopr_server::MAX_SECRETS).await;
        if is_set.context("store the secret")? {
            return Ok(document);
        }
        let full = format!("the tenant has {} secrets already", wopr_server::MAX_SECRETS);
        Err(Failure::new(Exit::Failed, full).into())
    };
    let done: Result<Value> = done.await;
    store.close().await;
    done
}

fn refused(error: &SecretError) -> Failure {
    match error {
        SecretError::Undeclared(name) => Failure::new(Exit::Config, error.to_string()).hint(format!(
            "add it to the file of --config: [[secrets.named]] name = \"{name}\", stored = true"
        )),
        SecretError::Value => Failure::new(Exit::Usage, error.to_string()),
        SecretError::Entropy => Failure::cannot(Exit::Failed, error),
    }
}

/// A database that is there has its master key somewhere. A new one would encrypt what the host cannot read.
fn check_key(config: &Config) -> Result<()> {
    let is_given = config.secrets.master_key.is_some() || config.secrets.key_file.is_some();
    let StoreUrl::Sqlite(path) = &config.store else {
        return Ok(());
    };
    if is_given || !path.exists() || wopr_server::key_beside(path).exists() {
        return Ok(());
    }
    let missing = format!("{} has no master key beside it", path.display());
    let failure = Failure::new(Exit::Config, missing);
    Err(failure
        .hint("name the one of its host: WOPR_MASTER_KEY, or secrets.key_file in the file of --config")
        .into())
}

/// Formats a secret as the server does.
fn describe(row: &SecretRow) -> Value {
    json!({
        "name": row.name,
        "fingerprint": row.fingerprint,
        "setAt": time::Timestamp::from_millis(row.set_at.millis()).to_string(),
    })
}

async fn list(owner: &Owner, place: &Place) -> Result<Exit> {
    let document = match place.client_without(owner.tenant.as_deref())? {
        Some(client) => client.get_with("/v1/host/wopr/secrets", "secrets").await?,
        None => {
            let tenant = owner.id()?;
            let store = place.open(false).await?;
            let rows = store.secrets().secrets(&tenant).await;
            store.close().await;
            let rows = rows.context("read the secrets")?;
            json!({ "secrets": rows.iter().map(describe).collect::<Vec<_>>() })
        }
    };
    if place.format.json {
        output::json(&document)?;
        return Ok(Exit::Ok);
    }
    let secrets = document.get("secrets").and_then(Value::as_array);
    let rows: Vec<_> = secrets
        .into_iter()
        .flatten()
        .map(|secret| {
            let cell = |name: &str| render::text(secret, name).to_owned();
            vec![cell("name"), cell("fingerprint"), cell("setAt")]
        })
        .collect();
    if rows.is_empty() {
        output::note(
            "the tenant keeps no secrets here; those of the environment and of files are not listed",
        )?;
        return Ok(Exit::Ok);
    }
    let columns = [
        output::whole("SECRET"),
        output::whole("FINGERPRINT"),
        output::age("SET"),
    ];
    output::table(&columns, &rows)?;
    Ok(Exit::Ok)
}

async fn remove(name: &str, owner: &Owner, place: &Place) -> Result<Exit> {
    match place.client_without(owner.tenant.as_deref())? {
        Some(client) => {
            let path = format!("/v1/host/wopr/secrets/{}", escape(name));
            client.delete(&path).await?;
        }
        None => {
            let tenant = owner.id()?;
            let store = place.open(false).await?;
            let removed = store.secrets().remove_secret(&tenant, name).await;
            store.close().await;
            if !removed.context("remove the secret")? {
                let none = format!("tenant {tenant} has no secret {name}");
                return Err(Failure::new(Exit::NotFound, none).into());
            }
        }
    }
    if place.format.json {
        output::json(&json!({ "name": name, "removed": true }))?;
    } else {
        output::line(format!("{name} is removed"))?;
    }
    Ok(Exit::Ok)
}
