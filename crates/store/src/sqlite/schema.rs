//! The schema and its versions.
//!
//! Migrations are embedded and only go forward. A file of a newer binary is refused before anything is written.

use std::path::Path;

use rusqlite::Connection;

use super::{
    open::{self, At as _, OpenError},
    place,
};

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
    // Let go after the connection.
    let mut lock = open::lock(path)?;
    let found = check(path, true)?;
    open::make_private(path);
    lock.take_file(path)?;
    let mut conn = open::writing(path).at(path)?;
    set_up(&mut conn, path, None, found)?;
    Ok(known())
}

/// Reads the schema version of a database without changing it; 0 where there is none yet.
///
/// # Errors
/// See [`OpenError`].
pub fn schema_version(path: impl AsRef<Path>) -> Result<u32, OpenError> {
    let path = path.as_ref();
    Ok(version(path)?.unwrap_or(0))
}

/// Whether a database holds a key that is not revoked. Changes nothing.
///
/// # Errors
/// See [`OpenError`].
pub fn holds_keys(path: impl AsRef<Path>) -> Result<bool, OpenError> {
    let path = path.as_ref();
    if check(path, true)? == 0 {
        return Ok(false);
    }
    let conn = open::reading(path).at(path)?;
    let held = "SELECT EXISTS (SELECT 1 FROM api_keys WHERE revoked_at IS NULL)";
    conn.query_row(held, [], |row| row.get(0)).at(path)
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

/// Checks, without writing anything, that this binary may use a database, and returns its schema version.
pub(super) fn check(path: &Path, migrate: bool) -> Result<u32, OpenError> {
    let known = known();
    let found = version(path)?.unwrap_or(0);
    if found > known {
        return Err(OpenError::NewerSchema { found, known });
    }
    if found < known && !migrate {
        return Err(OpenError::NeedsMigration { found, known });
    }
    Ok(found)
}

/// Sets a file up and brings its schema from the version found to that of this binary.
pub(super) fn set_up(
    conn: &mut Connection,
    path: &Path,
    max_bytes: Option<u64>,
    found: u32,
) -> Result<(), OpenError> {
    open::prepare(conn, max_bytes).at(path)?;
    let known = known();
    if found < known {
        embedded::migrations::runner()
            // One transaction: a migration without its row in the history would be applied again.
            .set_grouped(true)
            .run(conn)
            .map_err(|error| OpenError::Migration {
                path: path.to_owned(),
                why: error.to_string(),
            })?;
        tracing::info!(from = found, to = known, "database migrated");
    }
    Ok(())
}

/// The version of the last migration applied; `None` where none ever was.
///
/// The connection is read-only, because any other would tidy up the write-ahead log that a newer wopr may have
/// left behind.
fn version(path: &Path) -> Result<Option<u32>, OpenError> {
    // Even a connection that only reads would throw the log of an empty file away.
    place::check(path)?;
    if !path.exists() {
        return Ok(None);
    }
    match last_applied(path).at(path)? {
        Found::Version(version) => Ok(version),
        Found::Nothing => Ok(None),
        Found::Others => Err(OpenError::Foreign(path.to_owned())),
    }
}

/// What a file holds.
enum Found {
    /// Our tables, of this version.
    Version(Option<u32>),
    Nothing,
    /// Tables of something else.
    Others,
}

fn last_applied(path: &Path) -> rusqlite::Result<Found> {
    let conn = if has_rollback_journal(path) {
        open::writing(path)?
    } else {
        open::reading(path)?
    };
    let has_history: bool = conn.query_row(
        "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)",
        [HISTORY],
        |row| row.get(0),
    )?;
    if has_history {
        let version = conn.query_row(&format!("SELECT max(version) FROM {HISTORY}"), [], |row| {
            row.get(0)
        })?;
        return Ok(Found::Version(version));
    }
    let has_others: bool = conn.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| {
        row.get(0)
    })?;
    Ok(if has_others { Found::Others } else { Found::Nothing })
}

/// Whether a process ended while it made the file, before the file had a write-ahead log. Only a connection that
/// may write can roll that back.
fn has_rollback_journal(path: &Path) -> bool {
    let mut name = place::file_of(path).into_os_string();
    name.push("-journal");
    Path::new(&name).exists()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A writing connection to a new database with this binary's schema.
    pub(in crate::sqlite) fn database() -> (tempfile::TempDir, Connection) {
        let files = tempfile::tempdir().expect("a directory");
        let path = files.path().join("db");
        let mut conn = open::writing(&path).expect("open");
        set_up(&mut conn, &path, None, 0).expect("a schema");
        (files, conn)
    }

    #[test]
    fn a_migration_cut_off_before_its_first_step_is_no_foreign_database() {
        let files = tempfile::tempdir().expect("a directory");
        let path = files.path().join("db");
        let history =
            format!("CREATE TABLE {HISTORY} (version INTEGER, name TEXT, applied_on TEXT, checksum TEXT)");
        open::writing(&path)
            .expect("open")
            .execute_batch(&history)
            .expect("the history alone");
        assert_eq!(check(&path, true).expect("ours"), 0);
        assert_eq!(migrate(&path).expect("migrate"), known());
    }
}
