//! Where a database lies: its file, and the write-ahead log beside it.
//!
//! SQLite takes a file that is missing or empty for a new database and throws away the log beside it, which may hold
//! writes that were acknowledged. It cannot have come to that by a crash: the first page is on the disk before there is a
//! log at all. Somebody took the file, so nothing is done until he has said what he wants.
//!
//! A file that is taken while it is open goes on to take writes, which nobody finds any more once it is closed. [`Files`] sees
//! that by the numbers of device and inode; where there are none (not on Unix) a file in use cannot be taken.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use super::{fault::Failure, open::OpenError};

/// Symbolic links followed before a chain counts as a loop, as Linux does.
const MAX_LINKS: usize = 40;

/// The file that a path names, symbolic links followed, also where the last one leads nowhere yet.
///
/// SQLite names the log after this file and not after a link to it, and so must everything else that lies beside a
/// database: its lock and its key. A link to a folder on the way does not matter, since it leads to the same folder.
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
    let mut name = file_of(path).into_os_string();
    name.push("-wal");
    name.into()
}

/// Refuses a database whose file is missing or empty beside a log that is not, and one that has several names. Looks, and
/// changes nothing.
pub(super) fn check(path: &Path) -> Result<(), OpenError> {
    check_links(path)?;
    let is_there = match fs::metadata(path) {
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

/// Refuses a file with hard links. Each name would have a log of its own, and what is in one log is missing, or damage,
/// through the other name.
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

/// Which file it is that has a name, if any.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;

    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Path) -> Option<(u64, u64)> {
    None
}

/// A name and the file that had it when the database was opened.
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

/// The files of an open database. Whoever reads it again finds them by their names.
#[derive(Debug)]
pub(super) struct Files {
    names: Vec<Named>,
    /// Whether they were gone at the last look.
    were_gone: AtomicBool,
}

impl Files {
    /// Notes the files of a database that has just been opened and read.
    pub(super) fn of(path: &Path) -> Self {
        Self::called([path.to_owned(), log_of(path)])
    }

    /// Notes files by their names.
    pub(super) fn called(names: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            names: names.into_iter().map(Named::now).collect(),
            were_gone: AtomicBool::new(false),
        }
    }

    /// Looks whether the names still lead to these files, which takes a `stat` each.
    ///
    /// # Errors
    /// Names the one that does not. What is written then is lost with the last connection.
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
                failure = failure.text,
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

    /// What a start that is cut off now leaves behind, as another one finds it.
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
    fn a_first_start_that_was_cut_off_can_be_done_again() {
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
        // The rest is one transaction, so it is in the log or it is not.
        schema::set_up(&mut conn, &path, None, 0).expect("a schema");
        assert!(fs::metadata(log_of(&path)).expect("a log").len() > 0);
        again();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_looked_behind() {
        let files = tempfile::tempdir().expect("a folder");
        let (link, log) = (files.path().join("link"), files.path().join("db-wal"));
        std::os::unix::fs::symlink("db", &link).expect("a link");
        check(&link).expect("a new database");
        fs::write(&log, "writes").expect("a log");
        let refused = check(&link).expect_err("its log is there");
        assert!(matches!(refused, OpenError::Orphaned { .. }), "{refused:?}");
    }
}
