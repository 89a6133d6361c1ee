//! Two hosts over one database.

use wopr_core::RunStatus;
use wopr_engine::Extras;
use wopr_server::{Host, SecretsError, StartError};
use wopr_store::{PostgresStore, Registry as _, postgres};

use crate::harness::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_share_a_database_and_close_apart() {
    let url = schema().await;
    let (one, two) = tokio::join!(Host::open(config(&url)), Host::open(config(&url)));
    let (one, two) = (one.unwrap(), two.unwrap());
    register(&[one.engine(), two.engine()]).await;
    let run = create(one.engine(), "approve").await.key;
    one.close().await;

    follow(two.engine(), &run, RunStatus::WaitingApproval).await;
    two.engine()
        .command(&run, accept(), Extras::default())
        .await
        .unwrap();
    follow(two.engine(), &run, RunStatus::Completed).await;
    assert!(two.store_stats().is_some());
    two.close().await;
}

#[tokio::test]
async fn without_a_master_key_a_host_on_postgres_refuses_to_start() {
    let url = schema().await;
    let mut config = config(&url);
    config.secrets.master_key = None;
    let refused = Host::open(config).await.expect_err("no key");
    assert!(
        matches!(refused, StartError::Secrets(SecretsError::Required)),
        "{refused:?}"
    );
    // Nothing holds the database: others use it.
    let store = PostgresStore::open(&url, postgres::Options::default())
        .await
        .unwrap();
    assert_eq!(store.keys().await.unwrap(), []);
}
