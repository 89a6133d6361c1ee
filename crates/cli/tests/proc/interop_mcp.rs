//! Workflows that call tools of a server by the official MCP SDK, as a process and over streamable HTTP; the host and the
//! server are killed while a tool works.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    time::{self, timeout},
};

use crate::{
    calling::{events, events_of, outputs, register},
    host::{Host, KEY, place},
    interop::{LIMIT, MCP, root},
    quarantine::{ask, create, reaches},
};

const SECRET: &str = "token-of-the-tools-0123456789";

/// How the server is reached.
#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Process,
    /// With streams of events.
    Events,
    /// With documents.
    Documents,
}

/// A host with a server, whose process is the host's or the test's.
struct Tools {
    folder: TempDir,
    host: Host,
    address: SocketAddr,
    server: Option<(Child, ChildStdin)>,
    by: By,
}

fn script() -> PathBuf {
    root().join("tests/interop/mcp_server.py")
}

impl Tools {
    async fn start(by: By) -> Self {
        let folder = tempfile::tempdir_in(place()).unwrap();
        let (server, reached) = match by {
            By::Process => {
                let tally = folder.path().join("tally");
                let reached = format!(
                    "command = {:?}\nargs = [{:?}]\nenv = {{ TALLY = {tally:?}, PYTHONDONTWRITEBYTECODE = \"1\", \
                     TOKEN = {{ secret = \"token\" }} }}\n",
                    MCP.python(),
                    script(),
                );
                (None, reached)
            }
            By::Events | By::Documents => {
                let (server, url) = serve(folder.path(), by).await;
                (Some(server), format!("url = {url:?}\nsecret = \"token\"\n"))
            }
        };
        let file = folder.path().join("wopr.toml");
        let text = format!(
            "[[mcp.servers]]\nname = \"default\"\n{reached}\
             [[secrets.named]]\nname = \"token\"\nenv = \"THE_TOKEN\"\n[egress]\nallow = [\"127.0.0.0/8\"]\n"
        );
        fs::write(&file, text).unwrap();
        let mut host = Host::new()
            .variable("WOPR_CONFIG", file.to_str().unwrap())
            .variable("THE_TOKEN", SECRET);
        let address = host.start().await;
        let tools = Self {
            folder,
            host,
            address,
            server,
            by,
        };
        for tool in ["echo", "count", "count_safely", "breaks", "environment", "trace"] {
            register(
                address,
                workflow(tool, "core.mcp.toolCall", &json!({ "tool": tool })),
            )
            .await;
        }
        tools
    }

    async fn run(&self, tool: &str) -> String {
        create(self.address, tool, json!({ "text": "five!" })).await
    }

