//! `wopr a2a` against third-party agents: servers built with the official SDKs, on loopback.

use std::{fs, path::Path, process::Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{
    host::place,
    interop::{A2A_1, A2A_03, Client, JS_1, JS_03, LIMIT, Script, root},
};

/// An agent by an official SDK. It does what `behaviours.json` says.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    Python(Client, &'static str),
    JavaScript(Script),
}

pub(crate) const PYTHON_1: Program = Program::Python(A2A_1, "a2a_1_agent.py");
pub(crate) const PYTHON_03: Program = Program::Python(A2A_03, "a2a_03_agent.py");
pub(crate) const JAVASCRIPT_1: Program = Program::JavaScript(JS_1);
pub(crate) const JAVASCRIPT_03: Program = Program::JavaScript(JS_03);

impl Program {
    fn command(self) -> Command {
        match self {
            Self::Python(client, script) => {
                let mut command = Command::new(client.python());
                command
                    .arg(root().join("tests/interop").join(script))
                    .env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            Self::JavaScript(script) => script.command("agent.mjs"),
        }
    }
}

/// An agent that workflows call.
pub(crate) trait Callee {
    fn address(&self) -> &str;

    /// All its tasks with their histories, as its SDK writes them.
    async fn tasks(&self) -> Vec<Value>;
}

/// A running agent, which ends when its standard input is closed. Its tasks are kept in a folder.
pub(crate) struct Agent {
    program: Program,
    child: Child,
    _stdin: ChildStdin,
    pub(crate) address: String,
    folder: TempDir,
}

impl Callee for Agent {
    fn address(&self) -> &str {
        &self.address
    }

    async fn tasks(&self) -> Vec<Value> {
        let Ok(files) = fs::read_dir(self.folder.path().join("tasks")) else {
            return Vec::new();
        };
        let files = files.map(|file| file.unwrap().path());
        let files = files.filter(|path| path.extension().is_some_and(|name| name == "json"));
        files
            .map(|path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
            .collect()
    }
}

/// The exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

async fn spawn(program: Program, folder: &Path) -> (Child, ChildStdin, String) {
    let mut child = program
        .command()
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (line, _) = first_line(child.stdout.take().unwrap()).await;
    assert!(
        line.starts_with("http://"),
        "{program:?} says where it listens: {line}"
    );
    let stdin = child.stdin.take().unwrap();
    (child, stdin, line.trim().to_owned())
}

async fn first_line(stdout: ChildStdout) -> (String, BufReader<ChildStdout>) {
    let mut lines = BufReader::new(stdout);
    let mut line = String::new();
    let read = timeout(LIMIT, lines.read_line(&mut line)).await;
    read.unwrap().unwrap();
    (line, lines)
}

impl Agent {
    pub(crate) async fn start(program: Program) -> Self {
        let folder = tempfile::tempdir_in(place()).unwrap();
        let (child, stdin, address) = spawn(program, folder.path()).await;
        Self {
            program,
            child,
            _stdin: stdin,
            address,
            folder,
        }
    }

    /// Kills the agent with SIGKILL.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Starts a killed agent again, at the same addresses.
    pub(crate) async fn start_again(&mut self) {
        let (child, stdin, address) = spawn(self.program, self.folder.path()).await;
        assert_eq!(address, self.address);
        (self.child, self._stdin) = (child, stdin);
    }

    /// Removes the tasks of a killed agent.
    pub(crate) fn forget(&self) {
        fs::remove_dir_all(self.folder.path().join("tasks")).unwrap();
    }

    /// Whether a subscriber is told how a task ended.
    fn tells_the_end(&self) -> bool {
        match self.program {
            // This SDK closes the subscriber's stream before it sends the final state.
            Program::Python(_, script) => script != "a2a_03_agent.py",
            Program::JavaScript(_) => true,
        }
    }

