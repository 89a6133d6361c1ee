//! Integrity check of the pages of a database file.
//!
//! A host reads few pages when it opens a file, so damage elsewhere goes unnoticed. This check reads the
//! whole file. It does not validate the rows; [`super::verify`] does that for a copy.

use std::path::Path;

use super::{
    fault::is_damage,
    open::{self, At as _, OpenError},
    place,
};

/// Finds the first damage in the pages of a database; `None` if there is none. Writes nothing and reads every
/// page. A host that has the file open cannot restart its log meanwhile.
pub fn first_damage(path: impl AsRef<Path>) -> Result<Option<String>, OpenError> {
    let path = path.as_ref();
    place::check(path)?;
    match checked(path) {
        Ok(found) if found == "ok" => Ok(None),
        Ok(found) => Ok(Some(one_line(&found))),
        // The file is truncated there, or not an SQLite database.
        Err(error) if is_damage(&error) => Ok(Some(open::told(&error))),
        Err(error) => Err(error).at(path),
    }
}

/// Returns "ok" or the first damage.
fn checked(path: &Path) -> rusqlite::Result<String> {
    open::reading(path)?.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

/// SQLite's report on one line, without the heading that names the database.
fn one_line(found: &str) -> String {
    let said: Vec<_> = found.lines().filter(|line| !line.starts_with("***")).collect();
    said.join("; ")
}
