//! The demo's host: a child process that never outlives the demo.

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

use crate::{
    examples::{self, Example},
    host,
};

/// Time limit for starting or stopping the host.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Number of log lines shown after an error.
const LOG_LINES: usize = 12;

/// The host's folder and, while it runs, its process.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    key: String,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// The host shuts down when this is closed, including when this process dies.
    stdin: ChildStdin,
    /// Kept open so that the host can always write to it.
    _stdout: Lines<BufReader<ChildStdout>>,
}

/// Another host, as an agent that workflows call.
#[derive(Debug)]
pub(super) struct Agent<'a> {
    pub(super) name: &'a str,
    pub(super) url: &'a str,
    pub(super) key: &'a str,
}

/// The first line that a host prints.
#[derive(Debug, Deserialize)]
pub(super) struct Listening {
    pub(super) listening: String,
    pub(super) pid: u32,
}

impl Place {
    /// Writes workflows, and a configuration with a key, into a folder. The host may call other hosts as agents.
    pub(super) fn new(folder: &Path, examples: &[Example], agents: &[Agent<'_>]) -> Result<Self> {
        let workflows = folder.join("workflows");
        examples::write_to(&workflows, examples)?;
        let place = Self {
            folder: folder.to_owned(),
            key: host::new_secret()?,
            running: None,
        };
        let text = |path: &Path| json!(path.display().to_string());
        let mut config = format!(
            "store = {}\nworkflows = [{}]\n\n[log]\nlevel = \"warn\"\n\n\
             [[auth.keys]]\nid = \"reviewer\"\nsecret = {}\ntenant = \"default\"\nscopes = [\"*\"]\n",
            json!(format!("sqlite:{}", folder.join("wopr.db").display())),
            text(&workflows),
            json!(place.key),
        );
        if !agents.is_empty() {
            config.push_str("\n[egress]\nallow = [\"127.0.0.0/8\"]\n");
        }
        for Agent { name, url, key } in agents {
            let file = folder.join(format!("key-of-{name}"));
            fs::write(&file, key).context("write the key of an agent")?;
            config.push_str(&format!(
                "\n[[a2a.peers]]\nname = {}\nurl = {}\ntoken_file = {}\n",
                json!(name),
                json!(url),
                text(&file)
            ));
        }
        fs::write(place.config(), config).context("write the demo's configuration")?;
        Ok(place)
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("wopr.toml")
    }

    /// Starts a host and waits until it prints its address.
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
        // The user's own settings must not affect the demo's host.
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

    /// Kills the host with SIGKILL and waits until it has exited.
    pub(super) async fn kill(&mut self) -> Option<ExitStatus> {
        let mut running = self.running.take()?;
        // Fails only if the host has already exited.
        let _ = running.child.start_kill();
        running.child.wait().await.ok()
    }

    /// Requests a graceful shutdown and waits for it.
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

    /// Returns the last lines of the host's log.
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

/// The command prefix for commands that the user may try next.
pub(super) fn ourselves() -> &'static str {
    // Cargo sets this variable for the programs it runs.
    if env::var_os("CARGO").is_some() {
        "cargo run --profile quick --"
    } else {
        "wopr"
    }
}
