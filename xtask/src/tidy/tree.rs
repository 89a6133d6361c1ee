//! The files to check: those that are committed, or would be by `git add --all`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process::read;

/// Paths from the repository root, with `/` as separator, and the content of text files.
#[derive(Debug, Default)]
pub(super) struct Tree {
    texts: BTreeMap<String, String>,
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
}

impl Tree {
    /// Reads the repository in the current directory.
    pub(super) fn read() -> Result<Self> {
        Self::read_at(".")
    }

    /// Reads the repository in this directory.
    pub(super) fn read_at(root: &str) -> Result<Self> {
        // The checkout may belong to another user, as in a container.
        let listed = read(Command::new("git").args([
            "-C",
            root,
            "-c",
            "safe.directory=*",
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]))
        .context("list the repository's files")?;
        let mut tree = Self::default();
        for path in listed.split_terminator('\0') {
            let file = Path::new(root).join(path);
            // Skips files that are deleted but still in the index.
            let Ok(meta) = fs::symlink_metadata(&file) else {
                continue;
            };
            if meta.is_file() {
                tree.add(path, fs::read(&file).with_context(|| format!("read {path}"))?);
            }
        }
        Ok(tree)
    }

    fn add(&mut self, path: &str, bytes: Vec<u8>) {
        self.files.insert(path.to_owned());
        let mut folder = path;
        while let Some((parent, _)) = folder.rsplit_once('/') {
            self.folders.insert(parent.to_owned());
            folder = parent;
        }
        if let Ok(text) = String::from_utf8(bytes) {
            self.texts.insert(path.to_owned(), text);
        }
    }

    /// Returns the text files whose path ends with `ending`.
    pub(super) fn texts<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts
            .iter()
            .filter(move |(path, _)| path.ends_with(ending))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Returns `true` if the file or folder exists; the empty path is the root.
    pub(super) fn has(&self, path: &str) -> bool {
        path.is_empty() || self.files.contains(path) || self.folders.contains(path)
    }

    pub(super) fn n_files(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
impl Tree {
    pub(super) fn of<const N: usize>(files: [(&str, &str); N]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.add(path, text.as_bytes().to_vec());
        }
        tree
    }

    /// Applies a rule to these files and returns its findings, one line each.
    pub(super) fn findings<const N: usize>(
        rule: fn(&Self) -> Vec<super::Finding>,
        files: [(&str, &str); N],
    ) -> Vec<String> {
        rule(&Self::of(files)).iter().map(ToString::to_string).collect()
    }
}
