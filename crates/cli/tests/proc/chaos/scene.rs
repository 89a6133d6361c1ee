//! Where a test keeps what it writes, and leaves it if it fails.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

use crate::host::place;

/// A folder of a test. Gone when dropped, unless the test fails.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// An empty one.
    pub(super) fn new(name: &str) -> Self {
        let path = place().join("chaos").join(name);
        if path.exists() {
            fs::remove_dir_all(&path).unwrap();
        }
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes something down for whoever looks into a failure.
    pub(super) fn keep(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if thread::panicking() {
            println!("logs and the ledger are in {}", self.0.display());
        } else {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }
}
