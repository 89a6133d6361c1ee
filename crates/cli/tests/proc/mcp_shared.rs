//! Several processes of `wopr mcp` on one SQLite database: one has it, the others forward to it, and one of them takes over
//! when it ends.

use std::{
    fs::{self, File, Permissions},
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time;

use crate::{
    host::{Host, KEY, place, sqlite},
    http::{Connection, write_request},
    interop::LIMIT,
    mcp::{Talk, command, finds_no_host, open},
};

/// Interval between two looks at the note.
const PAUSE: Duration = Duration::from_millis(20);

/// A folder with a database and workflows.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(place()).unwrap();
        let place = Self(folder);
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        fs::create_dir(place.workflows()).unwrap();
        for workflow in [
            "examples/campaign-brief.json",
            "crates/cli/tests/workflows/delay.json",
        ] {
            let from = repository.join(workflow);
            fs::copy(&from, place.workflows().join(from.file_name().unwrap())).unwrap();
        }
        place
    }

    fn workflows(&self) -> PathBuf {
        self.0.path().join("workflows")
    }

    /// Starts a process with these variables, and does not wait.
    fn start_with(&self, variables: &[(&str, &str)]) -> Talk {
        let mut command = command(self.0.path());
        command
            .args(["--store", &sqlite(self.0.path()), "--workflows"])
            .arg(self.workflows())
            .envs(variables.iter().copied());
        Talk::start(command)
    }

    fn start(&self) -> Talk {
        self.start_with(&[])
    }

    /// Starts a process and opens the conversation, after which some process has the database.
    async fn opened(&self) -> Talk {
        let mut talk = self.start();
        open(&mut talk).await;
        talk
    }

    fn note(&self) -> PathBuf {
        self.0.path().join("wopr.db.host")
    }

    /// The address that is noted.
    fn noted(&self) -> Option<String> {
        let text = fs::read(self.note()).ok()?;
        let note: Value = serde_json::from_slice(&text).unwrap();
        Some(note["listening"].as_str().unwrap().to_owned())
    }

    /// Waits until another host than this one is noted.
    async fn succeeded(&self, address: &str) {
        let since = Instant::now();
        while self.noted().is_none_or(|noted| noted == address) {
            assert!(since.elapsed() < LIMIT, "nobody takes over");
            // sleep: the pace of looking
            time::sleep(PAUSE).await;
        }
    }
}

async fn start_run(talk: &mut Talk, workflow: &str, inputs: Value) -> Value {
    let arguments = json!({ "workflowId": workflow, "inputs": inputs });
    talk.call("wopr_start_run", arguments).await
}

/// Starts a run that waits for an answer.
async fn ask_for_approval(talk: &mut Talk) -> Value {
    let run = start_run(talk, "campaign-brief", json!({ "prompt": "spring" })).await;
    assert_eq!(run["status"], "waiting-approval", "{run:#}");
    run
}

async fn approve(talk: &mut Talk, run: &Value) {
    let shown = talk.call("wopr_get_run", json!({ "runId": run["runId"] })).await;
    let question = &shown["run"]["interrupts"][0];
    let arguments = json!({
        "runId": run["runId"], "nodeId": question["nodeId"], "interruptId": question["interruptId"],
        "value": { "action": "accept" },
    });
    let answered = talk.call("wopr_answer", arguments).await;
    assert_eq!(answered["status"], "completed", "{answered:#}");
}

