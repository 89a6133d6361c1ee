//! Workers of `clients/python` and `clients/typescript` against the built binary: hosts and workers are killed while activities are under way.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time,
};

use crate::{
    calling::{events_of, outputs, register},
    host::{Host, KEY, place},
    interop::{LIMIT, OPENWOP, root},
    quarantine::{ask, create, reaches},
};

/// The pace of asking.
const PAUSE: Duration = Duration::from_millis(20);

fn definition() -> Value {
    let input = json!({ "n": "{{ inputs.n }}", "what": "{{ inputs.what }}" });
    json!({
        "id": "job", "name": "Job", "version": "1",
        "nodes": [{
            "id": "work", "typeId": "core.activity", "name": "Work", "position": { "x": 0, "y": 0 }, "inputs": {},
            "config": { "queue": "jobs", "input": input },
        }],
        "variables": [{ "name": "n", "type": "string" }, { "name": "what", "type": "string" }],
        "edges": [], "triggers": [{ "id": "manual", "type": "manual" }], "metadata": {},
        "settings": { "maxRetries": 3, "retryDelayMs": 1 },
    })
}

/// A Python with the client in its path, which needs no other package.
fn python(address: SocketAddr) -> Command {
    let mut command = Command::new(OPENWOP.python());
    command
        .env("PYTHONPATH", root().join("clients/python/src"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("WOPR_SERVER", format!("http://{address}"))
        .env("WOPR_API_KEY", KEY)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// The language of a worker.
#[derive(Debug, Clone, Copy)]
enum In {
    Python,
    JavaScript,
}

fn worker(language: In, address: SocketAddr, tally: &Path, name: &str) -> Child {
    let (mut command, script) = program(language, address);
    command.arg(script).arg(tally).arg(name).spawn().unwrap()
}

fn program(language: In, address: SocketAddr) -> (Command, PathBuf) {
    let (command, script) = match language {
        In::Python => (python(address), "worker.py"),
        In::JavaScript => (node(address), "worker.mjs"),
    };
    (command, root().join("tests/interop").join(script))
}

fn node(address: SocketAddr) -> Command {
    let mut command = Command::new("node");
    command
        .env("WOPR_SERVER", format!("http://{address}"))
        .env("WOPR_API_KEY", KEY)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

fn lines(tally: &Path) -> Vec<String> {
    let text = fs::read_to_string(tally).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Waits until the workers have written so many lines, or one that `is_wanted`.
async fn noted(tally: &Path, is_wanted: impl Fn(&[String]) -> bool) {
    let since = Instant::now();
    while !is_wanted(&lines(tally)) {
        assert!(since.elapsed() < LIMIT, "the workers noted {:?}", lines(tally));
        // sleep: the pace of asking
        time::sleep(PAUSE).await;
    }
}

async fn job(address: SocketAddr, n: usize, what: &str) -> String {
    create(address, "job", json!({ "n": n.to_string(), "what": what })).await
}

#[tokio::test]
async fn activities_are_done_once_though_hosts_and_python_workers_are_killed() {
    done_once(In::Python).await;
}

#[tokio::test]
async fn activities_are_done_once_though_hosts_and_javascript_workers_are_killed() {
    done_once(In::JavaScript).await;
}

async fn done_once(language: In) {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let tally: PathBuf = folder.path().join("tally");
    let mut host = Host::new().staying().variable("WOPR_WORKER_LEASE", "1s");
    let address = host.start().await;
    register(address, definition()).await;
    let mut first = worker(language, address, &tally, "first");
    let _second = worker(language, address, &tally, "second");
    let mut runs = Vec::new();
    for n in 0..60 {
        runs.push(job(address, n, "count").await);
    }
    noted(&tally, |lines| lines.len() >= 5).await;
    first.kill().await.unwrap();
    let mut third = worker(language, address, &tally, "third");
    noted(&tally, |lines| lines.len() >= 15).await;
    host.kill().await;
    host.start().await;
    for (n, run) in runs.iter().enumerate() {
        reaches(address, run, "completed").await;
        assert_eq!(outputs(address, run).await, json!({ "n": n.to_string() }));
        assert_eq!(events_of(address, run, "node.completed").await.len(), 1);
        assert_eq!(
            events_of(address, run, "vendor.wopr.effect.scheduled")
                .await
                .len(),
            1,
            "no attempt failed"
        );
    }
    let keys: BTreeSet<_> = lines(&tally).into_iter().collect();
    assert_eq!(keys.len(), 60, "each activity was done under one key");

    // A worker that is told to stop ends in order.
    let pid = third.id().unwrap().to_string();
    let told = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
    assert!(told.success());
    assert!(
        time::timeout(LIMIT, third.wait())
            .await
            .unwrap()
            .unwrap()
            .success()
    );
    assert!(lines(&tally).contains(&"third has stopped".to_owned()));
}

#[tokio::test]
async fn a_python_worker_fails_retries_and_learns_of_a_cancel() {
    learns_of_a_cancel(In::Python).await;
}

#[tokio::test]
async fn a_javascript_worker_fails_retries_and_learns_of_a_cancel() {
    learns_of_a_cancel(In::JavaScript).await;
}

async fn learns_of_a_cancel(language: In) {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let tally: PathBuf = folder.path().join("tally");
    let mut host = Host::new().variable("WOPR_WORKER_LEASE", "1s");
    let address = host.start().await;
    register(address, definition()).await;
    let _worker = worker(language, address, &tally, "only");

    let retried = job(address, 1, "fail-once").await;
    reaches(address, &retried, "completed").await;
    let keys = lines(&tally);
    assert_eq!(
        (keys.len(), &keys[0]),
        (2, &keys[1]),
        "both attempts have one key"
    );

    // A step that ends its thread is a failure of its own, not the loss of a worker.
    let breaks: &[&str] = match language {
        In::Python => &["break", "exit"],
        In::JavaScript => &["break"],
    };
    for what in breaks {
        let broken = job(address, 2, what).await;
        reaches(address, &broken, "failed").await;
        let (_, failed) = ask(address, "GET", &format!("/v1/runs/{broken}"), None).await;
        assert_eq!(failed["error"]["code"], "worker_failed", "{failed}");
    }

    let waits = job(address, 3, "wait").await;
    noted(&tally, |lines| lines.len() >= 3 + breaks.len()).await;
    let path = format!("/v1/runs/{waits}:cancel");
    let (status, _) = ask(address, "POST", &path, Some(json!({}))).await;
    assert_eq!(status, 200);
    noted(&tally, |lines| lines.iter().any(|line| line == "cancelled True")).await;
}

#[tokio::test]
async fn an_outcome_that_the_host_refuses_fails_the_step_in_python() {
    refused_outcome_fails(In::Python).await;
}

#[tokio::test]
async fn an_outcome_that_the_host_refuses_fails_the_step_in_javascript() {
    refused_outcome_fails(In::JavaScript).await;
}

async fn refused_outcome_fails(language: In) {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let tally: PathBuf = folder.path().join("tally");
    let mut host = Host::new();
    let address = host.start().await;
    register(address, definition()).await;
    let _worker = worker(language, address, &tally, "only");
    let large = job(address, 1, "large").await;
    reaches(address, &large, "failed").await;
    let (_, failed) = ask(address, "GET", &format!("/v1/runs/{large}"), None).await;
    assert_eq!(failed["error"]["code"], "outcome_refused", "{failed}");
    let message = failed["error"]["message"].as_str().unwrap();
    assert!(message.contains("413 payload_too_large"), "{message}");
    assert_eq!(lines(&tally).len(), 1, "it was done once");
    let small = job(address, 2, "count").await;
    reaches(address, &small, "completed").await;
}

#[tokio::test]
async fn many_signals_at_once_stop_a_python_worker_after_its_activity() {
    stops_at_many_signals(In::Python).await;
}

#[tokio::test]
async fn many_signals_at_once_stop_a_javascript_worker_after_its_activity() {
    stops_at_many_signals(In::JavaScript).await;
}

async fn stops_at_many_signals(language: In) {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let tally: PathBuf = folder.path().join("tally");
    let mut host = Host::new();
    let address = host.start().await;
    register(address, definition()).await;
    let mut worker = worker(language, address, &tally, "only");
    let run = job(address, 1, "signals").await;
    let ended = time::timeout(LIMIT, worker.wait()).await;
    assert!(ended.expect("it stops").unwrap().success());
    assert!(lines(&tally).contains(&"only has stopped".to_owned()));
    reaches(address, &run, "completed").await;
}

#[tokio::test]
async fn a_python_worker_with_a_wrong_key_ends() {
    ends_with_a_wrong_key(In::Python).await;
}

#[tokio::test]
async fn a_javascript_worker_with_a_wrong_key_ends() {
    ends_with_a_wrong_key(In::JavaScript).await;
}

async fn ends_with_a_wrong_key(language: In) {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let tally: PathBuf = folder.path().join("tally");
    let mut host = Host::new();
    let address = host.start().await;
    let (mut command, script) = program(language, address);
    command
        .env("WOPR_API_KEY", "not-the-key-of-this-host")
        .arg(script)
        .arg(&tally)
        .arg("stranger")
        .stderr(Stdio::piped());
    let ended = time::timeout(LIMIT, command.output()).await;
    let output = ended.expect("it ends").unwrap();
    assert!(!output.status.success());
    assert_eq!(lines(&tally), ["WorkRefused 401"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("check the key"), "{said}");
}

/// Installs the Python client as its page says, but with the build tools that are there, and imports it from there.
#[tokio::test]
async fn the_python_client_installs_from_a_clone() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    for page in ["README.md", "docs/workers.md", "clients/python/README.md"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(
            text.contains("pip install ./clients/python"),
            "{page} says how to install the client"
        );
    }
    let packages = folder.path().join("packages");
    let installed = Command::new(OPENWOP.python())
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args([
            "--no-index",
            "--no-build-isolation",
            "./clients/python",
            "--target",
        ])
        .arg(&packages)
        .current_dir(root())
        .env_remove("PYTHONPATH")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&installed.stderr);
    assert!(installed.status.success(), "{said}");
    let imported = Command::new(OPENWOP.python())
        .args([
            "-c",
            "import wopr_worker; print(wopr_worker.__file__, wopr_worker.WorkRefused)",
        ])
        .current_dir(folder.path())
        .env("PYTHONPATH", &packages)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&imported.stdout);
    let place = packages.join("wopr_worker");
    assert!(said.starts_with(&place.display().to_string()), "{said}");
}

#[tokio::test]
async fn the_worker_of_the_page_prints_letters() {
    let page = fs::read_to_string(root().join("docs/workers.md")).unwrap();
    let readme = fs::read_to_string(root().join("clients/python/README.md")).unwrap();
    let snippet = |text: &str| {
        let (_, rest) = text.split_once("```python\n").unwrap();
        rest.split_once("```").unwrap().0.to_owned()
    };
    assert_eq!(snippet(&page), snippet(&readme));
    let mut host = Host::new();
    let address = host.start().await;
    let letter = fs::read_to_string(root().join("examples/print-letter/print-letter.json")).unwrap();
    register(address, serde_json::from_str(&letter).unwrap()).await;
    let _worker = python(address).args(["-c", &snippet(&page)]).spawn().unwrap();
    let run = create(address, "print-letter", json!({ "name": "Ann" })).await;
    reaches(address, &run, "completed").await;
    assert_eq!(outputs(address, &run).await, json!({ "pages": 1 }));
}
