//! Whether a database's file is sound, as far as its pages tell.
//!
//! A host reads few pages of a file when it opens it, so one that is damaged elsewhere opens like any other. Looking takes a
//! read of the whole file. What the rows say is not looked at; [`super::verify`] does that to a copy.

use std::path::Path;

use super::{
    fault::is_damage,
    open::{self, At as _, OpenError},
    place,
};

/// Finds the first thing wrong with the pages of a database; `None` if nothing is. Writes nothing, reads every page, and
/// keeps a host that has the file open from starting its log over meanwhile.
///
/// # Errors
/// See [`OpenError`].
pub fn first_damage(path: impl AsRef<Path>) -> Result<Option<String>, OpenError> {
    let path = path.as_ref();
    place::check(path)?;
    match checked(path) {
        Ok(found) if found == "ok" => Ok(None),
        Ok(found) => Ok(Some(one_line(&found))),
        // So it ends where the file was cut off, or is none of SQLite's.
        Err(error) if is_damage(&error) => Ok(Some(open::told(&error))),
        Err(error) => Err(error).at(path),
    }
}

/// "ok", or what is wrong first.
fn checked(path: &Path) -> rusqlite::Result<String> {
    open::reading(path)?.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
}

/// What SQLite says, on one line: it begins with the database that it is about.
fn one_line(found: &str) -> String {
    let said: Vec<_> = found.lines().filter(|line| !line.starts_with("***")).collect();
    said.join("; ")
}
