//! Opens databases written by released versions.
//!
//! A corpus is the data that one version stored, as text: a complete database on each backend, with runs in
//! every state, every event and every kind of work, and what the API showed of it. `cargo xtask corpus cut
//! VERSION` cuts one from this code into `crates/store/tests/corpus`. From then on, these tests open it with
//! every later version, compare the API views, and finish the pending work. Other tests cut a corpus into a
//! temporary folder, to test the procedure itself.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed, and the one that cuts says where"
)]

mod dump;
mod flows;
mod story;
mod views;
mod world;

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use dump::Backend;
use story::Corpus;

/// The variable with the folder for a cut; without it, a temporary folder is used.
const CUT: &str = "WOPR_CORPUS_CUT";

/// The folders of the stored versions.
fn kept() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/corpus");
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut versions: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    versions.sort();
    versions
}

/// Cuts a corpus from this code and checks it.
async fn cut(backend: Backend) {
    let passing = tempfile::tempdir().unwrap();
    let folder = env::var_os(CUT).map_or_else(|| passing.path().to_owned(), PathBuf::from);
    fs::create_dir_all(&folder).unwrap();
    story::cut(backend).await.write(&folder, backend);
    story::hold(&Corpus::read(&folder, backend), backend).await;
}

async fn hold_to_every_version(backend: Backend) {
    for folder in kept() {
        println!("{}", folder.display());
        story::hold(&Corpus::read(&folder, backend), backend).await;
    }
}

// Single-threaded: the host is stopped before its loops first run, so that it shows exactly what is stored.

#[tokio::test]
async fn this_version_reads_its_own_sqlite_corpus() {
    cut(Backend::Sqlite).await;
}

#[tokio::test]
async fn this_version_reads_its_own_postgres_corpus() {
    cut(Backend::Postgres).await;
}

#[tokio::test]
async fn every_released_sqlite_corpus_is_read() {
    hold_to_every_version(Backend::Sqlite).await;
}

#[tokio::test]
async fn every_released_postgres_corpus_is_read() {
    hold_to_every_version(Backend::Postgres).await;
}
