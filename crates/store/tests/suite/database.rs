//! A database file that tests open, close and tamper with.

use std::path::PathBuf;

use rusqlite::Connection;
use wopr_store::{SqliteStore, sqlite::Options};

/// A database in a directory of its own.
pub(crate) struct Database {
    _files: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Database {
    pub(crate) fn new() -> Self {
        let files = tempfile::tempdir().expect("a directory");
        let path = files.path().join("wopr.db");
        Self { _files: files, path }
    }

    pub(crate) fn open(&self) -> SqliteStore {
        self.open_with(Options::default())
    }

    pub(crate) fn open_with(&self, options: Options) -> SqliteStore {
        SqliteStore::open(&self.path, options).expect("open")
    }

    /// A connection of our own, to do what no store does.
    pub(crate) fn raw(&self) -> Connection {
        let raw = Connection::open(&self.path).expect("open");
        raw.busy_timeout(std::time::Duration::from_secs(5))
            .expect("a timeout");
        raw
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.raw().execute_batch(sql).expect("our own statement");
    }
}
