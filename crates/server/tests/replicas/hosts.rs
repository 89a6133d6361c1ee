//! Two hosts on one database.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::StatusCode;
use serde_json::json;
use wopr_core::RunStatus;
use wopr_engine::SideRows;
use wopr_server::{Host, SecretsError, StartError, config::Secret};
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
        .command(&run, accept(), SideRows::default())
        .await
        .unwrap();
    follow(two.engine(), &run, RunStatus::Completed).await;
    assert!(two.store_stats().is_some());
    two.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polls_of_a_stalled_database_are_refused_soon() {
    // More than may read concurrently on any machine.
    const POLLS: usize = 12;
    const AT_ONCE: usize = 8;
    let url = schema().await;
    let host = Host::open(config(&url)).await.unwrap();
    register(&[host.engine()]).await;
    let run = create(host.engine(), "approve").await.key.run;
    let (raw, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    raw.batch_execute("BEGIN; LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();

    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let mut polls: FuturesUnordered<_> = (0..POLLS)
        .map(|_| ask(&host, "GET", &path, ALICE, None))
        .collect();
    let begun = Instant::now();
    for _ in AT_ONCE..POLLS {
        let (status, headers, _) = polls.next().await.unwrap();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(headers.contains_key("retry-after"));
    }
    // The admitted readers wait for the lock, for up to 20 seconds.
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    raw.batch_execute("ROLLBACK").await.unwrap();
    let rest: Vec<_> = polls.map(|(status, ..)| status).collect().await;
    assert!(rest.contains(&StatusCode::OK), "{rest:?}");
    assert_eq!(ask(&host, "GET", &path, ALICE, None).await.0, StatusCode::OK);
    host.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_bulk_cancel_finishes_a_partial_one() {
    let url = schema().await;
    let host = Host::open(config(&url)).await.unwrap();
    register(&[host.engine()]).await;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let run = create(host.engine(), "approve").await.key;
        follow(host.engine(), &run, RunStatus::WaitingApproval).await;
        runs.push(run.run.to_string());
    }
    let (raw, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    // The disk is full for one of the runs.
    raw.batch_execute(&format!(
        "CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'full' USING ERRCODE = '53100';
         END $$;
         CREATE TRIGGER is_full BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.run = '{}')
             EXECUTE FUNCTION is_full()",
        runs[1]
    ))
    .await
    .unwrap();

    let path = "/v1/runs:bulk-cancel";
    let body = json!({ "runIds": runs });
    let (status, _, first) = ask_once(&host, "k", path, body.clone()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(first["results"][0]["ok"], true, "{first}");
    assert_eq!(
        first["results"][1]["error"]["error"], "service_unavailable",
        "{first}"
    );

    raw.batch_execute("DROP TRIGGER is_full ON events").await.unwrap();
    let (_, headers, again) = ask_once(&host, "k", path, body.clone()).await;
    assert!(!headers.contains_key("openwop-idempotent-replay"));
    assert_eq!(again["results"][0]["ok"], true, "{again}");
    assert_eq!(again["results"][1]["ok"], true, "{again}");
    // This response is stored.
    let (_, headers, last) = ask_once(&host, "k", path, body).await;
    assert!(headers.contains_key("openwop-idempotent-replay"));
    assert_eq!(last, again);
    host.close().await;
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
    // The refused start holds nothing open: others can use the database.
    let store = PostgresStore::open(&url, postgres::Options::default())
        .await
        .unwrap();
    assert_eq!(store.keys().await.unwrap(), []);
}

#[tokio::test]
async fn replica_with_another_master_key_refuses_to_start() {
    let url = schema().await;
    let first = Host::open(config(&url)).await.expect("a host");
    let mut other = config(&url);
    other.secrets.master_key = Some(Secret::new("b3RoZXItbWFzdGVyLWtleS1vZi0zMi1ieXRlcy0uLi4="));
    let refused = Host::open(other).await.expect_err("another key");
    assert!(
        matches!(refused, StartError::Secrets(SecretsError::OtherKey)),
        "{refused:?}"
    );
    let second = Host::open(config(&url))
        .await
        .expect("a replica with the same key");
    second.close().await;
    first.close().await;
}
