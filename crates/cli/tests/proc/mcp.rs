//! `wopr mcp` from outside, over its standard input and output: with a store of its own, and in front of another host.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{
    host::{Host, KEY, place, sqlite},
    interop::LIMIT,
    quarantine::reaches,
};

/// A process of `wopr mcp`.
pub(crate) struct Talk {
    child: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    next: u64,
}

/// The command, without variables of this process that concern it.
pub(crate) fn command(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("WOPR_")
            || name.starts_with("WORKFLOW_ENGINE_")
            || name.starts_with("AGENT_WORKFLOW_")
        {
            command.env_remove(&*name);
        }
    }
    command.arg("mcp").current_dir(folder);
    command
}

impl Talk {
    pub(crate) fn start(mut command: Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            input: child.stdin.take(),
            lines,
            child,
            next: 0,
        }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(text.as_bytes()).await.unwrap();
        input.write_all(b"\n").await.unwrap();
    }

    /// The next line, which is always a message.
    pub(crate) async fn line(&mut self) -> Value {
        let line = timeout(LIMIT, self.lines.next_line()).await;
        let line = line.expect("it answers in time").unwrap();
        match line {
            Some(line) => serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line}")),
            None => panic!("it has ended: {}", self.said().await),
        }
    }

    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let request = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        self.send(&request.to_string()).await;
        loop {
            let line = self.line().await;
            if line["id"] == self.next {
                return line;
            }
        }
    }

    /// The structured content of a call.
    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        let answer = self.ask("tools/call", params).await;
        answer["result"]["structuredContent"].clone()
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    async fn said(&mut self) -> String {
        let mut text = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut text).await.unwrap();
        text
    }

    /// Closes the input, and returns the lines that still come, the exit code and what was logged.
    pub(crate) async fn end(mut self) -> (Vec<Value>, Option<i32>, String) {
        drop(self.input.take());
        let mut rest = Vec::new();
        while let Some(line) = timeout(LIMIT, self.lines.next_line()).await.unwrap().unwrap() {
            rest.push(serde_json::from_str(&line).unwrap());
        }
        let status = timeout(LIMIT, self.child.wait()).await.unwrap().unwrap();
        let said = self.said().await;
        (rest, status.code(), said)
    }
}

fn approval() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// Opens as a client does.
pub(crate) async fn open(talk: &mut Talk) -> Value {
    let params = json!({
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
    });
    let opened = talk.ask("initialize", params).await;
    talk.send(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)
        .await;
    opened["result"].clone()
}

/// Checks that a request fails because no host can be reached.
pub(crate) async fn finds_no_host(talk: &mut Talk) {
    let lost = talk.ask("ping", json!({})).await;
    let why = lost["error"]["message"].as_str().unwrap();
    assert!(why.contains("cannot reach"), "{lost}");
}

#[tokio::test]
async fn runs_survive_the_process_that_an_editor_starts() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let start = || {
        let mut command = command(folder.path());
        command
            .args(["--store", "sqlite", "--store-path", "mine.db", "--workflows"])
            .arg(approval());
        Talk::start(command)
    };
    let mut talk = start();
    let opened = open(&mut talk).await;
    assert_eq!(opened["protocolVersion"], "2025-06-18");
    // Its own tools never change.
    assert_eq!(opened["capabilities"]["tools"]["listChanged"], false);
    let inputs = json!({ "prompt": "spring" });
    let started = talk
        .call(
            "wopr_start_run",
            json!({ "workflowId": "campaign-brief", "inputs": inputs }),
        )
        .await;
    let run = started["runId"].as_str().unwrap().to_owned();
    assert!(
        started["status"].as_str().unwrap().starts_with("waiting"),
        "{started:#}"
    );
    // A wait ends when the client leaves, and is still answered.
    let watch = json!({ "jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": {
        "name": "wopr_watch_run", "arguments": { "runId": run, "after": started["eventCount"] },
    } });
    talk.send(&watch.to_string()).await;
    let (rest, code, said) = talk.end().await;
    assert_eq!(
        (code, said.as_str()),
        (Some(0), ""),
        "nothing goes wrong, so nothing is logged"
    );
    assert_eq!(rest.len(), 1);
    assert_eq!(rest[0]["id"], "w");
    assert!(folder.path().join("mine.db").exists());

    let mut talk = start();
    let again = talk.call("wopr_get_run", json!({ "runId": run })).await;
    assert_eq!(again["status"], started["status"], "{again:#}");
    let question = &again["run"]["interrupts"][0];
    let answer = json!({
        "runId": run, "nodeId": question["nodeId"], "interruptId": question["interruptId"], "value": { "action": "accept" },
    });
    let answered = talk.call("wopr_answer", answer).await;
    assert_eq!(answered["status"], "completed", "{answered:#}");
    talk.end().await;
}

