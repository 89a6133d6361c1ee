//! The host of the demo: a child process that is always brought to an end.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{examples, host};

/// How long a host may take to start or to stop.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Lines of the host's log that are shown when something goes wrong.
const LOG_LINES: usize = 12;

/// Where the host keeps its things, and the host while it lives.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    key: String,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// The host stops in order when this is closed, and with it when this process dies.
    stdin: ChildStdin,
    /// Kept open, so that the host can write whatever it likes.
    _stdout: Lines<BufReader<ChildStdout>>,
}

/// The line a host begins with.
#[derive(Debug, Deserialize)]
pub(super) struct Listening {
    pub(super) listening: String,
    pub(super) pid: u32,
}

impl Place {
    /// Writes the examples and a configuration with a key into a folder.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let workflows = folder.join("workflows");
        examples::write_to(&workflows)?;
        let place = Self {
            folder: folder.to_owned(),
            key: host::new_secret()?,
            running: None,
        };
        let text = |path: &Path| json!(path.display().to_string());
        let config = format!(
            "store = {}\nworkflows = [{}]\n\n[log]\nlevel = \"warn\"\n\n\
             [[auth.keys]]\nid = \"reviewer\"\nsecret = {}\ntenant = \"default\"\nscopes = [\"*\"]\n",
            json!(format!("sqlite:{}", folder.join("wopr.db").display())),
            text(&workflows),
            json!(place.key),
        );
        fs::write(place.config(), config).context("write the demo's configuration")?;
        Ok(place)
    }

    /// The key the host knows.
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The host's configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("wopr.toml")
    }

    /// Starts a host and waits until it says where it listens.
    pub(super) async fn start(&mut self) -> Result<Listening> {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("host.log"))
            .context("open the host's log")?;
        let mut command = Command::new(env::current_exe().context("find this binary")?);
        command
            .args(["serve", "--while-stdin", "--listen", "127.0.0.1:0", "--config"])
            .arg(self.config())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true);
        // Settings of whoever runs the demo are for their own hosts.
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"WOPR_") {
                command.env_remove(name);
            }
        }
        let mut child = command.spawn().context("start the host")?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("reach the host's standard streams");
        };
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(TIMEOUT, lines.next_line()).await;
        self.running = Some(Running {
            child,
            stdin,
            _stdout: lines,
        });
        let line = line
            .context("wait for the host to listen")?
            .context("read from the host")?;
        let line = line.context("start the host: it ended at once")?;
        serde_json::from_str(&line).context("read where the host listens")
    }

    /// Ends the host with SIGKILL and waits until it is gone.
    pub(super) async fn kill(&mut self) -> Option<ExitStatus> {
        let mut running = self.running.take()?;
        // One that ended on its own is as gone.
        let _ = running.child.start_kill();
        running.child.wait().await.ok()
    }

    /// Asks the host to stop in order and waits until it has.
    pub(super) async fn stop(&mut self) -> Result<ExitStatus> {
        let running = self.running.take().context("stop the host: there is none")?;
        let Running {
            mut child,
            stdin,
            _stdout,
        } = running;
        drop(stdin);
        let ended = timeout(TIMEOUT, child.wait())
            .await
            .context("wait for the host to stop")?;
        ended.context("stop the host")
    }

    /// The end of the host's log.
    pub(super) fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("host.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let end = &lines[lines.len().saturating_sub(LOG_LINES)..];
        end.iter()
            .map(|line| format!("  {line}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// How this binary was started, for commands to try.
pub(super) fn ourselves() -> &'static str {
    // Cargo tells what it runs.
    if env::var_os("CARGO").is_some() {
        "cargo run --profile quick --"
    } else {
        "wopr"
    }
}
