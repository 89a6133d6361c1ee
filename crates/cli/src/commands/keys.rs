//! `wopr keys`: manages API keys, through a server or directly in the store.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use wopr_core::{Membership, PrincipalId, TenantId, Timestamp};
use wopr_server::auth::{Scope, Scopes, hash_hex};
use wopr_store::KeyRow;
use wopr_wire::time;

use super::place::{Place, now};
use crate::{
    client::escape,
    exit::{Exit, Failure},
    host, output, render,
};

/// Create, list and revoke API keys.
///
/// With --server (or WOPR_SERVER) the server does the work and the key is valid at once; the caller's key
/// needs the scope keys:manage. Otherwise the database is opened directly: running hosts accept a new key at
/// its first use, and reject a revoked one within a second.
#[derive(Debug, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a key; its secret is shown only once
    Create {
        /// The name of the key in logs [default: a random one]
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// The same as NAME
        #[arg(long, conflicts_with = "name", value_name = "NAME")]
        id: Option<String>,
        /// The principal that uses the key [default: the name]
        #[arg(long)]
        principal: Option<String>,
        /// The tenant that the key gives access to, in a database [default: default]
        #[arg(long)]
        tenant: Option<String>,
        /// A scope of the key; may be given several times, or separated by commas [default: all scopes]
        #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',')]
        scopes: Vec<String>,
        /// A role of the key's principal, for gates that require one; may be given several times
        #[arg(long = "role", value_name = "ROLE")]
        roles: Vec<String>,
        /// A group of the key's principal; may be given several times
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        #[command(flatten)]
        place: Place,
    },
    /// List keys, without secrets
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Revoke a key, at once and permanently
    Revoke {
        /// The key's id
        id: String,
        /// The key's tenant, if keys of several tenants have this id in a database
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        place: Place,
    },
}

/// Attributes of the key to create.
struct Wanted {
    id: Option<String>,
    principal: Option<String>,
    tenant: Option<String>,
    scopes: Vec<String>,
    membership: Membership,
}

impl Keys {
    pub(crate) async fn run(self) -> Result<Exit> {
        match self.verb {
            Verb::Create {
                name,
                id,
                principal,
                tenant,
                scopes,
                roles,
                groups,
                place,
            } => {
                let wanted = Wanted {
                    id: name.or(id),
                    principal,
                    tenant,
                    scopes: if scopes.is_empty() {
                        vec!["*".to_owned()]
                    } else {
                        scopes
                    },
                    membership: Membership { roles, groups },
                };
                create(wanted, &place).await
            }
            Verb::List { place } => list(&place).await,
            Verb::Revoke { id, tenant, place } => revoke(&id, tenant.as_deref(), &place).await,
        }
    }
}

async fn create(wanted: Wanted, place: &Place) -> Result<Exit> {
    let scopes = Scopes::parse(&wanted.scopes).map_err(|rule| {
        let known: Vec<_> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
        Failure::new(Exit::Usage, rule).hint(format!("the scopes are {}, or * for all", known.join(", ")))
    })?;
    let document = match place.client_without(wanted.tenant.as_deref())? {
        Some(client) => {
            let mut body = json!({ "scopes": scopes.names() });
            for (name, list) in [
                ("roles", wanted.membership.roles),
                ("groups", wanted.membership.groups),
            ] {
                if !list.is_empty() {
                    body[name] = Value::from(list);
                }
            }
            for (name, value) in [("id", wanted.id), ("principal", wanted.principal)] {
                if let Some(value) = value {
                    body[name] = Value::from(value);
                }
            }
            client.post_with("/v1/host/wopr/keys", &body, "secret").await?
        }
        None => create_here(wanted, scopes, place).await?,
    };
    if place.format.json {
        output::json(&document)?;
        return Ok(Exit::Ok);
    }
    output::note(format!(
        "created key {} (principal {}, tenant {}) in {}; the secret is shown only once:",
        render::text(&document, "id"),
        render::text(&document, "principal"),
        render::text(&document, "tenant"),
        place.name()?,
    ))?;
    // Only the secret goes to standard output, so that scripts can capture it.
    output::line(render::text(&document, "secret"))?;
    Ok(Exit::Ok)
}

