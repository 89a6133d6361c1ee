//! The location of a database: its file, and the write-ahead log beside it.
//!
//! SQLite treats a missing or empty file as a new database and deletes the log beside it, which may hold
//! acknowledged writes. A crash cannot cause this state, because the first page is on disk before a log
//! exists. Someone must have removed the file, so the store refuses to open until they decide.
//!
//! If the file of an open database is removed, it still accepts writes, which are lost when it is closed.
//! [`Files`] detects this by device and inode number; on systems without them (not Unix) a file in use cannot
//! be removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{fault::Failure, open::OpenError};

/// Symbolic links followed before a chain counts as a loop; the limit of Linux.
const MAX_LINKS: usize = 40;

/// Resolves the symbolic links of a path to a file, even if the last link points to a missing file.
///
/// SQLite names the log after this file rather than a link to it, and so must everything else beside a
/// database: its lock and its key. Links in the parent folders do not matter, since they lead to the same
/// folder.
#[must_use]
pub fn file_of(path: &Path) -> PathBuf {
    let mut file = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&file) else { break };
        file = file.parent().unwrap_or(Path::new("")).join(target);
    }
    file
}

/// The write-ahead log of a database.
pub(super) fn log_of(path: &Path) -> PathBuf {
    beside(path, "-wal")
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = file_of(path).into_os_string();
    name.push(suffix);
    name.into()
}

/// Refuses a database if this process may not write it, its log, or the shared memory of the log. SQLite opens such a
/// database for reading, and leaves shared memory with the mode of the database: once that is writable again, its log
/// is not.
///
/// Must not be called while this process has the database open: closing a file releases the locks of SQLite.
pub(super) fn check_writable(path: &Path) -> Result<(), OpenError> {
    for path in [file_of(path), log_of(path), beside(path, "-shm")] {
        // Opening a pipe would wait.
        let is_known = fs::metadata(&path).is_ok_and(|file| file.is_file() || file.is_dir());
        if is_known && let Err(source) = fs::OpenOptions::new().write(true).open(&path) {
            return Err(OpenError::Unwritable { path, source });
        }
    }
    Ok(())
}

/// Refuses a database whose file is missing or empty beside a non-empty log, is a folder, or has several hard links.
/// Writes nothing.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    check_links(path)?;
    let is_there = match fs::metadata(path) {
        Ok(file) if file.is_dir() => {
            return Err(OpenError::Io {
                path: path.to_owned(),
                source: io::ErrorKind::IsADirectory.into(),
            });
        }
        Ok(file) if file.len() > 0 => return Ok(()),
        Ok(_) => true,
        Err(_) => false,
    };
    let log = log_of(path);
    if fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Err(OpenError::Orphaned {
            path: path.to_owned(),
            log,
            is_there,
        });
    }
    Ok(())
}

/// Refuses a file with several hard links. Each name would have its own log, and the contents of one log
/// would be missing, or cause damage, when opened through another name.
#[cfg(unix)]
fn check_links(path: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::MetadataExt as _;

    match fs::metadata(path) {
        Ok(file) if file.is_file() && file.nlink() > 1 => Err(OpenError::Linked {
            path: path.to_owned(),
            names: file.nlink(),
        }),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(not(unix))]
fn check_links(_: &Path) -> Result<(), OpenError> {
    Ok(())
}

/// The device and inode number of the file with this name, if it exists.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Path) -> Option<(u64, u64)> {
    None
}

/// A path and the file it referred to when the database was opened.
#[derive(Debug)]
struct Named {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Named {
    fn now(path: PathBuf) -> Self {
        let identity = identity(&path);
        Self { path, identity }
    }

    fn is_the_same(&self) -> bool {
        identity(&self.path) == self.identity
    }
}

/// The files of an open database, checked against their paths.
#[derive(Debug)]
pub(super) struct Files {
    names: Vec<Named>,
    /// The files were gone at the last check.
    were_gone: AtomicBool,
}

impl Files {
    /// Records the files of a database that was just opened and read.
    pub(super) fn of(path: &Path) -> Self {
        Self::called([path.to_owned(), log_of(path)])
    }

    /// Records files by their paths.
    pub(super) fn called(names: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            names: names.into_iter().map(Named::now).collect(),
            were_gone: AtomicBool::new(false),
        }
    }

    /// Checks that the paths still refer to these files, with one `stat` each.
    ///
    /// # Errors
    /// Names the path that does not. Writes to its file are lost when the last connection closes.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Some(gone) = self.names.iter().find(|named| !named.is_the_same()) else {
            if self.were_gone.swap(false, Relaxed) {
                tracing::info!("the database's files are back");
            }
            return Ok(());
        };
        let failure = Failure::not_written(format!(
            "{} was removed or replaced while it was open",
            gone.path.display()
        ));
        if !self.were_gone.swap(true, Relaxed) {
            tracing::error!(
                failure = %failure.cause,
                "a file of the database is gone, writes are refused"
            );
        }
        Err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::{open, schema};

    /// Copies the files as a start that is interrupted now would leave them.
    fn cut_off(from: &Path) -> (tempfile::TempDir, PathBuf) {
        let files = tempfile::tempdir().expect("a folder");
        for entry in from.read_dir().expect("a folder") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), files.path().join(entry.file_name())).expect("copy");
        }
        let path = files.path().join("db");
        (files, path)
    }

    #[test]
    fn an_interrupted_first_start_can_be_repeated() {
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("db");
        let again = || {
            let (_files, path) = cut_off(files.path());
            assert_eq!(schema::migrate(&path).expect("again"), schema::known());
        };
        open::make_private(&path);
        again();
        let mut conn = open::writing(&path).expect("open");
        again();
        open::prepare(&conn, None).expect("prepare");
        assert!(
            fs::metadata(&path).expect("a file").len() > 0,
            "before there is a log"
        );
        again();
        // The rest is one transaction, so it is either in the log or not.
        schema::set_up(&mut conn, &path, None, 0).expect("a schema");
        assert!(fs::metadata(log_of(&path)).expect("a log").len() > 0);
        again();
    }

    #[test]
    fn database_beside_shared_memory_that_cannot_be_written_is_refused() {
        let files = tempfile::tempdir().expect("a folder");
        let path = files.path().join("db");
        schema::migrate(&path).expect("a database");
        check_writable(&path).expect("writable");
        // A folder, because root may write any file.
        let memory = files.path().join("db-shm");
        fs::create_dir(&memory).expect("a folder");
        let refused = schema::migrate(&path).expect_err("refused");
        let said = refused.to_string();
        assert!(
            matches!(refused, OpenError::Unwritable { path, .. } if path == memory),
            "{said}"
        );
        fs::remove_dir(&memory).expect("remove");
        schema::migrate(&path).expect("again");
    }

    #[cfg(unix)]
    #[test]
    fn dangling_links_are_resolved() {
        let files = tempfile::tempdir().expect("a folder");
        let (link, log) = (files.path().join("link"), files.path().join("db-wal"));
        std::os::unix::fs::symlink("db", &link).expect("a link");
        check(&link).expect("a new database");
        fs::write(&log, "writes").expect("a log");
        let refused = check(&link).expect_err("its log is there");
        assert!(matches!(refused, OpenError::Orphaned { .. }), "{refused:?}");
    }
}
