//! A separate schema in the PostgreSQL server that the test setup started.

use tokio_postgres::{Client, NoTls};
use wopr_store::{PostgresStore, postgres::Options};

/// The variable with the server's URL.
const SERVER: &str = "WOPR_TEST_POSTGRES";

/// A schema that is deleted with the server.
pub(crate) struct Schema {
    server: String,
    name: String,
}

impl Schema {
    pub(crate) async fn new() -> Self {
        let server = std::env::var(SERVER).expect(
            "WOPR_TEST_POSTGRES is set: run `cargo xtask test`, or a few tests with `cargo xtask pg -- cargo nextest run …`",
        );
        let name = format!("wopr_test_{:016x}", rand::random::<u64>());
        let schema = Self { server, name };
        let server = connect(&schema.server).await;
        let create = format!("CREATE SCHEMA {}", schema.name);
        server.batch_execute(&create).await.expect("a schema");
        schema
    }

    /// The URL to open a store with.
    pub(crate) fn url(&self) -> String {
        let mark = if self.server.contains('?') { '&' } else { '?' };
        format!("{}{mark}{}", self.server, self.parameter())
    }

    /// The URL parameter that selects the schema.
    pub(crate) fn parameter(&self) -> String {
        format!("options=-csearch_path%3D{}", self.name)
    }

    /// The server's URL, without the schema.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) async fn open(&self) -> PostgresStore {
        self.open_with(Options::default()).await
    }

    pub(crate) async fn open_with(&self, options: Options) -> PostgresStore {
        PostgresStore::open(&self.url(), options).await.expect("open")
    }

    /// A raw connection, for statements that no store executes.
    pub(crate) async fn raw(&self) -> Client {
        self.raw_as("").await
    }

    /// Like [`Schema::raw`], with additional parameters.
    pub(crate) async fn raw_as(&self, parameters: &str) -> Client {
        connect(&(self.url() + parameters)).await
    }

    pub(crate) async fn sql(&self, sql: &str) {
        self.raw()
            .await
            .batch_execute(sql)
            .await
            .expect("our own statement");
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    // Ends when the client is dropped, or with an error that the client also returns.
    tokio::spawn(connection);
    client
}