async fn listed(talk: &mut Talk) -> Vec<String> {
    let runs = talk.call("wopr_list_runs", json!({})).await;
    let runs = runs["runs"].as_array().unwrap_or_else(|| panic!("{runs:#}"));
    runs.iter()
        .map(|run| run["runId"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits for the end of a run.
async fn outcome(talk: &mut Talk, run: &str) -> Value {
    let mut arguments = json!({ "runId": run });
    loop {
        let seen = talk.call("wopr_watch_run", arguments.clone()).await;
        match seen["status"].as_str() {
            Some("running" | "pending") => arguments["after"] = seen["eventCount"].clone(),
            Some(_) | None => return seen["status"].clone(),
        }
    }
}

/// Sends a call that waits, until the host notifies of its progress.
async fn begin(talk: &mut Talk, tool: &str, arguments: Value) {
    let call = json!({ "jsonrpc": "2.0", "id": "begun", "method": "tools/call", "params": {
        "name": tool, "arguments": arguments, "_meta": { "progressToken": "p" },
    } });
    talk.send(&call.to_string()).await;
    assert_eq!(talk.line().await["params"]["progressToken"], "p");
}

/// Ends a process for which nothing went wrong.
async fn end_well(talk: Talk) {
    let (_, code, said) = talk.end().await;
    assert_eq!((code, said.as_str()), (Some(0), ""), "nothing is logged");
}

#[tokio::test]
async fn two_editors_that_start_at_once_share_a_database() {
    let place = Place::new();
    let (mut first, mut second) = (place.start(), place.start());
    open(&mut first).await;
    open(&mut second).await;
    let run = ask_for_approval(&mut first).await;
    assert_eq!(listed(&mut second).await, [run["runId"].as_str().unwrap()]);
    approve(&mut second, &run).await;
    let run = ask_for_approval(&mut second).await;
    approve(&mut first, &run).await;

    // Others who find the port have no key.
    let address: SocketAddr = place.noted().unwrap()["http://".len()..].parse().unwrap();
    assert!(address.ip().is_loopback());
    for (path, body) in [("/mcp", &b"{}"[..]), ("/v1/runs", b"{}")] {
        let mut request = Vec::new();
        write_request(&mut request, "POST", path, "", Some(body));
        let mut connection = Connection::open(address).await.unwrap();
        assert_eq!(connection.send(&request).await.unwrap(), 401, "{path}");
    }
    assert_eq!(
        fs::metadata(place.note()).unwrap().permissions().mode() & 0o777,
        0o600
    );
    end_well(first).await;
    end_well(second).await;
    assert!(!place.note().exists());
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_was_killed() {
    let place = Place::new();
    let mut first = place.opened().await;
    let mut second = place.opened().await;
    let host = place.noted().unwrap();
    // The second one's call is under way, as the progress of the run tells.
    let waits = ask_for_approval(&mut first).await;
    let arguments = json!({ "runId": waits["runId"], "after": waits["eventCount"] });
    begin(&mut second, "wopr_watch_run", arguments).await;
    let arguments = json!({ "workflowId": "delay", "inputs": { "delayMs": 2_000 } });
    begin(&mut first, "wopr_start_run", arguments).await;
    first.kill().await;
    let lost = second.line().await;
    assert_eq!(lost["id"], "begun", "{lost:#}");
    let why = lost["error"]["message"].as_str().unwrap();
    assert!(why.contains("goes on") && why.contains("wopr_list_runs"), "{why}");

    // It asks for nothing, and takes over all the same.
    place.succeeded(&host).await;
    let runs = listed(&mut second).await;
    assert_eq!(runs.len(), 2);
    let delayed = runs.iter().find(|run| waits["runId"] != **run).unwrap();
    assert_eq!(outcome(&mut second, delayed).await, "completed");
    end_well(second).await;
}

#[tokio::test]
async fn requests_after_a_kill_are_answered_by_the_next_process() {
    let place = Place::new();
    let mut first = place.opened().await;
    let mut second = place.opened().await;
    let run = ask_for_approval(&mut first).await;
    first.kill().await;
    // Many at once, and one process takes over once.
    for id in 0..20 {
        let call = json!({ "jsonrpc": "2.0", "id": format!("r{id}"), "method": "tools/call", "params": {
            "name": "wopr_get_run", "arguments": { "runId": run["runId"] },
        } });
        second.send(&call.to_string()).await;
    }
    for _ in 0..20 {
        let answer = second.line().await;
        let found = &answer["result"]["structuredContent"];
        assert_eq!(found["status"], run["status"], "{answer:#}");
    }
    approve(&mut second, &run).await;
    end_well(second).await;
}

#[tokio::test]
async fn a_process_takes_over_from_one_that_ended_in_order() {
    let place = Place::new();
    let mut first = place.opened().await;
    let mut second = place.opened().await;
    let run = ask_for_approval(&mut first).await;
    end_well(first).await;
    approve(&mut second, &run).await;
    end_well(second).await;
}

#[tokio::test]
async fn processes_that_outlive_a_third_agree_on_one_of_them() {
    let place = Place::new();
    let first = place.opened().await;
    let (mut second, mut third) = (place.opened().await, place.opened().await);
    let host = place.noted().unwrap();
    first.kill().await;
    place.succeeded(&host).await;
    let run = ask_for_approval(&mut second).await;
    approve(&mut third, &run).await;
    let run = ask_for_approval(&mut third).await;
    approve(&mut second, &run).await;
    // Whichever of them has the database, the other one has it next.
    end_well(second).await;
    assert_eq!(listed(&mut third).await.len(), 2);
    end_well(third).await;
}

#[tokio::test]
async fn a_key_of_the_user_is_asked_for_and_not_noted() {
    let place = Place::new();
    let key = [("WOPR_API_KEY", KEY)];
    let mut first = place.start_with(&key);
    open(&mut first).await;
    assert!(!fs::read_to_string(place.note()).unwrap().contains(KEY));
    let mut second = place.start_with(&key);
    open(&mut second).await;
    let run = ask_for_approval(&mut first).await;
    approve(&mut second, &run).await;
    for (variables, says) in [
        (&[][..], "WOPR_API_KEY"),
        (
            &[("WOPR_API_KEY", "another-key-0123456789abcdef")],
            "know this key",
        ),
    ] {
        let mut stranger = place.start_with(variables);
        let refused = stranger.ask("ping", json!({})).await;
        let why = refused["error"]["message"].as_str().unwrap();
        assert!(why.contains(says), "{why}");
        end_well(stranger).await;
    }
    end_well(first).await;
    end_well(second).await;
}

#[tokio::test]
async fn a_note_that_others_may_read_is_not_trusted() {
    let place = Place::new();
    let first = place.opened().await;
    fs::set_permissions(place.note(), Permissions::from_mode(0o644)).unwrap();
    let (lines, code, said) = place.start().end().await;
    assert_eq!((lines, code), (Vec::new(), Some(8)), "{said}");
    assert!(said.contains("other users may read"), "{said}");
    end_well(first).await;
}

#[tokio::test]
async fn a_database_whose_process_noted_nothing_cannot_be_shared() {
    let place = Place::new();
    let holds = File::create(place.0.path().join("wopr.db.lock")).unwrap();
    holds.try_lock().unwrap();
    // The note of a process that was killed, whose port somebody else has now.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", stranger.local_addr().unwrap());
    let note = json!({ "listening": address, "together": true, "key": "wopr_old" });
    fs::write(place.note(), note.to_string()).unwrap();
    fs::set_permissions(place.note(), Permissions::from_mode(0o600)).unwrap();
    let (lines, code, said) = place.start_with(&[("WOPR_API_KEY", KEY)]).end().await;
    assert_eq!((lines, code), (Vec::new(), Some(8)), "{said}");
    assert!(said.contains("WOPR_SERVER"), "{said}");
    stranger.set_nonblocking(true).unwrap();
    let unreached = stranger.accept().unwrap_err();
    assert_eq!(unreached.kind(), ErrorKind::WouldBlock, "nobody sent it a key");
}

#[tokio::test]
async fn a_process_that_cannot_take_over_says_why_and_tries_again() {
    let place = Place::new();
    let first = place.opened().await;
    let mut second = place.opened().await;
    let away = place.0.path().join("away");
    fs::rename(place.workflows(), &away).unwrap();
    first.kill().await;
    let refused = second.ask("ping", json!({})).await;
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("workflows"), "{why}");
    fs::rename(&away, place.workflows()).unwrap();
    let since = Instant::now();
    loop {
        let answer = second.ask("ping", json!({})).await;
        if answer["result"] == json!({}) {
            break;
        }
        assert!(since.elapsed() < LIMIT, "{answer:#}");
        // sleep: the pace of asking
        time::sleep(PAUSE).await;
    }
    end_well(second).await;
}

#[tokio::test]
async fn a_process_follows_a_server_and_never_takes_its_place() {
    let place = Place::new();
    let folder = place.0.path();
    let mut host = Host::over(folder, "host", sqlite(folder));
    host.start().await;
    let mut talk = place.start_with(&[("WOPR_API_KEY", KEY)]);
    open(&mut talk).await;
    let run = ask_for_approval(&mut talk).await;
    host.kill().await;
    finds_no_host(&mut talk).await;
    // At another port, which the system chooses.
    host.start().await;
    approve(&mut talk, &run).await;
    host.terminate().await;
    finds_no_host(&mut talk).await;
    talk.end().await;
}
