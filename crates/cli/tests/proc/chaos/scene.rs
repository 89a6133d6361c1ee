//! Where a test keeps what it writes, and leaves it if it fails.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::host::place;

/// A folder of a test. When dropped it says where it is, unless the test is done with it.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    is_done: bool,
}

impl Folder {
    /// An empty one.
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

    /// Removes it.
    pub(super) fn done(mut self) {
        fs::remove_dir_all(&self.path).unwrap();
        self.is_done = true;
    }

    /// Writes something down for whoever looks into a failure.
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
