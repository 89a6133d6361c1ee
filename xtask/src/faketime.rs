//! Finds libfaketime, which shifts the clock of a process.
//!
//! The chaos tests compile this file too, so it uses nothing else of this crate.

use std::fs;
use std::path::PathBuf;

/// The library folders of Debian's package `libfaketime` and of a manual installation.
const FOLDERS: [&str; 2] = ["/usr/lib", "/usr/local/lib"];
/// The variant for multithreaded programs.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// Searches the library folders and their subfolders, since Debian has one for each architecture.
pub(crate) fn find() -> Option<PathBuf> {
    for folder in FOLDERS {
        let below = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        folders.push(PathBuf::from(folder));
        let mut libraries = folders.into_iter().map(|folder| folder.join(LIBRARY));
        if let Some(library) = libraries.find(|path| path.is_file()) {
            return Some(library);
        }
    }
    None
}