async fn create_here(wanted: Wanted, scopes: Scopes, place: &Place) -> Result<Value> {
    let usage =
        |name: &str, error: &dyn std::fmt::Display| Failure::new(Exit::Usage, format!("--{name}: {error}"));
    let secret = host::new_secret()?;
    let id = match wanted.id {
        Some(id) => id,
        None => format!("key_{}", &hash_hex(&secret)[..12]),
    };
    let is_id = (1..=64).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if !is_id {
        return Err(usage("id", &"must be 1 to 64 characters of [A-Za-z0-9._-]").into());
    }
    if let Some(rule) = wanted.membership.problem() {
        return Err(Failure::new(Exit::Usage, rule).into());
    }
    let principal = wanted.principal.as_deref().unwrap_or(&id);
    let row = KeyRow {
        secret_sha256: hash_hex(&secret),
        tenant: TenantId::parse(wanted.tenant.as_deref().unwrap_or("default"))
            .map_err(|error| usage("tenant", &error))?,
        principal: PrincipalId::parse(principal).map_err(|error| usage("principal", &error))?,
        scopes: scopes.names(),
        membership: wanted.membership,
        created_at: now()?,
        revoked_at: None,
        id,
    };
    let store = place.open(true).await?;
    let done = async {
        let added = store.registry().add_key(row.clone(), usize::MAX).await;
        if added.context("store the key")? {
            return Ok(());
        }
        let taken = format!("tenant {} has a key {} already", row.tenant, row.id);
        Err(Failure::new(Exit::Failed, taken).into())
    };
    let done: Result<()> = done.await;
    store.close().await;
    done?;
    let mut document = describe(&row);
    document["secret"] = Value::from(secret);
    Ok(document)
}

/// Formats a key as the server does.
fn describe(row: &KeyRow) -> Value {
    let when = |at: Timestamp| time::Timestamp::from_millis(at.millis()).to_string();
    let mut document = json!({
        "id": row.id,
        "tenant": row.tenant.as_str(),
        "principal": row.principal.as_str(),
        "scopes": row.scopes,
        "createdAt": when(row.created_at),
    });
    for (name, list) in [
        ("roles", &row.membership.roles),
        ("groups", &row.membership.groups),
    ] {
        if !list.is_empty() {
            document[name] = Value::from(list.clone());
        }
    }
    if let Some(at) = row.revoked_at {
        document["revokedAt"] = Value::from(when(at));
    }
    document
}

async fn list(place: &Place) -> Result<Exit> {
    let document = match place.client()? {
        Some(client) => {
            let keys = client.pages("/v1/host/wopr/keys", "keys", usize::MAX).await?;
            json!({ "keys": keys.items })
        }
        None => {
            let store = place.open(false).await?;
            let rows = store.registry().keys().await.context("read the keys");
            store.close().await;
            let keys: Vec<_> = rows?.iter().map(describe).collect();
            json!({ "keys": keys })
        }
    };
    if place.format.json {
        output::json(&document)?;
        return Ok(Exit::Ok);
    }
    let rows: Vec<_> = document
        .get("keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|key| {
            let cell = |name: &str| render::text(key, name).to_owned();
            let scopes: Vec<_> = key
                .get("scopes")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let state = if key.get("revokedAt").is_some() {
                "revoked"
            } else {
                "valid"
            };
            vec![
                cell("id"),
                state.to_owned(),
                cell("tenant"),
                cell("principal"),
                cell("createdAt"),
                scopes.join(","),
            ]
        })
        .collect();
    if rows.is_empty() {
        output::note("the store holds no keys; those of the configuration are not listed here")?;
        return Ok(Exit::Ok);
    }
    output::table(
        &[
            output::whole("KEY"),
            output::state("STATE"),
            output::cut("TENANT"),
            output::cut("PRINCIPAL"),
            output::age("CREATED"),
            output::cut("SCOPES"),
        ],
        &rows,
    )?;
    Ok(Exit::Ok)
}

async fn revoke(id: &str, tenant: Option<&str>, place: &Place) -> Result<Exit> {
    match place.client_without(tenant)? {
        Some(client) => {
            client
                .delete(&format!("/v1/host/wopr/keys/{}", escape(id)))
                .await?;
        }
        None => {
            let store = place.open(false).await?;
            let done = async {
                let keys = store.registry().keys().await.context("read the keys")?;
                let mut found = keys
                    .iter()
                    .filter(|key| key.id == id && tenant.is_none_or(|tenant| key.tenant.as_str() == tenant));
                let Some(key) = found.next() else {
                    return Err(Failure::new(Exit::NotFound, format!("the store has no key {id}")).into());
                };
                if let Some(other) = found.next() {
                    let several = format!("tenants {} and {} have a key {id}", key.tenant, other.tenant);
                    let hint = "name the tenant of the one to revoke: --tenant TENANT";
                    return Err(Failure::new(Exit::Usage, several).hint(hint).into());
                }
                // Revoking a revoked key succeeds.
                store
                    .registry()
                    .revoke_key(&key.tenant, id, now()?)
                    .await
                    .context("revoke the key")?;
                Ok(())
            };
            let done: Result<()> = done.await;
            store.close().await;
            done?;
        }
    }
    if place.format.json {
        output::json(&json!({ "id": id, "revoked": true }))?;
    } else {
        output::line(format!("{id} is revoked"))?;
    }
    Ok(Exit::Ok)
}
