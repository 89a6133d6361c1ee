//! Overload: the database hangs while requests keep arriving. Requests beyond the queue limits get 503 with
//! `Retry-After` in every protocol, memory stays within its limit, acknowledged runs are not lost, and the
//! host recovers when the database does.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_postgres::NoTls;

use crate::host::{Host, KEY, place};

/// Concurrent requests. Most are refused by the limit on request bodies, but those that it admits still store
/// several times what may be queued for SQLite's writer.
const WAVE: usize = 400;
/// Size of an input in bytes. The workflow `copies` stores it about seven times: as its input, and three copies
/// as a node's output and as its own.
const TEXT: usize = 128 << 10;
/// No response takes longer on any machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Memory limit of the host: the 64 MiB queue, the group being written and the page caches. A queued run is
/// in memory several times: as request, as decision and as rows.
const MEMORY_MIB: u64 = 1_024;

/// A response and its latency.
#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Value,
    took: Duration,
}

impl Answer {
    /// Returns the created run, or `None` if the request was refused correctly.
    fn run(&self) -> Option<String> {
        if self.status == 503 {
            assert!(self.head.to_lowercase().contains("\r\nretry-after: "), "{self:?}");
            let code = self.body["error"]
                .as_str()
                .or_else(|| self.body["error"]["status"].as_str());
            assert!(
                matches!(code, Some("service_unavailable" | "UNAVAILABLE")),
                "{self:?}"
            );
            return None;
        }
        // OpenWOP returns the run, A2A the task.
        let id = self.body["runId"]
            .as_str()
            .or_else(|| self.body["result"]["id"].as_str());
        assert!(matches!(self.status, 200 | 201) && id.is_some(), "{self:?}");
        id.map(str::to_owned)
    }
}

async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Answer {
    let since = Instant::now();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut bytes = Vec::new();
    let asking = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A request may be refused before its body was read; the connection is then closed after the
        // response.
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.read_to_end(&mut bytes).await;
    };
    timeout(LIMIT, asking).await.expect("every request is answered");
    let text = String::from_utf8(bytes).unwrap();
    let (head, rest) = text.split_once("\r\n\r\n").expect("an answer has a head");
    Answer {
        status: head[9..12].parse().unwrap(),
        head: head.to_owned(),
        body: serde_json::from_str(rest).unwrap_or(Value::Null),
        took: since.elapsed(),
    }
}

/// Starts many runs at once, alternating between OpenWOP and A2A.
fn wave(address: SocketAddr, name: &str, n_requests: usize, n_bytes: usize) -> JoinSet<Answer> {
    let text = "x".repeat(n_bytes);
    let mut answers = JoinSet::new();
    for n in 0..n_requests {
        let (path, body) = if n % 2 == 0 {
            (
                "/v1/runs",
                json!({ "workflowId": "copies", "inputs": { "prompt": text } }),
            )
        } else {
            let parts = json!([{ "kind": "text", "text": text }]);
            let message = json!({
                "kind": "message", "role": "user", "messageId": format!("{name}-{n}"), "parts": parts,
            });
            let params = json!({ "message": message });
            (
                "/a2a/w/copies",
                json!({ "jsonrpc": "2.0", "id": n, "method": "message/send", "params": params }),
            )
        };
        let body = body.to_string();
        answers.spawn(async move { ask(address, "POST", path, &body).await });
    }
    answers
}