#[tokio::test]
async fn a_signal_ends_it_in_order() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let mut command = command(folder.path());
    command.args(["--store", "memory"]);
    let mut talk = Talk::start(command);
    open(&mut talk).await;
    let pid = talk.child.id().unwrap().to_string();
    let told = Command::new("kill").args(["-TERM", &pid]).status().await.unwrap();
    assert!(told.success());
    let status = timeout(LIMIT, talk.child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_host_that_has_the_store_is_forwarded_to() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let mut host = Host::over(folder.path(), "host", sqlite(folder.path()));
    let address = host.start().await;
    let start = |key: &str| {
        let mut command = command(folder.path());
        command
            .args(["--store", &sqlite(folder.path())])
            .env("WOPR_API_KEY", key);
        Talk::start(command)
    };
    let mut talk = start(KEY);
    open(&mut talk).await;
    let started = talk
        .call(
            "wopr_start_run",
            json!({ "workflowId": "hello", "inputs": { "name": "Ada" } }),
        )
        .await;
    assert_eq!(started["status"], "completed", "{started:#}");
    reaches(address, started["runId"].as_str().unwrap(), "completed").await;
    // Progress comes through, and a cancelled call is not answered.
    let waits = talk
        .call(
            "wopr_start_run",
            json!({ "workflowId": "campaign-brief", "inputs": { "prompt": "x" } }),
        )
        .await;
    let watch = json!({ "jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": {
        "name": "wopr_watch_run", "arguments": { "runId": waits["runId"], "after": waits["eventCount"] },
        "_meta": { "progressToken": "p" },
    } });
    talk.send(&watch.to_string()).await;
    assert_eq!(talk.line().await["params"]["progressToken"], "p");
    let cancel =
        json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "w" } });
    talk.send(&cancel.to_string()).await;
    assert_eq!(talk.ask("ping", json!({})).await["result"], json!({}));
    let (rest, code, _) = talk.end().await;
    assert_eq!((rest, code), (Vec::new(), Some(0)));

    let mut stranger = start("wrong");
    let refused = stranger.ask("ping", json!({})).await;
    let why = refused["error"]["message"].as_str().unwrap();
    assert!(why.contains("key"), "{why}");
    stranger.end().await;

    // The host goes away: every request says so, and the process stays.
    let mut talk = start(KEY);
    open(&mut talk).await;
    host.kill().await;
    finds_no_host(&mut talk).await;
    talk.end().await;
}

#[tokio::test]
async fn hostile_lines_are_refused_and_the_next_ones_answered() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let mut command = command(folder.path());
    command.args(["--store", "memory", "--set", "server.max_body_bytes=100000"]);
    let mut talk = Talk::start(command);
    for (text, code) in [
        ("{".to_owned(), -32_700),
        ("\u{feff}{}".to_owned(), -32_700),
        ("[".repeat(50_000), -32_700),
        ("x".repeat(200_000), -32_600),
        (
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_owned(),
            -32_600,
        ),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#.to_owned(), -32_600),
        (
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":[{}1]}}}}"#,
                "1,".repeat(45_000)
            ),
            0,
        ),
    ] {
        talk.send(&text).await;
        let refused = talk.line().await;
        if code != 0 {
            assert_eq!(refused["error"]["code"], code, "{}", &text[..text.len().min(60)]);
        }
    }
    // A flood: more requests at once than are taken in flight, each answered once.
    let mut text = String::new();
    for n in 0..2_000 {
        text += &format!("{}\n", json!({ "jsonrpc": "2.0", "id": n, "method": "ping" }));
    }
    let mut input = talk.input.take().unwrap();
    let sending = tokio::spawn(async move {
        input.write_all(text.as_bytes()).await.unwrap();
        input
    });
    let mut ids = std::collections::BTreeSet::new();
    while ids.len() < 2_000 {
        let line = talk.line().await;
        assert!(ids.insert(line["id"].as_u64().unwrap()), "{line}");
    }
    talk.input = Some(sending.await.unwrap());
    let (_, code, _) = talk.end().await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_manifest_of_the_reference_gives_servers_or_a_reason() {
    let folder = tempfile::tempdir_in(place()).unwrap();
    let manifest = folder.path().join("mcp.json");
    std::fs::write(
        &manifest,
        r#"{"mcpServers": {"files": {"command": "node", "args": ["x.mjs"]}}}"#,
    )
    .unwrap();
    let start = |variables: &[(&str, &str)]| {
        let mut command = command(folder.path());
        command
            .args(["--store", "memory", "--mcp-config"])
            .arg(&manifest)
            .envs(variables.iter().copied());
        Talk::start(command)
    };
    let mut talk = start(&[]);
    open(&mut talk).await;
    assert_eq!(talk.end().await.1, Some(0));
    let (_, code, said) = start(&[("WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS", "npx")])
        .end()
        .await;
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("WORKFLOW_ENGINE_MCP_ALLOW_COMMANDS"), "{said}");
}
