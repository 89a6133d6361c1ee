//! The schema and its versions.
//!
//! Migrations are embedded and only go forward; a schema of a newer binary is refused before anything is written.
//! Several processes may start at once: whoever migrates holds the one row of a table of its own while it does,
//! and the others find the work done when they get it.

use std::time::Duration;

use refinery::Runner;
use tokio_postgres::error::SqlState;

use super::{
    Options,
    connect::{Connector, Session, TRIES, is_undone_by_others},
    fault, open,
    open_error::OpenError,
};

mod embedded {
    refinery::embed_migrations!("migrations/postgres");
}

/// Where refinery keeps what it has applied. Not its usual name, which another program in the schema may use.
const HISTORY: &str = "wopr_schema_history";

/// Tables whose names tell that a schema is ours, or somebody else's.
const OURS: [&str; 3] = ["runs", "events", "effects"];

/// How long the migrations of another process are waited for.
const OTHERS: Duration = Duration::from_secs(120);

/// Brings a database to the schema of this binary and returns its version. Does nothing to one that has it.
///
/// # Errors
/// See [`OpenError`]; the database is as it was then.
pub async fn migrate(url: &str) -> Result<u32, OpenError> {
    let connector = open::parse(url, &mut Options::default())?;
    ensure(&connector, true).await?;
    Ok(known())
}

/// Reads the schema version of a database without changing it; 0 where there is none yet.
///
/// # Errors
/// See [`OpenError`].
pub async fn schema_version(url: &str) -> Result<u32, OpenError> {
    let connector = open::parse(url, &mut Options::default())?;
    let session = connector.connect("").await?;
    let schema = open::examine(&session).await?;
    Ok(version(&session, &schema).await?.unwrap_or(0))
}

/// Whether a database holds a key that is not revoked. Changes nothing.
///
/// # Errors
/// See [`OpenError`].
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

/// Checks the schema and migrates it if that is allowed; says its name.
pub(super) async fn ensure(connector: &Connector, migrate: bool) -> Result<String, OpenError> {
    let mut session = connector.connect("").await?;
    let schema = open::examine(&session).await?;
    let found = checked(&session, &schema).await?;
    let known = known();
    if found == known {
        return Ok(schema);
    }
    if !migrate {
        return Err(OpenError::NeedsMigration { found, known });
    }
    // Held on a connection of its own, because refinery begins and ends transactions on the one it is given.
    let holder = connector.connect("").await?;
    lock(&holder).await?;
    let found = checked(&session, &schema).await?;
    if found < known {
        let mut attempt = 1;
        // Each migration is a transaction, and those that are done are not repeated. It takes as long as it takes.
        while let Err(error) = runner().run_async(session.client()).await {
            if attempt == TRIES || !is_undone_migration(&error) {
                return Err(OpenError::Migration(error.to_string()));
            }
            super::pause(attempt).await;
            attempt += 1;
        }
        tracing::info!(from = found, to = known, schema, "database migrated");
    }
    // Nothing was written here, and the end of the connection gives the row back as well: no answer is no error.
    drop(holder.tell("ROLLBACK", Duration::ZERO).await);
    Ok(schema)
}

/// The schema's version, if this binary may use it.
async fn checked(session: &Session, schema: &str) -> Result<u32, OpenError> {
    let known = known();
    match version(session, schema).await? {
        Some(found) if found > known => Err(OpenError::NewerSchema { found, known }),
        Some(found) => Ok(found),
        None => Ok(0),
    }
}

/// The version of the last migration applied; `None` where none ever was.
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

/// Takes the row only one migrating process may hold, in a transaction that stays open.
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
            // Two that create a table at the same time collide in the server's own catalog.
            let is_collision = matches!(
                error.code(),
                Some(&SqlState::UNIQUE_VIOLATION | &SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_OBJECT)
            );
            if attempt == TRIES || !(is_collision || is_undone_by_others(&error)) {
                return Err(OpenError::Migration(fault::text(&error)));
            }
            // Ends the transaction the failure left open, if it did.
            let ended = session.tell("ROLLBACK", Duration::ZERO).await?;
            ended.map_err(|error| OpenError::Migration(fault::text(&error)))?;
            super::pause(attempt).await;
            attempt += 1;
        }
    }
    Ok(())
}

/// Whether a migration failed by the server's word that it gave way to another transaction.
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
