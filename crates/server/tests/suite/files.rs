//! The files of a host: private to their owner, and none if the host has no keys.

use wopr_server::{Host, StartError, config::StoreUrl};

use crate::server::config;

#[cfg(unix)]
#[tokio::test]
async fn database_files_are_private_to_their_owner() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.store = StoreUrl::Sqlite(folder.path().join("wopr.db"));
    let host = Host::open(config).await.unwrap();
    let mut n_files = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        // A lock file has no content.
        if entry.metadata().unwrap().len() > 0 {
            n_files += 1;
            assert_eq!(mode & 0o777, 0o600, "{:?}", entry.file_name());
        }
    }
    assert!(n_files > 0);
    host.close().await;
}

#[tokio::test]
async fn a_host_without_keys_leaves_no_database() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    config.auth.keys.clear();
    config.store = StoreUrl::Sqlite(folder.path().join("wopr.db"));
    let error = Host::open(config).await.unwrap_err();
    assert!(matches!(error, StartError::NoKeys), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