/// Peak memory of the process in MiB.
fn peak_mib(host: &Host) -> u64 {
    let pid = host.pid().expect("the host runs");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

async fn counter(address: SocketAddr, name: &str) -> u64 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /metrics HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name} in {text}"))
        .split(' ')
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Checks that all acknowledged runs exist and have ended.
async fn are_there(address: SocketAddr, runs: &[String]) {
    for run in runs {
        let answer = ask(address, "GET", &format!("/v1/runs/{run}"), "").await;
        assert_eq!(answer.body["status"], "completed", "{answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_sqlite_refuses_requests_beyond_the_queue() {
    let mut host = Host::new();
    let address = host.start().await;
    let count = |database: &Connection| -> usize {
        let rows: u32 = database
            .query_row("SELECT count(*) FROM runs", [], |row| row.get(0))
            .unwrap();
        usize::try_from(rows).unwrap()
    };
    let database = Connection::open(host.store().trim_start_matches("sqlite:")).unwrap();
    let before = count(&database);
    database.execute_batch("BEGIN IMMEDIATE").unwrap();

    let mut peaks = Vec::new();
    let mut refused = 0;
    // On a busy machine a wave may come in so slowly that its first requests give up before the queue is full.
    for n in 0..6 {
        let answers = wave(address, &format!("wave-{n}"), WAVE, TEXT).join_all().await;
        let made: Vec<_> = answers.iter().filter_map(Answer::run).collect();
        assert_eq!(made, [""; 0], "nothing is acknowledged that is not written");
        let now_refused = counter(address, "wopr_store_refused_total").await;
        // Waves that fill the queue are compared: one that does not takes less memory.
        if now_refused > refused {
            peaks.push(peak_mib(&host));
        }
        refused = now_refused;
        if peaks.len() == 2 {
            break;
        }
    }
    assert_eq!(
        peaks.len(),
        2,
        "the queue was not full twice, with {refused} refusals"
    );
    let (first, last) = (peaks[0], peaks[peaks.len() - 1]);
    assert!(last < MEMORY_MIB, "{peaks:?} MiB");
    assert!(last < first + first / 4 + 32, "it grows: {peaks:?} MiB");

    // The database resumes while requests wait and more arrive than can be queued.
    let mut answers = wave(address, "third", WAVE, TEXT);
    let mut runs = Vec::new();
    let mut fastest = LIMIT;
    while let Some(answer) = answers.join_next().await {
        let answer = answer.unwrap();
        let run = answer.run();
        if run.is_none() && fastest == LIMIT {
            database.execute_batch("ROLLBACK").unwrap();
        }
        fastest = fastest.min(answer.took);
        runs.extend(run);
    }
    assert!(!runs.is_empty() && runs.len() < WAVE, "{} of {WAVE}", runs.len());
    are_there(address, &runs).await;
    assert_eq!(
        count(&database) - before,
        runs.len(),
        "what was refused has left nothing"
    );

    let answers = wave(address, "last", 20, 16).join_all().await;
    assert_eq!(
        answers.iter().filter_map(Answer::run).count(),
        20,
        "as if nothing had been"
    );
    println!(
        "refused {refused} at the queue, peaks {peaks:?} MiB, {} of {WAVE} went through",
        runs.len()
    );
    host.terminate().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_run_read_by_many_clients_is_in_memory_a_few_times_only() {
    const CROWD: usize = 300;
    const LARGE: usize = 900 << 10;
    /// Far less than the sum of all requested runs and responses.
    const FEW_MIB: u64 = 600;
    let mut host = Host::new();
    let address = host.start().await;
    let run = async |n_bytes| {
        let body = json!({ "workflowId": "pure", "inputs": { "prompt": "x".repeat(n_bytes) } });
        let made = ask(address, "POST", "/v1/runs", &body.to_string()).await;
        let run = made.run().expect("the host has room");
        are_there(address, std::slice::from_ref(&run)).await;
        format!("/v1/runs/{run}")
    };
    let (large, small) = (run(LARGE).await, run(16).await);

    let mut unread = Vec::new();
    for _ in 0..CROWD {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {large} HTTP/1.1\r\nhost: t\r\nauthorization: Bearer {KEY}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        unread.push(stream);
    }
    // Each request is answered: with the run, or with 503.
    let (mut n_answered, mut n_small) = (0, 0);
    for stream in &mut unread {
        let mut line = [0; 12];
        timeout(LIMIT, stream.read_exact(&mut line))
            .await
            .expect("every request is answered")
            .unwrap();
        assert!(matches!(&line, b"HTTP/1.1 200" | b"HTTP/1.1 503"), "{line:?}");
        n_answered += usize::from(line.ends_with(b"200"));
        let other = ask(address, "GET", &small, "").await;
        assert!(matches!(other.status, 200 | 503), "{other:?}");
        n_small += usize::from(other.status == 200);
    }
    // Only requests made before the size of the run was known compete with it for memory.
    assert!(n_small > CROWD / 2, "{n_small} of {CROWD}");
    assert!(n_answered > 0, "{n_answered} of {CROWD}");
    let peak = peak_mib(&host);
    assert!(peak < FEW_MIB, "{peak} MiB");
    println!("{n_answered} of {CROWD} answered with the run, peak {peak} MiB");
    host.terminate().await;
}

/// Creates a schema on the server that the test setup started, and returns its URL.
async fn schema() -> String {
    let server = std::env::var("WOPR_TEST_POSTGRES").expect(
        "WOPR_TEST_POSTGRES is set: run `cargo xtask test`, or a few tests with `cargo xtask pg -- cargo nextest run …`",
    );
    let name = format!("wopr_test_{:016x}", rand::random::<u64>());
    let (client, connection) = tokio_postgres::connect(&server, NoTls).await.unwrap();
    tokio::spawn(connection);
    let create = format!("CREATE SCHEMA {name}");
    client.batch_execute(&create).await.unwrap();
    let mark = if server.contains('?') { '&' } else { '?' };
    format!("{server}{mark}options=-csearch_path%3D{name}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_postgres_refuses_requests_beyond_the_queue() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let url = schema().await;
    let (database, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut host = Host::over(folder.path(), "host", format!("{url}&connections=4"))
        .variable("WOPR_MASTER_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    let address = host.start().await;
    database
        .batch_execute("BEGIN; LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();

    let mut answers = wave(address, "first", WAVE, TEXT);
    let mut runs = Vec::new();
    let (mut n_refused, mut is_locked) = (0, true);
    while let Some(answer) = answers.join_next().await {
        let answer = answer.unwrap();
        match answer.run() {
            Some(run) => runs.push(run),
            None => n_refused += 1,
        }
        // The database resumes while requests wait and more arrived than can be queued.
        if is_locked && n_refused == WAVE / 4 {
            is_locked = false;
            assert_eq!(runs, [""; 0], "nothing is acknowledged that is not written");
            database.batch_execute("ROLLBACK").await.unwrap();
        }
    }
    assert!(n_refused >= WAVE / 4 && !runs.is_empty(), "{n_refused} of {WAVE}");
    let refused = counter(address, "wopr_store_refused_total").await;
    let peak = peak_mib(&host);
    assert!(peak < MEMORY_MIB, "{peak} MiB");
    are_there(address, &runs).await;

    let answers = wave(address, "last", 4, 16).join_all().await;
    runs.extend(answers.iter().filter_map(Answer::run));
    let stored = database
        .query_one("SELECT count(*) FROM runs", &[])
        .await
        .unwrap();
    assert_eq!(stored.get::<_, i64>(0), i64::try_from(runs.len()).unwrap());
    assert!(runs.len() >= 4, "as if nothing had been");
    println!("refused {n_refused} of {WAVE}, {refused} for want of a connection, peak {peak} MiB");
    host.terminate().await;
}
