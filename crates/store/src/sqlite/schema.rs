//! The schema and its versions.
//!
//! Migrations are embedded and only go forward. A file of a newer binary is refused before anything is written.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension};

use super::open::{self, OpenError};

mod embedded {
    refinery::embed_migrations!("migrations/sqlite");
}

/// Where refinery keeps what it has applied.
const HISTORY: &str = "refinery_schema_history";

/// Brings a database to the schema of this binary and returns its version. Does nothing to one that has it.
///
/// # Errors
/// See [`OpenError`]; the database is as it was then.
pub fn migrate(path: impl AsRef<Path>) -> Result<u32, OpenError> {
    let path = path.as_ref();
    let _lock = open::lock(path)?;
    let mut conn = open::writing(path)?;
    ensure(&mut conn, path, None, true)?;
    Ok(known())
}

/// Reads the schema version of a database without changing it; 0 where there is none yet.
///
/// # Errors
/// See [`OpenError`].
pub fn schema_version(path: impl AsRef<Path>) -> Result<u32, OpenError> {
    let path = path.as_ref();
    if !path.exists() {
        return Ok(0);
    }
    Ok(version(&open::reading(path)?)?.unwrap_or(0))
}

/// The newest schema version this binary knows.
pub(super) fn known() -> u32 {
    let newest = embedded::migrations::runner()
        .get_migrations()
        .iter()
        .map(refinery::Migration::version)
        .max();
    newest
        .and_then(|version| u32::try_from(version).ok())
        .unwrap_or(0)
}

/// Checks the schema, sets the file up, and migrates it if that is allowed.
pub(super) fn ensure(
    conn: &mut Connection,
    path: &Path,
    max_bytes: Option<u64>,
    migrate: bool,
) -> Result<(), OpenError> {
    let known = known();
    let found = match version(conn)? {
        Some(found) if found > known => return Err(OpenError::NewerSchema { found, known }),
        Some(found) => found,
        None if has_tables(conn)? => return Err(OpenError::Foreign(path.to_owned())),
        None => 0,
    };
    if found < known && !migrate {
        return Err(OpenError::NeedsMigration { found, known });
    }
    open::prepare(conn, max_bytes)?;
    if found < known {
        embedded::migrations::runner()
            .run(conn)
            .map_err(|error| OpenError::Migration(error.to_string()))?;
        tracing::info!(from = found, to = known, "database migrated");
    }
    Ok(())
}

/// The version of the last migration applied; `None` where none ever was.
fn version(conn: &Connection) -> rusqlite::Result<Option<u32>> {
    if !has_table(conn, HISTORY)? {
        return Ok(None);
    }
    conn.query_row(&format!("SELECT max(version) FROM {HISTORY}"), [], |row| {
        row.get(0)
    })
}

fn has_table(conn: &Connection, name: &str) -> rusqlite::Result<bool> {
    let found = conn
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1",
            [name],
            |_| Ok(()),
        )
        .optional()?;
    Ok(found.is_some())
}

fn has_tables(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| {
        row.get(0)
    })
}
