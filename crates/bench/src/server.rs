//! The server under test: a child process on its own place, or a running server.
//!
//! A child ends with its handle, however the benchmark ends. It is this binary with default settings, so the
//! results apply to what users run.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, ToSocketAddrs as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;
use tokio::sync::oneshot;

use super::{call::Caller, metrics::Metrics, place::Place, process::Process};

/// Startup timeout of a child.
const START_LIMIT: Duration = Duration::from_secs(120);

/// The key of our own servers. They listen on loopback, and only while the benchmark runs.
pub(crate) const KEY: &str = "key-of-wopr-bench-0123456789abcdef";
/// The master key of our own servers, which keep no secrets worth protecting.
const MASTER_KEY: [u8; 32] = *b"master key of wopr bench servers";

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    /// Time from the start of the process until it was ready.
    pub(crate) ready_after: Duration,
    child: Option<Running>,
}

/// A child process; killed and reaped on drop.
#[derive(Debug)]
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has ended by itself, which is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Encodes the master key for the server's configuration.
pub(crate) fn master_key() -> String {
    STANDARD.encode(MASTER_KEY)
}

/// This program, to be started with default settings: those are measured, so the environment of this terminal must not
/// apply.
pub(crate) fn program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("WOPR_") || text.starts_with("WORKFLOW_ENGINE_") {
            command.env_remove(&name);
        }
    }
    Ok(command)
}

impl Server {
    /// Starts this binary as a server on a place, with additional settings `name=value`, and waits until it
    /// is ready.
    pub(crate) async fn start(place: &Place, settings: &[String]) -> Result<Self> {
        let log = place.folder().join("server.log");
        let mut command = program()?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--while-stdin", "--store"]);
        command.arg(place.url());
        for setting in settings {
            command.args(["--set", setting]);
        }
        // All servers of a benchmark have the same key, so one can call another.
        match settings.iter().any(|setting| setting.starts_with("a2a.peers=")) {
            true => command.env("WOPR_A2A_PEER_TOKEN", KEY),
            false => command.env_remove("WOPR_A2A_PEER_TOKEN"),
        };
        let start = Instant::now();
        let process = command
            .current_dir(place.folder())
            .env("WOPR_API_KEY", KEY)
            .env("WOPR_MASTER_KEY", master_key())
            // Open as long as this process lives, so that the child ends even if we are killed.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).context("make the log of the server")?)
            .spawn()
            .context("start the server")?;
        let mut running = Running(process);
        let stdout = running.0.stdout.take().expect("the output was asked for");
        let line = tokio::time::timeout(START_LIMIT, first_line(stdout)).await;
        let address = match line {
            Ok(line) => line.and_then(|line| announced(&line)),
            Err(_) => Err(anyhow!("it did not say within {START_LIMIT:?} where it listens")),
        };
        let address = address.with_context(|| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            format!("start the server, which said {:?}", said.trim())
        })?;
        let mut server = Self {
            address,
            key: KEY.to_owned(),
            ready_after: Duration::ZERO,
            child: Some(running),
        };
        server.caller().get("/readyz").await.context("start the server")?;
        server.ready_after = start.elapsed();
        Ok(server)
    }

    /// Uses a running server.
    pub(crate) fn at(url: &str, key: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").with_context(|| {
            format!("use {url}: it has to begin with http://, load is not sent through TLS")
        })?;
        let rest = rest.trim_end_matches('/');
        ensure!(
            !rest.contains('/'),
            "use {url}: it has to end with the host and port"
        );
        let has_port = rest
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port {
            rest.to_owned()
        } else {
            format!("{rest}:80")
        };
        let address = authority
            .to_socket_addrs()
            .with_context(|| format!("resolve {authority}"))?
            .next()
            .with_context(|| format!("resolve {authority}"))?;
        Ok(Self {
            address,
            key: key.to_owned(),
            ready_after: Duration::ZERO,
            child: None,
        })
    }

    /// The server process, if it is ours.
    pub(crate) fn process(&self) -> Option<Process> {
        self.child.as_ref().map(|child| Process(child.0.id()))
    }

    pub(crate) fn caller(&self) -> Caller {
        Caller::new(self.address, &self.key)
    }

    pub(crate) async fn register(&self, document: &Value) -> Result<()> {
        let registered = self.caller().post("/v1/workflows", document).await;
        registered.with_context(|| format!("register the workflow {}", document["id"]))
    }

    /// Reads the server's counters. If a server does not expose them, the figures derived from them are
    /// omitted.
    pub(crate) async fn counters(&self) -> Result<Metrics> {
        let mut caller = self.caller();
        let status = caller.ask("GET", "/metrics", "", None).await?;
        let text = String::from_utf8_lossy(&caller.answer);
        Ok(Metrics::parse(if status == 200 { &text } else { "" }))
    }
}

/// Reads the first line of an output. A thread drains the rest, because a full pipe would block its writer.
async fn first_line(output: impl std::io::Read + Send + 'static) -> Result<String> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        let read = output.read_line(&mut line);
        if sender.send(read.map(|_| line)).is_ok() {
            let _ = std::io::copy(&mut output, &mut std::io::sink());
        }
    });
    match receiver.await.context("read its output")? {
        Ok(line) if line.is_empty() => bail!("it ended at once"),
        line => line.context("read its output"),
    }
}

/// Finds the address in the first line that a server prints: the first value that is an address or an origin.
fn announced(line: &str) -> Result<SocketAddr> {
    let value: Value =
        serde_json::from_str(line).with_context(|| format!("read the line {line:?} as JSON"))?;
    let address = |value: &Value| {
        let text = value.as_str()?;
        text.strip_prefix("http://").unwrap_or(text).parse().ok()
    };
    let members = value.as_object().map(|object| object.values());
    members
        .and_then(|mut values| values.find_map(address))
        .ok_or_else(|| anyhow!("find an address in the line {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_in_the_startup_line() {
        let expected: SocketAddr = "127.0.0.1:4711".parse().unwrap();
        for line in [
            r#"{"listening":"127.0.0.1:4711"}"#,
            r#"{"event":"listening","address":"127.0.0.1:4711","pid":7}"#,
            r#"{"url":"http://127.0.0.1:4711"}"#,
        ] {
            assert_eq!(announced(line).unwrap(), expected, "{line}");
        }
        assert!(announced("listening").is_err());
        assert!(announced(r#"{"pid":7}"#).is_err());
    }

    #[test]
    fn url_names_only_a_host() {
        for url in ["http://127.0.0.1:4711", "http://127.0.0.1:4711/"] {
            let server = Server::at(url, "k").unwrap();
            assert_eq!(server.address, "127.0.0.1:4711".parse().unwrap());
        }
        assert_eq!(Server::at("http://127.0.0.1", "k").unwrap().address.port(), 80);
        for url in ["https://127.0.0.1", "127.0.0.1:80", "http://127.0.0.1/a"] {
            assert!(Server::at(url, "k").is_err(), "{url}");
        }
    }
}
