//! Opening a PostgreSQL database that is empty, older, newer, foreign, in concurrent use, or unreachable.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use wopr_store::{
    Log as _, PostgresStore,
    postgres::{self, OpenError, Options},
};

use crate::{
    make::*,
    outages::{poison, raise},
    schema::Schema,
};

const BY_HAND: fn() -> Options = || Options {
    migrate: false,
    ..Options::default()
};

async fn refused(url: &str, options: Options) -> OpenError {
    PostgresStore::open(url, options)
        .await
        .expect_err("not to be opened")
}

/// Lists the tables of a schema.
async fn tables(schema: &Schema) -> Vec<String> {
    let rows = schema
        .raw()
        .await
        .query(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1",
            &[],
        )
        .await
        .expect("our own statement");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_starts_migrate_once() {
    let schema = Schema::new().await;
    let mut starting = JoinSet::new();
    for _ in 0..6 {
        let url = schema.url();
        starting.spawn(async move { PostgresStore::open(&url, Options::default()).await });
    }
    for (n, store) in (0..).zip(starting.join_all().await) {
        let store = store.expect("open");
        store.append(create(&run(n), 1)).await.expect("append");
    }
    let applied = schema
        .raw()
        .await
        .query("SELECT version FROM wopr_schema_history", &[])
        .await
        .expect("our own statement");
    let known = postgres::schema_version(&schema.url()).await.expect("version");
    assert_eq!(applied.len(), usize::try_from(known).expect("few"));
}

#[tokio::test]
async fn missing_migration_is_reported_if_migrating_is_not_allowed() {
    let schema = Schema::new().await;
    let url = schema.url();
    assert_eq!(postgres::schema_version(&url).await.expect("version"), 0);
    let error = refused(&url, BY_HAND()).await;
    assert!(
        matches!(error, OpenError::NeedsMigration { found: 0, .. }),
        "{error:?}"
    );
    assert_eq!(tables(&schema).await, Vec::<String>::new());

    let version = postgres::migrate(&url).await.expect("migrate");
    assert_eq!(postgres::schema_version(&url).await.expect("version"), version);
    assert_eq!(postgres::migrate(&url).await.expect("again"), version);
    let store = schema.open_with(BY_HAND()).await;
    store.append(create(&run(1), 1)).await.expect("append");
}

#[tokio::test]
async fn newer_schema_is_refused_and_left_untouched() {
    let schema = Schema::new().await;
    let url = schema.url();
    let known = postgres::migrate(&url).await.expect("migrate");
    schema
        .sql(
            "INSERT INTO wopr_schema_history (version, name, applied_on, checksum)
             VALUES (4711, 'from_the_future', '2040-01-01T00:00:00Z', '1'); DROP TABLE blobs",
        )
        .await;
    let before = tables(&schema).await;
    for options in [Options::default(), BY_HAND()] {
        let error = refused(&url, options).await;
        assert!(
            matches!(error, OpenError::NewerSchema { found: 4711, known: k } if k == known),
            "{error:?}"
        );
    }
    assert!(matches!(
        postgres::migrate(&url).await,
        Err(OpenError::NewerSchema { found: 4711, .. })
    ));
    assert_eq!(tables(&schema).await, before);
}

#[tokio::test]
async fn foreign_schema_is_refused_and_left_untouched() {
    let schema = Schema::new().await;
    schema.sql("CREATE TABLE runs (something text)").await;
    let error = refused(&schema.url(), Options::default()).await;
    assert!(matches!(error, OpenError::Foreign(_)), "{error:?}");
    assert_eq!(tables(&schema).await, ["runs"]);
}

#[tokio::test]
async fn other_tables_may_exist_in_the_schema() {
    let schema = Schema::new().await;
    schema
        .sql("CREATE TABLE refinery_schema_history (version int); CREATE TABLE things (id int)")
        .await;
    let store = schema.open().await;
    store.append(create(&run(1), 1)).await.expect("append");
}

#[tokio::test]
async fn failed_migration_leaves_no_table_and_can_be_repeated() {
    let schema = Schema::new().await;
    // A table that conflicts with the migration, but whose name does not mark the schema as foreign.
    schema.sql("CREATE TABLE blobs (id int)").await;
    let error = refused(&schema.url(), Options::default()).await;
    assert!(matches!(error, OpenError::Migration(_)), "{error:?}");
    assert!(!tables(&schema).await.contains(&"runs".to_owned()));
    schema.sql("DROP TABLE blobs").await;
    schema.open().await;
}

#[tokio::test]
async fn start_is_retried_after_a_serialization_failure() {
    let lock = "wopr_migration_lock (one boolean PRIMARY KEY)";
    let history = "wopr_schema_history (version int4 PRIMARY KEY, name text, applied_on text, checksum text)";
    for (table, name) in [(lock, "wopr_migration_lock"), (history, "wopr_schema_history")] {
        for code in ["40001", "40P01"] {
            let schema = Schema::new().await;
            schema.sql(&format!("CREATE TABLE {table}")).await;
            poison(&schema, name, false, 3, &raise(code)).await;
            let store = schema.open().await;
            store.append(create(&run(1), 1)).await.expect("append");
        }
        let schema = Schema::new().await;
        schema.sql(&format!("CREATE TABLE {table}")).await;
        poison(&schema, name, false, 1_000, &raise("40001")).await;
        let error = refused(&schema.url(), Options::default()).await;
        assert!(matches!(error, OpenError::Migration(_)), "{error:?}");
    }
}

#[tokio::test]
async fn migration_lock_and_version_read_are_retried_after_a_serialization_failure() {
    // Reading the lock row calls a function that fails a few times.
    let taking = "CREATE TABLE held (one boolean PRIMARY KEY CHECK (one));
        CREATE VIEW wopr_migration_lock AS SELECT one FROM held WHERE is_sound()";
    // Reading the version does so too, because this `max` takes precedence over the built-in one.
    let reading = "CREATE FUNCTION larger(a int, b int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
            PERFORM is_sound();
            RETURN greatest(a, b);
        END $$;
        CREATE AGGREGATE max(int) (SFUNC = larger, STYPE = int)";
    for code in ["40001", "40P01"] {
        for (is_made_before, sql) in [(false, taking), (true, reading)] {
            let schema = Schema::new().await;
            if is_made_before {
                schema.open().await.close().await;
            }
            let sound = format!(
                "CREATE SEQUENCE times;
                 CREATE FUNCTION is_sound() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
                     IF nextval('times') <= 3 THEN {}; END IF;
                     RETURN true;
                 END $$;",
                raise(code)
            );
            schema.sql(&(sound + sql)).await;
            let url = schema.url() + ",pg_catalog";
            let store = PostgresStore::open(&url, Options::default()).await.expect("open");
            store.append(create(&run(1), 1)).await.expect("append");
            let raw = schema.raw().await;
            let times = raw.query_one("SELECT last_value FROM times", &[]).await;
            assert!(times.expect("our own statement").get::<_, i64>(0) > 3);
        }
    }
}

#[tokio::test]
async fn unreachable_server_is_reported_soon() {
    let schema = Schema::new().await;
    let missing = schema.url().replace("wopr_test_", "wopr_missing_");
    let error = refused(&missing, Options::default()).await;
    assert!(matches!(error, OpenError::NoSchema), "{error:?}");

    let begun = Instant::now();
    // Nothing listens on the reserved port 1. The password must not appear in the error.
    let error = refused("postgres://ada:hunter2@127.0.0.1:1/db", Options::default()).await;
    assert!(matches!(error, OpenError::Connect(_)), "{error:?}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(5));

    let error = refused("postgres://ada@127.0.0.1/db?colour=red", Options::default()).await;
    assert!(matches!(error, OpenError::Url(_)), "{error:?}");
}
