//! The schema and its versions.
//!
//! Migrations are embedded and only go forward; a schema of a newer binary is refused before anything is
//! written. Several processes may start at once: the one that migrates locks the only row of a separate
//! table, and the others find the schema up to date when they get the lock.

use std::time::Duration;

use refinery::Runner;
use tokio_postgres::error::SqlState;

use super::{
    Options,
    connect::{Connector, Session, TRIES, is_undone_by_others},
    fault, open,
    open_error::OpenError,
};
use crate::Cause;

mod embedded {
    refinery::embed_migrations!("migrations/postgres");
}

/// The table in which refinery records applied migrations. Another program in the schema may use its default
/// name.
const HISTORY: &str = "wopr_schema_history";

/// Tables by whose names a schema is recognized as ours.
const OURS: [&str; 3] = ["runs", "events", "work"];

/// How long to wait for another process's migrations.
const OTHERS: Duration = Duration::from_secs(120);

/// Migrates a database to the schema of this binary and returns its version. Does nothing if it is up to
/// date.
///
/// # Errors
/// The database is unchanged on error.
pub async fn migrate(url: &str) -> Result<u32, OpenError> {
    let connector = open::parse(url, &mut Options::default())?;
    ensure(&connector, true, true).await?;
    open::warn_if_exposed(&connector);
    Ok(known())
}

/// Reads the schema version of a database without changing it; 0 if there is none yet.
pub async fn schema_version(url: &str) -> Result<u32, OpenError> {
    let connector = open::parse(url, &mut Options::default())?;
    let session = connector.connect("").await?;
    let schema = open::examine(&session).await?;
    Ok(version(&session, &schema).await?.unwrap_or(0))
}

/// Returns `true` if a database holds a key that is not revoked. Changes nothing.
pub async fn holds_keys(url: &str) -> Result<bool, OpenError> {
    let connector = open::parse(url, &mut Options::default())?;
    let session = connector.connect("").await?;
    let schema = open::examine(&session).await?;
    if checked(&session, &schema).await? == 0 {
        return Ok(false);
    }
    let held = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE revoked_at IS NULL)";
    Ok(session.read_one(held, &[]).await?.try_get(0)?)
}

fn runner() -> Runner {
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(HISTORY);
    runner
}

/// The newest schema version this binary knows.
fn known() -> u32 {
    let newest = runner()
        .get_migrations()
        .iter()
        .map(refinery::Migration::version)
        .max();
    newest
        .and_then(|version| u32::try_from(version).ok())
        .unwrap_or(0)
}

/// Checks the schema, migrates it if that is allowed, and returns its name.
pub(super) async fn ensure(
    connector: &Connector,
    migrate: bool,
    needs_writes: bool,
) -> Result<String, OpenError> {
    let mut session = connector.connect("").await?;
    let schema = open::examine(&session).await?;
    if needs_writes {
        open::takes_writes(&session).await?;
    }
    let found = checked(&session, &schema).await?;
    let known = known();
    if found == known {
        return Ok(schema);
    }
    if !migrate {
        return Err(OpenError::NeedsMigration { found, known });
    }
    // Held on a separate connection, because refinery begins and ends transactions on the one it is given.
    let holder = connector.connect("").await?;
    lock(&holder).await?;
    let found = checked(&session, &schema).await?;
    if found < known {
        let mut attempt = 1;
        // Each migration is its own transaction, and completed ones are not repeated. There is no time limit.
        while let Err(error) = runner().run_async(session.client()).await {
            if attempt == TRIES || !is_undone_migration(&error) {
                return Err(OpenError::Migration(Cause::of(error)));
            }
            super::pause(attempt).await;
            attempt += 1;
        }
        tracing::info!(from = found, to = known, schema, "database migrated");
    }
    // The lock holder wrote nothing, and closing the connection releases the row too, so errors do not
    // matter.
    drop(holder.tell("ROLLBACK", Duration::ZERO).await);
    Ok(schema)
}

/// Returns the schema's version if this binary may use it.
async fn checked(session: &Session, schema: &str) -> Result<u32, OpenError> {
    let known = known();
    match version(session, schema).await? {
        Some(found) if found > known => Err(OpenError::NewerSchema { found, known }),
        Some(found) => Ok(found),
        None => Ok(0),
    }
}

/// Returns the version of the last migration applied; `None` if there was none.
async fn version(session: &Session, schema: &str) -> Result<Option<u32>, OpenError> {
    let names = "SELECT tablename::text FROM pg_catalog.pg_tables WHERE schemaname = $1";
    let rows = session.read(names, &[&schema]).await?;
    let names: Vec<&str> = rows.iter().filter_map(|row| row.try_get(0).ok()).collect();
    if !names.contains(&HISTORY) {
        return if OURS.iter().any(|ours| names.contains(ours)) {
            Err(OpenError::Foreign(schema.to_owned()))
        } else {
            Ok(None)
        };
    }
    let newest = format!("SELECT max(version)::bigint FROM {HISTORY}");
    let newest: Option<i64> = session.read_one(&newest, &[]).await?.try_get(0)?;
    Ok(newest.and_then(|version| u32::try_from(version).ok()))
}

/// Locks the row that only one migrating process may hold, in a transaction that stays open.
async fn lock(session: &Session) -> Result<(), OpenError> {
    const TABLE: &str =
        "CREATE TABLE IF NOT EXISTS wopr_migration_lock (one boolean PRIMARY KEY CHECK (one));
        INSERT INTO wopr_migration_lock (one) VALUES (true) ON CONFLICT DO NOTHING";
    let take = format!(
        "SET idle_in_transaction_session_timeout = 0;
        SET lock_timeout = '{}s';
        BEGIN ISOLATION LEVEL READ COMMITTED;
        SELECT one FROM wopr_migration_lock FOR UPDATE",
        OTHERS.as_secs()
    );
    for step in [TABLE, take.as_str()] {
        let mut attempt = 1;
        while let Err(error) = session.tell(step, OTHERS).await? {
            // Concurrent `CREATE TABLE` statements collide in the server's catalog.
            let is_collision = matches!(
                error.code(),
                Some(&SqlState::UNIQUE_VIOLATION | &SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_OBJECT)
            );
            if attempt == TRIES || !(is_collision || is_undone_by_others(&error)) {
                return Err(OpenError::Migration(fault::cause(error)));
            }
            // The failure may have left the transaction open.
            let ended = session.tell("ROLLBACK", Duration::ZERO).await?;
            ended.map_err(|error| OpenError::Migration(fault::cause(error)))?;
            super::pause(attempt).await;
            attempt += 1;
        }
    }
    Ok(())
}

/// Returns `true` if a migration was rolled back by the server in favor of another transaction.
fn is_undone_migration(error: &refinery::Error) -> bool {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<tokio_postgres::Error>() {
            return is_undone_by_others(error);
        }
        cause = error.source();
    }
    false
}
