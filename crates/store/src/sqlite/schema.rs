//! The schema and its versions.
//!
//! Migrations are embedded and only go forward. A file of a newer binary is refused before anything is
//! written.

use std::path::Path;

use rusqlite::Connection;

use super::{
    open::{self, At as _, OpenError},
    place,
};

mod embedded {
    refinery::embed_migrations!("migrations/sqlite");
}

/// The table in which refinery records applied migrations.
const HISTORY: &str = "refinery_schema_history";

/// Migrates a database to the schema of this binary and returns its version. Does nothing if it is up to
/// date.
///
/// # Errors
/// The database is unchanged on error.
pub fn migrate(path: impl AsRef<Path>) -> Result<u32, OpenError> {
    let path = path.as_ref();
    // Declared first, so that it is released after the connection.
    let mut lock = open::lock(path)?;
    let found = check(path, true)?;
    open::make_private(path);
    lock.take_file(path)?;
    let mut conn = open::writing(path).at(path)?;
    set_up(&mut conn, path, None, found)?;
    Ok(known())
}

/// Reads the schema version of a database without changing it; 0 if there is none yet.
pub fn schema_version(path: impl AsRef<Path>) -> Result<u32, OpenError> {
    let path = path.as_ref();
    Ok(version(path)?.unwrap_or(0))
}

/// Returns `true` if a database holds a key that is not revoked. Changes nothing.
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

/// Sets up a file and migrates its schema from `found` to the version of this binary.
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
                source: Box::new(error),
            })?;
        tracing::info!(from = found, to = known, "database migrated");
    }
    Ok(())
}

/// Returns the version of the last migration applied; `None` if there was none.
///
/// The connection is read-only, because any other would delete the write-ahead log that a newer wopr may have
/// left.
fn version(path: &Path) -> Result<Option<u32>, OpenError> {
    // Even a read-only connection would delete the log of an empty file.
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

/// The contents of a file.
enum Found {
    /// Tables of wopr, in this version.
    Version(Option<u32>),
    Nothing,
    /// Tables of another program.
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

/// Returns `true` if a process died while it created the file, before the file had a write-ahead log. Only a
/// read-write connection can roll that back.
fn has_rollback_journal(path: &Path) -> bool {
    let mut name = place::file_of(path).into_os_string();
    name.push("-journal");
    Path::new(&name).exists()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A read-write connection to a new database with this binary's schema.
    pub(in crate::sqlite) fn database() -> (tempfile::TempDir, Connection) {
        let files = tempfile::tempdir().expect("a directory");
        let path = files.path().join("db");
        let mut conn = open::writing(&path).expect("open");
        set_up(&mut conn, &path, None, 0).expect("a schema");
        (files, conn)
    }

    /// Checks that statements read only rows that they return, in the order of an index.
    pub(in crate::sqlite) fn assert_indexed<'s>(
        conn: &Connection,
        statements: impl IntoIterator<Item = &'s str>,
    ) {
        for sql in statements {
            let mut statement = conn
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("a valid statement");
            let n = statement.parameter_count();
            let steps = statement
                .query_map(rusqlite::params_from_iter(vec![0; n]), |row| row.get(3))
                .expect("a plan");
            let plan: Vec<String> = steps.collect::<Result<_, _>>().expect("readable steps");
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            // A full scan of the few removal marks is acceptable.
            let scans = plan
                .iter()
                .any(|step| step.starts_with("SCAN") && step != "SCAN removals");
            assert!(!sorts && !scans, "{sql}: {plan:?}");
        }
    }

    #[test]
    fn an_interrupted_migration_does_not_look_like_a_foreign_database() {
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
