//! `backup`: a host can serve the copy.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use reqwest::{Client, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::binary::{KEY, Place};

/// Clients that start runs during the backup.
const CLIENTS: usize = 8;

pub(crate) fn client() -> Client {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let builder = Client::builder().tls_backend_preconfigured(tls).no_proxy();
    builder.build().unwrap()
}

pub(crate) async fn ask(request: RequestBuilder) -> (u16, Value) {
    let answer = request.bearer_auth(KEY).send().await.unwrap();
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// Starts runs one after another and records the ids of the acknowledged ones.
struct Load {
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    fn start(origin: &str) -> Self {
        let mut load = Self {
            acknowledged: Arc::default(),
            stop: Arc::default(),
            clients: JoinSet::new(),
        };
        for _ in 0..CLIENTS {
            let (acknowledged, stop) = (load.acknowledged.clone(), load.stop.clone());
            let url = format!("{origin}/v1/runs");
            load.clients.spawn(async move {
                let client = client();
                while !stop.load(Ordering::SeqCst) {
                    let body = json!({ "workflowId": "hello", "inputs": { "prompt": "x".repeat(2_000) } });
                    let request = client.post(&url).body(body.to_string());
                    let request = request.header("content-type", "application/json");
                    let (status, created) = ask(request).await;
                    assert_eq!(status, 201, "{created}");
                    let run = created["runId"].as_str().unwrap().to_owned();
                    acknowledged.lock().unwrap().insert(run);
                }
            });
        }
        load
    }

    fn now(&self) -> BTreeSet<String> {
        self.acknowledged.lock().unwrap().clone()
    }

    async fn reaches(&self, n: usize) {
        while self.acknowledged.lock().unwrap().len() < n {
            tokio::task::yield_now().await;
        }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.clients.join_all().await;
    }
}

/// Lists the runs of a host with their status.
async fn list(client: &Client, origin: &str) -> Vec<(String, String)> {
    let mut runs = Vec::new();
    let mut cursor = String::new();
    loop {
        let url = format!("{origin}/v1/runs?limit=100{cursor}");
        let (status, page) = ask(client.get(url)).await;
        assert_eq!(status, 200, "{page}");
        for run in page["runs"].as_array().unwrap() {
            let text = |name: &str| run[name].as_str().unwrap().to_owned();
            runs.push((text("runId"), text("status")));
        }
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return runs,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_of_a_busy_host_has_all_acknowledged_runs() {
    for compact in [false, true] {
        let mut place = Place::new();
        let host = place.serve();
        let client = client();
        let body = json!({ "workflowId": "campaign-brief", "inputs": { "prompt": "spring" } });
        let request = client
            .post(format!("{}/v1/runs", host.origin))
            .header("content-type", "application/json")
            .body(body.to_string());
        let waiting = ask(request).await.1["runId"].as_str().unwrap().to_owned();
        let url = format!("{}/v1/runs/{waiting}", host.origin);
        let token = loop {
            let (_, shown) = ask(client.get(&url)).await;
            if let Some(token) = shown.pointer("/interrupt/interruptToken") {
                break token.as_str().unwrap().to_owned();
            }
            tokio::task::yield_now().await;
        };

        let load = Load::start(&host.origin);
        load.reaches(100).await;
        let before = load.now();
        let mut args = vec![
            "backup",
            "copy.db",
            "--with-key",
            "--json",
            "--store",
            "sqlite:wopr.db",
        ];
        if compact {
            args.push("--compact");
        }
        let mut command = place.command(&args);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}");
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        // The backup did not block the host.
        let after = load.now().len();
        load.reaches(after + 50).await;
        load.stop().await;
        host.kill();

        let n_runs: u64 = made["runs"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(Value::as_u64)
            .sum();
        assert!(n_runs > before.len() as u64, "{made}");
        let args = [
            "serve",
            "--while-stdin",
            "--listen",
            "127.0.0.1:0",
            "--store",
            "sqlite:copy.db",
        ];
        let mut command = place.command(&args);
        command
            .arg("--workflows")
            .arg(crate::binary::examples())
            .env("WOPR_API_KEY", KEY);
        let restored = crate::binary::Host::start(command);
        let origin = &restored.origin;
        let listed = list(&client, origin).await;
        assert_eq!(listed.len() as u64, n_runs);
        for run in &before {
            assert!(listed.iter().any(|(listed, _)| listed == run), "{run} is lost");
        }
        for (run, status) in &listed {
            let url = format!("{origin}/v1/runs/{run}/events/poll?timeout=1");
            let (code, log) = ask(client.get(url)).await;
            assert_eq!(code, 200, "{log}");
            let events = log["events"].as_array().unwrap();
            for (n, event) in events.iter().enumerate() {
                assert_eq!(event["sequence"], n, "{run}");
            }
            let is_whole = if run == &waiting {
                status == "waiting-approval"
            } else {
                status == "completed" && log["isComplete"] == true
            };
            assert!(is_whole, "{run} is {status}: {log}");
        }
        // The master key was copied too, so earlier signatures are still valid.
        let request = client
            .post(format!("{origin}/v1/interrupts/{token}"))
            .header("content-type", "application/json")
            .body(json!({ "resumeValue": { "action": "accept" } }).to_string());
        let (status, answer) = ask(request).await;
        assert_eq!(status, 200, "{answer}");
        restored.kill();
    }
}

#[test]
fn backup_reports_its_contents_and_is_not_overwritten() {
    let place = Place::new();
    place.ends(0, &["migrate"]);
    let said = place.ends(0, &["backup", "copy.db"]);
    assert!(
        said.out.starts_with("copy.db holds 0 runs with 0 events"),
        "{said:#?}"
    );
    assert!(said.err.contains("master key is not in it"), "{said:#?}");
    let said = place.ends(2, &["backup", "copy.db"]);
    assert!(said.err.contains("copy.db is there already"), "{said:#?}");
    place.ends(0, &["migrate", "--check", "--store", "sqlite:copy.db"]);
    let names: BTreeSet<_> = place
        .path()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        !names.iter().any(|name| name.starts_with(".wopr-backup")),
        "{names:?}"
    );
}

#[cfg(unix)]
#[test]
fn backup_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;

    let mut place = Place::new();
    place.serve().kill();
    place.ends(
        0,
        &["backup", "copy.db", "--with-key", "--store", "sqlite:wopr.db"],
    );
    for name in ["copy.db", "copy.db.key"] {
        let mode = place.path().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // A second backup fails before copying anything, just because the key file exists.
    std::fs::remove_file(place.path().join("copy.db")).unwrap();
    let said = place.ends(
        2,
        &["backup", "copy.db", "--with-key", "--store", "sqlite:wopr.db"],
    );
    assert!(said.err.contains("copy.db.key is there already"), "{said:#?}");
}

#[test]
fn uncopyable_stores_are_reported() {
    let mut place = Place::new();
    let said = place.ends(4, &["backup", "copy.db"]);
    assert!(said.err.starts_with("error: cannot find a database"), "{said:#?}");
    place.ends(2, &["backup", "copy.db", "--store", "memory:"]);
    let said = place.ends(
        2,
        &[
            "backup",
            "copy.db",
            "--store",
            "postgres://ada:hunter2@127.0.0.1:1/db",
        ],
    );
    assert!(said.err.contains("pg_dump"), "{said:#?}");
    assert!(!said.err.contains("hunter2"), "{said:#?}");
    place.ends(0, &["migrate"]);
    place.ends(4, &["backup", "no/such/folder/copy.db"]);
    place.ends(4, &["backup", "copy.db", "--with-key"]);
    place.set("WOPR_MASTER_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    let said = place.ends(2, &["backup", "copy.db", "--with-key"]);
    assert!(said.err.contains("WOPR_MASTER_KEY"), "{said:#?}");
    assert!(!place.path().join("copy.db").exists());
    place.ends(0, &["backup", "copy.db"]);
}

#[test]
fn backup_reports_the_location_of_the_master_key() {
    let mut place = Place::new();
    let backup = |place: &Place, dest: &str, expected: &str| {
        let said = place.ends(0, &["backup", dest, "--store", "sqlite:wopr.db"]);
        assert!(said.err.contains(expected), "{said:#?}");
    };
    place.ends(0, &["migrate", "--store", "sqlite:wopr.db"]);
    backup(
        &place,
        "a.db",
        "keep the one that hosts have as WOPR_MASTER_KEY or secrets.key_file,",
    );
    place.write("wopr.db.key", "a key");
    backup(&place, "b.db", "keep wopr.db.key,");
    place.set("WOPR_MASTER_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=");
    backup(&place, "c.db", "keep WOPR_MASTER_KEY,");
}