    /// The calls that did something, each with its process.
    fn tally(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("tally")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn slow(&self) -> PathBuf {
        self.folder.path().join("tally.slow")
    }

    /// Starts a run whose tool works and does not answer.
    async fn begin(&self, tool: &str) -> String {
        fs::write(self.slow(), "").unwrap();
        let n_before = self.tally().len();
        let run = self.run(tool).await;
        let since = Instant::now();
        while self.tally().len() == n_before {
            assert!(
                since.elapsed() < LIMIT,
                "the tool is not called: {}",
                self.host.said()
            );
            // sleep: the pace of asking
            time::sleep(Duration::from_millis(20)).await;
        }
        run
    }

    /// Kills the process of the server with SIGKILL while a tool works, and lets the next one answer.
    async fn kill_server(&mut self) {
        match &mut self.server {
            Some((child, _)) => child.kill().await.unwrap(),
            None => {
                let line = self.tally().pop().unwrap();
                let process = line.rsplit(' ').next().unwrap().to_owned();
                let killed = Command::new("kill").args(["-KILL", &process]).status().await;
                assert!(killed.unwrap().success());
            }
        }
        fs::remove_file(self.slow()).unwrap();
        if self.server.is_some() {
            let (server, _) = serve(self.folder.path(), self.by).await;
            self.server = Some(server);
        }
    }

    async fn kill_host(&mut self) {
        self.host.kill().await;
        fs::remove_file(self.slow()).unwrap();
        self.address = self.host.start().await;
    }

    async fn failure(&self, run: &str) -> Value {
        reaches(self.address, run, "failed").await;
        events_of(self.address, run, "node.failed").await[0]["payload"]["error"].clone()
    }
}

async fn serve(folder: &Path, by: By) -> ((Child, ChildStdin), String) {
    let mut command = Command::new(MCP.python());
    command.arg(script()).arg("http");
    if by == By::Documents {
        command.arg("json");
    }
    let mut child = command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TALLY", folder.join("tally"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    timeout(LIMIT, lines.read_line(&mut line)).await.unwrap().unwrap();
    assert!(line.starts_with("http://"), "{line}");
    let stdin = child.stdin.take().unwrap();
    ((child, stdin), line.trim().to_owned())
}

fn workflow(id: &str, type_id: &str, config: &Value) -> Value {
    json!({
        "id": id, "name": id, "version": "1",
        "nodes": [{
            "id": "call", "typeId": type_id, "name": "Call", "position": {"x": 0, "y": 0}, "config": config,
            "inputs": if has_text(id) {
                json!({ "text": { "type": "variable", "variableName": "text" } })
            } else {
                json!({})
            },
        }],
        "edges": [], "triggers": [{"id": "manual", "type": "manual"}],
        "variables": [{ "name": "text", "type": "string" }],
        "metadata": {}, // A server that was killed takes seconds to come back.
        "settings": { "maxRetries": 10, "retryDelayMs": 500 },
    })
}

fn has_text(id: &str) -> bool {
    ["echo", "count", "count_safely"].contains(&id)
}

async fn calls_and_returns(by: By) {
    let tools = Tools::start(by).await;
    let address = tools.address;
    let run = tools.run("echo").await;
    reaches(address, &run, "completed").await;
    let given = outputs(address, &run).await;
    assert_eq!(
        (
            &given["text"],
            &given["contentTrust"],
            &given["structuredContent"]
        ),
        (
            &json!("five!"),
            &json!("untrusted"),
            &json!({ "result": "five!" })
        ),
        "{given:#}"
    );
    let called = events_of(address, &run, "agent.toolCalled").await;
    let returned = events_of(address, &run, "agent.toolReturned").await;
    assert_eq!(called[0]["payload"]["toolName"], "echo", "{called:#?}");
    assert_eq!(called[0]["payload"]["transport"], "mcp", "{called:#?}");
    assert_eq!(
        called[0]["payload"]["callId"], returned[0]["payload"]["callId"],
        "{returned:#?}"
    );

    // What the conformance suite has: a prompt that is none.
    let config = json!({ "mcp": { "tool": "echo", "arguments": { "text": "roundtrip-probe" } } });
    register(address, workflow("roundtrip", "core.ai.callPrompt", &config)).await;
    let run = create(address, "roundtrip", json!({})).await;
    reaches(address, &run, "completed").await;
    assert_eq!(outputs(address, &run).await["text"], "roundtrip-probe");

    let run = tools.run("trace").await;
    reaches(address, &run, "completed").await;
    let said = outputs(address, &run).await.to_string();
    assert!(
        said.contains("traceparent") && said.contains("idempotencyKey"),
        "{said}"
    );

    let run = tools.run("breaks").await;
    let failure = tools.failure(&run).await;
    assert_eq!(failure["code"], "tool_failed", "{failure:#}");
    let (_, document) = ask(address, "GET", "/.well-known/openwop", None).await;
    assert_eq!(document["mcp"]["supported"], true);

    let wrong = workflow(
        "wrong",
        "core.mcp.toolCall",
        &json!({ "tool": "echo", "arguments": { "txt": 1 } }),
    );
    register(address, wrong).await;
    let run = create(address, "wrong", json!({})).await;
    assert_eq!(tools.failure(&run).await["code"], "tool_arguments_invalid");

    let run = tools.run("environment").await;
    reaches(address, &run, "completed").await;
    let seen = outputs(address, &run).await;
    let log = json!(events(address, &run).await).to_string();
    assert!(!log.contains(SECRET), "the secret is nowhere in the log");
    if by == By::Process {
        let seen = seen["structuredContent"].as_object().unwrap();
        let seen = seen.get("result").and_then(Value::as_object).unwrap_or(seen);
        assert_eq!(seen["TOKEN"], "[redacted]", "{seen:#?}");
        assert!(!json!(seen).to_string().contains(KEY), "{seen:#?}");
        assert!(
            !seen.contains_key("WOPR_CONFIG") && !seen.contains_key("HOME"),
            "{seen:#?}"
        );
    }
}

#[tokio::test]
async fn process_is_called() {
    calls_and_returns(By::Process).await;
}

#[tokio::test]
async fn server_of_streams_is_called() {
    calls_and_returns(By::Events).await;
}

#[tokio::test]
async fn server_of_documents_is_called() {
    calls_and_returns(By::Documents).await;
}

async fn host_dies(by: By) {
    let mut tools = Tools::start(by).await;
    let run = tools.begin("count").await;
    tools.kill_host().await;
    let failure = tools.failure(&run).await;
    assert_eq!(failure["code"], "outcome_unknown", "{failure:#}");
    assert_eq!(tools.tally().len(), 1, "it is not called again");

    let run = tools.begin("count_safely").await;
    tools.kill_host().await;
    reaches(tools.address, &run, "completed").await;
    assert_eq!(outputs(tools.address, &run).await["text"], "5");
    assert_eq!(tools.tally().len(), 3, "it is called again");
}

#[tokio::test]
async fn call_of_a_process_is_repeated_after_the_host_died_only_if_it_may_be() {
    host_dies(By::Process).await;
}

#[tokio::test]
async fn call_over_http_is_repeated_after_the_host_died_only_if_it_may_be() {
    host_dies(By::Events).await;
}

async fn server_dies(by: By) {
    let mut tools = Tools::start(by).await;
    let run = tools.begin("count").await;
    tools.kill_server().await;
    let failure = tools.failure(&run).await;
    assert_eq!(failure["code"], "outcome_unknown", "{failure:#}");
    assert_eq!(tools.tally().len(), 1, "it is not called again");

    // The next server knows no session.
    let run = tools.begin("count_safely").await;
    tools.kill_server().await;
    reaches(tools.address, &run, "completed").await;
    assert_eq!(tools.tally().len(), 3, "it is called again");
}

#[tokio::test]
async fn call_of_a_process_that_died_is_repeated_only_if_it_may_be() {
    server_dies(By::Process).await;
}

#[tokio::test]
async fn call_of_a_server_of_streams_that_died_is_repeated_only_if_it_may_be() {
    server_dies(By::Events).await;
}

#[tokio::test]
async fn call_of_a_server_of_documents_that_died_is_repeated_only_if_it_may_be() {
    server_dies(By::Documents).await;
}
