//! A host as a process: started on a store of its own, stopped, killed and started again.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::http::{Connection, write_request};

/// The one key of the host.
pub(crate) const KEY: &str = "key-of-the-tests-0123456789abcdef";
/// More than any host needs to start or to stop, on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Where the workflows are: those of these tests, and the examples.
const WORKFLOWS: [&str; 2] = ["tests/workflows", "../../examples"];

/// A host and its store. Both are gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Host {
    folder: TempDir,
    variables: Vec<(&'static str, String)>,
    child: Option<Child>,
}

impl Host {
    /// A host that is not started yet, on an empty store.
    pub(crate) fn new() -> Self {
        // Beside the binary: the system's folder for temporary files may be in memory, where nothing is synced.
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        fs::create_dir_all(place).unwrap();
        Self {
            folder: tempfile::tempdir_in(place).unwrap(),
            variables: Vec::new(),
            child: None,
        }
    }

    /// Sets a variable of the environment.
    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Starts the process and waits for nothing.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "the host runs already");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let store = format!("sqlite:{}", self.folder.path().join("wopr.db").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_wopr"));
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("WOPR_") {
                command.env_remove(name);
            }
        }
        command
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--while-stdin",
                "--store",
                &store,
            ])
            .current_dir(self.folder.path())
            .env("WOPR_API_KEY", KEY)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        for folder in WORKFLOWS {
            command
                .arg("--workflows")
                .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        }
        self.child = Some(command.spawn().unwrap());
    }

    /// Starts the process and waits until it is ready.
    pub(crate) async fn start(&mut self) -> SocketAddr {
        self.spawn();
        let stdout = self.child.as_mut().unwrap().stdout.as_mut().unwrap();
        let mut line = String::new();
        timeout(LIMIT, BufReader::new(stdout).read_line(&mut line))
            .await
            .expect("the host says in time where it listens")
            .unwrap();
        let said: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}\n{}", self.said()));
        let address = said.as_object().unwrap().values().find_map(|value| {
            let text = value.as_str()?;
            text.strip_prefix("http://").unwrap_or(text).parse().ok()
        });
        let address = address.unwrap_or_else(|| panic!("an address in {line:?}"));
        timeout(LIMIT, ready(address))
            .await
            .expect("the host is ready in time");
        address
    }

    /// Ends the process as a power cut would.
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            panic!("the host ended by itself: {status}\n{}", self.said());
        }
        child.kill().await.unwrap();
    }

    /// Asks the process to end and waits until it has.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().unwrap();
        // Held until the end: waiting would close it, and the host takes its end for a first request to stop.
        let _stdin = child.stdin.take();
        let pid = child.id().expect("the host runs");
        let mut kill = Command::new("kill");
        assert!(kill.arg(pid.to_string()).status().await.unwrap().success());
        let status = timeout(LIMIT, child.wait()).await;
        status
            .unwrap_or_else(|_| panic!("the host stops in time\n{}", self.said()))
            .unwrap()
    }

    /// The end of its log, for a test that fails.
    pub(crate) fn said(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("host.log")
    }
}

/// Asks until the host says that it is ready.
async fn ready(address: SocketAddr) {
    let mut request = Vec::new();
    write_request(&mut request, "GET", "/readyz", "", None);
    let mut connection = Connection::open(address).await.unwrap();
    loop {
        let status = connection.send(&request).await.unwrap();
        connection.body(&mut Vec::new()).await.unwrap();
        if status == 200 {
            return;
        }
        assert_eq!(status, 503);
    }
}
