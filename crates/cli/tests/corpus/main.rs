//! Databases that releases left behind, opened by this code.
//!
//! A corpus is what one version stored, as text: a host's whole database on each backend, with runs in every state,
//! every event and every kind of work, and what the API showed of it. `cargo xtask corpus cut VERSION` cuts one from
//! this code into `crates/store/tests/corpus`. From then on each later version opens it here, shows the same, and
//! finishes what was left. The tests that cut one into a passing folder hold the machinery itself to that.

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

/// Names the folder that a cut goes to; without it, to one that passes.
const CUT: &str = "WOPR_CORPUS_CUT";

/// The versions that are kept.
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

/// Cuts a corpus from this code, and holds this code to it.
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

// One thread each: a host is stopped before its loops have had a turn, so that it shows what is stored.

#[tokio::test]
async fn what_this_version_stores_on_sqlite_it_reads() {
    cut(Backend::Sqlite).await;
}

#[tokio::test]
async fn what_this_version_stores_on_postgres_it_reads() {
    cut(Backend::Postgres).await;
}

#[tokio::test]
async fn what_every_release_stored_on_sqlite_is_read() {
    hold_to_every_version(Backend::Sqlite).await;
}

#[tokio::test]
async fn what_every_release_stored_on_postgres_is_read() {
    hold_to_every_version(Backend::Postgres).await;
}
