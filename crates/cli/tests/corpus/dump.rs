//! Dumps a database as text, and loads it.
//!
//! A SQLite dump is SQL: the schema, and one statement per row. A PostgreSQL dump has one line of JSON per
//! row; the schema comes from the migrations, which never change once released (their checksums are
//! verified).

use std::{collections::BTreeSet, fs, path::Path};

use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};
use wopr_server::config::{Secret, StoreUrl};

/// The store's migration table in PostgreSQL.
const HISTORY: &str = "wopr_schema_history";
/// The definition of that table.
const HISTORY_TABLE: &str = "CREATE TABLE wopr_schema_history (version int4 PRIMARY KEY, name varchar(255),
    applied_on varchar(255), checksum varchar(255))";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    Postgres,
}

impl Backend {
    /// The name of the dump file.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite.sql",
            Self::Postgres => "postgres.jsonl",
        }
    }

    pub(crate) fn views(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite.views.json",
            Self::Postgres => "postgres.views.json",
        }
    }
}

/// An empty, separate database.
pub(crate) enum Database {
    Sqlite(TempDir),
    Postgres(String),
}

impl Database {
    pub(crate) async fn new(backend: Backend) -> Self {
        match backend {
            Backend::Sqlite => Self::Sqlite(tempfile::tempdir().unwrap()),
            Backend::Postgres => Self::Postgres(schema().await),
        }
    }

    pub(crate) fn url(&self) -> StoreUrl {
        match self {
            Self::Sqlite(folder) => StoreUrl::Sqlite(folder.path().join("wopr.db")),
            Self::Postgres(url) => StoreUrl::Postgres(Secret::new(url.as_str())),
        }
    }

    /// Dumps all rows. Also returns the names of empty tables.
    pub(crate) async fn dump(&self) -> (String, Vec<String>) {
        match self {
            Self::Sqlite(folder) => dump_sqlite(&open(folder)),
            Self::Postgres(url) => dump_postgres(&connect(url).await).await,
        }
    }

    /// Loads a dump.
    pub(crate) async fn load(&self, dump: &str) {
        match self {
            Self::Sqlite(folder) => open(folder).execute_batch(dump).unwrap(),
            Self::Postgres(url) => load_postgres(&connect(url).await, dump).await,
        }
    }
}

fn open(folder: &TempDir) -> Connection {
    Connection::open(folder.path().join("wopr.db")).unwrap()
}

fn dump_sqlite(conn: &Connection) -> (String, Vec<String>) {
    let application: i64 = conn
        .query_row("PRAGMA application_id", [], |row| row.get(0))
        .unwrap();
    let mut text = format!("PRAGMA application_id = {application};\nBEGIN;\n");
    let mut tables = Vec::new();
    {
        let sql = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type DESC, name";
        let mut statement = conn.prepare(sql).unwrap();
        let mut found = statement.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let (kind, name, sql): (String, String, String) =
                (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
            text.push_str(&sql);
            text.push_str(";\n");
            if kind == "table" {
                tables.push(name);
            }
        }
    }
    let mut empty = Vec::new();
    for table in tables {
        let columns: String = conn
            .query_row(
                "SELECT group_concat('quote(' || name || ')', ' || '','' || ') FROM pragma_table_info(?1)",
                [&table],
                |row| row.get(0),
            )
            .unwrap();
        let sql = format!("SELECT {columns} FROM {table} ORDER BY 1");
        let mut statement = conn.prepare(&sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        let rows: Vec<_> = rows.map(Result::unwrap).collect();
        for row in &rows {
            text.push_str(&format!("INSERT INTO {table} VALUES ({row});\n"));
        }
        if rows.is_empty() {
            empty.push(table);
        }
    }
    text.push_str("COMMIT;\n");
    (text, empty)
}

async fn dump_postgres(client: &Client) -> (String, Vec<String>) {
    let names = "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema()
         AND tablename <> 'wopr_migration_lock' ORDER BY 1";
    let (mut text, mut empty) = (String::new(), Vec::new());
    for table in client.query(names, &[]).await.unwrap() {
        let table: String = table.get(0);
        let rows = format!("SELECT row_to_json(t)::text FROM {table} AS t ORDER BY 1");
        let rows = client.query(&rows, &[]).await.unwrap();
        for row in &rows {
            let row: Value = serde_json::from_str(row.get(0)).unwrap();
            text.push_str(&json!({ "table": table, "row": row }).to_string());
            text.push('\n');
        }
        if rows.is_empty() {
            empty.push(table);
        }
    }
    (text, empty)
}

async fn load_postgres(client: &Client, dump: &str) {
    let lines: Vec<Value> = dump
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let versions = lines.iter().filter(|line| line["table"] == HISTORY);
    let newest = versions
        .filter_map(|line| line["row"]["version"].as_u64())
        .max()
        .unwrap();
    for version in 1..=newest {
        client.batch_execute(&migration(version)).await.unwrap();
    }
    client.batch_execute(HISTORY_TABLE).await.unwrap();
    // Migrations insert rows into some tables.
    let tables: BTreeSet<_> = lines.iter().map(|line| line["table"].as_str().unwrap()).collect();
    for table in tables {
        client
            .batch_execute(&format!("DELETE FROM {table}"))
            .await
            .unwrap();
    }
    for line in &lines {
        let table = line["table"].as_str().unwrap();
        let insert =
            format!("INSERT INTO {table} SELECT * FROM json_populate_record(NULL::{table}, $1::text::json)");
        client
            .execute(&insert, &[&line["row"].to_string()])
            .await
            .unwrap();
    }
}

fn migration(version: u64) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/migrations/postgres");
    let prefix = format!("V{version}__");
    let file = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix))
        .unwrap_or_else(|| panic!("migration {version} was released and is gone"));
    fs::read_to_string(file).unwrap()
}

/// Creates a schema in the server that the test setup started, and returns its URL.
async fn schema() -> String {
    let server = std::env::var("WOPR_TEST_POSTGRES").expect(
        "WOPR_TEST_POSTGRES is set: run `cargo xtask test`, or a few tests with `cargo xtask pg -- cargo nextest run …`",
    );
    let name = format!("wopr_test_{:016x}", rand::random::<u64>());
    let client = connect(&server).await;
    client
        .batch_execute(&format!("CREATE SCHEMA {name}"))
        .await
        .unwrap();
    let mark = if server.contains('?') { '&' } else { '?' };
    format!("{server}{mark}options=-csearch_path%3D{name}")
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    // Ends when the client is dropped, or with an error that the client also returns.
    tokio::spawn(connection);
    client
}
