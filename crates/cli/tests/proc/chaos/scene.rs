//! The folder of a test, which is kept if the test fails.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::host::place;

/// A folder that prints its path on drop, unless the test has finished with it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    is_done: bool,
}

impl Folder {
    /// Creates an empty folder.
    pub(super) fn new(name: &str) -> Self {
        let path = place().join("chaos").join(name);
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        fs::create_dir_all(&path).unwrap();
        Self { path, is_done: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn done(mut self) {
        fs::remove_dir_all(&self.path).unwrap();
        self.is_done = true;
    }

    /// Writes a file for the analysis of a failure.
    pub(super) fn keep(&self, name: &str, text: &str) {
        fs::write(self.path.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_done {
            println!("logs, the plan and the ledger are in {}", self.path.display());
        }
    }
}