    /// Creates a `wopr a2a` command in a version over a binding.
    fn command(&self, [version, binding]: [&str; 2], args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
        command
            .arg("a2a")
            .args(args)
            .args([
                "--server",
                &self.address,
                "--protocol",
                version,
                "--binding",
                binding,
            ])
            .env_remove("WOPR_API_KEY")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, pair: [&str; 2], args: &[&str]) -> Said {
        let output = timeout(LIMIT, self.command(pair, args).output()).await;
        let output = output.unwrap_or_else(|_| panic!("{pair:?} {args:?} ends in time"));
        let output = output.unwrap();
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command and requires an exit code.
    pub(crate) async fn ends(&self, pair: [&str; 2], code: i32, args: &[&str]) -> Said {
        let said = self.run(pair, args).await;
        assert_eq!(said.code, Some(code), "{pair:?} {args:?}: {said:#?}");
        said
    }
}

/// The text of all parts of an artifact.
fn text_of(artifact: &Value) -> String {
    let parts = artifact["parts"].as_array().unwrap().iter();
    parts.map(|part| part["text"].as_str().unwrap()).collect()
}

/// Calls every operation of an agent in a version over a binding.
async fn journey(agent: &Agent, pair: [&str; 2]) {
    let shown = agent.ends(pair, 0, &["card"]).await;
    assert!(shown.out.contains("spoken here"), "{pair:?}: {shown:#?}");
    agent.ends(pair, 0, &["card", "--extended"]).await;

    let sent = agent.ends(pair, 0, &["send", "hello", "--json"]).await.json();
    let task = &sent["task"];
    assert_eq!(
        task["status"]["state"], "TASK_STATE_COMPLETED",
        "{pair:?}: {sent:#}"
    );
    assert_eq!(text_of(&task["artifacts"][0]), "hello");
    let (id, context) = (task["id"].as_str().unwrap(), task["contextId"].as_str().unwrap());
    let kept = agent.ends(pair, 0, &["get", id, "--json"]).await.json();
    assert_eq!(text_of(&kept["artifacts"][0]), "hello");

    let said = agent.ends(pair, 0, &["stream", "hello, world", "--json"]).await;
    let items: Vec<Value> = said
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let chunks: Vec<_> = items
        .iter()
        .filter_map(|item| item.get("artifactUpdate"))
        .collect();
    let texts: String = chunks.iter().map(|chunk| text_of(&chunk["artifact"])).collect();
    assert_eq!(
        (chunks.len(), texts.as_str()),
        (2, "hello, world"),
        "{pair:?}: {items:#?}"
    );
    assert_eq!(
        (&chunks[1]["append"], &chunks[1]["lastChunk"]),
        (&true.into(), &true.into())
    );

    // A task that waits for input ends the command with 6; a message to the task answers it.
    let asked = agent.ends(pair, 6, &["send", "ask", "--json"]).await.json();
    let asking = asked["task"]["id"].as_str().unwrap().to_owned();
    let said = agent.ends(pair, 6, &["get", &asking]).await;
    assert!(said.out.contains("What shall it be?"), "{pair:?}: {said:#?}");
    let of = asked["task"]["contextId"].as_str().unwrap();
    let said = agent
        .ends(pair, 0, &["send", "tea", "--task", &asking, "--context", of])
        .await;
    assert!(said.out.contains("completed"), "{pair:?}: {said:#?}");

    if pair[0] == "1.0" {
        let listed = agent
            .ends(pair, 0, &["list", "--context", context, "--json"])
            .await
            .json();
        assert_eq!(listed["tasks"][0]["id"], id, "{pair:?}: {listed:#}");
        let listed = agent
            .ends(pair, 0, &["list", "--all", "--page-size", "1", "--json"])
            .await
            .json();
        assert!(
            listed["tasks"].as_array().unwrap().len() >= 3,
            "{pair:?}: {listed:#}"
        );
    }

    // A subscriber sees a cancel by another client.
    let sent = agent
        .ends(pair, 0, &["send", "wait", "--no-wait", "--json"])
        .await
        .json();
    let waiting = sent["task"]["id"].as_str().unwrap();
    let mut watching = agent
        .command(pair, &["subscribe", waiting, "--json"])
        .spawn()
        .unwrap();
    let (first, mut rest) = first_line(watching.stdout.take().unwrap()).await;
    assert!(first.contains(waiting), "{pair:?}: {first}");
    let said = agent.ends(pair, 0, &["cancel", waiting]).await;
    assert!(said.out.contains("canceled"), "{pair:?}: {said:#?}");
    let ended = timeout(LIMIT, watching.wait()).await.unwrap().unwrap();
    let mut last = first;
    loop {
        let mut line = String::new();
        if rest.read_line(&mut line).await.unwrap() == 0 {
            break;
        }
        last = line;
    }
    if agent.tells_the_end() {
        assert_eq!(ended.code(), Some(1), "{pair:?}: {last}");
        assert!(last.contains("TASK_STATE_CANCELED"), "{pair:?}: {last}");
    }
    agent.ends(pair, 1, &["cancel", waiting]).await;
    let said = agent.ends(pair, 4, &["get", "no-such-task"]).await;
    assert!(said.err.contains("the agent answered"), "{pair:?}: {said:#?}");

    push_configs(agent, pair, &asking).await;
}

/// Push configurations, where the SDKs support them: in 0.3 not every binding can list or delete.
async fn push_configs(agent: &Agent, pair: [&str; 2], task: &str) {
    let set = [
        "push-config",
        "set",
        task,
        "--url",
        "https://example.com/hook",
        "--id",
        "c",
        "--token",
        "secret",
        "--auth-scheme",
        "Bearer",
        "--auth-credentials",
        "hidden",
    ];
    let made = agent.ends(pair, 0, &set).await;
    assert!(
        made.out.contains("https://example.com/hook"),
        "{pair:?}: {made:#?}"
    );
    assert!(
        !made.out.contains("secret") && !made.out.contains("hidden"),
        "{pair:?}: {made:#?}"
    );
    let got = agent
        .ends(pair, 0, &["push-config", "get", task, "c", "--json"])
        .await
        .json();
    assert_eq!(
        (&got["id"], &got["taskId"]),
        (&"c".into(), &task.into()),
        "{pair:?}: {got:#}"
    );
    if pair == ["0.3", "http-json"] || pair == ["0.3", "grpc"] {
        return;
    }
    let listed = agent
        .ends(pair, 0, &["push-config", "list", task, "--json"])
        .await
        .json();
    assert_eq!(
        listed["configs"].as_array().unwrap().len(),
        1,
        "{pair:?}: {listed:#}"
    );
    agent.ends(pair, 0, &["push-config", "delete", task, "c"]).await;
    let listed = agent
        .ends(pair, 0, &["push-config", "list", task, "--json"])
        .await
        .json();
    assert_eq!(
        listed["configs"].as_array().unwrap().len(),
        0,
        "{pair:?}: {listed:#}"
    );
}

const BINDINGS: [&str; 3] = ["jsonrpc", "http-json", "grpc"];

#[tokio::test]
async fn agent_of_sdk_1_0_is_called_over_every_binding() {
    let agent = Agent::start(PYTHON_1).await;
    for binding in BINDINGS {
        journey(&agent, ["1.0", binding]).await;
    }
}

#[tokio::test]
async fn agent_of_sdk_1_0_is_called_in_0_3() {
    let agent = Agent::start(PYTHON_1).await;
    for binding in BINDINGS {
        journey(&agent, ["0.3", binding]).await;
    }
}

#[tokio::test]
async fn agent_of_sdk_0_3_is_called_over_every_binding() {
    let agent = Agent::start(PYTHON_03).await;
    for binding in BINDINGS {
        journey(&agent, ["0.3", binding]).await;
    }
}
