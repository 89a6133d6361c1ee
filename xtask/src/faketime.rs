//! Where libfaketime is, by which a process sees another time than there is.
//!
//! The chaos tests compile this file too, so it uses nothing else of this crate.

use std::fs;
use std::path::PathBuf;

/// Where Debian's package `libfaketime` keeps it, and where its own installation does.
const FOLDERS: [&str; 2] = ["/usr/lib", "/usr/local/lib"];
/// The one for programs with threads.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The library in a folder of this machine's libraries, or in one below: Debian has one for each architecture.
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
