//! A host process on its own store, which can be stopped, killed and restarted.

use std::{
    env, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdout, Command},
    time::{self, timeout},
};

use crate::http::{Connection, write_request};

/// The only key of the host.
pub(crate) const KEY: &str = "key-of-the-tests-0123456789abcdef";
/// More than starting or stopping a host takes on any machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Interval between two readiness checks.
const PAUSE: Duration = Duration::from_millis(10);

/// The workflows of these tests, and the examples.
const WORKFLOWS: [&str; 2] = ["tests/workflows", "../../examples"];

/// A host and its process.
#[derive(Debug)]
pub(crate) struct Host {
    child: Option<Child>,
    folder: PathBuf,
    log: PathBuf,
    store: String,
    variables: Vec<(&'static str, String)>,
    /// Where it listens. With port 0 the system chooses a port at each start.
    listen: SocketAddr,
    /// It listens at the same address at each start.
    stays: bool,
    /// Deleted together with the host, after its process has exited.
    temporary: Option<TempDir>,
}

/// A started process that may not be ready yet.
#[derive(Debug)]
pub(crate) struct Birth(ChildStdout);

/// The folder for test files.
///
/// Next to the binary, because the system's temporary folder may be in memory, where nothing is synced.
pub(crate) fn place() -> PathBuf {
    let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(&place).unwrap();
    place
}

pub(crate) fn sqlite(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("wopr.db").display())
}

impl Host {
    /// A stopped host with an empty temporary store.
    pub(crate) fn new() -> Self {
        let temporary = tempfile::tempdir_in(place()).unwrap();
        let mut host = Self::over(temporary.path(), "host", sqlite(temporary.path()));
        host.temporary = Some(temporary);
        host
    }

    /// A stopped host over the given store. Its log goes to the folder, under its name.
    pub(crate) fn over(folder: &Path, name: &str, store: String) -> Self {
        Self {
            child: None,
            folder: folder.to_owned(),
            log: folder.join(format!("{name}.log")),
            store,
            variables: Vec::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            stays: false,
            temporary: None,
        }
    }

    /// Lets the host listen at the same address at each start. No client connects from that address, so none takes
    /// its port while the host is down.
    pub(crate) fn staying(mut self) -> Self {
        self.listen.set_ip([127, 0, 0, 2].into());
        self.stays = true;
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Starts the process without waiting.
    pub(crate) fn spawn(&mut self) -> Birth {
        assert!(self.child.is_none(), "the host runs already");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
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
                &self.listen.to_string(),
                "--while-stdin",
                "--store",
                &self.store,
            ])
            .current_dir(&self.folder)
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
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().expect("it is piped");
        self.child = Some(child);
        Birth(stdout)
    }

    /// Starts the process and waits until it is ready.
    pub(crate) async fn start(&mut self) -> SocketAddr {
        let birth = self.spawn();
        let born = birth.ready().await;
        let address = born.unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        if self.stays {
            self.listen = address;
        }
        address
    }

    /// The address of a host that stays, once it was started.
    pub(crate) fn listens(&self) -> SocketAddr {
        self.listen
    }

    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref()?.id()
    }

    /// Returns the exit status if the process has ended by itself, and forgets the process.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.as_mut()?.try_wait().unwrap()?;
        self.child = None;
        Some(status)
    }

    /// Kills the process with SIGKILL.
    pub(crate) async fn kill(&mut self) {
        if let Some(status) = self.ended() {
            panic!("the host ended by itself: {status}\n{}", self.said());
        }
        let mut child = self.child.take().expect("the host runs");
        child.kill().await.unwrap();
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        self.end("TERM").await
    }

    /// Sends a signal and waits for the exit.
    pub(crate) async fn end(&mut self, signal: &str) -> ExitStatus {
        self.signal(signal).await;
        let mut child = self.child.take().expect("the host runs");
        // Held open: the host would take the end of standard input as a first stop request.
        let _stdin = child.stdin.take();
        let status = timeout(LIMIT, child.wait()).await;
        status
            .unwrap_or_else(|_| panic!("the host stops in time\n{}", self.said()))
            .unwrap()
    }

    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.pid().expect("the host runs");
        let mut kill = Command::new("kill");
        kill.arg(format!("-{name}")).arg(pid.to_string());
        assert!(kill.status().await.unwrap().success(), "send {name} to {pid}");
    }

    /// The end of the host's log, for failed tests.
    pub(crate) fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

impl Birth {
    /// Waits until the host is ready and returns its address, or the reason why it did not start.
    pub(crate) async fn ready(self) -> Result<SocketAddr, String> {
        match timeout(LIMIT, self.born()).await {
            Ok(born) => born,
            Err(_) => Err("the host is not ready in time".to_owned()),
        }
    }

    async fn born(self) -> Result<SocketAddr, String> {
        let mut line = String::new();
        let read = BufReader::new(self.0).read_line(&mut line).await;
        read.map_err(|error| error.to_string())?;
        let said: Value = serde_json::from_str(&line).map_err(|error| format!("{error}: {line:?}"))?;
        let address = said["listening"]
            .as_str()
            .and_then(|text| text.strip_prefix("http://")?.parse().ok());
        let address = address.ok_or_else(|| format!("no address in {line:?}"))?;
        ready(address).await.map_err(|error| error.to_string())?;
        Ok(address)
    }
}

/// Polls until the host is ready.
async fn ready(address: SocketAddr) -> io::Result<()> {
    let mut request = Vec::new();
    write_request(&mut request, "GET", "/readyz", "", None);
    let mut connection = Connection::open(address).await?;
    loop {
        let status = connection.send(&request).await?;
        connection.body(&mut Vec::new()).await?;
        if status == 200 {
            return Ok(());
        }
        assert_eq!(status, 503);
        // sleep: there is no other way to learn of it, and asking all the time would slow it down
        time::sleep(PAUSE).await;
        if !connection.is_reusable() {
            connection = Connection::open(address).await?;
        }
    }
}
