//! A host on its own PostgreSQL server: dump and restore, read-only phases, failover between two servers, a
//! server that does not sync, and one that does not respond.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
    sync::watch,
};
use tokio_postgres::{Client, NoTls};

use crate::{
    cluster::{Cluster, OLDEST, Programs},
    host::{Host, KEY, place},
    http::{Connection, write_request},
};

const MASTER_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn programs() -> Programs {
    let missing = || format!("find PostgreSQL {OLDEST} or later; `cargo xtask setup` installs it");
    Programs::find().with_context(missing).unwrap()
}

fn cluster() -> Cluster {
    tokio::task::block_in_place(|| Cluster::start(programs())).unwrap()
}

/// Runs a program of the PostgreSQL installation.
fn run(folder: &Path, program: &str, arguments: &[&str]) {
    let mut command = Command::new(programs().folder.join(program));
    let output = command.args(arguments).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The URL of another database on the same server.
fn database(url: &str, name: &str) -> String {
    let (server, _) = url.rsplit_once('/').unwrap();
    format!("{server}/{name}")
}

fn host(folder: &Path, name: &str, url: &str) -> Host {
    Host::over(folder, name, url.to_owned()).variable("WOPR_MASTER_KEY", MASTER_KEY)
}

async fn ask(address: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let mut connection = Connection::open(address).await.unwrap();
    let mut request = Vec::new();
    let body = body.map(Value::to_string);
    let key = format!("authorization: Bearer {KEY}\r\n");
    write_request(
        &mut request,
        method,
        path,
        &key,
        body.as_deref().map(str::as_bytes),
    );
    let status = connection.send(&request).await.unwrap();
    let mut answer = Vec::new();
    connection.body(&mut answer).await.unwrap();
    (status, serde_json::from_slice(&answer).unwrap_or(Value::Null))
}

async fn create(address: SocketAddr, workflow: &str) -> String {
    let body = json!({ "workflowId": workflow, "inputs": { "prompt": "a dump" } });
    let (status, run) = ask(address, "POST", "/v1/runs", Some(&body)).await;
    assert_eq!(status, 201, "{run}");
    run["runId"].as_str().unwrap().to_owned()
}

async fn events(address: SocketAddr, run: &str) -> Value {
    let path = format!("/v1/runs/{run}/events/poll?timeout=1");
    let (status, log) = ask(address, "GET", &path, None).await;
    assert_eq!(status, 200, "{log}");
    log["events"].clone()
}

async fn status(address: SocketAddr, run: &str) -> (u16, Value) {
    let (status, run) = ask(address, "GET", &format!("/v1/runs/{run}"), None).await;
    (status, run["status"].clone())
}

/// Runs the binary on a store.
fn wopr(args: &[&str], store: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
    command.args(args).args(["--store", store]);
    command
        .env("WOPR_API_KEY", KEY)
        .env("WOPR_MASTER_KEY", MASTER_KEY);
    command.output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_dump_continues_waiting_runs() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = cluster();
    let create_database = |name| {
        let server = format!("--maintenance-db={}", cluster.url());
        run(folder.path(), "createdb", &[&server, name]);
    };
    create_database("wopr");
    let url = database(&cluster.url(), "wopr");
    let mut original = host(folder.path(), "original", &url);
    let address = original.start().await;
    let waiting = create(address, "approval").await;
    let ended = create(address, "pure").await;
    let before = (events(address, &waiting).await, events(address, &ended).await);

    // As described in docs/operations.md, while the host serves.
    let dump = "wopr.dump";
    run(
        folder.path(),
        "pg_dump",
        &["--format=custom", "--file", dump, &url],
    );
    let later = create(address, "pure").await;
    original.kill().await;
    create_database("restored");
    let restored_url = database(&cluster.url(), "restored");
    let target = format!("--dbname={restored_url}");
    let arguments = ["--no-owner", "--exit-on-error", &target, dump];
    run(folder.path(), "pg_restore", &arguments);
    let checked = wopr(&["migrate", "--check"], &restored_url);
    assert!(checked.status.success(), "{checked:?}");

    let mut restored = host(folder.path(), "restored", &restored_url);
    let address = restored.start().await;
    let after = (events(address, &waiting).await, events(address, &ended).await);
    assert_eq!(after, before, "every event is as it was");
    assert_eq!(status(address, &ended).await, (200, json!("completed")));
    assert_eq!(status(address, &later).await.0, 404, "it came after the dump");
    assert_eq!(status(address, &waiting).await, (200, json!("waiting-approval")));
    let answer = json!({ "resumeValue": { "action": "accept" } });
    let path = format!("/v1/runs/{waiting}/interrupts/gate");
    let (code, answer) = ask(address, "POST", &path, Some(&answer)).await;
    assert_eq!(code, 200, "{answer}");
    assert_eq!(status(address, &waiting).await, (200, json!("completed")));
    restored.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_on_a_read_only_server_is_not_ready_and_refuses_writes() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = cluster();
    let server = connect(&cluster.url()).await;
    let mut host = host(folder.path(), "host", &cluster.url());
    let address = host.start().await;
    let run = create(address, "approval").await;

    // As for a standby, or a primary set to read-only.
    for (setting, is_ready) in [("on", false), ("off", true)] {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {setting}");
        server
            .batch_execute("SET default_transaction_read_only = off")
            .await
            .unwrap();
        server.batch_execute(&set).await.unwrap();
        server.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let expected = if is_ready { 200 } else { 503 };
        // The server's backends reload their settings one after another.
        while ask(address, "GET", "/readyz", None).await.0 != expected {
            tokio::task::yield_now().await;
        }
        assert_eq!(
            status(address, &run).await,
            (200, json!("waiting-approval")),
            "reads go on"
        );
        if !is_ready {
            let body = json!({ "workflowId": "pure" });
            let (code, answer) = ask(address, "POST", "/v1/runs", Some(&body)).await;
            assert_eq!(
                (code, &answer["error"]),
                (503, &json!("service_unavailable")),
                "{answer}"
            );
        }
    }
    create(address, "pure").await;
    host.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writable_server_is_chosen_of_two() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let (standby, primary) = (cluster(), cluster());
    let server = connect(&standby.url()).await;
    server
        .batch_execute("ALTER SYSTEM SET default_transaction_read_only = on")
        .await
        .unwrap();
    server.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    // The server's backends reload their settings one after another.
    loop {
        let asked = connect(&standby.url()).await;
        let row = asked.query_one("SHOW transaction_read_only", &[]).await.unwrap();
        if row.get::<_, &str>(0) == "on" {
            break;
        }
    }
    let (first, second) = (standby.url(), primary.url());
    let (first, _) = first.rsplit_once('/').unwrap();
    let (_, second) = second.split_once('@').unwrap();
    let url = format!("{first},{second}");
    let mut host = host(folder.path(), "host", &url);
    let address = host.start().await;
    let run = create(address, "pure").await;
    let server = connect(&primary.url()).await;
    let there = server.query("SELECT 1 FROM runs WHERE run = $1", &[&run]).await;
    assert_eq!(there.unwrap().len(), 1);
    host.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_server_is_reported_and_a_signal_ends_the_wait() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let url = |seconds: u32| format!("postgres://ada:hunter2@{address}/db?connect_timeout={seconds}");
    let said = wopr(&["migrate", "--check"], &url(1));
    assert_eq!(said.status.code(), Some(7), "{said:?}");
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(
        text.contains(&format!("{address} did not answer within 1 s")),
        "{text}"
    );
    assert!(text.contains("hint: ") && !text.contains("hunter2"), "{text}");
    // Takes the first connection from the queue, so that it is not mistaken for the next one.
    silent.accept().await.unwrap();

    for signal in ["TERM", "INT"] {
        let mut host = host(folder.path(), signal, &url(600));
        let birth = host.spawn();
        let waits = silent.accept().await.unwrap();
        let begun = Instant::now();
        let status = host.end(signal).await;
        assert!(status.success(), "{status}: {}", host.said());
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        birth.ready().await.expect_err("it never was");
        drop(waits);
    }
}

/// A proxy to a database server that can be closed, opened, and made unresponsive.
struct Way {
    address: SocketAddr,
    is: watch::Sender<Is>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    /// Connections are closed.
    Closed,
    Open,
    /// Connections are accepted, but no data is forwarded.
    Silent,
}

impl Way {
    async fn to(url: &str, is: Is) -> Self {
        // The server listens on a Unix socket.
        let (_, rest) = url.split_once('@').unwrap();
        let (folder, _) = rest.split_once('/').unwrap();
        let server = Path::new(&folder.replace("%2F", "/")).join(".s.PGSQL.5432");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let is = watch::Sender::new(is);
        let told = is.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (server, mut told) = (server.clone(), told.clone());
                tokio::spawn(async move {
                    let is_closed = *told.borrow() == Is::Closed;
                    if is_closed {
                        return;
                    }
                    let through = async {
                        let mut far = UnixStream::connect(&server).await?;
                        copy_bidirectional(&mut near, &mut far).await
                    };
                    let changed = async {
                        let found = told.wait_for(|is| *is != Is::Open).await;
                        found.map_or(Is::Closed, |is| *is)
                    };
                    tokio::select! {
                        _ = through => {}
                        is = changed => if is == Is::Silent {
                            std::future::pending::<()>().await;
                        }
                    }
                });
            }
        });
        Self { address, is }
    }

    fn url(&self, url: &str) -> String {
        let (user, rest) = url.split_once('@').unwrap();
        let (_, database) = rest.split_once('/').unwrap();
        format!("{user}@{}/{database}", self.address)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_waits_for_its_database_and_starts_once_it_is_reachable() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = cluster();
    let way = Way::to(&cluster.url(), Is::Closed).await;
    // A name that is none of this machine: the connection could be read by others.
    let port = way.address.port();
    let url = way
        .url(&cluster.url())
        .replace(&way.address.to_string(), &format!("db.example:{port}"));
    let joint = if url.contains('?') { '&' } else { '?' };
    let mut host = host(folder.path(), "waits", &format!("{url}{joint}hostaddr=127.0.0.1"));
    let birth = host.spawn();
    while !host.said().contains("waiting for the database") {
        assert!(host.ended().is_none(), "{}", host.said());
        tokio::task::yield_now().await;
    }
    way.is.send_replace(Is::Open);
    let address = birth.ready().await.unwrap();
    create(address, "pure").await;
    host.terminate().await;
    let lines = host.said().matches("waiting for the database").count();
    assert_eq!(
        lines,
        2,
        "once when it begins and once when it is over: {}",
        host.said()
    );
    let warnings = host.said().matches("is not encrypted").count();
    assert_eq!(warnings, 1, "not at every attempt: {}", host.said());

    // Errors that waiting cannot fix are reported at once.
    let (server, _) = cluster
        .url()
        .rsplit_once('/')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let said = wopr(
        &["serve", "--listen", "127.0.0.1:0"],
        &format!("{server}/no_such_database"),
    );
    assert_eq!(said.status.code(), Some(7), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_database_counts_as_a_crash_of_no_process() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = cluster();
    let way = Way::to(&cluster.url(), Is::Open).await;
    let url = way.url(&cluster.url());
    let mut hosts = ["one", "other"].map(|name| host(folder.path(), name, &url));
    for host in &mut hosts {
        host.start().await;
    }
    way.is.send_replace(Is::Closed);
    // sleep: longer than a process may be silent that lives.
    tokio::time::sleep(Duration::from_secs(4)).await;
    way.is.send_replace(Is::Open);
    let server = connect(&cluster.url()).await;
    let again = "SELECT count(*) FROM epochs WHERE NOT is_ended
         AND seen_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint - 1500";
    while server.query_one(again, &[]).await.unwrap().get::<_, i64>(0) < 2 {
        tokio::task::yield_now().await;
    }
    // sleep: whoever was first looks at the other, and more than once.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for mut host in hosts {
        assert!(!host.said().contains("another process died"), "{}", host.said());
        host.terminate().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_takes_no_longer_than_the_grace_period_if_the_database_hangs() {
    const GRACE: Duration = Duration::from_secs(5);
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = cluster();
    let way = Way::to(&cluster.url(), Is::Open).await;
    let mut host = host(folder.path(), "host", &way.url(&cluster.url()))
        .variable("WOPR_SHUTDOWN_GRACE", format!("{}s", GRACE.as_secs()));
    let address = host.start().await;
    create(address, "approval").await;
    way.is.send_replace(Is::Silent);
    // A request that waits for the database and keeps its connection open.
    let asked = tokio::spawn(async move {
        let mut connection = Connection::open(address).await?;
        let mut request = Vec::new();
        let key = format!("authorization: Bearer {KEY}\r\n");
        write_request(
            &mut request,
            "POST",
            "/v1/runs",
            &key,
            Some(br#"{"workflowId":"pure"}"#),
        );
        connection.send(&request).await
    });
    tokio::task::yield_now().await;
    let begun = Instant::now();
    let status = host.end("TERM").await;
    let took = begun.elapsed();
    assert!(status.success(), "{status}: {}", host.said());
    assert!(
        took < GRACE + Duration::from_millis(800),
        "{took:?}: {}",
        host.said()
    );
    asked.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_start_leaves_an_empty_database_empty() {
    let cluster = cluster();
    let server = connect(&cluster.url()).await;
    for missing in ["WOPR_API_KEY", "WOPR_MASTER_KEY"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", &cluster.url()]);
        command
            .env("WOPR_API_KEY", KEY)
            .env("WOPR_MASTER_KEY", MASTER_KEY);
        command.env_remove(missing);
        let said = command.output().unwrap();
        assert_eq!(said.status.code(), Some(3), "{missing}: {said:?}");
        let tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'";
        assert_eq!(server.query(tables, &[]).await.unwrap().len(), 0, "{missing}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_does_not_sync_is_reported() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let cluster = cluster();
    let server = connect(&cluster.url()).await;
    let url = cluster.url();
    let migrated = wopr(&["migrate"], &url);
    assert!(migrated.status.success(), "{migrated:?}");

    let durability = || {
        let said = wopr(&["doctor", "--json", "--listen", "127.0.0.1:0"], &url);
        let report: Value = serde_json::from_slice(&said.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let found: Vec<_> = checks
            .iter()
            .filter(|finding| finding["check"] == "durability")
            .map(|finding| {
                let text = finding["text"].as_str().unwrap().to_owned();
                (finding["verdict"].as_str().unwrap().to_owned(), text)
            })
            .collect();
        found
    };
    let sound = durability();
    assert!(
        matches!(&sound[..], [(verdict, _)] if verdict == "ok"),
        "{sound:?}"
    );
    for (setting, word) in [
        ("fsync = off", "fsync"),
        ("full_page_writes = off", "full_page_writes"),
        ("synchronous_commit = off", "synchronous_commit"),
    ] {
        server
            .batch_execute(&format!("ALTER SYSTEM SET {setting}"))
            .await
            .unwrap();
        server.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        let mut told = durability();
        // The server applies the setting with a delay.
        while told.iter().all(|(verdict, _)| verdict == "ok") {
            told = durability();
        }
        let is_told = |(verdict, text): &(String, String)| verdict == "warning" && text.contains(word);
        assert!(told.iter().any(is_told), "{setting}: {told:?}");

        let mut host = host(folder.path(), word, &url);
        host.start().await;
        host.terminate().await;
        assert!(host.said().contains(word), "{setting}: {}", host.said());
        server.batch_execute("ALTER SYSTEM RESET ALL").await.unwrap();
    }
}
